//! Command-line options of a soak run.

use std::{num::NonZeroU64, time::Duration};

use anyhow::{Result, bail};
use bench::{
    e2e::DriveArgs,
    report::ReportArgs,
    values::{TIME_MAX, parse_rate},
};
use clap::{Args, ValueEnum as _};
use runtime::settings::time;
use testkit::cluster::ClusterArgs;

use super::plan::FaultKind;

/// Minimum duration of a run, and minimum mean time between faults.
const TIME_MIN: Duration = Duration::from_secs(1);

/// Run the whole system at a constant rate under faults, and verify every store.
///
/// Flags select the kinds of faults and their mean intervals. Time, target and duration of each fault are drawn from
/// the seed. A cookie may be missing only if a killed producer had not delivered it, or if it is in a gap. The number
/// of missing cookies must not exceed the losses that the node's consumer reported. The exit code is 1 if other
/// cookies are missing, stale or unexpected, or if a process did not shut down cleanly.
#[derive(Debug, Clone, Args)]
pub struct SoakArgs {
    /// Duration of the load.
    #[arg(long = "for", value_name = "TIME", value_parser = time(TIME_MIN..=TIME_MAX), default_value = "10m")]
    pub duration: Duration,
    /// Requests per second.
    #[arg(short = 'l', long, value_parser = parse_rate, default_value = "20000")]
    pub rate: NonZeroU64,
    /// Options of the cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Archive all cookies in a NATS stream, from which nodes recover what they missed.
    #[arg(long)]
    pub archive: bool,
    /// Options of the load.
    #[command(flatten)]
    pub drive: DriveArgs,
    /// Fault options.
    #[command(flatten)]
    pub faults: FaultArgs,
    /// Output options.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Faults to inject.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Faults")]
pub struct FaultArgs {
    /// Kind of fault to inject, with its mean interval. Repeatable.
    ///
    /// kill-consumer, kill-mongod: SIGKILL, and a restart after 0.2 to 3 s.
    /// stop-consumer, stop-mongod: SIGSTOP for 1 to 5 s.
    /// restart-consumer, restart-mongod: SIGTERM, and a restart after 0.2 to 3 s.
    /// stop-producer: SIGSTOP for 0.5 to 3 s.
    /// restart-producer: SIGTERM, and a restart 0.1 to 1 s after it has drained.
    /// kill-producer: SIGKILL, and a restart after 0.1 to 1 s. Its undelivered cookies are lost.
    /// kill-nats: SIGKILL, and a restart after 0.2 to 3 s. Requires --archive.
    /// stop-nats: SIGSTOP for 1 to 5 s.
    /// partition-node: drops all packets between a node and the producers (and the archive) for 1 s to --partition-max. Requires root.
    /// drop-inbound-node: drops only packets to the node, as with a half-open connection.
    /// drop-outbound-node: drops only packets from the node.
    #[arg(long = "fault", value_name = "KIND=TIME", value_parser = parse_fault, verbatim_doc_comment)]
    pub faults: Vec<(FaultKind, Duration)>,
    /// Mean interval of the faults of --all-faults for which --fault sets none.
    #[arg(long, value_name = "TIME", value_parser = time(TIME_MIN..=TIME_MAX), default_value = "30s")]
    pub fault_every: Duration,
    /// Inject all kinds of faults that the store and this machine support. restart-producer has four times the interval,
    /// because no other fault may be active around it.
    #[arg(long)]
    pub all_faults: bool,
    /// Maximum duration of a partition.
    #[arg(long, value_name = "TIME", value_parser = time(TIME_MIN..=TIME_MAX), default_value = "60s")]
    pub partition_max: Duration,
}

fn parse_fault(text: &str) -> Result<(FaultKind, Duration), String> {
    let (name, every) = text.split_once('=').ok_or("use KIND=TIME")?;
    let every = time(TIME_MIN..=TIME_MAX)(every).map_err(|error| error.to_string())?;
    Ok((FaultKind::from_str(name, false)?, every))
}

impl FaultArgs {
    /// Kinds of faults with their mean intervals. `no_partitions`: why partitions are unavailable; `None` if they are available.
    pub(super) fn kinds(
        &self,
        has_mongod: bool,
        has_archive: bool,
        no_partitions: Option<&str>,
    ) -> Result<Vec<(FaultKind, Duration)>> {
        let mut kinds = Vec::new();
        for &kind in FaultKind::value_variants() {
            let selected = self.faults.iter().rfind(|(it, _)| *it == kind);
            let unavailable = match no_partitions {
                Some(reason) if kind.partition().is_some() => {
                    Some(format!("network partitions are unavailable: {reason}"))
                }
                _ if kind.needs_mongod() && !has_mongod => {
                    Some("this run starts no mongod; use --store mongodb or mixed".to_owned())
                }
                _ if kind.needs_archive() && !has_archive => {
                    Some("this run has no NATS server; use --archive".to_owned())
                }
                _ => None,
            };
            match (selected, unavailable) {
                (Some(_), Some(reason)) => bail!("{kind:?}: {reason}"),
                (Some((_, every)), None) => kinds.push((kind, *every)),
                (None, None) if self.all_faults => {
                    let factor = if kind == FaultKind::RestartProducer {
                        4
                    } else {
                        1
                    };
                    kinds.push((kind, self.fault_every * factor));
                }
                (None, _) => {}
            }
        }
        Ok(kinds)
    }

    /// Whether a selected fault partitions networks.
    pub(super) fn may_partition(&self) -> bool {
        let mut selected = self.faults.iter();
        self.all_faults || selected.any(|(kind, _)| kind.partition().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_has_a_kind_and_an_interval() {
        assert_eq!(
            parse_fault("kill-mongod=5s"),
            Ok((FaultKind::KillMongod, Duration::from_secs(5)))
        );
        for text in ["kill-mongod", "kill-everything=5s", "kill-mongod=soon"] {
            assert!(parse_fault(text).is_err(), "{text}");
        }
    }
}
