//! Programs that hang, crash or print too much do not affect anything else.

use memoird_proto::v1::{DeliveryState, HookDelivery, SweepNowRequest};
use serde_json::json;

use crate::harness::{
    Daemon, Events, RECORDING_HOOK, Setup, delivered, deliveries, detail, end, eventually,
    in_state, say, stats,
};

/// Maximum growth of the daemon's resident memory due to a hook.
const MEMORY_KB_MAX: u64 = 48 << 10;

/// The live processes of a process group.
fn group(leader: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("the processes");
    let stat = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(entry.expect("an entry").path().join("stat")).ok()
    };
    let is_of = |stat: &String| {
        // Format: PID (NAME) STATE PARENT GROUP
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = rest.split_whitespace();
        let (state, group) = (fields.next(), fields.nth(1));
        group == Some(leader) && !matches!(state, Some("Z" | "X"))
    };
    processes.filter_map(stat).filter(is_of).collect()
}

async fn only_one(daemon: &Daemon, state: DeliveryState) -> HookDelivery {
    let mut admin = daemon.admin();
    eventually("the delivery is in that state", async || {
        deliveries(&mut admin, in_state(state)).await.pop()
    })
    .await
}

fn peak_kb(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid()));
    let status = status.expect("the daemon runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("its peak");
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number")
}

const HANGS: &str = "exec: { argv: [sh, -c, 'echo $$ > leader; sleep 777 & \
    trap \"\" TERM; sleep 777; sleep 777'] }";

#[tokio::test]
async fn hanging_hook_is_killed_with_children_and_delays_no_other() {
    let hooks = format!(
        "hooks:\n- {{ name: hangs, timeout: 2s, concurrency: 1, retry: {{ tries: 1 }}, {HANGS} }}\n\
         - {{ name: works, {RECORDING_HOOK} }}"
    );
    let setup = Setup::default()
        .section(hooks)
        .section("limits: { hooks_under_way: 2 }");
    let daemon = Daemon::with(setup).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    for name in ["a", "b", "c"] {
        say(&mut client, name, "hi").await;
    }
    end(&mut client, "a").await;
    let leader = eventually("it hangs", async || {
        let text = std::fs::read_to_string(daemon.path("leader")).ok()?;
        text.ends_with('\n').then(|| text.trim().to_owned())
    })
    .await;
    assert!(
        !group(&leader).is_empty(),
        "the program and its children run"
    );
    end(&mut client, "b").await;
    say(&mut client, "c", "calls go on").await;
    admin
        .sweep_now(SweepNowRequest::default())
        .await
        .expect("sweeps go on");
    eventually("the other hook works", async || {
        (delivered(&daemon).len() == 2).then_some(())
    })
    .await;
    assert!(
        deliveries(&mut admin, in_state(DeliveryState::Dead))
            .await
            .is_empty(),
        "meanwhile"
    );
    assert!(!group(&leader).is_empty(), "meanwhile");
    let dead = only_one(&daemon, DeliveryState::Dead).await;
    assert_eq!((dead.hook.as_str(), dead.tries), ("hangs", 1));
    assert!(
        dead.last_error.contains("not done within 2s"),
        "{}",
        dead.last_error
    );
    eventually("nothing of it is left", async || {
        group(&leader).is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn stop_kills_hanging_hook_and_next_start_delivers() {
    let hangs = format!("hooks: [ {{ name: it, timeout: 1h, {HANGS} }} ]");
    let hasty = Setup::default().server("shutdown_grace: 300ms");
    let mut daemon = Daemon::with(hasty.clone().section(hangs)).await;
    let mut client = daemon.sessions();
    say(&mut client, "a", "hi").await;
    end(&mut client, "a").await;
    let leader = eventually("it hangs", async || {
        let text = std::fs::read_to_string(daemon.path("leader")).ok()?;
        text.ends_with('\n').then(|| text.trim().to_owned())
    })
    .await;
    daemon.stop().await;
    eventually("nothing of it is left", async || {
        group(&leader).is_empty().then_some(())
    })
    .await;
    daemon
        .restart_with(hasty.section(format!("hooks: [ {{ name: it, {RECORDING_HOOK} }} ]")))
        .await;
    let done = only_one(&daemon, DeliveryState::Done).await;
    assert_eq!(
        (done.session_id.as_str(), delivered(&daemon).len()),
        ("a", 1)
    );
    assert_eq!(
        delivered(&daemon)[0]["attempt"],
        1,
        "what the daemon broke off was no try"
    );
}

#[tokio::test]
async fn failing_hook_is_retried_then_dead_with_its_stderr() {
    let hook = "hooks: [ { name: dies, retry: { tries: 3, pause: 10ms, pause_max: 10ms }, \
                exec: { argv: [sh, -c, 'echo x >> tries; echo oh no >&2; kill -9 $$'] } } ]";
    let daemon = Daemon::with(Setup::default().section(hook)).await;
    let mut client = daemon.sessions();
    say(&mut client, "a", "a secret").await;
    end(&mut client, "a").await;
    let dead = only_one(&daemon, DeliveryState::Dead).await;
    assert_eq!(dead.tries, 3);
    assert_eq!(dead.last_error, "killed by signal 9 (SIGKILL): oh no");
    let tries = std::fs::read_to_string(daemon.path("tries")).expect("it ran");
    assert_eq!(tries.lines().count(), 3);
    assert!(!daemon.log().contains("a secret"), "{}", daemon.log());
}

#[tokio::test]
async fn hook_error_text_is_shown_to_operators_only() {
    let hook = "hooks: [ { name: dies, retry: { tries: 1 }, \
                exec: { argv: [sh, -c, 'echo password hunter2 >&2; exit 3'] } } ]";
    let daemon = Daemon::with(Setup::default().section(hook).two_tenants("", "")).await;
    let mut bot = daemon.sessions_of(Setup::ALPHA);
    let mut events = Events::now(&mut bot).await;
    let mut operators = Events::now(&mut daemon.sessions_of(Setup::ADMIN)).await;
    say(&mut bot, "a", "hi").await;
    end(&mut bot, "a").await;
    let seen = events.until("hook_failed").await;
    assert!(!format!("{seen:?}").contains("hunter2"), "{seen:?}");
    let failed = detail(seen.last().expect("one"));
    assert_eq!(
        (&failed["hook"], &failed["gave_up"]),
        (&json!("dies"), &json!(true))
    );
    let told = operators.until("hook_failed").await;
    let error = &detail(told.last().expect("one"))["error"];
    assert_eq!(error, "exit code 3: password hunter2");
    let mut admin = daemon.admin_of(Setup::ADMIN);
    let dead = deliveries(&mut admin, in_state(DeliveryState::Dead)).await;
    assert_eq!(dead[0].last_error, "exit code 3: password hunter2");
}

#[tokio::test]
async fn hook_with_100_mb_output_uses_bounded_memory() {
    let hook = "hooks: [ { name: talks, retry: { tries: 1 }, exec: { argv: [sh, -c, \
                'head -c 100000000 /dev/zero; head -c 100000000 /dev/zero | tr \"\\0\" x >&2; \
                exit 3'] } } ]";
    let daemon = Daemon::with(Setup::default().section(hook)).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    say(&mut client, "a", "hi").await;
    stats(&mut admin).await;
    let before_kb = peak_kb(&daemon);
    end(&mut client, "a").await;
    let dead = only_one(&daemon, DeliveryState::Dead).await;
    let grown_kb = peak_kb(&daemon) - before_kb;
    assert!(grown_kb < MEMORY_KB_MAX, "it took {grown_kb} kB more");
    assert!(stats(&mut admin).await.rss_bytes < (before_kb + MEMORY_KB_MAX) << 10);
    assert!(
        dead.last_error.starts_with("exit code 3: xxx"),
        "{}",
        dead.last_error
    );
    assert!(
        dead.last_error.len() <= 500,
        "{} bytes are kept",
        dead.last_error.len()
    );
}
