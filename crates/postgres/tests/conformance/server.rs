//! Databases for tests, and stores over them.

use std::sync::LazyLock;

use memoird_postgres::{PgOptions, PgStore};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use crate::start::Server;

/// Runs the connections of all tests.
pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
});

/// The database of one test.
#[derive(Clone)]
pub(crate) struct Database {
    /// Connection string.
    pub(crate) words: String,
}

/// Creates a database. `None` if there is no server.
pub(crate) fn database() -> Option<Database> {
    let server = Server::shared()?;
    let words = server.database();
    Some(Database { words })
}

impl Database {
    pub(crate) fn options(&self) -> PgOptions {
        PgOptions::parse(&self.words, None, None).unwrap()
    }

    pub(crate) fn store(&self) -> PgStore {
        self.store_with(self.options())
    }

    pub(crate) fn store_with(&self, options: PgOptions) -> PgStore {
        PgStore::open(options, RUNTIME.handle()).unwrap()
    }

    /// Runs statements directly, without a store.
    pub(crate) fn run(&self, sql: &str) {
        RUNTIME.block_on(async {
            let client = connect(&self.words).await.unwrap();
            client.batch_execute(sql).await.unwrap();
        });
    }

    /// Runs a statement in a transaction that ends when the client is dropped.
    pub(crate) fn hold(&self, sql: &str) -> Client {
        RUNTIME.block_on(async {
            let client = connect(&self.words).await.unwrap();
            client
                .batch_execute(&format!("BEGIN; {sql}"))
                .await
                .unwrap();
            client
        })
    }

    /// Name of the database.
    pub(crate) fn name(&self) -> &str {
        let name = self.words.split("dbname=").nth(1);
        name.and_then(|rest| rest.split(' ').next()).unwrap()
    }

    /// Copies the database from its files on disk. No connection may be using it.
    pub(crate) fn copy(&self) -> Self {
        let name = format!("{}_copy", self.name());
        let sql = format!(
            "CREATE DATABASE {name} TEMPLATE {} STRATEGY file_copy",
            self.name()
        );
        Server::shared().unwrap().run("postgres", &sql);
        let words = self.words.replace(self.name(), &name);
        Self { words }
    }

    /// Runs a query that returns a text.
    pub(crate) fn text(&self, sql: &str) -> String {
        Server::shared().unwrap().run(self.name(), sql)
    }

    /// Runs a query that returns a number.
    pub(crate) fn number(&self, sql: &str) -> i64 {
        RUNTIME.block_on(async {
            let client = connect(&self.words).await.unwrap();
            // Without a prepared statement: a pooler may not support it.
            let rows = client.query_typed(sql, &[]).await.unwrap();
            rows[0].get(0)
        })
    }
}

async fn connect(words: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(words, NoTls).await?;
    RUNTIME.spawn(connection);
    Ok(client)
}
