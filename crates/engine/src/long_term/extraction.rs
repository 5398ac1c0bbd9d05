//! Turns are handed to whoever lets a model look for facts in them, and are handed out again
//! until somebody says what was found.

use std::collections::BTreeMap;
use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::date::Date;
use memoird_core::ids::{Generation, LeaseId, SessionId, Subject};
use memoird_core::memory::prompt::{Ask, Said, prompt};
use memoird_core::memory::{Fact, IMPORTANCE_DEFAULT, NearDuplicate, Origin, Source};
use memoird_core::session::Head;
use memoird_core::time::Timestamp;
use memoird_core::turn::Turn;
use memoird_store::encoding;
use memoird_store::long_term::{Lease, LeaseAsk, MemoryReader};

use super::lane::Touch;
use super::remember::text_of;
use super::{ExtractedFact, ExtractionLease, ExtractionOutcome};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::read::{HistoryPage, HistoryQuery, HistoryScope};
use crate::tenant::{Tenant, ms};

/// How long what a session was told by a recall is no new fact.
const ECHO_MS: i64 = 24 * 60 * 60 * 1_000;
/// Pages in which all turns were said before a subject was forgotten, of one call.
const SKIPS_MAX: usize = 64;

/// Whose turns are looked for, and from where.
struct Reach {
    session: SessionId,
    generation: Generation,
    subject: Subject,
    cursor_seq: u64,
    not_before: Option<Timestamp>,
    recalled: Vec<String>,
}

impl Engine {
    /// Hands out the turns in which nobody has looked for facts yet; without any, no lease.
    ///
    /// # Errors
    /// [`CoreError::LeaseHeld`], a session or a generation that is not there, a session
    /// without a subject where the call names none.
    pub async fn lease_extraction(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        generation: Option<Generation>,
        subject: Option<Subject>,
    ) -> Result<ExtractionLease, EngineError> {
        // What this session was just told is among what waits to be written.
        self.flush_memories(tenant).await?;
        let mut reach = self.reach(tenant, session, generation, subject).await?;
        let page = self.turns_to_look_at(tenant, &mut reach).await?;
        let turns: Vec<(u64, Turn)> = page
            .turns
            .iter()
            .filter_map(|content| encoding::open_placed(content))
            .collect();
        let Some(&(to_seq, _)) = turns.last() else {
            return Ok(ExtractionLease {
                generation: Some(reach.generation),
                cursor_seq: reach.cursor_seq,
                ..ExtractionLease::default()
            });
        };
        let now = self.shared.machine.now().wall;
        let lease_ms = ms(self.shared.config.load().long_term.lease);
        let ask = LeaseAsk {
            id: LeaseId::new(now.as_ms(), self.shared.machine.random()),
            session: session.clone(),
            generation: reach.generation,
            subject: reach.subject.clone(),
            to_seq,
            now,
            until: Timestamp::from_ms(
                now.as_ms()
                    .saturating_add(i64::try_from(lease_ms).unwrap_or(i64::MAX)),
            ),
        };
        let (id, expires_at) = (ask.id, ask.until);
        let from_seq = turns.first().map_or(0, |(seq, _)| *seq);
        self.write_memories(tenant, move |writer| {
            let cursor = writer.cursor(&ask.session, ask.generation)?;
            if (from_seq..=to_seq).contains(&cursor.seq) {
                // Somebody looked at them between our look and here.
                return Err(CoreError::LeaseHeld { seconds_left: 1 }.into());
            }
            Ok((writer.take_lease(&ask)?, Touch::Nothing))
        })
        .await?;
        let manifest = self.manifest(tenant, reach.subject.clone(), 0, 0).await?;
        let texts: Vec<String> = turns.iter().map(|(_, turn)| text_of(turn)).collect();
        let said = turns.iter().zip(&texts).map(|((seq, turn), text)| Said {
            seq: *seq,
            on: turn.timestamp.map(Date::of),
            role: turn.role,
            text,
        });
        let recalled: Vec<&str> = reach.recalled.iter().map(String::as_str).collect();
        let ask = Ask {
            today: Date::of(now),
            subject: &reach.subject,
            manifest: &manifest.text,
            turns: &said.collect::<Vec<_>>(),
            recalled: &recalled,
        };
        Ok(ExtractionLease {
            lease: Some(id),
            prompt: prompt(&ask),
            turns: page.turns,
            manifest: manifest.text.clone(),
            expires_at,
            generation: Some(reach.generation),
            cursor_seq: reach.cursor_seq,
        })
    }

    /// Stores what was found, and marks the turns as looked at: both or nothing.
    ///
    /// # Errors
    /// [`CoreError::LeaseLost`], what the rules refuse: then nothing is stored.
    pub async fn commit_extraction(
        &self,
        tenant: &Arc<Tenant>,
        id: LeaseId,
        facts: Vec<ExtractedFact>,
    ) -> Result<ExtractionOutcome, EngineError> {
        let config = self.shared.config.load_full();
        let limits = config.long_term.limits.clone();
        if facts.len() > limits.extracted {
            let problem = format!("{} are more than {}", facts.len(), limits.extracted);
            return Err(CoreError::MemoryInvalid {
                field: "memories",
                problem,
            }
            .into());
        }
        let now = self.shared.machine.now().wall;
        let read = move |reader: &MemoryReader<'_>| reader.lease(id, now);
        let lease = self.read_memories(tenant, read).await?;
        let said_at = self.times_of(tenant, &lease, &facts).await?;
        let (mut remembering, mut redacted) = (Vec::new(), Vec::new());
        for fact in facts {
            let (fact, found) = self.admit(fact_of(fact, &lease, &said_at)?)?;
            remembering.push(self.remembering(fact, None, None, None));
            redacted.push(found);
        }
        let (lease, done) = self
            .write_memories(tenant, move |writer| {
                let done: Result<Vec<_>, _> = remembering
                    .iter()
                    .map(|fact| writer.remember(fact, &limits))
                    .collect();
                let lease = writer.commit_extraction(id, now)?;
                Ok(((lease, done?), Touch::All))
            })
            .await?;
        let results = done.into_iter().zip(redacted);
        let results = results.map(|(done, redacted)| self.remembered(tenant, done, redacted));
        Ok(ExtractionOutcome {
            cursor_seq: lease.to_seq,
            results: results.collect(),
        })
    }

    /// Whose turns are meant, and how far they were looked at.
    async fn reach(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        generation: Option<Generation>,
        subject: Option<Subject>,
    ) -> Result<Reach, EngineError> {
        let live = match self.session(tenant, session).await {
            Ok(view) => Some(view.head),
            Err(EngineError::SessionNotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let is_live = |head: &Head| generation.is_none_or(|named| named == head.generation);
        let (newest, whose) = match live.filter(is_live) {
            Some(head) => (Some(head.generation), head.subject),
            None => {
                let page = self.turns_after(tenant, session, generation, 0, 1).await?;
                (page.generation, page.subject)
            }
        };
        let not_found = || EngineError::SessionNotFound {
            session: session.clone(),
        };
        let generation = newest.ok_or_else(not_found)?;
        let subject = subject.or(whose).ok_or_else(|| {
            let problem = "is empty, and the session does not say whose memories these become";
            CoreError::MemoryInvalid {
                field: "subject",
                problem: problem.to_owned(),
            }
        })?;
        let echoes_max = self.shared.config.load().long_term.limits.echoes;
        let now = self.shared.machine.now().wall;
        let since = Timestamp::from_ms(now.as_ms() - ECHO_MS);
        let (asked, whose) = (session.clone(), subject.clone());
        let read = move |reader: &MemoryReader<'_>| {
            let cursor = reader.cursor(&asked, generation)?;
            // Whether somebody holds a lease is said where one is taken.
            let remembered = reader.remembered_seqs(&asked, generation, cursor.seq)?;
            let not_before = reader.not_before(&whose)?.max(cursor.not_before);
            let echoes = reader.echoes(&asked, since, echoes_max)?;
            Ok((cursor.seq, remembered, not_before, echoes))
        };
        let (seq, remembered, not_before, echoes) = self.read_memories(tenant, read).await?;
        let mut reach = Reach {
            session: session.clone(),
            generation,
            subject,
            cursor_seq: seq,
            not_before,
            recalled: echoes.into_iter().map(|(_, content)| content).collect(),
        };
        // Where the bot itself remembered, it has looked.
        if let Some(&newest) = remembered.last().filter(|newest| **newest > seq) {
            self.skip_to(tenant, &mut reach, newest).await?;
        }
        Ok(reach)
    }

    /// The next turns. Those that were said before their subject was forgotten are skipped.
    async fn turns_to_look_at(
        &self,
        tenant: &Arc<Tenant>,
        reach: &mut Reach,
    ) -> Result<HistoryPage, EngineError> {
        let turns_max = self.shared.config.load().long_term.limits.lease_turns;
        for _ in 0..SKIPS_MAX {
            let (session, generation) = (reach.session.clone(), Some(reach.generation));
            let after = reach.cursor_seq;
            let mut page = self
                .turns_after(tenant, &session, generation, after, turns_max)
                .await?;
            if page.turns.is_empty() && after > 0 && self.is_gone(tenant, reach).await? {
                // Whatever happened to the turn that was looked at last: better twice than
                // never.
                page = self
                    .turns_after(tenant, &session, generation, 0, turns_max)
                    .await?;
            }
            let Some(not_before) = reach.not_before else {
                return Ok(page);
            };
            let is_old = |content: &Arc<[u8]>| {
                let turn = encoding::open(content);
                turn.and_then(|turn| turn.timestamp)
                    .is_some_and(|said| said < not_before)
            };
            let old = page
                .turns
                .iter()
                .take_while(|content| is_old(content))
                .count();
            let last_old = old
                .checked_sub(1)
                .and_then(|last| encoding::open_placed(&page.turns[last]));
            if let Some((seq, _)) = last_old {
                self.skip_to(tenant, reach, seq).await?;
            }
            page.turns.drain(..old);
            if !page.turns.is_empty() || old == 0 {
                return Ok(page);
            }
        }
        Ok(HistoryPage::default())
    }

    /// True when the generation has no turn up to the cursor any more.
    async fn is_gone(&self, tenant: &Arc<Tenant>, reach: &Reach) -> Result<bool, EngineError> {
        let (session, generation) = (&reach.session, Some(reach.generation));
        let at = reach.cursor_seq.saturating_sub(1);
        let page = self.turns_after(tenant, session, generation, at, 1).await?;
        Ok(page.turns.is_empty())
    }

    async fn skip_to(
        &self,
        tenant: &Arc<Tenant>,
        reach: &mut Reach,
        to_seq: u64,
    ) -> Result<(), EngineError> {
        let (session, subject) = (reach.session.clone(), reach.subject.clone());
        let (generation, now) = (reach.generation, self.shared.machine.now().wall);
        self.write_memories(tenant, move |writer| {
            writer.skip_turns(&session, generation, &subject, to_seq, now)?;
            Ok(((), Touch::Nothing))
        })
        .await?;
        reach.cursor_seq = to_seq;
        Ok(())
    }

    /// Turns of a generation: all of them where there is a journal.
    async fn turns_after(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        generation: Option<Generation>,
        after_seq: u64,
        turns_max: usize,
    ) -> Result<HistoryPage, EngineError> {
        let scope = match self.shared.journal.is_on() {
            true => HistoryScope::Journal,
            false => HistoryScope::Live,
        };
        let bytes_max = self.shared.config.load().long_term.limits.lease_bytes;
        let query = HistoryQuery {
            scope,
            generation,
            after_seq,
            turns_max,
            bytes_max,
        };
        self.history(tenant, session, query).await
    }

    /// When the turns of a lease were said, where a fact does not say when it was so.
    async fn times_of(
        &self,
        tenant: &Arc<Tenant>,
        lease: &Lease,
        facts: &[ExtractedFact],
    ) -> Result<BTreeMap<u64, Timestamp>, EngineError> {
        if facts.iter().all(|fact| fact.observed_at.is_some()) {
            return Ok(BTreeMap::new());
        }
        let turns_max = self.shared.config.load().long_term.limits.lease_turns;
        let (session, generation) = (&lease.session, Some(lease.generation));
        let page = self.turns_after(tenant, session, generation, lease.after_seq, turns_max);
        let page = match page.await {
            Ok(page) => page,
            // Their retention is over since: what was found in them still counts.
            Err(EngineError::SessionNotFound { .. } | EngineError::GenerationNotFound { .. }) => {
                HistoryPage::default()
            }
            Err(error) => return Err(error),
        };
        let placed = page
            .turns
            .iter()
            .filter_map(|content| encoding::open_placed(content));
        Ok(placed
            .filter_map(|(seq, turn)| Some((seq, turn.timestamp?)))
            .collect())
    }
}

fn fact_of(
    found: ExtractedFact,
    lease: &Lease,
    said_at: &BTreeMap<u64, Timestamp>,
) -> Result<Fact, CoreError> {
    let leased = lease.after_seq + 1..=lease.to_seq;
    if let Some(seq) = found.seqs.iter().find(|seq| !leased.contains(seq)) {
        let problem = format!("{seq} is not among the leased turns {leased:?}");
        return Err(CoreError::MemoryInvalid {
            field: "memories.seqs",
            problem,
        });
    }
    let seqs: Vec<u64> = if found.seqs.is_empty() {
        leased.collect()
    } else {
        found.seqs
    };
    let last = seqs.iter().copied().max().unwrap_or(lease.to_seq);
    Ok(Fact {
        subject: lease.subject.clone(),
        kind: found.kind,
        visibility: found.visibility,
        polarity: found.polarity,
        content: found.content,
        tags: found.tags,
        importance: found.importance.unwrap_or(IMPORTANCE_DEFAULT),
        observed_at: found.observed_at.or_else(|| said_at.get(&last).copied()),
        source: Some(Source {
            session: lease.session.clone(),
            generation: Some(lease.generation),
            seqs,
        }),
        expires_at: found.expires_at,
        supersedes: found.supersedes,
        pinned: false,
        near_duplicate: NearDuplicate::Merge,
        origin: Origin::Extraction,
    })
}
