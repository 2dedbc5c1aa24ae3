//! What the server itself can do: the same documents in commands that were encoded before, and nothing else.
//!
//! No batch waits for the one before, nothing is looked at but whether it worked, and no cursor is kept.

use std::{collections::BTreeMap, fmt};

use anyhow::{Context, Result, bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use mongodb::{
    Client, Database,
    bson::{
        DateTime, Document, RawArrayBuf, RawDocumentBuf, cstr, doc, rawdoc, serialize_to_document,
    },
    options::ClientOptions,
};
use proto::wire::ChunkRef;

use super::{threads::OwnThreads, workload::Slice};

/// Most bytes of operations in one command; a document has 16 MiB at most.
const COMMAND_BYTES_MAX: usize = 15 << 20;

/// Most operations of one command.
const OPERATIONS_MAX: usize = 100_000;

const DUPLICATE: i32 = 11_000;

/// What is done with the cookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Unordered inserts of those whose pair comes for the first time: the ceiling.
    Insert,
    /// Unordered upserts of all, guarded by time: what one would do without the consumer.
    Upsert,
}

/// A client that does nothing but send.
pub(super) struct Bare {
    kind: Kind,
    threads: OwnThreads,
    client: Client,
    concern: Option<Document>,
    prefix: String,
    writers: usize,
    batch_cookies: usize,
}

/// Commands ready to be sent, each with its database and its number of operations.
pub(super) struct Commands {
    commands: Vec<(Database, RawDocumentBuf, usize)>,
    pub(super) cookies: u64,
}

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commands")
            .field("commands", &self.commands.len())
            .field("cookies", &self.cookies)
            .finish()
    }
}

/// How a [`Bare`] writes.
pub(super) struct Plan {
    pub(super) uri: String,
    /// What the names of its databases begin with.
    pub(super) prefix: String,
    /// Commands under way at once.
    pub(super) writers: usize,
    /// Cookies that are split by DSP together.
    pub(super) batch_cookies: usize,
    pub(super) dsps: u32,
}

impl Bare {
    /// Connects, on threads called `name`, and makes the collections with the index that the consumer's have.
    pub(super) async fn start(name: &'static str, kind: Kind, plan: Plan) -> Result<Self> {
        let threads = OwnThreads::start(name)?;
        let Plan {
            uri,
            prefix,
            writers,
            batch_cookies,
            dsps,
        } = plan;
        let names: Vec<_> = (1..=dsps).map(|dsp| format!("{prefix}{dsp}")).collect();
        let connected = threads.run(async move {
            let options = ClientOptions::parse(&uri).await?;
            let concern = options.write_concern.as_ref();
            let concern = concern.map(serialize_to_document).transpose()?;
            let client = Client::with_options(options)?;
            for name in names {
                let index = doc! {"key": {"t": 1}, "name": "t_1", "expireAfterSeconds": i32::MAX};
                let command = doc! {"createIndexes": "cookies", "indexes": [index]};
                client.database(&name).run_command(command).await?;
            }
            Ok((client, concern))
        });
        let (client, concern) = connected.await.context("cannot prepare the baseline")?;
        Ok(Self {
            kind,
            threads,
            client,
            concern,
            prefix,
            writers,
            batch_cookies,
        })
    }

    pub(super) fn thread_name(&self) -> &'static str {
        self.threads.name()
    }

    /// Whether repeats are written, too.
    pub(super) fn writes_all(&self) -> bool {
        self.kind == Kind::Upsert
    }

    /// Encodes a slice: batch by batch as the consumer takes chunks, each split by DSP and sorted by user.
    pub(super) fn encode(&self, slice: &Slice) -> Result<Commands> {
        let mut encoded = Commands {
            commands: Vec::new(),
            cookies: 0,
        };
        let mut is_new = slice.is_new.iter();
        let mut by_dsp: BTreeMap<u32, Vec<Operation<'_>>> = BTreeMap::new();
        let mut cookies = 0;
        for chunk in &slice.chunks {
            for operation in operations(chunk) {
                let (dsp_id, operation) = operation?;
                let is_new = is_new.next().is_some_and(|is_new| *is_new);
                cookies += 1;
                if is_new || self.kind == Kind::Upsert {
                    by_dsp.entry(dsp_id).or_default().push(operation);
                    encoded.cookies += 1;
                }
            }
            if cookies >= self.batch_cookies {
                self.put(&mut encoded, std::mem::take(&mut by_dsp));
                cookies = 0;
            }
        }
        self.put(&mut encoded, by_dsp);
        Ok(encoded)
    }

    fn put(&self, encoded: &mut Commands, by_dsp: BTreeMap<u32, Vec<Operation<'_>>>) {
        for (dsp_id, mut operations) in by_dsp {
            // Stable: of one pair's cookies the last stays the last.
            operations.sort_by_key(|operation| operation.user_id);
            let database = self.client.database(&format!("{}{dsp_id}", self.prefix));
            let mut array = RawArrayBuf::new();
            let mut count = 0;
            for operation in &operations {
                if array.as_bytes().len() >= COMMAND_BYTES_MAX || count == OPERATIONS_MAX {
                    let command = self.command(std::mem::take(&mut array));
                    encoded.commands.push((database.clone(), command, count));
                    count = 0;
                }
                array.push(operation.encode(self.kind));
                count += 1;
            }
            if count > 0 {
                encoded
                    .commands
                    .push((database, self.command(array), count));
            }
        }
    }

    fn command(&self, operations: RawArrayBuf) -> RawDocumentBuf {
        let mut command = match self.kind {
            Kind::Insert => rawdoc! {"insert": "cookies", "ordered": false},
            Kind::Upsert => rawdoc! {"update": "cookies", "ordered": false},
        };
        if let Some(concern) = self.concern.as_ref().filter(|concern| !concern.is_empty())
            && let Ok(concern) = RawDocumentBuf::try_from(concern)
        {
            command.append(cstr!("writeConcern"), concern);
        }
        match self.kind {
            Kind::Insert => command.append(cstr!("documents"), operations),
            Kind::Upsert => command.append(cstr!("updates"), operations),
        }
        command
    }

    /// Sends all commands and waits for their answers.
    pub(super) async fn send(&self, commands: Commands) -> Result<()> {
        let (kind, writers) = (self.kind, self.writers);
        let sending = async move {
            let answers =
                commands
                    .commands
                    .into_iter()
                    .map(|(database, command, count)| async move {
                        let answer = database.run_raw_command(command).await?;
                        check(kind, &answer, count)
                    });
            stream::iter(answers)
                .buffer_unordered(writers)
                .try_collect::<()>()
                .await
        };
        self.threads
            .run(sending)
            .await
            .context("the baseline failed")
    }
}

/// A cookie to be written.
struct Operation<'a> {
    user_id: &'a str,
    buyer_uid: &'a str,
    accepted: DateTime,
}

fn operations(chunk: &ChunkRef) -> impl Iterator<Item = Result<(u32, Operation<'_>)>> {
    let micros = chunk.header().accepted_unix_micros;
    let accepted = DateTime::from_millis(i64::try_from(micros / 1000).unwrap_or(i64::MAX));
    chunk.cookies().map(move |cookie| {
        let cookie = cookie?;
        let operation = Operation {
            user_id: cookie.user_id,
            buyer_uid: cookie.buyer_uid,
            accepted,
        };
        Ok((cookie.dsp_id, operation))
    })
}

impl Operation<'_> {
    fn encode(&self, kind: Kind) -> RawDocumentBuf {
        let (user_id, buyer_uid, accepted) = (self.user_id, self.buyer_uid, self.accepted);
        match kind {
            Kind::Insert => rawdoc! {"_id": user_id, "b": buyer_uid, "t": accepted},
            Kind::Upsert => rawdoc! {
                "q": {"_id": user_id, "t": {"$lte": accepted}},
                "u": {"$set": {"b": buyer_uid, "t": accepted}},
                "upsert": true,
            },
        }
    }
}

/// Only an upsert that comes after a newer one may fail: as a duplicate.
fn check(kind: Kind, answer: &Document, count: usize) -> Result<()> {
    if let Ok(error) = answer.get_document("writeConcernError") {
        bail!("not acknowledged: {error}");
    }
    let errors = answer
        .get_array("writeErrors")
        .map_or(&[][..], Vec::as_slice);
    let first = errors
        .iter()
        .filter_map(|error| error.as_document())
        .find(|error| kind == Kind::Insert || error.get_i32("code").ok() != Some(DUPLICATE));
    if let Some(error) = first {
        bail!("write refused: {error}");
    }
    let done = answer.get_i32("n").unwrap_or_default();
    let done = usize::try_from(done)? + errors.len();
    ensure!(done == count, "{done} of {count} were written");
    Ok(())
}
