//! `cargo demo deletion`: three syncs of a user, the deletion of that user, and its receipt.

use std::path::Path;

use anyhow::{Context as _, Result};
use launcher::{
    admin,
    http::Response,
    programs::{flags, free_address},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    args::SetupArgs,
    running::{self, Running},
    show::poll,
};

const USER_PATH: &str = "/v1/users/alice";
const DSP_IDS: [u32; 3] = [17, 42, 99];

/// Runs the demo to its end or until `stop`.
///
/// # Errors
/// If a port is in use, the build fails, a process fails, or a response is not as expected.
pub(crate) async fn run(args: &SetupArgs, stop: &CancellationToken) -> Result<()> {
    let api = free_address()?.to_string();
    let flags = |_: &Path| Ok(flags([("--api", api.clone())]));
    let show = async |running: &mut Running| show(running, &api).await;
    match running::run(args, false, stop, flags, show).await? {
        Some(running) => running.stop().await,
        None => Ok(()),
    }
}

async fn show(running: &mut Running, api: &str) -> Result<()> {
    running.wait_ready().await?;
    let edge = running.edge();
    for dsp_id in DSP_IDS {
        let buyer_uid = format!("buyer-{dsp_id}");
        let status = admin::sync(&edge, "alice", dsp_id, &buyer_uid)
            .await?
            .status;
        println!("GET http://{edge}/?d={dsp_id}&b={buyer_uid}   Cookie: uid=alice   {status}");
    }
    let node = &running.consumer_admin;
    let is_stored = |it: &Response| {
        DSP_IDS
            .iter()
            .all(|id| it.body.contains(&format!("buyer-{id}")))
    };
    print("GET", node, USER_PATH, is_stored).await?;
    let deletion = print("DELETE", api, USER_PATH, |it| it.status == 202).await?;
    let receipt = deletion["receipt"].as_str().context("receipt missing")?;
    let path = format!("/v1/receipts/{receipt}");
    print("GET", api, &path, |it| it.body.contains("\"done\":true")).await?;
    print("GET", node, USER_PATH, |it| it.status == 404).await?;
    Ok(())
}

/// Repeats a request until its response is as expected, and prints both.
async fn print(
    method: &str,
    address: &str,
    path: &str,
    is_expected: impl Fn(&Response) -> bool,
) -> Result<Value> {
    println!("{method} http://{address}{path}");
    let response = poll(method, address, path, is_expected).await?;
    println!("  {} {}", response.status, response.body.trim());
    Ok(serde_json::from_str(&response.body)?)
}
