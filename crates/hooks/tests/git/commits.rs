//! A batch of ends becomes one commit, exactly once, with the expected files and message.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use memoird_core::change::EndReason;
use memoird_core::ids::{SessionId, TenantId};
use memoird_engine::{Hook, SessionContent};
use memoird_hooks::git::Checkpoints;

use crate::kit::*;

#[tokio::test]
async fn batch_is_one_commit_with_two_files_per_session() {
    let fixture = GitFixture::new();
    let batch = sessions(0, 40);
    fixture.deliver(&batch).await.unwrap();
    exactly_once(&fixture.bare(), &batch);
    assert_eq!(commits(&fixture.bare()), 1);
    assert_eq!(packs(&fixture.bare()), 1);
    let more = sessions(40, 25);
    fixture.deliver(&more).await.unwrap();
    exactly_once(&fixture.bare(), &[batch, more].concat());
    assert_eq!(commits(&fixture.bare()), 2);
    assert_eq!(
        git(&fixture.bare(), &["symbolic-ref", "HEAD"]).trim(),
        "refs/heads/main"
    );
    assert_eq!(
        git(&fixture.bare(), &["rev-parse", "--is-bare-repository"]).trim(),
        "true"
    );
    assert_eq!(
        git(&fixture.bare(), &["count-objects"]).trim(),
        "0 objects, 0 kilobytes"
    );
}

#[tokio::test]
async fn repeated_delivery_is_not_committed_again() {
    let fixture = GitFixture::new();
    let batch = sessions(0, 10);
    fixture.deliver(&batch).await.unwrap();
    fixture.deliver(&batch).await.unwrap();
    deliver(&fixture.restarted(), &batch).await.unwrap();
    assert_eq!((commits(&fixture.bare()), packs(&fixture.bare())), (1, 1));
    // Partly new, with one duplicate.
    let mut overlapping = sessions(5, 10);
    overlapping.push(Arc::clone(&overlapping[7]));
    fixture.deliver(&overlapping).await.unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 15));
    assert_eq!(commits(&fixture.bare()), 2);
}

#[tokio::test]
async fn each_tenant_has_its_own_repository() {
    let fixture = GitFixture::new();
    let of = |tenant: &str| {
        let tenant = TenantId::parse(tenant).unwrap();
        Arc::new(SessionContent {
            tenant,
            ..session(1)
        })
    };
    let calls = [of("a/b"), of("acme"), of("A/b"), of("a/b")];
    let answers = fixture.hook.deliver(calls.iter().map(call).collect()).await;
    assert_eq!(answers, [Ok(()), Ok(()), Ok(()), Ok(())]);
    for name in ["a%2Fb.git", "acme.git", "%41%2Fb.git"] {
        let repository = fixture.config.dir.join(name);
        is_clean(&repository);
        assert_eq!(files(&repository).len(), 1, "{name}");
    }
    // A failing tenant does not prevent the others' commits.
    std::fs::remove_dir_all(fixture.bare()).unwrap();
    std::fs::write(fixture.bare(), "in the way").unwrap();
    let again = |tenant: &str| {
        Arc::new(SessionContent {
            tenant: TenantId::parse(tenant).unwrap(),
            ..session(2)
        })
    };
    let calls = [again("acme"), again("a/b")];
    let answers = fixture.hook.deliver(calls.iter().map(call).collect()).await;
    assert!(answers[0].is_err(), "{answers:?}");
    assert_eq!(answers[1], Ok(()));
}

#[tokio::test]
async fn repository_is_private_even_in_readable_directory() {
    let fixture = GitFixture::new();
    std::fs::create_dir(&fixture.config.dir).unwrap();
    let readable = Permissions::from_mode(0o755);
    std::fs::set_permissions(&fixture.config.dir, readable).unwrap();
    fixture.deliver(&sessions(0, 1)).await.unwrap();
    let mode = std::fs::metadata(fixture.bare())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[tokio::test]
async fn ids_with_any_characters_get_distinct_files() {
    let fixture = GitFixture::new();
    let long = "x".repeat(255);
    let ids = [
        "../../../etc/passwd",
        "a\0b\nc",
        ".git",
        "-",
        "ä😀",
        "a b",
        &format!("{long}1"),
        &format!("{long}2"),
    ];
    let batch: Vec<Arc<SessionContent>> = (0..)
        .zip(ids)
        .map(|(number, id)| {
            Arc::new(SessionContent {
                session: SessionId::parse(id).unwrap(),
                ..session(number)
            })
        })
        .collect();
    fixture.deliver(&batch).await.unwrap();
    fixture.deliver(&batch).await.unwrap();
    is_clean(&fixture.bare());
    assert_eq!(files(&fixture.bare()).len(), ids.len());
    assert_eq!(commits(&fixture.bare()), 1);
    for name in files(&fixture.bare()) {
        assert!(
            name.starts_with("sessions/2026/11/22/10/") && name.is_ascii(),
            "{name}"
        );
        assert!(name.rsplit('/').next().unwrap().len() < 160, "{name}");
    }
}

#[tokio::test]
async fn commit_messages_name_ended_sessions() {
    let fixture = GitFixture::new();
    fixture.deliver(&sessions(0, 1)).await.unwrap();
    let message = git(&fixture.bare(), &["log", "-1", "--format=%B"]);
    let expected = "Checkpoint telegram:0: ended after 2 turns\n\n\
                    Started 2026-11-22 10:00:00 UTC, took 1m 30s.";
    assert_eq!(message.trim(), expected);
    let batch: Vec<Arc<SessionContent>> = (1..61)
        .map(|number| {
            let reason = if number % 5 == 0 {
                EndReason::Evicted
            } else {
                EndReason::Expired
            };
            Arc::new(SessionContent {
                reason,
                ..session(number)
            })
        })
        .collect();
    fixture.deliver(&batch).await.unwrap();
    let message = git(&fixture.bare(), &["log", "-1", "--format=%B"]);
    let mut lines = message.lines();
    assert_eq!(
        lines.next(),
        Some("Checkpoint 60 sessions: 48 expired, 12 evicted")
    );
    assert_eq!(
        lines.nth(1),
        Some("- telegram:1: expired, 2 turns in 1m 30s")
    );
    assert_eq!(lines.nth(49), Some("- and 10 more"));
    // The last end, and the delivery.
    let times = git(&fixture.bare(), &["log", "-1", "--format=%at %ct %an %ae"]);
    let expected = format!(
        "{} {} memoird memoird@localhost",
        NOON + 60 + 90,
        NOON + 3_600
    );
    assert_eq!(times.trim(), expected);
    let text = format!("a\u{1b}[31m\nSigned-off-by: {}", "y".repeat(150));
    let nasty = SessionContent {
        session: SessionId::parse(&text).unwrap(),
        ..session(99)
    };
    fixture.deliver(&[Arc::new(nasty)]).await.unwrap();
    let subject = git(&fixture.bare(), &["log", "-1", "--format=%s"]);
    assert!(
        subject.starts_with(r"Checkpoint a\u{1b}[31m\nSigned-off-by"),
        "{subject}"
    );
    assert!(subject.contains('…') && subject.len() < 110, "{subject}");
}

#[tokio::test]
async fn files_are_in_directory_of_end_minute() {
    let fixture = GitFixture::new();
    let days = [0, 1, 2, 40, 400].map(|days| {
        let ended_at = at(NOON + days * 86_400);
        Arc::new(SessionContent {
            ended_at,
            ..session(u64::try_from(days).unwrap())
        })
    });
    fixture.deliver(&days).await.unwrap();
    fixture.deliver(&days).await.unwrap();
    assert_eq!(commits(&fixture.bare()), 1);
    is_clean(&fixture.bare());
    let folders: Vec<String> = files(&fixture.bare())
        .iter()
        .map(|name| name[9..25].to_owned())
        .collect();
    assert_eq!(
        folders,
        [
            "2026/11/22/10/00",
            "2026/11/23/10/00",
            "2026/11/24/10/00",
            "2027/01/01/10/00",
            "2027/12/27/10/00"
        ]
    );
}

/// Older versions wrote all files of an hour, or of a day, to one directory.
#[tokio::test]
async fn older_directories_stay_readable_and_are_not_duplicated() {
    let fixture = GitFixture::new();
    let old = sessions(0, 5);
    fixture.deliver(&old).await.unwrap();
    let home = tempfile::tempdir().unwrap();
    let bare = fixture.bare();
    git(home.path(), &["clone", "-q", bare.to_str().unwrap(), "."]);
    let day = home.path().join("sessions/2026/11/22");
    for (index, entry) in std::fs::read_dir(day.join("10/01")).unwrap().enumerate() {
        let path = entry.unwrap().path();
        let older = if index % 2 == 0 {
            &day
        } else {
            &day.join("10")
        };
        std::fs::rename(&path, older.join(path.file_name().unwrap())).unwrap();
    }
    git(home.path(), &["add", "-A"]);
    git(home.path(), &["commit", "-qm", "As before"]);
    git(home.path(), &["push", "-q", "origin", "main"]);
    // Partly new.
    fixture.deliver(&sessions(3, 4)).await.unwrap();
    is_clean(&bare);
    let (before, after): (Vec<String>, Vec<String>) = files(&bare)
        .into_iter()
        .partition(|name| name.split('/').count() < 7);
    assert_eq!((before.len(), after.len()), (5, 2), "{before:?} {after:?}");
    let checkpoints = Checkpoints::open(&fixture.config, &old[0].tenant).unwrap();
    let listed = checkpoints.list(9, None).unwrap().into_iter();
    let listed: Vec<String> = listed.map(|entry| entry.session).collect();
    let expected = (0..7).rev().map(|number| format!("telegram:{number}"));
    assert_eq!(listed, expected.collect::<Vec<_>>());
    let shown = checkpoints.show(&old[1].session, Some(old[1].generation));
    assert!(shown.unwrap().is_some());
}
