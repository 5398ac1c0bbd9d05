//! `memoird window`: shows the window a model would get for a session now, and why. Read-only.

mod bar;
mod draw;

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use memoird_core::window::Policy as Chosen;
use memoird_proto::v1::window_policy::Policy;
use memoird_proto::v1::{
    Budget, BuildContextRequest, BuildContextResponse, HeadTail, Salience, SlidingWindow,
    TokenBudget, WindowPolicy,
};

use super::choice::one_of;
use super::connect::ClientArgs;
use super::output;
use crate::exit::{CliError, Exit};

#[derive(Args)]
pub struct WindowArgs {
    /// Session id, chosen by the bot
    #[arg(value_name = "SESSION")]
    id: String,
    /// Model of the daemon's configuration [default: its default_model]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Window policy [default: as configured]
    #[arg(long, value_enum, value_name = "POLICY")]
    policy: Option<PolicyName>,
    /// Number of turns: at least 1 for sliding_window; those of the tail for head_tail
    #[arg(long, value_name = "N", requires = "policy")]
    turns: Option<u32>,
    /// Context window in tokens, instead of the model's
    #[arg(long, value_name = "TOKENS")]
    context_window: Option<u64>,
    /// Also print the messages, in the format of this provider
    #[arg(long, value_parser = one_of("MessageFormat"))]
    format: Option<i32>,
}

/// Window policies, named as in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum PolicyName {
    /// Only the last turns
    SlidingWindow,
    /// The first user turn and the last turns
    HeadTail,
    /// The first user turn and as many of the last turns as the budget holds
    TokenBudget,
    /// Like token_budget, but the least important middle turns are left out first
    Salience,
}

pub(crate) async fn run(client: &ClientArgs, args: WindowArgs) -> Result<(), CliError> {
    let request = args.request()?;
    let target = client.target()?;
    let window = target.call(&request).await?;
    let has_colours = std::io::stdout().is_terminal();
    let drawn = |window: &BuildContextResponse| draw::window(window, has_colours);
    output::show(target.json, &window, drawn)?;
    match args.format {
        Some(_) if !target.json => print_messages(&window),
        _ => Ok(()),
    }
}

/// Prints the messages as indented JSON, and the system prompt if it is separate.
fn print_messages(window: &BuildContextResponse) -> Result<(), CliError> {
    let messages: serde_json::Value = serde_json::from_str(&window.messages_json)
        .map_err(|error| CliError::failed(Exit::Refused, error.to_string()))?;
    output::print("")?;
    output::print_json(&messages)
}

impl WindowArgs {
    fn request(&self) -> Result<BuildContextRequest, CliError> {
        let budget = Budget {
            context_window: self.context_window,
            ..Budget::default()
        };
        Ok(BuildContextRequest {
            session_id: self.id.clone(),
            model: self.model.clone().unwrap_or_default(),
            budget: Some(budget),
            policy: self.policy()?,
            format: self.format.unwrap_or_default(),
            peek: true,
            ..BuildContextRequest::default()
        })
    }

    fn policy(&self) -> Result<Option<WindowPolicy>, CliError> {
        let Some(name) = self.policy else {
            return Ok(None);
        };
        let chosen = match name.policy(self.turns)? {
            Chosen::SlidingWindow { turns } => Policy::SlidingWindow(SlidingWindow { turns }),
            Chosen::HeadTail { turns } => Policy::HeadTail(HeadTail { turns }),
            Chosen::TokenBudget => Policy::TokenBudget(TokenBudget {}),
            Chosen::Salience => Policy::Salience(Salience {}),
        };
        let policy = Some(chosen);
        Ok(Some(WindowPolicy { policy }))
    }
}

impl PolicyName {
    /// Converts to a policy with this number of turns, if it takes one.
    pub fn policy(self, turns: Option<u32>) -> Result<Chosen, CliError> {
        match (self, turns) {
            (Self::SlidingWindow, None | Some(0)) => {
                let problem = "--policy sliding_window requires --turns of at least 1";
                Err(CliError::usage(problem))
            }
            (Self::TokenBudget | Self::Salience, Some(_)) => {
                let problem = "--turns requires --policy sliding_window or head_tail";
                Err(CliError::usage(problem))
            }
            (Self::SlidingWindow, Some(turns)) => Ok(Chosen::SlidingWindow { turns }),
            (Self::HeadTail, turns) => Ok(Chosen::HeadTail {
                turns: turns.unwrap_or(0),
            }),
            (Self::TokenBudget, None) => Ok(Chosen::TokenBudget),
            (Self::Salience, None) => Ok(Chosen::Salience),
        }
    }
}

#[cfg(test)]
mod tests {
    use memoird_proto::v1::MessageFormat;

    use super::*;

    fn args(policy: Option<PolicyName>, turns: Option<u32>) -> WindowArgs {
        WindowArgs {
            id: "chat".into(),
            model: None,
            policy,
            turns,
            context_window: Some(9_000),
            format: Some(MessageFormat::Anthropic.into()),
        }
    }

    #[test]
    fn window_command_only_peeks() {
        let request = args(None, None).request().expect("a request");
        assert!(request.peek && request.append.is_none() && request.policy.is_none());
        assert_eq!(
            request.budget.and_then(|budget| budget.context_window),
            Some(9_000)
        );
        assert_eq!(request.format(), MessageFormat::Anthropic);
    }

    #[test]
    fn turns_option_applies_to_two_policies() {
        use PolicyName::{HeadTail, Salience, SlidingWindow, TokenBudget};
        for (policy, turns, good) in [
            (SlidingWindow, Some(1), true),
            (SlidingWindow, Some(0), false),
            (SlidingWindow, None, false),
            (HeadTail, None, true),
            (HeadTail, Some(0), true),
            (TokenBudget, None, true),
            (TokenBudget, Some(3), false),
            (Salience, None, true),
            (Salience, Some(3), false),
        ] {
            let made = args(Some(policy), turns).policy();
            assert_eq!(made.is_ok(), good, "{policy:?} {turns:?}");
        }
    }
}
