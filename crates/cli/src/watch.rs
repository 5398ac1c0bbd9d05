//! `memoird watch`: prints events as they happen, across restarts of the daemon.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use memoird_proto::v1::{EndReason, Event, WatchEventsRequest, WatchEventsResponse};
use serde_json::Value;
use tokio::time::sleep;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

use super::connect::{ClientArgs, Target};
use super::json::short_name;
use super::{clock, json, output};
use crate::exit::{CliError, is_transport};

/// Minimum and maximum wait before reconnecting.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct WatchArgs {
    /// Resume after this event id, as far back as the daemon remembers
    #[arg(long, value_name = "ID", conflicts_with = "all")]
    after: Option<u64>,
    /// Resume after this `cursor` of an event, as printed by --json; valid for any daemon of a
    /// cluster
    #[arg(long, value_name = "CURSOR", conflicts_with_all = ["all", "after"])]
    after_cursor: Option<String>,
    /// Print the events of all tenants (role admin)
    #[arg(long)]
    all: bool,
}

struct EventPrinter<'a> {
    target: &'a Target,
    all: bool,
    json: bool,
    /// Id of the newest event printed, or of the one to resume after; 0 for none.
    after: u64,
    /// Events missed since then.
    missed: u64,
    /// Cursor to resume from.
    cursor: String,
    /// Whether a daemon has ever answered. Reconnecting makes sense only then.
    was_connected: bool,
    /// True from the end of a connection until the next event or connection.
    is_away: bool,
    /// True from a reconnect until its first event.
    is_back: bool,
}

/// Prints events until interrupted, stdout has no reader, or the daemon fails permanently.
pub(crate) async fn run(client: &ClientArgs, args: WatchArgs) -> Result<(), CliError> {
    let target = client.target()?;
    let mut watch = EventPrinter {
        target: &target,
        all: args.all,
        json: target.json,
        after: args.after.unwrap_or(0),
        missed: 0,
        cursor: args.after_cursor.unwrap_or_default(),
        was_connected: false,
        is_away: false,
        is_back: false,
    };
    tokio::select! {
        result = watch.follow() => result,
        () = output::reader_gone() => Err(CliError::output_closed()),
    }
}

impl EventPrinter<'_> {
    async fn follow(&mut self) -> Result<(), CliError> {
        let mut pause = PAUSE_MIN;
        loop {
            let ended = match self.connect().await {
                Ok(mut events) => {
                    pause = PAUSE_MIN;
                    self.print_all(&mut events).await?
                }
                Err(status) => status,
            };
            if !self.was_connected || is_final(&ended) {
                return Err(self.target.explain(ended));
            }
            if !self.is_away {
                self.is_away = true;
                let error = self.target.explain(ended);
                output::note(&format!("{error}; connecting again"));
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn connect(&mut self) -> Result<Streaming<WatchEventsResponse>, Status> {
        let has_cursor = !self.cursor.is_empty();
        let request = WatchEventsRequest {
            after_event_id: if has_cursor { 0 } else { self.after },
            all_tenants: self.all,
            after_cursor: self.cursor.clone(),
        };
        let reply = self.target.sessions().watch_events(request).await?;
        self.was_connected = true;
        if self.is_away {
            self.is_away = false;
            self.is_back = true;
            // Streams of all tenants cannot resume: a cursor belongs to one tenant.
            let place = if self.cursor.is_empty() && self.after == 0 {
                "from now on"
            } else {
                "where it was"
            };
            output::note(&format!("connected again, {place}"));
        }
        Ok(reply.into_inner())
    }

    /// Prints all events of a stream and returns the status it ended with.
    async fn print_all(
        &mut self,
        events: &mut Streaming<WatchEventsResponse>,
    ) -> Result<Status, CliError> {
        loop {
            match events.message().await {
                Ok(Some(response)) => self.print(&response)?,
                Ok(None) => return Ok(Status::unavailable("the stream has ended")),
                Err(status) => return Ok(status),
            }
        }
    }

    fn print(&mut self, response: &WatchEventsResponse) -> Result<(), CliError> {
        self.cursor.clone_from(&response.cursor);
        self.missed += response.missed;
        if let Some(event) = &response.event
            && !self.all
        {
            let is_first = std::mem::take(&mut self.is_back);
            let missed = std::mem::take(&mut self.missed);
            if is_first && counts_anew(self.after, event.event_id, missed) {
                output::note(
                    "the daemon was restarted, or is another one: its event ids start at another \
                     number",
                );
            }
            // For daemons that do not support cursors.
            self.after = event.event_id;
        }
        let columns = Columns {
            whole: true,
            tenant: self.all,
        };
        let line = if self.json {
            json::of(response).to_string()
        } else {
            line(response, columns)
        };
        output::print(&line)
    }
}

/// Ids of different runs of a daemon are further apart than this.
///
/// Within a run, some ids may be missing because another daemon delivered them.
const IDS_APART_MAX: u64 = 4_096;

/// Whether the event comes from another start, or another daemon, than the one before.
fn counts_anew(before: u64, id: u64, missed: u64) -> bool {
    let apart = id.checked_sub(before);
    before != 0 && apart.is_none_or(|apart| apart > missed.saturating_add(IDS_APART_MAX))
}

/// Whether a retry would fail in the same way.
fn is_final(status: &Status) -> bool {
    let has_hint = status.get_details_retry_info().is_some();
    let may_pass = has_hint
        || is_transport(status)
        || matches!(status.code(), Code::Unavailable | Code::Aborted);
    !may_pass
}

/// Maximum characters of a hook's error. `memoird hooks list --json` prints all of it.
const ERROR_CHARS_MAX: usize = 200;
/// Maximum characters of other texts.
const TEXT_CHARS_MAX: usize = 400;

/// Optional columns of a line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns {
    /// Include the date, and the generation of created sessions.
    pub whole: bool,
    /// Include the tenant.
    pub tenant: bool,
}

/// Formats a message of the stream as a line, without the line break.
pub fn line(response: &WatchEventsResponse, columns: Columns) -> String {
    match &response.event {
        Some(event) => event_line(event, columns),
        None => missed_line(response, columns),
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

fn missed_line(response: &WatchEventsResponse, columns: Columns) -> String {
    let events = output::counted(response.missed, "event", "events");
    let mut line = format!("… {events} missed");
    if columns.tenant {
        let _ = write!(line, " of {}", output::printable(&response.missed_tenant));
    }
    line
}

/// Formats the details of an event in a few words.
fn detail(event: &Event, whole: bool) -> String {
    let detail: Value = serde_json::from_str(&event.detail_json).unwrap_or_default();
    let number = |name: &str| detail[name].as_u64().unwrap_or(0);
    let text = |name: &str| output::one_line(detail[name].as_str().unwrap_or("?"), TEXT_CHARS_MAX);
    match &*event.kind {
        "created" if whole => format!("generation {}", output::printable(&event.generation)),
        "appended" => {
            let dropped = number("dropped_turns");
            appended(number("first_seq"), number("last_seq"), dropped)
        }
        "created" | "expired" | "evicted" | "erased" => String::new(),
        "rewound" => {
            let (first, last) = (number("after_seq") + 1, number("through_seq"));
            format!("{} taken back", turns(first, last))
        }
        "turn_updated" => turns(number("seq"), number("seq")),
        "ended" if event.reason() == EndReason::Ended => "by command".to_owned(),
        "ended" => format!("by {}", short_name("EndReason", event.reason)),
        "hook_delivered" => hook(&detail, number("tries")),
        "hook_failed" => {
            let verdict = if detail["gave_up"] == true {
                ", given up"
            } else {
                ""
            };
            with_error(
                format!("{}{verdict}", hook(&detail, number("tries"))),
                &detail,
            )
        }
        "compacted" => format!(
            "summary {} of turns {}-{} by {} ({}), {} → {} tokens",
            number("number"),
            number("first_seq"),
            number("through_seq"),
            text("by"),
            text("trigger"),
            output::count(number("tokens_before")),
            output::count(number("tokens_after")),
        ),
        "compaction_failed" => {
            let breaker = text("breaker").replace('_', " ");
            let what = format!(
                "{} ({}), breaker {breaker}",
                text("reason"),
                text("trigger")
            );
            with_error(what, &detail)
        }
        "compaction_undone" => format!("summary {}", number("number")),
        "learned" => format!(
            "{} by {} in {}, {} refused",
            output::counted(number("kept"), "fact", "facts"),
            text("by"),
            turns(number("first_seq"), number("through_seq")),
            output::count(number("refused")),
        ),
        "extraction_failed" => {
            let verdict = if detail["gave_up"] == true {
                ", given up"
            } else {
                ""
            };
            with_error(format!("{}{verdict}", text("reason")), &detail)
        }
        // Details from a newer daemon are printed as they are.
        _ => output::one_line(&event.detail_json, ERROR_CHARS_MAX),
    }
}

/// Adds the error message of a program or service, which only operators receive.
fn with_error(what: String, detail: &Value) -> String {
    let error = detail["error"].as_str().unwrap_or_default();
    match output::one_line(error, ERROR_CHARS_MAX) {
        error if error.is_empty() => what,
        error => format!("{what}: {error}"),
    }
}

fn turns(first_seq: u64, last_seq: u64) -> String {
    if first_seq == last_seq {
        format!("turn {last_seq}")
    } else {
        format!("turns {first_seq}-{last_seq}")
    }
}

fn appended(first_seq: u64, last_seq: u64, dropped: u64) -> String {
    let mut words = turns(first_seq, last_seq);
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
    use std::io;

    use prost_types::Timestamp;
    use serde_json::json;
    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn only_transient_errors_are_retried() {
        assert!(is_final(&Status::permission_denied("no")));
        assert!(is_final(&Status::unauthenticated("no")));
        assert!(is_final(&Status::unimplemented("no")));
        assert!(!is_final(&Status::unavailable("stopping")));
        assert!(!is_final(&Status::aborted("too slow")));
        let broken = Status::from_error(Box::new(io::Error::other("reset")));
        assert!(!is_final(&broken));
        let details = ErrorDetails::with_retry_info(Some(Duration::from_millis(1)));
        let keys_changed = Status::with_error_details(Code::Unauthenticated, "others", details);
        assert!(!is_final(&keys_changed));
    }

    #[test]
    fn event_ids_restart_only_with_daemon() {
        assert!(!counts_anew(7, 8, 0), "the next one");
        assert!(!counts_anew(7, 5_008, 5_000), "some have left");
        assert!(!counts_anew(0, 1_800_000, 0), "there was none before");
        assert!(counts_anew(7, 1_800_000, 0) && counts_anew(1_800_000, 7, 0));
    }

    const WATCH: Columns = Columns {
        whole: true,
        tenant: false,
    };

    fn watch_response(kind: &str, reason: EndReason, detail: &Value) -> WatchEventsResponse {
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
        let line = line(&watch_response(kind, reason, detail), WATCH);
        let rest = line
            .strip_prefix("2026-01-02T03:04:05.067Z  ")
            .expect("begins with its time");
        rest.to_owned()
    }

    #[test]
    fn event_is_one_line() {
        let none = EndReason::Unspecified;
        let turns = json!({"first_seq": 13, "last_seq": 14, "dropped_turns": 2});
        let turn = json!({"first_seq": 13, "last_seq": 13, "dropped_turns": 0});
        let done = json!({"hook": "checkpoint", "delivery": "01K/checkpoint", "tries": 1});
        let failed =
            json!({"hook": "crm", "tries": 3, "error": "no\nroute\u{1b}", "gave_up": false});
        let summary = json!({
            "number": 2, "trigger": "preemptive", "by": "extractive", "first_seq": 8,
            "through_seq": 21, "tokens_before": 9000, "tokens_after": 120,
        });
        let lost = json!({"trigger": "command", "reason": "longer_than_the_span", "error": "7\n of 9",
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
                 9,000 → 120 tokens",
            ),
            (
                "compaction_failed",
                none,
                lost,
                "compaction_failed  telegram:4711  longer_than_the_span (command), breaker half open: 7 of 9",
            ),
            (
                "compaction_failed",
                none,
                json!({"trigger": "command", "reason": "timeout", "breaker": "open"}),
                "compaction_failed  telegram:4711  timeout (command), breaker open",
            ),
            (
                "rewound",
                none,
                json!({"after_seq": 12, "through_seq": 14}),
                "rewound         telegram:4711  turns 13-14 taken back",
            ),
            (
                "turn_updated",
                none,
                json!({"seq": 7}),
                "turn_updated    telegram:4711  turn 7",
            ),
            ("erased", none, Value::Null, "erased          telegram:4711"),
            (
                "learned",
                none,
                json!({"by": "gpt", "first_seq": 1, "through_seq": 6, "kept": 2, "refused": 1,
                       "tokens": 900}),
                "learned         telegram:4711  2 facts by gpt in turns 1-6, 1 refused",
            ),
            (
                "extraction_failed",
                none,
                json!({"reason": "timeout", "gave_up": true, "error": "no answer"}),
                "extraction_failed  telegram:4711  timeout, given up: no answer",
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
    fn columns_depend_on_events() {
        let response = watch_response("evicted", EndReason::Evicted, &Value::Null);
        let all = Columns {
            whole: false,
            tenant: true,
        };
        let expected = "03:04:05.067  acme        evicted         telegram:4711";
        assert_eq!(line(&response, all), expected);
    }

    #[test]
    fn missed_events_are_reported() {
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
    fn json_output_uses_proto_names() {
        let shown = json::of(&watch_response("expired", EndReason::Expired, &Value::Null));
        let expected = json!({"event": {
            "event_id": 7, "time": "2026-01-02T03:04:05.067800Z", "kind": "expired",
            "tenant": "acme", "session_id": "telegram:4711", "generation": "01K",
            "reason": "END_REASON_EXPIRED",
        }});
        assert_eq!(shown, expected);
    }
}
