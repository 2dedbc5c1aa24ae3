//! Fuzz target of the parsers of command lines and configuration files.

use std::{ffi::OsString, fmt::Debug, fs};

use runtime::settings;

/// Loads a command line with one argument per line, then an empty line and a configuration file. Each program must load the same
/// configuration every time, or return the same error text.
///
/// # Panics
/// If the property does not hold.
pub fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(size) = settings::bytes(text) {
        assert_eq!(settings::bytes(&size.to_string()), Ok(size));
    }
    let (arguments, file) = text.split_once("\n\n").unwrap_or((text, ""));
    let dir = tempfile::TempDir::new().expect("a temporary directory can be created");
    let path = dir.path().join("settings.toml");
    fs::write(&path, file).expect("the directory is writable");
    // Excludes options that name another configuration file, because it could be a device.
    let own = arguments.lines().filter(|line| !line.contains("config"));
    let arguments: Vec<OsString> = ["program".into(), "--config".into(), path.into()]
        .into_iter()
        .chain(own.map(OsString::from))
        .collect();
    check(|| producer::config::Config::load(arguments.clone()).map_err(|error| error.to_string()));
    check(|| consumer::config::Config::load(arguments.clone()).map_err(|error| error.to_string()));
}

fn check<C: Debug>(load: impl Fn() -> Result<C, String>) {
    match (load(), load()) {
        (Ok(one), Ok(two)) => assert_eq!(format!("{one:?}"), format!("{two:?}")),
        (Err(one), Err(two)) => {
            assert!(!one.trim().is_empty(), "the error has no text");
            assert_eq!(one, two);
        }
        (one, two) => panic!("first {one:?}, then {two:?}"),
    }
}
