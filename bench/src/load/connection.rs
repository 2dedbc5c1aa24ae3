//! One keep-alive connection over its life: opened, run, opened again when it breaks, and finished.

use std::{cell::RefCell, io, net::SocketAddr, rc::Rc, time::Duration};

use tokio::{
    net::TcpStream,
    time::{self, Instant, sleep, sleep_until},
};

use super::{history::History, plan::Task, recorder::Recorder, session::Session};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// A connection, or what is left of it between two streams.
pub(super) struct Connection {
    stream: Option<TcpStream>,
    session: Session,
}

/// A stream to the address of a task.
pub(super) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Connection {
    /// The connection that does `task` over an open stream.
    pub(super) fn new(
        task: Task,
        stream: TcpStream,
        started: Instant,
        recorder: Rc<RefCell<Recorder>>,
    ) -> Self {
        Self {
            stream: Some(stream),
            session: Session::new(task, started, recorder),
        }
    }

    /// Sends all requests and reads all answers. May be dropped at any point and continued by
    /// [`finish`](Self::finish).
    pub(super) async fn run(&mut self) {
        let mut timer = Box::pin(sleep_until(self.session.started()));
        loop {
            if let Some(stream) = &mut self.stream {
                if let Ok(()) = self.session.exchange(stream, timer.as_mut()).await {
                    return;
                }
                self.stream = None;
                self.session.give_up_outstanding();
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

    /// Waits for the answers that are outstanding after [`run`](Self::run) was dropped, within `timeout`.
    pub(super) async fn finish(mut self, timeout: Duration) -> History {
        self.session.send_no_more();
        if self.session.has_outstanding() && time::timeout(timeout, self.run()).await.is_err() {
            self.session.give_up_outstanding();
        }
        self.session.end()
    }
}
