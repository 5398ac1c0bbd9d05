//! The bare gRPC server for `--baseline`.
//!
//! It decodes the same requests and replies with the same messages, but stores nothing. The
//! difference in CPU per call is memoird's own cost.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use bytes::Bytes;
use clap::Args;
use memoird_proto::spliced::admin_service_server::{AdminService, AdminServiceServer};
use memoird_proto::spliced::session_service_server::{SessionService, SessionServiceServer};
use memoird_proto::spliced::*;
use memoird_proto::v1;
use prost::Message;
use prost_types::Timestamp;
use serde_json::json;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::clock;
use super::traffic::{Rng, turn};

/// Options of the bare server.
#[derive(Args)]
pub(crate) struct BaselineArgs {
    /// File to write the address to once it serves
    #[arg(long, value_name = "FILE")]
    endpoints: PathBuf,
    /// Turns in each history it returns
    #[arg(long, default_value_t = 50)]
    history_turns: u32,
    /// Bytes of text in each of these turns
    #[arg(long, default_value_t = 200)]
    bytes: u32,
}

/// A service that only counts appends.
#[derive(Clone)]
struct Bare {
    seq: Arc<AtomicU64>,
    history: Arc<[Bytes]>,
    /// The report in each window.
    report: Arc<ContextReport>,
}

type Answer<T> = Result<Response<T>, Status>;

pub(crate) async fn run(args: BaselineArgs) -> Result<()> {
    let mut rng = Rng::new(1);
    let history: Arc<[Bytes]> = (0..args.history_turns as usize)
        .map(|index| {
            let mut turn = turn(index, args.bytes as usize, &mut rng);
            turn.seq = index as u64 + 1;
            turn.timestamp = Some(now());
            Bytes::from(turn.encode_to_vec())
        })
        .collect();
    let report = Arc::new(report(&history));
    let bare = Bare {
        seq: Arc::default(),
        history,
        report,
    };
    let local = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    // Same options as `Server::serve`.
    let incoming = TcpIncoming::bind(local)?.with_nodelay(Some(true));
    let addr = incoming.local_addr()?;
    let serving = Server::builder()
        .add_service(SessionServiceServer::new(bare.clone()))
        .add_service(AdminServiceServer::new(bare))
        .serve_with_incoming(incoming);
    announce(&args.endpoints, &addr.to_string())?;
    Ok(serving.await?)
}

/// Writes the address atomically.
fn announce(endpoints: &Path, addr: &str) -> std::io::Result<()> {
    let draft = endpoints.with_extension("tmp");
    std::fs::write(&draft, json!({ "grpc": addr, "admin": addr }).to_string())?;
    std::fs::rename(draft, endpoints)
}

fn now() -> Timestamp {
    clock::wall().into()
}

/// A report of the same size as memoird's for these turns.
fn report(history: &[Bytes]) -> ContextReport {
    let turns = u32::try_from(history.len()).unwrap_or(u32::MAX);
    let tokens = |turn: &Bytes| turn.len() as u64 / 4;
    let tokens_total: u64 = history.iter().map(tokens).sum();
    let anchor = history.first().map_or(0, tokens);
    let blocks = TokensByBlock {
        anchor,
        tail: tokens_total - anchor,
        ..TokensByBlock::default()
    };
    ContextReport {
        input_budget: 185_664,
        tokens_total,
        tokens_by_block: Some(blocks),
        turns_included: turns,
        stable_prefix_tokens: tokens_total,
        cache_breakpoints: vec![turns.saturating_sub(1)],
        turn_tokens: history.iter().map(tokens).collect(),
        token_factor: 1.0,
        token_margin: 0.1,
        policy: Some(WindowPolicy {
            policy: Some(window_policy::Policy::HeadTail(HeadTail { turns: 0 })),
        }),
        budget: Some(Budget {
            context_window: Some(200_000),
            max_reply_tokens: Some(4_096),
            safety_headroom: Some(2_048),
            tool_result_headroom: Some(8_192),
        }),
        model: "default".to_owned(),
        ..ContextReport::default()
    }
}

impl Bare {
    /// A session of the same size as memoird's.
    fn session(&self, session_id: String, last_seq: u64) -> SessionInfo {
        let now = now();
        let expires_at = Timestamp {
            seconds: now.seconds + 86_400,
            ..now
        };
        SessionInfo {
            session_id,
            generation: "01JH2V0QZJ8M3T6C9Y4R5N7WXA".to_owned(),
            history_turns: self.history.len() as u64,
            history_bytes: 12_345,
            history_tokens: 2_345,
            last_seq,
            created_at: Some(now),
            last_access: Some(now),
            expires_at: Some(expires_at),
            ..SessionInfo::default()
        }
    }
}

#[tonic::async_trait]
impl SessionService for Bare {
    async fn append(&self, request: Request<AppendRequest>) -> Answer<AppendResponse> {
        let request = request.into_inner();
        let turns = request.turns.len() as u64;
        let last_seq = self.seq.fetch_add(turns, Ordering::Relaxed) + turns;
        Ok(Response::new(AppendResponse {
            session: Some(self.session(request.session_id, last_seq)),
            first_seq: last_seq + 1 - turns,
            last_seq,
            dropped_turns: turns,
            duplicate: false,
        }))
    }

    async fn get_history(&self, request: Request<GetHistoryRequest>) -> Answer<GetHistoryResponse> {
        drop(request);
        Ok(Response::new(GetHistoryResponse {
            turns: self.history.to_vec(),
            ..GetHistoryResponse::default()
        }))
    }

    async fn build_context(
        &self,
        request: Request<BuildContextRequest>,
    ) -> Answer<BuildContextResponse> {
        let request = request.into_inner();
        let turns = request.append.map_or(0, |append| append.turns.len() as u64);
        let last_seq = self.seq.fetch_add(turns, Ordering::Relaxed) + turns;
        let rest = v1::BuildContextResponse {
            session: Some(self.session(request.session_id, last_seq)),
            report: Some(ContextReport::clone(&self.report)),
            ..v1::BuildContextResponse::default()
        };
        Ok(Response::new(BuildContextResponse {
            turns: Box::new(self.history.to_vec()),
            rest,
        }))
    }
}

#[tonic::async_trait]
impl AdminService for Bare {
    async fn get_stats(&self, _: Request<GetStatsRequest>) -> Answer<GetStatsResponse> {
        let stat = procfs::process::Process::myself()
            .and_then(|process| process.stat())
            .map_err(|error| Status::internal(error.to_string()))?;
        let ticks = stat.utime + stat.stime;
        Ok(Response::new(GetStatsResponse {
            cpu_seconds: ticks as f64 / procfs::ticks_per_second() as f64,
            rss_bytes: stat.rss * procfs::page_size(),
            ..GetStatsResponse::default()
        }))
    }
}
