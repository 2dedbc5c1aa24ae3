//! Files replaced in every way, looked at without waiting.

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
        let wrong = |_| vec![self.0.error("is not a number")];
        text.trim().parse().map_err(wrong)
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
fn good_file_replaces_and_a_broken_one_is_said_once_and_changes_nothing() {
    let path = path("replaced");
    fs::write(&path, "1").unwrap();
    let reloaded = Reloader::load(number(&path)).unwrap();
    assert_eq!((reloaded.look(), *reloaded.current()), (News::Nothing, 1));
    fs::write(&path, "2").unwrap();
    assert_eq!(
        (reloaded.look(), *reloaded.current()),
        (News::Replaced(()), 2)
    );

    fs::write(&path, "two").unwrap();
    assert_eq!(reloaded.look(), News::Nothing, "it may be half of a change");
    let News::Broken(why) = reloaded.look() else {
        panic!("broken twice and not said");
    };
    assert!(
        why.contains("--number") && why.contains("not a number"),
        "{why}"
    );
    assert_eq!((reloaded.look(), *reloaded.current()), (News::Nothing, 2));

    fs::remove_file(&path).unwrap();
    assert_eq!(reloaded.look(), News::Nothing);
    assert!(matches!(reloaded.look(), News::Broken(_)));
    assert_eq!((reloaded.look(), *reloaded.current()), (News::Nothing, 2));
    fs::write(&path, "2").unwrap();
    assert_eq!(
        reloaded.look(),
        News::Replaced(()),
        "good again is news, though the value is not"
    );
    fs::remove_file(&path).unwrap();
}

#[test]
fn file_that_is_half_written_at_one_look_only_is_never_said() {
    let path = path("half");
    fs::write(&path, "1").unwrap();
    let reloaded = Reloader::load(number(&path)).unwrap();
    fs::write(&path, "").unwrap();
    assert_eq!(reloaded.look(), News::Nothing);
    fs::write(&path, "3").unwrap();
    assert_eq!(reloaded.look(), News::Replaced(()));
    assert_eq!((reloaded.look(), *reloaded.current()), (News::Nothing, 3));
    fs::remove_file(&path).unwrap();
}

#[test]
fn large_missing_and_other_than_regular_files_are_errors() {
    let large = path("large");
    let file = fs::File::create(&large).unwrap();
    file.set_len(FILE_BYTES_MAX + 1).unwrap();
    for (path, what) in [
        (&*large, "larger than"),
        (Path::new("/dev/zero"), "is not a regular file"),
        (Path::new("/no/such/file"), "No such"),
    ] {
        let errors = Reloader::load(number(path)).unwrap_err();
        let said = errors.join("; ");
        assert!(said.contains("--number") && said.contains(what), "{said}");
    }
    fs::remove_file(&large).unwrap();
}

#[test]
fn certificate_is_soon_to_expire_for_a_week_and_then_expired() {
    let at = |expiry| Validity::at(1_000_000_000, 1_000_000_000 + expiry);
    assert_eq!(at(SOON_SECONDS + 1), Validity::Good);
    assert_eq!(at(SOON_SECONDS), Validity::Soon);
    assert_eq!(at(1), Validity::Soon);
    assert_eq!(at(0), Validity::Expired);
}

#[test]
fn pipe_is_refused_instead_of_waited_for() {
    let path = path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let errors = Reloader::load(number(&path)).map(drop).unwrap_err();
    assert!(errors[0].contains("is not a regular file"), "{errors:?}");
    fs::remove_file(&path).unwrap();
}
