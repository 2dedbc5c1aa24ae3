//! Outcomes of the privacy check, and their metric labels.

/// What the signals of a request mean for its match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The match may be stored.
    Allowed,
    /// The request has the opt-out cookie.
    OptedOut,
    /// The header `Sec-GPC` forbids it.
    Gpc,
    /// The contract of the DSP forbids it under a law that applies.
    DspRule,
    /// The page is directed to children.
    Coppa,
    /// A signal does not follow its format.
    Malformed,
    /// GDPR applies, and the request has no consent string.
    ConsentMissing,
    /// The consent string is not of version 2.
    ConsentVersion,
    /// The user did not consent to purpose 1.
    ConsentPurpose,
    /// The user did not consent to the exchange, or the exchange has no vendor id.
    ConsentVendorHost,
    /// The user did not consent to the DSP, or the DSP has no vendor id.
    ConsentVendorDsp,
    /// The publisher forbids purpose 1 to the exchange or the DSP.
    ConsentRestricted,
    /// The exchange or the DSP was not disclosed to the user.
    ConsentUndisclosed,
    /// The user opted out under a law of the US.
    UsOptOut,
}

impl Outcome {
    /// The values of the metric label, by discriminant.
    pub const LABELS: [&'static str; 14] = [
        "allowed",
        "opted_out",
        "gpc",
        "dsp_rule",
        "coppa",
        "malformed",
        "consent_missing",
        "consent_version",
        "consent_purpose",
        "consent_vendor_host",
        "consent_vendor_dsp",
        "consent_restricted",
        "consent_undisclosed",
        "us_opt_out",
    ];
}
