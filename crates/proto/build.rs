//! Compiles the contract with `protox`, so that `protoc` need not be installed.
//!
//! There are two sets of bindings. The first is the plain contract, for clients and for the
//! journal's encoding. The second, for the server, has the services, and replies with `turns` of
//! type `bytes`. On the wire, an embedded message and bytes are the same. So a turn is encoded
//! once, when it arrives, and its bytes are spliced into every reply.

use std::error::Error;
use std::path::PathBuf;

use prost_build::Config;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

const PACKAGE: &str = "memoird.v1";

const FILES: [&str; 6] = [
    "memoird/v1/options.proto",
    "memoird/v1/common.proto",
    "memoird/v1/document.proto",
    "memoird/v1/memory.proto",
    "memoird/v1/session.proto",
    "memoird/v1/admin.proto",
];

/// Messages with spliced `turns`, and their enclosing messages.
const SPLICED: [&str; 4] = [
    "GetHistoryResponse",
    "LeaseExtractionResponse",
    "SearchTranscriptsResponse",
    "TranscriptHit",
];

/// A message that is implemented manually in `src/context.rs`.
const BY_HAND: &str = "BuildContextResponse";

/// Reads a path from the environment of the build script.
///
/// At run time, not compile time, because the directory may have moved since.
#[allow(clippy::disallowed_methods)]
fn told(name: &str) -> Result<PathBuf, String> {
    std::env::var_os(name)
        .map(PathBuf::from)
        .ok_or_else(|| format!("{name} is not set"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = told("CARGO_MANIFEST_DIR")?.join("../../proto");
    let out = told("OUT_DIR")?;
    println!("cargo:rerun-if-changed={}", root.display());

    let mut compiler = protox::Compiler::new([&root])?;
    compiler.include_source_info(true).include_imports(true);
    compiler.open_files(FILES)?;
    let plain = compiler.file_descriptor_set();
    // `plain` lacks the options that the contract defines.
    let encoded = compiler.encode_file_descriptor_set();
    std::fs::write(out.join("descriptors.bin"), encoded)?;

    let bindings = || {
        // Ordered maps, so that the same turn always has the same encoding.
        tonic_prost_build::configure().bytes(".").btree_map(".")
    };
    let plain_out = out.join("plain");
    std::fs::create_dir_all(&plain_out)?;
    bindings()
        .build_server(false)
        .out_dir(plain_out)
        .compile_fds_with_config(plain.clone(), named())?;

    std::fs::write(out.join("unary_calls.rs"), unary_calls(&plain))?;

    let spliced_out = out.join("spliced");
    std::fs::create_dir_all(&spliced_out)?;
    let shared = shared_types(&plain);
    let spliced_bindings = shared.iter().fold(bindings(), |bindings, (proto, rust)| {
        bindings.extern_path(proto.as_str(), rust.as_str())
    });
    spliced_bindings
        .build_client(false)
        .generate_default_stubs(true)
        .out_dir(spliced_out)
        .compile_fds(spliced(plain))?;
    Ok(())
}

/// Adds the full name to every message, for finding its descriptor.
fn named() -> Config {
    let mut config = Config::new();
    config.enable_type_names();
    config
}

/// Implements `UnaryCall` for the request of every unary call.
fn unary_calls(set: &FileDescriptorSet) -> String {
    let messages = || set.file.iter().flat_map(|file| &file.message_type);
    let mut code = String::new();
    for service in set.file.iter().flat_map(|file| &file.service) {
        for method in service.method.iter().filter(|it| !it.server_streaming()) {
            let [request, reply] = [method.input_type(), method.output_type()]
                .map(|name| name.rsplit('.').next().unwrap_or(name));
            let fields = messages()
                .filter(|message| message.name() == request)
                .flat_map(|message| &message.field)
                .filter(|field| field.oneof_index.is_none());
            let names: Vec<&str> = fields.map(FieldDescriptorProto::name).collect();
            let mut places = [
                ("session_id", "&self.session_id"),
                ("subject", "&self.subject"),
                (
                    "subjects",
                    "self.subjects.first().map_or(\"\", String::as_str)",
                ),
            ];
            if service.name() == "MemoryService" {
                // The subject comes before the session.
                places.reverse();
            }
            let places = places.iter().filter(|(name, _)| names.contains(name));
            let places: Vec<&str> = places.map(|(_, place)| *place).collect();
            code += &format!(
                "impl UnaryCall for v1::{request} {{
                    type Reply = v1::{reply};
                    const PATH: &'static str = \"/{PACKAGE}.{}/{}\";
                    fn place(&self) -> &str {{ first_set(&[{}]) }}
                }}\n",
                service.name(),
                method.name(),
                places.join(", "),
            );
        }
    }
    code
}

/// Messages and enums that are the same in both sets: protobuf name and Rust path.
fn shared_types(set: &FileDescriptorSet) -> Vec<(String, String)> {
    let files = set.file.iter().filter(|file| file.package() == PACKAGE);
    let messages = files
        .clone()
        .flat_map(|file| &file.message_type)
        .map(DescriptorProto::name);
    let enums = files
        .flat_map(|file| &file.enum_type)
        .map(EnumDescriptorProto::name);
    messages
        .chain(enums)
        .filter(|name| !SPLICED.contains(name))
        .map(|name| {
            let module = if name == BY_HAND { "context" } else { "v1" };
            (
                format!(".{PACKAGE}.{name}"),
                format!("crate::{module}::{name}"),
            )
        })
        .collect()
}

fn spliced(mut set: FileDescriptorSet) -> FileDescriptorSet {
    let messages = set.file.iter_mut().flat_map(|file| &mut file.message_type);
    for message in messages.filter(|message| SPLICED.contains(&message.name())) {
        for field in message
            .field
            .iter_mut()
            .filter(|field| field.name() == "turns")
        {
            field.set_type(Type::Bytes);
            field.type_name = None;
        }
    }
    set
}
