//! What somebody writes on a command line and into a settings file.

use std::{ffi::OsString, fmt::Debug, fs};

use runtime::settings;

/// A command line, one argument a line, then after an empty line a settings file. Both programs either start with
/// settings, the same each time, or say in words why not.
///
/// # Panics
/// When they do neither.
pub fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(size) = settings::bytes(text) {
        assert_eq!(settings::bytes(&size.to_string()), Ok(size));
    }
    let (arguments, file) = text.split_once("\n\n").unwrap_or((text, ""));
    let dir = tempfile::TempDir::new().expect("room for a file");
    let path = dir.path().join("settings.toml");
    fs::write(&path, file).expect("room for a file");
    // Another file would not be made up by the fuzzer, and might be a device.
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
            assert!(!one.trim().is_empty(), "it says why");
            assert_eq!(one, two);
        }
        (one, two) => panic!("{one:?} and then {two:?}"),
    }
}
