//! Reads whole stores: MongoDB as a bidder reads it, with an ordinary driver; the embedded store from its folder.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use consumer::{store::embedded::EmbeddedStore, ttl::Ttls};
use mongodb::{
    Client,
    bson::{RawDocumentBuf, doc},
};
use tokio_util::sync::CancellationToken;

use super::{Check, Verdict};

/// Documents of one answer: about a megabyte.
const DOCUMENTS_AT_ONCE: u32 = 10_000;

/// Longer than any run: expiry has no part in this.
const TTL: Duration = Duration::from_secs(14 * 24 * 3600);

/// Checks all databases of `uri` that are named `prefix` and a DSP's number; `progress` gets the documents read so far.
/// `None` when stopped.
///
/// # Errors
/// When it cannot be read, or a document has not the form that is promised.
pub async fn mongodb(
    uri: &str,
    prefix: &str,
    mut check: Check<'_>,
    stop: &CancellationToken,
    mut progress: impl FnMut(u64),
) -> Result<Option<Verdict>> {
    let client = Client::with_uri_str(uri).await?;
    let mut documents = 0;
    for name in client.list_database_names().await? {
        let Some(dsp_id) = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.parse::<u32>().ok())
        else {
            continue;
        };
        let cookies = client
            .database(&name)
            .collection::<RawDocumentBuf>("cookies");
        let mut found = cookies.find(doc! {}).batch_size(DOCUMENTS_AT_ONCE).await?;
        while found.advance().await? {
            let document = found.current();
            let form = || format!("{name} has a document of another form: {document:?}");
            let user_id = document.get_str("_id").with_context(form)?;
            let buyer_uid = document.get_str("b").with_context(form)?;
            document.get_datetime("t").with_context(form)?;
            check.take(user_id.as_bytes(), dsp_id, buyer_uid.as_bytes());
            documents += 1;
            if documents % u64::from(DOCUMENTS_AT_ONCE) == 0 {
                progress(documents);
                if stop.is_cancelled() {
                    return Ok(None);
                }
            }
        }
    }
    Ok(Some(check.finish()))
}

/// Checks the embedded store in `folder`, which nobody uses.
///
/// # Errors
/// When it cannot be opened or read.
pub async fn embedded(folder: &Path, mut check: Check<'_>) -> Result<Verdict> {
    let ttls = Ttls::new(TTL, std::collections::BTreeMap::new());
    let store = EmbeddedStore::open(folder.to_owned(), ttls).await?;
    tokio::task::block_in_place(|| {
        store.for_each(|cookie| {
            check.take(cookie.user_id, cookie.dsp_id, cookie.buyer_uid);
        })
    })?;
    Ok(check.finish())
}
