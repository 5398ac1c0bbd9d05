//! Events as people and programs read them: one line each.

use std::fmt::Write as _;

use memoird_proto::v1::{EndReason, Event, WatchEventsResponse};
use serde_json::Value;

use super::json::short_name;
use super::{clock, compaction, output};

/// Of an error that a hook gave, so much is shown; `memoird hooks list --json` has all.
const ERROR_CHARS_MAX: usize = 200;

/// What stands in a line beside kind, session and detail.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Columns {
    /// The date before the time, and the generation of what was created.
    pub(super) whole: bool,
    /// Whose session it is.
    pub(super) tenant: bool,
}

/// What a watcher was told, as a line without its end.
pub(super) fn line(told: &WatchEventsResponse, columns: Columns) -> String {
    match &told.event {
        Some(event) => event_line(event, columns),
        None => missed_line(told, columns),
    }
}

fn event_line(event: &Event, columns: Columns) -> String {
    let format = if columns.whole {
        "%Y-%m-%dT%H:%M:%S.%3fZ"
    } else {
        "%H:%M:%S.%3f"
    };
    let mut line = clock::written(event.time.as_ref(), format);
    if columns.tenant {
        let _ = write!(line, "  {:<10}", output::printable(&event.tenant));
    }
    let kind = output::printable(&event.kind);
    let session = output::printable(&event.session_id);
    let _ = write!(line, "  {kind:<14}  {session}");
    match detail(event, columns.whole) {
        detail if detail.is_empty() => {}
        detail => line.extend(["  ", &detail]),
    }
    line.trim_end().to_owned()
}

fn missed_line(told: &WatchEventsResponse, columns: Columns) -> String {
    let events = if told.missed == 1 { "event" } else { "events" };
    let mut line = format!("… {} {events} missed", output::count(told.missed));
    if columns.tenant {
        let _ = write!(line, " of {}", output::printable(&told.missed_tenant));
    }
    line
}

/// A few words of what else is known of an event.
fn detail(event: &Event, whole: bool) -> String {
    let detail: Value = serde_json::from_str(&event.detail_json).unwrap_or_default();
    let number = |name: &str| detail[name].as_u64().unwrap_or(0);
    match &*event.kind {
        "created" if whole => format!("generation {}", output::printable(&event.generation)),
        "appended" => {
            let dropped = number("dropped_turns");
            appended(number("first_seq"), number("last_seq"), dropped)
        }
        "created" | "expired" | "evicted" => String::new(),
        "ended" if event.reason() == EndReason::Ended => "by command".to_owned(),
        "ended" => format!("by {}", short_name("EndReason", event.reason)),
        "hook_delivered" => hook(&detail, number("tries")),
        "hook_failed" => {
            let verdict = if detail["gave_up"] == true {
                ", given up"
            } else {
                ""
            };
            let error = detail["error"].as_str().unwrap_or_default();
            let error = output::one_line(error, ERROR_CHARS_MAX);
            format!("{}{verdict}: {error}", hook(&detail, number("tries")))
        }
        kind if kind.starts_with("compact") => {
            let told = compaction::event(kind, &detail);
            told.unwrap_or_else(|| output::one_line(&event.detail_json, ERROR_CHARS_MAX))
        }
        // A later daemon's: better raw than not at all.
        _ => output::one_line(&event.detail_json, ERROR_CHARS_MAX),
    }
}

fn appended(first_seq: u64, last_seq: u64, dropped: u64) -> String {
    let mut words = match first_seq == last_seq {
        true => format!("turn {last_seq}"),
        false => format!("turns {first_seq}-{last_seq}"),
    };
    if dropped > 0 {
        let _ = write!(words, ", {dropped} dropped");
    }
    words
}

fn hook(detail: &Value, tries: u64) -> String {
    let name = output::printable(detail["hook"].as_str().unwrap_or("a hook"));
    match tries {
        0 | 1 => name,
        tries => format!("{name}, try {tries}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::json;
    use prost_types::Timestamp;
    use serde_json::json;

    const WATCH: Columns = Columns {
        whole: true,
        tenant: false,
    };

    fn told(kind: &str, reason: EndReason, detail: &Value) -> WatchEventsResponse {
        let event = Event {
            event_id: 7,
            time: Some(Timestamp {
                seconds: 1_767_323_045,
                nanos: 67_800_000,
            }),
            kind: kind.to_owned(),
            tenant: "acme".to_owned(),
            session_id: "telegram:4711".to_owned(),
            generation: "01K".to_owned(),
            reason: reason.into(),
            detail_json: if detail.is_null() {
                String::new()
            } else {
                detail.to_string()
            },
        };
        WatchEventsResponse {
            event: Some(event),
            ..Default::default()
        }
    }

    fn shown(kind: &str, reason: EndReason, detail: &Value) -> String {
        let line = line(&told(kind, reason, detail), WATCH);
        let rest = line
            .strip_prefix("2026-01-02T03:04:05.067Z  ")
            .expect("begins with its time");
        rest.to_owned()
    }

    #[test]
    fn an_event_is_a_line() {
        let none = EndReason::Unspecified;
        let turns = json!({"first_seq": 13, "last_seq": 14, "dropped_turns": 2});
        let turn = json!({"first_seq": 13, "last_seq": 13, "dropped_turns": 0});
        let done = json!({"hook": "checkpoint", "delivery": "01K/checkpoint", "tries": 1});
        let failed =
            json!({"hook": "crm", "tries": 3, "error": "no\nroute\u{1b}", "gave_up": false});
        let summary = json!({
            "number": 2, "trigger": "preemptive", "by": "extractive", "first_seq": 8,
            "through_seq": 21, "tokens_before": 9000, "tokens_after": 120, "identifiers": 8,
            "identifiers_found": 6, "probe_score": 0.75,
        });
        let lost = json!({"trigger": "command", "reason": "lost_identifiers", "error": "7\n of 9",
                          "breaker": "half_open"});
        let dead = json!({"hook": "crm", "tries": 20, "error": "404", "gave_up": true});
        let cases = [
            (
                "created",
                none,
                Value::Null,
                "created         telegram:4711  generation 01K",
            ),
            (
                "appended",
                none,
                turns,
                "appended        telegram:4711  turns 13-14, 2 dropped",
            ),
            (
                "appended",
                none,
                turn,
                "appended        telegram:4711  turn 13",
            ),
            (
                "expired",
                EndReason::Expired,
                Value::Null,
                "expired         telegram:4711",
            ),
            (
                "ended",
                EndReason::Ended,
                Value::Null,
                "ended           telegram:4711  by command",
            ),
            (
                "ended",
                EndReason::Reset,
                Value::Null,
                "ended           telegram:4711  by reset",
            ),
            (
                "hook_delivered",
                none,
                done,
                "hook_delivered  telegram:4711  checkpoint",
            ),
            (
                "hook_failed",
                none,
                failed,
                "hook_failed     telegram:4711  crm, try 3: no route\\u{1b}",
            ),
            (
                "hook_failed",
                none,
                dead,
                "hook_failed     telegram:4711  crm, try 20, given up: 404",
            ),
            (
                "compacted",
                none,
                summary,
                "compacted       telegram:4711  summary 2 of turns 8-21 by extractive (preemptive), \
                 9,000 → 120 tokens, 6 of 8 identifiers found",
            ),
            (
                "compaction_failed",
                none,
                lost,
                "compaction_failed  telegram:4711  lost_identifiers (command), breaker half open: 7 of 9",
            ),
            (
                "compaction_undone",
                none,
                json!({"number": 2}),
                "compaction_undone  telegram:4711  summary 2",
            ),
            (
                "compacting",
                none,
                json!({"of": 1}),
                "compacting      telegram:4711  {\"of\":1}",
            ),
            (
                "dreamt",
                none,
                json!({"of": 1}),
                "dreamt          telegram:4711  {\"of\":1}",
            ),
        ];
        for (kind, reason, detail, expected) in cases {
            assert_eq!(shown(kind, reason, &detail), expected);
        }
    }

    #[test]
    fn columns_come_and_go() {
        let told = told("evicted", EndReason::Evicted, &Value::Null);
        let all = Columns {
            whole: false,
            tenant: true,
        };
        let expected = "03:04:05.067  acme        evicted         telegram:4711";
        assert_eq!(line(&told, all), expected);
    }

    #[test]
    fn a_gap_is_told() {
        let missed = |missed| WatchEventsResponse {
            missed,
            missed_tenant: "acme".to_owned(),
            ..Default::default()
        };
        assert_eq!(line(&missed(1_200), WATCH), "… 1,200 events missed");
        let all = Columns {
            tenant: true,
            ..WATCH
        };
        assert_eq!(line(&missed(1), all), "… 1 event missed of acme");
        assert_eq!(
            json::of(&missed(3)).to_string(),
            r#"{"missed":3,"missed_tenant":"acme"}"#
        );
    }

    #[test]
    fn programs_get_the_names_of_the_contract() {
        let shown = json::of(&told("expired", EndReason::Expired, &Value::Null));
        let expected = json!({"event": {
            "event_id": 7, "time": "2026-01-02T03:04:05.067800Z", "kind": "expired",
            "tenant": "acme", "session_id": "telegram:4711", "generation": "01K",
            "reason": "END_REASON_EXPIRED",
        }});
        assert_eq!(shown, expected);
    }
}
