//! What takes the processor's time: samples of the stacks of running threads, a hundred a second of processor time.
//!
//! The timer of the samples is the process's, so one profile is taken at a time. A thread that is found inside the C
//! library or the unwinder is not sampled, since walking its stack from a signal could wait for a lock that it holds: so
//! the time of system calls does not show, `perf` tells of that.

mod encode;
mod flames;

use std::time::Duration;

use http::{StatusCode, Uri, header};
use pprof::{Frames, ProfilerGuardBuilder};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::sleep,
};

use crate::process::admin::{self, Answer, text};

/// Samples for each second of processor time; a prime, so that they keep no step with timers.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// For pprof, speedscope and others.
    Protobuf,
    /// A flame graph, for a browser.
    Svg,
}

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
                Some(("format", "proto")) => wanted.format = Format::Protobuf,
                Some(("format", "svg")) => wanted.format = Format::Svg,
                _ => {
                    return Err(format!(
                        "{part:?} is not seconds=1 to {SECONDS_MAX}, format=proto or format=svg"
                    ));
                }
            }
        }
        Ok(wanted)
    }
}

/// Takes a profile as the query asks, and answers when it is done.
pub(super) async fn answer(uri: Uri) -> Answer {
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
    match take(wanted, taken).await {
        Ok((content_type, bytes)) => {
            let mut answer = admin::content(StatusCode::OK, content_type, bytes);
            if wanted.format == Format::Protobuf {
                let name = header::HeaderValue::from_static("attachment; filename=\"profile.pb\"");
                answer
                    .headers_mut()
                    .insert(header::CONTENT_DISPOSITION, name);
            }
            answer
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
    }
}

/// The profile, and what it is. Whoever asked may be gone before it is made: the next one waits for that.
async fn take(
    wanted: Wanted,
    taken: SemaphorePermit<'static>,
) -> anyhow::Result<(&'static str, Vec<u8>)> {
    let guard = ProfilerGuardBuilder::default()
        .frequency(FREQUENCY)
        .blocklist(&UNTOUCHED)
        .build()?;
    sleep(Duration::from_secs(wanted.seconds)).await;
    // Finding names reads the program's own file, which takes long enough to be in others' way.
    tokio::task::spawn_blocking(move || {
        let report = guard.report().build()?;
        drop(guard);
        drop(taken);
        let stacks: Vec<_> = report.data.iter().map(Stack::of).collect();
        anyhow::Ok(match wanted.format {
            Format::Protobuf => {
                let duration = Duration::from_secs(wanted.seconds);
                (
                    "application/octet-stream",
                    encode::profile(&stacks, duration),
                )
            }
            Format::Svg => ("image/svg+xml", flames::svg(&stacks).into_bytes()),
        })
    })
    .await?
}

/// One stack, and how often it was found.
#[derive(Debug)]
struct Stack {
    /// Names of functions, the one that ran first, and where in their files.
    lines: Vec<Line>,
    thread: String,
    samples: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Line {
    function: String,
    file: String,
    number: u32,
}

impl Stack {
    fn of((frames, samples): (&Frames, &isize)) -> Self {
        let calls = frames.frames.iter().map(|symbols| {
            let lines = symbols.iter().map(|symbol| Line {
                function: symbol.name(),
                file: symbol.filename().into_owned(),
                number: symbol.lineno(),
            });
            lines.collect::<Vec<_>>()
        });
        Self {
            lines: calls.skip_while(|call| is_walk(call)).flatten().collect(),
            thread: frames.thread_name.clone(),
            samples: u64::try_from(*samples).unwrap_or(0),
        }
    }
}

/// Whether this call, with what was inlined into it, is part of the sampling.
fn is_walk(call: &[Line]) -> bool {
    let is_walk = |line: &Line| {
        let name = line.function.rsplit("::").next().unwrap_or_default();
        name == "trace" || name == "trace_unsynchronized"
    };
    !call.is_empty() && call.iter().all(is_walk)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stack of these functions, the one that ran first, found so often.
    pub(super) fn stack(functions: &[&str], samples: u64) -> Stack {
        let line = |function: &&str| Line {
            function: (*function).to_owned(),
            file: "file.rs".to_owned(),
            number: 1,
        };
        Stack {
            lines: functions.iter().map(line).collect(),
            thread: "worker".to_owned(),
            samples,
        }
    }

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
}
