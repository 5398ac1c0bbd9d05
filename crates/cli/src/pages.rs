//! Fetches paginated lists.

use memoird_proto::UnaryCall;
use memoird_proto::prost_reflect::{DynamicMessage, FieldDescriptor, MessageDescriptor, Value};

use crate::connect::Target;
use crate::exit::CliError;
use crate::json;

/// Maximum number of items per page.
pub(crate) const PAGE_MAX: usize = 1_000;

/// Iterates over the pages of a list.
pub(crate) struct Pages<'a> {
    target: &'a Target,
    path: &'static str,
    place: String,
    request: DynamicMessage,
    reply: MessageDescriptor,
    /// The field of a reply that contains the items.
    items: FieldDescriptor,
    /// Token of the next page. `None` after the last page.
    token: Option<String>,
    /// Whether a reply lacked items that are not searchable yet.
    pub(crate) is_incomplete: bool,
}

impl<'a> Pages<'a> {
    pub(crate) fn new<R: UnaryCall>(target: &'a Target, request: &R) -> Self {
        let reply = json::descriptor::<R::Reply>();
        let items = reply.fields().find(FieldDescriptor::is_list);
        Self {
            target,
            path: R::PATH,
            place: request.place().to_owned(),
            request: json::dynamic(request),
            items: items.expect("a list has items"),
            reply,
            token: Some(String::new()),
            is_incomplete: false,
        }
    }

    /// Name of the field that contains the items.
    pub(crate) fn items(&self) -> &str {
        self.items.name()
    }

    /// Fetches the next page with at most `max` items. `None` after the last page.
    pub(crate) async fn next(
        &mut self,
        max: usize,
    ) -> Result<Option<Vec<DynamicMessage>>, CliError> {
        let Some(token) = self.token.take() else {
            return Ok(None);
        };
        let size = u32::try_from(max.min(PAGE_MAX)).unwrap_or(u32::MAX);
        self.request
            .set_field_by_name("page_token", Value::String(token));
        self.request
            .set_field_by_name("page_size", Value::U32(size));
        let (path, place, request) = (self.path, &*self.place, &self.request);
        let called = self
            .target
            .call_dynamic(path, place, request, self.reply.clone());
        let reply = called.await?;
        let field = |name| reply.get_field_by_name(name);
        let token = field("next_page_token").and_then(|token| token.as_str().map(str::to_owned));
        self.token = token.filter(|token| !token.is_empty());
        let is_incomplete = field("incomplete").and_then(|value| value.as_bool());
        self.is_incomplete |= is_incomplete.unwrap_or(false);
        let items = reply.get_field(&self.items);
        let messages = items
            .as_list()
            .into_iter()
            .flatten()
            .filter_map(Value::as_message);
        Ok(Some(messages.cloned().collect()))
    }

    /// Fetches the first `limit` items; 0 fetches all.
    pub(crate) async fn first(&mut self, limit: usize) -> Result<Vec<DynamicMessage>, CliError> {
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
