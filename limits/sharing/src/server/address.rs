//! Address and credentials of a server, and connections to it.

use std::{fmt, io, time::Duration};

use limits::rules::Sharing;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    task::JoinSet,
};

use super::{ServerError, tls::Tls};

/// Schemes with TLS, and their counterparts without.
const SECURE: [(&str, &str); 2] = [("rediss://", "redis://"), ("valkeys://", "valkey://")];

/// Address and credentials of a server: `redis://USER:PASSWORD@HOST:PORT/DATABASE`, or `rediss://…` with TLS. `Debug` and `Display` show only
/// host and port.
#[derive(Clone)]
pub struct Address {
    info: ConnectionInfo,
    tls: Option<Tls>,
}

/// A TCP or TLS connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Address {
    /// The server in `[sharing]`. TLS files are read for each connection, so they can be replaced at any time.
    ///
    /// # Errors
    /// If the URL or the TLS keys are invalid. The error does not contain the URL, which may contain a password.
    pub fn of(sharing: &Sharing) -> Result<Self, String> {
        let files = [&sharing.tls_ca, &sharing.tls_cert, &sharing.tls_key];
        let of_redis = |error| format!("sharing.redis: {error}");
        let Some(plain) = without_tls(&sharing.redis) else {
            let address = Self::parse(&sharing.redis).map_err(of_redis)?;
            return match files.iter().any(|it| it.is_some()) {
                true => {
                    let what = "sharing: tls_ca, tls_cert and tls_key require a rediss:// URL";
                    Err(what.to_owned())
                }
                false => Ok(address),
            };
        };
        let Some(authorities) = &sharing.tls_ca else {
            return Err(
                "sharing.tls_ca is missing: set a PEM file with the certificate authorities to trust; \
                for public authorities, that of the system, such as /etc/ssl/certs/ca-certificates.crt"
                    .to_owned(),
            );
        };
        let identity = match (&sharing.tls_cert, &sharing.tls_key) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => return Err("sharing: set both tls_cert and tls_key, or neither".to_owned()),
        };
        Ok(Self {
            tls: Some(Tls {
                authorities: authorities.into(),
                identity,
            }),
            ..Self::parse(&plain).map_err(of_redis)?
        })
    }

    /// Parses a URL without TLS.
    ///
    /// ```
    /// use limits_sharing::Address;
    ///
    /// let address = Address::parse("redis://limits:secret@10.0.0.5:6379").unwrap();
    /// assert_eq!(address.to_string(), "10.0.0.5:6379", "credentials are not shown");
    /// ```
    ///
    /// # Errors
    /// If the URL is invalid. The error does not contain the URL, which may contain a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        if without_tls(text).is_some() {
            return Err("a URL with TLS requires tls_ca".to_owned());
        }
        if text.contains('#') {
            return Err("invalid character #: certificates are always checked, and a # in a password is written %23".to_owned());
        }
        match text.trim().into_connection_info() {
            Ok(info) if matches!(info.addr(), ConnectionAddr::Tcp(..)) => {
                Ok(Self { info, tls: None })
            }
            _ => {
                Err("invalid URL: use redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]".to_owned())
            }
        }
    }

    /// Validates the TLS files.
    ///
    /// # Errors
    /// If a file is missing or invalid.
    pub fn check(&self) -> Result<(), String> {
        let config = self.tls.as_ref().map(Tls::config).transpose();
        config.map(drop).map_err(|error| format!("sharing.{error}"))
    }

    /// Credentials and database.
    pub(super) fn login(&self) -> &RedisConnectionInfo {
        self.info.redis_settings()
    }

    /// The address of another node of the same cluster.
    pub(super) fn with_node(&self, node: &str) -> Option<Self> {
        let (host, port) = node.rsplit_once(':')?;
        let host = host.trim_matches(['[', ']']);
        // An empty host is that of the redirecting node.
        let host = match self.info.addr() {
            ConnectionAddr::Tcp(known, _) if host.is_empty() => known.as_str(),
            _ => host,
        };
        let address = ConnectionAddr::Tcp(host.to_owned(), port.parse().ok()?);
        Some(Self {
            info: self.info.clone().set_addr(address),
            tls: self.tls.clone(),
        })
    }

    /// Connects. A TLS handshake may take up to half of `within`.
    pub(super) async fn connect(&self, within: Duration) -> Result<Box<dyn Stream>, ServerError> {
        let failed = |error: io::Error| ServerError::Redis(error.into());
        let ConnectionAddr::Tcp(host, port) = self.info.addr() else {
            return Err(failed(io::ErrorKind::Unsupported.into()));
        };
        let stream = connect_first(host, *port).await.map_err(failed)?;
        // Requests are small and must not be delayed.
        stream.set_nodelay(true).map_err(failed)?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => {
                let stream = tls
                    .handshake(host, stream, within / 2)
                    .await
                    .map_err(ServerError::Tls)?;
                Ok(Box::new(stream))
            }
        }
    }
}

/// Connects to all addresses of a host concurrently, and returns the first connection.
async fn connect_first(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for address in lookup_host((host, port)).await? {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    while let Some(attempt) = attempts.join_next().await {
        match attempt.unwrap_or_else(|panic| Err(panic.into())) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The URL without TLS, if it is one with TLS.
fn without_tls(text: &str) -> Option<String> {
    SECURE.iter().find_map(|(secure, plain)| {
        let rest = text.trim().strip_prefix(secure)?;
        Some(format!("{plain}{rest}"))
    })
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.info.addr())
    }
}

#[cfg(test)]
mod tests {
    use limits::rules::Rules;

    use super::*;

    fn of(keys: &str) -> Result<Address, String> {
        let text = format!(
            "[sharing]\nmode = 'lease'\ngroup = 'g'\n{keys}\n[limits.a]\nrules = [ {{ id = 'r', rate = '1/s' }} ]"
        );
        Address::of(&Rules::parse(&text).unwrap().sharing.unwrap())
    }

    #[test]
    fn display_and_errors_omit_the_password() {
        let address = Address::parse("redis://me:secret@127.0.0.1:7000/3").unwrap();
        assert_eq!(
            format!("{address} {address:?}"),
            "127.0.0.1:7000 127.0.0.1:7000"
        );
        for invalid in ["http://me:secret@x", "rediss://me:secret@127.0.0.1", ""] {
            let error = Address::parse(invalid).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn redirect_replaces_host_and_port() {
        let address = Address::parse("redis://me:secret@10.0.0.1:7000").unwrap();
        let shown = |node| address.with_node(node).map(|it| it.to_string());
        assert_eq!(shown("10.0.0.2:7001").as_deref(), Some("10.0.0.2:7001"));
        assert_eq!(shown(":7002").as_deref(), Some("10.0.0.1:7002"));
        assert_eq!(shown("nothing"), None);
    }

    #[test]
    fn tls_requires_authorities_and_certificate_checks() {
        let secure = "redis = 'rediss://me:secret@10.0.0.1:7000'";
        for (keys, expected) in [
            (secure.to_owned(), "tls_ca is missing"),
            (
                format!("{secure}\ntls_ca = 'a'\ntls_cert = 'b'"),
                "set both tls_cert and tls_key",
            ),
            (
                "redis = 'redis://10.0.0.1'\ntls_ca = 'a'".to_owned(),
                "require a rediss:// URL",
            ),
            (
                "redis = 'rediss://me:secret@10.0.0.1#insecure'\ntls_ca = 'a'".to_owned(),
                "always checked",
            ),
        ] {
            let error = of(&keys).unwrap_err();
            assert!(
                error.contains(expected) && !error.contains("secret"),
                "{error}"
            );
        }
        let address = of(&format!("{secure}\ntls_ca = '/nowhere/ca.pem'")).unwrap();
        assert!(address.with_node("10.0.0.2:7001").unwrap().tls.is_some());
        let error = address.check().unwrap_err();
        assert!(
            error.starts_with("sharing.tls_ca: /nowhere/ca.pem: "),
            "{error}"
        );
        assert!(of("redis = 'redis://10.0.0.1'").unwrap().check().is_ok());
    }
}
