//! Calls scripts of a Redis or Valkey server: one connection, and as little waiting as is allowed.

mod address;
mod breaker;
mod tls;

use std::{fmt, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, ErrorKind, RedisError, ServerErrorKind, Value,
    aio::MultiplexedConnection,
};
use tokio::{task::JoinSet, time::timeout};

pub use self::address::Address;
pub(crate) use self::breaker::Breaker;

/// Most nodes of a cluster that are asked for one slot.
const NODES_MAX: usize = 3;

/// Why a server did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Nothing came in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// Another node of the cluster has the group: a new connection finds it.
    #[error("another node of the cluster has the group's slot")]
    Moved,
    /// It is about to have it.
    #[error("the group's slot is on its way to another node of the cluster")]
    Moving,
    /// It has a primary, and this is it no more.
    #[error("the server is a replica, which counts nothing")]
    Replica,
    /// There is no TLS with it.
    #[error("TLS: {0}")]
    Tls(String),
    /// The connection or the server failed.
    #[error(transparent)]
    Redis(RedisError),
    /// It answered something else.
    #[error("the script's answer has another form")]
    Form,
}

impl From<RedisError> for ServerError {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => Self::Moved,
            ErrorKind::Server(ServerErrorKind::Ask | ServerErrorKind::TryAgain) => Self::Moving,
            ErrorKind::Server(ServerErrorKind::ReadOnly) => Self::Replica,
            _ => Self::Redis(error),
        }
    }
}

impl ServerError {
    /// Whether it may be of one call alone: calls that come after it may be answered.
    pub(crate) fn may_be_of_call(&self) -> bool {
        let of_script = ErrorKind::Server(ServerErrorKind::ResponseError);
        match self {
            Self::Timeout(_) | Self::Form => true,
            Self::Redis(error) => error.kind() == of_script,
            _ => false,
        }
    }
}

/// A connection to a server that has a script; clones share it.
#[derive(Clone)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
    /// Carries its bytes, and ends with the last clone.
    driver: Arc<JoinSet<()>>,
    script: &'static str,
    digest: String,
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Link")
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Connects, within so long, and hands over a script. Follows a cluster to the node that has the group, and is of no server that takes no writes.
    pub(crate) async fn open(
        address: &Address,
        script: &'static str,
        group: &str,
        within: Duration,
    ) -> Result<Self, ServerError> {
        let open = async {
            let mut at = address.clone();
            for _ in 0..NODES_MAX {
                let link = Self::to(&at, script, within).await?;
                match link.other_node_of(group).await? {
                    Some(node) => at = address.elsewhere(&node).ok_or(ServerError::Form)?,
                    None => return Ok(link),
                }
            }
            Err(ServerError::Moved)
        };
        timeout(within, open)
            .await
            .unwrap_or(Err(ServerError::Timeout(within)))
    }

    /// Whether both are of the same connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }

    async fn to(
        address: &Address,
        script: &'static str,
        within: Duration,
    ) -> Result<Self, ServerError> {
        // Who asks waits for as long as is allowed.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let stream = address.connect(within).await?;
        let (mut connection, driver) =
            MultiplexedConnection::new_with_config(address.login(), stream, config).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(driver);
        let digest = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(script)
            .query_async(&mut connection)
            .await?;
        Ok(Self {
            connection,
            driver: Arc::new(tasks),
            script,
            digest,
        })
    }

    /// The node of a cluster that has a group, when it is another. Asked by a write that changes nothing, which a replica refuses.
    async fn other_node_of(&self, group: &str) -> Result<Option<String>, ServerError> {
        let mut connection = self.connection.clone();
        let asked: Result<Value, _> = redis::cmd("DEL")
            .arg(format!("cookiesync:{{{group}}}:nothing"))
            .query_async(&mut connection)
            .await;
        let Err(error) = asked else { return Ok(None) };
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => {
                Ok(error.redirect_node().map(|(node, _)| node.to_owned()))
            }
            // What is still here is answered.
            ErrorKind::Server(ServerErrorKind::Ask) => Ok(None),
            _ => Err(error.into()),
        }
    }

    /// Runs the script, which has to answer within so long.
    pub(crate) async fn run(
        &self,
        keys: &[String],
        arguments: &[String],
        within: Duration,
    ) -> Result<Vec<Value>, ServerError> {
        let answer = timeout(within, self.evaluate(keys, arguments)).await;
        match answer.unwrap_or(Err(ServerError::Timeout(within)))? {
            Value::Array(values) => Ok(values),
            _ => Err(ServerError::Form),
        }
    }

    async fn evaluate(&self, keys: &[String], arguments: &[String]) -> Result<Value, ServerError> {
        let mut connection = self.connection.clone();
        let mut by_digest = redis::cmd("EVALSHA");
        by_digest
            .arg(&self.digest)
            .arg(keys.len())
            .arg(keys)
            .arg(arguments);
        match by_digest.query_async(&mut connection).await {
            // It was restarted, or told to forget.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let mut by_text = redis::cmd("EVAL");
                by_text
                    .arg(self.script)
                    .arg(keys.len())
                    .arg(keys)
                    .arg(arguments);
                Ok(by_text.query_async(&mut connection).await?)
            }
            answer => Ok(answer?),
        }
    }
}

/// A whole number of an answer.
pub(crate) fn number(value: Option<&Value>) -> Result<u64, ServerError> {
    match value {
        Some(Value::Int(number)) => u64::try_from(*number).map_err(|_| ServerError::Form),
        _ => Err(ServerError::Form),
    }
}

/// A text of an answer.
pub(crate) fn text(value: Option<&Value>) -> Result<&str, ServerError> {
    let bytes = match value {
        Some(Value::BulkString(bytes)) => bytes,
        Some(Value::SimpleString(text)) => return Ok(text),
        _ => return Err(ServerError::Form),
    };
    std::str::from_utf8(bytes).map_err(|_| ServerError::Form)
}
