//! Streams: both calls, their readers, and what becomes of an epoch.

mod drain;
mod epoch_history;
mod get_cookies;
mod grpc_abuse;
pub(crate) mod languages;
mod rolling;
mod slow_readers;
mod subscribe;
pub(crate) mod windows;
