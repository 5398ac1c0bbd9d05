//! Lists of a tenant's live sessions. What one call looks at is bounded, however many sessions
//! there are and whatever is asked for: a page may be short, and says where the next one goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use memoird_core::ids::{SessionId, Subject};
use memoird_core::session::Head;
use memoird_core::time::{Now, Steady, Timestamp};
use memoird_store::LiveQuery;

use super::cluster::order_of;
use super::idle_list::IdleList;
use super::index::{IdRange, Term};
use super::slot::{Slot, SlotState};
use super::use_list::{Direction, PageStart};
use super::view::SessionView;
use super::{SessionRef, Sessions};
use crate::error::EngineError;
use crate::tenants::Tenant;

/// Sessions of a subject, a label or a prefix that are looked at all together to find the order
/// of their last use. Of more, the order is walked instead.
const SORTED_MAX: usize = 4_096;
/// Sessions that one call looks at, about.
const LOOKED_AT_MAX: usize = 8_192;
/// Sessions that are taken out of an index at once.
const BATCH_SESSIONS: usize = 256;

/// How far the time of one use may be off when it is shown again: both clocks are read to the
/// millisecond.
const CLOCKS_MS: u64 = 1;

/// Which sessions to list, and in which order.
#[derive(Clone, Debug, Default)]
pub struct SessionQuery {
    /// Only those whose ids begin so.
    pub id_prefix: Arc<str>,
    /// Only those of this subject.
    pub subject: Option<Subject>,
    /// Only those that have all of these labels.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Only those that were touched after this time, or at it.
    pub used_after: Option<Timestamp>,
    /// Only those that were touched before this time, or at it.
    pub used_before: Option<Timestamp>,
    /// In which order.
    pub order: SessionOrder,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionOrder {
    /// Most recently touched first.
    #[default]
    Newest,
    /// Longest untouched first.
    Oldest,
    /// By id.
    Id,
}

/// The last session of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPlace {
    /// Which.
    pub session: SessionId,
    /// When it was touched; where the order is that of ids, nothing.
    pub at: Steady,
}

/// A page of live sessions.
#[derive(Clone, Debug, Default)]
pub struct SessionPage {
    /// The sessions.
    pub sessions: Vec<SessionView>,
    /// Where the next page goes on; `None` on the last one.
    pub next: Option<SessionPlace>,
    /// When each was touched, as its place in the order has it.
    touched_at: Vec<Steady>,
}

impl SessionPage {
    /// Ends the page behind so many of its sessions, at least one.
    pub fn cut(&mut self, count: usize) {
        let count = count.max(1);
        if count >= self.sessions.len() {
            return;
        }
        self.sessions.truncate(count);
        self.touched_at.truncate(count);
        let last = self.sessions.last().zip(self.touched_at.last());
        self.next = last.map(|(view, at)| SessionPlace {
            session: view.session.clone(),
            at: *at,
        });
    }

    fn push(&mut self, session: SessionView, touched_at: Steady) {
        self.sessions.push(session);
        self.touched_at.push(touched_at);
    }
}

/// What is asked for, at one moment.
struct Search<'a> {
    query: &'a SessionQuery,
    tenant: &'a Arc<Tenant>,
    now: Now,
    /// Touched at this moment or later.
    from: Steady,
    /// Touched at this moment or before.
    until: Steady,
}

/// Sessions that were found, in order, and where the next page goes on.
struct Found {
    slots: Vec<(Arc<Slot>, Steady)>,
    next: Option<SessionPlace>,
}

impl<'a> Search<'a> {
    /// `None` where no session can be found.
    fn new(query: &'a SessionQuery, tenant: &'a Arc<Tenant>, now: Now) -> Option<Self> {
        let after = query.used_after.and_then(|at| now.steady_of(at));
        let until = match query.used_before {
            None => u64::MAX,
            Some(at) => now.steady_of(at)?.0.saturating_add(CLOCKS_MS),
        };
        Some(Self {
            query,
            tenant,
            now,
            from: after.map_or(Steady(0), |at| Steady(at.0.saturating_sub(CLOCKS_MS))),
            until: Steady(until),
        })
    }

    fn takes(&self, id: &SessionId, head: &Head) -> bool {
        let SessionQuery {
            id_prefix,
            subject,
            labels,
            ..
        } = self.query;
        (self.from..=self.until).contains(&head.last_access)
            && subject
                .as_ref()
                .is_none_or(|it| head.subject.as_ref() == Some(it))
            && labels
                .iter()
                .all(|(name, value)| head.label(name) == Some(value))
            && id.as_str().starts_with(&**id_prefix)
            && !head.is_expired(self.now.steady, self.tenant.ttl_ms(head))
    }

    /// When a session that is asked for was used; `None` for any other. Of one that only the
    /// journal knows it is found out later.
    fn used_at(&self, slot: &Slot) -> Option<Steady> {
        let inner = slot.lock();
        match inner.head() {
            Some(head) => self
                .takes(&slot.key.session, head)
                .then_some(head.last_access),
            None if matches!(inner.state(), SlotState::Stale) => {
                Some(self.until.min(self.now.steady))
            }
            None => None,
        }
    }

    /// Ranges of the indexes, each of which has all that is asked for; none where that is all.
    fn ranges(&self) -> Vec<IdRange> {
        let labels = self.query.labels.iter();
        let labels = labels.map(|(name, value)| Term::Label(Arc::clone(name), Arc::clone(value)));
        let subject = self.query.subject.clone().map(Term::Subject);
        let mut terms: Vec<_> = labels.chain(subject).collect();
        if terms.is_empty() && !self.query.id_prefix.is_empty() {
            terms.push(Term::Tenant);
        }
        terms.into_iter().map(|term| self.range(term)).collect()
    }

    fn range(&self, term: Term) -> IdRange {
        IdRange {
            term,
            prefix: Arc::clone(&self.query.id_prefix),
        }
    }

    /// The range that has the fewest sessions, and whether these are few enough to be sorted.
    fn narrowest(&self, idle: &IdleList) -> Option<(IdRange, bool)> {
        let ranges = self.ranges();
        // All the ranges together cost no more to count than one costs to sort.
        let few = SORTED_MAX / ranges.len().max(1);
        let counted = ranges.into_iter();
        let counted = counted.map(|range| (idle.index.count(&range, few + 1), range));
        let (count, range) = counted.min_by_key(|(count, _)| *count)?;
        Some((range, count <= few))
    }

    fn by_id(&self, idle: &IdleList, after: Option<&SessionId>, count: usize) -> Found {
        let range = self.narrowest(idle).map(|(range, _)| range);
        let range = range.unwrap_or_else(|| self.range(Term::Tenant));
        let mut after = after.cloned();
        let (mut slots, mut looked_at) = (Vec::new(), 0);
        loop {
            let batch = idle.index.page(&range, after.as_ref(), BATCH_SESSIONS);
            let is_last = batch.len() < BATCH_SESSIONS;
            for slot in batch {
                if slots.len() == count || looked_at == LOOKED_AT_MAX {
                    let next = after.map(|session| SessionPlace {
                        session,
                        at: Steady(0),
                    });
                    return Found { slots, next };
                }
                looked_at += 1;
                after = Some(slot.key.session.clone());
                if self.used_at(&slot).is_some() {
                    slots.push((slot, Steady(0)));
                }
            }
            if is_last {
                return Found { slots, next: None };
            }
        }
    }

    fn by_use(
        &self,
        idle: &IdleList,
        direction: Direction,
        after: Option<&SessionPlace>,
        count: usize,
    ) -> Found {
        match self.narrowest(idle) {
            Some((range, true)) => {
                let slots = idle.index.page(&range, None, SORTED_MAX);
                self.sorted(slots, direction, after, count)
            }
            _ => self.walked(idle, direction, after, count),
        }
    }

    /// The sessions of an index's range, put into order.
    fn sorted(
        &self,
        slots: Vec<Arc<Slot>>,
        direction: Direction,
        after: Option<&SessionPlace>,
        count: usize,
    ) -> Found {
        let placed = slots.into_iter().filter_map(|slot| {
            let place = SessionPlace {
                at: self.used_at(&slot)?,
                session: slot.key.session.clone(),
            };
            Some((place, slot))
        });
        let is_further = |place: &SessionPlace| {
            after.is_none_or(|after| match direction {
                Direction::Newest => (place.at, &place.session) < (after.at, &after.session),
                Direction::Oldest => (place.at, &place.session) > (after.at, &after.session),
            })
        };
        let mut placed: Vec<_> = placed.filter(|(place, _)| is_further(place)).collect();
        let by_use = |(one, _): &(SessionPlace, _), (other, _): &(SessionPlace, _)| {
            let order = (one.at, &one.session).cmp(&(other.at, &other.session));
            match direction {
                Direction::Newest => order.reverse(),
                Direction::Oldest => order,
            }
        };
        let is_last = placed.len() <= count;
        if !is_last && count > 0 {
            placed.select_nth_unstable_by(count - 1, by_use);
            placed.truncate(count);
        }
        placed.sort_unstable_by(by_use);
        let next = placed.last().filter(|_| !is_last);
        Found {
            next: next.map(|(place, _)| place.clone()),
            slots: placed
                .into_iter()
                .map(|(place, slot)| (slot, place.at))
                .collect(),
        }
    }

    /// The order of last use, walked until there are enough.
    fn walked(
        &self,
        idle: &IdleList,
        direction: Direction,
        after: Option<&SessionPlace>,
        count: usize,
    ) -> Found {
        // Where nothing is left out, the next one only says whether there is more.
        let batch_max = match self.ranges().is_empty() {
            true => BATCH_SESSIONS.min(count + 1),
            false => BATCH_SESSIONS,
        };
        let mut after = after.cloned();
        let (mut slots, mut looked_at) = (Vec::new(), 0);
        loop {
            let start = match (&after, direction) {
                (Some(place), _) => PageStart::Behind(&place.session, place.at),
                (None, Direction::Newest) if self.until < self.now.steady => {
                    PageStart::From(self.until)
                }
                (None, Direction::Oldest) if self.from > Steady(0) => PageStart::From(self.from),
                (None, _) => PageStart::First,
            };
            let batch = idle.page(start, direction, batch_max);
            let is_last = batch.len() < batch_max;
            for entry in batch {
                let is_beyond = match direction {
                    Direction::Newest => entry.last_access < self.from,
                    Direction::Oldest => entry.last_access > self.until,
                };
                if is_beyond {
                    return Found { slots, next: None };
                }
                if slots.len() == count || looked_at == LOOKED_AT_MAX {
                    return Found { slots, next: after };
                }
                looked_at += 1;
                after = Some(SessionPlace {
                    session: entry.slot.key.session.clone(),
                    at: entry.last_access,
                });
                if self.used_at(&entry.slot).is_some() {
                    slots.push((entry.slot, entry.last_access));
                }
            }
            if is_last {
                return Found { slots, next: None };
            }
        }
    }
}

impl Sessions {
    /// Lists live sessions from behind `after`. What is shown is durable.
    ///
    /// # Errors
    /// In a cluster, a journal that cannot be read.
    pub(crate) async fn page(
        &self,
        tenant: &Arc<Tenant>,
        query: &SessionQuery,
        after: Option<&SessionPlace>,
        count: usize,
    ) -> Result<SessionPage, EngineError> {
        let Some(search) = Search::new(query, tenant, self.now()) else {
            return Ok(SessionPage::default());
        };
        match self.shared.cluster {
            Some(_) => self.page_of_journal(&search, after, count).await,
            None => Ok(self.page_of_memory(&search, after, count).await),
        }
    }

    /// A page of the sessions of all daemons. The journal does not know labels and TTLs: what it
    /// finds is looked through here.
    async fn page_of_journal(
        &self,
        search: &Search<'_>,
        after: Option<&SessionPlace>,
        count: usize,
    ) -> Result<SessionPage, EngineError> {
        let order = order_of(search.query.order);
        let mut after = after.map(|place| (place.at, place.session.clone()));
        let (mut page, mut looked_at) = (SessionPage::default(), 0);
        loop {
            let query = LiveQuery {
                tenant: search.tenant.id.clone(),
                id_prefix: Arc::clone(&search.query.id_prefix),
                subject: search.query.subject.clone(),
                from: search.from,
                until: search.until,
                order,
                after: after.clone(),
                max: BATCH_SESSIONS.min(count - page.sessions.len() + 1),
            };
            let max = query.max;
            let batch = self.live_page(query).await?;
            let is_last = batch.len() < max;
            for (key, mut head) in batch {
                if page.sessions.len() == count || looked_at == LOOKED_AT_MAX {
                    page.next = after.map(|(at, session)| SessionPlace { session, at });
                    return Ok(page);
                }
                looked_at += 1;
                let touched_at = head.last_access;
                after = Some((touched_at, key.session.clone()));
                // That of a session with windows is written a little ahead.
                head.last_access = head.last_access.min(search.now.steady);
                if search.takes(&key.session, &head) {
                    let view = SessionView::of(&key, &head, search.tenant, search.now);
                    page.push(view, touched_at);
                }
            }
            if is_last {
                return Ok(page);
            }
        }
    }

    async fn page_of_memory(
        &self,
        search: &Search<'_>,
        after: Option<&SessionPlace>,
        count: usize,
    ) -> SessionPage {
        let (query, tenant) = (search.query, search.tenant);
        let idle = self.shared.census.idle_list(&tenant.id);
        let found = match query.order {
            SessionOrder::Newest => search.by_use(&idle, Direction::Newest, after, count),
            SessionOrder::Oldest => search.by_use(&idle, Direction::Oldest, after, count),
            SessionOrder::Id => search.by_id(&idle, after.map(|place| &place.session), count),
        };
        let mut seen = Vec::with_capacity(found.slots.len());
        let mut last_ticket = 0;
        for (slot, touched_at) in found.slots {
            let inner = slot.lock();
            let head = inner.head();
            let head = head.filter(|head| search.takes(&slot.key.session, head));
            let view = head.map(|head| SessionView::of(&slot.key, head, tenant, search.now));
            if view.is_some() || matches!(inner.state(), SlotState::Stale) {
                last_ticket = last_ticket.max(inner.ticket);
                let epoch = inner.epoch;
                drop(inner);
                seen.push((slot, touched_at, view, epoch));
            }
        }
        let journal = &self.shared.journal;
        journal.wait_durable_of(&tenant.id, last_ticket).await;
        let mut page = SessionPage {
            next: found.next,
            ..SessionPage::default()
        };
        for (slot, touched_at, view, epoch) in seen {
            let is_durable = slot.lock().epoch == epoch;
            match view.filter(|_| is_durable) {
                Some(view) => page.push(view, touched_at),
                // The change that was seen was not written: the journal has the truth.
                None => {
                    let session = SessionRef::new(tenant, &slot.key.session);
                    let view = self.head(&session).await.ok();
                    let view = view.filter(|view| search.takes(&view.session, &view.head));
                    if let Some(view) = view {
                        page.push(view, touched_at);
                    }
                }
            }
        }
        page
    }
}
