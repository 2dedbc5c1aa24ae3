//! Tests of connections to MongoDB: all transports and authentication methods, and errors, which must never contain
//! credentials.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use mongodb::bson::{Bson, Document, doc};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;
use tempfile::TempDir;
use testkit::{
    admin, mongod,
    programs::{Process, free_address},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    documents::Documents,
    harness::{
        Consumer, DRAIN_TIMEOUT, Producer, TIMEOUT, expect_exit, programs, run_to_end, wait_logged,
        wait_until,
    },
    mongods::{ReplicaSet, command, create_root, create_user, shared},
};

/// Stores a cookie in `store`, looks it up, and returns the consumer's log.
async fn check_store(dir: &TempDir, store: &str, flags: &[&str]) -> Result<String> {
    let producer = Producer::start(dir, &[]).await?;
    let mut consumer = Consumer::start(dir, "node", &[&producer], store, flags).await?;
    producer.accept("alice", 17, "a-1").await?;
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await?;
    let status = consumer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&consumer.process, status, 0)?;
    Ok(consumer.process.last_lines(usize::MAX))
}

/// Whether the consumer was built without a feature that a connection string needs.
///
/// If so, `--check-config` must name the build that has it, without any part of the string.
async fn lacks_feature(store: &str, secrets: &[&str]) -> Result<bool> {
    let args = ["--check-config", "--store", store];
    let output = run_to_end(&programs().await?.consumer, &args, &[]).await?;
    check_hides(&output.text, secrets)?;
    if output.code == Some(0) {
        return Ok(false);
    }
    ensure!(
        output.text.contains("this build supports neither"),
        "{}",
        output.text
    );
    ensure!(output.text.contains("consumer/full"), "{}", output.text);
    Ok(true)
}

fn check_hides(text: &str, secrets: &[&str]) -> Result<()> {
    for secret in secrets {
        ensure!(!text.contains(secret), "{secret} appears in {text}");
    }
    Ok(())
}

#[tokio::test]
async fn consumer_connects_through_a_unix_socket() -> Result<()> {
    let dir = TempDir::new()?;
    let sockets = TempDir::new_in("/tmp")?;
    let prefix = sockets.path().display().to_string();
    let more = ["--unixSocketPrefix", &prefix];
    let mongod = mongod::start_with(&dir.path().join("mongod"), &more).await?;
    let socket = format!("{prefix}/mongodb-{}.sock", mongod.address.port());
    let store = format!("mongodb://{}", socket.replace('/', "%2F"));
    check_store(&dir, &store, &[]).await.map(drop)
}

#[tokio::test]
async fn consumer_connects_to_a_replica_set_with_a_database_prefix() -> Result<()> {
    let dir = TempDir::new()?;
    let set = ReplicaSet::start(dir.path(), 1).await?;
    let store = format!("{}&w=majority", set.uri());
    check_store(&dir, &store, &["--mongodb-prefix", "exchange_"]).await?;
    let answer = command(&set.uri(), doc! { "listDatabases": 1, "nameOnly": true }).await?;
    let databases = answer.get_array("databases")?;
    let names = databases.iter().filter_map(Bson::as_document);
    let mut names: Vec<_> = names
        .filter_map(|database| database.get_str("name").ok())
        .collect();
    names.retain(|name| !["admin", "config", "local"].contains(name));
    names.sort_unstable();
    ensure!(names == ["exchange_17", "exchange_cookiesync"], "{names:?}");
    Ok(())
}

/// Certificates of a test authority, as PEM files.
struct Certificates {
    authority: String,
    server: String,
    client: String,
}

impl Certificates {
    fn create(dir: &Path) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "authority");
        let authority = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        let signed = |names: &[&str], unit: &str| {
            let key = KeyPair::generate()?;
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            let mut params = CertificateParams::new(names)?;
            let name = &mut params.distinguished_name;
            *name = rcgen::DistinguishedName::new();
            name.push(DnType::OrganizationName, "Exchange");
            name.push(DnType::OrganizationalUnitName, unit);
            name.push(DnType::CommonName, unit);
            let certificate = params.signed_by(&key, &issuer)?;
            anyhow::Ok(certificate.pem() + &key.serialize_pem())
        };
        let write = |name: &str, text: String| {
            let path = dir.join(name);
            fs::write(&path, text)?;
            anyhow::Ok(path.display().to_string())
        };
        Ok(Self {
            authority: write("authority.pem", authority)?,
            server: write(
                "server.pem",
                signed(&["127.0.0.1", "localhost"], "servers")?,
            )?,
            client: write("client.pem", signed(&["consumer"], "consumers")?)?,
        })
    }
}

#[tokio::test]
async fn consumer_connects_by_tls_with_passwords_certificates_and_compression() -> Result<()> {
    let dir = TempDir::new()?;
    let certificates = Certificates::create(dir.path())?;
    let more = [
        "--auth",
        "--tlsMode",
        "requireTLS",
        "--tlsCertificateKeyFile",
        &certificates.server,
        "--tlsCAFile",
        &certificates.authority,
        "--tlsAllowConnectionsWithoutCertificates",
    ];
    let mongod = mongod::start_with(&dir.path().join("mongod"), &more).await?;
    let address = mongod.address;
    let tls = format!(
        "tls=true&tlsCAFile={}",
        certificates.authority.replace('/', "%2F")
    );
    create_root(
        &format!("mongodb://{address}/?{tls}"),
        "boss",
        "boss-secret",
    )
    .await?;
    let boss = format!("mongodb://boss:boss-secret@{address}/?{tls}");
    create_user(&boss, "exchange", "s3cr3t/p@ss", "readWriteAnyDatabase").await?;
    let login = "exchange:s3cr3t%2Fp%40ss";
    let secrets = [login, "s3cr3t", "s3cr3t/p@ss", "boss-secret"];
    let mut logs = String::new();
    for compressor in ["zstd", "zlib", "snappy"] {
        let store = format!("mongodb://{login}@{address}/?{tls}&compressors={compressor}");
        if compressor == "zstd" && lacks_feature(&store, &secrets).await? {
            continue;
        }
        logs += &check_store(&dir, &store, &[]).await?;
        let status = command(&boss, doc! { "serverStatus": 1 }).await?;
        let used = status
            .get_document("network")?
            .get_document("compression")?
            .get_document(compressor)?
            .get_document("decompressor")?;
        let bytes = used.get("bytesIn").and_then(Bson::as_i64);
        ensure!(
            bytes.context("bytesIn is missing")? > 0,
            "{compressor} is not used"
        );
    }

    let subject = "CN=consumers,OU=consumers,O=Exchange";
    let roles = ["readWriteAnyDatabase"].map(|role| doc! { "role": role, "db": "admin" });
    let client = mongodb::Client::with_uri_str(&boss).await?;
    let user = doc! { "createUser": subject, "roles": roles.to_vec() };
    client.database("$external").run_command(user).await?;
    let key = certificates.client.replace('/', "%2F");
    let store = format!(
        "mongodb://{address}/?{tls}&tlsCertificateKeyFile={key}&authMechanism=MONGODB-X509&authSource=$external"
    );
    logs += &check_store(&dir, &store, &[]).await?;
    check_hides(&logs, &secrets)?;

    // The server's certificate is not trusted without tlsCAFile.
    let store = format!("mongodb://{login}@{address}/?tls=true");
    let consumer =
        Consumer::spawn(&dir, "untrusting", &["http://127.0.0.1:1"], &store, &[]).await?;
    consumer.wait_not_ready("certificate").await?;
    let answer = admin::get(&consumer.admin, "/readyz").await?;
    check_hides(&answer.body, &secrets)?;
    check_hides(&consumer.process.last_lines(usize::MAX), &secrets)
}

#[tokio::test]
async fn credentials_never_appear_in_logs_or_responses() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = mongod::start_with(&dir.path().join("mongod"), &["--auth"]).await?;
    let address = mongod.address;
    create_root(&mongod.uri(), "boss", "boss-secret").await?;
    let consumer = programs().await?.consumer.display().to_string();
    let secrets = ["exch4nge", "s3cr3t", "s3cr3t/p@ss", "s3cr3t%2Fp%40ss"];
    let login = "exch4nge:s3cr3t%2Fp%40ss";
    for (number, (store, reason)) in [
        (
            format!("mongodb://{login}@{address}/"),
            "Authentication failed",
        ),
        (
            format!("mongodb://{login}@127.0.0.1:1/?authSource=admin"),
            "Connection refused",
        ),
        (
            format!("mongodb://{login}@no-such-host.invalid/"),
            "store: ",
        ),
        (
            format!("mongodb+srv://{login}@no-such-host.invalid/"),
            "store: ",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        if store.starts_with("mongodb+srv") && lacks_feature(&store, &secrets).await? {
            continue;
        }
        let admin_address = free_address()?.to_string();
        let log = dir.path().join(format!("consumer-{number}.log"));
        let args = [
            "CONSUMER_LOG_FILTER=trace",
            &consumer,
            "--store",
            &store,
            "--admin",
            &admin_address,
            "--producer",
            "http://127.0.0.1:1",
        ];
        let args = args.map(str::to_owned);
        let process = Process::start("the consumer", Path::new("/usr/bin/env"), &args, &log)?;
        wait_until(TIMEOUT, reason, async || {
            // The port may not be open yet.
            let readiness = admin::readiness(&admin_address).await.ok();
            let text = readiness.and_then(Result::err).unwrap_or_default();
            Ok(text.contains(reason) && !text.contains("not opened"))
        })
        .await
        .with_context(|| process.last_lines(5))?;
        let text = admin::get(&admin_address, "/readyz").await?.body;
        let answer = admin::get(&admin_address, "/v1/users/alice").await?;
        check_hides(&answer.body, &secrets)?;
        check_hides(&text, &secrets)?;
        wait_logged(&process, "store unavailable, retrying").await?;
        check_hides(&process.last_lines(usize::MAX), &secrets)?;
    }
    Ok(())
}

/// Responds to every `hello` like MongoDB 3.6.
async fn respond_as_3_6(mut stream: TcpStream) -> Result<()> {
    const OP_REPLY: i32 = 1;
    const OP_MSG: i32 = 2013;
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head).await?;
        let number =
            |at: usize| -> Result<i32> { Ok(i32::from_le_bytes(head[at..at + 4].try_into()?)) };
        let mut rest = vec![0; usize::try_from(number(0)?)? - head.len()];
        stream.read_exact(&mut rest).await?;
        let hello: Document = doc! {
            "ok": 1, "ismaster": true, "minWireVersion": 0, "maxWireVersion": 6, "maxBsonObjectSize": 16 << 20,
            "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000, "readOnly": false,
        };
        let is_message = number(12)? == OP_MSG;
        let mut body = if is_message {
            vec![0; 5]
        } else {
            [[0; 4], [0; 4], [0; 4], [0; 4], 1_i32.to_le_bytes()].concat()
        };
        body.extend(hello.to_vec()?);
        let code = if is_message { OP_MSG } else { OP_REPLY };
        let bytes = i32::try_from(16 + body.len())?;
        let head = [bytes, 1, number(4)?, code].map(i32::to_le_bytes);
        stream.write_all(&[head.concat(), body].concat()).await?;
    }
}

#[tokio::test]
async fn unsupported_mongod_version_is_reported_until_it_is_upgraded() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = shared::start().await?;
    mongod.kill()?;
    let address = mongod.address;
    wait_until(TIMEOUT, "the port of mongod is free", async || {
        Ok(TcpListener::bind(address).await.is_ok())
    })
    .await?;
    let listener = TcpListener::bind(address).await?;
    let mut responder = JoinSet::new();
    responder.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(respond_as_3_6(stream));
        }
    });
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::spawn(&dir, "node", &[&producer.grpc], &mongod.uri(), &[]).await?;
    let reason = "reports wire version 6";
    consumer.wait_not_ready(reason).await?;
    wait_logged(&consumer.process, reason).await?;

    producer.accept("alice", 17, "a-1").await?;
    responder.shutdown().await;
    mongod.restart().await?;
    consumer.wait_ready().await?;
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await?;
    let documents = Documents::connect(&mongod.uri()).await?;
    ensure!(documents.count().await? == 1);
    Ok(())
}
