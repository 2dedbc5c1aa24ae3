//! Which faults are wanted, as on the command line.

use std::time::Duration;

use anyhow::{Result, bail};
use bench::values::parse_time;
use clap::{Args, ValueEnum as _};

use super::{FaultKind, TIME_MIN};

/// Which faults strike, and how often.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Faults")]
pub struct FaultArgs {
    /// Faults of this kind, on average TIME apart, or as --fault-every says. May be given several times.
    ///
    /// kill-consumer, kill-mongod: SIGKILL, and a new start after 0.2 to 3 s.
    /// stop-consumer, stop-mongod: SIGSTOP for 1 to 5 s.
    /// restart-consumer, restart-mongod: SIGTERM, and a new start after 0.2 to 3 s.
    /// stop-producer: SIGSTOP for 0.5 to 3 s.
    /// restart-producer: SIGTERM, and a new start 0.1 to 1 s after it has drained.
    /// kill-producer: SIGKILL, and a new start after 0.1 to 1 s. Cookies it had not delivered are lost.
    /// partition-node: packets between a node and all producers vanish for 1 s up to --partition-max. Cuts need root.
    /// drop-inbound-node: only packets to the node vanish, as with a half-open connection.
    /// drop-outbound-node: only packets from the node vanish.
    #[arg(long = "fault", value_name = "KIND[=TIME]", value_parser = parse_fault, verbatim_doc_comment)]
    pub faults: Vec<(FaultKind, Option<Duration>)>,
    /// Mean time between two faults of a kind that is named without one.
    #[arg(long, value_name = "TIME", value_parser = |text: &str| parse_time(text, TIME_MIN), default_value = "30s")]
    pub fault_every: Duration,
    /// All kinds of faults that the stores and this machine allow; producers are restarted in order a quarter as often, since
    /// nothing else may strike around that.
    #[arg(long)]
    pub all_faults: bool,
    /// The longest cut.
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
    /// Kinds, each with its mean time between two. `no_partitions` says why networks cannot be cut here.
    pub(super) fn kinds(
        &self,
        has_mongod: bool,
        no_partitions: Option<&str>,
    ) -> Result<Vec<(FaultKind, Duration)>> {
        let mut kinds = Vec::new();
        for &kind in FaultKind::value_variants() {
            let every = match self.faults.iter().rfind(|(wanted, _)| *wanted == kind) {
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
                && let Some(why) = no_partitions
            {
                bail!("{kind:?}: no network can be cut here: {why}");
            }
            if kind.needs_mongod() && !has_mongod {
                bail!(
                    "{kind:?}: there is no mongod of ours to strike; --store mongodb starts one for each consumer, --store mixed \
                     for every other"
                );
            }
            kinds.push((kind, every));
        }
        Ok(kinds)
    }

    /// Whether any wanted fault cuts networks.
    pub(super) fn may_partition(&self) -> bool {
        let mut wanted = self.faults.iter();
        self.all_faults || wanted.any(|(kind, _)| kind.partition().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_has_a_kind_and_may_have_a_time() {
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
