//! Lock types of the log. The `interleavings` package compiles the sources of the log with its own lock types, which it
//! schedules.

pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
