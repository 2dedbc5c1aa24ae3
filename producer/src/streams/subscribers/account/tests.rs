//! Tests accounts (the counts of a subscriber's cookies by outcome) on examples, and against a model of the outcome of every cookie.

use proptest::prelude::*;

use super::*;

/// Outcome of one cookie in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SequenceOutcome {
    Queued,
    Delivered,
    Lost,
}

/// Outcomes of the cookies from sequence number 1 on; cookies before `joined` do not count.
#[derive(Debug)]
struct Model {
    outcomes: Vec<SequenceOutcome>,
    joined: usize,
    position: usize,
    totals: Totals,
}

impl Model {
    fn new(joined: usize) -> Self {
        Self {
            outcomes: vec![SequenceOutcome::Queued; joined - 1],
            joined,
            position: joined,
            totals: Totals::default(),
        }
    }

    fn outcome(&mut self, sequence: usize) -> &mut SequenceOutcome {
        &mut self.outcomes[sequence - 1]
    }

    fn begin(&mut self, began: usize) {
        self.totals.streams += 1;
        for sequence in began..self.joined {
            *self.outcome(sequence) = SequenceOutcome::Delivered;
            self.totals.delivered += 1;
        }
        self.joined = self.joined.min(began);
        for sequence in self.joined..began {
            if *self.outcome(sequence) == SequenceOutcome::Queued {
                *self.outcome(sequence) = SequenceOutcome::Delivered;
                self.totals.delivered += 1;
            }
        }
        self.position = began;
    }

    fn deliver(&mut self, cookies: usize) {
        for sequence in self.position..self.position + cookies {
            match *self.outcome(sequence) {
                SequenceOutcome::Queued => self.totals.delivered += 1,
                SequenceOutcome::Delivered => self.totals.redelivered += 1,
                SequenceOutcome::Lost => {
                    self.totals.recovered += 1;
                    self.totals.delivered += 1;
                }
            }
            *self.outcome(sequence) = SequenceOutcome::Delivered;
        }
        self.position += cookies;
    }

    fn lose(&mut self, cookies: usize, reason: GapReason) {
        for sequence in self.position..self.position + cookies {
            let lost = match reason {
                GapReason::LagLimit => &mut self.totals.lost_lag_limit,
                GapReason::Evicted => &mut self.totals.lost_evicted,
            };
            match self.outcomes[sequence - 1] {
                SequenceOutcome::Queued => *lost += 1,
                SequenceOutcome::Delivered => {
                    *lost += 1;
                    self.totals.undelivered += 1;
                }
                SequenceOutcome::Lost => {}
            }
            *self.outcome(sequence) = SequenceOutcome::Lost;
        }
        self.position += cookies;
    }

    fn count(&self, outcome: SequenceOutcome) -> u64 {
        let outcomes = &self.outcomes[self.joined - 1..];
        outcomes.iter().filter(|&&it| it == outcome).count() as u64
    }
}

#[derive(Debug, Clone)]
enum Action {
    Append(usize),
    /// Number of queued cookies that are delivered.
    Deliver(prop::sample::Index),
    Lose(prop::sample::Index, GapReason),
    /// Start of the next stream, up to the next sequence number.
    Begin(prop::sample::Index),
    /// The next stream begins this far before the position.
    Rewind(usize),
}

fn action() -> impl Strategy<Value = Action> {
    let index = any::<prop::sample::Index>;
    let reason = prop_oneof![Just(GapReason::LagLimit), Just(GapReason::Evicted)];
    prop_oneof![
        3 => (1_usize..40).prop_map(Action::Append),
        4 => index().prop_map(Action::Deliver),
        3 => (index(), reason).prop_map(|(index, reason)| Action::Lose(index, reason)),
        1 => index().prop_map(Action::Begin),
        2 => (0_usize..30).prop_map(Action::Rewind),
    ]
}

fn sequence(number: usize) -> Sequence {
    Sequence(number as u64)
}

fn apply(action: &Action, model: &mut Model, account: &mut Account) {
    let next = model.outcomes.len() + 1;
    let (position, left) = (model.position, next - model.position);
    let at = sequence(position);
    match action {
        Action::Append(cookies) => model
            .outcomes
            .extend(vec![SequenceOutcome::Queued; *cookies]),
        Action::Deliver(index) if left > 0 => {
            let cookies = 1 + index.index(left);
            model.deliver(cookies);
            account.deliver(at, at + cookies as u64 - 1);
        }
        Action::Lose(index, reason) if left > 0 => {
            let cookies = 1 + index.index(left);
            model.lose(cookies, *reason);
            account.lose(at, at + cookies as u64 - 1, *reason);
        }
        Action::Deliver(_) | Action::Lose(..) => {}
        Action::Begin(index) => begin(1 + index.index(next), model, account),
        Action::Rewind(back) => begin(position.saturating_sub(*back).max(1), model, account),
    }
}

fn begin(began: usize, model: &mut Model, account: &mut Account) {
    model.begin(began);
    account.begin(sequence(began));
}

/// The fields in the order of [`Totals`].
fn as_array(totals: &Totals) -> [u64; 8] {
    let Totals {
        delivered,
        redelivered,
        lost_lag_limit,
        lost_evicted,
        undelivered,
        recovered,
        bytes,
        streams,
    } = *totals;
    [
        delivered,
        redelivered,
        lost_lag_limit,
        lost_evicted,
        undelivered,
        recovered,
        bytes,
        streams,
    ]
}

/// Cookies currently counted as delivered and as lost.
fn net(totals: &Totals) -> (u64, u64) {
    let lost = totals.lost_lag_limit + totals.lost_evicted;
    let delivered = totals.delivered.checked_sub(totals.undelivered);
    let lost = lost.checked_sub(totals.recovered);
    (
        delivered.expect("no more undelivered than delivered"),
        lost.expect("no more recovered than lost"),
    )
}

proptest! {
    #[test]
    fn every_sequence_has_exactly_one_outcome(
        joined in 1_usize..50,
        actions in prop::collection::vec(action(), 1..150),
    ) {
        let (mut model, mut account) = (Model::new(joined), Account::new(sequence(joined)));
        model.begin(joined);
        account.begin(sequence(joined));
        for action in &actions {
            apply(action, &mut model, &mut account);
            prop_assert_eq!(as_array(&account.totals), as_array(&model.totals));
            prop_assert_eq!(account.position, sequence(model.position));
            prop_assert_eq!(account.joined, sequence(model.joined));
            let queued = sequence(model.outcomes.len() + 1).since(account.high_water);
            prop_assert_eq!(queued, model.count(SequenceOutcome::Queued));
            let counted = (model.count(SequenceOutcome::Delivered), model.count(SequenceOutcome::Lost));
            prop_assert_eq!(net(&account.totals), counted);
        }
    }

    #[test]
    fn account_balances_and_never_decreases_when_ranges_are_dropped(
        ranges_max in 0_usize..4,
        actions in prop::collection::vec(action(), 1..150),
    ) {
        let (mut model, mut account) = (Model::new(1), Account::new(Sequence(1)));
        account.lost_ranges.max = ranges_max;
        for action in &actions {
            let before = as_array(&account.totals);
            apply(action, &mut model, &mut account);
            prop_assert!(before.iter().zip(as_array(&account.totals)).all(|(before, now)| *before <= now));
            prop_assert!(account.lost_ranges.ranges.len() <= ranges_max);
            let (delivered, lost) = net(&account.totals);
            prop_assert_eq!(account.high_water.since(account.joined), delivered + lost);
        }
    }
}

#[test]
fn delivered_sequences_in_a_later_gap_become_lost() {
    let mut account = Account::new(Sequence(1));
    account.begin(Sequence(1));
    account.deliver(Sequence(1), Sequence(100));
    account.begin(Sequence(51));
    account.lose(Sequence(51), Sequence(150), GapReason::Evicted);
    let totals = account.totals;
    assert_eq!((totals.delivered, totals.undelivered), (100, 50));
    assert_eq!((totals.lost_evicted, totals.recovered), (100, 0));
    assert_eq!(net(&totals), (50, 100));
}

#[test]
fn lost_sequences_that_are_delivered_later_are_recovered_once() {
    let mut account = Account::new(Sequence(1));
    account.begin(Sequence(1));
    account.lose(Sequence(1), Sequence(60), GapReason::LagLimit);
    account.deliver(Sequence(61), Sequence(100));
    for redelivered in [40, 140] {
        account.begin(Sequence(1));
        account.deliver(Sequence(1), Sequence(100));
        assert_eq!(account.totals.recovered, 60);
        assert_eq!(account.totals.redelivered, redelivered);
        assert_eq!(net(&account.totals), (100, 0));
    }
}

#[test]
fn sequences_before_a_cursor_count_as_delivered() {
    let mut account = Account::new(Sequence(11));
    account.begin(Sequence(11));
    account.deliver(Sequence(11), Sequence(20));
    account.begin(Sequence(31));
    assert_eq!((account.totals.delivered, account.high_water.0), (20, 31));
    account.begin(Sequence(1));
    assert_eq!((account.totals.delivered, account.joined.0), (30, 1));
    account.lose(Sequence(1), Sequence(40), GapReason::Evicted);
    assert_eq!(net(&account.totals), (0, 40));
}

#[test]
fn adjacent_losses_are_merged_and_recovered_ones_split_a_range() {
    let mut account = Account::new(Sequence(1));
    account.begin(Sequence(1));
    account.lose(Sequence(1), Sequence(10), GapReason::LagLimit);
    account.lose(Sequence(11), Sequence(20), GapReason::Evicted);
    assert_eq!(account.lost_ranges.ranges, [(Sequence(1), Sequence(20))]);
    account.begin(Sequence(5));
    account.deliver(Sequence(5), Sequence(9));
    assert_eq!(
        account.lost_ranges.ranges,
        [(Sequence(1), Sequence(4)), (Sequence(10), Sequence(20))]
    );
    account.begin(Sequence(5));
    account.lose(Sequence(5), Sequence(9), GapReason::Evicted);
    assert_eq!(account.lost_ranges.ranges, [(Sequence(1), Sequence(20))]);
    assert_eq!(net(&account.totals), (0, 20));
}
