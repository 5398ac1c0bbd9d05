//! Speed of token counting. Run with `cargo bench -p memoird-formats`.

use std::sync::Arc;

use divan::Bencher;
use divan::counter::BytesCount;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_formats::tokens::OpenAiTokenizer::{Cl100k, O200k};
use memoird_formats::tokens::{Dialect, Scale, Tokenizer};

fn main() {
    divan::main();
}

const PROSE: &str = "The captain read the letter twice, folded it carefully, and asked whether \
    his ship could leave before the storm reached the coast. ";
const JSON: &str = r#"{"flight_number":"HAT137","origin":"PHX","date":"2024-05-24","price":174,
    "seats":{"economy":12,"business":0},"status":"available"},"#;
const BASE64: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLv";
const TEXTS: [(&str, &str); 4] = [
    ("prose", PROSE),
    ("json", JSON),
    ("base64", BASE64),
    ("one letter", "a"),
];
const TEXT_BYTES: usize = 256 * 1024;

fn count(bencher: Bencher<'_, '_>, tokenizer: &dyn Tokenizer, text: &str) {
    let text = text.repeat(TEXT_BYTES / text.len());
    // Load the tables before measuring.
    tokenizer.count("warm");
    let bytes = BytesCount::of_str(&text);
    bencher
        .counter(bytes)
        .bench(|| tokenizer.count(divan::black_box(&text)));
}

#[divan::bench(args = TEXTS.map(|(name, _)| name))]
fn o200k(bencher: Bencher<'_, '_>, name: &str) {
    count(bencher, &O200k, text(name));
}

#[divan::bench(args = TEXTS.map(|(name, _)| name))]
fn cl100k(bencher: Bencher<'_, '_>, name: &str) {
    count(bencher, &Cl100k, text(name));
}

#[divan::bench]
fn turn_of_a_kilobyte(bencher: Bencher<'_, '_>) {
    let scale = Scale::new(Arc::new(O200k), Dialect::OpenAiReasoning);
    let turn = Turn::new(Role::User, vec![PartKind::Text(PROSE.repeat(8)).into()]);
    bencher.bench(|| scale.turn(divan::black_box(&turn)));
}

fn text(name: &str) -> &'static str {
    TEXTS
        .iter()
        .find(|(of, _)| *of == name)
        .map_or("", |(_, text)| text)
}
