//! A database in which an older memoird cut the words of memories by other rules.

use memoird_memories::rules::MemoryKind;
use memoird_memories::store::MemoryStore;
use memoird_postgres::PgOptions;

use crate::kit::*;
use crate::place::RUNTIME;
use crate::start::Server;

#[test]
fn words_that_were_cut_by_other_rules_are_indexed_anew() {
    let Some(server) = Server::shared() else {
        return;
    };
    let words = server.database();
    let (_, database) = words.split_once("dbname=").unwrap();
    let open = || {
        let options = PgOptions::parse(&words, None, None).unwrap();
        let store = MemoryStore::in_postgres(options, RUNTIME.handle()).unwrap();
        store.tenant(&tenant("acme")).unwrap()
    };
    let memories = open();
    for number in 1..=3 {
        let fact = fact("ann", MemoryKind::Project, &format!("boat number {number}"));
        memories
            .write_one(move |writer| writer.remember(&order(number, fact), &limits()))
            .unwrap();
    }
    let older = "UPDATE memoird_memories.meta SET value = '1' WHERE name = 'words';
        DELETE FROM memoird_memories.terms;
        INSERT INTO memoird_memories.terms (tenant, partition, form, no)
        SELECT tenant, partition, 4711, no FROM memoird_memories.memories";
    server.run(database, older);
    let stale = "SELECT count(*) FROM memoird_memories.terms WHERE form = 4711";
    assert_eq!(server.run(database, stale), "3");
    let memories = open();
    let found = || {
        let look = memories.read(|reader| reader.recall(&ask(&["ann"], "boats"), None, at(1)));
        look.unwrap().lexical.len()
    };
    let step = || memories.write_one(|writer| writer.words_step(2)).unwrap();
    assert_eq!(found(), 3);
    while step() > 0 {
        assert_eq!(found(), 3);
    }
    assert_eq!((found(), step()), (3, 0));
    assert_eq!(server.run(database, stale), "0");
    let stats = open().read(|reader| reader.stats(None, at(1))).unwrap();
    assert_eq!(stats.words_queued, 0);
}
