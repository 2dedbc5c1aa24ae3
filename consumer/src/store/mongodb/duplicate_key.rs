//! Duplicate key errors: whether a write failed because the user already exists in the DSP's collection. Does no I/O.
//!
//! After a failed insert, `write.rs` reads the stored cookie, and replaces it if it is older. After a failed upsert, the
//! stored cookie is newer, and the cookie of the batch is stale. `insert_strategy.rs` avoids the error if existing users
//! are frequent. A duplicate in a unique index that the operator created is final: the cookie becomes a dead letter.

use mongodb::bson::Document;

pub(super) const CODE: i32 = 11_000;

/// Whether a write error means that a document with this `_id` exists.
pub(super) fn is_of_id(code: i32, error: &Document) -> bool {
    // If a reply has too many errors, the server omits their details.
    let index = error.get_document("keyPattern");
    code == CODE && index.map_or(true, |index| index.keys().eq(["_id"]))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn only_a_duplicate_id_means_an_existing_user() {
        for (code, error, is_existing_user) in [
            (CODE, doc! { "keyPattern": { "_id": 1 } }, true),
            (CODE, doc! {}, true),
            (CODE, doc! { "keyPattern": { "b": 1 } }, false),
            (CODE, doc! { "keyPattern": { "_id": 1, "b": 1 } }, false),
            (121, doc! {}, false),
        ] {
            assert_eq!(is_of_id(code, &error), is_existing_user, "{error}");
        }
    }
}
