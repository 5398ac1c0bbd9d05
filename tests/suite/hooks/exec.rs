//! The exec hook: each end is delivered to a program once, with all turns.

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    DeliveryState, GetSessionRequest, ResetSessionRequest, Role, SweepNowRequest, Turn,
    UpdateSessionRequest,
};
use serde_json::{Value, json};

use crate::harness::{
    Daemon, RECORDING_HOOK, Sessions, Setup, all_delivered, append, assistant, delivered,
    deliveries, end, eventually, field, in_state, live, say, stats, tool_results, tool_uses, user,
};

fn hook(short_term: &str) -> Setup {
    Setup::default()
        .section(format!("hooks: [ {{ name: keeps, {RECORDING_HOOK} }} ]"))
        .section(format!("short_term: {{ {short_term} }}"))
}

/// The payload of a turn that has only parts.
fn as_told(seq: u64, turn: &Turn) -> Value {
    let part = |kind: &Kind| match kind {
        Kind::Text(text) => json!({"text": text}),
        Kind::ToolUse(call) => json!({
            "tool_use": {"id": call.id, "name": call.name, "input_json": call.input_json}
        }),
        Kind::ToolResult(result) => json!({
            "tool_result": {
                "tool_use_id": result.tool_use_id,
                "content": result.content,
                "parts": [],
                "is_error": result.is_error,
            }
        }),
        other => panic!("not in these tests: {other:?}"),
    };
    let parts = turn
        .parts
        .iter()
        .filter_map(|it| it.part.as_ref())
        .map(part);
    json!({
        "seq": seq,
        "role": Role::try_from(turn.role).expect("a role").as_str_name(),
        "parts": parts.collect::<Vec<_>>(),
    })
}

fn conversation() -> Vec<Turn> {
    let mut turns = vec![user("what is ☃ \"quoted\"\n\u{1}?")];
    for round in 0..6 {
        let ids = [format!("a{round}"), format!("b{round}")];
        let ids = [ids[0].as_str(), ids[1].as_str()];
        turns.push(tool_uses(&ids));
        turns.push(tool_results(&ids));
        turns.push(assistant(&format!("answer {round}")));
        turns.push(user(&format!("and {round}?")));
    }
    turns
}

/// Returns the single delivery of a generation.
#[track_caller]
fn of<'a>(all: &'a [Value], generation: &str) -> &'a Value {
    let mut its = all
        .iter()
        .filter(|told| field(told, "generation") == generation);
    let first = its
        .next()
        .unwrap_or_else(|| panic!("{generation} was never told"));
    assert!(its.next().is_none(), "{generation} was told twice");
    first
}

/// The generation of a live session.
async fn generation(client: &mut Sessions, session: &str) -> String {
    let request = GetSessionRequest {
        session_id: session.to_owned(),
        ..Default::default()
    };
    let found = client
        .get_session(request)
        .await
        .expect("it lives")
        .into_inner();
    found.session.expect("a session").generation
}

async fn reset(client: &mut Sessions, session: &str, run_hooks: bool) -> String {
    let request = ResetSessionRequest {
        session_id: session.to_owned(),
        run_hooks,
        ..ResetSessionRequest::default()
    };
    client
        .reset_session(request)
        .await
        .expect("reset")
        .into_inner()
        .ended_generation
}

#[tokio::test]
async fn ended_session_is_delivered_with_dropped_turns() {
    let daemon = Daemon::with(hook("max_history_turns: 8")).await;
    let mut client = daemon.sessions();
    let turns = conversation();
    let mut dropped = 0;
    for turn in &turns {
        let request = append("telegram:4711", [turn.clone()]);
        dropped += client
            .append(request)
            .await
            .expect("done")
            .into_inner()
            .dropped_turns;
    }
    assert!(dropped > 10, "{dropped} dropped");
    assert!(live(&mut client, "telegram:4711").await.len() <= 9);
    let patch = UpdateSessionRequest {
        session_id: "telegram:4711".to_owned(),
        state_patch_json: r#"{"lang": "de", "n": 1.50}"#.to_owned(),
        ..Default::default()
    };
    client.update_session(patch).await.expect("patched");
    let generation = end(&mut client, "telegram:4711").await;
    all_delivered(&mut daemon.admin()).await;
    let all = delivered(&daemon);
    let told = of(&all, &generation);
    let mut found = told["turns"].as_array().expect("turns").clone();
    for turn in &mut found {
        turn.as_object_mut()
            .expect("an object")
            .shift_remove("timestamp")
            .expect("a timestamp");
    }
    let expected: Vec<Value> = (1..)
        .zip(&turns)
        .map(|(seq, turn)| as_told(seq, turn))
        .collect();
    assert_eq!(found, expected);
    let fixed = json!([
        told["version"],
        told["attempt"],
        told["hook"],
        told["tenant"],
        told["session_id"],
        told["subject"],
        told["reason"],
        told["last_seq"],
        told["turns_omitted"],
        told["state"].to_string(),
        told["state_version"],
        told["delivery"],
    ]);
    let delivery = format!("{generation}/keeps");
    let expected = json!([
        1,
        1,
        "keeps",
        "default",
        "telegram:4711",
        null,
        "ended",
        turns.len(),
        0,
        r#"{"lang":"de","n":1.50}"#,
        1,
        delivery,
    ]);
    assert_eq!(fixed, expected);
}

#[tokio::test]
async fn each_end_is_delivered_once_and_plain_reset_is_not() {
    let mut daemon = Daemon::with(hook("max_sessions: 3")).await;
    let mut client = daemon.sessions();
    let mut expected = Vec::new();
    for name in ["oldest", "second", "third"] {
        let answer = say(&mut client, name, &format!("I am {name}")).await;
        expected.push((
            answer.session.expect("a session").generation,
            "evicted",
            name,
        ));
    }
    say(&mut client, "fourth", "one too many").await;
    expected.truncate(1);
    let quiet = reset(&mut client, "second", false).await;
    say(&mut client, "third", "again").await;
    expected.push((reset(&mut client, "third", true).await, "reset", "third"));
    let third = generation(&mut client, "third").await;
    expected.push((end(&mut client, "fourth").await, "ended", "fourth"));
    say(&mut client, "second", "still here").await;
    let second = generation(&mut client, "second").await;
    all_delivered(&mut daemon.admin()).await;

    // `second` and `third` are still live. `third` has no turns, so its end is not delivered.
    daemon.stop().await;
    daemon
        .restart_with(hook("session_ttl: 1s, sweep_interval: 1h"))
        .await;
    let mut admin = daemon.admin();
    eventually("both have expired", async || {
        // The daemon's own sweeper may have run before.
        admin
            .sweep_now(SweepNowRequest::default())
            .await
            .expect("swept");
        (stats(&mut admin).await.expired == 2).then_some(())
    })
    .await;
    expected.push((second, "expired", "second"));
    all_delivered(&mut admin).await;
    let all = delivered(&daemon);
    for (generation, reason, session) in &expected {
        let told = of(&all, generation);
        assert_eq!(
            (field(told, "reason"), field(told, "session_id")),
            (*reason, *session)
        );
    }
    assert_eq!(all.len(), expected.len(), "{all:?}");
    assert!(
        all.iter().all(|told| field(told, "generation") != quiet),
        "a plain reset is silent"
    );
    assert!(
        all.iter().all(|told| field(told, "generation") != third),
        "nothing was said in it"
    );
    assert_eq!(
        of(&all, &expected[0].0)["turns"][0]["parts"][0]["text"],
        "I am oldest"
    );
}

#[tokio::test]
async fn durability_off_stop_delivers_every_session_once() {
    const SESSIONS: usize = 30;
    let off = hook("max_history_turns: 3").section("journal: { durability: off }");
    let mut daemon = Daemon::with(off).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    for number in 0..SESSIONS {
        for turn in 0..5 {
            say(
                &mut client,
                &format!("s{number}"),
                &format!("{number} {turn}"),
            )
            .await;
        }
    }
    end(&mut client, "s0").await;
    all_delivered(&mut admin).await;
    let done = deliveries(&mut admin, in_state(DeliveryState::Done)).await;
    assert!(done.len() <= 1, "{done:?}");
    assert_eq!(stats(&mut admin).await.sessions_live, SESSIONS as u64 - 1);
    daemon.stop().await;
    let all = delivered(&daemon);
    let mut sessions: Vec<&str> = all.iter().map(|told| field(told, "session_id")).collect();
    sessions.sort_unstable();
    let mut expected: Vec<String> = (0..SESSIONS).map(|number| format!("s{number}")).collect();
    expected.sort_unstable();
    assert_eq!(sessions, expected, "{}", daemon.log());
    for told in &all {
        let reason = if field(told, "session_id") == "s0" {
            "ended"
        } else {
            "shutdown"
        };
        assert_eq!(field(told, "reason"), reason);
        let turns = told["turns"].as_array().expect("turns").len() as u64;
        let omitted = told["turns_omitted"].as_u64().expect("a count");
        assert_eq!(
            (turns + omitted, omitted),
            (5, 1),
            "the anchor and the newest three"
        );
        assert_eq!(told["last_seq"], 5);
    }
}
