//! `memoird watch`: events as they come, across restarts of the daemon.

use std::time::Duration;

use clap::Args;
use memoird_proto::v1::{WatchEventsRequest, WatchEventsResponse};
use tokio::time::sleep;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

use super::connect::Target;
use super::events::{self, Columns};
use super::exit::{CliError, is_transport};
use super::{ClientArgs, json, output};

/// How long to wait before connecting again: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Which events.
#[derive(Args)]
pub(crate) struct WatchArgs {
    /// Begin with what came after this event, as far back as the daemon remembers
    #[arg(long, value_name = "ID", conflicts_with = "all")]
    after: Option<u64>,
    /// The events of every tenant (role admin)
    #[arg(long)]
    all: bool,
}

/// Somebody who watches.
struct Watch<'a> {
    target: &'a Target,
    all: bool,
    json: bool,
    /// The newest event that was printed.
    last_id: u64,
    /// True when a daemon has answered before: only then waiting for one makes sense.
    was_connected: bool,
    /// True from a connection's end to the next event or connection.
    is_away: bool,
}

/// Prints until it is interrupted, nobody reads any more, or the daemon refuses for good.
pub(crate) async fn run(client: &ClientArgs, args: WatchArgs) -> Result<(), CliError> {
    let target = client.connect.target()?;
    let mut watch = Watch {
        target: &target,
        all: args.all,
        json: client.json,
        last_id: args.after.unwrap_or(0),
        was_connected: false,
        is_away: false,
    };
    tokio::select! {
        result = watch.follow() => result,
        () = output::reader_gone() => Err(CliError::OutputClosed),
    }
}

impl Watch<'_> {
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
        // Of all tenants there is no place in the stream to go on from.
        let after_event_id = if self.all { 0 } else { self.last_id };
        let request = WatchEventsRequest {
            after_event_id,
            all_tenants: self.all,
        };
        let reply = self.target.sessions().watch_events(request).await?;
        self.was_connected = true;
        if self.is_away {
            self.is_away = false;
            let place = match after_event_id {
                0 => "from now on".to_owned(),
                id => format!("after event {id}"),
            };
            output::note(&format!("connected again, {place}"));
        }
        Ok(reply.into_inner())
    }

    /// Prints what comes; gives how the stream ended.
    async fn print_all(
        &mut self,
        events: &mut Streaming<WatchEventsResponse>,
    ) -> Result<Status, CliError> {
        loop {
            match events.message().await {
                Ok(Some(told)) => self.print(&told)?,
                Ok(None) => return Ok(Status::unavailable("the stream has ended")),
                Err(status) => return Ok(status),
            }
        }
    }

    fn print(&mut self, told: &WatchEventsResponse) -> Result<(), CliError> {
        let is_followed = !self.all && self.last_id > 0;
        if let Some(event) = &told.event {
            if is_followed && event.event_id != self.last_id + 1 {
                output::note("the daemon was started anew: its events count from another number");
            }
            self.last_id = event.event_id;
        } else if is_followed {
            self.last_id += told.missed;
        }
        let columns = Columns {
            whole: true,
            tenant: self.all,
        };
        let line = match self.json {
            true => json::of(told).to_string(),
            false => events::line(told, columns),
        };
        output::print(&line)
    }
}

/// True when asking again would be answered in the same way.
fn is_final(status: &Status) -> bool {
    let has_hint = status.get_details_retry_info().is_some();
    let may_pass = has_hint
        || is_transport(status)
        || matches!(status.code(), Code::Unavailable | Code::Aborted);
    !may_pass
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use tonic_types::ErrorDetails;

    #[test]
    fn only_what_may_pass_is_waited_for() {
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
}
