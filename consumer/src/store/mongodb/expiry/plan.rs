//! Which index on `t` expires cookies, and what is to be done to it. Pure.

use mongodb::bson::{Bson, Document};

use super::super::{NEVER_SECONDS, number};

pub(super) const NAME: &str = "t_1";

/// Options of an index that would not keep it from expiring all cookies, nor any cookie from being stored.
const HARMLESS: [&str; 9] = [
    "v",
    "key",
    "name",
    "ns",
    "background",
    "expireAfterSeconds",
    "sparse",
    "collation",
    "hidden",
];

/// What is to be done about a collection's indexes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// These are in the way.
    pub(super) drop: Vec<String>,
    pub(super) todo: Todo,
}

/// What is to be done about the index that expires cookies.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Todo {
    #[default]
    Nothing,
    /// The index of this name is to be switched.
    Change(String),
    Create,
}

/// Whether this is an index on `t` and nothing else. Shells write the 1 as a double.
fn is_on_t(index: &Document) -> bool {
    let is_number = |t: &Bson| matches!(t, Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_));
    index
        .get_document("key")
        .is_ok_and(|key| key.len() == 1 && key.get("t").is_some_and(is_number))
}

/// What the index is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// There, and expiring cookies after so many seconds.
    After(i64),
    /// Expiring none if it is there, and not made if it is not.
    Off,
    /// Not there.
    Gone,
}

/// What is to be done so that the index is as it is `wanted`.
pub(super) fn plan(indexes: &[Document], wanted: Wanted) -> Plan {
    match wanted {
        Wanted::After(seconds) => with_index(indexes, seconds),
        Wanted::Off => {
            let expiring: Vec<_> = indexes.iter().filter(|it| expires(it)).cloned().collect();
            match with_index(&expiring, NEVER_SECONDS) {
                Plan {
                    drop,
                    todo: Todo::Create,
                } => Plan {
                    drop,
                    todo: Todo::Nothing,
                },
                plan => plan,
            }
        }
        Wanted::Gone => Plan {
            drop: indexes
                .iter()
                .filter(|index| is_on_t(index) && (expires(index) || is_unique(index)))
                .map(name)
                .collect(),
            todo: Todo::Nothing,
        },
    }
}

fn name(index: &Document) -> String {
    index.get_str("name").unwrap_or_default().to_owned()
}

fn expires(index: &Document) -> bool {
    index.contains_key("expireAfterSeconds")
}

fn is_unique(index: &Document) -> bool {
    index.contains_key("unique")
}

/// Chooses the index that expires cookies, and what is in its way: others that expire, or refuse, cookies; and if
/// there is none to choose, all on `t`.
fn with_index(indexes: &[Document], seconds: i64) -> Plan {
    let on_t = || indexes.iter().filter(|index| is_on_t(index));
    let chosen = on_t()
        .filter(|index| index.keys().all(|option| HARMLESS.contains(&&**option)))
        .max_by_key(|index| (expires(index), name(index) == NAME));
    let is_in_the_way = |index: &Document| match chosen {
        Some(chosen) => index != chosen && (expires(index) || is_unique(index)),
        None => true,
    };
    let todo = match chosen {
        None => Todo::Create,
        Some(index) => match index.get("expireAfterSeconds").and_then(number) {
            Some(found) if i64::try_from(found) == Ok(seconds) => Todo::Nothing,
            _ => Todo::Change(name(index)),
        },
    };
    let in_the_way = on_t().filter(|index| is_in_the_way(index));
    Plan {
        drop: in_the_way.map(name).collect(),
        todo,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[track_caller]
    fn check(indexes: &[Document], drop: &[&str], todo: Todo) {
        let drop = drop.iter().map(ToString::to_string).collect();
        assert_eq!(plan(indexes, Wanted::After(60)), Plan { drop, todo });
    }

    fn index(name: &str, options: Document) -> Document {
        let mut index = doc! { "v": 2, "key": { "t": 1 }, "name": name };
        index.extend(options);
        index
    }

    fn change(name: &str) -> Todo {
        Todo::Change(name.to_owned())
    }

    #[test]
    fn index_in_the_right_state_is_left_alone() {
        let right = index(NAME, doc! { "expireAfterSeconds": 60 });
        check(std::slice::from_ref(&right), &[], Todo::Nothing);
        let double = doc! { "key": { "t": 1.0 }, "expireAfterSeconds": 60.0, "hidden": true };
        check(&[index("ttl", double)], &[], Todo::Nothing);
        let others = [
            doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" },
            doc! { "v": 2, "key": { "t": 1, "b": 1 }, "name": "both", "unique": true },
            doc! { "v": 2, "key": { "t": "hashed" }, "name": "hashed" },
            index("partial", doc! { "partialFilterExpression": {} }),
            right,
        ];
        check(&others, &[], Todo::Nothing);
        check(&others[..3], &[], Todo::Create);
    }

    #[test]
    fn index_of_a_collection_that_is_swept_is_switched_off_and_then_dropped() {
        let check = |indexes: &[Document], wanted, drop: &[&str], todo: Todo| {
            let drop = drop.iter().map(ToString::to_string).collect();
            assert_eq!(plan(indexes, wanted), Plan { drop, todo }, "{indexes:?}");
        };
        let ours = index(NAME, doc! { "expireAfterSeconds": 60 });
        let off = index(NAME, doc! { "expireAfterSeconds": NEVER_SECONDS });
        let theirs = index("theirs", doc! {});
        let both = [ours, theirs.clone()];
        check(&both, Wanted::Off, &[], change(NAME));
        check(&[off, theirs.clone()], Wanted::Off, &[], Todo::Nothing);
        check(&both, Wanted::Gone, &[NAME], Todo::Nothing);
        for wanted in [Wanted::Off, Wanted::Gone] {
            check(&[], wanted, &[], Todo::Nothing);
            check(std::slice::from_ref(&theirs), wanted, &[], Todo::Nothing);
        }
        let part = doc! { "partialFilterExpression": {}, "expireAfterSeconds": 60 };
        check(
            &[index("part", part)],
            Wanted::Off,
            &["part"],
            Todo::Nothing,
        );
    }

    #[test]
    fn index_that_can_be_switched_is() {
        check(
            &[index(NAME, doc! { "expireAfterSeconds": 61 })],
            &[],
            change(NAME),
        );
        check(&[index(NAME, doc! {})], &[], change(NAME));
        check(&[index("s", doc! { "sparse": true })], &[], change("s"));
        let descending = doc! { "key": { "t": -1 }, "expireAfterSeconds": 5_i64 };
        check(&[index("t_-1", descending)], &[], change("t_-1"));
    }

    #[test]
    fn index_that_is_in_the_way_is_dropped() {
        for option in ["unique", "partialFilterExpression", "unheardOf"] {
            let unfit = index(NAME, doc! { option: true, "expireAfterSeconds": 60 });
            check(&[unfit], &[NAME], Todo::Create);
        }
        let two = [
            index("other", doc! { "expireAfterSeconds": 60 }),
            index(NAME, doc! { "expireAfterSeconds": 60 }),
        ];
        check(&two, &["other"], Todo::Nothing);
    }
}
