//! Divides the open-file limit of a process: each connection is an open file, and so is each file of a store.
//!
//! Connections get what remains after the files of the store and a reserve, so that they can never prevent the store or the
//! log from opening a file.

use anyhow::ensure;

use crate::raise_open_files;

/// Minimum open-file limit. With fewer files, the share of a port would be too small.
const FILES_MIN: usize = 256;

/// Files reserved for other purposes, or a quarter of all files if that is less.
const OTHER_FILES: usize = 512;

/// Maximum number of connections to the admin port.
pub(crate) const ADMIN_CONNECTIONS_MAX: usize = 256;

/// Maximum files that a store keeps open.
const STORE_FILES_MAX: usize = 900;

fn limit() -> usize {
    usize::try_from(raise_open_files()).unwrap_or(usize::MAX)
}

/// Raises the open-file limit; returns the new limit.
///
/// # Errors
/// If the limit is too low.
pub fn raise() -> anyhow::Result<usize> {
    let files = limit();
    ensure!(
        files >= FILES_MIN,
        "open-file limit too low: {files}; a server needs at least {FILES_MIN}. Each connection is an open file. Raise the limit with \
         ulimit -n, or LimitNOFILE= in its systemd unit"
    );
    Ok(files)
}

/// Maximum number of files that a store keeps open.
pub fn of_store() -> usize {
    (limit() / 4).min(STORE_FILES_MAX)
}

/// Maximum number of connections to the admin port under the open-file limit.
pub(crate) fn of_admin() -> usize {
    (limit() / 8).min(ADMIN_CONNECTIONS_MAX)
}

/// Numbers of connections, given by name and configured maximum, reduced if the open-file limit is too low. The process also has
/// an admin port, and a store with up to `store_files` files.
pub fn connections<const N: usize>(
    store_files: usize,
    configured: [(&'static str, usize); N],
) -> [usize; N] {
    let files = limit();
    let other = OTHER_FILES.min(files / 4) + of_admin() + store_files;
    let effective = share(configured.map(|(_, max)| max), files.saturating_sub(other));
    for ((name, configured), effective) in configured.into_iter().zip(effective) {
        if effective < configured {
            tracing::warn!(
                files,
                name,
                configured,
                effective,
                "connection limit reduced, because the open-file limit is too low"
            );
        }
    }
    effective
}

/// Divides too few files: each share gets a minimum, or its configured maximum if that is less, and the rest is divided in
/// proportion to what is missing.
fn share<const N: usize>(configured: [usize; N], files: usize) -> [usize; N] {
    let base = configured.map(|max| max.min(files / (2 * N)));
    let sum = |values: [usize; N]| values.iter().map(|value| *value as u128).sum::<u128>();
    let rest = (files as u128).saturating_sub(sum(base));
    let missing = (sum(configured) - sum(base)).max(1);
    std::array::from_fn(|at| {
        let max = configured[at] - base[at];
        let more = rest * max as u128 / missing;
        base[at] + usize::try_from(more).map_or(max, |more| more.min(max))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<const N: usize>(configured: [usize; N], files: usize, expected: [usize; N]) {
        let shares = share(configured, files);
        assert_eq!(shares, expected, "{configured:?} in {files}");
        assert!(shares.iter().sum::<usize>() <= files);
    }

    #[test]
    fn connections_fit_into_the_files() {
        check([20_000, 2_048], 1 << 20, [20_000, 2_048]);
        check([20_000, 2_048], 22_048, [20_000, 2_048]);
        check([1_000, 1_000], 1_134, [567, 567]);
        check([20_000, 2_048], 768, [543, 224]);
        check([20_000, 10], 192, [182, 10]);
        check([usize::MAX, usize::MAX], 768, [384, 384]);
        check([4_096], 384, [384]);
        check([10], 384, [10]);
        check([16_384, 2_048, 256], 160, [98, 34, 27]);
        check([1], 0, [0]);
    }
}
