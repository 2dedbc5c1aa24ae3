//! One exchange node: a consumer and its store.

use std::path::Path;

use anyhow::Result;

use super::{args::ClusterArgs, backend::StoreBackend, netns::Namespace};
use crate::{
    producer::Producer,
    programs::{Process, flag_value, flags, free_address},
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

impl Node {
    /// Starts the consumer. Expiry and compaction are off unless configured, so that results do not depend on the time of day.
    /// `network` is the network namespace of the consumer; `None` for that of the host.
    pub(super) fn start(
        args: &ClusterArgs,
        number: usize,
        producers: &[Producer],
        program: &Path,
        dir: &Path,
        network: Option<&Namespace>,
        backend: StoreBackend,
    ) -> Result<Self> {
        let name = format!("node-{number}");
        let mut admin = free_address()?;
        if let Some(network) = network {
            admin.set_ip(network.address().into());
        }
        let admin = admin.to_string();
        let letters = dir.join(format!("{name}-dead-letters.jsonl"));
        let mut flags = flags([
            ("--name", &*name),
            ("--admin", &*admin),
            ("--dead-letters", &*letters.display().to_string()),
            ("--drain-timeout", DRAIN_TIMEOUT),
        ]);
        for window in ["--expiry-window", "--compaction-window"] {
            if flag_value(&args.consumer_arg, window).is_none() {
                flags.extend([window, "never"].map(str::to_owned));
            }
        }
        for producer in producers {
            flags.extend(["--producer".to_owned(), format!("http://{}", producer.grpc)]);
        }
        flags.extend(["--store".to_owned(), backend.flag()]);
        flags.extend(args.consumer_arg.iter().cloned());
        let (program, flags) = match network {
            Some(network) => network.inside(program, &flags),
            None => (program.to_owned(), flags),
        };
        let log = dir.join(format!("{name}.log"));
        Ok(Self {
            process: Process::start(&name, &program, &flags, &log)?,
            name,
            admin,
            backend,
        })
    }
}
