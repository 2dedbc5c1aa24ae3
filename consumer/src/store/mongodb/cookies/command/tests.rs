//! Tests that compare encoded commands with the BSON of the driver, and the condition of upserts with `proto::newest`.

use mongodb::bson::{Bson as Value, DateTime, Document, doc};

use proto::{newest, units::UnixMicros};

use super::{super::super::bson::millis, *};
use crate::batch::tests::{batch, chunk};

/// A batch of `count` cookies of DSP 7 with the same time.
fn cookies(count: usize) -> Batch {
    let users: Vec<_> = (0..count).map(|user| format!("user-{user}")).collect();
    let cookies: Vec<_> = users.iter().map(|user| (&**user, 7, "$ü=/&")).collect();
    batch(&[chunk(1, 1_700_000_000_123_456, &cookies)])
}

#[track_caller]
fn check(kind: Kind, count: u32, concern: &Document, expected: &Document) {
    let indices: Vec<u32> = (0..count).collect();
    let raw = kind.encode(&cookies(count as usize), &indices, concern, None);
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
    check(Kind::Insert, 12, &doc! { "w": 1 }, &command);
    command.remove("writeConcern");
    check(Kind::Insert, 12, &doc! {}, &command);
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
    let majority = doc! { "w": "majority" };
    check(Kind::Upsert, 3, &majority, &command);
}

#[test]
fn find_is_the_bson_that_the_driver_would_write() {
    let command = doc! {
        "find": "cookies", "filter": { "_id": { "$in": users(0..11) } }, "projection": { "t": 1 },
        "batchSize": 11, "singleBatch": true,
    };
    check(Kind::Find, 11, &doc! { "w": 1 }, &command);
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
    check(Kind::Replace, 50, &doc! {}, &command);
}

#[test]
fn largest_command_is_far_below_the_limit_of_the_server() {
    let user = "u".repeat(64);
    let uid = "b".repeat(256);
    let count = u32::try_from(COOKIES_MAX).unwrap();
    let users: Vec<_> = (0..count).map(|n| format!("{user:.57}{n:07}")).collect();
    let cookies: Vec<_> = users.iter().map(|user| (&**user, 7, &*uid)).collect();
    let batch = batch(&[chunk(1, 1, &cookies)]);
    let indices: Vec<u32> = (0..count).collect();
    for kind in [Kind::Insert, Kind::Find, Kind::Replace, Kind::Upsert] {
        let raw = kind.encode(&batch, &indices, &doc! {}, None);
        assert!(raw.as_bytes().len() < 8 << 20, "{kind:?}");
    }
}

/// Evaluates a comparison like the server.
fn holds(operator: &str, left: DateTime, right: DateTime) -> bool {
    match operator {
        "$lte" => left <= right,
        "$lt" => left < right,
        "$gte" => left >= right,
        "$gt" => left > right,
        other => panic!("{other} is unknown"),
    }
}

/// The first update of a command for one cookie.
fn update_of(kind: Kind, batch: &Batch) -> Document {
    let command = kind.encode(batch, &[0], &doc! {}, None);
    let command = Document::try_from(command.as_ref()).unwrap();
    let updates = command.get_array("updates").unwrap();
    updates[0].as_document().unwrap().clone()
}

/// Whether the query of an upsert matches a document with the time `known`.
fn upsert_replaces(batch: &Batch, known: DateTime) -> bool {
    let update = update_of(Kind::Upsert, batch);
    let condition = update.get_document("q").unwrap().get_document("t");
    let (operator, new) = condition.unwrap().iter().next().unwrap();
    holds(operator, known, *new.as_datetime().unwrap())
}

/// Whether the pipeline of a replace changes a document with the time `known`.
fn replace_replaces(batch: &Batch, known: DateTime) -> bool {
    let update = update_of(Kind::Replace, batch);
    let stage = update.get_array("u").unwrap()[0].as_document().unwrap();
    let within = |it: &Document| {
        let scope = it.get_document("$let").unwrap();
        let vars = scope.get_document("vars").unwrap().clone();
        (vars, scope.get_document("in").unwrap().clone())
    };
    let (_, inner) = within(stage.get_document("$replaceWith").unwrap());
    let (vars, value) = within(&inner);
    let times = vars.get_document("t").unwrap().get_array("$arrayElemAt");
    let times = times.unwrap()[0].as_document().unwrap();
    let new = times.get_array("$literal").unwrap()[0].as_datetime();
    let cond = value.get_array("$cond").unwrap();
    let (operator, operands) = cond[0].as_document().unwrap().iter().next().unwrap();
    assert!(cond[1].as_document().unwrap().contains_key("b"));
    let time = |operand: &Value| match operand.as_str() {
        Some("$t") => known,
        Some("$$t") => *new.unwrap(),
        other => panic!("{other:?} is unknown"),
    };
    let operands = operands.as_array().unwrap();
    holds(operator, time(&operands[0]), time(&operands[1]))
}

#[test]
fn server_replaces_by_the_same_rule_as_a_batch() {
    let known = 1_700_000_000_123_456;
    let stored = DateTime::from_millis(millis(UnixMicros(known)));
    for new in [
        known - 1_000,
        known - 457,
        known - 456,
        known - 1,
        known,
        known + 1,
        known + 543,
        known + 544,
        known + 1_000,
    ] {
        let batch = batch(&[chunk(1, new, &[("u", 7, "b")])]);
        let expected = newest::replaces(millis(UnixMicros(new)), millis(UnixMicros(known)));
        assert_eq!(upsert_replaces(&batch, stored), expected, "{new}");
        assert_eq!(replace_replaces(&batch, stored), expected, "{new}");
    }
}
