//! Assets that clients send with a new job: temporary files of the process that received them.
//!
//! Only this process can send them to workers. It acquires the job's maker lease before it creates the job. Another process becomes the
//! maker only if this process ends or loses the broker connection. The new maker then cancels the job.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tempfile::TempPath;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use crate::lease::Lease;

/// Permits for the assets of 4 requests, until they are transmitted.
pub static LARGE_BODIES: Semaphore = Semaphore::const_new(4);

/// The assets of a job.
pub struct Body {
    /// The file.
    pub file: TempPath,
    /// Position of the first asset.
    pub start: u64,
    /// Whether an asset has a key other than its URL.
    pub has_keys: bool,
    /// The lease, until the maker takes it.
    pub lease: Option<Lease>,
    /// When the assets were received.
    pub at: Instant,
    /// One of [`LARGE_BODIES`].
    pub permit: SemaphorePermit<'static>,
}

/// The assets by job.
pub type Bodies = Arc<Mutex<HashMap<String, Body>>>;
