//! Dates and times of day, by their shape.

use super::vocabulary::MONTHS;

/// True of a date, a time of day, or both: `2024-05-15`, `2024-05-15T15:00:00Z`, `15.5.2024`,
/// `5/15/2024`, `15:00`, `06:00:00`, `3pm`.
pub(super) fn is_moment(word: &str) -> bool {
    let word = word.as_bytes();
    if !word.first().is_some_and(u8::is_ascii_digit) || word.len() > 40 {
        return false;
    }
    let rest = date(word);
    match rest {
        Some([]) => true,
        Some([b'T' | b't', time @ ..]) => is_time(time),
        _ => is_time(word),
    }
}

/// What stands behind a date.
fn date(word: &[u8]) -> Option<&[u8]> {
    let (first, digits, rest) = number(word)?;
    let (mark, rest) = rest.split_first()?;
    if !matches!(mark, b'-' | b'/' | b'.') {
        return None;
    }
    let (second, second_digits, rest) = number(rest)?;
    let rest = rest.strip_prefix(&[*mark])?;
    let (third, third_digits, rest) = number(rest)?;
    if second_digits > 2 {
        return None;
    }
    let is_day = |day: u32, month: u32| (1..=31).contains(&day) && (1..=12).contains(&month);
    let is_date = match (digits, third_digits) {
        (4, 1 | 2) => is_day(third, second),
        (1 | 2, 4) => is_day(first, second) || is_day(second, first),
        _ => false,
    };
    is_date.then_some(rest)
}

fn is_time(word: &[u8]) -> bool {
    let Some((hour, 1 | 2, rest)) = number(word) else {
        return false;
    };
    if hour > 24 {
        return false;
    }
    let Some(rest) = rest.strip_prefix(b":") else {
        return is_half(rest);
    };
    let Some((minute, 2, mut rest)) = number(rest) else {
        return false;
    };
    if let Some((_, 2, behind)) = rest.strip_prefix(b":").and_then(number) {
        rest = behind;
        if let Some((_, _, behind)) = rest.strip_prefix(b".").and_then(number) {
            rest = behind;
        }
    }
    minute < 60 && (rest.is_empty() || is_half(rest) || is_zone(rest))
}

/// True of the half of a day.
pub(super) fn is_half(word: &[u8]) -> bool {
    [b"am".as_slice(), b"pm"]
        .iter()
        .any(|half| word.eq_ignore_ascii_case(half))
}

fn is_zone(word: &[u8]) -> bool {
    match word {
        [b'Z' | b'z'] => true,
        [b'+' | b'-', zone @ ..] => {
            !zone.is_empty() && zone.iter().all(|b| b.is_ascii_digit() || *b == b':')
        }
        _ => false,
    }
}

/// A number at the start, how many digits it has, and what stands behind it.
fn number(word: &[u8]) -> Option<(u32, usize, &[u8])> {
    let digits = word.iter().take_while(|b| b.is_ascii_digit()).count();
    let value = std::str::from_utf8(word.get(..digits)?).ok()?.parse().ok();
    value
        .map(|value| (value, digits, &word[digits..]))
        .filter(|_| digits <= 9)
}

/// True of a day of a month: `5`, `15th`.
pub(super) fn is_day(word: &str) -> bool {
    let Some((day, 1 | 2, rest)) = number(word.as_bytes()) else {
        return false;
    };
    (1..=31).contains(&day) && matches!(rest, b"" | b"st" | b"nd" | b"rd" | b"th")
}

/// True of a year that people talk of.
pub(super) fn is_year(word: &str) -> bool {
    word.len() == 4
        && word
            .parse()
            .is_ok_and(|year: u32| (1900..2200).contains(&year))
}

/// True of a month's name.
pub(super) fn is_month(word: &str) -> bool {
    word.len() <= 9 && MONTHS.contains(&word)
}
