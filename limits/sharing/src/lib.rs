//! Limits shared by several processes, the *members* of a group, through a Redis or Valkey server.
//!
//! | mode | decisions | use |
//! |---|---|---|
//! | [`lease`] | by each member, within its share of the rate; at every instant, all shares add up to at most the limit | high rates: one request per second and member |
//! | [`exact`] | by the server, for every call | small limits and quotas |
//!
//! In lease mode, no call waits for the server. In exact mode, a call waits for up to `timeout` (50 ms by default). If the server
//! fails, the limits still hold: each member continues with a smaller share, or with none.
//!
//! [`terms`] and [`member`] do no I/O. The server runs `lease.lua`; `tests/it/model/mod.rs` is a model of this script in
//! Rust, with a proof that the shares never exceed the limit. [`dsp_limits`] checks which limits files a producer supports.
//!
//! Clocks: shares depend on the members' monotonic clocks, whose speeds may differ by 2%. Do not suspend a member's machine: if its
//! monotonic clock stops, the member may use an expired lease for up to [`ttl`](terms::Terms::ttl) after it resumes.
//!
//! # Share terms
//!
//! - *Lease*: the share that the server granted, valid for `ttl`.
//! - *Fallback share*: the share of a member whose lease was not renewed.
//! - *Guaranteed share*: 1/`members_max`, reserved for each member at all times; 0 without `members_max`.
//! - *Static share*: 1/`members_max` of a limit that cannot be leased, such as a window.

pub mod dsp_limits;
pub mod exact;
pub mod lease;
pub mod member;
pub mod messages;
mod server;
pub mod terms;

pub use server::{Address, ServerError};
