//! Fuzzes message arrays: any bytes are rejected with a path, or restored exactly.

use memoird_core::error::CoreError;
use memoird_fuzz::Target;

use super::*;

/// Maximum bytes of an error text, which may quote some of its input.
const REFUSAL_BYTES_MAX: usize = 1_000;

#[test]
fn fuzz_messages() {
    let target = Target {
        name: "messages",
        crate_dir: env!("CARGO_MANIFEST_DIR"),
        words: &[
            "\"memoird\":",
            "\"type\":",
            "\"content\":",
            "\"role\":",
            "\"tool\"",
            "\"assistant\"",
            "\"absent\"",
            "\"items\"",
            "\"bytes\"",
            "\"placeholder\"",
            "\"reasoning\"",
            "\"tool_result\"",
            "\"tool_use\"",
            "\"thinking\"",
            "\"function_call\"",
            "\"$serde_json::private::Number\":",
            "\"data:image/png;base64,\"",
            ",",
        ],
    };
    target.check(|input| {
        let Ok(text) = std::str::from_utf8(input) else {
            return;
        };
        for format in [OpenAi, OpenAiResponses, Anthropic] {
            match parse(format, text) {
                Ok(turns) => check_read(format, text, &turns),
                Err(error) => {
                    assert!(
                        matches!(error, CoreError::MessagesInvalid { .. }),
                        "{error:?}"
                    );
                    let told = error.to_string();
                    assert!(told.len() <= REFUSAL_BYTES_MAX, "{told}");
                }
            }
        }
    });
}

fn check_read(format: MessageFormat, text: &str, turns: &[Turn]) {
    let messages: Value = serde_json::from_str(text).unwrap();
    assert_eq!(give(format, turns), messages, "{format:?}");
    for other in [OpenAi, OpenAiResponses, Anthropic] {
        let translated = give(other, turns);
        let read_again = give(other, &read(other, &translated));
        assert_eq!(read_again, translated, "{format:?} as {other:?}");
    }
}
