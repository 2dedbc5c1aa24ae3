//! What takes the processor's time: samples of the stacks of running threads, a hundred a second of processor time.
//!
//! The timer of the samples is the process's, so one profile is taken at a time. A thread that is found inside the C
//! library or the unwinder is not sampled, since walking its stack from a signal could wait for a lock that it holds: so
//! the time of system calls does not show, `perf` tells of that.
//!
//! A static program has no such libraries to tell apart. There the sampling of the heap keeps the signal off while it walks
//! a stack, and what is left, the unwinding of a panic, takes no lock if the unwinder finds its tables without one: libgcc from
//! 12 on does with glibc from 2.35 on, in a program that is position-independent. `deploy/build-static` refuses an older glibc,
//! and `.ci/image` any other form of program. (Tried on such a program with three threads that allocate, sampled 1,000 times
//! a second for 20 s while its heap was sampled, too.)

use std::{
    convert::Infallible,
    env,
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    time::Duration,
};

use anyhow::Context as _;
use http::{StatusCode, Uri};
use pprof::{Frames, ProfilerGuardBuilder};
use tempfile::NamedTempFile;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::stacks::{Format, Line, Profile, Stack};
use crate::answer::{Answer, text};

/// Samples for each second of processor time; not 100, so that they keep no step with timers.
const FREQUENCY: i32 = 99;

/// Time of the processor that a sample stands for, in nanoseconds.
const PERIOD: u64 = 1_000_000_000 / FREQUENCY as u64;

/// Longest profile, in seconds.
const SECONDS_MAX: u64 = 60;

/// Time of a profile for which none is asked, in seconds.
const SECONDS_DEFAULT: u64 = 10;

/// Libraries whose locks a sample must not wait for.
const UNTOUCHED: [&str; 6] = [
    "libc.so",
    "libgcc_s",
    "libm.so",
    "ld-linux",
    "libpthread",
    "vdso",
];

/// Held while a profile is taken.
static TAKEN: Semaphore = Semaphore::const_new(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    seconds: u64,
    format: Format,
}

impl Wanted {
    fn read(query: &str) -> Result<Self, String> {
        let mut wanted = Self {
            seconds: SECONDS_DEFAULT,
            format: Format::Protobuf,
        };
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("seconds", seconds)) => {
                    wanted.seconds = seconds
                        .parse()
                        .ok()
                        .filter(|seconds| (1..=SECONDS_MAX).contains(seconds))
                        .ok_or_else(|| format!("seconds: {seconds:?} is not 1 to {SECONDS_MAX}"))?;
                }
                _ => {
                    wanted.format = Format::read(part).ok_or_else(|| {
                        format!(
                            "{part:?} is not seconds=1 to {SECONDS_MAX}, format=proto or format=svg"
                        )
                    })?;
                }
            }
        }
        Ok(wanted)
    }
}

/// Takes a profile as the query asks, and answers when it is done, or at once when `stop` is cancelled.
pub(super) async fn answer(uri: Uri, stop: CancellationToken) -> Answer {
    let wanted = match Wanted::read(uri.query().unwrap_or_default()) {
        Ok(wanted) => wanted,
        Err(wrong) => return text(StatusCode::BAD_REQUEST, format!("{wrong}\n")),
    };
    let Ok(taken) = TAKEN.try_acquire() else {
        return text(
            StatusCode::TOO_MANY_REQUESTS,
            "a profile is being taken: one at a time\n",
        );
    };
    tracing::info!(seconds = wanted.seconds, "a profile is taken");
    // Dropped with this future, when the process stops or nobody waits for the profile any more.
    let (_waiting, gone) = sync_channel(0);
    // From its beginning to its end, no matter who waits: both take milliseconds, and so does finding names.
    let taking = tokio::task::spawn_blocking(move || take(wanted, &gone, taken));
    let Some(made) = stop.run_until_cancelled(taking).await else {
        let word = "the process stops: the profile was given up\n";
        return text(StatusCode::SERVICE_UNAVAILABLE, word);
    };
    match made.map_err(anyhow::Error::from).flatten() {
        Ok(answer) => answer,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
    }
}

/// The profile; an error as soon as the caller is `gone`. The next one can be taken when this one has ended.
fn take(
    wanted: Wanted,
    gone: &Receiver<Infallible>,
    _taken: SemaphorePermit<'static>,
) -> anyhow::Result<Answer> {
    can_make_files()?;
    let guard = ProfilerGuardBuilder::default()
        .frequency(FREQUENCY)
        .blocklist(&UNTOUCHED)
        .build()?;
    let duration = Duration::from_secs(wanted.seconds);
    if gone.recv_timeout(duration) != Err(RecvTimeoutError::Timeout) {
        anyhow::bail!("nobody waits for the profile");
    }
    let report = guard.report().build()?;
    drop(guard);
    let profile = Profile {
        sample_types: [("samples", "count"), ("cpu", "nanoseconds")],
        period_type: ("cpu", "nanoseconds"),
        period: PERIOD,
        duration,
        stacks: report.data.iter().map(stack).collect(),
    };
    Ok(profile.answer(wanted.format))
}

/// The profiler keeps what it has no room for in a file, and when it cannot make that file once, it never tries again.
fn can_make_files() -> anyhow::Result<()> {
    let file = NamedTempFile::new().with_context(|| {
        let folder = env::temp_dir();
        format!(
            "a profile needs a temporary file in {}, the folder that TMPDIR names, or else /tmp",
            folder.display()
        )
    })?;
    Ok(file.close()?)
}

fn stack((frames, samples): (&Frames, &isize)) -> Stack {
    let calls = frames.frames.iter().map(|symbols| {
        let lines = symbols.iter().map(|symbol| Line {
            function: symbol.name(),
            file: symbol.filename().into_owned(),
            number: symbol.lineno(),
        });
        lines.collect::<Vec<_>>()
    });
    let samples = u64::try_from(*samples).unwrap_or(0);
    let mut lines: Vec<_> = calls.skip_while(|call| is_walk(call)).flatten().collect();
    if lines.is_empty() {
        // The walk ended where it began. The time was spent all the same.
        lines.push(Line {
            function: "(unknown)".to_owned(),
            file: String::new(),
            number: 0,
        });
    }
    Stack {
        lines,
        thread: Some(frames.thread_name.clone()),
        values: [samples, samples * PERIOD],
    }
}

/// Whether this call, with what was inlined into it, is part of the sampling.
fn is_walk(call: &[Line]) -> bool {
    let is_walk = |line: &Line| {
        let name = line.function.as_str();
        name == "trace" || name.ends_with("::trace") || name.contains("trace_unsynchronized")
    };
    !call.is_empty() && call.iter().all(is_walk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_format_are_read_and_anything_else_is_said() {
        let read = |query| Wanted::read(query).map(|wanted| (wanted.seconds, wanted.format));
        assert_eq!(read(""), Ok((10, Format::Protobuf)));
        assert_eq!(read("seconds=1&format=svg"), Ok((1, Format::Svg)));
        assert_eq!(read("seconds=60&format=proto"), Ok((60, Format::Protobuf)));
        for wrong in [
            "seconds=0",
            "seconds=61",
            "seconds=x",
            "second=1",
            "format=html",
            "x",
        ] {
            assert!(Wanted::read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn calls_of_the_sampling_itself_are_left_out() {
        let call = |names: &[&str]| -> Vec<Line> {
            let line = |name: &&str| Line {
                function: (*name).to_owned(),
                file: String::new(),
                number: 0,
            };
            names.iter().map(line).collect()
        };
        assert!(is_walk(&call(&["trace"])));
        assert!(is_walk(&call(&[
            "backtrace::backtrace::trace_unsynchronized",
            "<X as Trace>::trace"
        ])));
        assert!(!is_walk(&call(&["trace", "poll"])));
        assert!(!is_walk(&call(&[])));
    }
}
