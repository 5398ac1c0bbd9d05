//! `memoird health`: does the daemon take calls? For probes that can only run a program.

use std::time::Duration;

use serde_json::json;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::exit::{CliError, Exit};
use super::{ClientArgs, output};

/// The empty name would ask whether there is a server at all; that one is told to serve
/// also while it drains.
const SERVICE: &str = "memoird.v1.SessionService";
/// A probe wants to know now. Shorter than the time limits of the probes in deploy/.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);

/// Asks and prints; fails unless calls are taken.
pub(crate) async fn run(client: &ClientArgs) -> Result<(), CliError> {
    let addr = &client.connect.addr;
    let mut health = HealthClient::new(addr.channel()?);
    let request = HealthCheckRequest {
        service: SERVICE.to_owned(),
    };
    let answer = tokio::time::timeout(ANSWER_TIME_MAX, health.check(request)).await;
    let late = format!("no answer within {ANSWER_TIME_MAX:?}");
    let answer = answer.map_err(|_| CliError::unavailable(&addr.to_string(), &late))?;
    let answer = answer.map_err(|status| CliError::of_call(&addr.to_string(), &status))?;
    let status = answer.into_inner().status();
    let name = status.as_str_name();
    match client.json {
        true => output::print_json(&json!({ "status": name }))?,
        false => output::print(name)?,
    }
    match status {
        ServingStatus::Serving => Ok(()),
        _ => {
            let problem = format!("memoird at {addr} takes no calls");
            Err(CliError::failed(Exit::Unavailable, problem))
        }
    }
}
