//! Invalid window requests are refused before anything is appended.

use memoird_proto::v1::window_policy::Policy;
use memoird_proto::v1::{
    AppendRequest, GetContextRequest, GetSessionRequest, SlidingWindow, WindowPolicy,
};
use tonic::Code;

use super::plain;
use crate::harness::{Daemon, append, refused, user};

/// A window request for `chat` that appends a turn first.
fn request() -> GetContextRequest {
    let append = AppendRequest {
        session_id: String::new(),
        ..append("chat", [user("hello")])
    };
    GetContextRequest {
        session_id: "chat".into(),
        append: Some(append),
        ..GetContextRequest::default()
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
            GetContextRequest {
                append: other,
                ..request()
            },
            "SESSION_ID_MISMATCH",
        ),
        (
            GetContextRequest {
                peek: true,
                ..request()
            },
            "PEEK_WITH_APPEND",
        ),
        (
            GetContextRequest {
                policy,
                ..request()
            },
            "POLICY_INVALID",
        ),
        (
            GetContextRequest {
                tools_json: "{}".into(),
                ..request()
            },
            "TOOLS_INVALID",
        ),
        (
            GetContextRequest {
                tools_json: "[".into(),
                ..request()
            },
            "TOOLS_INVALID",
        ),
        (
            GetContextRequest {
                format: 77,
                ..request()
            },
            "FORMAT_INVALID",
        ),
        (
            GetContextRequest {
                session_id: String::new(),
                ..request()
            },
            "ID_INVALID",
        ),
    ];
    for (request, reason) in cases {
        refused(
            client.get_context(request).await,
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
    let answer = client.get_context(wrong).await;
    refused(answer, Code::InvalidArgument, "TURN_COUNT_INVALID");
}

#[tokio::test]
async fn window_of_missing_session_is_not_found() {
    let daemon = Daemon::with(plain()).await;
    let request = GetContextRequest {
        append: None,
        ..request()
    };
    let answer = daemon.sessions().get_context(request).await;
    refused(answer, Code::NotFound, "SESSION_NOT_FOUND");
}
