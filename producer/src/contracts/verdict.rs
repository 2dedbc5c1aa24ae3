//! Decides what happens to a match: its contract first, then the privacy signals, then the opt-out.

use proto::ids::hygiene::{self, Flaw};

use super::{
    Contract, Contracts, State,
    privacy::{self, Outcome, RefuseWhen, Signals},
    rejection::Rejection,
};

/// What happens to a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is recorded. The rejections, by its contract and by the privacy check, are only observed.
    Record([Option<Rejection>; 2]),
    /// It is refused.
    Refuse(Rejection),
}

/// A verdict, and the outcome of the privacy check, if it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// The outcome.
    pub outcome: Option<Outcome>,
}

impl Contracts {
    /// The settings that decide about the signals of a DSP's matches; `None` if neither the privacy check nor a rule of the DSP
    /// does.
    pub fn gate(&self, contract: &Contract) -> Option<&privacy::Config> {
        let has_rule = contract.refuse_when != RefuseWhen::default();
        self.privacy().or(has_rule.then_some(&self.privacy))
    }

    /// Decides about a match under a contract. Without signals, only the buyer uid counts.
    pub fn decide(
        &self,
        contract: &Contract,
        buyer_uid: &str,
        signals: Option<&Signals<'_>>,
    ) -> Decision {
        let is_observed = contract.state == State::Observe;
        let refusal = contract.refusal(buyer_uid);
        let mut outcome = None;
        let verdict = match (refusal, signals) {
            (Some(rejection), _) if !is_observed => Verdict::Refuse(rejection),
            (refusal, None) => Verdict::Record([refusal, None]),
            (refusal, Some(signals)) => {
                let gate = self.gate(contract);
                outcome = gate.map(|gate| {
                    let decide = |rule| gate.decide(signals, contract.vendor, rule);
                    match decide(&contract.refuse_when) {
                        // A rule that only observes does not replace the privacy check.
                        Outcome::DspRule if is_observed => match decide(&RefuseWhen::default()) {
                            Outcome::Allowed => Outcome::DspRule,
                            other => other,
                        },
                        outcome => outcome,
                    }
                });
                let is_refused = match outcome {
                    Some(Outcome::DspRule) => !is_observed,
                    Some(outcome) => self.privacy.refuses(outcome),
                    None => false,
                };
                let permits = outcome.is_none_or(|it| it == Outcome::Allowed);
                if is_refused {
                    Verdict::Refuse(Rejection::Privacy)
                } else if signals.opted_out {
                    Verdict::Refuse(Rejection::OptedOut)
                } else {
                    Verdict::Record([refusal, (!permits).then_some(Rejection::Privacy)])
                }
            }
        };
        Decision { verdict, outcome }
    }
}

impl Contract {
    /// Why the contract does not permit a match with this buyer uid; `None` if it does.
    fn refusal(&self, buyer_uid: &str) -> Option<Rejection> {
        match self.state {
            State::Blocked => return Some(Rejection::DspBlocked),
            State::Unknown => return Some(Rejection::DspUnknown),
            State::Allowed | State::Observe => {}
        }
        match self.flaw(buyer_uid) {
            Some(Flaw::Macro) => return Some(Rejection::BuyerMacro),
            Some(Flaw::Sentinel) => return Some(Rejection::BuyerSentinel),
            None => {}
        }
        if buyer_uid.len() > self.uid_bytes_max {
            return Some(Rejection::BuyerTooLongForDsp);
        }
        let pattern = self.uid_pattern.as_ref();
        let matches = pattern.is_none_or(|pattern| pattern.is_match(buyer_uid));
        (!matches).then_some(Rejection::BuyerPattern)
    }

    /// The rejection of a buyer uid (as sent) that could not be decoded: `BuyerMacro` if it is a macro, whose percent sign is
    /// not a valid escape.
    pub fn refusal_of_invalid(&self, rejection: Rejection, sent: &str) -> Rejection {
        let is_encoding = matches!(
            rejection,
            Rejection::BuyerEncoding | Rejection::BuyerNotUtf8
        );
        match self.flaw(sent) {
            Some(Flaw::Macro) if is_encoding && self.state == State::Allowed => {
                Rejection::BuyerMacro
            }
            _ => rejection,
        }
    }

    fn flaw(&self, buyer_uid: &str) -> Option<Flaw> {
        let flaw = hygiene::flaw(buyer_uid, &self.uid_macro);
        flaw.filter(|flaw| self.refuse.contains(flaw))
    }
}
