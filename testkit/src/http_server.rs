//! An HTTP/1.1 server in this process, for clients under test.

use std::{convert::Infallible, future::Future, io, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

/// Pause after a failed accept: open files are not available again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A running server. Dropping it closes its connections.
#[derive(Debug)]
pub struct HttpServer {
    /// Its address.
    pub address: SocketAddr,
    _accepting: JoinSet<()>,
}

impl HttpServer {
    /// Starts a server that returns the response of `respond` to each request. The future is dropped if the client disconnects.
    ///
    /// # Errors
    /// The address is not usable.
    pub async fn start<F>(
        listen: SocketAddr,
        respond: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                while connections.try_join_next().is_some() {}
                let respond = respond.clone();
                let service = service_fn(move |request| {
                    let response = respond(request);
                    async { Ok::<_, Infallible>(response.await) }
                });
                let connection = http1::Builder::new();
                connections.spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self {
            address,
            _accepting: accepting,
        })
    }
}
