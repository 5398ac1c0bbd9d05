//! OpenAI's Conversations API.

mod deletion;

use memoird_proto::v1::GetSessionRequest;
use serde_json::{Value, json};

use crate::harness::{Daemon, Http1, HttpReply, Setup, append, http_get, say, user};

const ROOT: &str = "/v1/conversations";

/// A client of the API.
struct Client(Http1);

impl Client {
    async fn of(daemon: &Daemon, key: &str) -> Self {
        Self(Http1::connect(daemon.grpc_addr(), key).await)
    }

    async fn get(&mut self, path: &str) -> HttpReply {
        let line = format!("GET {ROOT}{path}");
        self.0.request(&line, "", b"").await
    }

    async fn delete(&mut self, path: &str) -> HttpReply {
        let line = format!("DELETE {ROOT}{path}");
        self.0.request(&line, "", b"").await
    }

    async fn post(&mut self, path: &str, body: &Value) -> HttpReply {
        self.post_with(path, "", body).await
    }

    async fn post_with(&mut self, path: &str, headers: &str, body: &Value) -> HttpReply {
        let text = body.to_string();
        let path = format!("{ROOT}{path}");
        self.0.call_text(&path, headers, text.as_bytes()).await
    }

    /// Creates a conversation, and returns its path.
    async fn create(&mut self, body: &Value) -> String {
        let made = self.post("", body).await.ok();
        format!("/{}", text(&made["id"]))
    }

    /// Lists items with these parameters, and returns the page.
    async fn list(&mut self, conversation: &str, query: &str) -> Value {
        self.get(&format!("{conversation}/items?{query}"))
            .await
            .ok()
    }

    /// All items, oldest first.
    async fn items(&mut self, conversation: &str) -> Vec<Value> {
        let page = self.list(conversation, "order=asc&limit=100").await;
        assert_eq!(page["has_more"], false);
        page["data"].as_array().expect("items").clone()
    }
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

fn message(text: &str) -> Value {
    json!({ "type": "message", "role": "user", "content": text })
}

fn messages(texts: impl IntoIterator<Item = usize>) -> Vec<Value> {
    let texts = texts.into_iter();
    texts.map(|number| message(&number.to_string())).collect()
}

/// The texts of a page of messages.
fn texts(page: &Value) -> Vec<&str> {
    let items = page["data"].as_array().expect("items");
    let said = |item: &'_ Value| item["content"][0]["text"].as_str().is_some();
    assert!(items.iter().all(said), "{page}");
    items
        .iter()
        .map(|item| text(&item["content"][0]["text"]))
        .collect()
}

/// Status, type, parameter and code of an error.
#[track_caller]
fn error(reply: &HttpReply) -> (u16, String, Value, String) {
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let json = reply.json();
    let error = json["error"].as_object().expect("an error");
    let names: Vec<_> = error.keys().map(String::as_str).collect();
    assert_eq!(names.len(), 4, "{json}");
    assert!(!text(&error["message"]).is_empty());
    let (kind, code) = (text(&error["type"]), text(&error["code"]));
    let param = error["param"].clone();
    (reply.status, kind.to_owned(), param, code.to_owned())
}

#[track_caller]
fn check_error(reply: &HttpReply, status: u16, param: impl Into<Value>, code: &str) {
    let expected = (
        status,
        "invalid_request_error".to_owned(),
        param.into(),
        code.to_owned(),
    );
    assert_eq!(error(reply), expected, "{}", reply.json());
}

#[tokio::test]
async fn conversation_is_created_read_updated_and_deleted() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let made = client
        .post("", &json!({ "metadata": { "topic": "tea" } }))
        .await;
    let made = made.ok();
    let id = text(&made["id"]).to_owned();
    assert!(id.starts_with("conv_") && id.len() == 37, "{id}");
    assert_eq!(made["object"], "conversation");
    assert_eq!(made["metadata"], json!({ "topic": "tea" }));
    assert!(made["created_at"].as_i64().expect("seconds") > 1_700_000_000);
    let path = format!("/{id}");
    assert_eq!(client.get(&path).await.ok(), made);
    let update = json!({ "metadata": { "mood": "good", "x": "" } });
    let updated = client.post(&path, &update).await.ok();
    assert_eq!(updated["metadata"], update["metadata"]);
    assert_eq!(updated["created_at"], made["created_at"]);
    assert_eq!(client.get(&path).await.ok(), updated);
    let deleted = client.delete(&path).await.ok();
    let expected = json!({ "id": id, "object": "conversation.deleted", "deleted": true });
    assert_eq!(deleted, expected);
    check_error(
        &client.get(&path).await,
        404,
        Value::Null,
        "session_not_found",
    );
}

#[tokio::test]
async fn conversation_without_anything_is_empty() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    for body in [
        json!({}),
        json!({ "metadata": null, "items": null }),
        json!({ "items": [] }),
    ] {
        let path = client.create(&body).await;
        let page = client.list(&path, "").await;
        let expected = json!({ "object": "list", "data": [], "first_id": null, "last_id": null,
            "has_more": false });
        assert_eq!(page, expected);
        assert_eq!(client.get(&path).await.ok()["metadata"], json!({}));
    }
}

#[tokio::test]
async fn items_of_creation_are_stored_with_metadata() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let body = json!({ "metadata": { "a": "b" }, "items": messages(1..3) });
    let path = client.create(&body).await;
    assert_eq!(
        client.get(&path).await.ok()["metadata"],
        json!({ "a": "b" })
    );
    let page = client.list(&path, "order=asc").await;
    assert_eq!(texts(&page), ["1", "2"]);
}

#[tokio::test]
async fn items_are_listed_in_pages_in_both_orders() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let path = client.create(&json!({ "items": messages(1..21) })).await;
    let more = json!({ "items": messages(21..26) });
    let added = client.post(&format!("{path}/items"), &more).await;
    assert_eq!(added.ok()["data"].as_array().expect("items").len(), 5);
    // Newest first, 20 per page, by default.
    let page = client.list(&path, "").await;
    let newest: Vec<_> = (6..26).rev().map(|number| number.to_string()).collect();
    assert_eq!(texts(&page), newest);
    assert_eq!(page["has_more"], true);
    assert_eq!(page["first_id"], page["data"][0]["id"]);
    assert_eq!(page["last_id"], page["data"][19]["id"]);
    for (order, first) in [("asc", 1..26), ("desc", 1..26)] {
        for limit in [1, 4, 5, 25, 100] {
            let (mut after, mut seen) = (String::new(), Vec::new());
            loop {
                let query = format!("order={order}&limit={limit}{after}&include[]=x");
                let page = client.list(&path, &query).await;
                seen.extend(texts(&page).iter().map(|text| (*text).to_owned()));
                if page["has_more"] == false {
                    break;
                }
                assert_eq!(texts(&page).len(), limit);
                after = format!("&after={}", text(&page["last_id"]));
            }
            let mut expected: Vec<_> = first.clone().map(|number| number.to_string()).collect();
            if order == "desc" {
                expected.reverse();
            }
            assert_eq!(seen, expected, "{order} {limit}");
        }
    }
}

#[tokio::test]
async fn invalid_parameters_of_lists_are_named() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let path = client.create(&json!({ "items": messages(1..2) })).await;
    for (query, param) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("limit=-1", "limit"),
        ("order=up", "order"),
    ] {
        let reply = client.get(&format!("{path}/items?{query}")).await;
        check_error(&reply, 400, param, "request_malformed");
    }
    let reply = client.get(&format!("{path}/items?after=msg_none")).await;
    check_error(&reply, 404, "after", "turn_not_found");
}

#[tokio::test]
async fn added_items_are_returned_as_they_are_read() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let path = client.create(&json!({})).await;
    let items = json!([
        { "role": "user", "content": "short" },
        { "type": "message", "role": "developer",
            "content": [{ "type": "input_text", "text": "Be brief." }] },
        { "type": "message", "role": "user", "content": [
            { "type": "input_text", "text": "What is this?" },
            { "type": "input_image", "detail": "auto", "image_url": "https://a.example/a.png" },
        ] },
        { "type": "reasoning", "id": "rs_1", "summary": [
            { "type": "summary_text", "text": "why" }], "encrypted_content": "gAAA" },
        { "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f",
            "arguments": "{\"a\": 1.50}", "status": "completed" },
        { "type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c1", "output": "one" },
        { "type": "function_call_output", "call_id": "c2",
            "output": [{ "type": "input_text", "text": "two" }] },
        { "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{ "type": "output_text", "text": "Tea.", "annotations": [],
                "logprobs": [] }] },
        { "type": "custom_tool_call", "call_id": "c3", "name": "g", "input": "ls" },
        { "type": "custom_tool_call_output", "call_id": "c3", "output": "a" },
        { "type": "web_search_call", "id": "ws_1", "status": "completed",
            "action": { "type": "search", "query": "tea" } },
        { "type": "what_comes_next", "id": "x_1", "number": 1.50, "deep": [{ "b": null }] },
    ]);
    let body = json!({ "items": items });
    let added = client.post(&format!("{path}/items"), &body).await.ok();
    assert_eq!(added["object"], "list");
    assert_eq!(added["has_more"], false);
    let stored = client.items(&path).await;
    assert_eq!(added["data"], Value::from(stored.clone()));
    let items = items.as_array().expect("items");
    assert_eq!(stored.len(), items.len());
    for (stored, sent) in stored.iter().zip(items).skip(2) {
        let mut fields = sent.as_object().expect("an object").iter();
        assert!(
            fields.all(|(name, value)| stored[name] == *value),
            "{stored}"
        );
        assert!(!text(&stored["id"]).is_empty());
    }
    let short = &stored[0];
    let expected = json!({ "id": short["id"], "type": "message", "status": "completed",
        "role": "user", "content": [{ "type": "input_text", "text": "short" }] });
    assert_eq!(*short, expected);
    assert!(text(&short["id"]).starts_with("msg_"));
    assert_eq!(
        stored[12].to_string(),
        items[12].to_string().replacen(
            r#""type":"what_comes_next","id":"x_1""#,
            r#""id":"x_1","type":"what_comes_next""#,
            1
        )
    );
    for item in &stored {
        let one = client
            .get(&format!("{path}/items/{}", text(&item["id"])))
            .await;
        assert_eq!(one.ok(), *item);
    }
}

#[tokio::test]
async fn invalid_items_are_named_and_nothing_is_stored() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let path = client.create(&json!({})).await;
    let items_path = format!("{path}/items");
    let cases = [
        (json!({ "role": "robot", "content": "a" }), "items[1].role"),
        (json!({ "role": "user" }), "items[1].content"),
        (
            json!({ "type": "function_call", "name": "f", "arguments": "{}" }),
            "items[1].call_id",
        ),
        (json!("text"), "items[1]"),
        (json!({}), "items[1].type"),
    ];
    for (item, param) in cases {
        let body = json!({ "items": [message("a"), item] });
        let reply = client.post(&items_path, &body).await;
        check_error(&reply, 400, param, "request_malformed");
    }
    for items in [json!([]), Value::Null, json!(messages(0..21))] {
        let reply = client.post(&items_path, &json!({ "items": items })).await;
        check_error(&reply, 400, "items", "request_malformed");
    }
    let reply = client.post("", &json!({ "items": messages(0..21) })).await;
    check_error(&reply, 400, "items", "request_malformed");
    assert!(client.items(&path).await.is_empty());
}

#[tokio::test]
async fn metadata_follows_the_rules() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let pairs = |count: usize| {
        let pairs = (0..count).map(|number| (number.to_string(), json!("v")));
        Value::Object(pairs.collect())
    };
    let key = |chars: usize| json!({ "ü".repeat(chars): "v" });
    let value = |chars: usize| json!({ "k": "ü".repeat(chars) });
    let path = client.create(&json!({})).await;
    for metadata in [pairs(16), key(64), value(512), Value::Null, json!({})] {
        let body = json!({ "metadata": metadata });
        let made = client.post("", &body).await.ok();
        let updated = client.post(&path, &body).await.ok();
        let expected = if metadata.is_null() {
            json!({})
        } else {
            metadata
        };
        assert_eq!(
            (&made["metadata"], &updated["metadata"]),
            (&expected, &expected)
        );
    }
    for (metadata, param) in [
        (pairs(17), "metadata"),
        (key(65), "metadata"),
        (key(0), "metadata"),
        (value(513), "metadata.k"),
        (json!({ "k": 1 }), "metadata.k"),
        (json!({ "k": null }), "metadata.k"),
        (json!([]), "metadata"),
        (json!("a"), "metadata"),
    ] {
        let body = json!({ "metadata": metadata });
        for path in ["", &path] {
            check_error(
                &client.post(path, &body).await,
                400,
                param,
                "request_malformed",
            );
        }
    }
    check_error(
        &client.post(&path, &json!({})).await,
        400,
        "metadata",
        "request_malformed",
    );
}

#[tokio::test]
async fn unknown_conversations_and_items_are_not_found() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let path = client.create(&json!({ "items": messages(1..2) })).await;
    let item = text(&client.items(&path).await[0]["id"]).to_owned();
    let update = json!({ "metadata": {} });
    let items = json!({ "items": messages(1..2) });
    let replies = [
        client.get("/conv_none").await,
        client.post("/conv_none", &update).await,
        client.delete("/conv_none").await,
        client.get("/conv_none/items").await,
        client.post("/conv_none/items", &items).await,
        client.get(&format!("/conv_none/items/{item}")).await,
        client.delete(&format!("/conv_none/items/{item}")).await,
    ];
    for reply in replies {
        check_error(&reply, 404, Value::Null, "session_not_found");
    }
    let next = item.replace("100", "200");
    assert_ne!(next, item);
    for id in [&next, "msg_none", "rs_1", "_", "%C3%BC"] {
        let path = format!("{path}/items/{id}");
        for reply in [client.get(&path).await, client.delete(&path).await] {
            check_error(&reply, 404, Value::Null, "turn_not_found");
        }
    }
    // An append to an unknown conversation starts none.
    check_error(
        &client.get("/conv_none").await,
        404,
        Value::Null,
        "session_not_found",
    );
}

#[tokio::test]
async fn repeated_requests_with_a_key_change_nothing() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    for items in [json!([]), json!(messages(0..3))] {
        let body = json!({ "metadata": { "a": "b" }, "items": items });
        let key = format!(
            "idempotency-key: k{}\r\n",
            items.as_array().expect("items").len()
        );
        let made = client.post_with("", &key, &body).await.ok();
        assert_eq!(client.post_with("", &key, &body).await.ok(), made);
        let path = format!("/{}", text(&made["id"]));
        let before = client.items(&path).await.len();
        let items_path = format!("{path}/items");
        let body = json!({ "items": messages(3..5) });
        let key = "idempotency-key: add\r\n";
        let added = client.post_with(&items_path, key, &body).await.ok();
        assert_eq!(client.post_with(&items_path, key, &body).await.ok(), added);
        assert_eq!(client.items(&path).await.len(), before + 2);
        let other = json!({ "items": messages(5..6) });
        let reply = client.post_with(&items_path, key, &other).await;
        assert_eq!(error(&reply).3, "idempotency_key_reused");
    }
}

#[tokio::test]
async fn conversations_survive_a_restart() {
    let mut daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let body = json!({ "metadata": { "a": "b" }, "items": messages(0..3) });
    let path = client.create(&body).await;
    let empty = client.create(&json!({ "metadata": { "c": "d" } })).await;
    let before = (client.get(&path).await.ok(), client.items(&path).await);
    let before_empty = client.get(&empty).await.ok();
    daemon.stop().await;
    daemon.restart().await;
    let mut client = Client::of(&daemon, "").await;
    let after = (client.get(&path).await.ok(), client.items(&path).await);
    assert_eq!(after, before);
    assert_eq!(client.get(&empty).await.ok(), before_empty);
    assert!(client.items(&empty).await.is_empty());
}

#[tokio::test]
async fn conversations_never_expire_and_lists_reach_dropped_turns() {
    let setup = Setup::default().section("short_term: { session_ttl: 1s, max_history_turns: 4 }");
    let daemon = Daemon::with(setup).await;
    let mut client = Client::of(&daemon, "").await;
    for body in [json!({}), json!({ "items": messages(0..1) })] {
        let path = client.create(&body).await;
        let request = GetSessionRequest {
            session_id: path.trim_start_matches('/').to_owned(),
            ..GetSessionRequest::default()
        };
        let session = daemon.sessions().get_session(request).await;
        let session = session
            .expect("a session")
            .into_inner()
            .session
            .expect("info");
        assert_eq!((session.expires_at, &*session.ttl_class), (None, "never"));
    }
    let path = client.create(&json!({ "items": messages(0..20) })).await;
    assert_eq!(client.items(&path).await.len(), 20);
}

#[tokio::test]
async fn conversation_may_be_evicted_at_a_cap() {
    let setup = Setup::default().section("short_term: { max_sessions: 1 }");
    let daemon = Daemon::with(setup).await;
    let mut client = Client::of(&daemon, "").await;
    let body = json!({ "items": messages(0..1) });
    let (first, second) = (client.create(&body).await, client.create(&body).await);
    check_error(
        &client.get(&format!("{first}/items")).await,
        404,
        Value::Null,
        "session_not_found",
    );
    assert_eq!(client.items(&second).await.len(), 1);
}

#[tokio::test]
async fn bots_and_conversations_share_sessions() {
    let daemon = Daemon::start().await;
    let mut bot = daemon.sessions();
    say(&mut bot, "telegram:4 2/ü", "hi").await;
    let mut client = Client::of(&daemon, "").await;
    let path = "/telegram%3A4%202%2F%C3%BC";
    assert_eq!(client.get(path).await.ok()["id"], "telegram:4 2/ü");
    let items = client.items(path).await;
    assert_eq!(
        items[0]["content"],
        json!([{ "type": "input_text", "text": "hi" }])
    );
    client
        .post(
            &format!("{path}/items"),
            &json!({ "items": messages(2..3) }),
        )
        .await
        .ok();
    bot.append(append("telegram:4 2/ü", [user("three")]))
        .await
        .expect("appended");
    let page = client.list(path, "order=asc").await;
    assert_eq!(texts(&page), ["hi", "2", "three"]);
    let item = format!("{path}/items/{}", text(&items[0]["id"]));
    client.delete(&item).await.ok();
    assert_eq!(texts(&client.list(path, "order=asc").await), ["2", "three"]);
    // Other entries of the state are no metadata, and stay.
    let state =
        json!({ "sessionId": "telegram:4 2/ü", "statePatchJson": r#"{"n":{"a":1},"s":"t"}"# });
    client
        .0
        .call("/memoird.v1.SessionService/UpdateSession", &state)
        .await
        .ok();
    assert_eq!(client.get(path).await.ok()["metadata"], json!({ "s": "t" }));
    client
        .post(path, &json!({ "metadata": { "u": "v" } }))
        .await
        .ok();
    let read = json!({ "sessionId": "telegram:4 2/ü", "includeState": true });
    let session = client
        .0
        .call("/memoird.v1.SessionService/GetSession", &read)
        .await
        .ok();
    let state: Value = serde_json::from_str(text(&session["session"]["stateJson"])).expect("JSON");
    assert_eq!(state, json!({ "n": { "a": 1 }, "u": "v" }));
}

#[tokio::test]
async fn keys_are_checked_and_tenants_are_separate() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let mut alpha = Client::of(&daemon, Setup::ALPHA).await;
    let body = json!({ "items": messages(0..1) });
    let path = alpha.create(&body).await;
    let item = text(&alpha.items(&path).await[0]["id"]).to_owned();
    let mut beta = Client::of(&daemon, Setup::BETA).await;
    for path in [
        path.clone(),
        format!("{path}/items"),
        format!("{path}/items/{item}"),
    ] {
        check_error(
            &beta.get(&path).await,
            404,
            Value::Null,
            "session_not_found",
        );
    }
    for path in [path.clone(), format!("{path}/items/{item}")] {
        check_error(
            &beta.delete(&path).await,
            404,
            Value::Null,
            "session_not_found",
        );
    }
    let reply = beta.post(&format!("{path}/items"), &body).await;
    check_error(&reply, 404, Value::Null, "session_not_found");
    // The same key of a request makes the same id, in another tenant.
    let key = "idempotency-key: k\r\n";
    let ids = [
        alpha.post_with("", key, &body).await.ok(),
        beta.post_with("", key, &json!({})).await.ok(),
    ];
    assert_eq!(ids[0]["id"], ids[1]["id"]);
    assert!(
        beta.items(&format!("/{}", text(&ids[1]["id"])))
            .await
            .is_empty()
    );
    for key in ["", "a-wrong-key"] {
        let mut client = Client::of(&daemon, key).await;
        let reply = client.get(&path).await;
        check_error(&reply, 401, Value::Null, "invalid_api_key");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(alpha.items(&path).await.len(), 1);
}

#[tokio::test]
async fn limits_of_the_tenant_hold() {
    let setup = Setup::default().two_tenants("calls_per_second: 1", "");
    let daemon = Daemon::with(setup.server("max_request_bytes: 64KiB")).await;
    let mut beta = Client::of(&daemon, Setup::BETA).await;
    let body = json!({ "items": [message(&"x".repeat(100 << 10))] });
    let reply = beta.post("", &body).await;
    check_error(&reply, 413, Value::Null, "request_too_large");
    let mut alpha = Client::of(&daemon, Setup::ALPHA).await;
    let mut last = None;
    for _ in 0..20 {
        let reply = alpha.get("/conv_none").await;
        if reply.status != 404 {
            last = Some(reply);
            break;
        }
    }
    let rejected = last.expect("a rejected call");
    assert_eq!(rejected.header("retry-after"), Some("1"));
    let (status, kind, _, code) = error(&rejected);
    assert_eq!(
        (status, &*kind, &*code),
        (429, "rate_limit_error", "rate_limit_exceeded")
    );
}

#[tokio::test]
async fn calls_are_counted_by_the_rpc() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let path = client.create(&json!({ "items": messages(0..1) })).await;
    client.items(&path).await;
    client.get("/conv_none").await;
    let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
    for line in ["Append\"} 1", "GetHistory\"} 1", "GetSession\"} 1"] {
        let line = format!("seconds_count{{method=\"{line}");
        assert!(page.contains(&line), "{line} in {page}");
    }
}

#[tokio::test]
async fn other_paths_methods_and_bodies_are_rejected() {
    let daemon = Daemon::start().await;
    let mut client = Client::of(&daemon, "").await;
    let path = client.create(&json!({})).await;
    for (line, allow) in [
        (format!("GET {ROOT}"), "POST"),
        (format!("PUT {ROOT}{path}"), "GET, POST, DELETE"),
        (format!("DELETE {ROOT}{path}/items"), "GET, POST"),
        (format!("POST {ROOT}{path}/items/msg_1"), "GET, DELETE"),
    ] {
        let reply = client.0.request(&line, "", b"").await;
        check_error(&reply, 405, Value::Null, "http_method_invalid");
        assert_eq!(reply.header("allow"), Some(allow));
    }
    for path in [
        "/v1/",
        "/v1/models",
        "/v1/conversations/",
        "/v1/conversations/a/b",
    ] {
        let reply = client.0.request(&format!("GET {path}"), "", b"").await;
        check_error(&reply, 404, Value::Null, "path_unknown");
    }
    let line = format!("POST {ROOT}");
    let reply = client
        .0
        .request(&line, "content-type: text/plain\r\n", b"{}")
        .await;
    check_error(&reply, 415, Value::Null, "content_type_unsupported");
    let deep = [&b"{\"items\":"[..], &b"[".repeat(10_000)].concat();
    let many = [&b"{\"items\":[["[..], &b"1,".repeat(300_000), b"1]]}"].concat();
    let garbage: [&[u8]; 10] = [
        b"{",
        b"[]",
        b"null",
        b"\"a\"",
        b"\xff\xfe",
        b"{\"items\": 1}",
        b"{\"items\": [null]}",
        b"{\"metadata\": {\"a\": \"\\ud800\"}}",
        &deep,
        &many,
    ];
    for body in garbage {
        for path in [String::new(), path.clone(), format!("{path}/items")] {
            let path = format!("{ROOT}{path}");
            // The daemon closes the connection if it does not read the rest of a body.
            let mut client = Client::of(&daemon, "").await;
            let reply = client.0.call_text(&path, "", body).await;
            let (status, kind, ..) = error(&reply);
            assert_eq!(kind, "invalid_request_error");
            assert!(matches!(status, 400 | 413), "{path}: {}", reply.json());
        }
    }
    let reply = client.get("/%ff/items").await;
    check_error(&reply, 400, "path", "request_malformed");
}
