//! The system's allocator, with a sample of what is in use where that is asked for.
//!
//! A program names [`Allocator`] as its global allocator, and [`start`]s sampling when it was told to. Until then each
//! allocation costs one load of a flag beside what it did before. From then on, about one of every [`INTERVAL`] bytes that are
//! allocated is drawn, as Go does it, and the allocation that it falls into is remembered, with its stack, until it is freed.
//! So what is remembered is a fair sample of what is in use, whatever its age, and small: 0.1 % of the heap.
//!
//! Measured by `cargo bench --bench cost`: allocating 64 bytes and freeing them takes the system's allocator 7.9 ns, this one 8.1 ns
//! without sampling and 10 ns with it. A drawn allocation takes some microseconds, for its stack.
//!
//! This is the one crate here with `unsafe`, since no global allocator can be written without: it hands on what it is
//! given, unchanged, to the system's. What was allocated before sampling started is not in the sample.

mod sample;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, Ordering},
};

pub use sample::{Frame, INTERVAL, Usage, in_use};

/// Whether what is allocated is drawn from.
static SAMPLING: AtomicBool = AtomicBool::new(false);

/// Draws from what is allocated from now on, until the process ends.
pub fn start() {
    SAMPLING.store(true, Ordering::Relaxed);
}

/// Whether it does.
#[must_use]
pub fn is_sampling() -> bool {
    SAMPLING.load(Ordering::Relaxed)
}

/// The system's allocator.
#[derive(Debug, Clone, Copy, Default)]
pub struct Allocator;

#[expect(
    unsafe_code,
    reason = "there is no safe way to be the global allocator"
)]
// SAFETY: each method hands its arguments on to the system's allocator and returns what that returns. What is done beside
// looks at addresses as numbers alone, does not panic, and allocates only where it does not draw from itself.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the one that this asks for.
        let place = unsafe { System.alloc(layout) };
        if is_sampling() {
            sample::allocated(place.addr(), layout.size());
        }
        place
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the one that this asks for.
        let place = unsafe { System.alloc_zeroed(layout) };
        if is_sampling() {
            sample::allocated(place.addr(), layout.size());
        }
        place
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // Before: afterwards another thread may have it.
        if is_sampling() {
            sample::freed(place.addr());
        }
        // SAFETY: the caller's promise is the one that this asks for.
        unsafe { System.dealloc(place, layout) };
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if is_sampling() {
            sample::freed(place.addr());
        }
        // SAFETY: the caller's promise is the one that this asks for.
        let place = unsafe { System.realloc(place, layout, new_size) };
        if is_sampling() {
            sample::allocated(place.addr(), new_size);
        }
        place
    }
}
