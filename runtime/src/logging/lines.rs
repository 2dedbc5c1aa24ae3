//! Lines on their way to standard error: a bounded buffer, and a thread that empties it.
//!
//! Logging never waits. A standard error that nobody reads (a pipe whose reader hangs, a terminal that was stopped) would
//! otherwise stop, line by line, every thread of the runtime, and with them HTTP. What finds no room is dropped and counted, and
//! told in one line when the reader goes on.

use std::{
    io::{self, Write},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Most that waits to be written: minutes of a busy log. As much again is with the thread that writes.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// Where lines go; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to write.
    filled: Condvar,
    /// Everything was written.
    emptied: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Whole lines.
    buffer: Vec<u8>,
    /// The thread holds some more.
    is_writing: bool,
}

impl Lines {
    /// Starts the thread that writes to `output`, for as long as the process lives.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub(super) fn start(output: impl Write + Send + 'static) -> io::Result<Self> {
        let lines = Self::default();
        let shared = Arc::clone(&lines.0);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || shared.write_all(output))?;
        Ok(lines)
    }

    /// Lines that found no room so far.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, but no longer than this.
    pub(super) fn flush(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut state = self.0.lock();
        while state.is_writing || !state.buffer.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.emptied.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.0.lock();
        if state.buffer.len() + line.len() > BUFFER_BYTES_MAX {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.buffer.extend_from_slice(line);
        drop(state);
        self.0.filled.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_all(&self, mut output: impl Write) {
        let mut told = 0;
        loop {
            let lines = self.next();
            // A closed standard error is nothing that could be told anybody.
            output.write_all(&lines).ok();
            let dropped = self.dropped.load(Ordering::Relaxed);
            self.written();
            if dropped > told {
                tracing::warn!(
                    lines = dropped - told,
                    "log messages dropped: standard error was not read"
                );
                told = dropped;
            }
        }
    }

    /// Waits for lines and takes them.
    fn next(&self) -> Vec<u8> {
        let mut state = self.lock();
        while state.buffer.is_empty() {
            let waited = self.filled.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.is_writing = true;
        std::mem::take(&mut state.buffer)
    }

    fn written(&self) {
        self.lock().is_writing = false;
        self.emptied.notify_all();
    }
}

/// Takes one line, which arrives in one write.
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

    /// Hands over what is written, once somebody takes it.
    struct Reader(SyncSender<Vec<u8>>);

    impl Write for Reader {
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
        (Lines::start(Reader(sender)).unwrap(), receiver)
    }

    #[test]
    fn lines_come_in_order_and_whole() {
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
    fn nobody_waits_for_a_reader_and_what_finds_no_room_is_counted() {
        let (lines, receiver) = start();
        let line = [b'x'; 1024];
        // What the thread may have taken, what the buffer holds, and some more.
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
        assert_eq!(lines.dropped(), dropped, "there is room again");
    }
}
