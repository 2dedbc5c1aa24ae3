//! Tests of the choice, without HTTP.

mod week;

use std::collections::BTreeMap;

use super::*;
use crate::contracts::file;

const DAY: u8 = 20;

const HEAD: &str = "[privacy]
gdpr_when_absent = 'no'
country_header = 'x-country'
[plan]
base = 'https://match.ssp.example'
";

/// Contracts with these tables `[dsp.ID.sync]`, each with a URL for an image.
fn contracts(dsps: &[(u32, &str)]) -> Contracts {
    let dsps = dsps.iter().map(|(dsp, keys)| {
        format!(
            "[dsp.{dsp}]\nname = 'd{dsp}'\n[dsp.{dsp}.sync]\nimage = 'https://d{dsp}.example/?r={{RETURN}}'\n{keys}\n"
        )
    });
    file::parse(&dsps.fold(HEAD.to_owned(), |text, dsp| text + &dsp)).unwrap()
}

struct Asked {
    offered: Vec<u32>,
    urls: Vec<String>,
    left_out: BTreeMap<String, Reason>,
}

fn ask_with(
    contracts: &Contracts,
    body: &str,
    hints: &mut Hints,
    signals: Signals<'_>,
    rng: &mut Rng,
) -> Asked {
    let request = Request::parse(body.as_bytes(), contracts).unwrap();
    let signals = Signals {
        gpc: signals.gpc,
        country: signals.country,
        ..request.signals()
    };
    let context = Context {
        contracts,
        request: &request,
        signals: &signals,
        day: DAY,
        bytes_max: 100_000,
    };
    let plan = plan(&context, hints, rng);
    let left_out = plan.left_out.iter();
    Asked {
        offered: plan.offers.iter().map(|it| it.dsp_id.0).collect(),
        urls: plan.offers.into_iter().map(|it| it.url).collect(),
        left_out: left_out
            .map(|(name, _, reason)| (name.to_string(), *reason))
            .collect(),
    }
}

fn ask(contracts: &Contracts, body: &str) -> Asked {
    let (mut hints, mut rng) = (Hints::new("u"), Rng::with_seed(7));
    ask_with(contracts, body, &mut hints, Signals::default(), &mut rng)
}

#[test]
fn named_dsps_precede_groups_and_groups_the_rest() {
    let contracts = contracts(&[
        (1, ""),
        (2, "group = 9"),
        (3, "group = 1"),
        (4, ""),
        (5, "group = 1"),
    ]);
    for seed in 0..50 {
        let (mut hints, mut rng) = (Hints::new("u"), Rng::with_seed(seed));
        let body = r#"{"bidders": ["D4", "d4"], "limit": 10}"#;
        let asked = ask_with(&contracts, body, &mut hints, Signals::default(), &mut rng);
        assert_eq!(asked.offered[0], 4);
        let mut group = asked.offered[1..3].to_vec();
        group.sort_unstable();
        assert_eq!(group, [3, 5]);
        assert_eq!(asked.offered[3..], [2, 1]);
    }
    let only = ask(
        &contracts,
        r#"{"bidders": ["d4", "d1"], "coopSync": false}"#,
    );
    assert_eq!(only.offered.len(), 2);
    let all = ask(&contracts, r#"{"bidders": [], "coopSync": false}"#);
    assert_eq!(all.offered.len(), 5);
}

#[test]
fn shares_follow_the_weights_within_two_percent() {
    let contracts = contracts(&[(1, "weight = 1"), (2, "weight = 2"), (3, "weight = 7")]);
    let mut first = [0_u32; 3];
    let mut rng = Rng::with_seed(1);
    for _ in 0..20_000 {
        let mut hints = Hints::new("u");
        let asked = ask_with(
            &contracts,
            r#"{"limit": 1}"#,
            &mut hints,
            Signals::default(),
            &mut rng,
        );
        first[asked.offered[0] as usize - 1] += 1;
    }
    for (count, expected) in first.into_iter().zip([0.1, 0.2, 0.7]) {
        let share = f64::from(count) / 20_000.0;
        assert!((share - expected).abs() < 0.02, "{share} {expected}");
    }
}

#[test]
fn limit_is_that_of_the_request_up_to_the_maximum() {
    let dsps: Vec<_> = (1..=15).map(|dsp| (dsp, "")).collect();
    let contracts = contracts(&dsps);
    for (body, expected) in [
        ("{}", 5),
        (r#"{"limit": 3}"#, 3),
        (r#"{"limit": 10}"#, 10),
        (r#"{"limit": 11}"#, 10),
        (r#"{"limit": 0}"#, 10),
        (r#"{"limit": -9223372036854775808}"#, 10),
    ] {
        let asked = ask(&contracts, body);
        assert_eq!(asked.offered.len(), expected, "{body}");
        assert_eq!(asked.left_out.len(), 15 - expected);
        assert!(asked.left_out.values().all(|it| *it == Reason::OverLimit));
    }
}

#[test]
fn left_out_dsps_do_not_use_up_the_limit() {
    let blocked = "weight = 1000\ncountries = ['FR']";
    let contracts = contracts(&[(1, blocked), (2, blocked), (3, ""), (4, "")]);
    let asked = ask(&contracts, r#"{"limit": 2}"#);
    assert_eq!(asked.offered.len(), 2);
    assert_eq!(asked.left_out["d1"], Reason::Country);
}

#[test]
fn first_reason_counts() {
    let text = "[dsp.1]\nname = 'none'\n
        [dsp.2]\nname = 'blocked'\nstate = 'blocked'\n[dsp.2.sync]\nimage = 'https://d.example/{RETURN}'\ncountries = ['FR']\n
        [dsp.3]\nname = 'frame'\n[dsp.3.sync]\niframe = 'https://d.example/{RETURN}'\nskip_gdpr = true\n
        [dsp.4]\nname = 'scope'\n[dsp.4.sync]\nimage = 'https://d.example/{RETURN}'\nskip_gpp_sid = [7, 8]\ncountries = ['FR']\n
        [dsp.5]\nname = 'country'\nrefuse_when = { gpp_sid = [8] }\n[dsp.5.sync]\nimage = 'https://d.example/{RETURN}'\ncountries = ['FR']\n
        [dsp.6]\nname = 'rule'\nrefuse_when = { gpp_sid = [8] }\n[dsp.6.sync]\nimage = 'https://d.example/{RETURN}'\n
        [dsp.7]\nname = 'synced'\n[dsp.7.sync]\nimage = 'https://d.example/{RETURN}'\nper_day = 1\n
        [dsp.8]\nname = 'offered'\n[dsp.8.sync]\nimage = 'https://d.example/{RETURN}'\nper_day = 1\nsample = 0.000000001\n
        [dsp.9]\nname = 'sample'\n[dsp.9.sync]\nimage = 'https://d.example/{RETURN}'\nsample = 0.000000001\n
        [dsp.10]\nname = 'fine'\n[dsp.10.sync]\nimage = 'https://d.example/{RETURN}'\n";
    let contracts = file::parse(&format!("{HEAD}{text}")).unwrap();
    let mut hints = Hints::new("u");
    hints.accept(DspId(7), DAY);
    hints.offer(DspId(8), DAY);
    let body = r#"{"bidders": ["none", "what", "What", "what"], "coopSync": true, "gpp_sid": "8",
        "filterSettings": {"iframe": {"filter": "exclude"}}, "debug": true}"#;
    let mut rng = Rng::with_seed(7);
    let asked = ask_with(&contracts, body, &mut hints, Signals::default(), &mut rng);
    let expected = [
        ("What", Reason::Unknown),
        ("blocked", Reason::Blocked),
        ("country", Reason::Country),
        ("frame", Reason::Filter),
        ("none", Reason::NoSync),
        ("offered", Reason::DailyLimit),
        ("rule", Reason::Privacy),
        ("sample", Reason::NotSampled),
        ("scope", Reason::Scope),
        ("synced", Reason::InSync),
        ("what", Reason::Unknown),
    ];
    let expected = expected.map(|(name, reason)| (name.to_owned(), reason));
    assert_eq!(asked.left_out, BTreeMap::from(expected));
    assert_eq!(asked.offered, [10]);
}

#[test]
fn country_permits_only_its_own_dsps() {
    let contracts = contracts(&[(1, "countries = ['FR', 'US']"), (2, "countries = ['DE']")]);
    let country = crate::contracts::privacy::Country::from_header(b"US-CA");
    let signals = Signals {
        country,
        ..Signals::default()
    };
    let (mut hints, mut rng) = (Hints::new("u"), Rng::with_seed(7));
    let asked = ask_with(&contracts, "{}", &mut hints, signals, &mut rng);
    assert_eq!(asked.offered, [1]);
}

#[test]
fn sample_is_the_share_of_plans_that_consider_a_dsp() {
    let contracts = contracts(&[(1, "sample = 0.25")]);
    let mut rng = Rng::with_seed(3);
    let plans = 0..20_000;
    let offered = plans.filter(|_| {
        let mut hints = Hints::new("u");
        let asked = ask_with(&contracts, "{}", &mut hints, Signals::default(), &mut rng);
        !asked.offered.is_empty()
    });
    let share = offered.count() as f64 / 20_000.0;
    assert!((share - 0.25).abs() < 0.02, "{share}");
}

#[test]
fn dsp_is_offered_per_day_and_not_after_a_match() {
    let contracts = contracts(&[(1, "per_day = 3")]);
    let (mut hints, mut rng) = (Hints::new("u"), Rng::with_seed(3));
    let mut ask = |hints: &mut Hints| {
        let asked = ask_with(&contracts, "{}", hints, Signals::default(), &mut rng);
        asked.left_out.get("d1").copied()
    };
    for _ in 0..3 {
        assert_eq!(ask(&mut hints), None);
    }
    assert_eq!(ask(&mut hints), Some(Reason::DailyLimit));
    hints.accept(DspId(1), DAY);
    assert_eq!(ask(&mut hints), Some(Reason::InSync));
}

#[test]
fn url_of_the_return_is_encoded_as_a_whole() {
    let text = "[dsp.17]\nname = 'a b&c'\n[dsp.17.sync]\nuid_macro = '${ID}'\n\
        image = 'https://d.example/m?r={RETURN}&g={GDPR}&c={GDPR_CONSENT}&u={US_PRIVACY}&p={GPP}&s={GPP_SID}'\n\
        iframe = 'https://d.example/f?r={RETURN}'\n";
    let contracts = file::parse(&format!("{HEAD}{text}")).unwrap();
    let body = r#"{"gdpr": 0, "gdpr_consent": "a&b", "us_privacy": "1---", "gpp_sid": "6,7"}"#;
    let base = "https%3A%2F%2Fmatch.ssp.example%2Fsetuid%3Fbidder%3Da%2520b%2526c%26gdpr%3D0\
        %26gdpr_consent%3Da%2526b%26us_privacy%3D1---%26gpp%3D%26gpp_sid%3D6%252C7%26f%3D";
    let end = "%26p%3D1%26uid%3D%24%7BID%7D";
    assert_eq!(
        ask(&contracts, body).urls,
        [format!(
            "https://d.example/m?r={base}i{end}&g=0&c=a%26b&u=1---&p=&s=6%2C7"
        )]
    );
    let frames = r#"{"gdpr": 0, "gdpr_consent": "a&b", "us_privacy": "1---", "gpp_sid": "6,7",
        "filterSettings": {"image": {"bidders": ["A B&C"], "filter": "exclude"}}}"#;
    assert_eq!(
        ask(&contracts, frames).urls,
        [format!("https://d.example/f?r={base}b{end}")]
    );
}

#[test]
fn dsp_whose_url_is_too_long_is_left_out() {
    let text = "[dsp.1]\nname = 'long'\n[dsp.1.sync]\n\
        image = 'https://d.example/?r={RETURN}&c={GDPR_CONSENT}&d={GDPR_CONSENT}'\n\
        [dsp.2]\nname = 'short'\n[dsp.2.sync]\nimage = 'https://d.example/?r={RETURN}'\n";
    let contracts = file::parse(&format!("{HEAD}{text}")).unwrap();
    let body = |length| format!("{{\"gdpr_consent\": \"{}\"}}", "a".repeat(length));
    let asked = ask(&contracts, &body(3_000));
    assert_eq!(asked.offered, [2]);
    assert_eq!(asked.left_out["long"], Reason::UrlTooLong);
    let asked = ask(&contracts, &body(9_000));
    assert_eq!(asked.offered, [0; 0]);
    assert_eq!(asked.left_out["short"], Reason::UrlTooLong);
}

#[test]
fn plan_is_no_longer_than_the_answer_may_be() {
    let contracts = contracts(&[(1, ""), (2, ""), (3, "")]);
    let request = Request::default();
    let signals = Signals::default();
    let context = Context {
        contracts: &contracts,
        request: &request,
        signals: &signals,
        day: DAY,
        bytes_max: 400,
    };
    let plan = plan(&context, &mut Hints::new("u"), &mut Rng::with_seed(1));
    let bytes: usize = plan.offers.iter().map(|it| it.url.len()).sum();
    assert!(
        (1..=2).contains(&plan.offers.len()) && bytes <= 400,
        "{bytes}"
    );
    assert_eq!(plan.left_out[0].2, Reason::OverLimit);
}
