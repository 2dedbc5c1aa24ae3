//! Fuzz target of the edge's privacy check.

use std::num::NonZeroU16;

use producer::edge::privacy::{Action, Config, Outcome, Signals};

/// Checks the signals in a query. Ignoring malformed signals must not change another outcome, and a consent string must mean
/// the same inside and outside a GPP string.
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
    let signals = Signals::new(query, &[], &config);
    let outcome = config.decide(&signals, dsp);
    let tolerated = tolerant.decide(&signals, dsp);
    assert_ne!(tolerated, Outcome::Malformed);
    if outcome != Outcome::Malformed {
        assert_eq!(tolerated, outcome);
    }

    let escaped = signals.gpp.replace('~', "%7e");
    let with_escapes = Signals {
        gpp: &escaped,
        ..signals
    };
    assert_eq!(config.decide(&with_escapes, dsp), outcome);

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
        assert_eq!(config.decide(&inside, dsp), config.decide(&alone, dsp));
    }
}
