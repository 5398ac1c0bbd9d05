//! Input of a program, and how its exit status is interpreted.

use std::path::Path;

use memoird_engine::{HookCall, HookError, Retry};
use memoird_hooks::exec::{ExecConfig, ExecHook};
use memoird_hooks::payload::payload;
use tempfile::tempdir;

use crate::kit::{Variables, call, deliver, large_call, read};

const ENVIRONMENT: Variables = Variables(&[
    ("PATH", "/usr/bin:/bin"),
    ("TOKEN", "s=1 \n2"),
    ("OTHER", "not for the program"),
]);

pub(crate) fn script(script: &str, dir: &Path) -> ExecHook {
    hook(&["/bin/sh", "-c", script], dir)
}

pub(crate) fn hook(argv: &[&str], dir: &Path) -> ExecHook {
    ExecHook::new(config(argv, dir), &ENVIRONMENT).expect("a good configuration")
}

fn config(argv: &[&str], dir: &Path) -> ExecConfig {
    ExecConfig {
        argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
        env: vec!["PATH".to_owned(), "UNSET".to_owned()],
        dir: Some(dir.to_owned()),
    }
}

async fn problem(script_text: &str) -> String {
    let dir = tempdir().expect("a directory");
    let error = deliver(&script(script_text, dir.path()), call())
        .await
        .expect_err("a failure");
    assert_eq!(error.retry, Retry::Later);
    error.problem
}

#[tokio::test]
async fn program_receives_payload_on_stdin() {
    let dir = tempdir().unwrap();
    let hook = script("cat > got", dir.path());
    assert_eq!(deliver(&hook, call()).await, Ok(()));
    assert_eq!(read(dir.path().join("got")), payload(&call()));
}

#[tokio::test]
async fn program_that_prints_first_receives_whole_payload() {
    let dir = tempdir().unwrap();
    let prints = "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; cat > got; echo; echo";
    assert_eq!(
        deliver(&script(prints, dir.path()), large_call(10_000_000)).await,
        Ok(())
    );
    assert!(read(dir.path().join("got")) == payload(&large_call(10_000_000)));
}

#[tokio::test]
async fn program_that_ignores_stdin_succeeds() {
    for ignores in [
        "exit 0",
        "exec 0<&-; echo closed > done",
        "head -c 10 > done",
    ] {
        let dir = tempdir().unwrap();
        let hook = script(ignores, dir.path());
        assert_eq!(
            deliver(&hook, large_call(10_000_000)).await,
            Ok(()),
            "{ignores}"
        );
    }
}

#[tokio::test]
async fn program_sees_only_allowed_variables() {
    let dir = tempdir().unwrap();
    let mut config = config(&["dd", "if=/proc/self/environ", "of=seen"], dir.path());
    config.env.push("TOKEN".to_owned());
    let hook = ExecHook::new(config, &ENVIRONMENT).unwrap();
    assert_eq!(deliver(&hook, call()).await, Ok(()));
    assert_eq!(
        read(dir.path().join("seen")),
        "PATH=/usr/bin:/bin\0TOKEN=s=1 \n2\0"
    );
}

#[tokio::test]
async fn arguments_are_passed_verbatim() {
    let dir = tempdir().unwrap();
    let print = r#"printf '%s|' "$@" > got"#;
    let hook = hook(
        &["/bin/sh", "-c", print, "sh", "a b", "*", "$HOME", ""],
        dir.path(),
    );
    assert_eq!(deliver(&hook, call()).await, Ok(()));
    assert_eq!(read(dir.path().join("got")), "a b|*|$HOME||");
}

#[tokio::test]
async fn nonzero_exit_is_retried_and_reported_with_stderr() {
    assert_eq!(problem("exit 1").await, "exit code 1");
    assert_eq!(problem("exit 75").await, "exit code 75");
    assert_eq!(
        problem("echo out; printf '\\033[2Jno\\nroom\\n' >&2; exit 3").await,
        r"exit code 3: \u{1b}[2Jno\nroom"
    );
}

#[tokio::test]
async fn program_killed_by_signal_is_retried() {
    assert_eq!(problem("kill -9 $$").await, "killed by signal 9 (SIGKILL)");
    assert_eq!(
        problem("echo oh >&2; kill -15 $$").await,
        "killed by signal 15 (SIGTERM): oh"
    );
}

#[tokio::test]
async fn stdout_is_not_reported() {
    assert_eq!(problem("cat; exit 1").await, "exit code 1");
}

#[tokio::test]
async fn unstartable_program_is_named_in_error() {
    let dir = tempdir().unwrap();
    let plain_path = dir.path().join("plain");
    std::fs::write(&plain_path, "no program").unwrap();
    let plain = plain_path.to_str().unwrap();
    for (program, why) in [
        ("/nonexistent/x", "No such file"),
        (plain, "Permission denied"),
    ] {
        let error = deliver(&hook(&[program], dir.path()), call())
            .await
            .unwrap_err();
        assert_eq!(error.retry, Retry::Later);
        assert!(
            error
                .problem
                .starts_with(&format!("cannot start {program}: {why}")),
            "{error}"
        );
    }
    let lost = hook(&["/bin/sh", "-c", "exit 0"], &dir.path().join("lost"));
    let error = deliver(&lost, call()).await.unwrap_err();
    assert!(error.problem.contains("there is no directory"), "{error}");
}

#[tokio::test]
async fn retry_has_same_delivery_id_and_next_attempt() {
    let dir = tempdir().unwrap();
    let hook = script(
        "cat >> got; echo >> got; test $(wc -l < got) -ge 2",
        dir.path(),
    );
    let first = deliver(&hook, call()).await;
    assert_eq!(first, Err(HookError::later("exit code 1")));
    assert_eq!(
        deliver(
            &hook,
            HookCall {
                attempt: 2,
                ..call()
            }
        )
        .await,
        Ok(())
    );
    let text = read(dir.path().join("got"));
    let got: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(got[0]["delivery"], got[1]["delivery"]);
    assert_eq!(
        (&got[0]["attempt"], &got[1]["attempt"]),
        (&1.into(), &2.into())
    );
}

#[test]
fn invalid_configuration_is_rejected_without_secrets() {
    let new = |argv: &[&str], name: &str| {
        let mut config = config(argv, Path::new("."));
        config.env.push(name.to_owned());
        const SECRETS: Variables = Variables(&[
            ("A", "hunter2"),
            ("", "hunter2"),
            ("A=B", "hunter2"),
            ("A\0", "hunter2"),
            ("TOKEN", "hunter2"),
        ]);
        ExecHook::new(config, &SECRETS)
    };
    for argv in [&[][..], &[""]] {
        let problem = new(argv, "A").unwrap_err();
        assert!(problem.starts_with("argv is empty"), "{problem}");
    }
    for name in ["", "A=B", "A\0"] {
        let refused = format!("{name:?} is not a valid variable name");
        assert_eq!(new(&["true"], name).unwrap_err(), refused);
    }
    let shown = format!(
        "{:?}",
        new(&["true", "--password=hunter2"], "TOKEN").unwrap()
    );
    assert!(
        shown.contains("TOKEN") && !shown.contains("hunter2"),
        "{shown}"
    );
}
