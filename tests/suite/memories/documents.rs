//! Documents: the API and the commands.

use std::collections::BTreeSet;

use memoird_proto::v1::document::Value;
use memoird_proto::v1::document_operation::Operation;
use memoird_proto::v1::put_document_request::Value as Put;
use memoird_proto::v1::{
    BatchDocumentsRequest, DeleteDocumentRequest, DeleteDocumentsRequest, Document,
    DocumentOperation, EraseSubjectRequest, GetDocumentRequest, GetErasureRequest,
    ListDocumentsRequest, ListNamespacesRequest, PutDocumentRequest,
};
use prost_types::Duration;
use tokio::task::JoinSet;
use tonic::Code;

use crate::harness::{
    Daemon, Documents, Setup, ask_as, channel, eventually, fact, fails, files_with, memory_stats,
    raw_call, refused, refused_code, remember_new, run,
};

fn parts(path: &str) -> Vec<String> {
    path.split('/').map(str::to_owned).collect()
}

fn put(path: &str, key: &str, json: &str) -> PutDocumentRequest {
    PutDocumentRequest {
        namespace: parts(path),
        key: key.to_owned(),
        value: Some(Put::Json(json.to_owned())),
        ..PutDocumentRequest::default()
    }
}

fn get(path: &str, key: &str) -> GetDocumentRequest {
    GetDocumentRequest {
        namespace: parts(path),
        key: key.to_owned(),
        ttl: None,
    }
}

fn under(path: &str) -> ListDocumentsRequest {
    ListDocumentsRequest {
        namespace_prefix: parts(path),
        ..ListDocumentsRequest::default()
    }
}

fn all_under(path: &str) -> DeleteDocumentsRequest {
    DeleteDocumentsRequest {
        namespace_prefix: parts(path),
        ..DeleteDocumentsRequest::default()
    }
}

async fn stored(client: &mut Documents, request: PutDocumentRequest) -> Document {
    let answer = client.put_document(request).await.expect("stored");
    answer.into_inner().document.expect("a document")
}

async fn read(client: &mut Documents, path: &str, key: &str) -> Document {
    let answer = client.get_document(get(path, key)).await.expect("there");
    answer.into_inner().document.expect("a document")
}

async fn listed(client: &mut Documents, mut request: ListDocumentsRequest) -> Vec<Document> {
    let mut all = Vec::new();
    loop {
        let page = client.list_documents(request.clone()).await;
        let page = page.expect("a page").into_inner();
        all.extend(page.documents);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return all;
        }
    }
}

fn keys(documents: &[Document]) -> Vec<&str> {
    documents.iter().map(|found| &*found.key).collect()
}

fn text(document: &Document) -> &str {
    match &document.value {
        Some(Value::Json(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn documents_are_put_read_listed_and_deleted() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.documents();
    let made = stored(&mut client, put("users/ann", "k", "{ \"n\": 1.50 }")).await;
    assert_eq!((made.version, made.size, &made.value), (1, 13, &None));
    let bytes = PutDocumentRequest {
        value: Some(Put::Bytes(vec![0, 159, 146].into())),
        ttl: Some(Duration {
            seconds: 3_600,
            nanos: 0,
        }),
        ..put("users/ann", "raw", "")
    };
    let raw = stored(&mut client, bytes).await;
    let expires = raw.expires_at.expect("it expires").seconds;
    assert_eq!(expires, raw.updated_at.expect("a time").seconds + 3_600);
    daemon.stop().await;
    daemon.restart().await;
    let mut client = daemon.documents();
    let found = read(&mut client, "users/ann", "k").await;
    assert_eq!(text(&found), "{ \"n\": 1.50 }");
    assert_eq!(
        (found.namespace, found.created_at),
        (parts("users/ann"), made.created_at)
    );
    let found = read(&mut client, "users/ann", "raw").await;
    assert_eq!(found.value, Some(Value::Bytes(vec![0, 159, 146].into())));
    assert_eq!(
        stored(&mut client, put("users/ann", "k", "2"))
            .await
            .version,
        2
    );

    for number in 0..5 {
        let json = format!("{{\"n\": {number}}}");
        stored(&mut client, put("users/bob", &number.to_string(), &json)).await;
    }
    for page_size in [1, 2, 100] {
        let request = ListDocumentsRequest {
            page_size,
            ..under("users")
        };
        let all = listed(&mut client, request.clone()).await;
        assert_eq!(keys(&all), ["k", "raw", "0", "1", "2", "3", "4"]);
        let newest = ListDocumentsRequest {
            descending: true,
            include_values: Some(false),
            key_before: "3".into(),
            ..request.clone()
        };
        let all = listed(&mut client, newest).await;
        assert_eq!(keys(&all), ["2", "1", "0"]);
        assert!(
            all.iter()
                .all(|found| found.value.is_none() && found.size > 0)
        );
        let filtered = ListDocumentsRequest {
            filter_json: "{\"n\": {\"$gt\": 2}}".into(),
            ..request
        };
        assert_eq!(keys(&listed(&mut client, filtered).await), ["3", "4"]);
    }
    let request = ListNamespacesRequest {
        prefix: parts("users"),
        ..ListNamespacesRequest::default()
    };
    let found = client
        .list_namespaces(request)
        .await
        .expect("a page")
        .into_inner();
    let found: Vec<_> = found
        .namespaces
        .into_iter()
        .map(|found| found.parts)
        .collect();
    assert_eq!(found, [parts("users/ann"), parts("users/bob")]);

    let delete = DeleteDocumentRequest {
        namespace: parts("users/ann"),
        key: "k".into(),
        expected_version: None,
    };
    for deleted in [true, false] {
        let answer = client.delete_document(delete.clone()).await.expect("done");
        assert_eq!(answer.into_inner().deleted, deleted);
    }
    let gone = client
        .delete_documents(all_under("users/bob"))
        .await
        .expect("done");
    assert_eq!(gone.into_inner().deleted, 5);
    assert_eq!(keys(&listed(&mut client, under("users")).await), ["raw"]);
    let stats = memory_stats(&mut daemon.memories()).await;
    assert_eq!((stats.documents, stats.document_bytes), (1, 3 + 3 + 10));
}

#[tokio::test]
async fn put_with_stale_expected_version_is_refused() {
    let daemon = Daemon::start().await;
    let mut client = daemon.documents();
    let expecting = |version| PutDocumentRequest {
        expected_version: Some(version),
        ..put("a", "k", "1")
    };
    let stale = (Code::Aborted, "STALE_VERSION");
    refused(client.put_document(expecting(1)).await, stale.0, stale.1);
    assert_eq!(stored(&mut client, expecting(0)).await.version, 1);
    let said = refused(client.put_document(expecting(0)).await, stale.0, stale.1);
    assert!(said.contains("version 1"), "{said}");
    assert_eq!(stored(&mut client, expecting(1)).await.version, 2);
    // Of many changes that expect the same version, one succeeds.
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let (mut client, request) = (daemon.documents(), expecting(2));
        tasks.spawn(async move { client.put_document(request).await.is_ok() });
    }
    let right = tasks.join_all().await;
    assert_eq!(right.iter().filter(|is_right| **is_right).count(), 1);

    let operations = vec![
        DocumentOperation {
            operation: Some(Operation::Put(put("a", "other", "1"))),
        },
        DocumentOperation {
            operation: Some(Operation::Put(expecting(1))),
        },
    ];
    let batch = client
        .batch_documents(BatchDocumentsRequest { operations })
        .await;
    let said = refused(batch, stale.0, stale.1);
    assert!(said.starts_with("operations[1]: "), "{said}");
    let other = client.get_document(get("a", "other")).await;
    refused(other, Code::NotFound, "DOCUMENT_NOT_FOUND");
}

#[tokio::test]
async fn document_batch_is_one_transaction() {
    let daemon = Daemon::start().await;
    let mut client = daemon.documents();
    stored(&mut client, put("a", "old", "1")).await;
    let delete = DeleteDocumentRequest {
        namespace: parts("a"),
        key: "old".into(),
        expected_version: Some(1),
    };
    let operations = [
        Operation::Put(put("a", "new", "2")),
        Operation::Get(get("a", "new")),
        Operation::Delete(delete),
        Operation::Get(get("a", "old")),
    ];
    let operations = operations.map(|operation| DocumentOperation {
        operation: Some(operation),
    });
    let batch = BatchDocumentsRequest {
        operations: operations.into(),
    };
    let done = client
        .batch_documents(batch)
        .await
        .expect("done")
        .into_inner();
    let found: Vec<_> = done.results.iter().map(|it| it.document.as_ref()).collect();
    assert_eq!(found[0].map(|made| made.version), Some(1));
    assert_eq!(found[1].map(text), Some("2"));
    assert_eq!(
        (found[2], done.results[2].deleted, found[3]),
        (None, true, None)
    );
}

#[tokio::test]
async fn invalid_document_request_is_refused_with_field() {
    let daemon =
        Daemon::with(Setup::default().section(
            "long_term: { document_bytes: 1KiB, max_documents: 2, documents_bytes: 10KiB }",
        ))
        .await;
    let mut client = daemon.documents();
    let invalid = (Code::InvalidArgument, "DOCUMENT_INVALID");
    let good = || put("a", "k", "1");
    let json = |text: &str| Some(Put::Json(text.to_owned()));
    let ttl = |seconds| Some(Duration { seconds, nanos: 0 });
    for (field, bad) in [
        (
            "namespace",
            PutDocumentRequest {
                namespace: vec![],
                ..good()
            },
        ),
        (
            "namespace",
            PutDocumentRequest {
                namespace: vec!["x".repeat(257)],
                ..good()
            },
        ),
        (
            "namespace",
            PutDocumentRequest {
                namespace: vec![String::new(); 17],
                ..good()
            },
        ),
        (
            "namespace",
            PutDocumentRequest {
                namespace: vec!["\0".into()],
                ..good()
            },
        ),
        (
            "key",
            PutDocumentRequest {
                key: String::new(),
                ..good()
            },
        ),
        (
            "key",
            PutDocumentRequest {
                key: "x".repeat(513),
                ..good()
            },
        ),
        (
            "value",
            PutDocumentRequest {
                value: None,
                ..good()
            },
        ),
        (
            "value",
            PutDocumentRequest {
                value: json(&"1".repeat(1_025)),
                ..good()
            },
        ),
        (
            "json",
            PutDocumentRequest {
                value: json("{"),
                ..good()
            },
        ),
        (
            "json",
            PutDocumentRequest {
                value: json(""),
                ..good()
            },
        ),
        (
            "json",
            PutDocumentRequest {
                value: json(&"[".repeat(1_000)),
                ..good()
            },
        ),
        (
            "ttl",
            PutDocumentRequest {
                ttl: ttl(0),
                ..good()
            },
        ),
        (
            "ttl",
            PutDocumentRequest {
                ttl: ttl(-1),
                ..good()
            },
        ),
        (
            "ttl",
            PutDocumentRequest {
                ttl: ttl(i64::MAX),
                ..good()
            },
        ),
    ] {
        let said = refused(client.put_document(bad).await, invalid.0, invalid.1);
        assert!(said.starts_with(&format!("{field}: ")), "{field}: {said}");
    }
    for (field, bad) in [
        (
            "filter_json",
            ListDocumentsRequest {
                filter_json: "[]".into(),
                ..under("a")
            },
        ),
        (
            "filter_json",
            ListDocumentsRequest {
                filter_json: "{\"a\":{\"$x\":1}}".into(),
                ..under("a")
            },
        ),
        (
            "key_prefix",
            ListDocumentsRequest {
                key_prefix: "x".repeat(513),
                ..under("a")
            },
        ),
        (
            "namespace_prefix",
            ListDocumentsRequest {
                namespace_prefix: vec!["\0".into()],
                ..under("a")
            },
        ),
    ] {
        let said = refused(client.list_documents(bad).await, invalid.0, invalid.1);
        assert!(said.starts_with(&format!("{field}: ")), "{field}: {said}");
    }
    for token in ["x", "zz", "+1", "00", "61", "6100", "61ff6b"] {
        let list = ListDocumentsRequest {
            page_token: token.into(),
            ..under("a")
        };
        let answer = client.list_documents(list).await;
        refused(answer, Code::InvalidArgument, "PAGE_TOKEN_INVALID");
    }
    let everything = DeleteDocumentsRequest::default();
    refused(
        client.delete_documents(everything).await,
        invalid.0,
        invalid.1,
    );
    for count in [0, 257] {
        let operations = vec![DocumentOperation::default(); count];
        let batch = client
            .batch_documents(BatchDocumentsRequest { operations })
            .await;
        refused(batch, invalid.0, invalid.1);
    }
    for key in ["1", "2", "3"] {
        let answer = client.put_document(put("a", key, "1")).await;
        match key {
            "3" => drop(refused(answer, Code::ResourceExhausted, "DOCUMENTS_FULL")),
            _ => drop(answer.expect("stored")),
        }
    }
    let large = PutDocumentRequest {
        value: Some(Put::Bytes(vec![0; 1_024].into())),
        ..put("a", "2", "")
    };
    assert_eq!(stored(&mut client, large).await.version, 2);
}

/// The names of all rpcs of the service.
fn rpcs() -> BTreeSet<String> {
    let proto = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../proto/memoird/v1/document.proto"
    );
    let text = std::fs::read_to_string(proto).expect("the contract");
    let lines = text.lines().filter_map(|line| line.strip_prefix("  rpc "));
    lines
        .filter_map(|line| line.split_once('('))
        .map(|(name, _)| name.to_owned())
        .collect()
}

#[tokio::test]
async fn document_rpcs_need_a_key_and_are_isolated_by_tenant() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let names = rpcs();
    assert_eq!(names.len(), 7, "{names:?}");
    for name in names {
        let path = format!("/memoird.v1.DocumentService/{name}");
        let answer = raw_call(&channel(daemon.grpc_addr()), &path, Vec::new()).await;
        let status = answer.expect_err(&name);
        assert_eq!(status.code(), Code::Unauthenticated, "{name}: {status:?}");
        assert_eq!(refused_code(&status), "NO_KEY", "{name}");
    }
    let mut alpha = daemon.documents_of(Setup::ALPHA);
    let mut beta = daemon.documents_of(Setup::BETA);
    for key in ["1", "2"] {
        stored(&mut alpha, put("a/b", key, "\"alpha\"")).await;
    }
    let first = ListDocumentsRequest {
        page_size: 1,
        ..under("a")
    };
    let first = alpha
        .list_documents(first)
        .await
        .expect("a page")
        .into_inner();
    refused(
        beta.get_document(get("a/b", "1")).await,
        Code::NotFound,
        "DOCUMENT_NOT_FOUND",
    );
    for page_token in [String::new(), first.next_page_token] {
        let list = ListDocumentsRequest {
            page_token,
            namespace_prefix: vec![],
            ..under("a")
        };
        assert!(listed(&mut beta, list).await.is_empty());
    }
    let namespaces = beta.list_namespaces(ListNamespacesRequest::default()).await;
    assert!(
        namespaces
            .expect("a page")
            .into_inner()
            .namespaces
            .is_empty()
    );
    let reads = BatchDocumentsRequest {
        operations: vec![DocumentOperation {
            operation: Some(Operation::Get(get("a/b", "1"))),
        }],
    };
    let read_by = beta
        .batch_documents(reads)
        .await
        .expect("done")
        .into_inner();
    assert_eq!(read_by.results[0].document, None);
    let delete = DeleteDocumentRequest {
        namespace: parts("a/b"),
        key: "1".into(),
        expected_version: None,
    };
    assert!(
        !beta
            .delete_document(delete)
            .await
            .expect("done")
            .into_inner()
            .deleted
    );
    let gone = beta.delete_documents(all_under("a")).await.expect("done");
    assert_eq!(gone.into_inner().deleted, 0);
    let own = PutDocumentRequest {
        expected_version: Some(0),
        ..put("a/b", "1", "\"beta\"")
    };
    assert_eq!(stored(&mut beta, own).await.version, 1);
    assert_eq!(text(&read(&mut alpha, "a/b", "1").await), "\"alpha\"");
    assert_eq!(listed(&mut alpha, under("a")).await.len(), 2);
}

#[tokio::test]
async fn acknowledged_documents_survive_kill_and_expired_ones_are_gone() {
    let mut daemon = Daemon::start().await;
    let mut tasks = JoinSet::new();
    for number in 0..64 {
        let mut client = daemon.documents();
        tasks.spawn(async move {
            let key = format!("{number:03}");
            stored(&mut client, put("many", &key, "1")).await;
        });
    }
    tasks.join_all().await;
    let mut client = daemon.documents();
    let short = PutDocumentRequest {
        ttl: Some(Duration {
            seconds: 0,
            nanos: 50_000_000,
        }),
        ..put("short", "k", "1")
    };
    stored(&mut client, short).await;
    daemon.kill9().await;
    daemon.restart().await;
    let mut client = daemon.documents();
    assert_eq!(listed(&mut client, under("many")).await.len(), 64);
    eventually("it expires", async || {
        let found = client.get_document(get("short", "k")).await;
        found.is_err().then_some(())
    })
    .await;
    assert!(listed(&mut client, under("short")).await.is_empty());
}

#[tokio::test]
async fn erasure_reports_documents_as_outside_its_scope() {
    let daemon = Daemon::start().await;
    let mut client = daemon.documents();
    remember_new(&mut daemon.memories(), fact("ann", "Ann likes zinnias")).await;
    let mut sessions = daemon.sessions();
    let request = EraseSubjectRequest {
        subject: "ann".into(),
    };
    for has_documents in [false, true] {
        if has_documents {
            stored(&mut client, put("threads/ann", "k", "\"zinnias\"")).await;
        }
        let job = sessions
            .erase_subject(request.clone())
            .await
            .expect("begun");
        let job = job.into_inner().erasure.expect("an erasure");
        let erased = eventually("it is erased", async || {
            let request = GetErasureRequest { id: job.id.clone() };
            let found = sessions.get_erasure(request).await.expect("a job");
            found.into_inner().erasure.filter(|erasure| erasure.done)
        })
        .await;
        let outside = erased.outside.iter();
        let named = outside.filter(|line| line.contains("documents")).count();
        assert_eq!(named, usize::from(has_documents), "{erased:?}");
    }
    let request = DeleteDocumentsRequest {
        erase: true,
        ..all_under("threads/ann")
    };
    let gone = client
        .delete_documents(request)
        .await
        .expect("done")
        .into_inner();
    assert_eq!(gone.deleted, 1);
    eventually("nothing is left of it", async || {
        files_with(&daemon, &["zinnias"]).is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn documents_are_in_backup_and_move_by_export_and_import() {
    let daemon = Daemon::start().await;
    let mut client = daemon.documents();
    stored(&mut client, put("a/b", "json", "{\"n\": [1, null]}")).await;
    let raw = PutDocumentRequest {
        value: Some(Put::Bytes(vec![0, 255].into())),
        ttl: Some(Duration {
            seconds: 3_600,
            nanos: 0,
        }),
        ..put("a", "raw", "")
    };
    stored(&mut client, raw).await;
    let dest = daemon.path("backup").display().to_string();
    ask_as(&daemon, &["backup", &dest, "--json"], "")
        .await
        .json();
    let data = daemon.path("restored").display().to_string();
    run(&["restore", &dest, "--data", &data, "--json"], &[])
        .await
        .json();
    let checked = run(&["verify", &data, "--json"], &[]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let path = std::path::Path::new(&data).join("memories/default.db");
    assert!(
        std::fs::read(path)
            .expect("the memories")
            .windows(4)
            .any(|bytes| bytes == b"null"),
        "the document is in it"
    );

    let exported = ask_as(&daemon, &["doc", "export"], "").await;
    assert_eq!(exported.stdout.lines().count(), 2, "{exported:?}");
    let file = daemon.path("documents.jsonl");
    std::fs::write(&file, &exported.stdout).expect("written");
    let file = file.display().to_string();
    let other = Daemon::start().await;
    for (imported, skipped) in [(2, 0), (0, 2)] {
        let counts = ask_as(&other, &["doc", "import", &file, "--json"], "")
            .await
            .json();
        assert_eq!(
            (&counts["imported"], &counts["skipped"]),
            (&imported.into(), &skipped.into())
        );
    }
    let mut moved = other.documents();
    let found = listed(&mut moved, under("a")).await;
    let values: Vec<_> = found.iter().map(|found| found.value.clone()).collect();
    let all = listed(&mut client, under("a")).await;
    assert_eq!(
        values,
        all.iter()
            .map(|found| found.value.clone())
            .collect::<Vec<_>>()
    );
    assert!(found[0].expires_at.is_some() && found[1].expires_at.is_none());
}

#[tokio::test]
async fn doc_command_puts_gets_lists_and_deletes() {
    let daemon = Daemon::start().await;
    let doc = async |args: &[&str]| ask_as(&daemon, &[&["doc"], args].concat(), "").await;
    let file = daemon.path("value").display().to_string();
    std::fs::write(&file, "x\ny").expect("written");
    let made = doc(&["put", "users/ann", "likes", "{\"tea\": true}"]).await;
    assert_eq!(
        (made.code, made.stdout.trim()),
        (Some(0), "version 1"),
        "{made:?}"
    );
    let raw = doc(&[
        "put",
        "users/ann",
        "raw",
        "--file",
        &file,
        "--bytes",
        "--ttl",
        "1h",
    ])
    .await;
    assert_eq!(raw.code, Some(0), "{raw:?}");
    assert_eq!(
        doc(&["get", "users/ann", "likes"]).await.stdout,
        "{\"tea\": true}\n"
    );
    assert_eq!(doc(&["get", "users/ann", "raw"]).await.stdout, "x\ny");
    let stale = ["put", "users/ann", "likes", "1", "--expected-version", "0"];
    fails(&doc(&stale).await, 1, "STALE_VERSION");
    fails(
        &doc(&["get", "users/ann", "nothing"]).await,
        1,
        "DOCUMENT_NOT_FOUND",
    );
    doc(&["put", "with\\/slash", "k", "1"]).await;
    let list = doc(&["list"]).await;
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert!(
        lines.len() == 4 && lines[0].starts_with("NAMESPACE"),
        "{list:?}"
    );
    assert!(lines[3].starts_with("with\\/slash"), "{list:?}");
    let filter = ["list", "users", "--filter", "{\"tea\": true}", "--json"];
    let found = doc(&filter).await.json();
    assert_eq!(found["documents"][0]["key"], "likes");
    assert_eq!(found["documents"].as_array().map(Vec::len), Some(1));
    let spaces = doc(&["namespaces", "--depth", "1"]).await;
    assert_eq!(spaces.stdout, "users\nwith\\/slash\n");
    let one = doc(&["delete", "users/ann", "raw"]).await;
    assert_eq!(one.stdout.trim(), "deleted");
    fails(&doc(&["delete", "users", "--all"]).await, 2, "--yes");
    let rest = doc(&["delete", "users", "--all", "--yes", "--erase"]).await;
    assert_eq!(rest.stdout.trim(), "deleted 1");
    assert_eq!(
        doc(&["list", "--json"]).await.json()["documents"][0]["key"],
        "k"
    );
}
