//! The OpenAPI description of the API, `docs/openapi.json`, made from the descriptors.
//!
//! The daemon serves the committed file. This test fails if it is out of date.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use memoird_proto::prost_reflect::{
    Cardinality, DynamicMessage, EnumDescriptor, FieldDescriptor, FileDescriptor, Kind,
    MessageDescriptor, MethodDescriptor,
};
use memoird_proto::{DESCRIPTOR_POOL, PACKAGE};
use serde::de::DeserializeSeed;
use serde_json::{Map, Value, json};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
const PAGES: [&str; 2] = [
    include_str!("../../../README.md"),
    include_str!("../../../docs/http.md"),
];
const ERRORS: &str = include_str!("../../../docs/errors.md");

/// Set to write the file.
const WRITE: &str = "MEMOIRD_WRITE_OPENAPI";
const COMMAND: &str = "MEMOIRD_WRITE_OPENAPI=1 cargo test -p memoird-proto --features reflection \
    --test openapi";

const CODES: [&str; 16] = [
    "canceled",
    "unknown",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "aborted",
    "out_of_range",
    "unimplemented",
    "internal",
    "unavailable",
    "data_loss",
    "unauthenticated",
];

/// Examples of fields of requests, by name. The example of a call has those that its request has.
const EXAMPLES: [(&str, &str); 14] = [
    ("session_id", r#""telegram:42""#),
    (
        "turns",
        r#"[{"role": "ROLE_USER", "parts": [{"text": "I like my tea green."}]}]"#,
    ),
    ("model", r#""claude-sonnet-4-5""#),
    (
        "append",
        r#"{"turns": [{"role": "ROLE_USER", "parts": [{"text": "Which tea do I like?"}]}]}"#,
    ),
    ("subject", r#""user:7""#),
    ("subjects", r#"["user:7"]"#),
    ("content", r#""Likes green tea.""#),
    ("query", r#""which tea?""#),
    ("namespace", r#"["settings"]"#),
    ("key", r#""theme""#),
    ("json", r#""{\"dark\":true}""#),
    ("merge_patch_json", r#""{\"step\":2}""#),
    ("target_session_id", r#""telegram:43""#),
    ("id", r#""01JZ8M6Q4C0000000000000000""#),
];

/// Comments of a file by the path of their declaration.
struct Comments(BTreeMap<Vec<i32>, String>);

impl Comments {
    fn of(file: &FileDescriptor) -> Self {
        let info = file.file_descriptor_proto().source_code_info.as_ref();
        let locations = info.map(|info| &info.location[..]).unwrap_or_default();
        let comments = locations.iter().filter_map(|location| {
            let comment = unwrapped(location.leading_comments.as_deref()?);
            Some((location.path.clone(), comment))
        });
        Self(comments.collect())
    }

    fn at(file: &FileDescriptor, path: &[i32]) -> String {
        Self::of(file).0.remove(path).unwrap_or_default()
    }
}

/// Joins the lines of each paragraph.
fn unwrapped(comment: &str) -> String {
    let paragraphs = comment.split("\n\n").map(|paragraph| {
        let lines: Vec<&str> = paragraph.lines().map(str::trim).collect();
        lines.join(" ").trim().to_owned()
    });
    let paragraphs: Vec<String> = paragraphs.filter(|text| !text.is_empty()).collect();
    paragraphs.join("\n\n")
}

/// Reasons of errors with their meaning, as documented.
fn reasons() -> BTreeMap<&'static str, &'static str> {
    let rows = ERRORS.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let reason = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        Some((reason, *cells.get(4)?))
    });
    rows.collect()
}

/// The documented reasons that a text mentions.
fn mentioned(text: &str) -> BTreeSet<&str> {
    let known = reasons();
    let words = text.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
    words.filter(|word| known.contains_key(word)).collect()
}

fn named(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn has_json(field: &FieldDescriptor) -> bool {
    let option = DESCRIPTOR_POOL.get_extension_by_name(&format!("{PACKAGE}.json"));
    let is_set = |option| field.options().get_extension(&option).as_bool();
    option.and_then(is_set) == Some(true)
}

/// The schemas of all messages and enums that calls use, by name.
#[derive(Default)]
struct Schemas(BTreeMap<String, Value>);

impl Schemas {
    /// The schema of one value.
    fn value(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Message(message) if message.package_name() != PACKAGE => match message.name() {
                "Timestamp" => json!({ "type": "string", "format": "date-time" }),
                "Duration" => {
                    json!({ "type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$" })
                }
                "FieldMask" => json!({ "type": "string" }),
                other => panic!("no schema for {other}"),
            },
            Kind::Message(message) => self.message(message),
            Kind::Enum(of) => self.enumeration(of),
            Kind::Bool => json!({ "type": "boolean" }),
            Kind::String => json!({ "type": "string" }),
            Kind::Bytes => json!({ "type": "string", "contentEncoding": "base64" }),
            Kind::Double | Kind::Float => json!({ "type": "number" }),
            Kind::Uint32 | Kind::Fixed32 => {
                json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX })
            }
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
                json!({ "type": "integer", "format": "int32" })
            }
            Kind::Uint64 | Kind::Fixed64 => {
                json!({ "type": "string", "format": "uint64", "pattern": "^[0-9]{1,20}$" })
            }
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
                json!({ "type": "string", "format": "int64", "pattern": "^-?[0-9]{1,19}$" })
            }
        }
    }

    fn field(&mut self, field: &FieldDescriptor) -> Value {
        let mut schema = match field.kind() {
            Kind::Message(entry) if field.is_map() => {
                let value = self.value(&entry.map_entry_value_field().kind());
                json!({ "type": "object", "additionalProperties": value })
            }
            Kind::String if has_json(field) => {
                json!({ "type": ["string", "object", "array", "number", "boolean"] })
            }
            kind if field.cardinality() == Cardinality::Repeated => {
                json!({ "type": "array", "items": self.value(&kind) })
            }
            kind => self.value(&kind),
        };
        let mut description = Comments::at(&field.parent_message().parent_file(), field.path());
        if has_json(field) {
            description += " JSON, in a string or, in a request, inline. In replies it is inline \
                with the header `memoird-inline-json: true`.";
        }
        if let Some(oneof) = field
            .containing_oneof()
            .filter(|oneof| !oneof.is_synthetic())
        {
            let others = oneof
                .fields()
                .map(|other| format!("`{}`", other.json_name()));
            let others = others.collect::<Vec<_>>().join(", ");
            description += &format!(" At most one of {others}.");
        }
        if !description.is_empty() {
            schema["description"] = description.trim().into();
        }
        schema
    }

    fn message(&mut self, message: &MessageDescriptor) -> Value {
        let name = message.name();
        if !self.0.contains_key(name) {
            // Before its fields, which may refer to it.
            self.0.insert(name.to_owned(), Value::Null);
            let fields = message.fields().map(|field| {
                let name = field.json_name().to_owned();
                (name, self.field(&field))
            });
            let properties: Map<String, Value> = fields.collect();
            let mut schema = json!({ "type": "object", "properties": properties });
            let description = Comments::at(&message.parent_file(), message.path());
            if !description.is_empty() {
                schema["description"] = description.into();
            }
            self.0.insert(name.to_owned(), schema);
        }
        named(name)
    }

    fn enumeration(&mut self, of: &EnumDescriptor) -> Value {
        let comments = Comments::of(&of.parent_file());
        let comment = |path: &[i32]| comments.0.get(path).cloned().unwrap_or_default();
        let mut description = comment(of.path());
        for value in of.values() {
            let text = comment(value.path());
            if !text.is_empty() {
                description += &format!("\n\n`{}`: {text}", value.name());
            }
        }
        let names: Vec<String> = of.values().map(|value| value.name().to_owned()).collect();
        let schema = json!({ "type": "string", "enum": names, "description": description.trim() });
        self.0.insert(of.name().to_owned(), schema);
        named(of.name())
    }
}

/// An example of a request, which the call accepts as far as its form goes.
fn example(request: &MessageDescriptor) -> Value {
    let mut example = Map::new();
    let mut chosen = Vec::new();
    for (name, value) in EXAMPLES {
        let Some(field) = request.get_field_by_name(name) else {
            continue;
        };
        let value: Value = serde_json::from_str(value).expect("an example in JSON");
        let oneof = field.containing_oneof();
        if value.is_array() == field.is_list() && !oneof.iter().any(|of| chosen.contains(of)) {
            example.insert(field.json_name().to_owned(), value);
            chosen.extend(oneof);
        }
    }
    let text = Value::Object(example.clone()).to_string();
    let mut input = serde_json::Deserializer::from_str(&text);
    let read: Result<DynamicMessage, _> = request.clone().deserialize(&mut input);
    read.unwrap_or_else(|error| panic!("{}: {text}: {error}", request.name()));
    example.into()
}

fn operation(method: &MethodDescriptor, schemas: &mut Schemas) -> Value {
    let service = method.parent_service();
    let comment = Comments::at(&service.parent_file(), method.path());
    let (summary, _) = comment.split_once(". ").unwrap_or((&comment, ""));
    let (input, output) = (method.input(), method.output());
    let (request, reply) = (schemas.message(&input), schemas.message(&output));
    let of_fields = input
        .fields()
        .map(|field| Comments::at(&input.parent_file(), field.path()));
    let texts = [comment.clone()].into_iter().chain(of_fields);
    let texts: Vec<String> = texts.collect();
    let reasons: BTreeSet<&str> = texts.iter().flat_map(|text| mentioned(text)).collect();
    let mut failure = "The call failed.".to_owned();
    if !reasons.is_empty() {
        let names: Vec<String> = reasons.iter().map(|reason| format!("`{reason}`")).collect();
        failure += &format!(" Among the reasons: {}.", names.join(", "));
    }
    let error = json!({ "schema": named("Error") });
    let header = |name: &str| json!({ "$ref": format!("#/components/parameters/{name}") });
    let mut operation = json!({
        "operationId": format!("{}_{}", service.name(), method.name()),
        "tags": [service.name()],
        "summary": summary.trim_end_matches('.'),
        "description": comment,
        "parameters": [header("InlineJson"), header("TimeoutMs"), header("MaxReplyBytes")],
        "responses": {
            "200": {
                "description": "The reply.",
                "content": { "application/json": { "schema": reply } },
            },
            "default": {
                "description": failure,
                "content": { "application/json": error },
            },
        },
    });
    if method.is_server_streaming() {
        operation["parameters"] = json!([
            {
                "name": "message",
                "in": "query",
                "description": "The request.",
                "content": { "application/json": { "schema": request } },
            },
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "The `id` of the last event that arrived.",
                "schema": { "type": "string" },
            },
            header("InlineJson"),
        ]);
        operation["responses"]["200"] = json!({
            "description": "Server-sent events. Each has a reply in `data`. An event `error` has \
                an Error.",
            "content": { "text/event-stream": { "schema": { "type": "string" } } },
        });
    } else {
        operation["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": request, "example": example(&input) } },
        });
    }
    operation
}

fn error_schemas(schemas: &mut Schemas) {
    let known = reasons();
    let meanings = known
        .iter()
        .map(|(reason, what)| format!("`{reason}`: {what}"));
    let meanings: Vec<String> = meanings.collect();
    let names: Vec<&&str> = known.keys().collect();
    let error = json!({
        "type": "object",
        "description": "An error in the form of the Connect protocol.",
        "required": ["code", "message"],
        "properties": {
            "code": { "type": "string", "enum": CODES },
            "message": { "type": "string", "description": "What is wrong, and what to do." },
            "details": { "type": "array", "items": named("ErrorDetail") },
        },
    });
    let detail = json!({
        "type": "object",
        "required": ["type", "value"],
        "properties": {
            "type": {
                "type": "string",
                "description": "`google.rpc.ErrorInfo`, which every error has, or \
                    `google.rpc.RetryInfo`.",
            },
            "value": { "type": "string", "description": "The encoded message, in base64." },
            "debug": {
                "type": "object",
                "description": "The message as JSON.",
                "properties": {
                    "reason": named("Reason"),
                    "domain": { "type": "string", "const": "memoird" },
                    "metadata": {
                        "type": "object",
                        "description": "Facts, such as the path of the invalid `field`.",
                        "additionalProperties": { "type": "string" },
                    },
                    "retryDelay": {
                        "type": "string",
                        "description": "When to send the request again.",
                    },
                },
            },
        },
    });
    let reason = json!({
        "description": meanings.join("\n\n"),
        "anyOf": [{ "type": "string", "enum": names }, { "type": "string" }],
    });
    for (name, schema) in [
        ("Error", error),
        ("ErrorDetail", detail),
        ("Reason", reason),
    ] {
        let before = schemas.0.insert(name.to_owned(), schema);
        assert!(before.is_none(), "the contract has a message {name}");
    }
}

fn header(name: &str, description: &str, schema: &Value) -> Value {
    json!({ "name": name, "in": "header", "description": description, "schema": schema })
}

fn document() -> Value {
    let mut schemas = Schemas::default();
    let mut paths = Map::new();
    let mut tags = Vec::new();
    for service in DESCRIPTOR_POOL.services() {
        let description = Comments::at(&service.parent_file(), service.path());
        tags.push(json!({ "name": service.name(), "description": description }));
        for method in service.methods() {
            let path = format!("/{}/{}", service.full_name(), method.name());
            let verb = if method.is_server_streaming() {
                "get"
            } else {
                "post"
            };
            let operation = operation(&method, &mut schemas);
            paths.insert(path, json!({ verb: operation }));
        }
    }
    error_schemas(&mut schemas);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "memoird",
            "version": PACKAGE.rsplit('.').next(),
            "description": "Session daemon for chat bots. Every call of the gRPC API as JSON over \
                HTTP, per the Connect protocol.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "http://127.0.0.1:7717" }],
        // A daemon without keys needs none.
        "security": [{ "key": [] }, {}],
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": schemas.0,
            "parameters": {
                "InlineJson": header(
                    "memoird-inline-json",
                    "Whether strings that contain JSON are that JSON in the reply.",
                    &json!({ "type": "string", "enum": ["true", "false"] }),
                ),
                "TimeoutMs": header(
                    "connect-timeout-ms",
                    "Deadline of the call in milliseconds.",
                    &json!({ "type": "string", "pattern": "^[0-9]{1,10}$" }),
                ),
                "MaxReplyBytes": header(
                    "memoird-max-reply-bytes",
                    "Maximum size of the reply in bytes, encoded as protobuf. Default and minimum \
                        4 MiB.",
                    &json!({ "type": "string", "pattern": "^[0-9]{1,18}$" }),
                ),
            },
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
    })
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "a variable asks to write the file"
)]
fn committed_openapi_file_is_current() {
    let text = serde_json::to_string_pretty(&document()).expect("JSON") + "\n";
    let file = Path::new(FILE);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(file, &text).expect("the file is written");
    }
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        committed == text,
        "docs/openapi.json is out of date; run: {COMMAND}"
    );
}

#[test]
fn paths_in_the_documentation_exist() {
    let document = document();
    let paths = PAGES
        .iter()
        .flat_map(|page| page.split("/memoird.v1.").skip(1));
    let mut known = 0;
    for rest in paths.filter(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase())) {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '/');
        let path = format!("/memoird.v1.{}", &rest[..end.unwrap_or(rest.len())]);
        assert!(document["paths"][&path].is_object(), "{path}");
        known += 1;
    }
    assert!(known >= 4, "{known}");
}
