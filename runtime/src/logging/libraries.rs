//! What libraries report through the `log` crate, in our own log: warnings and errors, as the embedded store has them of its
//! work in the background.
//!
//! What they say below that is for their authors. rustls is left out: what it warns of is what peers send, so anyone who
//! reaches a port could fill the log by it, and each port counts that anyway.

use log::{Level, LevelFilter, Log, Metadata, Record};

struct Libraries;

impl Log for Libraries {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Warn && !metadata.target().starts_with("rustls")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let (of, what) = (record.target(), record.args());
        if record.level() == Level::Error {
            tracing::error!(target: "libraries", of, %what, "a library reports an error");
        } else {
            tracing::warn!(target: "libraries", of, %what, "a library warns");
        }
    }

    fn flush(&self) {}
}

/// Takes in what libraries report from now on. Does nothing where somebody else takes it in already.
pub(super) fn take_in() {
    if log::set_logger(&Libraries).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Mutex};

    use super::*;

    /// What the log has of a library's `level`.
    fn lines(target: &str, level: Level) -> String {
        static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());
        struct Written;
        impl io::Write for Written {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                LINES.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let ours = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(|| Written)
            .finish();
        tracing::subscriber::with_default(ours, || {
            let mut record = Record::builder();
            record.target(target).level(level);
            Libraries.log(&record.args(format_args!("Flush error: 28")).build());
        });
        String::from_utf8(std::mem::take(&mut LINES.lock().unwrap())).unwrap()
    }

    #[test]
    fn warnings_and_errors_of_libraries_are_lines_but_not_their_noise_nor_what_peers_cause() {
        let flush =
            r#"libraries: a library reports an error of="fjall::flush" what=Flush error: 28"#;
        let line = lines("fjall::flush", Level::Error);
        assert!(line.contains("ERROR") && line.contains(flush), "{line}");
        let line = lines("lsm_tree::tree", Level::Warn);
        assert!(
            line.contains("WARN") && line.contains("lsm_tree::tree"),
            "{line}"
        );
        assert_eq!(lines("fjall::db", Level::Info), "");
        assert_eq!(lines("rustls::common_state", Level::Warn), "");
    }
}
