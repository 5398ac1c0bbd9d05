//! Memories: requests, replies, and files that contain their texts.

use std::collections::BTreeSet;
use std::process::Command;

use memoird_proto::v1::{
    GetManifestRequest, GetManifestResponse, GetMemoryStatsRequest, GetMemoryStatsResponse,
    ListMemoriesRequest, Memory, MemoryKind, RecallRequest, RecallResponse, RememberOutcome,
    RememberRequest, RememberResponse,
};

use super::client::Memories;
use super::{Daemon, eventually};

/// A client for this address, whether or not a daemon serves it.
#[cfg(feature = "postgres")]
pub(crate) fn memories_at(address: &str) -> Memories {
    super::client::memories(address, None)
}

/// A request to remember a fact of kind PROJECT, without optional fields.
pub(crate) fn fact(subject: &str, content: &str) -> RememberRequest {
    RememberRequest {
        subject: subject.to_owned(),
        kind: MemoryKind::Project.into(),
        content: content.to_owned(),
        ..RememberRequest::default()
    }
}

/// Stores a memory and asserts success.
pub(crate) async fn remember(client: &mut Memories, request: RememberRequest) -> RememberResponse {
    let answer = client
        .remember(request)
        .await
        .expect("remembered")
        .into_inner();
    assert!(answer.memory.is_some(), "{answer:?}");
    answer
}

/// Stores a memory and asserts that it is new.
pub(crate) async fn remember_new(client: &mut Memories, request: RememberRequest) -> Memory {
    let answer = remember(client, request).await;
    assert_eq!(answer.outcome(), RememberOutcome::Created, "{answer:?}");
    answer.memory.expect("a memory")
}

/// A query over the memories of one subject.
pub(crate) fn query_of(subject: &str, query: &str) -> RecallRequest {
    RecallRequest {
        query: query.to_owned(),
        subjects: vec![subject.to_owned()],
        limit: 100,
        ..RecallRequest::default()
    }
}

pub(crate) async fn recall(client: &mut Memories, request: RecallRequest) -> RecallResponse {
    client.recall(request).await.expect("recalled").into_inner()
}

/// Contents of the recalled memories, best first.
pub(crate) async fn recalled(client: &mut Memories, request: RecallRequest) -> Vec<String> {
    let hits = recall(client, request).await.hits;
    hits.into_iter()
        .map(|hit| hit.memory.expect("a memory").content)
        .collect()
}

/// All memories of a subject including history. All subjects if empty.
pub(crate) async fn memories_of(client: &mut Memories, subject: &str) -> Vec<Memory> {
    let mut request = ListMemoriesRequest {
        subject: subject.to_owned(),
        page_size: 1_000,
        include_history: true,
        ..ListMemoriesRequest::default()
    };
    let mut all: Vec<Memory> = Vec::new();
    loop {
        let page = client
            .list_memories(request.clone())
            .await
            .expect("a page")
            .into_inner();
        all.extend(page.memories);
        assert!(
            all.is_sorted_by(|one, next| one.id < next.id),
            "oldest first, each once"
        );
        if page.next_page_token.is_empty() {
            return all;
        }
        assert_ne!(
            page.next_page_token, request.page_token,
            "the pages do not go on"
        );
        request.page_token = page.next_page_token;
    }
}

pub(crate) fn contents(memories: &[Memory]) -> Vec<&str> {
    memories
        .iter()
        .map(|memory| memory.content.as_str())
        .collect()
}

pub(crate) async fn memory_stats(client: &mut Memories) -> GetMemoryStatsResponse {
    client
        .get_memory_stats(GetMemoryStatsRequest {})
        .await
        .expect("counts")
        .into_inner()
}

pub(crate) async fn manifest(client: &mut Memories, subject: &str) -> GetManifestResponse {
    let request = GetManifestRequest {
        subject: subject.to_owned(),
        ..Default::default()
    };
    client
        .get_manifest(request)
        .await
        .expect("a manifest")
        .into_inner()
}

/// Waits until everything is embedded, and asserts that no embedding failed.
pub(crate) async fn all_embedded(client: &mut Memories) -> GetMemoryStatsResponse {
    eventually("all is embedded", async || {
        let stats = memory_stats(client).await;
        assert_eq!(stats.embedding_failed, 0, "{stats:?}");
        (stats.embedding_queued == 0 && stats.embedded == stats.memories).then_some(stats)
    })
    .await
}

/// Files in the data directory that contain one of these texts, ignoring case.
pub(crate) fn files_with(daemon: &Daemon, texts: &[&str]) -> Vec<String> {
    let mut command = Command::new("grep");
    command.args([
        "--recursive",
        "--text",
        "--ignore-case",
        "--only-matching",
        "--fixed-strings",
    ]);
    command
        .args(texts.iter().flat_map(|text| ["-e", text]))
        .arg(daemon.path("data"));
    // Match bytes, independent of the locale.
    let output = command.env("LC_ALL", "C").output().expect("grep runs");
    // 1: no match. 2: a file was removed during the search.
    assert!(
        output.status.code().is_some_and(|code| code <= 2),
        "{output:?}"
    );
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    let found: BTreeSet<&str> = found.lines().collect();
    found.into_iter().map(str::to_owned).collect()
}
