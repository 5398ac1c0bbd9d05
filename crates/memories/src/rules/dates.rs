//! Relative dates of a fact, with the absolute ones behind them: "yesterday" says nothing to whoever
//! recalls it in a year. English only; what other languages say stays as it is.
//!
//! A table of our own: `interim`, which reads such dates, has to be given where they are, takes
//! "last Friday" on a Friday for that day, and brings a lexer with it.

use std::sync::LazyLock;

use jiff::civil::{Date, Weekday};
use jiff::{Span, ToSpan};
use memoird_core::date::day_number;
use memoird_core::time::Timestamp;
use regex::{Captures, Regex};

/// What is looked for. "In three days" is not, because it is as often how long something takes;
/// neither is a weekday by itself, which is as often the last one as the next.
static RELATIVE: LazyLock<Option<Regex>> = LazyLock::new(|| {
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
    Regex::new(pattern).ok()
});

/// Names of months, whole and short.
const MONTH: &str = r"(?: jan(?:uary)? | feb(?:ruary)? | mar(?:ch)? | apr(?:il)? | may | june? | july?
    | aug(?:ust)? | sept?(?:ember)? | oct(?:ober)? | nov(?:ember)? | dec(?:ember)? )";

/// The date stands there already, in parentheses or behind a comma.
static DATED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let pattern = format!(
        r"(?ix)^ (?:['’]s)? [\s,]* \(? (?:on\s+|(?:the\s+)?(?:week\s+of\s+)?)
        (?: \d{{4}} | \d{{1,2}}[./]\d
          | \d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?{MONTH}\b
          | {MONTH}\.?\s+\d )"
    );
    Regex::new(&pattern).ok()
});

/// The month of a weekday, or of a week.
static IN_MONTH: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(&format!(r"(?ix)^ \s+ in \s+ {MONTH} \b")).ok());

/// What begins a quotation, and what ends it.
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

/// The content with the absolute date in parentheses behind each relative one, counted from the day
/// on which it was said, in UTC; as it was where that makes it longer than `bytes_max`.
pub fn with_dates(content: &str, said: Timestamp, bytes_max: usize) -> String {
    let (Some(relative), Some(dated)) = (&*RELATIVE, &*DATED) else {
        return content.to_owned();
    };
    let Ok(today) = Date::new(1970, 1, 1)
        .and_then(|epoch| epoch.checked_add(Span::new().try_days(day_number(said))?))
    else {
        return content.to_owned();
    };
    let mut made = String::with_capacity(content.len() + 16);
    let mut copied = 0;
    for found in relative.captures_iter(content) {
        let Some(whole) = found.get(0) else { continue };
        let (before, after) = (&content[..whole.start()], &content[whole.end()..]);
        let is_date = stands_alone(before, whole.as_str(), after) && !is_quoted(before, after);
        if !is_date || dated.is_match(after) {
            continue;
        }
        let Some(date) = absolute(&found, before, after, today) else {
            continue;
        };
        // The genitive belongs to the word.
        let genitive = ["'s", "’s"].iter().find(|it| after.starts_with(**it));
        let end = whole.end() + genitive.map_or(0, |it| it.len());
        made.push_str(&content[copied..end]);
        made.push_str(&format!(" ({date})"));
        copied = end;
    }
    made.push_str(&content[copied..]);
    match made.len() <= bytes_max {
        true => made,
        false => content.to_owned(),
    }
}

/// False inside of a path or an identifier, and for what looks like a name: "USA Today", "Last
/// Week Tonight".
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
    let is_shouted = words.chars().all(|c| !c.is_lowercase());
    let is_name = names.any(|(place, word)| {
        let is_capital = word.starts_with(char::is_uppercase);
        let word = word.to_lowercase();
        let is_of_calendar = weekday(&word).is_some() || is_month(&word) || word == "christmas";
        is_capital && !is_of_calendar && (place > 0 || !is_begin)
    });
    is_shouted || !is_name
}

/// True within quotation marks: what was quoted was said on another day, and a title or code says no
/// date. A text that is quoted as a whole is none of them.
fn is_quoted(before: &str, after: &str) -> bool {
    QUOTES.iter().any(|&(open, close)| {
        let is_open = match open == close {
            true => before.matches(open).count() % 2 == 1,
            false => before.rfind(open) > before.rfind(close),
        };
        let is_whole = before.trim_start().rfind(open) == Some(0)
            && after.trim_end().find(close)
                == after.trim_end().char_indices().next_back().map(|it| it.0)
            && open != '`';
        is_open && after.contains(close) && !is_whole
    })
}

/// The date that these words say on this day.
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
    // "The next Monday", "the last week of May" and "last Friday in May" count from something else.
    let last = before.split_whitespace().next_back().unwrap_or_default();
    let is_counted = ["the", "his", "her", "its", "their", "every", "each"]
        .iter()
        .any(|article| last.eq_ignore_ascii_case(article));
    let is_of_month = word("unit").is_none_or(|unit| unit == "week")
        && IN_MONTH.as_ref().is_none_or(|it| it.is_match(after));
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
        return match is_today {
            true => Some(today.to_string()),
            false => {
                let nth = if steps < 0 { -1 } else { 1 };
                let date = today.nth_weekday(nth, weekday).ok()?;
                Some(date.to_string())
            }
        };
    }
    if let Some(name) = found.name("month") {
        let wanted = MONTHS
            .iter()
            .position(|it| name.as_str().eq_ignore_ascii_case(it))?
            + 1;
        let now = usize::try_from(today.month()).ok()?;
        // "This may change". And what "last October" is in November is not sure.
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

/// True where the next number is only the rest of a count: "2.5", "half a", "twenty five", "a year
/// and a".
fn is_end_of_count(before: &str) -> bool {
    let is_number = before
        .strip_suffix(['.', ',', '/'])
        .is_some_and(|rest| rest.ends_with(|c: char| c.is_ascii_digit()));
    let last = before.split_whitespace().next_back().unwrap_or_default();
    is_number
        || [
            "half", "and", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty",
            "ninety", "hundred", "thousand",
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

    /// On Sunday, 2026-11-22, in the evening.
    fn dated(text: &str) -> String {
        let said = Timestamp::new(1_795_341_723 + 10 * 3_600, 0).unwrap();
        with_dates(text, said, 1_000)
    }

    #[test]
    fn a_relative_date_has_the_absolute_one_behind_it() {
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
    fn what_is_no_relative_date_stays_as_it_is() {
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
    fn a_text_that_becomes_too_long_stays_as_it_is_and_no_day_is_too_far() {
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
    fn a_count_of_which_more_stands_before_says_no_date() {
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
