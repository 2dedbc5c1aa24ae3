//! What an allocation and its release cost: by the system's allocator, by ours without sampling, and with it.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    hint::black_box,
};

use divan::Bencher;
use heap::Allocator;

fn main() {
    divan::main();
}

#[expect(unsafe_code, reason = "the trait that is measured is unsafe")]
fn pair(allocator: &impl GlobalAlloc) {
    let layout = black_box(Layout::new::<[u8; 64]>());
    // SAFETY: the layout has a size.
    let place = unsafe { allocator.alloc(layout) };
    // SAFETY: it was just allocated with that layout.
    unsafe { allocator.dealloc(black_box(place), layout) };
}

// In the order of their names: sampling does not end once it began.

#[divan::bench]
fn a_of_the_system(bencher: Bencher<'_, '_>) {
    bencher.bench_local(|| pair(&System));
}

#[divan::bench]
fn b_without_sampling(bencher: Bencher<'_, '_>) {
    assert!(!heap::is_sampling());
    bencher.bench_local(|| pair(&Allocator));
}

#[divan::bench]
fn c_with_sampling(bencher: Bencher<'_, '_>) {
    heap::start();
    bencher.bench_local(|| pair(&Allocator));
}
