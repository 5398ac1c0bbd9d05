//! Candidates of a recall by words and by vector, each list best first.
//!
//! Only reads the partitions of the requested subjects and of the team.

use std::collections::{HashMap, HashSet};

use memoird_core::ids::MemoryId;
use memoird_core::time::Timestamp;
use memoird_core::words::ranking::{
    CANDIDATES_MAX, Found, Judgement, Query, Scorer, Statistics, Term,
};
use rusqlite::params;

use super::index;
use super::reader::MemoryReader;
use super::requests::{Embedding, RecallLists, Scores};
use super::row::{MemoryRow, TEAM, find_partition, kind_bits, limit, partition_of, range};
use super::sql::{Row, Sql, StoreResult};
use super::time::moment;
use super::vector_index::{Filter, FilterColumns, Wanted};
use super::vectors;
use super::word_index::{MATCHES_MAX, TermLookup};
use crate::requests::RecallRequest;
use crate::rules::documents::DocumentFilter;
use crate::rules::floor::ContentWords;
use crate::rules::fusion::Ranked;
use crate::rules::{Memory, MemoryLimits};

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

impl MemoryReader<'_> {
    /// Searches by words, unless the query is empty, and by vector, if one is given.
    ///
    /// Each list has up to `limit` memories. `mode` and `session` have no effect here.
    ///
    /// # Errors
    /// [`MemoryError::DimensionMismatch`], or if the memories cannot be read.
    pub fn recall(
        &self,
        request: &RecallRequest,
        vector: Option<&Embedding>,
        now: Timestamp,
    ) -> StoreResult<RecallLists> {
        self.settle_index()?;
        let mut partitions = Vec::with_capacity(request.subjects.len() + 1);
        for subject in &request.subjects {
            partitions.extend(find_partition(self.connection, subject)?);
        }
        if !request.subject_prefix.is_empty() {
            partitions.extend(self.prefixed(&request.subject_prefix)?);
        }
        partitions.push(TEAM);
        partitions.sort_unstable();
        partitions.dedup();
        let filter = self.filter(request, &partitions, now)?;
        let mut lists = RecallLists::default();
        let mut numbers = HashMap::new();
        let (query, statistics) =
            self.by_words(request, &partitions, &filter, &mut lists, &mut numbers)?;
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
            lists.vector = self.fetch(near, &mut lists.memories, &mut numbers)?;
        }
        self.add_neighbours(&filter, &mut lists, &mut numbers)?;
        // Every memory gets both scores, whichever search found it.
        let scorer = Scorer::new(&query, &statistics);
        let content_words = ContentWords::new(&request.query, &query);
        let near = lists.vector.iter();
        let mut cosines: HashMap<MemoryId, f64> = near.map(|one| (one.id, one.score)).collect();
        if let Some((model, vector)) = model {
            let others = numbers.iter().filter(|(id, _)| !cosines.contains_key(*id));
            let others: HashMap<i64, MemoryId> = others.map(|(id, no)| (*no, *id)).collect();
            let nos = others.keys().copied().collect();
            let found = self.connection.measure(model, nos, &vector.values)?;
            let found = found
                .into_iter()
                .filter_map(|(no, cosine)| Some((*others.get(&no)?, cosine)));
            cosines.extend(found);
        }
        for (id, memory) in &lists.memories {
            let scores = lists.scores.entry(*id).or_insert_with(|| {
                let judgement = scorer.judge(&memory.content);
                Scores::from(judgement)
            });
            scores.cosine = cosines.get(id).copied();
            let content_words = content_words.as_ref();
            scores.shared = content_words.map(|words| words.shared_with(&memory.content, &scorer));
        }
        Ok(lists)
    }

    /// Adds the memories stated directly before and after the best ones.
    fn add_neighbours(
        &self,
        filter: &Filter,
        lists: &mut RecallLists,
        numbers: &mut HashMap<MemoryId, i64>,
    ) -> StoreResult<()> {
        let best = |list: &[Ranked<MemoryId>]| -> Vec<MemoryId> {
            list.iter().take(NEIGHBOURS_OF).map(|one| one.id).collect()
        };
        let mut best = [best(&lists.lexical), best(&lists.vector)].concat();
        best.sort_unstable();
        best.dedup();
        let best = best.into_iter().filter_map(|id| {
            let (no, memory) = (numbers.get(&id)?, lists.memories.get(&id)?);
            Some((id, *no, memory))
        });
        let beside = self.beside(best)?;
        let others: Vec<i64> = beside.iter().map(|(_, other, _)| *other).collect();
        let found = MemoryRow::of_numbers(self.connection, &others)?;
        let found: HashMap<i64, Memory> =
            found.into_iter().map(|row| (row.no, row.memory)).collect();
        for (id, other, is_after) in beside {
            let Some(memory) = found.get(&other) else {
                continue;
            };
            if memory.id == id || !filter.passes(other, FilterColumns::new(memory)) {
                continue;
            }
            let pair = if is_after {
                (id, memory.id)
            } else {
                (memory.id, id)
            };
            if !lists.said_after.contains(&pair) {
                lists.said_after.push(pair);
            }
            numbers.insert(memory.id, other);
            lists
                .memories
                .entry(memory.id)
                .or_insert_with(|| memory.clone());
        }
        Ok(())
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
    /// Also returns the query and the statistics of its terms.
    fn by_words(
        &self,
        request: &RecallRequest,
        partitions: &[i64],
        filter: &Filter,
        lists: &mut RecallLists,
        numbers: &mut HashMap<MemoryId, i64>,
    ) -> StoreResult<(Query, Statistics)> {
        let (numbered, languages) = self.numbered(partitions)?;
        lists.searched = numbered.values().sum();
        let query = Query::new(&request.query, languages);
        if query.terms().is_empty() || request.limit == 0 {
            return Ok((query, Statistics::default()));
        }
        let mut statistics = Statistics {
            memories: lists.searched,
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
        let scorer = Scorer::new(&query, &statistics);
        let mut ranked: Vec<(f64, i64)> = candidates
            .into_iter()
            .map(|(no, found)| (scorer.coverage(found), no))
            .collect();
        ranked.sort_unstable_by(|(one, no), (other, other_no)| {
            other.total_cmp(one).then(other_no.cmp(no))
        });
        let mut scored: Vec<(Judgement, MemoryId, i64)> = Vec::new();
        let wanted = CANDIDATES_MAX.max(request.limit);
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
        scored.truncate(request.limit);
        let scores = scored.iter();
        let scores = scores.map(|(judgement, id, _)| (*id, Scores::from(*judgement)));
        lists.scores.extend(scores);
        let found = scored
            .into_iter()
            .map(|(judgement, _, no)| (no, judgement.score));
        lists.lexical = self.fetch(found, &mut lists.memories, numbers)?;
        Ok((query, statistics))
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
            look(row.get(0)?, glance, id, row.text(5)?);
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

    /// Reads the memories of a list, and returns the list with their ids.
    fn fetch(
        &self,
        found: impl IntoIterator<Item = (i64, f64)>,
        memories: &mut HashMap<MemoryId, Memory>,
        numbers: &mut HashMap<MemoryId, i64>,
    ) -> StoreResult<Vec<Ranked<MemoryId>>> {
        let (nos, scores): (Vec<i64>, Vec<f64>) = found.into_iter().unzip();
        let mut list = Vec::with_capacity(nos.len());
        let mut scored = nos.iter().zip(scores);
        for MemoryRow { no, memory, .. } in MemoryRow::of_numbers(self.connection, &nos)? {
            // Rows come in the requested order.
            let score = scored.find(|(asked, _)| **asked == no);
            list.push(Ranked {
                id: memory.id,
                score: score.map_or(0.0, |(_, score)| score),
                observed_at: memory.observed_at,
            });
            numbers.insert(memory.id, no);
            memories.insert(memory.id, memory);
        }
        Ok(list)
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
