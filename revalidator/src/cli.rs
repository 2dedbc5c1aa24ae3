//! The commands `revalidator jobs …`, which call the API.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use http::Method;
use serde_json::{Map, Value};
use url::Url;

use crate::{messages::JobStatus, metrics::job_state, origin};

/// Create and show jobs
#[derive(Debug, Parser)]
#[command(name = "revalidator jobs", bin_name = "revalidator jobs", version = runtime::VERSION)]
struct Cli {
    /// URL of the API
    #[arg(
        long,
        global = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:9096"
    )]
    url: Url,

    /// File with the token for the API
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a job for the assets of an application
    Create {
        /// Name of the application
        app: String,
        /// Which objects may be removed: none, partial or all
        #[arg(long, value_name = "OBJECTS", default_value = "none")]
        allow_delete: String,
        /// Replace all objects, without conditional requests
        #[arg(long)]
        force: bool,
        /// Maximum number of workers [default: that of the application]
        #[arg(long, value_name = "COUNT")]
        workers: Option<u32>,
        /// Minimum seconds since the last check of an asset
        #[arg(long, value_name = "SECONDS")]
        older_than: Option<u64>,
        /// First characters of the keys
        #[arg(long, value_name = "TEXT")]
        prefix: Option<String>,
        /// Fraction of the assets, from 0 to 1
        #[arg(long, value_name = "SHARE")]
        sample: Option<f64>,
        /// Name of the application again, required by --allow-delete all
        #[arg(long, value_name = "APP")]
        confirm: Option<String>,
    },
    /// Show all jobs, one a line
    List,
    /// Show the status of a job
    Show {
        /// Id of the job
        id: String,
    },
    /// Pause a job
    Pause {
        /// Id of the job
        id: String,
    },
    /// Resume a suspended or paused job
    Resume {
        /// Id of the job
        id: String,
    },
    /// Cancel a job
    Cancel {
        /// Id of the job
        id: String,
    },
    /// Acknowledge a cancelled job
    Acknowledge {
        /// Id of the job
        id: String,
    },
}

/// Runs a command; `arguments` begin with the name of the program.
pub fn main(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    let cli = Cli::parse_from(arguments);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let output = runtime
        .map_err(Into::into)
        .and_then(|it| it.block_on(run(&cli)));
    match output {
        Ok(text) => runtime::settings::info_commands::print(Ok(text.into_bytes())),
        Err(error) => {
            eprintln!("revalidator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: &Cli) -> Result<String> {
    let operation = |id: &String, name| (Method::POST, format!("/v1/jobs/{id}/{name}"), None);
    let (method, path, body) = match &cli.command {
        Command::Create {
            app,
            allow_delete,
            force,
            workers,
            older_than,
            prefix,
            sample,
            confirm,
        } => {
            let filter = [
                ("olderThan", older_than.map(Value::from)),
                ("prefix", prefix.clone().map(Value::from)),
                ("sample", sample.map(Value::from)),
            ];
            let filter: Map<_, _> = filter
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)))
                .collect();
            let body = serde_json::json!({
                "app": app, "allowDelete": allow_delete, "forceUpdate": force, "revalidatorsNeeded": workers,
                "confirm": confirm, "filter": filter,
            });
            (Method::POST, "/v1/jobs".to_owned(), Some(body))
        }
        Command::List => (Method::GET, "/v1/jobs".to_owned(), None),
        Command::Show { id } => (Method::GET, format!("/v1/jobs/{id}"), None),
        Command::Pause { id } => operation(id, "pause"),
        Command::Resume { id } => operation(id, "resume"),
        Command::Cancel { id } => operation(id, "cancel"),
        Command::Acknowledge { id } => operation(id, "acknowledge"),
    };
    let http = origin::builder().build().context("HTTP client")?;
    let mut request = http.request(method, cli.url.join(&path)?);
    if let Some(file) = &cli.token_file {
        let token = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        request = request.bearer_auth(token.lines().next().unwrap_or_default().trim());
    }
    if let Some(body) = body {
        request = request.json(&body);
    }
    let response = request.send().await.context("no response")?;
    let status = response.status();
    let body: Value = response.json().await.context("unexpected response")?;
    if !status.is_success() {
        let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        bail!("{}: {}", text("title"), text("detail"));
    }
    if !matches!(cli.command, Command::List) {
        return Ok(format!("{}\n", serde_json::to_string_pretty(&body)?));
    }
    let jobs: Vec<JobStatus> = serde_json::from_value(body["jobs"].clone())?;
    Ok(jobs.iter().map(line).collect())
}

fn line(job: &JobStatus) -> String {
    let counts = &job.counts;
    format!(
        "{}  {}  {}/{} checked, {} changed, {} gone, {} deleted, {} failed{}\n",
        job.job_id,
        job_state(job),
        counts.checked,
        job.asset_count,
        counts.changed,
        counts.gone,
        counts.deleted,
        counts.failed,
        job.reason
            .as_ref()
            .map(|it| format!("; {it}"))
            .unwrap_or_default(),
    )
}
