//! The servers that are measured: a memoird of our own, and the bare server that it is
//! compared with.

use std::path::Path;

use memoird_proto::v1::ReloadConfigRequest;

use super::Durability;
use crate::cli::exit::CliError;
use crate::cli::private::{self, Launch};

pub(super) use crate::cli::private::Daemon;

const PREFIX: &str = "memoird-bench-";

/// How a private daemon is configured.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// When an append is done.
    pub(super) durability: Durability,
    /// The cap on sessions; 0: none.
    pub(super) max_sessions: u64,
    /// Turns of a history.
    pub(super) history_turns: u32,
    /// Encoded bytes of a history.
    pub(super) history_bytes: u64,
    /// How long a session lives untouched, in seconds.
    pub(super) session_ttl_s: u32,
    /// True: a checkpoint in git when a session ends.
    pub(super) checkpoints: bool,
    /// Tokens of the default model's context window; `None`: as it is built in.
    pub(super) context_window: Option<u64>,
    /// False: nothing is compacted, so that whatever else is measured is that alone.
    pub(super) compaction: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            durability: Durability::Sync,
            max_sessions: 0,
            history_turns: 50,
            history_bytes: 4 << 20,
            session_ttl_s: 24 * 60 * 60,
            checkpoints: false,
            context_window: None,
            compaction: false,
        }
    }
}

impl Daemon {
    /// A memoird that nobody else uses.
    pub(super) async fn memoird(settings: Settings, parent: &Path) -> Result<Self, CliError> {
        let dir = private::temp_dir(PREFIX, parent)?;
        Self::configured(dir, |dir| settings.yaml(dir)).await
    }

    /// Gives it another configuration, and makes it read that.
    pub(super) async fn reconfigure(&self, settings: Settings) -> Result<(), CliError> {
        private::write_config(self.dir(), &settings.yaml(self.dir()))?;
        let target = self.target()?;
        let reply = target.admin().reload_config(ReloadConfigRequest {}).await;
        reply.map_err(|status| target.explain(status)).map(drop)
    }

    /// A bare server that keeps nothing.
    pub(super) async fn bare(
        history_turns: u32,
        bytes: u32,
        parent: &Path,
    ) -> Result<Self, CliError> {
        let dir = private::temp_dir(PREFIX, parent)?;
        let endpoints = dir.path().join("endpoints.json");
        let args = vec![
            "bench-baseline".into(),
            format!("--endpoints={}", endpoints.display()),
            format!("--history-turns={history_turns}"),
            format!("--bytes={bytes}"),
        ];
        Self::start(Launch { args, endpoints }, dir).await
    }
}

impl Settings {
    fn yaml(&self, dir: &Path) -> String {
        let checkpoints = private::quoted(&dir.join("checkpoints"));
        let hooks = match self.checkpoints {
            true => format!("[ {{ name: checkpoint, git: {{ dir: {checkpoints} }} }} ]"),
            false => "[]".to_owned(),
        };
        let context = self.context_window.map_or_else(String::new, |tokens| {
            format!(
                "context: {{ models: {{ default: {{ context_window: {tokens}, max_reply_tokens: {}, \
                 safety_headroom: {}, tool_result_headroom: {} }} }} }}\n",
                tokens / 8,
                tokens / 16,
                tokens / 4
            )
        });
        format!(
            "version: 1\n\
             data_dir: {}\n\
             server: {{ listen: \"127.0.0.1:0\", admin_listen: \"127.0.0.1:0\" }}\n\
             journal: {{ durability: \"{}\" }}\n\
             short_term: {{ max_sessions: {}, max_history_turns: {}, max_history_bytes: {}, \
             session_ttl: {}s }}\n\
             compaction: {{ enabled: {} }}\n\
             {context}hooks: {hooks}\n",
            private::quoted(&private::data_in(dir)),
            self.durability.name(),
            self.max_sessions,
            self.history_turns,
            self.history_bytes,
            self.session_ttl_s,
            self.compaction,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_what_a_person_would_write() {
        let settings = Settings {
            durability: Durability::Off,
            max_sessions: 7,
            ..Settings::default()
        };
        let yaml = settings.yaml(Path::new("/tmp/a \"b\""));
        assert!(
            yaml.contains("data_dir: \"/tmp/a \\\"b\\\"/data\"\n"),
            "{yaml}"
        );
        assert!(
            yaml.contains("journal: { durability: \"off\" }\n"),
            "{yaml}"
        );
        assert!(
            yaml.contains("compaction: { enabled: false }\nhooks: []\n"),
            "{yaml}"
        );
        let small = Settings {
            context_window: Some(8_192),
            compaction: true,
            ..settings
        }
        .yaml("/tmp".as_ref());
        let model = "default: { context_window: 8192, max_reply_tokens: 1024, ";
        assert!(
            small.contains(model) && small.contains("{ enabled: true }"),
            "{small}"
        );
        assert!(
            yaml.contains("{ max_sessions: 7, max_history_turns: 50, max_history_bytes: 4194304, "),
            "{yaml}"
        );
    }
}
