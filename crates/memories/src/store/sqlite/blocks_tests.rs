//! Compares candidate selection by sign bits with an exact search: recall and speed.

use rusqlite::{Connection, params};
use tempfile::TempDir;

use super::super::open;
use super::*;
use crate::store::FilesOptions;
use crate::store::vectors::{find_model, make_model};

const DIMENSION: usize = 384;
const WANTED: usize = 10;
const PARTITION: i64 = 1;

/// Unit vectors clustered around some directions, like those of texts.
struct Clusters {
    dice: u64,
    centres: Vec<Vec<f32>>,
    spread: f32,
}

impl Clusters {
    fn new(seed: u64, count: usize, spread: f32) -> Self {
        println!("seed {seed}");
        let mut clusters = Self {
            dice: seed,
            centres: Vec::new(),
            spread,
        };
        clusters.centres = (0..count).map(|_| clusters.noise()).collect();
        clusters
    }

    /// SplitMix64 (G. Steele, D. Lea and C. Flood, 2014).
    fn roll(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Approximately normal: the sum of four uniform variables.
    fn noise(&mut self) -> Vec<f32> {
        let even = |roll: u64| (roll >> 40) as f32 / (1_u64 << 24) as f32 - 0.5;
        (0..DIMENSION)
            .map(|_| (0..4).map(|_| even(self.roll())).sum())
            .collect()
    }

    fn vector(&mut self) -> Vec<f32> {
        let place = usize::try_from(self.roll()).unwrap() % self.centres.len();
        let noise = self.noise();
        let centre = self.centres[place].iter().zip(noise);
        let raw: Vec<f32> = centre
            .map(|(value, noise)| value + noise * self.spread)
            .collect();
        let length = raw.iter().map(|value| value * value).sum::<f32>().sqrt();
        raw.iter().map(|value| value / length).collect()
    }
}

fn open_one() -> (TempDir, Connection) {
    let dir = TempDir::new().unwrap();
    let connection = open::writer(&dir.path().join("a.db"), "a", &FilesOptions::default()).unwrap();
    (dir, connection)
}

fn fill(connection: &mut Connection, clusters: &mut Clusters, count: i64) -> Model {
    let transaction = connection.transaction().unwrap();
    let glance = FilterColumns {
        kind: 0,
        observed: 1,
        expires: None,
    };
    for local in 1..=count {
        let model = make_model(&*transaction, "m").unwrap();
        let vector = clusters.vector();
        let no = row::range(PARTITION).0 + local;
        transaction.put_vector(no, model, glance, &vector).unwrap();
    }
    transaction.commit().unwrap();
    find_model(connection, "m").unwrap().unwrap()
}

fn filter() -> Filter {
    Filter {
        kinds: u8::MAX,
        observed_after: None,
        observed_before: None,
        now: 0,
        among: None,
    }
}

fn exactly(connection: &Connection, query: &[f32]) -> Vec<i64> {
    let sql = "SELECT no FROM vectors WHERE no BETWEEN ? AND ?
               ORDER BY vec_distance_cosine(vector, ?) LIMIT ?";
    let (first, last) = row::range(PARTITION);
    let parameters = params![first, last, bytes(query), WANTED as i64];
    let mut statement = connection.prepare_cached(sql).unwrap();
    let nos = statement.query_map(parameters, |row| row.get(0)).unwrap();
    nos.collect::<Result<_, _>>().unwrap()
}

fn by_bits(connection: &Connection, model: Model, query: &[f32]) -> Vec<i64> {
    let wanted = Wanted::new(WANTED);
    let found = connection
        .nearest(model, &[PARTITION], &filter(), query, wanted)
        .unwrap();
    found.into_iter().map(|(no, _)| no).collect()
}

/// Share of the exact results that are found.
fn recall(connection: &Connection, model: Model, queries: &[Vec<f32>]) -> f64 {
    let hits = queries.iter().map(|query| {
        let exact = exactly(connection, query);
        by_bits(connection, model, query)
            .iter()
            .filter(|no| exact.contains(no))
            .count()
    });
    hits.sum::<usize>() as f64 / (queries.len() * WANTED) as f64
}

#[test]
fn sign_bit_search_finds_exact_results() {
    for (seed, spread) in [(11, 0.3), (12, 0.7), (13, 1.5)] {
        let mut clusters = Clusters::new(seed, 20, spread);
        let (_dir, mut connection) = open_one();
        let model = fill(&mut connection, &mut clusters, 1_000);
        let queries: Vec<_> = (0..10).map(|_| clusters.vector()).collect();
        let found = recall(&connection, model, &queries);
        assert!(found >= 0.95, "{found} of the nearest with spread {spread}");
    }
}

#[test]
fn hamming_counts_bits_of_incomplete_words() {
    let one: Vec<f32> = (0..77)
        .map(|place| if place % 3 == 0 { 1.0 } else { -1.0 })
        .collect();
    for flipped in 0..77 {
        let mut other = one.clone();
        other[flipped] = -other[flipped];
        assert_eq!(
            hamming(&words(&signs(&one)), &signs(&other)),
            1,
            "{flipped}"
        );
    }
}

#[test]
fn block_entries_are_independent() {
    let (_dir, connection) = open_one();
    let model = make_model(&connection, "m").unwrap();
    let vector = [1.0; 8];
    let no = |local: i64| row::range(PARTITION).0 + local;
    let glance = |kind| FilterColumns {
        kind,
        observed: 5,
        expires: Some(9),
    };
    for local in [1, 31, 32, 33] {
        connection
            .put_vector(no(local), model, glance(1), &vector)
            .unwrap();
    }
    let model = find_model(&connection, "m").unwrap().unwrap();
    let seen = |filter: &Filter| {
        let wanted = Wanted::new(9);
        let found = connection
            .nearest(model, &[PARTITION], filter, &[1.0; 8], wanted)
            .unwrap();
        let mut locals: Vec<i64> = found.into_iter().map(|(found, _)| found - no(0)).collect();
        locals.sort_unstable();
        locals
    };
    assert_eq!(seen(&filter()), [1, 31, 32, 33]);
    assert!(
        connection.remove_vector(no(31)).unwrap() && !connection.remove_vector(no(31)).unwrap()
    );
    connection.move_vector(no(32), no(70), glance(2)).unwrap();
    assert_eq!(seen(&filter()), [1, 33, 70]);
    assert_eq!(
        seen(&Filter {
            kinds: 1 << 2,
            ..filter()
        }),
        [70]
    );
    assert_eq!(seen(&Filter { now: 9, ..filter() }), [0; 0], "all expired");
    assert_eq!(
        seen(&Filter {
            observed_before: Some(5),
            ..filter()
        }),
        [0; 0]
    );
    assert_eq!(
        seen(&Filter {
            among: Some([no(33)].into()),
            ..filter()
        }),
        [33]
    );
}

/// Run with `cargo test --release -p memoird-memories --lib -- --ignored --nocapture measure`.
#[test]
#[ignore = "it measures"]
#[allow(clippy::disallowed_methods, reason = "it measures")]
fn measure_search_strategies() {
    let mut clusters = Clusters::new(1, 200, 0.7);
    let (_dir, mut connection) = open_one();
    let model = fill(&mut connection, &mut clusters, 10_000);
    connection
        .execute_batch("CREATE TABLE rows (no INTEGER PRIMARY KEY, kind, observed, expires, bits)")
        .unwrap();
    let (first, last) = row::range(PARTITION);
    let transaction = connection.transaction().unwrap();
    for no in first + 1..=first + 10_000 {
        let bits = signs(&transaction.vectors_of(&[no]).unwrap()[&no].1);
        let insert = "INSERT INTO rows VALUES (?, 0, 1, NULL, ?)";
        transaction
            .prepare_cached(insert)
            .unwrap()
            .execute(params![no, bits])
            .unwrap();
    }
    transaction.commit().unwrap();
    let queries: Vec<_> = (0..100).map(|_| clusters.vector()).collect();
    let time = |name: &str, look: &dyn Fn(&[f32])| {
        look(&queries[0]);
        let start = std::time::Instant::now();
        queries.iter().for_each(|query| look(query));
        println!("{name}: {:?} each", start.elapsed() / 100);
    };
    time("exact over all", &|query| {
        assert_eq!(exactly(&connection, query).len(), WANTED);
    });
    time("bits in rows, hamming in SQL", &|query| {
        let sql = "SELECT no FROM rows WHERE no BETWEEN ? AND ? AND kind = 0 AND observed >= 0
             ORDER BY vec_distance_hamming(vec_bit(bits), vec_bit(?)) LIMIT 128";
        let mut statement = connection.prepare_cached(sql).unwrap();
        let parameters = params![first, last, signs(query)];
        let nos = statement
            .query_map(parameters, |row| row.get::<_, i64>(0))
            .unwrap();
        let found = connection
            .measure(model, nos.map(Result::unwrap).collect(), query)
            .unwrap();
        assert_eq!(found.len(), 128);
    });
    time("bits in rows, hamming here", &|query| {
        let sql = "SELECT no, kind, observed, expires, bits FROM rows WHERE no BETWEEN ? AND ?";
        let mut statement = connection.prepare_cached(sql).unwrap();
        let mut rows = statement.query([first, last]).unwrap();
        let wanted = words(&signs(query));
        let mut chosen = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            let kind: i64 = row.get(1).unwrap();
            let observed: i64 = row.get(2).unwrap();
            let expires: Option<i64> = row.get(3).unwrap();
            if kind == 0 && observed >= 0 && expires.is_none() {
                let bits = row.get_ref(4).unwrap().as_blob().unwrap();
                chosen.push((hamming(&wanted, bits), row.get::<_, i64>(0).unwrap()));
            }
        }
        chosen.select_nth_unstable(128);
        let nos = chosen[..128].iter().map(|(_, no)| *no);
        assert_eq!(
            connection
                .measure(model, nos.collect(), query)
                .unwrap()
                .len(),
            128
        );
    });
    time("bits in blocks", &|query| {
        assert_eq!(by_bits(&connection, model, query).len(), WANTED);
    });
}

/// Run with `cargo test --release -p memoird-memories --lib -- --ignored --nocapture which_part`.
#[test]
#[ignore = "it measures"]
fn measure_share_of_best_found() {
    for (seed, spread) in [(2, 0.3), (3, 0.7), (4, 1.5)] {
        let mut clusters = Clusters::new(seed, 200, spread);
        let (_dir, mut connection) = open_one();
        let model = fill(&mut connection, &mut clusters, 10_000);
        let queries: Vec<_> = (0..50).map(|_| clusters.vector()).collect();
        println!(
            "spread {spread}: recall@10 {}",
            recall(&connection, model, &queries)
        );
        for (wanted, chosen) in [
            (10, 32),
            (10, 64),
            (10, 128),
            (50, 128),
            (50, 200),
            (50, 500),
        ] {
            let hits = queries.iter().map(|query| {
                let find = |chosen| {
                    let wanted = Wanted {
                        count: wanted,
                        chosen_max: chosen,
                    };
                    let query = &query[..];
                    connection
                        .nearest(model, &[PARTITION], &filter(), query, wanted)
                        .unwrap()
                };
                let exact: Vec<i64> = find(10_000).into_iter().map(|(no, _)| no).collect();
                find(chosen)
                    .iter()
                    .filter(|(no, _)| exact.contains(no))
                    .count()
            });
            let part = hits.sum::<usize>() as f64 / (queries.len() * wanted) as f64;
            println!("spread {spread}: recall@{wanted} of {chosen} chosen {part}");
        }
    }
}
