//! Tests of the model usage reported with an append.

use super::*;

#[test]
fn usage_includes_cached_tokens() {
    let request = v1::AppendRequest {
        session_id: "s".into(),
        messages_json: r#"[{"role": "assistant", "content": "Good morning."}]"#.into(),
        format: v1::MessageFormat::Openai.into(),
        usage: Some(v1::ModelUsage {
            model: "m".into(),
            input_tokens: 7,
            output_tokens: 9,
            cache_read_tokens: 20,
            cache_creation_tokens: 300,
        }),
        ..v1::AppendRequest::default()
    };
    let usage = append(request, &Limits::default())
        .expect("an append")
        .usage
        .expect("a charge");
    let told = ModelUsage {
        model: "m".into(),
        input_tokens: 7,
        output_tokens: 9,
        cache_read_tokens: 20,
        cache_creation_tokens: 300,
    };
    assert_eq!((usage.request_tokens(), usage), (327, told));
}
