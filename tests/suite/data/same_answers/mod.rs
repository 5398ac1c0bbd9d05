//! One script of all rpcs gets the same replies and errors from every kind of journal.
//!
//! The journal is in SQLite, in PostgreSQL with one daemon, and in PostgreSQL with two daemons that
//! are called in turn. Differences that are by design are listed in `by_design.rs`.

mod by_design;
mod normal;
mod script;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use memoird_proto::prost_reflect::prost::Message as _;
use memoird_proto::prost_reflect::{
    DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions,
};
use memoird_proto::v1::Event;
use memoird_proto::{DESCRIPTOR_POOL, PACKAGE};
use serde_json::{Number, Value, json};
use tonic::Status;
use tonic::transport::Channel;
use tonic_types::StatusExt;

use crate::data::postgres::server::Server;
use crate::harness::{
    Daemon, Events, ExtractionProvider, ExtractionReply, RECORDING_HOOK, Sessions, Setup, channel,
    eventually, raw_call_with_key, say,
};
use normal::Normal;
use script::Step;

const SCRIPT: &str = include_str!("script.txt");
const WATCHED: &str = include_str!("watched.txt");
/// Events of this session are compared.
const WATCHED_SESSION: &str = "watched";

/// A normalized reply or error to a call of the script.
#[derive(Debug)]
struct Reply {
    file: &'static str,
    line: usize,
    rpc: String,
    /// Number of the repetition.
    number: usize,
    reply: Value,
}

#[tokio::test]
async fn all_rpcs_reply_the_same_over_sqlite_postgres_and_cluster() {
    let Some(server) = Server::shared() else {
        return;
    };
    asserts_all_rpcs();
    let sqlite = replies(1, "").await;
    let postgres = |more: &str| {
        let url = server.database();
        format!("journal: {{ postgres: {{ url: '{url}'{more} }} }}")
    };
    let single = replies(1, &postgres("")).await;
    let cluster = replies(2, &postgres(", cluster: true")).await;
    let (mut problems, mut by_design) = (String::new(), BTreeSet::new());
    for (name, replies) in [("PostgreSQL", &single), ("cluster", &cluster)] {
        for (expected, found) in sqlite.iter().zip(replies) {
            problems += &difference(name, expected, found, &mut by_design);
        }
    }
    assert!(problems.is_empty(), "{problems}");
    assert_eq!(by_design, BTreeSet::from(by_design::ALL));
}

/// Asserts that the script calls every rpc that is not excepted.
fn asserts_all_rpcs() {
    let steps = [SCRIPT, WATCHED].map(script::parse).concat();
    let called: BTreeSet<&str> = steps.iter().map(|step| &*step.rpc).collect();
    let excepted = by_design::NOT_CALLED.map(|(rpc, _)| rpc);
    let services = DESCRIPTOR_POOL.services();
    for method in services.flat_map(|service| service.methods().collect::<Vec<_>>()) {
        assert_ne!(
            called.contains(method.name()),
            excepted.contains(&method.name()),
            "{} is either in a script or in NOT_CALLED",
            method.name()
        );
    }
}

/// Runs the script with daemons over a new journal, which are called in turn.
async fn replies(daemons: usize, journal: &str) -> Vec<Reply> {
    let facts = json!([{ "kind": "user", "content": "Ann is the user", "turns": [3] }]);
    let script = [0, 1].map(|_| ExtractionReply::These(facts.clone()));
    let learner = ExtractionProvider::start(script).await;
    let mut running = Vec::new();
    for _ in 0..daemons {
        running.push(Daemon::with(setup(&learner, journal)).await);
    }
    let channels = running.iter().map(|daemon| channel(daemon.grpc_addr()));
    let mut run = Run {
        channels: channels.collect(),
        calls: 0,
        normal: Normal::new(),
        saved: BTreeMap::new(),
        replies: Vec::new(),
    };
    run.all("script.txt", SCRIPT).await;
    let mut bots: Vec<Sessions> = running
        .iter()
        .map(|daemon| daemon.sessions_of(Setup::BETA))
        .collect();
    let mut events = Events::now(&mut bots[0]).await;
    // A daemon sends no events to others before it knows that one of them is watched.
    for (number, bot) in bots.iter_mut().enumerate() {
        let session = format!("before {number}");
        eventually("its events are sent", async || {
            say(bot, &session, "is it watched?").await;
            let event = events.soon().await?;
            (event.session_id == session).then_some(())
        })
        .await;
    }
    run.all("watched.txt", WATCHED).await;
    for (number, bot) in bots.iter_mut().enumerate() {
        say(bot, &format!("after {number}"), "the end").await;
    }
    let mut watched = Vec::new();
    let mut waits_for: BTreeSet<String> = (0..daemons).map(|it| format!("after {it}")).collect();
    while !waits_for.is_empty() {
        let event = events.next().await;
        waits_for.remove(&event.session_id);
        // Hooks are called in the background.
        if event.session_id == WATCHED_SESSION && !event.word().starts_with("hook") {
            watched.push(event);
        }
    }
    run.push_events(&watched);
    run.replies
}

fn setup(learner: &ExtractionProvider, journal: &str) -> Setup {
    let setup = learner
        .setup("", "after: idle 5m")
        .two_tenants("", "")
        .section(
            "short_term: { max_history_turns: 100, sweep_interval: 1h, \
             ttl_classes: { kept: never, blink: 1s } }",
        )
        .section(format!("hooks: [ {{ name: keeps, {RECORDING_HOOK} }} ]"));
    if journal.is_empty() {
        setup
    } else {
        setup.section(journal)
    }
}

/// A run of the script.
struct Run {
    channels: Vec<Channel>,
    calls: usize,
    normal: Normal,
    /// Values of earlier replies.
    saved: BTreeMap<String, String>,
    replies: Vec<Reply>,
}

impl Run {
    /// Runs a script and adds its normalized replies.
    async fn all(&mut self, file: &'static str, script: &str) {
        for step in script::parse(script) {
            for number in 1..=step.times {
                let mut reply = self.step(&step, number).await;
                self.normal.apply(&mut reply);
                self.replies.push(Reply {
                    file,
                    line: step.line,
                    rpc: step.rpc.clone(),
                    number,
                    reply,
                });
            }
        }
    }

    /// Adds events in the order of their text, because those of several daemons come in any order.
    fn push_events(&mut self, events: &[Event]) {
        let event = DESCRIPTOR_POOL.get_message_by_name("memoird.v1.Event");
        let event = event.expect("a message");
        let json = |it: &Event| json_of(&event, it.encode_to_vec().into());
        let mut events: Vec<Value> = events.iter().map(json).collect();
        for event in &mut events {
            self.normal.apply(event);
        }
        events.sort_by_key(Value::to_string);
        self.replies.push(Reply {
            file: "watched.txt",
            line: 0,
            rpc: "WatchEvents".to_owned(),
            number: 1,
            reply: events.into(),
        });
    }

    /// Makes a call, until its reply is the one that the step waits for, and saves values of it.
    async fn step(&mut self, step: &Step, number: usize) -> Value {
        let request = script::request(step, number, &self.saved);
        let mut reply = match &step.until {
            None => self.call(step, &request).await,
            Some((pointer, expected)) => {
                let what = format!("line {}: {pointer} is {expected:?}", step.line);
                eventually(&what, async || {
                    let reply = self.call(step, &request).await;
                    let value = reply.pointer(pointer).filter(|value| !value.is_null());
                    (value == expected.as_ref()).then_some(reply)
                })
                .await
            }
        };
        if step.rpc.starts_with("Erase") && reply["erasure"]["done"] == false {
            self.finish_erasure(step, &mut reply).await;
        }
        for (name, pointer) in &step.saved {
            let value = reply.pointer(pointer).and_then(Value::as_str);
            let value = value.unwrap_or_else(|| panic!("line {}: {reply}", step.line));
            self.saved.insert(name.clone(), value.to_owned());
        }
        reply
    }

    /// Waits for an erasure that takes longer than its call, and completes the reply.
    async fn finish_erasure(&mut self, erase: &Step, reply: &mut Value) {
        let text = format!(
            "GetErasure {{\"id\": {}}}\n  until /erasure/done is true",
            reply["erasure"]["id"]
        );
        let mut step = script::parse(&text).remove(0);
        step.key.clone_from(&erase.key);
        let mut finished = Box::pin(self.step(&step, 1)).await;
        reply["erasure"] = finished["erasure"].take();
    }

    async fn call(&mut self, step: &Step, request: &Value) -> Value {
        let method = method(&step.rpc);
        let service = method.parent_service().name().to_owned();
        let key = match step.key.as_deref() {
            Some("ALPHA") => Setup::ALPHA,
            Some("BETA") => Setup::BETA,
            Some("NONE") => "",
            Some(other) => panic!("line {}: no key {other}", step.line),
            None if service == "AdminService" => Setup::ADMIN,
            None => Setup::ALPHA,
        };
        let message = DynamicMessage::deserialize(method.input(), request)
            .unwrap_or_else(|error| panic!("line {}: {error}: {request}", step.line));
        let path = format!("/{PACKAGE}.{service}/{}", step.rpc);
        self.calls += 1;
        let next = self.calls % self.channels.len();
        let daemons = if by_design::COUNTED_PER_DAEMON.contains(&&*step.rpc) {
            0..self.channels.len()
        } else {
            next..next + 1
        };
        let mut all: Option<Value> = None;
        for channel in &self.channels[daemons] {
            let reply = raw_call_with_key(channel, &path, key, message.encode_to_vec()).await;
            let reply = match reply {
                Ok(reply) => json_of(&method.output(), reply.into_inner()),
                Err(status) => json_of_error(&status),
            };
            match &mut all {
                None => all = Some(reply),
                Some(all) => add_counters(all, &reply),
            }
        }
        all.expect("a daemon")
    }
}

/// Adds the counters of another daemon.
fn add_counters(sum: &mut Value, other: &Value) {
    match (sum, other) {
        (Value::Object(sums), Value::Object(others)) => {
            for (name, sum) in sums {
                if !by_design::OF_ALL_DAEMONS.contains(&&**name) {
                    add_counters(sum, &others[name]);
                }
            }
        }
        (Value::Array(sums), Value::Array(others)) => {
            let pairs = sums.iter_mut().zip(others);
            pairs.for_each(|(sum, other)| add_counters(sum, other));
        }
        (sum, other) => {
            if let (Some(one), Some(other)) = (sum.as_u64(), other.as_u64()) {
                *sum = json!(one + other);
            }
        }
    }
}

fn method(rpc: &str) -> MethodDescriptor {
    let services = DESCRIPTOR_POOL.services();
    let mut methods = services.flat_map(|service| service.methods().collect::<Vec<_>>());
    let found = methods.find(|method| method.name() == rpc);
    found.unwrap_or_else(|| panic!("no rpc {rpc}"))
}

fn json_of(message: &MessageDescriptor, bytes: Bytes) -> Value {
    let message = DynamicMessage::decode(message.clone(), bytes).expect("a reply");
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
        .skip_default_fields(false);
    let json = message.serialize_with_options(serde_json::value::Serializer, &options);
    json.expect("JSON")
}

fn json_of_error(status: &Status) -> Value {
    let info = status
        .get_details_error_info()
        .expect("an error of memoird");
    let metadata: BTreeMap<_, _> = info.metadata.into_iter().collect();
    json!({ "error": {
        "code": format!("{:?}", status.code()),
        "reason": info.reason,
        "metadata": metadata,
        "message": status.message(),
    } })
}

/// Describes how a reply differs from that over SQLite. Empty if it does not.
///
/// Adds the differences that are by design to `by_design`.
fn difference(
    name: &str,
    expected: &Reply,
    found: &Reply,
    by_design: &mut BTreeSet<&'static str>,
) -> String {
    let mut lines = String::new();
    let mut report = |path: &str, sqlite: &Value, other: &Value| {
        if let Some(reason) = by_design::reason(name, &expected.rpc, path, sqlite, other) {
            by_design.insert(reason);
            return;
        }
        let (sqlite, other) = differing_parts(sqlite, other);
        lines += &format!("  {path}\n    SQLite: {sqlite}\n    {name}: {other}\n");
    };
    compare("", &expected.reply, &found.reply, &mut report);
    if lines.is_empty() {
        return lines;
    }
    let Reply {
        file,
        line,
        rpc,
        number,
        ..
    } = expected;
    format!("{file}:{line}: {rpc}, call {number}\n{lines}")
}

/// Calls `report` with each path where two values differ, and both values there.
fn compare(path: &str, one: &Value, other: &Value, report: &mut impl FnMut(&str, &Value, &Value)) {
    match (one, other) {
        (Value::Object(fields), Value::Object(others)) => {
            let names: BTreeSet<&String> = fields.keys().chain(others.keys()).collect();
            for name in names {
                let [inner, outer] =
                    [fields, others].map(|it| it.get(name).unwrap_or(&Value::Null));
                compare(&format!("{path}/{name}"), inner, outer, report);
            }
        }
        (Value::Array(items), Value::Array(others)) if ids(items) != ids(others) => {
            report(path, &ids(items), &ids(others));
        }
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => {
            for (index, (inner, outer)) in items.iter().zip(others).enumerate() {
                compare(&format!("{path}/{index}"), inner, outer, report);
            }
        }
        (Value::Number(number), Value::Number(another)) if is_close(number, another) => {}
        (one, other) if one != other => report(path, one, other),
        _ => {}
    }
}

/// Whether two numbers are equal, or fractions that differ as little as scores do in a minute.
fn is_close(one: &Number, other: &Number) -> bool {
    const SHARE: f64 = 1e-4;
    let fractions = [one, other].map(|it| it.as_f64().filter(|_| !it.is_u64()));
    match fractions {
        [Some(one), Some(other)] => (one - other).abs() <= SHARE * one.abs(),
        _ => one == other,
    }
}

/// The items' names, if they have any: a list in another order is one difference, not one per field.
fn ids(items: &[Value]) -> Value {
    let names = ["session_id", "id", "subject", "key"];
    let id = |item: &Value| names.iter().find_map(|name| item.get(name).cloned());
    items.iter().filter_map(id).collect()
}

/// Two values as text. Of long texts, only the parts around the first difference.
fn differing_parts(one: &Value, other: &Value) -> (String, String) {
    const AROUND: usize = 200;
    let (one, other) = (one.to_string(), other.to_string());
    let pairs = one.chars().zip(other.chars());
    let same = pairs.take_while(|(one, other)| one == other).count();
    let part = |text: &str| {
        let rest = text.chars().skip(same.saturating_sub(AROUND));
        rest.take(2 * AROUND).collect()
    };
    (part(&one), part(&other))
}
