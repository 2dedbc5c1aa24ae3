//! The matches of a user: on all nodes side by side, why they are missing, and their deletion.

use std::{collections::BTreeMap, num::NonZeroU32};

use anyhow::{Result, bail};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    cluster::{Caller, Cluster, segment},
    report::{Report, list, names, text},
};

/// Maximum number of DSPs of a user whose times are asked.
const TIMES_MAX: usize = 64;

const PENDING: &str = "not all nodes have carried out the deletion yet";

const AT_RISK: &str = "no node has confirmed the deletion yet, so a crash of the producer would lose it: check the receipt, or \
                       repeat the deletion";

/// Asks all nodes. Returns the answers with the name of each node, and adds errors to the report.
async fn ask_nodes(
    cluster: &Cluster,
    report: &mut Report,
    ask: impl AsyncFn(&Caller) -> Result<Value>,
) -> Vec<(String, Value)> {
    let nodes = cluster.admin.iter().filter(|port| port.role == "consumer");
    let answers = cluster.ask(nodes, async |caller| {
        let status = caller.get("/v1/status").await?;
        Ok((text(&status, "/name").to_owned(), ask(caller).await?))
    });
    let mut found = Vec::new();
    for (port, answer) in answers.await {
        match answer {
            Ok(answer) => found.push(answer),
            Err(error) => report.problem(format!("{}: {error:#}", port.shown())),
        }
    }
    report.is_answered = !found.is_empty();
    found
}

/// A row for each match, with the nodes that have it.
pub(crate) async fn lookup(cluster: &Cluster, user: &str) -> Report {
    let mut report = Report::new("dsp buyer_uid accepted_at count nodes");
    let path = format!("/v1/users/{}", segment(user));
    let answers = ask_nodes(cluster, &mut report, async |caller| {
        let expected = [StatusCode::OK, StatusCode::NOT_FOUND];
        let (_, mut user) = caller.call(&Method::GET, &path, "", &expected).await?;
        let uids = user["buyer_uids"].as_object().cloned().unwrap_or_default();
        for dsp in uids.keys().take(TIMES_MAX) {
            let why = caller.get(&format!("{path}/why?dsp={dsp}")).await?;
            user["times"][dsp] = why["accepted_at"].clone();
        }
        Ok(user)
    });
    let answers = answers.await;
    let mut nodes_by_match: BTreeMap<[String; 3], Vec<&str>> = BTreeMap::new();
    for (node, user) in &answers {
        for dsp in list(user, "unavailable") {
            report.problem(format!("{node}: cannot read DSP {dsp}"));
        }
        let uids = user["buyer_uids"].as_object().cloned().unwrap_or_default();
        if uids.is_empty() {
            let nothing = ["–", "no match", ""].map(str::to_owned);
            nodes_by_match.entry(nothing).or_default().push(node);
        }
        for (dsp, uid) in uids {
            let time = text(&user["times"], &format!("/{dsp}")).to_owned();
            let found = [dsp, uid.as_str().unwrap_or_default().to_owned(), time];
            nodes_by_match.entry(found).or_default().push(node);
        }
    }
    for ([dsp, uid, accepted_at], nodes) in &nodes_by_match {
        let (count, all) = (nodes.len(), answers.len());
        if count < all {
            let nodes = names(nodes);
            report.problem(format!(
                "only {count} of {all} nodes have {uid} for DSP {dsp}: {nodes}"
            ));
        }
        report.rows.push(json!({
            "dsp": dsp, "buyer_uid": uid, "accepted_at": accepted_at, "count": count, "nodes": names(nodes), "all_nodes": nodes,
        }));
    }
    report
}

/// A row for each node, with its reason.
pub(crate) async fn why(cluster: &Cluster, user: &str, dsp: NonZeroU32) -> Report {
    let mut report = Report::new("node reason details");
    let path = format!("/v1/users/{}/why?dsp={dsp}", segment(user));
    let ask = async |caller: &Caller| caller.get(&path).await;
    for (node, mut row) in ask_nodes(cluster, &mut report, ask).await {
        if row["reason"] != "found" {
            report.problem(format!("{node}: {}", text(&row, "/reason")));
        }
        let facts = row.as_object().into_iter().flatten();
        // A list of causes is too long for a table.
        let facts = facts.filter(|(key, value)| *key != "reason" && !value.is_array());
        let facts: Vec<_> = facts.map(|(key, value)| format!("{key} {value}")).collect();
        row["details"] = facts.join(", ").replace('"', "").into();
        row["node"] = node.into();
        report.rows.push(row);
    }
    report
}

/// Deletes the cookies of a user, at the first producer that responds.
pub(crate) async fn delete(
    cluster: &Cluster,
    user: &str,
    dsp: Option<NonZeroU32>,
) -> Result<Report> {
    let dsp = dsp.map_or(String::new(), |dsp| format!("/dsps/{dsp}"));
    let path = format!("/v1/users/{}{dsp}", segment(user));
    let mut report = Report::new("receipt accepted_at at_risk");
    let (ok, accepted) = ([StatusCode::OK], [StatusCode::ACCEPTED]);
    let mut reached = cluster
        .ask_apis(Method::GET, "/v1/openapi.json", &ok)
        .await?;
    reached.sort_by_key(|(_, answer)| answer.is_err());
    for (port, answer) in reached {
        let delete = async |it: &Caller| it.call(&Method::DELETE, &path, "", &accepted).await;
        for (_, deleted) in cluster
            .ask([port].into_iter().filter(|_| answer.is_ok()), delete)
            .await
        {
            match deleted {
                Ok((_, row)) => {
                    report.is_answered = true;
                    report
                        .problems
                        .extend((row["at_risk"] != false).then(|| AT_RISK.to_owned()));
                    report.rows.push(row);
                    return Ok(report);
                }
                Err(error) => report.problem(format!("{}: {error:#}", port.shown())),
            }
        }
        if let Err(error) = answer {
            report.problem(format!("{}: {error:#}", port.shown()));
        }
    }
    Ok(report)
}

/// The state of a deletion, from the producer that has issued its receipt.
pub(crate) async fn receipt(cluster: &Cluster, receipt: &str) -> Result<Report> {
    let path = format!("/v1/receipts/{}", segment(receipt));
    let mut report = Report::new("done confirmed pending unknown pending_nodes unknown_nodes");
    let expected = [StatusCode::OK, StatusCode::MISDIRECTED_REQUEST];
    let mut errors = Vec::new();
    for (port, answer) in cluster.ask_apis(Method::GET, &path, &expected).await? {
        match answer {
            Ok((StatusCode::OK, mut row)) => {
                for state in ["confirmed", "pending", "unknown"] {
                    row[state] = row["nodes"][state].clone();
                    let named = list(&row["names"], state).iter();
                    let named: Vec<_> = named.filter_map(Value::as_str).collect();
                    let named = (!named.is_empty()).then(|| names(&named));
                    row[format!("{state}_nodes")] = named.into();
                }
                if row["done"] != true {
                    report.problem(row["action"].as_str().unwrap_or(PENDING));
                }
                report.is_answered = true;
                report.rows.push(row);
                return Ok(report);
            }
            // Issued by another producer.
            Ok(_) => {}
            Err(error) => errors.push(format!("{}: {error:#}", port.shown())),
        }
    }
    let errors = errors.join("; ");
    bail!("no producer in --api confirms that it has issued this receipt: {errors}")
}
