//! Lists that the daemon gives page by page.

use super::exit::CliError;

/// Items that one page may have.
pub(crate) const PAGE_MAX: usize = 1_000;

/// The items of a page, and the token of the next page.
pub(crate) type Reply<T> = Result<(Vec<T>, String), CliError>;

/// The pages of a list, one after the other. The call takes the size of a page and its token,
/// which is empty at first.
pub(crate) struct Pages<F> {
    call: F,
    /// The token of the next page; `None` after the last.
    token: Option<String>,
}

impl<T, F: AsyncFnMut(u32, String) -> Reply<T>> Pages<F> {
    /// The pages that a call gives.
    pub(crate) fn of(call: F) -> Self {
        Self {
            call,
            token: Some(String::new()),
        }
    }

    /// The next page, with at most `max` items; `None` after the last.
    pub(crate) async fn next(&mut self, max: usize) -> Result<Option<Vec<T>>, CliError> {
        let Some(token) = self.token.take() else {
            return Ok(None);
        };
        let size = u32::try_from(max.min(PAGE_MAX)).unwrap_or(u32::MAX);
        let (items, token) = (self.call)(size, token).await?;
        self.token = Some(token).filter(|token| !token.is_empty());
        Ok(Some(items))
    }

    /// The first `limit` items; 0: all.
    pub(crate) async fn first(mut self, limit: usize) -> Result<Vec<T>, CliError> {
        let limit = all_if_zero(limit);
        let mut found = Vec::new();
        while found.len() < limit
            && let Some(items) = self.next(limit - found.len()).await?
        {
            found.extend(items);
        }
        found.truncate(limit);
        Ok(found)
    }
}

/// The number of items for a `--limit`.
pub(crate) fn all_if_zero(limit: usize) -> usize {
    if limit == 0 { usize::MAX } else { limit }
}
