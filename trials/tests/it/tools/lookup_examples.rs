//! Tests of the bidders' clients in `examples/`, built from the unchanged sources with the code that the usual tools generate, with a real
//! producer, real consumers and a real `mongod`.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{self, Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use mongodb::bson::doc;
use serde_json::json;
use tempfile::TempDir;
use testkit::{
    programs::{free_address, installed, target_dir},
    tools::skip,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    task::spawn_blocking,
};

use crate::{
    edge::security::certificates::Authority,
    harness::{Consumer, Producer, TIMEOUT, embedded, wait_until, within_timeout},
    mongods::{clear_failpoint, set_failpoint, start_failable},
    stream::python_client::{self, run},
};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
const PROTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto");
const PROTO: &str = "cookiesync/v1/cookiesync.proto";

/// Debian's libraries.
const GO_LIBRARIES: &str = "/usr/share/gocode";
const JAVA_LIBRARIES: &str = "/usr/share/java";

#[tokio::test]
async fn python_example_looks_up_matches_and_bids_without_them_in_an_outage() -> Result<()> {
    let python = python_client::python().await?;
    let script = format!("{EXAMPLES}/python/lookup.py");
    check_tls(&python, &[&script]).await?;
    check_outage(&python, &[&script]).await
}

#[tokio::test]
async fn go_example_looks_up_matches_and_bids_without_them_in_an_outage() -> Result<()> {
    let programs = ["go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc"];
    let libraries = [
        "src/google.golang.org/grpc",
        "src/google.golang.org/protobuf",
    ];
    if is_missing(&programs, GO_LIBRARIES, &libraries) {
        return Ok(());
    }
    let dir = TempDir::new()?;
    let built = dir.path().to_owned();
    let client = spawn_blocking(move || build_go(&built)).await??;
    check_tls(&client, &[]).await?;
    check_outage(&client, &[]).await
}

#[tokio::test]
async fn java_example_looks_up_matches_and_bids_without_them_in_an_outage() -> Result<()> {
    let programs = ["java", "javac", "protoc", "grpc_java_plugin"];
    let libraries = ["grpc-netty.jar", "netty-codec-http2.jar", "protobuf.jar"];
    if is_missing(&programs, JAVA_LIBRARIES, &libraries) {
        return Ok(());
    }
    let dir = TempDir::new()?;
    let built = dir.path().to_owned();
    let classes = spawn_blocking(move || build_java(&built)).await??;
    let classes = format!("{}:{JAVA_LIBRARIES}/*", classes.display());
    check_outage(Path::new("java"), &["-cp", &classes, "Lookup"]).await
}

/// Whether a program or a file in `dir` is missing; the test is then skipped.
fn is_missing(programs: &[&str], dir: &str, files: &[&str]) -> bool {
    let dir = Path::new(dir);
    let files = files.iter().map(|file| dir.join(file));
    let missing_file = files.into_iter().find(|file| !file.exists());
    let missing_program = programs.iter().find(|program| installed(program).is_none());
    let missing = missing_program.map(PathBuf::from).or(missing_file);
    if let Some(missing) = &missing {
        skip(format_args!("{} is not installed", missing.display()));
    }
    missing.is_some()
}

/// Builds the client for Go in `dir` with Debian's libraries, which are not modules.
fn build_go(dir: &Path) -> Result<PathBuf> {
    let sources = dir.join("src");
    let package = sources.join("read_cookies");
    fs::create_dir_all(&package)?;
    symlink(format!("{EXAMPLES}/go/lookup"), package.join("lookup"))?;
    let mapping = format!("M{PROTO}=read_cookies/cookiesync");
    run(std::process::Command::new("protoc")
        .args(["-I", PROTOS, PROTO])
        .arg(format!("--go_out={mapping}:{}", sources.display()))
        .arg(format!("--go-grpc_out={mapping}:{}", sources.display())))?;
    let client = dir.join("lookup");
    run(std::process::Command::new("go")
        .args(["build", "-o"])
        .arg(&client)
        .arg("read_cookies/lookup")
        .env("GO111MODULE", "off")
        .env("GOPATH", format!("{}:{GO_LIBRARIES}", dir.display()))
        .env("GOCACHE", path::absolute(target_dir().join("go-cache"))?)
        .env("CGO_ENABLED", "0"))?;
    Ok(client)
}

/// Builds the client for Java; returns the directory of its classes, in `dir`.
fn build_java(dir: &Path) -> Result<PathBuf> {
    let plugin = installed("grpc_java_plugin").context("grpc_java_plugin")?;
    run(std::process::Command::new("protoc")
        .args(["-I", PROTOS, PROTO])
        .arg(format!("--plugin=protoc-gen-grpc={}", plugin.display()))
        .arg(format!("--java_out={}", dir.display()))
        .arg(format!("--grpc_out={}", dir.display())))?;
    let classes = dir.join("classes");
    let generated = dir.join("cookiesync/v1");
    run(std::process::Command::new("javac")
        .args(["-cp", &format!("{JAVA_LIBRARIES}/*"), "-d"])
        .arg(&classes)
        .arg(format!("{EXAMPLES}/java/Lookup.java"))
        .args(["Cookiesync.java", "LookupGrpc.java"].map(|file| generated.join(file))))?;
    Ok(classes)
}

/// A running client, which looks up each line of its input.
struct Client {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Client {
    fn start(program: &Path, args: &[&str], log: PathBuf) -> Result<Self> {
        let mut process = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .kill_on_drop(true)
            .spawn()?;
        let input = process.stdin.take().context("no stdin")?;
        let output = process.stdout.take().context("no stdout")?;
        Ok(Self {
            process,
            input,
            output: BufReader::new(output).lines(),
            log,
        })
    }

    /// Repeats a lookup until the output is `expected` and the log contains `logged`, in any case.
    async fn wait(&mut self, request: &str, expected: &[&str], logged: &str) -> Result<()> {
        let what = format!("{request:?} returns {expected:?} with {logged:?}");
        let log = self.log.clone();
        let log = || fs::read_to_string(&log).unwrap_or_default();
        let client = tokio::sync::Mutex::new(self);
        let found = wait_until(TIMEOUT, &what, async || {
            let mut client = client.lock().await;
            client
                .input
                .write_all(format!("{request}\n").as_bytes())
                .await?;
            let mut lines = Vec::new();
            while lines.len() < expected.len() {
                let line = within_timeout("the client answers", client.output.next_line());
                lines.push(line.await??.context("the client has ended")?);
            }
            Ok(lines == expected && log().to_lowercase().contains(logged))
        });
        found.await.with_context(log)
    }

    /// Ends the input, and with it the client.
    async fn end(mut self) -> Result<()> {
        drop(self.input);
        let status = within_timeout("the client ends", self.process.wait()).await??;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

/// A lookup, and its output when everything is available.
const REQUEST: &str = "alice,bob,alice 17,42,99";
const FOUND: [&str; 3] = ["alice 17=a-17 42=a-42", "bob", "alice 17=a-17 42=a-42"];

/// Starts a producer, and a consumer with a lookup port and these flags, which stores the matches that [`FOUND`] shows.
async fn start_node(dir: &TempDir, store: &str, flags: &[&str]) -> Result<(Producer, Consumer)> {
    let producer = Producer::start(dir, &[]).await?;
    let consumer = Consumer::start(dir, "node", &[&producer], store, flags).await?;
    producer.accept("alice", 17, "a-17").await?;
    producer.accept("alice", 42, "a-42").await?;
    let stored = json!({"17": "a-17", "42": "a-42"});
    consumer.wait_lookup("alice", stored).await?;
    Ok((producer, consumer))
}

/// Writes a file with a token.
fn write_token(dir: &TempDir) -> Result<String> {
    let tokens = dir.path().join("tokens").display().to_string();
    fs::write(&tokens, "nKq3mB0xT5r8vYw1z4A7\n")?;
    Ok(tokens)
}

/// Checks a client while a database hangs, and before and after a restart of the consumer.
async fn check_outage(program: &Path, args: &[&str]) -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = start_failable(&dir).await?;
    let (lookup, tokens) = (free_address()?.to_string(), write_token(&dir)?);
    let flags = ["--lookup", &lookup, "--lookup-token-file", &tokens];
    let (_producer, mut node) = start_node(&dir, &mongod.uri(), &flags).await?;
    let args = [args, &[&lookup, &tokens]].concat();
    let mut client = Client::start(program, &args, dir.path().join("client.log"))?;
    client.wait(REQUEST, &FOUND, "").await?;

    let hang = doc! {
        "failCommands": ["find"], "namespace": "42.cookies", "blockConnection": true, "blockTimeMS": 2_000,
    };
    set_failpoint(&mongod, hang).await?;
    let partial = ["alice 17=a-17", "bob", "alice 17=a-17"];
    let logged = "not read: 0 users, dsps [42]";
    client.wait(REQUEST, &partial, logged).await?;
    clear_failpoint(&mongod).await?;

    node.process.kill()?;
    let without = ["alice", "bob", "alice"];
    let logged = "no buyer uids: unavailable";
    client.wait(REQUEST, &without, logged).await?;
    node.process.restart()?;
    node.wait_ready().await?;
    client.wait(REQUEST, &FOUND, "").await?;
    client.end().await
}

/// Checks a client with TLS.
async fn check_tls(program: &Path, args: &[&str]) -> Result<()> {
    let dir = TempDir::new()?;
    let authority = Authority::new("the authority")?;
    let trusted = authority.write(dir.path(), "authority.pem")?;
    let (certificate, key) = authority.write_identity(dir.path(), "lookup")?;
    let (lookup, tokens) = (free_address()?.to_string(), write_token(&dir)?);
    let flags = [
        ["--lookup", &lookup],
        ["--lookup-token-file", &tokens],
        ["--lookup-tls-cert", &certificate],
        ["--lookup-tls-key", &key],
    ];
    let store = embedded(&dir.path().join("store"));
    let (_producer, _node) = start_node(&dir, &store, flags.as_flattened()).await?;
    let args = [args, &[&lookup, &tokens, &trusted]].concat();
    let mut client = Client::start(program, &args, dir.path().join("client.log"))?;
    client.wait(REQUEST, &FOUND, "").await?;
    client.end().await
}
