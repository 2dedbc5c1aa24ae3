//! Tests of strings that are built to be expensive to check. The cost is measured as the number of characters read; all
//! other loops advance through the text.

use super::{random_strings::Writer, *};

/// Bytes of the string: as many as a request may have.
const LENGTH: usize = runtime::http1::head::HEAD_BYTES_MAX;

#[track_caller]
fn check_work(name: &str, query: &str, expected: Outcome) {
    bits::reads::take();
    let outcome = decide(&config(json!({})), query, &[], 2);
    let reads = bits::reads::take();
    assert_eq!(outcome, expected, "{name}");
    assert!(
        reads <= 3 * query.len() + 100,
        "{name}: {reads} characters of {}",
        query.len()
    );
}

/// A core segment up to the vendor consents, with consent to purpose 1.
fn core() -> Writer {
    let mut core = Writer::default();
    core.put(2, 6);
    core.put(0, 36 + 36);
    core.put(0, 38);
    core.put(0, 36);
    core.put(1, 1);
    core.put(0, 60);
    core
}

/// Appends ranges up to the maximum count or length. Returns their number.
fn fill(writer: &mut Writer, ranges: usize, is_range: bool) {
    writer.put(ranges as u64, 12);
    for _ in 0..ranges {
        writer.put(u64::from(is_range), 1);
        writer.put(if is_range { 1 } else { 2 }, 16);
        if is_range {
            writer.put(65_535, 16);
        }
    }
}

/// A string with consent to all vendors in each of its ranges, which fill a request.
fn all_vendors() -> String {
    let mut bomb = core();
    bomb.put(65_535, 16);
    bomb.put(1, 1);
    fill(&mut bomb, 2_971, true);
    bomb.put(0, 16 + 1);
    bomb.put(0, 12);
    bomb.text()
}

#[test]
fn ranges_that_cover_all_vendors_are_decided_in_one_pass() {
    let text = all_vendors();
    assert!(
        (LENGTH - 100..=LENGTH + 100).contains(&text.len()),
        "{}",
        text.len()
    );
    check_work(
        "ranges",
        &format!("gdpr=1&gdpr_consent={text}"),
        Outcome::Allowed,
    );
    check_work(
        "in GPP",
        &format!("gpp_sid=2&gpp=DBABMA~{text}"),
        Outcome::Allowed,
    );
    let cut = &text[..text.len() - 20];
    check_work(
        "cut",
        &format!("gdpr=1&gdpr_consent={cut}"),
        Outcome::Malformed,
    );
}

#[test]
fn text_is_read_once_for_all_dsps() {
    let query = format!("gdpr=1&gdpr_consent={}", all_vendors());
    bits::reads::take();
    let permitted = permits(&config(json!({})), &query, 1..=1_024);
    let reads = bits::reads::take();
    assert_eq!(permitted, [true; 1_024]);
    assert!(
        reads <= 3 * query.len() + 100,
        "{reads} characters of {}",
        query.len()
    );
}

#[test]
fn lists_of_single_vendors_are_decided_in_one_pass() {
    let mut bomb = core();
    for _ in 0..2 {
        bomb.put(65_535, 16);
        bomb.put(1, 1);
        fill(&mut bomb, 2_800, false);
    }
    bomb.put(0, 12);
    check_work(
        "singles",
        &format!("gdpr=1&gdpr_consent={}", bomb.text()),
        Outcome::Allowed,
    );
}

#[test]
fn restrictions_are_decided_in_one_pass() {
    let mut bomb = core();
    bomb.put(2, 16);
    bomb.put(0, 1);
    bomb.put(1, 2);
    bomb.put(0, 16 + 1);
    bomb.put(4_000, 12);
    for _ in 0..4_000 {
        bomb.put(1 << 2 | 1, 8);
        bomb.put(0, 12);
    }
    check_work(
        "restrictions",
        &format!("gdpr=1&gdpr_consent={}", bomb.text()),
        Outcome::Allowed,
    );
}

#[test]
fn restriction_that_is_cut_is_malformed() {
    for restriction in [1 << 2, 2 << 2] {
        let mut text = core();
        for field in [
            (2, 16),
            (0, 1),
            (0b01, 2),
            (0, 17),
            (1, 12),
            (restriction, 8),
            (1, 12),
        ] {
            text.put(field.0, field.1);
        }
        let cut = format!("gdpr=1&gdpr_consent={}A", text.text());
        check(&cut, Outcome::Malformed);
        text.put(5, 17);
        check(
            &format!("gdpr=1&gdpr_consent={}", text.text()),
            Outcome::Allowed,
        );
    }
}

#[test]
fn inverted_and_zero_ranges_are_malformed() {
    for (first, last) in [(0, 5), (5, 4), (0, 0), (65_535, 1)] {
        let mut text = core();
        text.put(65_535, 16);
        text.put(1, 1);
        text.put(1, 12);
        text.put(1, 1);
        text.put(first, 16);
        text.put(last, 16);
        text.put(0, 100);
        check_work(
            "range",
            &format!("gdpr=1&gdpr_consent={}", text.text()),
            Outcome::Malformed,
        );
    }
}

#[test]
fn long_lists_of_segments_and_sections_are_bounded() {
    let dots = ".".repeat(LENGTH);
    let consent = format!("gdpr=1&gdpr_consent={CONSENT}");
    check_work("segments", &format!("{consent}{dots}"), Outcome::Allowed);
    check_work(
        "section segments",
        &format!("gpp=DBABLA~CVVqAAAAAABA{dots}"),
        Outcome::Malformed,
    );
    let tildes = "~".repeat(LENGTH);
    check_work(
        "sections",
        &format!("gpp=DBABLA{tildes}"),
        Outcome::Malformed,
    );
    check_work(
        "escapes",
        &format!("gpp=DBABLA{}", "%7E".repeat(LENGTH / 3)),
        Outcome::Malformed,
    );
    check_work(
        "ids",
        &format!("gpp_sid={}1", "1,".repeat(LENGTH / 2)),
        Outcome::Malformed,
    );
    // The header lists all ids that it can list.
    let header = random_strings::gpp_header(&[(1, 1_023)]);
    check_work(
        "range of ids",
        &format!("gpp={header}{}", "~x".repeat(1_023)),
        Outcome::Malformed,
    );
    let ones: Vec<_> = (1..=1_023).map(|id| (id, id)).collect();
    let header = random_strings::gpp_header(&ones);
    let query = format!("gpp_sid=63&gpp={header}{}", "~x".repeat(1_023));
    check_work("single ids", &query, Outcome::Allowed);
    check_work(
        "header of ones",
        &format!("gpp=DB{}", "_".repeat(LENGTH)),
        Outcome::Malformed,
    );
    check_work(
        "header of zeros",
        &format!("gpp=DBAB{}", "A".repeat(LENGTH)),
        Outcome::Malformed,
    );
}
