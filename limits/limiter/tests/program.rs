//! The program as people use it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_limiter"))
        .args(arguments)
        .output()
        .expect("it can be started")
}

#[track_caller]
fn check(arguments: &[&str], code: i32, expected: &[&str]) {
    let output = run(arguments);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    for part in expected {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
}

fn example() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/limits.toml");
    path.to_str().expect("it is UTF-8").to_owned()
}

#[test]
fn example_is_good_and_explained() {
    let example = example();
    check(
        &["check", &example],
        0,
        &["at most 600 in any second", "other keys: as default"],
    );
    let at = "2026-11-22T10:00:59Z";
    let expected = [
        "this window: from 2026-11-22T10:00:00Z to 2026-11-22T10:01:00Z",
        "number 10000: after 481.475s",
    ];
    check(
        &["explain", &example, "partner-b", "--at", at],
        0,
        &expected[..1],
    );
    check(
        &["explain", &example, "partner-b", "--at", at],
        0,
        &expected[1..],
    );
    check(
        &["explain", &example, "anyone"],
        0,
        &["default/slow", "number 100: after 8s"],
    );
}

#[test]
fn trace_is_replayed_through_all_algorithms_or_a_file() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (trace, html, svg) = (path("t.csv"), path("o.html"), path("o.svg"));
    let lines: Vec<String> = (0..1_000)
        .map(|number| format!("{},dsp-17", f64::from(number) / 500.0))
        .collect();
    fs::write(&trace, lines.join("\n")).unwrap();
    let all = [
        "replay", &trace, "--rate", "100/s", "--html", &html, "--svg", &svg,
    ];
    check(
        &all,
        0,
        &["token bucket", "sliding log", "warm-up", "worst window"],
    );
    assert!(fs::read_to_string(html).unwrap().contains("<svg"));
    assert!(fs::read_to_string(svg).unwrap().starts_with("<svg"));
    check(
        &["replay", &trace, "--rules", &example(), "--json"],
        0,
        &["\"released\": 899", "\"refused\": 101"],
    );
    check(
        &[
            "replay",
            &trace,
            "--rate",
            "100/s",
            "--algorithm",
            "sliding",
        ],
        0,
        &["sliding counter"],
    );
    check(
        &["replay", "--demo"],
        0,
        &["42 · 45/60 + 18 = 49.5", "2 of 10: #0, #6"],
    );
}

#[test]
fn mistakes_are_told_and_end_it() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("bad.toml");
    fs::write(
        &file,
        "[limits.a]\nrules = [ { rate = \"1/x\" }, { id = \"b\" } ]",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let expected = [
        "id is missing",
        "`1/x` is not a rate",
        "rules[1]: rate is missing",
    ];
    check(&["check", file], 1, &expected);
    check(
        &["replay", "/nowhere", "--rate", "1/s"],
        1,
        &["cannot read /nowhere"],
    );
    check(
        &["replay", file, "--rate", "1/s"],
        1,
        &["line 1: [limits.a]"],
    );
    check(&["replay", file], 2, &["--rate"]);
    check(
        &["replay", file, "--rate", "1/fortnight"],
        2,
        &["is not a rate"],
    );
    check(
        &["replay", file, "--rate", "1/s", "--rules", file],
        2,
        &["cannot be used with"],
    );
    check(
        &["explain", file, "a", "--at", "noon"],
        1,
        &["neither seconds nor a date"],
    );
    check(&[], 2, &["Usage"]);
}
