//! A week of simulated browsers. The bookkeeping that checks their plans knows offers and matches, but no hints.

use std::array;

use super::*;

const BROWSERS: usize = 1_000;
const HOURS: u32 = 7 * 24;
/// Days since 1970; modulo 256, the week begins on day 253 and ends on day 3.
const FIRST_DAY: u32 = 80 * 256 + 253;
const LIMIT: usize = 5;

/// What the file says about a DSP, and how often it returns with an id.
#[derive(Clone, Copy)]
struct Partner {
    id: u32,
    refresh_days: u32,
    per_day: u32,
    weight: u32,
    is_in_group: bool,
    completes: f64,
}

fn partner(id: u32) -> Partner {
    Partner {
        id,
        refresh_days: 1 + id % 4,
        per_day: 1 + id % 3,
        weight: 1 + 3 * (id % 7),
        is_in_group: id.is_multiple_of(5),
        completes: f64::from(id % 11) / 10.0,
    }
}

/// What happened between a browser and a DSP.
#[derive(Clone, Copy, Default)]
struct History {
    matched_on: Option<u32>,
    offered_on: u32,
    offers: u32,
}

impl History {
    fn permits(&self, partner: &Partner, day: u32) -> bool {
        let is_stale = |matched: u32| day - matched >= partner.refresh_days;
        let has_offers = self.offered_on != day || self.offers < partner.per_day;
        self.matched_on.is_none_or(is_stale) && has_offers
    }

    fn offer(&mut self, day: u32) {
        if self.offered_on != day {
            (self.offered_on, self.offers) = (day, 0);
        }
        self.offers += 1;
    }
}

#[test]
fn in_a_week_each_dsp_is_offered_when_it_may_be_and_first_by_its_weight() {
    let mut ids = 1..;
    let partners: [Partner; 20] = array::from_fn(|_| partner(ids.next().unwrap()));
    let keys = partners.map(|it| {
        let group = if it.is_in_group { "group = 1\n" } else { "" };
        let Partner {
            refresh_days,
            per_day,
            weight,
            ..
        } = it;
        format!("refresh = '{refresh_days}d'\nper_day = {per_day}\nweight = {weight}\n{group}")
    });
    let dsps: Vec<_> = (1..).zip(keys.iter().map(|it| &**it)).collect();
    let contracts = contracts(&dsps);
    let (mut rng, request, signals) = (Rng::with_seed(5), Request::default(), Signals::default());
    let (mut plans, mut first, mut expected_first) = (0, [0.0; 20], [0.0; 20]);
    for browser in 0..BROWSERS {
        let user = format!("user-{browser}");
        let (mut cookie, mut histories) = (None::<String>, [History::default(); 20]);
        let mut hour = rng.u32(..12);
        while hour < HOURS {
            let day = FIRST_DAY + hour / 24;
            let context = Context {
                contracts: &contracts,
                request: &request,
                signals: &signals,
                day: u8::try_from(day % 256).unwrap(),
                bytes_max: 100_000,
            };
            let mut hints = Hints::read(cookie.as_deref().map(str::as_bytes), &user);
            let plan = plan(&context, &mut hints, &mut rng);
            if !plan.offers.is_empty() {
                cookie = Some(hints.write(context.day, &contracts));
            }

            let permitted = partners.iter().zip(&histories);
            let permitted = permitted.filter(|(it, history)| history.permits(it, day));
            let permitted: Vec<_> = permitted.map(|(it, _)| *it).collect();
            assert_eq!(plan.offers.len(), permitted.len().min(LIMIT));
            let has_group = permitted.iter().any(|it| it.is_in_group);
            let leading = || permitted.iter().filter(|it| it.is_in_group == has_group);
            let weights: u32 = leading().map(|it| it.weight).sum();
            for it in leading() {
                expected_first[it.id as usize - 1] += f64::from(it.weight) / f64::from(weights);
            }
            if let Some(offer) = plan.offers.first() {
                first[offer.dsp_id.0 as usize - 1] += 1.0;
                plans += 1;
            }
            let pause = rng.u32(3..12);
            for offer in &plan.offers {
                let at = offer.dsp_id.0 as usize - 1;
                let is_permitted = permitted.iter().any(|it| it.id == offer.dsp_id.0);
                assert!(is_permitted, "{user}, hour {hour}: {offer:?}");
                histories[at].offer(day);
                if rng.f64() < partners[at].completes {
                    // Sometimes on the next day.
                    let matched_on = FIRST_DAY + (hour + rng.u32(..2)) / 24;
                    histories[at].matched_on = Some(matched_on);
                    let mut hints = Hints::read(cookie.as_deref().map(str::as_bytes), &user);
                    let today = u8::try_from(matched_on % 256).unwrap();
                    if hints.accept(offer.dsp_id, today) {
                        cookie = Some(hints.write(today, &contracts));
                    }
                }
            }
            hour += pause;
        }
    }
    assert!(plans > 15_000, "{plans}");
    for (at, (first, expected)) in first.into_iter().zip(expected_first).enumerate() {
        let difference = (first - expected) / f64::from(plans);
        assert!(
            difference.abs() < 0.02,
            "{}: {first} {expected}",
            partners[at].id
        );
    }
}
