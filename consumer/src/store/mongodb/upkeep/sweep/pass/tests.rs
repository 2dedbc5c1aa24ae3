//! Tests of sweeps that are killed at any step, over a changing collection in a model of the server.

use std::collections::BTreeMap;

use proptest::prelude::*;

use mongodb::bson::Bson;
use proto::units::UnixMicros;

use super::{super::super::super::documents::expired, *};

const MINUTE: u64 = 60_000_000;
const NOW: u64 = 1_000 * MINUTE;
const DUE: u64 = NOW - 60 * MINUTE;

/// A collection: acceptance times by record id, which is unique and never changes.
#[derive(Debug, Clone, Default)]
struct Collection {
    documents: BTreeMap<u32, u64>,
    next: u32,
}

impl Collection {
    fn insert(&mut self, accepted: u64) {
        self.documents.insert(self.next, accepted);
        self.next += 1;
    }

    /// The next documents of a cursor.
    fn find(&self, from: u32, limit: usize) -> Vec<ScannedDocument> {
        let found = self.documents.range(from..).take(limit);
        let documents = found.map(|(id, accepted)| ScannedDocument {
            id: Bson::Int64((*id).into()),
            accepted: Some(date(UnixMicros(*accepted))),
        });
        documents.collect()
    }

    /// Deletes like one command: the server checks the time of each document.
    fn delete(&mut self, id: &Bson, due: u64) {
        let accepted = self.documents.get(&record_id(id));
        if accepted.is_some_and(|accepted| *accepted < due) {
            self.documents.remove(&record_id(id));
        }
    }

    fn expired(&self) -> usize {
        self.documents.values().filter(|it| **it < DUE).count()
    }
}

fn record_id(id: &Bson) -> u32 {
    u32::try_from(id.as_i64().unwrap()).unwrap()
}

/// An event between the scan and the deletions of a step, or after these.
#[derive(Debug, Clone)]
enum Event {
    Nothing,
    /// The user of a document syncs again.
    Refresh(prop::sample::Index),
    Insert,
    Kill,
    KillAfterDeletion,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => Just(Event::Nothing),
        3 => any::<prop::sample::Index>().prop_map(Event::Refresh),
        2 => Just(Event::Insert),
        1 => Just(Event::Kill),
        1 => Just(Event::KillAfterDeletion),
    ]
}

proptest! {
    #[test]
    fn sweep_killed_at_any_step_deletes_exactly_the_expired_documents(
        ages in prop::collection::vec(0..120_u64, 0..60),
        steps in prop::collection::vec((1..9_usize, event()), 0..60),
    ) {
        let mut collection = Collection::default();
        for age in ages {
            collection.insert(NOW - age * MINUTE);
        }
        let mut alive: Vec<u32> = collection.documents.iter().filter(|it| *it.1 >= DUE).map(|it| *it.0).collect();
        let begin = |collection: &Collection| (Pass::new(UnixMicros(NOW), collection.documents.len() as u64), 0);
        let (mut pass, mut cursor) = begin(&collection);
        let mut is_complete = false;
        // After the random steps there are no more events, so the sweep ends.
        for (limit, event) in steps.into_iter().chain((0..200).map(|_| (4, Event::Nothing))) {
            let found = collection.find(cursor, limit);
            match &event {
                Event::Refresh(of) if !collection.documents.is_empty() => {
                    let id = *of.get(&collection.documents.keys().copied().collect::<Vec<_>>());
                    collection.documents.insert(id, NOW);
                    alive.push(id);
                }
                Event::Insert => {
                    alive.push(collection.next);
                    collection.insert(NOW);
                }
                Event::Kill => {
                    (pass, cursor) = begin(&collection);
                    continue;
                }
                _ => {}
            }
            is_complete = pass.scan(&found) || found.len() < limit;
            cursor = found.last().map_or(cursor, |last| record_id(&last.id) + 1);
            for (due, id) in expired(found, |_| UnixMicros(DUE)) {
                collection.delete(&id, due.0);
            }
            if matches!(event, Event::KillAfterDeletion) {
                (pass, cursor) = begin(&collection);
                is_complete = false;
            } else if is_complete {
                break;
            }
        }
        prop_assert!(is_complete);
        prop_assert_eq!(collection.expired(), 0);
        for id in alive {
            prop_assert!(collection.documents.contains_key(&id), "{} was alive", id);
        }
    }
}

#[test]
fn pass_ends_at_documents_inserted_since_its_start() {
    let at = |accepted| ScannedDocument {
        id: Bson::Null,
        accepted: Some(date(UnixMicros(accepted))),
    };
    let (old, new) = (at(NOW - MINUTE), at(NOW + MINUTE));
    let mut pass = Pass::new(UnixMicros(NOW), 2);
    assert!(!pass.scan(std::slice::from_ref(&new)), "one remains");
    assert_eq!(pass.remaining(), 1);
    assert!(!pass.scan(&[old.clone(), new.clone()]));
    assert!(!pass.scan(&[new.clone(), old]));
    assert!(pass.scan(&[new]));
    assert_eq!(pass.remaining(), 0);
}
