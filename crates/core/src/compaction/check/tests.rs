//! What is believed, and what is not.

use crate::turn::Role;

use super::*;

fn span(turns: usize, last: &str) -> Vec<TranscriptTurn> {
    let said = |number: usize| {
        let text = if number + 1 == turns {
            last
        } else {
            "It goes on."
        };
        TranscriptTurn::new(number as u64 + 1, Role::User, text)
    };
    (0..turns).map(said).collect()
}

fn body(intent: &str, narrative: &str) -> Body {
    Body {
        session_intent: intent.into(),
        narrative: narrative.into(),
        ..Body::default()
    }
}

fn checked(body: &Body, text: &str, turns: usize, last: &str, tokens: (u64, u64, u64)) -> String {
    let span = span(turns, last);
    let (tokens, span_tokens, room) = tokens;
    let facts = Facts {
        span: &span,
        previous: None,
        span_tokens,
        tokens,
        room,
        is_written: true,
    };
    match check(body, text, &facts, &CompactionPolicy::default()) {
        Ok(()) => "ok".to_owned(),
        Err(rejection) => rejection.reason().to_owned(),
    }
}

#[test]
fn an_answer_must_say_what_was_wanted_and_what_happened() {
    let one_step = Body {
        next_steps: vec!["Pay".into()],
        ..Body::default()
    };
    for (body, turns, expected) in [
        (body("Fly", "They flew."), 30, "ok"),
        (Body::default(), 3, "empty"),
        (body(" ", "..."), 3, "empty"),
        (body("Fly", ""), 20, "ok"),
        (body("Fly", ""), 21, "field_missing"),
        (body("", "They flew."), 21, "field_missing"),
        (one_step, 21, "field_missing"),
        (
            body("Fly", "I'm sorry, but I can't help with that."),
            3,
            "refusal",
        ),
        (body("I cannot summarize this.", "They flew."), 3, "refusal"),
        (body("Fly", "Error: 503 Service Unavailable"), 30, "refusal"),
        (
            body("Fliegen", "Es tut mir leid, das kann ich nicht."),
            3,
            "refusal",
        ),
        (body("Volar", "Lo siento, no puedo ayudar."), 3, "refusal"),
        (body("Voler", "Je suis désolé, mais non."), 3, "refusal"),
        (body("订票", "抱歉，我无法总结这段对话。"), 3, "refusal"),
        (
            body("予約", "申し訳ありませんが、要約できません。"),
            3,
            "refusal",
        ),
        (
            body("예약", "죄송합니다. 요약할 수 없습니다."),
            3,
            "refusal",
        ),
        (body("Билет", "К сожалению, я не могу."), 3, "refusal"),
        (body("حجز", "عذرًا، لا أستطيع."), 3, "refusal"),
        (
            body("Ei, en voi auttaa.", " Ei, en voi auttaa. "),
            3,
            "refusal",
        ),
        (body("Volar", "El pago no puede repetirse."), 30, "ok"),
        (
            body(
                "Find an error",
                "Error E0308 came up; the user fixed it in a.rs.",
            ),
            30,
            "ok",
        ),
        (
            body("Refund", "The assistant was sorry and could not refund."),
            30,
            "ok",
        ),
    ] {
        assert_eq!(
            checked(&body, "", turns, "", (10, 100, 50)),
            expected,
            "{body:?} of {turns}"
        );
    }
}

#[test]
fn an_answer_must_be_shorter_than_its_span_and_fit() {
    let body = body("Fly", "They flew.");
    for (tokens, expected) in [
        ((99, 100, 99), "ok"),
        ((100, 100, 1_000), "longer_than_the_span"),
        ((60, 100, 59), "over_budget"),
    ] {
        assert_eq!(checked(&body, "", 3, "", tokens), expected, "{tokens:?}");
    }
}

#[test]
fn an_answer_may_lose_few_identifiers_of_the_last_turns() {
    let body = body("Fly", "They flew.");
    let ten = "HAT001 HAT002 HAT003 HAT004 HAT005 HAT006 HAT007 HAT008 HAT009 $10 for Ann Li";
    for (last, text, expected) in [
        (
            ten,
            "HAT001 HAT002 HAT003 HAT004 HAT005 HAT006 HAT007 HAT008 HAT009 $10",
            "ok",
        ),
        (
            ten,
            "HAT001 HAT002 HAT003 HAT004 HAT005 HAT006 HAT007 HAT008",
            "ok",
        ),
        (
            ten,
            "HAT001 HAT002 HAT003 HAT004 HAT005 HAT006 HAT007",
            "identifiers_lost",
        ),
        (ten, "", "identifiers_lost"),
        ("HAT001 HAT002", "", "identifiers_lost"),
        ("HAT001 HAT002", "HAT002", "ok"),
        ("HAT001", "", "ok"),
        ("we met Ann Li, Bo Ek, Cy Orr and Di Poe", "", "ok"),
    ] {
        assert_eq!(
            checked(&body, text, 5, last, (10, 100, 50)),
            expected,
            "{last} in {text}"
        );
    }
    let mut old = span(30, "");
    old[3].text = ten.to_owned();
    let facts = Facts {
        span: &old,
        previous: None,
        span_tokens: 100,
        tokens: 10,
        room: 50,
        is_written: true,
    };
    assert_eq!(
        check(&body, "", &facts, &CompactionPolicy::default()),
        Ok(()),
        "long ago"
    );
    let lost = Rejection::IdentifiersLost { lost: 10, of: 10 };
    let last = span(2, ten);
    let facts = Facts {
        span: &last,
        ..facts
    };
    assert_eq!(
        check(&body, "", &facts, &CompactionPolicy::default()),
        Err(lost)
    );
    let any = CompactionPolicy {
        lost_identifiers_percent_max: 100,
        ..CompactionPolicy::default()
    };
    assert_eq!(check(&body, "", &facts, &any), Ok(()));
}

#[test]
fn an_apology_that_somebody_said_is_no_refusal() {
    let body = body("Refund my order", "I'm sorry, I can't change this order.");
    let span = span(5, "");
    let facts = |is_written| Facts {
        span: &span,
        previous: None,
        span_tokens: 100,
        tokens: 10,
        room: 50,
        is_written,
    };
    let checked = |is_written| check(&body, "", &facts(is_written), &CompactionPolicy::default());
    assert_eq!(checked(true), Err(Rejection::Refusal));
    assert_eq!(checked(false), Ok(()));
}
