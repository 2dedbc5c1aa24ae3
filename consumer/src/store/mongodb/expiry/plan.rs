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
pub(super) struct IndexPlan {
    /// These are in the way.
    pub(super) drop: Vec<String>,
    pub(super) todo: IndexAction,
}

/// What is to be done about the index that expires cookies.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum IndexAction {
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
pub(super) enum DesiredIndex {
    /// There, and expiring cookies after so many seconds.
    After(i64),
    /// Expiring none if it is there, and not made if it is not.
    Off,
    /// Not there.
    Gone,
}

/// What is to be done so that the index is as it is `desired`.
pub(super) fn plan(indexes: &[Document], desired: DesiredIndex) -> IndexPlan {
    match desired {
        DesiredIndex::After(seconds) => with_index(indexes, seconds),
        DesiredIndex::Off => {
            let expiring: Vec<_> = indexes.iter().filter(|it| expires(it)).cloned().collect();
            match with_index(&expiring, NEVER_SECONDS) {
                IndexPlan {
                    drop,
                    todo: IndexAction::Create,
                } => IndexPlan {
                    drop,
                    todo: IndexAction::Nothing,
                },
                plan => plan,
            }
        }
        DesiredIndex::Gone => IndexPlan {
            drop: indexes
                .iter()
                .filter(|index| is_on_t(index) && (expires(index) || is_unique(index)))
                .map(name)
                .collect(),
            todo: IndexAction::Nothing,
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
fn with_index(indexes: &[Document], seconds: i64) -> IndexPlan {
    let on_t = || indexes.iter().filter(|index| is_on_t(index));
    let chosen = on_t()
        .filter(|index| index.keys().all(|option| HARMLESS.contains(&&**option)))
        .max_by_key(|index| (expires(index), name(index) == NAME));
    let is_in_the_way = |index: &Document| match chosen {
        Some(chosen) => index != chosen && (expires(index) || is_unique(index)),
        None => true,
    };
    let todo = match chosen {
        None => IndexAction::Create,
        Some(index) => match index.get("expireAfterSeconds").and_then(number) {
            Some(found) if i64::try_from(found) == Ok(seconds) => IndexAction::Nothing,
            _ => IndexAction::Change(name(index)),
        },
    };
    let in_the_way = on_t().filter(|index| is_in_the_way(index));
    IndexPlan {
        drop: in_the_way.map(name).collect(),
        todo,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[track_caller]
    fn check(indexes: &[Document], drop: &[&str], todo: IndexAction) {
        let drop = drop.iter().map(ToString::to_string).collect();
        assert_eq!(
            plan(indexes, DesiredIndex::After(60)),
            IndexPlan { drop, todo }
        );
    }

    fn index(name: &str, options: Document) -> Document {
        let mut index = doc! { "v": 2, "key": { "t": 1 }, "name": name };
        index.extend(options);
        index
    }

    fn change(name: &str) -> IndexAction {
        IndexAction::Change(name.to_owned())
    }

    #[test]
    fn index_in_the_right_state_is_left_alone() {
        let right = index(NAME, doc! { "expireAfterSeconds": 60 });
        check(std::slice::from_ref(&right), &[], IndexAction::Nothing);
        let double = doc! { "key": { "t": 1.0 }, "expireAfterSeconds": 60.0, "hidden": true };
        check(&[index("ttl", double)], &[], IndexAction::Nothing);
        let others = [
            doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" },
            doc! { "v": 2, "key": { "t": 1, "b": 1 }, "name": "both", "unique": true },
            doc! { "v": 2, "key": { "t": "hashed" }, "name": "hashed" },
            index("partial", doc! { "partialFilterExpression": {} }),
            right,
        ];
        check(&others, &[], IndexAction::Nothing);
        check(&others[..3], &[], IndexAction::Create);
    }

    #[test]
    fn index_of_a_collection_that_is_swept_is_switched_off_and_then_dropped() {
        let check = |indexes: &[Document], desired, drop: &[&str], todo: IndexAction| {
            let drop = drop.iter().map(ToString::to_string).collect();
            assert_eq!(
                plan(indexes, desired),
                IndexPlan { drop, todo },
                "{indexes:?}"
            );
        };
        let ours = index(NAME, doc! { "expireAfterSeconds": 60 });
        let off = index(NAME, doc! { "expireAfterSeconds": NEVER_SECONDS });
        let theirs = index("theirs", doc! {});
        let both = [ours, theirs.clone()];
        check(&both, DesiredIndex::Off, &[], change(NAME));
        check(
            &[off, theirs.clone()],
            DesiredIndex::Off,
            &[],
            IndexAction::Nothing,
        );
        check(&both, DesiredIndex::Gone, &[NAME], IndexAction::Nothing);
        for desired in [DesiredIndex::Off, DesiredIndex::Gone] {
            check(&[], desired, &[], IndexAction::Nothing);
            check(
                std::slice::from_ref(&theirs),
                desired,
                &[],
                IndexAction::Nothing,
            );
        }
        let part = doc! { "partialFilterExpression": {}, "expireAfterSeconds": 60 };
        check(
            &[index("part", part)],
            DesiredIndex::Off,
            &["part"],
            IndexAction::Nothing,
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
            check(&[unfit], &[NAME], IndexAction::Create);
        }
        let two = [
            index("other", doc! { "expireAfterSeconds": 60 }),
            index(NAME, doc! { "expireAfterSeconds": 60 }),
        ];
        check(&two, &["other"], IndexAction::Nothing);
    }
}
