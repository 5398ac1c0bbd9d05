//! The operations, each as calls of existing rpcs.

use memoird_core::idempotency::fingerprint;
use memoird_core::options::NEVER_CLASS;
use memoird_proto::v1;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::body::{self, ConversationUpdate, ListQuery, NewConversation, NewItems};
use super::error::{invalid, of_conversation};
use super::history::{self, ItemList};
use super::items::{self, Item};
use crate::services::{ApiCall, session};
use crate::wire::refusal::Refusal;
use crate::wire::status;

/// Attempts to update metadata that other calls change concurrently.
const ATTEMPTS: usize = 4;

/// A page of items.
#[derive(Serialize)]
struct ItemPage {
    object: &'static str,
    data: Vec<Value>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

impl From<ItemList> for ItemPage {
    fn from(list: ItemList) -> Self {
        let id = |item: &Item| item.id.clone();
        Self {
            object: "list",
            first_id: list.items.first().map(id),
            last_id: list.items.last().map(id),
            data: list.items.into_iter().map(|item| item.json).collect(),
            has_more: list.has_more,
        }
    }
}

type Json = Result<Vec<u8>, Refusal>;

fn written(reply: &impl Serialize) -> Json {
    serde_json::to_vec(reply).map_err(status::reply_unwritable)
}

/// A conversation. Entries of the state that are not strings are no metadata.
fn conversation(id: &str, info: &v1::SessionInfo, state: &str) -> Json {
    let mut metadata = state_of(state)?;
    metadata.retain(|_, value| value.is_string());
    let created_at = info.created_at.as_ref().map_or(0, |time| time.seconds);
    written(&json!({
        "id": id,
        "object": "conversation",
        "created_at": created_at,
        "metadata": metadata,
    }))
}

fn state_of(json: &str) -> Result<Map<String, Value>, Refusal> {
    if json.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(json).map_err(status::reply_unwritable)
}

pub(super) async fn create(call: &ApiCall<()>, received: Vec<u8>, idempotency_key: String) -> Json {
    let (turns, metadata) = heavy(call, received, |received| {
        let new: NewConversation = body::parse(received)?;
        let metadata = body::metadata(new.metadata)?;
        Ok((items::turns(&new.items.unwrap_or_default())?, metadata))
    })
    .await?;
    let id = new_id(call, &idempotency_key);
    let state = Value::from(metadata).to_string();
    let info = if turns.is_empty() {
        let request = v1::UpdateSessionRequest {
            session_id: id.clone(),
            state_json: state.clone(),
            ttl_class: NEVER_CLASS.to_owned(),
            allow_missing: true,
            idempotency_key,
            ..v1::UpdateSessionRequest::default()
        };
        session::update_session(call.with(request)).await?.session
    } else {
        let request = v1::AppendRequest {
            session_id: id.clone(),
            turns: items::encoded(turns),
            state_patch_json: state.clone(),
            ttl_class: NEVER_CLASS.to_owned(),
            idempotency_key,
            ..v1::AppendRequest::default()
        };
        let appended = session::append(call.with(request)).await;
        appended.map_err(of_items)?.session
    };
    conversation(&id, &info.unwrap_or_default(), &state)
}

/// Makes an id. A request that is repeated gets the same one.
fn new_id(call: &ApiCall<()>, idempotency_key: &str) -> String {
    let number = if idempotency_key.is_empty() {
        call.api.engine.machine.random()
    } else {
        u128::from_le_bytes(fingerprint([
            &b"conversation"[..],
            idempotency_key.as_bytes(),
        ]))
    };
    format!("conv_{number:032x}")
}

async fn session_of(call: &ApiCall<()>, id: &str) -> Result<v1::SessionInfo, Refusal> {
    let request = v1::GetSessionRequest {
        session_id: id.to_owned(),
        include_state: true,
    };
    let read = session::get_session(call.with(request)).await;
    let read = read.map_err(of_conversation(id))?;
    Ok(read.session.unwrap_or_default())
}

pub(super) async fn read(call: &ApiCall<()>, id: &str) -> Json {
    let info = session_of(call, id).await?;
    conversation(id, &info, &info.state_json)
}

/// Replaces the metadata. Other entries of the state stay.
pub(super) async fn update(call: &ApiCall<()>, id: &str, received: Vec<u8>) -> Json {
    let update: ConversationUpdate = body::parse(&received)?;
    if update.metadata.is_none() {
        return Err(invalid("metadata", "missing; expected an object or null"));
    }
    let metadata = body::metadata(update.metadata)?;
    let mut attempts = ATTEMPTS;
    loop {
        let info = session_of(call, id).await?;
        let mut patch = metadata.clone();
        let before = state_of(&info.state_json)?;
        let gone = before.into_iter().filter(|(_, value)| value.is_string());
        for (key, _) in gone {
            patch.entry(key).or_insert(Value::Null);
        }
        let request = v1::UpdateSessionRequest {
            session_id: id.to_owned(),
            state_patch_json: Value::from(patch).to_string(),
            expected_state_version: Some(info.state_version),
            ..v1::UpdateSessionRequest::default()
        };
        attempts -= 1;
        match session::update_session(call.with(request)).await {
            Err(refusal) if refusal.reason == "STALE_STATE_VERSION" && attempts > 0 => {}
            Err(refusal) => return Err(of_conversation(id)(refusal)),
            Ok(updated) => {
                let info = updated.session.unwrap_or_default();
                return conversation(id, &info, &info.state_json);
            }
        }
    }
}

/// Ends the session. Its hooks run, and the journal keeps the transcript until retention.
pub(super) async fn delete(call: &ApiCall<()>, id: &str) -> Json {
    let request = v1::EndSessionRequest {
        session_id: id.to_owned(),
        ..v1::EndSessionRequest::default()
    };
    let ended = session::end_session(call.with(request)).await;
    ended.map_err(of_conversation(id))?;
    written(&json!({ "id": id, "object": "conversation.deleted", "deleted": true }))
}

pub(super) async fn list_items(call: &ApiCall<()>, id: &str, query: &ListQuery) -> Json {
    let after = match &query.after {
        None => None,
        Some(after) => Some(position(call, id, after).await?),
    };
    let listed = history::list(call, id, query.is_ascending, after, query.limit);
    written(&ItemPage::from(listed.await?))
}

/// Returns the position of an item, which may be deleted if memoird has made its id.
async fn position(
    call: &ApiCall<()>,
    conversation: &str,
    id: &str,
) -> Result<items::Position, Refusal> {
    let generation = session_of(call, conversation).await?.generation;
    if let Some(position) = items::position_in(id, &generation).filter(|(seq, _)| *seq > 0) {
        return Ok(position);
    }
    let found = history::find(call, conversation, &generation, id).await;
    let (_, items, index) = found.map_err(|refusal| refusal.about("after"))?;
    Ok(items[index].position)
}

pub(super) async fn add_items(
    call: &ApiCall<()>,
    id: &str,
    received: Vec<u8>,
    idempotency_key: String,
) -> Json {
    let turns = heavy(call, received, |received| {
        let new: NewItems = body::parse(received)?;
        let items = new.items.filter(|items| !items.is_empty());
        items::turns(&items.ok_or_else(|| invalid("items", "expected 1 to 20 items"))?)
    })
    .await?;
    let info = session_of(call, id).await?;
    let request = v1::AppendRequest {
        session_id: id.to_owned(),
        turns: items::encoded(turns.clone()),
        expected_generation: info.generation.clone(),
        idempotency_key,
        ..v1::AppendRequest::default()
    };
    let appended = session::append(call.with(request)).await;
    let appended = appended.map_err(of_items).map_err(of_conversation(id))?;
    let mut items = Vec::with_capacity(turns.len());
    for (turn, seq) in turns.iter().zip(appended.first_seq..) {
        items.extend(items::of_turn(&info.generation, seq, turn)?);
    }
    let has_more = false;
    written(&ItemPage::from(ItemList { items, has_more }))
}

pub(super) async fn read_item(call: &ApiCall<()>, conversation: &str, id: &str) -> Json {
    let generation = session_of(call, conversation).await?.generation;
    let (_, items, index) = history::find(call, conversation, &generation, id).await?;
    written(&items[index].json)
}

/// Deletes the content of an item. Returns the conversation.
pub(super) async fn delete_item(call: &ApiCall<()>, conversation: &str, id: &str) -> Json {
    let generation = session_of(call, conversation).await?.generation;
    let (turn, items, index) = history::find(call, conversation, &generation, id).await?;
    let request = v1::UpdateTurnRequest {
        session_id: conversation.to_owned(),
        seq: items[index].position.0,
        turn: Some(items::deleted(&turn, &items)?),
        expected_generation: generation,
        ..v1::UpdateTurnRequest::default()
    };
    let updated = session::update_turn(call.with(request)).await;
    updated.map_err(of_conversation(conversation))?;
    read(call, conversation).await
}

/// Names the turns of an append as the items of the request.
fn of_items(refusal: Refusal) -> Refusal {
    refusal.renamed("turns", "items")
}

/// Parses a body, on another thread if it is large.
async fn heavy<T: Send + 'static>(
    call: &ApiCall<()>,
    received: Vec<u8>,
    parse: impl FnOnce(&[u8]) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let bytes = received.len();
    // The parsed items, in addition to the bytes that arrived.
    call.permit.add_bytes(bytes as u64)?;
    let tenant = &call.caller.tenant.id;
    call.api
        .heavy
        .run(tenant, bytes, move || parse(&received))
        .await
}
