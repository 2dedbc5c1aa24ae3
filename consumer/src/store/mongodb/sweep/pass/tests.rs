//! Sweeps of a collection that changes meanwhile, killed wherever they can be, against what a server does.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MINUTE: u64 = 60_000_000;
const NOW: u64 = 1_000 * MINUTE;
const DUE: u64 = NOW - 60 * MINUTE;

/// A collection: the time of each document by its place, which never changes and never comes again.
#[derive(Debug, Clone, Default)]
struct Held {
    documents: BTreeMap<u32, u64>,
    next: u32,
}

impl Held {
    fn insert(&mut self, accepted: u64) {
        self.documents.insert(self.next, accepted);
        self.next += 1;
    }

    /// What a cursor at this place finds next.
    fn look(&self, from: u32, most: usize) -> Vec<SweptDocument> {
        let found = self.documents.range(from..).take(most);
        let seen = found.map(|(id, accepted)| SweptDocument {
            id: Bson::Int64((*id).into()),
            accepted: Some(date(*accepted)),
        });
        seen.collect()
    }

    /// As one command: the server looks at the time of each when it deletes it.
    fn delete(&mut self, ids: &[Bson], due: u64) {
        for id in ids {
            let accepted = self.documents.get(&place(id));
            if accepted.is_some_and(|accepted| *accepted < due) {
                self.documents.remove(&place(id));
            }
        }
    }

    fn expired(&self) -> usize {
        self.documents.values().filter(|it| **it < DUE).count()
    }
}

fn place(id: &Bson) -> u32 {
    u32::try_from(id.as_i64().unwrap()).unwrap()
}

/// What happens between the look of a step and its deletions, or after these.
#[derive(Debug, Clone)]
enum Meanwhile {
    Nothing,
    /// Somebody syncs again: the document of this part of all.
    Refresh(prop::sample::Index),
    Insert,
    Kill,
    KillAfterDeletion,
}

fn meanwhile() -> impl Strategy<Value = Meanwhile> {
    prop_oneof![
        3 => Just(Meanwhile::Nothing),
        3 => any::<prop::sample::Index>().prop_map(Meanwhile::Refresh),
        2 => Just(Meanwhile::Insert),
        1 => Just(Meanwhile::Kill),
        1 => Just(Meanwhile::KillAfterDeletion),
    ]
}

proptest! {
    #[test]
    fn sweep_killed_anywhere_deletes_all_that_stays_expired_and_nothing_else(
        ages in prop::collection::vec(0..120_u64, 0..60),
        steps in prop::collection::vec((1..9_usize, meanwhile()), 0..60),
    ) {
        let mut held = Held::default();
        for age in ages {
            held.insert(NOW - age * MINUTE);
        }
        let mut alive: Vec<u32> = held.documents.iter().filter(|it| *it.1 >= DUE).map(|it| *it.0).collect();
        let begin = |held: &Held| (Pass::new(NOW, held.documents.len() as u64), 0);
        let (mut pass, mut cursor) = begin(&held);
        let mut is_complete = false;
        // When no more is drawn, nothing happens any more, and it ends.
        for (most, meanwhile) in steps.into_iter().chain((0..200).map(|_| (4, Meanwhile::Nothing))) {
            let seen = held.look(cursor, most);
            match &meanwhile {
                Meanwhile::Refresh(of) if !held.documents.is_empty() => {
                    let id = *of.get(&held.documents.keys().copied().collect::<Vec<_>>());
                    held.documents.insert(id, NOW);
                    alive.push(id);
                }
                Meanwhile::Insert => {
                    alive.push(held.next);
                    held.insert(NOW);
                }
                Meanwhile::Kill => {
                    (pass, cursor) = begin(&held);
                    continue;
                }
                _ => {}
            }
            is_complete = pass.look(&seen) || seen.len() < most;
            cursor = seen.last().map_or(cursor, |last| place(&last.id) + 1);
            held.delete(&expired(seen, DUE), DUE);
            if matches!(meanwhile, Meanwhile::KillAfterDeletion) {
                (pass, cursor) = begin(&held);
                is_complete = false;
            } else if is_complete {
                break;
            }
        }
        prop_assert!(is_complete);
        prop_assert_eq!(held.expired(), 0);
        for id in alive {
            prop_assert!(held.documents.contains_key(&id), "{} was alive", id);
        }
    }
}

#[test]
fn pass_ends_where_documents_begin_that_came_meanwhile() {
    let at = |accepted| SweptDocument {
        id: Bson::Null,
        accepted: Some(date(accepted)),
    };
    let (old, new) = (at(NOW - MINUTE), at(NOW + MINUTE));
    let mut pass = Pass::new(NOW, 2);
    assert!(!pass.look(std::slice::from_ref(&new)), "one is left");
    assert_eq!(pass.left(), 1);
    assert!(!pass.look(&[old.clone(), new.clone()]));
    assert!(!pass.look(&[new.clone(), old]));
    assert!(pass.look(&[new]));
    assert_eq!(pass.left(), 0);
}
