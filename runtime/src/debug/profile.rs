//! CPU profiles: about 100 stack samples per second of CPU time.
//!
//! The output is in folded form, one line per stack: the thread and its calls, outermost first, separated by semicolons, then a
//! space and the number of samples. `inferno-flamegraph`, `flamegraph.pl` and speedscope read it.
//!
//! The sampling timer is per process, so only one profile runs at a time. Threads inside the C library or the unwinder are not
//! sampled: unwinding them in a signal handler could deadlock on one of their locks. So time in system calls is missing;
//! `perf` shows it.
//!
//! A static program cannot exclude these libraries, but in such a program only panic unwinding could hold a lock. With libgcc
//! 12 and glibc 2.35 or later, the unwinder of a position-independent program finds its tables without a lock.
//! `deploy/build-static` rejects an older glibc, and `.ci/image` rejects other kinds of programs. (Tested with three allocating
//! threads, sampled 1,000 times per second for 20 s.)

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

/// Samples per second of CPU time. Not 100, to avoid lockstep with timers.
const FREQUENCY: i32 = 99;

/// Maximum duration of a profile, in seconds.
const SECONDS_MAX: u64 = 60;

/// Default duration of a profile, in seconds.
const SECONDS_DEFAULT: u64 = 10;

/// Libraries whose locks a sample must not wait for.
const NOT_SAMPLED: [&str; 6] = [
    "libc.so",
    "libgcc_s",
    "libm.so",
    "ld-linux",
    "libpthread",
    "vdso",
];

/// Permits one profile at a time.
static PERMIT: Semaphore = Semaphore::const_new(1);

/// Parses the duration of a profile from a query.
fn duration_of(query: &str) -> Result<Duration, String> {
    let seconds = match query.split_once('=') {
        None if query.is_empty() => Some(SECONDS_DEFAULT),
        Some(("seconds", seconds)) => seconds.parse().ok(),
        _ => None,
    };
    seconds
        .filter(|seconds| (1..=SECONDS_MAX).contains(seconds))
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{query:?}: use seconds=N with N from 1 to {SECONDS_MAX}"))
}

/// Responds with a profile of the requested duration. `stop` cancels the profile.
pub(super) async fn serve(uri: Uri, stop: CancellationToken) -> Reply {
    let duration = match duration_of(uri.query().unwrap_or_default()) {
        Ok(duration) => duration,
        Err(error) => return text(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    let Ok(permit) = PERMIT.try_acquire() else {
        return text(
            StatusCode::TOO_MANY_REQUESTS,
            "another profile is running\n",
        );
    };
    tracing::info!(?duration, "taking a profile");
    // The sender is dropped with this future, when the process stops or the client disconnects.
    let (_client, gone) = sync_channel(0);
    // On a blocking thread, because starting, stopping and symbolizing take milliseconds.
    let taking = tokio::task::spawn_blocking(move || take(duration, &gone, permit));
    let Some(result) = stop.run_until_cancelled(taking).await else {
        let reason = "the process is stopping; profile cancelled\n";
        return text(StatusCode::SERVICE_UNAVAILABLE, reason);
    };
    match result.map_err(anyhow::Error::from).flatten() {
        Ok(profile) => text(StatusCode::OK, profile),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
    }
}

/// Takes a profile. Fails as soon as the client is `gone`. Releases the permit at the end.
fn take(
    duration: Duration,
    gone: &Receiver<Infallible>,
    _permit: SemaphorePermit<'static>,
) -> anyhow::Result<String> {
    check_temporary_files()?;
    let guard = ProfilerGuardBuilder::default()
        .frequency(FREQUENCY)
        .blocklist(&NOT_SAMPLED)
        .build()?;
    if gone.recv_timeout(duration) != Err(RecvTimeoutError::Timeout) {
        anyhow::bail!("the client disconnected");
    }
    let report = guard.report().build()?;
    drop(guard);
    Ok(report.data.iter().map(folded).collect())
}

/// Checks that temporary files can be created. The profiler needs one for large profiles, and never retries if creating it fails.
fn check_temporary_files() -> anyhow::Result<()> {
    let file = NamedTempFile::new().with_context(|| {
        let dir = env::temp_dir();
        format!(
            "failed to create a temporary file in {} (set TMPDIR to a writable directory)",
            dir.display()
        )
    })?;
    Ok(file.close()?)
}

/// The output line of one stack.
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
        // Unwinding failed; the time still counts.
        names.push("(unknown)".to_owned());
    }
    names.push(frames.thread_name.replace(';', ":"));
    names.reverse();
    format!("{} {samples}\n", names.join(";"))
}

/// Whether this call, including calls inlined into it, belongs to the profiler.
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
    fn duration_is_parsed_and_other_queries_are_rejected() {
        for (query, seconds) in [("", 10), ("seconds=1", 1), ("seconds=60", 60)] {
            assert_eq!(duration_of(query), Ok(Duration::from_secs(seconds)));
        }
        for invalid in [
            "seconds=0",
            "seconds=61",
            "seconds=x",
            "second=1",
            "seconds=1&x",
            "x",
        ] {
            assert!(duration_of(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn calls_of_the_profiler_are_recognized() {
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
