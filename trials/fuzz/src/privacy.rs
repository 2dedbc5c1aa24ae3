//! Fuzz target of the edge's privacy check.

use std::num::NonZeroU16;

use producer::{
    contracts::privacy::{Action, Config, Outcome, RefuseWhen, Signals},
    edge::query::{Query, Scratch},
};

/// Checks the signals in a query. Ignoring malformed signals must not change another outcome. A query must mean the same if its
/// characters are escaped, and a consent string the same inside and outside a GPP string.
///
/// # Panics
/// If the property does not hold.
pub fn privacy(bytes: &[u8]) {
    let Ok(query) = std::str::from_utf8(bytes) else {
        return;
    };
    let config = Config {
        host_vendor: NonZeroU16::new(10),
        ..Config::default()
    };
    let tolerant = Config {
        malformed: Action::Ignore,
        ..config.clone()
    };
    let dsp = NonZeroU16::new(21);
    let rule = RefuseWhen::default();
    let mut scratch = Scratch::default();
    let signals = Query::parse(query, &mut scratch).signals;
    let outcome = config.decide(&signals, dsp, &rule);
    let tolerated = tolerant.decide(&signals, dsp, &rule);
    assert_ne!(tolerated, Outcome::Malformed);
    if outcome != Outcome::Malformed {
        assert_eq!(tolerated, outcome);
    }

    let escape = |at: usize, character: char| match character {
        '%' | '&' | '=' => character.to_string(),
        // Not a character of an escape.
        _ if query[..at].ends_with('%') || query[..at].chars().rev().nth(1) == Some('%') => {
            character.to_string()
        }
        _ => character
            .to_string()
            .bytes()
            .map(|byte| format!("%{byte:02x}"))
            .collect(),
    };
    let escaped: String = query
        .char_indices()
        .map(|(at, it)| escape(at, it))
        .collect();
    let mut scratch = Scratch::default();
    let escaped = Query::parse(&escaped, &mut scratch).signals;
    assert_eq!(config.decide(&escaped, dsp, &rule), outcome);

    let consent = signals.gdpr_consent;
    if !consent.is_empty() && !consent.contains(['~', '%']) {
        let alone = Signals {
            gdpr: "1",
            gdpr_consent: consent,
            ..Signals::default()
        };
        let gpp = format!("DBABMA~{consent}");
        let inside = Signals {
            gpp_sid: "2",
            gpp: &gpp,
            ..Signals::default()
        };
        assert_eq!(
            config.decide(&inside, dsp, &rule),
            config.decide(&alone, dsp, &rule)
        );
    }
}
