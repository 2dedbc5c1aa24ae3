//! A keep-alive connection that is reopened when it breaks.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    net::TcpStream,
    time::{self, sleep},
};

use super::{history::History, session::Session};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// A connection with its state, which survives reconnects.
pub(super) struct Connection {
    pub(super) stream: Option<TcpStream>,
    pub(super) session: Session,
}

/// Opens a TCP connection.
pub(super) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Connection {
    /// Sends all requests and reads all responses. Cancel-safe: [`finish`](Self::finish) continues it.
    pub(super) async fn run(&mut self) {
        loop {
            if let Some(stream) = &mut self.stream {
                if let Ok(()) = self.session.exchange(stream).await {
                    return;
                }
                self.stream = None;
                self.session.abandon_outstanding();
            }
            if self.session.has_sent_all() {
                return;
            }
            sleep(RECONNECT_PAUSE).await;
            if let Ok(stream) = connect(self.session.address()).await {
                self.stream = Some(stream);
                self.session.reconnected();
            }
        }
    }

    /// Waits up to `timeout` for outstanding responses after [`run`](Self::run) was cancelled.
    pub(super) async fn finish(mut self, timeout: Duration) -> History {
        self.session.stop_sending();
        if self.session.has_outstanding() && time::timeout(timeout, self.run()).await.is_err() {
            self.session.abandon_outstanding();
        }
        self.session.end()
    }
}
