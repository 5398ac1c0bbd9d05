//! The text of a result: verbatim turns within a size limit.

use crate::date::Date;
use crate::nonce::Nonce;
use crate::quote;
use crate::time::Timestamp;
use crate::turn::{Part, PartKind, Turn};

use super::NAME;

/// Bytes reserved for the notes at the end of a result.
const NOTES_BYTES: usize = 512;
/// Smallest part of a turn that is worth showing, in bytes.
const EXCERPT_BYTES_MIN: usize = 120;
/// Bytes reserved for the note about omitted bytes inside a turn.
const OMISSION_BYTES: usize = 64;
/// Characters of a tool's name or a file's name in a header.
const NAME_CHARS_MAX: usize = 64;
/// Maximum ranges of missing turns that a note lists.
const MISSING_MAX: usize = 8;
const DAY_MINUTES: i64 = 24 * 60;

/// Collects turns into the text of a result, in ascending order of seq.
#[derive(Debug)]
pub struct EarlierTurns {
    text: String,
    /// Size limit of the turns in the text, in bytes.
    bytes_max: usize,
    nonce: Nonce,
    /// Words around which a long turn is excerpted, longest first.
    words: Vec<String>,
    /// Next expected seq. A later one leaves a gap.
    next_seq: u64,
    missing: Vec<(u64, u64)>,
}

/// One part of a turn: memoird's header line, and below it the escaped and indented content.
struct Block {
    header: String,
    content: String,
}

impl Block {
    fn bytes(&self) -> usize {
        self.header.len() + self.content.len() + "\n  \n".len()
    }

    fn push_to(&self, text: &mut String) {
        text.push_str(&self.header);
        text.push('\n');
        if !self.content.is_empty() {
            push_lines(text, &self.content);
        }
    }
}

impl EarlierTurns {
    /// Starts a text of at most `bytes_max` bytes.
    ///
    /// `first_seq` is the first expected turn. `words` are the words of a search.
    pub fn new(bytes_max: usize, nonce: Nonce, first_seq: u64, words: &str) -> Self {
        let mut words: Vec<String> = words
            .split_whitespace()
            .map(str::to_ascii_lowercase)
            .collect();
        words.sort_by_key(|word| std::cmp::Reverse(word.len()));
        Self {
            text: String::new(),
            bytes_max: bytes_max.saturating_sub(NOTES_BYTES).max(EXCERPT_BYTES_MIN),
            nonce,
            words,
            next_seq: first_seq,
            missing: Vec::new(),
        }
    }

    /// Adds a turn. Returns false if it does not fit; then no further turn may be added.
    ///
    /// The first turn is always added, as an excerpt if it is too long.
    pub fn push(&mut self, seq: u64, turn: &Turn) -> bool {
        self.push_within(seq, turn, usize::MAX)
    }

    /// Adds a turn as [`Self::push`] does, as an excerpt if it is longer than `turn_bytes_max`.
    pub fn push_within(&mut self, seq: u64, turn: &Turn, turn_bytes_max: usize) -> bool {
        let blocks = blocks(seq, turn, self.nonce);
        let left = self.bytes_max.saturating_sub(self.text.len());
        let room = left.min(turn_bytes_max);
        if blocks.iter().map(Block::bytes).sum::<usize>() <= room {
            blocks
                .iter()
                .for_each(|block| block.push_to(&mut self.text));
        } else if self.text.is_empty() || turn_bytes_max <= left {
            self.push_excerpt(&blocks, room);
        } else {
            return false;
        }
        self.expect_through(seq.saturating_sub(1));
        self.next_seq = seq + 1;
        true
    }

    /// Records all turns up to `last_seq` that were not added as missing.
    pub fn expect_through(&mut self, last_seq: u64) {
        if self.next_seq <= last_seq {
            self.missing.push((self.next_seq, last_seq));
            self.next_seq = last_seq + 1;
        }
    }

    /// Whether no turn was added.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The first seq that was neither added nor recorded as missing.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Appends a line of memoird's own.
    pub fn note(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Returns the text of a range that was read up to `to_seq`.
    ///
    /// Turns after the last added one are reported as not fitting.
    pub fn finish(mut self, to_seq: u64) -> String {
        let missing = std::mem::take(&mut self.missing);
        if !missing.is_empty() {
            let mut listed: Vec<String> = missing
                .iter()
                .take(MISSING_MAX)
                .map(|range| name_of(*range))
                .collect();
            if missing.len() > MISSING_MAX {
                listed.push("others".to_owned());
            }
            self.note(&format!("No longer stored: {}.", listed.join(", ")));
        }
        let next = self.next_seq;
        if next <= to_seq {
            let rest = name_of((next, to_seq));
            self.note(&format!(
                "Not included for lack of space: {rest}. To read on, call {NAME} with from_seq \
                 {next} and to_seq {to_seq}."
            ));
        }
        self.into_text()
    }

    /// Returns the text without notes about the range.
    pub fn into_text(self) -> String {
        self.text.trim_end().to_owned()
    }

    fn push_excerpt(&mut self, blocks: &[Block], room: usize) {
        let end = self.text.len() + room;
        for (index, block) in blocks.iter().enumerate() {
            let left = end.saturating_sub(self.text.len());
            if left < EXCERPT_BYTES_MIN && index > 0 {
                let hidden: usize = blocks[index..].iter().map(Block::bytes).sum();
                self.note(&omission(hidden));
                return;
            }
            let share = (left / (blocks.len() - index)).max(EXCERPT_BYTES_MIN);
            if block.bytes() <= share {
                block.push_to(&mut self.text);
            } else {
                let room = share.saturating_sub(block.header.len() + 2 * OMISSION_BYTES);
                self.text.push_str(&block.header);
                self.text.push('\n');
                self.push_cut(&block.content, room.max(OMISSION_BYTES));
            }
        }
    }

    /// Adds about `room` bytes of long content: around the search words, or its start and end.
    fn push_cut(&mut self, content: &str, room: usize) {
        let found = find(content, &self.words);
        let wanted_start = found.map_or(0, |at| at.saturating_sub(room / 3));
        let head_bytes = if found.is_some() { room } else { room / 3 * 2 };
        let start = content.floor_char_boundary(wanted_start);
        let head_end = content.floor_char_boundary(start + head_bytes);
        let wanted_tail = content
            .len()
            .saturating_sub(room - head_bytes)
            .max(head_end);
        let tail = content.ceil_char_boundary(wanted_tail);
        if start > 0 {
            self.note(&omission(start));
        }
        push_lines(&mut self.text, &content[start..head_end]);
        if tail > head_end {
            self.note(&omission(tail - head_end));
        }
        if tail < content.len() {
            push_lines(&mut self.text, &content[tail..]);
        }
    }
}

/// The readable parts of a turn. Reasoning is left out because it is signed for its provider.
fn blocks(seq: u64, turn: &Turn, nonce: Nonce) -> Vec<Block> {
    let role = turn.role.name();
    let time = turn.timestamp.map(time_of).unwrap_or_default();
    let mut blocks = Vec::new();
    let mut add = |what: &str, content: &str| {
        let first = if blocks.is_empty() { time.as_str() } else { "" };
        blocks.push(Block {
            header: format!("#{seq} {role}{first}{what}"),
            content: escaped(content, nonce),
        });
    };
    let media = |media_type: &str, name: &str| {
        format!(": a file, {}", line(&format!("{name} {media_type}"), nonce))
    };
    for Part { kind, .. } in &turn.parts {
        match kind {
            PartKind::Text(text) => add("", text),
            PartKind::ToolUse {
                name, input_json, ..
            } => add(&format!(": calls {}", line(name, nonce)), input_json),
            PartKind::ToolResult {
                content,
                parts,
                is_error,
                ..
            } => {
                let what = if *is_error {
                    ": failed result"
                } else {
                    ": result"
                };
                add(what, content);
                for Part { kind, .. } in parts {
                    if let PartKind::Media {
                        media_type, name, ..
                    } = kind
                    {
                        add(&media(media_type, name), "");
                    }
                }
            }
            PartKind::Media {
                media_type, name, ..
            } => add(&media(media_type, name), ""),
            PartKind::Thinking { .. } => {}
        }
    }
    if blocks.is_empty() {
        blocks.push(Block {
            header: format!("#{seq} {role}{time}: no text"),
            content: String::new(),
        });
    }
    blocks
}

/// `, 2026-11-02 10:15`.
fn time_of(at: Timestamp) -> String {
    let minutes = at.seconds().div_euclid(60).rem_euclid(DAY_MINUTES);
    let (hour, minute) = (minutes / 60, minutes % 60);
    format!(", {} {hour:02}:{minute:02}", Date::from_timestamp(at))
}

fn escaped(content: &str, nonce: Nonce) -> String {
    nonce.hidden_in(&quote::within(content, &[])).into_owned()
}

/// A client's name in one line.
fn line(name: &str, nonce: Nonce) -> String {
    escaped(&quote::one_line(name, NAME_CHARS_MAX), nonce)
}

/// Adds escaped content and indents its first line. The other lines are indented already.
fn push_lines(text: &mut String, content: &str) {
    text.push_str("  ");
    text.push_str(content.trim_matches('\n'));
    text.push('\n');
}

fn omission(bytes: usize) -> String {
    format!("({bytes} bytes of this turn are omitted here)")
}

fn name_of((first, last): (u64, u64)) -> String {
    if first == last {
        format!("turn {first}")
    } else {
        format!("turns {first}-{last}")
    }
}

/// Finds the longest word that occurs, ignoring the case of ASCII letters.
fn find(content: &str, words: &[String]) -> Option<usize> {
    let content = content.to_ascii_lowercase();
    words.iter().find_map(|word| content.find(word))
}
