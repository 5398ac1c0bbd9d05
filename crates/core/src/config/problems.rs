//! Problems of a successfully parsed configuration, collected to be reported together.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A problem with the key of its setting, such as `server.listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key, or empty for the whole section.
    pub key: String,
    /// The problem, for an operator. Never contains a secret.
    pub problem: String,
}

/// All problems in the order of discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problem {
    pub fn new(key: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self {
            key: key.into(),
            problem: problem.to_string(),
        }
    }

    /// Prefixes the key with the name of its section.
    #[must_use]
    pub fn within(mut self, section: &str) -> Self {
        if self.key.is_empty() {
            section.clone_into(&mut self.key);
        } else if !section.is_empty() {
            self.key = format!("{section}.{}", self.key);
        }
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.problem)
    }
}

impl Problems {
    pub fn add(&mut self, key: impl Into<String>, problem: impl fmt::Display) {
        self.0.push(Problem::new(key, problem));
    }

    /// Adds a problem if `is_good` is false.
    pub fn unless(&mut self, is_good: bool, key: &str, problem: &str) {
        if !is_good {
            self.add(key, problem);
        }
    }

    pub fn not_zero(&mut self, key: &str, duration: Duration) {
        self.unless(!duration.is_zero(), key, "must be more than zero");
    }

    /// Adds a problem if a duration is zero or effectively infinite.
    pub fn span(&mut self, key: &str, duration: Duration) {
        /// A hundred years.
        const MAX: Duration = Duration::from_secs(36_500 * 24 * 60 * 60);
        self.not_zero(key, duration);
        self.unless(duration <= MAX, key, "must be at most 36500d");
    }

    pub fn at_least_one<N: Copy + Default + PartialEq>(&mut self, key: &str, number: N) {
        self.unless(number != N::default(), key, "must be at least 1");
    }

    pub fn range(&mut self, key: &str, number: u64, range: RangeInclusive<u64>) {
        if !range.contains(&number) {
            let (least, most) = range.into_inner();
            self.add(key, format!("must be {least} to {most}"));
        }
    }

    pub fn percent(&mut self, key: &str, percent: u8, range: RangeInclusive<u8>) {
        if !range.contains(&percent) {
            let (least, most) = range.into_inner();
            self.add(key, format!("must be {least}% to {most}%"));
        }
    }

    /// Adds the problems that `check` finds in a section.
    pub fn within<T>(&mut self, section: &str, check: impl FnOnce(&mut Self) -> T) -> T {
        let mut found = Self::default();
        let outcome = check(&mut found);
        let within = found.0.into_iter().map(|problem| problem.within(section));
        self.0.extend(within);
        outcome
    }

    /// Returns the value, or adds its problem in this section and returns `None`.
    pub fn take<T>(&mut self, section: &str, outcome: Result<T, Problem>) -> Option<T> {
        outcome
            .map_err(|problem| self.0.push(problem.within(section)))
            .ok()
    }

    /// Returns `good` if there are no problems.
    ///
    /// # Errors
    /// All problems as one text.
    pub fn or<T>(self, good: T) -> Result<T, String> {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        match &lines[..] {
            [] => Ok(good),
            [one] => Err(one.clone()),
            many => Err(format!("{} problems\n  {}", many.len(), many.join("\n  "))),
        }
    }
}
