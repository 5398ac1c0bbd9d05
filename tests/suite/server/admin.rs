//! Admin API: counters, health checks, reflection and the admin HTTP pages.

use memoird_proto::v1::{self, GetStatsRequest, SweepNowRequest};
use tokio_stream::{StreamExt, iter};
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::harness::{
    Daemon, Setup, append, channel, eventually, http_get, refused, say, stats, user,
};

#[tokio::test]
async fn get_stats_counts_sessions_turns_and_commits() {
    let daemon = Daemon::start().await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    for number in 0..3 {
        client
            .append(append(&format!("s{number}"), [user("a"), user("b")]))
            .await
            .expect("done");
    }
    let end = v1::EndSessionRequest {
        session_id: "s0".into(),
        ..v1::EndSessionRequest::default()
    };
    client.end_session(end).await.expect("ended");
    let reset = v1::ResetSessionRequest {
        session_id: "s1".into(),
        run_hooks: false,
        ..v1::ResetSessionRequest::default()
    };
    client.reset_session(reset).await.expect("reset");
    let stats = admin
        .get_stats(GetStatsRequest::default())
        .await
        .expect("stats")
        .into_inner();
    assert_eq!(
        (stats.sessions_live, stats.turns_live, stats.turns_appended),
        (2, 2, 6)
    );
    assert_eq!((stats.sessions_created, stats.ended), (4, 2));
    assert_eq!((stats.expired, stats.evicted), (0, 0));
    assert!(stats.bytes_live > 0 && stats.commits > 0 && stats.commit_sets >= 5);
    assert!(stats.rss_bytes > 1 << 20 && stats.started_at.is_some());
    eventually("a tick of the CPU is counted", async || {
        let stats = admin
            .get_stats(GetStatsRequest::default())
            .await
            .expect("stats")
            .into_inner();
        (stats.cpu_seconds > 0.0).then_some(())
    })
    .await;
    assert_eq!(stats.tenants.len(), 1);
    assert_eq!(
        (&*stats.tenants[0].id, stats.tenants[0].turns_live),
        ("default", 2)
    );
    let nobody = GetStatsRequest {
        tenant: "nobody".into(),
    };
    refused(
        admin.get_stats(nobody).await,
        Code::NotFound,
        "TENANT_NOT_FOUND",
    );
    let nobody = SweepNowRequest {
        tenant: "nobody".into(),
    };
    refused(
        admin.sweep_now(nobody).await,
        Code::NotFound,
        "TENANT_NOT_FOUND",
    );
}

#[tokio::test]
async fn stats_include_effective_limits_of_each_tenant() {
    let setup = Setup::default()
        .section("short_term: { max_history_turns: 9, max_sessions: 5, session_ttl: 2h }")
        .two_tenants("max_sessions: 7, session_ttl: 90s", "max_history_turns: 3");
    let daemon = Daemon::with(setup).await;
    let mut admin = daemon.admin_of(Setup::ADMIN);
    say(&mut daemon.sessions_of(Setup::BETA), "chat", "hi").await;
    let tenants = stats(&mut admin).await;
    let seen = tenants.tenants.iter().map(|tenant| {
        let ttl = tenant.session_ttl.expect("a TTL").seconds;
        (
            &*tenant.id,
            tenant.sessions_live,
            tenant.max_sessions,
            ttl,
            tenant.max_history_turns,
        )
    });
    let expected = [("alpha", 0, 7, 90, 9), ("beta", 1, 5, 7200, 3)];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn health_check_needs_no_key_and_covers_each_service() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let mut health = HealthClient::new(channel(daemon.grpc_addr()));
    for service in [
        "",
        "memoird.v1.SessionService",
        "memoird.v1.MemoryService",
        "memoird.v1.DocumentService",
        "memoird.v1.AdminService",
    ] {
        let request = HealthCheckRequest {
            service: service.into(),
        };
        let answer = health.check(request).await.expect("known").into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service:?}");
    }
    let unknown = HealthCheckRequest {
        service: "memoird.v1.Nothing".into(),
    };
    let answer = health.check(unknown).await.expect_err("unknown");
    assert_eq!(answer.code(), Code::NotFound);
}

#[tokio::test]
async fn reflection_lists_services_and_message_types() {
    let daemon = Daemon::start().await;
    let mut reflection = ServerReflectionClient::new(channel(daemon.grpc_addr()));
    let ask = |question| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(question),
    };
    let questions = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol(
            "memoird.v1.AppendRequest".into(),
        )),
    ];
    let answers = reflection
        .server_reflection_info(Request::new(iter(questions)))
        .await;
    let mut answers = answers.expect("reflection is served").into_inner();
    let mut next = async || {
        let answer = answers.next().await.expect("an answer").expect("no error");
        answer.message_response.expect("a response")
    };
    let MessageResponse::ListServicesResponse(list) = next().await else {
        panic!("no list")
    };
    let names: Vec<String> = list
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    let services = ["Session", "Memory", "Admin"].map(|name| format!("memoird.v1.{name}Service"));
    for name in services
        .iter()
        .map(String::as_str)
        .chain(["grpc.health.v1.Health"])
    {
        assert!(
            names.iter().any(|known| known == name),
            "{name} in {names:?}"
        );
    }
    let MessageResponse::FileDescriptorResponse(files) = next().await else {
        panic!("no file")
    };
    assert!(!files.file_descriptor_proto.is_empty());
}

#[tokio::test]
async fn admin_pages_serve_health_readiness_and_metrics() {
    let daemon = Daemon::start().await;
    say(&mut daemon.sessions(), "chat", "a xylophone").await;
    let page = |path| http_get(daemon.admin_addr(), path);
    assert_eq!(page("/healthz").await.0, 200);
    assert_eq!(page("/readyz").await.0, 200);
    assert_eq!(page("/nothing").await.0, 404);
    let (status, metrics) = page("/metrics").await;
    assert_eq!(status, 200);
    assert!(metrics.ends_with("# EOF\n"), "OpenMetrics ends so");
    for line in [
        "memoird_sessions_live{tenant=\"default\"} 1",
        "memoird_turns_appended_total{tenant=\"default\"} 1",
        "memoird_call_seconds_count{method=\"Append\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
    assert!(
        !metrics.contains("chat") && !metrics.contains("xylophone"),
        "no id, no content"
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn transparent_huge_pages_are_disabled() {
    let daemon = Daemon::start().await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("a file");
    assert!(status.contains("\nTHP_enabled:\t0\n"), "{status}");
}
