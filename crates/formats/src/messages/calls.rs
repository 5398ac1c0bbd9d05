//! Types of calls per format, their outputs, and the fields that link the two.
//!
//! For each type, the table has the side that answers, and the answer for an abandoned call.
//!
//! Ids that connect other parts are found without this table: see [`memoird_core::ties`].

use memoird_core::turn::MessageFormat;
use serde_json::{Map, Value, json};

#[derive(Debug)]
pub(super) struct CallKind {
    pub(super) call: &'static str,
    /// Types of its outputs.
    pub(super) outputs: &'static [&'static str],
    /// Field of the call that has its id.
    pub(super) id: &'static str,
    /// Fields of an output that may have this id. The first that is a string counts.
    pub(super) links: &'static [&'static str],
    pub(super) by: AnsweredBy,
    /// Builds an output in text.
    ///
    /// `None` if only the provider or a program can produce one; then a call without an output is
    /// dropped from the window.
    pub(super) answer: Option<fn(&AnswerText<'_>) -> Value>,
}

/// Which side produces the output of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnsweredBy {
    /// The bot.
    Client,
    /// The provider, in the same message or a later one.
    Provider,
    /// The provider if the field `execution` is `server`, otherwise the bot.
    Either,
}

/// A textual output.
pub(super) struct AnswerText<'a> {
    pub(super) id: &'a str,
    /// A string, or a list of parts.
    pub(super) content: Value,
    pub(super) is_error: bool,
}

/// OpenAI's responses: <https://platform.openai.com/docs/api-reference/responses/create>
const RESPONSES: &[CallKind] = &[
    CallKind {
        call: "function_call",
        outputs: &["function_call_output"],
        id: "call_id",
        links: &["call_id"],
        by: AnsweredBy::Client,
        answer: Some(function_output),
    },
    CallKind {
        call: "custom_tool_call",
        outputs: &["custom_tool_call_output"],
        id: "call_id",
        links: &["call_id"],
        by: AnsweredBy::Client,
        answer: Some(|said| typed("custom_tool_call_output", said)),
    },
    CallKind {
        call: "shell_call",
        outputs: &["shell_call_output"],
        id: "call_id",
        links: &["call_id"],
        by: AnsweredBy::Client,
        answer: Some(|said| {
            let outcome = json!({ "type": "exit", "exit_code": i32::from(said.is_error) });
            let output = json!({ "stdout": said.text(), "stderr": "", "outcome": outcome });
            json!({ "type": "shell_call_output", "call_id": said.id, "output": [output] })
        }),
    },
    CallKind {
        call: "apply_patch_call",
        outputs: &["apply_patch_call_output"],
        id: "call_id",
        links: &["call_id"],
        by: AnsweredBy::Client,
        answer: Some(|said| {
            let status = if said.is_error { "failed" } else { "completed" };
            json!({ "type": "apply_patch_call_output", "call_id": said.id, "status": status,
                "output": said.text() })
        }),
    },
    CallKind {
        call: "local_shell_call",
        outputs: &["local_shell_call_output"],
        id: "call_id",
        links: &["call_id", "id"],
        by: AnsweredBy::Client,
        answer: Some(
            |said| json!({ "type": "local_shell_call_output", "id": said.id, "output": said.text() }),
        ),
    },
    CallKind {
        call: "computer_call",
        outputs: &["computer_call_output"],
        id: "call_id",
        links: &["call_id"],
        by: AnsweredBy::Client,
        // Its output is a screenshot.
        answer: None,
    },
    CallKind {
        call: "tool_search_call",
        outputs: &["tool_search_output"],
        id: "call_id",
        links: &["call_id"],
        by: AnsweredBy::Either,
        answer: Some(|said| {
            json!({ "type": "tool_search_output", "call_id": said.id, "execution": "client",
                "status": "completed", "tools": [] })
        }),
    },
    CallKind {
        call: "mcp_approval_request",
        outputs: &["mcp_approval_response"],
        id: "id",
        links: &["approval_request_id"],
        by: AnsweredBy::Client,
        answer: Some(|said| {
            json!({ "type": "mcp_approval_response", "approval_request_id": said.id,
                "approve": false, "reason": said.text() })
        }),
    },
    CallKind {
        call: "program",
        outputs: &["program_output"],
        id: "call_id",
        links: &["call_id"],
        by: AnsweredBy::Provider,
        answer: None,
    },
];

/// Anthropic's messages: <https://docs.anthropic.com/en/api/messages>
const ANTHROPIC: &[CallKind] = &[
    CallKind {
        call: "server_tool_use",
        outputs: &[
            "web_search_tool_result",
            "web_fetch_tool_result",
            "code_execution_tool_result",
            "bash_code_execution_tool_result",
            "text_editor_code_execution_tool_result",
            "tool_search_tool_result",
            "advisor_tool_result",
        ],
        id: "id",
        links: &["tool_use_id"],
        by: AnsweredBy::Provider,
        answer: None,
    },
    CallKind {
        call: "mcp_tool_use",
        outputs: &["mcp_tool_result"],
        id: "id",
        links: &["tool_use_id"],
        by: AnsweredBy::Provider,
        answer: None,
    },
];

/// Returns the call types of a format, except plain function calls.
fn kinds(format: MessageFormat) -> &'static [CallKind] {
    match format {
        MessageFormat::OpenAi => &[],
        MessageFormat::OpenAiResponses => RESPONSES,
        MessageFormat::Anthropic => ANTHROPIC,
    }
}

pub(super) fn of_call(format: MessageFormat, call: &str) -> Option<&'static CallKind> {
    kinds(format).iter().find(|kind| kind.call == call)
}

pub(super) fn of_output(format: MessageFormat, output: &str) -> Option<&'static CallKind> {
    let mut kinds = kinds(format).iter();
    kinds.find(|kind| kind.outputs.contains(&output))
}

/// Whether an item is a call that expects an output.
///
/// Types missing in the table are recognized by the names of the type and of its id field.
pub(super) fn is_call(format: MessageFormat, kind: &str, item: &Map<String, Value>) -> bool {
    let is_unknown_call = kind.ends_with("_call") && item.contains_key("call_id");
    of_call(format, kind).is_some() || is_unknown_call || kind.ends_with("_tool_use")
}

/// Whether a type is that of an output. Types missing in the table are recognized by name.
pub(super) fn is_output(format: MessageFormat, kind: &str) -> bool {
    let ends = ["_output", "_result", "_response"];
    of_output(format, kind).is_some() || ends.iter().any(|end| kind.ends_with(end))
}

impl CallKind {
    /// Whether the bot answers this call, or wrote this output.
    pub(super) fn is_for_client(&self, item: &Map<String, Value>) -> bool {
        match self.by {
            AnsweredBy::Client => true,
            AnsweredBy::Provider => false,
            AnsweredBy::Either => item.get("execution").is_none_or(|by| by != "server"),
        }
    }
}

impl AnswerText<'_> {
    fn text(&self) -> String {
        let parts = self.content.as_array().into_iter().flatten();
        let texts = parts.filter_map(|part| part.get("text")?.as_str());
        let all: Vec<&str> = self.content.as_str().into_iter().chain(texts).collect();
        all.join("\n")
    }
}

pub(super) fn function_output(said: &AnswerText<'_>) -> Value {
    typed("function_call_output", said)
}

fn typed(kind: &str, said: &AnswerText<'_>) -> Value {
    json!({ "type": kind, "call_id": said.id, "output": said.content })
}
