//! Tests of handshakes between our client and server, without network or files.

use std::{future::pending, io, net::SocketAddr, path::PathBuf, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::Instant,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    listen::{self, Limits, Listener, Metrics, Proxies, Stage, WatchedStream},
    metrics::Registry,
    reload::{NamedFile, Reloader, Source},
};

const EXPIRY: i64 = 4_102_444_800; // 2100-01-01

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }

    /// Certificate and key in PEM.
    fn sign(&self, change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names = vec!["producer.test".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = date_time_ymd(2100, 1, 1);
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

fn named(flag: &'static str) -> NamedFile {
    let path = PathBuf::from("test.pem");
    NamedFile { flag, path }
}

fn build<S: Source>(source: &S, contents: &[&str]) -> Result<S::Value, Vec<String>> {
    let contents = contents.iter().map(|text| text.as_bytes().to_vec());
    source.build(&contents.collect::<Vec<_>>())
}

fn server_files(client_authorities: bool) -> server::Files {
    server::Files {
        certificate: named("--tls-cert"),
        key: named("--tls-key"),
        client_authorities: client_authorities.then(|| named("--tls-client-ca")),
        kind: "certificate",
    }
}

fn client_files(identity: bool) -> client::Files {
    client::Files {
        authorities: named("--tls-ca"),
        identity: identity.then(|| (named("--tls-cert"), named("--tls-key"))),
    }
}

/// A server with this certificate that requires client certificates of this authority, if any.
fn server(
    (certificate, key): &(String, String),
    client_authority: Option<&Authority>,
) -> server::Identity {
    let files = server_files(client_authority.is_some());
    let mut contents = vec![certificate.as_str(), key];
    contents.extend(client_authority.map(|authority| authority.pem.as_str()));
    build(&files, &contents).unwrap()
}

/// A client that trusts this authority and presents this certificate, if any.
fn client(authority: &Authority, identity: Option<&(String, String)>) -> client::Trust {
    let mut contents = vec![authority.pem.as_str()];
    contents.extend(identity.iter().flat_map(|(c, k)| [c.as_str(), k.as_str()]));
    build(&client_files(identity.is_some()), &contents).unwrap()
}

/// Connects client and server, and sends a byte to the client. Returns the client's result.
async fn handshake(
    server: &server::Identity,
    client: &client::Trust,
    name: &str,
) -> io::Result<()> {
    let (near, far) = duplex(64 << 10);
    let acceptor = TlsAcceptor::from(server.config());
    let serving = async {
        if let Ok(mut stream) = acceptor.accept(far).await {
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(HTTP2));
            stream.write_all(b"!").await.unwrap();
            stream.shutdown().await.unwrap();
        }
    };
    let reading = async {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut stream = client.connect(name, near).await?;
        stream.read_u8().await.map(drop)
    };
    tokio::join!(serving, reading).1
}

#[track_caller]
fn check_error(result: io::Result<()>, expected: &str) {
    let error = client::explain(&result.unwrap_err()).unwrap();
    assert!(error.contains(expected), "{error}");
}

#[tokio::test]
async fn client_accepts_only_a_trusted_server() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let ours_signed = server(&ours.sign(|_| ()), None);
    let client = client(&ours, None);
    handshake(&ours_signed, &client, "producer.test")
        .await
        .unwrap();
    let wrong_name = handshake(&ours_signed, &client, "other.test").await;
    check_error(wrong_name, "--tls-server-name");
    let untrusted = server(&others.sign(|_| ()), None);
    let unknown = handshake(&untrusted, &client, "producer.test").await;
    check_error(unknown, "not signed by an authority of --tls-ca");
    let expired = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 1);
    let expired = server(&ours.sign(expired), None);
    check_error(
        handshake(&expired, &client, "producer.test").await,
        "has expired",
    );
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(2090, 1, 1);
    let early = server(&ours.sign(early), None);
    check_error(
        handshake(&early, &client, "producer.test").await,
        "not valid yet",
    );
}

#[tokio::test]
async fn ip_address_is_a_valid_certificate_name() {
    let ours = Authority::new("ours");
    let address = |params: &mut CertificateParams| {
        params.subject_alt_names = vec![SanType::IpAddress("192.0.2.7".parse().unwrap())];
    };
    let server = server(&ours.sign(address), None);
    let client = client(&ours, None);
    handshake(&server, &client, "192.0.2.7").await.unwrap();
    let wrong = handshake(&server, &client, "192.0.2.8").await;
    check_error(wrong, "192.0.2.8");
}

#[tokio::test]
async fn server_with_a_client_authority_requires_client_certificates() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let server = server(&ours.sign(|_| ()), Some(&ours));
    let known = client(&ours, Some(&ours.sign(|_| ())));
    handshake(&server, &known, "producer.test").await.unwrap();
    let bare = client(&ours, None);
    let rejected = handshake(&server, &bare, "producer.test").await;
    check_error(rejected, "requires a client certificate");
    let untrusted = client(&ours, Some(&others.sign(|_| ())));
    let rejected = handshake(&server, &untrusted, "producer.test").await;
    check_error(rejected, "rejects the certificate");
}

#[tokio::test]
async fn authority_used_as_server_certificate_is_reported() {
    let ours = Authority::new("ours");
    let unconstrained = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = ours.sign(|params| params.is_ca = unconstrained);
    let rejected = handshake(
        &server(&certificate, None),
        &client(&ours, None),
        "producer.test",
    )
    .await;
    check_error(rejected, "CA:TRUE");
}

#[tokio::test]
async fn server_without_tls_is_reported() {
    let (near, mut far) = duplex(1024);
    let settings_frame = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    far.write_all(&settings_frame).await.unwrap();
    let client = client(&Authority::new("ours"), None);
    let name = ServerName::try_from("producer.test").unwrap();
    check_error(client.connect(name, near).await.map(drop), "http://");
}

/// A port of one connection.
struct OneConnection(Option<DuplexStream>);

impl Listener for OneConnection {
    type Stream = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        match self.0.take() {
            Some(stream) => Ok((stream, ([192, 0, 2, 1], 1).into())),
            None => pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[tokio::test(start_paused = true)]
async fn connection_after_its_handshake_has_the_idle_timeout() {
    let ours = Authority::new("ours");
    let (certificate, key) = ours.sign(|_| ());
    let dir = tempfile::tempdir().unwrap();
    let write = |flag: &'static str, text| {
        let path = dir.path().join(flag);
        std::fs::write(&path, text).unwrap();
        NamedFile { flag, path }
    };
    let files = server::Files {
        certificate: write("--tls-cert", certificate),
        key: write("--tls-key", key),
        ..server_files(false)
    };
    let files = Arc::new(Reloader::load(files).unwrap());
    let registry = Registry::new();
    let tls = server::Handshakes::new(files, &registry, "test", "handshakes_total").unwrap();
    let (tls, stage) = (Arc::new(tls), Stage::default());
    let limits = Limits {
        connections_max: 100,
        connections_per_address_max: None,
        request_timeout: Some(Duration::from_secs(10)),
        idle_timeout: Duration::from_secs(60),
        write_timeout: None,
    };
    let stop = stage.stop.clone();
    let serve = move |stream: WatchedStream<DuplexStream>, _| {
        let (tls, stop) = (Arc::clone(&tls), stop.clone());
        async move {
            let mut stream = tls.accept(stream, &stop).await.unwrap();
            drop(stream.read_u8().await);
        }
    };
    let (near, far) = duplex(64 << 10);
    let (listener, proxies) = (OneConnection(Some(far)), Proxies::default());
    let metrics = Metrics::register(&registry, "test", "http").unwrap();
    let accepting = listen::accept(
        listener,
        proxies,
        limits.fixed(),
        metrics,
        stage.clone(),
        serve,
    );
    stage.tasks.spawn(accepting);
    let begin = Instant::now();
    let name = ServerName::try_from("producer.test").unwrap();
    let connected = client(&ours, None).connect(name, near).await;
    assert!(connected.unwrap().read_u8().await.is_err());
    assert!(begin.elapsed() >= Duration::from_secs(60));
}

#[test]
fn all_file_errors_name_their_flag_and_show_no_key() {
    let ours = Authority::new("ours");
    let (certificate, key) = ours.sign(|_| ());
    let (other, _) = ours.sign(|_| ());
    let check = |contents: [&str; 3], expected: &[&str]| {
        let errors = build(&server_files(true), &contents).unwrap_err();
        assert_eq!(errors.len(), expected.len(), "{errors:?}");
        for (error, expected) in errors.iter().zip(expected) {
            assert!(error.contains(expected), "{error}");
        }
        let secret = key.lines().nth(1).unwrap();
        assert!(!format!("{errors:?}").contains(&secret[..16]));
    };
    let nothing = "# nothing\n";
    let all = ["--tls-cert", "--tls-key", "--tls-client-ca"];
    check([nothing, nothing, nothing], &all);
    let mismatch = "--tls-key: test.pem: does not match";
    check([&other, &key, &ours.pem], &[mismatch]);
    let no_certificate = "--tls-cert: test.pem: contains no certificate";
    check([&key, &key, &ours.pem], &[no_certificate]);
    let broken = key.replace("MI", "!!");
    let no_pem = "--tls-key: test.pem: is not valid PEM";
    check([&certificate, &broken, &ours.pem], &[no_pem]);
}

#[test]
fn expiry_is_the_earliest_of_each_file() {
    let ours = Authority::new("ours");
    let identity = ours.sign(|_| ());
    let sooner = ours.sign(|params| params.not_after = date_time_ymd(2049, 12, 31));
    let server = server(&identity, None);
    assert_eq!(server::Files::expiries(&server), [("certificate", EXPIRY)]);
    let chain = (identity.0 + &sooner.0, identity.1);
    let server = self::server(&chain, None);
    let end_of_2049 = 2_524_521_600;
    assert_eq!(
        server::Files::expiries(&server),
        [("certificate", end_of_2049)]
    );
}
