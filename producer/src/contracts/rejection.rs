//! The reasons for which a sync request is rejected. Reasons name the parameters of `/sync`, even for `/setuid`, and the
//! cookie `uid`, even if it has another name.

/// What is at fault in a rejected request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The request is invalid, or must be repeated with a user id.
    Request,
    /// The contract of the DSP permits no match.
    Dsp,
    /// The contract of the DSP does not permit the buyer uid; it may only observe this.
    Uid,
    /// The privacy signals do not permit the match; the gate may only observe this.
    Privacy,
    /// The browser opted out, or keeps no user id.
    Browser,
}

macro_rules! rejections {
    ($($(#[doc = $doc:literal])+ $cause:ident $name:ident, $parameter:literal, $label:literal, $reason:literal;)+) => {
        /// Why a request is rejected.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Rejection {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Rejection {
            /// All rejections, in the order of their discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// What is at fault.
            pub const fn cause(self) -> Cause {
                match self { $(Self::$name => Cause::$cause,)+ }
            }

            /// The parameter or HTTP cookie at fault, or `signals`.
            pub const fn parameter(self) -> &'static str {
                match self { $(Self::$name => $parameter,)+ }
            }

            /// Value of the metric label.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }

            /// One-line reason for the client, which names the parameter.
            pub fn reason(self) -> &'static str {
                match self { $(Self::$name => $reason,)+ }
            }
        }
    };
}

rejections! {
    /// `d` is missing.
    Request DspMissing, "d", "d_missing", "parameter d (the DSP id) is missing\n";
    /// `d` occurs more than once.
    Request DspRepeated, "d", "d_repeated", "parameter d (the DSP id) is given more than once\n";
    /// `d` is not a decimal integer from 1 to 4294967295.
    Request DspInvalid, "d", "d_invalid", "parameter d (the DSP id) is not a decimal integer from 1 to 4294967295\n";
    /// No contract lists the DSP, and `unknown_dsps` is `refuse`, or no contract has the `bidder` of `/setuid` as its name.
    /// Checked by the edge, like all rejections by a contract.
    Dsp DspUnknown, "d", "unknown_dsp", "parameter d (the DSP id) or bidder (its name) does not name a known DSP\n";
    /// The contract of the DSP blocks it.
    Dsp DspBlocked, "d", "dsp_blocked", "parameter d (the DSP id) names a blocked DSP\n";
    /// `b` is missing.
    Request BuyerMissing, "b", "b_missing", "parameter b (the buyer uid) is missing\n";
    /// `b` occurs more than once.
    Request BuyerRepeated, "b", "b_repeated", "parameter b (the buyer uid) is given more than once\n";
    /// `b` is empty.
    Request BuyerEmpty, "b", "b_empty", "parameter b (the buyer uid) is empty\n";
    /// `b` is too long after percent-decoding.
    Request BuyerTooLong, "b", "b_too_long", "parameter b (the buyer uid) is too long\n";
    /// `b` has a percent sign without two hexadecimal digits.
    Request BuyerEncoding, "b", "b_encoding", "parameter b (the buyer uid) has a % that is not followed by two hexadecimal digits\n";
    /// `b` is not UTF-8 after percent-decoding.
    Request BuyerNotUtf8, "b", "b_not_utf8", "parameter b (the buyer uid) is not UTF-8\n";
    /// `b` contains a control character.
    Request BuyerControl, "b", "b_control", "parameter b (the buyer uid) contains a control character\n";
    /// `b` is a macro that was not replaced.
    Uid BuyerMacro, "b", "uid_macro", "parameter b (the buyer uid) is a macro that was not replaced\n";
    /// `b` stands for a missing id.
    Uid BuyerSentinel, "b", "uid_sentinel", "parameter b (the buyer uid) stands for a missing id\n";
    /// `b` is longer than the contract of the DSP permits.
    Uid BuyerTooLongForDsp, "b", "uid_too_long_for_dsp", "parameter b (the buyer uid) is longer than the contract of this DSP permits\n";
    /// `b` does not match the pattern in the contract of the DSP.
    Uid BuyerPattern, "b", "uid_pattern", "parameter b (the buyer uid) does not match the pattern in the contract of this DSP\n";
    /// The browser has opted out. Checked by the edge.
    Browser OptedOut, "signals", "opted_out", "this browser has opted out\n";
    /// The privacy signals do not permit the match. Checked by the edge.
    Privacy Privacy, "signals", "privacy", "the privacy signals of this request do not permit the match\n";
    /// The HTTP cookie with the user id is missing.
    Request UserMissing, "cookie uid", "uid_missing", "cookie uid (the user id) is missing\n";
    /// The HTTP cookie with the user id is empty.
    Request UserEmpty, "cookie uid", "uid_empty", "cookie uid (the user id) is empty\n";
    /// The HTTP cookie with the user id is too long.
    Request UserTooLong, "cookie uid", "uid_too_long", "cookie uid (the user id) is too long\n";
    /// The HTTP cookie with the user id contains a space, a comma or a character that is not printable ASCII.
    Request UserInvalid, "cookie uid", "uid_invalid", "cookie uid (the user id) contains a space, a comma or a character that is not printable ASCII\n";
    /// The browser has no user id; the response sets one, and redirects to the same request.
    Request UserMinted, "cookie uid", "uid_minted", "cookie uid (the user id) is new: follow the redirect, and send the cookie\n";
    /// The browser did not return the user id that it got.
    Browser UserNotKept, "cookie uid", "uid_not_kept", "cookie uid (the user id) is missing after the redirect that set it: the browser does not keep it\n";
    /// `f` of a request to `/setuid` is unknown.
    Request FormatInvalid, "f", "f_invalid", "parameter f (the format of the response) is neither b nor i\n";
    /// A request to `/setuid` has invalid privacy signals, or lacks the consent string that it needs.
    Request SignalsInvalid, "signals", "privacy_invalid", "parameter gdpr, gdpr_consent, gpp or gpp_sid is invalid, or GDPR applies and there is no consent string\n";
}
