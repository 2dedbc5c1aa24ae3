//! Tests of the tools of operators and developers: status pages, configuration, metrics, bench, trials, the demo and
//! the examples.

mod admin;
mod brokers;
mod cluster_tool;
mod config_reload;
mod demo;
mod documented;
pub(crate) mod e2e;
mod examples;
mod fan_out;
mod info_commands;
mod load;
mod lookup;
mod lookup_examples;
mod metrics;
pub(crate) mod metrics_page;
mod pages;
mod settings;
mod status;
