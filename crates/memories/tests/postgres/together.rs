//! Several daemons over one database of memories.

use std::sync::Arc;

use memoird_memories::rules::{MemoryKind, Outcome};

use crate::kit::*;
use crate::place::Place;

#[test]
fn what_one_daemon_remembers_another_finds_at_once() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    let other = kit.place.open().tenant(&tenant("acme")).unwrap();
    kit.say(1, "ann", "the boat is called Zuiderzee");
    let lists = other
        .read(|reader| reader.recall(&ask(&["ann"], "boat"), None, at(1)))
        .unwrap();
    assert_eq!(lists.lexical.len(), 1);
    // Said again there, it is the same fact.
    let again = order(
        2,
        fact("ann", MemoryKind::Project, "the boat is called Zuiderzee"),
    );
    let done = other.write_one(move |writer| writer.remember(&again, &limits()));
    assert_eq!(done.unwrap().outcome, Outcome::Reinforced);
    assert_eq!(kit.get(id(1)).unwrap().reinforced, 1);
    kit.check_indexes();
}

#[test]
fn daemons_that_write_at_once_lose_nothing_and_say_nothing_twice() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    let (daemons, facts) = (4_u64, 25_u64);
    let start = Arc::new(std::sync::Barrier::new(usize::try_from(daemons).unwrap()));
    let threads: Vec<_> = (0..daemons)
        .map(|daemon| {
            let (store, start) = (kit.place.open(), Arc::clone(&start));
            std::thread::spawn(move || {
                let memories = store.tenant(&tenant("acme")).unwrap();
                start.wait();
                for number in 0..facts {
                    // One of its own, and one that all say.
                    for (id, text) in [
                        (
                            1_000 * daemon + number,
                            format!("fact {number} of {daemon}"),
                        ),
                        (
                            10_000 + 1_000 * daemon + number,
                            format!("common fact {number}"),
                        ),
                    ] {
                        let order = order(id, fact("ann", MemoryKind::Project, &text));
                        memories
                            .write_one(move |writer| writer.remember(&order, &limits()))
                            .unwrap();
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let all = i64::try_from(daemons * facts + facts).unwrap();
    assert_eq!(kit.peek("SELECT count(*) FROM memories"), all);
    let said = i64::try_from((daemons - 1) * facts).unwrap();
    assert_eq!(kit.peek("SELECT sum(reinforced) FROM memories"), said);
    kit.check_indexes();
}

#[test]
fn no_tenant_sees_anothers_rows() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    kit.say(1, "ann", "the boat is called Zuiderzee");
    let other = kit.store.tenant(&tenant("other")).unwrap();
    let lists = other
        .read(|reader| reader.recall(&ask(&["ann"], "boat"), None, at(1)))
        .unwrap();
    assert!(lists.lexical.is_empty());
    assert_eq!(other.read(|reader| reader.get(id(1))).unwrap(), None);
    // The same id, subject and words are another fact there.
    let same = order(
        1,
        fact("ann", MemoryKind::Project, "the boat is called Zuiderzee"),
    );
    let done = other.write_one(move |writer| writer.remember(&same, &limits()));
    assert_eq!(done.unwrap().outcome, Outcome::Created);
    assert_eq!(
        kit.store.tenants().unwrap(),
        [tenant("acme"), tenant("other")]
    );
    assert_eq!(kit.peek("SELECT count(*) FROM memories"), 1);
}
