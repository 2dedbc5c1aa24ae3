//! Files changed in every way, looked at without waiting.

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{
    super::tests::{Args, Config, TestFile},
    *,
};

/// A process that runs with a file, and how often and with what it was told to change.
struct Running {
    file: TestFile,
    reload: LiveConfig,
    applied: AtomicUsize,
}

impl Running {
    fn with(text: &str, arguments: &[&str]) -> Self {
        let file = TestFile::new(text);
        let reload = LiveConfig::of(&file.load(arguments).unwrap());
        Self {
            file,
            reload,
            applied: AtomicUsize::new(0),
        }
    }

    fn write(&self, text: &str) {
        fs::write(&self.file.0, text).unwrap();
    }

    fn look(&mut self, asked: bool) -> News<Renewed> {
        let applied = &self.applied;
        let apply = |config: &Config| applied.store(config.three, Ordering::Relaxed);
        self.reload.look::<Args>(asked, apply)
    }

    /// What was applied last; 0 for nothing.
    fn three(&self) -> usize {
        self.applied.load(Ordering::Relaxed)
    }
}

fn renewed(changed: &[&str], needs_restart: &[&str]) -> News<Renewed> {
    let owned = |flags: &[&str]| flags.iter().map(ToString::to_string).collect();
    News::Replaced(Renewed {
        changed: owned(changed),
        needs_restart: owned(needs_restart),
    })
}

#[test]
fn what_can_change_does_and_exactly_what_cannot_is_said() {
    let mut running = Running::with("three = 4\none = 'x'", &[]);
    assert_eq!((running.look(false), running.three()), (News::Nothing, 0));
    running.write("three = 5\none = 'x'");
    assert_eq!(running.look(false), renewed(&["--three"], &[]));
    assert_eq!(running.three(), 5);
    assert_eq!(running.look(false), News::Nothing);

    running.write("three = 6\none = 'y'");
    assert_eq!(running.look(false), renewed(&["--three"], &["--one"]));
    assert_eq!((running.look(false), running.three()), (News::Nothing, 6));
    assert_eq!(
        running.look(true),
        renewed(&[], &["--one"]),
        "it still runs with another"
    );
    running.write("three = 6\none = 'x'");
    assert_eq!(running.look(false), renewed(&[], &[]));
}

#[test]
fn file_with_a_error_changes_nothing_and_is_said_once() {
    let mut running = Running::with("three = 4", &[]);
    running.write("three = 5\none = 'wrong'\nfive = 1");
    assert_eq!(
        running.look(false),
        News::Nothing,
        "it may be half of a change"
    );
    let News::Broken(why) = running.look(false) else {
        panic!("broken twice and not said");
    };
    assert!(
        why.contains("--one: wrong") && why.contains("unknown key five"),
        "{why}"
    );
    assert!(!why.contains('\n'), "{why}");
    assert_eq!((running.look(false), running.three()), (News::Nothing, 0));
    fs::remove_file(&running.file.0).unwrap();
    assert_eq!(running.look(false), News::Nothing);
    assert!(matches!(running.look(false), News::Broken(_)));
    assert_eq!((running.look(false), running.three()), (News::Nothing, 0));
    running.write("three = 7");
    assert_eq!(running.look(false), renewed(&["--three"], &[]));
    assert_eq!(running.three(), 7);
}

#[test]
fn signal_is_answered_at_once_and_flags_win_over_the_file() {
    let mut running = Running::with("three = 4", &["--three=5"]);
    running.write("three = 6\ntwo = ['x']");
    assert_eq!(running.look(true), renewed(&[], &["--two"]));
    assert_eq!(running.three(), 5);
    running.write("three = many");
    assert!(matches!(running.look(true), News::Broken(_)));
    assert!(
        matches!(running.look(true), News::Broken(_)),
        "asked again, it is logged again"
    );
    assert_eq!(running.look(false), News::Nothing);
}

#[tokio::test]
async fn panic_of_a_look_is_counted() {
    let running = Running::with("three = 4", &[]);
    running.write("three = 5");
    let metrics = Metrics::register(&Registry::new(), "test").unwrap();
    let failed = metrics.reloads.with_label_values(&["failed"]);
    let apply = |_: &Config| panic!("as it should");
    let hangups = Signals::hangup().unwrap();
    let stop = CancellationToken::new();
    tokio::time::pause();
    running
        .reload
        .run::<Args>(hangups, metrics, apply, stop)
        .await;
    assert_eq!(failed.get(), 1);
}

#[test]
fn rejected_settings_are_shown_until_good_ones_come() {
    let metrics = Metrics::register(&Registry::new(), "test").unwrap();
    let mut running = Running::with("three = 4", &[]);
    let mut shown = |text: &str, asked| {
        running.write(text);
        let news = running.look(asked);
        say(&news, &metrics);
        say(&running.look(false), &metrics);
        let component = metrics.component();
        (
            metrics.rejected.get(),
            component.ready,
            component.state.contains("previous settings stay in use"),
        )
    };
    assert_eq!(shown("three = 5", true), (0, true, false));
    assert_eq!(shown("three = many", false), (1, true, true));
    assert_eq!(shown("three = more", true), (1, true, true));
    assert_eq!(shown("three = 6", false), (0, true, false));
}
