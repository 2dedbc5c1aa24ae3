//! Status of the contracts file, for metrics and `/readyz`.

use metric_defs::producer::{CONTRACTS_REFUSED_VERSION, CONTRACTS_VERSION};
use runtime::metrics::{Registry, as_f64, value};

use super::file::ContractsFile;
use crate::edge::dsps::Dsps;

/// The contracts file of a producer, and the version in effect.
#[derive(Debug, Clone)]
pub struct ContractsStatus {
    /// The file.
    pub file: ContractsFile,
    /// The DSPs under its contracts.
    pub dsps: Dsps,
}

impl ContractsStatus {
    /// One-line description for `/readyz`.
    #[must_use]
    pub fn describe(&self) -> String {
        let version = self.dsps.contracts_version();
        let error = self.file.error();
        let error = error.map(|error| format!(", the newest version is invalid: {error}"));
        format!("version {version} is active{}", error.unwrap_or_default())
    }
}

/// Registers the metrics; without a contracts file they have no values.
///
/// # Errors
/// When one of these metrics is registered already.
pub(crate) fn register(
    registry: &Registry,
    status: Option<ContractsStatus>,
) -> prometheus::Result<()> {
    registry.read(move || {
        let of = |count: fn(&ContractsStatus) -> u64| status.as_ref().map(count).map(as_f64);
        let refused = of(|it| u64::from(it.file.error().is_some()));
        vec![
            value(CONTRACTS_VERSION, of(|it| it.dsps.contracts_version())),
            value(CONTRACTS_REFUSED_VERSION, refused),
        ]
    })
}
