//! Absolute dates for relative ones in a fact.
//!
//! "Yesterday" is meaningless when the fact is recalled a year later, so the date is added after it
//! in parentheses. Only English is supported: facts in other languages stay unchanged.
//!
//! The `interim` crate does not fit: it parses a given date but does not find dates in text,
//! resolves "last Friday" on a Friday to the same day, and depends on a lexer.

use std::sync::LazyLock;

use jiff::civil::{Date, Weekday};
use jiff::{Span, ToSpan};
use memoird_core::date::day_number;
use memoird_core::time::Timestamp;
use regex::{Captures, Regex};

use super::regex;

/// The relative dates that are resolved.
///
/// "In three days" is excluded because it is as often a duration. A weekday alone is excluded
/// because it may mean the last one or the next one.
static RELATIVE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?ix)
        \b(?:
            (?<after>(?:the\s+)?day\s+after\s+tomorrow)
          | (?<before>(?:the\s+)?day\s+before\s+yesterday)
          | (?<day>yesterday|today|tonight|tomorrow)
          | (?<which>last|next|this)\s+
            (?:(?<night>night)|(?<unit>week|month|year)|(?<christmas>christmas)
              |(?<weekday>monday|tuesday|wednesday|thursday|friday|saturday|sunday)
              |(?<month>january|february|march|april|may|june|july|august|september|october
                |november|december))
          | (?<count>\d{1,3}|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)
            \s+(?<ago>day|week|month|year)s?\s+ago
        )\b";
    regex(pattern)
});

const MONTH: &str = r"(?: jan(?:uary)? | feb(?:ruary)? | mar(?:ch)? | apr(?:il)? | may | june? | july?
    | aug(?:ust)? | sept?(?:ember)? | oct(?:ober)? | nov(?:ember)? | dec(?:ember)? )";

/// The absolute date already follows, in parentheses or after a comma.
static DATED: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = format!(
        r"(?ix)^ (?:['’]s)? [\s,]* \(? (?:on\s+|(?:the\s+)?(?:week\s+of\s+)?)
        (?: \d{{4}} | \d{{1,2}}[./]\d
          | \d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?{MONTH}\b
          | {MONTH}\.?\s+\d )"
    );
    regex(&pattern)
});

/// The month that a weekday or week belongs to.
static IN_MONTH: LazyLock<Regex> =
    LazyLock::new(|| regex(&format!(r"(?ix)^ \s+ in \s+ {MONTH} \b")));

/// Text before a match that counts another day from it.
///
/// "a week tomorrow", "two days before yesterday", "a year ago today", "last last Friday"
static COUNTS_ON: LazyLock<Regex> = LazyLock::new(|| {
    let unit = r"(?:minute|hour|day|night|morning|evening|weekend|week|fortnight|month|quarter|year
        |decade|monday|tuesday|wednesday|thursday|friday|saturday|sunday)s?";
    let pattern = format!(
        r"(?ix) \b (?:
            (?:an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|few|several|\d+)
            \s+ {unit} \s+
          | {unit} (?:\s+or\s+\w+)? \s+ (?:from|after|before|since|until|till|to|of|on|prior\s+to|starting) \s+
          | (?:ago|hence|last|next|past|previous|coming|today|tomorrow|yesterday) \s+ (?:on\s+)?
        ) $"
    );
    regex(&pattern)
});

/// Text after a match that counts another day from it.
///
/// "tomorrow week", "a week ago on Friday", "today last year"
static IS_COUNTED_FROM: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?ix) ^ \s+ (?: (?:week|fortnight)s? \b
        | (?:next|last|this) \s+ (?:week|month|year) \b
        | in \s+ (?:an?|one|two|three|four|five|six|\d+) \s+ (?:day|week|month|year)s? \b )";
    regex(pattern)
});

/// Text after "a year ago" that names the day it is counted from.
static AGO_FROM: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?ix) ^ \s+ (?: (?:on\s+)?
        (?: today|tonight|tomorrow|yesterday|this|last|next
          | (?:mon|tues|wednes|thurs|fri|satur|sun)day ) | from | before ) \b";
    regex(pattern)
});

/// Kinds of works that have a title.
const WORK: &str = r"(?: song | film | movie | album | band | book | novel | show | series | track | single
    | poem | musical | hit | tune | ballad | game | podcast | newspaper | magazine | label )";

/// Text before a match that makes it a title or a noun: "the song yesterday", "a better tomorrow".
static BEFORE_TITLE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = format!(
        r"(?ix) (?: \b {WORK}s? \s* [:–—-] \s*
          | \b (?:song|tune|ballad|hit)s? ,? \s+
          | \b (?:called|named|titled|entitled) \s+
          | \b favou?rite \s+ \w+ \s+ (?:is|was) \s+
          | \b (?:an?|no|every|each|another|better|brighter|my|your|our) \s+
          ) $"
    );
    regex(&pattern)
});

/// Text before a match that makes it a noun: "leaders of tomorrow". "As of today" is a date.
static BEFORE_NOUN: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?ix) (?: ^ | [^s\s] | [^a]s ) \s+ of \s+ $"));

/// Text after a title: "Last Christmas is her favourite song".
static AFTER_TITLE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = format!(
        r"(?ix) ^ \s* \( [^)]{{0,40}} \b {WORK}s? \b | ^ (?:['’]s)? \s+ (?:is|was) \s+
          (?: (?:an?|the|one|my|your|her|his|our|their|\w+['’]s) \s+ (?:\w+\s+){{0,3}} {WORK}s?
            | written | released | recorded | sung | covered | composed | directed | published
            | performed ) \b"
    );
    regex(&pattern)
});

/// Capitalized text after a title: "Yesterday by the Beatles", "Yesterday & Today".
///
/// Another example is "Last Monday Records". A person's name may follow a date too: "Yesterday Ann
/// moved" is ambiguous, and left unchanged.
static AFTER_NAME: LazyLock<Regex> = LazyLock::new(|| {
    let capital = r"(?:\p{Lu}[\p{L}\d]|[A-HJ-Z]\b)";
    let pattern = format!(
        r"^(?:['’]s)?\s+(?:by\b|{capital}|(?:&|or|vs\.?)\s+{capital})|^,?\s+and\s+{capital}"
    );
    regex(&pattern)
});

/// Text before a match that refers to another time, from which the relative date then counts.
static OTHER_TIME: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = format!(
        r"(?ix)
          (?: ^ | [^(\d.,] ) \b (?:1[0-9]|20)\d\d s? \b (?: [^.,:%€$£\d-] | [,:]\s | - \d\d -\d\d | $ )
        | \b (?:twenties|thirties|forties|fifties|sixties|seventies|eighties|nineties|century
            |centuries) \b
        | \b (?:back\s+(?:then|when|in) | at\s+th(?:e|at)\s+time | in\s+those\s+days | once\s+upon
            | long\s+ago | as\s+an?\s+(?:child|kid|boy|girl|teenager|student)) \b
        | \b (?:on\s+that\s+(?:day|morning|evening|night) | (?:before|after|during)\s+the\s+war
            | the\s+(?:previous|next|following|same)\s+(?:day|morning|evening|night|week|month|year)) \b
        | \b when \s+ (?:\w+\s+){{1,3}}? (?:was|were|had|did) \b
        | \b ago ,? \s+ (?:she|he|they|we|i|it|you) \b
        | \b in \s+ (?:an?|the|this|that|her|his|my|their) \s+ (?:{WORK}|story|dream|episode|play) \b
        | \b (?:always|never|usually|often|rarely|sometimes|whenever|every\s+time) \b
        | ^ \W* (?:late\s+|early\s+)? (?:on|in|during|by|around) \s+ (?:the\s+)? (?:\w+\s+)?
            (?: (?:mon|tues|wednes|thurs|fri|satur|sun)day | {MONTH} \b )"
    );
    regex(&pattern)
});

/// Reported speech.
///
/// Its day is unknown. The group `rest` is the text between the verb and the match.
static REPORTED: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?ix) \b (?:said|says|told|promised|announced|wrote|claimed|swore|replied|answered
        |explained|mentioned|stated|declared|predicted|insisted|warned|asked|thought|believed|hoped
        |expected|assumed|imagined|dreamt|dreamed) \b (?<rest>.*) $";
    regex(pattern)
});

/// Text between the verb and the day of the speech itself, as in "told me yesterday".
static WAS_TOLD: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)^(?:\s+(?:me|us|him|her|them|you|so|it|this|that))*\s*$"));

/// An open single quotation mark. Apostrophes are skipped.
static SINGLE_OPEN: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?s)(?:^|[\s(\[:,–—])['‘](?:[^'‘’]|['’]\w)*$"));
static SINGLE_CLOSE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?s)^(?:[^'‘’]|['’]\w)*['’](?:\W|$)"));

/// Opening and closing quotation marks.
const QUOTES: [(char, char); 5] = [('"', '"'), ('“', '”'), ('„', '“'), ('«', '»'), ('`', '`')];

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

const NUMBERS: [&str; 12] = [
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve",
];

/// Adds the absolute date in parentheses after each relative one.
///
/// Dates are counted from the UTC day of `said`. Returns the content unchanged if the result would
/// be longer than `bytes_max`.
pub fn with_dates(content: &str, said: Timestamp, bytes_max: usize) -> String {
    let Ok(today) = Date::new(1970, 1, 1)
        .and_then(|epoch| epoch.checked_add(Span::new().try_days(day_number(said))?))
    else {
        return content.to_owned();
    };
    let mut made = String::with_capacity(content.len() + 16);
    let mut copied = 0;
    for found in RELATIVE.captures_iter(content) {
        let Some(whole) = found.get(0) else { continue };
        let (before, after) = (&content[..whole.start()], &content[whole.end()..]);
        let is_date = stands_alone(before, whole.as_str(), after)
            && !is_quoted(before, after)
            && !is_title(&found, before, after)
            && !is_counted_from(&found, before, after)
            && !is_of_another_time(&found, before);
        if !is_date || DATED.is_match(after) {
            continue;
        }
        let Some(date) = absolute(&found, before, after, today) else {
            continue;
        };
        // A genitive suffix belongs to the word.
        let genitive = ["'s", "’s"].iter().find(|it| after.starts_with(**it));
        let end = whole.end() + genitive.map_or(0, |it| it.len());
        made.push_str(&content[copied..end]);
        made.push_str(&format!(" ({date})"));
        copied = end;
    }
    made.push_str(&content[copied..]);
    if made.len() <= bytes_max {
        made
    } else {
        content.to_owned()
    }
}

/// Whether the match is a word of its own.
///
/// False inside paths and identifiers, and for apparent names such as "USA Today" and "Last Week
/// Tonight".
fn stands_alone(before: &str, words: &str, after: &str) -> bool {
    let joins = |c: char| matches!(c, '-' | '_' | '/' | '\\' | '@' | '#' | '=');
    let mut following = after.chars();
    let next = following.next();
    let is_part = before.ends_with(joins)
        || before.ends_with('.') && words.starts_with(char::is_lowercase)
        || next.is_some_and(joins)
        || next == Some('.') && following.next().is_some_and(char::is_alphanumeric);
    if is_part {
        return false;
    }
    let is_begin = before
        .trim_end_matches([' ', '"', '\'', '“', '(', '*'])
        .chars()
        .next_back()
        .is_none_or(|c| matches!(c, '.' | '!' | '?' | ':' | '\n' | '-' | '–' | '—'));
    let mut names = words.split_whitespace().enumerate();
    let is_shouted = [before, words, after]
        .iter()
        .all(|text| !text.contains(char::is_lowercase));
    let is_name = names.any(|(place, word)| {
        let is_capital = word.starts_with(char::is_uppercase);
        let word = word.to_lowercase();
        let is_of_calendar = weekday(&word).is_some() || is_month(&word) || word == "christmas";
        is_capital && !is_of_calendar && (place > 0 || !is_begin)
    });
    is_shouted || !is_name
}

/// Whether the match is a title, a name, or a noun.
fn is_title(found: &Captures<'_>, before: &str, after: &str) -> bool {
    let words = found.get(0).map_or("", |whole| whole.as_str());
    let is_capital = words.contains(char::is_uppercase) && words.contains(char::is_lowercase);
    let is_all = before.trim().is_empty() && !after.contains(char::is_alphanumeric);
    is_capital && (is_all || AFTER_NAME.is_match(after))
        || BEFORE_TITLE.is_match(before)
        || found.name("day").is_some() && BEFORE_NOUN.is_match(before)
        || AFTER_TITLE.is_match(after)
}

/// Whether another day is counted from the matched one.
fn is_counted_from(found: &Captures<'_>, before: &str, after: &str) -> bool {
    let is_ago = found.name("ago").is_some();
    COUNTS_ON.is_match(before)
        || IS_COUNTED_FROM.is_match(after)
        || is_ago && AGO_FROM.is_match(after)
}

/// Whether the sentence is about another time, or reports speech of another day.
fn is_of_another_time(found: &Captures<'_>, before: &str) -> bool {
    let begin = before
        .char_indices()
        .filter(|(place, c)| {
            let rest = &before[place + c.len_utf8()..];
            matches!(c, '\n' | ';')
                || matches!(c, '.' | '!' | '?') && rest.starts_with(char::is_whitespace)
        })
        .map(|(place, c)| place + c.len_utf8())
        .next_back();
    let sentence = &before[begin.unwrap_or(0)..];
    let which = found.name("which").map(|word| word.as_str().to_lowercase());
    let day = found.name("day").map(|word| word.as_str().to_lowercase());
    let is_past = found.name("before").is_some()
        || found.name("ago").is_some()
        || day.is_some_and(|day| day == "yesterday")
        || which.is_some_and(|which| which == "last");
    let is_reported = REPORTED.captures(sentence).is_some_and(|said| {
        let rest = said.name("rest").map_or("", |rest| rest.as_str());
        !is_past || !WAS_TOLD.is_match(rest)
    });
    is_reported || OTHER_TIME.is_match(sentence)
}

/// Whether the match is within quotation marks.
///
/// A quoted statement was made on another day, and quoted titles and code contain no dates. A text
/// that is quoted as a whole does not count.
fn is_quoted(before: &str, after: &str) -> bool {
    let is_single = SINGLE_OPEN.is_match(before) && SINGLE_CLOSE.is_match(after);
    is_single
        || QUOTES.iter().any(|&(open, close)| {
            let is_open = if open == close {
                before.matches(open).count() % 2 == 1
            } else {
                before.rfind(open) > before.rfind(close)
            };
            let is_whole = before.trim_start().rfind(open) == Some(0)
                && after.trim_end().find(close)
                    == after.trim_end().char_indices().next_back().map(|it| it.0)
                && open != '`';
            is_open && after.contains(close) && !is_whole
        })
}

/// Resolves the match against `today`. `None` if it is ambiguous.
fn absolute(found: &Captures<'_>, before: &str, after: &str, today: Date) -> Option<String> {
    let word = |name: &str| found.name(name).map(|word| word.as_str().to_lowercase());
    let shifted = |span: Span| today.checked_add(span).ok().map(|date| date.to_string());
    if found.name("after").is_some() {
        return shifted(2.days());
    }
    if found.name("before").is_some() {
        return shifted((-2).days());
    }
    if let Some(day) = word("day") {
        return match day.as_str() {
            "yesterday" => shifted((-1).days()),
            "tomorrow" => shifted(1.days()),
            _ => Some(today.to_string()),
        };
    }
    if let Some(unit) = word("ago") {
        if is_end_of_count(before) {
            return None;
        }
        let count = word("count")?;
        let named = NUMBERS.iter().position(|number| *number == count);
        let count = match (named, count.as_str()) {
            (Some(place), _) => i64::try_from(place).ok()? + 1,
            (None, "a" | "an") => 1,
            (None, digits) => digits.parse().ok()?,
        };
        return match unit.as_str() {
            "day" => shifted((-count).days()),
            "week" => shifted((-count).weeks()),
            "month" => month(today.checked_add((-count).months()).ok()?),
            _ => year(today.checked_add((-count).years()).ok()?),
        };
    }
    let which = word("which")?;
    // "The next Monday", "the last week of May" and "last Friday in May" count from another day.
    let last = before.split_whitespace().next_back().unwrap_or_default();
    let is_counted = ["the", "his", "her", "its", "their", "every", "each"]
        .iter()
        .any(|article| last.eq_ignore_ascii_case(article));
    let is_of_month = word("unit").is_none_or(|unit| unit == "week") && IN_MONTH.is_match(after);
    if is_counted || is_of_month || after.trim_start().starts_with("of ") {
        return None;
    }
    let steps = match which.as_str() {
        "last" => -1,
        "next" => 1,
        _ => 0,
    };
    if found.name("night").is_some() {
        return (steps < 0).then(|| shifted((-1).days())).flatten();
    }
    if let Some(name) = word("weekday") {
        let weekday = weekday(&name)?;
        let is_today = steps == 0 && today.weekday() == weekday;
        return if is_today {
            Some(today.to_string())
        } else {
            let nth = if steps < 0 { -1 } else { 1 };
            let date = today.nth_weekday(nth, weekday).ok()?;
            Some(date.to_string())
        };
    }
    if let Some(name) = found.name("month") {
        let wanted = MONTHS
            .iter()
            .position(|it| name.as_str().eq_ignore_ascii_case(it))?
            + 1;
        let now = usize::try_from(today.month()).ok()?;
        // In lower case it may be a verb, as in "this may change". "Last October" in November is
        // ambiguous.
        let is_name = name.as_str().starts_with(char::is_uppercase);
        let is_sure = steps == 0 || (steps < 0) == (wanted > now) || wanted == now;
        let year = i64::from(today.year()) + steps;
        return (is_name && is_sure).then(|| format!("{year:04}-{wanted:02}"));
    }
    if found.name("christmas").is_some() {
        let is_over = today.month() == 12 && today.day() > 25;
        let is_sure = steps == 0 || (steps < 0) != is_over;
        let year = i64::from(today.year()) + steps;
        return is_sure.then(|| format!("{year:04}-12-25"));
    }
    match word("unit")?.as_str() {
        "week" => {
            let monday = i64::from(today.weekday().to_monday_zero_offset());
            let begin = today.checked_add((7 * steps - monday).days()).ok()?;
            Some(format!("week of {begin}"))
        }
        "month" => month(today.checked_add(steps.months()).ok()?),
        _ => year(today.checked_add(steps.years()).ok()?),
    }
}

/// Whether the count before "ago" is only part of a number.
///
/// "2.5", "half a", "twenty five", "a year and a", "two or three", "more than two"
fn is_end_of_count(before: &str) -> bool {
    let is_number = before
        .strip_suffix(['.', ',', '/', '–'])
        .is_some_and(|rest| rest.ends_with(|c: char| c.is_ascii_digit()));
    let last = before.split_whitespace().next_back().unwrap_or_default();
    is_number
        || [
            "half", "and", "or", "to", "than", "over", "under", "least", "most", "within",
            "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
            "hundred", "thousand",
        ]
        .iter()
        .any(|begin| last.eq_ignore_ascii_case(begin))
}

fn month(date: Date) -> Option<String> {
    Some(format!("{:04}-{:02}", date.year(), date.month()))
}

fn year(date: Date) -> Option<String> {
    Some(format!("{:04}", date.year()))
}

fn is_month(name: &str) -> bool {
    MONTHS.contains(&name)
}

fn weekday(name: &str) -> Option<Weekday> {
    Some(match name {
        "monday" => Weekday::Monday,
        "tuesday" => Weekday::Tuesday,
        "wednesday" => Weekday::Wednesday,
        "thursday" => Weekday::Thursday,
        "friday" => Weekday::Friday,
        "saturday" => Weekday::Saturday,
        "sunday" => Weekday::Sunday,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds dates to a text said on Sunday, 2026-11-22, in the evening.
    fn dated(text: &str) -> String {
        let said = Timestamp::new(1_795_341_723 + 10 * 3_600, 0).unwrap();
        with_dates(text, said, 1_000)
    }

    #[test]
    fn absolute_date_is_added_after_relative_date() {
        for (text, expected) in [
            (
                "Moved to Rome yesterday.",
                "Moved to Rome yesterday (2026-11-21).",
            ),
            (
                "Tomorrow's demo is online",
                "Tomorrow's (2026-11-23) demo is online",
            ),
            (
                "Flies today, sleeps tonight",
                "Flies today (2026-11-22), sleeps tonight (2026-11-22)",
            ),
            (
                "the day after tomorrow!",
                "the day after tomorrow (2026-11-24)!",
            ),
            (
                "the day before yesterday",
                "the day before yesterday (2026-11-20)",
            ),
            ("due next Tuesday", "due next Tuesday (2026-11-24)"),
            ("met Bob last Friday", "met Bob last Friday (2026-11-20)"),
            (
                "last Sunday and next Sunday",
                "last Sunday (2026-11-15) and next Sunday (2026-11-29)",
            ),
            (
                "this Sunday, this Monday",
                "this Sunday (2026-11-22), this Monday (2026-11-23)",
            ),
            (
                "slept badly last night",
                "slept badly last night (2026-11-21)",
            ),
            ("ships next week", "ships next week (week of 2026-11-23)"),
            (
                "was ill last week",
                "was ill last week (week of 2026-11-09)",
            ),
            (
                "this month, last month",
                "this month (2026-11), last month (2026-10)",
            ),
            ("next year", "next year (2027)"),
            ("quit three weeks ago", "quit three weeks ago (2026-11-01)"),
            (
                "a year ago, 2 months ago",
                "a year ago (2025), 2 months ago (2026-09)",
            ),
            ("41 days ago", "41 days ago (2026-10-12)"),
            ("MOVED YESTERDAY", "MOVED YESTERDAY (2026-11-21)"),
            ("yesterday’s news", "yesterday’s (2026-11-21) news"),
            (
                "\"I moved yesterday.\"",
                "\"I moved yesterday (2026-11-21).\"",
            ),
            (
                "in Rome last Christmas, at home this Christmas",
                "in Rome last Christmas (2025-12-25), at home this Christmas (2026-12-25)",
            ),
            (
                "met last December, marries next June, born last November",
                "met last December (2025-12), marries next June (2027-06), born last November (2025-11)",
            ),
        ] {
            assert_eq!(dated(text), expected);
            assert_eq!(dated(expected), expected, "not twice");
        }
    }

    #[test]
    fn other_texts_stay_unchanged() {
        for text in [
            "",
            "reads USA Today and watches Last Week Tonight",
            "the next Monday after that, the last week of May",
            "tomorrow, May 3, or tomorrow (on 2027-01-01)",
            "yesterday, 21 November, yesterday (Nov. 21), today, the 22nd of Nov",
            "said \"I'll come tomorrow\" and “not today”; sings \"Yesterday\"; runs `date -d today`",
            "last October, next December, next Christmas, this may change, last march",
            "runs /jobs/today/x, today-report, yesterday.log and a.today",
            "takes in three days, on Friday, some days ago, 5000 days ago",
            "gestern, mañana, 昨日, вчера, i går, amanhã",
            "Todays and yesterdays, next weekend",
        ] {
            assert_eq!(dated(text), text);
        }
    }

    #[test]
    fn day_that_starts_a_count_stays_unchanged() {
        for text in [
            "moves a week tomorrow",
            "flies two weeks today",
            "a fortnight yesterday she was ill, three months next Friday",
            "starts a week from today",
            "30 days from tomorrow, two days before yesterday, the day after yesterday",
            "the Monday after next Friday, the week before last week",
            "tomorrow week, today fortnight, next Tuesday week",
            "quit a year ago today, a week ago on Friday, a week ago Friday",
            "two years ago this month",
            "last last Friday, next next week",
            "more than two years ago, over a month ago, at least 3 weeks ago, two or three weeks ago",
            "2–3 weeks ago",
            "a week since yesterday, a month to today",
            "today last year, tomorrow in two weeks",
            "in a week or two from yesterday",
        ] {
            assert_eq!(dated(text), text);
        }
        assert_eq!(
            dated("plays every day this week, works from today on, as of today, until tomorrow"),
            "plays every day this week (week of 2026-11-16), works from today (2026-11-22) on, \
             as of today (2026-11-22), until tomorrow (2026-11-23)"
        );
    }

    #[test]
    fn titles_and_names_stay_unchanged() {
        for text in [
            "Yesterday by the Beatles",
            "Yesterday is her favourite song",
            "Last Christmas by Wham! is Ann's favourite song",
            "Yesterday was written by Paul McCartney",
            "Yesterday",
            "Last Monday Records",
            "Last Monday Records signed her, and she is with Last Monday Records",
            "Tomorrow Never Dies",
            "Yesterday & Today, Yesterday and Today",
            "The Day After Tomorrow is a film",
            "Today FM, Tomorrow Labs",
            "reads USA TODAY and USA Today",
            "Favourite songs: Yesterday, Let It Be",
            "her favourite song is yesterday",
            "sings the song yesterday, a band called tomorrow",
            "sings 'Yesterday' and ‘Last Christmas’",
            "wants a better tomorrow, leaders of tomorrow, lives as if there were no tomorrow",
            "Yesterday Ann moved",
            "Yesterday's Children, Tomorrow (album), the next Sunday Times",
            "Tomorrow, and Tomorrow, and Tomorrow is a novel",
        ] {
            assert_eq!(dated(text), text);
        }
        for (text, expected) in [
            ("Yesterday I moved", "Yesterday (2026-11-21) I moved"),
            (
                "Yesterday, Ann moved to Rome",
                "Yesterday (2026-11-21), Ann moved to Rome",
            ),
            (
                "Today is Ann's birthday",
                "Today (2026-11-22) is Ann's birthday",
            ),
            (
                "was sent yesterday by Ann",
                "was sent yesterday (2026-11-21) by Ann",
            ),
            (
                "at the end of next month",
                "at the end of next month (2026-12)",
            ),
            (
                "Ann's boss moved last Monday",
                "Ann's boss moved last Monday (2026-11-16)",
            ),
        ] {
            assert_eq!(dated(text), expected);
        }
    }

    #[test]
    fn sentences_about_another_time_stay_unchanged() {
        for text in [
            "In 1999 she said tomorrow",
            "in 1999, she moved last week",
            "In the nineties he worked until yesterday",
            "On 3 May she wrote that she comes next week",
            "In March she decided to move next month",
            "On 2020-05-01 Bob quit yesterday",
            "When she was a child, tomorrow was far away",
            "Ten years ago she met him last Friday"
                .replace("Ten years ago", "Long ago")
                .as_str(),
            "Back then the demo was tomorrow",
            "Ann said she comes tomorrow",
            "Bob promised to pay next week",
            "Bob told Ann that he moved yesterday",
            "She said: 'I'll come tomorrow'",
            "always puts things off until tomorrow",
            "On that day she waited for tomorrow",
            "Bob thought the demo was last week",
            "In the film he dies tomorrow",
        ] {
            assert_eq!(dated(text), text);
        }
        for (text, expected) in [
            (
                "Bob told me yesterday. Ann wrote last week",
                "Bob told me yesterday (2026-11-21). Ann wrote last week (week of 2026-11-09)",
            ),
            (
                "bought a book yesterday",
                "bought a book yesterday (2026-11-21)",
            ),
            (
                "Born in 1985. Moved to Rome yesterday.",
                "Born in 1985. Moved to Rome yesterday (2026-11-21).",
            ),
            (
                "paid 1,999 € yesterday",
                "paid 1,999 € yesterday (2026-11-21)",
            ),
        ] {
            assert_eq!(dated(text), expected);
        }
    }

    #[test]
    fn too_long_result_and_out_of_range_day_leave_text_unchanged() {
        let said = Timestamp::new(1_795_341_723, 0).unwrap();
        assert_eq!(with_dates("came today", said, 22), "came today");
        assert_eq!(
            with_dates("came today", said, 23),
            "came today (2026-11-22)"
        );
        for seconds in [0, Timestamp::SECONDS_MAX] {
            let at = Timestamp::new(seconds, 0).unwrap();
            let text = "999 years ago, yesterday, next year, 999 months ago, next Monday";
            assert!(with_dates(text, at, 1_000).starts_with("999 years ago"));
        }
    }

    #[test]
    fn part_of_a_longer_count_gets_no_date() {
        for text in [
            "moved half a year ago, and about half a month ago",
            "2.5 years ago, 1,500 days ago, 1/2 years ago",
            "twenty five years ago, thirty-one days ago, a hundred two weeks ago",
            "a year and a month ago, two years and three months ago",
            "last Friday in October, next week in May, last Monday in Sept.",
        ] {
            assert_eq!(dated(text), text);
        }
        assert_eq!(
            dated("3, maybe 4 days ago; last Friday in Rome, last year in May"),
            "3, maybe 4 days ago (2026-11-18); last Friday (2026-11-20) in Rome, last year (2025) in May"
        );
    }
}
