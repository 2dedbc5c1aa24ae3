//! Maximum memory of a producer: the bound that each component enforces, and the sum of all bounds.
//!
//! This is the worst case of all ports together. It excludes the admin port, and kernel memory for sockets,
//! which also counts against the memory limit of a container.

use proto::archive::GROUP_BYTES_MAX;

use crate::{
    api,
    config::Config,
    edge::{
        self,
        cookie_sync::{LARGE_ANSWER_BYTES, LARGE_ANSWERS_MAX},
    },
    server, streams,
};

/// Memory without connections and cookies: program, threads, metrics, and free memory that the allocator retains.
const PROCESS_BYTES: usize = 64 << 20;

/// Memory bound of one component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComponentMemory {
    /// Name of the component.
    pub what: &'static str,
    /// The setting or constant that bounds it.
    pub bound: &'static str,
    /// Maximum bytes.
    pub bytes: u64,
}

/// Memory bounds of all components under these settings.
pub fn components(config: &Config) -> [ComponentMemory; 12] {
    let component = |what, bound, count: usize, each: usize| ComponentMemory {
        what,
        bound,
        bytes: (count as u64).saturating_mul(each as u64),
    };
    let with_tls =
        |bytes, is_encrypted: bool| bytes + usize::from(is_encrypted) * server::TLS_BYTES;
    let http_connection = with_tls(edge::CONNECTION_BYTES, config.security.http_tls.is_some());
    let grpc_connection = with_tls(server::CONNECTION_BYTES, config.security.tls.is_some());
    [
        component("log", "`--log-bytes`", 1, config.retention.log_bytes),
        component(
            "bytes in flight to slow subscribers",
            "`--in-flight-bytes`",
            1,
            config.limits.in_flight_bytes,
        ),
        component(
            "HTTP connections",
            "`--http-connections`, 64 KiB each, 192 KiB with TLS",
            config.limits.http_connections,
            http_connection,
        ),
        component(
            "large answers to requests for sync plans",
            "with `--contracts`: 64, 170 KiB each",
            LARGE_ANSWERS_MAX * usize::from(config.dsps.contracts.is_some()),
            LARGE_ANSWER_BYTES,
        ),
        component(
            "gRPC connections",
            "`--grpc-connections`, 128 KiB each, 256 KiB with TLS",
            config.limits.grpc_connections,
            grpc_connection,
        ),
        component(
            "non-streaming calls, including unfinished requests",
            "16 MiB for all connections",
            1,
            server::CALLS_BYTES_MAX,
        ),
        component(
            "subscribers, including disconnected ones",
            "`--subscribers`, 32 KiB each",
            config.limits.subscribers,
            streams::SUBSCRIBER_BYTES,
        ),
        component(
            "cached messages for `GetCookies` clients",
            "96 times `--chunk-bytes`",
            // Short cookies take up to a third more bytes as separate messages than in a chunk.
            streams::CACHED_CHUNKS_MAX * 3 / 2,
            config.retention.chunk_bytes,
        ),
        component(
            "cookies queued by DSP limits",
            "`queue_bytes` in `--contracts`, per DSP in mode `shape`",
            1,
            config.dsps.queue_bytes_max(),
        ),
        component(
            "API requests, and responses stored for repeated requests",
            "with `--api`: 256 connections, 64 MiB of responses",
            usize::from(config.api.address.is_some()),
            api::MEMORY_BYTES,
        ),
        component(
            "message to the archive, and its copies in the connection",
            "with `--archive`: 3 times 512 KiB, or `--chunk-bytes` if more",
            3 * usize::from(config.archive.nats.is_some()),
            GROUP_BYTES_MAX.max(config.retention.chunk_bytes),
        ),
        component("program, threads and metrics", "64 MiB", 1, PROCESS_BYTES),
    ]
}

/// Maximum memory of the process, in bytes.
pub fn bytes_max(config: &Config) -> u64 {
    let sizes = components(config)
        .into_iter()
        .map(|component| component.bytes);
    sizes.fold(0, u64::saturating_add)
}
