# What README.md and CONTRIBUTING.md name, for those who have `just`: `just --list`.

# A producer, a consumer and one sync, shown
demo *flags:
    cargo demo {{flags}}

# Everything but the long tests, with a real MongoDB
test *filter:
    cargo test --locked {{filter}}

# What must hold for every change
check:
    .ci/run

# The programs as they ship, in target/dist
dist:
    .ci/dist
