//! How a DSP's collection is made: with settings of WiredTiger that suit users who come in no order.
//!
//! - A user's document is on the page on which it was written first, and its `_id` anywhere in the index. Where the cache does not
//!   hold these pages, each is read, unpacked, changed, packed and written for one cookie. So they are small: 4 KiB instead of 32 KiB
//!   before compression, and 16 KiB for the index.
//! - User ids have hardly a beginning in common: prefix compression of the index saves 3 to 5 % of the disk, and compares each key
//!   with its neighbours whenever its page is read or written.
//! - The last page of a collection, to which all that is new is appended, may grow to 10 MiB in memory. In twenty collections
//!   that is most of what a server may keep changed out of the box, so it writes out pages of the index instead, each for a
//!   few keys.
//!
//! With 50 million documents, without an index on `t` and out of the box with a cache of 4 GiB, a new user takes 19 µs of CPU of
//! mongod 6.0.5 instead of the 37 of larger pages, and a refresh 72 instead of 147. What each setting does, and that small pages cost
//! 30 % more disk when newly filled, is told by docs/mongodb-measurements.md.
//!
//! Collections that are there already keep what they have: MongoDB takes such settings only when it makes a collection.

use mongodb::{
    Database,
    bson::{Document, doc},
    error::Error,
};

use super::{
    COOKIES, NAMESPACE_EXISTS,
    retry_policy::{Failure, code, failure, unavailable},
};

/// Of a collection's own pages.
const OF_DOCUMENTS: &str = "leaf_page_max=4k,memory_page_max=512k";

/// Of its indexes, the one of `_id` too.
const OF_INDEXES: &str = "leaf_page_max=4k,prefix_compression=false";

/// Answers that another attempt may well not get: of locks, conflicts and time.
const PASSING: [i32; 5] = [24, 50, 112, 202, 262];

/// Of Atlas, for what it does not offer.
const NOT_OFFERED: i32 = 8000;

/// Makes the collection of a DSP, if it is not there. A server that does not take the settings makes it without.
pub(super) async fn create(database: &Database) -> Result<(), Error> {
    let tuned = doc! {
        "create": COOKIES,
        "storageEngine": of_wired_tiger(OF_DOCUMENTS),
        "indexOptionDefaults": { "storageEngine": of_wired_tiger(OF_INDEXES) },
    };
    match there(database.run_command(tuned).await) {
        Err(error) if may_be_refusal(&error) => {
            // If it is not about the settings, the plain command has the same answer.
            there(database.run_command(doc! { "create": COOKIES }).await)?;
            let (database, why) = (database.name(), unavailable(&error));
            tracing::warn!(database, %why, "server rejected the page-size options; created the collection with server defaults");
            Ok(())
        }
        created => created,
    }
}

/// Whether a server may mean by this that it does not take the settings.
fn may_be_refusal(error: &Error) -> bool {
    match code(error) {
        Some(NOT_OFFERED) => true,
        Some(code) => !PASSING.contains(&code) && matches!(failure(error), Failure::Dsp(_)),
        None => false,
    }
}

fn of_wired_tiger(settings: &str) -> Document {
    doc! { "wiredTiger": { "configString": settings } }
}

/// One that is there meanwhile may have an index, which the next look changes.
fn there(created: Result<Document, Error>) -> Result<(), Error> {
    match created {
        Err(error) if code(&error) != Some(NAMESPACE_EXISTS) => Err(error),
        _ => Ok(()),
    }
}
