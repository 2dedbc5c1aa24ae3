//! Calls scripts of a Redis or Valkey server: one connection, and as little waiting as is allowed.

use std::{fmt, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo as _, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection,
};
use tokio::time::timeout;

/// Where a server is, and how to log in: `redis://USER:PASSWORD@HOST:PORT/DATABASE`. Nothing of the password is ever shown.
#[derive(Clone)]
pub struct Address(ConnectionInfo);

/// Why a server did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Nothing came in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection or the server failed.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// It answered something else.
    #[error("the script's answer has another form")]
    Form,
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// With a sentence, when it is none. It does not repeat the address, in which there may be a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let info = text.trim().into_connection_info();
        let info =
            info.map_err(|_| "is not redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]".to_owned())?;
        match info.addr() {
            ConnectionAddr::TcpTls { .. } => Err(
                "TLS to the server is not built in: use a local proxy, or a private network"
                    .to_owned(),
            ),
            _ => Ok(Self(info)),
        }
    }

    fn elsewhere(&self, node: &str) -> Option<Self> {
        let (host, port) = node.rsplit_once(':')?;
        let host = host.trim_matches(['[', ']']);
        // With no host, it is the one that said so.
        let host = match self.0.addr() {
            ConnectionAddr::Tcp(known, _) if host.is_empty() => known.as_str(),
            _ => host,
        };
        let address = ConnectionAddr::Tcp(host.to_owned(), port.parse().ok()?);
        Some(Self(self.0.clone().set_addr(address)))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0.addr())
    }
}

/// A connection to a server that has a script; clones share it.
#[derive(Clone)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
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
    /// Connects, within so long, and hands over a script. Follows a cluster to the node that has `key`.
    pub(crate) async fn open(
        address: &Address,
        script: &'static str,
        key: &str,
        within: Duration,
    ) -> Result<Self, ServerError> {
        let open = async {
            let link = Self::to(address, script, within).await?;
            match link.node_of(key).await? {
                Some(node) => match address.elsewhere(&node) {
                    Some(other) => Self::to(&other, script, within).await,
                    None => Err(ServerError::Form),
                },
                None => Ok(link),
            }
        };
        timeout(within, open)
            .await
            .unwrap_or(Err(ServerError::Timeout(within)))
    }

    async fn to(
        address: &Address,
        script: &'static str,
        within: Duration,
    ) -> Result<Self, ServerError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(within))
            .set_response_timeout(None);
        let client = Client::open(address.0.clone())?;
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let digest = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(script)
            .query_async(&mut connection)
            .await?;
        Ok(Self {
            connection,
            script,
            digest,
        })
    }

    /// The node of a cluster that has a key, when it is another.
    async fn node_of(&self, key: &str) -> Result<Option<String>, ServerError> {
        let mut connection = self.connection.clone();
        let asked: Result<Value, _> = redis::cmd("EXISTS")
            .arg(key)
            .query_async(&mut connection)
            .await;
        match asked {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) => {
                Ok(error.redirect_node().map(|(node, _)| node.to_owned()))
            }
            Err(error) => Err(error.into()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_not_shown() {
        let address = Address::parse("redis://me:secret@127.0.0.1:7000/3").unwrap();
        assert_eq!(
            format!("{address} {address:?}"),
            "127.0.0.1:7000 127.0.0.1:7000"
        );
        for wrong in ["http://me:secret@x", "rediss://me:secret@127.0.0.1", ""] {
            let mistake = Address::parse(wrong).unwrap_err();
            assert!(!mistake.contains("secret"), "{mistake}");
        }
    }

    #[test]
    fn cluster_says_where_a_key_is() {
        let address = Address::parse("redis://me:secret@10.0.0.1:7000").unwrap();
        let shown = |node| address.elsewhere(node).map(|it| it.to_string());
        assert_eq!(shown("10.0.0.2:7001").as_deref(), Some("10.0.0.2:7001"));
        assert_eq!(shown(":7002").as_deref(), Some("10.0.0.1:7002"));
        assert_eq!(shown("nothing"), None);
    }
}
