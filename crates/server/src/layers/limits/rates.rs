//! Rate limits per tenant, for calls and bytes per second, and the maximum size of requests.
//!
//! Calls are checked once their tenant is known, bytes as they arrive. Each limit is a bucket
//! (GCRA) that holds the burst and refills at the configured rate. The size of a message is taken
//! as a whole, once its header announces it. A rejected message thus takes nothing, and the error
//! states when there will be room for all of it.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_engine::{Policy, Tenant};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::connections::now;
use crate::rpc::RequestSize;
use crate::wire::refusal::Refusal;
use crate::wire::status;

/// Maximum size in bytes of requests with only ids and options.
const SMALL_REQUEST_BYTES: u64 = 64 << 10;
/// Maximum size in bytes of requests with a text.
const TEXT_REQUEST_BYTES: u64 = 256 << 10;
/// Allowance in bytes for the gRPC message header, and the ids next to a patch.
const REQUEST_OVERHEAD_BYTES: u64 = 4 << 10;
/// Length of the gRPC message header in bytes: a compression flag and a length.
pub(crate) const MESSAGE_HEAD_BYTES: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateLimit {
    /// `calls_per_second`
    Calls,
    /// `bytes_per_second`
    Bytes,
}

/// The rate limits of all tenants. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    request_bytes_max: u64,
    by_tenant: Arc<RwLock<HashMap<TenantId, Arc<TenantRates>>>>,
}

/// The limits of a tenant, by [`RateLimit`].
#[derive(Debug, Default)]
struct TenantRates([Rate; 2]);

/// A limit, if there is one, and the calls that it rejected.
#[derive(Clone, Debug, Default)]
struct Rate {
    bucket: Option<Bucket>,
    refused: Arc<AtomicU64>,
}

/// A token bucket.
#[derive(Clone, Debug)]
struct Bucket {
    per_second: NonZeroU32,
    /// Time to refill it when empty.
    fill_time: Duration,
    full_at: Arc<Mutex<Instant>>,
}

#[derive(Debug)]
pub(crate) struct RequestMeter {
    bytes_left: u64,
    bytes_max: u64,
    /// Whether the limit is `server.max_request_bytes`.
    is_large: bool,
    /// Whether the first bytes have arrived.
    has_begun: bool,
    /// Bytes taken from the bucket that have not arrived yet.
    bytes_taken: u64,
    rates: Option<Arc<TenantRates>>,
}

impl RateLimit {
    /// Its key in the configuration.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Calls => "calls_per_second",
            Self::Bytes => "bytes_per_second",
        }
    }
}

impl Rates {
    pub(crate) fn new(request_bytes_max: usize) -> Self {
        Self {
            request_bytes_max: request_bytes_max as u64,
            by_tenant: Arc::default(),
        }
    }

    /// Counts a call, and returns the meter of its request.
    ///
    /// # Errors
    /// If the tenant exceeds its call rate.
    pub(crate) fn enter(
        &self,
        tenant: &Tenant,
        size: RequestSize,
    ) -> Result<RequestMeter, Refusal> {
        let policy = tenant.policy();
        let rates = self.of(&tenant.id, &policy);
        if let Some(rates) = &rates {
            rates.take(RateLimit::Calls, NonZeroU32::MIN)?;
        }
        Ok(self.meter(size, policy.limits.state_bytes, rates))
    }

    /// Returns the meter of an operator's call. It has no rate limit: it may stop a flood.
    pub(crate) fn enter_operator(&self, size: RequestSize) -> RequestMeter {
        self.meter(size, 0, None)
    }

    /// Calls of the tenant rejected by this limit.
    pub(crate) fn refused(&self, tenant: &TenantId, limit: RateLimit) -> u64 {
        let by_tenant = self.by_tenant.read();
        let rate = by_tenant.get(tenant).map(|rates| rates.of(limit));
        rate.map_or(0, |rate| rate.refused.load(Ordering::Relaxed))
    }

    /// Calls of the tenant rejected by any limit.
    pub(crate) fn refused_calls(&self, tenant: &TenantId) -> u64 {
        let limits = [RateLimit::Calls, RateLimit::Bytes];
        limits.map(|limit| self.refused(tenant, limit)).iter().sum()
    }

    fn meter(
        &self,
        size: RequestSize,
        state_bytes: usize,
        rates: Option<Arc<TenantRates>>,
    ) -> RequestMeter {
        let bytes_max = match size {
            RequestSize::Small => SMALL_REQUEST_BYTES,
            RequestSize::Text => TEXT_REQUEST_BYTES,
            RequestSize::Patch => {
                SMALL_REQUEST_BYTES.max(memoird_core::state::patch_bytes_max(state_bytes) as u64)
            }
            RequestSize::Large => self.request_bytes_max,
            RequestSize::Unlimited => u64::MAX,
        };
        RequestMeter {
            // Services enforce the operator's limit, which may be lower.
            bytes_left: bytes_max.saturating_add(REQUEST_OVERHEAD_BYTES),
            bytes_max,
            is_large: size == RequestSize::Large,
            has_begun: false,
            bytes_taken: 0,
            rates,
        }
    }

    /// Returns the rates of a tenant, if it has limits.
    fn of(&self, id: &TenantId, policy: &Policy) -> Option<Arc<TenantRates>> {
        let limits = (policy.calls_per_second, policy.bytes_per_second);
        if limits == (None, None) {
            return None;
        }
        let by_tenant = self.by_tenant.read();
        let known = by_tenant.get(id).filter(|rates| rates.limits() == limits);
        if let Some(known) = known {
            return Some(Arc::clone(known));
        }
        drop(by_tenant);
        let mut by_tenant = self.by_tenant.write();
        let before = by_tenant.get(id).map(Arc::as_ref);
        let rates = Arc::new(self.changed(before.unwrap_or(&TenantRates::default()), limits));
        by_tenant.insert(id.clone(), Arc::clone(&rates));
        Some(rates)
    }

    /// Creates rates with new limits. Unchanged buckets keep their level.
    fn changed(
        &self,
        before: &TenantRates,
        (calls, bytes): (Option<NonZeroU32>, Option<NonZeroU32>),
    ) -> TenantRates {
        let wanted = self
            .request_bytes_max
            .saturating_add(REQUEST_OVERHEAD_BYTES);
        // A full bucket always has room for the largest request.
        let request = u32::try_from(wanted).unwrap_or(u32::MAX);
        let rate = |limit, per_second: Option<NonZeroU32>, burst_min| {
            let Rate { bucket, refused } = before.of(limit).clone();
            let same = bucket.filter(|bucket| Some(bucket.per_second) == per_second);
            let new = || Some(Bucket::new(per_second?, burst_min, now()));
            let bucket = same.or_else(new);
            Rate { bucket, refused }
        };
        let calls = rate(RateLimit::Calls, calls, 1);
        TenantRates([calls, rate(RateLimit::Bytes, bytes, request)])
    }
}

impl TenantRates {
    fn of(&self, limit: RateLimit) -> &Rate {
        &self.0[limit as usize]
    }

    fn limits(&self) -> (Option<NonZeroU32>, Option<NonZeroU32>) {
        let [calls, bytes] = &self.0;
        let per_second = |rate: &Rate| rate.bucket.as_ref().map(|bucket| bucket.per_second);
        (per_second(calls), per_second(bytes))
    }

    fn take(&self, limit: RateLimit, count: NonZeroU32) -> Result<(), Refusal> {
        let Rate { bucket, refused } = self.of(limit);
        let Some(bucket) = bucket else {
            return Ok(());
        };
        bucket.take(count, now()).map_err(|wait| {
            refused.fetch_add(1, Ordering::Relaxed);
            status::rate_exceeded(limit.key(), bucket.per_second.get(), wait)
        })
    }
}

impl Bucket {
    /// Creates a full bucket that holds the tokens of a second, or at least `burst_min`.
    fn new(per_second: NonZeroU32, burst_min: u32, now: Instant) -> Self {
        Self {
            per_second,
            fill_time: time_of(per_second.get().max(burst_min), per_second),
            full_at: Arc::new(Mutex::new(now)),
        }
    }

    /// Takes `count` tokens, or returns how long to wait for them.
    fn take(&self, count: NonZeroU32, now: Instant) -> Result<(), Duration> {
        let time = time_of(count.get(), self.per_second);
        if time > self.fill_time {
            // It never fits.
            return Err(Duration::from_secs(1));
        }
        let mut full_at = self.full_at.lock();
        let full_then = now.max(*full_at) + time;
        let wait = (full_then - now).saturating_sub(self.fill_time);
        if !wait.is_zero() {
            return Err(wait);
        }
        *full_at = full_then;
        Ok(())
    }
}

/// Time to refill `count` tokens.
fn time_of(count: u32, per_second: NonZeroU32) -> Duration {
    Duration::from_secs(count.into()) / per_second.get()
}

impl RequestMeter {
    /// Counts bytes of the request. The first ones announce its size, unless that is known.
    ///
    /// # Errors
    /// If the request exceeds its size limit, or the tenant its byte rate.
    pub(crate) fn add(&mut self, data: &[u8]) -> Result<(), Refusal> {
        let bytes = data.len() as u64;
        let announced = if self.has_begun {
            bytes
        } else {
            announced_bytes(data).max(bytes)
        };
        self.announce(announced)?;
        self.bytes_left -= bytes;
        self.bytes_taken -= bytes;
        Ok(())
    }

    /// Takes the size of what arrives next.
    ///
    /// # Errors
    /// If the request exceeds its size limit, or the tenant its byte rate.
    pub(crate) fn announce(&mut self, announced: u64) -> Result<(), Refusal> {
        self.has_begun = true;
        if announced > self.bytes_left {
            return Err(status::request_too_large(self.bytes_max, self.is_large));
        }
        let missing = announced.saturating_sub(self.bytes_taken);
        let more = NonZeroU32::new(u32::try_from(missing).unwrap_or(u32::MAX));
        if let (Some(rates), Some(more)) = (&self.rates, more) {
            rates.take(RateLimit::Bytes, more)?;
        }
        self.bytes_taken = self.bytes_taken.max(announced);
        Ok(())
    }
}

/// Length of a message with its header, from its first bytes. 0 if incomplete.
fn announced_bytes(data: &[u8]) -> u64 {
    let Some([_, length @ ..]) = data.first_chunk::<MESSAGE_HEAD_BYTES>() else {
        return 0;
    };
    MESSAGE_HEAD_BYTES as u64 + u64::from(u32::from_be_bytes(*length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn number(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap()
    }

    #[test]
    fn a_second_s_worth_may_come_at_once_and_then_the_rate_applies() {
        let mut now = now();
        let bucket = Bucket::new(number(10), 1, now);
        let taken = |count: usize, now| {
            (0..count)
                .filter(|_| bucket.take(number(1), now).is_ok())
                .count()
        };
        assert_eq!(taken(25, now), 10);
        let wait = bucket.take(number(1), now).unwrap_err();
        assert!(
            wait > Duration::ZERO && wait <= Duration::from_millis(100),
            "{wait:?}"
        );
        now += wait;
        assert_eq!(taken(25, now), 1, "exactly then");
        now += Duration::from_millis(500);
        assert_eq!(taken(25, now), 5);
        now += Duration::from_secs(3_600);
        assert_eq!(taken(25, now), 10, "no more is saved up");
    }

    #[test]
    fn largest_request_fits_into_full_bucket() {
        let now = now();
        let bucket = Bucket::new(number(1_000), 10_000, now);
        bucket.take(number(10_000), now).unwrap();
        let wait = bucket.take(number(10_000), now).unwrap_err();
        assert!(
            wait > Duration::from_secs(9) && wait <= Duration::from_secs(10),
            "{wait:?}"
        );
    }

    #[test]
    fn changed_limits_apply_and_unchanged_buckets_keep_level() {
        let rates = Rates::new(1 << 20);
        let limits = |calls, bytes| (Some(number(calls)), Some(number(bytes)));
        let first = rates.changed(&TenantRates::default(), limits(1, 1_024));
        first.take(RateLimit::Calls, number(1)).unwrap();
        first.take(RateLimit::Calls, number(1)).unwrap_err();
        let second = rates.changed(&first, limits(1, 2_048));
        second.take(RateLimit::Calls, number(1)).unwrap_err();
        assert_eq!(
            second.of(RateLimit::Calls).refused.load(Ordering::Relaxed),
            2
        );
        let third = rates.changed(&second, limits(2, 2_048));
        third.take(RateLimit::Calls, number(2)).unwrap();
        let open = rates.changed(&third, (None, None));
        open.take(RateLimit::Calls, number(1_000)).unwrap();
        open.take(RateLimit::Bytes, number(1 << 30)).unwrap();
    }

    /// The body of a request in HTTP/2 frames, with `there` of the `said` bytes it announces.
    fn parts(said: usize, there: usize) -> Vec<Vec<u8>> {
        let length = u32::try_from(said).unwrap().to_be_bytes();
        let data = [&[0][..], &length, &vec![1; there]].concat();
        data.chunks(16 << 10).map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn message_bytes_are_taken_whole_or_not_at_all() {
        let rates = Rates::new(64 << 10);
        let limited =
            Arc::new(rates.changed(&TenantRates::default(), (None, Some(number(1 << 10)))));
        let send = |said: usize, there: usize| {
            let mut meter = rates.meter(RequestSize::Large, 0, Some(Arc::clone(&limited)));
            let parts = parts(said, there);
            let sent = parts.iter().try_for_each(|part| meter.add(part));
            sent.map_err(|refusal| refusal.retry.unwrap())
        };
        let (large, small) = (60 << 10, 4 << 10);
        send(large, large).unwrap();
        for _ in 0..3 {
            let hint = send(large, large).unwrap_err();
            assert!(
                (45..=56).contains(&hint.as_secs()),
                "as long as all of it takes, and not its first part: {hint:?}"
            );
        }
        send(small, small).unwrap();
        let refused = limited.of(RateLimit::Bytes).refused.load(Ordering::Relaxed);
        assert_eq!(refused, 3, "each is refused once");
        // Rejected by the announced length.
        let mut meter = rates.meter(RequestSize::Large, 0, None);
        let refusal = meter.add(&parts(1 << 20, 0)[0]).unwrap_err();
        assert_eq!(refusal.reason, "REQUEST_TOO_LARGE");
        // If fewer bytes are announced than sent, the sent bytes count.
        let mut meter = rates.meter(RequestSize::Large, 0, Some(Arc::clone(&limited)));
        let parts = parts(1, 30 << 10);
        assert!(parts.iter().any(|part| meter.add(part).is_err()));
    }

    #[test]
    fn the_largest_limits_do_not_overflow() {
        let rates = Rates::new(usize::MAX);
        assert!(
            rates
                .meter(RequestSize::Patch, usize::MAX, None)
                .add(&[0; 8 << 10])
                .is_ok()
        );
        rates.changed(&TenantRates::default(), (None, Some(number(1 << 10))));
    }

    #[test]
    fn request_with_only_ids_is_small() {
        let rates = Rates::new(8 << 20);
        let takes = |size: RequestSize, bytes: u64| {
            let mut meter = rates.meter(size, 64 << 10, None);
            let data = vec![0; usize::try_from(bytes).unwrap()];
            let (first, rest) = data.split_at(data.len() / 2);
            meter.add(first).and_then(|()| meter.add(rest)).is_ok()
        };
        for (size, most) in [
            (RequestSize::Small, SMALL_REQUEST_BYTES),
            (RequestSize::Text, TEXT_REQUEST_BYTES),
            (RequestSize::Patch, 128 << 10),
            (RequestSize::Large, 8 << 20),
        ] {
            assert!(takes(size, most), "{size:?}");
            assert!(!takes(size, most + REQUEST_OVERHEAD_BYTES + 1), "{size:?}");
        }
    }
}
