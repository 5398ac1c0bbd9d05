//! Token prices.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::exit::{CliError, Exit};

/// Prices per million tokens.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Price {
    /// Tokens that are not in the cache.
    input: f64,
    /// Tokens read from the provider's cache.
    cached_input: f64,
    /// Tokens written to the cache, if that costs more than `input`.
    cache_write: Option<f64>,
    /// Unit of the prices, such as a currency.
    #[serde(default)]
    pub(super) unit: String,
}

/// Finds the price of the named or the default model.
///
/// Without a table, a cached token costs a tenth of an uncached one.
pub(super) fn find(
    table: Option<&Path>,
    named: Option<&str>,
    default_model: &str,
) -> Result<Price, CliError> {
    let Some(path) = table else {
        return Ok(Price {
            input: 1.0,
            cached_input: 0.1,
            cache_write: None,
            unit: "million tokens at the full price".to_owned(),
        });
    };
    let wrong =
        |problem: String| CliError::failed(Exit::Data, format!("{}: {problem}", path.display()));
    let text = std::fs::read_to_string(path).map_err(CliError::no_input(path))?;
    let parsed: Result<BTreeMap<String, Price>, _> = serde_json::from_str(&text);
    let mut table = parsed.map_err(|error| wrong(error.to_string()))?;
    let names = table.keys().cloned().collect::<Vec<_>>().join(", ");
    let model = named.unwrap_or(default_model);
    let found = match (table.remove(model), table.len()) {
        // A table with a single price needs no name.
        (None, 1) if named.is_none() => table.pop_first().map(|(_, price)| price),
        (found, _) => found,
    };
    let unknown = || format!("no price for {model:?}; use --model with one of {names}");
    found.ok_or_else(|| wrong(unknown()))
}

impl Price {
    /// Cost of the input tokens, including `cached` ones. Replies cost the same for every window.
    pub(super) fn cost(&self, tokens: u64, cached: u64) -> f64 {
        let fresh = tokens.saturating_sub(cached) as f64;
        let fresh_price = self.cache_write.unwrap_or(self.input);
        (fresh * fresh_price + cached as f64 * self.cached_input) / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_cost_a_tenth_by_default() {
        let price = find(None, Some("m"), "default").unwrap();
        assert!((price.cost(2_000_000, 1_000_000) - 1.1).abs() < 1e-9);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prices.json");
        std::fs::write(&path, r#"{"m": {"input": 2.0, "cached_input": 0.5}}"#).unwrap();
        for named in [Some("m"), None] {
            let price = find(Some(&path), named, "default").unwrap();
            assert!(
                (price.cost(2_000_000, 1_000_000) - 2.5).abs() < 1e-9,
                "{named:?}"
            );
        }
        let two =
            r#"{"m": {"input": 2.0, "cached_input": 0.5}, "n": {"input": 1, "cached_input": 1}}"#;
        std::fs::write(&path, two).unwrap();
        assert!((find(Some(&path), None, "n").unwrap().input - 1.0).abs() < 1e-9);
        for named in [Some("other"), None] {
            let refused = find(Some(&path), named, "other").unwrap_err().to_string();
            assert!(
                refused.contains("no price for \"other\"; use --model with one of m, n"),
                "{refused}"
            );
        }
        let kept = r#"{"m": {"input": 2.0, "cached_input": 0.5, "cache_write": 2.5}}"#;
        std::fs::write(&path, kept).unwrap();
        let price = find(Some(&path), Some("m"), "default").unwrap();
        let cost = price.cost(2_000_000, 1_000_000);
        assert!((cost - 3.0).abs() < 1e-9, "{cost}");
    }
}
