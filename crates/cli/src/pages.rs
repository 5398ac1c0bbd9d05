//! Fetches paginated lists.

use crate::exit::CliError;

/// Maximum number of items per page.
pub(crate) const PAGE_MAX: usize = 1_000;

/// The items of a page, and the token of the next page.
pub(crate) type PageResult<T> = Result<(Vec<T>, String), CliError>;

/// Iterates over the pages of a list.
///
/// `call` takes the page size and the page token, which is empty for the first page.
pub(crate) struct Pages<F> {
    call: F,
    /// Token of the next page. `None` after the last page.
    token: Option<String>,
}

impl<T, F: AsyncFnMut(u32, String) -> PageResult<T>> Pages<F> {
    pub(crate) fn of(call: F) -> Self {
        Self {
            call,
            token: Some(String::new()),
        }
    }

    /// Fetches the next page with at most `max` items. `None` after the last page.
    pub(crate) async fn next(&mut self, max: usize) -> Result<Option<Vec<T>>, CliError> {
        let Some(token) = self.token.take() else {
            return Ok(None);
        };
        let size = u32::try_from(max.min(PAGE_MAX)).unwrap_or(u32::MAX);
        let (items, token) = (self.call)(size, token).await?;
        self.token = Some(token).filter(|token| !token.is_empty());
        Ok(Some(items))
    }

    /// Fetches the first `limit` items; 0 fetches all.
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

/// Converts a `--limit`, where 0 means no limit.
pub fn all_if_zero(limit: usize) -> usize {
    if limit == 0 { usize::MAX } else { limit }
}
