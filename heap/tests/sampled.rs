//! The sample of a process of its own.

use std::{hint::black_box, thread};

use heap::{Allocator, Usage, in_use, is_sampling, start};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const PIECE_BYTES: usize = 64 << 10;
const PIECES: usize = 4096;
const WHOLE_BYTES: u64 = (PIECE_BYTES * PIECES) as u64;

#[inline(never)]
fn keep_much() -> Vec<Vec<u8>> {
    (0..PIECES)
        .map(|_| black_box(Vec::with_capacity(PIECE_BYTES)))
        .collect()
}

#[inline(never)]
fn grow_much() -> Vec<u8> {
    let mut grown = Vec::new();
    for size in 1..=PIECES {
        grown.reserve_exact(size * PIECE_BYTES);
        black_box(&mut grown);
    }
    grown
}

fn called(usages: &[Usage], function: &str) -> u64 {
    let is_called = |usage: &&Usage| {
        let mut frames = usage.stack.iter();
        frames.any(|frame| frame.function.contains(function))
    };
    usages
        .iter()
        .filter(is_called)
        .map(|usage| usage.bytes)
        .sum()
}

/// About as much: 512 samples of it are expected, whose number deviates by 4.4 %.
#[track_caller]
fn check_whole(bytes: u64) {
    let whole = WHOLE_BYTES;
    assert!(bytes > whole * 3 / 4 && bytes < whole * 5 / 4, "{bytes}");
}

/// One test, since sampling is the whole process's and does not end.
#[test]
fn sample_tells_who_has_how_much_and_forgets_what_is_freed() {
    let before = keep_much();
    assert!(!is_sampling());
    assert_eq!(in_use(), []);
    start();
    assert!(is_sampling());
    assert_eq!(called(&in_use(), "keep_much"), 0, "it was there before");
    drop(before);

    let kept = keep_much();
    let usages = in_use();
    check_whole(called(&usages, "keep_much"));
    let largest = &usages[0];
    let named = largest.stack.iter().any(|frame| {
        frame.function.contains("keep_much") && frame.file.ends_with("sampled.rs") && frame.line > 0
    });
    assert!(named, "{largest:?}");
    let wanted = &largest.stack[0].function;
    assert!(wanted.contains("keep_much"), "{largest:?}");
    let own = |usage: &Usage| {
        usage
            .stack
            .iter()
            .any(|frame| frame.function.contains("heap::sample"))
    };
    assert!(!usages.iter().any(own), "{largest:?}");
    let objects = largest.bytes / largest.objects;
    assert!(objects.abs_diff(PIECE_BYTES as u64) < 100, "{largest:?}");

    // Freed by others than who allocated.
    let freed = thread::spawn(move || drop(kept));
    freed.join().unwrap();
    assert_eq!(called(&in_use(), "keep_much"), 0);

    let grown = grow_much();
    let bytes = called(&in_use(), "grow_much");
    assert_eq!(bytes, WHOLE_BYTES, "one that is so large is always drawn");
    drop(grown);
    assert_eq!(called(&in_use(), "grow_much"), 0);

    many_threads_allocate_and_free_what_is_not_theirs();
}

fn many_threads_allocate_and_free_what_is_not_theirs() {
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Vec<u8>>(100);
    let receiver = std::sync::Mutex::new(receiver);
    thread::scope(|scope| {
        for _ in 0..4 {
            let sender = sender.clone();
            scope.spawn(move || {
                for size in 1..5000_usize {
                    let sent = sender.send(pass_on(size * 37 % 100_000 + 1));
                    sent.expect("the others read on");
                }
            });
        }
        drop(sender);
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(mut piece) = { receiver.lock().expect("nobody panics").recv().ok() }
                {
                    piece.reserve_exact(piece.capacity() * 2);
                    black_box(piece);
                }
            });
        }
        for _ in 0..3 {
            black_box(in_use());
        }
    });
    assert_eq!(called(&in_use(), "pass_on"), 0);
}

#[inline(never)]
fn pass_on(bytes: usize) -> Vec<u8> {
    black_box(Vec::with_capacity(bytes))
}
