//! The commands `revalidator jobs …`, which call the API.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Error, Result, bail};
use clap::Parser;
use http::{Method, header};
use runtime::settings::info_commands;
use serde_json::Value;
use url::Url;

use crate::{client, messages::JobStatus, metrics::job_state, servers::token};

const EXAMPLES: &str = "\
Examples:
  revalidator jobs list
  revalidator jobs create '{\"app\": \"shop\", \"allowDelete\": \"partial\"}'
  revalidator jobs cancel shop-1800000000000-0a1b2c";

/// Create, show and change jobs
#[derive(Debug, Parser)]
#[command(name = "revalidator jobs", bin_name = "revalidator jobs", after_help = EXAMPLES)]
struct Cli {
    /// URL of the API
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9096")]
    url: Url,

    /// File with the token for the API
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Operation
    #[arg(value_parser = ["list", "create", "show", "pause", "resume", "cancel", "acknowledge"])]
    action: String,

    /// Description of a job to create (JSON), or the id of a job
    #[arg(value_name = "JOB", default_value = "", hide_default_value = true)]
    job: String,
}

/// Runs a command; `arguments` begin with the name of the program.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = Cli::parse_from(arguments);
    let runtime = tokio::runtime::Runtime::new().map_err(Into::into);
    let output = runtime.and_then(|it| it.block_on(run(&cli)));
    match output {
        Ok(text) => info_commands::print(Ok(text.into_bytes())),
        Err(error) => {
            eprintln!("revalidator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: &Cli) -> Result<String> {
    let job = &cli.job;
    let (method, path) = match &*cli.action {
        "list" => (Method::GET, "/v1/jobs".to_owned()),
        "create" => (Method::POST, "/v1/jobs".to_owned()),
        _ if job.is_empty() => bail!("missing job id"),
        "show" => (Method::GET, format!("/v1/jobs/{job}")),
        action => (Method::POST, format!("/v1/jobs/{job}/{action}")),
    };
    let http = client::builder().build()?;
    let mut request = http.request(method, cli.url.join(&path)?);
    if let Some(file) = &cli.token_file {
        request = request.bearer_auth(token(file).map_err(Error::msg)?);
    }
    if cli.action == "create" {
        request = request
            .header(header::CONTENT_TYPE, "application/json")
            .body(job.clone());
    }
    let response = request.send().await.context("no response from the API")?;
    let status = response.status();
    let body: Value = response.json().await.context("response is not JSON")?;
    if !status.is_success() {
        let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        bail!("{}: {}", text("title"), text("detail"));
    }
    if cli.action != "list" {
        return Ok(format!("{}\n", serde_json::to_string_pretty(&body)?));
    }
    let jobs: Vec<JobStatus> = serde_json::from_value(body["jobs"].clone())?;
    let lines = jobs.iter().map(|job| {
        let (id, state, count) = (&job.job_id, job_state(job), job.asset_count);
        let (checked, reason) = (job.counts.checked, job.reason.as_deref());
        let reason = reason.unwrap_or_default().escape_debug();
        format!("{id}  {state}  {checked}/{count} checked  {reason}\n")
    });
    Ok(lines.collect())
}
