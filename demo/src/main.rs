//! `cargo demo` runs a producer and a consumer and sends a sync request through them.
//!
//! This crate has few dependencies, because newcomers build it first. Producer, consumer and load generator are separate
//! processes.

mod args;
mod processes;
mod show;

use std::process::ExitCode;

use clap::Parser as _;
use testkit::program;

use crate::args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    program::run(|stop| async move { show::run(&args, &stop).await.map(|()| true) })
}
