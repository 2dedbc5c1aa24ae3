//! Network namespaces for nodes, in which a node can be partitioned from the producers.
//!
//! Each consumer runs in its own namespace, connected to the host by a veth pair. All producers listen on one host address; each node has
//! its own address. During a partition, the namespace drops the packets of some TCP ports, in one direction or both, without closing
//! connections. Other traffic (admin ports, mongod) is not affected.
//!
//! Addresses are from 198.18.0.0/15, which is reserved for benchmarks and not routed. A lock file is held while free addresses
//! are chosen and assigned, so that concurrent processes choose different ones.
//!
//! Requires root, `ip` and `nft`; see [`unavailable_reason`]. All names contain the id of this process. Dropping the [`Network`] removes
//! its namespaces. Namespaces of killed processes are removed before new ones are created.

use std::{
    fs::{self, File},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result, bail};

/// Directory in which `ip netns` keeps the names of namespaces.
const NAMES_DIR: &str = "/run/netns";

/// Locked while a network is created.
const LOCK_FILE: &str = "/run/cookiesync-bench.lock";

/// Prefix of namespace names; the process id and a number follow.
const NAME_PREFIX: &str = "cookiesync-bench-";

/// Prefix of host interface names, which have up to 15 bytes in total.
const INTERFACE_PREFIX: &str = "ckb";

const TABLE: &str = "cookiesync";

/// Number of namespaces created by this process.
static CREATED: AtomicU32 = AtomicU32::new(0);

/// Direction of the packets that a partition drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// All packets.
    Both,
    /// Packets to the node.
    ToNode,
    /// Packets from the node.
    FromNode,
}

/// Namespaces of all nodes; removed on drop.
#[derive(Debug)]
pub struct Network {
    host: Ipv4Addr,
    nodes: Vec<Namespace>,
}

/// Network namespace of one node.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    interface: String,
    address: Ipv4Addr,
}

/// The reason why namespaces are unavailable, found by trying to create one; `None` if they are available.
pub fn unavailable_reason() -> Option<String> {
    let created = Network::create(1);
    let partitioned = created.and_then(|network| network.nodes[0].partition(Direction::Both, &[1]));
    partitioned.err().map(|error| format!("{error:#}"))
}

impl Network {
    /// Creates a namespace for each of `nodes` nodes.
    ///
    /// # Errors
    /// Root privileges or a program are missing.
    pub fn create(nodes: usize) -> Result<Self> {
        let lock =
            File::create(LOCK_FILE).with_context(|| format!("failed to create {LOCK_FILE}"))?;
        lock.lock().context("failed to lock the lock file")?;
        remove_stale(Path::new(NAMES_DIR));
        let [a, b] = free_subnet()?;
        let host = Ipv4Addr::new(198, a, b, 1);
        let mut network = Self {
            host,
            nodes: Vec::new(),
        };
        for number in 0..nodes {
            let last = u8::try_from(number + 2).context("too many nodes for one network")?;
            let address = Ipv4Addr::new(198, a, b, last);
            // Stored first, so that dropping it removes a partly created namespace.
            network.nodes.push(Namespace::named(address));
            network.nodes[number].create(host)?;
        }
        drop(lock);
        Ok(network)
    }

    /// Address of this machine for all nodes.
    pub fn host(&self) -> Ipv4Addr {
        self.host
    }

    /// Namespaces by node number.
    pub fn nodes(&self) -> &[Namespace] {
        &self.nodes
    }
}

impl Namespace {
    fn named(address: Ipv4Addr) -> Self {
        let (process, number) = (std::process::id(), CREATED.fetch_add(1, Ordering::Relaxed));
        Self {
            name: format!("{NAME_PREFIX}{process}-{number}"),
            interface: format!("{INTERFACE_PREFIX}{process:x}-{number:x}"),
            address,
        }
    }

    fn create(&self, host: Ipv4Addr) -> Result<()> {
        let Self {
            name,
            interface,
            address,
        } = self;
        for command in [
            format!("netns add {name}"),
            format!("link add {interface} type veth peer name eth0 netns {name}"),
            format!("addr add {host} peer {address} dev {interface}"),
            format!("link set {interface} up"),
            format!("-n {name} link set lo up"),
            format!("-n {name} addr add {address} peer {host} dev eth0"),
            format!("-n {name} link set eth0 up"),
        ] {
            run("ip", &command)?;
        }
        self.nft(&format!("add table inet {TABLE}"))?;
        for hook in ["input", "output"] {
            let rule =
                format!("add chain inet {TABLE} {hook} {{ type filter hook {hook} priority 0 ; }}");
            self.nft(&rule)?;
        }
        Ok(())
    }

    /// Address of the node.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Program and arguments that run `program` in this namespace, with the same process id.
    pub fn inside(&self, program: &Path, args: &[String]) -> (PathBuf, Vec<String>) {
        let mut all = ["netns", "exec", &self.name].map(str::to_owned).to_vec();
        all.push(program.display().to_string());
        all.extend_from_slice(args);
        (PathBuf::from("ip"), all)
    }

    /// Starts dropping packets between the node and these host ports.
    ///
    /// # Errors
    /// `nft` failed.
    pub fn partition(&self, direction: Direction, ports: &[u16]) -> Result<()> {
        let ports: Vec<_> = ports.iter().map(ToString::to_string).collect();
        let ports = ports.join(", ");
        if direction != Direction::FromNode {
            self.nft(&format!(
                "add rule inet {TABLE} input tcp sport {{ {ports} }} drop"
            ))?;
        }
        if direction != Direction::ToNode {
            self.nft(&format!(
                "add rule inet {TABLE} output tcp dport {{ {ports} }} drop"
            ))?;
        }
        Ok(())
    }

    /// Ends all partitions.
    ///
    /// # Errors
    /// `nft` failed.
    pub fn heal(&self) -> Result<()> {
        self.nft(&format!("flush table inet {TABLE}"))
    }

    fn nft(&self, command: &str) -> Result<()> {
        run("ip", &format!("netns exec {} nft {command}", self.name))
    }
}

impl Drop for Namespace {
    /// Removes the parts that were created; errors about missing parts are expected.
    fn drop(&mut self) {
        remove(&self.name, &self.interface);
    }
}

/// Kills the processes in a namespace, and removes it and its host interface.
fn remove(name: &str, interface: &str) {
    for process in output("ip", &format!("netns pids {name}"))
        .unwrap_or_default()
        .split_ascii_whitespace()
    {
        // The process may have exited.
        drop(run("kill", &format!("-KILL {process}")));
    }
    drop(run("ip", &format!("link del {interface}")));
    drop(run("ip", &format!("netns del {name}")));
}

/// Removes namespaces of processes that no longer run.
fn remove_stale(names: &Path) {
    for entry in fs::read_dir(names).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some((process, number)) = owner(&name)
            && !Path::new(&format!("/proc/{process}")).exists()
        {
            remove(&name, &format!("{INTERFACE_PREFIX}{process:x}-{number:x}"));
        }
    }
}

/// Process id and number in the name of one of our namespaces.
fn owner(name: &str) -> Option<(u32, u32)> {
    let (process, number) = name.strip_prefix(NAME_PREFIX)?.split_once('-')?;
    Some((process.parse().ok()?, number.parse().ok()?))
}

/// The middle bytes of a /24 network without addresses on this machine.
fn free_subnet() -> Result<[u8; 2]> {
    let used = output("ip", "-4 -o addr show")?;
    for _ in 0..100 {
        let [a, b] = [fastrand::u8(18..=19), fastrand::u8(..)];
        if !used.contains(&format!(" 198.{a}.{b}.")) {
            return Ok([a, b]);
        }
    }
    bail!("no free /24 network found in 198.18.0.0/15");
}

fn run(program: &str, args: &str) -> Result<()> {
    output(program, args).map(drop)
}

fn output(program: &str, args: &str) -> Result<String> {
    let output = Command::new(program)
        .args(args.split_ascii_whitespace())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("failed to run {program}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {args}: {}", stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Barrier, thread};

    use super::*;

    #[test]
    fn concurrent_networks_have_different_addresses() {
        if let Some(reason) = unavailable_reason() {
            return crate::tools::skip(format_args!(
                "network namespaces are unavailable: {reason}"
            ));
        }
        const NETWORKS: usize = 4;
        let start = Barrier::new(NETWORKS);
        let create = || {
            // All threads draw the same numbers.
            fastrand::seed(1);
            start.wait();
            Network::create(1)
        };
        let networks = thread::scope(|scope| {
            let threads: Vec<_> = (0..NETWORKS).map(|_| scope.spawn(create)).collect();
            let networks = threads.into_iter().map(|thread| thread.join().unwrap());
            networks.collect::<Result<Vec<_>>>().unwrap()
        });
        let hosts: BTreeSet<_> = networks.iter().map(Network::host).collect();
        assert_eq!(hosts.len(), NETWORKS, "{networks:?}");
    }

    #[test]
    fn owner_is_read_from_our_names_only() {
        assert_eq!(owner("cookiesync-bench-4194304-7"), Some((4_194_304, 7)));
        assert_eq!(owner("cookiesync-bench-x-7"), None);
        assert_eq!(owner("cookiesync-bench-12"), None);
        assert_eq!(owner("another-12-7"), None);
    }

    #[test]
    fn interface_name_of_the_largest_process_id_fits() {
        let longest = format!("{INTERFACE_PREFIX}{:x}-{:x}", 4_194_304, 0xfff);
        assert!(longest.len() <= 15, "{longest}");
    }
}
