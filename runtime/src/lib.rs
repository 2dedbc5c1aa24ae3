//! Code that all processes share: lifecycle from settings to exit code, logging, signals, listeners, TLS, tokens, metrics, and
//! the admin port with its status page.

pub mod admin;
pub mod caller;
pub mod connect;
pub mod file_lock;
pub mod http1;
pub mod http_server;
pub mod limit_headers;
pub mod listen;
pub mod logging;
pub mod metrics;
pub mod open_files;
pub mod problem;
pub mod process;
pub mod rate_limit;
pub mod ready;
pub mod reload;
pub mod reply;
pub mod services;
pub mod settings;
pub mod signals;
pub mod tls;
pub mod token;
pub mod unfinished_store;

use std::time::SystemTime;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The commit of this build, or `unknown`; see `runtime/build.rs`.
pub const COMMIT: &str = env!("COOKIESYNC_COMMIT");

/// The cargo profile of this build. Releases and published measurements use `dist`.
pub const PROFILE: &str = env!("COOKIESYNC_PROFILE");

/// The output of `--version`: `0.1.0 (63cf052, dist)`, or `0.1.0 (dist)` if the commit is unknown.
pub const VERSION: &str = env!("COOKIESYNC_VERSION");

/// Raises the open-file limit of this process to its hard limit; returns the new limit.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let Some(maximum) = limit.maximum else {
        return limit.current.unwrap_or(u64::MAX);
    };
    let raised = Rlimit {
        current: Some(maximum),
        maximum: Some(maximum),
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => limit.current.unwrap_or(maximum),
    }
}

/// Microseconds since the Unix epoch by the system clock; 0 before 1970.
pub fn unix_micros() -> u64 {
    let micros = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |elapsed| {
            let micros = elapsed.as_secs().saturating_mul(1_000_000);
            micros.saturating_add(elapsed.subsec_micros().into())
        });
    #[cfg(debug_assertions)]
    let micros = micros.saturating_add(simulated_clock::AHEAD.get());
    micros
}

/// Clocks of simulated hosts. Optimized builds do not have this module.
#[cfg(debug_assertions)]
pub mod simulated_clock {
    use std::cell::Cell;

    thread_local! {
        /// Microseconds that [`unix_micros`](super::unix_micros) of this thread adds to the system clock.
        pub static AHEAD: Cell<u64> = const { Cell::new(0) };
    }
}
