//! What a list of ten sessions costs in a tenant of 100,000: `cargo bench -p memoird-engine --bench
//! listing`.
//!
//! The goal: 2 ms, whatever is asked for. And what a first message costs, which has to be found.

use std::sync::{Arc, LazyLock};

use divan::Bencher;
use memoird_core::ids::{SessionId, Subject, TenantId};
use memoird_core::options::OptionsPatch;
use memoird_core::session::AppendCommand;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_engine::{
    Blocking, Durability, Engine, EngineConfig, LivePosition, PartPosition, SessionListPosition,
    SessionOrder, SessionQuery, SystemMachine, Tenant, TenantConfig, TenantLimits,
};
use memoird_store::encoding;
use tokio::runtime::{Builder, Runtime};

const SESSIONS: usize = 100_000;
const PAGE: usize = 10;

fn main() {
    divan::main();
}

struct World {
    runtime: Runtime,
    engine: Engine,
    tenant: Arc<Tenant>,
}

/// Of 100,000 sessions each subject has ten; half are of one app, and one in a thousand is new.
static WORLD: LazyLock<World> = LazyLock::new(|| {
    let runtime = Builder::new_multi_thread().enable_all().build();
    let Ok(runtime) = runtime else {
        unreachable!("a runtime")
    };
    let id = TenantId::default_tenant();
    let mut config = EngineConfig {
        tenants: vec![TenantConfig {
            id: id.clone(),
            limits: TenantLimits::default(),
        }],
        ..EngineConfig::default()
    };
    config.sessions.max_sessions = 0;
    config.journal.durability = Durability::Off;
    let opened = runtime.block_on(Engine::open(
        config,
        None,
        Arc::new(SystemMachine::resume(None)),
        Blocking::Threads,
    ));
    let Ok(engine) = opened else {
        unreachable!("an engine")
    };
    let tenant = engine.tenants.get_or_insert(&id);
    let world = World {
        runtime,
        engine,
        tenant,
    };
    for number in 0..SESSIONS {
        world.say(number);
    }
    world
});

impl World {
    fn say(&self, number: usize) {
        let part = PartKind::Text("hello".to_owned());
        let app = if number.is_multiple_of(2) {
            "shop"
        } else {
            "bank"
        };
        let age = if number.is_multiple_of(1_000) {
            "new"
        } else {
            "old"
        };
        let labels = [("app", app), ("age", age)].map(|(name, value)| (name.into(), value.into()));
        let command = AppendCommand {
            turns: vec![encoding::encode(Turn::new(Role::User, vec![part.into()]))],
            subject: Subject::parse(&format!("user:{}", number / 10)).ok(),
            options: OptionsPatch {
                labels: labels.into(),
                ..OptionsPatch::default()
            },
            ..AppendCommand::default()
        };
        let Ok(session) = SessionId::parse(&format!("chat:{number:06}")) else {
            return;
        };
        let append = self.engine.commands.append(&self.tenant, &session, command);
        let done = self.runtime.block_on(append);
        assert!(done.is_ok(), "said");
    }

    fn list(&self, query: &SessionQuery, after: Option<&SessionListPosition>) -> Vec<SessionId> {
        let commands = &self.engine.commands;
        let reading = commands.sessions(&self.tenant, query, after, PAGE);
        let page = self.runtime.block_on(reading);
        assert!(page.is_ok(), "listed");
        let sessions = page.into_iter().flat_map(|page| page.sessions);
        sessions.map(|view| view.session).collect()
    }
}

fn labelled(labels: &[(&str, &str)]) -> SessionQuery {
    let labels = labels.iter();
    SessionQuery {
        labels: labels
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect(),
        ..SessionQuery::default()
    }
}

/// What is asked for, by name.
fn query(name: &str) -> SessionQuery {
    let ordered = |order| SessionQuery {
        order,
        ..SessionQuery::default()
    };
    let prefix = |prefix: &str| SessionQuery {
        id_prefix: prefix.into(),
        ..SessionQuery::default()
    };
    match name {
        "oldest" => ordered(SessionOrder::Oldest),
        "by id" => ordered(SessionOrder::Id),
        "a prefix of 10" => prefix("chat:05000"),
        "a prefix of all" => prefix("chat:"),
        "a subject of 10" => SessionQuery {
            subject: Subject::parse("user:5000").ok(),
            ..SessionQuery::default()
        },
        "a label of 100" => labelled(&[("age", "new")]),
        "a label of 50,000" => labelled(&[("app", "shop")]),
        "two labels of nobody" => labelled(&[("age", "new"), ("app", "bank")]),
        "a label of 50,000 by id" => SessionQuery {
            order: SessionOrder::Id,
            ..labelled(&[("app", "bank")])
        },
        _ => SessionQuery::default(),
    }
}

#[divan::bench(args = [
    "newest", "oldest", "by id", "a prefix of 10", "a prefix of all", "a subject of 10",
    "a label of 100", "a label of 50,000", "two labels of nobody", "a label of 50,000 by id",
])]
fn ten_of_100_000(bencher: Bencher<'_, '_>, name: &str) {
    let (world, query) = (&*WORLD, query(name));
    let found = world.list(&query, None).len();
    assert_eq!(
        found,
        if name == "two labels of nobody" {
            0
        } else {
            PAGE
        }
    );
    bencher.bench(|| world.list(&query, None));
}

/// A page in the middle whose last session was used since.
#[divan::bench]
fn a_page_behind_one_that_was_used_since(bencher: Bencher<'_, '_>) {
    let world = &*WORLD;
    let middle = SessionId::parse("chat:050000");
    let Ok(session) = middle else { return };
    let view = world.engine.commands.session(&world.tenant, &session);
    let Ok(view) = world.runtime.block_on(view) else {
        return;
    };
    let place = SessionListPosition {
        live: PartPosition::After(LivePosition {
            at: view.head.last_access,
            session,
        }),
        ended: PartPosition::End,
    };
    world.say(50_000);
    let query = SessionQuery::default();
    assert_eq!(world.list(&query, Some(&place)).len(), PAGE);
    bencher.bench(|| world.list(&query, Some(&place)));
}

/// One more message of a session that has a subject and labels.
#[divan::bench]
fn an_append(bencher: Bencher<'_, '_>) {
    let world = &*WORLD;
    let mut number = 0;
    bencher.bench_local(|| {
        number = (number + 7_919) % SESSIONS;
        world.say(number);
    });
}
