//! Parses the `conversations.json` of a data export of ChatGPT or Claude.

use std::collections::HashMap;
use std::fmt;
use std::io::BufRead;

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{Part, Role, SessionInfo, Turn};
use prost_types::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer as _, SeqAccess, Visitor};
use serde_json::{Value, json};

use super::super::lines::BYTE_ORDER_MARK;
use super::Item;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Source {
    /// `conversations.json` of a ChatGPT data export
    Chatgpt,
    /// `conversations.json` of a Claude data export
    Claude,
}

/// Calls `each` with the items of one conversation after the other, until it returns false.
///
/// The session id is `prefix` plus the conversation's id. The title goes into the state as `title`.
/// Messages without text are skipped.
pub(super) fn read(
    source: Source,
    mut file: impl BufRead,
    prefix: &str,
    each: impl FnMut(Vec<Item>) -> bool,
) -> Result<(), serde_json::Error> {
    let has_mark = file
        .fill_buf()
        .is_ok_and(|text| text.starts_with(BYTE_ORDER_MARK));
    if has_mark {
        file.consume(BYTE_ORDER_MARK.len());
    }
    match source {
        Source::Chatgpt => in_array(file, prefix, each, ChatGptChat::into_session),
        Source::Claude => in_array(file, prefix, each, ClaudeChat::into_session),
    }
}

struct Conversation {
    id: String,
    title: String,
    turns: Vec<Turn>,
}

impl Conversation {
    fn into_items(self, prefix: &str) -> Vec<Item> {
        let session_id = format!("{prefix}{}", self.id);
        let state = (!self.title.is_empty()).then(|| json!({ "title": self.title }).to_string());
        let info = SessionInfo {
            session_id: session_id.clone(),
            ..SessionInfo::default()
        };
        let turns = self.turns.into_iter().map(|turn| Item::Turn {
            session_id: session_id.clone(),
            turn,
        });
        std::iter::once(Item::Session { info, state })
            .chain(turns)
            .collect()
    }
}

/// Deserializes one element at a time: an export can have hundreds of megabytes.
fn in_array<T: DeserializeOwned>(
    file: impl BufRead,
    prefix: &str,
    each: impl FnMut(Vec<Item>) -> bool,
    into_session: fn(T) -> Conversation,
) -> Result<(), serde_json::Error> {
    struct Elements<'a, T, F> {
        prefix: &'a str,
        each: F,
        into_session: fn(T) -> Conversation,
    }
    impl<'de, T: DeserializeOwned, F: FnMut(Vec<Item>) -> bool> Visitor<'de> for Elements<'_, T, F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of conversations")
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
            let mut goes_on = true;
            while let Some(element) = elements.next_element::<T>()? {
                // After that, the remaining elements are parsed and dropped.
                if goes_on {
                    let session = (self.into_session)(element);
                    goes_on = (self.each)(session.into_items(self.prefix));
                }
            }
            Ok(())
        }
    }
    let mut json = serde_json::Deserializer::from_reader(file);
    json.deserialize_seq(Elements {
        prefix,
        each,
        into_session,
    })?;
    json.end()
}

/// A ChatGPT conversation: a tree with the newest displayed message as `current_node`.
#[derive(Deserialize)]
struct ChatGptChat {
    id: Option<String>,
    conversation_id: Option<String>,
    title: Option<String>,
    current_node: Option<String>,
    mapping: HashMap<String, ChatGptNode>,
}

#[derive(Deserialize)]
struct ChatGptNode {
    message: Option<ChatGptMessage>,
    parent: Option<String>,
    #[serde(default)]
    children: Vec<String>,
}

#[derive(Deserialize)]
struct ChatGptMessage {
    id: Option<String>,
    author: ChatGptAuthor,
    create_time: Option<f64>,
    content: Value,
    #[serde(default)]
    metadata: Value,
}

#[derive(Deserialize)]
struct ChatGptAuthor {
    role: String,
}

impl ChatGptChat {
    fn into_session(mut self) -> Conversation {
        let mut node = self.current_node.take().or_else(|| self.last_node());
        let mut turns = Vec::new();
        // Each node is removed when visited, so a cycle ends.
        while let Some(id) = node {
            let Some(entry) = self.mapping.remove(&id) else {
                break;
            };
            turns.extend(entry.message.and_then(ChatGptMessage::into_turn));
            node = entry.parent;
        }
        turns.reverse();
        Conversation {
            id: self.conversation_id.or(self.id).unwrap_or_default(),
            title: self.title.unwrap_or_default(),
            turns,
        }
    }

    /// Returns the leaf of the newest branch, for exports without `current_node`.
    fn last_node(&self) -> Option<String> {
        let created = |node: &ChatGptNode| node.message.as_ref().and_then(|it| it.create_time);
        let ends = self
            .mapping
            .iter()
            .filter(|(_, node)| node.children.is_empty());
        ends.max_by(|(_, one), (_, other)| {
            let [one, other] = [one, other].map(|node| created(node).unwrap_or_default());
            one.total_cmp(&other)
        })
        .map(|(id, _)| id.clone())
    }
}

impl ChatGptMessage {
    fn into_turn(self) -> Option<Turn> {
        if self.metadata["is_visually_hidden_from_conversation"] == true {
            return None;
        }
        let role = match self.author.role.as_str() {
            "user" => Role::User,
            "system" => Role::System,
            // Tools ran on the provider's side, and their calls have no ids.
            _ => Role::Assistant,
        };
        let parts = self.content["parts"].as_array().into_iter().flatten();
        let texts = parts
            .map(|part| match part {
                Value::String(text) => text.clone(),
                other => other["text"]
                    .as_str()
                    .map_or_else(|| placeholder(other), str::to_owned),
            })
            .chain(self.content["text"].as_str().map(str::to_owned));
        turn(
            role,
            texts,
            self.id,
            self.create_time.and_then(from_seconds),
        )
    }
}

/// Placeholder for a part without text, such as an image. The export renames its file.
fn placeholder(part: &Value) -> String {
    let kind = part["content_type"].as_str().unwrap_or_default();
    match kind.strip_suffix("_asset_pointer") {
        Some(kind) => format!("[{kind}]"),
        None => String::new(),
    }
}

#[derive(Deserialize)]
struct ClaudeChat {
    uuid: String,
    #[serde(default)]
    name: String,
    chat_messages: Vec<ClaudeMessage>,
}

#[derive(Deserialize)]
struct ClaudeMessage {
    uuid: Option<String>,
    sender: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    content: Vec<Value>,
    #[serde(default)]
    attachments: Vec<ClaudeAttachment>,
    created_at: Option<String>,
}

#[derive(Deserialize)]
struct ClaudeAttachment {
    #[serde(default)]
    file_name: String,
    #[serde(default)]
    extracted_content: String,
}

impl ClaudeChat {
    fn into_session(self) -> Conversation {
        let messages = self.chat_messages.into_iter();
        Conversation {
            id: self.uuid,
            title: self.name,
            turns: messages.filter_map(ClaudeMessage::into_turn).collect(),
        }
    }
}

impl ClaudeMessage {
    fn into_turn(self) -> Option<Turn> {
        let role = match self.sender.as_str() {
            "human" => Role::User,
            _ => Role::Assistant,
        };
        let blocks = self
            .content
            .iter()
            .filter_map(|block| block["text"].as_str());
        let mut texts: Vec<String> = blocks.map(str::to_owned).collect();
        if texts.is_empty() {
            texts.push(self.text);
        }
        let files = self
            .attachments
            .into_iter()
            .filter(|file| !file.extracted_content.is_empty());
        texts.extend(files.map(|file| format!("{}:\n{}", file.file_name, file.extracted_content)));
        let time = self.created_at.and_then(|time| time.parse().ok());
        turn(role, texts.into_iter(), self.uuid, time)
    }
}

/// Creates a turn of these texts. `None` if all of them are blank.
fn turn(
    role: Role,
    texts: impl Iterator<Item = String>,
    id: Option<String>,
    time: Option<Timestamp>,
) -> Option<Turn> {
    let texts = texts.filter(|text| !text.trim().is_empty());
    let parts: Vec<Part> = texts
        .map(|text| Part {
            part: Some(Kind::Text(text)),
            ..Part::default()
        })
        .collect();
    (!parts.is_empty()).then(|| Turn {
        role: role.into(),
        parts,
        client_id: id.unwrap_or_default(),
        timestamp: time.map(in_milliseconds),
        ..Turn::default()
    })
}

fn from_seconds(seconds: f64) -> Option<Timestamp> {
    let milliseconds = seconds * 1e3;
    // Years 1970 to 9999, the range that turns allow.
    (0.0..2.5e14).contains(&milliseconds).then(|| {
        #[expect(clippy::cast_possible_truncation, reason = "in range")]
        let whole = milliseconds as i64;
        let nanos = i32::try_from(whole % 1_000 * 1_000_000).unwrap_or_default();
        Timestamp {
            seconds: whole / 1_000,
            nanos,
        }
    })
}

/// Truncates to the daemon's resolution, so that a repeated import finds equal turns.
fn in_milliseconds(time: Timestamp) -> Timestamp {
    Timestamp {
        nanos: time.nanos / 1_000_000 * 1_000_000,
        ..time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(source: Source, text: &str) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        let each = |items: Vec<Item>| {
            let shown = items.into_iter().map(|item| match item {
                Item::Session { info, state } => {
                    format!("{} {}", info.session_id, state.unwrap_or_default())
                }
                Item::Turn { turn, .. } => shown(&turn),
            });
            found.push(shown.collect());
            true
        };
        read(source, text.as_bytes(), "old:", each).expect("an export");
        found
    }

    fn shown(turn: &Turn) -> String {
        let texts: Vec<&str> = turn
            .parts
            .iter()
            .map(|part| match &part.part {
                Some(Kind::Text(text)) => text.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        let time = turn
            .timestamp
            .map(|time| time.to_string())
            .unwrap_or_default();
        let role = turn.role().as_str_name().trim_start_matches("ROLE_");
        format!("{role} {} {} {}", turn.client_id, time, texts.join("|"))
    }

    #[test]
    fn chatgpt_export_follows_current_branch() {
        let message = |id: &str, role: &str, content: Value| {
            json!({"id": id, "author": {"role": role}, "create_time": 1_700_000_000.25,
                "content": content, "metadata": {}})
        };
        let text = |parts: &[&str]| json!({"content_type": "text", "parts": parts});
        let image = json!({"content_type": "multimodal_text", "parts": [
            {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}, "Look"]});
        let mut hidden = message("m0", "system", text(&["Custom instructions"]));
        hidden["metadata"] = json!({"is_visually_hidden_from_conversation": true});
        let chat = json!({"id": "c1", "conversation_id": "c1", "title": "Parcel", "current_node": "d",
        "mapping": {
            "root": {"message": null, "parent": null, "children": ["a"]},
            "a": {"message": hidden, "parent": "root", "children": ["b"]},
            "b": {"message": message("m1", "user", image), "parent": "a", "children": ["c", "d"]},
            "c": {"message": message("m2", "assistant", text(&["Another try"])), "parent": "b"},
            "d": {"message": message("m3", "assistant", text(&["In Oslo.", ""])), "parent": "b"},
        }});
        let mut branch = chat.clone();
        branch["current_node"] = Value::Null;
        branch["mapping"]["c"]["message"]["create_time"] = json!(1_800_000_000);
        let export = format!("\u{feff}[{chat}, {branch}]");
        let found = sessions(Source::Chatgpt, &export);
        let time = "2023-11-14T22:13:20.250Z";
        let question = format!("USER m1 {time} [image]|Look");
        assert_eq!(
            found[0],
            [
                r#"old:c1 {"title":"Parcel"}"#,
                &question,
                &format!("ASSISTANT m3 {time} In Oslo.")
            ]
        );
        assert_eq!(found[1][2], "ASSISTANT m2 2027-01-15T08:00:00Z Another try");
    }

    #[test]
    fn claude_export_has_texts_and_attachments() {
        let export = json!([{"uuid": "c1", "name": "", "chat_messages": [
            {"uuid": "m1", "sender": "human", "text": "Read this", "created_at": "2025-05-01T06:02:03.456789Z",
             "attachments": [{"file_name": "a.txt", "extracted_content": "words"}]},
            {"uuid": "m2", "sender": "assistant", "text": "old", "content": [
                {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Read."}]},
            {"uuid": "m3", "sender": "human", "text": " "},
        ]}]);
        assert_eq!(
            sessions(Source::Claude, &export.to_string()),
            [[
                "old:c1 ",
                "USER m1 2025-05-01T06:02:03.456Z Read this|a.txt:\nwords",
                "ASSISTANT m2  Read.",
            ]]
        );
    }

    #[test]
    fn invalid_export_is_rejected() {
        for text in ["{}", "[{}]", "[] x", "[{\"uuid\":1}]"] {
            assert!(
                read(Source::Claude, text.as_bytes(), "", |_| true).is_err(),
                "{text}"
            );
        }
    }
}
