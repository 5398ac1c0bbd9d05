//! Connection table of a port, with limits on count, handshake, idle time and age.
//!
//! Counts are limited in total and per address. A connection is unauthenticated
//! until it shows a valid key. When there is no room, the oldest of these is closed.

mod authority;
pub(crate) mod config;
mod deferred_poll;
mod io;
pub(crate) mod schedule;
pub(crate) mod send_progress;
pub(crate) mod serve;
pub(crate) mod socket;
mod wrong_keys;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use io::PollBudget;
use schedule::{Schedule, TaskOwner};

pub(crate) use config::ConnectionsConfig;
pub(crate) use socket::Peer;
pub(crate) use wrong_keys::WrongKeys;

/// Rejected calls after which an unauthenticated connection closes, once its calls are done.
///
/// Later calls get no response: their streams are reset.
const REFUSALS_ANSWERED: u32 = 16;
/// Rejected calls after which an unauthenticated connection is closed at once.
///
/// More than can arrive before the first limit takes effect.
const REFUSALS_MAX: u32 = 64;

/// Maximum number of displaced connections in excess of the connection limit.
const DISPLACED_MAX: usize = 64;

/// Bytes that an unauthenticated connection may read per poll. A call can have only 15 bytes.
const UNAUTHENTICATED_BYTES_PER_POLL: usize = 1 << 10;
/// The same for other connections, if tenants share the scheduler.
///
/// Small calls cost much more per byte than large responses.
const SHARED_BYTES_PER_POLL: usize = 8 << 10;
/// The same if there is a single tenant.
const BYTES_PER_POLL: usize = 64 << 10;
/// Bytes that a connection may write per poll, if tenants share the scheduler.
const SHARED_WRITTEN_BYTES_PER_POLL: usize = 128 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Ports {
    pub(crate) grpc: Arc<Connections>,
    pub(crate) admin: Arc<Connections>,
}

#[derive(Debug)]
pub(crate) struct Connections {
    max: usize,
    max_per_address: usize,
    calls_without_key: usize,
    schedule: Arc<Schedule>,
    table: Mutex<ConnectionTable>,
    closed: Notify,
    pub(crate) counts: ConnectionCounts,
}

/// Counters of connections, by why they ended.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    /// Closed for a newer one, before showing a valid key.
    pub(crate) displaced: AtomicU64,
    /// Closed at once, because its address has reached the limit.
    pub(crate) over_address: AtomicU64,
    /// Closed because the handshake timed out.
    pub(crate) silent: AtomicU64,
    /// Shut down because it was idle.
    pub(crate) idle: AtomicU64,
    /// Shut down because of its age.
    pub(crate) old: AtomicU64,
    /// Shut down after too many rejected calls.
    pub(crate) refused: AtomicU64,
    /// TLS handshake failed.
    pub(crate) tls_failed: AtomicU64,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    open: usize,
    /// Displaced connections that are still open, included in `open`.
    displaced: usize,
    next_number: u64,
    unauthenticated: BTreeMap<u64, Arc<Connection>>,
    by_address: HashMap<IpAddr, AddressConnections>,
}

#[derive(Debug, Default)]
struct AddressConnections {
    open: usize,
    displaced: usize,
    unauthenticated: BTreeSet<u64>,
}

enum EnterOutcome {
    Yes(Arc<Connection>),
    /// No room until another connection is closed.
    NotYet,
    /// Its address has reached the limit.
    Never,
}

/// State of a connection, shared by all its calls.
#[derive(Debug)]
pub(crate) struct Connection {
    connections: Arc<Connections>,
    number: u64,
    pub(crate) peer: Peer,
    /// Determines the queue for the tasks of the connection and its calls.
    pub(crate) owner: Arc<TaskOwner>,
    /// Names in the client's certificate. Unset if there is none.
    certificate: OnceLock<Vec<String>>,
    /// Set after the first bytes of its protocol.
    has_spoken: AtomicBool,
    /// Set after the first valid key.
    has_key: AtomicBool,
    /// Bytes it may still read and write in this poll.
    readable: PollBudget,
    writable: PollBudget,
    /// Number of calls so far, and of open ones.
    calls_begun: AtomicU64,
    calls: AtomicUsize,
    /// Open calls that were admitted without a key.
    keyless_calls: AtomicUsize,
    /// Calls rejected without a valid key.
    refusals: AtomicU32,
    /// The current [`CloseOrder`].
    order: AtomicU8,
    ordered: Notify,
}

/// An instruction to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CloseOrder {
    /// Continue.
    None,
    /// Close when its calls are done.
    Finish,
    /// Close at once.
    Close,
}

#[derive(Debug)]
pub(crate) struct OpenCall {
    connection: Arc<Connection>,
    is_keyless: bool,
}

/// The entry of a connection in the table, removed on drop.
#[derive(Debug)]
struct TableEntry(Arc<Connection>);

impl Connections {
    /// At most `max` connections, with tasks scheduled in `schedule`.
    pub(crate) fn new(
        max: usize,
        config: &ConnectionsConfig,
        schedule: &Arc<Schedule>,
    ) -> Arc<Self> {
        Arc::new(Self {
            max,
            max_per_address: config.max_per_address,
            calls_without_key: config.calls_without_key,
            schedule: Arc::clone(schedule),
            table: Mutex::default(),
            closed: Notify::new(),
            counts: ConnectionCounts::default(),
        })
    }

    /// Number of open connections.
    pub(crate) fn count(&self) -> usize {
        self.table.lock().open
    }

    /// Adds a connection once there is room. `None` if its address has reached the limit.
    async fn enter(self: &Arc<Self>, peer: Peer) -> Option<TableEntry> {
        loop {
            let closed = self.closed.notified();
            tokio::pin!(closed);
            closed.as_mut().enable();
            match self.try_enter(peer) {
                EnterOutcome::Yes(connection) => return Some(TableEntry(connection)),
                EnterOutcome::NotYet => closed.await,
                EnterOutcome::Never => {
                    count(&self.counts.over_address);
                    return None;
                }
            }
        }
    }

    /// Adds a connection, and closes the oldest unauthenticated one if necessary.
    fn try_enter(self: &Arc<Self>, peer: Peer) -> EnterOutcome {
        let mut table = self.table.lock();
        let of_address = peer
            .address
            .and_then(|address| table.by_address.get(&address));
        let full = of_address.filter(|of| of.open - of.displaced >= self.max_per_address);
        let is_address_full = full.is_some();
        if is_address_full || table.open - table.displaced >= self.max {
            let oldest = match full {
                Some(of_address) => of_address.unauthenticated.first(),
                None => table.unauthenticated.keys().next(),
            };
            match oldest.copied() {
                None if is_address_full => return EnterOutcome::Never,
                Some(oldest) if table.displaced < DISPLACED_MAX => table.displace(oldest),
                _ => return EnterOutcome::NotYet,
            }
        }
        EnterOutcome::Yes(table.add(self, peer))
    }
}

impl ConnectionCounts {
    pub(crate) fn by_cause(&self) -> [(&'static str, u64); 7] {
        [
            ("displaced", &self.displaced),
            ("over_address", &self.over_address),
            ("silent", &self.silent),
            ("idle", &self.idle),
            ("old", &self.old),
            ("refused", &self.refused),
            ("tls_failed", &self.tls_failed),
        ]
        .map(|(cause, count)| (cause, count.load(Ordering::Relaxed)))
    }
}

impl ConnectionTable {
    fn add(&mut self, connections: &Arc<Connections>, peer: Peer) -> Arc<Connection> {
        let number = self.next_number;
        self.next_number += 1;
        let connection = Arc::new(Connection {
            connections: Arc::clone(connections),
            number,
            peer,
            owner: Arc::new(TaskOwner::unscheduled(Arc::clone(&connections.schedule))),
            certificate: OnceLock::new(),
            has_spoken: AtomicBool::new(false),
            has_key: AtomicBool::new(false),
            readable: PollBudget::default(),
            writable: PollBudget::default(),
            calls_begun: AtomicU64::new(0),
            calls: AtomicUsize::new(0),
            keyless_calls: AtomicUsize::new(0),
            refusals: AtomicU32::new(0),
            order: AtomicU8::new(CloseOrder::None as u8),
            ordered: Notify::new(),
        });
        self.open += 1;
        self.unauthenticated.insert(number, Arc::clone(&connection));
        if let Some(address) = peer.address {
            let of_address = self.by_address.entry(address).or_default();
            of_address.open += 1;
            of_address.unauthenticated.insert(number);
        }
        connection
    }

    /// Closes an unauthenticated connection to make room.
    fn displace(&mut self, number: u64) {
        let Some(connection) = self.remove_unauthenticated(number) else {
            return;
        };
        self.displaced += 1;
        if let Some(of_address) = self.of(&connection) {
            of_address.displaced += 1;
        }
        count(&connection.connections.counts.displaced);
        connection.order_close(CloseOrder::Close);
    }

    fn remove_unauthenticated(&mut self, number: u64) -> Option<Arc<Connection>> {
        let connection = self.unauthenticated.remove(&number)?;
        if let Some(of_address) = self.of(&connection) {
            of_address.unauthenticated.remove(&number);
        }
        Some(connection)
    }

    fn remove(&mut self, connection: &Connection) {
        let was_displaced = connection.is_unauthenticated()
            && self.remove_unauthenticated(connection.number).is_none();
        self.remove_unauthenticated(connection.number);
        let leaves = usize::from(was_displaced);
        self.open -= 1;
        self.displaced -= leaves;
        let Some(address) = connection.peer.address else {
            return;
        };
        if let Some(of_address) = self.by_address.get_mut(&address) {
            of_address.open -= 1;
            of_address.displaced -= leaves;
            if of_address.open == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    fn of(&mut self, connection: &Connection) -> Option<&mut AddressConnections> {
        self.by_address.get_mut(&connection.peer.address?)
    }
}

impl Connection {
    /// Names in the client's certificate. `None` without a certificate.
    pub(crate) fn certificate(&self) -> Option<&[String]> {
        self.certificate.get().map(Vec::as_slice)
    }

    /// Whether it has not shown a valid key yet.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        !self.has_key.load(Ordering::Relaxed)
    }

    /// Whether it was told to close, and so sends no more responses.
    pub(crate) fn is_closing(&self) -> bool {
        self.order.load(Ordering::Relaxed) >= CloseOrder::Close as u8
    }

    /// Sets how much it may read and write in the following poll.
    fn begin_poll(&self) {
        let (readable, writable) = if self.owner.is_unscheduled() {
            (BYTES_PER_POLL, usize::MAX)
        } else {
            (SHARED_BYTES_PER_POLL, SHARED_WRITTEN_BYTES_PER_POLL)
        };
        self.readable.set(if self.is_unauthenticated() {
            UNAUTHENTICATED_BYTES_PER_POLL
        } else {
            readable
        });
        self.writable.set(writable);
    }

    /// Records that its client has sent a whole request head.
    pub(crate) fn note_request(&self) {
        self.has_spoken.store(true, Ordering::Relaxed);
    }

    pub(crate) fn show_key(&self) {
        if !self.is_unauthenticated() {
            return;
        }
        let mut table = self.connections.table.lock();
        // A displaced connection closes in any case.
        if table.remove_unauthenticated(self.number).is_some() {
            self.has_key.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn begin_call(self: &Arc<Self>) -> OpenCall {
        self.begin(false)
    }

    /// Begins a call without a key, unless an unauthenticated connection has too many of them.
    pub(crate) fn begin_keyless_call(self: &Arc<Self>) -> Option<OpenCall> {
        let others = self.keyless_calls.fetch_add(1, Ordering::Relaxed);
        let call = self.begin(true);
        let is_one_more = others < self.connections.calls_without_key;
        (is_one_more || !self.is_unauthenticated()).then_some(call)
    }

    fn begin(self: &Arc<Self>, is_keyless: bool) -> OpenCall {
        self.calls_begun.fetch_add(1, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        OpenCall {
            connection: Arc::clone(self),
            is_keyless,
        }
    }

    /// Counts a rejected call. Returns false if there were too many, so that it gets no response.
    pub(crate) fn count_refusal(&self) -> bool {
        if !self.is_unauthenticated() {
            return true;
        }
        let refusals = self.refusals.fetch_add(1, Ordering::Relaxed) + 1;
        match refusals {
            REFUSALS_ANSWERED => {
                count(&self.connections.counts.refused);
                self.order_close(CloseOrder::Finish);
            }
            REFUSALS_MAX.. => self.order_close(CloseOrder::Close),
            _ => {}
        }
        refusals <= REFUSALS_ANSWERED
    }

    /// Closes the connection when its calls are done, unless it has shown a valid key.
    ///
    /// A connection with a valid key may be shared by other clients.
    pub(crate) fn finish_if_unauthenticated(&self) {
        if self.is_unauthenticated() {
            self.order_close(CloseOrder::Finish);
        }
    }

    fn order_close(&self, order: CloseOrder) {
        self.order.fetch_max(order as u8, Ordering::Relaxed);
        self.ordered.notify_waiters();
    }

    /// Waits until it gets an order stronger than `known`.
    async fn wait_for_stronger_order(&self, known: CloseOrder) {
        loop {
            let ordered = self.ordered.notified();
            tokio::pin!(ordered);
            ordered.as_mut().enable();
            if self.order.load(Ordering::Relaxed) > known as u8 {
                return;
            }
            ordered.await;
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.connection.calls.fetch_sub(1, Ordering::Relaxed);
        if self.is_keyless {
            self.connection
                .keyless_calls
                .fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        let connections = &self.0.connections;
        connections.table.lock().remove(&self.0);
        connections.closed.notify_waiters();
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "time limits of connections use the executor's clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Normalizes an address for the limit per address: IPv6 to its /64 network, of one customer.
fn one_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(max: usize, max_per_address: usize) -> Arc<Connections> {
        let config = ConnectionsConfig {
            max_per_address,
            ..ConnectionsConfig::default()
        };
        Connections::new(max, &config, &Arc::default())
    }

    fn peer(last: u8) -> Peer {
        Peer {
            address: Some(IpAddr::from([10, 0, 0, last])),
            uid: None,
        }
    }

    fn enter(connections: &Arc<Connections>, last: u8) -> Option<TableEntry> {
        match connections.try_enter(peer(last)) {
            EnterOutcome::Yes(connection) => Some(TableEntry(connection)),
            EnterOutcome::NotYet | EnterOutcome::Never => None,
        }
    }

    fn is_closed(seat: &TableEntry) -> bool {
        seat.0.is_closing()
    }

    #[test]
    fn oldest_unauthenticated_connection_is_displaced() {
        let connections = connections(3, 3);
        let mut seats: Vec<_> = (0..3)
            .filter_map(|last| enter(&connections, last))
            .collect();
        seats[0].0.show_key();
        let fourth = enter(&connections, 9).expect("nobody waits for a stranger that goes");
        let closed: Vec<_> = seats.iter().map(is_closed).collect();
        assert_eq!(closed, [false, true, false]);
        drop(seats.remove(1));
        for seat in seats.iter().chain([&fourth]) {
            seat.0.show_key();
        }
        assert!(matches!(
            connections.try_enter(peer(10)),
            EnterOutcome::NotYet
        ));
        assert!(!seats.iter().any(is_closed));
        drop((seats, fourth));
        let table = connections.table.lock();
        assert_eq!((table.open, table.displaced), (0, 0));
        assert!(table.unauthenticated.is_empty() && table.by_address.is_empty());
    }

    #[test]
    fn displaced_connections_exceed_limit_by_few() {
        let connections = connections(100, 200);
        let seats: Vec<_> = std::iter::from_fn(|| enter(&connections, 1)).collect();
        assert_eq!(seats.len(), 100 + DISPLACED_MAX);
        assert_eq!(
            seats.iter().filter(|seat| is_closed(seat)).count(),
            DISPLACED_MAX
        );
        drop(seats);
        assert_eq!(connections.table.lock().displaced, 0);
    }

    #[test]
    fn address_at_limit_displaces_its_own_connections() {
        let connections = connections(10, 2);
        let other = enter(&connections, 1).expect("a place");
        let (first, second) = (enter(&connections, 2), enter(&connections, 2));
        let (first, second) = (first.expect("a place"), second.expect("a place"));
        first.0.show_key();
        let third = enter(&connections, 2).expect("a place");
        assert!(is_closed(&second) && !is_closed(&first) && !is_closed(&other));
        third.0.show_key();
        assert!(matches!(
            connections.try_enter(peer(2)),
            EnterOutcome::Never
        ));
        drop((first, second, third, other));
        assert_eq!(connections.table.lock().displaced, 0);
    }

    #[test]
    fn keyless_calls_are_limited_and_rejections_close_connection() {
        let connections = connections(2, 1);
        let seat = enter(&connections, 1).expect("a place");
        let calls: Vec<_> = std::iter::from_fn(|| seat.0.begin_keyless_call()).collect();
        assert_eq!(calls.len(), ConnectionsConfig::default().calls_without_key);
        drop(calls);
        assert_eq!(seat.0.calls.load(Ordering::Relaxed), 0);
        assert!(seat.0.begin_keyless_call().is_some());
        let shared = enter(&connections, 2).expect("a place");
        shared.0.show_key();
        let calls: Vec<_> = (0..100).map(|_| shared.0.begin_keyless_call()).collect();
        assert!(
            calls.iter().all(Option::is_some),
            "they may be of many clients"
        );
        assert!((0..2 * REFUSALS_MAX).all(|_| shared.0.count_refusal()));
        shared.0.finish_if_unauthenticated();
        assert_eq!(
            shared.0.order.load(Ordering::Relaxed),
            CloseOrder::None as u8
        );
        let refusals = (0..REFUSALS_MAX).map(|_| seat.0.count_refusal());
        let answered = refusals.filter(|is_answered| *is_answered).count();
        assert_eq!(answered, REFUSALS_ANSWERED as usize);
        assert!(is_closed(&seat));
    }

    #[test]
    fn ipv6_network_counts_as_one_address() {
        let one = |text: &str| one_address(text.parse().expect("an address"));
        assert_eq!(one("2001:db8:1:2:3::4"), one("2001:db8:1:2:ffff::1"));
        assert_ne!(one("2001:db8:1:2::"), one("2001:db8:1:3::"));
        assert_eq!(one("::ffff:10.0.0.1"), one("10.0.0.1"));
        assert_ne!(one("10.0.0.1"), one("10.0.0.2"));
    }
}
