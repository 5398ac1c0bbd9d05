//! The admin port: is it alive, is it ready, what does it count.

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

    /// The page at a path.
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

/// What is answered.
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

/// HTTP, as the port speaks it.
#[derive(Clone)]
pub(crate) struct Pages {
    http1: hyper::server::conn::http1::Builder,
    admin: Admin,
}

/// The pages for the requests of one connection.
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

    // A limit for the head of a request is one for the first bytes as well.
    const SAYS_HELLO: bool = false;

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

impl Shared {
    fn readyz(&self) -> Page {
        match self.problem() {
            None => text(StatusCode::OK, self.ready_page()),
            Some(problem) => text(StatusCode::SERVICE_UNAVAILABLE, problem),
        }
    }

    async fn metrics(&self) -> Page {
        let page = match self.opened.get() {
            Some(opened) => opened.metrics.get(opened.encode_metrics()).await,
            // A scrape succeeds: the daemon is up.
            None => Some(Bytes::from_static(NOTHING_COUNTED)),
        };
        match page {
            Some(page) => {
                let page = Response::new(Full::new(page));
                with_header(page, CONTENT_TYPE, OPEN_METRICS)
            }
            None => empty(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

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
    fn problem(&self) -> Option<String> {
        let opened = self.opened.get();
        if let Some(does) = opened.and_then(|opened| opened.journal_away.borrow().clone()) {
            let problem = format!("not ready: the database of journal.postgres.url {does}\n");
            return Some(problem);
        }
        if let Some(owner) = &*self.waits_for.borrow() {
            let problem = format!(
                "standby: another memoird ({owner}) has the database of journal.postgres.url\n"
            );
            return Some(problem);
        }
        let is_ready = self.ready.load(Ordering::Relaxed);
        (!is_ready).then(|| "not ready\n".to_owned())
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

    #[tokio::test]
    async fn pages_are_read_and_there_are_no_others() {
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
