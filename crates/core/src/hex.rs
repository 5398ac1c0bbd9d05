//! Hexadecimal encoding.

/// Encodes each byte as two lower-case digits.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes digits of either case. `None` if the text is not valid hexadecimal.
pub fn decode(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let value = |digit: u8| char::from(digit).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| u8::try_from(value(*high)? << 4 | value(*low)?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_reverses_encode_and_rejects_other_input() {
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        let digits = encode(&bytes);
        assert!(digits.starts_with("000102") && digits.ends_with("fdfeff"));
        assert_eq!(decode(&digits), Some(bytes.clone()));
        assert_eq!(decode(&digits.to_uppercase()), Some(bytes));
        assert_eq!(decode(""), Some(Vec::new()));
        for wrong in ["0", "000", "0g", "+1", " 1", "é", "0x"] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
