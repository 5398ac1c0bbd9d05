//! Configuration of search.

use std::time::Duration;

use memoird_core::config::{AsText, Percent, Problems};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SearchConfig {
    /// If false, the index is removed and searches fail.
    pub enabled: bool,
    /// Maximum share of one CPU that indexing uses while sessions change, 1 to 100 percent.
    ///
    /// Indexing catches up when they stop changing.
    #[serde(with = "AsText::<Percent>")]
    pub cpu_share: u8,
}

impl Default for SearchConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            cpu_share: 5,
        }
    }
}

impl SearchConfig {
    /// Adds the problems of this configuration.
    pub fn check(&self, problems: &mut Problems) {
        problems.percent("cpu_share", self.cpu_share, 1..=100);
    }

    /// How long to pause after this much work to stay within `cpu_share`.
    pub(crate) fn rest_after(&self, work: Duration) -> Duration {
        let share = u32::from(self.cpu_share.clamp(1, 100));
        work * (100 - share) / share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_after_keeps_the_cpu_share() {
        let rest = |cpu_share, work_ms| {
            let config = SearchConfig {
                cpu_share,
                ..SearchConfig::default()
            };
            config
                .rest_after(Duration::from_millis(work_ms))
                .as_millis()
        };
        assert_eq!(rest(5, 10), 190);
        assert_eq!(rest(50, 10), 10);
        assert_eq!(rest(100, 10), 0);
        assert_eq!(rest(0, 1), 99, "never a division by zero");
    }
}
