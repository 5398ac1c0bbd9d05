//! Pending deliveries, and the content that hooks received.

use std::path::Path;
use std::process::Command;

use memoird_proto::v1::{
    DeliveryState, EndSessionRequest, HookDelivery, ListHookDeliveriesRequest,
};
use serde_json::Value;

use super::{Admin, Daemon, Sessions, eventually, stats};

/// A hook that stores each delivery atomically in a file of its own in `told/`.
pub(crate) const RECORDING_HOOK: &str = "exec: { argv: [sh, -c, 'mkdir -p told && \
    f=$(mktemp told/XXXXXXXX) && cat > $f && mv $f $f.json'] }";

/// Everything delivered to [`RECORDING_HOOK`] hooks of a daemon.
pub(crate) fn delivered(daemon: &Daemon) -> Vec<Value> {
    let read = |text: String| {
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    texts(daemon).into_iter().map(read).collect()
}

/// The same for a killed daemon, without a delivery that was cut off and is repeated later.
#[cfg(feature = "postgres")]
pub(crate) fn delivered_before_kill(daemon: &Daemon) -> Vec<Value> {
    let read = |text: String| serde_json::from_str(&text).ok();
    texts(daemon).into_iter().filter_map(read).collect()
}

fn texts(daemon: &Daemon) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(daemon.path("told")) else {
        return Vec::new();
    };
    let paths = files.map(|file| file.expect("a file").path());
    let whole = paths.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    let read = |path| std::fs::read_to_string(path).expect("UTF-8");
    whole.map(read).collect()
}

/// Returns a text field.
#[track_caller]
pub(crate) fn field<'a>(told: &'a Value, name: &str) -> &'a str {
    told[name]
        .as_str()
        .unwrap_or_else(|| panic!("no {name} in {told}"))
}

/// Ends a session and returns the generation that ended.
pub(crate) async fn end(client: &mut Sessions, session: &str) -> String {
    let request = EndSessionRequest {
        session_id: session.to_owned(),
        ..EndSessionRequest::default()
    };
    let ended = client
        .end_session(request)
        .await
        .expect("it ends")
        .into_inner();
    ended.session.expect("a session").generation
}

/// All deliveries that match a filter, from all pages.
pub(crate) async fn deliveries(
    admin: &mut Admin,
    filter: ListHookDeliveriesRequest,
) -> Vec<HookDelivery> {
    let mut request = filter;
    let mut all = Vec::new();
    loop {
        let page = admin
            .list_hook_deliveries(request.clone())
            .await
            .expect("a page")
            .into_inner();
        all.extend(page.deliveries);
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

pub(crate) fn in_state(state: DeliveryState) -> ListHookDeliveriesRequest {
    ListHookDeliveriesRequest {
        state: state.into(),
        ..Default::default()
    }
}

/// Waits until no delivery is pending, and asserts that none is dead.
pub(crate) async fn all_delivered(admin: &mut Admin) {
    eventually("nothing is owed", async || {
        (stats(admin).await.hooks_pending == 0).then_some(())
    })
    .await;
    let dead = deliveries(admin, in_state(DeliveryState::Dead)).await;
    assert!(dead.is_empty(), "{dead:?}");
}

/// Runs git in this folder as a test user, and returns its output.
#[track_caller]
pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(dir)
        .args(["-c", "user.name=Person", "-c", "user.email=p@localhost"]);
    command
        .args(["-c", "safe.directory=*", "-c", "init.defaultBranch=main"])
        .args(args);
    let output = command.output().expect("git runs");
    assert!(
        output.status.success(),
        "git {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("git prints UTF-8")
}

#[track_caller]
pub(crate) fn fsck(dir: &Path) {
    let found = git(
        dir,
        &[
            "fsck",
            "--full",
            "--strict",
            "--no-dangling",
            "--no-progress",
        ],
    );
    assert_eq!(found, "", "{}", dir.display());
}

/// The Markdown files on the branch `main`, sorted.
#[track_caller]
pub(crate) fn documents(dir: &Path) -> Vec<String> {
    let names = git(dir, &["ls-tree", "-r", "-z", "--name-only", "main"]);
    let names = names
        .split_terminator('\0')
        .filter(|name| name.ends_with(".md"));
    names.map(str::to_owned).collect()
}

/// Asserts that `main` holds exactly these generations, each once, with a `.jsonl` file of turns.
#[track_caller]
pub(crate) fn each_once(dir: &Path, generations: &[String], context: &str) {
    let of = |name: &String| {
        let stem = name.strip_suffix(".md").expect("documents end so");
        stem.rsplit_once('-')
            .expect("SESSION-GENERATION")
            .1
            .to_owned()
    };
    let names = git(dir, &["ls-tree", "-r", "-z", "--name-only", "main"]);
    let mut lines: Vec<&str> = names
        .split_terminator('\0')
        .filter_map(|name| name.strip_suffix(".jsonl"))
        .collect();
    let documents = documents(dir);
    let mut stems: Vec<&str> = documents
        .iter()
        .filter_map(|n| n.strip_suffix(".md"))
        .collect();
    lines.sort_unstable();
    stems.sort_unstable();
    assert_eq!(
        lines, stems,
        "{context}: each document has its turns beside it"
    );
    let mut found: Vec<String> = documents.iter().map(of).collect();
    let mut expected = generations.to_vec();
    found.sort_unstable();
    expected.sort_unstable();
    let missing = expected.iter().filter(|one| !found.contains(one)).count();
    assert_eq!(
        found.len(),
        expected.len(),
        "{context}: {missing} are missing"
    );
    assert_eq!(found, expected, "{context}");
    // A file that was delivered twice would be added by two commits.
    let added = git(
        dir,
        &[
            "log",
            "--format=",
            "--name-only",
            "--diff-filter=A",
            "-z",
            "main",
        ],
    );
    let mut added: Vec<&str> = added
        .split(['\0', '\n'])
        .filter(|name| name.ends_with(".md"))
        .collect();
    let count = added.len();
    added.sort_unstable();
    added.dedup();
    assert_eq!(added.len(), count, "{context}: none is added twice");
}
