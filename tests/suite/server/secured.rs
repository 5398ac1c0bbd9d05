//! TLS, client certificates instead of keys, and Unix sockets.

use std::error::Error;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use memoird_proto::v1::ListSessionsRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::harness::{
    Authority, Daemon, Outcome, Sessions, Setup, append, ask_as, closed, connect_from, eventually,
    fails, http_get, refused, run, say, sessions_at_socket, sessions_by_tls, tls_stream, user,
};
use crate::repo::deploy::metrics_shown;

/// The number of sessions of the client's tenant.
async fn count(client: &mut Sessions) -> usize {
    let listed = client.list_sessions(ListSessionsRequest::default()).await;
    listed.expect("listed").into_inner().sessions.len()
}

async fn try_append(mut client: Sessions) -> Result<(), Status> {
    let appended = client.append(append("chat", [user("hi")])).await;
    appended.map(drop)
}

/// Asserts that a call fails because there is no connection.
async fn check_not_connected(client: Sessions) {
    let status = try_append(client).await.expect_err("no connection");
    assert!(
        status.details().is_empty(),
        "the daemon answered: {status:?}"
    );
    assert!(
        status.source().is_some(),
        "it is of the connection: {status:?}"
    );
}

#[tokio::test]
async fn tls_accepts_keys_and_client_certificates() {
    let ours = Authority::new(&["alpha", "nobody"]).await;
    let theirs = Authority::new(&["alpha"]).await;
    let ca = ours.file("ca.pem");
    let setting = ours.setting(&format!(", client_ca: {ca:?}, admin: false"));
    let daemon = Daemon::with(Setup::default().two_tenants("", "").server(&setting)).await;
    let addr = daemon.grpc_addr();
    // No TLS, an untrusted server certificate, or a client certificate of another CA.
    check_not_connected(daemon.sessions_of(Setup::ALPHA)).await;
    check_not_connected(sessions_by_tls(
        addr,
        theirs.client(None),
        Some(Setup::ALPHA),
    ))
    .await;
    let stranger = ours.client(Some((&theirs, "alpha")));
    check_not_connected(sessions_by_tls(addr, stranger, None)).await;
    // With a key, with a client certificate, and with neither.
    say(
        &mut sessions_by_tls(addr, ours.client(None), Some(Setup::BETA)),
        "b",
        "hi",
    )
    .await;
    let certified = || ours.client(Some((&ours, "alpha")));
    let mut alpha = sessions_by_tls(addr, certified(), None);
    say(&mut alpha, "a1", "hi").await;
    say(&mut alpha, "a2", "hi").await;
    assert_eq!(count(&mut alpha).await, 2);
    let mut by_key = sessions_by_tls(addr, ours.client(None), Some(Setup::ALPHA));
    assert_eq!(count(&mut by_key).await, 2, "the same tenant");
    // A key takes precedence over a certificate.
    let mut both = sessions_by_tls(addr, certified(), Some(Setup::BETA));
    assert_eq!(count(&mut both).await, 1);
    let code = Code::Unauthenticated;
    let hello = || append("chat", [user("hi")]);
    let neither = sessions_by_tls(addr, ours.client(None), None)
        .append(hello())
        .await;
    refused(neither, code, "NO_KEY");
    let unknown = ours.client(Some((&ours, "nobody")));
    let unknown = sessions_by_tls(addr, unknown, None).append(hello()).await;
    refused(unknown, code, "WRONG_CERTIFICATE");
    let wrong = sessions_by_tls(addr, certified(), Some("wrong"))
        .append(hello())
        .await;
    refused(wrong, code, "WRONG_KEY");
}

#[tokio::test]
async fn tenant_from_certificate_common_name_needs_no_key() {
    let ours = Authority::new(&["alpha"]).await;
    let ca = ours.file("ca.pem");
    let setting = ours.setting(&format!(
        ", client_ca: {ca:?}, client_tenant: cn, admin: false"
    ));
    let setup = Setup::default()
        .server(&setting)
        .section("tenants: [ { id: alpha } ]");
    let daemon = Daemon::with(setup).await;
    let addr = daemon.grpc_addr();
    let certified = ours.client(Some((&ours, "alpha")));
    say(&mut sessions_by_tls(addr, certified, None), "chat", "hi").await;
    let without = try_append(sessions_by_tls(addr, ours.client(None), None)).await;
    assert_eq!(without.expect_err("no key").code(), Code::Unauthenticated);
}

#[tokio::test]
async fn tenant_from_certificate_uri_is_accepted() {
    let ours = Authority::new(&["alpha", "nobody"]).await;
    let theirs = Authority::new(&["alpha"]).await;
    let ca = ours.file("ca.pem");
    let setting = ours.setting(&format!(
        ", client_ca: {ca:?}, client_tenant: san_uri, admin: false"
    ));
    let daemon = Daemon::with(Setup::default().two_tenants("", "").server(&setting)).await;
    let addr = daemon.grpc_addr();
    let mut alpha = sessions_by_tls(addr, ours.client(Some((&ours, "alpha"))), None);
    say(&mut alpha, "a", "hi").await;
    let mut by_key = sessions_by_tls(addr, ours.client(None), Some(Setup::ALPHA));
    assert_eq!(count(&mut by_key).await, 1, "the same tenant");
    let mut beta = sessions_by_tls(addr, ours.client(None), Some(Setup::BETA));
    assert_eq!(count(&mut beta).await, 0, "another one");
    let unknown = sessions_by_tls(addr, ours.client(Some((&ours, "nobody"))), None)
        .append(append("chat", [user("hi")]))
        .await;
    refused(unknown, Code::Unauthenticated, "WRONG_CERTIFICATE");
    let foreign = ours.client(Some((&theirs, "alpha")));
    check_not_connected(sessions_by_tls(addr, foreign, None)).await;
}

#[tokio::test]
async fn unfinished_tls_handshake_does_not_delay_stop() {
    let ours = Authority::new(&[]).await;
    let setup = Setup::default()
        .server(&ours.setting(""))
        .server("shutdown_grace: 2s")
        .server("connections: { handshake_timeout: 1h, keyless_timeout: 1h }");
    let mut daemon = Daemon::with(setup).await;
    let mut waiting = Vec::new();
    for addr in [daemon.grpc_addr(), daemon.admin_addr()] {
        for begun in [
            &b""[..],
            b"\x16\x03\x01",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        ] {
            let mut stream = connect_from("127.0.0.1", addr).await;
            stream.write_all(begun).await.expect("sent");
            waiting.push(stream);
        }
    }
    // The stalled connections were accepted before this one.
    let mut client = sessions_by_tls(daemon.grpc_addr(), ours.client(None), None);
    say(&mut client, "chat", "hi").await;
    drop(client);
    let grace = Duration::from_secs(2);
    let stopped = tokio::time::timeout(4 * grace, daemon.stop()).await;
    stopped.expect("it stops within its grace");
    for stream in &mut waiting {
        closed(stream).await;
    }
}

#[tokio::test]
async fn command_line_connects_over_tls() {
    let ours = Authority::new(&["alpha"]).await;
    let mode = |name| {
        ours.path(name)
            .metadata()
            .expect("a file")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!((mode("server-key.pem"), mode("server.pem")), (0o600, 0o644));
    let again = run(&["cert", &ours.file("")], &[]).await;
    fails(&again, 73, "is there already");
    let ca = ours.file("ca.pem");
    let setting = ours.setting(&format!(", client_ca: {ca:?}"));
    let daemon = Daemon::with(Setup::default().two_tenants("", "").server(&setting)).await;
    let port = daemon.grpc_addr().rsplit_once(':').expect("a port").1;
    let addr = format!("https://localhost:{port}");
    let list = ["--url", &addr, "sessions", "list"];
    let (cert, key) = (
        ours.file("client-alpha.pem"),
        ours.file("client-alpha-key.pem"),
    );
    let by_key = run(&list, &[("MEMOIRD_CA", &ca), ("MEMOIRD_KEY", Setup::ALPHA)]).await;
    assert_eq!(by_key.code, Some(0), "{by_key:?}");
    let flags = ["--ca", &ca, "--cert", &cert, "--cert-key", &key];
    let by_certificate = run(&[&list[..], &flags[..]].concat(), &[]).await;
    assert_eq!(by_certificate.code, Some(0), "{by_certificate:?}");
    let health = run(&["--addr", &addr, "--ca", &ca, "health"], &[]).await;
    assert_eq!(health.code, Some(0), "{health:?}");
    fails(
        &run(&list, &[("MEMOIRD_KEY", Setup::ALPHA)]).await,
        69,
        "does not answer",
    );
    // The admin port uses TLS, too.
    let config = ours.client(None);
    let mut page = tls_stream(daemon.admin_addr(), config).await.expect("TLS");
    let request = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    page.write_all(request).await.expect("sent");
    let mut text = Vec::new();
    // The connection may end without `close_notify`.
    let _ = page.read_to_end(&mut text).await;
    assert!(text.starts_with(b"HTTP/1.1 200"), "{}", text.escape_ascii());
}

#[tokio::test]
async fn renewed_certificate_is_used_and_broken_one_is_ignored() {
    let (first, second) = (Authority::new(&[]).await, Authority::new(&[]).await);
    let setting = first.setting(", admin: false");
    let daemon = Daemon::with(Setup::default().two_tenants("", "").server(&setting)).await;
    let client =
        |of: &Authority| sessions_by_tls(daemon.grpc_addr(), of.client(None), Some(Setup::ALPHA));
    let mut early = client(&first);
    say(&mut early, "chat", "hi").await;
    for name in ["server.pem", "server-key.pem"] {
        std::fs::copy(second.path(name), first.path(name)).expect("renewed");
    }
    eventually("the new certificate is used", async || {
        try_append(client(&second)).await.ok()
    })
    .await;
    check_not_connected(client(&first)).await;
    say(&mut early, "chat", "its connection goes on").await;
    std::fs::write(first.path("server-key.pem"), "no key").expect("broken");
    eventually("the log says it", async || {
        let log = daemon.log();
        (log.contains("server-key.pem") && log.contains("the current one stays in effect"))
            .then_some(())
    })
    .await;
    say(&mut client(&second), "chat", "hi").await;
}

#[tokio::test]
async fn expiring_certificate_is_reported_until_renewed() {
    let (ours, renewed) = (Authority::new(&[]).await, Authority::new(&[]).await);
    ours.end_in(Duration::from_secs((5 * 24 - 1) * 60 * 60));
    let setup = Setup::default().server(&ours.setting(", admin: false"));
    let daemon = Daemon::with(setup).await;
    let told = "server.tls.certificate ends on ";
    assert!(daemon.log().contains(told), "{}", daemon.log());
    let name = "memoird_tls_certificate_remaining_seconds";
    assert!(metrics_shown().contains(name), "an alert watches it");
    let days = async || {
        let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
        let left = page.lines().find_map(|line| line.strip_prefix(name));
        let left: i64 = left.expect("a metric").trim().parse().expect("seconds");
        left / (24 * 60 * 60)
    };
    assert_eq!(days().await, 4, "and some hours");
    for name in ["server.pem", "server-key.pem"] {
        std::fs::copy(renewed.path(name), ours.path(name)).expect("renewed");
    }
    eventually("the renewed one is used", async || {
        (days().await > 14).then_some(())
    })
    .await;
}

#[tokio::test]
async fn invalid_certificate_pair_fails_start() {
    let ours = Authority::new(&[]).await;
    std::fs::write(ours.path("server.pem"), "nothing").expect("written");
    let setup = Setup::default().server(&ours.setting(""));
    let refused = Daemon::refused(&setup).await;
    assert_eq!(refused.code, Some(64), "{refused:?}");
    assert!(refused.stderr.contains("server.tls"), "{}", refused.stderr);
}

#[tokio::test]
async fn connection_that_never_starts_tls_is_closed() {
    let ours = Authority::new(&[]).await;
    let setup = Setup::default()
        .server(&ours.setting(""))
        .server("connections: { handshake_timeout: 300ms, keyless_timeout: 300ms }");
    let daemon = Daemon::with(setup).await;
    for addr in [daemon.grpc_addr(), daemon.admin_addr()] {
        for hello in [&b""[..], b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"] {
            let mut stream = connect_from("127.0.0.1", addr).await;
            stream.write_all(hello).await.expect("sent");
            closed(&mut stream).await;
        }
    }
    let mut client = sessions_by_tls(daemon.grpc_addr(), ours.client(None), None);
    say(&mut client, "chat", "hi").await;
}

#[tokio::test]
async fn unix_socket_identifies_peers_by_uid() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("grpc.sock");
    let uid = home.path().metadata().expect("a directory").uid();
    let setup = |mode: &str, uid: u32| {
        let unix = format!("unix: {{ mode: {mode}, peers: [ {{ uid: {uid}, tenant: beta }} ] }}");
        let setup = Setup::default().two_tenants("", "").server(&unix);
        setup.listen(&format!("unix:{}", path.display()))
    };
    let mode = |path: &Path| path.metadata().expect("a socket").permissions().mode() & 0o777;
    let mut daemon = Daemon::with(setup("0600", uid)).await;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(daemon.grpc_addr(), format!("unix:{}", path.display()));
    let mut beta = sessions_at_socket(&path, None);
    say(&mut beta, "b", "hi").await;
    let mut alpha = sessions_at_socket(&path, Some(Setup::ALPHA));
    assert_eq!(count(&mut alpha).await, 0, "a key that is given decides");
    let listed = run(&["--addr", daemon.grpc_addr(), "sessions", "list"], &[]).await;
    assert!(listed.stdout.contains('b'), "{listed:?}");
    // A stale socket of a killed daemon does not prevent the next start.
    daemon.kill9().await;
    assert!(path.exists());
    daemon.restart_with(setup("0660", uid + 1)).await;
    assert_eq!(mode(&path), 0o660);
    let other = sessions_at_socket(&path, None)
        .append(append("chat", [user("hi")]))
        .await;
    refused(other, Code::Unauthenticated, "NO_KEY");
    let second = Daemon::refused(&setup("0600", uid)).await;
    assert!(second.stderr.contains("cannot listen"), "{second:?}");
    daemon.stop().await;
    assert!(!path.exists(), "it leaves no socket");
}

#[tokio::test]
async fn wrong_keys_over_unix_socket_are_delayed() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("grpc.sock");
    let setup = Setup::default().two_tenants("", "");
    let _daemon = Daemon::with(setup.listen(&format!("unix:{}", path.display()))).await;
    let guess = |number: usize| {
        let mut guessing = sessions_at_socket(&path, Some(&format!("guess-{number}")));
        async move { guessing.append(append("chat", [user("hi")])).await }
    };
    for number in 0..20 {
        refused(guess(number).await, Code::Unauthenticated, "WRONG_KEY");
    }
    // A wrong key is answered later than a good key sent after it.
    let mut guesses = JoinSet::new();
    for number in 20..28 {
        guesses.spawn(guess(number));
    }
    let mut client = sessions_at_socket(&path, Some(Setup::ALPHA));
    for text in ["one", "two", "three"] {
        say(&mut client, "chat", text).await;
    }
    assert!(guesses.try_join_next().is_none(), "a guess was as fast");
    for answer in guesses.join_all().await {
        refused(answer, Code::Unauthenticated, "WRONG_KEY");
    }
}

/// gRPC's C core sends the path of the socket, percent-encoded, as the authority of each call.
#[tokio::test]
async fn socket_path_as_authority_is_accepted() {
    const WINDOW_UPDATE: u8 = 8;
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("grpc.sock");
    let setup = Setup::default().listen(&format!("unix:{}", path.display()));
    let _daemon = Daemon::with(setup).await;
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).expect("a short frame");
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
    };
    // As sent by grpcio 1.85.
    let field = |name: &str, value: &str| {
        let text = |text: &str| {
            let length = u8::try_from(text.len()).expect("a short text");
            [&[length], text.as_bytes()].concat()
        };
        [vec![0x40], text(name), text(value)].concat()
    };
    let fields = [
        field(":path", "/memoird.v1.SessionService/ListSessions"),
        field(":authority", "tmp%2Fmemoird%2Fgrpc.sock"),
        vec![0x83, 0x86],
        field("content-type", "application/grpc"),
        field("te", "trailers"),
    ]
    .concat();
    // The second call has indices of the fields that the first one has sent.
    let again = [0xc1, 0xc0, 0x83, 0x86, 0xbf, 0xbe];
    let mut socket = UnixStream::connect(&path).await.expect("connected");
    let sent = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &fields),
        frame(0, 1, 1, &[0; 5]),
    ];
    socket.write_all(&sent.concat()).await.expect("sent");
    let mut answered = Vec::new();
    while answered.len() < 2 {
        let mut header = [0; 9];
        socket.read_exact(&mut header).await.expect("a frame");
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; length as usize];
        socket.read_exact(&mut payload).await.expect("its payload");
        let (kind, stream) = (header[3], header[8]);
        let is_first = stream > 0 && !answered.contains(&stream);
        if is_first && kind != WINDOW_UPDATE {
            assert_eq!((kind, payload.first()), (1, Some(&0x88)), "status 200");
            answered.push(stream);
            if stream == 1 {
                let second = [frame(1, 4, 3, &again), frame(0, 1, 3, &[0; 5])];
                socket.write_all(&second.concat()).await.expect("sent");
            }
        }
    }
    assert_eq!(answered, [1, 3]);
}

#[tokio::test]
async fn unix_socket_without_keys_needs_no_key() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("grpc.sock");
    let setup = Setup::default().listen(&format!("unix:{}", path.display()));
    let _daemon = Daemon::with(setup).await;
    say(&mut sessions_at_socket(&path, None), "chat", "hi").await;
}

async fn reload_by_tls(daemon: &Daemon, authority: &Authority) -> Outcome {
    let port = daemon.grpc_addr().rsplit_once(':').expect("a port").1;
    let addr = format!("https://localhost:{port}");
    let ca = authority.file("ca.pem");
    let args = ["--addr", &addr, "--ca", &ca, "reload", "--json"];
    run(&args, &[("MEMOIRD_KEY", Setup::ADMIN)]).await
}

/// Asserts that a reload refused to change this setting.
#[track_caller]
fn check_setting_refused(outcome: &Outcome, setting: &str) {
    let refused = outcome.json()["refused"].to_string();
    assert!(refused.contains(setting), "{refused}");
}

#[tokio::test]
async fn reload_cannot_remove_client_certificates_but_can_remove_tenant() {
    let ours = Authority::new(&["alpha"]).await;
    let with_clients = ours.setting(&format!(", client_ca: {:?}", ours.file("ca.pem")));
    let mut daemon = Daemon::with(Setup::default().two_tenants("", "").server(&with_clients)).await;
    let addr = daemon.grpc_addr().to_owned();
    let certified = || sessions_by_tls(&addr, ours.client(Some((&ours, "alpha"))), None);
    say(&mut certified(), "chat", "hi").await;
    let without = ours.setting("");
    daemon.rewrite(Setup::default().two_tenants("", "").server(&without));
    check_setting_refused(&reload_by_tls(&daemon, &ours).await, "server.tls");
    say(&mut certified(), "chat", "as before").await;
    // Removing a tenant cuts off its clients, even those without a key.
    let beta_only = "tenants: [ { id: beta, keys: [ { env: B }, { env: O, role: admin } ] } ]";
    let keys = Setup::default().two_tenants("", "").env;
    let mut fewer = Setup::default().server(&with_clients).section(beta_only);
    fewer.env = keys;
    daemon.rewrite(fewer);
    let applied = reload_by_tls(&daemon, &ours).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    let gone = certified().append(append("chat", [user("hi")])).await;
    refused(gone, Code::Unauthenticated, "WRONG_CERTIFICATE");
}

#[tokio::test]
async fn reload_cannot_remove_unix_socket_peers() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("grpc.sock");
    let uid = home.path().metadata().expect("a directory").uid();
    let setup = |peers: &str| {
        let unix = format!("unix: {{ mode: 0600, peers: [ {peers} ] }}");
        let setup = Setup::default().two_tenants("", "").server(&unix);
        setup.listen(&format!("unix:{}", path.display()))
    };
    let peer = format!("{{ uid: {uid}, tenant: beta }}");
    let mut daemon = Daemon::with(setup(&peer)).await;
    say(&mut sessions_at_socket(&path, None), "chat", "hi").await;
    daemon.rewrite(setup(""));
    for _ in 0..2 {
        let outcome = ask_as(&daemon, &["reload", "--json"], Setup::ADMIN).await;
        check_setting_refused(&outcome, "server.unix.peers");
        say(&mut sessions_at_socket(&path, None), "chat", "as before").await;
    }
}

#[tokio::test]
async fn reload_that_would_lock_out_all_clients_is_refused() {
    let ours = Authority::new(&["alpha"]).await;
    let keyed = || Setup::default().two_tenants("", "");
    let mut daemon = Daemon::with(keyed().server(&ours.setting(""))).await;
    let with_clients = ours.setting(&format!(", client_ca: {:?}", ours.file("ca.pem")));
    let by_certificate = || {
        let setup = Setup::default().server(&with_clients);
        setup.section("tenants: [ { id: alpha } ]")
    };
    daemon.rewrite(by_certificate());
    let outcome = reload_by_tls(&daemon, &ours).await;
    fails(&outcome, 1, "server.tls");
    let addr = daemon.grpc_addr();
    let mut alpha = sessions_by_tls(addr, ours.client(None), Some(Setup::ALPHA));
    say(&mut alpha, "chat", "as before").await;
    // The same for a daemon without keys.
    let mut open = Daemon::with(Setup::default().server(&ours.setting(""))).await;
    open.rewrite(by_certificate());
    let port = open.grpc_addr().rsplit_once(':').expect("a port").1;
    let addr = format!("https://localhost:{port}");
    let outcome = run(
        &["--addr", &addr, "--ca", &ours.file("ca.pem"), "reload"],
        &[],
    )
    .await;
    fails(&outcome, 1, "server.tls");
    let mut anybody = sessions_by_tls(open.grpc_addr(), ours.client(None), None);
    say(&mut anybody, "chat", "as before").await;
}

#[tokio::test]
async fn reload_revokes_key_although_old_certificate_file_is_missing() {
    let (first, second) = (Authority::new(&[]).await, Authority::new(&[]).await);
    let keyed = || Setup::default().two_tenants("", "");
    let mut daemon = Daemon::with(keyed().server(&first.setting(""))).await;
    let addr = daemon.grpc_addr().to_owned();
    let mut beta = sessions_by_tls(&addr, first.client(None), Some(Setup::BETA));
    say(&mut beta, "chat", "hi").await;
    std::fs::remove_file(first.path("server.pem")).expect("removed");
    let alpha_only = "tenants: [ { id: alpha, keys: [ { env: A }, { env: O, role: admin } ] } ]";
    let mut fewer = Setup::default().server(&second.setting(""));
    fewer.env = keyed().env;
    daemon.rewrite(fewer.section(alpha_only));
    check_setting_refused(&reload_by_tls(&daemon, &first).await, "server.tls");
    let revoked = beta.append(append("chat", [user("hi")])).await;
    refused(revoked, Code::Unauthenticated, "WRONG_KEY");
    let mut alpha = sessions_by_tls(&addr, first.client(None), Some(Setup::ALPHA));
    say(&mut alpha, "chat", "hi").await;
    assert!(daemon.log().contains("server.pem"), "{}", daemon.log());
}
