//! The most memory that a producer takes: the bounds of its parts, each enforced by that part, and their sum.
//!
//! This is the worst case on all ports at once. It leaves out what only operators can cause, by profiles
//! (`--debug-endpoints`) and at the admin port, and the kernel's memory for sockets, which is charged to a container
//! too.

use crate::{config::Config, edge, server, streams};

/// What a producer takes without connections and cookies: the program, its threads, its metrics, and memory that the
/// allocator keeps.
const PROCESS_BYTES: u64 = 64 << 20;

/// One part and the most that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub what: &'static str,
    /// What bounds it.
    pub bound: &'static str,
    /// Most bytes.
    pub bytes: u64,
}

/// All parts of a producer with these settings.
#[must_use]
pub fn parts(config: &Config) -> [Part; 9] {
    let part = |what, bound, count: usize, each: usize| Part {
        what,
        bound,
        bytes: (count as u64).saturating_mul(each as u64),
    };
    let grpc_connection = if config.security.is_encrypted() {
        server::CONNECTION_BYTES + server::TLS_BYTES
    } else {
        server::CONNECTION_BYTES
    };
    [
        part("cookies", "`--log-bytes`", 1, config.keeping.log_bytes),
        part(
            "in flight to slow readers, beside the log",
            "`--in-flight-bytes`",
            1,
            config.limits.in_flight_bytes,
        ),
        part(
            "HTTP connections",
            "`--http-connections`, 64 KiB each",
            config.limits.http_connections,
            edge::CONNECTION_BYTES,
        ),
        part(
            "gRPC connections",
            "`--grpc-connections`, 128 KiB each, 256 KiB with TLS",
            config.limits.grpc_connections,
            grpc_connection,
        ),
        part(
            "calls that are not streams, unfinished requests among them",
            "16 MiB, over all connections",
            1,
            server::CALLS_BYTES_MAX,
        ),
        part(
            "subscribers, connected or remembered",
            "`--subscribers`, 32 KiB each",
            config.limits.subscribers,
            streams::SUBSCRIBER_BYTES,
        ),
        part(
            "messages of `GetCookies`",
            "96 times `--chunk-bytes`",
            // Short cookies take up to a third more by themselves than in a chunk.
            streams::CHUNKS_KEPT * 3 / 2,
            config.keeping.chunk_bytes,
        ),
        Part {
            what: "cookies that wait for their limits",
            bound: "`queue_bytes` in `--limits`, for each DSP that is shaped",
            bytes: config.shaping.queue_bytes_max(),
        },
        Part {
            what: "the process itself",
            bound: "64 MiB",
            bytes: PROCESS_BYTES,
        },
    ]
}

/// Their sum.
#[must_use]
pub fn bytes_max(config: &Config) -> u64 {
    let parts = parts(config).into_iter().map(|part| part.bytes);
    parts.fold(0, u64::saturating_add)
}
