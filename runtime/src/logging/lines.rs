//! A bounded buffer of log lines, and a thread that writes them to standard error.
//!
//! Logging never blocks. If standard error is not read (a blocked pipe or a stopped terminal), blocking writes would stop
//! one thread of the runtime after another. When the buffer is full, lines are dropped and counted. When writing resumes,
//! one line reports their number.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// Maximum bytes of the buffer: minutes of a busy log. The writing thread has up to the same size again.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// Handle of the buffer; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    pending: Mutex<Pending>,
    /// Notified when the buffer has lines.
    filled: Condvar,
    /// Notified when all lines are written.
    emptied: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Pending {
    /// Complete lines.
    buffer: Vec<u8>,
    /// Whether the thread is writing lines that it took from the buffer.
    is_writing: bool,
}

impl Lines {
    /// Starts the thread that writes to `output`. It runs until the process exits.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(output: impl Write + Send + 'static) -> io::Result<Self> {
        let lines = Self::default();
        let queue = Arc::clone(&lines.0);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || queue.write_all(output))?;
        Ok(lines)
    }

    /// Number of dropped lines.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all lines are written, up to `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut pending = self.0.pending.lock();
        let is_unwritten = |it: &mut Pending| it.is_writing || !it.buffer.is_empty();
        let emptied = &self.0.emptied;
        emptied.wait_while_until(&mut pending, is_unwritten, deadline);
    }

    fn push(&self, line: &[u8]) {
        let mut pending = self.0.pending.lock();
        if pending.buffer.len() + line.len() > BUFFER_BYTES_MAX {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        pending.buffer.extend_from_slice(line);
        drop(pending);
        self.0.filled.notify_one();
    }
}

impl Queue {
    fn write_all(&self, mut output: impl Write) {
        let mut reported = 0;
        loop {
            let lines = self.take();
            // Nothing can report that standard error is closed.
            output.write_all(&lines).ok();
            let dropped = self.dropped.load(Ordering::Relaxed);
            self.finish_write();
            if dropped > reported {
                tracing::warn!(
                    lines = dropped - reported,
                    "log messages dropped: standard error was not read"
                );
                reported = dropped;
            }
        }
    }

    /// Waits for lines and takes them.
    fn take(&self) -> Vec<u8> {
        let mut pending = self.pending.lock();
        let filled = &self.filled;
        filled.wait_while(&mut pending, |it| it.buffer.is_empty());
        pending.is_writing = true;
        std::mem::take(&mut pending.buffer)
    }

    fn finish_write(&self) {
        self.pending.lock().is_writing = false;
        self.emptied.notify_all();
    }
}

/// Each write must be one complete line.
impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// An output that blocks until the test receives the bytes.
    struct BlockingOutput(SyncSender<Vec<u8>>);

    impl Write for BlockingOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let sent = self.0.send(bytes.to_vec());
            sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start() -> (Lines, Receiver<Vec<u8>>) {
        let (sender, receiver) = sync_channel(0);
        (Lines::start(BlockingOutput(sender)).unwrap(), receiver)
    }

    #[test]
    fn lines_are_written_completely_and_in_order() {
        let (lines, receiver) = start();
        let reading = thread::spawn(move || receiver.iter().take(2).collect::<Vec<_>>().concat());
        lines.clone().write_all(b"one\n").unwrap();
        lines.flush(Duration::from_secs(30));
        for line in [b"two\n", b"six\n"] {
            lines.push(line);
        }
        let read = String::from_utf8(reading.join().unwrap()).unwrap();
        assert!("one\ntwo\nsix\n".starts_with(&read), "{read}");
        assert_eq!(lines.dropped(), 0);
    }

    #[test]
    fn blocked_output_drops_and_counts_lines_without_blocking() {
        let (lines, receiver) = start();
        let line = [b'x'; 1024];
        // More than the capacity of thread and buffer.
        let sent = 2 * BUFFER_BYTES_MAX / line.len() + 100;
        for _ in 0..sent {
            lines.push(&line);
        }
        assert!(lines.dropped() >= 100, "{}", lines.dropped());
        lines.flush(Duration::from_millis(1));
        let kept = sent - usize::try_from(lines.dropped()).unwrap();
        let mut read = 0;
        while read < kept * line.len() {
            read += receiver.recv().unwrap().len();
        }
        lines.flush(Duration::from_secs(30));
        let dropped = lines.dropped();
        lines.push(&line);
        assert_eq!(lines.dropped(), dropped, "the buffer has capacity again");
    }
}
