//! Base64 in the strict form that providers accept, and in the lenient form that bots send.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Padding may be missing, and the last digit may have excess bits.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Encodes with padding.
pub(crate) fn encode(data: &[u8]) -> String {
    STANDARD.encode(data)
}

/// Decodes with optional padding. `None` if the text contains any other character.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    LENIENT.decode(text.trim_end_matches('=')).ok()
}

/// Decodes base64 of either alphabet up to `bytes_max`, or up to the first other character.
///
/// Line breaks and spaces are skipped.
pub(crate) fn decode_head(text: &str, bytes_max: usize) -> Vec<u8> {
    let digits = text.bytes().filter(|byte| !b"\r\n ".contains(byte));
    let standard = digits.map(|digit| match digit {
        b'-' => b'+',
        b'_' => b'/',
        digit => digit,
    });
    let mut digits: Vec<u8> = standard
        .take_while(|digit| digit.is_ascii_alphanumeric() || matches!(digit, b'+' | b'/'))
        .take(bytes_max.div_ceil(3).saturating_mul(4))
        .collect();
    if digits.len() % 4 == 1 {
        // A single digit is less than a byte.
        digits.pop();
    }
    let mut bytes = LENIENT.decode(digits).unwrap_or_default();
    bytes.truncate(bytes_max);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_examples_encode_and_decode() {
        let examples = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (data, text) in examples {
            assert_eq!(encode(data.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), data.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)).unwrap(), all);
        assert_eq!(decode("Zm9-"), None);
        assert_eq!(decode("Zm9vY"), None);
    }
}
