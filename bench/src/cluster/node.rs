//! One exchange node: a consumer and its store.

use std::path::Path;

use anyhow::Result;

use super::{args::ClusterArgs, backend::StoreBackend, netns::Namespace};
use crate::{
    producer::Producer,
    programs::{Process, Programs, flag_value, free_address},
};

/// Drain timeout of producers and consumers: enough for a full buffer on a slow disk.
pub(super) const DRAIN_TIMEOUT: &str = "30s";

/// A consumer and its store.
#[derive(Debug)]
pub struct Node {
    /// Subscriber name of the consumer.
    pub name: String,
    /// The consumer process.
    pub process: Process,
    /// Address of its admin port.
    pub admin: String,
    /// The store.
    pub backend: StoreBackend,
}

/// Parameters for starting a consumer.
pub(super) struct NodeSetup<'a> {
    pub(super) args: &'a ClusterArgs,
    pub(super) number: usize,
    pub(super) producers: &'a [Producer],
    pub(super) programs: &'a Programs,
    pub(super) dir: &'a Path,
    /// Network namespace of the consumer; `None` for that of the host.
    pub(super) network: Option<&'a Namespace>,
}

impl Node {
    /// Starts the consumer. Expiry and compaction are off unless configured, so that results do not depend on the time of day.
    pub(super) fn start(setup: &NodeSetup<'_>, backend: StoreBackend) -> Result<Self> {
        let name = format!("node-{}", setup.number);
        let mut admin = free_address()?;
        if let Some(network) = setup.network {
            admin.set_ip(network.address().into());
        }
        let admin = admin.to_string();
        let letters = setup.dir.join(format!("{name}-dead-letters.jsonl"));
        let mut flags = flags([
            ("--name", &name),
            ("--admin", &admin),
            ("--dead-letters", &letters.display().to_string()),
            ("--drain-timeout", DRAIN_TIMEOUT),
        ]);
        for window in ["--expiry-window", "--compaction-window"] {
            if flag_value(&setup.args.consumer_arg, window).is_none() {
                flags.extend([window, "never"].map(str::to_owned));
            }
        }
        if flag_value(&setup.args.consumer_arg, "--flush-interval").is_none() {
            let interval = setup.args.flush_interval_text();
            flags.extend(["--flush-interval", interval].map(str::to_owned));
        }
        for producer in setup.producers {
            flags.extend(["--producer".to_owned(), format!("http://{}", producer.grpc)]);
        }
        flags.extend(backend.consumer_flags());
        flags.extend(setup.args.consumer_arg.iter().cloned());
        let program = &setup.programs.consumer;
        let (program, flags) = match setup.network {
            Some(network) => network.inside(program, &flags),
            None => (program.clone(), flags),
        };
        let log = setup.dir.join(format!("{name}.log"));
        Ok(Self {
            process: Process::start(&name, &program, &flags, &log)?,
            name,
            admin,
            backend,
        })
    }
}

/// Command-line arguments of flags with their values.
pub(super) fn flags<const N: usize>(flags: [(&str, &str); N]) -> Vec<String> {
    flags
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value.to_owned()])
        .collect()
}
