//! Where a process's settings come from: flags, then environment, then a TOML file, then defaults.
//!
//! The command line is described once, by a clap parser; the file's values become the defaults of its flags.
//! A key of the file is the flag's name with underscores. So every setting has all three forms, and none can
//! be known to one and unknown to another.
//!
//! Every flag's type is `String` (a list's `Vec<String>`), so that clap accepts whatever is written and a check
//! can name all mistakes at once, those of the file among them.

use std::{ffi::OsString, fmt, fs, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use clap::{Arg, ArgAction, Command, Parser, builder::Resettable, error::ErrorKind};

/// The flag that names the file; it is the one setting the file cannot hold.
const FILE: &str = "config";

/// Longest any single time setting may be: long enough to mean "never".
pub const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Parses `arguments` (program name first) into `A`, which must have a flag `--config`, and lets `check` turn
/// that into the settings. An empty environment variable counts as not set: that is how deployment tools say so.
///
/// # Errors
/// clap's, ready to be printed: also for `--help`, and with all mistakes of the file and of `check` together.
pub fn load<A: Parser, C>(
    arguments: impl IntoIterator<Item = OsString>,
    check: impl FnOnce(&A) -> Result<C, Mistakes>,
) -> Result<C, clap::Error> {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let mut command = A::command().mut_args(without_empty_environment);
    let mut mistakes = Mistakes::default();
    if let Some(path) = file(&command, &arguments) {
        command = with_file(command, &path, &mut mistakes);
    }
    let args = A::from_arg_matches(&command.try_get_matches_from(arguments)?)?;
    let checked = check(&args).map_err(|wrong| mistakes.0.extend(wrong.0));
    match checked {
        Ok(settings) if mistakes.is_empty() => Ok(settings),
        _ => {
            let message = format!("wrong settings:\n{mistakes}\n");
            Err(clap::Error::raw(ErrorKind::InvalidValue, message))
        }
    }
}

fn without_empty_environment(argument: Arg) -> Arg {
    let value = argument.get_env().and_then(std::env::var_os);
    if value.is_some_and(|value| value.is_empty()) {
        argument.env(Resettable::Reset)
    } else {
        argument
    }
}

/// The file named by flag or environment; none for `--help`, which shows the defaults and no secret of a file.
fn file(command: &Command, arguments: &[OsString]) -> Option<PathBuf> {
    let lenient = command.clone().ignore_errors(true);
    let matches = lenient.try_get_matches_from(arguments).ok()?;
    matches.get_one::<PathBuf>(FILE).cloned()
}

/// The command with the file's values for defaults; what is wrong with the file is left out and noted.
fn with_file(mut command: Command, path: &PathBuf, mistakes: &mut Mistakes) -> Command {
    let read = fs::read_to_string(path).map_err(|error| error.to_string());
    let table = read.and_then(|text| {
        text.parse::<toml::Table>()
            .map_err(|error| without_source(&text, &error))
    });
    let place = path.display();
    let table = match table {
        Ok(table) => table,
        Err(error) => {
            mistakes.add(format!("{place}: {error}"));
            return command;
        }
    };
    for (key, value) in table {
        let action = command
            .get_arguments()
            .find(|argument| argument.get_id() == key.as_str() && key != FILE)
            .map(|argument| argument.get_action().clone());
        let values = match action {
            None | Some(ArgAction::Help | ArgAction::Version) => Err(format!("unknown key {key}")),
            Some(action) => values(&key, &value, matches!(action, ArgAction::Append)),
        };
        match values {
            Ok(values) => {
                command = command.mut_arg(&key, |argument| argument.default_values(values));
            }
            Err(mistake) => mistakes.add(format!("{place}: {mistake}")),
        }
    }
    command
}

/// Where and what, but not the line itself: it may hold credentials.
fn without_source(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map_or(1, |before| before.matches('\n').count() + 1);
    format!("line {line}: {}", error.message())
}

fn values(key: &str, value: &toml::Value, may_be_list: bool) -> Result<Vec<String>, String> {
    let found = match value {
        toml::Value::Array(_) if !may_be_list => return Err(format!("{key} takes one value")),
        toml::Value::Array(list) => list.iter().map(scalar).collect(),
        scalar_value => scalar(scalar_value).map(|scalar| vec![scalar]),
    };
    found.ok_or_else(|| {
        let list = if may_be_list {
            ", or a list of these"
        } else {
            ""
        };
        format!("{key} must be a string, a number or a boolean{list}")
    })
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(string) => Some(string.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(boolean) => Some(boolean.to_string()),
        _ => None,
    }
}

/// All that is wrong with the settings, to be reported at once.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Mistakes(Vec<String>);

impl Mistakes {
    /// Notes a mistake.
    pub fn add(&mut self, mistake: impl Into<String>) {
        self.0.push(mistake.into());
    }

    /// Passes a good value on; notes a bad one under the name of its flag.
    pub fn good<T, E: fmt::Display>(&mut self, flag: &str, parsed: Result<T, E>) -> Option<T> {
        parsed
            .map_err(|error| self.add(format!("{flag}: {error}")))
            .ok()
    }

    /// Passes a good value on; notes a bad one under the name of its flag, and returns the default.
    pub fn check<T: Default, E: fmt::Display>(&mut self, flag: &str, parsed: Result<T, E>) -> T {
        self.good(flag, parsed).unwrap_or_default()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `value` when there is no mistake.
    ///
    /// # Errors
    /// All mistakes.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() {
            Ok(value)
        } else {
            Err(self)
        }
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}  {}", mistake.trim_end())?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// Reads an address to listen on; notes what is none.
pub fn address(mistakes: &mut Mistakes, flag: &str, text: &str) -> SocketAddr {
    let parsed = text
        .parse()
        .map_err(|_| format!("{text:?} is no IP address with a port, like 127.0.0.1:8080"));
    mistakes
        .good(flag, parsed)
        .unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
}

/// Reads a time like `200ms` or `10s`, from `least` to [`TIME_MAX`]; notes what is none.
pub fn time(mistakes: &mut Mistakes, flag: &str, text: &str, least: Duration) -> Duration {
    time_within(mistakes, flag, text, (least, TIME_MAX))
}

/// Reads a time like `200ms` within a range, both ends included; notes what is none.
pub fn time_within(
    mistakes: &mut Mistakes,
    flag: &str,
    text: &str,
    range: (Duration, Duration),
) -> Duration {
    let show = |time| humantime::format_duration(time).to_string();
    let parsed = humantime::parse_duration(text)
        .map_err(|error| format!("{text:?} is no time, like 200ms or 10s ({error})"))
        .and_then(|time| within(time, range, show));
    mistakes.check(flag, parsed)
}

/// Reads a number of bytes as [`bytes()`] does, within a range, both ends included; notes what is none.
pub fn size(mistakes: &mut Mistakes, flag: &str, text: &str, range: (usize, usize)) -> usize {
    let parsed = bytes(text).and_then(|size| within(size, range, |size| size.to_string()));
    mistakes.check(flag, parsed)
}

/// Reads a whole number within a range, both ends included; notes what is none.
pub fn number<N>(mistakes: &mut Mistakes, flag: &str, text: &str, range: (N, N)) -> N
where
    N: FromStr + PartialOrd + Copy + Default + ToString,
{
    let parsed = text
        .parse()
        .map_err(|_| format!("{text:?} is no whole number, or too large"))
        .and_then(|number| within(number, range, |number| number.to_string()));
    mistakes.check(flag, parsed)
}

/// Like [`number`]; `None` when the text is empty.
pub fn optional_number<N>(
    mistakes: &mut Mistakes,
    flag: &str,
    text: &str,
    range: (N, N),
) -> Option<N>
where
    N: FromStr + PartialOrd + Copy + Default + ToString,
{
    (!text.is_empty()).then(|| number(mistakes, flag, text, range))
}

/// Passes a value on that is within a range, both ends included.
///
/// # Errors
/// In words, when it is not; `show` writes values as a user would.
pub fn within<T: PartialOrd + Copy>(
    value: T,
    (least, most): (T, T),
    show: impl Fn(T) -> String,
) -> Result<T, String> {
    if value < least {
        Err(format!("{} is less than {}", show(value), show(least)))
    } else if value > most {
        Err(format!("{} is more than {}", show(value), show(most)))
    } else {
        Ok(value)
    }
}

/// Reads a number of bytes: `65536`, `64KiB`, `1GiB`, `1.5GiB`.
///
/// # Errors
/// In words, when it is none.
pub fn bytes(text: &str) -> Result<usize, String> {
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => {
            return Err(format!(
                "{text:?} is no number of bytes (try 64KiB, 512MiB, 1GiB)"
            ));
        }
    };
    let wrong = || format!("{text:?} is no number of bytes (try 64KiB, 512MiB, 1GiB)");
    let whole = number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(factor));
    let bytes = match whole {
        Some(bytes) => bytes,
        None if number.contains('.') => {
            let fraction = number.parse::<f64>().map_err(|_| wrong())?;
            #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
            #[expect(clippy::cast_precision_loss, reason = "1 GiB is exact")]
            let bytes = (fraction * factor as f64) as u64;
            bytes
        }
        None => return Err(wrong()),
    };
    usize::try_from(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser, PartialEq)]
    struct Args {
        #[arg(
            long,
            default_value = "a",
            env = "COOKIESYNC_TEST_ONE",
            hide_env_values = true
        )]
        one: String,
        #[arg(long, default_value = "b", value_delimiter = ',')]
        two: Vec<String>,
        #[arg(long)]
        config: Option<PathBuf>,
    }

    type Both = (String, Vec<String>);

    fn both(args: &Args) -> Result<Both, Mistakes> {
        let mut mistakes = Mistakes::default();
        if args.one == "wrong" {
            mistakes.add("--one: wrong");
        }
        mistakes.or((args.one.clone(), args.two.clone()))
    }

    fn load_with(file: &str, arguments: &[&str]) -> Result<Both, String> {
        static FILES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = FILES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("cookiesync-settings-{}-{number}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, file).unwrap();
        let config = format!("--config={}", path.display());
        let arguments = ["program", &config]
            .into_iter()
            .chain(arguments.iter().copied());
        let loaded = load(arguments.map(OsString::from), both);
        fs::remove_file(&path).unwrap();
        loaded.map_err(|error| error.to_string())
    }

    #[track_caller]
    fn check(file: &str, arguments: &[&str], one: &str, two: &[&str]) {
        let two = two.iter().map(ToString::to_string).collect();
        assert_eq!(load_with(file, arguments), Ok((one.to_owned(), two)));
    }

    #[test]
    fn file_gives_defaults_and_flags_win() {
        let file = "one = 7\ntwo = [\"x\", \"y\"]";
        check("", &[], "a", &["b"]);
        check(file, &[], "7", &["x", "y"]);
        check(file, &["--one=8"], "8", &["x", "y"]);
        check(file, &["--two=z"], "7", &["z"]);
        check("two = \"x,y\"", &[], "a", &["x", "y"]);
    }

    #[test]
    fn all_mistakes_of_file_and_values_are_named_at_once() {
        let file = "three = 1\none = {}\nfour = 2\nconfig = \"x\"\nhelp = true\ntwo = [[1]]";
        let error = load_with(file, &["--one=wrong"]).unwrap_err();
        for part in [
            "unknown key three",
            "one must be",
            "unknown key four",
            "unknown key config",
            "unknown key help",
            "two must be",
            "--one: wrong",
        ] {
            assert!(error.contains(part), "{part} is missing in {error}");
        }
        let list = load_with("one = [\"x\", \"y\"]", &[]).unwrap_err();
        assert!(list.contains("one takes one value"), "{list}");
        assert!(load_with("one = ", &[]).unwrap_err().contains(".toml"));
    }

    #[test]
    fn secret_of_the_file_is_not_shown_in_help() {
        let help = load_with("one = \"secret\"", &["--help"]).unwrap_err();
        assert!(!help.contains("secret"), "{help}");
        assert!(help.contains("[default: a]"), "{help}");
    }

    /// Runs itself again with an empty variable, because a process cannot safely change its own.
    #[test]
    fn empty_environment_variable_counts_as_not_set() {
        const VARIABLE: &str = "COOKIESYNC_TEST_ONE";
        if std::env::var_os(VARIABLE).is_some() {
            return check("", &[], "a", &["b"]);
        }
        let test = "process::settings::tests::empty_environment_variable_counts_as_not_set";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env(VARIABLE, "")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "{output}");
        assert!(output.contains("1 passed"), "{output}");
    }

    #[test]
    fn values_outside_their_range_are_noted_under_their_flag() {
        let mut mistakes = Mistakes::default();
        let m = &mut mistakes;
        assert_eq!(number(m, "--n", "5", (1, 5)), 5);
        assert_eq!(size(m, "--s", "1KiB", (1, 1024)), 1024);
        assert_eq!(time(m, "--t", "1m", Duration::ZERO).as_secs(), 60);
        assert!(m.is_empty());
        number(m, "--n", "6", (1, 5));
        size(m, "--s", "1025", (1, 1024));
        time(m, "--t", "2 years", Duration::ZERO);
        address(m, "--a", "localhost:1");
        let text = mistakes.to_string();
        for part in [
            "--n: 6 is more than 5",
            "--s: 1025 is more",
            "--t: 2years",
            "--a:",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }

    #[test]
    fn bytes_are_read_with_units() {
        assert_eq!(bytes("65536"), Ok(65536));
        assert_eq!(bytes("64KiB"), Ok(65536));
        assert_eq!(bytes("1.5GiB"), Ok(3 << 29));
        for bad in [
            "",
            "x",
            "1TB",
            "-1",
            "1e9",
            "99999999999999999999",
            "1.2.3MiB",
        ] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }
}
