//! Who finds what.

use memoird_core::time::Timestamp;
use memoird_memories::rules::{Fact, MemoryKind, Visibility};
use memoird_memories::{ListRequest, RecallRequest};

use crate::kit::*;

fn numbers(kit: &Kit, ask: &RecallRequest) -> Vec<u64> {
    numbers_at(kit, at(1), ask)
}

fn numbers_at(kit: &Kit, now: Timestamp, ask: &RecallRequest) -> Vec<u64> {
    let mut found: Vec<u64> = kit
        .recall_at(now, ask, None)
        .lexical
        .iter()
        .map(|hit| number(hit.id))
        .collect();
    found.sort_unstable();
    found
}

#[test]
fn words_are_found_however_they_end_and_the_fitting_ones_first() {
    let kit = Kit::new();
    kit.say(1, "ann", "The deployments run on Fridays");
    kit.say(2, "ann", "Crème brûlée is a dessert");
    kit.say(
        3,
        "ann",
        "The deployment needs a second reviewer on friday evenings",
    );
    assert_eq!(kit.found("ann", "creme"), [2]);
    assert_eq!(
        kit.found("ann", "who reviews the deployment?").first(),
        Some(&3)
    );
    assert_eq!(kit.found("ann", "deployment").len(), 2);
    assert_eq!(
        kit.found("ann", "\"NEAR(a) AND * -\""),
        [0; 0],
        "a query has no syntax"
    );
    assert_eq!(kit.found("ann", "nowhere"), [0; 0]);
}

#[test]
fn a_word_that_the_index_cuts_elsewhere_fails_no_recall_and_is_found() {
    let kit = Kit::new();
    kit.say(1, "ann", "बिल्ली रसोई में है");
    kit.say(2, "ann", "The cat is in the kitchen");
    assert_eq!(kit.found("ann", "बिल्ली कहाँ है?"), [1]);
    assert_eq!(kit.found("ann", "kitchen cafe\u{345}s"), [2]);
}

#[test]
fn a_subject_finds_its_own_and_the_teams_and_nothing_else() {
    let kit = Kit::new();
    kit.say(1, "ann", "the secret plan");
    kit.say(2, "bob", "the secret diary");
    let team = Fact {
        visibility: Visibility::Team,
        ..fact("bob", MemoryKind::Project, "the secret handshake")
    };
    kit.remember(order(3, team));
    for (who, expected) in [
        (vec!["ann"], vec![1, 3]),
        (vec!["bob"], vec![2, 3]),
        (vec!["ann", "bob", "ann"], vec![1, 2, 3]),
        (vec!["nobody"], vec![3]),
        (vec![], vec![3]),
    ] {
        assert_eq!(numbers(&kit, &ask(&who, "secret")), expected, "{who:?}");
    }
}

#[test]
fn filters_apply_before_the_best_are_taken() {
    let kit = Kit::new();
    for number in 0..30 {
        let mut plain = fact(
            "ann",
            MemoryKind::Project,
            &format!("tea tea number {number}"),
        );
        plain.observed_at = Some(at(0));
        kit.remember(order(number, plain));
    }
    let mut rare = fact(
        "ann",
        MemoryKind::Reference,
        "one more word about a cup of tea",
    );
    (rare.tags, rare.observed_at) = (vec!["a".into(), "b".into()], Some(at(-50)));
    kit.remember(order(100, rare));
    let mut partly = fact("ann", MemoryKind::Project, "tea with a tag");
    partly.tags = vec!["a".into()];
    kit.remember(order(101, partly));
    let base = RecallRequest {
        limit: 3,
        ..ask(&["ann"], "tea")
    };
    let tags = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect();
    for (asked, expected) in [
        (
            RecallRequest {
                kinds: vec![MemoryKind::Reference],
                ..base.clone()
            },
            vec![100],
        ),
        (
            RecallRequest {
                tags: tags(&["a"]),
                ..base.clone()
            },
            vec![100, 101],
        ),
        (
            RecallRequest {
                tags: tags(&["b", "a"]),
                ..base.clone()
            },
            vec![100],
        ),
        (
            RecallRequest {
                tags: tags(&["a", "c"]),
                ..base.clone()
            },
            vec![],
        ),
        (
            RecallRequest {
                before: Some(at(0)),
                ..base.clone()
            },
            vec![100],
        ),
        (
            RecallRequest {
                kinds: vec![MemoryKind::User],
                ..base.clone()
            },
            vec![],
        ),
    ] {
        assert_eq!(numbers(&kit, &asked), expected, "{asked:?}");
    }
    let later = RecallRequest {
        after: Some(at(0)),
        ..base.clone()
    };
    assert_eq!(kit.recall(&later).lexical.len(), 3);
}

#[test]
fn what_expires_is_found_until_then() {
    let kit = Kit::new();
    let mut short = fact("ann", MemoryKind::Project, "a short truth");
    short.expires_at = Some(at(2));
    kit.remember(order(1, short));
    assert_eq!(numbers_at(&kit, at(1), &ask(&["ann"], "truth")), [1]);
    assert_eq!(numbers_at(&kit, at(2), &ask(&["ann"], "truth")), [0; 0]);
}

#[test]
fn a_list_is_paged_by_id_and_filtered() {
    let kit = Kit::new();
    for number in 1..=5 {
        let who = if number % 2 == 0 { "ann" } else { "bob" };
        let mut said = fact(who, MemoryKind::Project, &format!("fact {number}"));
        said.tags = vec![format!("tag {}", number % 3)];
        kit.remember(order(number, said));
    }
    let team = Fact {
        visibility: Visibility::Team,
        ..fact("ann", MemoryKind::Reference, "for all of us")
    };
    kit.remember(order(6, team));
    let list = |filter: ListRequest, max| {
        let memories = kit
            .memories
            .read(|reader| reader.list(&filter, max, at(0)))
            .unwrap();
        memories
            .iter()
            .map(|memory| number(memory.id))
            .collect::<Vec<_>>()
    };
    let base = ListRequest::default();
    assert_eq!(list(base.clone(), 3), [1, 2, 3]);
    assert_eq!(
        list(
            ListRequest {
                after: Some(id(3)),
                ..base.clone()
            },
            9
        ),
        [4, 5, 6]
    );
    let of_ann = ListRequest {
        subject: Some(subject("ann")),
        ..base.clone()
    };
    assert_eq!(
        list(of_ann.clone(), 9),
        [2, 4, 6],
        "also what it told the team"
    );
    assert_eq!(
        list(
            ListRequest {
                kind: Some(MemoryKind::Reference),
                ..of_ann
            },
            9
        ),
        [6]
    );
    assert_eq!(
        list(
            ListRequest {
                tag: Some("tag 1".into()),
                ..base.clone()
            },
            9
        ),
        [1, 4]
    );
    assert_eq!(
        list(
            ListRequest {
                subject: Some(subject("nobody")),
                ..base
            },
            9
        ),
        [0; 0]
    );
}

#[test]
fn a_manifest_tells_the_pinned_then_the_important_then_the_newest() {
    let kit = Kit::new();
    let say = |number, who: &str, importance, pinned, expires: Option<i64>| {
        let mut said = fact(who, MemoryKind::Project, &format!("fact {number}"));
        (said.importance, said.pinned) = (importance, pinned);
        said.expires_at = expires.map(at);
        if who == "team" {
            said.visibility = Visibility::Team;
        }
        kit.remember(order(number, said));
    };
    say(1, "ann", 0.5, false, None);
    say(2, "ann", 0.9, false, Some(7));
    say(3, "team", 0.7, false, Some(5));
    say(4, "ann", 0.1, true, None);
    say(5, "ann", 0.5, false, None);
    say(6, "bob", 1.0, true, Some(2));
    say(7, "ann", 1.0, true, Some(1));
    let manifest = |max| {
        let rows = kit
            .memories
            .read(|reader| reader.manifest(&subject("ann"), at(1), max));
        let rows = rows.unwrap();
        let numbers: Vec<u64> = rows
            .memories
            .iter()
            .map(|memory| number(memory.id))
            .collect();
        (numbers, rows.total, rows.expires_at)
    };
    assert_eq!(manifest(9), (vec![4, 2, 3, 5, 1], 5, Some(at(5))));
    assert_eq!(manifest(2), (vec![4, 2], 5, Some(at(5))));
}
