//! A proxy before two MongoDB servers, which sends the commands for one database to the second server, as a router of a sharded cluster
//! does.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, Result};
use testkit::programs::free_address;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Mutex,
    task::JoinSet,
};

/// Forwards connections until it is dropped.
pub(crate) struct MongoRouter {
    address: SocketAddr,
    _forwarding: JoinSet<()>,
}

impl MongoRouter {
    /// A proxy that sends the commands for the database `second_has` to the `second` server, and all others to the `first`.
    pub(crate) async fn start(
        [first, second]: [SocketAddr; 2],
        second_has: &'static str,
    ) -> Result<Self> {
        let address = free_address()?;
        let listener = TcpListener::bind(address)
            .await
            .context("the address of the router is in use")?;
        let mut forwarding = JoinSet::new();
        forwarding.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(async move {
                    let servers = [first, second];
                    // A closed connection is not an error of the router.
                    forward(client, servers, second_has).await.ok();
                });
            }
        });
        Ok(Self {
            address,
            _forwarding: forwarding,
        })
    }

    pub(crate) fn uri(&self) -> String {
        format!("mongodb://{}/?directConnection=true", self.address)
    }
}

/// Forwards messages until one of the three connections ends.
async fn forward(client: TcpStream, servers: [SocketAddr; 2], second_has: &str) -> Result<()> {
    let (mut from_client, to_client) = client.into_split();
    let to_client = Arc::new(Mutex::new(to_client));
    let mut responses = JoinSet::new();
    let mut to_servers = Vec::new();
    for server in servers {
        let (from_server, to_server) = TcpStream::connect(server).await?.into_split();
        responses.spawn(respond(from_server, Arc::clone(&to_client)));
        to_servers.push(to_server);
    }
    // As BSON: a string, its name, its length with a final zero, and the value.
    let length = u32::try_from(second_has.len() + 1)?.to_le_bytes();
    let database = [b"\x02$db\0", &length[..], second_has.as_bytes(), b"\0"].concat();
    let requests = async {
        loop {
            let message = read_message(&mut from_client).await?;
            let is_second = message.windows(database.len()).any(|it| it == database);
            to_servers[usize::from(is_second)]
                .write_all(&message)
                .await?;
        }
    };
    tokio::select! {
        ended = requests => ended,
        _ = responses.join_next() => Ok(()),
    }
}

async fn respond(mut server: OwnedReadHalf, client: Arc<Mutex<OwnedWriteHalf>>) -> Result<()> {
    loop {
        let message = read_message(&mut server).await?;
        client.lock().await.write_all(&message).await?;
    }
}

/// A message of MongoDB begins with its length.
async fn read_message(stream: &mut OwnedReadHalf) -> Result<Vec<u8>> {
    let length = stream.read_u32_le().await?;
    let mut message = length.to_le_bytes().to_vec();
    let rest = u64::from(length).saturating_sub(4);
    stream.take(rest).read_to_end(&mut message).await?;
    Ok(message)
}
