//! Signatures of Standard Webhooks (<https://www.standardwebhooks.com>).
//!
//! Receivers can verify them with its libraries, or with the example in the parent module.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac::{Context, HMAC_SHA256, Key};

/// The key for signatures. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Vec<u8>);

/// Prefix of a key in base64.
const PREFIX: &str = "whsec_";

impl WebhookSecret {
    /// Parses the content of the secret's file or variable.
    ///
    /// It is `whsec_` and the key in base64, as in Standard Webhooks, or any other text, whose
    /// bytes are the key.
    ///
    /// # Errors
    /// A message for the operator if it is empty, or not base64 after `whsec_`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let key = match text.strip_prefix(PREFIX) {
            Some(encoded) => STANDARD.decode(encoded).unwrap_or_default(),
            None => text.as_bytes().to_vec(),
        };
        if key.is_empty() {
            Err("the secret of the webhook is empty, or not base64 after whsec_".into())
        } else {
            Ok(Self(key))
        }
    }

    pub(super) fn signature(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut mac = Context::with_key(&Key::new(HMAC_SHA256, &self.0));
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.sign()))
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_matches_standard_webhooks_libraries() {
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        assert_eq!(
            secret.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn secret_is_text_or_base64_and_hidden_in_debug() {
        let plain = WebhookSecret::parse("open sesame").unwrap();
        let encoded = WebhookSecret::parse("whsec_b3BlbiBzZXNhbWU=").unwrap();
        assert_eq!(plain, encoded);
        assert!(!format!("{plain:?}").contains("sesame"));
        for bad in ["", "whsec_", "whsec_!"] {
            let problem = WebhookSecret::parse(bad).unwrap_err();
            assert!(problem.contains("empty, or not base64"), "{bad}");
        }
    }
}
