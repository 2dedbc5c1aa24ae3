//! Real servers for tests: `redis-server`, or the program in `REDIS_SERVER`, such as `valkey-server`, without persistence.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod proxy;

use std::{
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use limits_sharing::Address;
use redis::{AsyncConnectionConfig, FromRedisValue, RedisResult, aio::MultiplexedConnection};
use tempfile::TempDir;
use testkit::tools::redis_server_or_skip;

/// A server; killed when dropped.
pub(crate) struct Server {
    address: SocketAddr,
    options: Vec<String>,
    child: Child,
    /// Working directory; a replica writes a file.
    dir: TempDir,
}

impl Server {
    /// Starts a server. Without a server program, skips the test and returns `None`.
    pub(crate) async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    /// Starts a server with additional options.
    pub(crate) async fn start_with(options: &[&str]) -> Option<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let options: Vec<_> = options.iter().map(|it| (*it).to_owned()).collect();
        let dir = TempDir::new().expect("a directory");
        let child = spawn(address, &dir, &options)?;
        let server = Self {
            address,
            options,
            child,
            dir,
        };
        server.connect().await;
        Some(server)
    }

    /// Its address.
    pub(crate) fn address(&self) -> Address {
        Address::parse(&format!("redis://{}", self.address)).expect("an address")
    }

    /// Its socket address.
    pub(crate) fn socket(&self) -> SocketAddr {
        self.address
    }

    /// Connects, with retries.
    pub(crate) async fn connect(&self) -> MultiplexedConnection {
        let deadline = Instant::now() + Duration::from_secs(30);
        let client = redis::Client::open(format!("redis://{}", self.address)).expect("an address");
        loop {
            // A busy machine may need longer than the default of half a second.
            let config =
                AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(30)));
            let connecting = client.get_multiplexed_async_connection_with_config(&config);
            match connecting.await {
                Ok(connection) => return connection,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Runs a command, given as words.
    pub(crate) async fn try_ask<T: FromRedisValue>(&self, words: &str) -> RedisResult<T> {
        let mut command = redis::Cmd::new();
        for word in words.split_whitespace() {
            command.arg(word);
        }
        command.query_async(&mut self.connect().await).await
    }

    /// Runs a command that must succeed.
    pub(crate) async fn ask<T: FromRedisValue>(&self, words: &str) -> T {
        let answer = self.try_ask(words).await;
        answer.unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    /// Kills it, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Restarts it without data.
    pub(crate) async fn restart(&mut self) {
        self.child = spawn(self.address, &self.dir, &self.options).expect("it was there");
        self.connect().await;
    }

    /// Suspends it for a time, like a stalled machine.
    pub(crate) async fn pause(&self, time: Duration) {
        self.signal("STOP");
        tokio::time::sleep(time).await;
        self.signal("CONT");
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
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

/// A free port.
pub(crate) fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    free.local_addr().expect("it is bound").port()
}

/// Waits until a condition holds, with a deadline for slow machines.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn spawn(address: SocketAddr, dir: &TempDir, options: &[String]) -> Option<Child> {
    let program = redis_server_or_skip()?;
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let mut command = Command::new(program);
    command.args(["--bind", &ip, "--port", &port]);
    command.args(["--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(dir.path());
    command
        .args(options)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(Some)
        .expect("it can be started")
}
