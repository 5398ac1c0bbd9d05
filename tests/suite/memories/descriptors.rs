//! A low limit on open files: memory databases leave enough descriptors for everything else.

use crate::harness::{Daemon, Setup, fact, query_of, recalled, remember_new};

/// Fewer than needed to keep the databases of all tenants open.
const DESCRIPTORS: usize = 160;
const TENANTS: usize = 30;

fn key(tenant: usize) -> String {
    format!("key-of-the-bot-of-tenant-{tenant}")
}

fn many_tenants() -> Setup {
    let tenant = |number| format!("\n- {{ id: t{number}, keys: [ {{ env: K{number} }} ] }}");
    let tenants: String = (0..TENANTS).map(tenant).collect();
    let with_keys = |setup: Setup, number| setup.env(&format!("K{number}"), &key(number));
    let setup = Setup::default().section(format!("tenants:{tenants}"));
    (0..TENANTS).fold(setup, with_keys)
}

#[tokio::test]
async fn memories_of_many_tenants_work_with_few_file_descriptors() {
    let limit = format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}");
    let daemon = Daemon::with(many_tenants().wrapper(&["prlimit", &limit])).await;
    for round in 0..2 {
        for tenant in 0..TENANTS {
            let mut client = daemon.memories_of(&key(tenant));
            let said = format!("Round {round} of tenant {tenant} is about tea");
            remember_new(&mut client, fact("ann", &said)).await;
            let found = recalled(&mut client, query_of("ann", "tea")).await;
            assert_eq!(found.len(), round + 1, "tenant {tenant}");
        }
    }
}
