//! Deliveries as operators list, retry and drop them.

use std::collections::BTreeSet;

use memoird_proto::v1::{
    DeliveryState, DropHookDeliveryRequest, EndReason, GetStatsRequest, HookDelivery,
    ListHookDeliveriesRequest, RetryHookDeliveryRequest,
};
use tonic::Code;

use crate::harness::{
    Admin, Daemon, Setup, deliveries, end, eventually, http_get, in_state, refused, reload, say,
    stats, wall_ms,
};

/// `fails` succeeds once the file `fine` exists. `later` fails and retries after an hour.
const HOOKS: &str = "hooks:\n\
    - { name: works, exec: { argv: ['true'] } }\n\
    - { name: fails, retry: { tries: 2, pause: 10ms, pause_max: 10ms }, \
        exec: { argv: [test, -e, fine] } }\n\
    - { name: later, tenants: [beta], retry: { tries: 5, pause: 1h, pause_max: 1h }, \
        exec: { argv: ['false'] } }";

fn setup(hooks: &str) -> Setup {
    Setup::default().two_tenants("", "").section(hooks)
}

/// Ends five sessions of `alpha` and three of `beta`, and waits until all deliveries have settled.
async fn after_ends() -> (Daemon, Admin) {
    let daemon = Daemon::with(setup(HOOKS)).await;
    for (key, count) in [(Setup::ALPHA, 5), (Setup::BETA, 3)] {
        let mut client = daemon.sessions_of(key);
        for number in 0..count {
            say(&mut client, &format!("s{number}"), "hi").await;
            end(&mut client, &format!("s{number}")).await;
        }
    }
    let mut admin = daemon.admin_of(Setup::ADMIN);
    eventually("all is tried", async || {
        let all = deliveries(&mut admin, ListHookDeliveriesRequest::default()).await;
        let is_tried = |delivery: &HookDelivery| match delivery.hook.as_str() {
            "works" => delivery.state() == DeliveryState::Done,
            "fails" => delivery.state() == DeliveryState::Dead,
            _ => delivery.tries == 1,
        };
        (all.len() == 19 && all.iter().all(is_tried)).then_some(())
    })
    .await;
    (daemon, admin)
}

/// All deliveries without due times, which have only millisecond precision.
async fn listed(admin: &mut Admin, filter: ListHookDeliveriesRequest) -> Vec<HookDelivery> {
    let mut all = deliveries(admin, filter).await;
    all.iter_mut().for_each(|delivery| delivery.due_at = None);
    all
}

fn ids(all: &[HookDelivery]) -> BTreeSet<&str> {
    all.iter().map(|delivery| delivery.id.as_str()).collect()
}

#[track_caller]
fn check_each(all: &[HookDelivery]) {
    for delivery in all {
        assert_eq!(
            delivery.id,
            format!("{}/{}", delivery.generation, delivery.hook)
        );
        assert_eq!(delivery.reason(), EndReason::Ended);
        let due_ms = delivery.due_at.expect("a time").seconds * 1_000;
        let (tries, ahead_ms, said) = match delivery.hook.as_str() {
            "works" => (1, -60_000..2_000, ""),
            "fails" => (2, -60_000..2_000, "exit code 1"),
            _ => (1, 1_700_000..3_601_000, "exit code 1"),
        };
        assert_eq!(
            (delivery.tries, delivery.last_error.as_str()),
            (tries, said),
            "{delivery:?}"
        );
        assert!(ahead_ms.contains(&(due_ms - wall_ms())), "{delivery:?}");
    }
}

#[tokio::test]
async fn deliveries_are_listed_by_tenant_hook_and_state_in_pages() {
    let (daemon, mut admin) = after_ends().await;
    let all = deliveries(&mut admin, ListHookDeliveriesRequest::default()).await;
    assert!(
        all.is_sorted_by_key(|delivery| delivery.id.clone()),
        "{all:?}"
    );
    assert_eq!(ids(&all).len(), 19);
    check_each(&all);
    let all = listed(&mut admin, ListHookDeliveriesRequest::default()).await;
    for page_size in [1, 3, 18, 19, 1000] {
        let paged = ListHookDeliveriesRequest {
            page_size,
            ..Default::default()
        };
        assert_eq!(listed(&mut admin, paged).await, all, "{page_size}");
    }
    for tenant in ["", "alpha", "beta"] {
        for hook in ["", "works", "fails", "later", "unknown"] {
            for state in [
                DeliveryState::Unspecified,
                DeliveryState::Pending,
                DeliveryState::Done,
                DeliveryState::Dead,
            ] {
                let filter = ListHookDeliveriesRequest {
                    tenant: tenant.to_owned(),
                    hook: hook.to_owned(),
                    page_size: 2,
                    ..in_state(state)
                };
                let passes = |delivery: &&HookDelivery| {
                    (tenant.is_empty() || delivery.tenant == tenant)
                        && (hook.is_empty() || delivery.hook == hook)
                        && (state == DeliveryState::Unspecified || delivery.state() == state)
                };
                let expected: Vec<HookDelivery> = all.iter().filter(passes).cloned().collect();
                assert_eq!(
                    listed(&mut admin, filter).await,
                    expected,
                    "{tenant} {hook}"
                );
            }
        }
    }
    let stats = stats(&mut admin).await;
    assert_eq!((stats.hooks_pending, stats.hooks_dead), (3, 8));
    for (tenant, counts) in [("alpha", (0, 5)), ("beta", (3, 3))] {
        let request = GetStatsRequest {
            tenant: tenant.to_owned(),
        };
        let of_one = admin.get_stats(request).await.expect("stats").into_inner();
        assert_eq!(
            (of_one.hooks_pending, of_one.hooks_dead),
            counts,
            "{tenant}"
        );
    }
    for (page_size, token) in [
        (1, "not a token"),
        (1_001, ""),
        (1, "01ARYZ6S41TSV4RRFFQ69G5FAV"),
    ] {
        let page_token = token.to_owned();
        let odd = ListHookDeliveriesRequest {
            page_size,
            page_token,
            ..Default::default()
        };
        match admin.list_hook_deliveries(odd).await {
            Ok(page) => assert_eq!(page.into_inner().deliveries.len(), 19, "{token:?}"),
            Err(status) => assert_eq!(status.code(), Code::InvalidArgument, "{status:?}"),
        }
    }
    let page = http_get(daemon.admin_addr(), "/metrics").await.1;
    for line in [
        r#"memoird_hooks_pending{hook="later"} 3"#,
        r#"memoird_hooks_pending{hook="works"} 0"#,
        r#"memoird_hooks_dead{hook="fails"} 8"#,
        r#"memoird_hook_deliveries_total{hook="works",outcome="done"} 8"#,
        r#"memoird_hook_deliveries_total{hook="fails",outcome="failed"} 8"#,
        r#"memoird_hook_deliveries_total{hook="fails",outcome="dead"} 8"#,
    ] {
        assert!(page.contains(line), "no {line} in\n{page}");
    }
}

async fn retry(admin: &mut Admin, id: &str) -> HookDelivery {
    let request = RetryHookDeliveryRequest { id: id.to_owned() };
    let answer = admin
        .retry_hook_delivery(request)
        .await
        .expect("it is retried");
    answer.into_inner().delivery.expect("a delivery")
}

fn dropping(id: &str) -> DropHookDeliveryRequest {
    DropHookDeliveryRequest { id: id.to_owned() }
}

#[tokio::test]
async fn delivery_can_be_retried_and_dropped() {
    let (daemon, mut admin) = after_ends().await;
    let dead = deliveries(&mut admin, in_state(DeliveryState::Dead)).await;
    std::fs::write(daemon.path("fine"), "").expect("a file");
    let again = retry(&mut admin, &dead[0].id).await;
    assert_eq!((again.state(), again.tries), (DeliveryState::Pending, 0));
    let one = ListHookDeliveriesRequest {
        hook: "fails".to_owned(),
        ..in_state(DeliveryState::Done)
    };
    let done = eventually("it is made", async || {
        deliveries(&mut admin, one.clone()).await.pop()
    })
    .await;
    assert_eq!(
        (done.id.as_str(), done.tries, done.last_error.as_str()),
        (&*dead[0].id, 1, "")
    );
    let is_pending_again = retry(&mut admin, &done.id).await;
    assert_eq!(
        is_pending_again.state(),
        DeliveryState::Pending,
        "one that was made, too"
    );

    admin
        .drop_hook_delivery(dropping(&dead[1].id))
        .await
        .expect("dropped");
    let again = admin.drop_hook_delivery(dropping(&dead[1].id)).await;
    refused(again, Code::NotFound, "DELIVERY_NOT_FOUND");
    let request = RetryHookDeliveryRequest {
        id: dead[1].id.clone(),
    };
    let again = admin.retry_hook_delivery(request).await;
    refused(again, Code::NotFound, "DELIVERY_NOT_FOUND");
    for bad in [
        "",
        "x",
        "/fails",
        &dead[2].generation,
        &format!("{}/", dead[2].generation),
    ] {
        let answer = admin.drop_hook_delivery(dropping(bad)).await;
        refused(answer, Code::InvalidArgument, "DELIVERY_ID_INVALID");
    }
    let left = deliveries(&mut admin, in_state(DeliveryState::Dead)).await;
    assert_eq!(ids(&left), ids(&dead[2..]));
    assert_eq!(stats(&mut admin).await.hooks_dead, 6);
    let mut bot = daemon.admin_of(Setup::ALPHA);
    let looks = bot
        .list_hook_deliveries(ListHookDeliveriesRequest::default())
        .await;
    assert_eq!(
        looks.expect_err("a bot's key").code(),
        Code::PermissionDenied
    );
    let drops = bot.drop_hook_delivery(dropping(&dead[2].id)).await;
    assert_eq!(
        drops.expect_err("a bot's key").code(),
        Code::PermissionDenied
    );
}

#[tokio::test]
async fn pending_deliveries_of_removed_hook_stay_until_dropped() {
    let (mut daemon, _) = after_ends().await;
    daemon.stop().await;
    daemon.restart_with(setup("hooks: []")).await;
    let mut admin = daemon.admin_of(Setup::ADMIN);
    let counts = stats(&mut admin).await;
    assert_eq!((counts.hooks_pending, counts.hooks_dead), (3, 8));
    let pending = deliveries(&mut admin, in_state(DeliveryState::Pending)).await;
    assert!(
        pending.iter().all(|delivery| delivery.hook == "later"),
        "{pending:?}"
    );
    retry(&mut admin, &pending[0].id).await;
    admin
        .drop_hook_delivery(dropping(&pending[1].id))
        .await
        .expect("dropped");
    let page = http_get(daemon.admin_addr(), "/metrics").await.1;
    assert!(
        page.contains(r#"memoird_hooks_pending{hook="later"} 2"#),
        "{page}"
    );
    let told = "deliveries are pending for a hook that is not configured";
    eventually("the log says so", async || {
        daemon.log().contains(told).then_some(())
    })
    .await;

    // The hook returns and works now. The retried delivery is made at once.
    daemon.rewrite(setup(
        "hooks: [ { name: later, exec: { argv: ['true'] } } ]",
    ));
    assert_eq!(reload(&mut admin).await.0, ["hooks"]);
    let done = ListHookDeliveriesRequest {
        hook: "later".to_owned(),
        ..in_state(DeliveryState::Done)
    };
    let done = eventually("it is made", async || {
        deliveries(&mut admin, done.clone()).await.pop()
    })
    .await;
    assert_eq!(done.id, pending[0].id);
    assert_eq!(
        stats(&mut admin).await.hooks_pending,
        1,
        "the other one waits for its hour"
    );
}
