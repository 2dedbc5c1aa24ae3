//! The status of all processes, what differs between them, and their log filters.

use anyhow::{Context as _, Result, bail};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    args::LogFilterArgs,
    cluster::{Cluster, Port},
    report::{Report, difference, list, text},
};

/// What should be the same at all processes of a role: settings, and other facts as JSON pointers.
const AGREE: [(&str, &str); 3] = [
    ("", "/version /commit"),
    (
        "producer",
        "/contracts /dsps accept_placeholders archive chunk_bytes log_bytes node_reports opt_out opt_out_cookie queue_cookies \
         subscriber_retention uid uid_cookie uid_cookie_domain",
    ),
    (
        "consumer",
        "archive deletion_bytes dsp_ttl dsps node_reports refresh_interval rejected_dsps ttl ttl_floor unlisted_dsps_max",
    ),
];

/// A process, and what `/v1/status` of its admin port states.
pub(crate) struct Process<'a> {
    pub(crate) port: &'a Port,
    pub(crate) status: Result<Value>,
    /// By how much its clock is ahead of this machine's, in seconds, and the maximum error.
    pub(crate) clock: Option<(f64, f64)>,
}

impl Process<'_> {
    /// Its name if it is known, otherwise its address.
    pub(crate) fn name(&self) -> String {
        let name = self
            .status
            .as_ref()
            .map_or("", |status| text(status, "/name"));
        if name.is_empty() {
            self.port.shown()
        } else {
            name.to_owned()
        }
    }

    /// Why it is not as it should be, if so.
    pub(crate) fn trouble(&self) -> Option<String> {
        let readiness = match &self.status {
            Err(error) => return Some(format!("no response: {error:#}")),
            Ok(status) => &status["readiness"],
        };
        let reasons = list(readiness, "reasons").iter();
        let reasons =
            reasons.map(|it| format!("{}: {}", text(it, "/component"), text(it, "/reason")));
        let reasons = || reasons.collect::<Vec<_>>().join("; ");
        (readiness["ready"] != true).then(|| format!("not ready: {}", reasons()))
    }
}

/// The status of all processes, in the order of their ports.
pub(crate) async fn ask(cluster: &Cluster) -> Vec<Process<'_>> {
    let asking = cluster.ask(&cluster.admin, async |caller| {
        let (sent, before) = (Instant::now(), runtime::unix_micros());
        let status = caller.get("/v1/status").await?;
        let half = sent.elapsed().as_secs_f64() / 2.0;
        let micros = status["unix_micros"]
            .as_u64()
            .context("unexpected response")?;
        let ahead = micros.cast_signed() - before.cast_signed();
        #[expect(clippy::cast_precision_loss, reason = "a difference of clocks")]
        let ahead = ahead as f64 / 1e6 - half;
        Ok((status, (ahead, half)))
    });
    let mut processes = Vec::new();
    for (port, answer) in asking.await {
        let clock = answer.as_ref().ok().map(|(_, clock)| *clock);
        let status = answer.map(|(status, _)| status);
        processes.push(Process {
            port,
            status,
            clock,
        });
    }
    processes
}

/// Those of a role that have answered; of all roles if it is empty.
pub(crate) fn answered<'a>(processes: &'a [Process<'_>], role: &str) -> Vec<&'a Value> {
    let all = processes.iter().filter_map(|it| it.status.as_ref().ok());
    all.filter(|it| role.is_empty() || it["process"] == role)
        .collect()
}

/// A row for each process, those with problems first.
pub(crate) async fn report(cluster: &Cluster) -> Report {
    let mut report = Report::new(
        "process name address version uptime_seconds state cookies_per_second lag_cookies not_durable_cookies lost_last_hour",
    );
    let mut processes = ask(cluster).await;
    let differences = differences(&processes);
    processes.sort_by_key(|it| match &it.status {
        Err(_) => 0,
        Ok(_) if it.trouble().is_some() => 1,
        Ok(status) if status["lost_last_hour"] != 0 => 2,
        Ok(_) => 3,
    });
    for process in &processes {
        let (name, trouble) = (process.name(), process.trouble());
        let mut row = json!({ "process": process.port.role });
        if let Ok(status) = &process.status {
            report.is_answered = true;
            row = status.clone();
            if status["lost_last_hour"] != 0 {
                let lost = &status["lost_last_hour"];
                report.problem(format!("{name}: {lost} cookies lost in the last hour"));
            }
        }
        if let Some(trouble) = &trouble {
            report.problem(format!("{name}: {trouble}"));
        }
        row["address"] = process.port.shown().into();
        row["state"] = trouble.unwrap_or_else(|| "ready".to_owned()).into();
        report.rows.push(row);
    }
    report.problems.extend(differences);
    report
}

/// What differs between processes, although it should be the same.
pub(crate) fn differences(processes: &[Process<'_>]) -> Vec<String> {
    let mut differences = Vec::new();
    for (role, keys) in AGREE {
        let statuses = answered(processes, role);
        for key in keys.split(' ') {
            let (pointer, what) = match key.strip_prefix('/') {
                Some(what) => (key.to_owned(), what.to_owned()),
                None => (
                    format!("/settings/{key}"),
                    format!("--{}", key.replace('_', "-")),
                ),
            };
            let value = |it: &Value| match it.pointer(&pointer) {
                Some(Value::String(text)) if !text.is_empty() => text.clone(),
                None | Some(Value::Null | Value::String(_)) => "unset".to_owned(),
                Some(other) => other.to_string(),
            };
            let values = statuses.iter().map(|it| (text(it, "/name"), value(it)));
            differences.extend(difference(&what, values));
        }
    }
    differences
}

/// Changes the log filter of one process for some time. The process restores it, so nothing depends on this program.
pub(crate) async fn set_log_filter(cluster: &Cluster, args: &LogFilterArgs) -> Result<Report> {
    let processes = ask(cluster).await;
    let meant = |it: &&Process<'_>| it.name() == args.process || it.port.shown() == args.process;
    let meant: Vec<_> = processes.iter().filter(meant).map(|it| it.port).collect();
    let [port] = *meant else {
        let (count, name) = (meant.len(), &args.process);
        bail!("{count} processes are named {name:?}; use a name or address shown by `status`")
    };
    let path = format!("/log-filter?for={}s", args.time.as_secs());
    let answers = cluster.ask([port], async |caller| {
        let before = caller.get("/log-filter").await?;
        let filter = args.filter.to_string();
        let changed = caller.call(&Method::PUT, &path, &filter, &[StatusCode::OK]);
        Ok((before, changed.await?.1))
    });
    let mut report = Report::new("process filter for_seconds before");
    for (_, answer) in answers.await {
        let ((before, filter), time) = (answer?, args.time.as_secs());
        let row = json!({ "process": args.process, "filter": filter, "for_seconds": time, "before": before });
        report.rows.push(row);
        report.is_answered = true;
    }
    Ok(report)
}
