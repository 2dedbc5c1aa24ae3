//! Tries the production checklist against the running cluster.
//!
//! It finds what can be seen from outside: settings, answers without a token, clocks, and what the alerts need. It does not change
//! anything.

use std::{net::SocketAddr, time::Duration};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    nodes::{disconnected, pairs},
    report::{Report, list, names, text},
    status::{self, Process, answered, differences},
};

/// The role or result of what this tool cannot decide.
const LOOK: &str = "look";

/// Maximum difference between two clocks in seconds. A deletion covers matches up to this difference later.
const CLOCKS_MAX: f64 = 1.0;

/// What must hold for the processes of a role. It is violated if each of these settings is an address other than loopback (`open`) or
/// not set (`unset`). `look` means that this tool cannot decide whether that is a problem.
const CHECKS: &str = "\
producer: gRPC ports need tokens or client certificates: open=grpc unset=token_file unset=tls_client_ca
producer: gRPC ports use TLS: open=grpc unset=tls_cert
consumer: lookup ports use TLS: open=lookup unset=lookup_tls_cert
producer: --contracts lists the DSPs: unset=contracts
consumer: --dsps lists the DSPs: unset=dsps
look: admin ports are open only to Prometheus, health checks and operators: open=admin";

/// Whether all conditions of a check hold.
fn is_violated(status: &Value, conditions: &str) -> bool {
    conditions
        .split(' ')
        .all(|condition| match condition.split_once('=') {
            Some(("open", key)) => {
                let address = setting(status, key).parse::<SocketAddr>();
                address.is_ok_and(|it| !it.ip().is_loopback())
            }
            Some((_, key)) => setting(status, key).is_empty(),
            None => false,
        })
}

fn setting<'a>(status: &'a Value, key: &str) -> &'a str {
    text(&status["settings"], &format!("/{key}"))
}

fn number(status: &Value, key: &str) -> f64 {
    status[key].as_f64().unwrap_or(0.0)
}

/// A row for each point of the list.
pub(crate) async fn report(cluster: &Cluster, survive: Duration) -> Report {
    let mut report = Report::new("check result details");
    let processes = status::ask(cluster).await;
    let [producers, nodes, all] =
        ["producer", "consumer", ""].map(|role| answered(&processes, role));
    report.is_answered = !all.is_empty();
    let trouble = |it: &Process<'_>| Some(format!("{}: {}", it.name(), it.trouble()?));
    let name = |it: &&Value| text(it, "/name").to_owned();
    let undelayed = producers
        .iter()
        .filter(|it| setting(it, "drain_delay") == "0s");
    for (what, found) in [
        (
            "processes are ready",
            processes.iter().filter_map(trouble).collect(),
        ),
        ("versions and settings agree", differences(&processes)),
        ("names are unique", duplicates(&processes)),
        ("nodes are connected", disconnected(&pairs(&processes))),
        ("clocks agree", clocks(&processes)),
        ("stores are complete", stores(&nodes)),
        (
            "logs cover an outage",
            coverage(&producers, survive.as_secs_f64()),
        ),
        (
            "load balancers notice a drain (--drain-delay)",
            undelayed.map(name).collect(),
        ),
    ] {
        add(&mut report, what, found, true);
    }
    let (apis, alerts) = (
        apis(cluster).await,
        alerts(cluster, &producers, &nodes).await,
    );
    for (what, ports, found) in [
        ("APIs need tokens and use TLS", &cluster.api, apis),
        (
            "Prometheus has the alerts and scrapes all",
            &cluster.prometheus,
            alerts,
        ),
    ] {
        match &**ports {
            [] => report
                .rows
                .push(json!({ "check": what, "result": "not checked" })),
            _ => add(&mut report, what, found, true),
        }
    }
    for check in CHECKS.lines() {
        let mut parts = check.split(": ");
        let [role, what, conditions] = [(); 3].map(|()| parts.next().unwrap_or_default());
        let of_role = all
            .iter()
            .filter(|it| role == LOOK || it["process"] == *role);
        let found = of_role.filter(|it| is_violated(it, conditions));
        add(&mut report, what, found.map(name).collect(), role != LOOK);
    }
    report
}

/// Adds a row. What this tool cannot decide is no problem.
fn add(report: &mut Report, what: &str, found: Vec<String>, is_decided: bool) {
    let result = match (found.is_empty(), is_decided) {
        (true, _) => "ok",
        (false, true) => "problem",
        (false, false) => LOOK,
    };
    if result == "problem" {
        report.problem(format!("{what}: {}", names(&found)));
    }
    let details = (!found.is_empty()).then(|| names(&found));
    let row = json!({ "check": what, "result": result, "details": details, "all_details": found });
    report.rows.push(row);
}

/// Producers whose log or maximum lag covers less than this time, in seconds. A log that is not full yet will cover more.
fn coverage(producers: &[&Value], survive: f64) -> Vec<String> {
    let mut found = Vec::new();
    for it in producers {
        let [bytes, max] = ["log_bytes", "log_bytes_max"].map(|key| number(it, key));
        let queue = setting(it, "queue_cookies")
            .parse()
            .unwrap_or(f64::INFINITY);
        let log = number(it, "log_seconds") * max / bytes;
        let queue = queue / number(it, "cookies_per_second");
        for (flag, covered) in [("--log-bytes", log), ("--queue-cookies", queue)] {
            // Nothing is known without cookies.
            if covered > 0.0 && covered < survive {
                let name = text(it, "/name");
                found.push(format!(
                    "{name}: {flag} covers {covered:.0} s at the present rate"
                ));
            }
        }
    }
    found
}

fn duplicates(processes: &[Process<'_>]) -> Vec<String> {
    let mut names: Vec<_> = processes.iter().map(Process::name).collect();
    names.sort();
    let same = names.windows(2).filter(|it| it[0] == it[1]);
    same.map(|it| it[0].clone()).collect()
}

fn clocks(processes: &[Process<'_>]) -> Vec<String> {
    let clocks = processes
        .iter()
        .filter_map(|it| Some((it.clock?, it.name())));
    let mut clocks: Vec<_> = clocks.collect();
    clocks.sort_by(|((a, _), _), ((b, _), _)| a.total_cmp(b));
    let (Some(((behind, error), slow)), Some(((ahead, other), fast))) =
        (clocks.first(), clocks.last())
    else {
        return Vec::new();
    };
    let difference = ahead - behind;
    let finding = format!("the clock of {fast} is {difference:.1} s ahead of that of {slow}");
    let is_far = difference - error - other > CLOCKS_MAX;
    is_far.then_some(finding).into_iter().collect()
}

/// Nodes with less than 90 % of the median number of cookies.
fn stores(nodes: &[&Value]) -> Vec<String> {
    let mut sizes = Vec::new();
    for node in nodes {
        let by_dsp = list(node, "stored_cookies").iter();
        let size: u64 = by_dsp.filter_map(|it| it[1].as_u64()).sum();
        sizes.push((size, text(node, "/name")));
    }
    sizes.sort_unstable();
    let median = sizes.get(sizes.len() / 2).map_or(0, |(size, _)| *size);
    sizes.retain(|(size, _)| *size < median / 10 * 9);
    let finding = |(size, name): &(u64, &str)| format!("{name}: {size} cookies, median {median}");
    sizes.iter().map(finding).collect()
}

/// What is wrong with the APIs, by their answers without a token. A loopback port needs none.
async fn apis(cluster: &Cluster) -> Vec<String> {
    let answers = cluster.ask(&cluster.api, async |caller| {
        let mut caller = caller.clone();
        caller.token = None;
        let expected = [StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND];
        Ok(caller
            .call(&Method::GET, "/v1/receipts/none", "", &expected)
            .await?
            .0)
    });
    let mut found = Vec::new();
    for (port, answer) in answers.await {
        let is_loopback = port.address.as_ref().is_ok_and(|it| it.ip().is_loopback());
        let problem = match answer {
            Err(error) => format!("{error:#}"),
            Ok(_) if is_loopback => continue,
            Ok(StatusCode::UNAUTHORIZED) if port.url.scheme() == "https" => continue,
            Ok(StatusCode::UNAUTHORIZED) => "tokens are unencrypted".to_owned(),
            Ok(_) => "everyone may use it without a token".to_owned(),
        };
        found.push(format!("{}: {problem}", port.shown()));
    }
    found
}

/// Whether Prometheus, if there is one, has rules for each role, and scrapes at least as many processes as this tool knows.
async fn alerts(cluster: &Cluster, producers: &[&Value], nodes: &[&Value]) -> Vec<String> {
    let answers = cluster.ask(&cluster.prometheus, async |prometheus| {
        let mut found = Vec::new();
        let rules = prometheus.get("/api/v1/rules?type=alert").await?;
        for (role, expected) in [("producer", producers.len()), ("consumer", nodes.len())] {
            let mut groups = list(&rules["data"], "groups").iter();
            if groups.all(|it| it["name"] != format!("cookiesync-{role}")) {
                found.push(format!(
                    "deploy/prometheus/alerts.yml is not loaded for the {role}s"
                ));
            }
            let query = format!("/api/v1/query?query=count(up%7Bjob%3D%22{role}%22%7D%3D%3D1)");
            let up = prometheus.get(&query).await?;
            let up = text(&up, "/data/result/0/value/1").parse().unwrap_or(0);
            if up < expected {
                found.push(format!(
                    "the job {role} scrapes {up} of {expected} processes"
                ));
            }
        }
        Ok(found)
    });
    let mut found = Vec::new();
    for (_, answer) in answers.await {
        found.extend(answer.unwrap_or_else(|error| vec![format!("no response: {error:#}")]));
    }
    found
}
