//! Selects candidates by index data, for every store with an index.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use memoird_core::words::Languages;
use memoird_core::words::ranking::{Found, Query, Scorer, Statistics};

use super::{SearchCandidate, SearchMatches};
use crate::StoreError;

/// Maximum number of turns looked up per word, newest first. More would hardly change its weight.
const MATCHES_MAX: usize = 8_192;
/// The same for words that only share a beginning with a word that no turn contains.
const ALIKE_MAX: usize = 1_024;

impl SearchMatches {
    /// Parses a query for the languages of a tenant, without candidates yet.
    pub fn new(query: &str, languages: Languages) -> Self {
        Self {
            query: Query::new(query, languages),
            candidates: Vec::new(),
            statistics: Statistics::default(),
            turns: 0,
            more_before: None,
        }
    }

    /// Adds at most `max` candidates among the turns in this range of the tenant's numbers.
    ///
    /// `look_up` returns up to a maximum number of turns that pass the filters and have one of some
    /// words, or any if `None`, newest first.
    pub fn add_candidates(
        &mut self,
        turns: &RangeInclusive<u64>,
        max: usize,
        mut look_up: impl FnMut(Option<&[String]>, usize) -> Result<Vec<SearchCandidate>, StoreError>,
    ) -> Result<(), StoreError> {
        if self.query.terms().is_empty() {
            self.candidates = look_up(None, max)?;
            let last = self.candidates.last();
            let last = last.filter(|_| self.candidates.len() == max);
            self.more_before = last.map(|last| last.turn);
            return Ok(());
        }
        let all = turns.end() - turns.start() + 1;
        self.statistics.memories = all;
        let mut found: HashMap<u64, (u64, Found)> = HashMap::new();
        for (place, term) in self.query.terms().iter().enumerate() {
            let mut count_of = |forms: &[String], noted_max: usize| {
                let noted = look_up(Some(forms), noted_max)?;
                let count = noted.len() as u64;
                for candidate in &noted {
                    let known = found.entry(candidate.turn).or_default();
                    known.0 = candidate.number;
                    known.1.insert(place);
                }
                let last = noted.last().filter(|_| noted.len() >= noted_max);
                Ok::<_, StoreError>(last.map_or(count, |last| {
                    // Extrapolates from the turns seen, assuming that the word is spread evenly.
                    let seen = (turns.end() + 1).saturating_sub(last.turn).max(1);
                    (count.saturating_mul(all) / seen).min(all)
                }))
            };
            let mut count = count_of(term.forms(), MATCHES_MAX)?;
            // Search for words with a common beginning only if no turn has the word itself.
            if count == 0 && !term.beginnings().is_empty() {
                self.statistics.alike.insert(place);
                count = count_of(term.beginnings(), ALIKE_MAX)?;
            }
            self.statistics.found_in.push(count);
        }
        let scorer = Scorer::new(&self.query, &self.statistics);
        let mut ranked: Vec<(f64, SearchCandidate)> = found
            .into_iter()
            .map(|(turn, (number, found))| {
                (scorer.coverage(found), SearchCandidate { turn, number })
            })
            .collect();
        ranked.sort_unstable_by(|(one, turn), (other, other_turn)| {
            other.total_cmp(one).then(other_turn.turn.cmp(&turn.turn))
        });
        ranked.truncate(max);
        self.candidates = ranked.into_iter().map(|(_, turn)| turn).collect();
        Ok(())
    }
}
