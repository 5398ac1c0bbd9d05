//! A database without pgvector: everything works by words, and vectors cause no errors.

use memoird_memories::ForgetRequest;
use memoird_memories::store::MemoryStore;
use memoird_postgres::PgOptions;

use crate::kit::*;
use crate::place::RUNTIME;
use crate::start::Server;

#[test]
fn without_pgvector_recall_is_lexical() {
    let has_pgvector = "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'";
    let server = Server::shared().filter(|it| it.run("postgres", has_pgvector) == "0");
    let Some(server) = server else {
        return;
    };
    let options = PgOptions::parse(&server.database(), None, None).unwrap();
    let store = MemoryStore::in_postgres(options, RUNTIME.handle()).unwrap();
    assert!(!store.has_vectors());
    let memories = store.tenant(&tenant("acme")).unwrap();
    let fact = fact(
        "ann",
        memoird_memories::rules::MemoryKind::Project,
        "a boat",
    );
    memories
        .write_one(move |writer| {
            writer.set_embedding_model(Some(MODEL))?;
            let mut command = order(1, fact);
            command.vector = Some(vector([1.0; 8]));
            writer.remember(&command, &limits())
        })
        .unwrap();
    let near = vector([1.0; 8]);
    let lists = memories
        .read(|reader| reader.recall(&ask(&["ann"], "boat"), Some(&near), at(1)))
        .unwrap();
    assert_eq!((by_words(&lists).len(), by_vector(&lists).len()), (1, 0));
    let stats = memories
        .read(|reader| reader.stats(Some(MODEL), at(1)))
        .unwrap();
    assert_eq!(
        (stats.memories, stats.embedded, stats.embedding_queued),
        (1, 0, 0)
    );
    let counts = memories
        .write_one(|writer| {
            writer.forget_begin(id(9), &ForgetRequest::One(id(1)), at(2))?;
            writer.forget_step(id(9), 10)
        })
        .unwrap()
        .counts;
    assert_eq!((counts.memories, counts.vectors), (1, 0));
}
