//! Tool schemas in the form that providers show to their models, which differs from the JSON sent.

use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::model::Provider;

/// A tool, independent of the provider's format.
pub(super) struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    /// JSON schema of its parameters. `Null` if it has none.
    parameters: &'a Value,
    /// Whether the model sees it only after a search.
    pub(super) is_deferred: bool,
}

/// Maximum nesting depth of a schema. Deeper levels are not read.
const DEPTH_MAX: usize = 16;

/// Parses an array of tools.
///
/// Accepts OpenAI's two formats, Anthropic's, Google's lists of declarations, and Bedrock's. The
/// second list has the entries in none of these, such as tools of the provider.
pub(super) fn tools(json: &Value) -> (Vec<Tool<'_>>, Vec<&Value>) {
    let (mut tools, mut others) = (Vec::new(), Vec::new());
    let list = json.get("tools").unwrap_or(json);
    for entry in list.as_array().into_iter().flatten() {
        let declared = ["functionDeclarations", "function_declarations"]
            .iter()
            .find_map(|key| entry.get(key)?.as_array());
        match declared {
            Some(declared) => tools.extend(declared.iter().filter_map(tool)),
            None => match tool(entry) {
                Some(tool) => tools.push(tool),
                None => others.push(entry),
            },
        }
    }
    (tools, others)
}

fn tool(entry: &Value) -> Option<Tool<'_>> {
    let wrapped = ["function", "toolSpec"]
        .iter()
        .find_map(|key| entry.get(key));
    let inner = wrapped.unwrap_or(entry);
    let schema = [
        "parameters",
        "input_schema",
        "parametersJsonSchema",
        "parameters_json_schema",
    ]
    .iter()
    .find_map(|key| inner.get(key))
    .or_else(|| inner.get("inputSchema")?.get("json"));
    let is_function = wrapped.is_some()
        || schema.is_some()
        || entry.get("type").is_none_or(|kind| kind == "function");
    let text = |key| inner.get(key).and_then(Value::as_str).unwrap_or_default();
    let name = inner.get("name")?.as_str()?;
    is_function.then_some(Tool {
        name,
        description: text("description"),
        parameters: schema.unwrap_or(&Value::Null),
        is_deferred: entry.get("defer_loading") == Some(&Value::Bool(true)),
    })
}

/// Tokens of the prompts for providers' tools, by prefix of the tool's type.
///
/// Anthropic documents those of `bash`, `text_editor` and `computer`. The others are the charges of
/// recorded requests that offered the tool and did not use it.
const PROVIDER_TOOLS: [(Provider, &str, u64); 12] = [
    (Provider::Anthropic, "bash_", 245),
    (Provider::Anthropic, "text_editor_", 700),
    // The definition, and the additional system prompt.
    (Provider::Anthropic, "computer_", 735 + 499),
    (Provider::Anthropic, "memory_", 1_080),
    (Provider::Anthropic, "tool_search_tool_", 180),
    (Provider::Anthropic, "web_search_", 1_720),
    (Provider::OpenAi, "image_generation", 342),
    (Provider::OpenAi, "tool_search", 30),
    (Provider::OpenAi, "web_search", 294),
    (Provider::Google, "codeExecution", 230),
    (Provider::Google, "fileSearch", 300),
    (Provider::Google, "googleSearch", 0),
];

/// Tokens of the prompt for a provider's tool; `None` for an unknown tool.
pub(super) fn provider_tool_tokens(provider: Provider, tool: &Value) -> Option<u64> {
    // Google names its tools by the field, others by the type.
    let kind = match tool.get("type").and_then(Value::as_str) {
        Some(kind) => kind.to_owned(),
        None => camel_case(tool.as_object()?.keys().next()?),
    };
    let mut known = PROVIDER_TOOLS.iter();
    let (.., tokens) = known.find(|(of, start, _)| *of == provider && kind.starts_with(start))?;
    Some(*tokens)
}

/// Converts `google_search` to `googleSearch`.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}

impl Tool<'_> {
    fn has_parameters(&self) -> bool {
        properties(self.parameters).is_some_and(|properties| !properties.is_empty())
    }

    /// Returns name, description and schema as compact JSON. Omits a schema without properties.
    pub(super) fn json(&self) -> String {
        if self.has_parameters() {
            self.full_json()
        } else {
            json!({"name": self.name, "description": self.description}).to_string()
        }
    }

    /// Returns name, description and schema as compact JSON.
    pub(super) fn full_json(&self) -> String {
        json!({
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        })
        .to_string()
    }
}

/// Renders the tools as OpenAI shows them to its models: as a TypeScript namespace.
///
/// OpenAI documents this form for its open models (the "harmony" format). Charges for its other
/// models fit it too.
pub(super) fn namespace(tools: &[Tool<'_>]) -> String {
    let mut text = String::from("# Tools\n\n## functions\n\nnamespace functions {\n\n");
    for tool in tools {
        comment(&mut text, tool.description);
        let name = tool.name;
        if tool.has_parameters() {
            let _ = write!(text, "type {name} = (");
            let of_all = description(tool.parameters);
            if !of_all.is_empty() {
                text.push('\n');
                comment(&mut text, of_all);
            }
            text.push_str("_: ");
            object(&mut text, tool.parameters, 0);
            text.push_str(") => any;\n\n");
        } else {
            let _ = write!(text, "type {name} = () => any;\n\n");
        }
    }
    text.push_str("} // namespace functions");
    text
}

fn comment(text: &mut String, comment: &str) {
    for line in comment.lines() {
        let _ = writeln!(text, "// {line}");
    }
}

fn description(schema: &Value) -> &str {
    schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

fn object(text: &mut String, schema: &Value, depth: usize) {
    let required: HashSet<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    text.push_str("{\n");
    for (name, property) in properties(schema).into_iter().flatten() {
        comment(text, description(property));
        let mark = if required.contains(name.as_str()) {
            ""
        } else {
            "?"
        };
        let _ = write!(text, "{name}{mark}: ");
        type_of(text, property, depth + 1);
        text.push(',');
        if let Some(default) = property.get("default") {
            let _ = write!(text, " // default: {default}");
        }
        text.push('\n');
    }
    text.push('}');
}

fn type_of(text: &mut String, schema: &Value, depth: usize) {
    if depth > DEPTH_MAX {
        return text.push_str("any");
    }
    let list = |key| schema.get(key).and_then(Value::as_array);
    if let Some(values) = list("enum") {
        return alternatives(text, values, |text, value| {
            let _ = write!(text, "{value}");
        });
    }
    if let Some(value) = schema.get("const") {
        let _ = write!(text, "{value}");
        return;
    }
    if let Some(schemas) = list("anyOf")
        .or_else(|| list("oneOf"))
        .or_else(|| list("allOf"))
    {
        return alternatives(text, schemas, |text, schema| {
            type_of(text, schema, depth + 1);
        });
    }
    if let Some(kinds) = list("type") {
        return alternatives(text, kinds, |text, kind| {
            named(text, kind.as_str().unwrap_or("any"), schema, depth);
        });
    }
    let kind = schema.get("type").and_then(Value::as_str);
    let reference = || schema.get("$ref")?.as_str()?.rsplit('/').next();
    match kind.or_else(reference) {
        Some(kind) => named(text, kind, schema, depth),
        None if properties(schema).is_some() => object(text, schema, depth),
        None => text.push_str("any"),
    }
}

fn named(text: &mut String, kind: &str, schema: &Value, depth: usize) {
    match kind {
        "integer" => text.push_str("number"),
        "array" => {
            match schema.get("items") {
                Some(items) => type_of(text, items, depth + 1),
                None => text.push_str("any"),
            }
            text.push_str("[]");
        }
        "object" if properties(schema).is_some_and(|properties| !properties.is_empty()) => {
            object(text, schema, depth);
        }
        other => text.push_str(other),
    }
}

fn alternatives(text: &mut String, values: &[Value], mut write: impl FnMut(&mut String, &Value)) {
    for (place, value) in values.iter().enumerate() {
        if place > 0 {
            text.push_str(" | ");
        }
        write(text, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_definition_of_every_provider_parses_alike() {
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let forms = [
            json!([{"type": "function", "function": {"name": "weather", "description": "Now.",
                "parameters": schema}}]),
            json!([{"type": "function", "name": "weather", "description": "Now.",
                "parameters": schema}]),
            json!([{"name": "weather", "description": "Now.", "input_schema": schema}]),
            json!([{"functionDeclarations": [{"name": "weather", "description": "Now.",
                "parametersJsonSchema": schema}]}]),
            json!({"tools": [{"toolSpec": {"name": "weather", "description": "Now.",
                "inputSchema": {"json": schema}}}]}),
        ];
        let expected = r#"{"name":"weather","description":"Now.","parameters":"#;
        for form in forms {
            let (tools, others) = tools(&form);
            assert_eq!((tools.len(), others.len()), (1, 0), "{form}");
            assert_eq!(tools[0].json(), format!("{expected}{schema}}}"), "{form}");
        }
    }

    #[test]
    fn provider_tools_are_separated_from_client_tools() {
        let given = json!([{"type": "web_search", "search_context_size": "medium"},
            {"type": "web_search_20250305", "name": "web_search"}, {"googleSearch": {}}]);
        let (tools, others) = tools(&given);
        assert_eq!((tools.len(), others.len()), (0, 3));
    }

    #[test]
    fn provider_tool_has_the_tokens_of_its_prompt() {
        let cases = [
            (
                Provider::Anthropic,
                json!({"type": "web_search_20260101", "name": "web_search"}),
                Some(1_720),
            ),
            (
                Provider::Anthropic,
                json!({"type": "bash_20250124", "name": "bash"}),
                Some(245),
            ),
            (
                Provider::OpenAi,
                json!({"type": "web_search_preview"}),
                Some(294),
            ),
            (Provider::OpenAi, json!({"type": "bash_20250124"}), None),
            (Provider::Google, json!({"google_search": {}}), Some(0)),
            (Provider::Google, json!({"codeExecution": {}}), Some(230)),
            (Provider::Open, json!({"type": "web_search"}), None),
            (Provider::Google, json!({}), None),
            (Provider::Google, json!("text"), None),
        ];
        for (provider, tool, tokens) in cases {
            assert_eq!(provider_tool_tokens(provider, &tool), tokens, "{tool}");
        }
    }

    #[test]
    fn namespace_matches_openai_rendering() {
        let given = json!([
            {"type": "function", "name": "now", "description": "The time.", "parameters": {
                "type": "object", "properties": {}}},
            {"type": "function", "name": "book", "parameters": {"type": "object",
                "description": "A booking.",
                "required": ["seats"],
                "properties": {
                    "seats": {"type": "array", "items": {"type": "integer"}, "description": "Which."},
                    "class": {"enum": ["first", "second"], "default": "second"},
                    "guest": {"type": ["string", "null"]},
                    "trip": {"type": "object", "properties": {"to": {"$ref": "#/$defs/Place"}}}}}},
        ]);
        let (tools, _) = tools(&given);
        let expected = "# Tools\n\n## functions\n\nnamespace functions {\n\n\
            // The time.\ntype now = () => any;\n\n\
            type book = (\n// A booking.\n_: {\n// Which.\nseats: number[],\n\
            class?: \"first\" | \"second\", // default: \"second\"\n\
            guest?: string | null,\ntrip?: {\nto?: Place,\n},\n}) => any;\n\n\
            } // namespace functions";
        assert_eq!(namespace(&tools), expected);
    }

    #[test]
    fn unbounded_schema_is_cut() {
        let mut schema = json!({"type": "string"});
        for _ in 0..100 {
            schema = json!({"type": "array", "items": schema});
        }
        let given = json!([{"name": "deep", "parameters": {"properties": {"a": schema}}}]);
        let shown = namespace(&tools(&given).0);
        assert!(shown.contains("any") && shown.len() < 400, "{shown}");
    }
}
