//! A way to a server that can be cut.

use anyhow::{Context, Result};
use bench::programs::free_address;
use std::net::SocketAddr;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Passes connections on, until it is cut.
pub(crate) struct TcpProxy {
    address: SocketAddr,
    server: String,
    passing: JoinSet<()>,
}

impl TcpProxy {
    pub(crate) async fn to(server: &str) -> Result<Self> {
        let mut between = Self {
            address: free_address()?,
            server: server.to_owned(),
            passing: JoinSet::new(),
        };
        between.heal().await?;
        Ok(between)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends all connections and takes no more.
    pub(crate) async fn cut(&mut self) {
        self.passing.shutdown().await;
    }

    /// Takes connections again.
    pub(crate) async fn heal(&mut self) -> Result<()> {
        let listener = TcpListener::bind(self.address)
            .await
            .context("its address was free")?;
        let server = self.server.clone();
        self.passing.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let Ok(mut server) = TcpStream::connect(&server).await else {
                    continue;
                };
                connections.spawn(async move {
                    // Either side may end it at any time.
                    copy_bidirectional(&mut client, &mut server).await.ok();
                });
            }
        });
        Ok(())
    }
}
