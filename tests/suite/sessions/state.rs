//! Session state: JSON patches, ends, and new generations.

use memoird_proto::v1::{
    AppendRequest, EndSessionRequest, GetHistoryRequest, GetSessionRequest, HistoryScope,
    ListSessionsRequest, ResetSessionRequest, SessionInfo, UpdateSessionRequest,
    UpdateSessionResponse,
};
use prost_types::FieldMask;
use tonic::{Code, Response, Status};

use crate::harness::{
    Daemon, Sessions, Setup, append, journal, keyed, live, refused, refused_code, refused_field,
    say, text_of, user,
};

/// A patch with an idempotency key.
fn named(key: &str, json: &str) -> UpdateSessionRequest {
    UpdateSessionRequest {
        session_id: "chat".into(),
        state_patch_json: json.into(),
        idempotency_key: key.into(),
        ..UpdateSessionRequest::default()
    }
}

/// The state of a reply and its version.
fn state(reply: &UpdateSessionResponse) -> (&str, u64) {
    let session = reply.session.as_ref().expect("a session");
    (&session.state_json, session.state_version)
}

async fn patch(
    client: &mut Sessions,
    json: &str,
    version: Option<u64>,
) -> Result<Response<UpdateSessionResponse>, Status> {
    let request = UpdateSessionRequest {
        session_id: "chat".into(),
        state_patch_json: json.into(),
        expected_state_version: version,
        ..UpdateSessionRequest::default()
    };
    client.update_session(request).await
}

#[tokio::test]
async fn merge_patches_change_state_and_version() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    refused(
        patch(&mut client, "{}", None).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
    say(&mut client, "chat", "hi").await;
    let steps = [
        (
            r#"{"a":{"b":1,"c":[1,2]},"n":1.50}"#,
            r#"{"a":{"b":1,"c":[1,2]},"n":1.50}"#,
        ),
        (r#"{"a":{"b":null,"c":[3]}}"#, r#"{"a":{"c":[3]},"n":1.50}"#),
        ("{}", r#"{"a":{"c":[3]},"n":1.50}"#),
        (r#"{"a":null,"n":null}"#, "{}"),
    ];
    for (version, (json, expected)) in (0..).zip(steps) {
        let patched = patch(&mut client, json, Some(version))
            .await
            .expect("patched")
            .into_inner();
        assert_eq!(state(&patched), (expected, version + 1));
    }
    let stale = patch(&mut client, r#"{"a":1}"#, Some(3)).await;
    let said = refused(stale, Code::Aborted, "STALE_STATE_VERSION");
    assert!(said.contains('4'), "it says the version: {said}");
    for bad in [" ", "[]", "7", "null", "{", "{\"a\":}", "{} {}"] {
        refused(
            patch(&mut client, bad, None).await,
            Code::InvalidArgument,
            "STATE_INVALID",
        );
    }
    let seen = GetSessionRequest {
        session_id: "chat".into(),
        ..Default::default()
    };
    let seen = client
        .get_session(seen)
        .await
        .expect("it lives")
        .into_inner()
        .session;
    assert_eq!(
        seen.expect("a session").state_version,
        4,
        "a refusal changes nothing"
    );
}

#[tokio::test]
async fn reset_starts_new_generation_without_history_and_state() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let reset = || ResetSessionRequest {
        session_id: "chat".into(),
        run_hooks: false,
        ..ResetSessionRequest::default()
    };
    refused(
        client.reset_session(reset()).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
    let mut request = append("chat", [user("before")]);
    request.subject = "user:7".into();
    let first = client
        .append(request)
        .await
        .expect("done")
        .into_inner()
        .session;
    let first = first.expect("a session");
    patch(&mut client, r#"{"a":1}"#, None)
        .await
        .expect("patched");

    let answer = client
        .reset_session(reset())
        .await
        .expect("reset")
        .into_inner();
    let fresh = answer.session.expect("a session");
    assert_eq!(answer.ended_generation, first.generation);
    assert_ne!(fresh.generation, first.generation);
    assert_eq!(
        (fresh.history_turns, fresh.last_seq, fresh.state_version),
        (0, 0, 0)
    );
    assert!(live(&mut client, "chat").await.is_empty());
    let patched = patch(&mut client, "{}", None)
        .await
        .expect("patched")
        .into_inner();
    assert_eq!(state(&patched).0, "{}");
    let said = say(&mut client, "chat", "after").await;
    assert_eq!(said.first_seq, 1);
    assert_eq!(
        said.session.expect("a session").generation,
        fresh.generation
    );
    let old = journal(&mut client, "chat", &first.generation).await;
    assert_eq!(old.iter().map(text_of).collect::<Vec<_>>(), ["before"]);
}

#[tokio::test]
async fn ended_session_stays_readable_by_generation() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let end = || EndSessionRequest {
        session_id: "chat".into(),
        ..EndSessionRequest::default()
    };
    refused(
        client.end_session(end()).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
    let first = client
        .append(keyed("chat", "k", [user("one"), user("two")]))
        .await
        .expect("done");
    let first = first.into_inner().session.expect("a session");
    let ended = client
        .end_session(end())
        .await
        .expect("ended")
        .into_inner()
        .session;
    let ended = ended.expect("a session");
    assert_eq!((&ended.generation, ended.last_seq), (&first.generation, 2));
    refused(
        client.end_session(end()).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
    let look = GetSessionRequest {
        session_id: "chat".into(),
        ..Default::default()
    };
    refused(
        client.get_session(look).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
    let newest = journal(&mut client, "chat", "").await;
    assert_eq!(
        newest.iter().map(text_of).collect::<Vec<_>>(),
        ["one", "two"]
    );

    // A key is valid across generations: the duplicate is recognized and starts nothing.
    let again = client
        .append(keyed("chat", "k", [user("one"), user("two")]))
        .await;
    let again = again.expect("answered").into_inner();
    assert!(again.duplicate);
    assert_eq!(
        again.session.expect("a session").generation,
        first.generation
    );

    let second = say(&mut client, "chat", "three").await;
    assert_eq!(second.first_seq, 1);
    let second = second.session.expect("a session").generation;
    assert!(second > first.generation, "generations sort by their start");
    let newest = journal(&mut client, "chat", "").await;
    assert_eq!(newest.iter().map(text_of).collect::<Vec<_>>(), ["three"]);
    let old = journal(&mut client, "chat", &first.generation).await;
    assert_eq!(old.len(), 2);
}

#[tokio::test]
async fn unknown_generation_is_not_found() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "hi").await;
    let request = |scope: HistoryScope, generation: &str| GetHistoryRequest {
        session_id: "chat".into(),
        generation: generation.into(),
        scope: scope.into(),
        ..GetHistoryRequest::default()
    };
    let unknown = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    for scope in [HistoryScope::Live, HistoryScope::Journal] {
        let answer = client.get_history(request(scope, unknown)).await;
        refused(answer, Code::NotFound, "GENERATION_NOT_FOUND");
        let answer = client.get_history(request(scope, "nonsense")).await;
        refused(answer, Code::InvalidArgument, "GENERATION_INVALID");
    }
    let nobody = GetHistoryRequest {
        session_id: "nobody".into(),
        ..Default::default()
    };
    refused(
        client.get_history(nobody).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
}

#[tokio::test]
async fn patch_can_create_session_and_replace_state() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let whole = |json: &str| UpdateSessionRequest {
        session_id: "chat".into(),
        state_json: json.into(),
        allow_missing: true,
        ..UpdateSessionRequest::default()
    };
    for (version, json) in [(1, r#"{"a":null,"b":1}"#), (2, r#"{"c":null}"#)] {
        let reply = client.update_session(whole(json)).await.expect("patched");
        assert_eq!(state(reply.get_ref()), (json, version));
    }
    assert!(live(&mut client, "chat").await.is_empty());
    say(&mut client, "other", "hi").await;
    let request = ListSessionsRequest {
        include_state: true,
        ..ListSessionsRequest::default()
    };
    let page = client.list_sessions(request).await.expect("a page");
    let states: Vec<String> = page
        .into_inner()
        .sessions
        .into_iter()
        .map(|session| session.state_json)
        .collect();
    assert_eq!(states, ["{}", r#"{"c":null}"#]);
}

#[tokio::test]
async fn update_mask_selects_and_resets_fields() {
    let classes = "short_term: { ttl_classes: { week: 7d } }";
    let daemon = Daemon::with(Setup::default().section(classes)).await;
    let mut client = daemon.sessions();
    let masked = |paths: &[&str]| UpdateSessionRequest {
        session_id: "chat".into(),
        update_mask: Some(FieldMask {
            paths: paths.iter().map(|path| (*path).to_owned()).collect(),
        }),
        state_json: r#"{"a":1}"#.into(),
        labels: [("mood".to_owned(), "good".to_owned())].into(),
        ttl_class: "week".into(),
        keep_all: Some(true),
        allow_missing: true,
        ..UpdateSessionRequest::default()
    };
    let mut update = async |request: UpdateSessionRequest| {
        let reply = client.update_session(request).await.expect("updated");
        let session = reply.into_inner().session.expect("a session");
        let label = session.labels.get("mood").cloned().unwrap_or_default();
        (
            session.state_json,
            label,
            session.ttl_class,
            session.keep_all,
        )
    };
    let seen = |state: &str, mood: &str, class: &str, keep_all| {
        (
            state.to_owned(),
            mood.to_owned(),
            class.to_owned(),
            keep_all,
        )
    };
    let labels = update(masked(&["labels"])).await;
    assert_eq!(labels, seen("{}", "good", "", false));
    let all = UpdateSessionRequest {
        update_mask: None,
        ..masked(&[])
    };
    assert_eq!(update(all).await, seen(r#"{"a":1}"#, "good", "week", true));
    let none = UpdateSessionRequest {
        state_json: String::new(),
        ttl_class: String::new(),
        keep_all: None,
        ..masked(&["state_json", "ttl_class", "keep_all"])
    };
    assert_eq!(update(none).await, seen("{}", "good", "", false));

    let both = UpdateSessionRequest {
        state_patch_json: "{}".into(),
        ..masked(&["state_json"])
    };
    for (request, reason, field) in [
        (masked(&["subject"]), "UPDATE_MASK_INVALID", "update_mask"),
        (masked(&[]), "UPDATE_MASK_INVALID", "update_mask"),
        (both, "STATE_INVALID", "state_patch_json"),
        (
            UpdateSessionRequest {
                state_json: "[]".into(),
                ..masked(&["state_json"])
            },
            "STATE_INVALID",
            "state_json",
        ),
    ] {
        let status = client.update_session(request).await.expect_err("refused");
        assert_eq!(refused_code(&status), reason);
        assert_eq!(refused_field(&status), field);
    }
}

#[tokio::test]
async fn append_with_state_patch_is_atomic() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let with = |key: &str, text: &str, patch: &str, version| AppendRequest {
        state_patch_json: patch.into(),
        expected_state_version: version,
        ..keyed("chat", key, [user(text)])
    };
    let first = with("k1", "one", r#"{"step":1}"#, Some(0));
    let answer = client.append(first.clone()).await.expect("appended");
    let session = answer.into_inner().session.expect("a session");
    assert_eq!((session.last_seq, session.state_version), (1, 1));
    let again = client.append(first).await.expect("answered").into_inner();
    assert!(again.duplicate);
    let other = with("k1", "one", r#"{"step":7}"#, Some(0));
    refused(
        client.append(other).await,
        Code::InvalidArgument,
        "IDEMPOTENCY_KEY_REUSED",
    );
    let stale = with("k2", "two", r#"{"step":2}"#, Some(0));
    refused(
        client.append(stale).await,
        Code::Aborted,
        "STALE_STATE_VERSION",
    );
    for bad in ["[]", "{"] {
        refused(
            client.append(with("k3", "two", bad, None)).await,
            Code::InvalidArgument,
            "STATE_INVALID",
        );
    }
    refused(
        client.append(with("k4", "two", "", Some(1))).await,
        Code::InvalidArgument,
        "STATE_INVALID",
    );
    daemon.kill9().await;
    daemon.restart().await;
    let mut client = daemon.sessions();
    let turns = live(&mut client, "chat").await;
    assert_eq!(turns.iter().map(text_of).collect::<Vec<_>>(), ["one"]);
    let request = GetSessionRequest {
        session_id: "chat".into(),
        include_state: true,
    };
    let session = client.get_session(request).await.expect("it lives");
    let session = session.into_inner().session.expect("a session");
    assert_eq!(session.state_json, r#"{"step":1}"#);
}

#[tokio::test]
async fn patch_with_idempotency_key_applies_once() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let expecting = |version| UpdateSessionRequest {
        expected_state_version: Some(version),
        allow_missing: true,
        ..named("first", r#"{"a":1}"#)
    };
    let first = client.update_session(expecting(0)).await;
    assert!(!first.expect("patched").into_inner().duplicate);
    let labels = UpdateSessionRequest {
        labels: [("mood".to_owned(), "good".to_owned())].into(),
        ..named("labels", "")
    };
    let labelled = client.update_session(labels.clone()).await;
    let labelled = labelled.expect("labelled").into_inner();
    assert_eq!((state(&labelled).1, labelled.duplicate), (1, false));
    patch(&mut client, r#"{"a":2}"#, Some(1))
        .await
        .expect("patched");
    for how in ["at once", "after a restart"] {
        for request in [expecting(0), labels.clone()] {
            let again = client.update_session(request).await;
            let again = again.unwrap_or_else(|status| panic!("{how}: {status:?}"));
            let again = again.into_inner();
            assert!(again.duplicate, "{how}");
            assert_eq!(state(&again), (r#"{"a":2}"#, 2));
        }
        daemon.kill9().await;
        daemon.restart().await;
        client = daemon.sessions();
    }
    for other in [
        named("first", r#"{"a":3}"#),
        named("labels", "{}"),
        UpdateSessionRequest {
            state_json: r#"{"a":1}"#.into(),
            ..named("first", "")
        },
    ] {
        let reason = "IDEMPOTENCY_KEY_REUSED";
        refused(
            client.update_session(other).await,
            Code::InvalidArgument,
            reason,
        );
    }
    let said = client.append(keyed("chat", "first", [user("hi")])).await;
    refused(said, Code::InvalidArgument, "IDEMPOTENCY_KEY_REUSED");
    let end = EndSessionRequest {
        session_id: "chat".into(),
        ..EndSessionRequest::default()
    };
    client.end_session(end).await.expect("ended");
    // The duplicate does not start a new generation.
    let late = client.update_session(expecting(0)).await;
    let late = late.expect("answered").into_inner();
    let expected = SessionInfo {
        session_id: "chat".into(),
        ..SessionInfo::default()
    };
    assert_eq!((late.session, late.duplicate), (Some(expected), true));
    let gone = patch(&mut client, "{}", None).await;
    refused(gone, Code::NotFound, "SESSION_NOT_FOUND");
}
