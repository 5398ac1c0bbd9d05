//! Memories with external keys, metadata, vectors and subject prefixes.

use memoird_proto::v1::{
    GetMemoryRequest, ListMemoriesRequest, ListSubjectsRequest, Memory, RecallMode, RecallRequest,
    RememberOutcome, RememberRequest, UpdateMemoryRequest,
};
use prost_types::FieldMask;
use serde_json::Value;
use tonic::Code;

use crate::harness::{
    Daemon, Memories, Setup, ask_as, contents, fact, memories_of, query_of, recall, recalled,
    refused, remember, remember_new,
};

fn keyed(subject: &str, key: &str, text: &str) -> RememberRequest {
    RememberRequest {
        external_key: key.to_owned(),
        ..fact(subject, text)
    }
}

fn noted(subject: &str, text: &str, json: &str) -> RememberRequest {
    RememberRequest {
        metadata_json: json.to_owned(),
        ..fact(subject, text)
    }
}

async fn by_key(client: &mut Memories, subject: &str, key: &str) -> Memory {
    let request = GetMemoryRequest {
        subject: subject.to_owned(),
        external_key: key.to_owned(),
        ..GetMemoryRequest::default()
    };
    let answer = client.get_memory(request).await.expect("there");
    answer.into_inner().memory.expect("a memory")
}

#[tokio::test]
async fn memory_is_replaced_by_external_key() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let first = remember_new(&mut client, keyed("ann", "home", "Ann lives in Oslo")).await;
    let done = remember(&mut client, keyed("ann", "home", "Ann lives in Rome")).await;
    assert_eq!(done.outcome(), RememberOutcome::Replaced);
    let now = by_key(&mut client, "ann", "home").await;
    assert_eq!((&now.id, &*now.content), (&first.id, "Ann lives in Rome"));
    assert_eq!(
        recalled(&mut client, query_of("ann", "where does Ann live")).await,
        [now.content]
    );
    let history = memories_of(&mut client, "ann").await;
    let old = history
        .iter()
        .find(|memory| !memory.superseded_by.is_empty());
    let old = old.expect("what it said before");
    assert_eq!(
        (&*old.content, &old.superseded_by),
        ("Ann lives in Oslo", &first.id)
    );
    for (subject, key) in [("ann", "work"), ("bob", "home")] {
        let request = GetMemoryRequest {
            subject: subject.into(),
            external_key: key.into(),
            ..GetMemoryRequest::default()
        };
        refused(
            client.get_memory(request).await,
            Code::NotFound,
            "MEMORY_NOT_FOUND",
        );
    }
    let both = GetMemoryRequest {
        id: first.id,
        subject: "ann".into(),
        external_key: "home".into(),
    };
    refused(
        client.get_memory(both).await,
        Code::InvalidArgument,
        "MEMORY_INVALID",
    );
    // Several authors may store the same fact.
    for _ in 0..2 {
        let apart = RememberRequest {
            keep_apart: true,
            ..fact("ann", "The launch is in May")
        };
        assert_eq!(
            remember(&mut client, apart).await.outcome(),
            RememberOutcome::Created
        );
    }
    assert_eq!(
        recall(&mut client, query_of("ann", "launch"))
            .await
            .hits
            .len(),
        2
    );
}

#[tokio::test]
async fn memories_are_filtered_by_metadata_and_subject_prefix() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    remember_new(
        &mut client,
        noted("org:ann", "Ann likes tea", "{\"by\": \"crm\"}"),
    )
    .await;
    let mail = remember_new(
        &mut client,
        noted("org:bob", "Bob likes tea", "{\"by\": \"mail\"}"),
    )
    .await;
    remember_new(&mut client, fact("cid", "Cid likes tea")).await;
    let crm = || "{\"by\": \"crm\"}".to_owned();
    let asked = RecallRequest {
        query: "tea".into(),
        subject_prefix: "org:".into(),
        ..RecallRequest::default()
    };
    assert_eq!(recall(&mut client, asked.clone()).await.hits.len(), 2);
    let filtered = RecallRequest {
        metadata_filter_json: crm(),
        ..asked.clone()
    };
    assert_eq!(recalled(&mut client, filtered).await, ["Ann likes tea"]);
    let list = ListMemoriesRequest {
        subject_prefix: "org:".into(),
        ..ListMemoriesRequest::default()
    };
    let filtered = ListMemoriesRequest {
        metadata_filter_json: crm(),
        ..list.clone()
    };
    for (request, count) in [(list, 2), (filtered, 1)] {
        let page = client.list_memories(request).await.expect("a page");
        assert_eq!(page.into_inner().memories.len(), count);
    }
    let changed = UpdateMemoryRequest {
        memory: Some(Memory {
            id: mail.id,
            metadata_json: crm(),
            ..Memory::default()
        }),
        update_mask: Some(FieldMask {
            paths: vec!["metadata_json".into()],
        }),
    };
    let changed = client.update_memory(changed).await.expect("changed");
    assert_eq!(
        changed.into_inner().memory.expect("a memory").metadata_json,
        crm()
    );

    let mut request = ListSubjectsRequest {
        page_size: 2,
        ..ListSubjectsRequest::default()
    };
    let mut all = Vec::new();
    loop {
        let page = client.list_subjects(request.clone()).await;
        let page = page.expect("a page").into_inner();
        all.extend(
            page.subjects
                .into_iter()
                .map(|it| (it.subject, it.memories)),
        );
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    let one = |subject: &str| (subject.to_owned(), 1);
    assert_eq!(all, [one("cid"), one("org:ann"), one("org:bob")]);
    let shown = ask_as(&daemon, &["memory", "subjects", "org:"], "").await;
    assert_eq!(shown.stdout.lines().count(), 3, "{shown:?}");
    let filter = [
        "memory",
        "list",
        "--metadata",
        "{\"by\": \"crm\"}",
        "--json",
    ];
    let found = ask_as(&daemon, &filter, "").await.json();
    assert_eq!(found["memories"].as_array().map(Vec::len), Some(2));
    for number in 0..65 {
        remember(&mut client, fact(&format!("org:{number}"), "likes tea")).await;
    }
    let answer = client.recall(asked).await;
    refused(answer, Code::InvalidArgument, "SUBJECTS_TOO_MANY");
}

#[tokio::test]
async fn client_may_provide_vectors() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let with = |text: &str, vector: &[f32]| RememberRequest {
        vector: vector.to_vec(),
        ..fact("ann", text)
    };
    let near = |vector: &[f32]| RecallRequest {
        subjects: vec!["ann".into()],
        vector: vector.to_vec(),
        mode: RecallMode::Vector.into(),
        ..RecallRequest::default()
    };
    remember_new(&mut client, with("one", &[1.0, 0.1, 0.0])).await;
    remember_new(&mut client, with("two", &[0.0, 0.1, 1.0])).await;
    let found = recall(&mut client, near(&[0.0, 0.0, 2.0])).await;
    let found: Vec<Memory> = found
        .hits
        .into_iter()
        .filter_map(|hit| hit.memory)
        .collect();
    assert_eq!(contents(&found), ["two", "one"]);
    let invalid = (Code::InvalidArgument, "MEMORY_INVALID");
    for bad in [
        &[1.0, 2.0][..],
        &[0.0; 3],
        &[f32::NAN, 1.0, 1.0],
        &[1.0; 4_097],
    ] {
        let said = refused(
            client.remember(with("three", bad)).await,
            invalid.0,
            invalid.1,
        );
        assert!(said.starts_with("vector: "), "{said}");
        let said = refused(client.recall(near(bad)).await, invalid.0, invalid.1);
        assert!(said.starts_with("vector: "), "{said}");
    }
    refused(client.recall(near(&[])).await, invalid.0, invalid.1);
}

#[tokio::test]
async fn invalid_external_key_and_metadata_are_refused_and_secrets_redacted() {
    let daemon = Daemon::with(Setup::default()).await;
    let mut client = daemon.memories();
    let invalid = (Code::InvalidArgument, "MEMORY_INVALID");
    let large = format!("{{\"a\": \"{}\"}}", "x".repeat(4_096));
    for (field, bad) in [
        ("external_key", keyed("ann", &"x".repeat(257), "a")),
        ("external_key", keyed("ann", "\0", "a")),
        ("metadata_json", noted("ann", "a", "[]")),
        ("metadata_json", noted("ann", "a", "{")),
        ("metadata_json", noted("ann", "a", &large)),
    ] {
        let said = refused(client.remember(bad).await, invalid.0, invalid.1);
        assert!(said.starts_with(&format!("{field}: ")), "{said}");
    }
    let list = ListMemoriesRequest {
        metadata_filter_json: "{\"a\": {\"$like\": 1}}".into(),
        ..ListMemoriesRequest::default()
    };
    let said = refused(client.list_memories(list).await, invalid.0, invalid.1);
    assert!(said.starts_with("metadata_filter_json: "), "{said}");
    let secret = "ghp_0123456789abcdefghijklmnopqrstuvwxyz";
    let made = remember(
        &mut client,
        noted("ann", "b", &format!("{{\"token\": \"{secret}\"}}")),
    )
    .await;
    assert_eq!(made.redacted, 1);
    assert!(
        !made
            .memory
            .expect("a memory")
            .metadata_json
            .contains(secret)
    );
}

#[tokio::test]
async fn metadata_options_are_parsed_on_command_line() {
    let daemon = Daemon::start().await;
    let add = [
        "memory",
        "add",
        "--subject",
        "ann",
        "--kind",
        "user",
        "--json",
    ];
    let noted = ["--metadata", "by=crm", "--metadata", "at=a=b", "likes tea"];
    let added = ask_as(&daemon, &[&add[..], &noted].concat(), "")
        .await
        .json();
    let stored = |added: &Value| added["memory"]["metadata_json"].clone();
    assert_eq!(stored(&added), r#"{"by":"crm","at":"a=b"}"#);
    let noted = ["--metadata", "{\"by\": \"x=y\"}", "likes milk"];
    let added = ask_as(&daemon, &[&add[..], &noted].concat(), "")
        .await
        .json();
    assert_eq!(stored(&added), r#"{"by": "x=y"}"#);
}
