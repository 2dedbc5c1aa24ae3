//! Which index on `t` expires cookies, and what is to be done to it. Pure.

use mongodb::bson::{Bson, Document};

use super::super::number;

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

/// Chooses the index that expires cookies, and what is in its way: others that expire, or refuse, cookies; and if
/// there is none to choose, all on `t`.
pub(super) fn plan(indexes: &[Document], seconds: i64) -> Plan {
    let name = |index: &Document| index.get_str("name").unwrap_or_default().to_owned();
    let expires = |index: &Document| index.contains_key("expireAfterSeconds");
    let on_t = || indexes.iter().filter(|index| is_on_t(index));
    let chosen = on_t()
        .filter(|index| index.keys().all(|option| HARMLESS.contains(&&**option)))
        .max_by_key(|index| (expires(index), name(index) == NAME));
    let is_in_the_way = |index: &Document| match chosen {
        Some(chosen) => index != chosen && (expires(index) || index.contains_key("unique")),
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
        assert_eq!(plan(indexes, 60), Plan { drop, todo });
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
