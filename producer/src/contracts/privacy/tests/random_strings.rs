//! Tests of random consent strings: a second encoder creates them from sets, which determine the expected outcome.

use std::collections::BTreeSet;

use fastrand::Rng;

use super::*;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Encodes numbers into base64url.
#[derive(Default)]
pub(super) struct Writer(Vec<bool>);

impl Writer {
    pub(super) fn put(&mut self, number: u64, width: usize) {
        self.0.extend(
            (0..width)
                .rev()
                .map(|bit| bit < 64 && number >> bit & 1 == 1),
        );
    }

    pub(super) fn text(&self) -> String {
        let sextets = self.0.chunks(6).map(|bits| {
            (0..6).fold(0, |sextet, bit| {
                2 * sextet + usize::from(bits.get(bit) == Some(&true))
            })
        });
        sextets.map(|sextet| char::from(ALPHABET[sextet])).collect()
    }

    fn put_fibonacci(&mut self, mut number: u64) {
        let mut fibonacci = vec![1, 2];
        while fibonacci.last() < Some(&number) {
            fibonacci.push(fibonacci.iter().rev().take(2).sum());
        }
        while fibonacci.last() > Some(&number) {
            fibonacci.pop();
        }
        let mut bits = vec![true];
        for term in fibonacci.into_iter().rev() {
            bits.push(term <= number);
            number -= if term <= number { term } else { 0 };
        }
        self.0.extend(bits.into_iter().rev());
    }

    /// Encodes ranges. With `expand`, a single vendor is also encoded as a range.
    fn put_ranges(&mut self, ranges: &[(u16, u16)], expand: bool) {
        self.put(ranges.len() as u64, 12);
        for &(first, last) in ranges {
            let is_range = first < last || expand;
            self.put(u64::from(is_range), 1);
            self.put(u64::from(first), 16);
            if is_range {
                self.put(u64::from(last), 16);
            }
        }
    }
}

/// The header of a GPP string with these ranges of sections.
pub(super) fn gpp_header(ranges: &[(usize, usize)]) -> String {
    let mut writer = Writer::default();
    writer.put(3, 6);
    writer.put(1, 6);
    writer.put(ranges.len() as u64, 12);
    let mut previous = 0;
    for &(first, last) in ranges {
        writer.put(u64::from(first < last), 1);
        writer.put_fibonacci((first - previous) as u64);
        if first < last {
            writer.put_fibonacci((last - first) as u64);
        }
        previous = last;
    }
    writer.text()
}

type Vendors = BTreeSet<u16>;

fn vendors(random: &mut Rng) -> Vendors {
    let share = [2, 8, 14][random.usize(..3)];
    (1..=40).filter(|_| random.u8(..16) < share).collect()
}

/// Ranges of a set: some merged, some not, in any order.
fn ranges_of(set: &Vendors, random: &mut Rng) -> Vec<(u16, u16)> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for &vendor in set {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == vendor && random.u8(..4) > 0 => *last = vendor,
            _ => ranges.push((vendor, vendor)),
        }
    }
    random.shuffle(&mut ranges);
    ranges
}

fn put_vendors(writer: &mut Writer, set: &Vendors, random: &mut Rng) {
    let vendor_max = set.last().copied().unwrap_or(0);
    writer.put(u64::from(vendor_max), 16);
    if random.bool() {
        writer.put(1, 1);
        writer.put_ranges(&ranges_of(set, random), random.bool());
    } else {
        writer.put(0, 1);
        for vendor in 1..=vendor_max {
            writer.put(u64::from(set.contains(&vendor)), 1);
        }
    }
}

/// The sets that a string encodes.
struct Consent {
    purposes: u64,
    created: u64,
    updated: u64,
    consents: Vendors,
    restrictions: Vec<(u64, u64, Vendors)>,
    disclosed: Option<Vendors>,
}

impl Consent {
    fn random(random: &mut Rng) -> Self {
        let mut time = || 17_723_232_000 - 1 + random.u64(..2);
        Self {
            created: time(),
            updated: time(),
            purposes: random.u64(..1 << 24) | if random.u8(..8) > 0 { 1 << 23 } else { 0 },
            consents: vendors(random),
            restrictions: (0..random.usize(..4))
                .map(|_| (random.u64(1..3), random.u64(..3), vendors(random)))
                .collect(),
            disclosed: (random.u8(..8) > 0).then(|| vendors(random)),
        }
    }

    fn text(&self, random: &mut Rng) -> String {
        let mut core = Writer::default();
        core.put(2, 6);
        core.put(self.created, 36);
        core.put(self.updated, 36);
        core.put(random.u64(..1 << 62), 62);
        core.put(random.u64(..1 << 12), 12);
        core.put(self.purposes, 24);
        core.put(random.u64(..1 << 37), 37);
        put_vendors(&mut core, &self.consents, random);
        put_vendors(&mut core, &vendors(random), random);
        core.put(self.restrictions.len() as u64, 12);
        for (purpose, kind, set) in &self.restrictions {
            core.put(*purpose, 6);
            core.put(*kind, 2);
            core.put_ranges(&ranges_of(set, random), random.bool());
        }
        let mut segments = Vec::new();
        for kind in [2, 3] {
            let mut other = Writer::default();
            other.put(kind, 3);
            other.put(random.u64(..1 << 50), 50);
            segments.push(other.text());
        }
        segments.truncate(random.usize(..3));
        if let Some(disclosed) = &self.disclosed {
            let mut segment = Writer::default();
            segment.put(1, 3);
            put_vendors(&mut segment, disclosed, random);
            segments.push(segment.text());
        }
        random.shuffle(&mut segments);
        segments.insert(0, core.text());
        segments.join(".")
    }

    fn expected(&self, host: u16, dsp: u16) -> Outcome {
        let both = |set: &Vendors| set.contains(&host) && set.contains(&dsp);
        let restricts = |(purpose, kind, set): &(u64, u64, Vendors)| {
            (*purpose, *kind) == (1, 0) && (set.contains(&host) || set.contains(&dsp))
        };
        let is_recent = self.created.max(self.updated) >= 17_723_232_000;
        if self.purposes >> 23 == 0 {
            Outcome::ConsentPurpose
        } else if !self.consents.contains(&host) {
            Outcome::ConsentVendorHost
        } else if !self.consents.contains(&dsp) {
            Outcome::ConsentVendorDsp
        } else if self.restrictions.iter().any(restricts) {
            Outcome::ConsentRestricted
        } else if is_recent && !self.disclosed.as_ref().is_some_and(both) {
            Outcome::ConsentUndisclosed
        } else {
            Outcome::Allowed
        }
    }
}

#[test]
fn bit_fields_and_ranges_are_judged_by_the_sets_that_they_encode() {
    let mut random = Rng::with_seed(11);
    let mut outcomes = std::collections::BTreeMap::new();
    for _ in 0..5_000 {
        let consent = Consent::random(&mut random);
        let (host, dsp) = (random.u16(1..=41), random.u16(1..=41));
        let expected = consent.expected(host, dsp);
        let config = config(json!({ "host_vendor": host }));
        // Each text has a different mixture of bit fields and ranges.
        for _ in 0..2 {
            let text = consent.text(&mut random);
            for query in [
                format!("gdpr=1&gdpr_consent={text}"),
                format!("gpp_sid=2&gpp=DBABMA~{text}"),
            ] {
                assert_eq!(
                    decide(&config, &query, &[], dsp),
                    expected,
                    "{host} {dsp} {text}"
                );
                if consent.expected(host, host) == Outcome::Allowed {
                    let expected = (0..=41).map(|dsp| consent.expected(host, dsp));
                    let expected: Vec<_> = expected.map(|it| it == Outcome::Allowed).collect();
                    assert_eq!(permits(&config, &query, 0..=41), expected, "{host} {text}");
                }
            }
        }
        *outcomes
            .entry(Outcome::LABELS[expected as usize])
            .or_insert(0) += 1;
    }
    assert!(
        outcomes.len() == 6 && outcomes.values().all(|&count| count > 100),
        "{outcomes:?}"
    );
}

/// A string that only a restriction refuses, and the vendor id of its DSP; that of the exchange is 41.
fn restricted(random: &mut Rng) -> (String, u16) {
    let dsp = random.u16(1..=40);
    let mut consent = Consent::random(random);
    consent.purposes |= 1 << 23;
    consent.consents.extend([dsp, 41]);
    consent.disclosed = Some(consent.consents.clone());
    let of_dsp = (1, 0, Vendors::from([dsp]));
    let at = random.usize(..=consent.restrictions.len());
    consent.restrictions.retain(|it| (it.0, it.1) != (1, 0));
    let at = at.min(consent.restrictions.len());
    consent.restrictions.insert(at, of_dsp);
    assert_eq!(consent.expected(41, dsp), Outcome::ConsentRestricted);
    (consent.text(random), dsp)
}

/// The decisions about this text, inside and outside of a GPP string.
fn decisions(text: &str, dsp: u16) -> [Outcome; 2] {
    let config = config(json!({ "host_vendor": 41 }));
    let text: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
    [
        format!("gdpr=1&gdpr_consent={text}"),
        format!("gpp_sid=2&gpp=DBABMA~{text}"),
    ]
    .map(|query| decide(&config, &query, &[], dsp))
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(200))]

    #[test]
    fn no_prefix_of_a_refused_string_is_allowed(seed: u64) {
        let mut random = Rng::with_seed(seed);
        let (text, dsp) = match random.bool() {
            true => restricted(&mut random),
            false => (Consent::random(&mut random).text(&mut random), random.u16(1..=41)),
        };
        if decisions(&text, dsp) != [Outcome::Allowed; 2] {
            for end in 0..text.len() {
                for outcome in decisions(&text[..end], dsp) {
                    assert_ne!(outcome, Outcome::Allowed, "{} of {text}, {dsp}", &text[..end]);
                }
            }
        }
    }

    #[test]
    fn no_string_with_a_character_outside_the_alphabet_is_allowed(seed: u64) {
        let mut random = Rng::with_seed(seed);
        let text = Consent::random(&mut random).text(&mut random);
        for at in 0..text.len() {
            let other = char::from(random.u8(..128));
            if !other.is_ascii_alphanumeric() && !"-_.".contains(other) {
                let text = format!("{}{other}{}", &text[..at], &text[at + 1..]);
                let [alone, in_gpp] = decisions(&text, 41);
                assert!(alone != Outcome::Allowed && in_gpp != Outcome::Allowed, "{text}");
            }
        }
    }
}
