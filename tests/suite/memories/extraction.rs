//! Extraction: turns are leased, and facts are committed atomically with the cursor.

use memoird_proto::v1::{
    CommitExtractionRequest, CommitExtractionResponse, ExtractedMemory, LeaseExtractionRequest,
    LeaseExtractionResponse, MemoryKind, MemoryOrigin, MemorySource, RememberOutcome,
    RememberResponse, Turn,
};
use tonic::{Code, Status};

use crate::harness::{
    Daemon, Memories, Sessions, Setup, append, assistant, contents, end, eventually, fact,
    memories_of, query_of, recall, refused, remember, remember_new, text_of, tool_results,
    tool_uses, user,
};

fn chat() -> LeaseExtractionRequest {
    LeaseExtractionRequest {
        session_id: "chat".into(),
        ..LeaseExtractionRequest::default()
    }
}

async fn lease(client: &mut Memories) -> LeaseExtractionResponse {
    client
        .lease_extraction(chat())
        .await
        .expect("leased")
        .into_inner()
}

fn found(content: &str) -> ExtractedMemory {
    ExtractedMemory {
        kind: MemoryKind::Project.into(),
        content: content.into(),
        ..ExtractedMemory::default()
    }
}

async fn commit(
    client: &mut Memories,
    lease: &LeaseExtractionResponse,
    memories: &[ExtractedMemory],
) -> Result<CommitExtractionResponse, Status> {
    let (lease, memories) = (lease.lease.clone(), memories.to_vec());
    let request = CommitExtractionRequest { lease, memories };
    client
        .commit_extraction(request)
        .await
        .map(tonic::Response::into_inner)
}

/// Appends these texts as turns of ann.
async fn append_texts(sessions: &mut Sessions, texts: &[&str]) {
    let turns: Vec<Turn> = texts.iter().map(|text| user(text)).collect();
    let mut request = append("chat", turns);
    request.subject = "ann".into();
    sessions.append(request).await.expect("appended");
}

fn seqs(lease: &LeaseExtractionResponse) -> Vec<u64> {
    lease.turns.iter().map(|turn| turn.seq).collect()
}

#[tokio::test]
async fn lease_returns_turns_once_and_commit_stores_facts_with_source() {
    let daemon = Daemon::start().await;
    let (mut client, mut sessions) = (daemon.memories(), daemon.sessions());
    let known = remember_new(&mut client, fact("ann", "Ann is in the rose team")).await;
    append_texts(
        &mut sessions,
        &["My launch is in May", "And I moved to Oslo"],
    )
    .await;
    let first = lease(&mut client).await;
    assert_eq!((seqs(&first), first.cursor_seq), (vec![1, 2], 0));
    assert_eq!(text_of(&first.turns[1]), "And I moved to Oslo");
    assert!(first.expires_at.is_some() && !first.generation.is_empty());
    assert!(first.manifest.contains(&known.id), "{}", first.manifest);
    for word in [
        "My launch is in May",
        "rose team",
        "user",
        "feedback",
        "project",
        "reference",
    ] {
        assert!(first.prompt.contains(word), "{word} in {}", first.prompt);
    }
    let problem = refused(
        client.lease_extraction(chat()).await,
        Code::Aborted,
        "LEASE_HELD",
    );
    assert!(problem.contains("leased"), "{problem}");

    let oslo = ExtractedMemory {
        kind: MemoryKind::User.into(),
        importance: Some(0.8),
        tags: vec!["home".into()],
        seqs: vec![2],
        ..found("Ann lives in Oslo")
    };
    let facts = [
        found("Ann's launch is in May"),
        oslo,
        found("Ann is in the rose team"),
    ];
    let done = commit(&mut client, &first, &facts)
        .await
        .expect("committed");
    assert_eq!(done.cursor_seq, 2);
    let outcomes: Vec<RememberOutcome> =
        done.results.iter().map(RememberResponse::outcome).collect();
    let (created, again) = (RememberOutcome::Created, RememberOutcome::Reinforced);
    assert_eq!(outcomes, [created, created, again]);
    let [may, oslo] = [0, 1].map(|place| done.results[place].memory.clone().expect("a memory"));
    let source = |seqs: &[u64]| {
        let (session_id, generation) = ("chat".into(), first.generation.clone());
        Some(MemorySource {
            session_id,
            generation,
            seqs: seqs.to_vec(),
        })
    };
    assert_eq!(
        (may.origin(), may.source),
        (MemoryOrigin::Extraction, source(&[1, 2]))
    );
    assert_eq!(
        (&*oslo.subject, oslo.source, oslo.importance),
        ("ann", source(&[2]), 0.8)
    );
    assert_eq!(oslo.observed_at, first.turns[1].timestamp);
    let hits = recall(&mut client, query_of("ann", "Oslo")).await.hits;
    let first_hit = hits[0].memory.as_ref().map(|memory| &*memory.id);
    assert_eq!(first_hit, Some(&*oslo.id), "before what was said beside it");

    let nothing = lease(&mut client).await;
    assert!(
        nothing.lease.is_empty() && nothing.turns.is_empty(),
        "{nothing:?}"
    );
    assert_eq!(nothing.cursor_seq, 2);
    append_texts(&mut sessions, &["It slipped to June"]).await;
    let next = lease(&mut client).await;
    assert_eq!((seqs(&next), next.cursor_seq), (vec![3], 2));
    assert!(
        next.prompt.contains("Ann lives in Oslo"),
        "what was found is known now"
    );
    let june = ExtractedMemory {
        supersedes_id: may.id,
        ..found("Ann's launch is in June")
    };
    let done = commit(&mut client, &next, &[june])
        .await
        .expect("committed");
    assert_eq!(done.cursor_seq, 3);
    let launch = recall(&mut client, query_of("ann", "launch")).await.hits;
    let launch = launch.iter().flat_map(|hit| &hit.memory);
    let launch: Vec<&str> = launch.map(|memory| &*memory.content).collect();
    assert_eq!(launch[0], "Ann's launch is in June");
    assert!(!launch.contains(&&*may.content), "{launch:?}");
    // A commit without facts is valid.
    append_texts(&mut sessions, &["ok"]).await;
    let last = lease(&mut client).await;
    assert_eq!(
        commit(&mut client, &last, &[])
            .await
            .expect("committed")
            .cursor_seq,
        4
    );
}

#[tokio::test]
async fn invalid_fact_stores_nothing_and_keeps_the_lease() {
    let daemon = Daemon::start().await;
    let (mut client, mut sessions) = (daemon.memories(), daemon.sessions());
    append_texts(&mut sessions, &["one", "two"]).await;
    let held = lease(&mut client).await;
    let good = found("Ann's launch is in May");
    let other = remember_new(&mut client, fact("bob", "Bob's own")).await;
    let with = |spoil: &dyn Fn(&mut ExtractedMemory)| {
        let mut bad = found("Something else");
        spoil(&mut bad);
        bad
    };
    for (bad, reason) in [
        (with(&|fact| fact.content = " ".into()), "MEMORY_INVALID"),
        (with(&|fact| fact.kind = 0), "MEMORY_KIND_INVALID"),
        (
            with(&|fact| fact.content = "x".repeat(8_193)),
            "MEMORY_INVALID",
        ),
        (with(&|fact| fact.polarity = 1), "MEMORY_INVALID"),
        (with(&|fact| fact.seqs = vec![3]), "MEMORY_INVALID"),
        (with(&|fact| fact.seqs = vec![0, 1]), "MEMORY_INVALID"),
        (
            with(&|fact| fact.supersedes_id = "mine".into()),
            "MEMORY_ID_INVALID",
        ),
        (
            with(&|fact| fact.supersedes_id = other.id.clone()),
            "MEMORY_NOT_FOUND",
        ),
    ] {
        let facts = [good.clone(), bad.clone()];
        let status = commit(&mut client, &held, &facts).await.expect_err(reason);
        let code = if reason == "MEMORY_NOT_FOUND" {
            Code::NotFound
        } else {
            Code::InvalidArgument
        };
        refused::<()>(Err(status), code, reason);
        assert!(memories_of(&mut client, "ann").await.is_empty(), "{bad:?}");
        refused(
            client.lease_extraction(chat()).await,
            Code::Aborted,
            "LEASE_HELD",
        );
    }
    let many = vec![good.clone(); 65];
    let status = commit(&mut client, &held, &many)
        .await
        .expect_err("too many");
    refused::<()>(Err(status), Code::InvalidArgument, "MEMORY_INVALID");
    let facts = [good];
    let done = commit(&mut client, &held, &facts)
        .await
        .expect("the lease is good still");
    assert_eq!((done.cursor_seq, done.results.len()), (2, 1));
    let again = commit(&mut client, &held, &facts).await.expect("repeated");
    assert_eq!(again.results[0].memory, done.results[0].memory);
    assert_eq!((again.cursor_seq, again.results.len()), (2, 1));
    let status = commit(&mut client, &held, &[])
        .await
        .expect_err("it was used");
    refused::<()>(Err(status), Code::Aborted, "LEASE_LOST");
}

#[tokio::test]
async fn recalled_fact_is_not_new_in_extraction() {
    let daemon = Daemon::start().await;
    let (mut client, mut sessions) = (daemon.memories(), daemon.sessions());
    let known = remember_new(&mut client, fact("ann", "Ann's launch is in May")).await;
    append_texts(&mut sessions, &["When is my launch?"]).await;
    let mut asked = query_of("ann", "launch");
    asked.session_id = "chat".into();
    recall(&mut client, asked).await;
    sessions
        .append(append("chat", [assistant("It is in May.")]))
        .await
        .expect("appended");
    let held = lease(&mut client).await;
    let done = commit(&mut client, &held, &[found("Ann's launch is in May")]).await;
    let done = done.expect("committed");
    assert_eq!(
        done.results[0].outcome(),
        RememberOutcome::Recalled,
        "{done:?}"
    );
    let all = memories_of(&mut client, "ann").await;
    assert_eq!(
        (all.len(), all[0].reinforced, &all[0].id),
        (1, 0, &known.id)
    );
}

#[tokio::test]
async fn ended_generations_and_dropped_turns_are_leased() {
    let setup = Setup::default().section("short_term: { max_history_turns: 2 }");
    let daemon = Daemon::with(setup).await;
    let (mut client, mut sessions) = (daemon.memories(), daemon.sessions());
    append_texts(&mut sessions, &["one"]).await;
    let tools = [tool_uses(&["a"]), tool_results(&["a"]), assistant("done")];
    sessions
        .append(append("chat", tools))
        .await
        .expect("appended");
    append_texts(&mut sessions, &["five", "six", "seven"]).await;
    let ended = end(&mut sessions, "chat").await;
    let first = lease(&mut client).await;
    assert_eq!(
        (&first.generation, seqs(&first)),
        (&ended, (1..=7).collect()),
        "the newest life"
    );
    let done = commit(&mut client, &first, &[found("Seven were counted")]).await;
    assert_eq!(done.expect("committed").cursor_seq, 7);

    append_texts(&mut sessions, &["a new life"]).await;
    let live = lease(&mut client).await;
    assert_ne!(live.generation, ended);
    assert_eq!((seqs(&live), live.cursor_seq), (vec![1], 0));
    let old = LeaseExtractionRequest {
        generation: ended,
        ..chat()
    };
    let old = client
        .lease_extraction(old)
        .await
        .expect("answered")
        .into_inner();
    assert_eq!(
        (old.lease.as_str(), old.cursor_seq),
        ("", 7),
        "each life has its own cursor"
    );
    for (session, generation) in [("nowhere", ""), ("chat", "01ARZ3NDEKTSV4RRFFQ69G5FAV")] {
        let (session_id, generation) = (session.into(), generation.into());
        let ask = LeaseExtractionRequest {
            session_id,
            generation,
            subject: "ann".into(),
        };
        let status = client.lease_extraction(ask).await.expect_err("not there");
        assert_eq!(status.code(), Code::NotFound, "{status:?}");
    }
}

#[tokio::test]
async fn long_conversation_is_leased_in_chunks() {
    let setup = Setup::default().section("short_term: { max_history_turns: 1000 }");
    let daemon = Daemon::with(setup).await;
    let (mut client, mut sessions) = (daemon.memories(), daemon.sessions());
    for start in (0..450).step_by(50) {
        let texts: Vec<String> = (start..start + 50).map(|n| format!("said {n}")).collect();
        append_texts(
            &mut sessions,
            &texts.iter().map(String::as_str).collect::<Vec<_>>(),
        )
        .await;
    }
    let (mut all, mut rounds) = (Vec::new(), 0);
    eventually("nothing is left to look at", async || {
        let piece = lease(&mut client).await;
        if piece.lease.is_empty() {
            return Some(());
        }
        rounds += 1;
        assert_eq!(piece.cursor_seq, all.last().copied().unwrap_or(0));
        all.extend(seqs(&piece));
        let note = found(&format!("Round {rounds}"));
        commit(&mut client, &piece, &[note])
            .await
            .expect("committed");
        None
    })
    .await;
    assert_eq!(all, (1..=450).collect::<Vec<u64>>(), "each once, in order");
    assert!((2..20).contains(&rounds), "{rounds}");
    assert_eq!(
        contents(&memories_of(&mut client, "ann").await).len(),
        rounds
    );
    let extra = remember(&mut client, fact("ann", "Round 1")).await;
    assert_eq!(extra.outcome(), RememberOutcome::Reinforced);
}
