//! Tests of valid and invalid settings from all sources.

use std::{
    env, fs,
    path::PathBuf,
    process::Command as Process,
    sync::atomic::{AtomicU32, Ordering},
};

use super::*;

/// A program with a setting that needs a restart, a list, and a live setting.
#[derive(Debug, Parser)]
#[command(name = "cookiesync_test")]
pub(super) struct Args {
    #[arg(long, default_value = "a", hide_env_values = true)]
    one: String,
    #[arg(long, default_value = "b", value_delimiter = ',')]
    two: Vec<String>,
    #[arg(long, default_value = "3", value_name = "COUNT", group = RELOADED, value_parser = count(1..=9))]
    three: usize,
    #[arg(long, value_name = BOOLEAN)]
    extra: bool,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug)]
pub(super) struct Config {
    pub(super) one: String,
    two: Vec<String>,
    pub(super) three: usize,
    common: CommonArgs,
}

impl Settings for Args {
    type Config = Config;

    fn check(self, errors: &mut ConfigErrors) -> Config {
        if self.one == "wrong" {
            errors.add("--one: wrong");
        }
        Config {
            one: self.one,
            two: self.two,
            three: self.three,
            common: self.common,
        }
    }

    fn common(config: &Config) -> &CommonArgs {
        &config.common
    }
}

/// A settings file that is removed after the test.
pub(super) struct TestFile(pub(super) PathBuf);

impl TestFile {
    pub(super) fn new(text: &str) -> Self {
        static FILES: AtomicU32 = AtomicU32::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("cookiesync-settings-{}-{number}.toml", std::process::id());
        let file = Self(env::temp_dir().join(name));
        fs::write(&file.0, text).unwrap();
        file
    }

    pub(super) fn load(&self, arguments: &[&str]) -> Result<Loaded<Args>, clap::Error> {
        let config = format!("--config={}", self.0.display());
        let arguments = ["program", &config]
            .into_iter()
            .chain(arguments.iter().copied());
        load(arguments.map(OsString::from))
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

type Both = (String, Vec<String>);

fn load_with(file: &str, arguments: &[&str]) -> Result<Both, String> {
    let loaded = TestFile::new(file).load(arguments);
    loaded
        .map(|loaded| (loaded.config.one, loaded.config.two))
        .map_err(|error| error.to_string())
}

#[track_caller]
fn check(file: &str, arguments: &[&str], one: &str, two: &[&str]) {
    let two = two.iter().map(ToString::to_string).collect();
    assert_eq!(load_with(file, arguments), Ok((one.to_owned(), two)));
}

#[test]
fn flags_override_the_file_and_the_file_overrides_defaults() {
    let file = "one = 7\ntwo = [\"x\", \"y\"]";
    check("", &[], "a", &["b"]);
    check(file, &[], "7", &["x", "y"]);
    check(file, &["--one=8"], "8", &["x", "y"]);
    check(file, &["--two=z"], "7", &["z"]);
    check("two = \"x,y\"", &[], "a", &["x", "y"]);
}

#[test]
fn all_errors_of_file_and_values_are_reported_together() {
    let file =
        "five = 1\none = {}\nfour = 2\nconfig = \"x\"\nhelp = true\nprobe = true\ntwo = [[1]]";
    let error = load_with(file, &["--one=wrong"]).unwrap_err();
    for part in [
        "unknown key five",
        "one must be",
        "unknown key four",
        "unknown key config",
        "unknown key help",
        "unknown key probe",
        "two must be",
        "--one: wrong",
    ] {
        assert!(error.contains(part), "{part} is missing in {error}");
    }
    let near = load_with("tow = \"x\"", &[]).unwrap_err();
    assert!(
        near.contains("unknown key tow: did you mean two?"),
        "{near}"
    );
    let table = load_with("[one]\ntwo = 1", &[]).unwrap_err();
    assert!(table.contains("one must be"), "{table}");
    let table = load_with("[limits]\none = 1", &[]).unwrap_err();
    assert!(table.contains("tables are not supported"), "{table}");
    let list = load_with("one = [\"x\", \"y\"]", &[]).unwrap_err();
    assert!(list.contains("one must be a single value"), "{list}");
    assert!(load_with("one = ", &[]).unwrap_err().contains(".toml"));
}

#[test]
fn help_contains_no_secret_of_the_file() {
    let help = load_with("one = \"secret\"", &["--help"]).unwrap_err();
    assert!(!help.contains("secret"), "{help}");
    assert!(help.contains("[default: a]"), "{help}");
}

/// Runs a test again in a process with these environment variables, because a process cannot safely change its own.
#[track_caller]
fn run_again(test: &str, variables: &[(&str, &str)]) {
    let child = Process::new(env::current_exe().unwrap())
        .args(["--exact", &format!("settings::tests::{test}")])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{output}");
    assert!(output.contains("1 passed"), "{output}");
}

const ONE: &str = "COOKIESYNC_TEST_ONE";

#[test]
fn empty_environment_variable_counts_as_unset() {
    if env::var_os(ONE).is_some() {
        return check("", &[], "a", &["b"]);
    }
    let test = "empty_environment_variable_counts_as_unset";
    run_again(test, &[(ONE, "")]);
}

#[test]
fn unknown_flag_does_not_hide_errors_of_the_file() {
    let error = load_with("five = 1", &["--six"]).unwrap_err();
    for part in ["--six", "unknown key five"] {
        assert!(error.contains(part), "{part} is missing in {error}");
    }
}

#[test]
fn every_setting_has_an_environment_variable() {
    let command = command::<Args>();
    for argument in command
        .get_arguments()
        .filter(|argument| is_setting(argument))
    {
        let variable = format!(
            "COOKIESYNC_TEST_{}",
            argument.get_id().as_str().to_uppercase()
        );
        assert_eq!(argument.get_env(), Some(variable.as_ref()), "{argument}");
    }
}

#[test]
fn printed_settings_are_a_file_with_equal_values_and_their_sources() {
    let file = TestFile::new("one = \"\"\ntwo = [\"x\", \"quo\\\"ted\"]");
    let loaded = file.load(&["--three=4"]).unwrap();
    let printed = loaded.effective.to_string();
    for line in [
        "two = [\"x\", 'quo\"ted']  # file\n",
        "three = \"4\"  # flag\n",
        "log_format = \"text\"  # default\n",
        "log_filter = \"info\"  # default\n",
        "one = \"\"  # file; unset\n",
    ] {
        assert!(printed.contains(line), "{line} is missing in {printed}");
    }
    let again = TestFile::new(&printed).load(&[]).unwrap();
    assert_eq!(
        again.effective.differences(&loaded.effective),
        Vec::<&Setting>::new()
    );
}

#[test]
fn printed_settings_mark_removed_secrets() {
    for (url, shown) in [
        (
            "mongodb://user:secret@host/?token=secret",
            "mongodb://***@host/?***",
        ),
        ("mongodb://user:secret@host/db", "mongodb://***@host/db"),
        ("mongodb://host/?token=secret", "mongodb://host/?***"),
    ] {
        let loaded = TestFile::new("").load(&["--one", url]).unwrap();
        let printed = loaded.effective.to_string();
        assert!(
            !printed.contains("secret@") && !printed.contains("token"),
            "{printed}"
        );
        let line = format!("\none = \"{shown}\"  # flag; secret removed");
        assert!(printed.contains(&line), "{printed}");
        let again = TestFile::new(&printed).load(&[]).unwrap().config.one;
        assert_eq!(again, shown, "no other value replaces it");
        assert!(is_redacted(&again) && !is_redacted(url), "{again}");
    }
    assert!(!is_redacted("mongodb://host/db"));
}

#[test]
fn change_needs_a_restart_unless_the_flag_is_in_a_group() {
    assert_eq!(
        settings_with::<Args>(ReloadMode::Live),
        ["three", "log_filter"]
    );
    assert_eq!(
        settings_with::<Args>(ReloadMode::FileContents),
        Vec::<String>::new()
    );
    let others = ["one", "two", "extra", "log_format"];
    assert_eq!(settings_with::<Args>(ReloadMode::Restart), others);
}

#[test]
fn invalid_value_hides_no_other_error_and_grouped_flags_combine() {
    let error = load_with(
        "three = 10\nlog_format = 'xml'",
        &["--one=wrong", "--extra="],
    );
    let error = error.unwrap_err();
    for part in [
        "--one: wrong",
        "--three: 10 exceeds the maximum of 9",
        "--log-format: expected one of text, json",
        "--extra: \"\" is neither",
    ] {
        assert!(error.contains(part), "{part} is missing in {error}");
    }
    check(
        "",
        &["--three=9", "--log-filter=info", "--extra"],
        "a",
        &["b"],
    );
}
