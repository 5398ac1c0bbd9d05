//! Tests of valid and invalid configuration files.

mod compaction;
mod fuzz;
mod keys;
mod long_term;

use super::*;

/// Parses a file with `allow_without_keys` added.
pub(in crate::config) fn parse(text: &str) -> Result<Config, String> {
    let mut file = File::parse(text)?;
    file.server.allow_without_keys |= file.tenants.is_empty();
    let checked = check(file, &ProcessEnvironment::default());
    checked.map_err(|problem| file::without_values(&problem, text))
}

/// Parses a file as the daemon does.
fn parse_as_is(text: &str) -> Result<Config, String> {
    super::parse(text, &ProcessEnvironment::default())
}

fn problem(text: &str) -> String {
    parse(text).expect_err("a problem was expected")
}

#[test]
fn default_file_matches_component_defaults() {
    let (parsed, embedded) = (parse_as_is(DEFAULT_YAML).unwrap(), embedded().unwrap());
    assert_eq!(format!("{parsed:?}"), format!("{embedded:?}"));
}

#[test]
fn empty_file_is_the_default() {
    assert!(parse("version: 1\n").is_ok());
    assert!(parse("{}").is_ok());
}

#[test]
fn type_error_names_line_and_column() {
    for (text, part) in [
        ("version: 1\nshort_term:\n  max_turns: 5\n", "max_turns"),
        ("server: { listen: nowhere }\n", "socket"),
        (
            "short_term: { session_ttl: 5 parsecs }\n",
            "a duration such as 90s or 24h",
        ),
        (
            "limits: { metadata_bytes: big }\n",
            "a size such as 512KiB or 4MiB",
        ),
        ("journal: { durability: maybe }\n", "sync"),
        (
            "tenants: { acme: {} }\n",
            "expected a list, with `- ` before",
        ),
        ("journal: [ sync ]\n", "expected settings, as `name: value`"),
        (
            "tenants: [ { id: a, keys: [ { password: x } ] } ]\n",
            "password",
        ),
    ] {
        let problem = problem(text);
        assert!(problem.contains(part), "{problem}");
        assert!(
            problem.contains("line") && problem.contains("column"),
            "{problem}"
        );
    }
}

#[test]
fn unknown_word_is_located_with_suggestion() {
    for (text, place, meant) in [
        (
            "version: 1\nshort_term:\n  max_turns: 5\n",
            "line 3 column 3",
            "max_history_turns",
        ),
        ("shortterm: {}\n", "line 1 column 1", "short_term"),
        (
            "server:\n  listn: 127.0.0.1:1\n",
            "line 2 column 3",
            "listen",
        ),
        (
            "limits:\n  turn_bytes: 1KiB\n  hook_under_way: 3\n",
            "line 3 column 3",
            "hooks_under_way",
        ),
        (
            "compaction:\n  breaker:\n    cooldown: 3s\n",
            "line 3 column 5",
            "cool_down",
        ),
        ("journal:\n  durability: synch\n", "line 2 column", "sync"),
    ] {
        let problem = problem(text);
        let suggestion = format!("did you mean `{meant}`?");
        assert!(
            problem.contains(&suggestion) && problem.contains(place),
            "{problem}"
        );
    }
    let far = problem("colour: blue\n");
    assert!(!far.contains("did you mean"), "{far}");
}

#[test]
fn wrong_value_in_shared_section_is_located() {
    for (text, place) in [
        (
            "limits:\n  parts_per_turn: 4\n  hook_content_bytes: big\n",
            "line 3 column",
        ),
        (
            "long_term:\n  dream:\n    min_days: 1\n    interval: rarely\n",
            "line 4 column",
        ),
        (
            "context:\n  models:\n    a:\n      context_window: wide\n",
            "line 4 column",
        ),
    ] {
        let problem = problem(text);
        assert!(problem.contains(place), "{problem}");
    }
    let twice = problem("limits: { turn_bytes: 1KiB, turn_bytes: 2KiB }\n");
    assert!(twice.contains("duplicate"), "{twice}");
}

#[test]
fn semantic_errors_are_reported_together() {
    let text = "
version: 2
short_term: { max_history_turns: 0, session_ttl: 0s }
tenants:
  - { id: a, keys: [ { env: MEMOIRD_TEST_NO_SUCH_VARIABLE }, { } ] }
  - { id: a, keys: [ { sha256: xyz } ], limits: { max_history_turns: 0 } }
  - { id: b }
";
    let problem = problem(text);
    for part in [
        "9 problems",
        "version: this memoird reads version 1",
        "short_term.session_ttl: must be more than zero",
        "short_term.max_history_turns: must be at least 1",
        "tenants[1].limits.max_history_turns",
        "tenants[0].keys[0]: the environment has no variable MEMOIRD_TEST_NO_SUCH_VARIABLE",
        "tenants[0].keys[1]: must have exactly one of env, file, sha256",
        "tenants[1].id: is that of tenants[0]",
        "tenants[1].keys[0]: sha256 must have 64 hexadecimal digits",
        "tenants[2].keys: there is none",
    ] {
        assert!(problem.contains(part), "{part:?} is missing in: {problem}");
    }
}

#[test]
fn file_without_keys_must_allow_it_explicitly() {
    let line = "server: { allow_without_keys: true }";
    for text in [
        "",
        "{}",
        "version: 1\n",
        "version: 1\ntenants: [ { id: default } ]\n",
    ] {
        let problem = parse_as_is(text).expect_err("refused");
        assert!(problem.contains(line), "{problem}");
        assert!(parse_as_is(&format!("version: 1\n{line}\n")).is_ok());
    }
    let keyed = format!(
        "tenants: [ {{ id: a, keys: [ {{ sha256: '{}' }} ] }} ]",
        "0a".repeat(32)
    );
    assert!(parse_as_is(&keyed).is_ok());
    let both = parse_as_is(&format!("{line}\n{keyed}")).unwrap();
    let warned = |config: &Config, part: &str| config.warnings.iter().any(|it| it.contains(part));
    assert!(warned(&both, "allow_without_keys") && warned(&both, "version is missing"));
    assert!(warned(&embedded().unwrap(), "allow_without_keys"));
}

#[test]
fn invalid_keys_are_rejected() {
    use memoird_core::hex;

    use crate::keyring::digest;
    let hex = |key: &[u8]| hex::encode(&digest(key));
    let keyed = |key: String| format!("tenants: [ {{ id: a, keys: [ {{ {key} }} ] }} ]");
    for weak in [&b""[..], b"x", b"\n", b"\0"] {
        let problem = problem(&keyed(format!("sha256: '{}'", hex(weak))));
        assert!(problem.contains("tenants[0].keys[0]"), "{problem}");
    }
    assert!(parse(&keyed(format!("sha256: '{}'", hex(b"a key of its own")))).is_ok());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    for (key, is_one) in [
        ("", false),
        (" \n", false),
        ("1234567", false),
        ("12345678", true),
    ] {
        std::fs::write(&file, key).unwrap();
        let parsed = parse(&keyed(format!("file: {file:?}")));
        assert_eq!(parsed.is_ok(), is_one, "{key:?}");
        let told = parsed.err().unwrap_or_default();
        assert!(key.trim().is_empty() || !told.contains(key), "{told}");
    }
}

#[test]
fn key_that_no_client_can_send_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    let keyed = format!("tenants: [ {{ id: a, keys: [ {{ file: {file:?} }} ] }} ]");
    for (key, is_one) in [
        ("the-first-key\nthe-second-key\n", false),
        ("a-key-in-two\tparts", false),
        ("schlüssel", false),
        ("  words with blanks ", true),
        ("a+/=~key", true),
    ] {
        std::fs::write(&file, key).unwrap();
        let parsed = parse(&keyed);
        assert_eq!(parsed.is_ok(), is_one, "{key:?}");
        let told = parsed.err().unwrap_or_default();
        let shown = key.lines().any(|line| told.contains(line));
        assert!(
            is_one || told.contains("tenants[0].keys[0]: has characters") && !shown,
            "{told}"
        );
    }
}

#[test]
fn keyless_callers_are_reachable_and_map_to_one_tenant() {
    let tenants = "tenants: [ { id: a }, { id: b } ]";
    let peers = |listen: &str, peers: &str| {
        parse(&format!(
            "server: {{ listen: {listen}, unix: {{ peers: [ {peers} ] }} }}\n{tenants}"
        ))
    };
    let (one, other) = ("{ uid: 7, tenant: a }", "{ uid: 8, tenant: b }");
    assert!(peers("unix:/run/a.sock", &format!("{one}, {other}")).is_ok());
    let twice = peers(
        "unix:/run/a.sock",
        &format!("{other}, {one}, {{ uid: 8, tenant: a }}"),
    );
    let problem = twice.expect_err("of two tenants");
    let place = "server.unix.peers[2].uid: is that of server.unix.peers[0]";
    assert!(problem.contains(place), "{problem}");
    let problem = peers("127.0.0.1:1", one).expect_err("nobody calls by it");
    assert!(
        problem.contains("server.unix.peers: require a Unix socket"),
        "{problem}"
    );
    let tls = "tls: { certificate: /none/c, key: /none/k, client_ca: /none/ca }";
    let text = format!("server: {{ listen: 'unix:/run/a.sock', {tls} }}\n{tenants}");
    let problem = parse(&text).expect_err("nobody calls by it");
    assert!(
        problem.contains("server.tls.client_ca: requires TLS"),
        "{problem}"
    );
}

#[test]
fn hook_of_unknown_tenant_causes_warning() {
    let warned = |tenants: &str| {
        let hook = format!("{{ name: h, tenants: [ {tenants} ], exec: {{ argv: [ a ] }} }}");
        let config = parse(&format!(
            "hooks: [ {hook} ]\nserver: {{ allow_without_keys: true }}"
        ));
        let warnings = config.unwrap().warnings;
        warnings
            .iter()
            .any(|it| it.starts_with("hooks: h names the tenant acmee"))
    };
    assert!(warned("default, acmee"));
    assert!(!warned("default") && !warned(""));
}

#[test]
fn overlong_durations_are_rejected() {
    for key in [
        "handshake_timeout",
        "keyless_timeout",
        "max_age",
        "max_age_grace",
    ] {
        let with = |span: &str| format!("server: {{ connections: {{ {key}: {span} }} }}");
        let problem = problem(&with("500000000000y"));
        assert!(
            problem.contains(&format!("server.connections.{key}: must be at most")),
            "{problem}"
        );
        assert!(parse(&with("36500d")).is_ok());
    }
    let problem = problem("server: { shutdown_grace: 500000000000y }");
    assert!(problem.contains("server.shutdown_grace"), "{problem}");
}

#[test]
fn plain_text_connections_cause_warnings() {
    let key = "tenants: [ { id: a, keys: [ { sha256: '0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a\
               0a0a0a0a0a0a0a0a' } ] }]\n";
    let secret = "{ file: /dev/null }";
    let of = |text: &str| {
        let file = File::parse(&format!("{key}{text}")).unwrap();
        plain_text::warnings(&file)
    };
    for (text, place) in [
        ("server: { listen: 0.0.0.0:1 }", "server.listen"),
        ("server: { listen: 10.0.0.1:1 }", "server.listen"),
        ("server: { admin_listen: '[::]:1' }", "server.admin_listen"),
        (
            &format!(
                "compaction: {{ summarizer: {{ openai: {{ model: m, base_url: 'http://10.0.0.1/v1', \
                 api_key: {secret} }} }} }}"
            ),
            "compaction.summarizer.openai.base_url",
        ),
        (
            &format!(
                "hooks: [ {{ name: h, webhook: {{ url: 'http://a.example/', secret: {secret} }} }} ]"
            ),
            "hooks[0].webhook.url",
        ),
        (
            &format!(
                "hooks: [ {{ name: h, webhook: {{ url: 'HTTP://a.example', secret_headers: \
                 {{ x-key: {secret} }} }} }} ]"
            ),
            "hooks[0].webhook.url",
        ),
        (
            &format!(
                "context: {{ models: {{ m: {{ context_window: 9999, counter: {{ openai: {{ \
                 base_url: 'http://a.example', api_key: {secret} }} }} }} }} }}"
            ),
            "context.models.m.counter.openai.base_url",
        ),
    ] {
        let warnings = of(text);
        assert!(
            warnings.len() == 1 && warnings[0].starts_with(&format!("{place}: ")),
            "{text}: {warnings:?}"
        );
    }
    for fine in [
        "server: { listen: '[::1]:1', admin_listen: 10.0.0.1:1 }",
        "hooks: [ { name: h, webhook: { url: 'http://a.example/' } } ]",
        &format!(
            "hooks: [ {{ name: h, webhook: {{ url: 'https://a.example/', secret: {secret} }} }} ]"
        ),
        &format!(
            "hooks: [ {{ name: h, webhook: {{ url: 'http://[::1]:9/', secret: {secret} }} }} ]"
        ),
    ] {
        assert_eq!(of(fine), [""; 0], "{fine}");
    }
}

#[test]
fn without_keys_only_loopback_is_served() {
    let problem = problem("server: { listen: 0.0.0.0:7717 }\n");
    assert!(
        problem.contains("server.listen") && problem.contains("keys"),
        "{problem}"
    );
    assert!(parse("server: { listen: '[::1]:7717' }\n").is_ok());
    let keyed = format!(
        "server: {{ listen: 0.0.0.0:7717 }}\ntenants: [ {{ id: a, keys: [ {{ sha256: '{}' }} ] }} ]",
        "0a".repeat(32)
    );
    assert!(parse(&keyed).is_ok());
}

#[test]
fn durability_off_without_cap_causes_warning() {
    for word in ["sync", "interval", "off", "'off'"] {
        assert!(
            parse(&format!("journal: {{ durability: {word} }}")).is_ok(),
            "{word}"
        );
    }
    let config = parse("short_term: { max_sessions: 0 }").unwrap();
    assert!(
        config
            .warnings
            .iter()
            .any(|warning| warning.contains("max_sessions is 0"))
    );
}

#[test]
fn unlimited_tenant_journals_cause_warning() {
    let warned = |limits: &str, more: &str| {
        let tenant = |id: &str, digit: &str, limits: &str| {
            let hex = digit.repeat(32);
            let role = if id == "b" && more.contains("admin") {
                "admin"
            } else {
                "bot"
            };
            format!(
                "{{ id: {id}, keys: [ {{ sha256: '{hex}', role: {role} }} ], limits: {{ {limits} }} }}"
            )
        };
        let (a, b) = (tenant("a", "0a", limits), tenant("b", "0b", ""));
        let tenants = if more.contains("alone") {
            a
        } else {
            format!("{a}, {b}")
        };
        let config = parse(&format!("tenants: [ {tenants} ]\n{more}")).unwrap();
        let mut warnings = config.warnings.iter();
        warnings.any(|warning| warning.starts_with("no tenant has limits.journal_bytes"))
    };
    assert!(warned("", ""));
    assert!(warned("journal_bytes: 0", ""));
    assert!(!warned("journal_bytes: 1GiB", ""));
    assert!(!warned("", "# alone"));
    assert!(!warned("", "# admin"), "operators are trusted");
    assert!(!warned("", "journal: { durability: off }"));
}

#[test]
fn key_of_two_tenants_is_rejected() {
    let hex = "0b".repeat(32);
    let key = format!("keys: [ {{ sha256: '{hex}' }} ]");
    let text = format!("tenants: [ {{ id: a, {key} }}, {{ id: b, {key} }} ]");
    assert!(problem(&text).contains("the same key as tenants[0].keys[0]"));
}

#[test]
fn search_can_be_disabled_and_share_is_validated() {
    assert!(!parse("search: { enabled: false }").unwrap().search.enabled);
    for share in ["0%", "101%"] {
        let problem = problem(&format!("search: {{ cpu_share: {share} }}"));
        assert!(problem.contains("search.cpu_share"), "{problem}");
    }
}

#[test]
fn errors_never_quote_values_of_the_file() {
    let secret = "hunter2XyZ";
    let mut quoted = Vec::new();
    for text in [
        "server: { listen: SECRET }",
        "data_dir: [ SECRET ]",
        "short_term: { max_sessions: SECRET }",
        "short_term: { session_ttl: SECRET }",
        "limits: { turn_bytes: 'SECRET\"' }",
        "journal: { durability: SECRET }",
        "log: SECRET",
        "log: { filter: 'SECRET=[[' }",
        "log: { filter: 'info,SECRET=noise' }",
        "SECRET: 1",
        "SECRET",
        "[ SECRET ]",
        "short_term: [ SECRET",
        "short_term: { SECRET: 1, SECRET: 2 }",
        "short_term: \"SECRET",
        "a: *SECRET",
        "nonsense: 1\nhooks: [ { name: h, webhook: { url: 'https://x/?token=SECRET' } } ]",
        "hooks: [ { name: h, webhook: { url: 'https://x/?token=SECRET', port: 1 } } ]",
        "hooks: [ { name: h, exec: { argv: SECRET } } ]",
        "hooks: [ { name: h, exec: { argv: [ a ], env: [ 'SECRET=1' ] } } ]",
        "hooks: [ { name: 'h SECRET', exec: { argv: [ a ] } } ]",
        "hooks: [ { name: h, tenants: [ 'a SECRET' ], exec: { argv: [ a ] } } ]",
        "hooks: [ { name: h, webhook: { url: 'ftp://u:SECRET@x/' } } ]",
        "hooks: [ { name: h, webhook: { url: 'SECRET' } } ]",
        "hooks: [ { name: h, webhook: { url: 'https://x/', headers: { a: \"SECRET\\n\" } } } ]",
        "hooks: [ { name: h, webhook: { url: 'https://x/', headers: { 'SECRET x': b } } } ]",
        "hooks: [ { name: h, webhook: { url: 'https://x/', secret: { env: SECRET } } } ]",
        "hooks: [ { name: h, webhook: { url: 'https://x/', secret: { file: SECRET } } } ]",
        "hooks: [ { name: h, git: { dir: /x, branch: 'SECRET ..' } } ]",
        "compaction: { summarizer: { openai: { model: m, base_url: 'ftp://u:SECRET@x' } } }",
        "compaction: { summarizer: { openai: { model: m, base_url: 'SECRET' } } }",
        "compaction: { summarizer: SECRET }",
        "compaction: { summarizer: { SECRET: {} } }",
        "context: { default_model: SECRET }",
        "long_term: { embedder: { openai: { model: m, base_url: 'http://SECRET:x' } } }",
        "tenants: [ { id: 'a SECRET', keys: [ { sha256: SECRET } ] } ]",
        "tenants: [ { id: a, keys: [ { env: SECRET } ] } ]",
        "tenants: [ { id: a, keys: [ { file: SECRET } ] } ]",
        "tenants: [ { id: a, keys: [ { SECRET } ] } ]",
        "tenants: [ { id: a, keys: [ { env: A, role: SECRET } ] } ]",
    ] {
        for secret in [secret, "HUNTER2XYZ"] {
            // Some of these are valid. Then there is no error.
            let problem = parse(&text.replace("SECRET", secret))
                .err()
                .unwrap_or_default();
            if problem.contains(secret) {
                quoted.push(problem);
            }
        }
    }
    assert!(quoted.is_empty(), "{quoted:#?}");
}

#[test]
fn key_in_file_is_not_shown() {
    let key = "sk-live-0123456789";
    for section in [
        format!("tenants: [ {{ id: a, keys: [ {key} ] }} ]"),
        format!("tenants:\n  - id: a\n    keys:\n      - {key}\n"),
        format!("tenants: [ {{ id: a, keys: [ {{ key: {key} }} ] }} ]"),
        format!("nonsense: 1\ntenants: [ {{ id: a, keys: [ {{ key: {key} }} ] }} ]"),
        format!("hooks: [ {{ name: h, webhook: {{ url: \"https://x\", secret: {key} }} }} ]"),
        format!("compaction: {{ summarizer: {{ openai: {{ model: m, api_key: {key} }} }} }}"),
    ] {
        let problem = parse(&section).expect_err("refused");
        assert!(!problem.contains(key), "{problem}");
        assert!(problem.contains("{ env: NAME }"), "{problem}");
    }
}

#[test]
fn key_in_place_of_variable_name_is_not_shown() {
    let problem = parse("tenants: [ { id: a, keys: [ { env: sk-live-0123456789 } ] } ]")
        .expect_err("refused");
    assert!(
        !problem.contains("sk-live") && problem.contains("keys[0]"),
        "{problem}"
    );
}

#[test]
fn turn_bytes_limits_media_size() {
    let sizes = |text: &str| {
        let config = parse(text).expect(text);
        let limits = &config.engine.limits;
        let sizes = [
            limits.turn_bytes,
            limits.max_history_bytes,
            config.request_bytes(),
        ];
        sizes.map(|bytes| bytes >> 20)
    };
    for (text, expected) in [
        ("limits: { memory: 1GiB }", [20, 40, 30]),
        ("limits: { memory: 0 }", [20, 40, 30]),
        ("limits: { memory: 256MiB }", [8, 16, 14]),
        ("limits: { memory: 64MiB }", [2, 8, 8]),
        ("limits: { turn_bytes: 50MiB }", [50, 100, 70]),
        ("limits: { turn_bytes: 1MiB }", [1, 8, 8]),
        (
            "limits: { memory: 1GiB }\nshort_term: { max_history_bytes: 4MiB }",
            [4, 4, 9],
        ),
        (
            "limits: { memory: 1GiB }\nserver: { max_request_bytes: 8MiB }",
            [8, 16, 8],
        ),
    ] {
        assert_eq!(sizes(text), expected, "{text}");
    }
}

#[test]
fn turn_bytes_above_related_limit_names_both_settings() {
    for (text, around) in [
        (
            "short_term: { max_history_bytes: 4MiB }",
            "short_term.max_history_bytes is 4MiB",
        ),
        (
            "server: { max_request_bytes: 8MiB }",
            "server.max_request_bytes is 8MiB",
        ),
    ] {
        let problem = problem(&format!("limits: {{ turn_bytes: 16MiB }}\n{text}"));
        assert!(problem.contains("limits.turn_bytes: is 16MiB"), "{problem}");
        assert!(problem.contains(around), "{problem}");
    }
}
