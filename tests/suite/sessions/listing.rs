//! Session labels and filtered lists.

use std::collections::BTreeMap;

use memoird_proto::v1::{
    AppendRequest, CopySessionRequest, EndReason, EraseSubjectRequest, GetErasureRequest,
    GetSessionRequest, ListSessionsRequest, ListSessionsResponse, ResetSessionRequest, SessionInfo,
    SessionOrder, SessionState, UpdateSessionRequest,
};
use tonic::{Code, Response, Status};

use crate::harness::{
    Daemon, Sessions, Setup, append, ask_as, end, eventually, fails, keyed, refused, say, user,
};

fn labels<const N: usize>(labels: [(&str, &str); N]) -> BTreeMap<String, String> {
    let labels = labels.into_iter();
    labels
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn saying(session: &str, subject: &str, labels: BTreeMap<String, String>) -> AppendRequest {
    AppendRequest {
        subject: subject.into(),
        labels,
        ..append(session, [user("hello")])
    }
}

async fn append_info(client: &mut Sessions, request: AppendRequest) -> SessionInfo {
    let answer = client.append(request).await.expect("said").into_inner();
    answer.session.expect("a session")
}

async fn info(client: &mut Sessions, session: &str) -> SessionInfo {
    let request = GetSessionRequest {
        session_id: session.into(),
        ..GetSessionRequest::default()
    };
    let answer = client.get_session(request).await.expect("it lives");
    answer.into_inner().session.expect("a session")
}

fn used_ms(info: &SessionInfo) -> i64 {
    let used = info.last_access.expect("a time");
    used.seconds * 1_000 + i64::from(used.nanos / 1_000_000)
}

async fn try_list(
    client: &mut Sessions,
    request: ListSessionsRequest,
) -> Result<Response<ListSessionsResponse>, Status> {
    client.list_sessions(request).await
}

/// The ids of all pages.
async fn listed(client: &mut Sessions, mut request: ListSessionsRequest) -> Vec<String> {
    let mut ids = Vec::new();
    loop {
        let page = try_list(client, request.clone()).await.expect("a list");
        let page = page.into_inner();
        ids.extend(page.sessions.into_iter().map(|info| info.session_id));
        if page.next_page_token.is_empty() {
            return ids;
        }
        request.page_token = page.next_page_token;
    }
}

#[tokio::test]
async fn labels_are_set_by_append_or_patch_and_survive_kill() {
    for durability in ["sync", "off"] {
        let setup = format!("journal: {{ durability: {durability} }}");
        let mut daemon = Daemon::with(Setup::default().section(setup)).await;
        let mut client = daemon.sessions();
        let first = append_info(
            &mut client,
            saying("chat", "", labels([("app", "shop"), ("v", "1")])),
        )
        .await;
        assert_eq!(first.labels, labels([("app", "shop"), ("v", "1")]));
        let later = append_info(&mut client, saying("chat", "", labels([("v", "")]))).await;
        assert_eq!(later.labels, labels([("app", "shop")]));
        let patch = UpdateSessionRequest {
            session_id: "chat".into(),
            labels: labels([("lang", "de")]),
            ..UpdateSessionRequest::default()
        };
        let patched = client
            .update_session(patch)
            .await
            .expect("patched")
            .into_inner()
            .session
            .expect("a session");
        assert_eq!(
            (&*patched.state_json, patched.state_version),
            ("{}", 0),
            "the state stays"
        );
        let both = UpdateSessionRequest {
            session_id: "new".into(),
            state_patch_json: r#"{"a":1}"#.into(),
            labels: labels([("lang", "fr")]),
            allow_missing: true,
            ..UpdateSessionRequest::default()
        };
        let patched = client
            .update_session(both)
            .await
            .expect("patched")
            .into_inner()
            .session
            .expect("a session");
        assert_eq!(
            (&*patched.state_json, patched.state_version),
            (r#"{"a":1}"#, 1)
        );
        if durability == "sync" {
            daemon.kill9().await;
            daemon.restart().await;
            client = daemon.sessions();
        }
        let expected = labels([("app", "shop"), ("lang", "de")]);
        assert_eq!(info(&mut client, "chat").await.labels, expected);
        assert_eq!(
            info(&mut client, "new").await.labels,
            labels([("lang", "fr")])
        );
        let reset = ResetSessionRequest {
            session_id: "chat".into(),
            run_hooks: false,
            ..ResetSessionRequest::default()
        };
        let fresh = client
            .reset_session(reset)
            .await
            .expect("reset")
            .into_inner();
        assert_eq!(fresh.session.expect("a session").labels, expected);
        end(&mut client, "chat").await;
        let anew = say(&mut client, "chat", "anew").await.session;
        assert!(anew.expect("a session").labels.is_empty());
    }
}

#[tokio::test]
async fn invalid_labels_are_refused_with_their_whole_request() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let many = (0..17)
        .map(|number| (number.to_string(), "x".to_owned()))
        .collect();
    let cases = [
        (labels([("", "x")]), "LABEL_INVALID"),
        (labels([(&"n".repeat(65), "x")]), "LABEL_INVALID"),
        (labels([("name", &"v".repeat(257))]), "LABEL_INVALID"),
        (many, "LABELS_TOO_MANY"),
    ];
    for (bad, reason) in &cases {
        let request = saying("chat", "", bad.clone());
        refused(client.append(request).await, Code::InvalidArgument, reason);
        let list = ListSessionsRequest {
            labels: bad.clone(),
            ..ListSessionsRequest::default()
        };
        refused(
            try_list(&mut client, list).await,
            Code::InvalidArgument,
            reason,
        );
    }
    assert!(
        listed(&mut client, ListSessionsRequest::default())
            .await
            .is_empty()
    );
    say(&mut client, "chat", "hello").await;
    for (bad, reason) in cases {
        let patch = UpdateSessionRequest {
            session_id: "chat".into(),
            state_patch_json: r#"{"a":1}"#.into(),
            labels: bad,
            ..UpdateSessionRequest::default()
        };
        refused(
            client.update_session(patch).await,
            Code::InvalidArgument,
            reason,
        );
    }
    let info = info(&mut client, "chat").await;
    assert_eq!(
        (info.labels.len(), info.state_version, info.last_seq),
        (0, 0, 1)
    );
    // Different labels make it a different append.
    let named = |value: &str| AppendRequest {
        labels: labels([("app", value)]),
        ..keyed("chat", "k", [user("once")])
    };
    client.append(named("shop")).await.expect("said");
    assert!(
        client
            .append(named("shop"))
            .await
            .expect("known")
            .into_inner()
            .duplicate
    );
    let other = client.append(named("bank")).await;
    refused(other, Code::InvalidArgument, "IDEMPOTENCY_KEY_REUSED");
}

#[tokio::test]
async fn list_sessions_filters_orders_and_isolates_tenants() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let mut alpha = daemon.sessions_of(Setup::ALPHA);
    let mut beta = daemon.sessions_of(Setup::BETA);
    for (session, subject, app) in [
        ("web:1", "ann", "shop"),
        ("web:2", "bob", "shop"),
        ("tg:1", "ann", "bank"),
        ("tg:2", "", ""),
        ("web:10", "ann", "shop"),
    ] {
        append_info(&mut alpha, saying(session, subject, labels([("app", app)]))).await;
        append_info(&mut beta, saying(session, subject, labels([("app", app)]))).await;
        // `last_access` has millisecond precision, and filters by it are exact to two milliseconds.
        let used = used_ms(&info(&mut alpha, session).await);
        while used_ms(&append_info(&mut alpha, saying("clock", "", labels([]))).await) < used + 10 {
        }
    }
    end(&mut alpha, "clock").await;
    let request = ListSessionsRequest::default;
    let by = |order: SessionOrder| ListSessionsRequest {
        order: order.into(),
        ..request()
    };
    let newest = ["web:10", "tg:2", "tg:1", "web:2", "web:1"];
    let mut oldest = newest;
    oldest.reverse();
    let mut middle = info(&mut alpha, "tg:1").await.last_access.expect("a time");
    let nanos = middle.nanos + 5_000_000;
    (middle.seconds, middle.nanos) = (
        middle.seconds + i64::from(nanos / 1_000_000_000),
        nanos % 1_000_000_000,
    );
    let middle = Some(middle);
    let cases = [
        (request(), newest.to_vec()),
        (by(SessionOrder::Newest), newest.to_vec()),
        (by(SessionOrder::Oldest), oldest.to_vec()),
        (
            by(SessionOrder::Id),
            vec!["tg:1", "tg:2", "web:1", "web:10", "web:2"],
        ),
        (
            ListSessionsRequest {
                id_prefix: "web:1".into(),
                ..request()
            },
            vec!["web:10", "web:1"],
        ),
        (
            ListSessionsRequest {
                subject: "ann".into(),
                ..by(SessionOrder::Oldest)
            },
            vec!["web:1", "tg:1", "web:10"],
        ),
        (
            ListSessionsRequest {
                subject: "ann".into(),
                labels: labels([("app", "shop")]),
                ..by(SessionOrder::Id)
            },
            vec!["web:1", "web:10"],
        ),
        (
            ListSessionsRequest {
                updated_after: middle,
                ..request()
            },
            vec!["web:10", "tg:2"],
        ),
        (
            ListSessionsRequest {
                updated_before: middle,
                ..request()
            },
            vec!["tg:1", "web:2", "web:1"],
        ),
        (
            ListSessionsRequest {
                subject: "an".into(),
                ..request()
            },
            vec![],
        ),
    ];
    for (request, expected) in cases {
        for page_size in [1, 2, 100] {
            let paged = ListSessionsRequest {
                page_size,
                ..request.clone()
            };
            assert_eq!(listed(&mut alpha, paged).await, expected, "{request:?}");
        }
    }
    let theirs = ListSessionsRequest {
        subject: "ann".into(),
        ..request()
    };
    end(&mut beta, "web:1").await;
    assert_eq!(listed(&mut beta, theirs.clone()).await, ["web:10", "tg:1"]);
    assert_eq!(listed(&mut alpha, theirs).await.len(), 3);

    let token = try_list(
        &mut alpha,
        ListSessionsRequest {
            page_size: 1,
            ..request()
        },
    )
    .await;
    let token = token.expect("a list").into_inner().next_page_token;
    for (bad, reason) in [
        (
            ListSessionsRequest {
                order: 9,
                ..request()
            },
            "ORDER_INVALID",
        ),
        (
            ListSessionsRequest {
                id_prefix: "x".repeat(257),
                ..request()
            },
            "ID_INVALID",
        ),
        (
            ListSessionsRequest {
                subject: "x".repeat(257),
                ..request()
            },
            "ID_INVALID",
        ),
        (
            ListSessionsRequest {
                updated_after: Some(prost_types::Timestamp {
                    seconds: -1,
                    nanos: 0,
                }),
                ..request()
            },
            "TIME_INVALID",
        ),
        (
            ListSessionsRequest {
                page_token: token,
                ..by(SessionOrder::Id)
            },
            "PAGE_TOKEN_INVALID",
        ),
    ] {
        refused(
            try_list(&mut alpha, bad).await,
            Code::InvalidArgument,
            reason,
        );
    }
}

fn of_state(state: SessionState) -> ListSessionsRequest {
    ListSessionsRequest {
        state: state.into(),
        ..ListSessionsRequest::default()
    }
}

#[tokio::test]
async fn ended_generations_are_listed_until_they_are_erased() {
    let mut daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let mut alpha = daemon.sessions_of(Setup::ALPHA);
    let mut generations = Vec::new();
    for subject in ["ann", "ann", "bob"] {
        let request = AppendRequest {
            state_patch_json: format!(r#"{{"of":"{subject}"}}"#),
            ..saying("chat", subject, labels([("app", "shop")]))
        };
        generations.push(append_info(&mut alpha, request).await.generation);
        end(&mut alpha, "chat").await;
    }
    append_info(&mut alpha, saying("other", "ann", labels([]))).await;
    let reset = ResetSessionRequest {
        session_id: "other".into(),
        run_hooks: false,
        ..ResetSessionRequest::default()
    };
    alpha.reset_session(reset).await.expect("reset");
    daemon.kill9().await;
    daemon.restart().await;
    let mut alpha = daemon.sessions_of(Setup::ALPHA);

    let request = ListSessionsRequest {
        include_state: true,
        ..of_state(SessionState::Ended)
    };
    let page = try_list(&mut alpha, request).await.expect("a list");
    let found = page.into_inner().sessions;
    let reasons: Vec<_> = found
        .iter()
        .map(|info| (&*info.session_id, info.end_reason()))
        .collect();
    let ended = ("chat", EndReason::Ended);
    assert_eq!(reasons, [("other", EndReason::Reset), ended, ended, ended]);
    let newest_first: Vec<_> = found[1..]
        .iter()
        .map(|info| &info.generation)
        .rev()
        .collect();
    assert_eq!(newest_first, generations.iter().collect::<Vec<_>>());
    let last = &found[1];
    assert_eq!(
        (&*last.subject, &*last.state_json),
        ("bob", r#"{"of":"bob"}"#)
    );
    assert_eq!((last.last_seq, last.expires_at), (1, None));
    assert_eq!(last.labels, labels([("app", "shop")]));
    assert_eq!(found[0].state_json, "{}");

    let mut later = found[0].ended_at;
    if let Some(later) = &mut later {
        later.seconds += 1;
    }
    let of_ann = |state| ListSessionsRequest {
        subject: "ann".into(),
        ..of_state(state)
    };
    let cases = [
        (of_ann(SessionState::Ended), vec!["other", "chat", "chat"]),
        (of_ann(SessionState::Any), vec!["other", "chat", "chat"]),
        (of_ann(SessionState::Live), vec![]),
        (
            of_state(SessionState::Any),
            vec!["other", "other", "chat", "chat", "chat"],
        ),
        (
            ListSessionsRequest {
                labels: labels([("app", "shop")]),
                id_prefix: "ch".into(),
                ..of_state(SessionState::Any)
            },
            vec!["chat"; 3],
        ),
        (
            ListSessionsRequest {
                updated_before: later,
                order: SessionOrder::Oldest.into(),
                ..of_state(SessionState::Ended)
            },
            vec!["chat", "chat", "chat", "other"],
        ),
        (
            ListSessionsRequest {
                updated_after: later,
                ..of_state(SessionState::Ended)
            },
            vec![],
        ),
    ];
    for (request, expected) in cases {
        for page_size in [1, 2, 100] {
            let paged = ListSessionsRequest {
                page_size,
                ..request.clone()
            };
            assert_eq!(listed(&mut alpha, paged).await, expected, "{request:?}");
        }
    }
    let mut beta = daemon.sessions_of(Setup::BETA);
    assert_eq!(
        listed(&mut beta, of_state(SessionState::Any)).await,
        [""; 0]
    );

    // A listed generation can be restored.
    let copy = CopySessionRequest {
        session_id: "chat".into(),
        generation: last.generation.clone(),
        target_session_id: "chat".into(),
        ..CopySessionRequest::default()
    };
    let restored = alpha.copy_session(copy).await.expect("copied").into_inner();
    assert_eq!(restored.session.expect("a session").subject, "bob");

    let erase = EraseSubjectRequest {
        subject: "ann".into(),
    };
    let erased = alpha.erase_subject(erase).await.expect("erased");
    let erasure = erased.into_inner().erasure.expect("an erasure");
    eventually("it is erased", async || {
        let request = GetErasureRequest {
            id: erasure.id.clone(),
        };
        let mut client = daemon.sessions_of(Setup::ALPHA);
        let found = client.get_erasure(request).await.expect("a job");
        found.into_inner().erasure?.done.then_some(())
    })
    .await;
    assert_eq!(
        listed(&mut alpha, of_state(SessionState::Ended)).await,
        ["chat"]
    );
    let unknown = ListSessionsRequest {
        state: 9,
        ..ListSessionsRequest::default()
    };
    let refusal = try_list(&mut alpha, unknown).await;
    refused(refusal, Code::InvalidArgument, "STATE_UNKNOWN");
}

#[tokio::test]
async fn ended_generations_are_unknown_without_journal() {
    let setup = Setup::default().section("journal: { durability: off }");
    let daemon = Daemon::with(setup).await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "hello").await;
    end(&mut client, "chat").await;
    for state in [SessionState::Ended, SessionState::Any] {
        let listed = try_list(&mut client, of_state(state)).await;
        refused(listed, Code::FailedPrecondition, "JOURNAL_OFF");
    }
    assert_eq!(
        listed(&mut client, of_state(SessionState::Live)).await,
        [""; 0]
    );
}

#[tokio::test]
async fn label_command_sets_lists_and_exports_labels() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "hello").await;
    say(&mut client, "other", "hello").await;
    let given = ask_as(
        &daemon,
        &["sessions", "label", "chat", "app=shop", "v=1"],
        "",
    )
    .await;
    assert!(given.stdout.contains("chat: app=shop v=1"), "{given:?}");
    let taken = ask_as(&daemon, &["sessions", "label", "chat", "v="], "").await;
    assert!(taken.stdout.contains("chat: app=shop"), "{taken:?}");
    let shown = ask_as(&daemon, &["sessions", "show", "chat"], "").await;
    assert!(shown.stdout.contains("app=shop"), "{shown:?}");
    let args = [
        "sessions", "list", "--label", "app=shop", "--order", "id", "--json",
    ];
    let list = ask_as(&daemon, &args, "").await.json();
    let sessions = list["sessions"].as_array().expect("a list");
    assert_eq!(sessions.len(), 1, "{list}");
    assert_eq!(sessions[0]["labels"]["app"], "shop", "{list}");
    for (option, count) in [("--used-after", 2), ("--used-before", 0)] {
        let args = ["sessions", "list", option, "2026-01-31", "--json"];
        let list = ask_as(&daemon, &args, "").await.json();
        let sessions = list["sessions"].as_array().map(Vec::len);
        assert_eq!(sessions.unwrap_or_default(), count, "{option}: {list}");
    }
    fails(
        &ask_as(&daemon, &["sessions", "label", "chat", "app"], "").await,
        2,
        "NAME=VALUE",
    );
    fails(
        &ask_as(&daemon, &["sessions", "label", "nobody", "a=b"], "").await,
        1,
        "SESSION_NOT_FOUND",
    );

    let exported = ask_as(&daemon, &["export", "chat"], "").await;
    let file = daemon.path("export.jsonl");
    std::fs::write(&file, &exported.stdout).expect("written");
    let to = Daemon::start().await;
    let path = file.to_str().expect("a path");
    let imported = ask_as(&to, &["import", path], "").await;
    assert_eq!(imported.code, Some(0), "{imported:?}");
    let there = info(&mut to.sessions(), "chat").await;
    assert_eq!(there.labels, labels([("app", "shop")]));
}

#[tokio::test]
async fn list_with_large_states_returns_small_pages_and_all_sessions() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let large = "x".repeat(60_000);
    let ids: Vec<String> = (10..90).map(|number| format!("chat-{number}")).collect();
    for id in &ids {
        let request = UpdateSessionRequest {
            session_id: id.clone(),
            state_patch_json: format!(r#"{{"a":"{large}"}}"#),
            allow_missing: true,
            ..UpdateSessionRequest::default()
        };
        client.update_session(request).await.expect("patched");
    }
    let orders = [SessionOrder::Newest, SessionOrder::Oldest, SessionOrder::Id];
    for order in orders {
        let request = ListSessionsRequest {
            include_state: true,
            order: order.into(),
            ..ListSessionsRequest::default()
        };
        let first = try_list(&mut client, request.clone())
            .await
            .expect("a page");
        let first = first.into_inner().sessions;
        let bytes = first.iter().map(|info| info.state_json.len());
        assert!((1 << 20..2 << 20).contains(&bytes.sum::<usize>()));
        let mut listed = listed(&mut client, request).await;
        listed.sort();
        assert_eq!(listed, ids, "{order:?}");
    }
}
