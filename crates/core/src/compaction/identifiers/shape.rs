//! What a word is, by its shape alone.

use super::Kind;
use super::moment::is_moment;
use super::vocabulary::{EXTENSIONS, HOSTS, UNITS};

/// What a word is; `None` for a plain word or number.
pub(super) fn kind(word: &str) -> Option<Kind> {
    let bytes = word.as_bytes();
    if is_plain(bytes) {
        return None;
    }
    let has_digit = bytes.iter().any(u8::is_ascii_digit);
    let has_letter = word.chars().any(char::is_alphabetic);
    if has_digit && is_moment(word) {
        Some(Kind::Date)
    } else if has_digit && is_amount(word) {
        Some(Kind::Amount)
    } else if bytes.contains(&b'@') && bytes[0] != b'@' && has_letter && !word.contains('/') {
        Some(Kind::Id)
    } else if word.contains("://") || is_path(word) {
        Some(Kind::Path)
    } else if has_digit && has_letter {
        mixed(word)
    } else if has_digit {
        is_long_number(bytes).then_some(Kind::Id)
    } else {
        symbol(word)
    }
}

/// True of most words: small letters, perhaps the first one a capital.
fn is_plain(bytes: &[u8]) -> bool {
    bytes.iter().skip(1).all(u8::is_ascii_lowercase)
        && bytes.first().is_some_and(u8::is_ascii_alphabetic)
}

/// True of a number, with or without separators, and nothing else.
pub(super) fn is_number(word: &str) -> bool {
    let bytes = word.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_digit)
        && bytes
            .iter()
            .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b','))
        && bytes.iter().filter(|b| **b == b'.').count() <= 1
}

/// True of a currency or a percent sign with a number, and of a number with a unit.
fn is_amount(word: &str) -> bool {
    let currency = ['$', '€', '£', '¥', '₹'];
    if let Some(number) = word.strip_prefix(currency) {
        let number = number.trim_end_matches(['k', 'K', 'M', 'B']);
        return is_number(number);
    }
    if let Some(number) = word
        .strip_suffix(currency)
        .or_else(|| word.strip_suffix('%'))
    {
        return is_number(number);
    }
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',');
    let Some(end) = end.filter(|end| *end > 0) else {
        return false;
    };
    let (number, unit) = word.split_at(end);
    is_number(number) && (is_unit(unit) || matches!(unit, "k" | "K" | "M" | "x"))
}

/// True of a unit or a currency's name.
pub(super) fn is_unit(word: &str) -> bool {
    word.len() <= 8 && UNITS.contains(&word)
}

/// True of the path of a file or folder.
pub(super) fn is_path(word: &str) -> bool {
    let bytes = word.as_bytes();
    let is_drive = bytes.len() > 3 && bytes[0].is_ascii_alphabetic() && bytes[1] == b':';
    if is_drive && matches!(bytes[2], b'\\' | b'/') {
        return true;
    }
    let has_letter = word.chars().any(char::is_alphabetic);
    if !has_letter || word.contains(char::is_whitespace) {
        return false;
    }
    let slashes = bytes.iter().filter(|b| **b == b'/').count();
    let is_rooted = ["/", "./", "../", "~/"]
        .iter()
        .any(|root| word.starts_with(root));
    let last = word.rsplit('/').next().unwrap_or(word);
    is_rooted && slashes > 0 && word.len() > 2
        || has_extension(last)
        || slashes >= 2 && !word.contains("//")
        || slashes == 1 && bytes.ends_with(b"/") && word.len() > 3
        || slashes == 1 && bytes.iter().any(|b| matches!(b, b'_' | b'.'))
}

/// True of the name of a file, and of a host.
fn has_extension(name: &str) -> bool {
    let Some((stem, extension)) = name.rsplit_once('.') else {
        return false;
    };
    let is_known = EXTENSIONS.contains(&extension) || HOSTS.contains(&extension);
    let has_stem =
        stem.contains(char::is_alphabetic) || stem.contains(|c: char| c.is_ascii_digit());
    is_known && has_stem || name.starts_with('.') && stem.is_empty() && extension.len() > 2
}

/// Letters and digits in one word.
fn mixed(word: &str) -> Option<Kind> {
    let bare = word.trim_start_matches(['#', '@']);
    let bytes = bare.as_bytes();
    let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    let rest = &bare[digits..];
    if digits > 0 && matches!(rest, "st" | "nd" | "rd" | "th" | "s") {
        return None;
    }
    // "2-bag" is a word, "24-hour" an amount.
    let counted = rest.strip_prefix('-').filter(|_| digits > 0);
    if let Some(word) = counted.filter(|word| word.bytes().all(|b| b.is_ascii_lowercase())) {
        return is_unit(word).then_some(Kind::Amount);
    }
    let is_code = bare.len() == word.len()
        && matches!(bytes[0], b'E' | b'F' | b'W' | b'C')
        && bytes.len() >= 4
        && bytes[1..].iter().all(u8::is_ascii_digit);
    if is_code {
        return Some(Kind::Code);
    }
    Some(if is_constant(bare) {
        Kind::Code
    } else {
        Kind::Id
    })
}

/// Long numbers are ids: of an order, a card, a telephone.
fn is_long_number(bytes: &[u8]) -> bool {
    let digits = bytes.iter().filter(|b| b.is_ascii_digit()).count();
    let is_marked = bytes[0] == b'#';
    // Versions and addresses have more than one full stop.
    let dots = bytes.iter().filter(|b| **b == b'.').count();
    is_marked || dots >= 2 || digits >= 6 && bytes.iter().all(|b| b.is_ascii_digit() || *b == b'-')
}

/// Words without digits: codes, constants, symbols of programs.
fn symbol(word: &str) -> Option<Kind> {
    if is_error(word) || is_constant(word) {
        return Some(Kind::Code);
    }
    let is_symbol = word.contains('_') || word.contains("::") || is_camel(word);
    (is_symbol && word.is_ascii()).then_some(Kind::Name)
}

/// `ECONNREFUSED`, `SIGSEGV`, `KeyError`, `NullPointerException`.
fn is_error(word: &str) -> bool {
    let is_upper = word.bytes().all(|b| b.is_ascii_uppercase());
    let is_errno = word.len() >= 5 && ERRNOS.iter().any(|begin| word.starts_with(begin));
    let is_named = ["Error", "Exception"].iter().any(|end| {
        word.strip_suffix(end)
            .is_some_and(|name| name.bytes().any(|b| b.is_ascii_lowercase()))
    });
    is_upper && (is_errno || word.starts_with("SIG") && word.len() >= 6) || is_named
}

/// How the codes of errors begin.
const ERRNOS: &[&str] = &[
    "ECONN", "EADDR", "ENO", "EACC", "EPERM", "EPIPE", "ETIME", "EEXIST", "EAGAIN", "EINVAL",
    "EISDIR", "EBUSY", "EMFILE", "ENET", "EHOST", "EPROTO", "EINTR", "EIO", "ERR", "EAI", "EXDEV",
    "EROFS", "EDQUOT", "EFBIG", "EBADF",
];

/// `MAX_RETRIES`, `RESOURCE_EXHAUSTED`.
fn is_constant(word: &str) -> bool {
    word.contains('_')
        && word
            .bytes()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
        && word.bytes().filter(u8::is_ascii_uppercase).count() >= 2
}

fn is_camel(word: &str) -> bool {
    let bytes = word.as_bytes();
    let is_letters = bytes.iter().all(u8::is_ascii_alphanumeric);
    is_letters
        && bytes
            .windows(2)
            .any(|two| two[0].is_ascii_lowercase() && two[1].is_ascii_uppercase())
}
