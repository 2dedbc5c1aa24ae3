//! The locks of the log, in one place: the `interleavings` package compiles the log's sources a second time, with locks
//! that it schedules itself.

pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
