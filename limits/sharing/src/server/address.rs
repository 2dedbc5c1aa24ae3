//! Address and credentials of a server, and connections to it.

use std::{fmt, io, time::Duration};

use limits::rules::Sharing;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo};
use runtime::{reload::NamedFile, tls::client::Files};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::{ServerError, tls};

/// Address and credentials of a server: `redis://USER:PASSWORD@HOST:PORT/DATABASE`, or `rediss://…` with TLS. `Debug` and `Display` show only
/// host and port.
#[derive(Clone)]
pub struct Address {
    info: ConnectionInfo,
    tls: Option<Files>,
}

impl Address {
    /// The server in `[sharing]`. TLS files are read for each connection, so they can be replaced at any time.
    ///
    /// # Errors
    /// If the URL or the TLS keys are invalid. The error does not contain the URL, which may contain a password.
    pub fn of(sharing: &Sharing) -> Result<Self, String> {
        let [authorities, certificate, key] = [
            ("sharing.tls_ca", &sharing.tls_ca),
            ("sharing.tls_cert", &sharing.tls_cert),
            ("sharing.tls_key", &sharing.tls_key),
        ]
        .map(|(key, path)| NamedFile::from_flag(key, path.as_deref()?));
        let of_redis = |error| format!("sharing.redis: {error}");
        let Some(plain) = without_tls(&sharing.redis) else {
            let address = Self::parse(&sharing.redis).map_err(of_redis)?;
            return match (authorities, certificate, key) {
                (None, None, None) => Ok(address),
                _ => {
                    let what = "sharing: tls_ca, tls_cert and tls_key require a rediss:// URL";
                    Err(what.to_owned())
                }
            };
        };
        let Some(authorities) = authorities else {
            return Err(
                "sharing.tls_ca is missing: set it to a PEM file with the trusted certificate authorities; \
                for public authorities, use the file of the system, such as /etc/ssl/certs/ca-certificates.crt"
                    .to_owned(),
            );
        };
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err("sharing: set both tls_cert and tls_key, or neither".to_owned()),
        };
        Ok(Self {
            tls: Some(Files {
                authorities,
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
            return Err("invalid character #: write it as %23 in a password; the option #insecure is not supported".to_owned());
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
        self.tls.as_ref().map(tls::load).transpose().map(drop)
    }

    /// Credentials and database.
    pub(super) fn login(&self) -> &RedisConnectionInfo {
        self.info.redis_settings()
    }

    /// Connects. A TLS handshake may take up to half of `within`.
    pub(super) async fn connect(
        &self,
        within: Duration,
    ) -> Result<Either<TcpStream, TlsStream<TcpStream>>, ServerError> {
        let failed = |error: io::Error| ServerError::Redis(error.into());
        let ConnectionAddr::Tcp(host, port) = self.info.addr() else {
            return Err(failed(io::ErrorKind::Unsupported.into()));
        };
        let stream = TcpStream::connect((host.as_str(), *port)).await;
        let stream = stream.map_err(failed)?;
        // Requests are small and must not be delayed.
        stream.set_nodelay(true).map_err(failed)?;
        match &self.tls {
            None => Ok(Either::Left(stream)),
            Some(files) => {
                let stream = tls::handshake(files, host, stream, within / 2).await;
                Ok(Either::Right(stream.map_err(ServerError::Tls)?))
            }
        }
    }
}

/// The same URL without TLS; `None` unless it has TLS.
fn without_tls(text: &str) -> Option<String> {
    let rest = text.trim().strip_prefix("rediss://")?;
    Some(format!("redis://{rest}"))
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
                "#insecure is not supported",
            ),
        ] {
            let error = of(&keys).unwrap_err();
            assert!(
                error.contains(expected) && !error.contains("secret"),
                "{error}"
            );
        }
        let address = of(&format!("{secure}\ntls_ca = '/nowhere/ca.pem'")).unwrap();
        let error = address.check().unwrap_err();
        assert!(
            error.starts_with("sharing.tls_ca: /nowhere/ca.pem: "),
            "{error}"
        );
        assert!(of("redis = 'redis://10.0.0.1'").unwrap().check().is_ok());
    }
}
