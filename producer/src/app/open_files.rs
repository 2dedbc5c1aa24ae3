//! Connection limits that fit the open-file limit: each connection is an open file.

use super::Config;

/// Minimum open-file limit. With fewer files, sync requests could leave none for subscribers.
pub(super) const FILES_MIN: u64 = 256;

/// Files reserved for other purposes, or a quarter of all files if that is less.
const OTHER_FILES: u64 = 512;

/// The configured connection limits of the HTTP port and the gRPC port, reduced if the open-file limit is too low.
pub(super) fn connections(config: &Config) -> (usize, usize) {
    let files = runtime::raise_open_files();
    let limits = &config.limits;
    let configured = (limits.http_connections, limits.grpc_connections);
    let effective = share(configured.0, configured.1, files);
    if effective != configured {
        tracing::warn!(
            files,
            http_connections = effective.0,
            grpc_connections = effective.1,
            "connection limits reduced, because the open-file limit is too low"
        );
    }
    effective
}

/// Divides too few files in proportion to the configured limits. Each port gets at least a quarter, or its configured
/// limit if that is less.
fn share(http: usize, grpc: usize, files: u64) -> (usize, usize) {
    let spare = files.saturating_sub(OTHER_FILES.min(files / 4));
    let spare = usize::try_from(spare).unwrap_or(usize::MAX);
    let configured = http.saturating_add(grpc);
    if configured <= spare {
        return (http, grpc);
    }
    let share = spare as u128 * grpc as u128 / configured as u128;
    let share = usize::try_from(share).unwrap_or(spare);
    let grpc = grpc.min(share.clamp(spare / 4, spare - spare / 4));
    (http.min(spare - grpc), grpc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(configured: (usize, usize), files: u64, expected: (usize, usize)) {
        assert_eq!(share(configured.0, configured.1, files), expected);
    }

    #[test]
    fn connection_limits_fit_the_open_file_limit() {
        check((20_000, 2_048), 1 << 20, (20_000, 2_048));
        check((20_000, 2_048), u64::MAX, (20_000, 2_048));
        check((20_000, 2_048), 22_560, (20_000, 2_048));
        check((1_000, 1_000), 1_512, (567, 567));
        check((20_000, 2_048), 1_024, (576, 192));
        check((20_000, 10), FILES_MIN, (182, 10));
        check((10, 20_000), FILES_MIN, (10, 144));
        check((usize::MAX, usize::MAX), 1_024, (192, 576));
    }
}
