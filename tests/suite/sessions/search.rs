//! Transcript search: by rpc, on the command line, after a crash, and after losing the index file.

use memoird_proto::v1::{Role, SearchTranscriptsRequest, TranscriptHit};
use tonic::Code;

use crate::harness::{
    Daemon, Setup, append, ask_as, assistant, eventually, http_get, refused, say, text_of,
    tool_results, tool_uses, user,
};

fn words(query: &str) -> SearchTranscriptsRequest {
    SearchTranscriptsRequest {
        query: query.into(),
        ..SearchTranscriptsRequest::default()
    }
}

/// Searches once all turns are indexed.
pub(crate) async fn found(
    daemon: &Daemon,
    request: SearchTranscriptsRequest,
) -> Vec<TranscriptHit> {
    eventually("all that was said is indexed", async || {
        let answer = daemon.sessions().search_transcripts(request.clone()).await;
        let answer = answer.expect("found").into_inner();
        (!answer.incomplete).then_some(answer.hits)
    })
    .await
}

fn places(hits: &[TranscriptHit]) -> Vec<(&str, u64)> {
    hits.iter().map(|hit| (&*hit.session_id, hit.seq)).collect()
}

#[tokio::test]
async fn search_hit_has_position_snippet_and_context_turns() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let turns = [
        user("Where is my refund?"),
        tool_uses(&["c1"]),
        tool_results(&["c1"]),
        assistant("The refund is on its way"),
    ];
    client
        .append(append("chat", turns))
        .await
        .expect("appended");
    say(&mut client, "other", "No refunds here").await;
    let request = SearchTranscriptsRequest {
        context_turns: 1,
        session_id: "chat".into(),
        roles: vec![Role::Assistant.into()],
        ..words("refunds")
    };
    let hits = found(&daemon, request).await;
    assert_eq!(places(&hits), [("chat", 4)]);
    let hit = &hits[0];
    assert_eq!(
        (hit.role(), &*hit.snippet),
        (Role::Assistant, "The refund is on its way")
    );
    assert!(hit.score > 0.0 && hit.time.is_some() && !hit.generation.is_empty());
    let seqs: Vec<u64> = hit.turns.iter().map(|turn| turn.seq).collect();
    assert_eq!(seqs, [3, 4]);
    assert_eq!(text_of(&hit.turns[1]), "The refund is on its way");
    for (request, reason) in [
        (words(""), "QUERY_EMPTY"),
        (
            SearchTranscriptsRequest {
                page_token: "no".into(),
                ..words("a")
            },
            "PAGE_TOKEN_INVALID",
        ),
        (
            SearchTranscriptsRequest {
                roles: vec![9],
                ..words("a")
            },
            "ROLE_INVALID",
        ),
    ] {
        let answer = daemon.sessions().search_transcripts(request).await;
        refused(answer, Code::InvalidArgument, reason);
    }
    let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
    for metric in [
        "memoird_search_turns_behind 0",
        "memoird_search_turns_indexed_total 5",
    ] {
        assert!(page.contains(metric), "{metric} is missing");
    }
}

#[tokio::test]
async fn search_index_is_complete_after_kill_or_loss_of_its_file() {
    let mut daemon = Daemon::start().await;
    for number in 0..20 {
        say(
            &mut daemon.sessions(),
            "chat",
            &format!("tea number {number}"),
        )
        .await;
    }
    for (said, is_file_lost) in [(21, false), (22, true)] {
        daemon.kill9().await;
        if is_file_lost {
            for name in ["search.db", "search.db-wal", "search.db-shm"] {
                let _ = std::fs::remove_file(daemon.path("data").join(name));
            }
        }
        daemon.restart().await;
        say(&mut daemon.sessions(), "chat", "more tea").await;
        let request = SearchTranscriptsRequest {
            page_size: 100,
            ..words("tea")
        };
        assert_eq!(found(&daemon, request).await.len(), said);
        let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
        let rebuilds = format!("memoird_search_rebuilds_total {}", u8::from(is_file_lost));
        assert!(page.contains(&rebuilds), "{rebuilds} is missing");
    }
}

#[tokio::test]
async fn search_command_finds_turns() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    for number in 0..3 {
        say(&mut client, "chat", &format!("tea number {number}")).await;
    }
    assert_eq!(found(&daemon, words("number")).await.len(), 3);
    let outcome = ask_as(&daemon, &["search", "number", "--session", "chat"], "").await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    for part in ["WORDS", "chat", "user", "tea number 2"] {
        assert!(
            outcome.stdout.contains(part),
            "{part} in {}",
            outcome.stdout
        );
    }
    let args = [
        "search",
        "--role",
        "user",
        "--limit",
        "2",
        "--context",
        "1",
        "--json",
    ];
    let json = ask_as(&daemon, &args, "").await.json();
    assert_eq!(json["hits"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["hits"][0]["snippet"], "tea number 2");
    assert_eq!(json["incomplete"], false);
    let outcome = ask_as(&daemon, &["search", "number", "--until", "2001-01-01"], "").await;
    assert!(!outcome.stdout.contains("tea"), "{outcome:?}");
}

#[tokio::test]
async fn disabled_search_is_refused_as_search_off() {
    let daemon = Daemon::with(Setup::default().section("search: { enabled: false }")).await;
    say(&mut daemon.sessions(), "chat", "tea").await;
    let answer = daemon.sessions().search_transcripts(words("tea")).await;
    refused(answer, Code::FailedPrecondition, "SEARCH_OFF");
}
