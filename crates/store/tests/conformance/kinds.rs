//! The kinds of stores tested in this crate. Other crates have their own.

/// Generates a test per function and kind of store, each with a new store.
macro_rules! for_every_store {
    ($($test:ident),+ $(,)?) => {
        mod sqlite {
            $(#[test]
            fn $test() {
                let dir = tempfile::tempdir().unwrap();
                // Small, so that tests find rows both in the indexed tables and in the pending
                // table.
                let options = memoird_store::SqliteOptions {
                    pending_changes_max: 5,
                    ..memoird_store::SqliteOptions::default()
                };
                let store = memoird_store::SqliteStore::open(dir.path(), options).unwrap();
                super::$test(&store);
            })+
        }

        #[cfg(feature = "encryption")]
        mod encrypted {
            $(#[test]
            fn $test() {
                let dir = tempfile::tempdir().unwrap();
                let options = memoird_store::SqliteOptions {
                    pending_changes_max: 5,
                    key: Some(crate::encryption::key(1)),
                    ..memoird_store::SqliteOptions::default()
                };
                let store = memoird_store::SqliteStore::open(dir.path(), options).unwrap();
                super::$test(&store);
            })+
        }

        mod memory {
            $(#[test]
            fn $test() {
                super::$test(&crate::model::MemoryStore::default());
            })+
        }
    };
}
pub(crate) use for_every_store;
