//! Ids chosen by bots: any characters, 1 to 256 bytes, in every call.

use memoird_proto::v1::{
    EndSessionRequest, GetHistoryRequest, GetSessionRequest, ListSessionsRequest,
    ResetSessionRequest, UpdateSessionRequest,
};
use tonic::Code;

use crate::harness::{
    Daemon, append, journal, keyed, live, raw_call, refused, refused_code, say, text_of, user,
};

const STRANGE: [&str; 11] = [
    "telegram:4711",
    "a/b/../c",
    "new\nline\r\n",
    "\u{1f408}\u{200d}\u{2b1b}",
    "nul\0inside",
    "\0",
    " ",
    "'; DROP TABLE turns; --",
    "%00%2f",
    "a:b:c",
    "\u{202e}desrever",
];

#[tokio::test]
async fn ids_with_any_characters_work_in_every_call() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let longest = "\u{1f408}".repeat(64);
    let ids = STRANGE.iter().copied().chain([longest.as_str()]);
    for id in ids.clone() {
        let mut request = keyed(id, id, [user(id)]);
        request.subject = id.into();
        let made = client
            .append(request)
            .await
            .expect("done")
            .into_inner()
            .session;
        let made = made.expect("a session");
        assert_eq!((&*made.session_id, &*made.subject), (id, id));
        let look = GetSessionRequest {
            session_id: id.into(),
            ..Default::default()
        };
        let seen = client
            .get_session(look)
            .await
            .expect("it lives")
            .into_inner();
        assert_eq!(seen.session.expect("a session").session_id, id);
        let patch = UpdateSessionRequest {
            session_id: id.into(),
            state_patch_json: serde_json::json!({ id: id }).to_string(),
            expected_state_version: Some(0),
            ..UpdateSessionRequest::default()
        };
        client.update_session(patch).await.expect("patched");
    }
    let mut listed = Vec::new();
    let mut page = ListSessionsRequest {
        page_size: 2,
        ..ListSessionsRequest::default()
    };
    loop {
        let answer = client
            .list_sessions(page.clone())
            .await
            .expect("a page")
            .into_inner();
        listed.extend(
            answer
                .sessions
                .into_iter()
                .map(|session| session.session_id),
        );
        if answer.next_page_token.is_empty() {
            break;
        }
        page.page_token = answer.next_page_token;
    }
    let expected: Vec<&str> = ids.clone().rev().collect();
    assert_eq!(listed, expected);

    daemon.kill9().await;
    daemon.restart().await;
    let mut client = daemon.sessions();
    for id in ids {
        assert_eq!(text_of(&live(&mut client, id).await[0]), id);
        assert_eq!(text_of(&journal(&mut client, id, "").await[0]), id);
        let reset = ResetSessionRequest {
            session_id: id.into(),
            run_hooks: true,
            ..ResetSessionRequest::default()
        };
        client.reset_session(reset).await.expect("reset");
        let end = EndSessionRequest {
            session_id: id.into(),
            ..EndSessionRequest::default()
        };
        client.end_session(end).await.expect("ended");
    }
}

#[tokio::test]
async fn empty_or_too_long_id_is_refused_by_every_call() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let (code, reason) = (Code::InvalidArgument, "ID_INVALID");
    for bad in [
        String::new(),
        "x".repeat(257),
        "x".repeat(300),
        "\u{1f408}".repeat(65),
    ] {
        let id = || bad.clone();
        let said = refused(
            client.append(append(&bad, [user("hi")])).await,
            code,
            reason,
        );
        assert!(
            said.contains("session_id") && said.contains(&bad.len().to_string()),
            "{said}"
        );
        let look = GetSessionRequest {
            session_id: id(),
            ..Default::default()
        };
        refused(client.get_session(look).await, code, reason);
        let read = GetHistoryRequest {
            session_id: id(),
            ..GetHistoryRequest::default()
        };
        refused(client.get_history(read).await, code, reason);
        let patch = UpdateSessionRequest {
            session_id: id(),
            state_patch_json: "{}".into(),
            expected_state_version: None,
            ..UpdateSessionRequest::default()
        };
        refused(client.update_session(patch).await, code, reason);
        let reset = ResetSessionRequest {
            session_id: id(),
            run_hooks: false,
            ..ResetSessionRequest::default()
        };
        refused(client.reset_session(reset).await, code, reason);
        let end = EndSessionRequest {
            session_id: id(),
            ..EndSessionRequest::default()
        };
        refused(client.end_session(end).await, code, reason);
    }
    let long = "x".repeat(300);
    refused(
        client.append(keyed("chat", &long, [user("hi")])).await,
        code,
        reason,
    );
    let mut subject = append("chat", [user("hi")]);
    subject.subject = long;
    let said = refused(client.append(subject).await, code, reason);
    assert!(said.contains("subject"), "{said}");
    say(&mut client, &"x".repeat(256), "the longest").await;
}

#[tokio::test]
async fn invalid_utf8_is_refused() {
    let daemon = Daemon::start().await;
    let channel = crate::harness::channel(daemon.grpc_addr());
    // Field 1, `session_id`, with two bytes that are invalid UTF-8.
    let message: &[u8] = &[0x0a, 0x02, 0xff, 0xfe];
    for method in [
        "Append",
        "GetSession",
        "GetHistory",
        "UpdateSession",
        "ResetSession",
        "EndSession",
    ] {
        let path = format!("/memoird.v1.SessionService/{method}");
        let status = raw_call(&channel, &path, message)
            .await
            .expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{method}: {status:?}");
        assert_eq!(refused_code(&status), "REQUEST_MALFORMED", "{method}");
    }
}
