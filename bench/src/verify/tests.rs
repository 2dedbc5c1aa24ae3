//! Tests of the verification, with a model of a load and of a store. Each test covers one kind of incorrect store contents.

use std::{collections::BTreeMap, num::NonZeroU64, time::Duration};

use tokio::time::Instant;

use super::*;
use crate::traffic::Traffic;

/// Requests with given outcomes and times.
struct Model(Vec<(RequestOutcome, Instant, Instant)>);

impl RequestHistory for Model {
    fn sent(&self) -> u64 {
        self.0.len() as u64
    }
    fn outcome(&self, number: u64) -> RequestOutcome {
        self.at(number).0
    }
    fn sent_after(&self, number: u64) -> Instant {
        self.at(number).1
    }
    fn responded_by(&self, number: u64) -> Instant {
        self.at(number).2
    }
}

impl Model {
    fn at(&self, number: u64) -> (RequestOutcome, Instant, Instant) {
        self.0[usize::try_from(number).unwrap()]
    }
}

/// The producer; then outcome, send time and response time in ms of each request.
type Connection<'a> = (usize, &'a [(RequestOutcome, u64, u64)]);

type Stored = BTreeMap<(String, u32), String>;

const NO_LOSS: LossPredicate<'static> = &|_, _| false;

struct Run {
    sent: SentRequests,
    start: Instant,
}

impl Run {
    fn new(users: u64, connections: &[Connection<'_>]) -> Self {
        let traffic = Traffic::new(1, NonZeroU64::new(users));
        Self::of(&traffic.with_dsps(std::num::NonZeroU32::MIN), connections)
    }

    fn of(traffic: &Traffic, connections: &[Connection<'_>]) -> Self {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let source = |(index, (producer, requests)): (usize, &Connection<'_>)| {
            let requests = requests
                .iter()
                .map(|(outcome, sent, responded)| (*outcome, at(*sent), at(*responded)));
            Source {
                traffic: traffic.clone(),
                connection: index as u64,
                producer: *producer,
                requests: Box::new(Model(requests.collect())),
            }
        };
        let sources = connections.iter().enumerate().map(source).collect();
        let sent = SentRequests::new(sources).unwrap();
        Self { sent, start }
    }

    /// A store after these requests, in this order.
    fn stored(&self, requests: &[(usize, u64)]) -> Stored {
        let cookies = requests.iter().map(|&(connection, number)| {
            let source = &self.sent.sources[connection];
            let cookie = source.traffic.cookie(source.connection, number);
            let pair = (cookie.user_id().to_owned(), cookie.dsp_id());
            (pair, cookie.buyer_uid().to_owned())
        });
        cookies.collect()
    }

    fn check(&self, stored: &Stored, may_be_lost: LossPredicate<'_>) -> StoreVerdict {
        self.check_node(stored, may_be_lost, false)
    }

    fn check_node(
        &self,
        stored: &Stored,
        may_be_lost: LossPredicate<'_>,
        was_restarted: bool,
    ) -> StoreVerdict {
        let mut check = StoreCheck::new("it", &self.sent, may_be_lost, was_restarted);
        for ((user, dsp), buyer) in stored {
            check.check_cookie(user.as_bytes(), *dsp, buyer.as_bytes());
        }
        check.finish()
    }
}

/// `missing, stale, wrong, unexpected, explained`.
#[track_caller]
fn expect(verdict: &StoreVerdict, expected: [u64; 5]) {
    let found = [
        verdict.missing,
        verdict.stale,
        verdict.wrong,
        verdict.unexpected,
        verdict.explained,
    ];
    assert_eq!(found, expected, "{verdict:?}");
    assert_eq!(verdict.has_passed(), expected[..4] == [0; 4]);
}

const OK: RequestOutcome = RequestOutcome::Accepted;

/// Many users, one request each.
fn many() -> (Run, Stored) {
    let requests: Vec<_> = (0..1_000).map(|number| (OK, number, number + 1)).collect();
    let run = Run::new(1 << 40, &[(0, &requests), (1, &requests)]);
    let both = (0..1_000).flat_map(|number| [(0, number), (1, number)]);
    let stored = run.stored(&both.collect::<Vec<_>>());
    assert_eq!(stored.len(), 2_000);
    (run, stored)
}

#[test]
fn complete_store_passes() {
    let (run, stored) = many();
    let verdict = run.check(&stored, NO_LOSS);
    expect(&verdict, [0; 5]);
    assert_eq!((verdict.stored, verdict.correct), (2_000, 2_000));
}

#[test]
fn missing_wrong_and_unexpected_cookies_are_counted() {
    let (run, mut stored) = many();
    let (first, _) = stored.pop_first().unwrap();
    expect(&run.check(&stored, NO_LOSS), [1, 0, 0, 0, 0]);
    if let Some(mut entry) = stored.first_entry() {
        entry.get_mut().push('x');
    }
    let verdict = run.check(&stored, NO_LOSS);
    expect(&verdict, [1, 0, 1, 0, 0]);
    assert_eq!(verdict.examples.len(), 2);
    stored.insert((first.0, 99), "never".to_owned());
    expect(&run.check(&stored, NO_LOSS), [1, 0, 1, 1, 0]);
    expect(&run.check(&Stored::new(), NO_LOSS), [2_000, 0, 0, 0, 0]);
}

#[test]
fn only_losses_that_the_predicate_allows_are_explained() {
    let (run, _) = many();
    let lost: LossPredicate = &|source, number| source.producer == 1 && number >= 500;
    let verdict = run.check(&Stored::new(), lost);
    expect(&verdict, [1_500, 0, 0, 0, 500]);
    assert_eq!(verdict.lost.len(), 500);
    assert!(verdict.lost.iter().all(|lost| lost.producer == 1));
}

/// Checks which requests of a single pair are admissible as the stored one.
#[track_caller]
fn check_newest(connections: &[Connection<'_>], admissible: &[(usize, u64)]) {
    let run = Run::new(1, connections);
    for (connection, (_, requests)) in connections.iter().enumerate() {
        for number in 0..requests.len() as u64 {
            let verdict = run.check(&run.stored(&[(connection, number)]), NO_LOSS);
            let is_admissible = admissible.contains(&(connection, number));
            assert_eq!(
                verdict.has_passed(),
                is_admissible,
                "{connection} {number} {verdict:?}"
            );
        }
    }
    assert!(run.start <= Instant::now());
}

#[test]
fn last_request_of_a_connection_is_the_newest() {
    check_newest(
        &[(0, &[(OK, 0, 100), (OK, 0, 100), (OK, 0, 100)])],
        &[(0, 2)],
    );
}

#[test]
fn concurrent_requests_of_two_connections_are_both_admissible() {
    let (a, b) = ([(OK, 0, 100)], [(OK, 90, 110)]);
    check_newest(&[(0, &a), (0, &b)], &[(0, 0), (1, 0)]);
    check_newest(&[(0, &a), (0, &[(OK, 101, 110)])], &[(1, 0)]);
}

#[test]
fn requests_to_two_producers_are_compared_with_a_margin() {
    let a = [(OK, 0, 100)];
    check_newest(&[(0, &a), (1, &[(OK, 101, 110)])], &[(0, 0), (1, 0)]);
    check_newest(&[(0, &a), (1, &[(OK, 260, 270)])], &[(0, 0), (1, 0)]);
    check_newest(&[(0, &a), (1, &[(OK, 261, 270)])], &[(1, 0)]);
}

#[test]
fn request_without_a_response_may_be_stored() {
    let unknown = RequestOutcome::Unknown;
    check_newest(&[(0, &[(OK, 0, 1), (unknown, 2, 900)])], &[(0, 0), (0, 1)]);
    // It may have been accepted at any time until its timeout.
    check_newest(
        &[(0, &[(unknown, 2, 900), (OK, 10, 20)])],
        &[(0, 0), (0, 1)],
    );
    let run = Run::new(1, &[(0, &[(unknown, 0, 5)])]);
    expect(&run.check(&Stored::new(), NO_LOSS), [0; 5]);
    let run = Run::new(1, &[(0, &[(RequestOutcome::Rejected, 0, 5)])]);
    assert!(run.sent.len() == 0);
}

#[test]
fn older_value_is_explained_if_the_newer_may_be_lost() {
    let run = Run::new(1, &[(0, &[(OK, 0, 1), (OK, 10, 11)])]);
    let older = run.stored(&[(0, 0)]);
    expect(&run.check(&older, NO_LOSS), [0, 1, 0, 0, 0]);
    let verdict = run.check(&older, &|_, number| number == 1);
    expect(&verdict, [0, 0, 0, 0, 1]);
    assert_eq!(verdict.lost.len(), 1);
}

/// Checks the store of a consumer that was restarted. It received a value from producer 0, a different value from
/// producer 1, and the first value again from producer `last`.
#[track_caller]
fn check_duplicate(last: usize, expected: [u64; 5], forgotten: u64) {
    let of_one_user = |seed| {
        Traffic::new(seed, NonZeroU64::new(1))
            .with_dsps(std::num::NonZeroU32::MIN)
            .with_repeats_changed(0.5)
    };
    let is_it = |traffic: &Traffic| {
        let [first, other, again] = [0, 1, 2].map(|connection| traffic.cookie(connection, 0));
        let is_again = first.buyer_uid() == again.buyer_uid();
        is_again && first.buyer_uid() != other.buyer_uid()
    };
    let traffic = (0..).map(of_one_user).find(is_it).unwrap();
    let (first, other, again) = ([(OK, 0, 1)], [(OK, 500, 501)], [(OK, 1_000, 1_001)]);
    let run = Run::of(&traffic, &[(0, &first), (1, &other), (last, &again)]);
    let older = run.stored(&[(1, 0)]);
    expect(&run.check(&older, NO_LOSS), [0, 1, 0, 0, 0]);
    let verdict = run.check_node(&older, NO_LOSS, true);
    expect(&verdict, expected);
    assert_eq!(verdict.forgotten_duplicates, forgotten);
}

#[test]
fn older_value_is_excused_if_a_restart_lost_the_newer_duplicate() {
    check_duplicate(0, [0; 5], 1);
    // A duplicate later in the same stream: the consumer would have written it.
    check_duplicate(1, [0, 1, 0, 0, 0], 0);
}

#[test]
fn only_certainly_newer_requests_count_as_lost() {
    let all_lost: LossPredicate = &|_, _| true;
    // Concurrent requests: the stored one may be the newest, so none is lost.
    let run = Run::new(1, &[(0, &[(OK, 0, 100)]), (0, &[(OK, 90, 110)])]);
    let verdict = run.check(&run.stored(&[(0, 0)]), all_lost);
    expect(&verdict, [0; 5]);
    let run = Run::new(
        1,
        &[(0, &[(OK, 0, 100), (OK, 120, 130)]), (0, &[(OK, 90, 110)])],
    );
    let verdict = run.check(&run.stored(&[(0, 0)]), all_lost);
    expect(&verdict, [0, 0, 0, 0, 1]);
    assert_eq!(verdict.lost.len(), 1);
    // Nothing is stored: all are lost.
    let verdict = run.check(&Stored::new(), all_lost);
    expect(&verdict, [0, 0, 0, 0, 1]);
    assert_eq!(verdict.lost.len(), 3);
}
