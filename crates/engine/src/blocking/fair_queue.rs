//! A round-robin queue: a tenant's backlog delays only that tenant.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;

/// Queued items by key. Items of one key are in order of arrival.
#[derive(Debug)]
pub(super) struct FairQueue<K, T> {
    waiting: HashMap<K, BTreeMap<Number, T>>,
    last_number: Number,
    /// Keys with queued items, in serving order.
    turns: VecDeque<K>,
    len: usize,
    len_max_each: usize,
}

/// Sequence number of a queued item.
pub(super) type Number = u64;

impl<K: Clone + Eq + Hash, T> FairQueue<K, T> {
    pub(super) fn new(len_max_each: usize) -> Self {
        Self {
            waiting: HashMap::new(),
            last_number: 0,
            turns: VecDeque::new(),
            len: 0,
            len_max_each,
        }
    }

    /// Appends an item and returns its number. Returns `None` if the key's queue is full.
    pub(super) fn push(&mut self, key: K, item: T) -> Option<Number> {
        let items = self.waiting.entry(key.clone()).or_default();
        if items.len() >= self.len_max_each {
            return None;
        }
        if items.is_empty() {
            self.turns.push_back(key);
        }
        self.last_number += 1;
        items.insert(self.last_number, item);
        self.len += 1;
        Some(self.last_number)
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let key = self.turns.pop_front()?;
        let items = self.waiting.get_mut(&key)?;
        let item = items.pop_first().map(|(_, item)| item);
        if items.is_empty() {
            self.waiting.remove(&key);
        } else {
            self.turns.push_back(key);
        }
        self.len -= usize::from(item.is_some());
        item
    }

    /// Removes the item with this number, if it is still queued.
    pub(super) fn remove(&mut self, key: &K, number: Number) -> Option<T> {
        let items = self.waiting.get_mut(key)?;
        let item = items.remove(&number)?;
        if items.is_empty() {
            self.waiting.remove(key);
            self.turns.retain(|other| other != key);
        }
        self.len -= 1;
        Some(item)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_served_round_robin() {
        let mut queue = FairQueue::new(100);
        for number in 0..5 {
            assert!(queue.push("flood", number).is_some());
        }
        assert_eq!(queue.pop(), Some(0));
        for (key, number) in [("b", 10), ("c", 20), ("b", 11)] {
            assert!(queue.push(key, number).is_some());
        }
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [1, 10, 20, 2, 11, 3, 4]);
        assert_eq!((queue.len(), queue.waiting.len()), (0, 0));
    }

    #[test]
    fn queue_limit_applies_per_key() {
        let mut queue = FairQueue::new(2);
        assert!(queue.push("a", 1).is_some() && queue.push("a", 2).is_some());
        assert!(queue.push("a", 3).is_none());
        assert!(queue.push("b", 4).is_some());
        assert_eq!(queue.len(), 3);
    }

    #[test]
    fn removed_item_frees_space_and_keeps_turn_order() {
        let mut queue = FairQueue::new(2);
        let [first, second] = [1, 2].map(|item| queue.push("a", item).unwrap());
        let only = queue.push("b", 3).unwrap();
        assert_eq!(queue.remove(&"a", first), Some(1));
        assert_eq!(queue.remove(&"a", first), None);
        assert_eq!(queue.remove(&"b", second), None, "it is not theirs");
        assert!(queue.push("a", 4).is_some(), "there is room again");
        assert_eq!(queue.remove(&"b", only), Some(3));
        assert!(queue.push("b", 5).is_some());
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [2, 5, 4]);
        assert_eq!((queue.len(), queue.waiting.len()), (0, 0));
    }
}
