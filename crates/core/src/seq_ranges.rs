//! Ordered ranges of seqs, used for the rewound turns of a generation.

/// Ranges of seqs, ascending, with a gap of at least one seq between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeqRanges {
    runs: Vec<(u64, u64)>,
}

impl SeqRanges {
    /// Restores stored ranges, given as the first and last seq of each, ascending.
    pub fn restore(runs: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut ranges = Self::default();
        for (first, last) in runs {
            ranges.add_last(first, last);
        }
        ranges
    }

    /// Adds the seqs from `first` to `last`, which must not precede an existing seq.
    ///
    /// Does nothing if `first` is after `last`.
    pub fn add_last(&mut self, mut first: u64, last: u64) {
        if first > last {
            return;
        }
        while let Some(run) = self.runs.pop_if(|run| run.1.saturating_add(1) >= first) {
            first = first.min(run.0);
        }
        self.runs.push((first, last));
    }

    /// First and last seq of each range, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        self.runs.iter().copied()
    }

    /// Number of seqs.
    pub fn count(&self) -> u64 {
        self.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The range that contains `seq`.
    pub fn run_of(&self, seq: u64) -> Option<(u64, u64)> {
        let index = self.runs.partition_point(|&(_, last)| last < seq);
        let run = self.runs.get(index).copied();
        run.filter(|&(first, _)| first <= seq)
    }

    pub fn contains(&self, seq: u64) -> bool {
        self.run_of(seq).is_some()
    }

    /// Whether any seq from `first` to `last` is in the ranges.
    pub fn overlaps(&self, first: u64, last: u64) -> bool {
        let index = self.runs.partition_point(|run| run.1 < first);
        let run = self.runs.get(index);
        first <= last && run.is_some_and(|run| run.0 <= last)
    }

    /// Returns the gaps in `first..end`, each as its first seq and its exclusive end.
    pub fn rest(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let index = self.runs.partition_point(|run| run.1 < first);
        let mut runs = self.runs[index..].iter().copied();
        let mut next = first;
        std::iter::from_fn(move || {
            while next < end {
                let (until, resume) = match runs.next() {
                    Some((first, last)) => (first.min(end), last.saturating_add(1)),
                    None => (end, end),
                };
                let part = (next, until);
                next = resume;
                if part.0 < part.1 {
                    return Some(part);
                }
            }
            None
        })
    }

    /// Removes the oldest ranges before `seq`, except the last `max` of them.
    pub fn bound_before(&mut self, seq: u64, max: usize) {
        let before = self.runs.partition_point(|run| run.1 < seq);
        self.runs.drain(..before.saturating_sub(max));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_and_overlapping_ranges_merge() {
        let mut ranges = SeqRanges::default();
        ranges.add_last(5, 5);
        ranges.add_last(9, 8);
        assert_eq!(
            ranges.iter().collect::<Vec<_>>(),
            [(5, 5)],
            "an empty range adds nothing"
        );
        ranges.add_last(6, 7);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(5, 7)]);
        ranges.add_last(9, 9);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(5, 7), (9, 9)]);
        ranges.add_last(2, 12);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(2, 12)]);
        assert_eq!(SeqRanges::restore([(2, 12)]), ranges);
    }

    #[test]
    fn range_queries_match_check_of_each_seq() {
        let ranges = SeqRanges::restore([(3, 4), (7, 7), (10, 12)]);
        let contained: Vec<u64> = (0..15).filter(|seq| ranges.contains(*seq)).collect();
        assert_eq!(contained, [3, 4, 7, 10, 11, 12]);
        for first in 0..15 {
            for end in 0..15 {
                let rest: Vec<u64> = ranges
                    .rest(first, end)
                    .flat_map(|(first, end)| first..end)
                    .collect();
                let expected: Vec<u64> =
                    (first..end).filter(|seq| !ranges.contains(*seq)).collect();
                assert_eq!(rest, expected, "{first}..{end}");
                let has_any = (first..end).any(|seq| ranges.contains(seq));
                let overlaps = end > first && ranges.overlaps(first, end - 1);
                assert_eq!(overlaps, has_any, "{first}..{end}");
            }
        }
        let mut bounded = ranges.clone();
        bounded.bound_before(10, 1);
        assert_eq!(bounded.iter().collect::<Vec<_>>(), [(7, 7), (10, 12)]);
    }
}
