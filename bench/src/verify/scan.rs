//! Reads whole stores: MongoDB as a bidder reads it, with an ordinary driver; the embedded store from its directory.

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

use super::{StoreCheck, StoreVerdict};

/// Documents of one answer: about a megabyte.
const DOCUMENTS_AT_ONCE: u32 = 10_000;

/// Cookies that are read ahead of the check.
const COOKIES_AHEAD: usize = 10_000;

/// Longer than any run: expiry has no part in this.
const TTL: Duration = Duration::from_secs(14 * 24 * 3600);

/// Checks all databases of `uri` that are named `prefix` and a DSP's number.
///
/// # Errors
/// When it cannot be read, or a document has not the form that is promised.
pub async fn mongodb(uri: &str, prefix: &str, mut check: StoreCheck<'_>) -> Result<StoreVerdict> {
    let client = Client::with_uri_str(uri).await?;
    for name in client.list_database_names().await? {
        let Some(dsp_id) = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.parse::<u32>().ok())
        else {
            continue;
        };
        let database = client.database(&name);
        let cookies = database.collection::<RawDocumentBuf>(COOKIES);
        let mut found = cookies.find(doc! {}).batch_size(DOCUMENTS_AT_ONCE).await?;
        while found.advance().await? {
            let document = found.current();
            let form = || format!("{name} has a document of another form: {document:?}");
            let user_id = document.get_str("_id").with_context(form)?;
            let buyer_uid = document.get_str("b").with_context(form)?;
            document.get_datetime("t").with_context(form)?;
            check.take(user_id.as_bytes(), dsp_id, buyer_uid.as_bytes());
        }
    }
    Ok(check.finish())
}

/// Checks the embedded store in `dir`, which nobody uses.
///
/// # Errors
/// When it cannot be opened or read.
pub async fn embedded(dir: &Path, mut check: StoreCheck<'_>) -> Result<StoreVerdict> {
    let ttls = Ttls::new(TTL, std::collections::BTreeMap::new());
    let store = EmbeddedStore::open(dir.to_owned(), ttls).await?;
    // Reading blocks, and ends when nobody listens any more.
    let (cookie_tx, mut cookies) = mpsc::channel(COOKIES_AHEAD);
    let reading = tokio::task::spawn_blocking(move || {
        store.for_each(|cookie| {
            let (user, buyer) = (cookie.user_id.to_vec(), cookie.buyer_uid.to_vec());
            match cookie_tx.blocking_send((user, cookie.dsp_id, buyer)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })
    });
    while let Some((user_id, dsp_id, buyer_uid)) = cookies.recv().await {
        check.take(&user_id, dsp_id, &buyer_uid);
    }
    reading.await??;
    Ok(check.finish())
}
