//! Tests of reloads for every kind of file change, without waiting.

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{
    super::tests::{Args, Config, TestFile},
    *,
};

/// A process with a settings file, and the last value that it applied.
struct Running {
    file: TestFile,
    live: LiveConfig,
    applied: AtomicUsize,
}

impl Running {
    fn with(text: &str, arguments: &[&str]) -> Self {
        let file = TestFile::new(text);
        let live = LiveConfig::of(&file.load(arguments).unwrap());
        Self {
            file,
            live,
            applied: AtomicUsize::new(0),
        }
    }

    fn write(&self, text: &str) {
        fs::write(&self.file.0, text).unwrap();
    }

    fn check(&mut self, is_forced: bool) -> ReloadEvent<ConfigChange> {
        let applied = &self.applied;
        let apply = |config: &Config| applied.store(config.three, Ordering::Relaxed);
        self.live.check::<Args>(is_forced, apply)
    }

    /// The value applied last; 0 if none.
    fn three(&self) -> usize {
        self.applied.load(Ordering::Relaxed)
    }
}

fn replaced(changed: &[&str], needs_restart: &[&str]) -> ReloadEvent<ConfigChange> {
    let owned = |flags: &[&str]| flags.iter().map(ToString::to_string).collect();
    ReloadEvent::Replaced(ConfigChange {
        changed: owned(changed),
        needs_restart: owned(needs_restart),
    })
}

#[test]
fn live_settings_change_and_others_are_listed_for_a_restart() {
    let mut running = Running::with("three = 4\none = 'x'", &[]);
    assert_eq!(
        (running.check(false), running.three()),
        (ReloadEvent::Unchanged, 0)
    );
    running.write("three = 5\none = 'x'");
    assert_eq!(running.check(false), replaced(&["--three"], &[]));
    assert_eq!(running.three(), 5);
    assert_eq!(running.check(false), ReloadEvent::Unchanged);

    running.write("three = 6\none = 'y'");
    assert_eq!(running.check(false), replaced(&["--three"], &["--one"]));
    assert_eq!(
        (running.check(false), running.three()),
        (ReloadEvent::Unchanged, 6)
    );
    assert_eq!(
        running.check(true),
        replaced(&[], &["--one"]),
        "the active value still differs"
    );
    running.write("three = 6\none = 'x'");
    assert_eq!(running.check(false), replaced(&[], &[]));
}

#[test]
fn invalid_file_changes_nothing_and_is_reported_once() {
    let mut running = Running::with("three = 4", &[]);
    running.write("three = 5\none = 'wrong'\nfive = 1");
    assert_eq!(
        running.check(false),
        ReloadEvent::Unchanged,
        "the file may be incomplete"
    );
    let ReloadEvent::Failed(error) = running.check(false) else {
        panic!("invalid twice and not reported");
    };
    assert!(
        error.contains("--one: wrong") && error.contains("unknown key five"),
        "{error}"
    );
    assert!(!error.contains('\n'), "{error}");
    assert_eq!(
        (running.check(false), running.three()),
        (ReloadEvent::Unchanged, 0)
    );
    fs::remove_file(&running.file.0).unwrap();
    assert_eq!(running.check(false), ReloadEvent::Unchanged);
    assert!(matches!(running.check(false), ReloadEvent::Failed(_)));
    assert_eq!(
        (running.check(false), running.three()),
        (ReloadEvent::Unchanged, 0)
    );
    running.write("three = 7");
    assert_eq!(running.check(false), replaced(&["--three"], &[]));
    assert_eq!(running.three(), 7);
}

#[test]
fn forced_reload_reports_immediately_and_flags_override_the_file() {
    let mut running = Running::with("three = 4", &["--three=5"]);
    running.write("three = 6\ntwo = ['x']");
    assert_eq!(running.check(true), replaced(&[], &["--two"]));
    assert_eq!(running.three(), 5);
    running.write("three = many");
    assert!(matches!(running.check(true), ReloadEvent::Failed(_)));
    assert!(
        matches!(running.check(true), ReloadEvent::Failed(_)),
        "each forced reload is reported"
    );
    assert_eq!(running.check(false), ReloadEvent::Unchanged);
}

#[tokio::test]
async fn panic_during_a_reload_is_counted() {
    let running = Running::with("three = 4", &[]);
    running.write("three = 5");
    let metrics = Metrics::register(&Registry::new(), "test").unwrap();
    let failed = metrics.reloads.with_label_values(&["failed"]);
    let apply = |_: &Config| panic!("intended");
    let hangups = Signals::hangup().unwrap();
    let stop = CancellationToken::new();
    tokio::time::pause();
    running
        .live
        .run::<Args>(hangups, metrics, apply, stop)
        .await;
    assert_eq!(failed.get(), 1);
}

#[test]
fn rejection_is_reported_until_the_settings_are_valid() {
    let metrics = Metrics::register(&Registry::new(), "test").unwrap();
    let mut running = Running::with("three = 4", &[]);
    let mut state = |text: &str, is_forced| {
        running.write(text);
        let event = running.check(is_forced);
        report(&event, &metrics);
        report(&running.check(false), &metrics);
        let component = metrics.component();
        (
            metrics.rejected.get(),
            component.ready,
            component.state.contains("previous settings stay active"),
        )
    };
    assert_eq!(state("three = 5", true), (0, true, false));
    assert_eq!(state("three = many", false), (1, true, true));
    assert_eq!(state("three = more", true), (1, true, true));
    assert_eq!(state("three = 6", false), (0, true, false));
}

#[test]
fn status_names_the_settings_that_need_a_restart_until_they_are_active() {
    let mut running = Running::with("three = 4", &[]);
    let metrics = Metrics::register(&Registry::new(), "test").unwrap();
    for (text, expected, waiting) in [
        ("three = 5", "active", 0),
        (
            "one = 'y'\ntwo = ['x']",
            "active; a restart is needed to apply --one --two",
            2,
        ),
        // An unrelated change.
        (
            "three = 6\none = 'y'",
            "active; a restart is needed to apply --one",
            1,
        ),
        (
            "five = 1",
            "rejected; the previous settings stay active; see the log for the errors; a restart is needed to apply --one",
            1,
        ),
        ("three = 6", "active", 0),
    ] {
        running.write(text);
        report(&running.check(true), &metrics);
        let component = metrics.component();
        assert_eq!((&*component.state, component.ready), (expected, true));
        assert_eq!(metrics.waiting.get(), waiting);
    }
}
