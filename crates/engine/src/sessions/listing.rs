//! Listing of a tenant's live sessions and ended generations.
//!
//! A call checks a bounded number of sessions, whatever the query. A page may therefore be short,
//! and contains the position of the next one. Live sessions are listed here, ended generations by
//! the store, and `merge` makes one list of both.

mod merge;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId, Subject};
use memoird_core::session::Head;
use memoird_core::time::{Now, Steady, Timestamp};
pub use memoird_store::SessionOrder;
use memoird_store::{EndedPosition, EndedQuery, LiveQuery, Store};

use merge::ListPart;
pub use merge::{PartPosition, SessionListPosition, SessionPage};

use super::handle::{SessionRef, Sessions};
use super::orders::{Direction, IdRange, PageStart, SessionOrders, Term, UsedSession};
use super::slot::{Slot, SlotState};
use super::view::SessionView;
use crate::error::EngineError;
use crate::tenants::Tenant;

/// Maximum sessions from an index that one call sorts by last use.
///
/// For larger ranges, the LRU order is walked instead.
const SORTED_MAX: usize = 4_096;
/// Approximate maximum number of sessions checked per call.
const SESSIONS_CHECKED_MAX: usize = 8_192;
/// Number of sessions taken from an index at once.
const SESSIONS_PER_INDEX_READ: usize = 256;

/// Tolerance in milliseconds when a client passes back a time returned for a session.
///
/// Both clocks are read with millisecond resolution.
const TIME_TOLERANCE_MS: u64 = 1;

/// Whether a list contains live sessions, ended generations or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionState {
    #[default]
    Live,
    Ended,
    Any,
}

#[derive(Clone, Debug, Default)]
pub struct SessionQuery {
    pub state: SessionState,
    /// Prefix of the session ids. May be empty.
    pub id_prefix: Arc<str>,
    pub subject: Option<Subject>,
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Earliest last access of a live session, and earliest end of an ended one, inclusive.
    pub used_after: Option<Timestamp>,
    /// Latest last access or end, inclusive.
    pub used_before: Option<Timestamp>,
    pub order: SessionOrder,
}

/// Position after a live session in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePosition {
    pub session: SessionId,
    /// Last access of the session. Unused in the order of ids.
    pub at: Steady,
}

/// A query at a fixed time.
struct ListSearch<'a> {
    query: &'a SessionQuery,
    tenant: &'a Arc<Tenant>,
    now: Now,
    from: Steady,
    until: Steady,
}

/// Matching sessions in order, and the position of the next page.
struct FoundSessions {
    slots: Vec<(Arc<Slot>, Steady)>,
    next: Option<LivePosition>,
}

impl<'a> ListSearch<'a> {
    /// Returns `None` if no session can match.
    fn new(query: &'a SessionQuery, tenant: &'a Arc<Tenant>, now: Now) -> Option<Self> {
        let after = query.used_after.and_then(|at| now.steady_of(at));
        let until = match query.used_before {
            None => u64::MAX,
            Some(at) => now.steady_of(at)?.0.saturating_add(TIME_TOLERANCE_MS),
        };
        Some(Self {
            query,
            tenant,
            now,
            from: after.map_or(Steady(0), |at| {
                Steady(at.0.saturating_sub(TIME_TOLERANCE_MS))
            }),
            until: Steady(until),
        })
    }

    fn matches(&self, id: &SessionId, head: &Head) -> bool {
        let query = self.query;
        let mut labels = query.labels.iter();
        (self.from..=self.until).contains(&head.last_access)
            && (query.subject.is_none() || query.subject == head.subject)
            && labels.all(|(name, value)| head.label(name) == Some(value))
            && id.as_str().starts_with(&*query.id_prefix)
            && !head.is_expired(self.now.steady, self.tenant.ttl_ms(head))
    }

    /// Last access of a session that matches, else `None`.
    ///
    /// A stale session, which must be read from the journal, is assumed to match.
    fn last_access_if_match(&self, slot: &Slot) -> Option<Steady> {
        let inner = slot.lock();
        match inner.head() {
            Some(head) => self
                .matches(&slot.key.session, head)
                .then_some(head.last_access),
            None if matches!(inner.state(), SlotState::Stale(_)) => {
                Some(self.until.min(self.now.steady))
            }
            None => None,
        }
    }

    /// Index ranges, each a superset of the matches. Empty if the query selects all sessions.
    fn ranges(&self) -> Vec<IdRange> {
        let labels = self
            .query
            .labels
            .iter()
            .map(|(name, value)| Term::Label(Arc::clone(name), Arc::clone(value)));
        let subject = self.query.subject.clone().map(Term::Subject);
        let mut terms: Vec<_> = labels.chain(subject).map(Some).collect();
        if terms.is_empty() && !self.query.id_prefix.is_empty() {
            terms.push(None);
        }
        terms.into_iter().map(|term| self.range(term)).collect()
    }

    fn range(&self, term: Option<Term>) -> IdRange {
        IdRange {
            term,
            prefix: Arc::clone(&self.query.id_prefix),
        }
    }

    /// The smallest range, and whether it is small enough to be sorted.
    fn narrowest(&self, orders: &SessionOrders) -> Option<(IdRange, bool)> {
        let ranges = self.ranges();
        // Counting all ranges together must cost no more than sorting one.
        let few = SORTED_MAX / ranges.len().max(1);
        let counted = ranges
            .into_iter()
            .map(|range| (orders.count(&range, few + 1), range));
        let (count, range) = counted.min_by_key(|(count, _)| *count)?;
        Some((range, count <= few))
    }

    fn by_id(
        &self,
        orders: &SessionOrders,
        after: Option<&SessionId>,
        count: usize,
    ) -> FoundSessions {
        let range = self
            .narrowest(orders)
            .map(|(range, _)| range)
            .unwrap_or_else(|| self.range(None));
        let mut after = after.cloned();
        let (mut slots, mut looked_at) = (Vec::new(), 0);
        loop {
            let batch = orders.by_id(&range, after.as_ref(), SESSIONS_PER_INDEX_READ);
            let is_last = batch.len() < SESSIONS_PER_INDEX_READ;
            for slot in batch {
                if slots.len() == count || looked_at == SESSIONS_CHECKED_MAX {
                    let next = after.map(|session| LivePosition {
                        session,
                        at: Steady(0),
                    });
                    return FoundSessions { slots, next };
                }
                looked_at += 1;
                after = Some(slot.key.session.clone());
                if self.last_access_if_match(&slot).is_some() {
                    slots.push((slot, Steady(0)));
                }
            }
            if is_last {
                return FoundSessions { slots, next: None };
            }
        }
    }

    fn by_use(
        &self,
        orders: &SessionOrders,
        direction: Direction,
        after: Option<&LivePosition>,
        count: usize,
    ) -> FoundSessions {
        match self.narrowest(orders) {
            Some((range, true)) => {
                let slots = orders.by_id(&range, None, SORTED_MAX);
                self.sorted(slots, direction, after, count)
            }
            _ => self.walked(orders, direction, after, count),
        }
    }

    /// Sorts the sessions of an index range by last use.
    fn sorted(
        &self,
        slots: Vec<Arc<Slot>>,
        direction: Direction,
        after: Option<&LivePosition>,
        count: usize,
    ) -> FoundSessions {
        let candidates = slots.into_iter().filter_map(|slot| {
            let position = LivePosition {
                at: self.last_access_if_match(&slot)?,
                session: slot.key.session.clone(),
            };
            Some((position, slot))
        });
        let is_further = |position: &LivePosition| {
            after.is_none_or(|after| match direction {
                Direction::Newest => (position.at, &position.session) < (after.at, &after.session),
                Direction::Oldest => (position.at, &position.session) > (after.at, &after.session),
            })
        };
        let mut positioned: Vec<_> = candidates
            .filter(|(position, _)| is_further(position))
            .collect();
        let by_use = |(one, _): &(LivePosition, _), (other, _): &(LivePosition, _)| {
            let order = (one.at, &one.session).cmp(&(other.at, &other.session));
            match direction {
                Direction::Newest => order.reverse(),
                Direction::Oldest => order,
            }
        };
        let is_last = positioned.len() <= count;
        if !is_last && count > 0 {
            positioned.select_nth_unstable_by(count - 1, by_use);
            positioned.truncate(count);
        }
        positioned.sort_unstable_by(by_use);
        let next = positioned.last().filter(|_| !is_last);
        FoundSessions {
            next: next.map(|(position, _)| position.clone()),
            slots: positioned
                .into_iter()
                .map(|(position, slot)| (slot, position.at))
                .collect(),
        }
    }

    /// Walks the LRU order until enough sessions match.
    fn walked(
        &self,
        orders: &SessionOrders,
        direction: Direction,
        after: Option<&LivePosition>,
        count: usize,
    ) -> FoundSessions {
        // If every session matches, one extra session reveals whether there is another page.
        let batch_max = if self.ranges().is_empty() {
            SESSIONS_PER_INDEX_READ.min(count + 1)
        } else {
            SESSIONS_PER_INDEX_READ
        };
        let mut start = match (after, direction) {
            (Some(position), _) => start_after(orders, position),
            (None, Direction::Newest) if self.until < self.now.steady => {
                PageStart::From(self.until)
            }
            (None, Direction::Oldest) if self.from > Steady(0) => PageStart::From(self.from),
            (None, _) => PageStart::First,
        };
        let mut after = after.cloned();
        let (mut slots, mut looked_at) = (Vec::new(), 0);
        loop {
            let batch = orders.by_use(start, direction, batch_max);
            let is_last = batch.len() < batch_max;
            for UsedSession { slot, used } in batch {
                let is_beyond = match direction {
                    Direction::Newest => used.at < self.from,
                    Direction::Oldest => used.at > self.until,
                };
                if is_beyond {
                    return FoundSessions { slots, next: None };
                }
                if slots.len() == count || looked_at == SESSIONS_CHECKED_MAX {
                    return FoundSessions { slots, next: after };
                }
                looked_at += 1;
                start = PageStart::After(used);
                after = Some(LivePosition {
                    session: slot.key.session.clone(),
                    at: used.at,
                });
                if self.last_access_if_match(&slot).is_some() {
                    slots.push((slot, used.at));
                }
            }
            if is_last {
                return FoundSessions { slots, next: None };
            }
        }
    }
}

/// Resumes an order of uses after a position that a client passed back.
///
/// If the session was used since or has ended, the page starts with the sessions last used at that
/// time, and may repeat some of them.
fn start_after(orders: &SessionOrders, position: &LivePosition) -> PageStart {
    let slot = orders.get(&position.session);
    let used = slot.and_then(|slot| slot.lock().listed.as_ref().map(|listed| listed.used));
    let used = used.filter(|used| used.at == position.at);
    used.map_or(PageStart::From(position.at), PageStart::After)
}

impl Sessions {
    /// Lists sessions after the position `after`. Returned sessions are durable.
    ///
    /// # Errors
    /// [`EngineError::JournalOff`] if the list contains ended generations and there is no journal,
    /// or an error of the journal.
    pub(crate) async fn page(
        &self,
        tenant: &Arc<Tenant>,
        query: &SessionQuery,
        after: Option<&SessionListPosition>,
        count: usize,
    ) -> Result<SessionPage, EngineError> {
        let start = SessionListPosition::resume(query.state, after);
        if start.ended != PartPosition::End {
            self.store()?;
        }
        let search = ListSearch::new(query, tenant, self.now());
        let Some(search) = search.filter(|_| count > 0) else {
            return Ok(SessionPage::default());
        };
        // Live sessions first: one that ends in between is in both parts, and not in neither.
        let live = match start.live.after() {
            None => ListPart::default(),
            Some(after) if self.shared.cluster.is_some() => {
                self.live_of_journal(&search, after, count).await?
            }
            Some(after) => self.live_of_memory(&search, after, count).await,
        };
        let ended = match start.ended.after() {
            None => ListPart::default(),
            Some(after) => self.ended_of_journal(&search, after, count).await?,
        };
        Ok(merge::merge(query.order, start, (live, ended), count))
    }

    async fn ended_of_journal(
        &self,
        search: &ListSearch<'_>,
        after: Option<&EndedPosition>,
        count: usize,
    ) -> Result<ListPart<EndedPosition>, EngineError> {
        self.wait_processed_of(search.tenant).await?;
        let query = EndedQuery {
            tenant: search.tenant.id.clone(),
            id_prefix: Arc::clone(&search.query.id_prefix),
            subject: search.query.subject.clone(),
            labels: search.query.labels.clone(),
            from: search.from,
            until: search.until,
            order: search.query.order,
            after: after.cloned(),
            max: count,
        };
        let read = move |store: &dyn Store| store.ended_page(&query);
        let page = self.store()?.run(Some(&search.tenant.id), read).await?;
        let entries = page.generations.into_iter().map(|ended| {
            let view = SessionView::of_ended(&ended, search.tenant, search.now);
            (ended.position(), view)
        });
        Ok(ListPart::new(entries.collect(), page.next))
    }

    /// Returns the states of ended generations of a tenant, if they have one.
    pub(crate) async fn states_of_ended(
        &self,
        tenant: &Tenant,
        generations: Vec<Generation>,
    ) -> Result<BTreeMap<Generation, Arc<str>>, EngineError> {
        let read = move |store: &dyn Store| store.states(&generations);
        self.store()?.run(Some(&tenant.id), read).await
    }

    /// Lists the live sessions of all daemons.
    ///
    /// Filters by label and TTL here, because the store does not.
    async fn live_of_journal(
        &self,
        search: &ListSearch<'_>,
        after: Option<&LivePosition>,
        count: usize,
    ) -> Result<ListPart<LivePosition>, EngineError> {
        let mut after = after.map(|position| (position.at, position.session.clone()));
        let (mut entries, mut looked_at) = (VecDeque::new(), 0);
        loop {
            let query = LiveQuery {
                tenant: search.tenant.id.clone(),
                id_prefix: Arc::clone(&search.query.id_prefix),
                subject: search.query.subject.clone(),
                from: search.from,
                until: search.until,
                order: search.query.order,
                after: after.clone(),
                max: SESSIONS_PER_INDEX_READ.min(count - entries.len() + 1),
            };
            let max = query.max;
            let batch = self.live_page(query).await?;
            let is_last = batch.len() < max;
            for (key, mut head) in batch {
                if entries.len() == count || looked_at == SESSIONS_CHECKED_MAX {
                    let next = after.map(|(at, session)| LivePosition { session, at });
                    return Ok(ListPart::new(entries, next));
                }
                looked_at += 1;
                let position = LivePosition {
                    at: head.last_access,
                    session: key.session.clone(),
                };
                after = Some((position.at, position.session.clone()));
                // The clock of the daemon that used it may be slightly ahead.
                head.last_access = head.last_access.min(search.now.steady);
                if search.matches(&key.session, &head) {
                    let view = SessionView::new(&key, &head, search.tenant, search.now);
                    entries.push_back((position, view));
                }
            }
            if is_last {
                return Ok(ListPart::new(entries, None));
            }
        }
    }

    async fn live_of_memory(
        &self,
        search: &ListSearch<'_>,
        after: Option<&LivePosition>,
        count: usize,
    ) -> ListPart<LivePosition> {
        let (query, tenant) = (search.query, search.tenant);
        let orders = self.shared.table.orders(&tenant.id);
        let found = match query.order {
            SessionOrder::Newest => search.by_use(&orders, Direction::Newest, after, count),
            SessionOrder::Oldest => search.by_use(&orders, Direction::Oldest, after, count),
            SessionOrder::Id => {
                search.by_id(&orders, after.map(|position| &position.session), count)
            }
        };
        let mut seen = Vec::with_capacity(found.slots.len());
        let mut last_ticket = 0;
        for (slot, touched_at) in found.slots {
            let inner = slot.lock();
            let head = inner
                .head()
                .filter(|head| search.matches(&slot.key.session, head));
            let view = head.map(|head| SessionView::new(&slot.key, head, tenant, search.now));
            if view.is_some() || matches!(inner.state(), SlotState::Stale(_)) {
                last_ticket = last_ticket.max(inner.ticket);
                let epoch = inner.epoch;
                drop(inner);
                seen.push((slot, touched_at, view, epoch));
            }
        }
        let journal = &self.shared.journal;
        journal.wait_durable_of(&tenant.id, last_ticket).await;
        let mut entries = VecDeque::with_capacity(seen.len());
        for (slot, at, view, epoch) in seen {
            let is_durable = slot.lock().epoch == epoch;
            let view = match view.filter(|_| is_durable) {
                Some(view) => Some(view),
                // The observed change was not written. Read the journal's version.
                None => {
                    let session = SessionRef::new(tenant, &slot.key.session);
                    let view = self.head(&session).await.ok();
                    view.filter(|view| search.matches(&view.session, &view.head))
                }
            };
            let session = slot.key.session.clone();
            entries.extend(view.map(|view| (LivePosition { session, at }, view)));
        }
        ListPart::new(entries, found.next)
    }
}
