//! Packs stay few and complete, and packs written by git are not touched.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use memoird_core::turn::PartKind;
use memoird_engine::{Hook, HookCall, SessionContent};

use crate::kit::*;

#[tokio::test]
async fn many_small_batches_leave_few_packs() {
    let fixture = GitFixture::new();
    let batch = sessions(0, 300);
    for one in batch.chunks(1) {
        fixture.deliver(one).await.unwrap();
    }
    exactly_once(&fixture.bare(), &batch);
    assert_eq!(commits(&fixture.bare()), 300);
    assert!(
        packs(&fixture.bare()) < 40,
        "{} packs",
        packs(&fixture.bare())
    );
    let counted = git(&fixture.bare(), &["count-objects", "-v"]);
    assert!(
        counted.contains("count: 0\n") && counted.contains("garbage: 0\n"),
        "{counted}"
    );
}

#[tokio::test]
async fn large_batch_is_one_commit_in_several_packs() {
    let fixture = GitFixture::new();
    let batch: Vec<Arc<SessionContent>> = sessions(0, 20)
        .iter()
        .map(|ended| {
            let mut large = SessionContent::clone(ended);
            let text = format!("{} ", large.session.as_str()).repeat(50_000);
            large.turns[0].1.parts = vec![part(PartKind::Text(text))];
            Arc::new(large)
        })
        .collect();
    fixture.deliver(&batch).await.unwrap();
    exactly_once(&fixture.bare(), &batch);
    assert_eq!(commits(&fixture.bare()), 1);
    // 24 MB of files. A pack has 8 MiB of them.
    assert_eq!(packs(&fixture.bare()), 3);
}

/// A retry may have no time to rewrite them.
#[tokio::test]
async fn retried_delivery_leaves_other_packs_unchanged() {
    let fixture = GitFixture::new();
    for one in sessions(0, 31).chunks(1) {
        fixture.deliver(one).await.unwrap();
    }
    let again = HookCall {
        attempt: 2,
        ..call(&sessions(31, 1)[0])
    };
    fixture.hook.deliver(vec![again]).await.remove(0).unwrap();
    assert_eq!(packs(&fixture.bare()), 32);
    fixture.deliver(&sessions(32, 1)).await.unwrap();
    assert_eq!(packs(&fixture.bare()), 2, "blobs, and other objects");
    exactly_once(&fixture.bare(), &sessions(0, 33));
}

/// The number of objects in packs that are deltas.
fn deltas(repository: &Path) -> usize {
    let entries = fs::read_dir(repository.join("objects/pack")).unwrap();
    let paths = entries.map(|it| it.unwrap().path());
    let indexes = paths.filter(|path| path.extension().is_some_and(|end| end == "idx"));
    let listed =
        indexes.map(|path| git(repository, &["verify-pack", "-v", path.to_str().unwrap()]));
    // A delta has its depth and its base at the end.
    let count = |list: String| {
        list.lines()
            .filter(|line| line.split_whitespace().count() == 7)
            .count()
    };
    listed.map(count).sum()
}

#[tokio::test]
async fn many_single_commits_of_a_day_use_little_space() {
    let fixture = GitFixture::new();
    fixture.deliver(&sessions(0, 1_000)).await.unwrap();
    assert_eq!(
        deltas(&fixture.bare()),
        0,
        "they would take most of the time"
    );
    let bytes = || -> u64 {
        let entries = fs::read_dir(fixture.bare().join("objects/pack")).unwrap();
        entries
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum()
    };
    let (before, batch) = (bytes(), sessions(1_000, 256));
    let mut steps = Vec::new();
    for one in batch.chunks(1) {
        fixture.deliver(one).await.unwrap();
        steps.push(bytes());
    }
    // The list of the hour's files alone takes about 60 kB per pack until packs are merged.
    assert!(steps[31] - before < 120_000, "{before} {steps:?}");
    assert!(deltas(&fixture.bare()) > 30);
    let merged = steps[224..].iter().min().unwrap();
    assert!(merged - before < 600_000, "{before} {steps:?}");
    exactly_once(&fixture.bare(), &sessions(0, 1_256));
    assert!(
        packs(&fixture.bare()) < 3 + 32,
        "{} packs",
        packs(&fixture.bare())
    );
    git(&fixture.bare(), &["gc", "-q"]);
    fixture.deliver(&sessions(1_256, 1)).await.unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 1_257));
}

#[tokio::test]
async fn foreign_and_keep_packs_are_unchanged() {
    let fixture = GitFixture::new();
    for one in sessions(0, 3).chunks(1) {
        fixture.deliver(one).await.unwrap();
    }
    git(&fixture.bare(), &["repack", "-a", "-d", "-f"]);
    fixture.deliver(&sessions(3, 1)).await.unwrap();
    let names = || -> Vec<String> {
        let entries = fs::read_dir(fixture.bare().join("objects/pack")).unwrap();
        let names = entries.map(|it| it.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.ends_with(".pack")).collect()
    };
    let kept = names();
    assert_eq!(kept.len(), 2);
    for name in &kept {
        let path = fixture
            .bare()
            .join("objects/pack")
            .join(name.replace(".pack", ".keep"));
        fs::write(path, "").unwrap();
    }
    for one in sessions(4, 40).chunks(1) {
        fixture.deliver(one).await.unwrap();
    }
    assert!(
        kept.iter().all(|name| names().contains(name)),
        "{kept:?} {:?}",
        names()
    );
    assert!(names().len() < 20, "{:?}", names());
    exactly_once(&fixture.bare(), &sessions(0, 44));
}

#[tokio::test]
async fn deliveries_succeed_after_git_repack() {
    let fixture = GitFixture::new();
    for round in 0..6 {
        for one in sessions(round * 10, 10).chunks(1) {
            fixture.deliver(one).await.unwrap();
        }
        match round {
            1 => _ = git(&fixture.bare(), &["gc", "--prune=now"]),
            3 => _ = git(&fixture.bare(), &["repack", "-d"]),
            4 => _ = git(&fixture.bare(), &["multi-pack-index", "write"]),
            _ => _ = git(&fixture.bare(), &["pack-refs", "--all"]),
        }
        exactly_once(&fixture.bare(), &sessions(0, (round + 1) * 10));
    }
    git(&fixture.bare(), &["multi-pack-index", "verify"]);
}
