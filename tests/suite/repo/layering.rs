//! Checks the crate dependencies of ARCHITECTURE.md against `cargo metadata`.
//!
//! An edge that is not in the tables of this file is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageName};

/// Allowed dependencies of a crate.
struct Layer {
    name: &'static str,
    /// Workspace crates it may use.
    ours: &'static [&'static str],
    /// External crates it must not use.
    banned: &'static [&'static str],
    /// If set, the only external crates it may use. `None`: any that is not banned.
    only: Option<&'static [&'static str]>,
}

const RUNTIMES: &[&str] = &["tokio", "tonic", "dashmap", "hyper", "axum"];
const WIRES: &[&str] = &[
    "tonic",
    "rusqlite",
    "sqlite-vec",
    "serde_yaml",
    "serde-saphyr",
    "hyper",
    "reqwest",
    "axum",
];
const SQL: &[&str] = &["rusqlite", "sqlite-vec", "libsqlite3-sys"];
const CLIENTS: &[&str] = &["tonic", "rusqlite", "sqlite-vec", "libsqlite3-sys", "axum"];

const LAYERS: [Layer; 16] = [
    Layer {
        name: "memoird-core",
        ours: &[],
        banned: &[],
        only: Some(&[
            "bytesize",
            "humantime",
            "icu_provider",
            "icu_segmenter",
            "jiff",
            "memchr",
            "regex",
            "regex-automata",
            "ring",
            "rust-stemmers",
            "serde",
            "serde_json",
            "thiserror",
            "unicode-normalization",
        ]),
    },
    Layer {
        name: "memoird-formats",
        ours: &["memoird-core"],
        banned: &[],
        only: Some(&["base64", "imagesize", "serde", "serde_json", "tiktoken"]),
    },
    Layer {
        name: "memoird-store",
        ours: &["memoird-core", "memoird-proto"],
        banned: RUNTIMES,
        only: None,
    },
    Layer {
        name: "memoird-postgres",
        ours: &["memoird-core", "memoird-proto", "memoird-store"],
        banned: WIRES,
        only: None,
    },
    Layer {
        name: "memoird-engine",
        ours: &["memoird-core", "memoird-formats", "memoird-store"],
        banned: WIRES,
        only: None,
    },
    // Only store, memories and search contain SQL.
    Layer {
        name: "memoird-memories",
        ours: &[
            "memoird-core",
            "memoird-formats",
            "memoird-store",
            "memoird-engine",
            "memoird-postgres",
        ],
        banned: &[
            "tonic",
            "axum",
            "hyper",
            "reqwest",
            "serde_yaml",
            "serde-saphyr",
        ],
        only: None,
    },
    Layer {
        name: "memoird-search",
        ours: &["memoird-core", "memoird-store", "memoird-engine"],
        banned: &[
            "tonic",
            "axum",
            "hyper",
            "reqwest",
            "serde_yaml",
            "serde-saphyr",
            "sqlite-vec",
        ],
        only: None,
    },
    Layer {
        name: "memoird-http",
        ours: &[],
        banned: CLIENTS,
        only: None,
    },
    Layer {
        name: "memoird-hooks",
        ours: &["memoird-core", "memoird-engine", "memoird-http"],
        banned: CLIENTS,
        only: None,
    },
    // Implements ports of both.
    Layer {
        name: "memoird-models",
        ours: &[
            "memoird-core",
            "memoird-formats",
            "memoird-engine",
            "memoird-http",
            "memoird-memories",
        ],
        banned: CLIENTS,
        only: None,
    },
    Layer {
        name: "memoird-proto",
        ours: &[],
        banned: &[],
        only: None,
    },
    // A client like any other: no crate of the daemon, except for rules without I/O.
    Layer {
        name: "memoird-cli",
        ours: &["memoird-core", "memoird-proto"],
        banned: SQL,
        only: None,
    },
    Layer {
        name: "memoird",
        ours: &[
            "memoird-cli",
            "memoird-core",
            "memoird-formats",
            "memoird-store",
            "memoird-engine",
            "memoird-memories",
            "memoird-search",
            "memoird-hooks",
            "memoird-models",
            "memoird-postgres",
            "memoird-proto",
        ],
        banned: SQL,
        only: None,
    },
    // Used by tests only, never by shipped code.
    Layer {
        name: "memoird-fuzz",
        ours: &[],
        banned: &[],
        only: Some(&["proptest"]),
    },
    // The load generator uses only the API contract, and no crate uses it.
    Layer {
        name: "memoird-bench",
        ours: &["memoird-proto"],
        banned: SQL,
        only: None,
    },
    // End-to-end tests use every crate, and no crate uses them.
    Layer {
        name: "memoird-tests",
        ours: &[
            "memoird-core",
            "memoird-store",
            "memoird-engine",
            "memoird-proto",
            "memoird",
        ],
        banned: &[],
        only: None,
    },
];

fn metadata() -> Metadata {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let mut command = MetadataCommand::new();
    command
        .cargo_path(env!("CARGO"))
        .manifest_path(manifest)
        .no_deps();
    command.exec().expect("cargo metadata")
}

/// The normal and build dependencies of a package. Dev dependencies are unrestricted.
fn uses(package: &Package) -> BTreeSet<&str> {
    let dependencies = package.dependencies.iter();
    let counts = dependencies.filter(|dependency| dependency.kind != DependencyKind::Development);
    counts.map(|dependency| dependency.name.as_str()).collect()
}

#[test]
fn crates_depend_only_on_their_allowed_layers() {
    let metadata = metadata();
    let members: BTreeMap<&PackageName, &Package> = metadata
        .workspace_packages()
        .into_iter()
        .map(|package| (&package.name, package))
        .collect();
    let ours: BTreeSet<&str> = members.keys().map(|name| name.as_str()).collect();
    let mut mistakes = Vec::new();
    for (name, package) in &members {
        let Some(layer) = LAYERS.iter().find(|layer| layer.name == name.as_str()) else {
            mistakes.push(format!(
                "{name} has no layer; give it one, in the table too"
            ));
            continue;
        };
        for used in uses(package) {
            let is_allowed = if ours.contains(used) {
                layer.ours.contains(&used)
            } else {
                layer.only.is_none_or(|only| only.contains(&used))
            };
            if !is_allowed || layer.banned.contains(&used) {
                mistakes.push(format!("{name} may not use {used}"));
            }
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    for Layer { name, .. } in LAYERS {
        assert!(
            ours.contains(name),
            "{name} is missing: is the table out of date?"
        );
    }
}

#[test]
fn no_crate_has_a_vague_name() {
    for package in metadata().workspace_packages() {
        for word in [
            "common", "util", "utils", "types", "config", "shared", "helpers",
        ] {
            let is_vague = package.name.split(['-', '_']).any(|part| part == word);
            assert!(!is_vague, "{}: what is its one reason?", package.name);
        }
    }
}

#[test]
fn every_crate_inherits_lints_and_version_from_workspace() {
    for package in metadata().workspace_packages() {
        let manifest = std::fs::read_to_string(&package.manifest_path).expect("a manifest");
        for line in ["[lints]\nworkspace = true", "version.workspace = true"] {
            assert!(
                manifest.contains(line),
                "{}: {line:?} is missing",
                package.name
            );
        }
    }
}

/// Components of the engine, each with the components it may use.
///
/// Modules not listed here (clocks, errors, events, tenants and others) are below all of them, and
/// use none.
const COMPONENTS: [(&str, &[&str]); 8] = [
    ("journal", &[]),
    ("sessions", &["journal"]),
    ("compaction", &["sessions"]),
    ("hooks", &["sessions"]),
    ("transcripts", &["sessions"]),
    ("erasure", &["sessions", "hooks"]),
    ("commands", &["sessions", "compaction"]),
    // Composes the others.
    (
        "engine",
        &[
            "journal",
            "sessions",
            "compaction",
            "hooks",
            "transcripts",
            "erasure",
            "commands",
            "config",
        ],
    ),
];

/// The modules that follow `crate::` in a file.
fn used_modules(text: &str) -> BTreeSet<&str> {
    let paths = text.split("crate::").skip(1);
    paths
        .map(|path| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            path.split(|c| !is_part(c)).next().unwrap_or_default()
        })
        .collect()
}

#[test]
fn engine_components_depend_in_one_direction() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/engine/src");
    let mut mistakes = Vec::new();
    let mut components = BTreeSet::new();
    for file in rust_files(&root) {
        let name = file.strip_prefix(&root).expect("a file below the root");
        let name = name.to_string_lossy();
        let component = name.split(['/', '.']).next().unwrap_or_default();
        let text = std::fs::read_to_string(&file).expect("a source file");
        let known = COMPONENTS.iter().find(|(known, _)| *known == component);
        components.extend(known.map(|(known, _)| *known));
        let allowed = known.map_or(&[][..], |(_, allowed)| allowed);
        if name == "lib.rs" || name == "config.rs" {
            continue;
        }
        for used in used_modules(&text) {
            let is_component = COMPONENTS.iter().any(|(known, _)| *known == used);
            let is_above = is_component || used == "config";
            if is_above && used != component && !allowed.contains(&used) {
                mistakes.push(format!("{name} may not use {used}"));
            }
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    assert_eq!(
        components.len(),
        COMPONENTS.len(),
        "is the table out of date?"
    );
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
