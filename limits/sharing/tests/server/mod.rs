//! A real server for a test: `redis-server`, or what `REDIS_SERVER` names. It keeps nothing on disk.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use limits_sharing::Address;
use redis::aio::MultiplexedConnection;

/// A server; killed when dropped.
pub(crate) struct Server {
    address: SocketAddr,
    child: Child,
}

impl Server {
    /// Starts one; none when there is no program, which is said.
    pub(crate) async fn start() -> Option<Self> {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("it is bound");
        drop(free);
        let Some(child) = spawn(address) else {
            eprintln!("skipped: there is no redis-server, and REDIS_SERVER names no other");
            return None;
        };
        let server = Self { address, child };
        server.connect().await;
        Some(server)
    }

    /// Where it is.
    pub(crate) fn address(&self) -> Address {
        Address::parse(&format!("redis://{}", self.address)).expect("an address")
    }

    /// A connection, as soon as one can be had.
    pub(crate) async fn connect(&self) -> MultiplexedConnection {
        let deadline = Instant::now() + Duration::from_secs(30);
        let client = redis::Client::open(format!("redis://{}", self.address)).expect("an address");
        loop {
            match client.get_multiplexed_async_connection().await {
                Ok(connection) => return connection,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills it, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Starts it again, empty.
    pub(crate) async fn restart(&mut self) {
        self.child = spawn(self.address).expect("it was there");
        self.connect().await;
    }

    /// Stops it for so long, as a machine does that swaps.
    pub(crate) async fn pause(&self, time: Duration) {
        self.signal("STOP");
        tokio::time::sleep(time).await;
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let kill = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(kill.expect("kill runs").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn spawn(address: SocketAddr) -> Option<Child> {
    let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let mut command = Command::new(program);
    command.args([
        "--bind",
        &ip,
        "--port",
        &port,
        "--save",
        "",
        "--appendonly",
        "no",
    ]);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()
}
