//! Lists of live sessions: filters, order, pages.

use memoird_core::ids::Subject;
use memoird_core::session::AppendCommand;
use memoird_core::time::Steady;
use memoird_engine::{
    Durability, LivePosition, PartPosition, SessionListPosition, SessionOrder, SessionPage,
    SessionQuery, SessionView,
};

use crate::bot::{Bot, saying};
use crate::kit::{Dice, World, session_id, settle, unswept};

/// The live session after which a page ended.
fn last_live(position: &SessionListPosition) -> &LivePosition {
    match &position.live {
        PartPosition::After(live) => live,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn all() -> SessionQuery {
    SessionQuery::default()
}

#[tokio::test(start_paused = true)]
async fn list_has_every_session_once_most_recently_used_first() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    for id in 0..20 {
        // Two sessions each are used in the same millisecond.
        if id % 2 == 0 {
            settle().await;
        }
        bot.say(&id.to_string(), "hello").await.unwrap();
    }
    settle().await;
    bot.say("7", "again").await.unwrap();
    bot.patch("3", "{}", None).await.unwrap();
    bot.end("12").await.unwrap();
    let expected = [
        3, 7, 19, 18, 17, 16, 15, 14, 13, 11, 10, 9, 8, 6, 5, 4, 2, 1, 0,
    ];
    for page_size in [1, 2, 3, 5, 18, 19, 20, 1_000] {
        let views = bot.views(page_size).await;
        let ids: Vec<u64> = views
            .iter()
            .map(|v| v.session.as_str().parse().unwrap())
            .collect();
        assert_eq!(ids, expected, "in pages of {page_size}");
    }
}

#[tokio::test(start_paused = true)]
async fn cut_page_continues_after_its_last_session() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b", "c", "d", "e"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    for order in [SessionOrder::Newest, SessionOrder::Oldest, SessionOrder::Id] {
        let query = SessionQuery { order, ..all() };
        let ask = async |after: Option<&SessionListPosition>| {
            let page = engine.commands.sessions(&bot.tenant, &query, after, 10);
            page.await.unwrap()
        };
        let ids = |page: &SessionPage| -> Vec<String> {
            let ids = page.sessions.iter();
            ids.map(|view| view.session.as_str().to_owned()).collect()
        };
        let whole = ids(&ask(None).await);
        let mut page = ask(None).await;
        page.cut(2);
        let place = page.next.clone().unwrap();
        let rest = ask(Some(&place)).await;
        assert_eq!([ids(&page), ids(&rest)].concat(), whole, "{order:?}");
        page.cut(9);
        assert_eq!(page.next, Some(place), "there is nothing to cut");
    }
}

#[tokio::test(start_paused = true)]
async fn list_continues_when_last_session_was_used_or_ended() {
    for change in ["use", "end"] {
        let engine = World::new(unswept()).open().await;
        let bot = Bot::acme(&engine);
        for id in ["a", "b", "c", "d", "e"] {
            settle().await;
            bot.say(id, "hello").await.unwrap();
        }
        let page = engine
            .commands
            .sessions(&bot.tenant, &all(), None, 2)
            .await
            .unwrap();
        let place = page.next.unwrap();
        assert_eq!(last_live(&place).session.as_str(), "d");
        settle().await;
        match change {
            "use" => drop(bot.say("d", "again").await.unwrap()),
            _ => drop(bot.end("d").await.unwrap()),
        }
        let rest = engine
            .commands
            .sessions(&bot.tenant, &all(), Some(&place), 10)
            .await
            .unwrap();
        let ids: Vec<_> = rest
            .sessions
            .iter()
            .map(|view| view.session.as_str())
            .collect();
        assert_eq!(ids, ["c", "b", "a"], "after {change}");
        assert!(rest.next.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn list_misses_no_session_with_equal_last_access() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b", "c", "d"] {
        bot.say(id, "hello").await.unwrap();
    }
    let page = engine
        .commands
        .sessions(&bot.tenant, &all(), None, 2)
        .await
        .unwrap();
    let place = page.next.unwrap();
    settle().await;
    let last = last_live(&place).session.as_str();
    bot.say(last, "again").await.unwrap();
    let rest = engine
        .commands
        .sessions(&bot.tenant, &all(), Some(&place), 10)
        .await
        .unwrap();
    let ids: Vec<_> = rest
        .sessions
        .iter()
        .map(|view| view.session.as_str())
        .collect();
    assert!(ids.ends_with(&["b", "a"]), "{ids:?}");
}

#[tokio::test(start_paused = true)]
async fn list_after_end_is_empty() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    settle().await;
    bot.say("a", "hello").await.unwrap();
    let behind = SessionListPosition {
        live: PartPosition::After(LivePosition {
            session: session_id("a"),
            at: Steady(0),
        }),
        ended: PartPosition::End,
    };
    assert!(
        engine
            .commands
            .sessions(&bot.tenant, &all(), Some(&behind), 10)
            .await
            .unwrap()
            .sessions
            .is_empty()
    );
    assert!(
        engine
            .commands
            .sessions(&bot.tenant, &all(), None, 0)
            .await
            .unwrap()
            .next
            .is_none()
    );
}

fn labelled(labels: &[(&str, &str)]) -> SessionQuery {
    let labels = labels.iter();
    SessionQuery {
        labels: labels
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect(),
        ..all()
    }
}

fn of_subject(subject: &str) -> SessionQuery {
    SessionQuery {
        subject: Some(Subject::parse(subject).unwrap()),
        ..all()
    }
}

/// Appends a turn with a subject.
async fn say_as(bot: &Bot, session: &str, subject: &str) {
    let command = AppendCommand {
        subject: Some(Subject::parse(subject).unwrap()),
        ..saying(&["hello"])
    };
    bot.append(session, command).await.unwrap();
}

/// The expected result of a query, computed without an index.
fn expected(views: &[SessionView], query: &SessionQuery) -> Vec<String> {
    let takes = |view: &&SessionView| {
        let used_ms = view.last_access.as_ms();
        let mut labels = query
            .labels
            .iter()
            .map(|(name, value)| view.head.label(name) == Some(value));
        view.session.as_str().starts_with(&*query.id_prefix)
            && query
                .subject
                .as_ref()
                .is_none_or(|it| view.subject() == Some(it))
            && labels.all(|has| has)
            && query.used_after.is_none_or(|at| used_ms + 1 >= at.as_ms())
            && query.used_before.is_none_or(|at| used_ms <= at.as_ms() + 1)
    };
    let mut found: Vec<&SessionView> = views.iter().filter(takes).collect();
    match query.order {
        SessionOrder::Newest => {}
        SessionOrder::Oldest => found.reverse(),
        SessionOrder::Id => found.sort_by(|one, other| one.session.cmp(&other.session)),
    }
    let id = |view: &&SessionView| view.session.as_str().to_owned();
    found.iter().map(id).collect()
}

#[tokio::test(start_paused = true)]
async fn indexed_queries_match_full_scan() {
    for seed in 1..=6 {
        println!("seed {seed}");
        let world = World::new(unswept());
        let mut bot = Bot::acme(&world.open().await);
        let mut dice = Dice(seed);
        for round in 0..400 {
            settle().await;
            let id = format!(
                "{}{}",
                dice.one_of(&["a", "ab", "b", "\u{10ffff}"]),
                dice.below(30)
            );
            match dice.below(8) {
                0 => drop(bot.end(&id).await),
                1 => drop(bot.reset(&id).await),
                2 | 3 => {
                    let name: &&str = dice.one_of(&["app", "lang"]);
                    let value: &&str = dice.one_of(&["x", "y", ""]);
                    bot.label(&id, name, value).await.unwrap();
                }
                4 | 5 => {
                    let subject: &&str = dice.one_of(&["ann", "bob", "an"]);
                    say_as(&bot, &id, subject).await;
                }
                _ => drop(bot.say(&id, "hello").await.unwrap()),
            }
            if round == 250 {
                bot.engine.close().await;
                bot = Bot::acme(&world.open().await);
            }
        }
        let views = bot.views(1_000).await;
        assert!(views.len() > 50, "seed {seed}");
        for _ in 0..60 {
            let some_time = |dice: &mut Dice| {
                let view = dice.one_of(&views).last_access;
                dice.once_in(3).then_some(view)
            };
            let mut query = SessionQuery {
                id_prefix: (*dice.one_of(&["", "", "a", "ab1", "\u{10ffff}", "none"])).into(),
                used_after: some_time(&mut dice),
                used_before: some_time(&mut dice),
                order: *dice.one_of(&[
                    SessionOrder::Newest,
                    SessionOrder::Oldest,
                    SessionOrder::Id,
                ]),
                ..all()
            };
            if dice.once_in(2) {
                let subject: &&str = dice.one_of(&["ann", "bob", "an", "nobody"]);
                query.subject = of_subject(subject).subject;
            }
            if dice.once_in(2) {
                let name: &&str = dice.one_of(&["app", "lang", "no"]);
                query.labels = labelled(&[(name, "x")]).labels;
            }
            if dice.once_in(4) {
                query.labels.insert("lang".into(), "y".into());
            }
            let expected = expected(&views, &query);
            for page_size in [1, 3, 1_000] {
                let found = bot.list_of(&query, page_size).await;
                assert_eq!(
                    found, expected,
                    "seed {seed}: {query:?} in pages of {page_size}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn uncommitted_label_is_not_found() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    settle().await;
    bot.label("a", "app", "x").await.unwrap();
    bot.say("b", "hello").await.unwrap();
    world.store.fail_commits(1);
    bot.label("a", "app", "y").await.unwrap_err();
    settle().await;
    assert_eq!(
        bot.list_of(&labelled(&[("app", "y")]), 9).await,
        Vec::<String>::new()
    );
    assert_eq!(bot.list_of(&labelled(&[("app", "x")]), 9).await, ["a"]);
    bot.label("a", "app", "y").await.unwrap();
    assert_eq!(bot.list_of(&labelled(&[("app", "y")]), 9).await, ["a"]);
    assert_eq!(
        bot.list_of(&labelled(&[("app", "x")]), 9).await,
        Vec::<String>::new()
    );
}

#[tokio::test(start_paused = true)]
async fn labels_survive_reset_and_are_removed_by_end() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    bot.label("a", "app", "x").await.unwrap();
    bot.reset("a").await.unwrap();
    assert_eq!(bot.list_of(&labelled(&[("app", "x")]), 9).await, ["a"]);
    bot.end("a").await.unwrap();
    bot.say("a", "anew").await.unwrap();
    assert_eq!(
        bot.list_of(&labelled(&[("app", "x")]), 9).await,
        Vec::<String>::new()
    );
    assert_eq!(bot.view("a").await.unwrap().head.options, None);
}

#[tokio::test(start_paused = true)]
async fn page_scans_bounded_number_of_sessions_and_returns_position() {
    let mut config = unswept();
    config.journal.durability = Durability::Off;
    let engine = World::new(config).open().await;
    let bot = Bot::acme(&engine);
    const SESSIONS: usize = 9_000;
    for number in 0..SESSIONS {
        // Each label matches thousands of sessions, but only the least recently used has both.
        let labels = match number {
            0 => [("one", "x"), ("two", "x")],
            _ if number % 2 == 0 => [("one", "x"), ("two", "y")],
            _ => [("one", "y"), ("two", "x")],
        };
        let mut command = saying(&["hello"]);
        command.options.labels = labelled(&labels).labels;
        bot.append(&format!("{number:05}"), command).await.unwrap();
    }
    let both = labelled(&[("one", "x"), ("two", "x")]);
    for order in [SessionOrder::Newest, SessionOrder::Oldest, SessionOrder::Id] {
        let query = SessionQuery {
            order,
            ..both.clone()
        };
        assert_eq!(bot.list_of(&query, 10).await, ["00000"]);
    }
    let first = engine
        .commands
        .sessions(&bot.tenant, &both, None, 10)
        .await
        .unwrap();
    assert!(first.sessions.is_empty() && first.next.is_some());
    let next = first.next.as_ref();
    let rest = engine
        .commands
        .sessions(&bot.tenant, &both, next, 10)
        .await
        .unwrap();
    assert_eq!((rest.sessions.len(), rest.next), (1, None));
}

#[tokio::test(start_paused = true)]
async fn label_query_starts_at_id_prefix() {
    let mut config = unswept();
    config.journal.durability = Durability::Off;
    let engine = World::new(config).open().await;
    let bot = Bot::acme(&engine);
    for number in 0..11_000 {
        // More sessions precede the prefix than one call scans.
        let place = if number < 8_500 { "a" } else { "b" };
        let mut command = saying(&["hello"]);
        command.options.labels = labelled(&[("app", "x")]).labels;
        let id = format!("{place}{number:05}");
        bot.append(&id, command).await.unwrap();
    }
    let query = SessionQuery {
        id_prefix: "b".into(),
        order: SessionOrder::Id,
        ..labelled(&[("app", "x")])
    };
    let page = engine
        .commands
        .sessions(&bot.tenant, &query, None, 2)
        .await
        .unwrap();
    let ids: Vec<_> = page.sessions.iter().map(|it| it.session.as_str()).collect();
    assert_eq!(ids, ["b08500", "b08501"]);
}
