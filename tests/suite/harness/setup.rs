//! Configuration, environment and wrapper of a daemon.

use std::fmt::Write as _;
use std::path::Path;

/// How to start a daemon. By default the embedded configuration, on free ports in a new directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    /// Sections of the configuration file, verbatim.
    sections: Vec<String>,
    /// Settings of the section `server`.
    server: Vec<String>,
    /// gRPC address. By default port 0 of the loopback interface.
    listen: Option<String>,
    /// Admin HTTP address. By default port 0 of the loopback interface.
    admin_listen: Option<String>,
    /// Data directory. By default in the test's own directory.
    data_dir: Option<String>,
    pub(crate) env: Vec<(String, String)>,
    /// A program with arguments that ends by executing the daemon.
    pub(crate) wrapper: Vec<String>,
}

impl Setup {
    /// Adds a section, such as `short_term: { max_sessions: 3 }`.
    pub(crate) fn section(mut self, section: impl Into<String>) -> Self {
        self.sections.push(section.into());
        self
    }

    /// Adds a setting of the server, such as `max_connections: 3`.
    pub(crate) fn server(mut self, setting: &str) -> Self {
        self.server.push(setting.to_owned());
        self
    }

    pub(crate) fn listen(mut self, address: &str) -> Self {
        self.listen = Some(address.to_owned());
        self
    }

    pub(crate) fn admin_listen(mut self, address: &str) -> Self {
        self.admin_listen = Some(address.to_owned());
        self
    }

    pub(crate) fn data_dir(mut self, dir: &str) -> Self {
        self.data_dir = Some(dir.to_owned());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the daemon through another program.
    pub(crate) fn wrapper(mut self, command: &[&str]) -> Self {
        self.wrapper = command.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Two tenants, `alpha` and `beta`, with the bot keys `ALPHA` and `BETA`.
    ///
    /// `alpha` also has the operator key `ADMIN`.
    pub(crate) fn two_tenants(self, alpha_limits: &str, beta_limits: &str) -> Self {
        let tenants = format!(
            "tenants:\n\
             - {{ id: alpha, keys: [ {{ env: A }}, {{ env: O, role: admin }} ], \
             limits: {{ {alpha_limits} }} }}\n\
             - {{ id: beta, keys: [ {{ env: B }} ], limits: {{ {beta_limits} }} }}"
        );
        let with_keys = self
            .env("A", Self::ALPHA)
            .env("B", Self::BETA)
            .env("O", Self::ADMIN);
        with_keys.section(tenants)
    }

    pub(crate) const ALPHA: &'static str = "alpha-bot-key-c0ffee";
    pub(crate) const BETA: &'static str = "beta-bot-key-deface";
    /// The key of an operator, which belongs to `alpha`.
    pub(crate) const ADMIN: &'static str = "operator-key-decade";

    /// The journal section for runs of the suite over PostgreSQL.
    ///
    /// With `MEMOIRD_SUITE_OVER_POSTGRES=1`, each daemon without a journal section has its journal
    /// in a new database, and with `=cluster` its memories, too. Tests of files are excepted.
    #[cfg(feature = "postgres")]
    #[allow(
        clippy::disallowed_methods,
        reason = "a variable says what the suite is asked of"
    )]
    fn database(&self, home: &Path) -> String {
        let has_journal = |section: &String| section.starts_with("journal");
        let asked = std::env::var("MEMOIRD_SUITE_OVER_POSTGRES").ok();
        if asked.is_none() || self.data_dir.is_some() || self.sections.iter().any(has_journal) {
            return String::new();
        }
        // A restarted daemon keeps its database.
        let note = home.join("database");
        let words = std::fs::read_to_string(&note).unwrap_or_else(|_| {
            let words = crate::data::postgres::server::Server::shared()
                .expect("a server")
                .database();
            std::fs::write(&note, &words).expect("a note");
            words
        });
        let cluster = asked.as_deref() == Some("cluster");
        format!("journal: {{ postgres: {{ url: '{words}', cluster: {cluster} }} }}\n")
    }

    /// The text of the configuration file, for a daemon with this home directory.
    pub(crate) fn yaml(&self, home: &Path) -> String {
        let data_dir = match &self.data_dir {
            Some(dir) => dir.clone(),
            None => home.join("data").display().to_string(),
        };
        let free = "127.0.0.1:0";
        let listen = self.listen.as_deref().unwrap_or(free);
        let admin_listen = self.admin_listen.as_deref().unwrap_or(free);
        let mut text = format!("version: 1\ndata_dir: {data_dir:?}\nserver:\n");
        let _ = write!(text, "  listen: {listen}\n  admin_listen: {admin_listen}\n");
        // A file without keys must allow that explicitly.
        let has_keys = |section: &String| section.starts_with("tenants");
        if !self.sections.iter().any(has_keys) {
            text += "  allow_without_keys: true\n";
        }
        for setting in &self.server {
            let _ = writeln!(text, "  {setting}");
        }
        for section in &self.sections {
            let _ = writeln!(text, "{section}");
        }
        #[cfg(feature = "postgres")]
        text.push_str(&self.database(home));
        text
    }
}
