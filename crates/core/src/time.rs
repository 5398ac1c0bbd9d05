//! Time as an argument: the rules never read a clock.

/// A moment on the wall clock (UTC). People read it; no rule depends on it, because
/// wall clocks step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    seconds: i64,
    nanos: u32,
}

impl Timestamp {
    /// The last second of the year 9999, in seconds since 1970.
    pub const SECONDS_MAX: i64 = 253_402_300_799;

    /// Takes seconds since 1970 and nanoseconds; `None` outside the years 1970 to 9999.
    pub fn new(seconds: i64, nanos: u32) -> Option<Self> {
        let fits = (0..=Self::SECONDS_MAX).contains(&seconds) && nanos < 1_000_000_000;
        fits.then_some(Self { seconds, nanos })
    }

    /// Takes milliseconds since 1970; what lies outside the years 1970 to 9999
    /// becomes the nearest moment inside.
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

    /// Nanoseconds of the second.
    pub fn nanos(self) -> u32 {
        self.nanos
    }
}

/// A moment on memoird's own time line, in milliseconds. It never steps and never
/// goes back, also not across a restart; only idle times are measured on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Steady(pub u64);

impl Steady {
    /// Milliseconds from `earlier` to here, zero when it is not earlier.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The present, read from both clocks at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// For people.
    pub wall: Timestamp,
    /// For rules.
    pub steady: Steady,
}

impl Now {
    /// The wall-clock time of a moment on the steady line, for people.
    pub fn wall_of(self, steady: Steady) -> Timestamp {
        let ahead = i128::from(steady.0) - i128::from(self.steady.0);
        let ms = i128::from(self.wall.as_ms()) + ahead;
        Timestamp::from_ms(i64::try_from(ms).unwrap_or(i64::MAX))
    }

    /// The moment on the steady line that is shown as this wall-clock time, to the millisecond;
    /// `None` before the line began.
    pub fn steady_of(self, wall: Timestamp) -> Option<Steady> {
        let ahead = i128::from(wall.as_ms()) - i128::from(self.wall.as_ms());
        let steady = i128::from(self.steady.0) + ahead;
        u64::try_from(steady).ok().map(Steady)
    }
}
