//! `memoird reload`: the daemon reads its configuration file again.

use memoird_proto::v1::{ReloadConfigRequest, ReloadConfigResponse};

use super::exit::CliError;
use super::{ClientArgs, output};

/// Asks and prints.
pub(crate) async fn run(client: &ClientArgs) -> Result<(), CliError> {
    let target = client.connect.target()?;
    let reply = target.done(target.admin().reload_config(ReloadConfigRequest {}).await)?;
    output::show(client.json, &reply, described)
}

/// A line for each setting.
pub(super) fn described(reply: &ReloadConfigResponse) -> String {
    let ReloadConfigResponse { applied, refused } = reply;
    if applied.is_empty() && refused.is_empty() {
        return "nothing has changed".to_owned();
    }
    let applied = applied.iter().map(|setting| ("applied", setting));
    let refused = refused.iter().map(|setting| ("refused", setting));
    let lines = applied
        .chain(refused)
        .map(|(what, setting)| format!("{what}  {}", output::printable(setting)));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_its_line() {
        let none = ReloadConfigResponse::default();
        assert_eq!(described(&none), "nothing has changed");
        let some = ReloadConfigResponse {
            applied: vec!["short_term.session_ttl".into(), "hooks".into()],
            refused: vec!["data_dir: stays a until the daemon starts anew".into()],
        };
        let expected = "applied  short_term.session_ttl\napplied  hooks\n\
                        refused  data_dir: stays a until the daemon starts anew";
        assert_eq!(described(&some), expected);
    }
}
