//! The JSON form, compared with that of `prost-reflect` on generated messages.

use memoird_fuzz::Target;
use memoird_proto::prost_reflect::{DescriptorPool, DynamicMessage, MapKey, Value as Proto};
use prost::Message;
use serde_json::{Value, json};

use super::*;

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const MESSAGES: usize = 3_000;

/// The messages of `tests.proto`, which has every kind of field.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/json");
    let files = protox::compile(["tests.proto"], [directory]).expect("it compiles");
    DescriptorPool::decode(&*files.encode_to_vec()).expect("descriptors")
});

fn message(name: &str) -> MessageDescriptor {
    let message = POOL.get_message_by_name(&format!("memoird.test.{name}"));
    message.expect("a message of tests.proto")
}

fn read(json: &str) -> Value {
    let message = message("Everything");
    decoded(&encoded(json, &message), &message)
}

fn encoded(json: &str, message: &MessageDescriptor) -> Vec<u8> {
    let mut encoded = Vec::new();
    parse(json.as_bytes(), message, &mut encoded).expect("a message");
    encoded
}

/// The JSON form of an encoded message by `prost-reflect`.
fn decoded(encoded: &[u8], of: &MessageDescriptor) -> Value {
    let message = DynamicMessage::decode(of.clone(), encoded).expect("an encoding");
    serde_json::to_value(message).expect("JSON")
}

fn written(encoded: &[u8], message: &MessageDescriptor, options: JsonOptions) -> String {
    let mut out = Vec::new();
    write(encoded, message, options, &mut out).expect("JSON");
    String::from_utf8(out).expect("UTF-8")
}

fn error(json: &str) -> (String, String) {
    let error = parse(json.as_bytes(), &message("Everything"), &mut Vec::new());
    let error = error.expect_err("an error");
    (error.path, error.problem)
}

/// Generates messages with xorshift: the same seed yields the same messages on every machine.
struct Generator(u64);

impl Generator {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn message(&mut self, of: &MessageDescriptor, depth: usize) -> DynamicMessage {
        let mut message = DynamicMessage::new(of.clone());
        if is_well_known(of) {
            return match of.name() {
                "FieldMask" => {
                    let paths = vec![Proto::String("content".to_owned())];
                    message.set_field_by_name("paths", Proto::List(paths));
                    message
                }
                _ => {
                    let seconds = i64::try_from(self.below(1 << 31)).unwrap();
                    message.set_field_by_name("seconds", Proto::I64(seconds));
                    let nanos = i32::try_from(self.below(1_000)).unwrap() * 1_000_000;
                    message.set_field_by_name("nanos", Proto::I32(nanos));
                    message
                }
            };
        }
        for field in of.fields() {
            let is_deep = depth == 0 && matches!(field.kind(), Kind::Message(_));
            if is_deep || self.below(3) == 0 {
                continue;
            }
            let count = self.below(4);
            let value = if field.is_map() {
                let entries = (0..count).map(|_| self.entry(&field.kind(), depth));
                Proto::Map(entries.collect())
            } else if field.is_list() {
                let elements = (0..count).map(|_| self.value(&field.kind(), depth));
                Proto::List(elements.collect())
            } else {
                self.value(&field.kind(), depth)
            };
            message.set_field(&field, value);
        }
        message
    }

    fn entry(&mut self, kind: &Kind, depth: usize) -> (MapKey, Proto) {
        let entry = kind.as_message().unwrap();
        let key = match self.value(&entry.map_entry_key_field().kind(), depth) {
            Proto::String(text) => MapKey::String(text),
            Proto::I64(number) => MapKey::I64(number),
            Proto::Bool(value) => MapKey::Bool(value),
            other => panic!("no test has the key {other}"),
        };
        let value = self.value(&entry.map_entry_value_field().kind(), depth);
        (key, value)
    }

    fn value(&mut self, kind: &Kind, depth: usize) -> Proto {
        // Mostly small numbers, and sometimes the largest.
        let bits = self.below(u64::MAX) >> self.below(64);
        let low = u32::try_from(bits & u64::from(u32::MAX)).unwrap();
        match kind {
            Kind::Double => Proto::F64(f64::from(low) / 7.0),
            Kind::Float => Proto::F32(f32::from(u16::try_from(low >> 16).unwrap()) / 7.0),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Proto::I32(low.cast_signed()),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Proto::I64(bits.cast_signed()),
            Kind::Uint32 | Kind::Fixed32 => Proto::U32(low),
            Kind::Uint64 | Kind::Fixed64 => Proto::U64(bits),
            Kind::Bool => Proto::Bool(low % 2 == 1),
            Kind::String => Proto::String(self.text()),
            Kind::Bytes => Proto::Bytes(
                bits.to_le_bytes()[..usize::try_from(low % 9).unwrap()]
                    .to_vec()
                    .into(),
            ),
            Kind::Message(of) => Proto::Message(self.message(of, depth - 1)),
            Kind::Enum(of) => {
                let index = usize::try_from(self.below(of.values().len() as u64)).unwrap();
                Proto::EnumNumber(of.values().nth(index).unwrap().number())
            }
        }
    }

    fn text(&mut self) -> String {
        const PIECES: [&str; 8] = ["a", "\"", "\\", "\n", "\u{1}", "ß", "😀", "{\"k\": [1.50]}"];
        let count = self.below(5);
        let piece = |_| PIECES[usize::try_from(self.below(8)).unwrap()];
        (0..count).map(piece).collect()
    }
}

#[test]
fn generated_messages_have_the_same_json_as_with_prost_reflect() {
    let mut generator = Generator(SEED);
    let messages: Vec<_> = DESCRIPTOR_POOL
        .all_messages()
        .chain(POOL.all_messages())
        .filter(|message| !is_well_known(message) && !message.is_map_entry())
        .collect();
    for round in 0..MESSAGES {
        let of = &messages[round % messages.len()];
        let message = generator.message(of, 3);
        let context = format!("seed {SEED:#x}, message {round}: {message}");
        let encoded = message.encode_to_vec();
        let json = written(&encoded, of, JsonOptions::default());
        let ours: Value = serde_json::from_str(&json).expect(&context);
        let theirs = serde_json::to_value(&message).expect(&context);
        assert_eq!(ours, theirs, "{context}");
        let mut parsed = Vec::new();
        parse(json.as_bytes(), of, &mut parsed).expect(&context);
        assert_eq!(decoded(&parsed, of), theirs, "{context}");
    }
}

#[test]
fn edited_texts_never_panic_and_valid_ones_survive_a_round_trip() {
    let target = Target {
        name: "json",
        crate_dir: env!("CARGO_MANIFEST_DIR"),
        words: &[
            "null", "true", "{}", "[]", "\"\"", "1e400", "-1", "children", "byNumber", "[[[[",
            "anInt32", "budget", "\\ud800", "NaN",
        ],
    };
    let of = message("Everything");
    target.check(|input| {
        let mut parsed = Vec::new();
        if parse(input, &of, &mut parsed).is_ok() {
            let json = written(&parsed, &of, JsonOptions { inlines_json: true });
            let again = encoded(&json, &of);
            assert_eq!(decoded(&again, &of), decoded(&parsed, &of), "{json}");
        }
    });
}

#[test]
fn contract_uses_only_well_known_messages_with_a_short_json_form() {
    let fields = DESCRIPTOR_POOL
        .all_messages()
        .filter(|message| message.package_name() == memoird_proto::PACKAGE)
        .flat_map(|message| message.fields().collect::<Vec<_>>());
    let used: HashSet<String> = fields
        .filter_map(|field| field.kind().as_message().cloned())
        .filter(is_well_known)
        .map(|message| message.name().to_owned())
        .collect();
    // `DynamicMessage` parses these. A `Struct` would become a tree larger than its text.
    let known = ["Duration", "FieldMask", "Timestamp"];
    assert!(used.iter().all(|name| known.contains(&&**name)), "{used:?}");
}

#[test]
fn fields_have_either_name_and_null_is_absent() {
    let expected = json!({ "sessionId": "chat", "children": [{ "color": "COLOR_RED" }] });
    for json in [
        r#"{"sessionId": "chat", "children": [{"color": "COLOR_RED"}]}"#,
        r#" { "session_id":"chat", "children":[{"color":1, "texts": null}], "text": null } "#,
    ] {
        assert_eq!(read(json), expected);
    }
}

#[test]
fn numbers_are_exact_in_each_form() {
    for number in ["18446744073709551615", "\"18446744073709551615\""] {
        let read = read(&format!("{{\"budget\": {number}}}"));
        assert_eq!(read, json!({ "budget": "18446744073709551615" }));
    }
    assert_eq!(read(r#"{"budget": 1e3}"#), json!({ "budget": "1000" }));
    for wrong in [
        "-1",
        "1.5",
        "18446744073709551616",
        "true",
        "[]",
        "\"\"",
        "1e300",
    ] {
        let (path, problem) = error(&format!("{{\"budget\": {wrong}}}"));
        assert_eq!(path, "budget", "{problem}");
        assert!(problem.contains("an integer"), "{problem}");
    }
    let special = r#"{"numbers": {"aFloat": "-Infinity", "aDouble": "NaN"}}"#;
    assert_eq!(
        read(special),
        serde_json::from_str::<Value>(special).unwrap()
    );
}

#[test]
fn bytes_are_base64_of_either_alphabet() {
    let expected = json!({ "data": "+/8=" });
    for text in ["+/8=", "+/8", "-_8=", "-_8"] {
        assert_eq!(read(&format!("{{\"data\": {text:?}}}")), expected);
    }
}

#[test]
fn errors_have_the_path_of_the_value() {
    let cases = [
        ("", "", "EOF"),
        ("[]", "", "a JSON object (Everything)"),
        ("{} {}", "", "trailing characters"),
        (
            r#"{"sesionId": "a"}"#,
            "sesionId",
            "has no field of this name",
        ),
        (r#"{"sessionId": 1}"#, "session_id", "expected a string"),
        (
            r#"{"sessionId": "a", "session_id": "a"}"#,
            "session_id",
            "given twice",
        ),
        (r#"{"children": {}}"#, "children", "a JSON array"),
        (
            r#"{"children": [{}, 5]}"#,
            "children[1]",
            "a JSON object (Everything)",
        ),
        (
            r#"{"children": [null]}"#,
            "children[0]",
            "a JSON object (Everything)",
        ),
        (
            r#"{"children": [{"color": "OTHER"}]}"#,
            "children[0].color",
            "COLOR_BLUE",
        ),
        (
            r#"{"children": [{"time": "today"}]}"#,
            "children[0].time",
            "is no Timestamp",
        ),
        (r#"{"labels": {"k": 1}}"#, "labels.k", "expected a string"),
        (r#"{"byNumber": {"k": {}}}"#, "by_number.k", "an integer"),
        (
            r#"{"byNumber": {"1": {"x": 2}}}"#,
            "by_number.1.x",
            "no field",
        ),
        (
            r#"{"numbers": {"aFloat": 1e300}}"#,
            "numbers.a_float",
            "32 bits",
        ),
        (
            r#"{"numbers": {"anInt32": 2147483648}}"#,
            "numbers.an_int32",
            "32 bits",
        ),
        (r#"{"sessionId": "\ud800"}"#, "session_id", "hex escape"),
        (r#"{"data": "not!"}"#, "data", "base64"),
        (
            r#"{"text": "a", "other": {}}"#,
            "other",
            "only one of text, other",
        ),
    ];
    for (json, path, part) in cases {
        let (is, problem) = error(json);
        assert_eq!(is, path, "{json}: {problem}");
        assert!(problem.contains(part), "{json}: {problem}");
    }
}

#[test]
fn nesting_is_limited() {
    let depth = 10_000;
    let json = format!("{}{}", r#"{"children":["#.repeat(depth), "]}".repeat(depth));
    let (_, problem) = error(&json);
    assert!(problem.contains("recursion limit"), "{problem}");
}

#[test]
fn field_in_several_places_is_merged() {
    let of = message("Everything");
    let parts = [
        encoded(r#"{"children": [{"color": "COLOR_RED"}]}"#, &of),
        encoded(r#"{"sessionId": "a"}"#, &of),
        encoded(
            r#"{"sessionId": "b", "children": [{"color": "COLOR_BLUE"}]}"#,
            &of,
        ),
    ];
    let json = written(&parts.concat(), &of, JsonOptions::default());
    let json: Value = serde_json::from_str(&json).unwrap();
    let children = json!([{ "color": "COLOR_RED" }, { "color": "COLOR_BLUE" }]);
    assert_eq!(json, json!({ "sessionId": "b", "children": children }));
}

#[test]
fn broken_encodings_are_errors() {
    let of = message("Everything");
    let json = r#"{"sessionId": "chat", "children": [{"labels": {"a": "b"}, "packed": [1, 2]}]}"#;
    let encoded = encoded(json, &of);
    let written = |encoded: &[u8]| {
        let mut out = Vec::new();
        write(encoded, &of, JsonOptions::default(), &mut out).is_ok()
    };
    for length in 0..encoded.len() {
        // Valid between two fields.
        assert_eq!(
            written(&encoded[..length]),
            length == 0 || length == 6,
            "{length}"
        );
    }
    assert!(!written(&[0xff; 16]));
}

#[test]
fn json_is_written_without_blanks_between_tokens() {
    let mut out = Vec::new();
    write_compact(
        "{ \"a b\" : [ 1.50 , \"\\\" c \\\\\" , \"d\" ] }\n",
        &mut out,
    );
    assert_eq!(out, br#"{"a b":[1.50,"\" c \\","d"]}"#);
}

#[test]
fn fields_that_contain_json_are_marked() {
    let fields = DESCRIPTOR_POOL
        .all_messages()
        .filter(|message| message.package_name() == memoird_proto::PACKAGE)
        .flat_map(|message| message.fields().collect::<Vec<_>>());
    let mut marked = 0;
    for field in fields.filter(|field| field.kind() == Kind::String) {
        let is_named_so = field.name() == "json" || field.name().ends_with("_json");
        assert_eq!(has_json(&field), is_named_so, "{}", field.full_name());
        marked += usize::from(is_named_so);
    }
    assert!(marked > 10, "{marked}");
}

#[test]
fn inline_json_keeps_digits_and_order() {
    let of = DESCRIPTOR_POOL.get_message_by_name("memoird.v1.Part");
    let of = of.expect("a message with extra_json");
    let inline = JsonOptions { inlines_json: true };
    for (sent, string, replied) in [
        (
            r#"{"b": 1.50, "a": 12345678901234567890}"#,
            r#"{"b":1.50,"a":12345678901234567890}"#,
            None,
        ),
        ("[ 1e5 , \"a b\" ]", r#"[1e5,"a b"]"#, None),
        ("-0.0", "-0.0", None),
        ("true", "true", None),
        // A string is that of the field, whatever it contains.
        (r#""{\"a\": 1}""#, r#"{"a": 1}"#, Some(r#"{"a":1}"#)),
        (r#""\"text\"""#, r#""text""#, Some(r#""\"text\"""#)),
        (r#""null""#, "null", Some(r#""null""#)),
        (r#""not JSON""#, "not JSON", Some(r#""not JSON""#)),
        (r#""{""#, "{", Some(r#""{""#)),
    ] {
        let parsed = encoded(&format!("{{\"extraJson\": {sent}}}"), &of);
        let standard = written(&parsed, &of, JsonOptions::default());
        let expected = json!({ "extraJson": string }).to_string();
        assert_eq!(standard, expected, "{sent}");
        let expected = format!("{{\"extraJson\":{}}}", replied.unwrap_or(string));
        assert_eq!(written(&parsed, &of, inline), expected, "{sent}");
    }
    for wrong in ["{", "[1,]", "tru", "01"] {
        let json = format!("{{\"extraJson\": {wrong}}}");
        assert!(
            parse(json.as_bytes(), &of, &mut Vec::new()).is_err(),
            "{wrong}"
        );
    }
}
