//! Points in time, which are arguments of the rules: this crate never reads a clock.

/// Wall-clock time (UTC), for display only.
///
/// No rule depends on it, because wall clocks step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    seconds: i64,
    nanos: u32,
}

impl Timestamp {
    /// The last second of the year 9999, in seconds since 1970.
    pub const SECONDS_MAX: i64 = 253_402_300_799;

    /// Takes seconds since 1970 and nanoseconds. `None` outside the years 1970 to 9999.
    pub fn new(seconds: i64, nanos: u32) -> Option<Self> {
        let fits = (0..=Self::SECONDS_MAX).contains(&seconds) && nanos < 1_000_000_000;
        fits.then_some(Self { seconds, nanos })
    }

    /// Takes milliseconds since 1970, clamped to the years 1970 to 9999.
    pub fn from_ms(ms: i64) -> Self {
        let ms = ms.clamp(0, Self::SECONDS_MAX * 1_000);
        let nanos = u32::try_from(ms % 1_000).unwrap_or(0) * 1_000_000;
        Self {
            seconds: ms / 1_000,
            nanos,
        }
    }

    /// Milliseconds since 1970.
    pub fn as_ms(self) -> i64 {
        self.seconds * 1_000 + i64::from(self.nanos / 1_000_000)
    }

    /// Seconds since 1970.
    pub fn seconds(self) -> i64 {
        self.seconds
    }

    /// Nanoseconds within the second.
    pub fn nanos(self) -> u32 {
        self.nanos
    }
}

/// Monotonic time in milliseconds, used only to measure idle times.
///
/// It never steps or goes back, even across a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Steady(pub u64);

impl Steady {
    /// Milliseconds since `earlier`, or zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The current time of both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub wall: Timestamp,
    pub steady: Steady,
}

impl Now {
    /// Converts monotonic time to wall-clock time, for display.
    pub fn wall_of(self, steady: Steady) -> Timestamp {
        let ahead = i128::from(steady.0) - i128::from(self.steady.0);
        let ms = i128::from(self.wall.as_ms()) + ahead;
        Timestamp::from_ms(i64::try_from(ms).unwrap_or(i64::MAX))
    }

    /// Converts wall-clock time to monotonic time, to the millisecond.
    ///
    /// `None` if it is before the start of the monotonic clock.
    pub fn steady_of(self, wall: Timestamp) -> Option<Steady> {
        let ahead = i128::from(wall.as_ms()) - i128::from(self.wall.as_ms());
        let steady = i128::from(self.steady.0) + ahead;
        u64::try_from(steady).ok().map(Steady)
    }
}
