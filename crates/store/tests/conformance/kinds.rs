//! The kinds of stores that the suite is asked of here. Another crate has kinds of its own.

/// Makes of each function a test per kind of store; each gets a store of its own.
macro_rules! for_every_store {
    ($($test:ident),+ $(,)?) => {
        mod sqlite {
            $(#[test]
            fn $test() {
                let dir = tempfile::tempdir().unwrap();
                // So that what is asked for is found here in its place and there in the intake.
                let options = memoird_store::SqliteOptions {
                    intake_changes: 5,
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
                    intake_changes: 5,
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
                super::$test(&memoird_store::MemoryStore::default());
            })+
        }
    };
}
pub(crate) use for_every_store;
