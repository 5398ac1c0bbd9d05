//! `memoird hooks`: lists, retries and drops hook deliveries.

use clap::{Args, Subcommand};
use memoird_proto::v1::{
    DeliveryState, DropHookDeliveryRequest, HookDelivery, ListHookDeliveriesRequest,
    RetryHookDeliveryRequest,
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tonic::Code;

use super::choice::{one_of, request};
use super::connect::{ClientArgs, Target};
use super::list::{self, Count, Line, ListColumn, Name, Text, with};
use super::pages::{PAGE_MAX, Pages};
use super::{clock, json, output};
use crate::exit::CliError;

/// Concurrent retries. The daemon commits them together.
const RETRIES_AT_ONCE: usize = 32;

#[derive(Subcommand)]
pub enum HooksCommand {
    /// List deliveries that are pending, done, or dead (role admin)
    List(ListArgs),
    /// Retry deliveries now, with all attempts available again (role admin)
    Retry(RetryArgs),
    /// Drop pending deliveries without calling their hooks (role admin)
    Drop {
        /// Id as in `hooks list`: GENERATION/HOOK
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

#[derive(Args, Serialize)]
struct Filter {
    /// Only deliveries of this tenant [default: all]
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Only deliveries to this hook [default: all]
    #[arg(long, value_name = "NAME")]
    hook: Option<String>,
}

#[derive(Args, Serialize)]
pub struct ListArgs {
    #[command(flatten)]
    #[serde(flatten)]
    filter: Filter,
    /// Only deliveries in this state [default: any]
    #[arg(long, value_parser = one_of("DeliveryState"))]
    state: Option<i32>,
    /// Maximum number to print; 0 prints all
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[serde(skip)]
    limit: usize,
}

#[derive(Args)]
pub struct RetryArgs {
    /// Id as in `hooks list`: GENERATION/HOOK
    #[arg(required_unless_present = "all_dead", value_name = "ID")]
    ids: Vec<String>,
    /// Retry all dead deliveries, or those selected by --hook and --tenant
    #[arg(long, conflicts_with = "ids")]
    all_dead: bool,
    #[command(flatten)]
    filter: Filter,
}

pub(crate) async fn run(client: &ClientArgs, command: HooksCommand) -> Result<(), CliError> {
    let target = client.target()?;
    match command {
        HooksCommand::List(args) => {
            let request: ListHookDeliveriesRequest = request(&args)?;
            target.list(&request, args.limit, DELIVERIES).await
        }
        HooksCommand::Retry(args) if args.all_dead => retry_dead(&target, &args.filter).await,
        HooksCommand::Retry(args) => retry_named(&target, args).await,
        HooksCommand::Drop { ids } => drop_named(&target, ids).await,
    }
}

async fn retry_named(target: &Target, args: RetryArgs) -> Result<(), CliError> {
    if args.filter.hook.is_some() || args.filter.tenant.is_some() {
        let problem = "--hook and --tenant require --all-dead instead of ids";
        return Err(CliError::usage(problem));
    }
    let (retried, failed) = each(args.ids, |id| retry(target, id)).await;
    let ids = retried.iter().map(|delivery| &*delivery.id);
    let value = json!({ "deliveries": json::all(&retried) });
    print_each(target, &value, "due now", ids)?;
    failed
}

/// Prints the deliveries of successful calls, if there are any.
fn print_each<'a>(
    target: &Target,
    value: &Value,
    what: &str,
    ids: impl Iterator<Item = &'a str>,
) -> Result<(), CliError> {
    let lines = ids.map(|id| format!("{what}  {}", output::printable(id)));
    match &*lines.collect::<Vec<_>>().join("\n") {
        "" => Ok(()),
        lines => output::print_as(target.json, value, lines),
    }
}

/// Calls `call` for each of the ids.
///
/// Returns the last error, which determines the exit code. Earlier ones are printed at once.
async fn each<T>(
    ids: Vec<String>,
    call: impl AsyncFn(String) -> Result<T, CliError>,
) -> (Vec<T>, Result<(), CliError>) {
    let mut done = Vec::new();
    let mut failed = Ok(());
    for id in ids {
        match call(id.clone()).await {
            Ok(one) => done.push(one),
            Err(error) => {
                if let Err(before) = std::mem::replace(&mut failed, Err(error.at(&id))) {
                    output::note(&format!("error: {before}"));
                }
            }
        }
    }
    (done, failed)
}

/// Retries page by page: the deliveries of an outage may not fit into memory.
async fn retry_dead(target: &Target, filter: &Filter) -> Result<(), CliError> {
    let request = ListHookDeliveriesRequest {
        state: DeliveryState::Dead.into(),
        ..request(filter)?
    };
    let mut pages = Pages::new(target, &request);
    let mut count: u64 = 0;
    while let Some(page) = pages.next(PAGE_MAX).await? {
        for some in page.chunks(RETRIES_AT_ONCE) {
            let mut calls = JoinSet::new();
            for delivery in some {
                let HookDelivery { id, .. } = list::typed(delivery);
                let target = target.clone();
                calls.spawn(async move { retry(&target, id).await });
            }
            for result in calls.join_all().await {
                match result {
                    Ok(_) => count += 1,
                    // It was dropped after it was listed.
                    Err(error) if error.has_code(Code::NotFound) => {}
                    Err(error) => {
                        return Err(error.at(&format!("after {count} that are due now")));
                    }
                }
            }
        }
    }
    let deliveries = output::counted(count, "delivery is", "deliveries are");
    let text = format!("{deliveries} due now");
    output::print_as(target.json, &json!({ "retried": count }), &text)
}

async fn drop_named(target: &Target, ids: Vec<String>) -> Result<(), CliError> {
    let (dropped, failed) = each(ids, async |id: String| {
        let request = DropHookDeliveryRequest { id: id.clone() };
        target.call(&request).await?;
        Ok(id)
    })
    .await;
    let ids = dropped.iter().map(String::as_str);
    print_each(target, &json!({ "dropped": dropped }), "dropped", ids)?;
    failed
}

async fn retry(target: &Target, id: String) -> Result<HookDelivery, CliError> {
    let request = RetryHookDeliveryRequest { id };
    Ok(target.call(&request).await?.delivery.unwrap_or_default())
}

const DELIVERIES: &[ListColumn] = &[
    ("ID", "id", Text),
    ("TENANT", "tenant", Text),
    ("SESSION", "session_id", Text),
    ("REASON", "reason", Name),
    ("STATE", "state", Name),
    ("TRIES", "tries", Count),
    ("WHEN", "", with!(when)),
    ("LAST ERROR", "last_error", Line),
];

/// When a delivery is due, or how long ago it was done or given up.
fn when(delivery: &HookDelivery) -> String {
    let at = delivery.due_at.as_ref();
    match delivery.state() {
        DeliveryState::Pending => match &*clock::left(at) {
            "0s" => "now".to_owned(),
            span => format!("in {span}"),
        },
        _ => format!("{} ago", clock::age(at)),
    }
}
