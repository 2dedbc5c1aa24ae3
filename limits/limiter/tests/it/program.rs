//! Tests of the command line of `limiter`.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_limiter"))
        .args(arguments)
        .output()
        .expect("cannot start the program")
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

fn example(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let path = dir.join(name);
    path.to_str().expect("a UTF-8 path").to_owned()
}

#[test]
fn check_rejects_rules_that_exact_sharing_does_not_support() {
    let example = example("shared-limits.toml");
    check(&["check", &example], 0, &["decided by the server"]);
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("limits.toml");
    let text = fs::read_to_string(&example).unwrap();
    let text = text.replace("group =", "members_max = 2\ngroup =");
    fs::write(&file, text.replace("fixed_window", "sliding_log")).unwrap();
    let expected = [
        "limits.partner: day: a sliding_log cannot use exact mode",
        "sharing.members_max: requires mode",
    ];
    check(&["check", file.to_str().unwrap()], 1, &expected);
}

#[test]
fn check_rejects_names_that_serve_rejects() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("limits.toml");
    let file = file.to_str().unwrap();
    let long = "x".repeat(129);
    for name in ["a/b", &*long] {
        let text = format!("[limits.\"{name}\"]\nrules = [ {{ id = \"r\", rate = \"1/s\" }} ]");
        fs::write(file, text).unwrap();
        check(&["check", file], 1, &["invalid name: use up to 128 bytes"]);
        let limits = format!("--limits={file}");
        let serve = ["serve", &limits, "--check-config"];
        check(&serve, 2, &["invalid name: use up to 128 bytes"]);
    }
}

#[test]
fn example_is_valid() {
    let example = example("limits.toml");
    check(
        &["check", &example],
        0,
        &["300/s, up to 300 at once", "unlisted keys: default"],
    );
}

#[test]
fn replay_ignores_modes() {
    let example = example("producer-limits.toml");
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (plain, trace) = (path("plain.toml"), path("t.csv"));
    let text = fs::read_to_string(&example).unwrap();
    let is_rule = |line: &&str| {
        let options = ["mode", "shape", "requeue"];
        !options.iter().any(|option| line.starts_with(option))
    };
    let rules: Vec<&str> = text.lines().filter(is_rule).collect();
    fs::write(&plain, rules.join("\n")).unwrap();
    let calls = (0..6_000).map(|number| format!("{},17\n", f64::from(number) / 600.0));
    fs::write(&trace, calls.collect::<String>()).unwrap();
    for file in [&example, &plain] {
        check(
            &["replay", &trace, "--rules", file, "--max-wait", "5s"],
            0,
            &["4529", "1471"],
        );
    }
}

#[test]
fn replay_uses_all_algorithms_or_a_limits_file() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let trace = path("t.csv");
    let lines: Vec<String> = (0..1_000)
        .map(|number| format!("{},dsp-17", f64::from(number) / 500.0))
        .collect();
    fs::write(&trace, lines.join("\n")).unwrap();
    let all = ["replay", &trace, "--rate", "100/s"];
    check(
        &all,
        0,
        &["token_bucket", "sliding_log", "warm_up", "worst window"],
    );
    check(
        &["replay", &trace, "--rules", &example("limits.toml")],
        0,
        &["899", "101"],
    );
}

#[test]
fn invalid_input_is_reported_and_fails() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("bad.toml");
    fs::write(
        &file,
        "[limits.a]\nrules = [ { rate = \"1/s\" }, { id = \"a\", rate = \"1/x\" }, { id = \"b\" } ]",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let expected = [
        "rules[0]: missing field `id`",
        "line 2: limits.a.rules[1].rate: invalid rate `1/x`",
        "rules[2]: missing field `rate`",
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
        &["invalid rate"],
    );
    check(
        &["replay", file, "--rate", "1/s", "--rules", file],
        2,
        &["cannot be used with"],
    );
    let path = dir.path().join("modes.toml");
    let rules = "[limits.a]\nrules = [ { id = \"b\", rate = \"1/s\" } ]";
    fs::write(
        &path,
        format!(
            "{rules}\nmode = \"hold\"\n[limits.b]\nrules = [ {{ id = \"b\", rate = \"1/s\" }} ]\n\
             mode = \"shape\"\nshape = {{ max_wait = \"2h\" }}"
        ),
    )
    .unwrap();
    let expected = [
        "line 3: limits.a.mode: unknown value `hold`, expected one of `observe`, `police`, `shape`",
        "line 7: limits.b.shape.max_wait: out of range: use up to 1h",
    ];
    check(&["check", path.to_str().unwrap()], 1, &expected);
    check(&[], 2, &["Usage"]);
}

#[test]
fn informational_flags_work_like_those_of_the_other_programs() {
    for shell in ["bash", "zsh", "fish"] {
        let expected = ["replay", "token-file", "log-filter"];
        check(&["--completions", shell], 0, &expected);
    }
    check(&["--completions", "tcl"], 2, &["\"tcl\"", "bash"]);
    check(&["--man"], 0, &[".TH", "limiter\\-serve", "token\\-file"]);
    check(
        &["help", "serve"],
        0,
        &["--limits", "API and authentication"],
    );
    check(&["--version"], 0, &[env!("CARGO_PKG_VERSION"), " ("]);
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = format!("--admin={}", unused.local_addr().unwrap());
    drop(unused);
    // The health check of the container image passes this flag without a command.
    check(&["--probe", &admin], 1, &["refused"]);
    check(&["serve", "--probe", &admin], 1, &["refused"]);
}
