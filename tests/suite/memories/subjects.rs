//! Subjects of one tenant: private memories are visible to calls for their subject only.

use memoird_proto::v1::{
    GetMemoryRequest, Memory, MemoryKind, RecallRequest, RememberRequest, UpdateMemoryRequest,
    Visibility,
};
use prost_types::FieldMask;
use tonic::Code;

use crate::harness::{
    Daemon, append, fact, manifest, memories_of, query_of, recalled, refused, remember,
    remember_new, user,
};

fn update(id: &str, subject: &str, content: &str) -> UpdateMemoryRequest {
    UpdateMemoryRequest {
        memory: Some(Memory {
            id: id.into(),
            subject: subject.into(),
            content: content.into(),
            ..Memory::default()
        }),
        update_mask: Some(FieldMask {
            paths: vec!["content".into()],
        }),
    }
}

#[tokio::test]
async fn private_memory_is_visible_and_changeable_for_its_subject_only() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let private = remember_new(&mut client, fact("ann", "Ann plays the oboe")).await;
    let team = RememberRequest {
        visibility: Visibility::Team.into(),
        ..fact("ann", "The oboe club")
    };
    let team = remember_new(&mut client, team).await;
    let both = ["Ann plays the oboe", "The oboe club"];
    let all = |mut found: Vec<String>| {
        found.sort();
        found
    };
    assert_eq!(
        all(recalled(&mut client, query_of("ann", "oboe")).await),
        both
    );
    assert_eq!(
        recalled(&mut client, query_of("bob", "oboe")).await,
        both[1..]
    );
    let two = RecallRequest {
        subjects: vec!["bob".into(), "ann".into()],
        ..query_of("", "oboe")
    };
    assert_eq!(all(recalled(&mut client, two).await), both);
    // Without subjects and session, only team memories are returned.
    let nobody = RecallRequest {
        subjects: Vec::new(),
        ..query_of("", "oboe")
    };
    assert_eq!(recalled(&mut client, nobody.clone()).await, both[1..]);
    let mut said = append("chat", [user("hello")]);
    said.subject = "ann".into();
    daemon.sessions().append(said).await.expect("appended");
    let session = RecallRequest {
        session_id: "chat".into(),
        ..nobody
    };
    assert_eq!(
        all(recalled(&mut client, session).await),
        both,
        "the session's subject"
    );

    let look = |id: &str, subject: &str| GetMemoryRequest {
        id: id.into(),
        subject: subject.into(),
        ..GetMemoryRequest::default()
    };
    for (id, subject, is_seen) in [
        (&private.id, "ann", true),
        (&private.id, "", true),
        (&private.id, "bob", false),
        (&team.id, "bob", true),
    ] {
        let answer = client.get_memory(look(id, subject)).await;
        if is_seen {
            drop(answer.expect("it is visible"));
        } else {
            drop(refused(answer, Code::NotFound, "MEMORY_NOT_FOUND"));
        }
    }
    for id in [&private.id, &team.id] {
        let answer = client.update_memory(update(id, "bob", "by bob")).await;
        refused(answer, Code::NotFound, "MEMORY_NOT_FOUND");
        let instead = RememberRequest {
            supersedes_id: id.clone(),
            ..fact("bob", "by bob")
        };
        refused(
            client.remember(instead).await,
            Code::NotFound,
            "MEMORY_NOT_FOUND",
        );
    }
    assert!(memories_of(&mut client, "bob").await.is_empty());
    assert!(!manifest(&mut client, "bob").await.text.contains("plays"));
    let changed = client
        .update_memory(update(&private.id, "ann", "Ann plays the flute"))
        .await;
    let changed = changed
        .expect("it is ann's")
        .into_inner()
        .memory
        .expect("a memory");
    assert_eq!(changed.content, "Ann plays the flute");
    assert_eq!(
        recalled(&mut client, query_of("ann", "flute")).await,
        ["Ann plays the flute"]
    );
    assert_eq!(
        recalled(&mut client, query_of("ann", "oboe")).await,
        ["The oboe club"]
    );
}

#[tokio::test]
async fn user_kind_memory_cannot_be_shared_with_team() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let mut me = fact("ann", "Ann is a nurse");
    me.kind = MemoryKind::User.into();
    me.visibility = Visibility::Team.into();
    let problem = refused(
        client.remember(me.clone()).await,
        Code::InvalidArgument,
        "MEMORY_INVALID",
    );
    assert!(problem.contains("visibility"), "{problem}");
    me.visibility = Visibility::Unspecified.into();
    let me = remember_new(&mut client, me).await;
    assert_eq!(me.visibility(), Visibility::Private);
    let change = |paths: &[&str], kind: MemoryKind| UpdateMemoryRequest {
        memory: Some(Memory {
            id: me.id.clone(),
            kind: kind.into(),
            visibility: Visibility::Team.into(),
            ..Memory::default()
        }),
        update_mask: Some(FieldMask {
            paths: paths.iter().map(|&path| path.into()).collect(),
        }),
    };
    let team = client
        .update_memory(change(&["visibility"], MemoryKind::User))
        .await;
    refused(team, Code::InvalidArgument, "MEMORY_INVALID");
    // With another kind it may be shared, and then it cannot become USER again.
    let both = change(&["visibility", "kind"], MemoryKind::Project);
    client.update_memory(both).await.expect("of another kind");
    assert_eq!(
        recalled(&mut client, query_of("bob", "nurse")).await,
        ["Ann is a nurse"]
    );
    let back = client
        .update_memory(change(&["kind"], MemoryKind::User))
        .await;
    refused(back, Code::InvalidArgument, "MEMORY_INVALID");
}

#[tokio::test]
async fn same_text_of_two_subjects_is_two_memories() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    for subject in ["ann", "bob"] {
        let made = remember(&mut client, fact(subject, "Prefers tea")).await;
        assert_eq!(made.memory.expect("a memory").subject, subject);
    }
    for subject in ["ann", "bob"] {
        let known = memories_of(&mut client, subject).await;
        assert_eq!((known.len(), known[0].reinforced), (1, 0), "{subject}");
    }
}
