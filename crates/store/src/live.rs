//! Queries over live sessions in a shared store, where no process has all of them in memory.

use std::sync::Arc;

use memoird_core::ids::{SessionId, SessionKey, Subject, TenantId};
use memoird_core::session::Head;
use memoird_core::time::Steady;

use crate::{Store, StoreError};

/// Filter, order and limit for listing live sessions.
#[derive(Clone, Debug)]
pub struct LiveQuery {
    pub tenant: TenantId,
    pub id_prefix: Arc<str>,
    pub subject: Option<Subject>,
    /// Earliest time of last use, inclusive.
    pub from: Steady,
    /// Latest time of last use, inclusive.
    pub until: Steady,
    pub order: SessionOrder,
    /// Cursor: time of last use and id of the last session of the previous page.
    pub after: Option<(Steady, SessionId)>,
    pub max: usize,
}

/// Order of a list of sessions. Live ones last used in the same millisecond are ordered by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionOrder {
    /// Most recently used or ended first.
    #[default]
    Newest,
    /// Longest idle, or ended the longest ago, first.
    Oldest,
    /// By id. For live sessions, the time in `after` is ignored.
    Id,
}

impl LiveQuery {
    /// Matches all sessions of a tenant, longest idle first.
    pub fn oldest(tenant: &TenantId, max: usize) -> Self {
        Self {
            tenant: tenant.clone(),
            id_prefix: Arc::from(""),
            subject: None,
            from: Steady(0),
            until: Steady(u64::MAX),
            order: SessionOrder::Oldest,
            after: None,
            max,
        }
    }

    fn matches(&self, key: &SessionKey, head: &Head) -> bool {
        key.tenant == self.tenant
            && key.session.as_str().starts_with(&*self.id_prefix)
            && (self.subject.is_none() || self.subject == head.subject)
            && (self.from..=self.until).contains(&head.last_access)
            && self.is_after_cursor(head.last_access, &key.session)
    }

    fn is_after_cursor(&self, at: Steady, id: &SessionId) -> bool {
        let Some((after_at, after_id)) = &self.after else {
            return true;
        };
        match self.order {
            SessionOrder::Newest => (at, id) < (*after_at, after_id),
            SessionOrder::Oldest => (at, id) > (*after_at, after_id),
            SessionOrder::Id => id > after_id,
        }
    }
}

/// Implements [`Store::live_page`] by scanning every live session.
pub(crate) fn page(
    store: &(impl Store + ?Sized),
    query: &LiveQuery,
) -> Result<Vec<(SessionKey, Head)>, StoreError> {
    let mut found = Vec::new();
    store.live_heads(&mut |key, head| {
        if query.matches(&key, &head) {
            found.push((key, head));
        }
    })?;
    found.sort_by(|(key, head), (other_key, other)| {
        let by_use = || {
            let place = (head.last_access, &key.session);
            place.cmp(&(other.last_access, &other_key.session))
        };
        match query.order {
            SessionOrder::Newest => by_use().reverse(),
            SessionOrder::Oldest => by_use(),
            SessionOrder::Id => key.session.cmp(&other_key.session),
        }
    });
    found.truncate(query.max);
    Ok(found)
}

/// Implements [`Store::live_counts`] by scanning every live session.
pub(crate) fn counts(store: &(impl Store + ?Sized)) -> Result<Vec<(TenantId, u64)>, StoreError> {
    let mut counts = std::collections::BTreeMap::<TenantId, u64>::new();
    store.live_heads(&mut |key, _| *counts.entry(key.tenant).or_default() += 1)?;
    Ok(counts.into_iter().collect())
}
