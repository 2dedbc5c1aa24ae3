//! How many connections the limit of open files allows: each connection is an open file.

use super::Config;

/// With fewer, a producer could accept requests but have no files left for the subscribers.
pub(super) const FILES_MIN: u64 = 256;

/// Files reserved for other purposes, unless a quarter of all files is less.
const OTHER_FILES: u64 = 512;

/// How many connections each port can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Affordable {
    pub(super) http: usize,
    pub(super) grpc: usize,
}

impl Affordable {
    /// As many as configured, or, if the system allows this process too few files, a share of them.
    pub(super) fn now(config: &Config) -> Self {
        let files = runtime::raise_open_files();
        let (http, grpc) = (
            config.limits.http_connections,
            config.limits.grpc_connections,
        );
        let affordable = Self::share(http, grpc, files);
        if affordable != (Self { http, grpc }) {
            let Self { http, grpc } = affordable;
            tracing::warn!(
                files,
                http_connections = http,
                grpc_connections = grpc,
                "open-file limit too low for the configured connections"
            );
        }
        affordable
    }

    /// A share of too few files is in proportion to what is configured. A port gets at least a quarter of what can be
    /// shared, if it wants as many.
    fn share(http: usize, grpc: usize, files: u64) -> Self {
        let spare = files.saturating_sub(OTHER_FILES.min(files / 4));
        let spare = usize::try_from(spare).unwrap_or(usize::MAX);
        let wanted = http.saturating_add(grpc);
        if wanted <= spare {
            return Self { http, grpc };
        }
        let part = spare as u128 * grpc as u128 / wanted as u128;
        let part = usize::try_from(part).unwrap_or(spare);
        let grpc = grpc.min(part.clamp(spare / 4, spare - spare / 4));
        Self {
            http: http.min(spare - grpc),
            grpc,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(wanted: (usize, usize), files: u64, expected: (usize, usize)) {
        let Affordable { http, grpc } = Affordable::share(wanted.0, wanted.1, files);
        assert_eq!((http, grpc), expected);
    }

    #[test]
    fn both_ports_have_their_share_of_the_files() {
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
