//! Duplicate keys: which write errors say that a user is in a DSP's collection already. Pure.
//!
//! Of a cookie that was inserted, this is a repeat: it is looked for, and replaces the stored one if it is newer. Of one that
//! was upserted, the stored one is newer, and the cookie is stale. `write.rs` does both, `insert_strategy.rs` avoids
//! the error where repeats are frequent. A duplicate in a unique index of the operator's is final: a dead letter.

use mongodb::bson::Document;

pub(super) const CODE: i32 = 11_000;

/// Whether a write error with this code says that a document of this `_id` exists.
pub(super) fn is_of_id(code: i32, error: &Document) -> bool {
    // Where there are very many errors, the server leaves out their details.
    let index = error.get_document("keyPattern");
    code == CODE && index.map_or(true, |index| index.keys().eq(["_id"]))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn only_a_duplicate_of_the_id_is_a_repeat() {
        for (code, error, is_repeat) in [
            (CODE, doc! { "keyPattern": { "_id": 1 } }, true),
            (CODE, doc! {}, true),
            (CODE, doc! { "keyPattern": { "b": 1 } }, false),
            (CODE, doc! { "keyPattern": { "_id": 1, "b": 1 } }, false),
            (121, doc! {}, false),
        ] {
            assert_eq!(is_of_id(code, &error), is_repeat, "{error}");
        }
    }
}
