//! Documents, lists and logs of checkpoints.

use std::fs;
use std::sync::Arc;

use memoird_core::change::EndReason;
use memoird_core::compaction::{Summary, SummaryBody};
use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::state::State;
use memoird_core::turn::{MediaSource, PartKind, Role, Turn};
use memoird_engine::SessionContent;
use memoird_hooks::git::{Checkpoints, GitError};

use crate::kit::*;

fn open(fixture: &GitFixture) -> Checkpoints {
    Checkpoints::open(&fixture.config, &TenantId::parse("acme").unwrap()).unwrap()
}

fn id(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

/// A session with every kind of part, and texts that try to break out of their section.
fn rich() -> SessionContent {
    let call = |id: &str, input: &str| {
        let (id, name) = (id.to_owned(), "look_up".to_owned());
        part(PartKind::ToolUse {
            id,
            name,
            input_json: input.to_owned(),
        })
    };
    let result = |id: &str, content: &str, is_error, parts| {
        let (tool_use_id, content) = (id.to_owned(), content.to_owned());
        part(PartKind::ToolResult {
            tool_use_id,
            content,
            parts,
            is_error,
        })
    };
    let media = |source| {
        part(PartKind::Media {
            media_type: "image/png".to_owned(),
            source,
            name: "a*b".to_owned(),
        })
    };
    let thinking = |text: &str, redacted| {
        let (text, signature) = (text.to_owned(), String::new());
        part(PartKind::Thinking {
            text,
            signature,
            redacted,
        })
    };
    let text = |text: &str| part(PartKind::Text(text.to_owned()));
    let image = media(MediaSource::Data(vec![1; 12_000]));
    let link = media(MediaSource::Uri("https://example.org/a>b\n# c".to_owned()));
    let mut user = Turn::new(
        Role::User,
        vec![text("# Hi\n\n---\n```\nopen\r\u{1b}[31mred"), image],
    );
    user.pinned = true;
    user.timestamp = Some(at(NOON));
    let calls = vec![
        thinking("Let me see.", false),
        thinking("opaque", true),
        call("c1", r#"{"city":"Bonn","n":1.50}"#),
        call("c2", "not json"),
    ];
    let results = vec![
        result("c1", "fence:\n`````\nend", false, vec![link]),
        result("c2", r#"{"a":[1]}"#, true, Vec::new()),
    ];
    let turns = [
        user,
        Turn::new(Role::Assistant, calls),
        Turn::new(Role::Tool, results),
        Turn::new(Role::Assistant, vec![text("")]),
    ];
    SessionContent {
        session: id("a \"b\"\n: [c]\u{7f}"),
        reason: EndReason::Expired,
        turns: (3..).zip(turns).collect(),
        turns_omitted: 2,
        state: State {
            json: r#"{"lang":"de"}"#.into(),
            version: 4,
        },
        summary: None,
        ..session(0)
    }
}

/// The document of that session.
const DOCUMENT: &str = r##"---
tenant: "acme"
session: "a \"b\"\n: [c]\u007f"
generation: "GENERATION"
subject: "ann"
reason: "expired"
created_at: "2026-11-22T10:00:00.000Z"
ended_at: "2026-11-22T10:01:30.000Z"
turns: 4
turns_omitted: 2
last_seq: 6
state_version: 4
---

# a "b"␊: \[c\]␡

4 turns in 1m 30s, expired.

*2 more are not kept here.*

## State

```json
{
  "lang": "de"
}
```

## 3 · user · 2026-11-22 10:00:00 · pinned

> # Hi
>
> ---
> ```
> open
> ␛[31mred

\[image/png, 12 KiB\] a\*b

## 4 · assistant

*thinking*

> Let me see.

*hidden thinking*

**call** look\_up

```json
{
  "city": "Bonn",
  "n": 1.50
}
```

**call** look\_up

```json
not json
```

## 5 · tool

**result** of look\_up

``````text
fence:
`````
end
``````

[image/png](<https://example.org/a%3Eb%0A# c>) a\*b

**error** of look\_up

```json
{
  "a": [
    1
  ]
}
```

## 6 · assistant

>
"##;

#[tokio::test]
async fn document_contains_all_content_escaped() {
    let fixture = GitFixture::new();
    let ended = Arc::new(rich());
    fixture.deliver(&[Arc::clone(&ended)]).await.unwrap();
    let document = open(&fixture).show(&ended.session, None).unwrap().unwrap();
    assert_eq!(
        document,
        DOCUMENT.replace("GENERATION", &ended.generation.to_string())
    );
    let path = open(&fixture).list(1, None).unwrap()[0]
        .path
        .replace(".md", ".jsonl");
    let lines = git(&fixture.bare(), &["show", &format!("main:{path}")]);
    let turns: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(turns.len(), 4);
    assert_eq!(
        (&turns[0]["seq"], &turns[0]["role"]),
        (&3.into(), &"ROLE_USER".into())
    );
    assert_eq!(
        turns[0]["parts"][0]["text"],
        "# Hi\n\n---\n```\nopen\r\u{1b}[31mred"
    );
}

#[tokio::test]
async fn hidden_text_is_visible_and_active_content_is_neutralized() {
    let fixture = GitFixture::new();
    let said = "\u{202e}txt.exe a\u{e0041}b [x](javascript:alert(1)) [y](https://a.example)";
    let image = PartKind::Media {
        media_type: "image/png".to_owned(),
        source: MediaSource::Uri("javascript:alert(2)".to_owned()),
        name: "\u{2066}n".to_owned(),
    };
    let turn = Turn::new(
        Role::User,
        vec![part(PartKind::Text(said.to_owned())), part(image)],
    );
    let text = PartKind::Text("</blockquote><h2>out</h2>\n\n`<b>` \u{fff9}a\u{fffb}".to_owned());
    let html = Turn::new(Role::Assistant, vec![part(text)]);
    let ended = Arc::new(SessionContent {
        session: id("<script>"),
        turns: vec![(1, turn), (2, html)],
        ..rich()
    });
    fixture.deliver(&[Arc::clone(&ended)]).await.unwrap();
    let document = open(&fixture).show(&ended.session, None).unwrap().unwrap();
    for line in [
        r#"session: "\u003cscript>""#,
        r"# \<script\>",
        "> &lt;/blockquote>&lt;h2>out&lt;/h2>",
        r"> `<b>` \u{fff9}a\u{fffb}",
        r"> \u{202e}txt.exe a\u{e0041}b [x](./javascript:alert(1)) [y](https://a.example)",
        r"\[image/png\] javascript:alert(2) \\u{2066}n",
    ] {
        assert!(
            document.lines().any(|shown| shown == line),
            "{line} in {document}"
        );
    }
}

/// The summary must not break out of its section either, and the turns must still be parsed.
#[tokio::test]
async fn summary_is_first_in_both_files() {
    let fixture = GitFixture::new();
    let summary = Summary {
        number: 2,
        first_seq: 1,
        through_seq: 4,
        turns: 3,
        made_at: at(NOON),
        by: "openai/a*b".into(),
        body: SummaryBody {
            open_questions: vec!["Bonn or Cologne?".to_owned()],
            ..SummaryBody::default()
        },
        text: "[memoird: a summary]\n\n## Open questions\nBonn or Cologne?\r\u{1b}[31m\n---\n"
            .into(),
    };
    let ended = Arc::new(SessionContent {
        summary: Some(Arc::new(summary)),
        ..rich()
    });
    fixture.deliver(&[Arc::clone(&ended)]).await.unwrap();
    let document = open(&fixture).show(&ended.session, None).unwrap().unwrap();
    let section = "## Summary

*Of 3 turns, up to 4; by openai/a\\*b, 2026-11-22 10:00:00.*

> [memoird: a summary]
>
> ## Open questions
> Bonn or Cologne?
> \u{241b}[31m
> ---

## State
";
    let expected = DOCUMENT.replace("GENERATION", &ended.generation.to_string());
    assert_eq!(document, expected.replace("## State\n", section));
    let list = open(&fixture).list(1, None).unwrap();
    assert_eq!((list[0].turns, list[0].reason.as_str()), (4, "expired"));
    let path = list[0].path.replace(".md", ".jsonl");
    let shown = git(&fixture.bare(), &["show", &format!("main:{path}")]);
    let lines: Vec<serde_json::Value> = shown
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 5);
    assert_eq!(lines[0]["summary"]["open_questions"][0], "Bonn or Cologne?");
    assert_eq!(
        (&lines[0]["summary"]["through_seq"], lines[0].get("seq")),
        (&4.into(), None)
    );
    assert_eq!((&lines[1]["seq"], &lines[4]["seq"]), (&3.into(), &6.into()));
}

#[tokio::test]
async fn lists_are_newest_first_and_limited() {
    let fixture = GitFixture::new();
    let days: Vec<Arc<SessionContent>> = (0..30)
        .map(|number| {
            let later = at(NOON + i64::try_from(number).unwrap() * 86_400);
            let generation = Generation::new(later.as_ms(), 1);
            let session = id(&format!("chat:{}", number % 3));
            Arc::new(SessionContent {
                generation,
                session,
                ended_at: later,
                ..crate::kit::session(number)
            })
        })
        .collect();
    fixture.deliver(&days).await.unwrap();
    let checkpoints = open(&fixture);
    let list = checkpoints.list(5, None).unwrap();
    let ended: Vec<_> = list.iter().map(|entry| entry.ended_at.unwrap()).collect();
    assert_eq!(
        ended,
        days.iter()
            .rev()
            .take(5)
            .map(|it| it.ended_at)
            .collect::<Vec<_>>()
    );
    assert_eq!(checkpoints.list(99, None).unwrap().len(), 30);
    let of_one = checkpoints.list(99, Some(&id("chat:1"))).unwrap();
    assert_eq!(of_one.len(), 10);
    assert!(of_one.iter().all(|entry| entry.session == "chat:1"));
    let newest = &of_one[0];
    assert_eq!((newest.turns, newest.reason.as_str()), (2, "ended"));
    assert_eq!(newest.subject.as_deref(), Some("ann"));
    assert_eq!(checkpoints.list(9, Some(&id("chat"))).unwrap(), []);

    let oldest = checkpoints
        .show(&id("chat:1"), Some(days[1].generation))
        .unwrap()
        .unwrap();
    assert!(oldest.contains(&days[1].generation.to_string()));
    let newest = checkpoints.show(&id("chat:1"), None).unwrap().unwrap();
    assert!(newest.contains(&days[28].generation.to_string()));
    assert_eq!(
        checkpoints
            .show(&id("chat:1"), Some(days[0].generation))
            .unwrap(),
        None
    );
    assert_eq!(checkpoints.show(&id("nobody"), None).unwrap(), None);
}

#[tokio::test]
async fn ids_truncated_to_same_name_are_distinguished() {
    let fixture = GitFixture::new();
    let long = |last: &str| id(&format!("{}{last}", "x".repeat(200)));
    let [one, two] = [(1, "1"), (2, "2")].map(|(number, last)| {
        Arc::new(SessionContent {
            session: long(last),
            ..session(number)
        })
    });
    fixture
        .deliver(&[Arc::clone(&one), Arc::clone(&two)])
        .await
        .unwrap();
    let shown = open(&fixture).show(&one.session, None).unwrap().unwrap();
    assert!(shown.contains(one.session.as_str()));
    assert_eq!(open(&fixture).list(9, Some(&two.session)).unwrap().len(), 1);
    assert_eq!(open(&fixture).show(&long("3"), None).unwrap(), None);
}

#[tokio::test]
async fn log_lists_commits_of_all_authors() {
    let fixture = GitFixture::new();
    fixture.deliver(&sessions(0, 60)).await.unwrap();
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let bare = fixture.bare();
    git(dir, &["clone", "-q", bare.to_str().unwrap(), "."]);
    fs::write(dir.join("README.md"), "Ours.\n").unwrap();
    git(dir, &["add", "."]);
    git(dir, &["rm", "-q", "--", &files(dir)[0]]);
    git(dir, &["commit", "-qm", "Tidy up"]);
    git(dir, &["push", "-q", "origin", "main"]);
    fixture.deliver(&sessions(60, 1)).await.unwrap();
    let checkpoints = open(&fixture);
    let log = checkpoints.log(9).unwrap();
    let told: Vec<(&str, &str, usize)> = log
        .iter()
        .map(|entry| {
            (
                entry.subject.as_str(),
                entry.author.as_str(),
                entry.files_changed,
            )
        })
        .collect();
    let expected = [
        ("Checkpoint telegram:60: ended after 2 turns", "memoird", 2),
        ("Tidy up", "Ann", 2),
        ("Checkpoint 60 sessions: 60 ended", "memoird", 120),
    ];
    assert_eq!(told, expected);
    assert_eq!(log[1].files[0], "README.md");
    assert_eq!((log[2].files.len(), log[2].time), (100, at(NOON + 3_600)));
    assert!(log[2].body.ends_with("- and 10 more"), "{}", log[2].body);
    assert_eq!(log[0].id, git(&bare, &["rev-parse", "main"]).trim());
    assert_eq!(checkpoints.log(1).unwrap().len(), 1);
}

#[test]
fn empty_repository_has_no_checkpoints() {
    let fixture = GitFixture::new();
    let opened = Checkpoints::open(&fixture.config, &TenantId::parse("acme").unwrap());
    let error = opened.err().unwrap();
    assert!(matches!(error, GitError::Missing { .. }), "{error}");
    assert!(
        error.to_string().contains("acme.git does not exist"),
        "{error}"
    );
    assert!(!fixture.config.dir.exists(), "reading creates nothing");
}
