//! The exchange in progress: windows retain what the agent is working on.

use super::*;
use crate::turn::{MediaSource, Part};

const HEAD_TAIL: Policy = Policy::HeadTail { turns: 0 };

fn long(role: Role, tokens: usize) -> Turn {
    text(role, "x".repeat(tokens * 4 - 16))
}

/// A chat, then a request with `calls` tool calls.
fn working(chat_tokens: usize, request_tokens: usize, calls: usize, result_tokens: usize) -> Chat {
    let mut chat = Chat::new(Limits {
        max_history_turns: 1_000,
        ..Limits::default()
    });
    chat.say(text(Role::User, "hello"));
    for _ in 0..chat_tokens / 100 {
        chat.say(long(Role::Assistant, 50));
        chat.say(long(Role::User, 50));
    }
    chat.say(text(Role::Assistant, "what can I do?"));
    chat.say(long(Role::User, request_tokens));
    for n in 0..calls {
        let id = format!("c{n}");
        chat.say(call(&[&id], &format!("{{\"n\":{n}}}")));
        chat.say(result(&id, format!("{n}").repeat(result_tokens * 4 / 2)));
    }
    chat
}

fn request_of(chat: &Chat) -> u64 {
    let view = chat.history.view(chat.last_seq);
    view.request().expect("an exchange under way").seq
}

#[test]
fn a_request_with_a_long_document_is_neither_cut_nor_summarized() {
    let mut chat = working(4_000, 12_000, 1, 60);
    let request = request_of(&chat);
    for policy in [HEAD_TAIL, Policy::TokenBudget, Policy::Salience] {
        let seen = chat.clone().see(policy, 15_500).unwrap();
        let words = seen.words();
        assert!(
            words.contains(&format!(" u{request} a")),
            "{policy:?}: {words}"
        );
        assert!(seen.window.counted > 12_000);
        assert!(
            seen.window.report.degraded,
            "the chat before it is left out"
        );
    }
    assert!(chat.summarize(1));
    let through = chat.summary.as_ref().map(|summary| summary.through_seq);
    assert_eq!(
        through,
        Some(request - 1),
        "all before it, and nothing of it"
    );
    chat.show_summary();
    let seen = chat.see(HEAD_TAIL, 16_500).unwrap();
    assert!(
        seen.words()
            .ends_with(&format!("u{request} a{} t{}", request + 1, request + 2))
    );
    assert!(!seen.window.report.degraded);
    chat.summary = None;
    assert!(chat.summarize(0), "whoever asks for all of it");
    let through = chat.summary.as_ref().map(|summary| summary.through_seq);
    assert_eq!(through, Some(request - 1));
}

#[test]
fn a_request_many_calls_back_stays() {
    for calls in [1, 5, 23, 100] {
        let mut chat = working(1_000, 40, calls, 150);
        let request = request_of(&chat);
        let seen = chat.see(HEAD_TAIL, 4_000).unwrap();
        let words = seen.words();
        assert!(words.contains(&format!("u{request} ")), "{calls}: {words}");
        let is_cut = |omission: &Omission| omission.is_left_out() && omission.last_seq > request;
        let cut = seen.window.report.omissions.iter().any(is_cut);
        assert_eq!(cut, calls > 5, "{calls}: {words}");
        assert!(seen.window.counted <= 4_000);
        // The next step has the same prefix.
        chat.say(call(&["next"], "{}"));
        chat.say(result("next", "ok"));
        let next = chat.see(HEAD_TAIL, 4_000).unwrap();
        assert_eq!(next.turns[..seen.turns.len()], seen.turns, "{calls}");
    }
}

#[test]
fn what_does_not_fit_of_it_is_trimmed_in_results_and_then_an_excerpt() {
    let mut chat = working(0, 40, 23, 300);
    let seen = chat.see(HEAD_TAIL, 5_000).unwrap();
    let reasons = |seen: &Seen| -> Vec<OmissionReason> {
        let omissions = seen.window.report.omissions.iter();
        omissions.map(|omission| omission.reason).collect()
    };
    assert!(
        reasons(&seen).contains(&OmissionReason::Trimmed),
        "{}",
        seen.words()
    );
    assert!(
        !reasons(&seen).contains(&OmissionReason::Excerpt),
        "{}",
        seen.words()
    );

    let mut chat = working(0, 2_000, 0, 0);
    for n in 0..4 {
        chat.say(text(Role::Assistant, "thinking aloud ".repeat(40)));
        let id = format!("c{n}");
        chat.say(call(&[&id], "{}"));
        chat.say(result(&id, "z".repeat(400)));
    }
    let seen = chat.see(HEAD_TAIL, 2_000).unwrap();
    assert!(
        reasons(&seen).contains(&OmissionReason::Excerpt),
        "{}",
        seen.words()
    );
    assert!(seen.window.report.degraded && !seen.window.report.notes.is_empty());
}

#[test]
fn a_request_that_is_answered_is_a_turn_like_any_other() {
    let mut chat = working(100, 600, 3, 50);
    chat.say(text(Role::Assistant, "done"));
    assert!(
        chat.history
            .view(chat.last_seq)
            .request_under_way()
            .is_none()
    );
    chat.say(text(Role::User, "thanks"));
    for _ in 0..3 {
        chat.say(long(Role::Assistant, 100));
        chat.say(long(Role::User, 100));
    }
    let seen = chat.see(HEAD_TAIL, 900).unwrap();
    assert!(
        seen.words().starts_with("u1 [elision] "),
        "{}",
        seen.words()
    );
}

#[test]
fn a_result_that_comes_late_for_a_call_that_salience_left_out_leaves_alone() {
    let mut chat = Chat::new(Limits::default());
    chat.say(text(Role::User, "task"));
    let mut asked = call(&["x"], "{}");
    asked.salience = Some(0.0);
    chat.say(asked);
    for _ in 0..4 {
        chat.say(long(Role::Assistant, 100));
        chat.say(long(Role::User, 100));
    }
    let seen = chat.see(Policy::Salience, 800).unwrap();
    let words = seen.words();
    assert!(words.starts_with("u1 [elision]"), "{words}");
    chat.say(text(Role::User, "and now?"));
    chat.say(long(Role::Assistant, 250));
    chat.say(result("x", "1"));
    for _ in 0..4 {
        chat.say(long(Role::Assistant, 250));
    }
    chat.say(call(&["y"], "{}"));
    let seen = chat.see(Policy::Salience, 800).unwrap();
    let words = "u1 [elision] u11 [elision] a17 a18";
    assert_eq!(
        seen.words(),
        words,
        "nothing else of the exchange under way"
    );
}

/// Provider fields next to the content, such as cache control, do not matter.
#[test]
fn what_a_provider_s_fields_stand_beside_is_shortened_like_any_other() {
    let marked = |mut turn: Turn| {
        for part in &mut turn.parts {
            part.extra_json = r#"{"cache_control":{"type":"ephemeral"}}"#.into();
        }
        turn
    };
    let seen = |mark: &dyn Fn(Turn) -> Turn| {
        let mut chat = Chat::new(Limits::default());
        chat.say(text(Role::User, "hello"));
        for (id, input) in [("a", "{}"), ("b", "{}"), ("c", "{\"n\":1}")] {
            chat.say(call(&[id], input));
            chat.say(mark(result(id, id.repeat(2_000))));
        }
        chat.say(text(Role::Assistant, "done"));
        chat.say(text(Role::User, "thanks"));
        let results = chat.see(HEAD_TAIL, 1_500).unwrap().words();
        chat.say(text(Role::Assistant, "welcome"));
        chat.say(mark(long(Role::User, 2_000)));
        for n in 0..4 {
            let id = format!("s{n}");
            chat.say(call(&[&id], "{}"));
            chat.say(result(&id, "z".repeat(400)));
        }
        (results, chat.see(HEAD_TAIL, 1_500).unwrap().words())
    };
    let (results, request) = seen(&marked);
    assert!(
        results.contains("[superseded]") && results.contains("[trimmed]"),
        "{results}"
    );
    assert!(request.contains("[excerpt]"), "{request}");
    assert_eq!((results, request), seen(&|turn| turn));
}

/// The photo has a thousand tokens and its caption fifty.
#[test]
fn what_is_said_of_an_image_stays_where_the_image_does_not_fit() {
    let caption = "what is on this photo? ".repeat(9);
    let photo = |extra: &str| {
        let kind = PartKind::Media {
            media_type: "image/png".into(),
            source: MediaSource::Data(vec![7]),
            name: String::new(),
        };
        let mut photo = Part::from(kind);
        photo.extra_json = extra.into();
        let caption = PartKind::Text(caption.clone()).into();
        Turn::new(Role::User, vec![photo, caption])
    };
    let says = |turn: &Turn| {
        let is_caption = |part: &Part| part.kind == PartKind::Text(caption.clone());
        turn.parts.iter().any(is_caption)
    };
    for extra in ["", r#"{"type":"image_url","image_url":{"url":""}}"#] {
        for earlier in [0, 1] {
            let mut chat = Chat::new(Limits::default());
            for _ in 0..earlier {
                chat.say(text(Role::User, "hello"));
                chat.say(text(Role::Assistant, "hi"));
            }
            chat.say(photo(extra));
            for n in 0..4 {
                let id = format!("c{n}");
                chat.say(call(&[&id], "{}"));
                chat.say(result(&id, "z".repeat(200)));
            }
            let seen = chat.see(HEAD_TAIL, 900).unwrap();
            assert!(
                seen.turns.iter().any(says),
                "{extra} {earlier}: {:?}",
                seen.turns
            );
            assert!(seen.window.counted <= 900);
        }
    }
}

#[test]
fn the_request_stays_where_a_summary_would_take_its_place() {
    let mut chat = working(2_000, 300, 0, 0);
    let request = request_of(&chat);
    assert!(chat.summarize(1));
    let summary = Summary {
        text: "x".repeat(1_000).into(),
        ..(**chat.summary.as_ref().unwrap()).clone()
    };
    chat.summary = Some(Arc::new(summary));
    chat.show_summary();
    chat.say(call(&["c1"], "{}"));
    chat.say(result("c1", "1".repeat(4_000)));
    let mut least = None;
    for budget in (1_000..1_600).rev().step_by(5) {
        for policy in [HEAD_TAIL, Policy::TokenBudget, Policy::Salience] {
            let Ok(seen) = chat.clone().see(policy, budget) else {
                continue;
            };
            let report = &seen.window.report;
            let is_out = report.omissions.iter().any(|omission| {
                omission.is_left_out()
                    && (omission.first_seq..=omission.last_seq).contains(&request)
            });
            least = Some(budget);
            assert!(
                !is_out || report.blocks.summary == 0,
                "{policy:?} of {budget}: {} {report:?}",
                seen.words()
            );
        }
    }
    assert!(least.is_some_and(|least| least < 1_200), "{least:?}");
}

#[test]
fn results_that_fill_the_window_are_trimmed_for_the_request() {
    for (results, tokens) in [(2, 1_440), (3, 960), (6, 480)] {
        let mut chat = working(100, 200, 0, 0);
        let request = request_of(&chat);
        let ids: Vec<String> = (0..results).map(|n| format!("c{n}")).collect();
        chat.say(call(
            &ids.iter().map(String::as_str).collect::<Vec<_>>(),
            "{}",
        ));
        for id in &ids {
            chat.say(result(id, "z".repeat(tokens * 4)));
        }
        for policy in [HEAD_TAIL, Policy::TokenBudget, Policy::Salience] {
            let seen = chat.clone().see(policy, 3_000).unwrap();
            let omissions = &seen.window.report.omissions;
            let of_request: Vec<OmissionReason> = omissions
                .iter()
                .filter(|it| (it.first_seq..=it.last_seq).contains(&request))
                .map(|it| it.reason)
                .collect();
            assert!(
                of_request.is_empty() || of_request == [OmissionReason::Excerpt],
                "{results} {policy:?}: {} {omissions:?}",
                seen.words()
            );
            let is_anchor = |it: &Omission| it.first_seq == 1;
            assert!(
                !omissions.iter().any(is_anchor),
                "five letters need no excerpt: {omissions:?}"
            );
            let counted = seen.window.counted;
            assert!((2_200..=2_520).contains(&counted), "{results}: {counted}");
        }
    }
}
