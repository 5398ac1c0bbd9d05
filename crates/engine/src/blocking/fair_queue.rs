//! A queue that serves tenants in turn: who has much in it waits for itself, not the others.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// What waits, by whom it is for. Within one the order is that of the arrival.
#[derive(Debug)]
pub(super) struct FairQueue<K, T> {
    waiting: HashMap<K, VecDeque<T>>,
    /// Those for whom something waits, the next one first.
    turns: VecDeque<K>,
    len: usize,
    /// The most that may wait for one.
    len_max_each: usize,
}

impl<K: Clone + Eq + Hash, T> FairQueue<K, T> {
    pub(super) fn new(len_max_each: usize) -> Self {
        Self {
            waiting: HashMap::new(),
            turns: VecDeque::new(),
            len: 0,
            len_max_each,
        }
    }

    /// Adds something. False, and nothing is added, when too much waits for this one.
    pub(super) fn push(&mut self, key: K, item: T) -> bool {
        let items = self.waiting.entry(key.clone()).or_default();
        if items.len() >= self.len_max_each {
            return false;
        }
        if items.is_empty() {
            self.turns.push_back(key);
        }
        items.push_back(item);
        self.len += 1;
        true
    }

    /// Takes the next one out.
    pub(super) fn pop(&mut self) -> Option<T> {
        let key = self.turns.pop_front()?;
        let items = self.waiting.get_mut(&key)?;
        let item = items.pop_front();
        if items.is_empty() {
            self.waiting.remove(&key);
        } else {
            self.turns.push_back(key);
        }
        self.len -= usize::from(item.is_some());
        item
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_turn_however_much_the_others_have() {
        let mut queue = FairQueue::new(100);
        for number in 0..5 {
            assert!(queue.push("flood", number));
        }
        assert_eq!(queue.pop(), Some(0));
        assert!(queue.push("b", 10) && queue.push("c", 20) && queue.push("b", 11));
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [1, 10, 20, 2, 11, 3, 4]);
        assert_eq!((queue.len(), queue.waiting.len()), (0, 0));
    }

    #[test]
    fn each_has_its_own_limit() {
        let mut queue = FairQueue::new(2);
        assert!(queue.push("a", 1) && queue.push("a", 2));
        assert!(!queue.push("a", 3));
        assert!(queue.push("b", 4));
        assert_eq!(queue.len(), 3);
    }
}
