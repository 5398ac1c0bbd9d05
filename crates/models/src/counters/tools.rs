//! The two ways in which OpenAI's APIs describe a tool: the Responses API beside its type, chat
//! completions in an object named `function`.

use serde_json::{Value, json};

/// The tool as the Responses API takes it.
pub(super) fn flat(mut tool: Value) -> Value {
    match tool.get_mut("function").map(Value::take) {
        Some(Value::Object(mut function)) => {
            function.insert("type".to_owned(), json!("function"));
            Value::Object(function)
        }
        Some(other) => {
            tool["function"] = other;
            tool
        }
        None => tool,
    }
}

/// The tool as chat completions take it.
pub(super) fn nested(tool: Value) -> Value {
    match tool {
        Value::Object(mut function)
            if function.get("type") == Some(&json!("function"))
                && !function.contains_key("function") =>
        {
            function.remove("type");
            json!({"type": "function", "function": function})
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_written_either_way() {
        let inside = json!({"type": "function", "function": {"name": "f", "strict": true}});
        let beside = json!({"name": "f", "strict": true, "type": "function"});
        assert_eq!(flat(inside.clone()), beside);
        assert_eq!(flat(beside.clone()), beside);
        assert_eq!(nested(beside), inside);
        assert_eq!(nested(inside.clone()), inside);
        for odd in [
            json!({"type": "web_search"}),
            json!(1),
            json!({"function": 1}),
        ] {
            assert_eq!((flat(odd.clone()), nested(odd.clone())), (odd.clone(), odd));
        }
    }
}
