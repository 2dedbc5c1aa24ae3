//! The books of a process, read when it is about to be killed.

use std::{
    io::{Read as _, Write as _},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bench::{ledger, scrape::Samples};

use crate::metrics_page;

/// Reads a process's books once more before it is killed, and fails the test when they do not balance, or tell what is
/// not documented. One that does not answer any more has none.
pub(super) struct LastBooks {
    pub(super) admin: String,
}

impl Drop for LastBooks {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Ok(samples) = blocking_metrics(&self.admin)
            && let Err(error) = ledger::check(&samples).and(metrics_page::check(&samples))
        {
            panic!("http://{}/metrics: {error:#}", self.admin);
        }
    }
}

/// Like [`admin::metrics`], for where nothing can be awaited, and without looking at the books.
fn blocking_metrics(address: &str) -> Result<Samples> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut stream = std::net::TcpStream::connect_timeout(&address.parse()?, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no whole head")?;
    let length = format!("content-length: {}", body.len());
    ensure!(
        head.starts_with("HTTP/1.1 200") && head.to_ascii_lowercase().contains(&length),
        "no whole answer: {head}"
    );
    Ok(Samples::parse(body))
}
