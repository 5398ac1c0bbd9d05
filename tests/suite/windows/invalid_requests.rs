//! Invalid window requests are refused before anything is appended.

use memoird_proto::v1::window_policy::Policy;
use memoird_proto::v1::{
    AppendRequest, BuildContextRequest, GetSessionRequest, SlidingWindow, WindowPolicy,
};
use tonic::Code;

use super::plain;
use crate::harness::{Daemon, append, refused, user};

/// A window request for `chat` that appends a turn first.
fn request() -> BuildContextRequest {
    let append = AppendRequest {
        session_id: String::new(),
        ..append("chat", [user("hello")])
    };
    BuildContextRequest {
        session_id: "chat".into(),
        append: Some(append),
        ..BuildContextRequest::default()
    }
}

#[tokio::test]
async fn refused_window_appends_nothing() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    let sliding = Policy::SlidingWindow(SlidingWindow { turns: 0 });
    let policy = Some(WindowPolicy {
        policy: Some(sliding),
    });
    let other = Some(append("other", [user("hello")]));
    let cases = [
        (
            BuildContextRequest {
                append: other,
                ..request()
            },
            "SESSION_ID_MISMATCH",
        ),
        (
            BuildContextRequest {
                peek: true,
                ..request()
            },
            "PEEK_WITH_APPEND",
        ),
        (
            BuildContextRequest {
                policy,
                ..request()
            },
            "POLICY_INVALID",
        ),
        (
            BuildContextRequest {
                tools_json: "{}".into(),
                ..request()
            },
            "TOOLS_INVALID",
        ),
        (
            BuildContextRequest {
                tools_json: "[".into(),
                ..request()
            },
            "TOOLS_INVALID",
        ),
        (
            BuildContextRequest {
                format: 77,
                ..request()
            },
            "FORMAT_INVALID",
        ),
        (
            BuildContextRequest {
                session_id: String::new(),
                ..request()
            },
            "ID_INVALID",
        ),
    ];
    for (request, reason) in cases {
        refused(
            client.build_context(request).await,
            Code::InvalidArgument,
            reason,
        );
        for session_id in ["chat".to_owned(), "other".to_owned()] {
            let none = client
                .get_session(GetSessionRequest {
                    session_id,
                    ..Default::default()
                })
                .await;
            refused(none, Code::NotFound, "SESSION_NOT_FOUND");
        }
    }
    let mut wrong = request();
    wrong.append.as_mut().expect("an append").turns.clear();
    let answer = client.build_context(wrong).await;
    refused(answer, Code::InvalidArgument, "TURN_COUNT_INVALID");
}

#[tokio::test]
async fn window_of_missing_session_is_not_found() {
    let daemon = Daemon::with(plain()).await;
    let request = BuildContextRequest {
        append: None,
        ..request()
    };
    let answer = daemon.sessions().build_context(request).await;
    refused(answer, Code::NotFound, "SESSION_NOT_FOUND");
}
