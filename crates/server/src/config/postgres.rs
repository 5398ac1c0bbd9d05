//! The database of the journal.

use std::path::PathBuf;

#[cfg(feature = "postgres")]
use memoird_core::config::Problem;
use memoird_core::config::{Environment, Problems, SecretRef};
use serde::{Deserialize, Serialize};

use super::JournalLocation;

/// Settings of `journal` in addition to those of the engine.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct JournalKeys {
    /// The database. If `None`, the journal is in the data directory.
    pub(super) postgres: Option<PostgresSpec>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PostgresSpec {
    url: UrlSpec,
    /// Password of the role, unless the URL is a secret that contains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<SecretRef>,
    /// Trusted CA certificates in PEM. By default those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    ca: Option<PathBuf>,
    /// Whether all daemons serve concurrently. Otherwise one serves and the others stand by.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cluster: bool,
}

/// A URL, or the location of one that contains a password.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum UrlSpec {
    Plain(String),
    Secret(SecretRef),
}

impl Default for UrlSpec {
    fn default() -> Self {
        Self::Plain(String::new())
    }
}

impl PostgresSpec {
    /// Builds the connection options. Problems never quote the settings.
    #[cfg(feature = "postgres")]
    pub(super) fn build(
        &self,
        environment: &dyn Environment,
        problems: &mut Problems,
    ) -> JournalLocation {
        let found = self.options(environment).map(Box::new);
        let options = problems.take("", found);
        options.map_or(JournalLocation::DataDir, JournalLocation::Postgres)
    }

    /// Reports that this build does not support PostgreSQL.
    #[cfg(not(feature = "postgres"))]
    pub(super) fn build(&self, _: &dyn Environment, problems: &mut Problems) -> JournalLocation {
        let problem = "this memoird was built without the feature `postgres`; use a build with it";
        problems.add("", problem);
        JournalLocation::DataDir
    }

    #[cfg(feature = "postgres")]
    fn options(
        &self,
        environment: &dyn Environment,
    ) -> Result<memoird_postgres::PgOptions, Problem> {
        use memoird_postgres::{DatabaseUse, PgOptions};
        let at = |place: &'static str| move |problem: String| Problem::new(place, problem);
        let (url, is_secret) = match &self.url {
            UrlSpec::Plain(url) => (url.clone(), false),
            UrlSpec::Secret(place) => (place.read(environment).map_err(at("url"))?, true),
        };
        let password = self
            .password
            .as_ref()
            .map(|place| place.read(environment))
            .transpose()
            .map_err(at("password"))?;
        let ca = self
            .ca
            .as_ref()
            .map(|path| environment.file(path))
            .transpose()
            .map_err(|error| Problem::new("ca", format!("cannot be read: {error}")))?;
        // Parsed first without password and CA, so that errors are due to the URL.
        let options = PgOptions::parse(&url, None, None).map_err(at("url"))?;
        if !is_secret && options.has_password() {
            let problem = "contains a password; use journal.postgres.password, or pass the whole \
                URL as { env: NAME } or { file: PATH }";
            return Err(Problem::new("url", problem));
        }
        let mut options =
            PgOptions::parse(&url, password.as_deref(), ca.as_deref()).map_err(at("ca"))?;
        options.sharing = if self.cluster {
            DatabaseUse::Cluster
        } else {
            DatabaseUse::Exclusive
        };
        // A test shows what the fence prevents. Not in release builds.
        if cfg!(debug_assertions) && environment.variable("MEMOIRD_TEST_NO_FENCE").is_some() {
            options.has_fence = false;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;

    fn problem(journal: &str) -> String {
        let text = format!("server: {{ allow_without_keys: true }}\njournal: {{ {journal} }}");
        parse(&text).expect_err("a problem was expected")
    }

    #[test]
    #[cfg(not(feature = "postgres"))]
    fn build_without_postgres_reports_it() {
        let problem = problem("postgres: { url: 'postgres://host/database' }");
        assert!(problem.contains("journal.postgres"), "{problem}");
        assert!(problem.contains("the feature `postgres`"), "{problem}");
    }

    #[test]
    fn journal_in_database_requires_sync() {
        for word in ["interval", "off"] {
            let journal = format!("durability: {word}, postgres: {{ url: 'postgres://a/b' }}");
            let problem = problem(&journal);
            assert!(
                problem.contains("journal.durability: must be sync"),
                "{problem}"
            );
        }
    }

    #[test]
    #[cfg(feature = "postgres")]
    fn problems_are_reported_without_secrets() {
        for (spec, part) in [
            ("{}", "journal.postgres.url: names no host"),
            (
                "{ url: 'http://hunter2/b' }",
                "url: is not a PostgreSQL URL",
            ),
            ("{ url: 'postgres://hunter2' }", "url: names no database"),
            (
                "{ url: 'postgres://a:hunter2@b/c' }",
                "url: contains a password",
            ),
            (
                "{ url: { env: HUNTER2_NONE } }",
                "journal.postgres.url: the environment has no",
            ),
            (
                "{ url: 'postgres://a/b', password: {} }",
                "password: takes one of env, file",
            ),
            (
                "{ url: 'postgres://a/b', ca: /dev/null }",
                "ca: it has no certificate",
            ),
            (
                "{ url: 'postgres://a/b', ca: ./hunter2 }",
                "ca: cannot be read",
            ),
        ] {
            let problem = problem(&format!("postgres: {spec}"));
            assert!(problem.contains(part), "{spec}: {problem}");
            assert!(!problem.contains("hunter2"), "{spec}: {problem}");
        }
        for mode in ["require", "verify-ca", "verify-full"] {
            let url = format!("postgres://memoird@db/memoird?sslmode={mode}");
            let journal = format!("journal: {{ postgres: {{ url: '{url}' }} }}");
            let good = format!("server: {{ allow_without_keys: true }}\n{journal}");
            assert!(parse(&good).expect(mode).journal.is_outside_data_dir());
        }
    }
}
