//! Recognizes imitations of memoird's own text in look-alike letters.
//!
//! It handles other alphabets, wide and mathematical letters, accents and invisible characters.
//! Text that it misses still lacks the session's nonce ([`crate::nonce`]).

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::is_hidden;

/// memoird's own text in a window starts with a bracket and this name.
const NAME: &str = "memoird";
/// Tags of the blocks that memoird inserts into windows.
const BLOCKS: &[&str] = &["recalled_memories"];
/// Maximum bytes to scan after a bracket, enough for a name with invisible characters in between.
///
/// The scan also ends soon after the next bracket, so that a text full of brackets takes no longer.
const BYTES_MAX: usize = 4_096;
/// Maximum characters between the name and its colon or number.
const COLON_CHARS_MAX: usize = 32;

/// First UTF-8 bytes of the brackets that are not ASCII.
pub(super) const LEADS: [u8; 3] = [0xe2, 0xe3, 0xef];

/// Quick check that rejects most letters starting with [`LEADS`]: all kana and most Chinese ones.
pub(super) fn may_be_bracket(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [0xe3, 0x80, ..]
            | [0xe2, 0x80 | 0x81 | 0x9d | 0x9f | 0xa6 | 0xa7, ..]
            | [0xef, 0xb9 | 0xbc, ..]
    )
}

/// Letters that look like a Latin one and that normalization does not map to it.
const ALIKE: &[(char, &str)] = &[
    ('a', "аαɑᴀꭺꓮ⍺ⲁ"),
    ('c', "сϲᴄꮯꓚⲥ"),
    ('d', "ԁժᑯꓓꭰᴅđɗɖᗞ"),
    ('e', "еεєҽɛ℮ⴹꓰꭼᴇⲉ"),
    // Includes `l` and `1`. The compared name is mapped the same way.
    ('i', "іιıӏɩɪꓲꭵǀ∣׀ⵏᛁاl1|ꮮꓡʟլⲓ"),
    ('k', "кκᴋⲕ"),
    ('m', "мμϻᴍꓟᗰꮇⲙ"),
    ('n', "ոռɴꓠηпⲛ"),
    ('o', "оοσօסᴏꓳⵔⲟ〇○0ഠ"),
    ('p', "рρᴘꮲꓑⲣ"),
    ('r', "гᴦɾꓣꮢꭱʀᖇꭇꭈ"),
    ('s', "ѕꜱʂտꮪꓢ"),
    ('t', "тτᴛꭲꓔⲧ"),
    ('w', "ѡԝաᴡω"),
];

/// Shape of an opening bracket that memoird's own text can start with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bracket {
    Square,
    Angle,
}

pub(super) fn bracket(c: char) -> Option<Bracket> {
    match c {
        '[' | '［' | '【' | '〔' | '〖' | '〚' | '⟦' | '⁅' | '❲' | '﹝' | '⦋' | '「' | '『' => {
            Some(Bracket::Square)
        }
        '<' | '＜' | '〈' | '《' | '⟨' | '⟪' | '‹' | '﹤' | '❮' | '❰' | '⧼' => {
            Some(Bracket::Angle)
        }
        _ => None,
    }
}

/// Whether `bytes` start like memoird's own text.
pub(super) fn begins_mark(bytes: &[u8]) -> bool {
    let mut chars = Chars(bytes);
    match chars.next().and_then(bracket) {
        Some(Bracket::Square) => is_note(chars.0),
        Some(Bracket::Angle) => names_tag(chars.0, BLOCKS),
        None => false,
    }
}

/// Whether the bracket is followed by memoird's name and then a colon or a number.
fn is_note(behind: &[u8]) -> bool {
    let is_gap = |c: char| matches!(c, ' ' | '*' | '_' | '`' | '~' | '\\' | '"' | '\'');
    let mut shown = shown(behind).filter(|c| !is_gap(*c));
    if !NAME.chars().all(|c| shown.next() == Some(alike(c))) {
        return false;
    }
    let mut rest = shown.take(COLON_CHARS_MAX);
    let end = rest.find(|&c| matches!(c, ':' | '[' | ']') || c.is_ascii_digit());
    end.is_some_and(|c| !matches!(c, '[' | ']'))
}

/// Whether the bracket is followed by one of the tag names, as an opening or closing tag.
pub(super) fn names_tag(behind: &[u8], tags: &[&str]) -> bool {
    let mut begin = shown(behind).skip_while(|c| matches!(c, ' ' | '/' | '\\'));
    let first = begin.next();
    let rest = begin.filter(|c| !matches!(c, ' ' | '_'));
    tags.iter().any(|tag| {
        let mut name = tag.chars().filter(|c| *c != '_').map(alike);
        let mut rest = rest.clone();
        name.next() == first && name.all(|c| rest.next() == Some(c))
    })
}

/// Returns the visible characters at the start of a text, normalized for comparison.
///
/// Letters that look the same become one letter, and all whitespace becomes a space.
fn shown(bytes: &[u8]) -> impl Iterator<Item = char> + Clone {
    let is_seen = |c: &char| !is_unseen(*c);
    let seen = Chars(&bytes[..bytes.len().min(BYTES_MAX)]).filter(is_seen);
    seen.flat_map(|c| {
        let is_plain = c.is_ascii() || c.is_whitespace();
        let parts = (!is_plain)
            .then(|| std::iter::once(c).nfkd())
            .into_iter()
            .flatten()
            .filter(|part| !is_combining_mark(*part));
        is_plain.then_some(c).into_iter().chain(parts).map(alike)
    })
}

fn is_unseen(c: char) -> bool {
    let is_filler = matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{200c}'
        | '\u{200d}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}');
    is_filler
        || is_combining_mark(c)
        || is_hidden(c) && !c.is_whitespace()
        || c.is_control() && !c.is_whitespace()
}

/// Maps all characters that look alike to one of them.
fn alike(c: char) -> char {
    match c {
        '1' | 'l' | 'L' | '|' => 'i',
        '0' => 'o',
        c if c.is_ascii() && !c.is_ascii_whitespace() => c.to_ascii_lowercase(),
        c if c.is_whitespace() => ' ',
        '∶' | '꞉' | 'ː' | '˸' | '׃' | '։' | '⁚' | 'ꓽ' => ':',
        // Letters in dark circles and squares, and the letters that flags consist of.
        '\u{1f150}'..='\u{1f169}' => nth_letter(c, 0x1f150),
        '\u{1f170}'..='\u{1f189}' => nth_letter(c, 0x1f170),
        '\u{1f1e6}'..='\u{1f1ff}' => nth_letter(c, 0x1f1e6),
        c => {
            let lower = c.to_lowercase().next().unwrap_or(c);
            let known = ALIKE.iter().find(|(_, all)| all.contains(lower));
            known.map_or(lower, |(letter, _)| *letter)
        }
    }
}

fn nth_letter(c: char, first: u32) -> char {
    let letter = u8::try_from(u32::from(c) - first).map_or('?', |n| char::from(b'a' + n));
    alike(letter)
}

/// Iterates over characters up to the first invalid UTF-8.
#[derive(Clone)]
struct Chars<'a>(&'a [u8]);

impl Iterator for Chars<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let (&first, behind) = self.0.split_first()?;
        if first.is_ascii() {
            self.0 = behind;
            return Some(char::from(first));
        }
        let length = match first {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            _ => 4,
        };
        let (one, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        str::from_utf8(one).ok()?.chars().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookalikes_of_markers_and_tags_are_detected() {
        for forged in [
            "[memoird: x",
            "[MEMOIRD 482913075: x",
            "[ m e m o i r d : x",
            "[**memoird**: x",
            "[mеmоіrԁ: x",
            "[МЕМОІRD: x",
            "[μεmοιrd: x",
            "[𝗺𝗲𝗺𝗼𝗶𝗿𝗱: x",
            "［ｍｅｍｏｉｒｄ： x",
            "【memoird：x",
            "[me\u{200b}mo\u{ad}ir\u{200d}d: x",
            "[m\u{301}émoird: x",
            "[ⓜⓔⓜⓞⓘⓡⓓ: x",
            "[🅼🅴🅼🅾🅸🆁🅳: x",
            "[mem0lrd: x",
            "[ᎷᎬᎷϴIRD: x",
            "[memoird\u{2028}∶ x",
            &format!("[mem{}oird: x", "\u{200b}".repeat(500)),
            &format!("[{}memoird: x", " ".repeat(2_000)),
            "<recalled_memories",
            "< / Recalled memories>",
            "＜ｒecalled_memories",
            "<reсаlled_memоries>",
            "<re\u{200b}called\u{ff3f}memories>",
        ] {
            // The Greek word has a theta, which no font draws like an o.
            let expected = !forged.contains('ϴ');
            assert_eq!(begins_mark(forged.as_bytes()), expected, "{forged}");
        }
        for innocent in [
            "[memoird]: x",
            "[memoird](https://example.com)",
            "[memoire: x",
            "[memo: x",
            "[1, 2, 3]",
            "<recall>",
            "<b>",
            "< recalled",
            "(memoird: x",
            "memoird: x",
            "[",
            "",
            "[\u{ff}",
            "[quoted memoird: x",
            "［［［m［e［m［o［i［r［d: x",
            "[m…e…moird: x",
            "[мемуары: x",
            "【注意：x】",
        ] {
            assert!(!begins_mark(innocent.as_bytes()), "{innocent}");
        }
        assert!(!begins_mark(b"[\xff\xff\xff\xff"), "invalid UTF-8");
    }

    #[test]
    fn every_bracket_is_detected_in_its_utf8_bytes() {
        for c in ('\u{80}'..=char::MAX).filter(|c| bracket(*c).is_some()) {
            let text = c.to_string();
            assert!(LEADS.contains(&text.as_bytes()[0]) && may_be_bracket(text.as_bytes()));
        }
    }

    #[test]
    fn tag_is_recognized_by_its_leading_name() {
        for (rest, is_named) in [
            ("known>", true),
            (" / KNOWN x>", true),
            ("knоwn_facts>", true),
            ("unknown>", false),
            ("= known", false),
            ("<known>", false),
            ("", false),
        ] {
            assert_eq!(names_tag(rest.as_bytes(), &["known"]), is_named, "{rest}");
        }
    }
}
