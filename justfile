# All checks are one word. https://just.systems

# Format the code
fmt:
    cargo fmt

# What .ci/run refuses
lint:
    cargo fmt --check
    cargo clippy --workspace --all-targets --features memoird/tokenizer-json -- -D warnings

# All tests
test:
    cargo test --workspace --features memoird/tokenizer-json

# CPU per call against a bare server, and what durability costs
bench:
    cargo run --release --bin memoird -- bench --durability off --baseline
    cargo run --release --bin memoird -- bench --compare-durability

# Licences, advisories and sources of what we depend on (cargo install cargo-deny)
deny:
    cargo deny check

# Everything, as on a fresh machine
ci:
    bash .ci/run
