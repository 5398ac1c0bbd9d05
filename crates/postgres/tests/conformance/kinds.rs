//! Runs the store suite over PostgreSQL, with a fresh database per test.

/// Generates a test per function, each with its own store.
macro_rules! for_every_store {
    ($($test:ident),+ $(,)?) => {
        mod postgres {
            $(#[test]
            fn $test() {
                if let Some(database) = crate::server::database() {
                    super::$test(&database.store());
                }
            })+
        }
    };
}
pub(crate) use for_every_store;
