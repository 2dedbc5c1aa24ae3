//! Tests of reloads for every kind of file change, without waiting.

use std::{fs, path::Path};

use super::*;

#[derive(Debug)]
struct Number(NamedFile);

impl Source for Number {
    type Value = u64;
    const NAME: &'static str = "number";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.0]
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<u64, Vec<String>> {
        let text = String::from_utf8_lossy(&contents[0]);
        let invalid = |_| vec![self.0.error("is not a number")];
        text.trim().parse().map_err(invalid)
    }
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("cookiesync-reload-{}-{name}", std::process::id()))
}

fn number(path: &Path) -> Number {
    Number(NamedFile {
        flag: "--number",
        path: path.to_path_buf(),
    })
}

#[test]
fn valid_file_replaces_the_value_and_an_invalid_one_is_reported_once() {
    let path = path("replaced");
    fs::write(&path, "1").unwrap();
    let reloader = Reloader::load(number(&path)).unwrap();
    assert_eq!(
        (reloader.check(), *reloader.current()),
        (ReloadEvent::Unchanged, 1)
    );
    // With a byte-order mark.
    fs::write(&path, "\u{feff}2").unwrap();
    assert_eq!(
        (reloader.check(), *reloader.current()),
        (ReloadEvent::Replaced(()), 2)
    );

    fs::write(&path, "two").unwrap();
    assert_eq!(
        reloader.check(),
        ReloadEvent::Unchanged,
        "the change may be incomplete"
    );
    let ReloadEvent::Failed(error) = reloader.check() else {
        panic!("invalid twice and not reported");
    };
    assert!(
        error.contains("--number") && error.contains("not a number"),
        "{error}"
    );
    assert_eq!(
        (reloader.check(), *reloader.current()),
        (ReloadEvent::Unchanged, 2)
    );

    fs::remove_file(&path).unwrap();
    assert_eq!(reloader.check(), ReloadEvent::Unchanged);
    assert!(matches!(reloader.check(), ReloadEvent::Failed(_)));
    assert_eq!(
        (reloader.check(), *reloader.current()),
        (ReloadEvent::Unchanged, 2)
    );
    fs::write(&path, "2").unwrap();
    assert_eq!(
        reloader.check(),
        ReloadEvent::Replaced(()),
        "valid again is an event, even with the same value"
    );
    fs::remove_file(&path).unwrap();
}

#[test]
fn file_that_is_incomplete_at_one_poll_is_not_reported() {
    let path = path("half");
    fs::write(&path, "1").unwrap();
    let reloader = Reloader::load(number(&path)).unwrap();
    fs::write(&path, "").unwrap();
    assert_eq!(reloader.check(), ReloadEvent::Unchanged);
    fs::write(&path, "3").unwrap();
    assert_eq!(reloader.check(), ReloadEvent::Replaced(()));
    assert_eq!(
        (reloader.check(), *reloader.current()),
        (ReloadEvent::Unchanged, 3)
    );
    fs::remove_file(&path).unwrap();
}

#[test]
fn large_missing_and_special_files_are_errors() {
    let large = path("large");
    let file = fs::File::create(&large).unwrap();
    file.set_len(FILE_BYTES_MAX + 1).unwrap();
    for (path, what) in [
        (&*large, "larger than"),
        (Path::new("/dev/zero"), "is not a regular file"),
        (Path::new("/no/such/file"), "No such"),
    ] {
        let errors = Reloader::load(number(path)).unwrap_err();
        let message = errors.join("; ");
        assert!(
            message.contains("--number") && message.contains(what),
            "{message}"
        );
    }
    fs::remove_file(&large).unwrap();
}

#[test]
fn pipe_is_rejected_without_blocking() {
    let path = path("pipe");
    let created = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(created.unwrap().success());
    let errors = Reloader::load(number(&path)).map(drop).unwrap_err();
    assert!(errors[0].contains("is not a regular file"), "{errors:?}");
    fs::remove_file(&path).unwrap();
}
