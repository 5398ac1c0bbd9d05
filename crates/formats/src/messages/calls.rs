//! Types of calls, for each format: their outputs, the fields that link the two, who answers, and
//! the answer of a call that was abandoned.
//!
//! Ids that tie other parts together are found without this table: see [`memoird_core::ties`].

use memoird_core::turn::MessageFormat;
use serde_json::{Map, Value, json};

/// A type of call.
#[derive(Debug)]
pub(super) struct CallKind {
    /// Type of the call.
    pub(super) call: &'static str,
    /// Types of its output.
    pub(super) outputs: &'static [&'static str],
    /// Field of the call with its id.
    pub(super) id: &'static str,
    /// Fields of an output that may have this id: the first one that is a string counts.
    pub(super) links: &'static [&'static str],
    pub(super) by: AnsweredBy,
    /// Writes an output; `None` where only the provider or a program can: then a call without an
    /// output leaves the window.
    pub(super) answer: Option<fn(&AnswerText<'_>) -> Value>,
}

/// Where the output of a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnsweredBy {
    /// From the bot.
    Client,
    /// From the provider, in the same message or a later one.
    Provider,
    /// From the provider if the field `execution` is `server`.
    Either,
}

/// An output in text.
pub(super) struct AnswerText<'a> {
    pub(super) id: &'a str,
    /// A text, or a list of parts.
    pub(super) content: Value,
    pub(super) is_error: bool,
}

/// OpenAI's responses. <https://platform.openai.com/docs/api-reference/responses/create>
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
        // It takes a screenshot.
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

/// Anthropic's messages. <https://docs.anthropic.com/en/api/messages>
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

/// The types of a format that are not the plain call of a function.
fn kinds(format: MessageFormat) -> &'static [CallKind] {
    match format {
        MessageFormat::OpenAi => &[],
        MessageFormat::OpenAiResponses => RESPONSES,
        MessageFormat::Anthropic => ANTHROPIC,
    }
}

/// The call of this type.
pub(super) fn of_call(format: MessageFormat, call: &str) -> Option<&'static CallKind> {
    kinds(format).iter().find(|kind| kind.call == call)
}

/// The call that has outputs of this type.
pub(super) fn of_output(format: MessageFormat, output: &str) -> Option<&'static CallKind> {
    let mut kinds = kinds(format).iter();
    kinds.find(|kind| kind.outputs.contains(&output))
}

/// True for a call that waits for an output, by the table or, where it has no such type, by the
/// names of its type and of its id.
pub(super) fn is_call(format: MessageFormat, kind: &str, item: &Map<String, Value>) -> bool {
    let is_unknown_call = kind.ends_with("_call") && item.contains_key("call_id");
    of_call(format, kind).is_some() || is_unknown_call || kind.ends_with("_tool_use")
}

/// True for a type of output, by the table or, where it has no such type, by its name.
pub(super) fn is_output(format: MessageFormat, kind: &str) -> bool {
    let ends = ["_output", "_result", "_response"];
    of_output(format, kind).is_some() || ends.iter().any(|end| kind.ends_with(end))
}

impl CallKind {
    /// True where the bot answers this call, or has written this output.
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

/// The output of a function.
pub(super) fn function_output(said: &AnswerText<'_>) -> Value {
    typed("function_call_output", said)
}

fn typed(kind: &str, said: &AnswerText<'_>) -> Value {
    json!({ "type": kind, "call_id": said.id, "output": said.content })
}
