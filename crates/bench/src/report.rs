//! Reports: tables, ratios and a row for docs/benchmarks.md for people, or one JSON object.

use std::io::Write;

use anyhow::Result;
use comfy_table::Table;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use tonic::Code;

use super::driver::Tally;
use super::measure::{Measured, Run};
use super::mix::CallKind;
use super::output::{self, count, figure, mib};
use super::{CommonArgs, daemon, print, print_json};

/// Load average above which figures are unreliable, because something else runs on the machine.
const LOAD_AVERAGE_MAX: f64 = 0.5;

/// A figure of several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) runs: usize,
}

/// Figure of a measurement. All but `Rate` and `CallsPerSecond` must not exceed the goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Figure {
    /// The server's CPU per call, as a ratio.
    Cpu,
    /// Calls per second, as a ratio: at least the goal.
    Rate,
    /// 99th percentile of latency, as a ratio.
    P99,
    /// 99.9th percentile of one server's latency, as a multiple of its p99.
    Tail,
    /// Calls per second of one server: at least the goal.
    CallsPerSecond,
    /// Median latency of one server in milliseconds.
    Median,
    /// CPU of the first server's PostgreSQL per call, in microseconds.
    PostgresCpu,
    Wal,
    /// Statements that it received per call.
    Statements,
}

/// A row of docs/benchmarks.md for a comparison.
pub(super) struct Headline {
    name: String,
    figure: Figure,
    goal: Option<f64>,
}

/// A row of docs/benchmarks.md for a single measurement.
pub(super) struct SingleRun {
    pub(super) name: String,
    pub(super) figure: String,
    pub(super) goal: &'static str,
}

/// Context of the figures in a report.
pub(super) struct Report {
    is_json: bool,
    setup: Map<String, Value>,
    daemon: String,
    load_average: f64,
}

impl Spread {
    /// The spread of at least one figure.
    pub(super) fn from_figures(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => f64::NAN,
            runs if runs.is_multiple_of(2) => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        Self {
            median,
            min: sorted.first().copied().unwrap_or(f64::NAN),
            max: sorted.last().copied().unwrap_or(f64::NAN),
            runs: sorted.len(),
        }
    }

    fn json(self) -> Value {
        json!({"median": self.median, "min": self.min, "max": self.max, "runs": self.runs})
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, min, max] = [self.median, self.min, self.max].map(|ratio| figure(ratio, 2));
        write!(f, "{median} × (median of {}, {min} to {max})", self.runs)
    }
}

impl Figure {
    /// Its spread over all runs, of the first server relative to the last.
    fn spread(self, measured: &[Measured]) -> Spread {
        let of = |run: &Run| match self {
            Self::Cpu => run.cpu_us(),
            Self::Rate | Self::CallsPerSecond => run.rate(),
            Self::P99 => run.p99_us(),
            Self::Tail => run.p999_us() / run.p99_us(),
            Self::Median => run.p50_us() / 1e3,
            Self::PostgresCpu => run.of_database(|used| used.cpu_seconds * 1e6),
            Self::Wal => run.of_database(|used| used.wal_bytes),
            Self::Statements => run.of_database(|used| used.statements),
        };
        match measured {
            [] => Spread::from_figures([]),
            [this, .., that] if matches!(self, Self::Cpu | Self::Rate | Self::P99) => {
                let pairs = this.runs.iter().zip(&that.runs);
                Spread::from_figures(pairs.map(|(this, that)| of(this) / of(that)))
            }
            [this, ..] => Spread::from_figures(this.runs.iter().map(of)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU per call",
            Self::Rate | Self::CallsPerSecond => "calls/s",
            Self::P99 => "p99",
            Self::Tail => "p99.9 to p99",
            Self::Median => "p50",
            Self::PostgresCpu => "PostgreSQL's CPU per call",
            Self::Wal => "WAL per call",
            Self::Statements => "statements per call",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Cpu => "cpu_per_call",
            Self::Rate | Self::CallsPerSecond => "calls_per_second",
            Self::P99 => "p99",
            Self::Tail => "p999_to_p99",
            Self::Median => "p50_ms",
            Self::PostgresCpu => "postgres_cpu_us_per_call",
            Self::Wal => "wal_bytes_per_call",
            Self::Statements => "statements_per_call",
        }
    }

    fn is_met(self, goal: f64, found: f64) -> bool {
        match self {
            Self::Rate | Self::CallsPerSecond => found >= goal,
            _ => found <= goal,
        }
    }

    fn bound(self) -> &'static str {
        match self {
            Self::Rate | Self::CallsPerSecond => "≥",
            _ => "≤",
        }
    }

    fn shown(self, value: f64) -> String {
        match self {
            Self::CallsPerSecond => whole(value),
            Self::Median => format!("{} ms", figure(value, 2)),
            Self::PostgresCpu => format!("{} µs", figure(value, 1)),
            Self::Wal => format!("{} B", whole(value)),
            Self::Statements => figure(value, 2),
            _ => format!("{} ×", figure(value, 2)),
        }
    }
}

impl Headline {
    pub(super) fn new(name: String, figure: Figure, goal: Option<f64>) -> Self {
        Self { name, figure, goal }
    }
}

impl Report {
    /// Prints what is measured, and warns about other load on the machine.
    ///
    /// `setup` has the parameters needed to repeat the measurement.
    pub(super) fn begin(common: &CommonArgs, what: &str, setup: Value) -> Result<Self> {
        let load_average = load_average();
        if load_average > LOAD_AVERAGE_MAX {
            let mut stderr = std::io::stderr();
            // Nothing can be done if stderr is closed.
            let _ = writeln!(
                stderr,
                "warning: the load average is {load_average}; figures are steady below \
                 {LOAD_AVERAGE_MAX} only"
            );
        }
        let daemon = match &common.connect.addr {
            Some(addr) => addr.clone(),
            None => daemon::version(&common.daemon()?)?,
        };
        if !common.json {
            print(&format!("{daemon}, load average {load_average}\n{what}\n"))?;
        }
        let mut setup = fields(setup);
        setup.insert("daemon".to_owned(), daemon.clone().into());
        setup.insert("load_average".to_owned(), load_average.into());
        Ok(Self {
            is_json: common.json,
            setup,
            daemon,
            load_average,
        })
    }

    /// Adds a parameter.
    pub(super) fn note(&mut self, name: &str, value: Value) {
        self.setup.insert(name.to_owned(), value);
    }

    /// Prints the servers, and how the first one compares with the last one.
    pub(super) fn print(self, measured: &[Measured], headlines: &[Headline]) -> Result<()> {
        if self.is_json {
            return self.print_json(measured, headlines);
        }
        print(&output::text(servers(measured)))?;
        for server in measured {
            if let Some(errors) = errors(&server.tally()) {
                print(&format!("\nerrors of {}: {errors}", server.name))?;
            }
        }
        for server in measured {
            if let Some(us) = server.first_window_us {
                let name = &server.name;
                print(&format!(
                    "first window of a session, {name}: {us:.0} µs of CPU, in no run"
                ))?;
            }
        }
        if let [this, .., that] = measured {
            print(&format!("\n{}", output::text(runs(this, that))))?;
            print(&format!("\n{} to {}:", this.name, that.name))?;
            for figure in [Figure::Cpu, Figure::Rate, Figure::P99] {
                let spread = figure.spread(measured);
                print(&format!("  {:<13} {spread}", figure.name()))?;
            }
        }
        print("")?;
        for headline in headlines {
            let Headline { name, figure, goal } = headline;
            let spread = figure.spread(measured);
            let shown = figure.shown(spread.median);
            let goal = goal.map_or_else(
                || "-".to_owned(),
                |goal| {
                    let met = figure.is_met(goal, spread.median);
                    let outcome = if met { "met" } else { "missed" };
                    format!("{} {}, {outcome}", figure.bound(), figure.shown(goal))
                },
            );
            let value = format!("{} {shown}", figure.name());
            let [min, max] = [spread.min, spread.max].map(|bound| figure.shown(bound));
            // A row for docs/benchmarks.md.
            print(&format!(
                "| {name} | {value} | {goal} | {min} to {max}, {} runs | {} | {} |",
                spread.runs, self.daemon, self.load_average
            ))?;
        }
        Ok(())
    }

    /// Prints names and values one per line, or the same as JSON.
    pub(super) fn print_values(
        self,
        rows: &[(&str, String)],
        values: Value,
        headline: &SingleRun,
    ) -> Result<()> {
        if !self.is_json {
            print(&output::text(output::rows(rows)))?;
            let SingleRun { name, figure, goal } = headline;
            return print(&format!(
                "\n| {name} | {figure} | {goal} | 1 run | {} | {} |",
                self.daemon, self.load_average
            ));
        }
        let mut object = self.setup;
        object.extend(fields(values));
        print_json(&Value::Object(object))
    }

    fn print_json(self, measured: &[Measured], headlines: &[Headline]) -> Result<()> {
        let mut object = self.setup;
        let servers = measured.iter().map(server_json).collect();
        object.insert("servers".to_owned(), servers);
        if let [this, .., that] = measured {
            let mut ratio = json!({"of": this.name, "to": that.name});
            for figure in [Figure::Cpu, Figure::Rate, Figure::P99] {
                ratio[figure.key()] = figure.spread(measured).json();
            }
            object.insert("ratio".to_owned(), ratio);
        }
        let goals = headlines.iter().map(|headline| {
            let Headline { name, figure, goal } = headline;
            let found = figure.spread(measured);
            json!({
                "name": name,
                "of": figure.key(),
                "found": found.json(),
                "goal": goal,
                "met": goal.map(|goal| figure.is_met(goal, found.median)),
            })
        });
        object.insert("goals".to_owned(), goals.collect());
        print_json(&Value::Object(object))
    }
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Load average of the last minute; 0 if the system does not report it.
fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().unwrap_or_default();
    first.parse().unwrap_or_default()
}

fn servers(measured: &[Measured]) -> Table {
    let header = [
        "",
        "CALLS/S",
        "SAMPLES",
        "P50 MS",
        "P99 MS",
        "P99.9 MS",
        "CPU µS/CALL",
        "REPLY BYTES",
        "MEMORY",
        "ERRORS",
        "SETS/COMMIT",
    ];
    let mut table = output::table(&header);
    for server in measured {
        let tally = &server.tally();
        let all = tally.all();
        table.add_row([
            server.name.clone(),
            whole(server.rate()),
            count(all.len()),
            ms(&all, 0.5),
            ms(&all, 0.99),
            ms(&all, 0.999),
            figure(server.cpu_us(), 1),
            count(tally.reply_bytes / all.len().max(1)),
            mib(server.stats().rss_bytes),
            count(tally.errors.iter().sum()),
            figure(server.batch(), 1),
        ]);
        let kinds: Vec<CallKind> = kinds(tally).collect();
        for kind in kinds.iter().filter(|_| kinds.len() > 1) {
            let one = tally.of(*kind);
            table.add_row([
                format!("  {}", kind.name()),
                String::new(),
                count(one.len()),
                ms(one, 0.5),
                ms(one, 0.99),
                ms(one, 0.999),
            ]);
        }
    }
    table
}

/// A table of all runs, with the figures of both servers and their ratios.
fn runs(this: &Measured, that: &Measured) -> Table {
    let header = [
        "RUN",
        "CPU µS",
        "TO",
        "CPU ×",
        "CALLS/S",
        "TO",
        "CALLS/S ×",
        "P99 MS",
        "TO",
        "P99 ×",
    ];
    let mut table = output::table(&header);
    for (index, (this, that)) in this.runs.iter().zip(&that.runs).enumerate() {
        table.add_row([
            (index + 1).to_string(),
            figure(this.cpu_us(), 1),
            figure(that.cpu_us(), 1),
            figure(this.cpu_us() / that.cpu_us(), 2),
            whole(this.rate()),
            whole(that.rate()),
            figure(this.rate() / that.rate(), 2),
            figure(this.p99_us() / 1e3, 2),
            figure(that.p99_us() / 1e3, 2),
            figure(this.p99_us() / that.p99_us(), 2),
        ]);
    }
    table
}

fn server_json(server: &Measured) -> Value {
    let tally = &server.tally();
    let latency = |one: &Histogram<u64>| {
        json!({
            "calls": one.len(),
            "p50_us": one.value_at_quantile(0.5),
            "p99_us": one.value_at_quantile(0.99),
            "p999_us": one.value_at_quantile(0.999),
            "max_us": one.max(),
        })
    };
    let all = tally.all();
    let errors: Map<String, Value> = codes(tally)
        .map(|(code, count)| (format!("{code:?}"), count.into()))
        .collect();
    let run = |run: &Run| {
        json!({
            "calls": run.calls,
            "seconds": run.seconds,
            "cpu_us_per_call": run.cpu_us(),
            "p99_us": run.p99_us(),
        })
    };
    let mut object = json!({
        "name": server.name,
        "calls": server.calls(),
        "first_window_cpu_us": server.first_window_us,
        "calls_per_second": server.rate(),
        "cpu_us_per_call": server.cpu_us(),
        "latency": latency(&all),
        "reply_bytes": tally.reply_bytes / all.len().max(1),
        "rss_bytes": server.stats().rss_bytes,
        "sets_per_commit": server.batch(),
        "errors": errors,
        "runs": server.runs.iter().map(run).collect::<Vec<_>>(),
    });
    for kind in CallKind::ALL {
        object[kind.name()] = latency(tally.of(kind));
    }
    object
}

fn kinds(tally: &Tally) -> impl Iterator<Item = CallKind> {
    CallKind::ALL
        .into_iter()
        .filter(|kind| !tally.of(*kind).is_empty())
}

fn codes(tally: &Tally) -> impl Iterator<Item = (Code, u64)> {
    let codes = (0..).map(Code::from_i32);
    codes.zip(tally.errors).filter(|(_, count)| *count > 0)
}

fn errors(tally: &Tally) -> Option<String> {
    let counts: Vec<String> = codes(tally)
        .map(|(code, errors)| format!("{} {code:?}", count(errors)))
        .collect();
    let first = tally.first_error.as_ref()?;
    Some(format!(
        "{}; the first: {}",
        counts.join(", "),
        first.message().escape_debug()
    ))
}

fn ms(latencies: &Histogram<u64>, quantile: f64) -> String {
    format!("{:.2}", latencies.value_at_quantile(quantile) as f64 / 1e3)
}

/// Formats a rate without decimals.
fn whole(rate: f64) -> String {
    let text = figure(rate, 0);
    text.parse().map_or(text, count)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn measured(name: &str, runs: &[(u64, f64, f64)]) -> Measured {
        let run = |&(calls, seconds, cpu_seconds): &(u64, f64, f64)| Run {
            calls,
            seconds,
            cpu_seconds,
            tally: Tally::default(),
            stats: Default::default(),
            batch: 1.0,
            database: None,
        };
        Measured {
            first_window_us: None,
            name: name.to_owned(),
            runs: runs.iter().map(run).collect(),
        }
    }

    #[test]
    fn ratio_is_median_with_range_of_runs() {
        let this = measured(
            "this",
            &[(100, 1.0, 0.001), (100, 1.0, 0.003), (100, 1.0, 0.004)],
        );
        let that = measured("that", &[(200, 1.0, 0.002); 3]);
        let both = [this, that];
        let cpu = Figure::Cpu.spread(&both);
        assert_eq!(cpu.to_string(), "3.00 × (median of 3, 1.00 to 4.00)");
        let rate = Figure::Rate.spread(&both);
        assert_eq!(rate.to_string(), "0.50 × (median of 3, 0.50 to 0.50)");
        let alone = Figure::CallsPerSecond.spread(&both);
        assert!((alone.median - 100.0).abs() < 1e-9);
        assert!((both[0].cpu_us() - 80.0 / 3.0).abs() < 1e-9);
        assert!((Spread::from_figures([4.0, 1.0, 2.0, 3.0]).median - 2.5).abs() < 1e-9);
    }

    #[test]
    fn latency_goal_compares_99th_percentile() {
        let of = |us: u64| {
            let mut one = measured("one", &[(100, 1.0, 0.1)]);
            let latency = Duration::from_micros(us);
            (0..100).for_each(|_| one.runs[0].tally.record(CallKind::Context, latency, 1));
            one
        };
        let found = Figure::P99.spread(&[of(600), of(500)]).median;
        assert!(Figure::P99.is_met(1.21, found) && !Figure::P99.is_met(1.19, found));
        assert!(Figure::Rate.is_met(1.19, found));
    }

    #[test]
    fn percentiles_are_reported_in_milliseconds() {
        let mut one = measured("one", &[(1_000, 0.5, 0.01)]);
        let tally = &mut one.runs[0].tally;
        for latency_us in 1..=1_000 {
            let latency = Duration::from_micros(latency_us * 10);
            tally.record(CallKind::Append, latency, 120);
        }
        tally.errors[Code::ResourceExhausted as usize] = 1_234;
        tally.first_error = Some(tonic::Status::resource_exhausted("busy"));
        let row = [
            "one", "2,000", "1,000", "5.00", "9.90", "9.99", "10.0", "120", "0.0", "MiB", "1,234",
            "1.0",
        ];
        assert_eq!(words(&[one]), row);
    }

    fn words(measured: &[Measured]) -> Vec<String> {
        let text = output::text(servers(measured));
        let line = text.lines().nth(1).unwrap_or("");
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn errors_are_counted_by_code() {
        let mut tally = Tally::default();
        assert_eq!(errors(&tally), None);
        tally.errors[Code::Unavailable as usize] = 1_000;
        tally.first_error = Some(tonic::Status::unavailable("going\ndown"));
        assert_eq!(
            errors(&tally).as_deref(),
            Some("1,000 Unavailable; the first: going\\ndown")
        );
    }

    #[test]
    fn run_without_calls_reports_no_cost() {
        let row = words(&[measured("one", &[(0, 1.0, 0.0)])]);
        assert_eq!(row[..7], ["one", "0", "0", "0.00", "0.00", "0.00", "-"]);
    }
}
