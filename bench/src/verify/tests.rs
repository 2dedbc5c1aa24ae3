//! Against a model of a load and of a store, each fault by itself.

use std::{collections::BTreeMap, num::NonZeroU64, time::Duration};

use super::*;

/// Requests with times of their own.
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

/// Its producer, and for each request its fate and when it was sent and answered, in ms.
type Connection<'a> = (usize, &'a [(RequestOutcome, u64, u64)]);

type Stored = BTreeMap<(String, u32), String>;

const NOTHING_LOST: MayBe<'static> = &|_, _| false;

type MayBe<'a> = &'a (dyn Fn(&Source, u64) -> bool + Sync);

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
                .map(|(outcome, sent, answered)| (*outcome, at(*sent), at(*answered)));
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

    /// A store that was given these requests, one after another.
    fn stored(&self, requests: &[(usize, u64)]) -> Stored {
        let cookies = requests.iter().map(|&(connection, number)| {
            let source = &self.sent.sources[connection];
            let cookie = source.traffic.cookie(source.connection, number);
            let pair = (cookie.user_id().to_owned(), cookie.dsp_id());
            (pair, cookie.buyer_uid().to_owned())
        });
        cookies.collect()
    }

    fn check(&self, stored: &Stored, may_be_lost: MayBe<'_>) -> StoreVerdict {
        self.check_node(stored, may_be_lost, false)
    }

    fn check_node(
        &self,
        stored: &Stored,
        may_be_lost: MayBe<'_>,
        forgets_duplicates: bool,
    ) -> StoreVerdict {
        let mut check = StoreCheck::new("it", &self.sent, may_be_lost, forgets_duplicates);
        for ((user, dsp), buyer) in stored {
            check.take(user.as_bytes(), *dsp, buyer.as_bytes());
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

/// Many users, one request each at its own time.
fn many() -> (Run, Stored) {
    let requests: Vec<_> = (0..1_000).map(|number| (OK, number, number + 1)).collect();
    let run = Run::new(1 << 40, &[(0, &requests), (1, &requests)]);
    let both = (0..1_000).flat_map(|number| [(0, number), (1, number)]);
    let stored = run.stored(&both.collect::<Vec<_>>());
    assert_eq!(stored.len(), 2_000);
    (run, stored)
}

#[test]
fn store_with_everything_is_faultless() {
    let (run, stored) = many();
    let verdict = run.check(&stored, NOTHING_LOST);
    expect(&verdict, [0; 5]);
    assert_eq!((verdict.stored, verdict.correct), (2_000, 2_000));
}

#[test]
fn each_missing_wrong_or_extra_cookie_is_told() {
    let (run, mut stored) = many();
    let (first, _) = stored.pop_first().unwrap();
    expect(&run.check(&stored, NOTHING_LOST), [1, 0, 0, 0, 0]);
    if let Some(mut entry) = stored.first_entry() {
        entry.get_mut().push('x');
    }
    let verdict = run.check(&stored, NOTHING_LOST);
    expect(&verdict, [1, 0, 1, 0, 0]);
    assert_eq!(verdict.examples.len(), 2);
    stored.insert((first.0, 99), "never".to_owned());
    expect(&run.check(&stored, NOTHING_LOST), [1, 0, 1, 1, 0]);
    expect(
        &run.check(&Stored::new(), NOTHING_LOST),
        [2_000, 0, 0, 0, 0],
    );
}

#[test]
fn what_may_be_lost_is_explained_and_no_more() {
    let (run, _) = many();
    let lost: MayBe = &|source, number| source.producer == 1 && number >= 500;
    let verdict = run.check(&Stored::new(), lost);
    expect(&verdict, [1_500, 0, 0, 0, 500]);
    assert_eq!(verdict.lost.len(), 500);
    assert!(verdict.lost.iter().all(|lost| lost.producer == 1));
}

/// One user, so all requests are of one pair; which of them may be the stored one?
#[track_caller]
fn check_newest(connections: &[Connection<'_>], admissible: &[(usize, u64)]) {
    let run = Run::new(1, connections);
    for (connection, (_, requests)) in connections.iter().enumerate() {
        for number in 0..requests.len() as u64 {
            let verdict = run.check(&run.stored(&[(connection, number)]), NOTHING_LOST);
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
fn last_of_a_connection_is_the_newest() {
    check_newest(
        &[(0, &[(OK, 0, 100), (OK, 0, 100), (OK, 0, 100)])],
        &[(0, 2)],
    );
}

#[test]
fn what_was_under_way_at_once_on_two_connections_may_be_either() {
    let (a, b) = ([(OK, 0, 100)], [(OK, 90, 110)]);
    check_newest(&[(0, &a), (0, &b)], &[(0, 0), (1, 0)]);
    check_newest(&[(0, &a), (0, &[(OK, 101, 110)])], &[(1, 0)]);
}

#[test]
fn between_producers_a_margin_counts() {
    let a = [(OK, 0, 100)];
    check_newest(&[(0, &a), (1, &[(OK, 101, 110)])], &[(0, 0), (1, 0)]);
    check_newest(&[(0, &a), (1, &[(OK, 260, 270)])], &[(0, 0), (1, 0)]);
    check_newest(&[(0, &a), (1, &[(OK, 261, 270)])], &[(1, 0)]);
}

#[test]
fn request_without_an_answer_may_be_stored_and_need_not() {
    let unknown = RequestOutcome::Unknown;
    check_newest(&[(0, &[(OK, 0, 1), (unknown, 2, 900)])], &[(0, 0), (0, 1)]);
    // It may have been accepted as late as its answer was waited for.
    check_newest(
        &[(0, &[(unknown, 2, 900), (OK, 10, 20)])],
        &[(0, 0), (0, 1)],
    );
    let run = Run::new(1, &[(0, &[(unknown, 0, 5)])]);
    expect(&run.check(&Stored::new(), NOTHING_LOST), [0; 5]);
    let run = Run::new(1, &[(0, &[(RequestOutcome::Rejected, 0, 5)])]);
    assert!(run.sent.len() == 0);
}

#[test]
fn older_value_is_explained_when_the_newer_may_be_lost() {
    let run = Run::new(1, &[(0, &[(OK, 0, 1), (OK, 10, 11)])]);
    let older = run.stored(&[(0, 0)]);
    expect(&run.check(&older, NOTHING_LOST), [0, 1, 0, 0, 0]);
    let verdict = run.check(&older, &|_, number| number == 1);
    expect(&verdict, [0, 0, 0, 0, 1]);
    assert_eq!(verdict.lost.len(), 1);
}

/// Which of these may be stored by a consumer that forgets repeats: a value at producer 0, another at 1, and the first again,
/// at producer `last`.
#[track_caller]
fn check_repeat(last: usize, expected: [u64; 5], forgotten: u64) {
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
    expect(&run.check(&older, NOTHING_LOST), [0, 1, 0, 0, 0]);
    let verdict = run.check_node(&older, NOTHING_LOST, true);
    expect(&verdict, expected);
    assert_eq!(verdict.forgotten_duplicates, forgotten);
}

#[test]
fn value_between_two_equal_ones_may_be_stored_where_the_repeat_was_forgotten() {
    check_repeat(0, [0; 5], 1);
    // Behind it in the same stream: the consumer would have written it.
    check_repeat(1, [0, 1, 0, 0, 0], 0);
}

#[test]
fn only_what_is_certainly_newer_than_a_stored_value_was_lost() {
    let all_lost: MayBe = &|_, _| true;
    // Under way at once: the stored one may be the newest of these two, and so none of them is lost.
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
    // Nothing is stored: all are.
    let verdict = run.check(&Stored::new(), all_lost);
    expect(&verdict, [0, 0, 0, 0, 1]);
    assert_eq!(verdict.lost.len(), 3);
}
