//! Tests of clients in other languages: one generated from the OpenAPI description, and the examples.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use testkit::tools::skip;

use crate::serve::harness::{Limiter, body};

/// PyPI packages for the generated client.
const PACKAGES: [&str; 1] = ["openapi-python-client==0.26.2"];

const LIMITS: &str = "
[limits.a]
rules = [{ id = 'peak', rate = '1/s' }]
[limits.b]
rules = [{ id = 'slow', rate = '1/10s', burst = 2 }]
[limits.called]
from_call = true
";

fn run(command: &mut Command) -> Result<Output> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{text}{errors}",
        output.status
    );
    Ok(output)
}

/// Returns the programs of a Python environment with [`PACKAGES`], created once in cargo's target directory.
fn environment() -> Result<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    fs::create_dir_all(&dir)?;
    let lock = File::create(dir.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive).context("cannot lock")?;
    let (programs, complete) = (dir.join("venv/bin"), dir.join("complete"));
    let wanted = PACKAGES.join("\n");
    if fs::read_to_string(&complete).is_ok_and(|it| it == wanted) {
        return Ok(programs);
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(dir.join("venv")))?;
    run(Command::new(programs.join("python"))
        .args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:"])
        .args(PACKAGES))?;
    fs::write(&complete, wanted)?;
    Ok(programs)
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Like [`environment`], but skips the test if the packages are not available.
async fn programs() -> Result<Option<PathBuf>> {
    let environment = tokio::task::spawn_blocking(environment).await?;
    Ok(environment
        .inspect_err(|error| skip(format_args!("no packages from PyPI ({error:#})")))
        .ok())
}

/// Starts a limiter with a token file in this directory.
async fn with_tokens(dir: &Path) -> Result<Limiter> {
    let tokens = dir.join("tokens");
    fs::write(
        &tokens,
        "test one-token-of-16b *\nnarrow narrow-token-16b a\n",
    )?;
    let flag = format!("--token-file={}", tokens.display());
    Limiter::start(LIMITS, &[&flag]).await
}

#[tokio::test]
async fn client_generated_from_the_description_uses_all_operations() -> Result<()> {
    let Some(programs) = programs().await? else {
        return Ok(());
    };
    let dir = tempfile::TempDir::new()?;
    let mut limiter = with_tokens(dir.path()).await?;
    let token = [("Authorization", "Bearer one-token-of-16b")];
    let description = limiter
        .client()
        .await?
        .get("/v1/openapi.json", &token)
        .await?;
    ensure!(body(&description, 200)["openapi"] == "3.1.0");
    let path = |name: &str| dir.path().join(name);
    fs::write(path("openapi.json"), &description.body)?;
    fs::write(
        path("config.yml"),
        "project_name_override: limiter-client\npackage_name_override: limiter_client\npost_hooks: []\n",
    )?;
    let (url, generated) = (format!("http://{}", limiter.address), dir.path().to_owned());
    tokio::task::spawn_blocking(move || {
        run(Command::new(programs.join("openapi-python-client"))
            .args(["generate", "--meta", "none", "--fail-on-warning"])
            .args(["--path", "openapi.json", "--config", "config.yml"])
            .args(["--output-path", "limiter_client"])
            .current_dir(&generated))?;
        run(Command::new(programs.join("python"))
            .arg(source("tests/it/serve/client.py"))
            .args([&url, "one-token-of-16b"])
            .arg(&generated))
    })
    .await??;
    limiter.stop().await
}

#[tokio::test]
async fn examples_reserve_a_slot_before_each_call() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let url = format!("http://{}", limiter.address);
    // A page of the limiter is used as a partner.
    let partner = format!("{url}/v1/problems/counter-limit-reached");
    let output = tokio::task::spawn_blocking(move || {
        let examples = source("../../examples/limiter");
        let python = run(Command::new("python3")
            .arg(examples.join("before_each_call.py"))
            .args([&url, "a", "client 7", &partner]))?;
        let mut shell = Command::new(examples.join("before-each-call.sh"));
        shell
            .env("LIMITER", &url)
            .args(["b", "k", "echo", "called"]);
        let shell = [run(&mut shell)?, run(&mut shell)?];
        // Two calls have used the burst of the limit.
        let body = "{\"max_wait\": 1}";
        let refused = Command::new("curl")
            .args(["--silent", "--json", body])
            .arg(format!("{url}/v1/limits/b/k/reserve"))
            .output()?;
        anyhow::Ok((python.stdout, shell, refused.stdout))
    })
    .await??;
    let (python, shell, refused) = output;
    assert_eq!(python, b"200\n");
    for output in shell {
        assert_eq!(output.stdout, b"called\n");
        let message = "b/k: slot reserved, the call may proceed\n";
        assert_eq!(output.stderr, message.as_bytes());
    }
    ensure!(String::from_utf8_lossy(&refused).contains("quota-exceeded"));
    limiter.stop().await
}
