//! Tests of the parameters that a query has, in every encoding of their names and values.

use super::*;

const NAMES: [&str; 12] = [
    "d",
    "b",
    "bidder",
    "uid",
    "f",
    "cookiesync_bounce",
    "coppa",
    "gdpr",
    "gdpr_consent",
    "gpp",
    "gpp_sid",
    "us_privacy",
];

/// The values by the order of [`NAMES`], each as sent, decoded, and whether it is undecodable.
fn found(query: &str) -> Vec<Option<String>> {
    let mut scratch = Scratch::default();
    let query = Query::parse(query, &mut scratch);
    let text = |value: Value<'_>| match value.undecodable {
        None => value.text.to_owned(),
        Some(why) => format!("{why:?} {}", value.text),
    };
    let single = |single: Single<'_>| match single {
        Single::Missing => None,
        Single::Once(value) => Some(text(value)),
        Single::Repeated => Some("repeated".to_owned()),
    };
    let signals = query.signals;
    let signal = |signal: &str| Some(signal.to_owned()).filter(|it| !it.is_empty());
    vec![
        single(query.dsp_id),
        single(query.buyer_uid),
        query.bidder.map(text),
        query.uid.map(text),
        query.format.map(text),
        query.is_redirected.then(String::new),
        signal(signals.coppa),
        signal(signals.gdpr),
        signal(signals.gdpr_consent),
        signal(signals.gpp),
        signal(signals.gpp_sid),
        signal(signals.us_privacy),
    ]
}

#[track_caller]
fn check(query: &str, expected: &[(&str, &str)]) {
    let value = |name: &&str| {
        let of_name = expected.iter().find(|(of, _)| of == name);
        of_name.map(|(_, value)| (*value).to_owned())
    };
    let expected: Vec<_> = NAMES.iter().map(value).collect();
    assert_eq!(found(query), expected, "{query}");
}

/// The text with each of its bytes escaped.
fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

#[test]
fn each_name_is_found_with_and_without_escapes() {
    for name in NAMES {
        let value = if name == "cookiesync_bounce" {
            ""
        } else {
            "v+1"
        };
        check(&format!("{name}=v+1"), &[(name, value)]);
        check(&format!("x&{name}=v%2B1&"), &[(name, value)]);
        for at in 0..name.len() {
            let one = format!(
                "{}{}{}",
                &name[..at],
                escaped(&name[at..=at]),
                &name[at + 1..]
            );
            check(&format!("{one}=v+1"), &[(name, value)]);
        }
        check(
            &format!("{}={}", escaped(name), escaped("v+1")),
            &[(name, value)],
        );
        // Neither is this parameter.
        for other in [
            name.to_owned(),
            format!("{name}%3Dv"),
            format!("x{name}=v"),
            format!("{name}x=v"),
            format!("{name}%=v"),
            format!("{name}%00=v"),
            format!("{name}+=v"),
            format!("%{name}=v"),
            format!("{}=v", escaped(&escaped(name))),
            format!("x=v%26{name}=v"),
        ] {
            check(&other, &[]);
        }
    }
}

#[test]
fn repeated_parameters_keep_their_rules_in_each_encoding() {
    check("d=1&%64=2&b=&%62=", &[("d", "repeated"), ("b", "repeated")]);
    check("uid=&u%69d=2&f=i&%66=b", &[("uid", ""), ("f", "i")]);
    check("gdpr=&gdp%72=1&gdpr=0", &[("gdpr", "1")]);
    check("gpp=%zz&gpp=2", &[("gpp", "%zz")]);
}

#[test]
fn undecodable_values_keep_a_percent_sign() {
    check("b=%zz%41", &[("b", "Escape %zzA")]);
    check("b=%4", &[("b", "Escape %4")]);
    check("b=%+1", &[("b", "Escape %+1")]);
    check("b=%ff%41", &[("b", "NotUtf8 %ff%41")]);
    check("b=%ff%", &[("b", "Escape %ff%")]);
    check("b=%2525", &[("b", "%25")]);
    check("gdpr=%ff&gpp=1%", &[("gdpr", "%ff"), ("gpp", "1%")]);
}

#[test]
fn long_values_are_decoded() {
    let long = "%41".repeat(5_000);
    let decoded = "A".repeat(5_000);
    check(
        &format!("gpp={long}&b={long}&d=%31"),
        &[("gpp", &decoded), ("b", &decoded), ("d", "1")],
    );
}
