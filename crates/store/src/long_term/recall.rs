//! Recall: candidates by words and by meaning, each list best first. Nothing outside the
//! partitions of the subjects asked and the team's is ever looked at.

use std::collections::{HashMap, HashSet};

use rusqlite::params;

use memoird_core::memory::Memory;
use memoird_core::memory::lexical::{CANDIDATES_MAX, Found, Query, Scorer, Statistics};

use super::reader::{Answer, MemoryReader};
use super::row::{MemoryRow, TEAM, find_partition, kind_bits, kind_number, limit, range};
use super::time::moment;
use super::vectors::{self, Filter, Glance};
use super::{RecallAsk, RecallLists, Scored};

/// Memories of a partition that a term is looked up in, the newest: whatever more memories
/// have says next to nothing.
const MATCHES_MAX: usize = 8_192;
/// A partition with more numbers than these counts what it finds in a map, not in a list.
const DENSE_MAX: u64 = 1 << 18;

/// What the terms found in one partition.
enum Matches {
    /// By the number within the partition.
    Dense(Vec<Found>, Vec<i64>),
    Sparse(HashMap<i64, Found>),
}

impl MemoryReader<'_> {
    /// What fits a query, by words and by meaning.
    ///
    /// # Errors
    /// [`crate::StoreError::DimensionMismatch`], and when the file cannot be read.
    pub fn recall(&self, ask: &RecallAsk) -> Answer<RecallLists> {
        self.settle_index()?;
        let mut partitions = Vec::with_capacity(ask.subjects.len() + 1);
        for subject in &ask.subjects {
            partitions.extend(find_partition(self.connection, subject)?);
        }
        partitions.push(TEAM);
        partitions.sort_unstable();
        partitions.dedup();
        let filter = self.filter(ask, &partitions)?;
        let mut lists = RecallLists::default();
        self.by_words(ask, &partitions, &filter, &mut lists)?;
        self.by_meaning(ask, &partitions, &filter, &mut lists)?;
        Ok(lists)
    }

    fn filter(&self, ask: &RecallAsk, partitions: &[i64]) -> Answer<Filter> {
        let mut among: Option<HashSet<i64>> = None;
        let sql = "SELECT no FROM tags WHERE tag = ? AND no BETWEEN ? AND ?";
        let mut statement = self.connection.prepare_cached(sql)?;
        for tag in &ask.tags {
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
        Ok(Filter {
            kinds: kind_bits(&ask.kinds),
            observed_after: ask.observed_after.map(moment),
            observed_before: ask.observed_before.map(moment),
            now: moment(ask.now),
            among,
        })
    }

    /// The terms choose candidates; their text decides.
    fn by_words(
        &self,
        ask: &RecallAsk,
        partitions: &[i64],
        filter: &Filter,
        lists: &mut RecallLists,
    ) -> Answer<()> {
        let query = Query::new(&ask.query);
        if query.terms().is_empty() || ask.depth == 0 {
            return Ok(());
        }
        let numbered = self.numbered(partitions)?;
        let mut statistics = Statistics { memories: numbered.values().sum(), found_in: Vec::new() };
        statistics.found_in.resize(query.terms().len(), 0);
        let mut candidates: Vec<(i64, Found)> = Vec::new();
        for (partition, numbers) in numbered {
            let mut matches = Matches::new(numbers);
            let (first, _) = range(partition);
            for (place, term) in query.terms().iter().enumerate() {
                let found = self.matches(&term.word, partition, |no| {
                    matches.note(no - first, place);
                })?;
                statistics.found_in[place] += found;
            }
            matches.into_candidates(first, &mut candidates);
        }
        let scorer = Scorer::new(&query, &statistics);
        let mut ranked: Vec<(f64, i64, Found)> =
            candidates.into_iter().map(|(no, found)| (scorer.coverage(found), no, found)).collect();
        ranked.sort_unstable_by(|(one, no, _), (other, other_no, _)| {
            other.total_cmp(one).then(other_no.cmp(no))
        });
        let mut scored: Vec<(f64, Memory)> = Vec::new();
        for (_, no, found) in ranked {
            if scored.len() >= CANDIDATES_MAX.max(ask.depth) {
                break;
            }
            if let Some(row) = self.passing(no, filter)? {
                let score = scorer.score(found, &row.memory.content);
                // Where the index's stem fits and the word does not: "us" is not "use".
                if score > 0.0 {
                    scored.push((score, row.memory));
                }
            }
        }
        scored.sort_by(|(one, memory), (other, other_memory)| {
            other.total_cmp(one).then(other_memory.id.cmp(&memory.id))
        });
        for (score, memory) in scored.into_iter().take(ask.depth) {
            lists.lexical.push(Scored { id: memory.id, score });
            lists.memories.insert(memory.id, memory);
        }
        Ok(())
    }

    fn by_meaning(
        &self,
        ask: &RecallAsk,
        partitions: &[i64],
        filter: &Filter,
        lists: &mut RecallLists,
    ) -> Answer<()> {
        let Some(vector) = &ask.vector else { return Ok(()) };
        let Some(model) = self.model_in_use(&vector.model)? else { return Ok(()) };
        vectors::check(model, vector)?;
        let found = vectors::nearest(
            self.connection,
            model,
            partitions,
            filter,
            &vector.values,
            ask.depth,
        )?;
        for (no, cosine) in found {
            if let Some(row) = MemoryRow::by_no(self.connection, no)? {
                let id = row.memory.id;
                lists.vector.push(Scored { id, score: cosine });
                lists.embedded.insert(id);
                lists.memories.entry(id).or_insert(row.memory);
            }
        }
        for Scored { id, .. } in &lists.lexical {
            if !lists.embedded.contains(id) && self.has_vector(*id, model)? {
                lists.embedded.insert(*id);
            }
        }
        Ok(())
    }

    /// Looks up a term in one partition, the newest memories first; gives how many have it,
    /// as far as that was counted.
    fn matches(&self, word: &str, partition: i64, mut note: impl FnMut(i64)) -> Answer<u64> {
        let sql = "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ?
                   ORDER BY rowid DESC LIMIT ?";
        let mut statement = self.connection.prepare_cached(sql)?;
        let (first, last) = range(partition);
        let phrase = format!("\"{word}\"");
        let mut rows = statement.query(params![phrase, first, last, limit(MATCHES_MAX)])?;
        let mut found = 0;
        while let Some(row) = rows.next()? {
            note(row.get(0)?);
            found += 1;
        }
        Ok(found)
    }

    /// A memory, if it passes; what was forgotten or is history is in no index.
    fn passing(&self, no: i64, filter: &Filter) -> Answer<Option<MemoryRow>> {
        if filter.among.as_ref().is_some_and(|among| !among.contains(&no)) {
            return Ok(None);
        }
        let row = MemoryRow::by_no(self.connection, no)?;
        Ok(row.filter(|row| filter.passes(no, glance(&row.memory))))
    }
}

/// What a first look tells of a memory.
pub(super) fn glance(memory: &Memory) -> Glance {
    Glance {
        kind: kind_number(memory.kind),
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
                let place = usize::try_from(local).unwrap_or(usize::MAX);
                if let Some(found) = found.get_mut(place) {
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
                candidates.extend(found.into_iter().map(|(local, found)| (first | local, found)));
            }
            Self::Dense(found, touched) => {
                candidates.extend(touched.into_iter().filter_map(|local| {
                    let place = usize::try_from(local).ok()?;
                    Some((first | local, *found.get(place)?))
                }));
            }
        }
    }
}
