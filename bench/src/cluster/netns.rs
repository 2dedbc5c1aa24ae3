//! A network of their own for exchange nodes, so that it can be cut as a real one is: by silence.
//!
//! Each node's consumer runs in a network namespace, with one virtual cable to this machine's own namespace. There, all
//! producers listen on one address that every cable leads to; the node has an address of its own. A cut drops the packets of some
//! TCP ports inside the node, in one direction or both: nobody is told that a connection is gone. Whatever else goes
//! over the cable, the admin port or a mongod's, is not touched.
//!
//! The addresses are from 198.18.0.0/15, which is set aside for benchmarks, and no other machine is reached through them.
//! Which of them are free is looked up under a lock that is held until they are taken, so that processes that make networks at once
//! share none.
//!
//! It needs root, `ip` and `nft`; [`missing`] says what there is not. What is made here is named after this process, and goes with
//! the [`Network`]; what a process left behind that was killed is swept up before the next is made.

use std::{
    fs::{self, File},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

/// Where `ip netns` keeps the names of namespaces.
const NAMES_DIR: &str = "/run/netns";

/// Locked while a network is made.
const LOCK_FILE: &str = "/run/cookiesync-bench.lock";

/// What the names of our namespaces begin with; the process id follows, and a number.
const NAME_PREFIX: &str = "cookiesync-bench-";

/// What the names of our cables begin with; at most 15 bytes with all that follows.
const CABLE_PREFIX: &str = "ckb";

const TABLE: &str = "cookiesync";

/// Tells apart what one process makes.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Which packets a cut drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// All.
    Both,
    /// Those to the node: it hears nothing, but is heard.
    ToNode,
    /// Those from the node: it hears, but nobody hears it.
    FromNode,
}

/// Namespaces of nodes, each with a cable to ours. Gone when dropped.
#[derive(Debug)]
pub struct Network {
    host: Ipv4Addr,
    nodes: Vec<Namespace>,
}

/// The network of one node.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    cable: String,
    address: Ipv4Addr,
}

/// Why no namespace can be had here, if so: found by making one.
#[must_use]
pub fn missing() -> Option<String> {
    let made = Network::create(1).and_then(|network| network.nodes[0].cut(Direction::Both, &[1]));
    made.err().map(|error| format!("{error:#}"))
}

impl Network {
    /// Makes a namespace for each of `nodes` nodes.
    ///
    /// # Errors
    /// When that may not be done here, or a program for it is not there.
    pub fn create(nodes: usize) -> Result<Self> {
        let lock = File::create(LOCK_FILE).with_context(|| format!("cannot make {LOCK_FILE}"))?;
        flock(&lock, FlockOperation::LockExclusive).context("cannot lock")?;
        sweep(Path::new(NAMES_DIR));
        let [a, b] = free_subnet()?;
        let host = Ipv4Addr::new(198, a, b, 1);
        let mut network = Self {
            host,
            nodes: Vec::new(),
        };
        for number in 0..nodes {
            let last = u8::try_from(number + 2).context("too many nodes for one network")?;
            let address = Ipv4Addr::new(198, a, b, last);
            // What was made of it up to an error goes with it.
            network.nodes.push(Namespace::named(address));
            network.nodes[number].make(host)?;
        }
        drop(lock);
        Ok(network)
    }

    /// The address that all nodes reach this machine at.
    #[must_use]
    pub fn host(&self) -> Ipv4Addr {
        self.host
    }

    /// In order of their numbers.
    #[must_use]
    pub fn nodes(&self) -> &[Namespace] {
        &self.nodes
    }
}

impl Namespace {
    fn named(address: Ipv4Addr) -> Self {
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        Self {
            name: format!("{NAME_PREFIX}{process}-{number}"),
            cable: format!("{CABLE_PREFIX}{process:x}-{number:x}"),
            address,
        }
    }

    fn make(&self, host: Ipv4Addr) -> Result<()> {
        let Self {
            name,
            cable,
            address,
        } = self;
        run("ip", &format!("netns add {name}"))?;
        run(
            "ip",
            &format!("link add {cable} type veth peer name eth0 netns {name}"),
        )?;
        run("ip", &format!("addr add {host} peer {address} dev {cable}"))?;
        run("ip", &format!("link set {cable} up"))?;
        let inside = format!("-n {name}");
        run("ip", &format!("{inside} link set lo up"))?;
        run(
            "ip",
            &format!("{inside} addr add {address} peer {host} dev eth0"),
        )?;
        run("ip", &format!("{inside} link set eth0 up"))?;
        self.nft(&format!("add table inet {TABLE}"))?;
        for hook in ["input", "output"] {
            let rule =
                format!("add chain inet {TABLE} {hook} {{ type filter hook {hook} priority 0 ; }}");
            self.nft(&rule)?;
        }
        Ok(())
    }

    /// The node's address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The program and its arguments that run `program` in here, under the same process id.
    #[must_use]
    pub fn inside(&self, program: &Path, args: &[String]) -> (PathBuf, Vec<String>) {
        let mut all = ["netns", "exec", &self.name].map(str::to_owned).to_vec();
        all.push(program.display().to_string());
        all.extend_from_slice(args);
        (PathBuf::from("ip"), all)
    }

    /// From now on drops the packets between the node and these ports on the other side.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn cut(&self, direction: Direction, ports: &[u16]) -> Result<()> {
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

    /// Ends all cuts.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn heal(&self) -> Result<()> {
        self.nft(&format!("flush table inet {TABLE}"))
    }

    fn nft(&self, what: &str) -> Result<()> {
        run("ip", &format!("netns exec {} nft {what}", self.name))
    }
}

impl Drop for Namespace {
    /// Whatever of it was made; an error says only that it was not.
    fn drop(&mut self) {
        remove(&self.name, &self.cable);
    }
}

/// Removes a namespace, ending what still runs in it, and its cable.
fn remove(name: &str, cable: &str) {
    for process in output("ip", &format!("netns pids {name}"))
        .unwrap_or_default()
        .split_ascii_whitespace()
    {
        // It has ended by itself, or does now.
        drop(run("kill", &format!("-KILL {process}")));
    }
    drop(run("ip", &format!("link del {cable}")));
    drop(run("ip", &format!("netns del {name}")));
}

/// Removes what processes left behind that are gone.
fn sweep(names: &Path) {
    for entry in fs::read_dir(names).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some((process, number)) = owner(&name)
            && !Path::new(&format!("/proc/{process}")).exists()
        {
            remove(&name, &format!("{CABLE_PREFIX}{process:x}-{number:x}"));
        }
    }
}

/// The process that made a namespace of ours, and the number it gave it.
fn owner(name: &str) -> Option<(u32, u32)> {
    let (process, number) = name.strip_prefix(NAME_PREFIX)?.split_once('-')?;
    Some((process.parse().ok()?, number.parse().ok()?))
}

/// The middle of a network that no interface has an address in.
fn free_subnet() -> Result<[u8; 2]> {
    let taken = output("ip", "-4 -o addr show")?;
    for _ in 0..100 {
        let [a, b] = [fastrand::u8(18..=19), fastrand::u8(..)];
        if !taken.contains(&format!(" 198.{a}.{b}.")) {
            return Ok([a, b]);
        }
    }
    bail!("all of 198.18.0.0/15 is taken");
}

fn run(program: &str, args: &str) -> Result<()> {
    output(program, args).map(drop)
}

fn output(program: &str, args: &str) -> Result<String> {
    let output = Command::new(program)
        .args(args.split_ascii_whitespace())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("there is no program {program}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {args}: {}", words.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Barrier, thread};

    use super::*;

    /// They all looked for a free one before any had taken it.
    #[test]
    fn networks_that_are_made_at_once_have_addresses_of_their_own() {
        if let Some(why) = missing() {
            return crate::tools::skip(format_args!("no network can be made here: {why}"));
        }
        const NETWORKS: usize = 4;
        let start = Barrier::new(NETWORKS);
        let make = || {
            // All draw the same numbers.
            fastrand::seed(1);
            start.wait();
            Network::create(1)
        };
        let networks = thread::scope(|scope| {
            let made: Vec<_> = (0..NETWORKS).map(|_| scope.spawn(make)).collect();
            let made = made.into_iter().map(|thread| thread.join().unwrap());
            made.collect::<Result<Vec<_>>>().unwrap()
        });
        let hosts: BTreeSet<_> = networks.iter().map(Network::host).collect();
        assert_eq!(hosts.len(), NETWORKS, "{networks:?}");
    }

    #[test]
    fn only_what_is_named_after_a_process_is_swept() {
        assert_eq!(owner("cookiesync-bench-4194304-7"), Some((4_194_304, 7)));
        assert_eq!(owner("cookiesync-bench-x-7"), None);
        assert_eq!(owner("cookiesync-bench-12"), None);
        assert_eq!(owner("another-12-7"), None);
    }

    #[test]
    fn cable_of_the_largest_process_id_has_a_name_that_fits() {
        let longest = format!("{CABLE_PREFIX}{:x}-{:x}", 4_194_304, 0xfff);
        assert!(longest.len() <= 15, "{longest}");
    }
}
