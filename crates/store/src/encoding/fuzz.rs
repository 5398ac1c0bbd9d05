//! Fuzzes stored turns: any bytes are damaged, or survive an encode and decode round trip.

use memoird_core::limits::Limits;
use memoird_fuzz::Target;

use super::*;

#[test]
fn fuzz_turns() {
    let target = Target {
        name: "turns",
        crate_dir: env!("CARGO_MANIFEST_DIR"),
        words: &[
            "\u{8}\u{1}",
            "\u{12}\u{2}",
            "\u{a}\u{1}a",
            "\u{28}\u{7}",
            "\u{1a}\u{0}",
        ],
    };
    target.check(|input| {
        if let Some((seq, turn)) = open_with_seq(input) {
            check_read(seq, &turn);
        }
        if let Some(live) = decode_live_set(input) {
            let again = decode_live_set(&encode_live_set(&live));
            assert_eq!(again, Some(live));
        }
    });
}

fn check_read(seq: u64, turn: &Turn) {
    // A salience may be NaN, so compare debug output instead of values.
    let same = |one: &Turn, other: &Turn| assert_eq!(format!("{one:?}"), format!("{other:?}"));
    let (seq_again, again) = open_with_seq(&encode_with_seq(turn.clone(), seq)).unwrap();
    assert_eq!(seq_again, seq);
    same(&again, turn);

    let (arrived, at) = (encode(turn.clone()), Timestamp::new(5, 6).unwrap());
    let sealed = seal(&arrived, 9, at);
    let timed = Turn {
        timestamp: turn.timestamp.or(Some(at)),
        ..turn.clone()
    };
    same(&open(&sealed).unwrap(), &timed);
    let (record, results) = decode_saved(9, sealed).unwrap();
    assert_eq!((record.seq, results), (9, turn.links().results));
    if turn.check(0, &Limits::default()).is_ok() {
        assert!(!turn.parts.is_empty(), "a turn says something");
    }
}
