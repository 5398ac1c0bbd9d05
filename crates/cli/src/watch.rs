//! `memoird watch`: prints events as they happen, across restarts of the daemon.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use memoird_proto::v1::event::Kind;
use memoird_proto::v1::{EndReason, Event, WatchEventsRequest, WatchEventsResponse};
use tokio::time::sleep;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

use super::compaction::made_by;
use super::connect::{ClientArgs, Target};
use super::json::short_name;
use super::{clock, json, output};
use crate::exit::{CliError, is_transport};

/// Minimum and maximum wait before reconnecting.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct WatchArgs {
    /// Resume after this `cursor` of an event, as printed by --json; `1-0` for all events that the
    /// daemon remembers
    #[arg(long, value_name = "CURSOR", conflicts_with = "all")]
    after: Option<String>,
    /// Print the events of all tenants (role admin)
    #[arg(long)]
    all: bool,
}

struct EventPrinter<'a> {
    target: &'a Target,
    all: bool,
    json: bool,
    /// Id of the newest event printed, or 0.
    last_id: u64,
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
        last_id: 0,
        missed: 0,
        cursor: args.after.unwrap_or_default(),
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
        let request = WatchEventsRequest {
            after_cursor: self.cursor.clone(),
            all_tenants: self.all,
        };
        let reply = self.target.sessions().watch_events(request).await?;
        self.was_connected = true;
        if self.is_away {
            self.is_away = false;
            self.is_back = true;
            // Streams of all tenants cannot resume: a cursor belongs to one tenant.
            let place = if self.cursor.is_empty() {
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
            if is_first && counts_anew(self.last_id, event.event_id, missed) {
                output::note(
                    "the daemon was restarted, or is another one: its event ids start at another \
                     number",
                );
            }
            self.last_id = event.event_id;
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
    let kind = event.word();
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
    let Some(kind) = &event.kind else {
        return "of a kind that this memoird does not know; `--json` does not show it".to_owned();
    };
    match kind {
        Kind::Created(_) if whole => format!("generation {}", output::printable(&event.generation)),
        Kind::Created(_) | Kind::Erased(_) => String::new(),
        Kind::Appended(it) => {
            let mut words = turns(it.first_seq, it.last_seq);
            if it.dropped_turns > 0 {
                let _ = write!(words, ", {} dropped", it.dropped_turns);
            }
            words
        }
        Kind::Rewound(it) => format!("{} taken back", turns(it.after_seq + 1, it.through_seq)),
        Kind::TurnUpdated(it) => turns(it.seq, it.seq),
        Kind::Ended(it) => match it.reason() {
            EndReason::Expired | EndReason::Evicted => String::new(),
            EndReason::Ended => "by command".to_owned(),
            _ => format!("by {}", short_name("EndReason", it.reason)),
        },
        Kind::HookDelivered(it) => hook(&it.hook, it.tries),
        Kind::HookFailed(it) => {
            let what = hook(&it.hook, it.tries) + verdict(it.gave_up);
            with_error(what, &it.error)
        }
        Kind::Compacted(it) => {
            let summary = it.summary.clone().unwrap_or_default();
            format!(
                "summary {} of turns {}-{} by {} ({}), {} → {} tokens",
                summary.number,
                summary.first_seq,
                summary.through_seq,
                made_by(&summary),
                short_name("CompactionTrigger", it.trigger),
                output::count(it.tokens_before),
                output::count(it.tokens_after),
            )
        }
        Kind::CompactionFailed(it) => {
            let breaker = short_name("BreakerState", it.breaker).replace('_', " ");
            let what = format!(
                "{} ({}), breaker {breaker}",
                text(&it.reason),
                short_name("CompactionTrigger", it.trigger)
            );
            with_error(what, &it.error)
        }
        Kind::CompactionUndone(it) => format!("summary {}", it.number),
        Kind::Learned(it) => format!(
            "{} by {} in {}, {} refused",
            output::counted(u64::from(it.accepted), "fact", "facts"),
            text(&it.model),
            turns(it.first_seq, it.through_seq),
            output::count(u64::from(it.rejected)),
        ),
        Kind::ExtractionFailed(it) => {
            let what = text(&it.reason) + verdict(it.gave_up);
            with_error(what, &it.error)
        }
    }
}

fn text(text: &str) -> String {
    output::one_line(text, TEXT_CHARS_MAX)
}

fn verdict(gave_up: bool) -> &'static str {
    if gave_up { ", given up" } else { "" }
}

/// Adds the error message of a program or service, which only operators receive.
fn with_error(what: String, error: &str) -> String {
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

fn hook(name: &str, tries: u32) -> String {
    let name = output::printable(name);
    match tries {
        0 | 1 => name,
        tries => format!("{name}, try {tries}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use memoird_proto::v1::{self, BreakerState, CompactionTrigger};
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

    fn watch_response(kind: Kind) -> WatchEventsResponse {
        let event = Event {
            event_id: 7,
            time: Some(Timestamp {
                seconds: 1_767_323_045,
                nanos: 67_800_000,
            }),
            tenant: "acme".to_owned(),
            session_id: "telegram:4711".to_owned(),
            generation: "01K".to_owned(),
            kind: Some(kind),
        };
        WatchEventsResponse {
            event: Some(event),
            ..Default::default()
        }
    }

    fn ended(reason: EndReason) -> Kind {
        let reason = reason.into();
        Kind::Ended(v1::SessionEnded { reason })
    }

    #[test]
    fn event_is_one_line() {
        let appended = |first_seq, last_seq, dropped_turns| {
            Kind::Appended(v1::TurnsAppended {
                first_seq,
                last_seq,
                dropped_turns,
                client_ids: Vec::new(),
            })
        };
        let hook_failed = |tries, gave_up, error: &str| {
            Kind::HookFailed(v1::HookFailed {
                hook: "crm".into(),
                delivery_id: "01K/crm".into(),
                tries,
                gave_up,
                error: error.into(),
            })
        };
        let compaction_failed = |reason: &str, breaker: BreakerState, error: &str| {
            Kind::CompactionFailed(v1::CompactionFailed {
                trigger: CompactionTrigger::Command.into(),
                reason: reason.into(),
                breaker: breaker.into(),
                error: error.into(),
            })
        };
        let delivered = v1::HookDelivered {
            hook: "checkpoint".into(),
            delivery_id: "01K/checkpoint".into(),
            tries: 1,
        };
        let compacted = v1::SessionCompacted {
            trigger: CompactionTrigger::Preemptive.into(),
            summary: Some(v1::SummaryInfo {
                number: 2,
                first_seq: 8,
                through_seq: 21,
                made_by: v1::SummaryMaker::Extractive.into(),
                ..Default::default()
            }),
            tokens_before: 9_000,
            tokens_after: 120,
        };
        let rewound = v1::SessionRewound {
            after_seq: 12,
            through_seq: 14,
        };
        let learned = v1::FactsLearned {
            model: "gpt".into(),
            first_seq: 1,
            through_seq: 6,
            accepted: 2,
            rejected: 1,
            tokens: 900,
        };
        let not_learned = v1::ExtractionFailed {
            reason: "timeout".into(),
            gave_up: true,
            error: "no answer".into(),
        };
        let cases = [
            (
                Kind::Created(v1::SessionCreated {}),
                "created         telegram:4711  generation 01K",
            ),
            (
                appended(13, 14, 2),
                "appended        telegram:4711  turns 13-14, 2 dropped",
            ),
            (
                appended(13, 13, 0),
                "appended        telegram:4711  turn 13",
            ),
            (ended(EndReason::Expired), "expired         telegram:4711"),
            (
                ended(EndReason::Ended),
                "ended           telegram:4711  by command",
            ),
            (
                ended(EndReason::Reset),
                "ended           telegram:4711  by reset",
            ),
            (
                Kind::HookDelivered(delivered),
                "hook_delivered  telegram:4711  checkpoint",
            ),
            (
                hook_failed(3, false, "no\nroute\u{1b}"),
                "hook_failed     telegram:4711  crm, try 3: no route\\u{1b}",
            ),
            (
                hook_failed(20, true, "404"),
                "hook_failed     telegram:4711  crm, try 20, given up: 404",
            ),
            (
                Kind::Compacted(compacted),
                "compacted       telegram:4711  summary 2 of turns 8-21 by extractive (preemptive), \
                 9,000 → 120 tokens",
            ),
            (
                compaction_failed("longer_than_the_span", BreakerState::HalfOpen, "7\n of 9"),
                "compaction_failed  telegram:4711  longer_than_the_span (command), breaker half open: 7 of 9",
            ),
            (
                compaction_failed("timeout", BreakerState::Open, ""),
                "compaction_failed  telegram:4711  timeout (command), breaker open",
            ),
            (
                Kind::Rewound(rewound),
                "rewound         telegram:4711  turns 13-14 taken back",
            ),
            (
                Kind::TurnUpdated(v1::TurnUpdated { seq: 7 }),
                "turn_updated    telegram:4711  turn 7",
            ),
            (
                Kind::Erased(v1::SessionErased {}),
                "erased          telegram:4711",
            ),
            (
                Kind::Learned(learned),
                "learned         telegram:4711  2 facts by gpt in turns 1-6, 1 refused",
            ),
            (
                Kind::ExtractionFailed(not_learned),
                "extraction_failed  telegram:4711  timeout, given up: no answer",
            ),
            (
                Kind::CompactionUndone(v1::CompactionUndone { number: 2 }),
                "compaction_undone  telegram:4711  summary 2",
            ),
        ];
        for (kind, expected) in cases {
            let line = line(&watch_response(kind), WATCH);
            let rest = line.strip_prefix("2026-01-02T03:04:05.067Z  ");
            assert_eq!(rest, Some(expected));
        }
    }

    #[test]
    fn columns_depend_on_events() {
        let response = watch_response(ended(EndReason::Evicted));
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
        let shown = json::of(&watch_response(ended(EndReason::Expired)));
        let expected = json!({"event": {
            "event_id": 7, "time": "2026-01-02T03:04:05.067800Z",
            "tenant": "acme", "session_id": "telegram:4711", "generation": "01K",
            "ended": { "reason": "END_REASON_EXPIRED" },
        }});
        assert_eq!(shown, expected);
    }
}
