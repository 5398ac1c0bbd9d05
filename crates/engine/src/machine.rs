//! The engine's interface to clocks and randomness. Only this file reads a clock.
//!
//! Idle times are measured on the steady clock, which never steps. It follows the monotonic clock
//! while the daemon runs, the time since boot across restarts, and the wall clock across boots,
//! where a negative difference counts as zero. So a wall clock that jumps by a day neither expires
//! sessions early nor keeps them forever.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use memoird_core::nonce::NonceSecret;
use memoird_core::time::{Now, Steady, Timestamp};
use memoird_store::ClockAnchor;
use rustix::time::{ClockId, clock_gettime};

/// Source of time and randomness.
pub trait Machine: std::fmt::Debug + Send + Sync + 'static {
    /// The current time on the wall clock and the steady clock.
    fn now(&self) -> Now;

    /// The current steady time together with the system clocks it corresponds to.
    fn anchor(&self) -> ClockAnchor;

    /// Returns at least 80 random bits.
    fn random(&self) -> u128;

    /// Advances the steady clock to at least this time.
    fn advance_to(&self, _: Steady) {}
}

/// The real system clocks and random number generator.
#[derive(Debug)]
pub struct SystemMachine {
    started: tokio::time::Instant,
    /// Only ever increases.
    steady_at_start: AtomicU64,
    boot_id: String,
    boot_ms_at_start: u64,
}

impl SystemMachine {
    /// Continues the steady clock from `last`.
    ///
    /// Downtime within the same boot is measured by the time since boot, which cannot be set. After
    /// a reboot it is measured by the wall clock, where a negative difference counts as zero.
    #[allow(clippy::disallowed_methods)]
    pub fn resume(last: Option<&ClockAnchor>) -> Self {
        let (boot_id, boot_ms) = boot().unwrap_or_default();
        let steady_at_start = last.map_or(Steady::default(), |last| {
            let away_ms = if !boot_id.is_empty() && last.boot_id == boot_id {
                boot_ms.saturating_sub(last.boot_ms)
            } else {
                wall()
                    .as_ms()
                    .saturating_sub(last.wall.as_ms())
                    .max(0)
                    .unsigned_abs()
            };
            Steady(last.steady.0.saturating_add(away_ms))
        });
        Self::start(steady_at_start, boot_id, boot_ms)
    }

    pub fn at(steady: Steady) -> Self {
        let (boot_id, boot_ms) = boot().unwrap_or_default();
        Self::start(steady, boot_id, boot_ms)
    }

    #[allow(clippy::disallowed_methods)]
    fn start(steady: Steady, boot_id: String, boot_ms_at_start: u64) -> Self {
        Self {
            started: tokio::time::Instant::now(),
            steady_at_start: AtomicU64::new(steady.0),
            boot_id,
            boot_ms_at_start,
        }
    }

    fn up_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Machine for SystemMachine {
    fn now(&self) -> Now {
        let at_start = self.steady_at_start.load(Ordering::Relaxed);
        Now {
            wall: wall(),
            steady: Steady(at_start.saturating_add(self.up_ms())),
        }
    }

    fn advance_to(&self, steady: Steady) {
        let at_start = steady.0.saturating_sub(self.up_ms());
        self.steady_at_start.fetch_max(at_start, Ordering::Relaxed);
    }

    fn anchor(&self) -> ClockAnchor {
        let Now { wall, steady } = self.now();
        ClockAnchor {
            steady,
            wall,
            boot_id: self.boot_id.clone(),
            boot_ms: self.boot_ms_at_start.saturating_add(self.up_ms()),
        }
    }

    fn random(&self) -> u128 {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system has random bytes");
        u128::from_ne_bytes(bytes)
    }
}

pub fn new_nonce_secret(machine: &dyn Machine) -> NonceSecret {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&machine.random().to_le_bytes());
    bytes[16..].copy_from_slice(&machine.random().to_le_bytes());
    NonceSecret::new(bytes)
}

/// Measures durations for metrics.
#[derive(Debug)]
pub struct Stopwatch(tokio::time::Instant);

impl Stopwatch {
    #[allow(clippy::disallowed_methods)]
    pub fn start() -> Self {
        Self(tokio::time::Instant::now())
    }

    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    pub fn seconds(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }
}

#[allow(clippy::disallowed_methods)]
fn wall() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH);
    let ms = since.unwrap_or(Duration::ZERO).as_millis();
    Timestamp::from_ms(i64::try_from(ms).unwrap_or(i64::MAX))
}

/// Boot id and milliseconds since boot, if the system reports them (Linux).
fn boot() -> Option<(String, u64)> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let up = Duration::try_from(clock_gettime(ClockId::Boottime)).ok()?;
    Some((id.trim().to_owned(), u64::try_from(up.as_millis()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(steady: u64) -> ClockAnchor {
        let machine = SystemMachine::resume(None);
        ClockAnchor {
            steady: Steady(steady),
            ..machine.anchor()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn wall_clock_step_during_downtime_does_not_age_steady_clock() {
        for step_ms in [-86_400_000, 0, 86_400_000] {
            let last = anchor(5_000);
            let stepped = ClockAnchor {
                wall: Timestamp::from_ms(last.wall.as_ms() + step_ms),
                ..last
            };
            let resumed = SystemMachine::resume(Some(&stepped)).now().steady;
            assert!(
                resumed.since(Steady(5_000)) < 60_000,
                "{resumed:?} after {step_ms} ms"
            );
        }
    }

    #[tokio::test]
    async fn restart_adds_only_elapsed_time() {
        for _ in 0..20 {
            let watch = Stopwatch::start();
            let last = anchor(5_000);
            let resumed = SystemMachine::resume(Some(&last)).now().steady;
            let aged_ms = resumed.since(Steady(5_000));
            let passed_ms = watch.elapsed().as_millis();
            assert!(
                u128::from(aged_ms) <= passed_ms + 2,
                "{aged_ms} of {passed_ms} ms"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reboot_uses_wall_clock_and_never_goes_back() {
        for (away_ms, aged) in [(60_000, true), (-60_000, false)] {
            let last = anchor(5_000);
            let other_boot = ClockAnchor {
                wall: Timestamp::from_ms(last.wall.as_ms() - away_ms),
                boot_id: "another boot".into(),
                ..last
            };
            let resumed = SystemMachine::resume(Some(&other_boot)).now().steady;
            assert!(resumed >= Steady(5_000));
            assert_eq!(resumed.since(Steady(5_000)) >= 60_000, aged);
        }
    }
}
