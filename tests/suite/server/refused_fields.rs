//! Refusals name the invalid field.
//!
//! Every rpc is called with each of its fields invalid in turn.

use std::collections::BTreeSet;

use memoird_proto::prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};
use memoird_proto::{DESCRIPTOR_POOL, PACKAGE};
use prost::Message;
use tonic::Code;

use crate::harness::{
    Daemon, append, channel, has_field, raw_call, refused_code, refused_field, say, user,
};

/// Maximum depth of nested messages that are tested.
const DEPTH: usize = 2;

/// Values that some field of this kind does not accept.
fn bad_values(field: &FieldDescriptor) -> Vec<Value> {
    let texts = ["x".repeat(300), "[".repeat(300), "\0".into(), "?".into()];
    let texts = texts.map(Value::String).to_vec();
    if field.is_map() {
        let key = |number: usize| MapKey::String(number.to_string());
        let many = (0..70).map(|number| (key(number), texts[3].clone()));
        let long = [(MapKey::String("x".repeat(300)), texts[0].clone())];
        return vec![Value::Map(many.collect()), Value::Map(long.into())];
    }
    let values = match field.kind() {
        Kind::Enum(_) => [99, -1].map(Value::EnumNumber).into(),
        Kind::String => texts,
        Kind::Bytes => vec![Value::Bytes(vec![0xff; 9].into())],
        Kind::Uint32 => vec![Value::U32(u32::MAX)],
        Kind::Uint64 => vec![Value::U64(u64::MAX)],
        Kind::Float => [f32::NAN, 7.0].map(Value::F32).into(),
        Kind::Double => vec![Value::F64(f64::NAN)],
        Kind::Bool => vec![Value::Bool(true)],
        Kind::Message(message) => {
            let mut value = DynamicMessage::new(message.clone());
            if let Some(seconds) = message.get_field_by_name("seconds") {
                value.set_field(&seconds, Value::I64(-1));
            }
            vec![Value::Message(value)]
        }
        other => panic!("the contract has no {other:?}"),
    };
    if field.is_list() {
        let lists = values
            .iter()
            .flat_map(|value| [1, 300].map(|count| Value::List(vec![value.clone(); count])));
        lists.collect()
    } else {
        values
    }
}

/// Copies of a request with one invalid field each.
fn spoilt(message: &DynamicMessage, depth: usize) -> Vec<DynamicMessage> {
    let mut found = Vec::new();
    for field in message.descriptor().fields() {
        let mut put = |value: Value| {
            let mut other = message.clone();
            other.set_field(&field, value);
            found.push(other);
        };
        bad_values(&field).into_iter().for_each(&mut put);
        let Kind::Message(inner) = field.kind() else {
            continue;
        };
        if depth == 0 || field.is_map() || inner.package_name() != PACKAGE {
            continue;
        }
        for inner in spoilt(&filled(&inner), depth - 1) {
            let value = Value::Message(inner);
            put(if field.is_list() {
                Value::List(vec![value])
            } else {
                value
            });
        }
    }
    found
}

/// A request with values that most rpcs accept.
fn filled(message: &MessageDescriptor) -> DynamicMessage {
    let mut request = DynamicMessage::new(message.clone());
    for (name, text) in [
        ("session_id", "chat"),
        ("subject", "ada"),
        ("target_session_id", "copy"),
    ] {
        if let Some(field) = message.get_field_by_name(name) {
            request.set_field(&field, Value::String(text.into()));
        }
    }
    if message.name() == "AppendRequest" {
        let said = append("chat", [user("hi")]).encode_to_vec();
        return DynamicMessage::decode(message.clone(), &*said).expect("the same message");
    }
    request
}

#[tokio::test]
async fn every_invalid_argument_names_a_field_of_its_request() {
    let daemon = Daemon::start().await;
    say(&mut daemon.sessions(), "chat", "hi").await;
    let channel = channel(daemon.grpc_addr());
    let mut reasons = BTreeSet::new();
    let mut nameless = BTreeSet::new();
    for service in DESCRIPTOR_POOL
        .services()
        .filter(|it| it.package_name() == PACKAGE)
    {
        for method in service.methods().filter(|it| !it.is_server_streaming()) {
            let path = format!("/{}/{}", service.full_name(), method.name());
            let request = method.input();
            for spoilt in spoilt(&filled(&request), DEPTH) {
                let answer = raw_call(&channel, &path, spoilt.encode_to_vec()).await;
                let Err(status) = answer else { continue };
                if status.code() != Code::InvalidArgument {
                    continue;
                }
                let (reason, field) = (refused_code(&status), refused_field(&status));
                if !has_field(&request, &field) {
                    nameless.insert(format!("{} has no {field}: {reason}", request.name()));
                }
                reasons.insert(reason);
            }
        }
    }
    assert!(nameless.is_empty(), "{nameless:#?}");
    println!("met: {reasons:?}");
    assert!(reasons.len() >= 30, "only {reasons:?}");
}
