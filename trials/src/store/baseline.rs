//! Baseline writers for MongoDB: the same documents in plain, pre-encoded commands.
//!
//! The writers only check for success. Batches are independent of each other, and no cursors are stored.

use std::{collections::BTreeMap, num::NonZeroU32};

use anyhow::{Context as _, Result, bail, ensure};
use consumer::{Config, store::mongodb::COOKIES};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use mongodb::{
    Client,
    bson::{DateTime, Document, RawArrayBuf, RawDocumentBuf, doc, rawdoc},
};
use tokio::{runtime::Runtime, time::Instant};

use super::{
    args::StoreArgs,
    server::Server,
    threads::{named_runtime, wait_due},
    workload::Slice,
};

const DUPLICATE: i32 = 11_000;

/// Kind of baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BaselineKind {
    /// Unordered inserts of new pairs: the ceiling.
    Insert,
    /// Unordered upserts that replace only older cookies: the simple alternative to the consumer.
    Upsert,
}

/// A client that only sends commands.
pub(super) struct Baseline {
    kind: BaselineKind,
    runtime: &'static Runtime,
    client: Client,
    /// Maximum concurrent commands.
    writers: usize,
    /// Cookies per batch, which is split by DSP.
    batch_cookies: usize,
    rate: Option<NonZeroU32>,
}

/// An encoded command.
pub(super) struct Command {
    dsp_id: u32,
    command: RawDocumentBuf,
    operations: usize,
}

impl Baseline {
    /// Connects, and creates the collections with a TTL index.
    pub(super) async fn start(
        kind: BaselineKind,
        args: &StoreArgs,
        config: &Config,
        server: &Server,
    ) -> Result<Self> {
        let runtime = named_runtime(kind.name())?;
        let (dsps, uri) = (args.dsps.get(), server.uri().to_owned());
        let connecting = async move {
            let client = Client::with_uri_str(uri).await?;
            for dsp_id in 1..=dsps {
                let index = doc! {"key": {"t": 1}, "name": "t_1", "expireAfterSeconds": i32::MAX};
                let command = doc! {"createIndexes": COOKIES, "indexes": [index]};
                let database = client.database(&Server::database(kind.name(), dsp_id));
                database.run_command(command).await?;
            }
            anyhow::Ok(client)
        };
        let client = runtime.spawn(connecting).await?;
        Ok(Self {
            kind,
            runtime,
            client: client.context("failed to prepare the baseline")?,
            writers: config.mongodb.mongodb_writers,
            batch_cookies: match args.rate {
                None => args.batch.get(),
                Some(rate) => (rate.get() / 5).max(1) as usize,
            },
            rate: args.rate,
        })
    }

    pub(super) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Encodes a slice in batches, which are split by DSP and sorted by user.
    pub(super) fn encode(&self, slice: &Slice) -> Result<Vec<Command>> {
        let mut commands = Vec::new();
        let mut is_new = slice.is_new.iter();
        let mut by_dsp: BTreeMap<u32, Vec<(&str, RawDocumentBuf)>> = BTreeMap::new();
        let mut cookies = 0;
        for chunk in &slice.chunks {
            let micros = chunk.header().accepted_unix_micros;
            let accepted = DateTime::from_millis(i64::try_from(micros / 1000)?);
            for cookie in chunk.cookies() {
                let cookie = cookie?;
                cookies += 1;
                if is_new.next() == Some(&true) || self.kind == BaselineKind::Upsert {
                    let operation = self.kind.encode(cookie.user_id, cookie.buyer_uid, accepted);
                    let operations = by_dsp.entry(cookie.dsp_id).or_default();
                    operations.push((cookie.user_id, operation));
                }
            }
            if cookies >= self.batch_cookies {
                commands.extend(self.commands(std::mem::take(&mut by_dsp)));
                cookies = 0;
            }
        }
        commands.extend(self.commands(by_dsp));
        Ok(commands)
    }

    fn commands(
        &self,
        by_dsp: BTreeMap<u32, Vec<(&str, RawDocumentBuf)>>,
    ) -> impl Iterator<Item = Command> {
        let kind = self.kind;
        by_dsp.into_iter().map(move |(dsp_id, mut operations)| {
            // A stable sort keeps the order of the cookies of a pair.
            operations.sort_by_key(|(user_id, _)| *user_id);
            let count = operations.len();
            let array: RawArrayBuf = operations.into_iter().map(|(_, it)| it).collect();
            let command = match kind {
                BaselineKind::Insert => {
                    rawdoc! {"insert": COOKIES, "ordered": false, "documents": array}
                }
                BaselineKind::Upsert => {
                    rawdoc! {"update": COOKIES, "ordered": false, "updates": array}
                }
            };
            Command {
                dsp_id,
                command,
                operations: count,
            }
        })
    }

    /// Sends all commands and waits for their responses; returns the number of cookies.
    pub(super) async fn send(&self, commands: Vec<Command>) -> Result<u64> {
        let (kind, client) = (self.kind, self.client.clone());
        let (writers, rate, began) = (self.writers, self.rate, Instant::now());
        let sending = async move {
            let mut sent = 0;
            let responses = commands.into_iter().map(|command| {
                let due_after = sent;
                sent += command.operations as u64;
                let database = client.database(&Server::database(kind.name(), command.dsp_id));
                async move {
                    wait_due(began, rate, due_after).await;
                    let response = database.run_raw_command(command.command).await?;
                    check(kind, &response, command.operations)
                }
            });
            let responses = stream::iter(responses.collect::<Vec<_>>());
            responses
                .buffer_unordered(writers)
                .try_collect::<()>()
                .await?;
            wait_due(began, rate, sent).await;
            Ok(sent)
        };
        let sent: Result<u64> = self.runtime.spawn(sending).await?;
        sent.context("the baseline failed")
    }
}

impl BaselineKind {
    /// Name of the variant, also used for databases and threads.
    fn name(self) -> &'static str {
        match self {
            Self::Insert => "ceiling",
            Self::Upsert => "upserts",
        }
    }

    fn encode(self, user_id: &str, buyer_uid: &str, accepted: DateTime) -> RawDocumentBuf {
        match self {
            Self::Insert => rawdoc! {"_id": user_id, "b": buyer_uid, "t": accepted},
            Self::Upsert => rawdoc! {
                "q": {"_id": user_id, "t": {"$lte": accepted}},
                "u": {"$set": {"b": buyer_uid, "t": accepted}},
                "upsert": true,
            },
        }
    }
}

/// Checks that all operations succeeded. An upsert may fail as a duplicate, if the stored cookie is newer or a concurrent
/// command inserted the same pair.
fn check(kind: BaselineKind, response: &Document, operations: usize) -> Result<()> {
    if let Ok(error) = response.get_document("writeConcernError") {
        bail!("write not acknowledged: {error}");
    }
    let errors = response.get_array("writeErrors");
    let errors = errors.map_or(&[][..], Vec::as_slice);
    for error in errors.iter().filter_map(|error| error.as_document()) {
        if kind == BaselineKind::Insert || error.get_i32("code").ok() != Some(DUPLICATE) {
            bail!("write rejected: {error}");
        }
    }
    let done = usize::try_from(response.get_i32("n").unwrap_or_default())? + errors.len();
    ensure!(
        done == operations,
        "{done} of {operations} operations were written"
    );
    Ok(())
}
