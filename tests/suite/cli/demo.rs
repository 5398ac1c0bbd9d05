//! `memoird demo` shows the daemon's actual behavior, and leaves no files unless asked to.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::harness::{binary, eventually, run};

/// Makes demos create their folders in `home`.
fn env(home: &Path) -> [(&str, &str); 1] {
    [("TMPDIR", home.to_str().expect("UTF-8"))]
}

fn folders(home: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(home).expect("a directory");
    entries
        .map(|entry| entry.expect("an entry").path())
        .collect()
}

#[tokio::test]
async fn demo_output_shows_every_feature() {
    let home = tempfile::tempdir().expect("a directory");
    let demo = run(&["demo", "--fast"], &env(home.path())).await;
    assert_eq!(demo.code, Some(0), "{demo:?}");
    let text = &demo.stdout;
    let (_, rest) = text.split_once("\n2  ").expect("a history");
    // The call was dropped together with its result, and the first turn stayed.
    assert!(rest.contains("[1] 2─3 4 5 6─7\n"), "{text}");
    assert!(rest.contains("[1] 4 5 6─7 8       2─3\n"), "{text}");
    let (_, rest) = rest.split_once("\n3  ").expect("an eviction");
    assert!(rest.contains("evicted         slack:C024\n"), "{text}");
    let (_, rest) = rest.split_once("\n4  ").expect("an expiry");
    assert!(rest.contains("expired         web:guest-7\n"), "{text}");
    assert!(rest.contains("It was idle for "), "{text}");
    let (_, rest) = rest.split_once("\n5  ").expect("checkpoints");
    for word in [
        " Checkpoint slack:C024: evicted after 4 turns\n",
        " Checkpoint web:guest-7: expired after 3 turns\n",
        " Checkpoint telegram:4711: ended after ",
        "\n    # telegram:4711\n",
        "\n    > I have to be in Oslo on Friday before noon.\n",
    ] {
        assert!(rest.contains(word), "{word:?} in {text}");
    }
    assert!(rest.contains("\n6  ") && !text.contains('\u{1b}'), "{text}");
    let wide = text.lines().find(|line| line.chars().count() > 80);
    assert_eq!(wide, None, "fits a terminal");
    assert_eq!(
        folders(home.path()),
        Vec::<PathBuf>::new(),
        "nothing is left"
    );
}

#[tokio::test]
async fn demo_keep_leaves_its_folder() {
    let home = tempfile::tempdir().expect("a directory");
    // Without `--fast`: sessions must not expire during the pauses.
    let demo = run(&["demo", "--keep"], &env(home.path())).await;
    assert_eq!(demo.code, Some(0), "{demo:?}");
    let [folder] = &folders(home.path())[..] else {
        panic!("one folder")
    };
    let dir = folder.join("checkpoints").display().to_string();
    assert!(
        demo.stdout
            .contains(&format!("memoird checkpoints list --dir {dir}\n")),
        "{demo:?}"
    );
    let listed = run(&["checkpoints", "list", "--json", "--dir", &dir], &[])
        .await
        .json();
    assert_eq!(
        listed["checkpoints"].as_array().map(Vec::len),
        Some(3),
        "{listed}"
    );
}

#[tokio::test]
async fn interrupted_demo_removes_its_folder() {
    let home = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(binary());
    command
        .arg("demo")
        .envs(env(home.path()))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    while let Some(line) = lines.next_line().await.expect("readable") {
        if line.starts_with("2  ") {
            break;
        }
    }
    assert_eq!(folders(home.path()).len(), 1);
    let pid = child.id().expect("it runs").to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().await;
    assert!(sent.expect("kill runs").success());
    let code = eventually("the demo has ended", async || {
        child.try_wait().expect("a child")
    })
    .await;
    assert_eq!(code.code(), Some(130));
    assert_eq!(
        folders(home.path()),
        Vec::<PathBuf>::new(),
        "nothing is left"
    );
    let odd = run(&["--addr", "h:1", "demo"], &[]).await;
    assert_eq!(odd.code, Some(2), "{odd:?}");
}
