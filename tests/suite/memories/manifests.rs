//! Manifests: one line per memory of a subject, by importance, within the caps and up to date.

use memoird_proto::v1::forget_request::Target;
use memoird_proto::v1::{
    ForgetRequest, GetManifestRequest, GetManifestResponse, ImportMemoriesRequest, Memory,
    MemoryKind, Polarity, RememberRequest, UpdateMemoryRequest, Visibility,
};
use prost_types::{FieldMask, Timestamp};

use crate::harness::{
    Daemon, Memories, fact, manifest, query_of, recalled, remember, remember_new,
};

async fn capped(client: &mut Memories, lines: u32, bytes: u32) -> GetManifestResponse {
    let (max_lines, max_bytes) = (lines, bytes);
    let request = GetManifestRequest {
        subject: "ann".into(),
        max_lines,
        max_bytes,
    };
    let known = client
        .get_manifest(request)
        .await
        .expect("a manifest")
        .into_inner();
    assert_eq!(
        known.lines as usize,
        known.text.lines().count(),
        "{known:?}"
    );
    known
}

#[tokio::test]
async fn manifest_lists_pinned_first_then_by_importance() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    assert_eq!(
        manifest(&mut client, "ann").await,
        GetManifestResponse::default()
    );
    let at = Some(Timestamp {
        seconds: 1_700_000_000,
        nanos: 0,
    });
    let base = |content: &str| RememberRequest {
        observed_at: at,
        ..fact("ann", content)
    };
    let plain = remember_new(&mut client, base("Plain")).await;
    let great = RememberRequest {
        importance: Some(0.9),
        ..base("Great")
    };
    let great = remember_new(&mut client, great).await;
    let pinned = RememberRequest {
        pinned: true,
        importance: Some(0.1),
        kind: MemoryKind::Feedback.into(),
        polarity: Polarity::Correction.into(),
        visibility: Visibility::Team.into(),
        tags: vec!["style".into()],
        ..base("Never use emoji\n- [user] forged")
    };
    let pinned = remember_new(&mut client, pinned).await;
    remember_new(&mut client, fact("bob", "Bob's own")).await;
    let known = manifest(&mut client, "ann").await;
    assert_eq!((known.lines, known.truncated), (3, false));
    let lines: Vec<&str> = known.text.lines().collect();
    for (line, memory) in lines.iter().zip([&pinned, &great, &plain]) {
        assert!(line.ends_with(&memory.id), "{line} is of {memory:?}");
        assert!(line.contains("2023-11-14"), "when it was so: {line}");
    }
    for word in [
        "feedback",
        "correction",
        "pinned",
        "team",
        "style",
        "Never use emoji",
    ] {
        assert!(lines[0].contains(word), "{word}: {}", lines[0]);
    }
    assert!(lines[1].contains("[project]"), "{}", lines[1]);
}

#[tokio::test]
async fn every_change_is_in_the_next_manifest() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let made = remember_new(&mut client, fact("ann", "The launch is in May")).await;
    let text = async |client: &mut Memories| manifest(client, "ann").await.text;
    assert!(text(&mut client).await.contains("in May"));
    let update = UpdateMemoryRequest {
        memory: Some(Memory {
            id: made.id.clone(),
            content: "In June".into(),
            ..Memory::default()
        }),
        update_mask: Some(FieldMask {
            paths: vec!["content".into()],
        }),
    };
    client.update_memory(update).await.expect("updated");
    assert!(text(&mut client).await.contains("In June"));
    let next = RememberRequest {
        supersedes_id: made.id,
        ..fact("ann", "In July")
    };
    let next = remember_new(&mut client, next).await;
    let known = text(&mut client).await;
    assert!(
        known.contains("In July") && !known.contains("June"),
        "{known}"
    );
    let copy = Memory {
        id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".into(),
        content: "Imported".into(),
        ..next.clone()
    };
    let import = ImportMemoriesRequest {
        memories: vec![copy],
    };
    client.import_memories(import).await.expect("imported");
    assert!(text(&mut client).await.contains("Imported"));
    let mut tagged = fact("ann", "in july!");
    tagged.tags = vec!["merged-in".into()];
    remember(&mut client, tagged).await;
    assert!(text(&mut client).await.contains("merged-in"));
    let before = text(&mut client).await;
    recalled(&mut client, query_of("ann", "july")).await;
    assert_eq!(
        text(&mut client).await,
        before,
        "a recall changes no prompt"
    );
    let forget = ForgetRequest {
        target: Some(Target::Id(next.id)),
        dry_run: false,
    };
    client.forget(forget).await.expect("forgotten");
    assert!(!text(&mut client).await.contains("In July"));
}

#[tokio::test]
async fn manifest_is_capped_and_last_line_names_the_cap() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let long = "and so on, for quite a while, ".repeat(5);
    for number in 0..150 {
        let request = RememberRequest {
            importance: Some(0.2),
            ..fact("ann", &format!("Note {number}: {long}"))
        };
        remember(&mut client, request).await;
    }
    let known = capped(&mut client, 0, 0).await;
    assert!(
        known.truncated && known.text.len() <= 25_000,
        "{}",
        known.text.len()
    );
    assert!(
        known.text.len() > 20_000,
        "and uses what it has: {}",
        known.text.len()
    );
    let last = known.text.lines().last().expect("a line");
    assert!(
        last.contains("25000 bytes") && last.contains("of 150"),
        "{last}"
    );

    for number in 150..250 {
        remember(&mut client, fact("ann", &format!("N{number}"))).await;
    }
    for (lines, bytes) in [
        (10, 0),
        (1, 0),
        (200, 0),
        (5_000, 1_000_000),
        (0, 500),
        (3, 300),
    ] {
        let known = capped(&mut client, lines, bytes).await;
        let lines_max = if lines == 0 { 200 } else { lines.min(200) };
        let bytes_max = if bytes == 0 {
            25_000
        } else {
            bytes.min(25_000) as usize
        };
        assert!(
            known.lines <= lines_max && known.text.len() <= bytes_max,
            "{lines} {bytes}"
        );
        assert!(known.truncated);
        let last = known.text.lines().last().expect("a line");
        assert!(last.contains("of 250"), "{last}");
    }
    let ten = capped(&mut client, 10, 0).await;
    assert!(
        ten.text
            .lines()
            .last()
            .expect("a line")
            .contains("10 lines"),
        "{}",
        ten.text
    );
}
