//! Tests of window and model settings.

use std::time::Duration;

use memoird_core::budget::Budget;
use memoird_core::window::{Policy, PolicyName, WindowSettings};
use memoird_engine::ContextConfig;

use super::super::tests::parse;
use super::*;

fn context(text: &str) -> ContextConfig {
    parse(&format!("context: {text}"))
        .expect(text)
        .engine
        .context
}

fn problem(text: &str) -> String {
    parse(&format!("context: {text}")).expect_err("a problem was expected")
}

fn profile(config: &ContextConfig, name: &str) -> ModelProfile {
    let model = config
        .models
        .iter()
        .find(|model| model.profile.name == name);
    model.expect(name).profile.clone()
}

#[test]
fn empty_file_has_built_in_models() {
    let config = context("{}");
    assert_eq!(config.settings, WindowSettings::default());
    assert_eq!(config.default_model, "default");
    let names: Vec<String> = catalogue()
        .into_iter()
        .map(|profile| profile.name)
        .collect();
    let known: Vec<&str> = config
        .models
        .iter()
        .map(|model| &*model.profile.name)
        .collect();
    assert_eq!(known, names);
    assert!(names.contains(&DEFAULT_MODEL.to_owned()));
}

#[test]
fn context_settings_are_applied() {
    let config = context(
        "{ policy: sliding_window, turns: 6, watermark: 90%, floor: 40 %, supersede: false, \
         time_marks: 4h }",
    );
    let expected = WindowSettings {
        policy: PolicyName::SlidingWindow,
        turns: 6,
        watermark_percent: 90,
        floor_percent: 40,
        supersede: false,
        time_marks: Some(Duration::from_secs(4 * 60 * 60)),
    };
    assert_eq!(config.settings, expected);
    let policy = Policy::SlidingWindow { turns: 6 };
    assert_eq!(config.settings.policy(), policy);
    for (word, policy) in [
        ("head_tail", Policy::HeadTail { turns: 0 }),
        ("token_budget", Policy::TokenBudget),
        ("salience", Policy::Salience),
    ] {
        let config = context(&format!("{{ policy: {word} }}"));
        assert_eq!(config.settings.policy(), policy);
    }
}

#[test]
fn model_overrides_built_in_profile() {
    let config = context(
        "{ default_model: ours, models: { default: { max_reply_tokens: 5 }, \
         ours: { provider: anthropic, tokenizer: cl100k, context_window: 90000 } } }",
    );
    let built_in = catalogue()
        .into_iter()
        .find(|profile| profile.name == DEFAULT_MODEL)
        .expect("default");
    let changed = profile(&config, "default");
    let budget = Budget {
        max_reply_tokens: 5,
        ..built_in.budget
    };
    assert_eq!(
        changed,
        ModelProfile {
            budget,
            ..built_in.clone()
        }
    );
    let ours = profile(&config, "ours");
    assert_eq!(
        (ours.provider, ours.tokenizer),
        (Provider::Anthropic, TokenizerKind::Cl100k)
    );
    assert_eq!(ours.budget, Budget::of_window(90_000));
    let config =
        context("{ models: { a: { context_window: 70000 }, b: { context_window: 80000 } } }");
    let windows = ["a", "b"].map(|name| profile(&config, name).budget.context_window);
    assert_eq!(windows, [70_000, 80_000]);
}

#[test]
fn context_window_alone_scales_reserves() {
    let config = context("{ models: { default: { context_window: 32000 } } }");
    let budget = profile(&config, "default").budget;
    assert_eq!(budget, Budget::of_window(32_000));
    assert_eq!(budget.input(0), Ok(18_000));
}

#[test]
fn max_history_bytes_grows_with_largest_context_window() {
    let turns = "limits: { turn_bytes: 1MiB }\n";
    let bytes = |text: &str| {
        parse(&format!("{turns}{text}"))
            .expect(text)
            .engine
            .limits
            .max_history_bytes
    };
    assert_eq!(bytes(""), 8 << 20, "8 bytes for each of 1,048,576 tokens");
    let large = "context: { models: { ours: { context_window: 4000000 } } }";
    assert_eq!(bytes(large), 32_000_000);
    let explicit = format!("short_term: {{ max_history_bytes: 1MiB }}\n{large}");
    assert_eq!(bytes(&explicit), 1 << 20);
    let auto = format!("short_term: {{ max_history_bytes: auto }}\n{large}");
    assert_eq!(bytes(&auto), 32_000_000);
}

#[test]
fn all_problems_are_reported_at_once() {
    let said = problem(
        "{ policy: salience, turns: 3, watermark: 50%, floor: 60%, \
         default_model: nobody, models: { new: { max_reply_tokens: 1 }, \
         small: { context_window: 5, safety_headroom: 5 }, \
         filed: { context_window: 100000, tokenizer: { file: ./no/such.json } } } }",
    );
    for part in [
        "6 problems",
        "context.turns: belongs to the policies sliding_window and head_tail",
        "context.floor: must be less than watermark",
        "context.default_model: unknown [not shown]; expected one of default",
        "context.models.new: is not a built-in model: set its context_window",
        "context.models.small: no budget is left",
        "context.models.filed.tokenizer: ./no/such.json cannot be used",
    ] {
        assert!(said.contains(part), "{part:?} is missing in: {said}");
    }
    assert!(problem("{ policy: sliding_window }").contains("must be at least 1"));
    assert!(problem("{ watermark: 101% }").contains("must be 1% to 100%"));
    let floor = problem("{ floor: 0% }");
    assert!(
        floor.contains("context.floor: must be 1% to 100%"),
        "{floor}"
    );
}

#[test]
fn time_marks_are_off_or_a_duration() {
    for (text, time_marks) in [
        ("{}", None),
        ("{ time_marks: off }", None),
        ("{ time_marks: 30m }", Some(Duration::from_secs(30 * 60))),
    ] {
        assert_eq!(context(text).settings.time_marks, time_marks, "{text}");
    }
    let said = problem("{ time_marks: often }");
    assert!(
        said.contains("expected a duration such as 90s or 24h"),
        "{said}"
    );
}

#[test]
fn removed_trim_settings_are_rejected() {
    for name in ["trim_over_tokens", "trim_head_tokens", "trim_tail_tokens"] {
        let said = problem(&format!("{{ {name}: 100 }}"));
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn type_errors_name_accepted_values() {
    for (text, part) in [
        ("{ watermark: 90 }", "a share such as 50%"),
        ("{ watermark: 300% }", "a share such as 50%"),
        ("{ policy: summary }", "head_tail"),
        ("{ models: { m: { tokenizer: o100k } } }", "o200k"),
        ("{ models: { m: { tokenizer: { path: x } } } }", "file"),
        ("{ models: { m: { provider: acme } } }", "anthropic"),
        ("{ models: { m: { window: 5 } } }", "context_window"),
    ] {
        let said = problem(text);
        assert!(said.contains(part) && said.contains("line"), "{said}");
    }
}

#[test]
fn too_many_models_and_long_names_are_rejected() {
    let entry = |number: usize| format!("m{number}: {{ context_window: 100000 }}");
    let models = |count| (0..count).map(entry).collect::<Vec<_>>().join(", ");
    context(&format!("{{ models: {{ {} }} }}", models(MODELS_MAX)));
    let said = problem(&format!("{{ models: {{ {} }} }}", models(MODELS_MAX + 1)));
    assert!(said.contains("the maximum is 64"), "{said}");
    let name = "n".repeat(NAME_BYTES_MAX + 1);
    let said = problem(&format!(
        "{{ models: {{ {name}: {{ context_window: 100000 }} }} }}"
    ));
    assert!(said.contains("a name must have 1 to 64 bytes"), "{said}");
}

#[test]
fn documentation_lists_every_built_in_model() {
    let documented = include_str!("../../../../../docs/models.md");
    let rows = documented.lines().filter(|line| line.starts_with("| `"));
    let expected: Vec<String> = catalogue().iter().map(row).collect();
    assert_eq!(
        rows.collect::<Vec<_>>(),
        expected,
        "\n{}",
        expected.join("\n")
    );
}

fn row(profile: &ModelProfile) -> String {
    let provider = serde_json::to_value(profile.provider).expect("JSON");
    let tokenizer = serde_json::to_value(&profile.tokenizer).expect("JSON");
    let budget = profile.budget;
    format!(
        "| `{}` | {} | {} | {} | {} | {} | {} |",
        profile.name,
        provider.as_str().expect("a word"),
        tokenizer.as_str().expect("a word"),
        budget.context_window,
        budget.max_reply_tokens,
        budget.safety_headroom,
        budget.tool_result_headroom,
    )
}

#[test]
fn model_may_have_provider_counter() {
    let config = context(
        "{ models: { claude-opus-5-5: { counter: { anthropic: {} } }, \
         gpt-5: { counter: { openai: { model: gpt-5-2026 } } } } }",
    );
    let counted: Vec<(&str, String)> = config
        .models
        .iter()
        .filter_map(|model| Some((&*model.profile.name, model.counter.as_ref()?.name().into())))
        .collect();
    assert_eq!(counted.len(), 2, "{counted:?}");
    assert!(
        counted
            .iter()
            .any(|(model, name)| *model == "gpt-5" && name.contains("gpt-5-2026"))
    );
    let key = "{ env: MEMOIRD_TEST_NO_SUCH_VARIABLE }";
    let text =
        format!("{{ models: {{ gpt-5: {{ counter: {{ openai: {{ api_key: {key} }} }} }} }} }}");
    let problem = problem(&text);
    assert!(
        problem.contains("context.models.gpt-5.counter.openai.api_key: "),
        "{problem}"
    );
}
