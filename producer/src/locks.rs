//! The locks under the log, in one place: the `interleavings` package compiles the log's sources a second time, with
//! locks whose every turn it decides itself.

pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
