//! Calibrations of a tenant's models: those of single sessions, and the one that they share.
//!
//! A bot may report wrong usage. Its reports change the windows of its own session, and those of
//! other sessions only as far as another session reported the same difference.

use std::collections::{BTreeMap, VecDeque};

use hashlink::LruCache;
use memoird_core::ids::SessionId;
use memoird_formats::tokens::{Calibration, Charge};
use parking_lot::Mutex;

/// Capacity of a tenant's LRU cache of session calibrations. Other sessions use the shared one.
const SESSIONS_MAX: usize = 1_024;
/// Maximum number of last charges, one a session, that new charges are compared with.
const RECENT_CHARGES_MAX: usize = 8;
/// Two charges agree if they differ from their counts by the same share, up to this difference, …
const AGREEMENT_SHARE: f64 = 0.05;
/// … or by the same number of tokens, up to this difference.
const AGREEMENT_TOKENS: f64 = 100.0;

#[derive(Debug)]
pub struct Calibrations {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// By model profile; a configuration has few.
    shared: BTreeMap<Box<str>, SharedCalibration>,
    sessions: LruCache<(Box<str>, SessionId), Calibration>,
}

#[derive(Debug, Default)]
struct SharedCalibration {
    calibration: Calibration,
    /// Last charge of each of the last sessions that reported one, the newest first.
    recent_charges: VecDeque<ReportedCharge>,
}

#[derive(Debug)]
struct ReportedCharge {
    session: SessionId,
    charge: Charge,
    /// Whether the shared calibration has learned it.
    is_learned: bool,
}

impl Default for Calibrations {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                shared: BTreeMap::new(),
                sessions: LruCache::new(SESSIONS_MAX),
            }),
        }
    }
}

impl Calibrations {
    pub(crate) fn shared(&self, model: &str) -> Calibration {
        let inner = self.inner.lock();
        let shared = inner.shared.get(model);
        shared.map_or_else(Calibration::default, |shared| shared.calibration)
    }

    /// The calibration for a session's windows: its own if it reported usage, else the shared one.
    pub(crate) fn of_session(&self, model: &str, session: &SessionId) -> Calibration {
        let mut inner = self.inner.lock();
        let key = (model.into(), session.clone());
        let own = inner.sessions.get(&key).copied();
        let shared = inner.shared.get(model);
        own.or_else(|| shared.map(|shared| shared.calibration))
            .unwrap_or_default()
    }

    /// Learns from the charge for a session's window; `before` is the session's previous charge.
    pub(crate) fn observe(
        &self,
        model: &str,
        session: &SessionId,
        before: Option<Charge>,
        charge: Charge,
    ) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let shared = inner.shared.entry(model.into()).or_default();
        let key = (model.into(), session.clone());
        let own = inner
            .sessions
            .entry(key)
            .or_insert_with(|| shared.calibration);
        learn(own, before, charge);
        shared.observe(session, before, charge);
    }

    /// Learns from a count of the provider itself, which needs no second session.
    pub(crate) fn observe_provider(&self, model: &str, charge: Charge) {
        let mut inner = self.inner.lock();
        let shared = inner.shared.entry(model.into()).or_default();
        shared.calibration.observe(charge);
    }

    /// The shared calibrations, to be stored over a restart.
    pub fn all_shared(&self) -> BTreeMap<Box<str>, Calibration> {
        let inner = self.inner.lock();
        let shared = inner.shared.iter();
        shared
            .map(|(model, shared)| (model.clone(), shared.calibration))
            .filter(|(_, calibration)| *calibration != Calibration::default())
            .collect()
    }

    /// Restores shared calibrations of models that nothing was learned for yet.
    pub fn restore(&self, calibrations: BTreeMap<Box<str>, Calibration>) {
        let mut inner = self.inner.lock();
        for (model, mut calibration) in calibrations {
            calibration.repair();
            inner
                .shared
                .entry(model)
                .or_insert_with(|| SharedCalibration {
                    calibration,
                    recent_charges: VecDeque::new(),
                });
        }
    }
}

impl SharedCalibration {
    fn observe(&mut self, session: &SessionId, before: Option<Charge>, charge: Charge) {
        let calibration = &mut self.calibration;
        let mut recent_charges = self.recent_charges.iter_mut();
        let agreeing = recent_charges.find(|reported| {
            reported.session != *session && agree(calibration, reported.charge, charge)
        });
        let is_learned = agreeing.is_some();
        if let Some(reported) = agreeing {
            if !reported.is_learned {
                calibration.observe(reported.charge);
                reported.is_learned = true;
            }
            learn(calibration, before, charge);
        }
        self.recent_charges
            .retain(|reported| reported.session != *session);
        self.recent_charges.push_front(ReportedCharge {
            session: session.clone(),
            charge,
            is_learned,
        });
        self.recent_charges.truncate(RECENT_CHARGES_MAX);
    }
}

fn learn(calibration: &mut Calibration, before: Option<Charge>, charge: Charge) {
    if let Some(before) = before {
        calibration.observe_growth(before, charge);
    }
    calibration.observe(charge);
}

/// Whether two charges differ from their expected charges by the same share or tokens.
fn agree(calibration: &Calibration, one: Charge, other: Charge) -> bool {
    let [one, other] = [one, other].map(|charge| {
        let expected = calibration.expected(charge.counted);
        let charged = charge.charged as f64;
        (charged / expected, charged - expected)
    });
    (one.0 - other.0).abs() <= AGREEMENT_SHARE || (one.1 - other.1).abs() <= AGREEMENT_TOKENS
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = "m";

    fn session(name: &str) -> SessionId {
        SessionId::parse(name).expect("a session id")
    }

    fn charge(counted: u64, percent: u64) -> Charge {
        Charge {
            counted,
            charged: counted * percent / 100,
        }
    }

    #[test]
    fn wrong_charges_of_one_session_do_not_affect_others() {
        let calibrations = Calibrations::default();
        for counted in (1..=12).map(|number| number * 500) {
            calibrations.observe(MODEL, &session("wrong"), None, charge(counted, 10));
            calibrations.observe(MODEL, &session("right"), None, charge(counted + 9_000, 100));
        }
        for found in [
            calibrations.shared(MODEL),
            calibrations.of_session(MODEL, &session("new")),
        ] {
            assert_eq!(found, Calibration::default());
        }
        let own = calibrations.of_session(MODEL, &session("wrong"));
        assert!(own.expected(6_000) < 5_500.0, "{own:?}");
        assert!(own.expected(6_000) > 4_000.0, "{own:?}");
    }

    #[test]
    fn agreeing_sessions_calibrate_the_shared_factor() {
        let calibrations = Calibrations::default();
        for number in 0..12 {
            let name = ["a", "b", "c"][number % 3];
            let counted = 4_000 + 1_000 * number as u64;
            calibrations.observe(MODEL, &session(name), None, charge(counted, 125));
        }
        let found = calibrations.of_session(MODEL, &session("new"));
        assert!(
            (found.expected(20_000) / 25_000.0 - 1.0).abs() < 0.05,
            "{found:?}"
        );
    }

    #[test]
    fn session_is_calibrated_by_its_own_charges_at_once() {
        let calibrations = Calibrations::default();
        calibrations.observe(MODEL, &session("a"), None, charge(50_000, 120));
        let own = calibrations.of_session(MODEL, &session("a"));
        assert!((own.expected(50_000) / 60_000.0 - 1.0).abs() < 0.02);
        assert_eq!(
            calibrations.of_session("n", &session("a")),
            Calibration::default()
        );
        assert!(calibrations.all_shared().is_empty());
    }

    #[test]
    fn provider_count_calibrates_without_second_session() {
        let calibrations = Calibrations::default();
        calibrations.observe_provider(MODEL, charge(50_000, 120));
        let found = calibrations.of_session(MODEL, &session("a"));
        assert!((found.expected(50_000) / 60_000.0 - 1.0).abs() < 0.02);
        let restored = Calibrations::default();
        restored.restore(calibrations.all_shared());
        assert_eq!(restored.shared(MODEL), found);
    }
}
