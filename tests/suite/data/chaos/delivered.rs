//! What hooks received in the chaos rounds.

use std::collections::BTreeMap;

use super::Member;
use crate::data::postgres::server::Server;
use crate::harness::{delivered_before_kill, field};

/// Content delivered to hooks, by generation.
pub(super) type DeliveredContent = BTreeMap<String, Life>;

/// A generation as delivered to a hook.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) session: String,
    pub(super) texts: Vec<String>,
}

/// Everything delivered to hooks. Repeated deliveries must be identical.
pub(super) fn all_delivered_content(members: &[Member]) -> DeliveredContent {
    let mut all = DeliveredContent::new();
    for content in members
        .iter()
        .flat_map(|member| delivered_before_kill(&member.daemon))
    {
        let turns = content["turns"].as_array().expect("turns").iter();
        let texts = turns.map(|turn| {
            turn["parts"][0]["text"]
                .as_str()
                .expect("a text")
                .to_owned()
        });
        let life = Life {
            session: field(&content, "session_id").to_owned(),
            texts: texts.collect(),
        };
        let generation = field(&content, "generation").to_owned();
        let told = all.entry(generation).or_insert_with(|| Life {
            session: life.session.clone(),
            texts: life.texts.clone(),
        });
        assert_eq!(*told, life);
    }
    all
}

/// Where a text is in the database, and the generations and latest keys of its session.
pub(super) fn places(server: &Server, database: &str, session: &str, text: &str) -> String {
    let sql = format!(
        "SELECT 'turn ' || t.seq || ' of ' || t.generation FROM memoird.turns AS t
             WHERE position('{text}' in encode(t.content, 'escape')) > 0
         UNION ALL SELECT 'key of ' || generation || ', seq ' || first_seq || ', at ' || at
             FROM memoird.idempotency WHERE convert_from(session, 'UTF8') = '{session}'
             AND at > (SELECT max(at) - 20000 FROM memoird.idempotency)
         UNION ALL SELECT 'generation ' || generation || ', ' || last_seq || ' turns, ' || created_ms
             || ' to ' || coalesce(ended_ms, 0) || ', ' || coalesce(reason, 'live')
             FROM memoird.generations WHERE convert_from(session, 'UTF8') = '{session}'"
    );
    server.run(database, &sql)
}
