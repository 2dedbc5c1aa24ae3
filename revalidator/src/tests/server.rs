//! An HTTP server for unit tests: it returns prepared bytes, and closes the connection.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

type Respond = dyn Fn(&str) -> String + Send + Sync;

/// Starts a server, which ends with the returned tasks.
pub(crate) async fn serve(
    tls: Option<TlsAcceptor>,
    respond: impl Fn(&str) -> String + Send + Sync + 'static,
) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let respond: Arc<Respond> = Arc::new(respond);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            match &tls {
                None => answer(stream, &*respond).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        answer(stream, &*respond).await;
                    }
                }
            }
        }
    });
    (address, tasks)
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, respond: &Respond) {
    let mut request = String::new();
    let mut buffer = [0; 4096];
    let is_complete = |request: &str| {
        let (head, body) = request.split_once("\r\n\r\n")?;
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |it| it.parse().unwrap());
        (body.len() >= length).then_some(())
    };
    while is_complete(&request).is_none() {
        match stream.read(&mut buffer).await {
            Ok(count) if count > 0 => {
                request.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
            }
            _ => return,
        }
    }
    // Otherwise the client uses the connection again.
    let response = respond(&request).replacen("\r\n", "\r\nConnection: close\r\n", 1);
    drop(stream.write_all(response.as_bytes()).await);
    drop(stream.shutdown().await);
}
