//! Final check of a process's metrics and log, before the process is killed at the end of a test.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Result, anyhow, ensure};
use bench::traffic::USER_ID_BYTES;
use testkit::{admin, ledger, scrape::Samples};
use tokio::{runtime::Builder, time::timeout};

use crate::tools::metrics_page;

/// Fails the test on drop if the ledger of a process does not balance, if it exports an undocumented metric, or if its log contains
/// a user id or buyer uid. The metrics of a process that no longer responds are not checked.
pub(super) struct FinalLedgerCheck {
    pub(super) admin: String,
    pub(super) log: PathBuf,
}

impl Drop for FinalLedgerCheck {
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
        if let Some(line) = log.lines().find(|line| contains_ids(line)) {
            panic!("{} contains a user id: {line}", self.log.display());
        }
    }
}

/// Whether a log line contains a user id or buyer uid that tests or their loads send.
fn contains_ids(line: &str) -> bool {
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

/// Whether a word looks like a user id of a load.
fn is_synthetic(word: &str) -> bool {
    let is_digit = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
    word.len() == USER_ID_BYTES && word.bytes().all(is_digit) && word.bytes().any(|c| c > b'9')
}

#[test]
fn ids_are_found_in_log_lines_and_ordinary_words_are_not() {
    let id = "0123456789abcdef".repeat(2);
    for line in [
        r#"key { _id: "alice" }"#,
        "b=a-1 refused",
        "user-12",
        &id[..USER_ID_BYTES],
    ] {
        assert!(contains_ids(line), "{line}");
    }
    for line in [
        "user refused",
        "bob-sled",
        "epoch=1795368834430341",
        "buyer-uid a-18",
    ] {
        assert!(!contains_ids(line), "{line}");
    }
}

/// Like [`admin::metrics`], for synchronous code and without a check of the ledger.
fn blocking_metrics(address: &str) -> Result<Samples> {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let address = address.to_owned();
    // A task cannot block on a second runtime, but a thread can.
    let request = std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { timeout(TIMEOUT, admin::get(&address, "/metrics")).await? })
    });
    let answer = request
        .join()
        .map_err(|_| anyhow!("the scrape panicked"))??;
    ensure!(answer.status == 200, "{answer:?}");
    Ok(Samples::parse(&answer.body))
}
