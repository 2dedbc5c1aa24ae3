//! Where processor time goes: samples of the stacks of running threads, a hundred for each second of processor time.
//!
//! The profile is in folded form, one line for each stack: the thread and its calls from the outermost to the innermost,
//! separated by semicolons, then a space and the number of samples. `inferno-flamegraph`, `flamegraph.pl` and speedscope read it.
//!
//! The sampling timer belongs to the process, so only one profile is taken at a time. A thread that is inside the C
//! library or the unwinder is not sampled, since walking its stack from a signal handler could wait for a lock that it holds:
//! time spent in system calls is missing, and `perf` shows that.
//!
//! A static program has no such libraries to tell apart. There, only unwinding a panic could hold a lock, and it takes none if
//! the unwinder finds its tables without one: libgcc from 12 on does with glibc from 2.35 on, in a program that is
//! position-independent. `deploy/build-static` refuses an older glibc, and `.ci/image` any other form of program. (Tried on such a
//! program with three threads that allocate, sampled 1,000 times a second for 20 s.)

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

use crate::reply::{Reply, text};

/// Samples for each second of processor time; not 100, so that they keep no step with timers.
const FREQUENCY: i32 = 99;

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

/// Reads the length of a profile from a query.
fn seconds_of(query: &str) -> Result<Duration, String> {
    let seconds = match query.split_once('=') {
        None if query.is_empty() => Some(SECONDS_DEFAULT),
        Some(("seconds", seconds)) => seconds.parse().ok(),
        _ => None,
    };
    seconds
        .filter(|seconds| (1..=SECONDS_MAX).contains(seconds))
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{query:?} is not seconds=1 to {SECONDS_MAX}"))
}

/// Takes a profile as the query asks, and answers when it is done, or at once when `stop` is cancelled.
pub(super) async fn reply(uri: Uri, stop: CancellationToken) -> Reply {
    let duration = match seconds_of(uri.query().unwrap_or_default()) {
        Ok(duration) => duration,
        Err(wrong) => return text(StatusCode::BAD_REQUEST, format!("{wrong}\n")),
    };
    let Ok(taken) = TAKEN.try_acquire() else {
        return text(
            StatusCode::TOO_MANY_REQUESTS,
            "a profile is being taken: one at a time\n",
        );
    };
    tracing::info!(?duration, "taking a profile");
    // Dropped with this future, when the process stops or nobody waits for the profile any more.
    let (_waiting, gone) = sync_channel(0);
    // From its beginning to its end, no matter who waits: both take milliseconds, and so does finding names.
    let taking = tokio::task::spawn_blocking(move || take(duration, &gone, taken));
    let Some(made) = stop.run_until_cancelled(taking).await else {
        let word = "the process stops: the profile was given up\n";
        return text(StatusCode::SERVICE_UNAVAILABLE, word);
    };
    match made.map_err(anyhow::Error::from).flatten() {
        Ok(profile) => text(StatusCode::OK, profile),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
    }
}

/// The profile; an error as soon as the caller is `gone`. The next one can be taken when this one has ended.
fn take(
    duration: Duration,
    gone: &Receiver<Infallible>,
    _taken: SemaphorePermit<'static>,
) -> anyhow::Result<String> {
    can_make_files()?;
    let guard = ProfilerGuardBuilder::default()
        .frequency(FREQUENCY)
        .blocklist(&UNTOUCHED)
        .build()?;
    if gone.recv_timeout(duration) != Err(RecvTimeoutError::Timeout) {
        anyhow::bail!("nobody waits for the profile");
    }
    let report = guard.report().build()?;
    drop(guard);
    Ok(report.data.iter().map(folded).collect())
}

/// The profiler keeps what it has no room for in a file, and when it cannot make that file once, it never tries again.
fn can_make_files() -> anyhow::Result<()> {
    let file = NamedTempFile::new().with_context(|| {
        let dir = env::temp_dir();
        format!(
            "a profile needs a temporary file in {}, the directory that TMPDIR names, or else /tmp",
            dir.display()
        )
    })?;
    Ok(file.close()?)
}

/// The line of one stack.
fn folded((frames, samples): (&Frames, &isize)) -> String {
    let calls = frames.frames.iter().map(|symbols| {
        let names = symbols.iter().map(|symbol| symbol.name().replace(';', ":"));
        names.collect::<Vec<_>>()
    });
    let mut names: Vec<_> = calls
        .skip_while(|call| is_sampling(call))
        .flatten()
        .collect();
    if names.is_empty() {
        // The walk ended where it began. The time was spent all the same.
        names.push("(unknown)".to_owned());
    }
    names.push(frames.thread_name.replace(';', ":"));
    names.reverse();
    format!("{} {samples}\n", names.join(";"))
}

/// Whether this call, with the calls inlined into it, belongs to the sampling.
fn is_sampling(call: &[String]) -> bool {
    let is_sampling = |name: &String| {
        name == "trace" || name.ends_with("::trace") || name.contains("trace_unsynchronized")
    };
    !call.is_empty() && call.iter().all(is_sampling)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_read_and_anything_else_is_refused() {
        for (query, seconds) in [("", 10), ("seconds=1", 1), ("seconds=60", 60)] {
            assert_eq!(seconds_of(query), Ok(Duration::from_secs(seconds)));
        }
        for wrong in [
            "seconds=0",
            "seconds=61",
            "seconds=x",
            "second=1",
            "seconds=1&x",
            "x",
        ] {
            assert!(seconds_of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn calls_of_the_sampling_itself_are_left_out() {
        let call =
            |names: &[&str]| -> Vec<String> { names.iter().map(ToString::to_string).collect() };
        assert!(is_sampling(&call(&["trace"])));
        assert!(is_sampling(&call(&[
            "backtrace::backtrace::trace_unsynchronized",
            "<X as Trace>::trace"
        ])));
        assert!(!is_sampling(&call(&["trace", "poll"])));
        assert!(!is_sampling(&call(&[])));
    }
}
