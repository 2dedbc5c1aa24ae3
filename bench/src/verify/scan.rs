//! Reads all cookies of a store: from MongoDB through its driver, as a bidder does, or from the directory of an
//! embedded store.

use std::{ops::ControlFlow, path::Path, time::Duration};

use anyhow::{Context, Result};
use consumer::{
    store::{embedded::EmbeddedStore, mongodb::COOKIES},
    ttl::Ttls,
};
use mongodb::{
    Client,
    bson::{RawDocumentBuf, doc},
};
use tokio::sync::mpsc;

use super::check::{StoreCheck, StoreVerdict};

/// Documents per response: about 1 MB.
const DOCUMENTS_PER_RESPONSE: u32 = 10_000;

/// Capacity of the queue between reading and checking.
const QUEUE_COOKIES: usize = 10_000;

/// Longer than any run, so that no cookie expires.
const TTL: Duration = Duration::from_secs(14 * 24 * 3600);

/// Checks all databases of `uri` that are named by a DSP id.
///
/// # Errors
/// The store cannot be read, or a document has an unexpected format.
pub async fn mongodb(uri: &str, mut check: StoreCheck<'_>) -> Result<StoreVerdict> {
    let client = Client::with_uri_str(uri).await?;
    for name in client.list_database_names().await? {
        let Ok(dsp_id) = name.parse::<u32>() else {
            continue;
        };
        let database = client.database(&name);
        let cookies = database.collection::<RawDocumentBuf>(COOKIES);
        let mut found = cookies
            .find(doc! {})
            .batch_size(DOCUMENTS_PER_RESPONSE)
            .await?;
        while found.advance().await? {
            let document = found.current();
            let context = || format!("unexpected document in {name}: {document:?}");
            let user_id = document.get_str("_id").with_context(context)?;
            let buyer_uid = document.get_str("b").with_context(context)?;
            document.get_datetime("t").with_context(context)?;
            check.check_cookie(user_id.as_bytes(), dsp_id, buyer_uid.as_bytes());
        }
    }
    Ok(check.finish())
}

/// Checks the embedded store in `dir`, which no process uses.
///
/// # Errors
/// The store cannot be opened or read.
pub async fn embedded(dir: &Path, mut check: StoreCheck<'_>) -> Result<StoreVerdict> {
    let ttls = Ttls::new(TTL, std::collections::BTreeMap::new());
    let store = EmbeddedStore::open(dir.to_owned(), ttls, 1 << 20).await?;
    // Reading blocks; it ends when the receiver is dropped.
    let (cookie_tx, mut cookies) = mpsc::channel(QUEUE_COOKIES);
    let reading = tokio::task::spawn_blocking(move || {
        store.for_each(|cookie| {
            let (user, buyer) = (cookie.user_id.to_vec(), cookie.buyer_uid.to_vec());
            match cookie_tx.blocking_send((user, cookie.dsp_id.0, buyer)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })
    });
    while let Some((user_id, dsp_id, buyer_uid)) = cookies.recv().await {
        check.check_cookie(&user_id, dsp_id, &buyer_uid);
    }
    reading.await??;
    Ok(check.finish())
}
