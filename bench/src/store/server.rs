//! The MongoDB that is written to, seen from beside: what runs there, and the databases that are ours.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    time::Duration,
};

use anyhow::{Result, anyhow};
use consumer::store::mongodb::COOKIES;
use mongodb::{
    Client, Collection,
    bson::{Bson, Document, doc},
    error::ErrorKind,
    options::ClientOptions,
};
use serde::Serialize;

use super::workload::Expected;
use crate::cpu::CpuTime;

/// Users looked for in one query.
const FIND_MAX: usize = 1_000;

/// How long the server may be looked for, so that its absence shows soon.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// A MongoDB.
pub(super) struct Server {
    client: Client,
    /// What the names of all our databases begin with.
    prefix: String,
    /// Of the `mongod`, if it runs on this machine.
    process_id: Option<u32>,
    version: String,
}

/// What the server holds in memory.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cache {
    /// Bytes in WiredTiger's cache.
    pub used_bytes: u64,
    /// The most it may hold.
    pub bytes_max: u64,
}

impl Server {
    pub(super) async fn connect(uri: &str, prefix: &str) -> Result<Self> {
        let mut options = ClientOptions::parse(uri).await?;
        let patience = *options
            .server_selection_timeout
            .get_or_insert(SELECTION_TIMEOUT);
        let addresses: Vec<_> = options.hosts.iter().map(ToString::to_string).collect();
        let addresses = addresses.join(", ");
        let client = Client::with_options(options)?;
        let mut server = Self {
            client,
            prefix: prefix.to_owned(),
            process_id: None,
            version: String::new(),
        };
        let status = server.status().await;
        let status = status.map_err(|error| match *error.kind {
            // What the driver says of this is pages about each server it looked for.
            ErrorKind::ServerSelection { .. } => anyhow!(
                "no MongoDB at {addresses} could be used within {patience:?}: start one there, or name another with --store"
            ),
            kind => anyhow!("cannot use the MongoDB at {addresses}: {kind}"),
        })?;
        status
            .get_str("version")
            .unwrap_or("unknown")
            .clone_into(&mut server.version);
        let process_id = status.get("pid").and_then(whole);
        server.process_id = process_id
            .and_then(|id| u32::try_from(id).ok())
            .filter(|id| {
                let name = fs::read_to_string(format!("/proc/{id}/comm"));
                name.is_ok_and(|name| name.trim_end() == "mongod")
            });
        Ok(server)
    }

    /// Of the `mongod`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// What `mongod` has used; `None` when it does not run on this machine.
    pub(super) fn cpu(&self) -> Option<CpuTime> {
        self.process_id.and_then(CpuTime::of)
    }

    /// Its cache; `None` when it does not tell.
    pub(super) async fn cache(&self) -> Option<Cache> {
        let status = self.status().await.ok()?;
        let cache = status
            .get_document("wiredTiger")
            .ok()?
            .get_document("cache")
            .ok()?;
        let bytes = |name| cache.get(name).and_then(whole);
        Some(Cache {
            used_bytes: bytes("bytes currently in the cache")?,
            bytes_max: bytes("maximum bytes configured")?,
        })
    }

    async fn status(&self) -> mongodb::error::Result<Document> {
        let command = doc! {"serverStatus": 1, "repl": 0, "metrics": 0, "locks": 0};
        self.client.database("admin").run_command(command).await
    }

    /// Drops the databases that a run makes: those of `ways`, and no other.
    pub(super) async fn drop_own(&self, ways: &[&str]) -> Result<()> {
        for name in self.client.list_database_names().await? {
            if is_own(&name, &self.prefix, ways) {
                self.client.database(&name).drop().await?;
            }
        }
        Ok(())
    }

    /// The documents of one way.
    pub(super) async fn count(&self, path: &str, dsps: u32) -> Result<u64> {
        let mut count = 0;
        for dsp_id in 1..=dsps {
            let database = self
                .client
                .database(&format!("{}{path}-{dsp_id}", self.prefix));
            let collection: Collection<Document> = database.collection(COOKIES);
            count += collection.estimated_document_count().await?;
        }
        Ok(count)
    }

    /// How many of the pairs have another value, or none.
    pub(super) async fn wrong(&self, path: &str, expected: &[Expected]) -> Result<u64> {
        let mut by_dsp: BTreeMap<_, Vec<&Expected>> = BTreeMap::new();
        for pair in expected {
            by_dsp.entry(pair.dsp_id).or_default().push(pair);
        }
        let mut wrong = 0;
        for (dsp_id, pairs) in by_dsp {
            let database = self
                .client
                .database(&format!("{}{path}-{dsp_id}", self.prefix));
            let collection = database.collection(COOKIES);
            for pairs in pairs.chunks(FIND_MAX) {
                let found = find(&collection, pairs).await?;
                let is_wrong =
                    |pair: &&&Expected| found.get(&pair.user_id) != Some(&pair.buyer_uid);
                wrong += pairs.iter().filter(is_wrong).count() as u64;
            }
        }
        Ok(wrong)
    }
}

/// User id to buyer uid.
async fn find(
    collection: &Collection<Document>,
    pairs: &[&Expected],
) -> Result<HashMap<String, String>> {
    let users: Vec<_> = pairs.iter().map(|pair| pair.user_id.as_str()).collect();
    let mut found = collection.find(doc! {"_id": {"$in": users}}).await?;
    let mut buyer_uids = HashMap::new();
    while found.advance().await? {
        let document = found.deserialize_current()?;
        document.get_datetime("t")?;
        buyer_uids.insert(
            document.get_str("_id")?.to_owned(),
            document.get_str("b")?.to_owned(),
        );
    }
    Ok(buyer_uids)
}

/// `<prefix><way>-<DSP>` and `<prefix><way>-cookiesync`.
fn is_own(database: &str, prefix: &str, ways: &[&str]) -> bool {
    let rest = database.strip_prefix(prefix);
    let Some((path, rest)) = rest.and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let is_dsp = rest.parse().is_ok_and(|dsp: u32| dsp.to_string() == rest);
    ways.contains(&path) && (is_dsp || rest == "cookiesync")
}

fn whole(value: &Bson) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
    let from_float = |value: f64| value as i64;
    let number = value
        .as_i64()
        .or_else(|| value.as_i32().map(i64::from))
        .or_else(|| value.as_f64().map(from_float))?;
    u64::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_databases_of_a_run_are_dropped() {
        let is_own = |name| is_own(name, "bench-store-", &["one", "ceiling"]);
        for own in [
            "bench-store-one-7",
            "bench-store-ceiling-20",
            "bench-store-one-cookiesync",
        ] {
            assert!(is_own(own), "{own}");
        }
        for foreign in [
            "7",
            "cookiesync",
            "one-7",
            "bench-store-7",
            "bench-store-one",
            "bench-store-one-",
            "bench-store-one-07",
            "bench-store-one-x",
            "bench-store-two-7",
            "prod-bench-store-one-7",
        ] {
            assert!(!is_own(foreign), "{foreign}");
        }
    }
}
