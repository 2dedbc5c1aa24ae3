//! Clients that send calls as fast as they are taken, and never read an answer.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{io::AsyncWriteExt as _, net::TcpSocket, task::JoinSet, time::sleep};

use super::{Call, StalledOutcome};

/// What the system keeps for a client that does not read.
const RECEIVE_BYTES: u32 = 4096;

/// Before a client comes again that was cut off.
const PAUSE: Duration = Duration::from_secs(1);

/// Requests of one write.
const BURST: u64 = 64;

/// Such clients; they end when this is dropped.
pub(super) struct Stalled {
    clients: JoinSet<()>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    bytes: AtomicU64,
    cut: AtomicU64,
}

impl Stalled {
    pub(super) fn start(count: usize, address: SocketAddr) -> Self {
        let seen = Arc::<Seen>::default();
        let mut clients = JoinSet::new();
        for _ in 0..count {
            clients.spawn(stall(address, Arc::clone(&seen)));
        }
        Self { clients, seen }
    }

    /// Ends them.
    pub(super) async fn end(mut self) -> StalledOutcome {
        let clients = self.clients.len();
        self.clients.shutdown().await;
        StalledOutcome {
            clients,
            sent_bytes: self.seen.bytes.load(Ordering::Relaxed),
            cut: self.seen.cut.load(Ordering::Relaxed),
        }
    }
}

async fn stall(address: SocketAddr, seen: Arc<Seen>) {
    let mut requests = Vec::new();
    for counter in 0..BURST {
        Call::Delay.write(&mut requests, address, counter);
    }
    loop {
        let socket = TcpSocket::new_v4().and_then(|socket| {
            socket.set_recv_buffer_size(RECEIVE_BYTES)?;
            Ok(socket)
        });
        if let Ok(socket) = socket
            && let Ok(mut stream) = socket.connect(address).await
        {
            let mut at = 0;
            while let Ok(bytes @ 1..) = stream.write(&requests[at..]).await {
                seen.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                at = (at + bytes) % requests.len();
            }
            seen.cut.fetch_add(1, Ordering::Relaxed);
        }
        sleep(PAUSE).await;
    }
}
