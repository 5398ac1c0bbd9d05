//! Numbers of payment cards: of an issuer, as long as his are, with the right check digit,
//! and written as cards are.

use super::Finding;

const WHAT: &str = "card number";
const DIGITS_MAX: usize = 19;
/// Bytes before a number in which words are looked for.
const BEFORE_BYTES: usize = 40;

/// Words after which a number is a card's also if it is of an unusual length.
const CARD_WORDS: [&str; 9] = [
    "card", "visa", "amex", "express", "credit", "debit", "karte", "carte", "tarjeta",
];
/// Words right before a number of another kind.
const OTHER_WORDS: [&str; 14] = [
    "order",
    "tracking",
    "invoice",
    "parcel",
    "shipment",
    "ticket",
    "imei",
    "phone",
    "tel",
    "call",
    "isbn",
    "ean",
    "ref",
    "reference",
];

pub(super) fn find(text: &str, found: &mut Vec<Finding>) {
    let bytes = text.as_bytes();
    let mut from = 0;
    while let Some(start) = bytes[from..].iter().position(u8::is_ascii_digit) {
        let start = from + start;
        let run = run(bytes, start);
        if run.is_card_like() && stands_alone(bytes, start, run.end) && is_card(text, start, &run) {
            found.push(Finding {
                range: start..run.end,
                what: WHAT,
            });
        }
        from = run.end;
    }
}

/// Digits with single spaces or dashes between groups of them.
struct Run {
    end: usize,
    /// The first ones, as many as a card has at most, and one more.
    digits: Vec<u8>,
    /// How many stand together; empty for more groups than a card has.
    groups: Vec<usize>,
    has_one_separator: bool,
}

fn run(bytes: &[u8], start: usize) -> Run {
    let (mut end, mut group, mut separator) = (start, 0, None);
    let mut run = Run {
        end,
        digits: Vec::new(),
        groups: Vec::new(),
        has_one_separator: true,
    };
    while let Some(&byte) = bytes.get(end) {
        let is_followed = bytes.get(end + 1).is_some_and(u8::is_ascii_digit);
        match byte {
            b'0'..=b'9' => {
                group += 1;
                if run.digits.len() <= DIGITS_MAX {
                    run.digits.push(byte - b'0');
                }
            }
            b' ' | b'-' if is_followed => {
                run.has_one_separator &= *separator.get_or_insert(byte) == byte;
                if run.groups.len() <= DIGITS_MAX {
                    run.groups.push(group);
                }
                group = 0;
            }
            _ => break,
        }
        end += 1;
    }
    run.groups.push(group);
    run.end = end;
    run
}

impl Run {
    /// True when it is written as on a card, or without any gaps.
    fn is_card_like(&self) -> bool {
        let is_grouped = matches!(
            *self.groups.as_slice(),
            [_] | [4, 6, 4 | 5] | [6, 13] | [4, 4, 4, 1..=4] | [4, 4, 4, 4, 1..=3]
        );
        is_grouped && self.has_one_separator && (13..=DIGITS_MAX).contains(&self.digits.len())
    }
}

/// False for a piece of something longer: a decimal, a path, a phone number, a UUID.
fn stands_alone(bytes: &[u8], start: usize, end: usize) -> bool {
    let before = start.checked_sub(1).map(|place| bytes[place]);
    let is_begun =
        before.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"+-_./".contains(&byte));
    let after = bytes.get(end).copied();
    let goes_on = after.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_joined = after.is_some_and(|byte| b".-/,".contains(&byte))
        && bytes.get(end + 1).is_some_and(u8::is_ascii_alphanumeric);
    !is_begun && !goes_on && !is_joined
}

fn is_card(text: &str, start: usize, run: &Run) -> bool {
    let Some(usual) = issued(&run.digits).filter(|_| luhn(&run.digits)) else {
        return false;
    };
    let before = before(text, start);
    let mut words = before.split(|c: char| !c.is_alphanumeric());
    let is_named = words.any(|word| CARD_WORDS.iter().any(|ends| word.ends_with(ends)));
    is_named || usual && !is_something_else(&before)
}

/// Some for a number that an issuer gives out; true when it is of his usual length. Others
/// are as likely ids of something: 13 digits are an article's number, 17 to 19 a message's.
fn issued(digits: &[u8]) -> Option<bool> {
    let prefix = digits
        .iter()
        .take(4)
        .fold(0_u32, |number, digit| number * 10 + u32::from(*digit));
    let (lengths, usual) = match prefix {
        4000..=4999 => (&[13, 16, 19][..], 16),
        5100..=5599 | 2221..=2720 => (&[16][..], 16),
        3400..=3499 | 3700..=3799 => (&[15][..], 15),
        3528..=3589 | 6011 | 6440..=6599 => (&[16, 17, 18, 19][..], 16),
        3000..=3059 | 3600..=3699 | 3800..=3999 => (&[14, 16, 17, 18, 19][..], 14),
        6200..=6299 => (&[16, 17, 18, 19][..], 16),
        5018 | 5020 | 5038 | 6304 | 6759 | 6761..=6763 => (&[13, 14, 15, 16, 18, 19][..], 0),
        _ => return None,
    };
    lengths
        .contains(&digits.len())
        .then_some(digits.len() == usual)
}

/// The check digit of ISO/IEC 7812-1 (H. P. Luhn, 1954).
fn luhn(digits: &[u8]) -> bool {
    let weighed = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(place, &digit)| match place % 2 {
            0 => u32::from(digit),
            _ => u32::from(digit * 2 % 10 + digit * 2 / 10),
        });
    weighed.sum::<u32>() % 10 == 0
}

/// The words before a number, in small letters.
fn before(text: &str, start: usize) -> String {
    let mut from = start.saturating_sub(BEFORE_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..start].to_ascii_lowercase()
}

/// True after `order no. `, `tracking number: ` and the like.
fn is_something_else(before: &str) -> bool {
    let words = before
        .split(|c: char| !c.is_alphanumeric())
        .rev()
        .filter(|word| !word.is_empty());
    let mut words =
        words.skip_while(|w| matches!(*w, "number" | "no" | "nr" | "id" | "is" | "code"));
    words
        .next()
        .is_some_and(|word| OTHER_WORDS.contains(&word.trim_end_matches('s')))
}
