//! Renders Anthropic's messages.
//!
//! User and assistant alternate, tool results come first in the user's message, and the system
//! prompt is separate.

mod conversation;
mod given;

use std::mem;

use memoird_core::nonce::Nonce;
use memoird_core::turn::{MessageFormat, PartKind, Role, Turn};
use serde_json::{Map, Value, json};

use super::extra::with;
use super::ids::Ids;
use super::media::{Kind, Media, Source};
use super::pieces::{Piece, Pieces, ToolResult};
use super::{Parts, RenderOptions};
use conversation::{Conversation, Message, text_block};

const FORMAT: MessageFormat = MessageFormat::Anthropic;

/// Maximum number of cache breakpoints that the provider accepts in a request.
const CACHE_MARKS_MAX: usize = 4;
/// Number of the bot's own cache breakpoints in messages that stay in a request.
///
/// Each message may have come with one. The system prompt and the tools, which the bot writes
/// itself, need one each.
const OWN_MARKS_MAX: usize = 2;

pub(super) fn render(turns: &[Turn], options: &RenderOptions<'_>) -> Parts {
    let ids = Ids::new(FORMAT, turns);
    let is_system = |turn: &&Turn| turn.role == Role::System;
    let leading = turns.iter().take_while(is_system).count();
    let (head, rest) = turns.split_at(leading);
    let own = (!options.system.is_empty()).then(|| options.system.to_owned());
    let said = head.iter().flat_map(|turn| texts(turn, &ids));
    let texts: Vec<String> = own.into_iter().chain(said).collect();
    let marks = cache_marks(turns.len(), leading, options.cache_after);

    let mut written: Vec<Option<Message>> = rest
        .iter()
        .map(|turn| {
            let given = (turn.format == Some(FORMAT))
                .then(|| given::message(turn))
                .flatten();
            match given {
                Some((content, fields)) => {
                    Some(Message::given(given_by(turn.role), content, fields))
                }
                None => translate(turn, &ids, options.nonce),
            }
        })
        .collect();
    if options.is_request {
        place(&mut written, options.rules.system_inside, |index| {
            translate(&rest[index], &ids, options.nonce)
        });
        // Requested breakpoints replace those of the bot.
        let mut own = if marks.is_empty() { OWN_MARKS_MAX } else { 0 };
        for message in written.iter_mut().rev().flatten() {
            message.drop_marks(&mut own);
        }
    }

    let mut conversation = Conversation::default();
    conversation.is_request = options.is_request;
    conversation.ends.resize(leading, 0);
    for (index, message) in written.into_iter().enumerate() {
        let index = leading + index;
        let behind_gap = options.behind_gap.contains(&index);
        conversation.push(message, behind_gap, marks.contains(&index));
    }
    let (messages, ends) = conversation.finish();
    (texts.join("\n\n"), messages, ends)
}

/// Fixes messages in this format that the provider would reject at their current position.
///
/// - No text may be blank.
/// - No message may end in thinking, or be empty unless it is a final assistant message.
/// - A system message must follow a user message (or a call that the provider answers itself), and
///   must precede an assistant message or be last. It may have been valid on arrival, before its
///   neighbors were dropped.
///
/// <https://platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages>
fn place(
    written: &mut [Option<Message>],
    takes_system: bool,
    translate: impl Fn(usize) -> Option<Message>,
) {
    let last = written.iter().rposition(Option::is_some);
    for (index, message) in written.iter_mut().enumerate() {
        message.iter_mut().for_each(Message::drop_refused);
        let is_prefill = Some(index) == last && message.as_ref().is_some_and(Message::is_assistant);
        if message.as_ref().is_some_and(Message::is_empty) && !is_prefill {
            *message = translate(index);
        }
    }
    let mut index = 0;
    while index < written.len() {
        let others = |message: &Option<Message>| message.as_ref().is_some_and(|it| !it.is_system());
        let end = written[index..]
            .iter()
            .position(others)
            .map_or(written.len(), |others| index + others);
        let before = written[..index].iter().rev().flatten().next();
        let after = written.get(end).and_then(Option::as_ref);
        let is_placed = takes_system
            && before.is_some_and(Message::takes_system_behind)
            && after.is_none_or(Message::is_assistant);
        if !is_placed {
            let run = written[index..end].iter_mut().zip(index..);
            for (message, index) in run.filter(|(message, _)| message.is_some()) {
                *message = translate(index);
            }
        }
        index = end + 1;
    }
}

/// Returns the last turns that can get a cache breakpoint.
fn cache_marks(turns: usize, leading: usize, cache_after: &[usize]) -> Vec<usize> {
    let has_message = |index: &usize| (leading..turns).contains(index);
    let mut marks: Vec<usize> = cache_after.iter().copied().filter(has_message).collect();
    marks.sort_unstable();
    marks.dedup();
    marks.split_off(marks.len().saturating_sub(CACHE_MARKS_MAX))
}

/// Returns the texts of a system turn.
fn texts<'a>(turn: &'a Turn, ids: &Ids<'a>) -> Vec<String> {
    let pieces = Pieces::read(turn, FORMAT, ids);
    let text = |piece| match piece {
        Piece::Text(text, _) => Some(text.into_owned()),
        _ => None,
    };
    pieces.rest.into_iter().filter_map(text).collect()
}

/// Role of a message that came in this format, in the provider's own terms.
fn given_by(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        role => said_by(role),
    }
}

fn said_by(role: Role) -> &'static str {
    match role {
        Role::Assistant => "assistant",
        Role::User | Role::Tool | Role::System => "user",
    }
}

fn translate<'a>(turn: &'a Turn, ids: &Ids<'a>, nonce: Nonce) -> Option<Message> {
    if turn.role == Role::System {
        let joined = texts(turn, ids).join("\n\n");
        // Users can write this word, but not the nonce.
        let text = (!joined.is_empty()).then(|| format!("[system {nonce}] {joined}"))?;
        return Some(Message::translated(
            "user",
            vec![text_block(text)],
            Map::new(),
        ));
    }
    let Pieces {
        fields,
        results,
        mut rest,
        ..
    } = Pieces::read(turn, FORMAT, ids);
    if turn.role == Role::Assistant {
        rest.iter_mut().for_each(trim_end);
    }
    let mut blocks: Vec<Value> = results.into_iter().map(result).collect();
    blocks.extend(rest.into_iter().map(block));
    (!blocks.is_empty()).then(|| Message::translated(said_by(turn.role), blocks, fields))
}

/// Removes trailing white space from a text of the model.
///
/// The last one must not end in white space. All are trimmed, because which one is last changes
/// from call to call.
fn trim_end(piece: &mut Piece<'_>) {
    if let Piece::Text(text, _) = piece {
        let length = text.trim_end().len();
        if length < text.len() {
            text.to_mut().truncate(length);
        }
    }
}

fn block(piece: Piece<'_>) -> Value {
    match piece {
        Piece::Text(text, fields) => with(text_block(text.into_owned()), fields),
        Piece::Media(media, fields) => {
            let block = media_block(&media).unwrap_or_else(|| text_block(media.label()));
            with(block, fields)
        }
        Piece::ToolUse(call, fields) => {
            let mut block = json!({ "type": "tool_use", "id": call.id, "name": call.name });
            block["input"] = call.input();
            with(block, fields)
        }
        Piece::Thinking(thinking, fields) => with(thinking_block(thinking), fields),
        Piece::Whole(block) => block.into(),
    }
}

fn thinking_block(thinking: &PartKind) -> Value {
    match thinking {
        PartKind::Thinking {
            text,
            redacted: true,
            ..
        } => {
            json!({ "type": "redacted_thinking", "data": text })
        }
        PartKind::Thinking {
            text, signature, ..
        } => {
            json!({ "type": "thinking", "thinking": text, "signature": signature })
        }
        _ => json!({}),
    }
}

fn result(result: ToolResult<'_>) -> Value {
    let mut pieces = result.content;
    let content = match &mut pieces[..] {
        [Piece::Text(text, fields)] if fields.is_empty() => mem::take(text).into(),
        _ => pieces.into_iter().map(block).collect(),
    };
    let mut block = json!({ "type": "tool_result", "tool_use_id": result.id });
    block["content"] = content;
    if result.is_error {
        block["is_error"] = true.into();
    }
    with(block, result.fields)
}

/// Returns the block for media. `None` if the provider does not accept it.
fn media_block(media: &Media<'_>) -> Option<Value> {
    let source = match (&media.source, media.kind, media.media_type) {
        (_, Kind::Audio | Kind::Video, _) | (Source::Elsewhere, ..) => return None,
        (Source::Base64(data), Kind::Image, media_type)
        | (Source::Base64(data), Kind::Document, media_type @ "application/pdf") => {
            json!({ "type": "base64", "media_type": media_type, "data": data })
        }
        (Source::Base64(_), Kind::Document, _) => {
            json!({ "type": "text", "media_type": "text/plain", "data": media.text()? })
        }
        (Source::Url(url), ..) => json!({ "type": "url", "url": url }),
        (Source::File(id), ..) => json!({ "type": "file", "file_id": id }),
    };
    if media.kind == Kind::Image {
        return Some(json!({ "type": "image", "source": source }));
    }
    let mut block = json!({ "type": "document", "source": source });
    if !media.name.is_empty() {
        block["title"] = media.name.into();
    }
    Some(block)
}
