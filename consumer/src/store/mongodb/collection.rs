//! Creates the collection of a DSP, with WiredTiger options for writes in random order.
//!
//! - A user's document stays on the page of its first write, and its `_id` may be anywhere in the index. If these pages are not
//!   cached, the server must read, decompress, change, compress and write whole pages for one cookie. So pages are small: 4 KiB
//!   before compression. The default is 32 KiB for the collection and 16 KiB for its indexes.
//! - User ids rarely have a common prefix: prefix compression of the index saves 3 to 5 % of disk space, but compares every key
//!   with its neighbors whenever its page is read or written.
//! - New documents are appended to the last page of a collection, which may grow to 10 MiB in memory by default. With twenty
//!   collections, this is most of the dirty cache that a server allows by default. So the server evicts index pages instead,
//!   each with few changed keys.
//!
//! With these options, inserting a new user takes 19 µs of CPU of mongod 6.0.5 instead of 37, and replacing a stored
//! cookie 72 µs instead of 147. This was measured with 50 million documents, no index on `t`, and a cache of 4 GiB. See
//! docs/mongodb.md. Small pages need 30 % more disk space when newly filled.
//!
//! Existing collections keep their options: MongoDB accepts these only at creation.

use mongodb::{
    Database,
    bson::{Document, doc},
    error::Error,
};

use super::{
    COOKIES, NAMESPACE_EXISTS,
    error_class::{Failure, code, failure, unavailable},
};

/// Options of the collection.
const COLLECTION_OPTIONS: &str = "leaf_page_max=4k,memory_page_max=512k";

/// Options of its indexes, including that of `_id`.
const INDEX_OPTIONS: &str = "leaf_page_max=4k,prefix_compression=false";

/// Temporary errors: locks, conflicts and timeouts.
const TEMPORARY_CODES: [i32; 5] = [24, 50, 112, 202, 262];

/// Returned by Atlas for unsupported features.
const ATLAS_ERROR: i32 = 8000;

/// Creates the collection of a DSP if it does not exist. Omits the options if the server rejects them.
pub(super) async fn create(database: &Database) -> Result<(), Error> {
    let tuned = doc! {
        "create": COOKIES,
        "storageEngine": wired_tiger(COLLECTION_OPTIONS),
        "indexOptionDefaults": { "storageEngine": wired_tiger(INDEX_OPTIONS) },
    };
    match ignore_existing(database.run_command(tuned).await) {
        Err(error) if may_reject_options(&error) => {
            // If the options are not the cause, the plain command has the same error.
            ignore_existing(database.run_command(doc! { "create": COOKIES }).await)?;
            let (database, why) = (database.name(), unavailable(&error));
            tracing::warn!(database, %why, "server rejected the page-size options; created the collection with server defaults");
            Ok(())
        }
        created => created,
    }
}

/// Whether the server may have rejected the options.
fn may_reject_options(error: &Error) -> bool {
    match code(error) {
        Some(ATLAS_ERROR) => true,
        Some(code) => !TEMPORARY_CODES.contains(&code) && matches!(failure(error), Failure::Dsp(_)),
        None => false,
    }
}

fn wired_tiger(options: &str) -> Document {
    doc! { "wiredTiger": { "configString": options } }
}

/// Treats an existing collection as success.
fn ignore_existing(created: Result<Document, Error>) -> Result<(), Error> {
    match created {
        Err(error) if code(&error) != Some(NAMESPACE_EXISTS) => Err(error),
        _ => Ok(()),
    }
}
