//! Tests of deletions in the MongoDB store, on a real `mongod`.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use consumer::{
    batch::Batch,
    deletions::Deletions,
    store::{
        Backlog as _, Cookies as _, DeferredCookies, Lookup as _, LookupQuery, Upkeep as _,
        mongodb::{COOKIES, MongodbStore},
    },
};
use mongodb::{
    Client,
    bson::{Document, doc},
};
use proto::units::{DspId, UnixMicros};
use tokio_util::sync::CancellationToken;

use super::newest_wins::{chunk, options};
use crate::mongods::{command, shared};

/// A batch of cookies and deletions: user id, DSP id, buyer uid or empty, and time.
fn batch(records: impl IntoIterator<Item = (String, u32, &'static str, u64)>) -> Result<Batch> {
    let mut batch = Batch::new(1_000_000, 1 << 30);
    for (user_id, dsp_id, buyer_uid, seconds) in records {
        let record = (user_id, dsp_id, buyer_uid.to_owned(), seconds);
        batch.push(&"p".into(), &chunk(&record)?, UnixMicros::MAX);
    }
    Ok(batch)
}

#[tokio::test]
async fn deletion_is_queued_while_the_database_of_its_dsp_is_created() -> Result<()> {
    let mongod = shared::start().await?;
    let store = MongodbStore::new(options(mongod.uri()));
    store.load(&Deletions::default()).await?;
    let deletion = || batch([("alice".to_owned(), 0, "", 2)]);
    // A retry creates the database, and then inserts an older cookie.
    let mut deleting = deletion()?;
    deleting.defer_dsps([DspId(9)].into());
    let written = store.write(Arc::new(deleting)).await?;
    let queued = DeferredCookies {
        dsp_id: DspId(9),
        why: None,
        indices: Vec::new(),
    };
    ensure!(written.deferred == [queued], "{written:?}");
    let cookie = batch([("alice".to_owned(), 9, "a", 1)])?;
    store.retry(DspId(9), Arc::new(cookie)).await?;
    store.retry(DspId(9), Arc::new(deletion()?)).await?;
    let query = LookupQuery {
        user_ids: vec!["alice".into()],
        dsps: None,
        deadline: tokio::time::Instant::now() + Duration::from_secs(1),
        permit: None,
    };
    let found = store.lookup(query).await?;
    let matches = found.users[0].as_ref().context("not read")?;
    ensure!(matches.iter().next().is_none(), "{found:?}");
    Ok(())
}

/// The deletions in a store.
async fn stored(store: &MongodbStore) -> Result<Deletions> {
    let deletions = Deletions::default();
    store.load(&deletions).await?;
    Ok(deletions)
}

#[tokio::test]
async fn deletions_are_loaded_in_pages_and_removed_except_those_of_unfinished_jobs() -> Result<()> {
    let mongod = shared::start().await?;
    let store = MongodbStore::new(options(mongod.uri()));
    store.load(&Deletions::default()).await?;
    let users = (0..12_000).map(|user| (format!("u{user}"), 0, "", user));
    let jobs = [7, 8].map(|dsp_id| (String::new(), dsp_id, "", 1));
    store.write(Arc::new(batch(users.chain(jobs))?)).await?;
    let all = stored(&store).await?;
    ensure!(all.size().0 == 12_002, "{:?}", all.size());
    let [finished, unfinished] = &all.jobs()[..] else {
        anyhow::bail!("{:?}", all.jobs());
    };
    store
        .remove_dsp(finished, &CancellationToken::new())
        .await?;
    let floor = finished.until.after(1_000_000);
    store.remove_deletions_until(floor).await?;
    let kept = stored(&store).await?;
    ensure!(kept.floor() == floor);
    ensure!(kept.size().0 == 12_000 - 2 + 1, "{:?}", kept.size());
    ensure!(kept.jobs() == [*unfinished], "{:?}", kept.jobs());
    Ok(())
}

#[tokio::test]
async fn deletions_with_distinct_times_share_commands() -> Result<()> {
    // Every 5 minutes, a server also deletes its expired sessions with counted commands.
    let own_deletes_off = ["--setParameter", "disableLogicalSessionCacheRefresh=true"];
    let mongod = shared::start_with(&own_deletes_off).await?;
    let store = MongodbStore::new(options(mongod.uri()));
    store.load(&Deletions::default()).await?;
    let records = |buyer_uid| (0..2_500).map(move |at| (format!("u{at}"), 7, buyer_uid, at));
    let cookies = batch(records("b").chain([("other".to_owned(), 7, "b", 0)]))?;
    store.retry(DspId(7), Arc::new(cookies)).await?;
    let commands = async || {
        let status = command(&mongod.uri(), doc! { "serverStatus": 1 }).await?;
        let commands = status.get_document("metrics")?.get_document("commands")?;
        Ok::<_, anyhow::Error>(commands.get_document("delete")?.get_i64("total")?)
    };
    let before = commands().await?;
    store.write(Arc::new(batch(records(""))?)).await?;
    let sent = commands().await? - before;
    ensure!(sent == 3, "{sent} commands, each of up to 1,000 ids");
    let documents = Client::with_uri_str(mongod.uri()).await?;
    let documents = documents.database("test-7").collection::<Document>(COOKIES);
    ensure!(documents.count_documents(doc! {}).await? == 1);
    Ok(())
}
