//! MongoDB servers that several tests use one after the other, because each start takes 0.6 s of CPU time, in which WiredTiger calibrates
//! its clock.

use std::{
    ops::{Deref, DerefMut},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use anyhow::{Context as _, Result};
use mongodb::{Client, bson::doc, options::ClientOptions};
use tempfile::TempDir;
use testkit::{mongod, programs::ServerProcess};

use crate::harness::{TIMEOUT, wait_until};

/// Servers that no test uses.
static FREE: Mutex<Vec<Server>> = Mutex::new(Vec::new());

/// Response timeout of a server that a test may have left paused or dead.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Databases of the server itself.
const SYSTEM: [&str; 3] = ["admin", "config", "local"];

struct Server {
    mongod: ServerProcess,
    args: Vec<String>,
    _cleaner: Child,
}

/// A server for one test at a time. Dropping this value frees the server for the next test.
pub(crate) struct SharedMongod {
    server: Option<Server>,
}

/// Starts a `mongod` with these arguments, or empties a running one that no test uses. Users and settings remain: a test that
/// changes them, or needs the data directory, must start a separate server.
pub(crate) async fn start_with(args: &[&str]) -> Result<SharedMongod> {
    while let Some(server) = free(args) {
        let emptied = empty(&server.mongod.uri()).await;
        if emptied.is_ok() {
            return Ok(SharedMongod {
                server: Some(server),
            });
        }
        println!("failed to empty a MongoDB server, using another: {emptied:?}");
    }
    let dir = TempDir::new()?.keep();
    // Statics are never dropped, so another process removes the servers once its standard input closes with this process.
    let cleaner = Command::new("sh")
        .args([
            "-c",
            "cat; kill -9 $(cat \"$0/data/mongod.lock\"); rm -rf \"$0\"",
        ])
        .arg(&dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .context("failed to start sh")?;
    let server = Server {
        mongod: mongod::start_with(&dir, args).await?,
        args: args.iter().map(ToString::to_string).collect(),
        _cleaner: cleaner,
    };
    Ok(SharedMongod {
        server: Some(server),
    })
}

/// [`start_with`] without arguments.
pub(crate) async fn start() -> Result<SharedMongod> {
    start_with(&[]).await
}

fn free(args: &[&str]) -> Option<Server> {
    let mut free = FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let found = free.iter().position(|server| server.args == args)?;
    Some(free.remove(found))
}

/// Waits until the connections of the previous test are closed, and drops its databases.
async fn empty(uri: &str) -> Result<()> {
    let name = "shared-mongod";
    let mut options = ClientOptions::parse(uri).await?;
    options.app_name = Some(name.to_owned());
    options.server_selection_timeout = Some(RESPONSE_TIMEOUT);
    let client = Client::with_options(options)?;
    let admin = client.database("admin");
    let others = doc! {
        "currentOp": 1, "$all": true, "client": { "$exists": true }, "appName": { "$ne": name },
    };
    wait_until(TIMEOUT, "the other connections are closed", async || {
        let answer = admin.run_command(others.clone()).await?;
        Ok(answer.get_array("inprog")?.is_empty())
    })
    .await?;
    for database in client.list_database_names().await? {
        if !SYSTEM.contains(&database.as_str()) {
            client.database(&database).drop().await?;
        }
    }
    // Makes the drop durable: dropped data must not return after a kill.
    admin.run_command(doc! { "fsync": 1 }).await?;
    Ok(())
}

impl Deref for SharedMongod {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.server.as_ref().expect("present until dropped").mongod
    }
}

impl DerefMut for SharedMongod {
    fn deref_mut(&mut self) -> &mut ServerProcess {
        &mut self.server.as_mut().expect("present until dropped").mongod
    }
}

impl Drop for SharedMongod {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        free.extend(self.server.take());
    }
}
