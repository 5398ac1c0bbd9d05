//! Index entries of turns, for every store with an index.

use std::collections::{BTreeSet, HashMap};

use memoird_core::hex;
use memoird_core::ids::Generation;
use memoird_core::turn::Role;
use memoird_core::words::{self, Languages};

use super::turn_text::{SearchedTurn, ToolNames};
use crate::{GenerationOwner, Store, StoreError, WrittenTurn};

/// How many earlier turns are searched for the call that belongs to a result.
pub const CALL_TURNS: u64 = 16;
/// Prefix of index words for filters, which no word of a text can have.
///
/// It is a private-use character, while words consist of letters and digits. Only letters and
/// digits follow it.
pub(crate) const MARK: char = '\u{e000}';
/// Maximum bytes of a tool name in a filter word.
const TOOL_BYTES_MAX: usize = 64;

/// A turn to be indexed.
#[derive(Clone, Debug)]
pub struct IndexEntry {
    /// Number in the journal.
    pub number: u64,
    pub owner: GenerationOwner,
    pub seq: u64,
    pub at_ms: i64,
    /// Stems, and the filter words of role and tools, separated by spaces.
    pub words: String,
    pub language: Languages,
}

/// Builds the entries of turns. Damaged turns are skipped, and those deleted in the meantime.
///
/// Most calls of a result are among these turns. Otherwise, `earlier` returns the numbers of the
/// last [`CALL_TURNS`] turns of a generation before a number.
pub fn index_entries(
    store: &dyn Store,
    written: &[WrittenTurn],
    mut earlier: impl FnMut(Generation, u64) -> Result<Vec<u64>, StoreError>,
) -> Result<Vec<IndexEntry>, StoreError> {
    let mut names: HashMap<Generation, ToolNames> = HashMap::new();
    let mut turns = Vec::with_capacity(written.len());
    for written in written {
        if let Some(turn) = SearchedTurn::open(written.seq, &written.content) {
            turn.note_calls(names.entry(written.generation).or_default());
            turns.push((written, turn));
        }
    }
    let generations: BTreeSet<Generation> = names.keys().copied().collect();
    let owners = store.owners(&Vec::from_iter(generations))?.into_iter();
    let owners: HashMap<Generation, GenerationOwner> =
        owners.map(|owner| (owner.generation, owner)).collect();
    let mut entries = Vec::with_capacity(turns.len());
    for (written, turn) in turns {
        let (number, generation) = (written.number, written.generation);
        let Some(owner) = owners.get(&generation).cloned() else {
            continue;
        };
        let known = names.entry(generation).or_default();
        if !turn.answers.iter().all(|id| known.contains_key(id)) {
            for written in store.written_at(&earlier(generation, number)?)? {
                let opened = SearchedTurn::open(written.seq, &written.content);
                opened.iter().for_each(|turn| turn.note_calls(known));
            }
        }
        let mut words = String::with_capacity(turn.text.len() + 64);
        let language = words::add_index_words(&turn.text, &mut words);
        let tools = turn.tools(known).map(tool_word);
        for mark in std::iter::once(role_word(turn.role)).chain(tools) {
            words.push(' ');
            words.push_str(&mark);
        }
        entries.push(IndexEntry {
            number,
            owner,
            seq: written.seq,
            at_ms: turn.at.as_ms(),
            words,
            language,
        });
    }
    Ok(entries)
}

/// Index word of all turns of a role.
pub fn role_word(role: Role) -> String {
    format!("{MARK}r{}", role.name())
}

/// Index word of all turns that involve a tool.
///
/// The name is in hexadecimal digits because it may have any characters. Long names are truncated.
pub fn tool_word(tool: &str) -> String {
    let beginning = &tool.as_bytes()[..tool.len().min(TOOL_BYTES_MAX)];
    format!("{MARK}t{}", hex::encode(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_word_is_one_word_for_any_name() {
        let word = tool_word("a \"b\" OR ü");
        assert!(
            word.strip_prefix(MARK)
                .unwrap()
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric())
        );
        assert_ne!(tool_word("ab"), tool_word("aB"));
    }
}
