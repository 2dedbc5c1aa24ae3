//! What a person sees meanwhile: a bar on a terminal, plain lines elsewhere; on standard error.

use std::{io::IsTerminal as _, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

/// Where progress is shown.
#[derive(Debug)]
pub struct Progress {
    is_terminal: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            bar: None,
        }
    }

    /// Begins something that takes about so long; a line says what it is.
    pub fn begin(&mut self, what: &str, lasts: Option<Duration>) {
        self.end();
        if !self.is_terminal {
            eprintln!("{what}");
            return;
        }
        let tenths = |time: Duration| u64::try_from(time.as_millis() / 100).unwrap_or(u64::MAX);
        let (bar, template) = match lasts {
            Some(lasts) => (
                ProgressBar::new(tenths(lasts).max(1)),
                "{prefix} [{bar:24}] {wide_msg}",
            ),
            None => (ProgressBar::new_spinner(), "{prefix} {spinner} {wide_msg}"),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what.to_owned());
        self.bar = Some(bar);
    }

    /// Shows how far it is, on a terminal.
    pub fn at(&self, elapsed: Duration, message: String) {
        if let Some(bar) = &self.bar {
            let tenths = u64::try_from(elapsed.as_millis() / 100).unwrap_or(u64::MAX);
            bar.set_position(tenths.min(bar.length().unwrap_or(tenths)));
            bar.set_message(message);
        }
    }

    /// Writes a line that stays.
    pub fn line(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    /// Removes the bar.
    pub fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
