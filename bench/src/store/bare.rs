//! What the server itself can do: the same documents in commands that were encoded before, and nothing else.
//!
//! No batch waits for the one before, nothing is looked at but whether it worked, and no cursor is kept.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    num::NonZeroU32,
};

use anyhow::{Context, Result, bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use mongodb::{
    Client, Database,
    bson::{
        DateTime, Document, RawArrayBuf, RawDocument, RawDocumentBuf, cstr, doc, rawdoc,
        serialize_to_document,
    },
    options::ClientOptions,
};
use proto::wire::ChunkRef;

use super::{pace::Pace, threads::OwnThreads, workload::Slice};

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
    rate: Option<NonZeroU32>,
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
    /// Cookies a second, if not as fast as it goes.
    pub(super) rate: Option<NonZeroU32>,
    pub(super) dsps: u32,
}

impl Bare {
    /// Connects, on threads called `name`, and makes the collections as one would by hand, with a TTL index.
    pub(super) async fn start(name: &'static str, kind: Kind, plan: Plan) -> Result<Self> {
        let threads = OwnThreads::start(name)?;
        let Plan {
            uri,
            prefix,
            writers,
            batch_cookies,
            rate,
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
            rate,
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
        let (kind, writers, rate) = (self.kind, self.writers, self.rate);
        let sending = async move {
            let (pace, mut sent, cookies) = (Pace::from_now(rate), 0, commands.cookies);
            let answers = commands
                .commands
                .into_iter()
                .map(|(database, command, count)| {
                    let due = sent;
                    sent += count as u64;
                    (database, command, count, due)
                })
                .map(|(database, command, count, due)| async move {
                    pace.wait_for(due).await;
                    write(kind, &database, command, count).await
                });
            stream::iter(answers)
                .buffer_unordered(writers)
                .try_collect::<()>()
                .await?;
            pace.wait_for(cookies).await;
            Ok(())
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

/// Sends a command. Upserts that fail as duplicates are sent once more, without `upsert`: either the stored cookie is newer, or
/// another command has inserted an older one of the same new pair meanwhile.
async fn write(
    kind: Kind,
    database: &Database,
    command: RawDocumentBuf,
    count: usize,
) -> Result<()> {
    let upserts = (kind == Kind::Upsert).then(|| command.clone());
    let answer = database.run_raw_command(command).await?;
    let duplicates = check(kind, &answer, count)?;
    if let Some(upserts) = upserts.filter(|_| !duplicates.is_empty()) {
        let updates = updates_of(&upserts, &duplicates)?;
        let answer = database.run_raw_command(updates).await?;
        let refused = errors(&answer)?.next();
        ensure!(refused.is_none(), "write refused: {refused:?}");
    }
    Ok(())
}

/// Where in the command the upserts are that failed as duplicates; nothing else may fail.
fn check(kind: Kind, answer: &Document, count: usize) -> Result<HashSet<usize>> {
    let mut duplicates = HashSet::new();
    for error in errors(answer)? {
        if kind == Kind::Insert || error.get_i32("code").ok() != Some(DUPLICATE) {
            bail!("write refused: {error}");
        }
        duplicates.insert(usize::try_from(error.get_i32("index")?)?);
    }
    let done = answer.get_i32("n").unwrap_or_default();
    let done = usize::try_from(done)? + duplicates.len();
    ensure!(done == count, "{done} of {count} were written");
    Ok(duplicates)
}

/// What the answer says of single operations.
fn errors(answer: &Document) -> Result<impl Iterator<Item = &Document>> {
    if let Ok(error) = answer.get_document("writeConcernError") {
        bail!("not acknowledged: {error}");
    }
    let errors = answer.get_array("writeErrors");
    let errors = errors.map_or(&[][..], Vec::as_slice);
    Ok(errors.iter().filter_map(|error| error.as_document()))
}

/// The same command with only the upserts at these places, as updates; and with those that follow them of the same user, which may
/// have the same time and must stay the later ones.
fn updates_of(upserts: &RawDocument, places: &HashSet<usize>) -> Result<RawDocumentBuf> {
    let mut updates = RawArrayBuf::new();
    let mut user_id = None;
    for (place, upsert) in upserts.get_array("updates")?.into_iter().enumerate() {
        let upsert = upsert?.as_document().context("it is not an upsert")?;
        let user = upsert.get_document("q")?.get_str("_id")?;
        if places.contains(&place) || user_id == Some(user) {
            user_id = Some(user);
            updates.push(without(upsert, "upsert")?);
        }
    }
    let mut command = without(upserts, "updates")?;
    command.append(cstr!("updates"), updates);
    Ok(command)
}

fn without(document: &RawDocument, left_out: &str) -> Result<RawDocumentBuf> {
    let mut rest = RawDocumentBuf::new();
    for element in document {
        let (key, value) = element?;
        if key.as_str() != left_out {
            rest.append(key, value);
        }
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upserts_that_fail_as_duplicates_are_sent_again_as_guarded_updates() {
        let upsert = |user: &str, buyer: &str| {
            rawdoc! {
                "q": {"_id": user, "t": {"$lte": 7}},
                "u": {"$set": {"b": buyer}},
                "upsert": true,
            }
        };
        let update = |user: &str, buyer: &str| {
            rawdoc! {"q": {"_id": user, "t": {"$lte": 7}}, "u": {"$set": {"b": buyer}}}
        };
        let command = |updates: RawArrayBuf| {
            rawdoc! {
                "update": "cookies",
                "ordered": false,
                "writeConcern": {"w": 1},
                "updates": updates,
            }
        };
        let cookies = [("a", "1"), ("b", "1"), ("b", "2"), ("b", "3"), ("c", "1")];
        let upserts = command(
            cookies
                .map(|(user, buyer)| upsert(user, buyer))
                .into_iter()
                .collect(),
        );
        let answer = doc! {"n": 3, "writeErrors": [
            {"index": 4, "code": DUPLICATE},
            {"index": 2, "code": DUPLICATE},
        ]};
        let duplicates = check(Kind::Upsert, &answer, 5).unwrap();
        let again = [("b", "2"), ("b", "3"), ("c", "1")];
        let again = again
            .map(|(user, buyer)| update(user, buyer))
            .into_iter()
            .collect();
        assert_eq!(updates_of(&upserts, &duplicates).unwrap(), command(again));
        for (kind, answer) in [
            (Kind::Insert, &answer),
            (
                Kind::Upsert,
                &doc! {"n": 2, "writeErrors": [{"index": 0, "code": 121}]},
            ),
            (Kind::Upsert, &doc! {"n": 2}),
            (
                Kind::Upsert,
                &doc! {"n": 3, "writeConcernError": {"code": 64}},
            ),
        ] {
            assert!(check(kind, answer, 3).is_err(), "{kind:?}: {answer}");
        }
    }
}
