//! Payment card numbers.
//!
//! A number is a card number if an issuer's prefix, its length and its check digit agree, and it is
//! grouped as on a card.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::Finding;
use super::rules::compiled;

const WHAT: &str = "card number";
/// Bytes before a number that are searched for words.
const BEFORE_BYTES: usize = 40;

/// Ends of words before a number that make it a card number even if its length is unusual.
const CARD_WORDS: &str = "card visa amex express credit debit karte carte tarjeta";
/// Words directly before a number of another kind.
const OTHER_WORDS: &str = "order tracking invoice parcel shipment ticket imei phone tel call \
                           isbn ean ref reference";

const SEPARATORS: [char; 3] = [' ', '-', '.'];

/// Digits, with single separators between groups.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| compiled("[0-9](?:[ .-]?[0-9])*"));

pub(super) fn find(text: &str, found: &mut Vec<Finding>) {
    for number in NUMBER.find_iter(text) {
        let range = number.range();
        if is_card_like(number.as_str())
            && stands_alone(text.as_bytes(), &range)
            && is_card(text, &range)
        {
            found.push(Finding { range, what: WHAT });
        }
    }
}

/// Whether the digits are grouped as on a card, or not at all.
fn is_card_like(number: &str) -> bool {
    let groups: Vec<usize> = number.split(SEPARATORS).map(str::len).collect();
    let is_grouped = matches!(
        *groups.as_slice(),
        [_] | [4, 6, 4 | 5] | [6, 13] | [4, 4, 4, 1..=4] | [4, 4, 4, 4, 1..=3]
    );
    let separators = SEPARATORS.iter().filter(|one| number.contains(**one));
    let has_one_separator = separators.count() <= 1;
    is_grouped && has_one_separator && (13..=19).contains(&groups.iter().sum::<usize>())
}

/// False for part of something longer: a decimal, a path, a phone number, a UUID.
fn stands_alone(bytes: &[u8], range: &Range<usize>) -> bool {
    let before = range.start.checked_sub(1).map(|index| bytes[index]);
    let is_begun =
        before.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"+-_./".contains(&byte));
    let after = bytes.get(range.end).copied();
    let goes_on = after.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_joined = after.is_some_and(|byte| b".-/,".contains(&byte))
        && bytes
            .get(range.end + 1)
            .is_some_and(u8::is_ascii_alphanumeric);
    !is_begun && !goes_on && !is_joined
}

fn is_card(text: &str, range: &Range<usize>) -> bool {
    let digits = text[range.clone()].bytes().filter(u8::is_ascii_digit);
    let digits: Vec<u8> = digits.map(|digit| digit - b'0').collect();
    let Some(is_usual) = issued(&digits).filter(|_| luhn(&digits)) else {
        return false;
    };
    let from = text.ceil_char_boundary(range.start.saturating_sub(BEFORE_BYTES));
    let before = text[from..range.start].to_ascii_lowercase();
    let mut words = before.split(|c: char| !c.is_alphanumeric());
    let is_named = words.any(|word| CARD_WORDS.split(' ').any(|end| word.ends_with(end)));
    is_named || is_usual && !is_something_else(&before)
}

/// Matches the number against the prefixes and lengths of issuers.
///
/// Returns whether the length is the usual one of its issuer. Other lengths are as likely to be an
/// id: 13 digits an article number, 17 to 19 a message id.
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

/// Verifies the check digit of ISO/IEC 7812-1 (H. P. Luhn, 1954).
fn luhn(digits: &[u8]) -> bool {
    let weighed = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(index, &digit)| match index % 2 {
            0 => u32::from(digit),
            _ => u32::from(digit * 2 % 10 + digit * 2 / 10),
        });
    weighed.sum::<u32>() % 10 == 0
}

/// Whether the text before a number ends like `order no. ` or `tracking number: `.
fn is_something_else(before: &str) -> bool {
    let words = before
        .split(|c: char| !c.is_alphanumeric())
        .rev()
        .filter(|word| !word.is_empty());
    let mut words =
        words.skip_while(|w| matches!(*w, "number" | "no" | "nr" | "id" | "is" | "code"));
    let named = words.next().map(|word| word.trim_end_matches('s'));
    named.is_some_and(|named| OTHER_WORDS.split(' ').any(|word| word == named))
}
