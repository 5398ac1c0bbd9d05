//! Validation of a model's reply to an extraction prompt.
//!
//! The reply is not trusted: a transcript may instruct the model what to write.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use memoird_core::ids::MemoryId;
use memoird_core::quote::unmarked;
use memoird_core::time::Timestamp;
use memoird_core::turn::Role;
use memoird_core::words::{decimal, deny_alike, is_stop_word, numbers_and_negations, stem, tokens};
use regex::{Match, Regex};
use serde::Deserialize as _;
use serde_json::Value;
use unicode_normalization::UnicodeNormalization as _;

use super::prompt::TranscriptTurn;
use super::{MemoryKind, MemoryLimits, Polarity, regex, secrets, wording};
use crate::requests::{ExtractedFact, RememberRequest};

/// Input that the model was shown.
#[derive(Clone, Copy, Debug)]
pub struct ExtractionInput<'a> {
    pub turns: &'a [TranscriptTurn],
    /// Times of the turns, by seq, if known.
    pub said_at: &'a BTreeMap<u64, Timestamp>,
    /// Memories that the reply may supersede, by id.
    pub known: &'a BTreeMap<MemoryId, ReplaceableMemory>,
    /// Contents of memories that recalls showed to the session.
    pub recalled: &'a [String],
    pub now: Timestamp,
    /// Maximum bytes of a fact's content.
    pub content_bytes: usize,
}

/// A memory that a fact may replace.
#[derive(Clone, Copy, Debug)]
pub struct ReplaceableMemory {
    pub observed_at: Timestamp,
    /// Whether a model must not replace it: the bot pinned or named it, or it is a team memory.
    pub is_fixed: bool,
}

/// One entry of a reply, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedEntry {
    /// Content of the entry, masked if it contains a secret.
    pub content: String,
    /// `None` if missing or invalid.
    pub kind: Option<MemoryKind>,
    /// Seqs of the turns that the entry cites.
    pub seqs: Vec<u64>,
    /// The fact, or why it was rejected.
    pub fact: Result<ExtractedFact, Refusal>,
    /// Parts of the entry that were ignored, for people.
    pub notes: Vec<&'static str>,
}

/// Why an entry of a reply is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It does not have the form that the prompt asks for.
    Malformed,
    /// It cites no turn, or one that the model was not shown.
    TurnsUnknown,
    /// It comes only from the assistant, a tool or the system.
    NotSaidByUser,
    Secret,
    /// It imitates memoird's own text, or instructs an assistant.
    Instruction,
    /// It contains a number or an address that does not occur in the turns.
    Unsupported,
    /// A recall showed it to the assistant.
    Echo,
    /// The reply contains it twice, or corrects it itself.
    Repeated,
    /// The memory that it would supersede is newer.
    Outdated,
    /// The reply contains too many entries.
    TooMany,
}

/// Maximum number of tags. Further ones are dropped.
const TAGS_MAX: usize = 8;
/// Maximum importance. Only the bot decides what must come first.
const IMPORTANCE_MAX: f32 = 0.9;
/// Minimum share of a fact's words in tool results for the fact to come from a tool.
const TOOLS_SHARE: f64 = 0.6;
/// Maximum share of such a fact's words in the conversation, relative to that in tool results.
const USERS_SHARE: f64 = 0.5;
/// Minimum digits of a number that must occur in the turns.
const NUMBER_DIGITS: usize = 4;

/// Matches a sentence that states a secret, whatever the secret looks like.
static SECRET_SAID: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?ix)
        (?: \b(?: pass(?:word|phrase|code|wd) | pin(?:\s+code)? | (?:api|secret|private|access)[\s_-]?key
          | secret | token | credentials? | passwort | kennwort | geheimzahl | contraseña | clave
          | mot\s+de\s+passe | senha | wachtwoord )s?\b
          | \b(?: parola | şifre | hasł | lösenord | adgangskode )\w*
          | парол\w* | 密码 | 密碼 | 口令 | パスワード | 暗証番号 | 비밀번호 | 비번
          | كلم[ةه]\s+(?:ال)?(?:سر|مرور) | סיסמה | पासवर्ड )
        [^.!?]{0,60}?
        (?: \b(?:is|are|was|ist|sind|lautet|es|est|é|è|são|jest|är|هي|है)\b | [:=]
          | \s[—–-]\s | это | 是 | 为 | 為 | は | 는 | 은 )";
    regex(pattern)
});

/// Matches text that only makes sense as an instruction to a program.
static INSTRUCTION: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?ix)
        <\s*/?\s*(?:known|recalled|transcript|memor(?:y|ies)|system|assistant|summary)\b
        | \b(?:ignore|disregard|forget|override)\b [^.]{0,40}
          \b(?:instructions?|rules?|prompts?|guidelines)\b
        | \b(?:system|developer)\s+(?:prompt|message)\b
        | \b(?:the\s+)?(?:extractor|memory\s+keeper)\b [^.]{0,20} \b(?:must|should|shall|has\s+to)\b";
    regex(pattern)
});

static ADDRESS: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)[\w.+-]+@[\w-]+\.[\w.-]+|https?://[^\s)>,;]+"));

static NUMBER: LazyLock<Regex> = LazyLock::new(|| regex(r"\d[\d .,/-]*\d"));

/// Matches absolute dates. The prompt asks for them in place of "next Thursday".
static DATE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?ix)
        \b (?:19|20)\d\d - (?: (?:19|20)\d\d | \d\d? (?: -\d\d? )? ) (?: \b | T )
        | \b (?: \d\d? [-./] \s? )? \d\d? [-./] \s? (?:19|20)\d\d \b
        | \b (?: jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec ) \p{L}* \.? ,? \s+
          (?: \d\d? (?:st|nd|rd|th)? ,? \s+ )? (?:19|20)\d\d \b";
    regex(pattern)
});

/// Parses the entries of a reply.
///
/// Accepts a JSON list, alone, in a code fence, or as the only list in an object, and a single
/// entry. Returns `None` for anything else, such as truncated JSON.
pub fn entries(answer: &str) -> Option<Vec<Value>> {
    let text = answer.trim();
    let fenced = text
        .strip_prefix("```")
        .and_then(|rest| rest.trim_end().strip_suffix("```"))
        .map(|rest| rest.strip_prefix("json").unwrap_or(rest).trim());
    match serde_json::from_str(fenced.unwrap_or(text)).ok()? {
        Value::Array(entries) => Some(entries),
        entry if entry.get("content").is_some() => Some(vec![entry]),
        Value::Object(fields) => {
            let mut lists = fields.into_iter().filter_map(|(_, value)| match value {
                Value::Array(entries) => Some(entries),
                _ => None,
            });
            let only = lists.next()?;
            lists.next().is_none().then_some(only)
        }
        _ => None,
    }
}

/// Ids of the memories that the reply wants to supersede.
pub fn replaced(entries: &[Value]) -> impl Iterator<Item = MemoryId> + '_ {
    let ids = entries
        .iter()
        .filter_map(|entry| entry["supersedes_id"].as_str());
    ids.filter_map(|id| id.parse().ok())
}

/// Validates the entries, in order.
pub fn judge(entries: &[Value], shown: &ExtractionInput<'_>) -> Vec<CheckedEntry> {
    let said = TurnWords::new(shown);
    let mut judged: Vec<CheckedEntry> = entries
        .iter()
        .enumerate()
        .map(|(place, entry)| {
            let mut notes = Vec::new();
            let content = entry["content"].as_str().unwrap_or_default().trim();
            let fact = if place < MemoryLimits::EXTRACTED {
                fact(entry, content, shown, &said, &mut notes)
            } else {
                Err(Refusal::TooMany)
            };
            CheckedEntry {
                content: masked(content),
                kind: kind(entry),
                seqs: seqs(entry).unwrap_or_default(),
                fact,
                notes,
            }
        })
        .collect();
    refuse_repeated(&mut judged);
    judged
}

/// Validates one entry by itself.
fn fact(
    entry: &Value,
    content: &str,
    shown: &ExtractionInput<'_>,
    said: &TurnWords,
    notes: &mut Vec<&'static str>,
) -> Result<ExtractedFact, Refusal> {
    let kind = kind(entry).ok_or(Refusal::Malformed)?;
    if !(1..=shown.content_bytes).contains(&content.len()) {
        return Err(Refusal::Malformed);
    }
    let seqs = seqs(entry).ok_or(Refusal::Malformed)?;
    let turn = |seq: &u64| shown.turns.iter().find(|turn| turn.seq == *seq);
    if seqs.is_empty() || seqs.iter().any(|seq| turn(seq).is_none()) {
        return Err(Refusal::TurnsUnknown);
    }
    if !seqs
        .iter()
        .filter_map(turn)
        .any(|turn| turn.role == Role::User)
    {
        return Err(Refusal::NotSaidByUser);
    }
    let tags = tags(entry);
    if is_secret(content) || tags.iter().any(|tag| is_secret(tag)) {
        return Err(Refusal::Secret);
    }
    if INSTRUCTION.is_match(content) || unmarked(content) != content {
        return Err(Refusal::Instruction);
    }
    if !said.supports(content) {
        return Err(Refusal::Unsupported);
    }
    if said.is_told_by_tools(content) {
        return Err(Refusal::NotSaidByUser);
    }
    let said_at = seqs.iter().filter_map(|seq| shown.said_at.get(seq)).max();
    let supersedes = supersedes(entry, said_at.copied(), shown, notes)?;
    let is_echo = |known: &String| repeats(content, known);
    if supersedes.is_none() && shown.recalled.iter().any(is_echo) {
        return Err(Refusal::Echo);
    }
    if entry["visibility"].as_str() == Some("team") {
        // A model must not publish the statement of one person to the team.
        notes.push("kept private");
    }
    let polarity = match entry["polarity"].as_str() {
        Some("correction") if kind == MemoryKind::Feedback => Some(Polarity::Correction),
        Some("confirmation") if kind == MemoryKind::Feedback => Some(Polarity::Confirmation),
        _ => None,
    };
    let importance = f32::deserialize(&entry["importance"]).ok();
    let importance = importance.map(|given| given.clamp(0.0, IMPORTANCE_MAX));
    let fact = RememberRequest {
        polarity,
        // The secret check above needs the original case.
        tags: tags.iter().map(|tag| tag.to_lowercase()).collect(),
        importance,
        observed_at: observed_at(entry, shown.now),
        supersedes,
        ..RememberRequest::new(None, kind, content)
    };
    Ok(ExtractedFact { fact, seqs })
}

/// Rejects duplicates within a reply.
///
/// Among facts with the same text the first one stays. Among facts that supersede the same memory,
/// the one from the latest turn stays.
fn refuse_repeated(judged: &mut [CheckedEntry]) {
    let mut known = HashSet::new();
    let mut replaced: BTreeMap<MemoryId, (u64, usize)> = BTreeMap::new();
    for place in 0..judged.len() {
        let Ok(found) = &judged[place].fact else {
            continue;
        };
        let content = &found.fact.content;
        if !known.insert(wording::form(content)) {
            judged[place].fact = Err(Refusal::Repeated);
            continue;
        }
        let Some(id) = found.fact.supersedes else {
            continue;
        };
        let last = found.seqs.iter().copied().max().unwrap_or(0);
        let loser = match replaced.get(&id) {
            Some(&(earlier, _)) if earlier > last => place,
            Some(&(_, other)) => {
                replaced.insert(id, (last, place));
                other
            }
            None => {
                replaced.insert(id, (last, place));
                continue;
            }
        };
        judged[loser].fact = Err(Refusal::Repeated);
    }
}

fn kind(entry: &Value) -> Option<MemoryKind> {
    let named = entry["kind"].as_str()?;
    MemoryKind::ALL
        .into_iter()
        .find(|kind| kind.as_str() == named)
}

fn seqs(entry: &Value) -> Option<Vec<u64>> {
    let numbers = entry["seqs"].as_array()?.iter();
    let mut seqs = numbers.map(Value::as_u64).collect::<Option<Vec<_>>>()?;
    seqs.sort_unstable();
    seqs.dedup();
    Some(seqs)
}

fn tags(entry: &Value) -> Vec<String> {
    let tags = entry["tags"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let texts = tags.iter().filter_map(Value::as_str).map(str::trim);
    let good = texts.filter(|tag| {
        (1..=MemoryLimits::TAG_BYTES).contains(&tag.len()) && !tag.contains(char::is_control)
    });
    good.take(TAGS_MAX).map(str::to_owned).collect()
}

/// Time of the observation. `None` if it is invalid or in the future.
fn observed_at(entry: &Value, now: Timestamp) -> Option<Timestamp> {
    let text = entry["observed_at"].as_str()?;
    let at: jiff::Timestamp = text.parse().ok()?;
    let at = Timestamp::new(at.as_second(), 0)?;
    (at <= now).then_some(at)
}

/// The memory that the entry supersedes.
///
/// Ignores an id that the model was not shown, or that no model may replace. The old memory and the
/// new one then coexist.
fn supersedes(
    entry: &Value,
    said_at: Option<Timestamp>,
    shown: &ExtractionInput<'_>,
    notes: &mut Vec<&'static str>,
) -> Result<Option<MemoryId>, Refusal> {
    let Some(text) = entry["supersedes_id"].as_str().filter(|id| !id.is_empty()) else {
        return Ok(None);
    };
    let id = text.parse().ok();
    let Some((id, known)) = id.and_then(|id| Some((id, shown.known.get(&id)?))) else {
        notes.push("names a memory that is not known");
        return Ok(None);
    };
    if known.is_fixed {
        notes.push("does not replace what is pinned, named or the team's");
        return Ok(None);
    }
    if said_at.is_some_and(|said_at| said_at < known.observed_at) {
        return Err(Refusal::Outdated);
    }
    Ok(Some(id))
}

fn is_secret(text: &str) -> bool {
    let plain: String = text.nfkc().collect();
    !secrets::find(text).is_empty() || SECRET_SAID.is_match(&plain)
}

/// The content as a report may show it.
fn masked(content: &str) -> String {
    if is_secret(content) {
        "(looks like a secret)".to_owned()
    } else {
        content.to_owned()
    }
}

/// Whether a recalled memory states the whole fact, with the same numbers, signs and negations.
fn repeats(content: &str, known: &str) -> bool {
    let (words, told) = (words_of(content), words_of(known));
    !words.is_empty()
        && words.is_subset(&told)
        && deny_alike(content, known)
        && wording::signs_agree(content, known)
        && numbers_and_negations(content)
            .iter()
            .all(|found| numbers_and_negations(known).contains(found))
}

/// The stems of the content words.
fn words_of(text: &str) -> HashSet<String> {
    let folded = tokens(text).map(|token| token.folded());
    folded
        .filter(|word| !is_stop_word(word))
        .map(|word| stem(&word).into_owned())
        .collect()
}

/// Words and texts of the turns.
struct TurnWords {
    user: HashSet<String>,
    tools: HashSet<String>,
    /// All texts, with the separators between digits removed.
    all: String,
}

impl TurnWords {
    fn new(shown: &ExtractionInput<'_>) -> Self {
        let mut said = Self {
            user: HashSet::new(),
            tools: HashSet::new(),
            all: String::new(),
        };
        for turn in shown.turns {
            match turn.role {
                Role::User | Role::Assistant => said.user.extend(words_of(&turn.text)),
                Role::Tool | Role::System => said.tools.extend(words_of(&turn.text)),
            }
            said.all.push_str(&plain(&turn.text));
            said.all.push('\n');
            said.all.push_str(&turn.text.to_lowercase());
            said.all.push('\n');
        }
        said
    }

    /// Whether every address and every long number occurs in the turns.
    ///
    /// Years and dates are exempt, because the model derives them.
    fn supports(&self, content: &str) -> bool {
        let is_address_said = |found: Match<'_>| {
            let text = found.as_str().trim_end_matches(['.', ',', '/']);
            self.all.contains(&text.to_lowercase())
        };
        // The replacement keeps the numbers around an address or date apart.
        let rest = ADDRESS.replace_all(content, "|");
        let rest = DATE.replace_all(&rest, "|");
        let is_number_said = |found: Match<'_>| {
            let digits = plain(found.as_str());
            let is_date = found.len() <= 10 && found.as_str().contains('-') || is_year(&digits);
            digits.len() < NUMBER_DIGITS || is_date || self.all.contains(&digits)
        };
        ADDRESS.find_iter(content).all(is_address_said)
            && NUMBER.find_iter(&rest).all(is_number_said)
    }

    /// Whether the words of a fact come from tool results rather than from the conversation.
    fn is_told_by_tools(&self, content: &str) -> bool {
        let words = words_of(content);
        let share = |said: &HashSet<String>| {
            words.intersection(said).count() as f64 / words.len().max(1) as f64
        };
        let (tools, user) = (share(&self.tools), share(&self.user));
        tools >= TOOLS_SHARE && user <= tools * USERS_SHARE
    }
}

fn is_year(digits: &str) -> bool {
    digits.len() == 4 && (digits.starts_with("19") || digits.starts_with("20"))
}

/// Removes separators within numbers, and converts digits of any script to ASCII.
fn plain(text: &str) -> String {
    text.chars()
        .map(decimal)
        .filter(|c| !matches!(c, ' ' | ',' | '.' | '-' | '/'))
        .collect()
}

#[cfg(test)]
mod tests;
