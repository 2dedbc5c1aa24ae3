//! Command-line options of a soak run.

use std::{num::NonZeroU64, time::Duration};

use anyhow::{Result, bail};
use bench::{
    e2e::DriveArgs,
    report::ReportArgs,
    values::{parse_rate, parse_time},
};
use clap::{Args, ValueEnum as _};
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
    #[arg(long = "for", value_name = "TIME", value_parser = |text: &str| parse_time(text, TIME_MIN), default_value = "10m")]
    pub duration: Duration,
    /// Requests per second.
    #[arg(short = 'l', long, value_parser = parse_rate, default_value = "20000")]
    pub rate: NonZeroU64,
    /// Options of the cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
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
    /// Kind of fault to inject, with its mean interval [default: --fault-every]. Repeatable.
    ///
    /// kill-consumer, kill-mongod: SIGKILL, and a restart after 0.2 to 3 s.
    /// stop-consumer, stop-mongod: SIGSTOP for 1 to 5 s.
    /// restart-consumer, restart-mongod: SIGTERM, and a restart after 0.2 to 3 s.
    /// stop-producer: SIGSTOP for 0.5 to 3 s.
    /// restart-producer: SIGTERM, and a restart 0.1 to 1 s after it has drained.
    /// kill-producer: SIGKILL, and a restart after 0.1 to 1 s. Its undelivered cookies are lost.
    /// partition-node: drops all packets between a node and the producers for 1 s to --partition-max. Requires root.
    /// drop-inbound-node: drops only packets to the node, as with a half-open connection.
    /// drop-outbound-node: drops only packets from the node.
    #[arg(long = "fault", value_name = "KIND[=TIME]", value_parser = parse_fault, verbatim_doc_comment)]
    pub faults: Vec<(FaultKind, Option<Duration>)>,
    /// Mean interval of faults for which --fault sets none.
    #[arg(long, value_name = "TIME", value_parser = |text: &str| parse_time(text, TIME_MIN), default_value = "30s")]
    pub fault_every: Duration,
    /// Inject all kinds of faults that the store and this machine support. restart-producer has four times the interval,
    /// because no other fault may be active around it.
    #[arg(long)]
    pub all_faults: bool,
    /// Maximum duration of a partition.
    #[arg(long, value_name = "TIME", value_parser = |text: &str| parse_time(text, TIME_MIN), default_value = "60s")]
    pub partition_max: Duration,
}

fn parse_fault(text: &str) -> Result<(FaultKind, Option<Duration>), String> {
    let (name, every) = match text.split_once('=') {
        Some((name, every)) => (name, Some(parse_time(every, TIME_MIN)?)),
        None => (text, None),
    };
    Ok((FaultKind::from_str(name, false)?, every))
}

impl FaultArgs {
    /// Kinds of faults with their mean intervals. `no_partitions`: why partitions are unavailable; `None` if they are available.
    pub(super) fn kinds(
        &self,
        has_mongod: bool,
        no_partitions: Option<&str>,
    ) -> Result<Vec<(FaultKind, Duration)>> {
        let mut kinds = Vec::new();
        for &kind in FaultKind::value_variants() {
            let every = match self.faults.iter().rfind(|(selected, _)| *selected == kind) {
                Some((_, every)) => every.unwrap_or(self.fault_every),
                None if self.all_faults
                    && (has_mongod || !kind.needs_mongod())
                    && (no_partitions.is_none() || kind.partition().is_none()) =>
                {
                    match kind {
                        FaultKind::RestartProducer => self.fault_every * 4,
                        _ => self.fault_every,
                    }
                }
                None => continue,
            };
            if kind.partition().is_some()
                && let Some(reason) = no_partitions
            {
                bail!("{kind:?}: network partitions are unavailable: {reason}");
            }
            if kind.needs_mongod() && !has_mongod {
                bail!("{kind:?}: this run starts no mongod; use --store mongodb or mixed");
            }
            kinds.push((kind, every));
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
    fn fault_has_a_kind_and_an_optional_interval() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(
            parse_fault("drop-outbound-node"),
            Ok((FaultKind::DropOutboundNode, None))
        );
        assert_eq!(
            parse_fault("kill-mongod=5s"),
            Ok((FaultKind::KillMongod, seconds(5)))
        );
        assert!(parse_fault("kill-everything").is_err());
        assert!(parse_fault("kill-mongod=soon").is_err());
    }
}
