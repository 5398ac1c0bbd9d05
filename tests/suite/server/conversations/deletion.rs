//! Deleted items, and windows of conversations.

use memoird_proto::v1::{BuildContextRequest, MessageFormat};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Client, check_error, message, text, texts};
use crate::harness::Daemon;

#[tokio::test]
async fn windows_contain_the_items_with_each_output_after_its_call() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let call = |id: &str| {
        json!({ "type": "function_call", "call_id": id, "name": "f",
        "arguments": "{}" })
    };
    let output = |id: &str| json!({ "type": "function_call_output", "call_id": id, "output": id });
    let reasoning = json!({ "type": "reasoning", "id": "rs_1", "summary": [],
        "encrypted_content": "gAAA" });
    let (first, last) = (message("go"), message("on"));
    let sent = json!([
        first,
        reasoning,
        call("a"),
        call("b"),
        output("a"),
        output("b"),
        last
    ]);
    let shown = json!([
        first,
        reasoning,
        call("a"),
        output("a"),
        call("b"),
        output("b"),
        last
    ]);
    let path = client.create(&json!({ "items": sent })).await;
    assert_eq!(
        window(&daemon, &path, MessageFormat::OpenaiResponses).await,
        shown
    );
}

#[tokio::test]
async fn deleted_item_leaves_lists_and_windows() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let said = json!({ "role": "assistant", "content": "secret reply" });
    let items = json!([
        message("one"),
        message("secret question"),
        said,
        message("four")
    ]);
    let path = client.create(&json!({ "items": items })).await;
    let stored = client.items(&path).await;
    for index in [1, 2] {
        let item = format!("{path}/items/{}", text(&stored[index]["id"]));
        let conversation = client.delete(&item).await.ok();
        assert_eq!(conversation, client.get(&path).await.ok());
        for reply in [client.get(&item).await, client.delete(&item).await] {
            check_error(&reply, 404, Value::Null, "turn_not_found");
        }
    }
    let left = [stored[0].clone(), stored[3].clone()];
    assert_eq!(client.items(&path).await, left);
    // Paging continues after an item that was deleted.
    let query = format!("order=asc&after={}", text(&stored[1]["id"]));
    assert_eq!(texts(&client.list(&path, &query).await), ["four"]);
    let page = client.list(&path, "limit=1").await;
    let query = format!("limit=1&after={}", text(&page["last_id"]));
    assert_eq!(texts(&client.list(&path, &query).await), ["one"]);
    let window = window(&daemon, &path, MessageFormat::OpenaiResponses).await;
    let expected = json!([
        { "type": "message", "role": "user", "content": "one" },
        { "type": "message", "role": "user", "content": "four" },
    ]);
    assert_eq!(window, expected);
    for format in [MessageFormat::Openai, MessageFormat::Anthropic] {
        let window = self::window(&daemon, &path, format).await.to_string();
        assert!(!window.contains("secret"), "{window}");
    }
}

/// The messages of a window of a conversation.
async fn window(daemon: &Daemon, path: &str, format: MessageFormat) -> Value {
    let request = BuildContextRequest {
        session_id: path.trim_start_matches('/').to_owned(),
        format: format.into(),
        ..BuildContextRequest::default()
    };
    let built = daemon.sessions().build_context(request).await;
    let built = built.expect("a window").into_inner();
    serde_json::from_str(&built.messages_json).expect("JSON")
}

#[tokio::test]
async fn deleted_calls_and_outputs_lose_their_content_only() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let items = json!([
        message("go"),
        { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\":\"secret\"}" },
        { "type": "function_call_output", "call_id": "c1", "output": "secret" },
        message("on"),
    ]);
    let path = client.create(&json!({ "items": items })).await;
    let stored = client.items(&path).await;
    for index in [2, 1] {
        let item = format!("{path}/items/{}", text(&stored[index]["id"]));
        client.delete(&item).await.ok();
    }
    assert_eq!(texts(&client.list(&path, "order=asc").await), ["go", "on"]);
    let window = window(&daemon, &path, MessageFormat::OpenaiResponses).await;
    let kinds = window.as_array().expect("items").iter();
    let kinds = kinds.map(|item| text(&item["type"]));
    let expected = [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
    assert!(!window.to_string().contains("secret"), "{window}");
}

#[tokio::test]
async fn concurrent_deletions_all_take_effect() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let said = |number: usize| json!({ "role": "assistant", "content": number.to_string() });
    let items: Vec<_> = (0..20).map(said).collect();
    let path = client.create(&json!({ "items": items })).await;
    let stored = client.items(&path).await;
    let mut deletions = JoinSet::new();
    for item in &stored[..19] {
        let mut client = Client::of(&daemon, "").await;
        let item = format!("{path}/items/{}", text(&item["id"]));
        deletions.spawn(async move { client.delete(&item).await.status });
    }
    assert!(
        deletions
            .join_all()
            .await
            .iter()
            .all(|status| *status == 200)
    );
    assert_eq!(client.items(&path).await, stored[19..]);
}
