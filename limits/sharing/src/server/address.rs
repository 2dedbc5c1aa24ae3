//! Where a server is, how to log in, and connecting to it.

use std::{fmt, io, time::Duration};

use limits::rules::Sharing;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    task::JoinSet,
};

use super::{ServerError, tls::Tls};

/// The schemes with TLS, and those that are the same without.
const SECURE: [(&str, &str); 2] = [("rediss://", "redis://"), ("valkeys://", "valkey://")];

/// Where a server is, and how to log in: `redis://USER:PASSWORD@HOST:PORT/DATABASE`, or `rediss://…` with TLS. Nothing of the password is ever shown.
#[derive(Clone)]
pub struct Address {
    info: ConnectionInfo,
    tls: Option<Tls>,
}

/// A connection, however it is carried.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Address {
    /// What `[sharing]` names. Its files are read with each connection, so they may be replaced at any time.
    ///
    /// # Errors
    /// With the key and a sentence. It does not repeat the address, in which there may be a password.
    pub fn of(sharing: &Sharing) -> Result<Self, String> {
        let files = [&sharing.tls_ca, &sharing.tls_cert, &sharing.tls_key];
        let of_redis = |error| format!("sharing.redis: {error}");
        let Some(plain) = without_tls(&sharing.redis) else {
            let address = Self::parse(&sharing.redis).map_err(of_redis)?;
            return match files.iter().any(|it| it.is_some()) {
                true => Err(
                    "sharing.tls_…: redis is no rediss:// address, so they would do nothing"
                        .to_owned(),
                ),
                false => Ok(address),
            };
        };
        let Some(authorities) = &sharing.tls_ca else {
            return Err(
                "sharing.tls_ca is missing: whose certificates to trust, as a PEM file; \
                for those of public authorities the system's, as /etc/ssl/certs/ca-certificates.crt"
                    .to_owned(),
            );
        };
        let identity = match (&sharing.tls_cert, &sharing.tls_key) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => return Err("sharing: tls_cert and tls_key belong together".to_owned()),
        };
        Ok(Self {
            tls: Some(Tls {
                authorities: authorities.into(),
                identity,
            }),
            ..Self::parse(&plain).map_err(of_redis)?
        })
    }

    /// Reads an address without TLS.
    ///
    /// # Errors
    /// With a sentence, when it is none. It does not repeat the address, in which there may be a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        if without_tls(text).is_some() {
            return Err("TLS needs to know whose certificates to trust".to_owned());
        }
        if text.contains('#') {
            return Err("nothing may follow a #: certificates are always checked, and in a password it is written %23".to_owned());
        }
        match text.trim().into_connection_info() {
            Ok(info) if matches!(info.addr(), ConnectionAddr::Tcp(..)) => {
                Ok(Self { info, tls: None })
            }
            _ => Err("is not redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]".to_owned()),
        }
    }

    /// Reads its files once, to know at the start.
    ///
    /// # Errors
    /// With the key, the file, and what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        let config = self.tls.as_ref().map(Tls::config).transpose();
        config.map(drop).map_err(|error| format!("sharing.{error}"))
    }

    /// How to log in.
    pub(super) fn login(&self) -> &RedisConnectionInfo {
        self.info.redis_settings()
    }

    /// Another node of the same cluster.
    pub(super) fn elsewhere(&self, node: &str) -> Option<Self> {
        let (host, port) = node.rsplit_once(':')?;
        let host = host.trim_matches(['[', ']']);
        // With no host, it is the one that said so.
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

    /// Connects; of so long a time, a handshake of TLS may take half.
    pub(super) async fn connect(&self, within: Duration) -> Result<Box<dyn Stream>, ServerError> {
        let failed = |error: io::Error| ServerError::Redis(error.into());
        let ConnectionAddr::Tcp(host, port) = self.info.addr() else {
            return Err(failed(io::ErrorKind::Unsupported.into()));
        };
        let stream = first_of(host, *port).await.map_err(failed)?;
        // A question is one small packet, and waits for nothing.
        stream.set_nodelay(true).map_err(failed)?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => {
                let shaken = tls
                    .shake(host, stream, within / 2)
                    .await
                    .map_err(ServerError::Tls)?;
                Ok(Box::new(shaken))
            }
        }
    }
}

/// Connects to the one of a name's addresses that answers first.
async fn first_of(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut tries = JoinSet::new();
    for address in lookup_host((host, port)).await? {
        tries.spawn(TcpStream::connect(address));
    }
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    while let Some(tried) = tries.join_next().await {
        match tried.unwrap_or_else(|panic| Err(panic.into())) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The same address without TLS, of one with.
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
    fn password_is_not_shown() {
        let address = Address::parse("redis://me:secret@127.0.0.1:7000/3").unwrap();
        assert_eq!(
            format!("{address} {address:?}"),
            "127.0.0.1:7000 127.0.0.1:7000"
        );
        for wrong in ["http://me:secret@x", "rediss://me:secret@127.0.0.1", ""] {
            let error = Address::parse(wrong).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn cluster_says_where_a_group_is() {
        let address = Address::parse("redis://me:secret@10.0.0.1:7000").unwrap();
        let shown = |node| address.elsewhere(node).map(|it| it.to_string());
        assert_eq!(shown("10.0.0.2:7001").as_deref(), Some("10.0.0.2:7001"));
        assert_eq!(shown(":7002").as_deref(), Some("10.0.0.1:7002"));
        assert_eq!(shown("nothing"), None);
    }

    #[test]
    fn tls_has_authorities_and_is_never_without_checks() {
        let secure = "redis = 'rediss://me:secret@10.0.0.1:7000'";
        for (keys, wrong) in [
            (secure.to_owned(), "tls_ca is missing"),
            (
                format!("{secure}\ntls_ca = 'a'\ntls_cert = 'b'"),
                "belong together",
            ),
            (
                "redis = 'redis://10.0.0.1'\ntls_ca = 'a'".to_owned(),
                "would do nothing",
            ),
            (
                "redis = 'rediss://me:secret@10.0.0.1#insecure'\ntls_ca = 'a'".to_owned(),
                "always checked",
            ),
        ] {
            let error = of(&keys).unwrap_err();
            assert!(
                error.contains(wrong) && !error.contains("secret"),
                "{error}"
            );
        }
        let address = of(&format!("{secure}\ntls_ca = '/nowhere/ca.pem'")).unwrap();
        assert!(address.elsewhere("10.0.0.2:7001").unwrap().tls.is_some());
        let error = address.check().unwrap_err();
        assert!(
            error.starts_with("sharing.tls_ca: /nowhere/ca.pem: "),
            "{error}"
        );
        assert!(of("redis = 'redis://10.0.0.1'").unwrap().check().is_ok());
    }
}
