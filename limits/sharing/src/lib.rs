//! One limit over many processes, by way of a Redis or Valkey server that all of them reach.
//!
//! | mode | how | for |
//! |---|---|---|
//! | [`lease`] | each process has a share of the rate and decides by itself; all shares together are at most the whole, at every instant | high rates: one call a second to the server |
//! | [`exact`] | each decision is the server's | small limits and quotas |
//!
//! In neither a process waits for the server where somebody waits for the process: shares are asked for beside the work, and a decision has a budget of
//! 50 ms. Without the server nothing opens: each goes on with a part that is its own.
//!
//! [`terms`] and [`member`] are pure. What the server keeps is in `lease.lua`; `tests/model/mod.rs` is the same in Rust, and has
//! the proof. [`dsp_limits`] says which files of limits a producer can use.
//!
//! Clocks: shares go by the monotonic clocks of processes, which may differ by 2 %. A machine that sleeps, or is stopped with all that is on it, must not go on
//! within [`ttl`](terms::Terms::ttl) as if nothing had been: monotonic clocks stand still meanwhile.

pub mod dsp_limits;
pub mod exact;
pub mod lease;
pub mod member;
pub mod messages;
mod server;
pub mod terms;

pub use server::{Address, ServerError};
