//! Definitions of tools, as elements of a provider's array of tools.

use memoird_core::turn::MessageFormat;
use serde_json::{Value, json};

/// Returns the definition of a function with these parameters (a JSON schema).
pub fn tool_definition(
    format: MessageFormat,
    name: &str,
    description: &str,
    parameters: &Value,
) -> Value {
    match format {
        MessageFormat::OpenAi => json!({
            "type": "function",
            "function": { "name": name, "description": description, "parameters": parameters },
        }),
        // The default there is strict, which requires all parameters to be required.
        MessageFormat::OpenAiResponses => json!({
            "type": "function",
            "name": name,
            "description": description,
            "parameters": parameters,
            "strict": false,
        }),
        MessageFormat::Anthropic => json!({
            "name": name,
            "description": description,
            "input_schema": parameters,
        }),
    }
}

/// Returns the name of a tool in a provider's array of tools.
pub fn tool_name(tool: &Value) -> Option<&str> {
    let function = tool.get("function").unwrap_or(tool);
    function.get("name")?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_has_the_shape_of_each_provider() {
        let parameters = json!({ "type": "object" });
        let definition = |format| tool_definition(format, "read", "Reads.", &parameters);
        let chat = definition(MessageFormat::OpenAi);
        assert_eq!(chat["function"]["parameters"], parameters);
        let responses = definition(MessageFormat::OpenAiResponses);
        assert_eq!(
            (&responses["name"], &responses["strict"]),
            (&json!("read"), &json!(false))
        );
        let anthropic = definition(MessageFormat::Anthropic);
        assert_eq!(anthropic["input_schema"], parameters);
        for definition in [chat, responses, anthropic] {
            assert_eq!(tool_name(&definition), Some("read"));
        }
    }
}
