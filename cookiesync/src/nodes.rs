//! The nodes at each producer, and forgetting one.

use anyhow::Result;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, segment},
    report::{Report, list, text},
    status::{self, Process, answered},
};

/// A row for each node and producer, those with problems first.
pub(crate) async fn report(cluster: &Cluster) -> Report {
    let mut report = Report::new(
        "node producer state absent_seconds lag_cookies lag_seconds not_durable_cookies lost_cookies",
    );
    let processes = status::ask(cluster).await;
    report.is_answered = !answered(&processes, "producer").is_empty();
    for process in &processes {
        if let Err(error) = &process.status {
            report.problem(format!("{}: no response: {error:#}", process.name()));
        }
    }
    report.rows = pairs(&processes);
    report.rows.sort_by_key(|row| row["state"] == "connected");
    report.problems.extend(disconnected(&report.rows));
    report
}

/// A row for each producer with each node: as the producer knows it, or `unknown` if it should know the node but does not.
pub(crate) fn pairs(processes: &[Process<'_>]) -> Vec<Value> {
    let mut rows = Vec::new();
    for producer in answered(processes, "producer") {
        let known = list(producer, "nodes");
        for node in known {
            let mut row = node.clone();
            row["state"] = if node["connected"] == true {
                "connected"
            } else {
                "absent"
            }
            .into();
            row["producer"] = producer["name"].clone();
            rows.push(row);
        }
        for node in answered(processes, "consumer") {
            // A node that follows an archive needs no stream.
            let follows = text(node, "/settings/archive_mode") == "follow";
            if !follows && known.iter().all(|it| it["node"] != node["name"]) {
                let producer = &producer["name"];
                rows.push(
                    json!({ "node": node["name"], "producer": producer, "state": "unknown" }),
                );
            }
        }
    }
    rows
}

/// Messages about nodes without a stream.
pub(crate) fn disconnected(pairs: &[Value]) -> Vec<String> {
    let away = pairs.iter().filter(|row| row["state"] != "connected");
    let message = |row: &Value| {
        let [node, state, producer] = ["/node", "/state", "/producer"].map(|key| text(row, key));
        format!("node {node} is {state} at producer {producer}")
    };
    away.map(message).collect()
}

/// Forgets a node at each producer.
pub(crate) async fn forget(cluster: &Cluster, node: &str) -> Result<Report> {
    let mut report = Report::new("producer node result");
    let path = format!("/v1/nodes/{}", segment(node));
    let expected = [StatusCode::OK, StatusCode::CONFLICT];
    for (port, answer) in cluster.ask_apis(Method::DELETE, &path, &expected).await? {
        match answer {
            Ok((_, mut row)) => {
                report.is_answered = true;
                row["result"] = match row["was_known"].as_bool() {
                    Some(true) => "forgotten".into(),
                    Some(false) => "was unknown".into(),
                    None => row["detail"].clone(),
                };
                if row["was_known"].is_null() {
                    report.problem(format!("{}: {}", port.shown(), text(&row, "/detail")));
                }
                report.rows.push(row);
            }
            Err(error) => report.problem(format!("{}: {error:#}", port.shown())),
        }
    }
    Ok(report)
}
