use mongodb::bson::{Bson as Value, DateTime, Document, doc};

use super::*;
use crate::batch::tests::{batch, chunk};

/// A batch of so many cookies, all of DSP 7 and of one time.
fn cookies(count: usize) -> Batch {
    let users: Vec<_> = (0..count).map(|user| format!("user-{user}")).collect();
    let cookies: Vec<_> = users.iter().map(|user| (&**user, 7, "$ü=/&")).collect();
    batch(&[chunk(1, 1_700_000_000_123_456, &cookies)])
}

#[track_caller]
fn check(kind: Kind, count: u32, concern: Option<&WriteConcern>, expected: &Document) {
    let indices: Vec<u32> = (0..count).collect();
    let raw = kind.encode(&cookies(count as usize), &indices, concern);
    assert_eq!(Document::try_from(raw.as_ref()).unwrap(), *expected);
}

fn users(range: std::ops::Range<u32>) -> Vec<Value> {
    range.map(|user| format!("user-{user}").into()).collect()
}

fn time() -> DateTime {
    DateTime::from_millis(1_700_000_000_123)
}

#[test]
fn insert_is_the_bson_that_the_driver_would_write() {
    let document = |user: Value| doc! { "_id": user, "b": "$ü=/&", "t": time() };
    let documents: Vec<Document> = users(0..12).into_iter().map(document).collect();
    let mut command = doc! {
        "insert": "cookies", "ordered": false, "writeConcern": { "w": 1 },
        "documents": documents,
    };
    check(Kind::Insert, 12, Some(&WriteConcern::Nodes(1)), &command);
    command.remove("writeConcern");
    check(Kind::Insert, 12, None, &command);
}

#[test]
fn upsert_is_the_bson_that_the_driver_would_write() {
    let update = |user: Value| {
        doc! {
            "q": { "_id": user, "t": { "$lte": time() } },
            "u": { "$set": { "b": "$ü=/&", "t": time() } },
            "upsert": true,
        }
    };
    let updates: Vec<Document> = users(0..3).into_iter().map(update).collect();
    let command = doc! {
        "update": "cookies", "ordered": false, "writeConcern": { "w": "majority" },
        "updates": updates,
    };
    let majority = WriteConcern::Tag("majority".to_owned());
    check(Kind::Upsert, 3, Some(&majority), &command);
}

#[test]
fn look_is_the_bson_that_the_driver_would_write() {
    let command = doc! {
        "find": "cookies", "filter": { "_id": { "$in": users(0..11) } }, "projection": { "t": 1 },
        "batchSize": 11, "singleBatch": true,
    };
    check(Kind::Look, 11, Some(&WriteConcern::Nodes(1)), &command);
}

#[test]
fn replace_is_one_operation_for_each_group_of_users() {
    let update = |range: std::ops::Range<u32>| {
        let buyer_uids = vec!["$ü=/&"; range.len()];
        let times = vec![time(); range.len()];
        let users = users(range);
        let element = |items: Value| doc! { "$arrayElemAt": [{ "$literal": items }, "$$i"] };
        doc! {
            "q": { "_id": { "$in": users.clone() } },
            "multi": true,
            "u": [{ "$replaceWith": { "$let": {
                "vars": { "i": { "$indexOfArray": [{ "$literal": users }, "$_id"] } },
                "in": { "$let": {
                    "vars": { "t": element(times.into()) },
                    "in": { "$cond": [
                        { "$lte": ["$t", "$$t"] },
                        { "_id": "$_id", "b": element(buyer_uids.into()), "t": "$$t" },
                        "$$ROOT",
                    ] },
                } },
            } } }],
        }
    };
    let command = doc! {
        "update": "cookies", "ordered": false, "updates": [update(0..48), update(48..50)],
    };
    check(Kind::Replace, 50, None, &command);
}

#[test]
fn no_command_is_larger_than_was_counted() {
    let batch = cookies(50_000);
    let indices: Vec<u32> = (0..50_000).collect();
    let concern = WriteConcern::Nodes(1);
    for kind in [Kind::Insert, Kind::Look, Kind::Replace, Kind::Upsert] {
        let raw = kind.encode(&batch, &indices, Some(&concern));
        let counted: usize = batch.cookies().map(|cookie| kind.bytes(&cookie)).sum();
        assert!(raw.as_bytes().len() <= counted + HEAD_BYTES, "{kind:?}");
    }
}

#[test]
fn largest_command_is_far_below_what_the_server_takes() {
    let user = "u".repeat(64);
    let uid = "b".repeat(256);
    let count = u32::try_from(COOKIES_MAX).unwrap();
    let users: Vec<_> = (0..count).map(|n| format!("{user:.57}{n:07}")).collect();
    let cookies: Vec<_> = users.iter().map(|user| (&**user, 7, &*uid)).collect();
    let batch = batch(&[chunk(1, 1, &cookies)]);
    let indices: Vec<u32> = (0..count).collect();
    for kind in [Kind::Insert, Kind::Look, Kind::Replace, Kind::Upsert] {
        let raw = kind.encode(&batch, &indices, None);
        assert!(raw.as_bytes().len() < 8 << 20, "{kind:?}");
    }
}
