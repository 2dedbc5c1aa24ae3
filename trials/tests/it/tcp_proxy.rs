//! A TCP proxy for tests, which can close all connections and refuse new ones, or deliver one message late.

use anyhow::{Context, Result, ensure};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use testkit::programs::free_address;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::harness::{TIMEOUT, wait_until, within_timeout};

/// Forwards connections to a server until it is disconnected.
pub(crate) struct TcpProxy {
    address: SocketAddr,
    server: String,
    forwarding: JoinSet<()>,
    delay: Arc<Mutex<Delay>>,
}

/// The message that is delivered late.
#[derive(Default)]
enum Delay {
    #[default]
    None,
    /// The next message that contains all of these parts.
    Next(Vec<&'static [u8]>),
    /// This message, on the connection on which the server expects it.
    Held(TcpStream, Vec<u8>),
}

impl TcpProxy {
    pub(crate) async fn to(server: &str) -> Result<Self> {
        let mut proxy = Self {
            address: free_address()?,
            server: server.to_owned(),
            forwarding: JoinSet::new(),
            delay: Arc::default(),
        };
        proxy.reconnect().await?;
        Ok(proxy)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Holds back the next message of a client that contains all of `parts`, and closes the connection to the client.
    pub(crate) fn hold_next(&self, parts: &[&'static [u8]]) {
        *lock(&self.delay) = Delay::Next(parts.to_vec());
    }

    /// Waits until a message is held back, delivers it, and waits for the response of the server.
    pub(crate) async fn deliver(&self) -> Result<()> {
        wait_until(TIMEOUT, "a message is held back", async || {
            Ok(matches!(*lock(&self.delay), Delay::Held(..)))
        })
        .await?;
        let held = std::mem::take(&mut *lock(&self.delay));
        let Delay::Held(mut server, message) = held else {
            unreachable!("only this function delivers");
        };
        server.write_all(&message).await?;
        let mut response = [0; 64];
        let read = within_timeout("a response", server.read(&mut response)).await??;
        ensure!(read > 0, "the server closed the connection");
        Ok(())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Closes all connections and refuses new ones.
    pub(crate) async fn disconnect(&mut self) {
        self.forwarding.shutdown().await;
    }

    /// Accepts connections again.
    pub(crate) async fn reconnect(&mut self) -> Result<()> {
        let listener = TcpListener::bind(self.address)
            .await
            .context("the address of the proxy is in use")?;
        let (server, delay) = (self.server.clone(), Arc::clone(&self.delay));
        self.forwarding.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else {
                    continue;
                };
                connections.spawn(forward(client, server, Arc::clone(&delay)));
            }
        });
        Ok(())
    }
}

/// Forwards both directions until the client or server closes the connection, or a message is to be held back.
async fn forward(mut client: TcpStream, mut server: TcpStream, delay: Arc<Mutex<Delay>>) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let mut bytes = vec![0; 64 << 10];
    let requests = async {
        loop {
            let Ok(count @ 1..) = from_client.read(&mut bytes).await else {
                return None;
            };
            let message = &bytes[..count];
            if lock(&delay).concerns(message) {
                return Some(message.to_vec());
            }
            to_server.write_all(message).await.ok()?;
        }
    };
    let held = tokio::select! {
        held = requests => held,
        _ = copy(&mut from_server, &mut to_client) => None,
    };
    if let Some(message) = held {
        *lock(&delay) = Delay::Held(server, message);
    }
}

impl Delay {
    fn concerns(&self, message: &[u8]) -> bool {
        let contains = |part: &&[u8]| message.windows(part.len()).any(|window| window == *part);
        matches!(self, Self::Next(parts) if parts.iter().all(contains))
    }
}

fn lock(delay: &Mutex<Delay>) -> MutexGuard<'_, Delay> {
    delay.lock().unwrap_or_else(PoisonError::into_inner)
}
