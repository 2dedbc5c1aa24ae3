//! The books and the log of a process, read when it is about to be killed.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bench::{ledger, scrape::Samples, traffic::USER_ID_BYTES};

use crate::metrics_page;

/// Reads a process's books once more before it is killed, and fails the test when they do not balance, or tell what is
/// not documented; and when the log names a user or a buyer uid. One that does not answer any more has no books.
pub(super) struct LastBooks {
    pub(super) admin: String,
    pub(super) log: PathBuf,
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
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        if let Some(line) = log.lines().find(|line| names_somebody(line)) {
            panic!("{} names a user: {line}", self.log.display());
        }
    }
}

/// Whether there is an id in a line that the tests send, or a user of their loads.
fn names_somebody(line: &str) -> bool {
    let is_part_of_id = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut words = line.split(|c| !is_part_of_id(c));
    words.any(|word| {
        let is_numbered = |prefix| {
            let number = word.strip_prefix(prefix);
            number.is_some_and(|number| u64::from_str_radix(number, 16).is_ok())
        };
        ["alice", "bob", "carol", "mallory", "a-1", "a-17", "made-up"].contains(&word)
            || is_numbered("user-")
            || is_numbered("buyer-")
            || is_synthetic(word)
    })
}

/// Whether it looks like the user ids of a load.
fn is_synthetic(word: &str) -> bool {
    let is_digit = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
    word.len() == USER_ID_BYTES && word.bytes().all(is_digit) && word.bytes().any(|c| c > b'9')
}

#[test]
fn ids_are_found_in_a_line_and_words_are_none() {
    let id = "0123456789abcdef".repeat(2);
    for line in [
        r#"key { _id: "alice" }"#,
        "b=a-1 refused",
        "user-12",
        &id[..USER_ID_BYTES],
    ] {
        assert!(names_somebody(line), "{line}");
    }
    for line in [
        "user refused",
        "bob-sled",
        "epoch=1795368834430341",
        "buyer-uid a-18",
    ] {
        assert!(!names_somebody(line), "{line}");
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
