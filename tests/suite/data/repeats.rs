//! Calls that are repeated elsewhere, and arrive late themselves, change nothing.

use memoird_proto::v1::{
    EndSessionRequest, GetDocumentRequest, PutDocumentRequest, ResetSessionRequest,
    UpdateTurnRequest, document, put_document_request,
};
use tonic::{Code, Status};

use crate::harness::{
    Daemon, Documents, Sessions, Setup, append, keyed, live, refused, say, text_of, user,
};

/// A call with an idempotency key.
#[derive(Clone, Copy, Debug)]
enum Late {
    End,
    Reset,
    Update,
}

impl Late {
    const ALL: [Self; 3] = [Self::End, Self::Reset, Self::Update];

    /// The session of this call in a test.
    fn session(self) -> String {
        format!("{self:?}")
    }

    /// Calls with the key `k`. Returns whether it is a duplicate.
    async fn call(self, client: &mut Sessions, generation: &str) -> Result<bool, Status> {
        let (session_id, idempotency_key) = (self.session(), "k".to_owned());
        let expected_generation = generation.to_owned();
        Ok(match self {
            Self::End => {
                let request = EndSessionRequest {
                    session_id,
                    expected_generation,
                    idempotency_key,
                };
                client.end_session(request).await?.into_inner().duplicate
            }
            Self::Reset => {
                let request = ResetSessionRequest {
                    session_id,
                    expected_generation,
                    idempotency_key,
                    run_hooks: true,
                };
                client.reset_session(request).await?.into_inner().duplicate
            }
            Self::Update => {
                let request = UpdateTurnRequest {
                    session_id,
                    expected_generation,
                    idempotency_key,
                    seq: 1,
                    turn: Some(user("edited")),
                    ..UpdateTurnRequest::default()
                };
                client.update_turn(request).await?.into_inner().duplicate
            }
        })
    }
}

async fn texts(client: &mut Sessions, session: &str) -> Vec<String> {
    let turns = live(client, session).await;
    turns.iter().map(|turn| text_of(turn).to_owned()).collect()
}

/// The call is repeated through `b`, and the original arrives through `a` later.
async fn check_late_original(call: Late, a: &mut Sessions, b: &mut Sessions) {
    let session = call.session();
    let said = append(&session, [user("old")]);
    let said = a.append(said).await.expect("said").into_inner();
    let first = said.session.expect("a session").generation;
    assert!(!call.call(b, &first).await.expect("done"), "{call:?}");
    match call {
        Late::End | Late::Reset => drop(say(b, &session, "new").await),
        Late::Update => {
            let newer = UpdateTurnRequest {
                session_id: session.clone(),
                seq: 1,
                turn: Some(user("new")),
                ..UpdateTurnRequest::default()
            };
            b.update_turn(newer).await.expect("edited");
        }
    }
    for client in [&mut *a, &mut *b] {
        assert!(call.call(client, &first).await.expect("known"), "{call:?}");
        assert_eq!(texts(client, &session).await, ["new"], "{call:?}");
    }
}

/// After a restart, and after the session has ended.
async fn check_later(call: Late, a: &mut Sessions, b: &mut Sessions) {
    let session = call.session();
    assert!(call.call(a, "").await.expect("known"), "{call:?}");
    assert_eq!(texts(a, &session).await, ["new"], "{call:?}");
    // The key belongs to another request.
    let other = a.append(keyed(&session, "k", [user("other")])).await;
    refused(other, Code::InvalidArgument, "IDEMPOTENCY_KEY_REUSED");
    let end = EndSessionRequest {
        session_id: session,
        ..EndSessionRequest::default()
    };
    b.end_session(end).await.expect("ended");
    for client in [a, b] {
        assert!(call.call(client, "").await.expect("known"), "{call:?}");
    }
}

fn put(json: &str, idempotency_key: &str) -> PutDocumentRequest {
    PutDocumentRequest {
        namespace: vec!["users".to_owned()],
        key: "ann".to_owned(),
        value: Some(put_document_request::Value::Json(json.to_owned())),
        idempotency_key: idempotency_key.to_owned(),
        ..PutDocumentRequest::default()
    }
}

async fn stored(client: &mut Documents, request: PutDocumentRequest) -> (u64, bool) {
    let reply = client.put_document(request).await.expect("stored");
    let reply = reply.into_inner();
    (reply.document.expect("a document").version, reply.duplicate)
}

/// The put is repeated through `b`, and the original arrives through `a` later.
async fn check_late_put(a: &mut Documents, b: &mut Documents) {
    assert_eq!(stored(b, put("1", "k")).await, (1, false));
    assert_eq!(stored(b, put("2", "")).await, (2, false));
    check_put_later(a, b).await;
}

async fn check_put_later(a: &mut Documents, b: &mut Documents) {
    for client in [a, b] {
        assert_eq!(stored(client, put("1", "k")).await, (1, true));
        let get = GetDocumentRequest {
            namespace: vec!["users".to_owned()],
            key: "ann".to_owned(),
            ttl: None,
        };
        let found = client.get_document(get).await.expect("there").into_inner();
        let found = found.document.expect("a document");
        assert_eq!(found.version, 2);
        assert_eq!(found.value, Some(document::Value::Json("2".to_owned())));
        let other = client.put_document(put("3", "k")).await;
        refused(other, Code::InvalidArgument, "IDEMPOTENCY_KEY_REUSED");
    }
}

#[tokio::test]
async fn late_original_changes_nothing() {
    for durability in ["sync", "interval", "off"] {
        let setup = format!("journal: {{ durability: {durability} }}");
        let mut daemon = Daemon::with(Setup::default().section(setup)).await;
        for call in Late::ALL {
            check_late_original(call, &mut daemon.sessions(), &mut daemon.sessions()).await;
        }
        check_late_put(&mut daemon.documents(), &mut daemon.documents()).await;
        match durability {
            "off" => {}
            "sync" => daemon.kill9().await,
            _ => daemon.stop().await,
        }
        if durability != "off" {
            daemon.restart().await;
        }
        for call in Late::ALL {
            check_later(call, &mut daemon.sessions(), &mut daemon.sessions()).await;
        }
        check_put_later(&mut daemon.documents(), &mut daemon.documents()).await;
    }
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn late_original_at_another_member_changes_nothing() {
    let Some((mut daemons, _)) = super::cluster::daemons(2, "").await else {
        return;
    };
    let [mut a, mut b] = [0, 1].map(|place: usize| daemons[place].sessions());
    for call in Late::ALL {
        check_late_original(call, &mut a, &mut b).await;
    }
    check_late_put(&mut daemons[0].documents(), &mut daemons[1].documents()).await;
    daemons[0].kill9().await;
    daemons[0].restart().await;
    for call in Late::ALL {
        check_later(call, &mut daemons[0].sessions(), &mut b).await;
    }
    check_put_later(&mut daemons[0].documents(), &mut daemons[1].documents()).await;
}
