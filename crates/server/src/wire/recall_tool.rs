//! The tool `read_earlier_turns` on the wire: definition, calls and results.

use memoird_core::CoreError;
use memoird_core::ids::CALL_ID_BYTES_MAX;
use memoird_core::recall_tool::{NAME, description, parameters};
use memoird_core::turn::{MessageFormat, PartKind, Role, Turn};
use memoird_engine::{RecallCall, RecallReply};
use memoird_formats::messages::{RenderOptions, render};
use memoird_formats::{tool_definition, tool_name};
use memoird_proto::v1;
use serde_json::Value;

use super::context::budget_override;
use super::history;
use super::refusal::Refusal;

/// Memory that a call reserves, in bytes: turns of one page and the result.
pub(crate) const CALL_BYTES: u64 = 1 << 20;

/// Defines the tool in the format of a provider.
pub(super) fn definition(format: MessageFormat, has_search: bool) -> Value {
    let (description, parameters) = (description(has_search), parameters(has_search));
    tool_definition(format, NAME, &description, &parameters)
}

/// Adds the definition to an array of tools, unless the bot already included it.
pub(super) fn with_definition(tools_json: String, definition: &Value) -> String {
    let Ok(mut tools) = serde_json::from_str::<Vec<Value>>(&tools_json) else {
        return Value::Array(vec![definition.clone()]).to_string();
    };
    if tools.iter().any(|tool| tool_name(tool) == Some(NAME)) {
        return tools_json;
    }
    tools.push(definition.clone());
    Value::Array(tools).to_string()
}

#[derive(Debug)]
pub(crate) struct ToolResultTarget {
    format: MessageFormat,
    call_id: String,
}

/// Parses a call, and how to render its result, if requested.
pub(crate) fn call(
    request: v1::ResolveRecallToolRequest,
) -> Result<(RecallCall, Option<ToolResultTarget>), Refusal> {
    let format = history::format(request.format)?;
    let is_id = (1..=CALL_ID_BYTES_MAX).contains(&request.call_id.len());
    if format.is_some() && !is_id {
        let invalid = CoreError::IdInvalid {
            field: "call_id",
            bytes: request.call_id.len(),
            bytes_max: CALL_ID_BYTES_MAX,
        };
        return Err(invalid.into());
    }
    let call = RecallCall {
        arguments_json: request.arguments_json,
        bytes_max: Some(request.max_bytes as usize).filter(|bytes| *bytes > 0),
        model: request.model,
        budget: request.budget.map(budget_override).unwrap_or_default(),
    };
    let call_id = request.call_id;
    let to_answer = format.map(|format| ToolResultTarget { format, call_id });
    Ok((call, to_answer))
}

pub(crate) fn resolved(
    reply: RecallReply,
    call: Option<ToolResultTarget>,
) -> v1::ResolveRecallToolResponse {
    let messages_json = call.map(|ToolResultTarget { format, call_id }| {
        let result = PartKind::ToolResult {
            tool_use_id: call_id,
            content: reply.text.clone(),
            parts: Vec::new(),
            is_error: reply.is_error,
        };
        let turn = Turn::new(Role::Tool, vec![result.into()]);
        render(format, &[turn], &RenderOptions::default()).messages_json
    });
    v1::ResolveRecallToolResponse {
        text: reply.text,
        is_error: reply.is_error,
        messages_json: messages_json.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answered(format: MessageFormat, is_error: bool) -> Value {
        let reply = RecallReply {
            text: "#1 user\n  hi".to_owned(),
            is_error,
        };
        let call = ToolResultTarget {
            format,
            call_id: "call_1".to_owned(),
        };
        serde_json::from_str(&resolved(reply, Some(call)).messages_json).expect("JSON")
    }

    #[test]
    fn result_is_one_message_in_each_format() {
        let text = "#1 user\n  hi";
        let chat = json!([{ "role": "tool", "tool_call_id": "call_1", "content": text }]);
        assert_eq!(answered(MessageFormat::OpenAi, false), chat);
        let item = json!([{ "type": "function_call_output", "call_id": "call_1", "output": text }]);
        assert_eq!(answered(MessageFormat::OpenAiResponses, false), item);
        let anthropic = answered(MessageFormat::Anthropic, true);
        let result = &anthropic[0]["content"][0];
        assert_eq!(anthropic[0]["role"], "user");
        assert_eq!(
            (&result["type"], &result["tool_use_id"]),
            (&json!("tool_result"), &json!("call_1"))
        );
        assert_eq!(
            (&result["content"], &result["is_error"]),
            (&json!(text), &json!(true))
        );
    }

    #[test]
    fn definition_is_added_once_to_tools() {
        let definition = definition(MessageFormat::OpenAi, true);
        let tools = |tools_json: &str| -> Vec<Value> {
            let tools_json = with_definition(tools_json.to_owned(), &definition);
            serde_json::from_str(&tools_json).expect("JSON")
        };
        assert_eq!(tools(""), std::slice::from_ref(&definition));
        assert_eq!(tools(r#"[{"name":"book"}]"#).len(), 2);
        let own = json!([{ "name": "book" }, definition]).to_string();
        assert_eq!(tools(&own).len(), 2);
    }

    #[test]
    fn call_without_id_is_rejected_only_with_format() {
        let request = v1::ResolveRecallToolRequest {
            arguments_json: "{}".to_owned(),
            ..Default::default()
        };
        assert!(call(request.clone()).is_ok());
        let with_format = v1::ResolveRecallToolRequest {
            format: v1::MessageFormat::Openai.into(),
            ..request
        };
        let refused = call(with_format).expect_err("no id");
        assert!(refused.message.contains("call_id"), "{refused:?}");
    }
}
