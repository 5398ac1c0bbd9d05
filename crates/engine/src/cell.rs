//! One session's place in memory, and the lock around it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memoird_core::change::Totals;
use memoird_core::ids::SessionKey;
use memoird_core::session::{Head, Session};

use crate::tenant::Tenant;

/// One session's place in memory. Whoever wants the session clones the `Arc` out of the
/// table, takes the lock, does something short, and lets it go; nobody holds two.
#[derive(Debug)]
pub(crate) struct SessionCell {
    pub(crate) key: SessionKey,
    pub(crate) tenant: Arc<Tenant>,
    inner: Mutex<Inner>,
}

/// What the lock protects.
#[derive(Debug)]
pub(crate) struct Inner {
    residence: Residence,
    /// The newest change set of this session that was handed to the journal.
    pub(crate) ticket: u64,
    /// Counts how often the session was thrown away because a commit failed: what was
    /// read before such a moment may never have become true.
    pub(crate) epoch: u32,
    /// True while it has a place among those that the caps count, and stands in its
    /// tenant's list.
    pub(crate) is_listed: bool,
}

/// Where the session is. Nearly all that are in use are here, so a pointer to them would
/// save nothing.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(crate) enum Residence {
    /// Here.
    Live(Session),
    /// In the journal, as it was at the start; only its head is here.
    Stored(Box<Head>),
    /// Perhaps in the journal: a commit failed, and only the journal knows.
    Unknown,
    /// Nowhere: its generation ended. The cell is of no more use.
    Gone,
}

impl SessionCell {
    pub(crate) fn new(key: SessionKey, tenant: Arc<Tenant>, residence: Residence) -> Self {
        tenant
            .stats
            .count_live(Totals::default(), residence.totals());
        tenant
            .stats
            .compaction
            .count_open(false, residence.is_open());
        let inner = Inner {
            residence,
            ticket: 0,
            epoch: 0,
            is_listed: false,
        };
        Self {
            key,
            tenant,
            inner: Mutex::new(inner),
        }
    }

    /// A panic while the session was being changed may have left it half changed: then
    /// only the journal knows, or, without one, nobody.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| {
            self.inner.clear_poison();
            let mut inner = poisoned.into_inner();
            inner.epoch += 1;
            inner.settle(&self.tenant, Residence::Unknown);
            inner
        })
    }
}

impl Inner {
    pub(crate) fn residence(&self) -> &Residence {
        &self.residence
    }

    /// The session, where it is here.
    pub(crate) fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.residence {
            Residence::Live(session) => Some(session),
            _ => None,
        }
    }

    /// The head of a session that lives, here or in the journal.
    pub(crate) fn head(&self) -> Option<&Head> {
        match &self.residence {
            Residence::Live(session) => Some(session.head()),
            Residence::Stored(head) => Some(head),
            Residence::Unknown | Residence::Gone => None,
        }
    }

    /// True when its generation ended.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.residence, Residence::Gone)
    }

    /// Says where the session is from now on; gives where it was.
    pub(crate) fn settle(&mut self, tenant: &Tenant, residence: Residence) -> Residence {
        tenant
            .stats
            .compaction
            .count_open(self.residence.is_open(), residence.is_open());
        tenant
            .stats
            .count_live(self.residence.totals(), residence.totals());
        std::mem::replace(&mut self.residence, residence)
    }
}

/// A cell is counted from its making to its end, whoever lets go of it, and when: also
/// the caller who hung up before it was put into the table.
impl Drop for SessionCell {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        inner.settle(&self.tenant, Residence::Gone);
    }
}

impl Residence {
    /// True when the breaker of its compaction is open, or half open.
    fn is_open(&self) -> bool {
        let head = match self {
            Self::Live(session) => session.head(),
            Self::Stored(head) => head,
            Self::Unknown | Self::Gone => return false,
        };
        head.compaction
            .as_ref()
            .is_some_and(|status| status.opened.is_some())
    }

    fn totals(&self) -> Totals {
        match self {
            Self::Live(session) => session.head().totals,
            Self::Stored(head) => head.totals,
            Self::Unknown | Self::Gone => Totals::default(),
        }
    }
}
