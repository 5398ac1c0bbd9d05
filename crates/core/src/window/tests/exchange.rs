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
    chat.append(text(Role::User, "hello"));
    for _ in 0..chat_tokens / 100 {
        chat.append(long(Role::Assistant, 50));
        chat.append(long(Role::User, 50));
    }
    chat.append(text(Role::Assistant, "what can I do?"));
    chat.append(long(Role::User, request_tokens));
    for n in 0..calls {
        let id = format!("c{n}");
        chat.append(call(&[&id], &format!("{{\"n\":{n}}}")));
        chat.append(result(&id, format!("{n}").repeat(result_tokens * 4 / 2)));
    }
    chat
}

fn request_of(chat: &Chat) -> u64 {
    let view = chat.history.view(chat.last_seq);
    view.request().expect("an exchange in progress").seq
}

#[test]
fn long_current_request_is_neither_cut_nor_summarized() {
    let mut chat = working(4_000, 12_000, 1, 60);
    let request = request_of(&chat);
    for policy in [HEAD_TAIL, Policy::TokenBudget, Policy::Salience] {
        let built = chat.clone().build(policy, 15_500).unwrap();
        let words = built.words();
        assert!(
            words.contains(&format!(" u{request} a")),
            "{policy:?}: {words}"
        );
        assert!(built.window.counted > 12_000);
        assert!(
            built.window.report.degraded,
            "the chat before the request is omitted"
        );
    }
    assert!(chat.summarize(1));
    let through = chat.summary.as_ref().map(|summary| summary.through_seq);
    assert_eq!(
        through,
        Some(request - 1),
        "all turns before the request, and none after"
    );
    chat.show_summary();
    let built = chat.build(HEAD_TAIL, 16_500).unwrap();
    assert!(
        built
            .words()
            .ends_with(&format!("u{request} a{} t{}", request + 1, request + 2))
    );
    assert!(!built.window.report.degraded);
    chat.summary = None;
    assert!(chat.summarize(0), "even if no exchange should be kept");
    let through = chat.summary.as_ref().map(|summary| summary.through_seq);
    assert_eq!(through, Some(request - 1));
}

#[test]
fn current_request_stays_after_many_calls() {
    for calls in [1, 5, 23, 100] {
        let mut chat = working(1_000, 40, calls, 150);
        let request = request_of(&chat);
        let built = chat.build(HEAD_TAIL, 4_000).unwrap();
        let words = built.words();
        assert!(words.contains(&format!("u{request} ")), "{calls}: {words}");
        let is_cut = |omission: &Omission| omission.is_left_out() && omission.last_seq > request;
        let cut = built.window.report.omissions.iter().any(is_cut);
        assert_eq!(cut, calls > 5, "{calls}: {words}");
        assert!(built.window.counted <= 4_000);
        // The next step has the same prefix.
        chat.append(call(&["next"], "{}"));
        chat.append(result("next", "ok"));
        let next = chat.build(HEAD_TAIL, 4_000).unwrap();
        assert_eq!(next.turns[..built.turns.len()], built.turns, "{calls}");
    }
}

#[test]
fn oversized_exchange_trims_results_before_excerpting_request() {
    let mut chat = working(0, 40, 23, 300);
    let built = chat.build(HEAD_TAIL, 5_000).unwrap();
    let reasons = |built: &BuiltWindow| -> Vec<OmissionReason> {
        let omissions = built.window.report.omissions.iter();
        omissions.map(|omission| omission.reason).collect()
    };
    assert!(
        reasons(&built).contains(&OmissionReason::Trimmed),
        "{}",
        built.words()
    );
    assert!(
        !reasons(&built).contains(&OmissionReason::Excerpt),
        "{}",
        built.words()
    );

    let mut chat = working(0, 2_000, 0, 0);
    for n in 0..4 {
        chat.append(text(Role::Assistant, "thinking aloud ".repeat(40)));
        let id = format!("c{n}");
        chat.append(call(&[&id], "{}"));
        chat.append(result(&id, "z".repeat(400)));
    }
    let built = chat.build(HEAD_TAIL, 2_000).unwrap();
    assert!(
        reasons(&built).contains(&OmissionReason::Excerpt),
        "{}",
        built.words()
    );
    assert!(built.window.report.degraded && !built.window.report.notes.is_empty());
}

#[test]
fn answered_request_can_be_cut() {
    let mut chat = working(100, 600, 3, 50);
    chat.append(text(Role::Assistant, "done"));
    assert!(
        chat.history
            .view(chat.last_seq)
            .request_under_way()
            .is_none()
    );
    chat.append(text(Role::User, "thanks"));
    for _ in 0..3 {
        chat.append(long(Role::Assistant, 100));
        chat.append(long(Role::User, 100));
    }
    let built = chat.build(HEAD_TAIL, 900).unwrap();
    assert!(
        built.words().starts_with("u1 [elision] "),
        "{}",
        built.words()
    );
}

#[test]
fn late_result_of_call_dropped_by_salience_is_dropped_alone() {
    let mut chat = Chat::new(Limits::default());
    chat.append(text(Role::User, "task"));
    let mut unimportant_call = call(&["x"], "{}");
    unimportant_call.salience = Some(0.0);
    chat.append(unimportant_call);
    for _ in 0..4 {
        chat.append(long(Role::Assistant, 100));
        chat.append(long(Role::User, 100));
    }
    let built = chat.build(Policy::Salience, 800).unwrap();
    let words = built.words();
    assert!(words.starts_with("u1 [elision]"), "{words}");
    chat.append(text(Role::User, "and now?"));
    chat.append(long(Role::Assistant, 250));
    chat.append(result("x", "1"));
    for _ in 0..4 {
        chat.append(long(Role::Assistant, 250));
    }
    chat.append(call(&["y"], "{}"));
    let built = chat.build(Policy::Salience, 800).unwrap();
    let words = "u1 [elision] u11 [elision] a17 a18";
    assert_eq!(
        built.words(),
        words,
        "no other turn of the exchange is dropped with it"
    );
}

/// Provider fields next to the content, such as cache control, do not matter.
#[test]
fn parts_with_provider_fields_are_shortened_like_others() {
    let with_cache_control = |mut turn: Turn| {
        for part in &mut turn.parts {
            part.extra_json = r#"{"cache_control":{"type":"ephemeral"}}"#.into();
        }
        turn
    };
    let built = |decorate: &dyn Fn(Turn) -> Turn| {
        let mut chat = Chat::new(Limits::default());
        chat.append(text(Role::User, "hello"));
        for (id, input) in [("a", "{}"), ("b", "{}"), ("c", "{\"n\":1}")] {
            chat.append(call(&[id], input));
            chat.append(decorate(result(id, id.repeat(2_000))));
        }
        chat.append(text(Role::Assistant, "done"));
        chat.append(text(Role::User, "thanks"));
        let results = chat.build(HEAD_TAIL, 1_500).unwrap().words();
        chat.append(text(Role::Assistant, "welcome"));
        chat.append(decorate(long(Role::User, 2_000)));
        for n in 0..4 {
            let id = format!("s{n}");
            chat.append(call(&[&id], "{}"));
            chat.append(result(&id, "z".repeat(400)));
        }
        (results, chat.build(HEAD_TAIL, 1_500).unwrap().words())
    };
    let (results, request) = built(&with_cache_control);
    assert!(
        results.contains("[superseded]") && results.contains("[trimmed]"),
        "{results}"
    );
    assert!(request.contains("[excerpt]"), "{request}");
    assert_eq!((results, request), built(&|turn| turn));
}

/// The photo has a thousand tokens and its caption fifty.
#[test]
fn caption_stays_if_its_image_does_not_fit() {
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
    let has_caption = |turn: &Turn| {
        let is_caption = |part: &Part| part.kind == PartKind::Text(caption.clone());
        turn.parts.iter().any(is_caption)
    };
    for extra in ["", r#"{"type":"image_url","image_url":{"url":""}}"#] {
        for earlier in [0, 1] {
            let mut chat = Chat::new(Limits::default());
            for _ in 0..earlier {
                chat.append(text(Role::User, "hello"));
                chat.append(text(Role::Assistant, "hi"));
            }
            chat.append(photo(extra));
            for n in 0..4 {
                let id = format!("c{n}");
                chat.append(call(&[&id], "{}"));
                chat.append(result(&id, "z".repeat(200)));
            }
            let built = chat.build(HEAD_TAIL, 900).unwrap();
            assert!(
                built.turns.iter().any(has_caption),
                "{extra} {earlier}: {:?}",
                built.turns
            );
            assert!(built.window.counted <= 900);
        }
    }
}

#[test]
fn summary_never_displaces_current_request() {
    let mut chat = working(2_000, 300, 0, 0);
    let request = request_of(&chat);
    assert!(chat.summarize(1));
    let summary = Summary {
        text: "x".repeat(1_000).into(),
        ..(**chat.summary.as_ref().unwrap()).clone()
    };
    chat.summary = Some(Arc::new(summary));
    chat.show_summary();
    chat.append(call(&["c1"], "{}"));
    chat.append(result("c1", "1".repeat(4_000)));
    let mut smallest_budget = None;
    for budget in (1_000..1_600).rev().step_by(5) {
        for policy in [HEAD_TAIL, Policy::TokenBudget, Policy::Salience] {
            let Ok(built) = chat.clone().build(policy, budget) else {
                continue;
            };
            let report = &built.window.report;
            let is_out = report.omissions.iter().any(|omission| {
                omission.is_left_out()
                    && (omission.first_seq..=omission.last_seq).contains(&request)
            });
            smallest_budget = Some(budget);
            assert!(
                !is_out || report.blocks.summary == 0,
                "{policy:?} of {budget}: {} {report:?}",
                built.words()
            );
        }
    }
    assert!(
        smallest_budget.is_some_and(|budget| budget < 1_200),
        "{smallest_budget:?}"
    );
}

#[test]
fn results_that_fill_the_window_are_trimmed_to_fit_request() {
    for (results, tokens) in [(2, 1_440), (3, 960), (6, 480)] {
        let mut chat = working(100, 200, 0, 0);
        let request = request_of(&chat);
        let ids: Vec<String> = (0..results).map(|n| format!("c{n}")).collect();
        chat.append(call(
            &ids.iter().map(String::as_str).collect::<Vec<_>>(),
            "{}",
        ));
        for id in &ids {
            chat.append(result(id, "z".repeat(tokens * 4)));
        }
        for policy in [HEAD_TAIL, Policy::TokenBudget, Policy::Salience] {
            let built = chat.clone().build(policy, 3_000).unwrap();
            let omissions = &built.window.report.omissions;
            let of_request: Vec<OmissionReason> = omissions
                .iter()
                .filter(|it| (it.first_seq..=it.last_seq).contains(&request))
                .map(|it| it.reason)
                .collect();
            assert!(
                of_request.is_empty() || of_request == [OmissionReason::Excerpt],
                "{results} {policy:?}: {} {omissions:?}",
                built.words()
            );
            let is_anchor = |it: &Omission| it.first_seq == 1;
            assert!(
                !omissions.iter().any(is_anchor),
                "a turn of five letters needs no excerpt: {omissions:?}"
            );
            let counted = built.window.counted;
            assert!((2_200..=2_520).contains(&counted), "{results}: {counted}");
        }
    }
}
