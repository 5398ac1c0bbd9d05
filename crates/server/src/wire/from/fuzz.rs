//! Fuzz test of page tokens: arbitrary text is rejected, or unchanged after parsing and formatting.

use std::fmt::{Debug, Display};

use memoird_core::ids::{DeliveryId, MemoryId};
use memoird_fuzz::Target;
use memoird_search::PageToken;
use tonic::Code;

use super::*;
use crate::wire::session_token;

#[test]
fn fuzz_page_tokens() {
    let target = Target {
        name: "page-tokens",
        crate_dir: env!("CARGO_MANIFEST_DIR"),
        words: &[
            "-",
            ":",
            "+1",
            "0x1",
            "7ff0000000000000",
            "8000000000000000",
            "ffffffffffffffff",
            "n1:-.",
            "i1:.7:01ARYZ6S410000000000000000:s",
        ],
    };
    target.check(|input| {
        let text = &*String::from_utf8_lossy(input);
        check_same::<DeliveryId>(text);
        check_same::<MemoryId>(text);
        check_same::<PageToken>(text);
        for order in [SessionOrder::Newest, SessionOrder::Id] {
            match session_token::parse(text, order) {
                Ok(None) => assert_eq!(text, ""),
                Ok(Some(place)) => {
                    let written = session_token::format(&place, order);
                    let read = session_token::parse(&written, order).expect("its own words");
                    assert_eq!(read, Some(place));
                }
                Err(refusal) => assert_eq!(refusal.code, Code::InvalidArgument),
            }
        }
    });
}

fn check_same<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    match page_token::<T>(text) {
        Ok(None) => assert_eq!(text, ""),
        Ok(Some(place)) => {
            let read = page_token::<T>(&place.to_string()).expect("its own words");
            assert_eq!(read, Some(place), "{text:?}");
        }
        Err(refusal) => assert_eq!(refusal.code, Code::InvalidArgument),
    }
}
