//! A bot with a long conversation that checks the invariants of every window and of the journal.

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    BuildContextRequest, BuildContextResponse, Event, GetSessionRequest, GetSessionResponse,
    Omission, OmissionReason, Role, ToolResult, Turn,
};

use crate::harness::{
    Daemon, Events, Sessions, Summaries, Wire, append, assistant, detail, eventually, http_get,
    journal, text_of, tool_uses, turn, user,
};
use crate::windows::bot::{ask, budget, is_paired, report};

/// Token budget of a window.
pub(super) const BUDGET: u64 = 6_000;

/// High enough that no turn is dropped.
pub(super) const ROOMY: &str = "short_term: { max_history_turns: 10000 }";

/// No provider breaker, so that each failure is visible at once.
pub(super) const STRICT: &str = "provider_breaker: { failures: 100, cool_down: 1ms }, \
    soft_watermark: 85%, hard_watermark: 95%, summary_tokens: 2400,";

/// Early watermarks.
pub(super) const EARLY: &str =
    "compaction: { soft_watermark: 70%, hard_watermark: 95%, summary_tokens: 2400 }";

/// Starts a daemon with this provider as its summarizer.
pub(super) async fn daemon(provider: &Summaries, wire: Wire, own: &str) -> Daemon {
    Daemon::with(provider.setup(wire, own, STRICT).section(ROOMY)).await
}

#[derive(Debug)]
pub(super) struct Bot {
    pub(super) client: Sessions,
    pub(super) session: String,
    /// Acknowledged turns.
    said: Vec<Turn>,
    exchanges: usize,
    /// Admin address of the daemon, if each exchange waits for compactions to finish.
    patience: Option<String>,
}

impl Bot {
    pub(super) fn new(client: Sessions) -> Self {
        Self::named(client, "chat")
    }

    pub(super) fn named(client: Sessions, session: &str) -> Self {
        Self {
            client,
            session: session.to_owned(),
            said: Vec::new(),
            exchanges: 0,
            patience: None,
        }
    }

    /// A bot whose exchanges wait for pending compactions.
    ///
    /// The outcome therefore does not depend on the load of the machine.
    pub(super) fn patient(daemon: &Daemon) -> Self {
        let mut bot = Self::new(daemon.sessions());
        bot.waits_for_summaries(daemon);
        bot
    }

    /// Makes exchanges wait for pending compactions from now on.
    pub(super) fn waits_for_summaries(&mut self, daemon: &Daemon) {
        self.patience = Some(daemon.admin_addr().to_owned());
    }

    async fn settled(&self) {
        let Some(admin) = &self.patience else { return };
        eventually("no summary is asked for", async || {
            let (_, page) = http_get(admin, "/metrics").await;
            page.lines()
                .any(|line| line == "memoird_compactions_pending 0")
                .then_some(())
        })
        .await;
    }

    pub(super) fn request(&self) -> BuildContextRequest {
        let session_id = self.session.clone();
        BuildContextRequest {
            session_id,
            budget: budget(BUDGET),
            ..BuildContextRequest::default()
        }
    }

    /// Returns the current window after checking its invariants.
    pub(super) async fn window(&mut self) -> BuildContextResponse {
        let request = self.request();
        let window = ask(&mut self.client, request).await;
        self.check(&window);
        window
    }

    /// Appends a turn without requesting a window.
    pub(super) async fn append(&mut self, turn: Turn) {
        let request = append(&self.session, [turn.clone()]);
        let answer = self
            .client
            .append(request)
            .await
            .expect("appended")
            .into_inner();
        self.said.push(turn);
        assert_eq!(answer.last_seq, self.said.len() as u64, "each once");
    }

    /// Appends a turn and requests a window in the same call.
    async fn append_and_get_window(&mut self, turn: Turn) -> BuildContextResponse {
        let append = append("", [turn.clone()]);
        let request = BuildContextRequest {
            append: Some(append),
            ..self.request()
        };
        let window = ask(&mut self.client, request).await;
        self.said.push(turn);
        self.check(&window);
        window
    }

    /// One exchange, every second one with a tool call. Returns its first window.
    pub(super) async fn exchange(&mut self) -> BuildContextResponse {
        let number = self.exchanges;
        self.exchanges += 1;
        let window = self.append_and_get_window(user(&question(number))).await;
        if number % 2 == 1 {
            let id = format!("call-{number}");
            self.append(tool_uses(&[&id])).await;
            self.append_and_get_window(found(&id, number)).await;
        }
        self.append(assistant(&answer(number))).await;
        self.settled().await;
        window
    }

    pub(super) async fn exchanges(&mut self, count: usize) {
        for _ in 0..count {
            self.exchange().await;
        }
    }

    /// Runs exchanges until an event of this kind arrives, and returns it.
    pub(super) async fn until(&mut self, events: &mut Events, kind: &str) -> Event {
        for _ in 0..120 {
            self.exchange().await;
            while let Some(event) = events.soon().await {
                if event.word() == kind {
                    return event;
                }
            }
        }
        panic!("120 exchanges without {kind}");
    }

    /// Runs exchanges until windows show at least this summary, and returns its text.
    pub(super) async fn until_shown(&mut self, number: u32) -> String {
        for _ in 0..120 {
            let window = self.window().await;
            let shown = report(&window).summary.as_ref().map(|it| it.number);
            if shown.is_some_and(|shown| shown >= number) {
                return summary(&window).expect("a summary").to_owned();
            }
            self.exchange().await;
        }
        panic!("120 exchanges without summary {number} in a window");
    }

    /// Asserts the invariants of a window.
    ///
    /// The window matches its report, calls and results are paired, the task and the newest turn
    /// are in it, and every other turn is accounted for.
    #[track_caller]
    fn check(&self, window: &BuildContextResponse) {
        let turns = &window.turns;
        let is_open = self.said.last().is_some_and(has_call);
        is_paired(if is_open {
            &turns[..turns.len() - 1]
        } else {
            turns
        });
        let seqs: Vec<u64> = turns
            .iter()
            .map(|turn| turn.seq)
            .filter(|&seq| seq > 0)
            .collect();
        assert!(seqs.is_sorted_by(|one, next| one < next), "{seqs:?}");
        let last = self.said.len() as u64;
        assert_eq!(seqs.last(), Some(&last), "the newest turn is shown");
        let omissions = &report(window).omissions;
        let holds_first =
            |gap: &&Omission| gap.first_seq == 1 && gap.reason() == OmissionReason::Summarized;
        assert!(
            seqs[0] == 1 || omissions.iter().any(|gap| holds_first(&gap)),
            "the task is shown, or the summary has it"
        );
        for seq in 1..=last {
            let is_told = omissions
                .iter()
                .any(|gap| (gap.first_seq..=gap.last_seq).contains(&seq));
            assert!(
                is_told || seqs.contains(&seq),
                "{seq} is neither shown nor told of"
            );
        }
    }

    /// Asserts that the journal holds each acknowledged turn once, in order and unchanged.
    pub(super) async fn journal_is_whole(&mut self) {
        let turns = journal(&mut self.client, &self.session, "").await;
        assert_eq!(turns.len(), self.said.len());
        for (place, (stored, said)) in turns.iter().zip(&self.said).enumerate() {
            assert_eq!(stored.seq, place as u64 + 1);
            assert_eq!(
                (stored.role, &stored.parts),
                (said.role, &said.parts),
                "{place}"
            );
        }
    }

    pub(super) async fn session_detail(&mut self) -> GetSessionResponse {
        let request = GetSessionRequest {
            session_id: self.session.clone(),
            ..Default::default()
        };
        self.client
            .get_session(request)
            .await
            .expect("a session")
            .into_inner()
    }

    /// Continues with a restarted daemon.
    pub(super) fn reconnect(&mut self, daemon: &Daemon) {
        self.client = daemon.sessions();
        if let Some(admin) = &mut self.patience {
            daemon.admin_addr().clone_into(admin);
        }
    }
}

fn has_call(turn: &Turn) -> bool {
    turn.parts
        .iter()
        .any(|part| matches!(part.part, Some(Kind::ToolUse(_))))
}

/// The id of the order that one exchange is about.
pub(super) fn order(number: usize) -> String {
    format!("ORD-{number:05}")
}

fn question(number: usize) -> String {
    let order = order(number);
    format!(
        "Where is {order}? {}",
        "I have been waiting for it since long ago. ".repeat(8)
    )
}

fn answer(number: usize) -> String {
    let order = order(number);
    format!(
        "{order} has left the house. {}",
        "It is on its way and will be there soon. ".repeat(8)
    )
}

fn found(id: &str, number: usize) -> Turn {
    let content = format!("{{\"order\":\"{}\",\"state\":\"sent\"}}", order(number));
    let result = ToolResult {
        tool_use_id: id.into(),
        content,
        ..ToolResult::default()
    };
    turn(Role::Tool, [Kind::ToolResult(result)])
}

/// Returns the summary at the front of a window, if there is one.
#[track_caller]
pub(super) fn summary(window: &BuildContextResponse) -> Option<&str> {
    let is_one = |turn: &Turn| {
        turn.metadata
            .get("memoird")
            .is_some_and(|mark| mark == "summary")
    };
    let place = window.turns.iter().position(is_one)?;
    assert_eq!(place, 0, "right behind the system prompt");
    let mark = window.turns[1].metadata.get("memoird").map(String::as_str);
    assert_eq!(
        (mark, window.turns[1].role()),
        (Some("acknowledgement"), Role::Assistant)
    );
    assert_eq!(window.turns[0].role(), Role::User);
    assert!(report(window).tokens_by_block.expect("blocks").summary > 0);
    Some(text_of(&window.turns[0]))
}

/// The number of compactions with this outcome, of all triggers.
pub(super) async fn counted(daemon: &Daemon, outcome: &str) -> u64 {
    let mark = format!("outcome=\"{outcome}\"");
    sum(daemon, "memoird_compactions_total{", &mark).await
}

/// A metric summed over all lines that contain this label.
pub(super) async fn sum(daemon: &Daemon, name: &str, mark: &str) -> u64 {
    let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
    let lines = page
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(mark));
    let values: Vec<&str> = lines.filter_map(|line| line.rsplit(' ').next()).collect();
    assert!(!values.is_empty(), "no {name} with {mark} in {page}");
    let whole = |value: &&str| {
        value
            .split('.')
            .next()
            .and_then(|whole| whole.parse::<u64>().ok())
    };
    values
        .iter()
        .map(|value| whole(value).expect("a figure"))
        .sum()
}

/// Returns a text field of an event.
#[track_caller]
pub(super) fn event_text(event: &Event, name: &str) -> String {
    let detail = detail(event);
    detail[name]
        .as_str()
        .unwrap_or_else(|| panic!("no {name} in {detail}"))
        .to_owned()
}

/// What made the summary of an event: `extractive`, or the provider and its model.
#[track_caller]
pub(super) fn event_maker(event: &Event) -> String {
    match &*event_text(event, "made_by") {
        "SUMMARY_MAKER_EXTRACTIVE" => "extractive".to_owned(),
        _ => event_text(event, "model"),
    }
}
