//! A line that is rewritten on a terminal; elsewhere, one line after the other.

use std::io::{IsTerminal as _, Write as _, stdout};

/// Lines between two headings where lines are not rewritten.
const HEADING_EVERY: u64 = 20;

/// Where lines are shown.
pub(super) struct Screen {
    is_terminal: bool,
    /// Lines since the last heading.
    lines: u64,
    /// The cursor is at the end of a line that may be rewritten.
    is_open: bool,
}

impl Screen {
    /// Standard output.
    pub(super) fn new() -> Self {
        Self {
            is_terminal: stdout().is_terminal(),
            lines: 0,
            is_open: false,
        }
    }

    /// Shows a line, in the place of the one before where that is possible, below a heading.
    pub(super) fn show(&mut self, heading: &str, line: &str) {
        let needs_heading = if self.is_terminal {
            !self.is_open
        } else {
            self.lines.is_multiple_of(HEADING_EVERY)
        };
        if needs_heading {
            println!("{heading}");
        }
        self.lines += 1;
        if !self.is_terminal {
            println!("{line}");
            return;
        }
        self.is_open = true;
        print!("\r\x1b[K{line}");
        // As with `println`, nobody may be there to read it any more; then it is not missed.
        drop(stdout().flush());
    }

    /// Prints a line that stays.
    pub(super) fn say(&mut self, text: &str) {
        self.end_line();
        println!("{text}");
    }

    /// Leaves what was shown last as it is.
    pub(super) fn end_line(&mut self) {
        if self.is_open {
            println!();
            self.is_open = false;
        }
    }
}
