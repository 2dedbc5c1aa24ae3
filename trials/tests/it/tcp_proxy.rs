//! A TCP proxy that can close all connections and refuse new ones.

use anyhow::{Context, Result};
use bench::programs::free_address;
use std::net::SocketAddr;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Forwards connections to a server until it is disconnected.
pub(crate) struct TcpProxy {
    address: SocketAddr,
    server: String,
    forwarding: JoinSet<()>,
}

impl TcpProxy {
    pub(crate) async fn to(server: &str) -> Result<Self> {
        let mut proxy = Self {
            address: free_address()?,
            server: server.to_owned(),
            forwarding: JoinSet::new(),
        };
        proxy.reconnect().await?;
        Ok(proxy)
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
        let server = self.server.clone();
        self.forwarding.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let Ok(mut server) = TcpStream::connect(&server).await else {
                    continue;
                };
                connections.spawn(async move {
                    // Either side may close it at any time.
                    copy_bidirectional(&mut client, &mut server).await.ok();
                });
            }
        });
        Ok(())
    }
}
