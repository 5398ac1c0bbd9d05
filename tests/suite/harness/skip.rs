//! Skipping tests that need capabilities of the machine. The tests of hooks include this file, too.

use std::path::Path;

/// Reports that a test is skipped, because the machine lacks a capability.
///
/// # Panics
/// If `CI` is `true` and `.ci/allowed-skips` has no line with this capability and test.
#[track_caller]
#[allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test that checks nothing says so, and fails where it must not be skipped"
)]
pub(crate) fn skip(test: &str, capability: &str) {
    println!("SKIPPED {test}: no {capability}");
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let line = format!("{capability} {test}");
    assert!(
        !is_ci || allowed_skips().lines().any(|allowed| allowed == line),
        "add `{line}` to .ci/allowed-skips if CI may go without this test"
    );
}

/// Reads `.ci/allowed-skips` at the root of the workspace.
fn allowed_skips() -> String {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders
        .find_map(|folder| std::fs::read_to_string(folder.join(".ci/allowed-skips")).ok())
        .expect(".ci/allowed-skips")
}
