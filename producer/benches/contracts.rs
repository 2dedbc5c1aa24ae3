//! Cost of the contract of a DSP for one valid request: lookup and check of the buyer uid, and the rendering of a redirect.
//! `parts.rs` has the cost of parsing the request.

use divan::{Bencher, black_box, counter::ItemsCount};
use producer::edge::{contracts::file, redirect::Template};
use proto::wire::CookieRef;

/// Requests per call of a measured function.
const ITEMS: usize = 10_000;

fn main() {
    divan::main();
}

/// Buyer uids of 16 to 36 characters, each of one of 20 DSPs.
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
            black_box(contracts.of(*dsp_id).refusal(uid));
        }
    });
}

#[divan::bench]
fn redirect(bencher: Bencher<'_, '_>) {
    let url =
        "https://sync.example/done?u={UID}&x={DSP_UID}&gdpr={GDPR}&gdpr_consent={GDPR_CONSENT}";
    let template = Template::parse(url).expect("a valid URL");
    let query = format!("d=17&b=x&gdpr=1&gdpr_consent={}", "CQabc".repeat(60));
    let requests = buyer_uids();
    let mut output = Vec::new();
    bencher.counter(ItemsCount::new(ITEMS)).bench_local(|| {
        for (dsp_id, uid) in &requests {
            output.clear();
            let cookie = CookieRef {
                user_id: "0123456789abcdef0123",
                dsp_id: *dsp_id,
                buyer_uid: uid,
                age_micros: 0,
            };
            black_box(template.render(&cookie, &query, &mut output));
        }
    });
}
