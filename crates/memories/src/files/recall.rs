//! Recall: candidates by words and by meaning, each list best first. Nothing outside the
//! partitions of the subjects asked and the team's is ever looked at.

use std::collections::{HashMap, HashSet};

use memoird_core::ids::MemoryId;
use memoird_core::time::Timestamp;
use memoird_core::words::ranking::{
    CANDIDATES_MAX, Found, Judgement, Query, Scorer, Statistics, Term,
};
use rusqlite::{Statement, ToSql, params};

use super::reader::MemoryReader;
use super::row::{
    MemoryRow, RowsByNo, TEAM, find_partition, kind_bits, limit, partition_of, range,
};
use super::sql::Answer;
use super::time::moment;
use super::vectors::{self, Filter, Glance, Wanted};
use super::{Embedding, RecallLists, Scores, index};
use crate::requests::RecallRequest;
use crate::rules::documents::DocumentFilter;
use crate::rules::fusion::Ranked;
use crate::rules::{Memory, MemoryLimits};

/// Memories of a partition that a term is looked up in, the newest: whatever more memories
/// have says next to nothing.
const MATCHES_MAX: usize = 8_192;
/// So many of the best of each list bring what was said before and after them.
const NEIGHBOURS_OF: usize = 16;
/// A partition with more numbers than these counts what it finds in a map, not in a list.
const DENSE_MAX: u64 = 1 << 18;

/// The terms that were found in each memory of one partition.
enum Matches {
    /// By the number within the partition.
    Dense(Vec<Found>, Vec<i64>),
    Sparse(HashMap<i64, Found>),
}

impl MemoryReader<'_> {
    /// What fits a query: by words, unless it is empty, and by meaning, where it has a vector.
    /// The lists have up to `limit` memories each; `mode` and `session` have no effect here.
    ///
    /// # Errors
    /// [`MemoryError::DimensionMismatch`], and when the file cannot be read.
    pub fn recall(
        &self,
        request: &RecallRequest,
        vector: Option<&Embedding>,
        now: Timestamp,
    ) -> Answer<RecallLists> {
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
            let wanted = Wanted::of(request.limit);
            let near = vectors::nearest(
                self.connection,
                model,
                &partitions,
                &filter,
                &vector.values,
                wanted,
            )?;
            lists.vector = self.fetch(near, &mut lists.memories, &mut numbers)?;
        }
        self.add_neighbours(&filter, &mut lists, &mut numbers)?;
        // Whatever found them, all are judged both ways.
        let scorer = Scorer::new(&query, &statistics);
        let near = lists.vector.iter();
        let mut cosines: HashMap<MemoryId, f64> = near.map(|one| (one.id, one.score)).collect();
        if let Some((model, vector)) = model {
            let others = numbers.iter().filter(|(id, _)| !cosines.contains_key(*id));
            let others: HashMap<i64, MemoryId> = others.map(|(id, no)| (*no, *id)).collect();
            let nos = others.keys().copied();
            let found = vectors::measure(self.connection, model, nos, &vector.values)?;
            let found = found
                .into_iter()
                .filter_map(|(no, cosine)| Some((*others.get(&no)?, cosine)));
            cosines.extend(found);
        }
        for (id, memory) in &lists.memories {
            let scores = lists.scores.entry(*id).or_insert_with(|| {
                let judgement = scorer.judge(&memory.content);
                Scores {
                    words: judgement.score,
                    cosine: None,
                    length: judgement.words,
                }
            });
            scores.cosine = cosines.get(id).copied();
        }
        Ok(lists)
    }

    /// Adds what was said right before and right after the best.
    fn add_neighbours(
        &self,
        filter: &Filter,
        lists: &mut RecallLists,
        numbers: &mut HashMap<MemoryId, i64>,
    ) -> Answer<()> {
        let best = |list: &[Ranked<MemoryId>]| -> Vec<MemoryId> {
            list.iter().take(NEIGHBOURS_OF).map(|one| one.id).collect()
        };
        let mut best = [best(&lists.lexical), best(&lists.vector)].concat();
        best.sort_unstable();
        best.dedup();
        for id in best {
            let (Some(no), Some(memory)) = (numbers.get(&id), lists.memories.get(&id)) else {
                continue;
            };
            let Some(beside) = self.beside(*no, memory)? else {
                continue;
            };
            for (other, is_after) in beside {
                let Some(MemoryRow { memory, .. }) = MemoryRow::by_no(self.connection, other)?
                else {
                    continue;
                };
                if memory.id == id || !filter.passes(other, glance(&memory)) {
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
                lists.memories.entry(memory.id).or_insert(memory);
            }
        }
        Ok(())
    }

    fn filter(
        &self,
        request: &RecallRequest,
        partitions: &[i64],
        now: Timestamp,
    ) -> Answer<Filter> {
        let mut among: Option<HashSet<i64>> = None;
        let sql = "SELECT no FROM tags WHERE tag = ? AND no BETWEEN ? AND ?";
        let mut statement = self.connection.prepare_cached(sql)?;
        for tag in &request.tags {
            let mut tagged = HashSet::new();
            for (first, last) in partitions.iter().map(|partition| range(*partition)) {
                let found = statement.query_map(params![tag, first, last], |row| row.get(0))?;
                for no in found {
                    tagged.insert(no?);
                }
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

    /// The current memories whose metadata fit.
    fn with_metadata(&self, wanted: &DocumentFilter, partitions: &[i64]) -> Answer<HashSet<i64>> {
        let mut fitting = HashSet::new();
        let sql = "SELECT no, metadata FROM memories WHERE partition = ?
                   AND metadata IS NOT NULL AND superseded_by IS NULL ORDER BY no DESC LIMIT ?";
        let mut statement = self.connection.prepare_cached(sql)?;
        for partition in partitions {
            let parameters = params![partition, limit(MemoryLimits::METADATA_LOOKED_AT)];
            let mut rows = statement.query(parameters)?;
            while let Some(row) = rows.next()? {
                let metadata = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
                if wanted.takes(metadata.as_bytes()) {
                    fitting.insert(row.get(0)?);
                }
            }
        }
        Ok(fitting)
    }

    /// The terms choose candidates; their text decides. Gives what the terms weigh.
    fn by_words(
        &self,
        request: &RecallRequest,
        partitions: &[i64],
        filter: &Filter,
        lists: &mut RecallLists,
        numbers: &mut HashMap<MemoryId, i64>,
    ) -> Answer<(Query, Statistics)> {
        let (numbered, languages) = self.numbered(partitions)?;
        let query = Query::new(&request.query, languages);
        if query.terms().is_empty() || request.limit == 0 {
            return Ok((query, Statistics::default()));
        }
        let moving_at = index::moving_at(self.connection)?;
        let mut statistics = Statistics {
            memories: numbered.values().sum(),
            found_in: Vec::new(),
        };
        statistics.found_in.resize(query.terms().len(), 0);
        let mut candidates: Vec<(i64, Found)> = Vec::new();
        for (partition, numbers) in numbered.into_iter().filter(|(_, numbers)| *numbers > 0) {
            let mut matches = Matches::new(numbers);
            let (first, _) = range(partition);
            for (index, term) in query.terms().iter().enumerate() {
                let found = self.matches(term, partition, moving_at, |no| {
                    matches.note(no - first, index);
                })?;
                statistics.found_in[index] += found.estimate(first, numbers);
            }
            matches.into_candidates(first, &mut candidates);
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
        let sql = "SELECT kind, observed, expires, id, content FROM memories WHERE no = ?";
        let mut own = self.connection.prepare_cached(sql)?;
        // What a forgotten subject shared has no owner any more. Whose partition was found is not
        // forgotten.
        let sql = "SELECT kind, observed, expires, id, content FROM memories
                   WHERE no = ? AND owner IN (SELECT no FROM partitions)";
        let mut shared = self.connection.prepare_cached(sql)?;
        for (_, no) in ranked {
            if scored.len() >= CANDIDATES_MAX.max(request.limit) {
                break;
            }
            let mut rows = match partition_of(no) {
                TEAM => shared.query([no])?,
                _ => own.query([no])?,
            };
            let Some(row) = rows.next()? else { continue };
            let glance = Glance {
                kind: row.get(0)?,
                observed: row.get(1)?,
                expires: row.get(2)?,
            };
            if filter.passes(no, glance) {
                let content = row.get_ref(4)?.as_str().map_err(rusqlite::Error::from)?;
                let judgement = scorer.judge(content);
                // An index that is not moved yet takes "us" for "use".
                if judgement.score > 0.0 {
                    scored.push((judgement, MemoryId::from_bytes(row.get(3)?), no));
                }
            }
        }
        scored.sort_by(|(one, id, _), (other, other_id, _)| {
            let by_score = other.score.total_cmp(&one.score);
            by_score.then(other_id.cmp(id))
        });
        scored.truncate(request.limit);
        lists.scores.extend(scored.iter().map(|(judgement, id, _)| {
            let scores = Scores {
                words: judgement.score,
                cosine: None,
                length: judgement.words,
            };
            (*id, scores)
        }));
        let found = scored
            .into_iter()
            .map(|(judgement, _, no)| (no, judgement.score));
        lists.lexical = self.fetch(found, &mut lists.memories, numbers)?;
        Ok((query, statistics))
    }

    /// Reads the memories of a list; gives the list with their ids.
    fn fetch(
        &self,
        found: impl IntoIterator<Item = (i64, f64)>,
        memories: &mut HashMap<MemoryId, Memory>,
        numbers: &mut HashMap<MemoryId, i64>,
    ) -> Answer<Vec<Ranked<MemoryId>>> {
        let mut list = Vec::new();
        let mut rows = RowsByNo::prepare(self.connection)?;
        for (no, score) in found {
            if let Some(MemoryRow { memory, .. }) = rows.find(no)? {
                list.push(Ranked {
                    id: memory.id,
                    score,
                    observed_at: memory.observed_at,
                });
                numbers.insert(memory.id, no);
                memories.insert(memory.id, memory);
            }
        }
        Ok(list)
    }

    /// Looks up a term in one partition, the newest memories first.
    fn matches(
        &self,
        term: &Term,
        partition: i64,
        moving_at: Option<i64>,
        mut note: impl FnMut(i64),
    ) -> Answer<Looked> {
        let (first, last) = range(partition);
        let forms: Vec<String> = term
            .forms()
            .iter()
            .map(|form| format!("\"{form}\""))
            .collect();
        let sql = "SELECT rowid FROM terms WHERE terms MATCH ? AND rowid BETWEEN ? AND ?
                   ORDER BY rowid DESC LIMIT ?";
        let sought = params![forms.join(" OR "), first, last, limit(MATCHES_MAX)];
        let moved = look(
            &mut *self.connection.prepare_cached(sql)?,
            sought,
            &mut note,
        )?;
        let Some(at) = moving_at else {
            return Ok(moved);
        };
        let sql = "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ?
                   ORDER BY rowid DESC LIMIT ?";
        let word = format!("\"{}\"", term.word);
        let sought = params![word, first.max(at + 1), last, limit(MATCHES_MAX)];
        match look(&mut *self.connection.prepare_cached(sql)?, sought, note) {
            Ok(old) => Ok(Looked {
                found: old.found + moved.found,
                // Those that were moved are the older ones.
                last: if moved.found > 0 {
                    moved.last
                } else {
                    old.last
                },
            }),
            // SQLite cuts the word in a place that we do not know of.
            Err(error) if is_cut(&error) => Ok(moved),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads the numbers of the memories that were found.
fn look(
    statement: &mut Statement<'_>,
    sought: &[&dyn ToSql],
    mut note: impl FnMut(i64),
) -> rusqlite::Result<Looked> {
    let mut rows = statement.query(sought)?;
    let mut looked = Looked { found: 0, last: 0 };
    while let Some(row) = rows.next()? {
        looked.last = row.get(0)?;
        note(looked.last);
        looked.found += 1;
    }
    Ok(looked)
}

/// True where a word is several to the index, which it has no places of.
fn is_cut(error: &rusqlite::Error) -> bool {
    let rusqlite::Error::SqliteFailure(_, Some(problem)) = error else {
        return false;
    };
    problem.starts_with("fts5: phrase queries are not supported")
}

/// How far a term was looked up.
#[derive(Clone, Copy, Debug)]
struct Looked {
    found: usize,
    /// The last memory that has it and was seen.
    last: i64,
}

impl Looked {
    /// How many memories of the partition have the term, if it is spread evenly.
    fn estimate(self, first: i64, numbers: u64) -> u64 {
        let found = self.found as u64;
        if self.found < MATCHES_MAX {
            return found;
        }
        let seen = numbers
            .saturating_sub((self.last - first).unsigned_abs())
            .max(1);
        (found.saturating_mul(numbers) / seen).min(numbers)
    }
}

/// The properties of a memory by which searches filter.
pub(super) fn glance(memory: &Memory) -> Glance {
    Glance {
        kind: memory.kind as u8,
        observed: moment(memory.observed_at),
        expires: memory.expires_at.map(moment),
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
