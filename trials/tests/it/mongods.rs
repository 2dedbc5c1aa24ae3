//! Starts MongoDB servers for tests: with fail points, with users, and as replica sets.

pub(crate) mod router;
pub(crate) mod shared;

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use mongodb::{
    Client,
    bson::{Bson, Document, doc},
};
use tempfile::TempDir;
use testkit::{mongod, programs::ServerProcess};

use crate::harness::{TIMEOUT, wait_until};

/// Runs a command in the database `admin`.
pub(crate) async fn command(uri: &str, command: Document) -> Result<Document> {
    let client = Client::with_uri_str(uri).await?;
    let what = format!("{command} at {uri}");
    let answer = client.database("admin").run_command(command).await;
    answer.context(what)
}

/// Connection string for exactly one server, in any role.
pub(crate) fn direct(address: SocketAddr) -> String {
    format!("mongodb://{address}/?directConnection=true")
}

/// Starts a `mongod` that supports fail points.
pub(crate) async fn start_failable(dir: &TempDir) -> Result<ServerProcess> {
    let more = ["--setParameter", "enableTestCommands=1"];
    mongod::start_with(&dir.path().join("mongod"), &more).await
}

/// Makes every `insert` and `update`, or the `failCommands` in `failure`, fail as `failure` specifies.
pub(crate) async fn set_failpoint(mongod: &ServerProcess, failure: Document) -> Result<()> {
    let mut data = doc! { "failCommands": ["insert", "update"] };
    data.extend(failure);
    let point = doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data };
    command(&mongod.uri(), point).await.map(drop)
}

/// Disables the fail point of [`set_failpoint`].
pub(crate) async fn clear_failpoint(mongod: &ServerProcess) -> Result<()> {
    let point = doc! { "configureFailPoint": "failCommand", "mode": "off" };
    command(&mongod.uri(), point).await.map(drop)
}

/// Creates the first user of a server with `--auth`, which allows that from loopback.
pub(crate) async fn create_root(uri: &str, name: &str, password: &str) -> Result<()> {
    create_user(uri, name, password, "root").await
}

pub(crate) async fn create_user(uri: &str, name: &str, password: &str, role: &str) -> Result<()> {
    let user = doc! { "createUser": name, "pwd": password, "roles": [role] };
    command(uri, user).await.map(drop)
}

/// A replica set with a short election timeout.
pub(crate) struct ReplicaSet {
    pub(crate) members: Vec<ServerProcess>,
}

impl ReplicaSet {
    pub(crate) async fn start(dir: &Path, members: usize) -> Result<Self> {
        Self::start_with(dir, members, &[]).await
    }

    /// Like [`start`](Self::start), with more arguments for each member.
    pub(crate) async fn start_with(dir: &Path, members: usize, more: &[&str]) -> Result<Self> {
        let args = [&["--replSet", "rs", "--oplogSize", "100"], more].concat();
        let mut started = Vec::new();
        for number in 0..members {
            let dir = dir.join(format!("member-{number}"));
            started.push(mongod::start_with(&dir, &args).await?);
        }
        let hosts = (0..)
            .zip(&started)
            .map(|(id, mongod): (i32, _)| doc! { "_id": id, "host": mongod.address.to_string() });
        let config = doc! {
            "_id": "rs",
            "members": hosts.map(Bson::from).collect::<Vec<_>>(),
            "settings": { "electionTimeoutMillis": 1_000, "heartbeatIntervalMillis": 200 },
        };
        let first = direct(started[0].address);
        command(&first, doc! { "replSetInitiate": config }).await?;
        let set = Self { members: started };
        set.wait_primary().await?;
        Ok(set)
    }

    pub(crate) fn uri(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(|m| m.address.to_string()).collect();
        format!("mongodb://{}/?replicaSet=rs", hosts.join(","))
    }

    /// Waits until there is a primary and returns its index in `members`.
    pub(crate) async fn wait_primary(&self) -> Result<usize> {
        wait_until(TIMEOUT, "there is a primary", async || {
            Ok(self.primary().await.is_some())
        })
        .await?;
        self.primary()
            .await
            .context("the primary stepped down again")
    }

    async fn primary(&self) -> Option<usize> {
        for (index, member) in self.members.iter().enumerate() {
            // A killed member does not respond.
            let uri = format!("{}&serverSelectionTimeoutMS=500", direct(member.address));
            let answer = command(&uri, doc! { "hello": 1 }).await;
            if answer.is_ok_and(|answer| answer.get_bool("isWritablePrimary").unwrap_or(false)) {
                return Some(index);
            }
        }
        None
    }

    /// Makes the primary step down and waits until another member is elected.
    pub(crate) async fn step_down(&self) -> Result<()> {
        let primary = self.wait_primary().await?;
        let uri = direct(self.members[primary].address);
        // The command fails while no other member is up to date.
        wait_until(TIMEOUT, "the primary steps down", async || {
            let step_down = doc! { "replSetStepDown": 30, "secondaryCatchUpPeriodSecs": 10 };
            Ok(command(&uri, step_down).await.is_ok())
        })
        .await?;
        ensure!(
            self.wait_primary().await? != primary,
            "the old primary was elected again"
        );
        Ok(())
    }
}

/// Longer than the consumer waits before it reports a store as not responding.
pub(crate) const SLOW: Duration = Duration::from_secs(7);
