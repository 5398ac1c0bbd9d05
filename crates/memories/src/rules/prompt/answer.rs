//! What a model answers: facts in JSON, with the fields of the contract's `ExtractedMemory`.

use memoird_core::date::parse_rfc3339;
use memoird_core::ids::MemoryId;
use memoird_core::time::Timestamp;
use serde_json::{Map, Value};

use crate::MemoryError;
use crate::rules::{MemoryKind, MemoryLimits, Polarity, Visibility};

/// A fact that a model found. It says nothing of its subject or session: who asked knows.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtractedFact {
    /// What it is about.
    pub kind: MemoryKind,
    /// The fact, in words.
    pub content: String,
    /// Labels.
    pub tags: Vec<String>,
    /// From 0 to 1; `None`: as usual.
    pub importance: Option<f32>,
    /// Which way it points; only of [`MemoryKind::Feedback`].
    pub polarity: Option<Polarity>,
    /// When it was so; `None`: nobody said.
    pub observed_at: Option<Timestamp>,
    /// The memory whose place it takes.
    pub supersedes: Option<MemoryId>,
    /// Who may recall it; of [`MemoryKind::User`] always its subject only.
    pub visibility: Visibility,
    /// The turns that it comes from, ascending, each once.
    pub seqs: Vec<u64>,
}

/// Reads an answer: a JSON array, bare or in a code fence, whatever stands around the fence.
/// `null` is a field that is not there, and fields that are not known are passed over. What
/// the kind decides is not asked for: a polarity of anything but feedback and a team for a
/// memory of kind `user` are dropped.
///
/// # Errors
/// [`MemoryError::Invalid`] of field `memories`, with the place and what would be right:
/// for what is no JSON array, for more than [`MemoryLimits::extracted`], and for an entry
/// whose kind is not one of the four or whose values do not fit. One bad entry refuses all:
/// half an answer would move the cursor past the other half.
pub fn parse_answer(text: &str, limits: &MemoryLimits) -> Result<Vec<ExtractedFact>, MemoryError> {
    let value: Value = serde_json::from_str(unfenced(text))
        .map_err(|error| invalid(format!("the answer is not a JSON array: {error}")))?;
    let Value::Array(entries) = value else {
        return Err(invalid(
            "the answer is not a JSON array; [] says nothing was found".to_owned(),
        ));
    };
    if entries.len() > limits.extracted {
        let (count, limit) = (entries.len(), limits.extracted);
        return Err(invalid(format!("{count} entries are more than {limit}")));
    }
    let facts = entries.iter().enumerate().map(|(place, entry)| {
        fact(entry).map_err(|problem| invalid(format!("[{place}].{problem}")))
    });
    facts.collect()
}

fn invalid(problem: String) -> MemoryError {
    MemoryError::Invalid {
        field: "memories",
        problem,
    }
}

/// What stands in the first code fence; all of it where there is none.
fn unfenced(text: &str) -> &str {
    const FENCE: &str = "```";
    let text = text.trim();
    if text.starts_with('[') {
        return text;
    }
    let Some((_, fenced)) = text.split_once(FENCE) else {
        return text;
    };
    // Behind the fence stands the name of a language, or nothing.
    let body = fenced.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
    body.rsplit_once(FENCE)
        .map_or(body, |(body, _)| body)
        .trim()
}

fn fact(entry: &Value) -> Result<ExtractedFact, String> {
    let Value::Object(entry) = entry else {
        return Err("kind: the entry is no object".to_owned());
    };
    let kind = text(entry, "kind")?.ok_or("kind: is missing")?;
    let kind = MemoryKind::parse(kind)
        .ok_or("kind: takes `user`, `feedback`, `project` or `reference`; there are no others")?;
    let content = text(entry, "content")?
        .map(str::trim)
        .filter(|content| !content.is_empty());
    let content = content
        .ok_or("content: is missing; say the fact in words")?
        .to_owned();
    let polarity = one_of(
        entry,
        "polarity",
        [
            ("correction", Polarity::Correction),
            ("confirmation", Polarity::Confirmation),
        ],
    )?;
    let visibility = one_of(
        entry,
        "visibility",
        [("private", Visibility::Private), ("team", Visibility::Team)],
    )?;
    Ok(ExtractedFact {
        kind,
        content,
        tags: tags(entry)?,
        importance: importance(entry)?,
        polarity: polarity.filter(|_| kind == MemoryKind::Feedback),
        observed_at: text(entry, "observed_at")?.map(moment).transpose()?,
        supersedes: text(entry, "supersedes_id")?.map(memory_id).transpose()?,
        visibility: visibility
            .filter(|_| kind != MemoryKind::User)
            .unwrap_or_default(),
        seqs: seqs(entry)?,
    })
}

/// A field that is there and not `null`.
fn field<'a>(entry: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    entry.get(name).filter(|value| !value.is_null())
}

/// A text that says something: models write `""` for what is not there.
fn text<'a>(entry: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, String> {
    match field(entry, name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(_) => Err(format!("{name}: takes a text")),
    }
}

fn list<'a>(entry: &'a Map<String, Value>, name: &str) -> Result<&'a [Value], String> {
    match field(entry, name) {
        None => Ok(&[]),
        Some(Value::Array(values)) => Ok(values),
        Some(_) => Err(format!("{name}: takes a list")),
    }
}

fn one_of<T: Copy>(
    entry: &Map<String, Value>,
    name: &str,
    known: [(&str, T); 2],
) -> Result<Option<T>, String> {
    let Some(given) = text(entry, name)? else {
        return Ok(None);
    };
    let found = known
        .iter()
        .find(|(known, _)| *known == given)
        .map(|(_, value)| *value);
    found
        .map(Some)
        .ok_or_else(|| format!("{name}: takes `{}` or `{}`", known[0].0, known[1].0))
}

fn tags(entry: &Map<String, Value>) -> Result<Vec<String>, String> {
    let tags = list(entry, "tags")?.iter().map(Value::as_str);
    tags.map(|tag| {
        tag.map(str::to_owned)
            .ok_or_else(|| "tags: takes texts".to_owned())
    })
    .collect()
}

fn importance(entry: &Map<String, Value>) -> Result<Option<f32>, String> {
    let Some(value) = field(entry, "importance") else {
        return Ok(None);
    };
    let number = value.as_f64().filter(|number| (0.0..=1.0).contains(number));
    // Nothing but digits is lost.
    #[allow(clippy::cast_possible_truncation)]
    let small = number.map(|number| number as f32);
    small
        .map(Some)
        .ok_or_else(|| "importance: takes a number from 0 to 1".to_owned())
}

fn moment(text: &str) -> Result<Timestamp, String> {
    let problem = "observed_at: takes RFC 3339, such as 2026-11-22T10:02:03Z";
    parse_rfc3339(text).ok_or_else(|| problem.to_owned())
}

fn memory_id(text: &str) -> Result<MemoryId, String> {
    let problem = "supersedes_id: is no id of a memory; take one from the manifest or leave it out";
    text.parse().map_err(|_| problem.to_owned())
}

fn seqs(entry: &Map<String, Value>) -> Result<Vec<u64>, String> {
    let problem = || "seqs: takes numbers of turns, from 1".to_owned();
    let numbers = list(entry, "seqs")?
        .iter()
        .map(|seq| seq.as_u64().filter(|seq| *seq > 0));
    let mut seqs = numbers
        .map(|seq| seq.ok_or_else(problem))
        .collect::<Result<Vec<_>, _>>()?;
    seqs.sort_unstable();
    seqs.dedup();
    Ok(seqs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<ExtractedFact>, MemoryError> {
        parse_answer(
            text,
            &MemoryLimits {
                extracted: 3,
                ..MemoryLimits::default()
            },
        )
    }

    const WHOLE: &str = r#"[{"kind": "feedback", "content": " No emoji ", "tags": ["style"],
        "importance": 0.75, "polarity": "correction", "observed_at": "2026-11-22T10:02:03Z",
        "supersedes_id": "01ARYZ6S410000000000000001", "visibility": "team", "seqs": [9, 7, 9],
        "why": "an aside"}]"#;

    #[test]
    fn an_answer_is_read_with_all_its_fields() {
        let expected = ExtractedFact {
            kind: MemoryKind::Feedback,
            content: "No emoji".to_owned(),
            tags: vec!["style".to_owned()],
            importance: Some(0.75),
            polarity: Some(Polarity::Correction),
            observed_at: Timestamp::new(1_795_341_723, 0),
            supersedes: "01ARYZ6S410000000000000001".parse().ok(),
            visibility: Visibility::Team,
            seqs: vec![7, 9],
        };
        assert_eq!(parsed(WHOLE).unwrap(), [expected]);
        let bare = parsed(r#"[{"kind": "user", "content": "Likes tea"}]"#).unwrap();
        assert_eq!(
            (bare[0].importance, bare[0].seqs.as_slice()),
            (None, &[][..])
        );
        let nulls = r#"[{"kind": "user", "content": "Likes tea", "tags": null, "seqs": null,
            "polarity": "", "observed_at": "", "supersedes_id": null, "importance": null}]"#;
        assert_eq!(parsed(nulls).unwrap(), bare);
    }

    #[test]
    fn fences_and_what_stands_around_them_are_passed_over() {
        let facts = parsed(WHOLE).unwrap();
        for text in [
            format!("```json\n{WHOLE}\n```"),
            format!("```\n{WHOLE}```"),
            format!("Here they are:\n\n```JSON\n{WHOLE}\n```\nThat is all."),
            format!("```{WHOLE}"),
            format!("\u{20}\n{WHOLE}\n"),
        ] {
            assert_eq!(parsed(&text).as_ref(), Ok(&facts), "{text}");
        }
        let code = r#"[{"kind": "user", "content": "writes ```rust\n``` blocks"}]"#;
        assert_eq!(
            parsed(code).unwrap()[0].content,
            "writes ```rust\n``` blocks"
        );
        assert_eq!(parsed(&format!("```json\n{code}\n```")), parsed(code));
        assert_eq!(parsed("[]").unwrap(), []);
        assert_eq!(parsed("```json\n[]\n```").unwrap(), []);
    }

    #[test]
    fn what_the_kind_decides_is_not_asked_for() {
        let text = r#"[{"kind": "user", "content": "a", "visibility": "team",
            "polarity": "correction"}]"#;
        let fact = &parsed(text).unwrap()[0];
        assert_eq!(
            (fact.visibility, fact.polarity),
            (Visibility::Private, None)
        );
    }

    #[test]
    fn what_does_not_fit_is_named_by_its_place() {
        let with = |more: &str| format!(r#"[{{"kind": "project", "content": "a", {more}}}]"#);
        for (text, place) in [
            ("".to_owned(), "the answer is not"),
            ("I found nothing.".to_owned(), "the answer is not"),
            ("{}".to_owned(), "the answer is not"),
            (r#"["a"]"#.to_owned(), "[0].kind"),
            (r#"[{"content": "a"}]"#.to_owned(), "[0].kind"),
            (
                r#"[{"kind": "user", "content": "a"}, {"kind": "fact"}]"#.to_owned(),
                "[1].kind",
            ),
            (
                r#"[{"kind": "User", "content": "a"}]"#.to_owned(),
                "[0].kind",
            ),
            (
                r#"[{"kind": "user", "content": " "}]"#.to_owned(),
                "[0].content",
            ),
            (with(r#""tags": "a""#), "[0].tags"),
            (with(r#""tags": [1]"#), "[0].tags"),
            (with(r#""importance": 1.5"#), "[0].importance"),
            (with(r#""importance": "high""#), "[0].importance"),
            (with(r#""polarity": "praise""#), "[0].polarity"),
            (with(r#""observed_at": "next Thursday""#), "[0].observed_at"),
            (
                with(r#""supersedes_id": "the tea one""#),
                "[0].supersedes_id",
            ),
            (with(r#""visibility": "all""#), "[0].visibility"),
            (with(r#""seqs": [0]"#), "[0].seqs"),
            (with(r#""seqs": [1.5]"#), "[0].seqs"),
            (with(r#""seqs": ["7"]"#), "[0].seqs"),
            ("[{},{},{},{}]".to_owned(), "4 entries are more than 3"),
        ] {
            let error = parsed(&text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("memories: {place}")),
                "{text}: {error}"
            );
        }
    }
}
