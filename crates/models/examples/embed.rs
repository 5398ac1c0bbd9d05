//! Embeds texts with a local model, and prints their similarity to the first one and the speed.
//!
//! Run `cargo run --release -p memoird-models --features local-embedder --example embed -- FOLDER
//! TEXT...`.

use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use memoird_memories::Purpose;

/// Number of texts for timing, made by repeating the given ones.
const TIMED: usize = 64;

#[allow(clippy::disallowed_methods)]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: embed FOLDER TEXT...")?;
    let texts: Vec<String> = arguments.collect();
    let start = Instant::now();
    let embedder = memoird_models::open_local(Path::new(&dir))?;
    let mut out = io::stdout();
    writeln!(out, "{} after {:?}", embedder.model(), start.elapsed())?;
    let vectors = embedder.embed(Purpose::Memory, texts.clone()).await?;
    for (text, vector) in texts.iter().zip(&vectors) {
        let cosine: f32 = vectors[0].iter().zip(vector).map(|(a, b)| a * b).sum();
        writeln!(out, "{cosine:.4} {:.6?} {text}", &vector[..4])?;
    }
    let many: Vec<String> = texts.iter().cycle().take(TIMED).cloned().collect();
    let start = Instant::now();
    for batch in many.chunks(embedder.batch_max()) {
        embedder.embed(Purpose::Memory, batch.to_vec()).await?;
    }
    let seconds = start.elapsed().as_secs_f64();
    writeln!(out, "{} texts in {seconds:.2} s", many.len())?;
    Ok(())
}
