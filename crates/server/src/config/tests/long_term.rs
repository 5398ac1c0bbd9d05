//! Tests of the section `long_term`.

use memoird_memories::rules::secrets::SecretPolicy;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn built(text: &str) -> Result<(LongTerm, MemoriesConfig), String> {
    let config = parse(&format!("long_term: {text}"))?;
    Ok((config.long_term, config.memories))
}

fn problem(text: &str) -> String {
    built(text).expect_err("a problem was expected")
}

#[test]
fn omitted_settings_have_defaults() {
    let (kept, engine) = built("{}").expect("the default");
    assert_eq!(kept.dir, Path::new("./memoird-data/memories"));
    assert_eq!(kept.options.files_open_max, 64);
    assert_eq!(
        format!("{engine:?}"),
        format!("{:?}", MemoriesConfig::default())
    );
    let no_retention = engine.consolidation.retention_days == [None; 4];
    assert!(no_retention, "nothing is deleted unless somebody says so");
}

#[test]
fn every_setting_is_applied() {
    let text = "
  dir: /srv/memories
  open_files: 3
  content_bytes: 1KiB
  max_memories: 7
  recall_limit: 5
  window_tokens: 200
  near_duplicate_cosine: 0.5
  secrets: block
  extraction_lease: 1m
  expired_kept: 1d
  recall_events: 10
  embedder: none
  reranker: { tei: { base_url: 'http://127.0.0.1:1', documents: 7 } }
  query_wait: 20ms
  half_lives: { project: 30d }
  dream: { interval: off, max_promotions: 1, min_recalls: 4, min_queries: 5, min_days: 6,
           min_score: 0.5, unpin_after: 7d, retention: { project: 365d } }
";
    let (kept, engine) = built(text).expect("fine settings");
    assert_eq!(
        (kept.dir, kept.options.files_open_max),
        ("/srv/memories".into(), 3)
    );
    assert_eq!(
        (engine.limits.content_bytes, engine.limits.memories),
        (1_024, 7)
    );
    assert_eq!((engine.recall_limit, engine.window_tokens), (5, 200));
    assert_eq!(
        (engine.near_duplicate_cosine, engine.limits.recall_events),
        (0.5, 10)
    );
    assert_eq!(
        (engine.lease, engine.expired_kept),
        (Duration::from_secs(60), DAY)
    );
    assert_eq!(
        (engine.query_wait, engine.consolidation_interval),
        (Duration::from_millis(20), None)
    );
    assert!(engine.embedder.is_none());
    let reranker = engine.reranker.expect("it is configured");
    assert_eq!(reranker.documents_max(), 7);
    assert_eq!(engine.secrets, SecretPolicy::Block);
    let half_lives = engine.half_lives;
    assert_eq!(
        (half_lives.user_days, half_lives.project_days),
        (10_000.0, 30.0)
    );
    let dream = engine.consolidation;
    assert_eq!((dream.max_promotions, dream.min_recalls), (1, 4));
    assert_eq!((dream.min_queries, dream.min_days), (5, 6));
    assert_eq!((dream.min_score, dream.unpin_after_days), (0.5, 7));
    assert_eq!(dream.retention_days, [None, None, Some(365), None]);
}

#[test]
fn all_problems_are_reported_together() {
    let text = "
  dir: ''
  open_files: 0
  content_bytes: 33KiB
  max_memories: 0
  recall_limit: 101
  window_tokens: 0
  near_duplicate_cosine: 1.5
  extraction_lease: 0s
  recall_events: 0
  embedder: { openai: { model: m, api_key: { env: MEMOIRD_TEST_NO_SUCH_VARIABLE } } }
  reranker: { jina: { model: m, documents: 101 } }
  query_wait: 0s
  half_lives: { feedback: 0s }
  dream: { interval: 0s, min_recalls: 0, min_queries: 0, min_days: 0, min_score: 2,
           unpin_after: 0s, retention: { user: 0s } }
";
    let problem = problem(text);
    for part in [
        "20 problems",
        "long_term.dir: must be a directory, or auto",
        "long_term.open_files: must be at least 1",
        "long_term.content_bytes: must be 1 to 32KiB",
        "long_term.max_memories: must be at least 1",
        "long_term.recall_limit: must be 1 to 100",
        "long_term.window_tokens: must be at least 1",
        "long_term.near_duplicate_cosine: must be more than 0",
        "long_term.extraction_lease: must be more than zero",
        "long_term.recall_events: must be at least 1",
        "long_term.embedder.openai.api_key: the environment has no variable",
        "long_term.reranker.jina: documents takes 1 to 100",
        "long_term.query_wait: must be more than zero",
        "long_term.half_lives.feedback: must be more than zero",
        "long_term.dream.interval: must be more than zero",
        "long_term.dream.min_recalls: must be at least 1",
        "long_term.dream.min_queries: must be at least 1",
        "long_term.dream.min_days: must be at least 1",
        "long_term.dream.min_score: must be 0 to 1",
        "long_term.dream.unpin_after: must be more than zero",
        "long_term.dream.retention.user: must be more than zero",
    ] {
        assert!(problem.contains(part), "{part:?} is missing in: {problem}");
    }
}

#[test]
fn internal_fields_are_no_settings() {
    for (text, part) in [
        ("{ enabled: true }", "enabled"),
        ("{ secrets: maybe }", "redact"),
        ("{ embedder: cohere }", "none"),
        ("{ embedder: { openai: { } } }", "model"),
        ("{ half_lives: { jokes: 1d } }", "jokes"),
        ("{ dream: { retention: { jokes: 1d } } }", "jokes"),
        (
            "{ dream: { interval: never } }",
            "a duration such as 90s or 24h",
        ),
    ] {
        let problem = problem(text);
        assert!(
            problem.contains(part) && problem.contains("line"),
            "{problem}"
        );
    }
}

#[cfg(not(feature = "local-embedder"))]
#[test]
fn missing_local_embedder_feature_has_advice() {
    let problem = problem("{ embedder: { local: { dir: /srv/minilm } } }");
    assert!(
        problem.starts_with("long_term.embedder.local: "),
        "{problem}"
    );
    assert!(problem.contains("--features local-embedder"), "{problem}");
}
