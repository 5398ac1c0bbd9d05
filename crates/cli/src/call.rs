//! `memoird call`: makes any unary call of the API, with its request and its reply as JSON.

use clap::Args;
use memoird_proto::prost_reflect::ServiceDescriptor;
use memoird_proto::{DESCRIPTOR_POOL, PACKAGE};

use super::connect::ClientArgs;
use super::{json, output};
use crate::exit::CliError;

#[derive(Args)]
pub struct CallArgs {
    /// Service and method, such as SessionService.GetSession
    method: String,
    /// Request as JSON, such as '{"session_id": "chat"}'
    #[arg(default_value = "{}")]
    request: String,
}

pub(crate) async fn run(client: &ClientArgs, args: &CallArgs) -> Result<(), CliError> {
    let target = client.target()?;
    let (service, name) = args.method.split_once('.').unwrap_or_default();
    let service = DESCRIPTOR_POOL.get_service_by_name(&format!("{PACKAGE}.{service}"));
    let mut methods = service.iter().flat_map(ServiceDescriptor::methods);
    let method = methods.find(|method| method.name() == name && !method.is_server_streaming());
    let unknown = || CliError::usage(format!("the API has no unary call {:?}", args.method));
    let method = method.ok_or_else(unknown)?;
    let invalid = |error| CliError::usage(format!("invalid request: {error}"));
    let request = json::parse(method.input(), args.request.as_bytes(), &[]).map_err(invalid)?;
    let path = format!("/{}/{name}", method.parent_service().full_name());
    let reply = target.call_dynamic(&path, "", &request, method.output());
    output::print_json(&json::value(&reply.await?))
}
