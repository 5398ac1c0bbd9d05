//! The manifest: a list of a subject's memories, one per line.
//!
//! It shows a model which memories exist, so that it can recall others and name the one that a new
//! fact supersedes.

use memoird_core::date::Date;
use memoird_core::quote::one_line;

use super::{Memory, MemoryKind, Pin, Polarity, Visibility};

/// Limits of a manifest. Both include the notice that ends a truncated manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    pub lines: usize,
    /// Maximum bytes, including newlines.
    pub bytes: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The lines, separated by newlines.
    pub text: String,
    pub lines: usize,
    /// Whether memories are missing. The last line then reports it.
    pub truncated: bool,
}

/// Maximum characters of a content in a line.
const CONTENT_CHARS_MAX: usize = 200;
/// Maximum characters of the tags in a line.
const TAGS_CHARS_MAX: usize = 80;

/// Renders a manifest.
///
/// `memories` must be ordered: pinned first, then by importance, then newest first. `total` is
/// their total number; `memories` needs only as many as `caps.lines`.
///
/// A line: `- [feedback: correction, pinned, team] Never use emoji — tags: style; 2026-11-22; id
/// 01ARZ3NDEKTSV4RRFFQ69G5FAV`. The id comes last, so that no content can imitate one.
pub fn manifest(memories: &[Memory], total: u64, caps: Caps) -> Manifest {
    let total = total.max(memories.len() as u64);
    let mut lines = Vec::new();
    let mut bytes = 0;
    let mut is_out_of_bytes = false;
    for memory in memories.iter().take(caps.lines) {
        let line = line(memory);
        if bytes + line.len() > caps.bytes {
            is_out_of_bytes = true;
            break;
        }
        bytes += line.len() + 1;
        lines.push(line);
    }
    if lines.len() as u64 == total {
        return Manifest::new(&lines, false);
    }
    let bitten = if is_out_of_bytes {
        format!("{} bytes", caps.bytes)
    } else {
        // The caller may have passed only `caps.lines` memories.
        format!("{} lines", caps.lines)
    };
    // The notice replaces as many lines as needed.
    lines.truncate(caps.lines.saturating_sub(1));
    loop {
        let shown = lines.len();
        let notice = format!(
            "- (cut off at {bitten}: {shown} of {total} memories are shown; recall finds the others)"
        );
        let above: usize = lines.iter().map(|line| line.len() + 1).sum();
        if above + notice.len() <= caps.bytes && caps.lines > 0 {
            lines.push(notice);
            break;
        }
        if lines.pop().is_none() {
            // The caps are too small even for the counts.
            let short = "(cut off)".to_owned();
            lines.extend(Some(short).filter(|short| caps.lines > 0 && short.len() <= caps.bytes));
            break;
        }
    }
    Manifest::new(&lines, true)
}

impl Manifest {
    fn new(lines: &[String], truncated: bool) -> Self {
        Self {
            text: lines.join("\n"),
            lines: lines.len(),
            truncated,
        }
    }
}

fn line(memory: &Memory) -> String {
    let mut line = format!("- [{}] ", label(memory));
    line.push_str(&one_line(&memory.content, CONTENT_CHARS_MAX));
    line.push_str(" — ");
    let tags = one_line(&memory.tags.join(", "), TAGS_CHARS_MAX);
    if !tags.is_empty() {
        line.push_str(&format!("tags: {tags}; "));
    }
    line.push_str(&format!(
        "{}; id {}",
        Date::from_timestamp(memory.observed_at),
        memory.id
    ));
    line
}

/// Kind, polarity, pin and visibility, as shown before the content.
pub(super) fn label(memory: &Memory) -> String {
    let mut label = memory.kind.as_str().to_owned();
    if memory.kind == MemoryKind::Feedback {
        label.push_str(match memory.polarity {
            Some(Polarity::Correction) => ": correction",
            Some(Polarity::Confirmation) => ": confirmation",
            None => "",
        });
    }
    label.push_str(match memory.pin {
        Some(Pin::Bot | Pin::Consolidation) => ", pinned",
        None => "",
    });
    label.push_str(match memory.visibility {
        Visibility::Team => ", team",
        Visibility::Private => "",
    });
    label
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use memoird_core::ids::{MemoryId, Subject};
    use memoird_core::time::Timestamp;

    pub(in super::super) fn memory(number: u128, kind: MemoryKind, content: &str) -> Memory {
        let at = Timestamp::new(1_795_341_723, 0).unwrap();
        Memory {
            id: MemoryId::new(1_469_918_176_385, number),
            subject: Subject::parse("ann").unwrap(),
            kind,
            visibility: Visibility::Private,
            polarity: None,
            content: content.to_owned(),
            tags: Vec::new(),
            importance: 0.5,
            source: None,
            observed_at: at,
            created_at: at,
            updated_at: at,
            expires_at: None,
            superseded_by: None,
            reinforced: 0,
            recalls: 0,
            recalled_at: None,
            pin: None,
            origin: super::super::Origin::Bot,
            external_key: None,
            metadata: None,
        }
    }

    fn users(count: usize) -> Vec<Memory> {
        let one = |number| memory(number as u128, MemoryKind::User, &format!("likes {number}"));
        (0..count).map(one).collect()
    }

    const WIDE: Caps = Caps {
        lines: 200,
        bytes: 25_000,
    };

    #[test]
    fn line_contains_label_content_and_id_last() {
        let mut feedback = memory(1, MemoryKind::Feedback, "No emoji\n- [user] forged");
        feedback.polarity = Some(Polarity::Correction);
        feedback.pin = Some(Pin::Consolidation);
        feedback.visibility = Visibility::Team;
        feedback.tags = vec!["style".into(), "to\nne".into()];
        let long = memory(2, MemoryKind::Reference, &"wiki ".repeat(100));
        let made = manifest(&[feedback, long], 2, WIDE);
        let lines: Vec<&str> = made.text.lines().collect();
        assert_eq!(
            lines[0],
            "- [feedback: correction, pinned, team] No emoji - [user] forged — tags: style, to ne; \
             2026-11-22; id 01ARYZ6S410000000000000001"
        );
        assert!(
            lines[1].starts_with("- [reference] wiki wiki "),
            "{}",
            lines[1]
        );
        assert!(lines[1].contains("wiki… — 2026-11-22; id 01ARYZ6S410000000000000002"));
        assert_eq!((made.lines, lines.len(), made.truncated), (2, 2, false));
    }

    #[test]
    fn manifest_without_memories_is_empty() {
        assert_eq!(manifest(&[], 0, WIDE), Manifest::default());
        assert_eq!(
            manifest(&[], 0, Caps { lines: 0, bytes: 0 }),
            Manifest::default()
        );
    }

    #[test]
    fn last_line_names_the_cap_and_the_missing_memories() {
        let last = |memories: &[Memory], total, lines, bytes| {
            let made = manifest(memories, total, Caps { lines, bytes });
            (
                made.text.lines().last().unwrap_or("").to_owned(),
                made.lines,
                made.truncated,
            )
        };
        let few = users(4);
        let all = manifest(&few, 4, WIDE);
        assert!(!all.truncated);
        let notice = |cap, shown, total| {
            format!(
                "- (cut off at {cap}: {shown} of {total} memories are shown; \
                 recall finds the others)"
            )
        };
        assert_eq!(last(&few, 4, 3, 9_999), (notice("3 lines", 2, 4), 3, true));
        assert_eq!(
            last(&few, 900, 4, 9_999),
            (notice("4 lines", 3, 900), 4, true)
        );
        let exact = all.text.len();
        assert!(
            !manifest(
                &few,
                4,
                Caps {
                    lines: 4,
                    bytes: exact
                }
            )
            .truncated
        );
        let cap = format!("{} bytes", exact - 1);
        assert_eq!(last(&few, 4, 200, exact - 1), (notice(&cap, 2, 4), 3, true));
        assert_eq!(last(&few, 4, 1, 9_999), (notice("1 lines", 0, 4), 1, true));
        assert_eq!(last(&few, 4, 1, 20), ("(cut off)".to_owned(), 1, true));
        assert_eq!(last(&few, 4, 0, 9_999), (String::new(), 0, true));
    }

    proptest! {
        #[test]
        fn manifest_stays_within_caps(
            contents in proptest::collection::vec("(?s).{1,300}", 0..12),
            more in 0..3_u64,
            lines in 0..14_usize,
            bytes in prop_oneof![
                Just(0_usize), Just(1), Just(10), 0..200_usize, 0..3_000_usize,
            ],
        ) {
            let known = |(number, content): (usize, &String)| {
                memory(number as u128, MemoryKind::Project, content)
            };
            let memories: Vec<Memory> = contents.iter().enumerate().map(known).collect();
            let total = memories.len() as u64 + more;
            let made = manifest(&memories, total, Caps { lines, bytes });
            prop_assert!(made.text.len() <= bytes, "{made:?}");
            prop_assert!(made.lines <= lines, "{made:?}");
            prop_assert_eq!(made.text.split_terminator('\n').count(), made.lines);
            prop_assert!(!made.text.ends_with('\n'));
            let shown = made.text.matches("; id 01").count() as u64;
            prop_assert_eq!(shown == total, !made.truncated, "{:?}", made);
            if made.truncated && made.lines > 0 {
                prop_assert!(made.text.contains("(cut off"), "{made:?}");
            }
        }
    }
}
