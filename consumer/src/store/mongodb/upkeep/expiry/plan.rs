//! Plans the changes of a collection's indexes on `t`. Does no I/O.

use mongodb::bson::{Bson, Document};

use super::super::super::{NEVER_SECONDS, number};

pub(super) const NAME: &str = "t_1";

/// Index options that neither prevent expiry nor reject cookies.
const HARMLESS_OPTIONS: [&str; 9] = [
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

/// Changes of a collection's indexes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct IndexPlan {
    /// Names of the indexes to drop.
    pub(super) drop: Vec<String>,
    pub(super) action: IndexAction,
}

/// Change of the index that expires cookies.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum IndexAction {
    #[default]
    Nothing,
    /// Change `expireAfterSeconds` of the index of this name.
    Change(String),
    Create,
}

/// Whether this is an index on `t` only. Shells write the direction as a double.
fn is_on_t(index: &Document) -> bool {
    let is_number = |t: &Bson| matches!(t, Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_));
    index
        .get_document("key")
        .is_ok_and(|key| key.len() == 1 && key.get("t").is_some_and(is_number))
}

/// The desired state of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DesiredIndex {
    /// It exists and expires cookies after this number of seconds.
    ExpireAfter(i64),
    /// It expires nothing if it exists, and is not created.
    Disabled,
    /// It does not exist.
    Absent,
}

/// The changes that lead to the desired index.
pub(super) fn plan(indexes: &[Document], desired: DesiredIndex) -> IndexPlan {
    match desired {
        DesiredIndex::ExpireAfter(seconds) => with_index(indexes, seconds),
        DesiredIndex::Disabled => {
            let expiring: Vec<_> = indexes.iter().filter(|it| expires(it)).cloned().collect();
            match with_index(&expiring, NEVER_SECONDS) {
                IndexPlan {
                    drop,
                    action: IndexAction::Create,
                } => IndexPlan {
                    drop,
                    action: IndexAction::Nothing,
                },
                plan => plan,
            }
        }
        DesiredIndex::Absent => IndexPlan {
            drop: indexes
                .iter()
                .filter(|index| is_on_t(index) && (expires(index) || is_unique(index)))
                .map(name)
                .collect(),
            action: IndexAction::Nothing,
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

/// Chooses the index that expires cookies. Drops other indexes that expire or reject cookies. If no index is usable, drops
/// all indexes on `t`.
fn with_index(indexes: &[Document], seconds: i64) -> IndexPlan {
    let on_t = || indexes.iter().filter(|index| is_on_t(index));
    let chosen = on_t()
        .filter(|index| {
            index
                .keys()
                .all(|option| HARMLESS_OPTIONS.contains(&&**option))
        })
        .max_by_key(|index| (expires(index), name(index) == NAME));
    let must_drop = |index: &Document| match chosen {
        Some(chosen) => index != chosen && (expires(index) || is_unique(index)),
        None => true,
    };
    let action = match chosen {
        None => IndexAction::Create,
        Some(index) => match index.get("expireAfterSeconds").and_then(number) {
            Some(found) if i64::try_from(found) == Ok(seconds) => IndexAction::Nothing,
            _ => IndexAction::Change(name(index)),
        },
    };
    let to_drop = on_t().filter(|index| must_drop(index));
    IndexPlan {
        drop: to_drop.map(name).collect(),
        action,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[track_caller]
    fn check(indexes: &[Document], drop: &[&str], action: IndexAction) {
        let drop = drop.iter().map(ToString::to_string).collect();
        assert_eq!(
            plan(indexes, DesiredIndex::ExpireAfter(60)),
            IndexPlan { drop, action }
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
    fn index_in_the_desired_state_is_unchanged() {
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
    fn index_of_a_swept_collection_is_disabled_and_then_dropped() {
        let check = |indexes: &[Document], desired, drop: &[&str], action: IndexAction| {
            let drop = drop.iter().map(ToString::to_string).collect();
            assert_eq!(
                plan(indexes, desired),
                IndexPlan { drop, action },
                "{indexes:?}"
            );
        };
        let own = index(NAME, doc! { "expireAfterSeconds": 60 });
        let off = index(NAME, doc! { "expireAfterSeconds": NEVER_SECONDS });
        let foreign = index("foreign", doc! {});
        let both = [own, foreign.clone()];
        check(&both, DesiredIndex::Disabled, &[], change(NAME));
        check(
            &[off, foreign.clone()],
            DesiredIndex::Disabled,
            &[],
            IndexAction::Nothing,
        );
        check(&both, DesiredIndex::Absent, &[NAME], IndexAction::Nothing);
        for desired in [DesiredIndex::Disabled, DesiredIndex::Absent] {
            check(&[], desired, &[], IndexAction::Nothing);
            check(
                std::slice::from_ref(&foreign),
                desired,
                &[],
                IndexAction::Nothing,
            );
        }
        let part = doc! { "partialFilterExpression": {}, "expireAfterSeconds": 60 };
        check(
            &[index("part", part)],
            DesiredIndex::Disabled,
            &["part"],
            IndexAction::Nothing,
        );
    }

    #[test]
    fn harmless_index_is_changed() {
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
    fn unsuitable_index_is_dropped() {
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
