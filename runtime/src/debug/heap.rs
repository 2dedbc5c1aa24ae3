//! What memory is in use, by who asked for it: a sample, kept since the process began.

use std::time::Duration;

use http::{StatusCode, Uri};
use tokio::sync::Semaphore;

use super::stacks::{Format, Line, Profile, Stack};
use crate::answer::{Answer, text};

/// Held while names are looked up.
static TAKEN: Semaphore = Semaphore::const_new(1);

/// Answers with the profile, in the form that the query asks for.
pub(super) async fn answer(uri: Uri) -> Answer {
    let query = uri.query().unwrap_or_default();
    let Some(format) = Format::read(query) else {
        let word = format!("{query:?} is not format=proto or format=svg\n");
        return text(StatusCode::BAD_REQUEST, word);
    };
    if !heap::is_sampling() {
        return text(
            StatusCode::NOT_FOUND,
            "this process does not sample its heap\n",
        );
    }
    let Ok(taken) = TAKEN.try_acquire() else {
        return text(
            StatusCode::TOO_MANY_REQUESTS,
            "a profile is being made: one at a time\n",
        );
    };
    // Finding names reads the program's own file, which takes long enough to be in others' way.
    let made = tokio::task::spawn_blocking(move || {
        let profile = Profile {
            sample_types: [("inuse_objects", "count"), ("inuse_space", "bytes")],
            period_type: ("space", "bytes"),
            period: u64::from(heap::INTERVAL),
            duration: Duration::ZERO,
            stacks: heap::in_use().into_iter().map(stack).collect(),
        };
        drop(taken);
        profile.answer(format)
    });
    match made.await {
        Ok(answer) => answer,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn stack(usage: heap::Usage) -> Stack {
    let line = |frame: heap::Frame| Line {
        function: frame.function,
        file: frame.file,
        number: frame.line,
    };
    Stack {
        lines: usage.stack.into_iter().map(line).collect(),
        thread: None,
        values: [usage.objects, usage.bytes],
    }
}
