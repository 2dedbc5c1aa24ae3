//! Reads the contents of a MongoDB for tests, with the standard driver, as a bidder does.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use mongodb::{
    Client,
    bson::{Document, doc},
};

use crate::harness::{StoreContents, TIMEOUT, wait_until};

/// A connection to a MongoDB server.
pub(crate) struct Documents {
    client: Client,
}

impl Documents {
    pub(crate) async fn connect(uri: &str) -> Result<Self> {
        let client = Client::with_uri_str(uri).await?;
        Ok(Self { client })
    }

    /// All cookies of all DSPs; fails if a document differs from the documented schema.
    pub(crate) async fn contents(&self) -> Result<StoreContents> {
        let mut contents = StoreContents::new();
        for dsp in self.dsps().await? {
            let mut found = self.cookies(dsp).find(doc! {}).await?;
            while found.advance().await? {
                let document = found.deserialize_current()?;
                let keys: Vec<_> = document.keys().map(String::as_str).collect();
                ensure!(keys == ["_id", "b", "t"], "{document}");
                document.get_datetime("t")?;
                let buyer_uid = document.get_str("b")?.to_owned();
                contents
                    .entry(document.get_str("_id")?.to_owned())
                    .or_default()
                    .insert(dsp, buyer_uid);
            }
        }
        Ok(contents)
    }

    /// Waits until the server contains exactly these cookies.
    pub(crate) async fn wait_exactly(&self, expected: &StoreContents) -> Result<()> {
        let count = |contents: &StoreContents| contents.values().map(BTreeMap::len).sum::<usize>();
        let wanted = count(expected) as u64;
        let filled = format!("{wanted} documents");
        let mut found = StoreContents::new();
        let equal = async {
            wait_until(TIMEOUT, &filled, async || Ok(self.count().await? >= wanted)).await?;
            let what = "the documents are as expected";
            wait_until(TIMEOUT / 6, what, async || {
                Ok(self.contents().await? == *expected)
            })
            .await
        };
        if let Err(error) = equal.await {
            found.extend(self.contents().await?);
            let wrong = expected
                .iter()
                .find(|(user, buyers)| found.get(*user) != Some(buyers));
            let unexpected = found.keys().find(|user| !expected.contains_key(*user));
            return Err(error).with_context(|| {
                format!(
                    "{} documents instead of {wanted}; first wrong: {wrong:?}; first unexpected: {unexpected:?}",
                    count(&found)
                )
            });
        }
        Ok(())
    }

    /// Number of cookies of all DSPs.
    pub(crate) async fn count(&self) -> Result<u64> {
        let mut count = 0;
        for dsp in self.dsps().await? {
            count += self.cookies(dsp).count_documents(doc! {}).await?;
        }
        Ok(count)
    }

    /// Acceptance time of the cookie of a user, in milliseconds since the Unix epoch.
    pub(crate) async fn accepted_millis(&self, dsp: u32, user_id: &str) -> Result<u64> {
        let found = self.cookies(dsp).find_one(doc! { "_id": user_id }).await?;
        let time = found
            .context("unknown user")?
            .get_datetime("t")?
            .timestamp_millis();
        Ok(u64::try_from(time)?)
    }

    /// `expireAfterSeconds` of the TTL index of each DSP that has one.
    pub(crate) async fn expire_after_seconds(&self) -> Result<BTreeMap<u32, i64>> {
        let mut seconds = BTreeMap::new();
        for dsp in self.dsps().await? {
            let mut indexes = self.cookies(dsp).list_indexes().await?;
            while indexes.advance().await? {
                let index = indexes.deserialize_current()?;
                if index.keys == doc! {"t": 1} {
                    let after = index.options.and_then(|options| options.expire_after);
                    let after = after.context("the index on t has no expireAfterSeconds")?;
                    seconds.insert(dsp, i64::try_from(after.as_secs())?);
                }
            }
        }
        Ok(seconds)
    }

    async fn dsps(&self) -> Result<Vec<u32>> {
        let names = self.client.list_database_names().await?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    fn cookies(&self, dsp: u32) -> mongodb::Collection<Document> {
        self.client.database(&dsp.to_string()).collection("cookies")
    }
}
