//! Settings of a consumer: flags, `CONSUMER_…` environment variables and an optional TOML file.
//!
//! All errors are reported together, before any port is bound. Neither errors nor printed settings contain the
//! credentials of a store.

mod args;
mod parse;

use std::{collections::BTreeSet, ffi::OsString, fmt, net::SocketAddr, path::PathBuf, sync::Arc};

use runtime::{
    connect::credentials::{Security, is_loopback_host, load_files, pair},
    reload::{NamedFile, Reloader},
    settings::{self, CommonArgs, ConfigErrors, Settings, redacted},
    tls::server::Files,
    token,
};

use crate::{recovery, ttl::Ttls};

use self::args::{ArchiveArgs, ArchiveMode, DEFAULT_PRODUCER};
pub use self::args::{
    Args, CopyArgs, LookupArgs, MaintenanceArgs, MongodbArgs, ProcessArgs, ProducersArgs,
    RetentionArgs, StorageArgs,
};

/// URL of a producer, of all producers behind a host name, or of another node's admin port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProducerUrl {
    /// Whether to connect with TLS.
    pub https: bool,
    /// Host name or address. An IPv6 address has no brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Which store to use.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// The embedded store in this directory.
    Embedded(PathBuf),
    /// A MongoDB connection string. It may contain credentials, which are not printed.
    Mongodb(String),
}

/// TLS and authentication of the lookup port.
#[derive(Debug, Clone)]
pub struct LookupSecurity {
    /// Tokens of bidders; `None` if they need none.
    pub tokens: Option<Arc<Reloader<token::File>>>,
    /// The certificate; `None` if connections are unencrypted.
    pub tls: Option<Arc<Reloader<Files>>>,
}

/// Validated settings. Printed without secrets.
#[derive(Debug, Clone)]
pub struct Config {
    /// All settings, as given.
    pub args: Args,
    /// TLS and authentication.
    pub security: Security,
    /// TTLs of cookies. Clones share the TTLs that producers report.
    pub ttls: Ttls,
    /// Tokens of clients that may read all cookies.
    pub cookies_tokens: Option<Arc<Reloader<token::File>>>,
    /// TLS and authentication of the lookup port.
    pub lookup_security: LookupSecurity,
    /// The archive, if there is one.
    pub archive: Option<recovery::Nats>,
    /// Where this node reports its positions.
    pub node_reports: Option<recovery::NodeReports>,
    /// Whether everything is read from the archive, and nothing from producers.
    pub is_follower: bool,
    /// Token for the nodes from which this node is filled.
    pub copy_token: Option<Arc<Reloader<token::File>>>,
}

impl Config {
    /// Loads the settings of a program started with `arguments`, beginning with the program name.
    ///
    /// # Errors
    /// All configuration errors, ready to print. Also the output of `--help` and `--version`.
    pub fn load(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        settings::load::<Args>(arguments).map(|loaded| loaded.config)
    }
}

impl Settings for Args {
    type Config = Config;

    fn check(self, errors: &mut ConfigErrors) -> Config {
        self.storage.check(errors);
        self.retention.check(errors);
        self.archive.check_mode(errors, &self.producers);
        let has_https = self.producers.producer.iter().any(|it| it.https);
        let archive = self.archive.check(errors, &self.producers.name);
        let reports = &self.archive.node_reports;
        let with_reports = archive.as_ref().filter(|_| !reports.is_empty());
        let file = &self.process.cookies_token_file;
        let file = NamedFile::from_flag("--cookies-token-file", file).map(token::File::new);
        Config {
            lookup_security: self.lookup.check(errors, self.process.admin),
            security: Security::check(errors, &self.security, has_https),
            ttls: self.retention.ttls(),
            copy_token: self.copy.check(errors, self.process.admin),
            cookies_tokens: file.and_then(|file| load_files(errors, file)),
            node_reports: with_reports.and_then(|it| it.node_reports(errors, reports)),
            archive,
            is_follower: self.archive.archive_mode == ArchiveMode::Follow,
            args: self,
        }
    }

    fn common(config: &Config) -> &CommonArgs {
        &config.args.common
    }
}

impl ArchiveArgs {
    fn check_mode(&self, errors: &mut ConfigErrors, producers: &ProducersArgs) {
        if self.archive_mode != ArchiveMode::Follow {
            return;
        }
        if self.archive.is_empty() {
            errors.add("--archive-mode follow: requires --archive; add the URL of the stream");
        }
        // clap does not tell whether a list has its default value.
        if !matches!(&*producers.producer, [it] if it.to_string() == DEFAULT_PRODUCER) {
            errors.add("--archive-mode follow: reads nothing from producers; remove --producer");
        }
    }

    fn check(&self, errors: &mut ConfigErrors, name: &str) -> Option<recovery::Nats> {
        if self.archive.is_empty() {
            self.tls.check_unused(errors);
            if !self.node_reports.is_empty() {
                errors.add("--node-reports: requires --archive");
            }
            return None;
        }
        recovery::Nats::check(errors, &self.archive, &self.tls, name)
    }
}

impl StorageArgs {
    fn check(&self, errors: &mut ConfigErrors) {
        if let Some(both) = self.dsps().intersection(&self.rejected_dsps()).next() {
            errors.add(format!(
                "--rejected-dsps: DSP {both} is also in --dsps; remove it from one of them"
            ));
        }
    }
}

impl CopyArgs {
    fn check(
        &self,
        errors: &mut ConfigErrors,
        admin: SocketAddr,
    ) -> Option<Arc<Reloader<token::File>>> {
        let own = |node: &&ProducerUrl| node.port == admin.port() && is_loopback_host(&node.host);
        if let Some(node) = self.nodes().find(own) {
            errors.add(format!(
                "--copy-from: {node} is the --admin port of this node"
            ));
        }
        let file = NamedFile::from_flag("--copy-token-file", &self.copy_token_file);
        file.and_then(|file| load_files(errors, token::File::new(file)))
    }

    /// The nodes to copy.
    pub fn nodes(&self) -> impl Iterator<Item = &ProducerUrl> {
        self.copy_from.iter().flatten()
    }
}

impl LookupArgs {
    fn check(&self, errors: &mut ConfigErrors, admin: SocketAddr) -> LookupSecurity {
        let file = NamedFile::from_flag("--lookup-token-file", &self.lookup_token_file);
        let certificate = NamedFile::from_flag("--lookup-tls-cert", &self.lookup_tls_cert);
        let key = NamedFile::from_flag("--lookup-tls-key", &self.lookup_tls_key);
        match self.lookup {
            None if file.is_some() || certificate.is_some() || key.is_some() => {
                errors.add(
                    "--lookup-token-file, --lookup-tls-cert, --lookup-tls-key: require --lookup",
                );
            }
            Some(address) if address == admin && address.port() > 0 => {
                errors.add(format!("--lookup: {address} is also the --admin address"));
            }
            Some(address) if !address.ip().is_loopback() && file.is_none() => {
                errors.add(format!(
                    "--lookup: {address} is not a loopback address: set --lookup-token-file"
                ));
            }
            _ => {}
        }
        let tokens = file.and_then(|file| load_files(errors, token::File::new(file)));
        let tls = pair(errors, certificate, key).and_then(|(certificate, key)| {
            let files = Files {
                certificate,
                key,
                client_authorities: None,
                kind: "lookup_certificate",
            };
            load_files(errors, files)
        });
        LookupSecurity { tokens, tls }
    }
}

impl RetentionArgs {
    fn check(&self, errors: &mut ConfigErrors) {
        let mut named = BTreeSet::new();
        for (dsp_id, _) in &self.dsp_ttl {
            if !named.insert(dsp_id) {
                errors.add(format!("--dsp-ttl: DSP {dsp_id} has more than one TTL"));
            }
        }
        if self.ttl_floor > Some(self.ttls().max()) {
            errors.add(
                "--ttl-floor: exceeds every time to live; lower it, or raise --ttl".to_owned(),
            );
        }
    }
}

impl fmt::Display for ProducerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(dir) => write!(f, "embedded:{}", dir.display()),
            Self::Mongodb(uri) => f.write_str(&redacted(uri)),
        }
    }
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
