//! Connections to NATS servers: addresses, credentials and TLS, the same in every program that uses NATS, and the [reports](report) of
//! nodes. A separate package, so that the other programs do not depend on `async-nats`.
//!
//! `async-nats` ignores credentials in URLs. They are removed from the URLs, so that its messages do not contain them.

pub mod report;
mod stream;

use std::{fmt, fs::File, time::Duration};

use async_nats::{Client, ConnectError, ConnectOptions, ServerAddr};
use percent_encoding::percent_decode_str;
use runtime::{
    connect::credentials::{NatsTlsArgs, pair},
    reload::NamedFile,
    settings::ConfigErrors,
};
use url::Url;

pub use self::stream::{Connection, StreamUrl};

/// Credentials in a URL.
#[derive(Clone, PartialEq, Eq)]
enum Credentials {
    Token(String),
    User(String, String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

/// NATS servers of one cluster, and how to authenticate there.
#[derive(Debug, Clone)]
pub struct Servers {
    addresses: Vec<ServerAddr>,
    credentials: Option<Credentials>,
    authorities: Option<NamedFile>,
    identity: Option<(NamedFile, NamedFile)>,
}

impl Servers {
    /// Parses URLs separated by commas, and checks that the files can be read. Records all errors, which contain no credentials.
    pub fn check(
        errors: &mut ConfigErrors,
        flag: &str,
        urls: &str,
        tls: &NatsTlsArgs,
    ) -> Option<Self> {
        let authorities = NamedFile::from_flag("--nats-tls-ca", &tls.nats_tls_ca);
        let certificate = NamedFile::from_flag("--nats-tls-cert", &tls.nats_tls_cert);
        let key = NamedFile::from_flag("--nats-tls-key", &tls.nats_tls_key);
        for file in [&authorities, &certificate, &key].into_iter().flatten() {
            if let Err(error) = File::open(&file.path) {
                errors.add(file.error(error));
            }
        }
        let identity = pair(errors, certificate, key);
        let parsed = urls.split(',').map(|url| parse(url.trim()));
        let Some(parsed) = parsed.collect::<Option<Vec<_>>>() else {
            errors.add(format!(
                "{flag}: use URLs like nats://127.0.0.1:4222, separated by commas"
            ));
            return None;
        };
        let (addresses, mut credentials): (_, Vec<_>) = parsed.into_iter().unzip();
        credentials.dedup();
        if credentials.len() > 1 {
            errors.add(format!("{flag}: use the same credentials in all URLs"));
        }
        Some(Self {
            addresses,
            credentials: credentials.pop().flatten(),
            authorities,
            identity,
        })
    }

    /// Connects to one of the servers. `timeout` applies to the connection and to each request.
    ///
    /// # Errors
    /// If no server is available, or the servers reject the credentials.
    pub async fn connect(&self, name: &str, timeout: Duration) -> Result<Client, ConnectError> {
        self.connect_with(name, timeout, |options| options).await
    }

    /// Connects with further options.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_with(
        &self,
        name: &str,
        timeout: Duration,
        set: impl FnOnce(ConnectOptions) -> ConnectOptions,
    ) -> Result<Client, ConnectError> {
        let mut options = set(ConnectOptions::new())
            .name(name)
            .connection_timeout(timeout)
            .request_timeout(Some(timeout))
            .require_tls(self.authorities.is_some() || self.identity.is_some());
        options = match self.credentials.clone() {
            None => options,
            Some(Credentials::Token(token)) => options.token(token),
            Some(Credentials::User(user, password)) => options.user_and_password(user, password),
        };
        if let Some(file) = &self.authorities {
            options = options.add_root_certificates(file.path.clone());
        }
        if let Some((certificate, key)) = self.identity.clone() {
            options = options.add_client_certificate(certificate.path, key.path);
        }
        options.connect(&*self.addresses).await
    }
}

/// The address and the credentials in a URL; `None` if the URL is invalid or has anything else.
fn parse(text: &str) -> Option<(ServerAddr, Option<Credentials>)> {
    let mut url = Url::parse(text).ok()?;
    let has_only_host =
        matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
    if !matches!(url.scheme(), "nats" | "tls") || !url.has_host() || !has_only_host {
        return None;
    }
    let decode = |text: &str| percent_decode_str(text).decode_utf8().ok().map(Into::into);
    let user = decode(url.username())?;
    let credentials = match url.password() {
        Some(password) => Some(Credentials::User(user, decode(password)?)),
        None => (!user.is_empty()).then_some(Credentials::Token(user)),
    };
    url.set_username("").ok()?;
    url.set_password(None).ok()?;
    Some((ServerAddr::from_url(url).ok()?, credentials))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(urls: &str, expected: Option<Credentials>) {
        let mut errors = ConfigErrors::default();
        let servers = Servers::check(&mut errors, "--nats", urls, &NatsTlsArgs::default()).unwrap();
        assert!(errors.is_empty(), "{urls}");
        assert_eq!(servers.credentials, expected, "{urls}");
        let shown = format!("{servers:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn credentials_of_urls_are_decoded_and_not_shown() {
        let user = |user: &str, password: &str| {
            Some(Credentials::User(user.to_owned(), password.to_owned()))
        };
        check("nats://127.0.0.1", None);
        check("nats://a:s3cret@127.0.0.1:4222", user("a", "s3cret"));
        check(
            "tls://a%40b:s3cret%2F%3A%25@[::1]:4222",
            user("a@b", "s3cret/:%"),
        );
        check(
            "nats://s3cret@host",
            Some(Credentials::Token("s3cret".to_owned())),
        );
        check(
            "nats://a:s3cret@one, nats://a:s3cret@two",
            user("a", "s3cret"),
        );
    }

    #[test]
    fn invalid_urls_and_unreadable_files_are_rejected() {
        for (urls, ca, cert, error) in [
            ("http://s3cret@x", "", "", "--nats: use URLs"),
            ("", "", "", "--nats: use URLs"),
            ("nats://host,", "", "", "--nats: use URLs"),
            ("nats://%ff:s3cret@host", "", "", "--nats: use URLs"),
            // A slash that is not percent-encoded: the host would be `a`.
            ("nats://a:42/s3cret@host", "", "", "--nats: use URLs"),
            ("nats://host?s3cret", "", "", "--nats: use URLs"),
            ("nats://host#s3cret", "", "", "--nats: use URLs"),
            ("nats://a:s3cret@one,nats://two", "", "", "same credentials"),
            ("nats://host", "/none", "", "--nats-tls-ca: /none"),
            ("nats://host", "", "/none", "--nats-tls-cert: requires"),
        ] {
            let tls = NatsTlsArgs {
                nats_tls_ca: ca.to_owned(),
                nats_tls_cert: cert.to_owned(),
                ..NatsTlsArgs::default()
            };
            let mut errors = ConfigErrors::default();
            Servers::check(&mut errors, "--nats", urls, &tls);
            let found = format!("{errors:?}");
            assert!(
                found.contains(error) && !found.contains("s3cret"),
                "{found}"
            );
        }
    }
}
