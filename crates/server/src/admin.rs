//! The admin port: is it alive, is it ready, what does it count.

use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use http::{Request, Response};
use hyper::body::Incoming;
use memoird_engine::Engine;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tower::Service;
use tracing::warn;

use crate::connections::serve::{Io, Protocol, http1};
use crate::connections::{Connection, ConnectionsConfig, now};
use crate::journal_place::Members;

/// Between two pages of metrics, however many ask.
const PAGE_PAUSE: Duration = Duration::from_millis(100);

/// How long a page waits for what the journal counts.
const COUNT_TIME_MAX: Duration = Duration::from_secs(1);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A page of metrics without any.
const NOTHING_COUNTED: &[u8] = b"# EOF\n";

/// What the port tells. It answers before there is anything else.
#[derive(Clone, Debug)]
pub(crate) struct Admin(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    ready: AtomicBool,
    /// Which daemon has the journal that this one waits for.
    waits_for: watch::Receiver<Option<String>>,
    /// Once the sessions are back.
    opened: OnceLock<Opened>,
}

/// What there is of a daemon that has its journal.
#[derive(Debug)]
struct Opened {
    journal_away: watch::Receiver<Option<String>>,
    members: Members,
    engine: Engine,
    registry: Registry,
    metrics: SharedPage,
}

/// A page for all who ask while it is waited for. It is never older than the question.
#[derive(Debug, Default)]
struct SharedPage {
    /// The last one, and when it was begun.
    last: Mutex<Option<(Instant, Bytes)>>,
}

impl Admin {
    /// `waits_for`: which daemon has the journal that this one waits for.
    pub(crate) fn new(waits_for: watch::Receiver<Option<String>>) -> Self {
        Self(Arc::new(Shared {
            ready: AtomicBool::new(false),
            waits_for,
            opened: OnceLock::new(),
        }))
    }

    /// The sessions are back. `journal_away`: what its database does, as long as that does not answer;
    /// `members`: the daemons that share it.
    pub(crate) fn open(
        &self,
        engine: Engine,
        registry: Registry,
        journal_away: watch::Receiver<Option<String>>,
        members: Members,
    ) {
        let opened = Opened {
            journal_away,
            members,
            engine,
            registry,
            metrics: SharedPage::default(),
        };
        // A daemon opens its journal once.
        let _ = self.0.opened.set(opened);
    }

    /// Whether calls are taken; before the first and after the last they are not.
    pub(crate) fn set_ready(&self, ready: bool) {
        self.0.ready.store(ready, Ordering::Relaxed);
    }

    /// The port's pages.
    fn router(self) -> Router {
        Router::new()
            .route("/healthz", get(|| async { "alive\n" }))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

/// HTTP, as the port speaks it.
#[derive(Clone)]
pub(crate) struct Pages {
    http1: hyper::server::conn::http1::Builder,
    router: Router,
}

/// The pages for the requests of one connection.
#[derive(Clone)]
pub(crate) struct PageService {
    router: Router,
    connection: Arc<Connection>,
}

impl Pages {
    pub(crate) fn new(admin: Admin, limits: &ConnectionsConfig) -> Self {
        Self {
            http1: http1(limits.handshake_timeout),
            router: admin.router(),
        }
    }
}

impl Protocol for Pages {
    type Serving = hyper::server::conn::http1::Connection<Io, PageService>;

    // A limit for the head of a request is one for the first bytes as well.
    const SAYS_HELLO: bool = false;

    fn serve(&self, io: Io, connection: &Arc<Connection>) -> Self::Serving {
        let service = PageService {
            router: self.router.clone(),
            connection: Arc::clone(connection),
        };
        self.http1.serve_connection(io, service)
    }
}

impl hyper::service::Service<Request<Incoming>> for PageService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let call = self.connection.begin_call();
        let page = self.router.clone().call(request);
        Box::pin(async move {
            let page = page.await;
            drop(call);
            page
        })
    }
}

async fn readyz(State(Admin(shared)): State<Admin>) -> (StatusCode, Cow<'static, str>) {
    match shared.problem() {
        None => (StatusCode::OK, shared.ready_page().into()),
        Some(problem) => (StatusCode::SERVICE_UNAVAILABLE, problem),
    }
}

async fn metrics(State(Admin(shared)): State<Admin>) -> impl IntoResponse {
    let page = match shared.opened.get() {
        Some(opened) => opened.metrics.get(opened.encode_metrics()).await,
        // A scrape succeeds: the daemon is up.
        None => Some(Bytes::from_static(NOTHING_COUNTED)),
    };
    match page {
        Some(page) => ([(CONTENT_TYPE, OPEN_METRICS)], page).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

impl Shared {
    /// What stands in the page while calls are taken. Daemons that do not agree take them all the
    /// same: a changed file comes to one after the other. So does one that can only read.
    fn ready_page(&self) -> String {
        let opened = self.opened.get();
        let disagreements = opened.map(|opened| opened.members.seen().disagreements());
        let failure = opened.and_then(|opened| opened.engine.journal_failure());
        let failure = failure.map(|failure| format!("the journal cannot be written: {failure}"));
        let lines = disagreements.into_iter().flatten().chain(failure);
        lines.fold("ready\n".to_owned(), |page, line| {
            format!("{page}warning: {line}\n")
        })
    }

    /// Why no calls are taken.
    fn problem(&self) -> Option<Cow<'static, str>> {
        let opened = self.opened.get();
        if let Some(does) = opened.and_then(|opened| opened.journal_away.borrow().clone()) {
            let problem = format!("not ready: the database of journal.postgres.url {does}\n");
            return Some(problem.into());
        }
        if let Some(owner) = &*self.waits_for.borrow() {
            let problem = format!(
                "standby: another memoird ({owner}) has the database of journal.postgres.url\n"
            );
            return Some(problem.into());
        }
        let is_ready = self.ready.load(Ordering::Relaxed);
        (!is_ready).then_some("not ready\n".into())
    }
}

impl Opened {
    async fn encode_metrics(&self) -> Option<Bytes> {
        // Where it cannot be counted, the page shows what was counted before: a journal that does not
        // answer is when the other numbers are asked for.
        if self.engine.leads() {
            match timeout(COUNT_TIME_MAX, self.engine.hooks.count_deliveries()).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => warn!(%error, "hook deliveries could not be counted"),
                Err(_) => warn!("hook deliveries could not be counted in time"),
            }
        }
        let mut page = String::new();
        text::encode(&mut page, &self.registry).ok()?;
        Some(page.into())
    }
}

impl SharedPage {
    /// The page, which is made where it was begun before this.
    async fn get(&self, make: impl Future<Output = Option<Bytes>>) -> Option<Bytes> {
        let asked = now();
        let mut last = self.last.lock().await;
        if let Some((begun, page)) = &*last {
            if *begun > asked {
                return Some(page.clone());
            }
            sleep_until(*begun + PAGE_PAUSE).await;
        }
        let begun = now();
        let page = make.await?;
        *last = Some((begun, page.clone()));
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_page_is_made_for_all_who_wait_for_it_and_is_never_old() {
        let (page, made) = (Arc::<SharedPage>::default(), Arc::<AtomicUsize>::default());
        let get = || {
            let (page, made) = (Arc::clone(&page), Arc::clone(&made));
            async move {
                let number = async { made.fetch_add(1, Ordering::Relaxed).to_string() };
                page.get(async { Some(number.await.into()) }).await
            }
        };
        let mut asking = JoinSet::new();
        (0..1_000).for_each(|_| drop(asking.spawn(get())));
        asking.join_all().await;
        assert_eq!(
            made.load(Ordering::Relaxed),
            2,
            "the first, and one for the others"
        );
        let begun = now();
        for number in 2..12 {
            let page = get().await.expect("a page");
            assert_eq!(page, number.to_string());
        }
        assert!(now() - begun >= PAGE_PAUSE * 9);
    }
}
