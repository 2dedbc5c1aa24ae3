//! One exchange node: a consumer and its store.

use std::path::Path;

use anyhow::Result;

use super::{ClusterArgs, DRAIN_TIMEOUT, StoreBackend, flags, netns::Namespace};
use crate::{
    producer::Producer,
    programs::{Process, Programs, flag_value, free_address},
};

/// A consumer and its store.
#[derive(Debug)]
pub struct Node {
    /// The consumer's name on every producer.
    pub name: String,
    /// The consumer.
    pub process: Process,
    /// Address of its admin port.
    pub admin: String,
    /// Its store.
    pub backend: StoreBackend,
}

/// What a consumer is started with.
pub(super) struct Start<'a> {
    pub(super) args: &'a ClusterArgs,
    pub(super) number: usize,
    pub(super) producers: &'a [Producer],
    pub(super) programs: &'a Programs,
    pub(super) dir: &'a Path,
    /// Where its consumer runs, if not beside everything else.
    pub(super) network: Option<&'a Namespace>,
}

impl Node {
    /// Compaction and expiry are left out unless they are asked for: a run at night would be another.
    pub(super) fn start(start: &Start<'_>, backend: StoreBackend) -> Result<Self> {
        let name = format!("node-{}", start.number);
        let mut admin = free_address()?;
        if let Some(network) = start.network {
            admin.set_ip(network.address().into());
        }
        let admin = admin.to_string();
        let letters = start.dir.join(format!("{name}-dead-letters.jsonl"));
        let mut flags = flags([
            ("--name", &name),
            ("--admin", &admin),
            ("--dead-letters", &letters.display().to_string()),
            ("--drain-timeout", DRAIN_TIMEOUT),
        ]);
        for window in ["--expiry-window", "--compaction-window"] {
            if flag_value(&start.args.consumer_arg, window).is_none() {
                flags.extend([window, "never"].map(str::to_owned));
            }
        }
        if flag_value(&start.args.consumer_arg, "--flush-interval").is_none() {
            let interval = start.args.flush_interval_text();
            flags.extend(["--flush-interval", interval].map(str::to_owned));
        }
        for producer in start.producers {
            flags.extend(["--producer".to_owned(), format!("http://{}", producer.grpc)]);
        }
        flags.extend(backend.consumer_flags());
        flags.extend(start.args.consumer_arg.iter().cloned());
        let program = &start.programs.consumer;
        let (program, flags) = match start.network {
            Some(network) => network.inside(program, &flags),
            None => (program.clone(), flags),
        };
        let log = start.dir.join(format!("{name}.log"));
        Ok(Self {
            process: Process::start(&name, &program, &flags, &log)?,
            name,
            admin,
            backend,
        })
    }
}
