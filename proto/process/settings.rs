//! Where a process's settings come from: flags, then environment, then a TOML file, then defaults.
//!
//! The command line is described once, by a clap parser; the file's values become the defaults of its flags.
//! A key of the file is the flag's name with underscores. So every setting has all three forms, and none can
//! be known to one and unknown to another.

use std::{ffi::OsString, fmt, fs, path::PathBuf};

use clap::{ArgAction, Command, Parser, error::ErrorKind, parser::ValueSource};

/// The flag that names the file; it is the one setting the file cannot hold.
const FILE: &str = "config";

/// Parses `arguments` (program name first) into `A`, which must have a flag `--config`.
///
/// # Errors
/// clap's, ready to be printed: also for a file that cannot be read, is no TOML, or has unknown keys.
pub fn parse<A: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<A, clap::Error> {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let mut command = A::command();
    if let Some(path) = file(&command, &arguments) {
        command = with_file(command, &path)?;
    }
    A::from_arg_matches(&command.try_get_matches_from(arguments)?)
}

fn file(command: &Command, arguments: &[OsString]) -> Option<PathBuf> {
    let lenient = command.clone().ignore_errors(true);
    let matches = lenient.try_get_matches_from(arguments).ok()?;
    match matches.value_source(FILE)? {
        ValueSource::CommandLine | ValueSource::EnvVariable => {
            matches.get_one::<PathBuf>(FILE).cloned()
        }
        _ => None,
    }
}

fn with_file(mut command: Command, path: &PathBuf) -> Result<Command, clap::Error> {
    let fail = |command: &mut Command, mistakes: &Mistakes| {
        let message = format!("{}:\n{mistakes}", path.display());
        command.error(ErrorKind::InvalidValue, message)
    };
    let mut mistakes = Mistakes::default();
    let read = fs::read_to_string(path).map_err(|error| error.to_string());
    let table = read.and_then(|text| {
        text.parse::<toml::Table>()
            .map_err(|error| error.to_string())
    });
    let table = match table {
        Ok(table) => table,
        Err(error) => {
            mistakes.add(error);
            return Err(fail(&mut command, &mistakes));
        }
    };
    for (key, value) in table {
        let known = command
            .get_arguments()
            .any(|argument| argument.get_id() == key.as_str() && key != FILE);
        if !known {
            mistakes.add(format!("unknown key {key}"));
            continue;
        }
        match values(&value) {
            Some(values) => {
                command = command.mut_arg(&key, |argument| match argument.get_action() {
                    ArgAction::SetTrue | ArgAction::Set | ArgAction::Append => {
                        argument.default_values(values)
                    }
                    _ => argument,
                });
            }
            None => mistakes.add(format!(
                "{key} must be a string, a number, a boolean or a list of these"
            )),
        }
    }
    if mistakes.is_empty() {
        Ok(command)
    } else {
        Err(fail(&mut command, &mistakes))
    }
}

fn values(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::Array(list) => list.iter().map(scalar).collect(),
        scalar_value => scalar(scalar_value).map(|scalar| vec![scalar]),
    }
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

    /// Passes a good value on; notes a bad one under the name of its flag, and returns the default.
    pub fn check<T: Default, E: fmt::Display>(&mut self, flag: &str, parsed: Result<T, E>) -> T {
        parsed.unwrap_or_else(|error| {
            self.add(format!("{flag}: {error}"));
            T::default()
        })
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
        #[arg(long, default_value = "a")]
        one: String,
        #[arg(long, default_value = "b", value_delimiter = ',')]
        two: Vec<String>,
        #[arg(long)]
        config: Option<PathBuf>,
    }

    fn parse_with(file: &str, arguments: &[&str]) -> Result<(String, Vec<String>), String> {
        static FILES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = FILES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("cookiesync-settings-{}-{number}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, file).unwrap();
        let config = format!("--config={}", path.display());
        let arguments = ["program", &config]
            .into_iter()
            .chain(arguments.iter().copied());
        let parsed = parse::<Args>(arguments.map(OsString::from));
        fs::remove_file(&path).unwrap();
        parsed
            .map(|args| (args.one, args.two))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn file_gives_defaults_and_flags_win() {
        let file = "one = 7\ntwo = [\"x\", \"y\"]";
        let both = |one: &str, two: &[&str]| {
            Ok((
                one.to_owned(),
                two.iter().map(ToString::to_string).collect(),
            ))
        };
        assert_eq!(parse_with("", &[]), both("a", &["b"]));
        assert_eq!(parse_with(file, &[]), both("7", &["x", "y"]));
        assert_eq!(parse_with(file, &["--one=8"]), both("8", &["x", "y"]));
        assert_eq!(parse_with(file, &["--two=z"]), both("7", &["z"]));
    }

    #[test]
    fn all_mistakes_of_a_file_are_named_at_once() {
        let error = parse_with("three = 1\none = {}\nfour = 2\nconfig = \"x\"", &[]).unwrap_err();
        for part in [
            "unknown key three",
            "one must be",
            "unknown key four",
            "unknown key config",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert!(parse_with("one = ", &[]).unwrap_err().contains(".toml"));
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
