//! Secrets are redacted or refused before anything is stored or sent to an embedding provider.

use memoird_proto::v1::{
    ImportMemoriesRequest, Memory, MemorySource, RememberRequest, UpdateMemoryRequest,
};
use prost_types::FieldMask;
use tonic::Code;

use crate::harness::{
    Daemon, Embeddings, Setup, all_embedded, append, fact, files_with, memories_of, refused,
    remember, user,
};

/// Secrets that must not reach the disk, by kind, each inside a harmless sentence.
fn secrets() -> [(&'static str, String); 7] {
    // Split, so that secret scanners do not report this file.
    let joined = |pieces: &[&str]| pieces.concat();
    [
        (
            "an OpenAI key",
            joined(&["sk-", "proj-", "Zx9Qw3Er7Ty1Ui5Op2As8Df4Gh6Jk0LzXcVbNm"]),
        ),
        (
            "a GitHub token",
            joined(&["gh", "p_", "Q7w2E9r4T1y6U3i8O5p0A2s7D4f9G1h6J3k8"]),
        ),
        ("an AWS key", joined(&["AK", "IA", "QZ7XW3ER5TY2UI4O"])),
        (
            "a Slack token",
            joined(&[
                "xo",
                "xb-",
                "123456789012-123456789012-Zx9Qw3Er7Ty1Ui5Op2As8Df4",
            ]),
        ),
        ("a card", "4111 1111 1111 1111".to_owned()),
        (
            "a private key",
            joined(&[
                "-----BEGIN RSA PRIV",
                "ATE KEY-----\nMIIEpAIBAAKCAQEAzX9qw3er7ty1ui5op2as8df4gh6jk0",
                "\n-----END RSA PRIV",
                "ATE KEY-----",
            ]),
        ),
        (
            "a web token",
            joined(&[
                "ey",
                "JhbGciOiJIUzI1NiJ9.",
                "ey",
                "JzdWIiOiIxMjM0NTY3ODkwIn0.",
                "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
            ]),
        ),
    ]
}

/// The part of a secret to search for.
fn core(secret: &str) -> &str {
    let body = secret.split("-----\n").nth(1).unwrap_or(secret);
    body.lines().next().expect("a line")
}

#[tokio::test]
async fn secrets_are_redacted_before_storing_and_embedding() {
    let provider = Embeddings::start().await;
    let daemon = Daemon::with(Setup::default().section(provider.section("m"))).await;
    let mut client = daemon.memories();
    for (what, secret) in secrets() {
        let said = format!("Deploys of {what} use {secret} on Mondays");
        let mut request = fact("ann", &said);
        request.tags = vec![what.into()];
        let made = remember(&mut client, request).await;
        assert!(made.redacted >= 1, "{what}: {made:?}");
        let content = made.memory.expect("a memory").content;
        assert!(!content.contains(core(&secret)), "{what}: {content}");
        assert!(
            content.starts_with("Deploys of") && content.ends_with("Mondays"),
            "{content}"
        );
    }
    let plain = remember(
        &mut client,
        fact("ann", "Order 4111 has 16 parts, see RFC 9110"),
    )
    .await;
    assert_eq!(plain.redacted, 0, "{plain:?}");
    all_embedded(&mut client).await;
    let texts = provider.calls().concat();
    for (what, secret) in secrets() {
        assert!(
            !texts.iter().any(|text| text.contains(core(&secret))),
            "{what} was sent"
        );
        let files = files_with(&daemon, &[core(&secret)]);
        assert!(files.is_empty(), "{what} is on the disk: {files:?}");
    }
}

#[tokio::test]
async fn secrets_are_redacted_in_updates_and_sources() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let (_, secret) = &secrets()[1];
    let made = remember(&mut client, fact("ann", "The token is known")).await;
    let id = made.memory.expect("a memory").id;
    let update = UpdateMemoryRequest {
        memory: Some(Memory {
            id,
            content: format!("It is {secret}"),
            ..Memory::default()
        }),
        update_mask: Some(FieldMask {
            paths: vec!["content".into()],
        }),
    };
    let changed = client
        .update_memory(update)
        .await
        .expect("updated")
        .into_inner();
    assert_eq!(changed.redacted, 1);
    let said = append("chat", [user(&format!("My token: {secret}"))]);
    daemon.sessions().append(said).await.expect("appended");
    let source = MemorySource {
        session_id: "chat".into(),
        seqs: vec![1],
        ..Default::default()
    };
    let copied = RememberRequest {
        source: Some(source),
        ..fact("ann", "")
    };
    let copied = remember(&mut client, copied).await;
    assert_eq!(copied.redacted, 1);
    let mut tagged = fact("ann", "A fact with a tag");
    tagged.tags = vec![secret.clone()];
    // Secrets in tags are refused or redacted, too.
    drop(client.remember(tagged).await);
    let known = memories_of(&mut client, "").await;
    assert!(
        known
            .iter()
            .all(|memory| !memory.content.contains(secret.as_str())),
        "{known:?}"
    );
    assert!(
        known.iter().all(|memory| !memory.tags.contains(secret)),
        "{known:?}"
    );
}

#[tokio::test]
async fn secrets_policy_can_block_or_allow() {
    let (_, secret) = &secrets()[1];
    let said = format!("The token is {secret}");
    let setup =
        |policy: &str| Setup::default().section(format!("long_term: {{ secrets: {policy} }}"));
    let daemon = Daemon::with(setup("block")).await;
    let mut client = daemon.memories();
    let problem = refused(
        client.remember(fact("ann", &said)).await,
        Code::InvalidArgument,
        "SECRET_FOUND",
    );
    assert!(!problem.contains(secret.as_str()), "{problem}");
    assert!(memories_of(&mut client, "").await.is_empty());
    assert!(files_with(&daemon, &[secret]).is_empty());
    assert!(!daemon.log().contains(secret.as_str()), "nor in the log");

    let daemon = Daemon::with(setup("allow")).await;
    let mut client = daemon.memories();
    let made = remember(&mut client, fact("ann", &said)).await;
    assert_eq!(
        (made.redacted, made.memory.expect("a memory").content),
        (0, said)
    );
    // An import into a daemon with a stricter policy does not bring secrets in.
    let all = memories_of(&mut client, "").await;
    let strict = Daemon::with(setup("redact")).await;
    let mut there = strict.memories();
    drop(
        there
            .import_memories(ImportMemoriesRequest { memories: all })
            .await,
    );
    assert!(files_with(&strict, &[secret]).is_empty());
}
