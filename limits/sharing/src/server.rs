//! Connection to a Redis or Valkey server, and script calls with deadlines.

mod address;
mod breaker;
mod tls;

use std::{sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, ErrorKind, RedisError, ServerErrorKind, Value,
    aio::MultiplexedConnection,
};
use tokio::{task::JoinSet, time::timeout};

pub use self::address::Address;
pub(crate) use self::breaker::Breaker;

/// The error of a request to the server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// There was no reply in time.
    #[error("no reply within {0:?}")]
    Timeout(Duration),
    /// The server is not the primary.
    #[error("the server is a read-only replica")]
    Replica,
    /// The TLS handshake failed.
    #[error("TLS: {0}")]
    Tls(String),
    /// The connection or the server failed.
    #[error(transparent)]
    Redis(RedisError),
    /// The reply is malformed.
    #[error("malformed reply from the script")]
    Form,
}

impl From<RedisError> for ServerError {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::ReadOnly) => Self::Replica,
            _ => Self::Redis(error),
        }
    }
}

impl ServerError {
    /// Whether the error may concern only one call, so that later calls can succeed.
    pub(crate) fn may_concern_one_call(&self) -> bool {
        let script_error = ErrorKind::Server(ServerErrorKind::ResponseError);
        match self {
            Self::Timeout(_) | Self::Form => true,
            Self::Redis(error) => error.kind() == script_error,
            _ => false,
        }
    }
}

/// A connection to a server on which a script is loaded; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
    /// The I/O task, which ends with the last clone.
    driver: Arc<JoinSet<()>>,
    script: &'static str,
    digest: String,
}

impl Link {
    /// Connects and loads a script, within `within`. Rejects read-only replicas.
    pub(crate) async fn open(
        address: &Address,
        script: &'static str,
        group: &str,
        within: Duration,
    ) -> Result<Self, ServerError> {
        let open = async {
            let link = Self::to(address, script, within).await?;
            link.check_writable(group).await.map(|()| link)
        };
        timeout(within, open)
            .await
            .unwrap_or(Err(ServerError::Timeout(within)))
    }

    /// Whether both are the same connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }

    async fn to(
        address: &Address,
        script: &'static str,
        within: Duration,
    ) -> Result<Self, ServerError> {
        // Each request has its own deadline.
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

    /// Sends a write without effect, which replicas reject.
    async fn check_writable(&self, group: &str) -> Result<(), ServerError> {
        let mut connection = self.connection.clone();
        let mut write = redis::cmd("DEL");
        write.arg(format!("cookiesync:{{{group}}}:nothing"));
        Ok(write.query_async(&mut connection).await?)
    }

    /// Runs the script and waits up to `within` for the reply.
    pub(crate) async fn run(
        &self,
        keys: &[String],
        arguments: &[String],
        within: Duration,
    ) -> Result<Vec<Value>, ServerError> {
        let reply = timeout(within, self.evaluate(keys, arguments)).await;
        match reply.unwrap_or(Err(ServerError::Timeout(within)))? {
            Value::Array(values) => Ok(values),
            _ => Err(ServerError::Form),
        }
    }

    async fn evaluate(&self, keys: &[String], arguments: &[String]) -> Result<Value, ServerError> {
        let mut connection = self.connection.clone();
        let call = |command, script: &str| {
            let mut call = redis::cmd(command);
            call.arg(script).arg(keys.len()).arg(keys).arg(arguments);
            call
        };
        let by_digest = call("EVALSHA", &self.digest);
        match by_digest.query_async(&mut connection).await {
            // The server was restarted, or its scripts were flushed.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let by_text = call("EVAL", self.script);
                Ok(by_text.query_async(&mut connection).await?)
            }
            reply => Ok(reply?),
        }
    }
}

/// A whole number in a reply.
pub(crate) fn number(value: Option<&Value>) -> Result<u64, ServerError> {
    match value {
        Some(Value::Int(number)) => u64::try_from(*number).map_err(|_| ServerError::Form),
        _ => Err(ServerError::Form),
    }
}

/// A string in a reply.
pub(crate) fn text(value: Option<&Value>) -> Result<&str, ServerError> {
    match value {
        Some(Value::BulkString(bytes)) => str::from_utf8(bytes).map_err(|_| ServerError::Form),
        Some(Value::SimpleString(text)) => Ok(text),
        _ => Err(ServerError::Form),
    }
}
