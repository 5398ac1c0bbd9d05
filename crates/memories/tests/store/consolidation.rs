//! Traces of recalls.

use memoird_memories::RememberRequest;
use memoird_memories::rules::{MemoryKind, MemoryLimits, Pin};
use memoird_memories::store::{Hit, RecallEvent};

use crate::kit::*;

fn tell(kit: &Kit, hours: i64, query: u8, hits: &[(u64, f32)], limits: &MemoryLimits) {
    let hits = hits.iter().map(|(number, score)| Hit {
        id: id(*number),
        rank: 1,
        score: *score,
    });
    let event = RecallEvent {
        at: at(hours),
        session: Some(session("chat")),
        query: [query; 16],
        hits: hits.collect(),
    };
    let limits = limits.clone();
    kit.write(move |writer| writer.record_recall(&event, &limits));
}

#[test]
fn maximum_recall_count_stays_and_events_are_kept() {
    let kit = Kit::new();
    kit.say(1, "ann", "fact");
    let mut poisoned = kit.get(id(1)).unwrap();
    (poisoned.id, poisoned.content) = (id(2), "other".into());
    (poisoned.recalls, poisoned.reinforced) = (u64::MAX, u64::MAX);
    kit.write(move |writer| writer.import(&[poisoned], at(0), &limits()));
    for hours in 0..2 {
        tell(&kit, hours, 1, &[(1, 0.5), (2, 0.5)], &limits());
    }
    let full = i64::MAX.unsigned_abs();
    assert_eq!(kit.get(id(1)).unwrap().recalls, 2);
    assert_eq!(kit.get(id(2)).unwrap().recalls, full);
    // Stating it again reinforces it, up to the maximum count.
    kit.remember(order(3, fact("ann", MemoryKind::Project, "other")));
    assert_eq!(kit.get(id(2)).unwrap().reinforced, full);
}

#[test]
fn recalls_are_counted_and_summarized() {
    let kit = Kit::new();
    for number in 1..=3 {
        kit.say(number, "ann", &format!("fact {number}"));
    }
    tell(&kit, 0, 1, &[(1, 0.2), (2, 0.9), (99, 1.0)], &limits());
    tell(&kit, 1, 1, &[(1, 0.4)], &limits());
    tell(&kit, 25, 2, &[(1, 0.6)], &limits());
    let page = kit
        .memories
        .read(|reader| reader.evidence_page(None, 2, at(30)))
        .unwrap();
    let folded: Vec<_> = page
        .iter()
        .map(|row| (row.recalls, row.distinct_queries, row.distinct_days))
        .collect();
    assert_eq!(folded, [(3, 2, 2), (1, 1, 1)]);
    assert!(
        (page[0].mean_score - 0.4).abs() < 1e-6,
        "{}",
        page[0].mean_score
    );
    assert_eq!(
        (page[0].last_recall, kit.get(id(1)).unwrap().recalled_at),
        (Some(at(25)), Some(at(25)))
    );
    assert_eq!(kit.get(id(1)).unwrap().recalls, 3);
    let rest = kit
        .memories
        .read(|reader| reader.evidence_page(Some(id(2)), 2, at(30)))
        .unwrap();
    assert_eq!(
        (rest.len(), rest[0].recalls, rest[0].last_recall),
        (1, 0, None)
    );
    let echoes = kit
        .memories
        .read(|reader| reader.echoes(&session("chat"), &subject("ann"), at(9)))
        .unwrap();
    let echoes: Vec<u64> = echoes.iter().map(|(told, _)| number(*told)).collect();
    assert_eq!(echoes, [1, 2], "newest first, each once");
    assert_eq!(
        kit.peek("SELECT count(*) FROM recall_events"),
        4,
        "not of what is not there"
    );
}

#[test]
fn old_recall_events_are_pruned() {
    let kit = Kit::new();
    kit.say(1, "ann", "one");
    for hours in 0..10 {
        tell(&kit, hours, 1, &[(1, 0.5)], &limits());
    }
    let tight = MemoryLimits {
        recall_events: 3,
        ..limits()
    };
    for hours in 10..14 {
        tell(&kit, hours, 1, &[(1, 0.5)], &tight);
    }
    assert_eq!(kit.peek("SELECT count(*) FROM recall_events"), 3);
    let page = kit
        .memories
        .read(|reader| reader.evidence_page(None, 2, at(30)))
        .unwrap();
    assert_eq!((page[0].recalls, kit.get(id(1)).unwrap().recalls), (3, 14));
}

#[test]
fn sweep_pins_unpinned_and_unpins_only_its_own() {
    let kit = Kit::new();
    kit.say(1, "ann", "one");
    kit.remember(order(
        2,
        RememberRequest {
            pinned: true,
            ..fact("ann", MemoryKind::User, "two")
        },
    ));
    let both = [id(1), id(2)];
    assert_eq!(
        kit.write(move |writer| writer.pin(&both, Pin::Consolidation, at(3))),
        1
    );
    let pins = || (kit.get(id(1)).unwrap().pin, kit.get(id(2)).unwrap().pin);
    assert_eq!(pins(), (Some(Pin::Consolidation), Some(Pin::Bot)));
    let page = || {
        kit.memories
            .read(|reader| reader.evidence_page(None, 2, at(30)))
            .unwrap()
    };
    assert_eq!(page()[0].pin_changed_at, Some(at(3)));
    assert_eq!(kit.write(move |writer| writer.unpin(&both, at(4))), 1);
    assert_eq!(
        (pins(), page()[0].pin_changed_at),
        ((None, Some(Pin::Bot)), Some(at(4)))
    );
    assert_eq!(
        kit.memories
            .read(|reader| reader.consolidated_at())
            .unwrap(),
        None
    );
    kit.write(|writer| writer.set_consolidated_at(at(4)));
    let kit = kit.reopened();
    assert_eq!(
        kit.memories
            .read(|reader| reader.consolidated_at())
            .unwrap(),
        Some(at(4))
    );
}
