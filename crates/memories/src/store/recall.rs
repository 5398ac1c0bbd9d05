//! Candidates of a recall by words and by vector, each list best first.
//!
//! Only reads the partitions of the requested subjects and of the team.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use memoird_core::ids::MemoryId;
use memoird_core::time::Timestamp;
use memoird_core::words::ranking::{
    CANDIDATES_MAX, Found, Judgement, Query, Scorer, Statistics, Term,
};
use rusqlite::params;

use super::index;
use super::reader::MemoryReader;
use super::requests::Embedding;
use super::row::{MemoryRow, TEAM, kind_bits, limit, partition_of, range};
use super::sql::{Row, Sql, StoreResult};
use super::time::moment;
use super::vector_index::{Filter, FilterColumns, Wanted};
use super::vectors;
use super::word_index::{MATCHES_MAX, TermLookup};
use crate::requests::RecallRequest;
use crate::rules::MemoryLimits;
use crate::rules::documents::DocumentFilter;
use crate::rules::floor::ContentWords;
use crate::rules::fusion::{Candidate, Candidates};

/// Memories per read of metadata.
const METADATA_AT_ONCE: usize = 512;
/// Number of best hits per list that bring in their neighbors in the conversation.
const NEIGHBOURS_OF: usize = 16;
/// Maximum size of a partition that collects its matches in a list. Larger ones use a map.
const DENSE_MAX: u64 = 1 << 18;
/// Maximum memories per partition to check for words that only begin like a term.
///
/// It applies to terms without an exact match.
const ALIKE_MAX: usize = 1_024;

/// The terms found in each memory of one partition.
enum Matches {
    /// Indexed by the number within the partition, with a list of the numbers in use.
    Dense(Vec<Found>, Vec<i64>),
    Sparse(HashMap<i64, Found>),
}

/// Candidates of a recall, with the index of each by its number.
#[derive(Default)]
struct NumberedCandidates {
    list: Vec<Candidate>,
    places: HashMap<i64, usize>,
}

impl NumberedCandidates {
    fn get(&self, no: i64) -> Option<&Candidate> {
        Some(&self.list[*self.places.get(&no)?])
    }

    fn get_mut(&mut self, no: i64) -> Option<&mut Candidate> {
        Some(&mut self.list[*self.places.get(&no)?])
    }

    fn add(&mut self, row: MemoryRow) {
        self.places.insert(row.no, self.list.len());
        self.list.push(Candidate::new(row.memory));
    }
}

impl MemoryReader<'_> {
    /// Searches by words, unless the query is empty, and by vector, if one is given.
    ///
    /// Each search finds up to `limit` memories. `mode` and `session` have no effect here.
    ///
    /// # Errors
    /// [`MemoryError::DimensionMismatch`], or if the memories cannot be read.
    pub fn recall(
        &self,
        request: &RecallRequest,
        vector: Option<&Embedding>,
        now: Timestamp,
    ) -> StoreResult<Candidates> {
        self.settle_index()?;
        let mut partitions = Vec::with_capacity(request.subjects.len() + 1);
        for subject in &request.subjects {
            partitions.extend(self.partition(subject)?);
        }
        if !request.subject_prefix.is_empty() {
            partitions.extend(self.prefixed(&request.subject_prefix)?);
        }
        partitions.push(TEAM);
        partitions.sort_unstable();
        partitions.dedup();
        let filter = self.filter(request, &partitions, now)?;
        let (numbered, languages) = self.numbered(&partitions)?;
        let searched = numbered.values().sum();
        let query = Query::new(&request.query, languages);
        let (found, statistics) = self.by_words(&query, numbered, &filter, request.limit)?;
        let mut candidates = NumberedCandidates::default();
        self.fetch(found.iter().map(|(no, _)| *no), &mut candidates)?;
        for (no, judgement) in &found {
            if let Some(one) = candidates.get_mut(*no) {
                (one.words, one.is_lexical) = (*judgement, true);
            }
        }
        let mut best: BTreeSet<i64> = found
            .iter()
            .map(|(no, _)| *no)
            .take(NEIGHBOURS_OF)
            .collect();
        let model = match vector {
            Some(vector) => self
                .model_in_use(&vector.model)?
                .map(|model| (model, vector)),
            None => None,
        };
        if let Some((model, vector)) = model {
            vectors::check(model, vector)?;
            let wanted = Wanted::new(request.limit);
            let near =
                self.connection
                    .nearest(model, &partitions, &filter, &vector.values, wanted)?;
            self.fetch(near.iter().map(|(no, _)| *no), &mut candidates)?;
            for (no, cosine) in &near {
                if let Some(one) = candidates.get_mut(*no) {
                    (one.cosine, one.is_near) = (Some(*cosine), true);
                }
            }
            best.extend(near.iter().map(|(no, _)| *no).take(NEIGHBOURS_OF));
        }
        let said_after = self.add_neighbours(&best, &filter, &mut candidates)?;
        // Every memory gets both scores, whichever search found it.
        if let Some((model, vector)) = model {
            let others = candidates.places.iter();
            let others = others.filter(|(_, place)| !candidates.list[**place].is_near);
            let others = others.map(|(no, _)| *no).collect();
            for (no, cosine) in self.connection.measure(model, others, &vector.values)? {
                if let Some(one) = candidates.get_mut(no) {
                    one.cosine = Some(cosine);
                }
            }
        }
        let scorer = Scorer::new(&query, &statistics);
        let content_words = ContentWords::new(&request.query, &query);
        for one in &mut candidates.list {
            let content = &one.memory.content;
            if !one.is_lexical {
                one.words = scorer.judge(content);
            }
            let words = content_words.as_ref();
            one.shared = words.map(|words| words.shared_with(content, &scorer));
        }
        Ok(Candidates {
            list: candidates.list,
            said_after,
            searched,
        })
    }

    /// Adds the memories stated directly before and after the best ones.
    ///
    /// Returns the indices of the pairs, the memory stated first first.
    fn add_neighbours(
        &self,
        best: &BTreeSet<i64>,
        filter: &Filter,
        candidates: &mut NumberedCandidates,
    ) -> StoreResult<Vec<(usize, usize)>> {
        let best = best
            .iter()
            .filter_map(|no| Some((*no, &candidates.get(*no)?.memory)));
        let beside = self.beside(best)?;
        let others = beside.iter().map(|(_, other, _)| *other);
        let others: BTreeSet<i64> = others
            .filter(|other| !candidates.places.contains_key(other))
            .collect();
        let others: Vec<i64> = others.into_iter().collect();
        for row in MemoryRow::of_numbers(self, &others)? {
            if filter.passes(row.no, FilterColumns::new(&row.memory)) {
                candidates.add(row);
            }
        }
        let mut pairs = BTreeSet::new();
        for (no, other, is_after) in beside {
            if let (Some(one), Some(other)) =
                (candidates.places.get(&no), candidates.places.get(&other))
                && one != other
            {
                pairs.insert(if is_after {
                    (*one, *other)
                } else {
                    (*other, *one)
                });
            }
        }
        Ok(pairs.into_iter().collect())
    }

    fn filter(
        &self,
        request: &RecallRequest,
        partitions: &[i64],
        now: Timestamp,
    ) -> StoreResult<Filter> {
        let mut among: Option<HashSet<i64>> = None;
        let sql = "SELECT no FROM tags WHERE tag = ? AND no BETWEEN ? AND ?
                   ORDER BY no DESC LIMIT ?";
        let looked_at = limit(MemoryLimits::FILTERED_LOOKED_AT);
        for tag in &request.tags {
            let mut tagged = HashSet::new();
            for (first, last) in partitions.iter().map(|partition| range(*partition)) {
                let parameters = params![tag, first, last, looked_at];
                let found: Vec<i64> = self.all(sql, parameters, |row| row.get(0))?;
                tagged.extend(found);
            }
            among = Some(match among {
                None => tagged,
                Some(among) => among.intersection(&tagged).copied().collect(),
            });
        }
        if let Some(wanted) = &request.metadata {
            let fitting = self.with_metadata(wanted, partitions)?;
            among = Some(match among {
                None => fitting,
                Some(among) => among.intersection(&fitting).copied().collect(),
            });
        }
        Ok(Filter {
            kinds: kind_bits(&request.kinds),
            observed_after: request.after.map(moment),
            observed_before: request.before.map(moment),
            now: moment(now),
            among,
        })
    }

    /// Current memories with matching metadata.
    fn with_metadata(
        &self,
        wanted: &DocumentFilter,
        partitions: &[i64],
    ) -> StoreResult<HashSet<i64>> {
        let mut fitting = HashSet::new();
        let sql = "SELECT no, metadata FROM memories WHERE partition = ?
                   AND metadata IS NOT NULL AND superseded_by IS NULL ORDER BY no DESC LIMIT ?";
        for partition in partitions {
            let parameters = params![partition, limit(MemoryLimits::FILTERED_LOOKED_AT)];
            self.each(sql, parameters, METADATA_AT_ONCE, |row| {
                if wanted.takes(row.text(1)?.as_bytes()) {
                    fitting.insert(row.get(0)?);
                }
                Ok(true)
            })?;
        }
        Ok(fitting)
    }

    /// Searches by words. The index selects candidates, and their text decides.
    ///
    /// Returns the numbers of the best memories, best first, and the statistics of the terms.
    fn by_words(
        &self,
        query: &Query,
        numbered: BTreeMap<i64, u64>,
        filter: &Filter,
        count_max: usize,
    ) -> StoreResult<(Vec<(i64, Judgement)>, Statistics)> {
        if query.terms().is_empty() || count_max == 0 {
            return Ok((Vec::new(), Statistics::default()));
        }
        let mut statistics = Statistics {
            memories: numbered.values().sum(),
            found_in: vec![0; query.terms().len()],
            ..Statistics::default()
        };
        let asked = numbered.into_iter().filter(|(_, numbers)| *numbers > 0);
        let mut asked: Vec<(i64, u64, Matches)> = asked
            .map(|(partition, numbers)| (partition, numbers, Matches::new(numbers)))
            .collect();
        let exact: Vec<&[String]> = query.terms().iter().map(Term::forms).collect();
        self.look_up(&exact, MATCHES_MAX, &mut asked, &mut statistics)?;
        // Look up other forms of a term only if it has no exact match.
        let begun = |(term, found_in): (usize, &u64)| match found_in {
            0 => query.terms().get(term).map_or(&[][..], Term::beginnings),
            _ => &[],
        };
        let begun: Vec<&[String]> = statistics.found_in.iter().enumerate().map(begun).collect();
        for (term, _) in begun
            .iter()
            .enumerate()
            .filter(|(_, forms)| !forms.is_empty())
        {
            statistics.alike.insert(term);
        }
        self.look_up(&begun, ALIKE_MAX, &mut asked, &mut statistics)?;
        let mut candidates: Vec<(i64, Found)> = Vec::new();
        for (partition, _, matches) in asked {
            matches.into_candidates(range(partition).0, &mut candidates);
        }
        let scorer = Scorer::new(query, &statistics);
        let mut ranked: Vec<(f64, i64)> = candidates
            .into_iter()
            .map(|(no, found)| (scorer.coverage(found), no))
            .collect();
        ranked.sort_unstable_by(|(one, no), (other, other_no)| {
            other.total_cmp(one).then(other_no.cmp(no))
        });
        let mut scored = Vec::new();
        let wanted = CANDIDATES_MAX.max(count_max);
        let mut rest = ranked.as_slice();
        // Read more candidates in growing batches to make up for those that the filter drops.
        let mut at_once = wanted;
        while scored.len() < wanted && !rest.is_empty() {
            let (some, others) = rest.split_at(at_once.min(rest.len()));
            rest = others;
            at_once *= 2;
            self.candidates(some, |no, glance, id, content| {
                if filter.passes(no, glance) {
                    let judgement = scorer.judge(content);
                    // In an index that is not rebuilt yet, "us" matches "use".
                    if judgement.score > 0.0 {
                        scored.push((judgement, id, no));
                    }
                }
            })?;
        }
        scored.sort_by(|(one, id, _), (other, other_id, _)| {
            let by_score = other.score.total_cmp(&one.score);
            by_score.then(other_id.cmp(id))
        });
        scored.truncate(count_max);
        let found = scored.into_iter().map(|(judgement, _, no)| (no, judgement));
        let found = found.collect();
        Ok((found, statistics))
    }

    /// Looks up terms by their forms in each partition. Skips terms without forms.
    ///
    /// Records at most `noted_max` of the newest memories per term and partition.
    fn look_up(
        &self,
        forms: &[&[String]],
        noted_max: usize,
        asked: &mut [(i64, u64, Matches)],
        statistics: &mut Statistics,
    ) -> StoreResult<()> {
        let mut places = Vec::new();
        let mut sought = Vec::new();
        for (place, (partition, ..)) in asked.iter().enumerate() {
            for (term, forms) in forms
                .iter()
                .enumerate()
                .filter(|(_, forms)| !forms.is_empty())
            {
                places.push((place, term));
                sought.push(TermLookup {
                    forms,
                    partition: *partition,
                });
            }
        }
        if sought.is_empty() {
            return Ok(());
        }
        let looked = index::look_up(self.connection, &sought, |index, found| {
            let Some((place, term)) = places.get(index) else {
                return;
            };
            if let Some((partition, _, matches)) = asked.get_mut(*place) {
                let (first, _) = range(*partition);
                let noted = found.iter().take(noted_max);
                noted.for_each(|no| matches.note(no - first, *term));
            }
        })?;
        for ((place, term), looked) in places.into_iter().zip(looked) {
            if let (Some((partition, numbers, _)), Some(found_in)) =
                (asked.get(place), statistics.found_in.get_mut(term))
            {
                *found_in += looked.estimate(range(*partition).0, *numbers);
            }
        }
        Ok(())
    }

    /// Reads what decides whether these candidates are found.
    fn candidates(
        &self,
        ranked: &[(f64, i64)],
        mut look: impl FnMut(i64, FilterColumns, MemoryId, &str),
    ) -> StoreResult<()> {
        let mut read = |row: &Row<'_>| {
            let glance = FilterColumns {
                kind: row.get(1)?,
                observed: row.get(2)?,
                expires: row.get(3)?,
            };
            let id = MemoryId::from_bytes(row.get(4)?);
            // Without its text, a damaged memory is no candidate.
            look(row.get(0)?, glance, id, row.text(5).unwrap_or_default());
            Ok(())
        };
        let own = "SELECT no, kind, observed, expires, id, content FROM memories WHERE no = ?1";
        // Shared memories of a forgotten subject have no owner anymore. A partition that was found
        // belongs to a subject that is not forgotten, so its own memories need no check.
        let shared = "SELECT no, kind, observed, expires, id, content FROM memories
                      WHERE no = ?1 AND owner IN (SELECT no FROM partitions)";
        let numbers = ranked.iter().map(|(_, no)| *no);
        let (of_team, of_subjects): (Vec<i64>, Vec<i64>) =
            numbers.partition(|no| partition_of(*no) == TEAM);
        for (sql, numbers) in [(own, of_subjects), (shared, of_team)] {
            if !numbers.is_empty() {
                self.of_numbers(sql, &numbers, &mut read)?;
            }
        }
        Ok(())
    }

    /// Reads the memories with these numbers, unless they are candidates already.
    fn fetch(
        &self,
        numbers: impl Iterator<Item = i64>,
        candidates: &mut NumberedCandidates,
    ) -> StoreResult<()> {
        let missing = numbers.filter(|no| !candidates.places.contains_key(no));
        let missing: Vec<i64> = missing.collect();
        for row in MemoryRow::of_numbers(self, &missing)? {
            candidates.add(row);
        }
        Ok(())
    }
}

impl Matches {
    fn new(numbers: u64) -> Self {
        match usize::try_from(numbers) {
            Ok(numbers_max) if numbers <= DENSE_MAX => {
                Self::Dense(vec![Found::default(); numbers_max + 1], Vec::new())
            }
            _ => Self::Sparse(HashMap::new()),
        }
    }

    fn note(&mut self, local: i64, term: usize) {
        match self {
            Self::Sparse(found) => found.entry(local).or_default().insert(term),
            Self::Dense(found, touched) => {
                let index = usize::try_from(local).unwrap_or(usize::MAX);
                if let Some(found) = found.get_mut(index) {
                    if *found == Found::default() {
                        touched.push(local);
                    }
                    found.insert(term);
                }
            }
        }
    }

    fn into_candidates(self, first: i64, candidates: &mut Vec<(i64, Found)>) {
        match self {
            Self::Sparse(found) => {
                candidates.extend(
                    found
                        .into_iter()
                        .map(|(local, found)| (first | local, found)),
                );
            }
            Self::Dense(found, touched) => {
                candidates.extend(touched.into_iter().filter_map(|local| {
                    let index = usize::try_from(local).ok()?;
                    Some((first | local, *found.get(index)?))
                }));
            }
        }
    }
}
