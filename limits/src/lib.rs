//! Rate limits.

mod algorithm;
mod keys;
mod limits;
mod meter;
pub mod rate;

pub use algorithm::{Algorithm, Aligned, LOG_MAX, STEPS_MAX, WhenFull, step_of};
pub use limits::{
    DEMANDS_MAX, Decision, Demand, Limit, LimitId, Limits, RecordError, Refusal, Standing,
};
pub use meter::{Carry, TooEarly};
pub use rate::{Rate, RateError};
