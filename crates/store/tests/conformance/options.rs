//! Options of a session are written with their change, and deleted with their generation.

use memoird_store::{PruneBefore, Store};

use memoird_core::time::Steady;

use crate::chat::begun;
use crate::kit::*;
use crate::prune::prune_all;

for_every_store!(
    options_round_trip_with_head,
    refused_options_leave_no_trace,
    options_are_deleted_with_their_generation,
);

fn label_of(store: &dyn Store, session: &str, name: &str) -> Option<String> {
    let head = known(store, &key("t", session)).unwrap().head;
    head.label(name).map(str::to_owned)
}

fn options_round_trip_with_head(store: &dyn Store) {
    let (mut chat, other) = (begun(store, "s", 1), begun(store, "other", 2));
    let append = chat.append("u a", 3);
    must_write(store, [append, chat.label("app", "shop")]);
    assert_eq!(label_of(store, "s", "app").as_deref(), Some("shop"));
    assert_eq!(label_of(store, "other", "app"), None);
    // Enough changes for a flush in between.
    for at in 4..12 {
        must_write(store, [chat.touch(at)]);
    }
    must_write(store, [chat.label("app", "bank")]);
    must_write(store, [chat.append("u", 12)]);
    assert_eq!(chat.reloaded(store).session.head(), chat.session.head());
    assert_eq!(label_of(store, "s", "app").as_deref(), Some("bank"));
    let heads = live_heads(store);
    let labels = heads.iter().map(|(_, head)| head.label("app"));
    assert_eq!(labels.collect::<Vec<_>>(), [None, Some("bank")]);
    assert_eq!(heads[0].0, other.key);
    must_write(store, [chat.label("app", "")]);
    assert_eq!(label_of(store, "s", "app"), None);
}

fn refused_options_leave_no_trace(store: &dyn Store) {
    let chat = begun(store, "s", 1);
    let mut ahead = chat.clone();
    ahead.touch(2);
    must_refuse(store, ahead.label("app", "shop"));
    assert_eq!(label_of(store, "s", "app"), None);
    must_write(store, [chat.clone().label("app", "shop")]);
    must_refuse(store, chat.clone().label("app", "bank"));
    assert_eq!(label_of(store, "s", "app").as_deref(), Some("shop"));
}

fn options_are_deleted_with_their_generation(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.label("app", "shop")]);
    must_write(store, [chat.end(2)]);
    let wanted = [(chat.key.clone(), chat.generation())];
    let ended = store.ended(&wanted, usize::MAX).unwrap();
    assert_eq!(ended[0].head.label("app"), Some("shop"));
    begun(store, "s", 3);
    assert_eq!(label_of(store, "s", "app"), None);
    let before = PruneBefore {
        ended: Steady(9),
        keys: Steady(0),
    };
    prune_all(store, before, 1);
    assert!(store.ended(&wanted, usize::MAX).unwrap().is_empty());
}
