//! The admin port: liveness, readiness and metrics over HTTP.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use memoird_engine::Engine;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::warn;

use crate::cluster::disagreements;
use crate::connections::serve::{Io, Protocol, http1};
use crate::connections::{Connection, ConnectionsConfig, now};
use crate::journal_location::Members;

/// Minimum interval between two renderings of the metrics page.
const PAGE_PAUSE: Duration = Duration::from_millis(100);

/// Timeout for counting hook deliveries while rendering the metrics page.
const COUNT_TIME_MAX: Duration = Duration::from_secs(1);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An empty metrics page.
const EMPTY_METRICS: &[u8] = b"# EOF\n";

/// State of the admin port, which answers before the rest of the daemon is up.
#[derive(Clone, Debug)]
pub(crate) struct Admin(Arc<AdminInner>);

#[derive(Debug)]
struct AdminInner {
    ready: AtomicBool,
    /// Name of the daemon that holds the journal, while this one is on standby.
    waits_for: watch::Receiver<Option<String>>,
    /// Set once the sessions are loaded.
    opened: OnceLock<OpenState>,
}

/// State that exists once the journal is open.
#[derive(Debug)]
struct OpenState {
    journal_away: watch::Receiver<Option<String>>,
    members: Members,
    engine: Engine,
    registry: Registry,
    metrics: MetricsPage,
}

/// A metrics page shared by all concurrent requests. Never older than the request.
#[derive(Debug, Default)]
struct MetricsPage {
    /// The last page, and when its rendering started.
    last: Mutex<Option<(Instant, Bytes)>>,
}

impl Admin {
    /// `waits_for` is the daemon that holds the journal, while this one is on standby.
    pub(crate) fn new(waits_for: watch::Receiver<Option<String>>) -> Self {
        Self(Arc::new(AdminInner {
            ready: AtomicBool::new(false),
            waits_for,
            opened: OnceLock::new(),
        }))
    }

    /// Adds what is available after loading the sessions.
    ///
    /// `journal_away` describes the outage while the journal's database is unreachable.
    pub(crate) fn open(
        &self,
        engine: Engine,
        registry: Registry,
        journal_away: watch::Receiver<Option<String>>,
        members: Members,
    ) {
        let opened = OpenState {
            journal_away,
            members,
            engine,
            registry,
            metrics: MetricsPage::default(),
        };
        // The journal is opened only once, so this cannot fail.
        let _ = self.0.opened.set(opened);
    }

    /// Sets whether the daemon accepts calls. False during startup and draining.
    pub(crate) fn set_ready(&self, ready: bool) {
        self.0.ready.store(ready, Ordering::Relaxed);
    }

    async fn page(&self, method: &Method, path: &str) -> Page {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        match path {
            "/healthz" | "/readyz" | "/metrics" if !is_read => {
                let page = empty(StatusCode::METHOD_NOT_ALLOWED);
                with_header(page, ALLOW, "GET,HEAD")
            }
            "/healthz" => text(StatusCode::OK, "alive\n"),
            "/readyz" => self.0.readyz(),
            "/metrics" => self.0.metrics().await,
            _ => empty(StatusCode::NOT_FOUND),
        }
    }
}

type Page = Response<Full<Bytes>>;

fn with_header(mut page: Page, name: HeaderName, value: &'static str) -> Page {
    page.headers_mut()
        .insert(name, HeaderValue::from_static(value));
    page
}

fn empty(status: StatusCode) -> Page {
    let mut page = Page::default();
    *page.status_mut() = status;
    page
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Page {
    let page = empty(status).map(|_| Full::new(text.into()));
    with_header(page, CONTENT_TYPE, "text/plain; charset=utf-8")
}

#[derive(Clone)]
pub(crate) struct Pages {
    http1: hyper::server::conn::http1::Builder,
    admin: Admin,
}

#[derive(Clone)]
pub(crate) struct PageService {
    admin: Admin,
    connection: Arc<Connection>,
}

impl Pages {
    pub(crate) fn new(admin: Admin, limits: &ConnectionsConfig) -> Self {
        Self {
            http1: http1(limits.handshake_timeout),
            admin,
        }
    }
}

impl Protocol for Pages {
    type Serving = hyper::server::conn::http1::Connection<Io, PageService>;

    // hyper's timeout for the request head also covers the first bytes.
    const CLIENT_SPEAKS_FIRST: bool = false;

    fn serve(&self, io: Io, connection: &Arc<Connection>) -> Self::Serving {
        let service = PageService {
            admin: self.admin.clone(),
            connection: Arc::clone(connection),
        };
        self.http1.serve_connection(io, service)
    }
}

impl hyper::service::Service<Request<Incoming>> for PageService {
    type Response = Page;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Page, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let call = self.connection.begin_call();
        let admin = self.admin.clone();
        Box::pin(async move {
            let page = admin.page(request.method(), request.uri().path()).await;
            drop(call);
            Ok(page)
        })
    }
}

impl AdminInner {
    fn readyz(&self) -> Page {
        match self.problem() {
            None => text(StatusCode::OK, self.ready_page()),
            Some(problem) => text(StatusCode::SERVICE_UNAVAILABLE, problem),
        }
    }

    async fn metrics(&self) -> Page {
        let page = match self.opened.get() {
            Some(opened) => opened.metrics.get(opened.encode_metrics()).await,
            // Succeed before the journal is open, because the daemon itself is up.
            None => Some(Bytes::from_static(EMPTY_METRICS)),
        };
        match page {
            Some(page) => {
                let page = Response::new(Full::new(page));
                with_header(page, CONTENT_TYPE, OPEN_METRICS)
            }
            None => empty(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// Body of `/readyz` while calls are accepted.
    ///
    /// Differing settings (unless `cluster.strict` is set) and an unwritable journal are only
    /// warnings: a changed file reaches one daemon after the other, and a daemon that can only read
    /// still serves.
    fn ready_page(&self) -> String {
        let opened = self.opened.get();
        let disagreements = opened.map(|opened| disagreements(&opened.members.seen()));
        let failure = opened
            .and_then(|opened| opened.engine.journal_failure())
            .map(|failure| format!("the journal cannot be written: {failure}"));
        let lines = disagreements.into_iter().flatten().chain(failure);
        lines.fold("ready\n".to_owned(), |page, line| {
            format!("{page}warning: {line}\n")
        })
    }

    /// Why the daemon is not ready, if so.
    fn problem(&self) -> Option<String> {
        let opened = self.opened.get();
        if let Some(problem) = opened.and_then(|opened| opened.journal_away.borrow().clone()) {
            return Some(format!("not ready: {problem}\n"));
        }
        if let Some(owner) = &*self.waits_for.borrow() {
            let problem = format!(
                "standby: another memoird ({owner}) has the database of journal.postgres.url\n"
            );
            return Some(problem);
        }
        if let Some(problem) = opened.and_then(|opened| opened.members.policy.problem()) {
            return Some(format!("not ready: {problem}\n"));
        }
        let is_ready = self.ready.load(Ordering::Relaxed);
        (!is_ready).then(|| "not ready\n".to_owned())
    }
}

impl OpenState {
    async fn encode_metrics(&self) -> Option<Bytes> {
        // On failure the page shows the previous counts: other metrics matter while the journal is
        // down.
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

impl MetricsPage {
    /// Returns a page whose rendering started after this call. Renders one if there is none.
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

    #[tokio::test]
    async fn admin_port_serves_get_of_known_pages_only() {
        let admin = Admin::new(watch::channel(None).1);
        for (method, path, status) in [
            (Method::GET, "/healthz", 200),
            (Method::HEAD, "/healthz", 200),
            (Method::GET, "/readyz", 503),
            (Method::HEAD, "/metrics", 200),
            (Method::POST, "/metrics", 405),
            (Method::DELETE, "/readyz", 405),
            (Method::GET, "/", 404),
            (Method::POST, "/metrics/", 404),
        ] {
            let page = admin.page(&method, path).await;
            assert_eq!(page.status(), status, "{method} {path}");
            let allowed = page.headers().get(ALLOW).map(HeaderValue::as_bytes);
            let told = (status == 405).then_some(&b"GET,HEAD"[..]);
            assert_eq!(allowed, told, "{method} {path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn metrics_page_is_shared_and_never_stale() {
        let (page, made) = (Arc::<MetricsPage>::default(), Arc::<AtomicUsize>::default());
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
