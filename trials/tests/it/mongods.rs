//! Starts MongoDBs as operators have them: replica sets, with users, with TLS; and makes them fail.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use bench::mongod::Mongod;
use mongodb::{
    Client,
    bson::{Bson, Document, doc},
};
use tempfile::TempDir;

use crate::harness::{TIMEOUT, wait_until};

/// Runs a command in the database `admin`.
pub(crate) async fn command(uri: &str, command: Document) -> Result<Document> {
    let client = Client::with_uri_str(uri).await?;
    let what = format!("{command} at {uri}");
    let answer = client.database("admin").run_command(command).await;
    answer.context(what)
}

/// The connection string that leads to one server only, whatever it is.
pub(crate) fn direct(address: SocketAddr) -> String {
    format!("mongodb://{address}/?directConnection=true")
}

/// A `mongod` that can be made to fail.
pub(crate) async fn failing(dir: &TempDir) -> Result<Mongod> {
    let more = ["--setParameter", "enableTestCommands=1"];
    Mongod::start_with(&dir.path().join("mongod"), &more).await
}

/// Makes every `insert` and `update`, or other `failCommands`, fail in this way.
pub(crate) async fn fail(mongod: &Mongod, how: Document) -> Result<()> {
    let mut data = doc! { "failCommands": ["insert", "update"] };
    data.extend(how);
    let point = doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data };
    command(&mongod.uri(), point).await.map(drop)
}

/// Ends what [`fail`] began.
pub(crate) async fn heal(mongod: &Mongod) -> Result<()> {
    let point = doc! { "configureFailPoint": "failCommand", "mode": "off" };
    command(&mongod.uri(), point).await.map(drop)
}

/// The first user of a server that asks for one (over loopback, it may then still be made).
pub(crate) async fn create_root(uri: &str, name: &str, password: &str) -> Result<()> {
    create_user(uri, name, password, "root").await
}

pub(crate) async fn create_user(uri: &str, name: &str, password: &str, role: &str) -> Result<()> {
    let user = doc! { "createUser": name, "pwd": password, "roles": [role] };
    command(uri, user).await.map(drop)
}

/// Some `mongod` of one replica set that elects fast.
pub(crate) struct ReplicaSet {
    pub(crate) members: Vec<Mongod>,
}

impl ReplicaSet {
    pub(crate) async fn start(dir: &Path, members: usize) -> Result<Self> {
        Self::start_with(dir, members, &[]).await
    }

    /// The same with further arguments for each.
    pub(crate) async fn start_with(dir: &Path, members: usize, more: &[&str]) -> Result<Self> {
        let args = [&["--replSet", "rs", "--oplogSize", "100"], more].concat();
        let mut started = Vec::new();
        for number in 0..members {
            let dir = dir.join(format!("member-{number}"));
            started.push(Mongod::start_with(&dir, &args).await?);
        }
        let hosts = (0..)
            .zip(&started)
            .map(|(id, mongod): (i32, _)| doc! { "_id": id, "host": mongod.address().to_string() });
        let config = doc! {
            "_id": "rs",
            "members": hosts.map(Bson::from).collect::<Vec<_>>(),
            "settings": { "electionTimeoutMillis": 1_000, "heartbeatIntervalMillis": 200 },
        };
        let first = direct(started[0].address());
        command(&first, doc! { "replSetInitiate": config }).await?;
        let set = Self { members: started };
        set.wait_primary().await?;
        Ok(set)
    }

    pub(crate) fn uri(&self) -> String {
        let hosts: Vec<_> = self
            .members
            .iter()
            .map(|m| m.address().to_string())
            .collect();
        format!("mongodb://{}/?replicaSet=rs", hosts.join(","))
    }

    /// Waits until there is a primary; its place among the members.
    pub(crate) async fn wait_primary(&self) -> Result<usize> {
        wait_until(TIMEOUT, "there is a primary", async || {
            Ok(self.primary().await.is_some())
        })
        .await?;
        self.primary().await.context("the primary is gone again")
    }

    async fn primary(&self) -> Option<usize> {
        for (place, member) in self.members.iter().enumerate() {
            // One that was killed does not answer, nor soon.
            let uri = format!("{}&serverSelectionTimeoutMS=500", direct(member.address()));
            let answer = command(&uri, doc! { "hello": 1 }).await;
            if answer.is_ok_and(|answer| answer.get_bool("isWritablePrimary").unwrap_or(false)) {
                return Some(place);
            }
        }
        None
    }

    /// Makes the primary give way to another member.
    pub(crate) async fn step_down(&self) -> Result<()> {
        let primary = self.wait_primary().await?;
        let uri = direct(self.members[primary].address());
        // A member that lags too far behind is refused as its successor, for a moment.
        wait_until(TIMEOUT, "the primary steps down", async || {
            let step_down = doc! { "replSetStepDown": 30, "secondaryCatchUpPeriodSecs": 10 };
            Ok(command(&uri, step_down).await.is_ok())
        })
        .await?;
        ensure!(self.wait_primary().await? != primary, "nobody took over");
        Ok(())
    }
}

/// Longer than the consumer waits before it calls a store failing.
pub(crate) const SLOW: Duration = Duration::from_secs(7);
