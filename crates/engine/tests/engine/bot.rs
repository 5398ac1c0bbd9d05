//! Test client that calls the engine's commands for one tenant.

use std::sync::Arc;

use memoird_core::idempotency::IdempotencyKey;
use memoird_core::ids::Generation;
use memoird_core::options::OptionsPatch;
use memoird_core::session::AppendCommand;
use memoird_core::state::{State, StatePatch};
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_engine::{
    AppendOutcome, EndCommand, EndOutcome, Engine, EngineError, HistoryQuery, HistoryScope,
    JournalRange, PatchCommand, SessionQuery, SessionView, Tenant, TenantSnapshot,
};
use memoird_store::encoding;

use crate::kit::{ACME, session_id, tenant_id};

/// Query for all turns of the live history.
pub(crate) const ALL: HistoryQuery = HistoryQuery {
    scope: HistoryScope::Live,
    generation: None,
    range: JournalRange::ALL,
};

#[derive(Clone, Debug)]
pub(crate) struct Bot {
    pub(crate) engine: Engine,
    pub(crate) tenant: Arc<Tenant>,
}

/// Builds an append with one user turn per text.
pub(crate) fn saying(texts: &[&str]) -> AppendCommand {
    let turns = texts.iter().map(|text| {
        // The brackets let `text_of` find the text inside the encoded turn.
        let part = PartKind::Text(format!("[[{text}]]"));
        encoding::encode(Turn::new(Role::User, vec![part.into()]))
    });
    AppendCommand {
        turns: turns.collect(),
        ..AppendCommand::default()
    }
}

/// Like `saying`, with an idempotency key derived from `name` and a content digest from `texts`.
pub(crate) fn named(name: &str, texts: &[&str]) -> AppendCommand {
    let digest = |text: &str| {
        let mut digest = [0; 16];
        for (place, byte) in text.bytes().enumerate() {
            digest[place % 16] ^= byte.wrapping_add(u8::try_from(place % 251).unwrap());
        }
        digest
    };
    let idempotency = IdempotencyKey {
        key: digest(name),
        content: digest(&texts.join("\n")),
    };
    AppendCommand {
        idempotency: Some(idempotency),
        ..saying(texts)
    }
}

/// Extracts the text of an encoded turn.
pub(crate) fn text_of(content: &[u8]) -> String {
    let text = String::from_utf8_lossy(content);
    let Some((_, rest)) = text.rsplit_once("[[") else {
        return text.into_owned();
    };
    rest.split_once("]]").unwrap().0.to_owned()
}

impl Bot {
    pub(crate) fn acme(engine: &Engine) -> Self {
        Self::new(engine, ACME)
    }

    pub(crate) fn new(engine: &Engine, tenant: &str) -> Self {
        let tenant = engine.tenants.get(&tenant_id(tenant)).unwrap();
        Self {
            engine: engine.clone(),
            tenant,
        }
    }

    pub(crate) async fn say(
        &self,
        session: &str,
        text: &str,
    ) -> Result<AppendOutcome, EngineError> {
        self.append(session, saying(&[text])).await
    }

    pub(crate) async fn append(
        &self,
        session: &str,
        command: AppendCommand,
    ) -> Result<AppendOutcome, EngineError> {
        self.engine
            .commands
            .append(&self.tenant, &session_id(session), command)
            .await
    }

    pub(crate) async fn view(&self, session: &str) -> Result<SessionView, EngineError> {
        self.engine
            .commands
            .session(&self.tenant, &session_id(session))
            .await
    }

    pub(crate) async fn end(&self, session: &str) -> Result<SessionView, EngineError> {
        let outcome = self.end_by(session, EndCommand::default()).await?;
        Ok(outcome.session.unwrap())
    }

    pub(crate) async fn end_by(
        &self,
        session: &str,
        command: EndCommand,
    ) -> Result<EndOutcome, EngineError> {
        self.engine
            .commands
            .end_session(&self.tenant, &session_id(session), command)
            .await
    }

    pub(crate) async fn reset(
        &self,
        session: &str,
    ) -> Result<(SessionView, Generation), EngineError> {
        let outcome = self.reset_by(session, false, EndCommand::default()).await?;
        Ok((outcome.session.unwrap(), outcome.ended_generation))
    }

    pub(crate) async fn reset_with_hooks(
        &self,
        session: &str,
    ) -> Result<(SessionView, Generation), EngineError> {
        let outcome = self.reset_by(session, true, EndCommand::default()).await?;
        Ok((outcome.session.unwrap(), outcome.ended_generation))
    }

    pub(crate) async fn reset_by(
        &self,
        session: &str,
        run_hooks: bool,
        command: EndCommand,
    ) -> Result<EndOutcome, EngineError> {
        self.engine
            .commands
            .reset_session(&self.tenant, &session_id(session), run_hooks, command)
            .await
    }

    pub(crate) async fn patch(
        &self,
        session: &str,
        patch: &str,
        expected_version: Option<u64>,
    ) -> Result<State, EngineError> {
        let session = session_id(session);
        let command = PatchCommand {
            state: Some(StatePatch {
                expected_version,
                ..patch.into()
            }),
            ..PatchCommand::default()
        };
        self.engine
            .commands
            .patch_state(&self.tenant, &session, &command)
            .await
            .map(|outcome| outcome.session.expect("a session").1)
    }

    /// Sets a label, creating the session if needed. An empty value removes the label.
    pub(crate) async fn label(
        &self,
        session: &str,
        name: &str,
        value: &str,
    ) -> Result<State, EngineError> {
        let command = PatchCommand {
            options: OptionsPatch {
                labels: [(name.into(), value.into())].into(),
                ..OptionsPatch::default()
            },
            create: true,
            ..PatchCommand::default()
        };
        let session = session_id(session);
        let commands = &self.engine.commands;
        let patched = commands.patch_state(&self.tenant, &session, &command).await;
        patched.map(|outcome| outcome.session.expect("a session").1)
    }

    /// Returns the texts of the live history.
    pub(crate) async fn live(&self, session: &str) -> Result<Vec<String>, EngineError> {
        Ok(self.read(session, ALL).await?.0)
    }

    /// Returns the texts in the journal of a generation, or of the newest one for `None`.
    pub(crate) async fn journal(
        &self,
        session: &str,
        generation: Option<Generation>,
    ) -> Result<Vec<String>, EngineError> {
        let query = HistoryQuery {
            scope: HistoryScope::Journal,
            generation,
            ..ALL
        };
        Ok(self.read(session, query).await?.0)
    }

    /// Returns one page of texts and the `after_seq` of the next page.
    pub(crate) async fn read(
        &self,
        session: &str,
        query: HistoryQuery,
    ) -> Result<(Vec<String>, u64), EngineError> {
        let page = self
            .engine
            .commands
            .history(&self.tenant, &session_id(session), query)
            .await?;
        Ok((
            page.turns.iter().map(|turn| text_of(turn)).collect(),
            page.next_after_seq(),
        ))
    }

    /// Returns the ids of all live sessions, most recently used first, read in pages of three.
    pub(crate) async fn list(&self) -> Vec<String> {
        self.list_of(&SessionQuery::default(), 3).await
    }

    pub(crate) async fn list_of(&self, query: &SessionQuery, page_size: usize) -> Vec<String> {
        let views = self.views_of(query, page_size).await;
        let id = |view: &SessionView| view.session.as_str().to_owned();
        views.iter().map(id).collect()
    }

    pub(crate) async fn views(&self, page_size: usize) -> Vec<SessionView> {
        self.views_of(&SessionQuery::default(), page_size).await
    }

    pub(crate) async fn views_of(
        &self,
        query: &SessionQuery,
        page_size: usize,
    ) -> Vec<SessionView> {
        let mut views = Vec::new();
        let mut next = None;
        loop {
            let page = self
                .engine
                .commands
                .sessions(&self.tenant, query, next.as_ref(), page_size)
                .await
                .unwrap();
            assert!(page.sessions.len() <= page_size);
            views.extend(page.sessions);
            next = page.next;
            if next.is_none() {
                return views;
            }
        }
    }

    pub(crate) fn stats(&self) -> TenantSnapshot {
        let all = self.engine.stats().tenants;
        all.into_iter()
            .find(|tenant| tenant.id == self.tenant.id)
            .unwrap()
    }

    /// Asserts that the tenant's live counters equal a recount of its sessions, turns and bytes.
    pub(crate) async fn recount(&self) {
        let (mut sessions, mut turns, mut bytes) = (0, 0, 0);
        for view in self.views(100).await {
            let page = self
                .engine
                .commands
                .history(&self.tenant, &view.session, ALL)
                .await
                .unwrap();
            sessions += 1;
            turns += page.turns.len() as u64;
            bytes += page.turns.iter().map(|turn| turn.len() as u64).sum::<u64>();
        }
        let stats = self.stats();
        let counted = (stats.sessions_live, stats.turns_live, stats.bytes_live);
        assert_eq!(
            counted,
            (sessions, turns, bytes),
            "sessions, turns and bytes of {stats:?}"
        );
    }
}
