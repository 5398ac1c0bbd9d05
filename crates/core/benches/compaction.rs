//! Cost of a summary without a model: `cargo bench -p memoird-core --bench compaction`.
//!
//! It covers decoded turns to the summary's text. The throughput is that of the summarized text.

use divan::Bencher;
use divan::counter::BytesCount;
use memoird_core::compaction::transcript::{TranscriptTurn, transcript_turn};
use memoird_core::compaction::{CoveredTurns, SummaryRoom, merge};
use memoird_core::turn::{PartKind, Role, Turn};

fn main() {
    divan::main();
}

const TURNS: [usize; 3] = [100, 1_000, 4_000];
/// Turns that stay after the summarized ones.
const FOLLOWING: usize = 40;
/// Maximum sizes in a window of about 100,000 tokens.
const ROOM: SummaryRoom = SummaryRoom {
    summary: 48_000,
    opening: 80_000,
    user_turns: 24_000,
};
const WORDS: &str = "order refund laptop delivery address account status flight invoice customer \
    repository function error line test server peanuts metric units report Berlin always never";

/// A sentence of twelve words, different for each number.
fn sentence(number: usize) -> String {
    let words: Vec<&str> = WORDS.split(' ').collect();
    let mut rest = number.wrapping_mul(2_654_435_761);
    let mut text = format!("Item {number}");
    for _ in 0..10 {
        text.push(' ');
        text.push_str(words[rest % words.len()]);
        rest = rest / words.len() + number;
    }
    text.push('.');
    text
}

/// A turn of a chat: a question, a call, its result or a reply, in turn.
fn turn(number: usize) -> Turn {
    let id = format!("call {}", number / 4);
    let (role, kind) = match number % 4 {
        0 => (
            Role::User,
            PartKind::Text(format!("{} {}", sentence(number), sentence(number + 1))),
        ),
        1 => (
            Role::Assistant,
            PartKind::ToolUse {
                id,
                name: "update_order".to_owned(),
                input_json: format!(r#"{{"id":"W{number}","quantity":2}}"#),
            },
        ),
        2 => (
            Role::Tool,
            PartKind::ToolResult {
                tool_use_id: id,
                content: format!(
                    r#"{{"status":"ok","note":"{}","price":{number}}}"#,
                    sentence(number)
                ),
                parts: Vec::new(),
                is_error: false,
            },
        ),
        _ => (Role::Assistant, PartKind::Text(sentence(number))),
    };
    Turn::new(role, vec![kind.into()])
}

#[divan::bench(args = TURNS)]
fn summarize(bencher: Bencher<'_, '_>, turns: usize) {
    let decoded: Vec<Turn> = (0..turns + FOLLOWING).map(turn).collect();
    let read = || -> Vec<TranscriptTurn> {
        let seqs = 1..;
        let turns = seqs.zip(&decoded);
        turns
            .map(|(seq, turn)| transcript_turn(seq, turn, 200))
            .collect()
    };
    let bytes: usize = read()[..turns].iter().map(|turn| turn.text.len()).sum();
    let covered = CoveredTurns {
        through_seq: turns as u64,
        turns: turns as u64,
    };
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        let all = read();
        let (span, following) = all.split_at(turns);
        merge(None, span, following).fit(ROOM).text(covered)
    });
}
