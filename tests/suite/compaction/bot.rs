//! A bot with a long conversation, and what must be true of every window and of the journal
//! whatever becomes of its compaction.

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    Event, GetContextRequest, GetContextResponse, GetSessionRequest, GetSessionResponse, Omission,
    OmissionReason, Role, ToolResult, Turn,
};

use crate::harness::{
    Daemon, Events, Sessions, Summaries, Wire, append, assistant, detail, eventually, http_get,
    journal, text_of, tool_uses, turn, user,
};
use crate::windows::bot::{ask, budget, is_paired, report};

/// Tokens that a window may use.
pub(super) const BUDGET: u64 = 6_000;

/// Nothing is dropped by first in, first out.
pub(super) const ROOMY: &str = "short_term: { max_history_turns: 10000 }";

/// One try, and a provider that is never left alone: what fails is seen as it fails.
pub(super) const STRICT: &str = "provider_breaker: { failures: 100, cool_down: 1ms }, \
    soft_watermark: 85%, hard_watermark: 95%, summary_tokens: 2400,";

/// A window that is cut early.
pub(super) const EARLY: &str =
    "compaction: { soft_watermark: 70%, hard_watermark: 95%, summary_tokens: 2400 }";

/// A daemon whose summaries come from this provider.
pub(super) async fn daemon(provider: &Summaries, wire: Wire, own: &str) -> Daemon {
    Daemon::with(provider.setup(wire, own, STRICT).section(ROOMY)).await
}

/// A bot that has one conversation.
#[derive(Debug)]
pub(super) struct Bot {
    pub(super) client: Sessions,
    pub(super) session: String,
    /// The turns that were acknowledged.
    said: Vec<Turn>,
    exchanges: usize,
    /// Where the daemon's metrics are, when each exchange waits for the summary it asks for.
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

    /// One whose exchanges wait for the summaries that they ask for, so that it
    /// does not matter how busy the machine is.
    pub(super) fn patient(daemon: &Daemon) -> Self {
        let mut bot = Self::new(daemon.sessions());
        bot.waits_for_summaries(daemon);
        bot
    }

    /// From now on it is a patient one.
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

    /// The request for its window.
    pub(super) fn request(&self) -> GetContextRequest {
        let session_id = self.session.clone();
        GetContextRequest {
            session_id,
            budget: budget(BUDGET),
            ..GetContextRequest::default()
        }
    }

    /// The window as it is now.
    pub(super) async fn window(&mut self) -> GetContextResponse {
        let request = self.request();
        let window = ask(&mut self.client, request).await;
        self.check(&window);
        window
    }

    /// Appends, as bots do between windows.
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

    /// Appends and asks in one call.
    async fn says(&mut self, turn: Turn) -> GetContextResponse {
        let append = append("", [turn.clone()]);
        let request = GetContextRequest {
            append: Some(append),
            ..self.request()
        };
        let window = ask(&mut self.client, request).await;
        self.said.push(turn);
        self.check(&window);
        window
    }

    /// A whole exchange, each second one with a call of a tool. Gives its first window.
    pub(super) async fn exchange(&mut self) -> GetContextResponse {
        let number = self.exchanges;
        self.exchanges += 1;
        let window = self.says(user(&question(number))).await;
        if number % 2 == 1 {
            let id = format!("call-{number}");
            self.append(tool_uses(&[&id])).await;
            self.says(found(&id, number)).await;
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

    /// Exchanges until there is an event of this kind; gives it.
    pub(super) async fn until(&mut self, events: &mut Events, kind: &str) -> Event {
        for _ in 0..120 {
            self.exchange().await;
            while let Some(event) = events.soon().await {
                if event.kind == kind {
                    return event;
                }
            }
        }
        panic!("120 exchanges without {kind}");
    }

    /// Exchanges until windows show a summary of at least this number; gives its text.
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

    /// What must be true of every window: besides what the report says of itself, calls and
    /// results in pairs, the task and the newest turn in it, and every turn that is not in it
    /// accounted for.
    #[track_caller]
    fn check(&self, window: &GetContextResponse) {
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

    /// Expects that the journal has each acknowledged turn once, in order, as it was said.
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

    /// The session, looked at closely.
    pub(super) async fn look(&mut self) -> GetSessionResponse {
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

    /// The same bot at a daemon that was started again.
    pub(super) fn goes_on_at(&mut self, daemon: &Daemon) {
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

/// An order that one exchange is about.
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

/// The summary in a window, which stands right at its front; `None` where there is none.
#[track_caller]
pub(super) fn summary(window: &GetContextResponse) -> Option<&str> {
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

/// What is counted of compactions that ended so, whatever asked for them.
pub(super) async fn counted(daemon: &Daemon, outcome: &str) -> u64 {
    let mark = format!("outcome=\"{outcome}\"");
    sum(daemon, "memoird_compactions_total{", &mark).await
}

/// A figure on the page of metrics, summed over all that has this mark.
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

/// A field of an event that is text.
#[track_caller]
pub(super) fn told(event: &Event, name: &str) -> String {
    let detail = detail(event);
    detail[name]
        .as_str()
        .unwrap_or_else(|| panic!("no {name} in {detail}"))
        .to_owned()
}
