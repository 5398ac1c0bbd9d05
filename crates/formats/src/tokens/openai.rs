//! OpenAI's own tokenizers: the encodings `o200k_base` and `cl100k_base`.
//!
//! Their vocabularies are compiled in, compressed. Each is unpacked on first use, which takes about
//! 50 ms, and 25 MB of memory for `o200k_base` or 8 MB for `cl100k_base`.

use std::sync::LazyLock;

use tiktoken::CoreBpe;

use super::Tokenizer;

/// Share for tokens around messages and tools, which OpenAI does not document exactly.
const MARGIN: f64 = 0.015;

/// Bytes of the pieces in which longer text is counted, to bound memory.
///
/// A cut through a word costs a token or two.
const PIECE_BYTES_MAX: usize = 256 * 1024;

#[derive(Clone, Copy, Debug)]
pub enum OpenAiTokenizer {
    /// `o200k_base`: GPT-4o and later.
    O200k,
    /// `cl100k_base`: GPT-4 and GPT-3.5.
    Cl100k,
}

static O200K_BASE: LazyLock<CoreBpe> = LazyLock::new(tiktoken::encoding::o200k_base);
static CL100K_BASE: LazyLock<CoreBpe> = LazyLock::new(tiktoken::encoding::cl100k_base);

impl Tokenizer for OpenAiTokenizer {
    fn count(&self, text: &str) -> usize {
        let encoding = match self {
            Self::O200k => &*O200K_BASE,
            Self::Cl100k => &*CL100K_BASE,
        };
        let mut rest = text;
        let mut tokens = 0;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES_MAX));
            tokens += encoding.count(piece);
            rest = after;
        }
        tokens
    }

    fn margin(&self) -> f64 {
        MARGIN
    }
}

#[cfg(test)]
mod tests {
    use super::OpenAiTokenizer::{Cl100k, O200k};
    use super::*;

    #[test]
    fn counts_match_openai_cookbook() {
        // The cookbook's "How to count tokens with tiktoken".
        let cases = [
            ("tiktoken is great!", 6, 6),
            ("antidisestablishmentarianism", 6, 6),
            ("2 + 2 = 4", 7, 7),
            ("お誕生日おめでとう", 9, 8),
        ];
        for (text, cl100k, o200k) in cases {
            assert_eq!(Cl100k.count(text), cl100k, "{text}");
            assert_eq!(O200k.count(text), o200k, "{text}");
        }
    }

    #[test]
    fn special_tokens_count_as_text() {
        assert!(O200k.count("<|endoftext|>") > 1);
        assert!(Cl100k.count("<|im_start|>") > 1);
    }

    #[test]
    fn text_longer_than_a_piece_is_counted_to_its_end() {
        let word = "daylight ";
        let text = word.repeat(3 * PIECE_BYTES_MAX / word.len());
        let words = text.len() / word.len();
        assert!(
            (words..=words + 8).contains(&O200k.count(&text)),
            "{}",
            O200k.count(&text)
        );
        assert_eq!(O200k.count(""), 0);
    }

    #[test]
    fn every_character_counts_in_any_script() {
        for text in [
            "é".repeat(400_000),
            "\u{10ffff}".repeat(200_000),
            "\u{301}".repeat(300_000),
        ] {
            assert!(O200k.count(&text) > text.chars().count() / 64);
            assert!(Cl100k.count(&text) > text.chars().count() / 64);
        }
    }
}
