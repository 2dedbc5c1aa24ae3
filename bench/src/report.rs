//! Reports of scenarios: findings, failed checks, tables of measurements, and plots.
//!
//! A scenario fills in a [`Report`], which is plain data. Only this module renders it: in a terminal, as JSON and as an HTML page.

mod data;
mod dir;
mod environment;
mod measurement;
mod numbers;
mod page;
mod plot;
mod text;
pub mod unit;

pub use self::{
    data::Report,
    dir::ReportArgs,
    environment::Environment,
    measurement::{Measurement, Number, Row, Table},
    numbers::{Micros, Percentiles, micros_per, plural},
    plot::{Plot, Series},
};

#[cfg(test)]
mod tests;
