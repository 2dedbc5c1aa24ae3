# Short names of commands in README.md and CONTRIBUTING.md. `just --list` lists them.

# Run a producer and a consumer, and show one sync
demo *flags:
    cargo demo {{flags}}

# Run all tests except the long ones, with a real MongoDB
test *filter:
    cargo test --locked {{filter}}

# Run all checks required for a change
check:
    .ci/run

# Build the optimized programs in target/dist
dist:
    .ci/dist
