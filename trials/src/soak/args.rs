//! Which faults are wanted, as on the command line.

use std::time::Duration;

use anyhow::{Result, bail};
use bench::e2e::parse_time;
use clap::Args;

use super::Kind;

/// Which faults strike, and how often.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Faults")]
pub struct FaultArgs {
    /// Mean time between two faults of a kind that is named without one.
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "30s")]
    pub fault_every: Duration,
    /// All kinds of faults that the stores and this machine allow; producers are restarted in order a quarter as often, since
    /// nothing else may strike around that.
    #[arg(long)]
    pub all_faults: bool,
    /// Kill a consumer (SIGKILL) and start it again after 0.2 to 3 s.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    pub kill_consumer: Option<Option<Duration>>,
    /// Stop a consumer (SIGSTOP) for 1 to 5 s.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    pub stop_consumer: Option<Option<Duration>>,
    /// End a consumer in order (SIGTERM) and start it again after 0.2 to 3 s.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    pub restart_consumer: Option<Option<Duration>>,
    /// Cut a node from all producers, in both directions and without a word, for 1 s up to --cut-longest. Cuts need root.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    pub cut_node: Option<Option<Duration>>,
    /// The same, but only packets to the node vanish: a half-open connection.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    pub deafen_node: Option<Option<Duration>>,
    /// The same, but only packets from the node vanish.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    pub mute_node: Option<Option<Duration>>,
    /// The longest cut.
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "60s")]
    pub cut_longest: Duration,
    /// Kill a mongod (SIGKILL) and start it again after 0.2 to 3 s.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    pub kill_mongod: Option<Option<Duration>>,
    /// Stop a mongod (SIGSTOP) for 1 to 5 s.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    pub stop_mongod: Option<Option<Duration>>,
    /// End a mongod in order (SIGTERM) and start it again after 0.2 to 3 s.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    pub restart_mongod: Option<Option<Duration>>,
    /// Stop a producer (SIGSTOP) for 0.5 to 3 s.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    pub stop_producer: Option<Option<Duration>>,
    /// End a producer in order (SIGTERM) and start it again when it has drained, after 0.1 to 1 s.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    pub restart_producer: Option<Option<Duration>>,
    /// Kill a producer (SIGKILL) and start it again after 0.1 to 1 s: what it had not delivered is lost.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    pub kill_producer: Option<Option<Duration>>,
}

impl FaultArgs {
    /// Kinds, each with its mean time between two. `no_cuts` says why networks cannot be cut here.
    pub(super) fn kinds(
        &self,
        has_mongod: bool,
        no_cuts: Option<&str>,
    ) -> Result<Vec<(Kind, Duration)>> {
        let wanted = |kind| match kind {
            Kind::KillConsumer => self.kill_consumer,
            Kind::StopConsumer => self.stop_consumer,
            Kind::RestartConsumer => self.restart_consumer,
            Kind::CutNode => self.cut_node,
            Kind::DeafenNode => self.deafen_node,
            Kind::MuteNode => self.mute_node,
            Kind::KillMongod => self.kill_mongod,
            Kind::StopMongod => self.stop_mongod,
            Kind::RestartMongod => self.restart_mongod,
            Kind::StopProducer => self.stop_producer,
            Kind::RestartProducer => self.restart_producer,
            Kind::KillProducer => self.kill_producer,
        };
        let mut kinds = Vec::new();
        for kind in Kind::ALL {
            let every = match wanted(kind) {
                Some(every) => every.unwrap_or(self.fault_every),
                None if self.all_faults
                    && (has_mongod || !kind.needs_mongod())
                    && (no_cuts.is_none() || kind.cuts().is_none()) =>
                {
                    match kind {
                        Kind::RestartProducer => self.fault_every * 4,
                        _ => self.fault_every,
                    }
                }
                None => continue,
            };
            if kind.cuts().is_some()
                && let Some(why) = no_cuts
            {
                bail!("--{}: no network can be cut here: {why}", kind.name());
            }
            if kind.needs_mongod() && !has_mongod {
                bail!(
                    "--{}: there is no mongod of ours to strike; --store mongodb starts one for each consumer, \
                     --store mixed for every other",
                    kind.name()
                );
            }
            kinds.push((kind, every));
        }
        Ok(kinds)
    }

    /// Whether any wanted fault cuts networks.
    pub(super) fn may_cut(&self) -> bool {
        self.all_faults
            || self.cut_node.is_some()
            || self.deafen_node.is_some()
            || self.mute_node.is_some()
    }
}
