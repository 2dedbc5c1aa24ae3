//! Sweeps of a collection that changes meanwhile, killed wherever they can be, against what a server does.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MINUTE: u64 = 60_000_000;
const TTL: Duration = Duration::from_secs(3600);
const NOW: u64 = 1_000 * MINUTE;
const DUE: u64 = NOW - 60 * MINUTE;
const DOCUMENTS: u64 = 100;
const MEMBER: &str = "a:1";

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

    fn look(&self, after: Option<&Bson>, most: usize) -> Vec<Seen> {
        let from = after.map_or(0, |id| place(id) + 1);
        let found = self.documents.range(from..).take(most);
        let seen = found.map(|(id, accepted)| Seen {
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
    /// Before the step's end is noted.
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
        let mut noted = Position::default().encode("n");
        let mut position = None;
        // When no more is drawn, nothing happens any more, and it ends.
        for (most, meanwhile) in steps.into_iter().chain((0..200).map(|_| (4, Meanwhile::Nothing))) {
            let (namespace, read) = Position::decode(&noted).unwrap();
            prop_assert_eq!(namespace, "n");
            let mut at: Position = position.take().unwrap_or_else(|| read.begin(NOW, TTL, MEMBER, DOCUMENTS));
            if at.anchor().is_some_and(|id| !held.documents.contains_key(&place(id))) {
                at = at.anew();
            }
            let seen = held.look(at.anchor(), most);
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
                Meanwhile::Kill => continue,
                _ => {}
            }
            let is_last = seen.len() < most;
            let (expired, next) = at.step(seen, is_last, DUE);
            held.delete(&expired, DUE);
            if matches!(meanwhile, Meanwhile::KillAfterDeletion) {
                continue;
            }
            noted = next.encode("n");
            if next.had_turn(NOW, NOW, TTL) {
                break;
            }
            position = Some(next);
        }
        let (_, end) = Position::decode(&noted).unwrap();
        prop_assert!(end.had_turn(NOW, NOW, TTL), "{:?}", end);
        prop_assert_eq!(held.expired(), 0);
        for id in alive {
            prop_assert!(held.documents.contains_key(&id), "{} was alive", id);
        }
    }
}

fn seen(minutes_ago: &[u64]) -> Vec<Seen> {
    let seen = (0..).zip(minutes_ago).map(|(id, ago)| Seen {
        id: Bson::Int64(id),
        accepted: Some(date(NOW - ago * MINUTE)),
    });
    seen.collect()
}

#[test]
fn pass_goes_on_where_it_was_unless_the_time_to_live_or_the_primary_has_changed() {
    let begun = Position::default().begin(NOW, TTL, MEMBER, DOCUMENTS);
    let (_, half) = begun.step(seen(&[90, 10]), false, DUE);
    let (_, read) = Position::decode(&half.encode("n")).unwrap();
    assert_eq!(read, half);
    let on = Position {
        at: NOW + MINUTE,
        ..half
    };
    assert_eq!(read.clone().begin(NOW + MINUTE, TTL, MEMBER, 9), on);
    for (ttl, member) in [(TTL / 2, MEMBER), (TTL, "b:1")] {
        let anew = read.clone().begin(NOW + MINUTE, ttl, member, 9);
        assert_eq!((anew.anchor(), anew.looked, anew.documents), (None, 0, 9));
        assert!(!anew.had_turn(0, NOW + MINUTE, ttl));
    }
}

#[test]
fn overdue_is_what_may_have_expired_since_the_last_complete_pass_began() {
    let (_, done) =
        Position::default()
            .begin(NOW, TTL, MEMBER, DOCUMENTS)
            .step(seen(&[]), true, DUE);
    assert!(done.had_turn(NOW, NOW, TTL) && !done.had_turn(NOW + MINUTE, NOW + MINUTE, TTL));
    assert!(
        !done.had_turn(0, NOW - MINUTE, TTL),
        "noted by a clock that was ahead"
    );
    let hour = Duration::from_secs(3600);
    assert_eq!(done.overdue(NOW + 60 * MINUTE, TTL), hour);
    assert_eq!(done.overdue(NOW + 60 * MINUTE, TTL / 2), hour + TTL / 2);
    assert_eq!(done.overdue(NOW + 60 * MINUTE, 3 * TTL), Duration::ZERO);
    let next = done.begin(NOW + 30 * MINUTE, TTL, MEMBER, DOCUMENTS);
    assert_eq!(
        next.overdue(NOW + 60 * MINUTE, TTL),
        hour,
        "not before it ends"
    );
}

#[test]
fn pass_that_goes_on_goes_by_the_documents_that_there_were_when_it_began() {
    let (_, half) = Position::default().begin(NOW, TTL, MEMBER, DOCUMENTS).step(
        seen(&[90, 90, 10]),
        false,
        DUE,
    );
    let (_, read) = Position::decode(&half.encode("n")).unwrap();
    // Two are gone since.
    let there = DOCUMENTS - 2;
    let on = read.begin(NOW + MINUTE, TTL, MEMBER, there);
    let next = NOW + 2 * MINUTE;
    assert_eq!(on.left(NOW, TTL, there), DOCUMENTS - 3);
    assert_eq!(on.left(NOW, TTL, 1), 1);
    assert_eq!(on.left(NOW, TTL / 2, there), there);
    assert_eq!(on.left(next, TTL, there), DOCUMENTS - 3 + there);
    let (_, done) = on.step(Vec::new(), true, DUE);
    assert!(done.is_complete());
    assert_eq!(done.left(NOW, TTL, there), 0);
    assert_eq!(done.left(next, TTL, there), there);
    assert_eq!(Position::default().left(NOW, TTL, there), there);
}

#[test]
fn collection_that_a_clock_ahead_worked_on_is_not_the_last() {
    let position = Position::default().begin(NOW, TTL, MEMBER, DOCUMENTS);
    assert_eq!(position.worked_on(NOW + MINUTE), NOW);
    assert_eq!(position.worked_on(NOW - MINUTE), 0);
}

#[test]
fn pass_ends_where_documents_begin_that_came_meanwhile() {
    let position = |documents| Position {
        looked: 9,
        ..Position::default().begin(NOW, TTL, MEMBER, documents)
    };
    let new = Seen {
        id: Bson::Null,
        accepted: Some(date(NOW + MINUTE)),
    };
    assert!(position(9).is_past(std::slice::from_ref(&new)));
    assert!(!position(10).is_past(std::slice::from_ref(&new)));
    // Of a record without them.
    let mut record = position(9).encode("n");
    record.remove("documents");
    let (_, unknown) = Position::decode(&record).unwrap();
    assert!(!unknown.is_past(std::slice::from_ref(&new)));
    assert!(!position(9).is_past(&[seen(&[1]).remove(0), new]));
}
