//! What a measurement prints: a table and ratios for people, one object for programs.

use comfy_table::Table;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use tonic::Code;

use super::driver::Tally;
use super::measure::{Measured, Slice};
use super::mix::CallKind;
use crate::cli::exit::CliError;
use crate::cli::output;

/// How much of something one server needs where another needs one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    /// Over all slices.
    pub(super) value: f64,
    /// In the round where it was least.
    pub(super) low: f64,
    /// In the round where it was most.
    pub(super) high: f64,
}

/// The ratios of one server to another.
pub(super) struct Comparison {
    /// Server CPU per call.
    pub(super) cpu: Ratio,
    /// Calls per second.
    pub(super) rate: Ratio,
    /// Latency of one call in a hundred, over all slices.
    pub(super) p99: f64,
}

/// What a comparison should show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    /// Calls per second, as a ratio.
    RateAtLeast(f64),
    /// CPU per call, as a ratio.
    CpuAtMost(f64),
    /// Latency of one call in a hundred, as a ratio.
    P99AtMost(f64),
}

impl Goal {
    fn is_met(self, found: &Comparison) -> bool {
        match self {
            Self::RateAtLeast(goal) => found.rate.value >= goal,
            Self::CpuAtMost(goal) => found.cpu.value <= goal,
            Self::P99AtMost(goal) => found.p99 <= goal,
        }
    }

    fn line(self, found: &Comparison) -> String {
        let outcome = if self.is_met(found) { "met" } else { "missed" };
        match self {
            Self::RateAtLeast(goal) => format!("calls/s at least {goal:.2} ×: {outcome}"),
            Self::CpuAtMost(goal) => format!("CPU per call at most {goal:.2} ×: {outcome}"),
            Self::P99AtMost(goal) => format!("p99 at most {goal:.2} ×: {outcome}"),
        }
    }

    fn json(self, found: &Comparison) -> Value {
        let met = self.is_met(found);
        match self {
            Self::RateAtLeast(goal) => {
                json!({ "of": "calls_per_second", "at_least": goal, "met": met })
            }
            Self::CpuAtMost(goal) => json!({ "of": "cpu_per_call", "at_most": goal, "met": met }),
            Self::P99AtMost(goal) => json!({ "of": "p99", "at_most": goal, "met": met }),
        }
    }
}

impl Ratio {
    fn of(
        this: (&Measured, fn(&Measured) -> f64),
        that: (&Measured, fn(&Measured) -> f64),
        slice: fn(&Slice) -> f64,
    ) -> Self {
        let rounds = this.0.slices.iter().zip(&that.0.slices);
        let rounds = rounds.map(|(this, that)| slice(this) / slice(that));
        let (low, high) = rounds.fold((f64::INFINITY, 0.0_f64), |(low, high), ratio| {
            (low.min(ratio), high.max(ratio))
        });
        Self {
            value: this.1(this.0) / that.1(that.0),
            low,
            high,
        }
    }

    fn json(self) -> Value {
        json!({"value": self.value, "low": self.low, "high": self.high})
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.2} × (rounds {:.2} to {:.2})",
            self.value, self.low, self.high
        )
    }
}

/// Compares one server with another of the same run.
pub(super) fn compare(this: &Measured, that: &Measured) -> Comparison {
    Comparison {
        cpu: Ratio::of(
            (this, Measured::cpu_us),
            (that, Measured::cpu_us),
            Slice::cpu_us,
        ),
        rate: Ratio::of((this, Measured::rate), (that, Measured::rate), Slice::rate),
        p99: p99_us(this) / p99_us(that),
    }
}

fn p99_us(measured: &Measured) -> f64 {
    all(&measured.tally).value_at_quantile(0.99) as f64
}

/// Prints the servers, and how the first one compares with the last one. `setup` is
/// what would have to be said to measure the same again.
pub(super) fn print(
    json: bool,
    setup: Map<String, Value>,
    measured: &[Measured],
    goal: Option<Goal>,
) -> Result<(), CliError> {
    let compared = match measured {
        [this, .., that] => Some((this, that, compare(this, that))),
        _ => None,
    };
    if json {
        let mut object = setup;
        object.insert(
            "servers".to_owned(),
            measured.iter().map(server_json).collect(),
        );
        if let Some((this, that, found)) = compared {
            let ratios = json!({
                "of": this.name, "to": that.name,
                "cpu_per_call": found.cpu.json(), "calls_per_second": found.rate.json(),
                "p99": found.p99,
            });
            object.insert("ratio".to_owned(), ratios);
            if let Some(goal) = goal {
                object.insert("goal".to_owned(), goal.json(&found));
            }
        }
        return output::print_json(&Value::Object(object));
    }
    output::print_table(&table(measured))?;
    for server in measured {
        if let Some(errors) = errors(&server.tally) {
            output::print(&format!("\nerrors of {}: {errors}", server.name))?;
        }
    }
    if let Some((this, that, ratios)) = compared {
        output::print(&format!("\n{} to {}:", this.name, that.name))?;
        output::print(&format!("  CPU per call  {}", ratios.cpu))?;
        output::print(&format!("  calls/s       {}", ratios.rate))?;
        output::print(&format!(
            "  p99           {} ×",
            output::figure(ratios.p99, 2)
        ))?;
        if let Some(goal) = goal {
            output::print(&format!("  goal          {}", goal.line(&ratios)))?;
        }
    }
    Ok(())
}

/// Prints names and values, one a line.
pub(super) fn print_rows(rows: &[(&str, String)]) -> Result<(), CliError> {
    let mut table = output::plain_table();
    for (name, value) in rows {
        table.add_row([*name, value]);
    }
    output::flush_left(&mut table);
    output::print_table(&table)
}

fn table(measured: &[Measured]) -> Table {
    let header = [
        "",
        "CALLS/S",
        "P50 MS",
        "P99 MS",
        "P99.9 MS",
        "CPU µS/CALL",
        "REPLY BYTES",
        "MEMORY",
        "ERRORS",
    ];
    let mut table = output::table(&header);
    for server in measured {
        let tally = &server.tally;
        let all = all(tally);
        let replies = all.len().max(1);
        table.add_row([
            server.name.clone(),
            whole(server.rate()),
            ms(&all, 0.5),
            ms(&all, 0.99),
            ms(&all, 0.999),
            output::figure(server.cpu_us(), 1),
            output::count(tally.reply_bytes / replies),
            output::size(server.rss_bytes),
            output::count(tally.errors.iter().sum()),
        ]);
        let kinds: Vec<CallKind> = kinds(tally).collect();
        for kind in kinds.iter().filter(|_| kinds.len() > 1) {
            let (name, one) = (format!("  {}", kind.name()), tally.of(*kind));
            table.add_row([
                name,
                String::new(),
                ms(one, 0.5),
                ms(one, 0.99),
                ms(one, 0.999),
            ]);
        }
    }
    output::flush_left(&mut table);
    table
}

fn server_json(server: &Measured) -> Value {
    let tally = &server.tally;
    let latency = |one: &Histogram<u64>| {
        json!({
            "calls": one.len(),
            "p50_us": one.value_at_quantile(0.5),
            "p99_us": one.value_at_quantile(0.99),
            "p999_us": one.value_at_quantile(0.999),
            "max_us": one.max(),
        })
    };
    let all = all(tally);
    let errors: Map<String, Value> = codes(tally)
        .map(|(code, count)| (format!("{code:?}"), count.into()))
        .collect();
    json!({
        "name": server.name,
        "calls": server.calls(),
        "calls_per_second": server.rate(),
        "cpu_us_per_call": server.cpu_us(),
        "latency": latency(&all),
        "append": latency(tally.of(CallKind::Append)),
        "history": latency(tally.of(CallKind::History)),
        "context": latency(tally.of(CallKind::Context)),
        "remember": latency(tally.of(CallKind::Remember)),
        "recall": latency(tally.of(CallKind::Recall)),
        "reply_bytes": tally.reply_bytes / all.len().max(1),
        "rss_bytes": server.rss_bytes,
        "errors": errors,
    })
}

/// The kinds of calls that there were.
fn kinds(tally: &Tally) -> impl Iterator<Item = CallKind> {
    CallKind::ALL
        .into_iter()
        .filter(|kind| !tally.of(*kind).is_empty())
}

fn all(tally: &Tally) -> Histogram<u64> {
    let [first, others @ ..] = CallKind::ALL;
    let mut all = tally.of(first).clone();
    for kind in others {
        // All have the same bounds, so adding cannot fail.
        let _ = all.add(tally.of(kind));
    }
    all
}

fn codes(tally: &Tally) -> impl Iterator<Item = (Code, u64)> {
    let codes = (0..).map(Code::from_i32);
    codes.zip(tally.errors).filter(|(_, count)| *count > 0)
}

fn errors(tally: &Tally) -> Option<String> {
    let counts: Vec<String> = codes(tally)
        .map(|(code, count)| format!("{} {code:?}", output::count(count)))
        .collect();
    let first = tally.first_error.as_ref()?;
    let counts = if counts.is_empty() {
        "in the warm-up".to_owned()
    } else {
        counts.join(", ")
    };
    Some(format!(
        "{counts}; the first: {}",
        output::printable(first.message())
    ))
}

fn ms(latencies: &Histogram<u64>, quantile: f64) -> String {
    format!("{:.2}", latencies.value_at_quantile(quantile) as f64 / 1e3)
}

/// A rate without its fraction.
fn whole(rate: f64) -> String {
    let text = output::figure(rate, 0);
    text.parse().map_or(text, output::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str, slices: &[(u64, f64, f64)]) -> Measured {
        let slices = slices
            .iter()
            .map(|&(calls, seconds, cpu_seconds)| Slice {
                calls,
                seconds,
                cpu_seconds,
            })
            .collect();
        Measured {
            name: name.to_owned(),
            slices,
            tally: Tally::default(),
            rss_bytes: 0,
        }
    }

    #[test]
    fn ratios_are_of_sums_with_the_rounds_beside() {
        let this = measured("this", &[(100, 1.0, 0.001), (100, 1.0, 0.003)]);
        let that = measured("that", &[(200, 1.0, 0.002), (200, 1.0, 0.002)]);
        let ratios = compare(&this, &that);
        assert_eq!(ratios.cpu.to_string(), "2.00 × (rounds 1.00 to 3.00)");
        assert_eq!(ratios.rate.to_string(), "0.50 × (rounds 0.50 to 0.50)");
        assert!((this.cpu_us() - 20.0).abs() < 1e-9);
    }

    #[test]
    fn a_goal_of_latency_is_of_one_call_in_a_hundred() {
        let of = |us: u64| {
            let mut one = measured("one", &[(100, 1.0, 0.1)]);
            let latency = std::time::Duration::from_micros(us);
            (0..100).for_each(|_| one.tally.record(CallKind::Context, latency, 1));
            one
        };
        let found = compare(&of(600), &of(500));
        assert!(Goal::P99AtMost(1.21).is_met(&found) && !Goal::P99AtMost(1.19).is_met(&found));
        assert_eq!(
            Goal::P99AtMost(1.1).line(&found),
            "p99 at most 1.10 ×: missed"
        );
    }

    #[test]
    fn percentiles_are_in_milliseconds() {
        let mut one = measured("one", &[(1_000, 0.5, 0.01)]);
        for latency_us in 1..=1_000 {
            let latency = std::time::Duration::from_micros(latency_us * 10);
            one.tally.record(CallKind::Append, latency, 120);
        }
        one.tally.errors[Code::ResourceExhausted as usize] = 1_234;
        one.tally.first_error = Some(tonic::Status::resource_exhausted("busy"));
        let text = table(&[one]).trim_fmt();
        let row: Vec<&str> = text
            .lines()
            .nth(1)
            .unwrap_or("")
            .split_whitespace()
            .collect();
        assert_eq!(
            row,
            [
                "one", "2,000", "5.00", "9.90", "9.99", "10.0", "120", "0", "B", "1,234"
            ],
            "{text}"
        );
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
    fn nothing_done_has_no_cost() {
        let text = table(&[measured("one", &[(0, 1.0, 0.0)])]).trim_fmt();
        let row: Vec<&str> = text
            .lines()
            .nth(1)
            .unwrap_or("")
            .split_whitespace()
            .collect();
        assert_eq!(
            row[..6],
            ["one", "0", "0.00", "0.00", "0.00", "-"],
            "{text}"
        );
    }
}
