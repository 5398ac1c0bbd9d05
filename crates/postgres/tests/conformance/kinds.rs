//! The kind of stores that the suite is asked of here: a fresh database each.

/// Makes a test of each function; each gets a store of its own.
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
