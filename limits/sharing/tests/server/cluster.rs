//! A cluster of three primaries with a replica of one of them.

use redis::Value;

use super::{Server, free_port, until};

/// Number of primaries.
const PRIMARIES: usize = 3;

/// First hash slot of each primary, and the end of the last.
const SLOTS: [u16; PRIMARIES + 1] = [0, 5461, 10923, 16384];

/// The primaries, and a replica of the one that has the group.
pub(crate) struct Cluster {
    nodes: Vec<Server>,
    group: &'static str,
}

impl Cluster {
    /// Starts a cluster whose last node is a replica of the primary of this group; `None` without a server program.
    pub(crate) async fn start(group: &'static str) -> Option<Self> {
        let mut nodes = Vec::new();
        let mut buses = Vec::new();
        for _ in 0..=PRIMARIES {
            let bus = free_port().to_string();
            let options = [
                ["--cluster-enabled", "yes"],
                ["--cluster-port", &bus],
                ["--cluster-node-timeout", "2000"],
                ["--cluster-require-full-coverage", "no"],
                ["--repl-diskless-sync-delay", "0"],
            ];
            nodes.push(Server::start_with(options.as_flattened()).await?);
            buses.push(bus);
        }
        let cluster = Self { nodes, group };
        cluster.meet(&buses).await;
        Some(cluster)
    }

    async fn meet(&self, buses: &[String]) {
        for (number, node) in self.nodes.iter().enumerate() {
            let epoch = number + 1;
            let _: Value = node.ask(&format!("cluster set-config-epoch {epoch}")).await;
            if let Some([first, next]) = SLOTS.get(number..number + 2) {
                let last = next - 1;
                let _: Value = node
                    .ask(&format!("cluster addslotsrange {first} {last}"))
                    .await;
            }
            if number == 0 {
                continue;
            }
            let (port, bus) = (node.socket().port(), &buses[number]);
            let meet = format!("cluster meet 127.0.0.1 {port} {bus}");
            let _: Value = self.nodes[0].ask(&meet).await;
        }
        for node in &self.nodes {
            until("all nodes know each other", async || {
                let info: String = node.ask("cluster info").await;
                let known = format!("cluster_known_nodes:{}", self.nodes.len());
                info.contains("cluster_state:ok") && info.contains(&known)
            })
            .await;
        }
        let primary: String = self.nodes[self.owner().await].ask("cluster myid").await;
        let replica = &self.nodes[PRIMARIES];
        let _: Value = replica.ask(&format!("cluster replicate {primary}")).await;
        until("the replica is in sync", async || {
            let info: String = replica.ask("info replication").await;
            info.contains("master_link_status:up")
        })
        .await;
    }

    /// A node.
    pub(crate) fn node(&self, number: usize) -> &Server {
        &self.nodes[number]
    }

    /// The primaries.
    pub(crate) fn primaries(&self) -> &[Server] {
        &self.nodes[..PRIMARIES]
    }

    /// Index of the node that has the group.
    pub(crate) async fn owner(&self) -> usize {
        for (number, node) in self.nodes.iter().enumerate() {
            let mine = node
                .try_ask::<Value>(&format!("del {{{}}}", self.group))
                .await;
            if mine.is_ok() {
                return number;
            }
        }
        panic!("no node has the group")
    }

    /// Migrates the group's hash slot with its keys to another node.
    pub(crate) async fn move_group_to(&self, number: usize) {
        let owner = self.owner().await;
        let (from, to) = (&self.nodes[owner], &self.nodes[number]);
        let slot: u16 = from
            .ask(&format!("cluster keyslot {{{}}}", self.group))
            .await;
        let from_id: String = from.ask("cluster myid").await;
        let to_id: String = to.ask("cluster myid").await;
        let _: Value = to
            .ask(&format!("cluster setslot {slot} importing {from_id}"))
            .await;
        let _: Value = from
            .ask(&format!("cluster setslot {slot} migrating {to_id}"))
            .await;
        loop {
            let keys: Vec<String> = from.ask(&format!("cluster getkeysinslot {slot} 100")).await;
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let port = to.socket().port();
                let _: Value = from
                    .ask(&format!("migrate 127.0.0.1 {port} {key} 0 10000"))
                    .await;
            }
        }
        for node in [to, from].into_iter().chain(self.primaries()) {
            let _: Value = node
                .ask(&format!("cluster setslot {slot} node {to_id}"))
                .await;
        }
    }

    /// Kills the node of the group, and promotes its replica.
    pub(crate) async fn fail_over(&mut self) {
        let owner = self.owner().await;
        self.nodes[owner].kill();
        let replica = self.nodes.remove(PRIMARIES);
        let _: Value = replica.ask("cluster failover takeover").await;
        self.nodes[owner] = replica;
        until("the other nodes know the new primary", async || {
            let other = &self.nodes[(owner + 1) % PRIMARIES];
            let reply = other
                .try_ask::<Value>(&format!("del {{{}}}", self.group))
                .await;
            let node = reply
                .err()
                .and_then(|it| Some(it.redirect_node()?.0.to_owned()));
            node == Some(self.nodes[owner].socket().to_string())
        })
        .await;
    }
}
