//! `memoird-bench` without a subcommand: the same load on one server, or on two in turn.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::compare::{Comparison, Fill, RunArgs, ServerPlan, SidePlan};
use super::daemon::Settings;
use super::driver::{Pick, Route, Work};
use super::mix::{MIX_HELP, Mix};
use super::output::count;
use super::report::{Figure, Headline, Report};
use super::traffic::{Bodies, Rng};
use super::{CommonArgs, Durability, TrafficArgs, Usage};

/// Goals as ratios.
///
/// CPU of an append; calls/s of windows to canned responses; calls/s of `sync` to `off`, with few
/// and with many calls in flight.
const GOAL_OF_APPENDS: f64 = 1.25;
const GOAL_OF_WINDOWS: f64 = 0.85;
const GOAL_OF_SYNC: f64 = 0.5;
const GOAL_OF_SYNC_MANY: f64 = 0.6;
/// Goal for p99.9 with durability sync, as a multiple of p99.
const GOAL_OF_TAIL: f64 = 3.0;
/// Goals for memories in files.
///
/// Facts per second; milliseconds of a recall in a subject of 10,000 memories by words, and by
/// words and vectors; and the same in a larger subject.
const GOAL_OF_FACTS: f64 = 8_000.0;
const GOAL_OF_RECALL_IN_FILES_MS: f64 = 1.0;
const GOAL_OF_HYBRID_RECALL_MS: f64 = 3.0;
const GOAL_OF_RECALL_OF_MANY_MS: f64 = 8.0;
const MANY_MEMORIES: u64 = 10_000;
/// Goal for a page of ten of 100,000 sessions, in milliseconds.
const GOAL_OF_LIST_MS: f64 = 2.0;
/// Goals for a journal in PostgreSQL.
///
/// Calls/s relative to SQLite, with few and with many calls in flight; PostgreSQL's CPU in
/// microseconds for both; bytes of WAL; CPU of several daemons relative to one; and statements per
/// call with random routing.
const GOAL_OF_POSTGRES: f64 = 0.3;
const GOAL_OF_POSTGRES_MANY: f64 = 0.35;
const GOAL_OF_POSTGRES_CPU: [f64; 2] = [35.0, 25.0];
const GOAL_OF_WAL: f64 = 900.0;
const GOAL_OF_DAEMONS: f64 = 1.15;
const GOAL_OF_RECALL_MS: f64 = 4.0;
const GOAL_OF_STATEMENTS: f64 = 2.2;
/// Minimum number of calls in flight for the goals of many.
const MANY_IN_FLIGHT: u16 = 256;
/// Calls per run: appends, and more expensive calls.
const APPENDS: u64 = 100_000;
const OTHERS: u64 = 20_000;

/// The load. Drives the daemon at --addr, otherwise a private one.
#[derive(Args)]
pub(super) struct LoadArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Sessions to spread the calls over
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    sessions: u64,
    /// Subjects to spread the calls over, for the mixes remember and recall
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    subjects: u64,
    /// Total memories before the load starts, for the mix recall
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    memories: u64,
    /// Dimensions of the vectors of facts and queries, for the mixes remember and recall
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=4_096))]
    dimensions: u16,
    #[arg(long, value_name = "MIX", default_value_t = Mix::APPENDS, help = MIX_HELP)]
    mix: Mix,
    /// Turns in each append
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    turns_per_append: u16,
    /// Send an idempotency key with each append of its own
    #[arg(long)]
    keys: bool,
    /// Turns in every session before the load starts [default: --history-turns]
    #[arg(long, value_name = "N")]
    prefill: Option<u32>,
    #[command(flatten)]
    run: RunArgs,
    /// Compare with a bare gRPC server that decodes and returns the same messages
    #[arg(long, conflicts_with = "against")]
    baseline: bool,
    /// Compare durability sync with durability off
    #[arg(long, conflicts_with_all = ["baseline", "durability", "against"])]
    compare_durability: bool,
    /// Journal of the private daemon
    #[arg(long, value_enum, default_value_t = Store::Sqlite, conflicts_with = "baseline")]
    store: Store,
    /// Compare a journal in PostgreSQL with one in SQLite
    #[arg(long, conflicts_with_all = ["store", "daemons", "compare_durability", "baseline", "against"])]
    compare_store: bool,
    /// Daemons over one PostgreSQL, each with --in-flight calls; several are compared with one
    #[arg(long, value_name = "N", requires = "store")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    daemons: Option<u16>,
    /// Which of the daemons handles a call
    #[arg(long, value_enum, default_value_t = Route::Session, requires = "daemons")]
    route: Route,
    /// When the private daemon acknowledges an append
    #[arg(long, value_enum, default_value_t = Durability::Sync)]
    durability: Durability,
    /// Session cap of the private daemon [default: --sessions, at least 10000]
    #[arg(long, value_name = "N")]
    max_sessions: Option<u64>,
    /// Maximum turns of histories of the private daemon and of the bare server
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    history_turns: u32,
}

/// Journal of a private daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Store {
    /// Files in its directory
    Sqlite,
    /// A PostgreSQL started for it
    Postgres,
}

pub(super) async fn run(common: &CommonArgs, args: LoadArgs) -> Result<()> {
    if common.connect.addr.is_some() && args.compare_durability {
        let problem = "--compare-durability starts daemons of its own: leave --addr out";
        return Err(Usage(problem).into());
    }
    let is_of_postgres = args.compare_store || args.store == Store::Postgres;
    if is_of_postgres && (common.connect.addr.is_some() || args.durability != Durability::Sync) {
        let problem = "over PostgreSQL there are daemons of its own, with durability sync: leave \
                       --addr and --durability out";
        return Err(Usage(problem).into());
    }
    if args.daemons.is_some() && args.store == Store::Sqlite {
        return Err(Usage("--daemons share a PostgreSQL: add --store postgres").into());
    }
    if args.baseline && args.mix.is_of_memories() {
        return Err(Usage("the bare server of --baseline knows no memories").into());
    }
    let seed = args.traffic.seed();
    let report = Report::begin(common, &args.describe(seed), args.setup(seed))?;
    let comparison = Comparison {
        common,
        traffic: &args.traffic,
        args: &args.run,
        seed,
        calls: args.calls(),
        sides: args.sides(common, seed),
    };
    let measured = comparison.measure().await?;
    report.print(&measured, &args.headlines())
}

impl LoadArgs {
    /// Calls per run: enough for CPU figures with two decimals, in a few seconds.
    fn calls(&self) -> u64 {
        match self.mix {
            Mix::Histories { history: 0, .. } => APPENDS,
            _ => OTHERS,
        }
    }

    fn sides(&self, common: &CommonArgs, seed: u64) -> Vec<SidePlan> {
        let mut sides = Vec::new();
        let side = |name: String, server: ServerPlan, fill: Fill| SidePlan {
            name,
            server,
            fill,
            work: self.work(seed),
        };
        match &common.connect.addr {
            Some(addr) => {
                let server = ServerPlan::Remote(addr.clone());
                sides.push(side("memoird".into(), server, self.fill()));
            }
            None if self.compare_store => {
                let over = self.over_postgres(1);
                sides.push(side("over PostgreSQL".into(), over, self.fill()));
                let server = ServerPlan::Memoird(self.settings(Durability::Sync));
                sides.push(side("over SQLite, sync".into(), server, self.fill()));
            }
            None if self.store == Store::Postgres => {
                let daemons = self.daemons.unwrap_or(1);
                let mut counts = vec![daemons];
                if daemons > 1 && self.route == Route::Session {
                    counts.push(1);
                }
                for daemons in counts {
                    let over = self.over_postgres(daemons);
                    sides.push(side(
                        format!("{daemons} over PostgreSQL"),
                        over,
                        self.fill(),
                    ));
                }
            }
            None => {
                let modes: &[Durability] = if self.compare_durability {
                    &[Durability::Sync, Durability::Off]
                } else {
                    &[self.durability]
                };
                for mode in modes {
                    let name = format!("memoird {}", mode.name());
                    let server = ServerPlan::Memoird(self.settings(*mode));
                    sides.push(side(name, server, self.fill()));
                }
            }
        }
        if self.baseline {
            let server = ServerPlan::Bare(self.history_turns);
            sides.push(side("bare server".into(), server, Fill::Nothing));
        }
        sides
    }

    fn fill(&self) -> Fill {
        match self.mix {
            Mix::Facts => Fill::Nothing,
            Mix::Recalls => Fill::Memories {
                subjects: self.subjects,
                memories: self.memories,
            },
            Mix::Histories { .. } | Mix::Windows { .. } | Mix::Looks | Mix::Lists => Fill::Turns {
                sessions: self.sessions,
                turns: self.prefill.unwrap_or(self.history_turns),
            },
        }
    }

    fn work(&self, seed: u64) -> Work {
        let turns = usize::from(self.turns_per_append);
        let bytes = self.traffic.bytes as usize;
        let mut rng = Rng::new(seed);
        let bodies = match self.mix {
            Mix::Windows { .. } => Bodies::with_windows(turns, bytes, None, &mut rng),
            _ => Bodies::new(turns, bytes, &mut rng).with_vectors(self.dimensions),
        };
        let bodies = if self.keys {
            bodies.with_keys(&mut rng)
        } else {
            bodies
        };
        let ids = if self.mix.is_of_memories() {
            self.subjects
        } else {
            self.sessions
        };
        Work {
            mix: self.mix,
            pick: Pick::Random(ids),
            bodies,
            seed,
        }
    }

    fn settings(&self, durability: Durability) -> Settings {
        Settings {
            durability,
            max_sessions: self.max_sessions.unwrap_or(self.sessions.max(10_000)),
            history_turns: self.history_turns,
            ..Settings::default()
        }
    }

    /// Daemons over PostgreSQL. A single one forms a cluster only if `--daemons` is given.
    fn over_postgres(&self, daemons: u16) -> ServerPlan {
        ServerPlan::OverPostgres {
            settings: self.settings(Durability::Sync),
            daemons,
            is_alone: self.daemons.is_none(),
            route: self.route,
        }
    }

    fn headlines_of_postgres(&self) -> Vec<Headline> {
        let (mix, in_flight) = (self.mix_name(), self.traffic.in_flight);
        let is_many = in_flight >= MANY_IN_FLIGHT;
        let mut name = format!("{mix} over PostgreSQL, {in_flight} in flight");
        if self.compare_store {
            name += ", to SQLite, sync";
        }
        if let Some(daemons) = self.daemons {
            name += &format!(" at each of {daemons} daemons");
        }
        if self.route == Route::Random {
            name += ", any of them";
        }
        if self.keys {
            name += ", with idempotency keys";
        }
        let row = |figure: Figure, goal: Option<f64>| Headline::new(name.clone(), figure, goal);
        let mut headlines = Vec::new();
        match (self.daemons, self.route) {
            _ if self.compare_store => {
                let goals = [GOAL_OF_POSTGRES, GOAL_OF_POSTGRES_MANY];
                headlines.push(row(Figure::Rate, Some(goals[usize::from(is_many)])));
            }
            (Some(2..), Route::Session) => headlines.push(row(Figure::Cpu, Some(GOAL_OF_DAEMONS))),
            _ => headlines.push(row(Figure::CallsPerSecond, None)),
        }
        let is_random = self.route == Route::Random;
        let statements = is_random.then_some(GOAL_OF_STATEMENTS);
        if self.mix != Mix::APPENDS {
            let of_recalls = (self.mix == Mix::Recalls).then_some(GOAL_OF_RECALL_MS);
            headlines.extend([
                row(Figure::Median, of_recalls),
                row(Figure::PostgresCpu, None),
                row(Figure::Statements, None),
            ]);
            return headlines;
        }
        let of_few = (!is_random).then_some(GOAL_OF_POSTGRES_CPU[usize::from(is_many)]);
        headlines.extend([
            row(Figure::PostgresCpu, of_few),
            row(Figure::Wal, Some(GOAL_OF_WAL)),
            row(Figure::Statements, statements),
        ]);
        headlines
    }

    fn headlines(&self) -> Vec<Headline> {
        if self.compare_store || self.store == Store::Postgres {
            return self.headlines_of_postgres();
        }
        let mut headlines = vec![self.headline()];
        if self.compare_durability {
            let name = format!(
                "{}, sync, {} in flight",
                self.mix_name(),
                self.traffic.in_flight
            );
            headlines.push(Headline::new(name, Figure::Tail, Some(GOAL_OF_TAIL)));
        }
        headlines
    }

    fn mix_name(&self) -> String {
        match self.mix {
            Mix::APPENDS => "append".to_owned(),
            mix => mix.to_string(),
        }
    }

    fn headline(&self) -> Headline {
        let mix = self.mix_name();
        let (in_flight, durability) = (self.traffic.in_flight, self.durability.name());
        if self.compare_durability {
            let is_many = in_flight >= MANY_IN_FLIGHT;
            let goal = if is_many {
                GOAL_OF_SYNC_MANY
            } else {
                GOAL_OF_SYNC
            };
            let name = format!("{mix}, sync to off, {in_flight} in flight");
            return Headline::new(name, Figure::Rate, Some(goal));
        }
        let base_name = match self.mix {
            Mix::Recalls => format!("{mix} {}, {in_flight} in flight", self.describe_memories()),
            _ => format!("{mix}, durability {durability}, {in_flight} in flight"),
        };
        if !self.baseline {
            let (figure, goal) = match self.mix {
                _ if self.run.is_against() => (Figure::Cpu, None),
                Mix::Facts => (Figure::CallsPerSecond, Some(GOAL_OF_FACTS)),
                Mix::Recalls => (Figure::Median, Some(self.goal_of_recalls())),
                Mix::Lists => (Figure::Median, Some(GOAL_OF_LIST_MS)),
                _ => (Figure::CallsPerSecond, None),
            };
            return Headline::new(base_name, figure, goal);
        }
        let name = format!("{base_name}, to a bare server");
        match self.mix {
            Mix::APPENDS => Headline::new(name, Figure::Cpu, Some(GOAL_OF_APPENDS)),
            Mix::Looks => Headline::new(name, Figure::Rate, Some(GOAL_OF_WINDOWS)),
            _ => Headline::new(name, Figure::Cpu, None),
        }
    }

    fn goal_of_recalls(&self) -> f64 {
        if self.memories > MANY_MEMORIES {
            GOAL_OF_RECALL_OF_MANY_MS
        } else if self.dimensions > 0 {
            GOAL_OF_HYBRID_RECALL_MS
        } else {
            GOAL_OF_RECALL_IN_FILES_MS
        }
    }

    fn describe_memories(&self) -> String {
        let (memories, subjects) = (count(self.memories), count(self.subjects));
        let by = match self.dimensions {
            0 => "by words".to_owned(),
            some => format!("by words and vectors of {some}"),
        };
        format!("{by}, {memories} memories, subjects: {subjects}")
    }

    fn describe(&self, seed: u64) -> String {
        let (traffic, mix) = (&self.traffic, self.mix);
        let bytes = count(traffic.bytes.into());
        let what = match mix {
            Mix::Facts => format!("{} subjects, {bytes} bytes each", count(self.subjects)),
            Mix::Recalls => format!("{}, {bytes} bytes each", self.describe_memories()),
            _ => {
                let (sessions, turns) = (count(self.sessions), self.turns_per_append);
                format!("{sessions} sessions, turns of {bytes} bytes, {turns} per append")
            }
        };
        format!(
            "{} calls in flight on {} connections, mix {mix}, {what}, seed {seed}",
            traffic.in_flight, traffic.connections
        )
    }

    fn setup(&self, seed: u64) -> Value {
        json!({
            "seed": seed,
            "connections": self.traffic.connections,
            "in_flight": self.traffic.in_flight,
            "sessions": self.sessions,
            "subjects": self.subjects,
            "memories": self.memories,
            "dimensions": self.dimensions,
            "bytes": self.traffic.bytes,
            "mix": self.mix.to_string(),
            "turns_per_append": self.turns_per_append,
            "history_turns": self.history_turns,
        })
    }
}
