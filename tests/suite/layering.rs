//! The layers of the house, read from what cargo knows: an edge that ARCHITECTURE.md's
//! table does not have is a mistake, whoever drew it.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageName};

/// What may stand in a crate beside its own lines.
struct Layer {
    name: &'static str,
    /// Our crates that it may use.
    ours: &'static [&'static str],
    /// Foreign crates that it may not use.
    banned: &'static [&'static str],
    /// The only foreign crates that it may use; `None`: any that is not banned.
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

const LAYERS: [Layer; 10] = [
    Layer {
        name: "memoird-core",
        ours: &[],
        banned: &[],
        only: Some(&[
            "bytesize",
            "humantime",
            "imagesize",
            "regex",
            "rust-stemmers",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tiktoken",
            "unicode-normalization",
        ]),
    },
    Layer {
        name: "memoird-store",
        ours: &["memoird-core", "memoird-proto"],
        banned: RUNTIMES,
        only: None,
    },
    Layer {
        name: "memoird-engine",
        ours: &["memoird-core", "memoird-store"],
        banned: WIRES,
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
    Layer {
        name: "memoird-models",
        ours: &["memoird-core", "memoird-engine", "memoird-http"],
        banned: CLIENTS,
        only: None,
    },
    Layer {
        name: "memoird-proto",
        ours: &[],
        banned: &[],
        only: None,
    },
    Layer {
        name: "memoird",
        ours: &[
            "memoird-core",
            "memoird-store",
            "memoird-engine",
            "memoird-hooks",
            "memoird-models",
            "memoird-proto",
        ],
        banned: SQL,
        only: None,
    },
    // The load generator knows the contract only, and is used by nobody.
    Layer {
        name: "memoird-bench",
        ours: &["memoird-proto"],
        banned: SQL,
        only: None,
    },
    // Tests use everything; they are used by nobody.
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

/// What a package uses when it runs or is built; what only its tests use is free.
fn uses(package: &Package) -> BTreeSet<&str> {
    let dependencies = package.dependencies.iter();
    let counts = dependencies.filter(|dependency| dependency.kind != DependencyKind::Development);
    counts.map(|dependency| dependency.name.as_str()).collect()
}

#[test]
fn every_crate_uses_what_its_layer_may_use() {
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
            let is_allowed = match ours.contains(used) {
                true => layer.ours.contains(&used),
                false => layer.only.is_none_or(|only| only.contains(&used)),
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
fn no_crate_is_named_after_nothing_in_particular() {
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
fn every_crate_takes_its_lints_and_its_version_from_the_workspace() {
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
