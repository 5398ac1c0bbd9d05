//! Lists of ended generations: filters, orders, pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use memoird_core::change::EndReason;
use memoird_core::ids::{Generation, Subject, TenantId};
use memoird_core::session::{AppendCommand, Head};
use memoird_core::time::Steady;
use memoird_store::{
    EndedGeneration, EndedPage, EndedQuery, EraseTarget, PruneBefore, SessionOrder, Store,
};

use crate::chat::{Chat, begun, command};
use crate::erase::{erase, new_job};
use crate::kit::*;
use crate::prune::prune_all;
use crate::seeds::seeds;
use crate::walk::Random;

for_every_store!(
    lists_match_full_scan,
    every_generation_is_listed_once_while_others_end,
    ended_generation_is_listed_as_it_ended,
    pruned_and_erased_generations_are_not_listed,
    token_of_another_query_stays_within_the_query,
);

pub(crate) const ORDERS: [SessionOrder; 3] =
    [SessionOrder::Newest, SessionOrder::Oldest, SessionOrder::Id];

/// Matches all ended generations of tenant `t`.
pub(crate) fn all(order: SessionOrder) -> EndedQuery {
    EndedQuery {
        tenant: TenantId::parse("t").unwrap(),
        id_prefix: "".into(),
        subject: None,
        labels: BTreeMap::new(),
        from: Steady(0),
        until: Steady(u64::MAX),
        order,
        after: None,
        max: 10,
    }
}

fn ended_page(store: &dyn Store, query: &EndedQuery) -> EndedPage {
    store.ended_page(query).unwrap()
}

/// Returns all pages, each with up to `max` generations.
fn pages(store: &dyn Store, query: &EndedQuery, max: usize) -> Vec<EndedGeneration> {
    let mut query = EndedQuery {
        max,
        ..query.clone()
    };
    let mut found = Vec::new();
    loop {
        let page = ended_page(store, &query);
        assert!(page.generations.len() <= max);
        found.extend(page.generations);
        query.after = page.next;
        if query.after.is_none() {
            return found;
        }
    }
}

fn names(found: &[EndedGeneration]) -> Vec<Generation> {
    found.iter().map(|it| it.head.generation).collect()
}

/// Starts a generation with a subject and a label, and ends it.
fn ended(store: &dyn Store, name: &str, at: u64, end: u64) -> Chat {
    let mut chat = begun(store, name, at);
    must_write(store, [chat.append("u a", at)]);
    must_write(store, [chat.end(end)]);
    chat
}

fn lists_match_full_scan(store: &dyn Store) {
    for seed in seeds(1) {
        let mut random = Random(seed);
        let mut expected = Vec::new();
        for number in 1..=90 {
            let at = seed * 1_000 + number;
            let name = format!(
                "{}{}",
                random.pick(&["a", "ab", "b", "a\u{10ffff}", "a\0"]),
                random.below(4)
            );
            let mut chat = begun(store, &name, at);
            let subject: &&str = random.pick(&["ann", "an", "bob", ""]);
            let append = AppendCommand {
                subject: Subject::parse(subject).ok(),
                ..command("u a")
            };
            must_write(store, [chat.append_command(&append, at)]);
            if random.below(2) == 0 {
                let value: &&str = random.pick(&["x", "y"]);
                must_write(store, [chat.label("app", value)]);
            }
            // Several end in the same millisecond.
            let end = seed * 1_000 + random.below(40);
            must_write(store, [chat.end(end)]);
            expected.push((chat, now(end)));
        }
        let _live = begun(store, "alive", 7);
        let (other, begin) = Chat::begin(&key("u", "a1"), Generation::new(8, 8), 7);
        must_write(store, [begin, other.end(8)]);
        for round in 0..40 {
            let mut query = EndedQuery {
                id_prefix: (*random.pick(&["", "", "a", "a1", "a\u{10ffff}", "\u{10ffff}"])).into(),
                ..all(*random.pick(&ORDERS))
            };
            if random.below(2) == 0 {
                let subject: &&str = random.pick(&["ann", "an", "nobody"]);
                query.subject = Subject::parse(subject).ok();
            }
            if random.below(3) == 0 {
                query.labels.insert("app".into(), "x".into());
            }
            if random.below(3) == 0 {
                query.from = Steady(seed * 1_000 + random.below(30));
            }
            if random.below(3) == 0 {
                query.until = Steady(seed * 1_000 + random.below(40));
            }
            let mut wanted: Vec<_> = expected
                .iter()
                .filter(|(chat, end)| {
                    let head = chat.session.head();
                    chat.key.session.as_str().starts_with(&*query.id_prefix)
                        && (query.subject.is_none() || query.subject == head.subject)
                        && (query.labels.is_empty() || head.label("app") == Some("x"))
                        && (query.from..=query.until).contains(&end.steady)
                })
                .collect();
            wanted.sort_by_key(|(chat, end)| (end.steady, chat.generation()));
            match query.order {
                SessionOrder::Oldest => {}
                SessionOrder::Newest => wanted.reverse(),
                SessionOrder::Id => wanted.sort_by_key(|(chat, _)| chat.key.session.clone()),
            }
            let wanted: Vec<_> = wanted.iter().map(|(chat, _)| chat.generation()).collect();
            for max in [1, 4, 1_000] {
                let found = pages(store, &query, max);
                assert_eq!(
                    names(&found),
                    wanted,
                    "seed {seed}, round {round}: {query:?} in pages of {max}"
                );
            }
        }
    }
}

fn every_generation_is_listed_once_while_others_end(store: &dyn Store) {
    for (start, order) in [10_000, 20_000, 30_000].into_iter().zip(ORDERS) {
        let first: Vec<Generation> = (0..30)
            .map(|number| {
                let name = format!("s{}", number % 7);
                ended(store, &name, start + number, start + number).generation()
            })
            .collect();
        let mut query = EndedQuery {
            from: Steady(start),
            max: 4,
            ..all(order)
        };
        let (mut found, mut later) = (Vec::new(), Vec::new());
        for at in start + 100.. {
            let page = ended_page(store, &query);
            found.extend(names(&page.generations));
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
            later.push(ended(store, "s3", at, at).generation());
        }
        found.retain(|name| !later.contains(name));
        found.sort();
        assert_eq!(found, first, "{order:?}");
    }
}

fn ended_generation_is_listed_as_it_ended(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let anna = Subject::parse("anna").unwrap();
    let append = AppendCommand {
        subject: Some(anna),
        ..command("u a")
    };
    must_write(
        store,
        [
            chat.append_command(&append, 2),
            chat.patch(r#"{"a":1}"#, 3),
            chat.label("app", "shop"),
        ],
    );
    let query = all(SessionOrder::Newest);
    assert_eq!(ended_page(store, &query), EndedPage::default(), "it lives");
    let head = chat.session.head();
    must_write(
        store,
        [head.end(EndReason::Evicted, now(9), Arc::default(), None)],
    );
    let listed = EndedGeneration {
        key: chat.key.clone(),
        head: Head {
            revision: head.revision + 1,
            ..head.clone()
        },
        at: now(9),
        reason: EndReason::Evicted,
    };
    let page = ended_page(store, &query);
    assert_eq!((page.generations, page.next), (vec![listed], None));
    let plain = ended(store, "plain", 11, 12).generation();
    let states = store.states(&[plain, chat.generation()]).unwrap();
    let expected = (chat.generation(), chat.session.state().json);
    assert_eq!(states.into_iter().collect::<Vec<_>>(), [expected]);
}

fn pruned_and_erased_generations_are_not_listed(store: &dyn Store) {
    let chats = [10, 20, 30, 40].map(|at| ended(store, &format!("s{at}"), at, at));
    let [_, second, third, last] = chats.each_ref().map(Chat::generation);
    let is_listed = |expected: &[Generation]| {
        for (order, prefix) in ORDERS.into_iter().flat_map(|it| [(it, ""), (it, "s")]) {
            let query = EndedQuery {
                id_prefix: prefix.into(),
                ..all(order)
            };
            let mut found = names(&pages(store, &query, 10));
            found.sort();
            assert_eq!(found, expected, "{order:?}");
        }
    };
    let before = PruneBefore {
        ended: Steady(20),
        keys: Steady(0),
    };
    prune_all(store, before, 1);
    is_listed(&[second, third, last]);
    let target = EraseTarget::Session {
        session: chats[2].key.session.clone(),
        generation: None,
    };
    erase(store, &new_job(target), 1);
    is_listed(&[second, last]);
}

fn token_of_another_query_stays_within_the_query(store: &dyn Store) {
    let chats = [10, 20, 30].map(|at| ended(store, &format!("s{at}"), at, at));
    let position = |at: usize| {
        let page = ended_page(store, &all(SessionOrder::Oldest));
        page.generations[at].position()
    };
    for (order, from, until, after, expected) in [
        (SessionOrder::Newest, 0, 20, 2, vec![1, 0]),
        (SessionOrder::Oldest, 20, 99, 0, vec![1, 2]),
    ] {
        let query = EndedQuery {
            from: Steady(from),
            until: Steady(until),
            after: Some(position(after)),
            ..all(order)
        };
        let expected: Vec<_> = expected
            .iter()
            .map(|at: &usize| chats[*at].generation())
            .collect();
        assert_eq!(names(&pages(store, &query, 10)), expected, "{order:?}");
    }
    let query = EndedQuery {
        id_prefix: "s3".into(),
        after: Some(position(0)),
        ..all(SessionOrder::Id)
    };
    assert_eq!(names(&pages(store, &query, 10)), [chats[2].generation()]);
}
