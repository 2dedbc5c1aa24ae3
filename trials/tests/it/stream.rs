//! Tests of streams: `Subscribe` and `GetCookies`, slow and abusive clients, drains, and epoch changes.

mod drain;
mod epoch_history;
pub(crate) mod flow_control;
mod get_cookies;
mod grpc_abuse;
pub(crate) mod python_client;
mod rolling_restart;
mod slow_readers;
mod subscribe;
