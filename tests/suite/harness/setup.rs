//! What a daemon is started with: its configuration, its environment, and what stands
//! between it and the machine.

use std::fmt::Write as _;
use std::path::Path;

/// A configuration to start a daemon with. Without more it is the embedded default,
/// but for the addresses and the data directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    /// Sections of the file, as they stand in it.
    sections: Vec<String>,
    /// Settings of the section `server`.
    server: Vec<String>,
    /// Where gRPC is served; port 0 of this machine unless told.
    listen: Option<String>,
    /// Where the pages for operators are; port 0 of this machine unless told.
    admin_listen: Option<String>,
    /// Where the journal is; in the test's own directory unless told.
    data_dir: Option<String>,
    pub(crate) env: Vec<(String, String)>,
    /// A program, with arguments, that ends by becoming the daemon.
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

    /// Serves gRPC there.
    pub(crate) fn listen(mut self, address: &str) -> Self {
        self.listen = Some(address.to_owned());
        self
    }

    /// Serves the pages for operators there.
    pub(crate) fn admin_listen(mut self, address: &str) -> Self {
        self.admin_listen = Some(address.to_owned());
        self
    }

    /// Keeps the journal there.
    pub(crate) fn data_dir(mut self, dir: &str) -> Self {
        self.data_dir = Some(dir.to_owned());
        self
    }

    /// Sets a variable of the environment.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it through another program.
    pub(crate) fn wrapper(mut self, command: &[&str]) -> Self {
        self.wrapper = command.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Two tenants, `alpha` and `beta`, each with a key `ALPHA` or `BETA` of a bot, and
    /// `alpha` with a key `ADMIN` of an operator as well.
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

    /// The key of `alpha`'s bot.
    pub(crate) const ALPHA: &'static str = "alpha-bot-key-c0ffee";
    /// The key of `beta`'s bot.
    pub(crate) const BETA: &'static str = "beta-bot-key-deface";
    /// The key of an operator, who is of `alpha`.
    pub(crate) const ADMIN: &'static str = "operator-key-decade";

    /// With `MEMOIRD_SUITE_OVER_POSTGRES=1` every daemon that says nothing of its journal has it in a
    /// database of its own, and with `=cluster` its memories, too: the suite is then asked of that, but
    /// for what is about files.
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
        // A daemon that is started again finds its own.
        let note = home.join("database");
        let words = std::fs::read_to_string(&note).unwrap_or_else(|_| {
            let words = crate::postgres::server::Server::shared()
                .expect("a server")
                .database();
            std::fs::write(&note, &words).expect("a note");
            words
        });
        let cluster = asked.as_deref() == Some("cluster");
        format!("journal: {{ postgres: {{ url: '{words}', cluster: {cluster} }} }}\n")
    }

    /// The file's text, for a daemon whose own directory is `home`.
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
        // Without keys a file has to say so.
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
