//! Benchmark of the work that a DSP's contract adds to one valid request: its lookup, the buyer uid check, the privacy
//! decision, and the rendering of a redirect; and of a sync plan. `parts.rs` measures the parsing of the request.

use std::num::NonZeroU16;

use divan::{Bencher, black_box, counter::ItemsCount};
use producer::{
    contracts::{
        file,
        privacy::{Config, Outcome, RefuseWhen},
        redirect::{REDIRECT_MACROS, Template, Values},
    },
    edge::query::{Query, Scratch},
    plan::{self, Context, Hints, Request},
};
use proto::units::DspId;

/// Requests per call of a measured function.
const ITEMS: usize = 10_000;

/// Plans per call of a measured function.
const PLANS: usize = 1_000;

fn main() {
    divan::main();
}

/// Buyer uids of 16 to 36 characters, each with one of 20 DSPs.
fn buyer_uids() -> Vec<(u32, String)> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut one = || {
        let length = random.usize(16..=36);
        let uid = (0..length).map(|_| random.alphanumeric()).collect();
        (random.u32(1..=20), uid)
    };
    (0..ITEMS).map(|_| one()).collect()
}

/// Keys of each contract besides the defaults.
#[divan::bench(args = ["", "uid_pattern = '^[A-Za-z0-9_-]{8,64}$'"])]
fn check(bencher: Bencher<'_, '_>, keys: &str) {
    let tables: String = (1..=20)
        .map(|dsp| format!("[dsp.{dsp}]\n{keys}\n"))
        .collect();
    let contracts = file::parse(&tables).expect("valid contracts");
    let requests = buyer_uids();
    bencher.counter(ItemsCount::new(ITEMS)).bench_local(|| {
        for (dsp_id, uid) in &requests {
            black_box(contracts.decide(contracts.of(DspId(*dsp_id)), uid, None));
        }
    });
}

#[divan::bench]
fn redirect(bencher: Bencher<'_, '_>) {
    let url =
        "https://sync.example/done?u={UID}&x={DSP_UID}&gdpr={GDPR}&gdpr_consent={GDPR_CONSENT}";
    let template = Template::parse(url, REDIRECT_MACROS).expect("a valid URL");
    let query = format!("d=17&b=x&gdpr=1&gdpr_consent={}", "CQabc".repeat(60));
    let requests = buyer_uids();
    let mut output = Vec::new();
    bencher.counter(ItemsCount::new(ITEMS)).bench_local(|| {
        for (_, uid) in &requests {
            output.clear();
            let mut scratch = Scratch::default();
            let values = Values {
                user_id: "0123456789abcdef0123",
                buyer_uid: uid,
                return_url: "",
                signals: Query::parse(&query, &mut scratch).signals,
            };
            black_box(template.render(&values, &mut output));
        }
    });
}

/// A TCF string with consent to 600 vendors in a bit field, 20 vendors with a legitimate interest in ranges, a restriction, and
/// disclosed vendors.
const TCF: &str = concat!(
    "CQraFkAQraFkAAfAHAENB4FgAP_gAAAAAAAAIls_ifjtFzsvqSZsT2QVHpt7qOaRydl1SJk6rfvVd9l79F8tp6I7_lT9utkzfT",
    "brKv0-d49KPXf4P23Ju2v_d2Q3eyn7KNVc1KOyTIcB4q_f87-d2toS6E_KX77ebM138t1cn4aw6BnWvzg_hv3_EZ_Tr5rPgN_z",
    "_av_jP5HWfnn-0JzRrynjpt4mIHNwFAABgBNADIAHEAPAAsQCUAFgAL6AZsA2wBuQDegHhAQQAjABNgCgAFNgObABDAAwAOABb",
    "AXmAAA.IImG9-bPKRapIL-_5avhw93qn_-ar9K_h5nyL2-7vB-FXHrpzX9P6W9uH_a__2-7___Z_C_f9v6mxE_u8li7F_2apyj",
    "1xO9v6I0qfX3_y_lFQz_dv3i-trV9wP9m73_vUvf_-Or97LPVf2_d8f3u5_zRSW8Xpm_u-uu9_36s7-3teMv-vX3aSLznf6MA",
);

/// Privacy signals of a query.
#[derive(Debug, Clone, Copy)]
enum Signal {
    /// No signals.
    Absent,
    /// [`TCF`].
    Tcf,
    /// A GPP string with two US sections.
    Gpp,
}

#[divan::bench(args = [Signal::Absent, Signal::Tcf, Signal::Gpp])]
fn privacy(bencher: Bencher<'_, '_>, signal: Signal) {
    let config = Config {
        host_vendor: NonZeroU16::new(755),
        ..Config::default()
    };
    let query = match signal {
        Signal::Absent => "d=17&b=0123456789abcdef".to_owned(),
        Signal::Tcf => format!("d=17&b=0123456789abcdef&gdpr=1&gdpr_consent={TCF}"),
        Signal::Gpp => {
            "d=17&b=0123456789abcdef&gpp_sid=7,8&gpp=DBABrw~CAAqAAAAAABA.QA~BAoAAABA.QA".to_owned()
        }
    };
    bencher.counter(ItemsCount::new(ITEMS)).bench_local(|| {
        for _ in 0..ITEMS {
            let mut scratch = Scratch::default();
            let signals = Query::parse(black_box(&query), &mut scratch).signals;
            assert_eq!(
                config.decide(&signals, config.host_vendor, &RefuseWhen::default()),
                Outcome::Allowed
            );
        }
    });
}

/// A plan of 5 of 30 DSPs for a browser with hints of 10 others: reading the request and the hints, choosing, and writing the hints.
#[divan::bench(args = [Signal::Absent, Signal::Tcf])]
fn plan(bencher: Bencher<'_, '_>, signal: Signal) {
    let mut text =
        "[privacy]\nhost_vendor = 755\n[plan]\nbase = 'https://match.ssp.example'\n".to_owned();
    for dsp in 1..=30 {
        text += &format!("[dsp.{dsp}]\nname = 'partner-{dsp}'\nvendor = 755\n[dsp.{dsp}.sync]\n");
        text += "image = 'https://cm.dsp.example/m?r={RETURN}&gdpr={GDPR}&gdpr_consent={GDPR_CONSENT}'\n";
    }
    let contracts = file::parse(&text).expect("valid contracts");
    let body = match signal {
        Signal::Tcf => format!("{{\"gdpr\": 1, \"gdpr_consent\": \"{TCF}\"}}"),
        _ => "{}".to_owned(),
    };
    let mut hints = Hints::new("0123456789abcdef0123");
    for dsp in 1..=10 {
        hints.accept(DspId(dsp), 20);
    }
    let hints = hints.write(20, &contracts);
    let mut rng = fastrand::Rng::with_seed(1);
    bencher.counter(ItemsCount::new(PLANS)).bench_local(|| {
        for _ in 0..PLANS {
            let request = Request::parse(black_box(body.as_bytes()), &contracts);
            let request = request.expect("a valid request");
            let signals = request.signals();
            let context = Context {
                contracts: &contracts,
                request: &request,
                signals: &signals,
                day: 20,
                bytes_max: 1 << 20,
            };
            let mut hints = Hints::read(Some(hints.as_bytes()), "0123456789abcdef0123");
            let plan = plan::plan(&context, &mut hints, &mut rng);
            assert_eq!(plan.offers.len(), 5);
            black_box(hints.write(20, &contracts));
        }
    });
}
