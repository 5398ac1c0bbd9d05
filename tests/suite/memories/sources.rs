//! Memories with turns as their source: the text is copied and the source is recorded.

use memoird_proto::v1::{
    AppendRequest, MemorySource, RememberOutcome, RememberRequest, ResetSessionRequest, Turn,
};
use prost_types::Timestamp;
use tonic::Code;

use crate::harness::{
    Daemon, Setup, append, assistant, end, fact, memories_of, query_of, recalled, refused,
    remember, remember_new, tool_results, tool_uses, user,
};

fn from(session: &str, generation: &str, seqs: &[u64]) -> Option<MemorySource> {
    let (session_id, generation) = (session.to_owned(), generation.to_owned());
    Some(MemorySource {
        session_id,
        generation,
        seqs: seqs.to_vec(),
    })
}

fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds, nanos: 0 })
}

/// A past chat of ann. Returns its generation.
async fn chat(daemon: &Daemon) -> String {
    let turns = [
        user("My launch is in May"),
        assistant("Noted."),
        user("And it is in Oslo"),
    ];
    let dated = (1..).zip(turns);
    let turns: Vec<Turn> = dated
        .map(|(day, turn)| Turn {
            timestamp: at(day * 86_400),
            ..turn
        })
        .collect();
    let request = AppendRequest {
        subject: "ann".into(),
        ..append("chat", turns)
    };
    let made = daemon
        .sessions()
        .append(request)
        .await
        .expect("appended")
        .into_inner();
    made.session.expect("a session").generation
}

#[tokio::test]
async fn memory_from_source_turns_has_their_text_and_source() {
    let daemon = Daemon::start().await;
    let generation = chat(&daemon).await;
    let mut client = daemon.memories();
    let one = RememberRequest {
        source: from("chat", "", &[1]),
        ..fact("", "")
    };
    let one = remember_new(&mut client, one).await;
    assert_eq!(
        (&*one.subject, &*one.content),
        ("ann", "My launch is in May")
    );
    assert_eq!(
        one.source,
        from("chat", &generation, &[1]),
        "which life of it, too"
    );
    assert_eq!(one.observed_at, at(86_400), "it was so when it was said");
    assert!(one.created_at.expect("a time").seconds > 1_000_000_000);

    let two = RememberRequest {
        source: from("chat", "", &[3, 1, 3]),
        ..fact("", "")
    };
    let two = remember_new(&mut client, two).await;
    let (may, oslo) = (two.content.find("in May"), two.content.find("in Oslo"));
    assert!(
        may.is_some() && may < oslo,
        "in the order of the turns: {:?}",
        two.content
    );
    assert!(!two.content.contains("Noted"), "{:?}", two.content);
    assert_eq!(
        (two.source, two.observed_at),
        (from("chat", &generation, &[1, 3]), at(3 * 86_400))
    );

    // With explicit content, subject and time.
    let own = RememberRequest {
        source: from("chat", &generation, &[3]),
        observed_at: at(777),
        ..fact("bob", "Bob's launch is in Oslo")
    };
    let own = remember_new(&mut client, own).await;
    assert_eq!(
        (&*own.subject, &*own.content),
        ("bob", "Bob's launch is in Oslo")
    );
    assert_eq!(
        (own.source, own.observed_at),
        (from("chat", &generation, &[3]), at(777))
    );
    assert_eq!(
        recalled(&mut client, query_of("bob", "Oslo")).await,
        ["Bob's launch is in Oslo"]
    );

    // A session without seqs is a valid source, and provides the subject.
    let loose = RememberRequest {
        source: from("chat", "", &[]),
        ..fact("", "The tone is formal")
    };
    let loose = remember_new(&mut client, loose).await;
    assert_eq!(
        (&*loose.subject, loose.source),
        ("ann", from("chat", &generation, &[]))
    );
}

#[tokio::test]
async fn missing_source_is_refused() {
    let daemon = Daemon::start().await;
    let generation = chat(&daemon).await;
    let mut client = daemon.memories();
    let other = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    for source in [
        from("nowhere", "", &[1]),
        from("chat", other, &[1]),
        from("chat", "", &[4]),
        from("chat", &generation, &[1, 4]),
        from("nowhere", &generation, &[1]),
    ] {
        for content in ["", "in words of my own"] {
            let request = RememberRequest {
                source: source.clone(),
                ..fact("ann", content)
            };
            refused(
                client.remember(request).await,
                Code::NotFound,
                "SOURCE_NOT_FOUND",
            );
        }
    }
    let no_text = RememberRequest {
        source: from("chat", "", &[]),
        ..fact("ann", "")
    };
    refused(
        client.remember(no_text).await,
        Code::InvalidArgument,
        "MEMORY_INVALID",
    );
    let odd = RememberRequest {
        source: from("chat", "not a life", &[1]),
        ..fact("ann", "")
    };
    refused(
        client.remember(odd).await,
        Code::InvalidArgument,
        "GENERATION_INVALID",
    );
    assert!(memories_of(&mut client, "").await.is_empty());

    // Turns without text cannot be copied.
    let mut sessions = daemon.sessions();
    let turns = [user("go"), tool_uses(&["a"]), tool_results(&["a"])];
    sessions
        .append(append("tools", turns))
        .await
        .expect("appended");
    let silent = RememberRequest {
        source: from("tools", "", &[2]),
        ..fact("ann", "")
    };
    let status = client.remember(silent).await.expect_err("nothing was said");
    assert!(
        matches!(status.code(), Code::InvalidArgument | Code::NotFound),
        "{status:?}"
    );
    // A session without a subject provides none.
    let whose = RememberRequest {
        source: from("tools", "", &[1]),
        ..fact("", "")
    };
    let status = client.remember(whose).await.expect_err("nobody's");
    assert!(status.message().contains("subject"), "{status:?}");
    assert!(memories_of(&mut client, "").await.is_empty());
}

#[tokio::test]
async fn dropped_turns_and_ended_generations_remain_valid_sources() {
    let setup = Setup::default().section("short_term: { max_history_turns: 2 }");
    let mut daemon = Daemon::with(setup).await;
    let generation = chat(&daemon).await;
    let (mut sessions, mut client) = (daemon.sessions(), daemon.memories());
    for number in 0..6 {
        sessions
            .append(append("chat", [user(&format!("more {number}"))]))
            .await
            .expect("appended");
    }
    let gone = RememberRequest {
        source: from("chat", "", &[2]),
        ..fact("", "")
    };
    assert_eq!(
        remember_new(&mut client, gone).await.content,
        "Noted.",
        "the journal has it"
    );
    assert_eq!(end(&mut sessions, "chat").await, generation);
    let newest = RememberRequest {
        source: from("chat", "", &[4]),
        ..fact("", "")
    };
    let newest = remember_new(&mut client, newest).await;
    assert_eq!(
        (&*newest.subject, &*newest.content),
        ("ann", "more 0"),
        "none is live"
    );
    assert_eq!(newest.source.expect("told").generation, generation);
    let ended = RememberRequest {
        source: from("chat", &generation, &[3]),
        ..fact("", "")
    };
    let ended = remember_new(&mut client, ended).await;
    assert_eq!(
        (&*ended.subject, &*ended.content),
        ("ann", "And it is in Oslo")
    );

    sessions
        .append(append("chat", [user("a new life")]))
        .await
        .expect("appended");
    let live = RememberRequest {
        source: from("chat", "", &[1]),
        ..fact("ann", "")
    };
    let live = remember_new(&mut client, live).await;
    assert_eq!(live.content, "a new life");
    let reset = ResetSessionRequest {
        session_id: "chat".into(),
        run_hooks: false,
        ..ResetSessionRequest::default()
    };
    sessions.reset_session(reset).await.expect("reset");
    daemon.kill9().await;
    daemon.restart().await;
    let mut client = daemon.memories();
    let again = RememberRequest {
        source: live.source,
        ..fact("ann", "")
    };
    let again = remember(&mut client, again).await;
    assert_eq!(again.outcome(), RememberOutcome::Reinforced);
    assert_eq!(memories_of(&mut client, "ann").await.len(), 4);
}
