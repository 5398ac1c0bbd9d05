//! Dream sweeps: promotion and demotion of memories.
//!
//! A memory recalled repeatedly on different days is pinned, an unused one is unpinned, and nothing
//! is deleted without an explicit policy.

use memoird_proto::v1::{MemoryKind, RememberRequest, RunDreamRequest};
use serde_json::Value;
use tonic::Code;

use crate::harness::{
    Clock, Daemon, Memories, Setup, contents, eventually, fact, manifest, memories_of,
    memory_stats, query_of, recalled, refused, remember_new,
};

const DAY: i64 = 86_400;

async fn dream(daemon: &Daemon, tenant: &str, dry_run: bool) -> Value {
    let request = RunDreamRequest {
        tenant: tenant.into(),
        dry_run,
    };
    let answer = daemon
        .admin()
        .run_dream(request)
        .await
        .expect("a report")
        .into_inner();
    serde_json::from_str(&answer.report_json).expect("JSON")
}

/// Numbers of promoted, demoted and deleted memories in the report of one tenant.
#[track_caller]
fn done(report: &Value) -> [u64; 3] {
    let tenant = find(report).unwrap_or_else(|| panic!("no numbers in {report}"));
    ["promoted", "demoted", "deleted"].map(|name| tenant[name].as_u64().expect("a number"))
}

/// The first object inside the report that has these numbers.
fn find(report: &Value) -> Option<&Value> {
    match report {
        Value::Object(fields) if fields.contains_key("promoted") => Some(report),
        Value::Object(fields) => fields.values().find_map(find),
        Value::Array(items) => items.iter().find_map(find),
        _ => None,
    }
}

/// Recalls with each of these queries, and waits until the recalls are counted.
async fn recall_all(client: &mut Memories, questions: &[&str]) {
    let before = memory_stats(client).await.recall_events;
    let mut hits = 0;
    for question in questions {
        hits += recalled(client, query_of("ann", question)).await.len() as u64;
    }
    eventually("the recalls are counted", async || {
        (memory_stats(client).await.recall_events >= before + hits).then_some(())
    })
    .await;
}

fn pinned(memories: &[memoird_proto::v1::Memory]) -> Vec<&str> {
    let dreamt = memories.iter().filter(|memory| memory.pinned_by_dream);
    dreamt.map(|memory| memory.content.as_str()).collect()
}

#[tokio::test]
async fn facts_recalled_on_different_days_are_pinned_until_unused() {
    let test = "memories::dreaming::facts_recalled_on_different_days_are_pinned_until_unused";
    let Some(clock) = Clock::new(test) else {
        return;
    };
    let mut daemon = Daemon::with(clock.applied_to(Setup::default())).await;
    let mut client = daemon.memories();
    for content in [
        "The launch is in May",
        "The office is in Oslo",
        "The wiki is down",
    ] {
        remember_new(&mut client, fact("ann", content)).await;
    }
    let own = RememberRequest {
        pinned: true,
        ..fact("ann", "Pinned by the bot")
    };
    remember_new(&mut client, own).await;
    recall_all(
        &mut client,
        &["launch", "When is the launch?", "launch in May"],
    )
    .await;
    recall_all(&mut client, &["office"]).await;
    assert_eq!(
        done(&dream(&daemon, "", false).await),
        [0, 0, 0],
        "on one day only"
    );
    clock.set(&format!("{DAY:+}"));
    recall_all(&mut client, &["launch", "office"]).await;
    assert_eq!(done(&dream(&daemon, "default", true).await), [1, 0, 0]);
    let known = memories_of(&mut client, "ann").await;
    assert!(pinned(&known).is_empty(), "it was only asked");

    let report = dream(&daemon, "default", false).await;
    assert_eq!(done(&report), [1, 0, 0]);
    let known = memories_of(&mut client, "ann").await;
    assert_eq!(pinned(&known), ["The launch is in May"]);
    assert!(known[0].pinned && known.len() == 4);
    assert!(
        report.to_string().contains(&known[0].id),
        "it says which, and why: {report}"
    );
    assert!(
        !report.to_string().contains("in May"),
        "but not what it says"
    );
    let lines = manifest(&mut client, "ann").await.text;
    let place = |word: &str| lines.find(word).unwrap_or(usize::MAX);
    assert!(
        place("launch") < place("office"),
        "pinned ones come first: {lines}"
    );
    assert_eq!(
        done(&dream(&daemon, "", false).await),
        [0, 0, 0],
        "nothing is left to do"
    );

    daemon.kill9().await;
    daemon.restart().await;
    client = daemon.memories();
    assert_eq!(
        pinned(&memories_of(&mut client, "ann").await),
        ["The launch is in May"]
    );
    clock.set(&format!("{:+}", 100 * DAY));
    let report = dream(&daemon, "", false).await;
    let known = memories_of(&mut client, "ann").await;
    assert!(
        pinned(&known).is_empty(),
        "nobody asked for months: {report}"
    );
    assert!(known[3].pinned, "what the bot pinned stays");
    assert_eq!(known.len(), 4, "and nothing is deleted");
}

#[tokio::test]
async fn only_retention_policy_deletes_and_only_unused_facts() {
    let test = "memories::dreaming::only_retention_policy_deletes_and_only_unused_facts";
    let Some(clock) = Clock::new(test) else {
        return;
    };
    let policy = "long_term: { dream: { interval: off, retention: { project: 30d } } }";
    let daemon = Daemon::with(clock.applied_to(Setup::default().section(policy))).await;
    let mut client = daemon.memories();
    let old = remember_new(&mut client, fact("ann", "The old project Xanthippe")).await;
    remember_new(&mut client, fact("ann", "The project that is asked for")).await;
    let user = RememberRequest {
        kind: MemoryKind::User.into(),
        ..fact("ann", "Ann is a nurse")
    };
    remember_new(&mut client, user).await;
    let own = RememberRequest {
        pinned: true,
        ..fact("ann", "A pinned project")
    };
    remember_new(&mut client, own).await;
    clock.set(&format!("{:+}", 20 * DAY));
    recall_all(&mut client, &["asked"]).await;
    assert_eq!(done(&dream(&daemon, "", false).await), [0, 0, 0]);
    clock.set(&format!("{:+}", 40 * DAY));
    assert_eq!(done(&dream(&daemon, "", true).await), [0, 0, 1]);
    assert_eq!(memories_of(&mut client, "ann").await.len(), 4);
    let report = dream(&daemon, "", false).await;
    assert_eq!(done(&report), [0, 0, 1], "{report}");
    let known = memories_of(&mut client, "ann").await;
    assert_eq!(
        contents(&known),
        [
            "The project that is asked for",
            "Ann is a nurse",
            "A pinned project"
        ]
    );
    assert!(report.to_string().contains(&old.id), "{report}");
    let left = crate::harness::files_with(&daemon, &["Xanthippe"]);
    assert!(left.is_empty(), "deleted is forgotten: {left:?}");
}

#[tokio::test]
async fn dream_is_limited_to_named_tenant_and_requires_admin() {
    let setup = Setup::default().two_tenants("", "");
    let daemon = Daemon::with(setup).await;
    for key in [Setup::ALPHA, Setup::BETA] {
        remember_new(
            &mut daemon.memories_of(key),
            fact("ann", "The launch is in May"),
        )
        .await;
    }
    let all = RunDreamRequest::default();
    let code = Code::PermissionDenied;
    refused(
        daemon.admin_of(Setup::BETA).run_dream(all.clone()).await,
        code,
        "ROLE_REQUIRED",
    );
    let nobody = RunDreamRequest {
        tenant: "nobody".into(),
        dry_run: true,
    };
    let mut admin = daemon.admin_of(Setup::ADMIN);
    refused(
        admin.run_dream(nobody).await,
        Code::NotFound,
        "TENANT_NOT_FOUND",
    );
    for (tenant, told, untold) in [("alpha", "alpha", Some("beta")), ("", "beta", None)] {
        let request = RunDreamRequest {
            tenant: tenant.into(),
            dry_run: true,
        };
        let report = admin
            .run_dream(request)
            .await
            .expect("a report")
            .into_inner()
            .report_json;
        assert!(report.contains(told), "{report}");
        assert!(
            untold.is_none_or(|other| !report.contains(other)),
            "{report}"
        );
    }
}
