//! A connection to the admin port of another node.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http::{
    HeaderMap, Request, StatusCode,
    header::{AUTHORIZATION, HOST},
};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use proto::{units::UnixMicros, wire::ChunkRef};
use runtime::{connect::Network, reload::Reloader, token};
use tokio::{task::JoinSet, time::timeout};

use super::protocol::{self, FLOOR_HEADER, NEXT_HEADER, NODE_PATH, NodeState, PAGE_BYTES_MAX};
use crate::config::ProducerUrl;

/// Maximum time to connect, and that of a request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum bytes of a text from a node that is repeated in an error.
const ERROR_CHARS_MAX: usize = 200;

/// A page of a node.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) chunks: Vec<ChunkRef>,
    /// Position of the next page; `None` at the end.
    pub(super) next: Option<String>,
    /// The floor of the node's table of deletions.
    pub(super) floor: UnixMicros,
}

/// A connection to one node.
pub(super) struct NodeClient {
    requests: SendRequest<Empty<Bytes>>,
    /// Runs the connection until it is dropped.
    _connection: JoinSet<()>,
    host: String,
    token: Option<Arc<Reloader<token::File>>>,
}

impl NodeClient {
    /// Connects to a node.
    pub(super) async fn connect(
        network: &dyn Network,
        node: &ProducerUrl,
        token: Option<Arc<Reloader<token::File>>>,
    ) -> Result<Self> {
        let connecting = async {
            let addresses = network.lookup(&node.host, node.port).await?;
            let address = addresses.first().context("the host has no address")?;
            let stream = network.connect(*address).await?;
            Ok::<_, anyhow::Error>(handshake(TokioIo::new(stream)).await?)
        };
        let connected = timeout(CONNECT_TIMEOUT, connecting).await;
        let (requests, connection) = connected.context("no connection within 5 s")??;
        let mut tasks = JoinSet::new();
        // Errors also end the pending request.
        tasks.spawn(async { drop(connection.await) });
        let url = node.to_string();
        Ok(Self {
            requests,
            _connection: tasks,
            host: url.trim_start_matches("http://").to_owned(),
            token,
        })
    }

    /// The state of the node.
    pub(super) async fn state(&mut self) -> Result<NodeState> {
        let (_, body) = self.get(NODE_PATH).await?;
        serde_json::from_slice(&body).context("invalid state")
    }

    /// The page at a position.
    pub(super) async fn page(&mut self, path: &str, position: &str) -> Result<Page> {
        let position_text = utf8_percent_encode(position, NON_ALPHANUMERIC);
        let (headers, body) = self.get(&format!("{path}?next={position_text}")).await?;
        let header = |name| headers.get(name).map(|value| value.to_str()).transpose();
        let next = header(NEXT_HEADER)?.map(|next| percent_decode_str(next).decode_utf8());
        let next = next.transpose().context("invalid position")?;
        ensure!(
            next.as_deref() != Some(position),
            "the node repeats the position {position:?}"
        );
        let floor = header(FLOOR_HEADER)?.context("page without a floor; is this a consumer?")?;
        Ok(Page {
            chunks: protocol::decode(&body).context("invalid page")?,
            next: next.map(Into::into),
            floor: UnixMicros(floor.parse().context("invalid floor")?),
        })
    }

    async fn get(&mut self, path: &str) -> Result<(HeaderMap, Bytes)> {
        let mut request = Request::get(path).header(HOST, &self.host);
        if let Some(token) = &self.token {
            let value = format!("Bearer {}", token.current().first());
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(Empty::new())?;
        let response = async {
            self.requests.ready().await?;
            let response = self.requests.send_request(request).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, PAGE_BYTES_MAX).collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("incomplete response: {error}"))?;
            Ok::<_, anyhow::Error>((head, body.to_bytes()))
        };
        let (head, body) = timeout(REQUEST_TIMEOUT, response)
            .await
            .context("no complete response within 30 s")??;
        if head.status != StatusCode::OK {
            let text = String::from_utf8_lossy(&body);
            let detail: Option<serde_json::Value> = serde_json::from_str(&text).ok();
            let detail = detail.and_then(|it| Some(it.get("detail")?.as_str()?.to_owned()));
            let detail = detail.unwrap_or_else(|| text.trim().to_owned());
            let detail: String = detail.chars().take(ERROR_CHARS_MAX).collect();
            bail!("status {}: {detail}", head.status.as_u16());
        }
        Ok((head.headers, body))
    }
}
