//! What outlives a process: limits and the states of their keys as bytes.
//!
//! The form is integers alone, each in groups of seven bits, the lowest first; the high bit of a byte says that another follows.
//! It has no version of its own: a file that holds it also holds [`VERSION`] and a checksum. What is read is checked
//! all the same, so that bytes of another origin are [`Damaged`] and never a panic.

use std::time::Duration;

use crate::{
    algorithm::{Algorithm, Aligned, WhenFull},
    decision::Limit,
    rate::Rate,
};

/// Of the form. One that is changed has another.
pub const VERSION: u32 = 2;

/// What was read is nothing that was written here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bytes hold no limit and no state of one")]
pub struct Damaged;

/// Why a state was not restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// It is none of the limit that it is said to be of.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// There is no room for the key.
    #[error("all keys are in use that there is room for")]
    NoRoom,
}

/// Appends numbers.
#[derive(Debug)]
pub(crate) struct Writer<'a>(pub(crate) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(crate) fn number(&mut self, number: impl Into<u128>) -> &mut Self {
        let mut rest = number.into();
        loop {
            let low = u8::try_from(rest & 0x7f).expect("seven bits");
            rest >>= 7;
            if rest == 0 {
                self.0.push(low);
                return self;
            }
            self.0.push(low | 0x80);
        }
    }

    /// None is 0, and every number one more than it is.
    pub(crate) fn optional(&mut self, number: Option<u64>) -> &mut Self {
        self.number(number.map_or(0, |number| u128::from(number) + 1))
    }
}

/// Takes numbers off.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn wide(&mut self) -> Result<u128, Damaged> {
        let mut number = 0_u128;
        for shift in (0..128).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(Damaged)?;
            self.0 = rest;
            let bits = u128::from(byte & 0x7f);
            if shift == 126 && bits > 3 {
                return Err(Damaged);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Damaged)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Damaged> {
        u64::try_from(self.wide()?).map_err(|_| Damaged)
    }

    pub(crate) fn up_to(&mut self, most: u64) -> Result<u64, Damaged> {
        let number = self.number()?;
        if number <= most {
            Ok(number)
        } else {
            Err(Damaged)
        }
    }

    pub(crate) fn optional(&mut self) -> Result<Option<u64>, Damaged> {
        match self.wide()?.checked_sub(1) {
            None => Ok(None),
            Some(number) => u64::try_from(number).map(Some).map_err(|_| Damaged),
        }
    }

    pub(crate) fn end(self) -> Result<(), Damaged> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Damaged)
        }
    }
}

fn write_rate(out: &mut Writer<'_>, rate: Rate) {
    let (requests, nanos) = rate.written();
    out.number(requests).number(nanos);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a checked time")
}

impl Limit {
    /// Appends it to `bytes`.
    ///
    /// # Panics
    /// When its numbers were not checked.
    pub fn save(&self, bytes: &mut Vec<u8>) {
        let mut out = Writer(bytes);
        let out = &mut out;
        match self.algorithm {
            Algorithm::TokenBucket { rate, burst } => {
                write_rate(out.number(0_u8), rate);
                out.number(burst);
            }
            Algorithm::SteppedBucket { rate, burst } => {
                write_rate(out.number(1_u8), rate);
                out.number(burst);
            }
            Algorithm::LeakyBucket {
                rate,
                capacity,
                when_full,
            } => {
                write_rate(out.number(2_u8), rate);
                out.number(capacity).number(when_full == WhenFull::Drop);
            }
            Algorithm::Spacing { rate } => write_rate(out.number(3_u8), rate),
            Algorithm::FixedWindow {
                limit,
                window,
                aligned,
            } => {
                out.number(4_u8).number(limit).number(nanos(window));
                out.number(aligned == Aligned::FirstCall);
            }
            Algorithm::SlidingLog { limit, window } => {
                out.number(5_u8).number(limit).number(nanos(window));
            }
            Algorithm::SlidingCounter { limit, window } => {
                out.number(6_u8).number(limit).number(nanos(window));
            }
            Algorithm::StepWindow {
                limit,
                window,
                step,
            } => {
                out.number(7_u8).number(limit).number(nanos(window));
                out.number(nanos(step));
            }
            Algorithm::WarmUp { rate, warm_up } => {
                write_rate(out.number(8_u8), rate);
                out.number(nanos(warm_up));
            }
        }
        out.number(self.count_refused);
    }

    /// Reads what [`save`](Self::save) wrote, and nothing else.
    ///
    /// # Errors
    /// When it is something else.
    pub fn load(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader(bytes);
        let algorithm = read_algorithm(&mut reader)?;
        let count_refused = reader.up_to(1)? == 1;
        reader.end()?;
        Ok(Self {
            algorithm: algorithm.checked().map_err(|_| Damaged)?,
            count_refused,
        })
    }
}

fn read_algorithm(reader: &mut Reader<'_>) -> Result<Algorithm, Damaged> {
    let kind = reader.number()?;
    if matches!(kind, 0..=3 | 8) {
        let (requests, nanos) = (reader.number()?, reader.number()?);
        let rate = Rate::new(requests, Duration::from_nanos(nanos)).map_err(|_| Damaged)?;
        return Ok(match kind {
            0 => Algorithm::TokenBucket {
                rate,
                burst: reader.number()?,
            },
            1 => Algorithm::SteppedBucket {
                rate,
                burst: reader.number()?,
            },
            2 => Algorithm::LeakyBucket {
                rate,
                capacity: reader.number()?,
                when_full: [WhenFull::Queue, WhenFull::Drop][usize::from(reader.up_to(1)? == 1)],
            },
            3 => Algorithm::Spacing { rate },
            _ => Algorithm::WarmUp {
                rate,
                warm_up: Duration::from_nanos(reader.number()?),
            },
        });
    }
    let limit = reader.number()?;
    let window = Duration::from_nanos(reader.number()?);
    match kind {
        4 => Ok(Algorithm::FixedWindow {
            limit,
            window,
            aligned: [Aligned::Clock, Aligned::FirstCall][usize::from(reader.up_to(1)? == 1)],
        }),
        5 => Ok(Algorithm::SlidingLog { limit, window }),
        6 => Ok(Algorithm::SlidingCounter { limit, window }),
        7 => Ok(Algorithm::StepWindow {
            limit,
            window,
            step: Duration::from_nanos(reader.number()?),
        }),
        _ => Err(Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_what_is_cut_off_or_too_large_does_not() {
        for number in [0, 1, 127, 128, u128::from(u64::MAX), u128::MAX] {
            let mut bytes = Vec::new();
            Writer(&mut bytes).number(number);
            let mut reader = Reader(&bytes);
            assert_eq!(reader.wide(), Ok(number));
            assert_eq!(reader.end(), Ok(()));
            assert_eq!(Reader(&bytes[..bytes.len() - 1]).wide(), Err(Damaged));
        }
        assert_eq!(Reader(&[0xff; 20]).wide(), Err(Damaged));
        let too_large = [[0xff; 18].as_slice(), &[4]].concat();
        assert_eq!(Reader(&too_large).wide(), Err(Damaged));
        for number in [None, Some(0), Some(u64::MAX)] {
            let mut bytes = Vec::new();
            Writer(&mut bytes).optional(number);
            assert_eq!(Reader(&bytes).optional(), Ok(number));
        }
    }

    #[test]
    fn every_kind_of_limit_comes_back() {
        let rate = "1000/1h".parse().unwrap();
        let (limit, window) = (7, Duration::from_secs(60));
        for algorithm in [
            Algorithm::TokenBucket { rate, burst: 5 },
            Algorithm::SteppedBucket { rate, burst: 5 },
            Algorithm::LeakyBucket {
                rate,
                capacity: 3,
                when_full: WhenFull::Queue,
            },
            Algorithm::LeakyBucket {
                rate,
                capacity: 3,
                when_full: WhenFull::Drop,
            },
            Algorithm::Spacing { rate },
            Algorithm::FixedWindow {
                limit,
                window,
                aligned: Aligned::Clock,
            },
            Algorithm::FixedWindow {
                limit,
                window,
                aligned: Aligned::FirstCall,
            },
            Algorithm::SlidingLog { limit, window },
            Algorithm::SlidingCounter { limit, window },
            Algorithm::StepWindow {
                limit,
                window,
                step: window / 10,
            },
            Algorithm::WarmUp {
                rate,
                warm_up: window,
            },
        ] {
            for count_refused in [false, true] {
                let limit = Limit {
                    algorithm,
                    count_refused,
                };
                let mut bytes = Vec::new();
                limit.save(&mut bytes);
                assert_eq!(Limit::load(&bytes), Ok(limit));
                for length in 0..bytes.len() {
                    assert_eq!(Limit::load(&bytes[..length]), Err(Damaged));
                }
                bytes.push(0);
                assert_eq!(Limit::load(&bytes), Err(Damaged));
            }
        }
    }
}
