//! Cost of stored memories: `cargo bench -p memoird-memories --bench files`.
//!
//! Goals: 5,000 facts per second in durable groups of 64; a lexical recall for a tenant of 100,000
//! in 3 ms; a hybrid recall over 10,000 memories of one subject in 5 ms; all independent of the
//! number of other subjects. File sizes are printed at the end.

use std::sync::{LazyLock, Mutex};

use divan::Bencher;
use divan::counter::ItemsCount;
use memoird_core::ids::{MemoryId, Subject, TenantId};
use memoird_core::time::Timestamp;
use memoird_memories::MemoryError;
use memoird_memories::rules::{MemoryKind, MemoryLimits, NearDuplicate};
use memoird_memories::store::{
    Embedding, FilesOptions, MemoryReader, MemoryStore, RememberCommand, TenantMemories, WriteJob,
};
use memoird_memories::{ForgetRequest, RecallRequest, RememberRequest};
use tempfile::TempDir;

const DIMENSION: usize = 384;
const MODEL: &str = "bench";
/// Facts per group commit.
const GROUP: usize = 64;
/// Number of distinct words. The n-th occurs with a frequency of 1 / n.
const VOCABULARY: usize = 8_000;

fn main() {
    divan::main();
    for (name, subjects, each) in [("1,000 x 5", 1_000, 5), ("1 x 10,000", 1, 10_000)] {
        let (bare, full) = (weigh(subjects, each, false), weigh(subjects, each, true));
        let of_vectors = full.saturating_sub(bare);
        report(&format!(
            "{name}: {bare} bytes, {of_vectors} more with vectors"
        ));
    }
}

#[allow(clippy::print_stdout, reason = "a benchmark reports")]
fn report(line: &str) {
    println!("{line}");
}

/// SplitMix64 (G. Steele, D. Lea and C. Flood, 2014), so that every run uses the same facts.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn word(&mut self) -> String {
        let place = (VOCABULARY as f64).powf(self.unit());
        format!("word{}", place.floor())
    }

    fn text(&mut self) -> String {
        (0..15).map(|_| self.word()).collect::<Vec<_>>().join(" ")
    }

    fn vector(&mut self) -> Embedding {
        let coarse = |roll: u64| f32::from(u16::try_from(roll >> 48).unwrap_or(0));
        let values = (0..DIMENSION)
            .map(|_| coarse(self.next()) / 65_536.0 - 0.5)
            .collect();
        Embedding {
            model: MODEL.into(),
            values,
        }
    }
}

/// A tenant with a number of subjects of equal size. The first subject may have another size.
struct Tenant {
    _dir: TempDir,
    memories: TenantMemories,
}

impl Tenant {
    fn new(first: usize, others: usize, each: usize, vectors: bool) -> Self {
        let ready = Self::try_new(first, others, each, vectors);
        ready.unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_new(
        first: usize,
        others: usize,
        each: usize,
        vectors: bool,
    ) -> Result<Self, MemoryError> {
        let (dir, memories) = open()?;
        let model = vectors.then_some(MODEL);
        memories.write_one(move |writer| writer.set_embedding_model(model))?;
        let mut dice = Dice(1);
        let mut owners: Vec<usize> = (0..others * each).map(|place| 1 + place % others).collect();
        // Spread the first subject's memories among the others.
        for _ in 0..first {
            let at = usize::try_from(dice.next()).unwrap_or(0) % (owners.len() + 1);
            owners.push(0);
            let last = owners.len() - 1;
            owners.swap(at, last);
        }
        let facts: Vec<RememberCommand> = (1..)
            .zip(owners)
            .map(|(number, owner)| {
                let mut order = order(number, &format!("subject-{owner}"), dice.text());
                order.vector = vectors.then(|| dice.vector());
                // Otherwise each fact would be compared with all existing ones.
                order.near_duplicate = NearDuplicate::Keep;
                order
            })
            .collect();
        for group in facts.chunks(1_000) {
            write(&memories, group)?;
        }
        memories.truncate_log()?;
        Ok(Self {
            _dir: dir,
            memories,
        })
    }
}

fn open() -> Result<(TempDir, TenantMemories), MemoryError> {
    let dir = TempDir::new().expect("a directory");
    let store = MemoryStore::open(dir.path(), &FilesOptions::default())?;
    let memories = store.tenant(&TenantId::parse("acme")?)?;
    Ok((dir, memories))
}

fn order(number: u64, subject: &str, text: String) -> RememberCommand {
    let at = Timestamp::from_ms(1_700_000_000_000 + i64::try_from(number).unwrap_or(0));
    let subject = Subject::parse(subject).unwrap_or_else(|error| panic!("{error}"));
    let request = RememberRequest::new(None, MemoryKind::Project, text);
    let id = MemoryId::new(at.as_ms(), u128::from(number));
    // No memory is near enough to be merged.
    RememberCommand::new(request, subject, id, at, 2.0)
}

fn write(memories: &TenantMemories, orders: &[RememberCommand]) -> Result<(), MemoryError> {
    let jobs = orders.iter().cloned().map(|order| {
        WriteJob::new(move |writer| {
            writer
                .remember(&order, &MemoryLimits::default())
                .map(|_| ())
        })
    });
    let answers = memories.write(jobs.collect())?;
    answers.into_iter().try_for_each(|answer| answer.map(drop))
}

fn ask(dice: &mut Dice, vector: bool) -> (RecallRequest, Option<Embedding>) {
    let words: Vec<String> = (0..8).map(|_| dice.word()).collect();
    let request = RecallRequest {
        query: words.join(" "),
        subjects: Subject::parse("subject-0").into_iter().collect(),
        limit: 50,
        ..RecallRequest::default()
    };
    (request, vector.then(|| dice.vector()))
}

fn recall(bencher: Bencher<'_, '_>, tenant: &Tenant, vector: bool) {
    let dice = Mutex::new(Dice(7));
    let question = || match dice.lock() {
        Ok(mut dice) => ask(&mut dice, vector),
        Err(_) => ask(&mut Dice(7), vector),
    };
    bencher
        .with_inputs(question)
        .bench_values(|(request, vector)| {
            let now = Timestamp::from_ms(1_800_000_000_000);
            let recall = |reader: &MemoryReader<'_>| reader.recall(&request, vector.as_ref(), now);
            tenant.memories.read(recall).is_ok()
        });
}

static ALONE_100: LazyLock<Tenant> = LazyLock::new(|| Tenant::new(100, 0, 0, false));
static AMID_1_000_OF_100: LazyLock<Tenant> = LazyLock::new(|| Tenant::new(100, 999, 100, false));
static ALONE_10_000: LazyLock<Tenant> = LazyLock::new(|| Tenant::new(10_000, 0, 0, true));
static AMID_10_OF_10_000: LazyLock<Tenant> = LazyLock::new(|| Tenant::new(10_000, 9, 10_000, true));

#[divan::bench(sample_count = 200, sample_size = 4)]
fn words_of_100_alone(bencher: Bencher<'_, '_>) {
    recall(bencher, &ALONE_100, false);
}

#[divan::bench(sample_count = 200, sample_size = 4)]
fn words_of_100_amid_100_000(bencher: Bencher<'_, '_>) {
    recall(bencher, &AMID_1_000_OF_100, false);
}

#[divan::bench(sample_count = 200, sample_size = 4)]
fn words_of_10_000_alone(bencher: Bencher<'_, '_>) {
    recall(bencher, &ALONE_10_000, false);
}

#[divan::bench(sample_count = 200, sample_size = 4)]
fn words_of_10_000_amid_100_000(bencher: Bencher<'_, '_>) {
    recall(bencher, &AMID_10_OF_10_000, false);
}

#[divan::bench(sample_count = 200, sample_size = 4)]
fn hybrid_of_10_000_alone(bencher: Bencher<'_, '_>) {
    recall(bencher, &ALONE_10_000, true);
}

#[divan::bench(sample_count = 200, sample_size = 4)]
fn hybrid_of_10_000_amid_100_000(bencher: Bencher<'_, '_>) {
    recall(bencher, &AMID_10_OF_10_000, true);
}

/// Durable groups of facts for a thousand subjects.
#[divan::bench(sample_count = 50, sample_size = 4)]
fn remember(bencher: Bencher<'_, '_>) {
    let (_dir, memories) = open().unwrap_or_else(|error| panic!("{error}"));
    let next = Mutex::new((Dice(3), 1_u64));
    let group = || {
        let mut next = next
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let (dice, number) = &mut *next;
        let facts = (0..GROUP).map(|_| {
            *number += 1;
            order(
                *number,
                &format!("subject-{}", dice.next() % 1_000),
                dice.text(),
            )
        });
        facts.collect::<Vec<_>>()
    };
    bencher
        .counter(ItemsCount::new(GROUP))
        .with_inputs(group)
        .bench_values(|orders| write(&memories, &orders).is_ok());
}

/// Forgets a subject of 1,000 memories among 9,000 others, until the file contains no trace of it.
#[divan::bench(sample_count = 5, sample_size = 1)]
fn forget_1_000(bencher: Bencher<'_, '_>) {
    let job = MemoryId::new(1, 1);
    let forget = move |memories: &TenantMemories| -> Result<bool, MemoryError> {
        let filter = ForgetRequest::Subject(Subject::parse("subject-0")?);
        let at = Timestamp::from_ms(1);
        memories.write_one(move |writer| writer.forget_begin(job, &filter, at))?;
        while !memories
            .write_one(move |writer| writer.forget_step(job, 500))?
            .is_done
        {}
        memories.truncate_log()
    };
    bencher
        .with_inputs(|| Tenant::new(1_000, 9, 1_000, true))
        .bench_refs(|tenant| forget(&tenant.memories).is_ok());
}

/// File size of a tenant in bytes.
fn weigh(subjects: usize, each: usize, vectors: bool) -> u64 {
    let tenant = Tenant::new(0, subjects, each, vectors);
    let now = Timestamp::from_ms(1_800_000_000_000);
    let counts = tenant.memories.read(|reader| reader.stats(None, now));
    counts.map_or(0, |counts| counts.file_bytes)
}
