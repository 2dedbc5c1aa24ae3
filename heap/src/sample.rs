//! What was drawn and is still in use.

use std::{
    cell::Cell,
    collections::BTreeMap,
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Bytes between two drawn ones, on average: as in Go.
pub const INTERVAL: u32 = 512 << 10;

/// Most frames of a stack that are kept, from the allocation on.
const FRAMES_MAX: usize = 64;

/// Where addresses are looked for before the lock is taken. Of a heap of 1 GiB, 2,048 allocations are remembered: of those
/// that are not, one in 32 is looked for in vain.
const SLOTS: usize = 1 << 16;

/// How many remembered allocations each slot has.
static REMEMBERED: [AtomicU16; SLOTS] = [const { AtomicU16::new(0) }; SLOTS];

/// These, by address.
static IN_USE: Mutex<BTreeMap<usize, Drawn>> = Mutex::new(BTreeMap::new());

/// An allocation that was drawn.
#[derive(Debug)]
struct Drawn {
    bytes: usize,
    stack: Box<[usize]>,
}

/// What one stack has allocated and not freed, as far as can be told from the sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Usage {
    /// Who allocated; the one who was called last comes first.
    pub stack: Vec<Frame>,
    /// How many allocations.
    pub objects: u64,
    /// Of how many bytes.
    pub bytes: u64,
}

/// One call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame {
    /// The function's whole name.
    pub function: String,
    /// Its file.
    pub file: String,
    /// The line in it.
    pub line: u32,
}

thread_local! {
    /// Without anything to drop, so that it outlives all that allocates.
    static THREAD: Thread = const {
        Thread {
            bytes_left: Cell::new(0),
            random: Cell::new(0),
            is_here: Cell::new(false),
        }
    };
}

struct Thread {
    /// Until the next one is drawn.
    bytes_left: Cell<usize>,
    /// State of the generator; 0 before the first number.
    random: Cell<u64>,
    /// Whether what is allocated is allocated by this module, for itself.
    is_here: Cell<bool>,
}

impl Thread {
    /// Whether an allocation is drawn.
    fn draws(&self, bytes: usize) -> bool {
        if self.random.get() == 0 {
            // Another one for each thread.
            self.random.set(ptr::from_ref(self).addr() as u64 | 1);
            self.bytes_left.set(self.distance());
        }
        let left = self.bytes_left.get();
        if bytes < left {
            self.bytes_left.set(left - bytes);
            return false;
        }
        self.bytes_left.set(self.distance());
        true
    }

    /// Bytes to the next one, so that each byte is as likely as any other.
    #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
    #[expect(
        clippy::cast_sign_loss,
        reason = "no logarithm of at most 1 is positive"
    )]
    fn distance(&self) -> usize {
        // xorshift64*, whose high half is random enough for this.
        let mut state = self.random.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.random.set(state);
        let drawn = (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32;
        let share = (f64::from(drawn) + 1.0) / (f64::from(u32::MAX) + 1.0);
        (-share.ln() * f64::from(INTERVAL)) as usize + 1
    }

    /// Does `work`, whose allocations are not looked at; nothing when that is being done already.
    fn apart<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        if self.is_here.replace(true) {
            return None;
        }
        let _here = Here(&self.is_here);
        Some(work())
    }
}

/// Says at its end, however that comes about, that this module is left.
struct Here<'a>(&'a Cell<bool>);

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Notes what was allocated, if it is drawn.
pub(crate) fn allocated(address: usize, bytes: usize) {
    if address == 0 {
        return;
    }
    THREAD.with(|thread| {
        if !thread.is_here.get() && thread.draws(bytes) {
            thread.apart(|| remember(address, bytes));
        }
    });
}

/// Forgets what is about to be freed.
pub(crate) fn freed(address: usize) {
    let slot = &REMEMBERED[slot(address)];
    if slot.load(Ordering::Relaxed) == 0 {
        return;
    }
    let forget = || {
        if in_use_now().remove(&address).is_some() {
            slot.fetch_sub(1, Ordering::Relaxed);
        }
    };
    THREAD.with(|thread| thread.apart(forget));
}

/// A cold path: one allocation in thousands comes here.
#[inline(never)]
fn remember(address: usize, bytes: usize) {
    let mut stack = [0; FRAMES_MAX];
    let mut depth = 0;
    let note = |frame: &backtrace::Frame| {
        stack[depth] = frame.ip().addr();
        depth += 1;
        depth < FRAMES_MAX
    };
    {
        let _unprofiled = Unprofiled::begin();
        #[expect(
            unsafe_code,
            reason = "the safe one waits for anyone who looks up names, which takes long"
        )]
        // SAFETY: only on Windows may no two threads do this at once.
        unsafe {
            backtrace::trace_unsynchronized(note);
        }
    }
    let drawn = Drawn {
        bytes,
        stack: stack[..depth].into(),
    };
    let mut in_use = in_use_now();
    if in_use.insert(address, drawn).is_none() {
        REMEMBERED[slot(address)].fetch_add(1, Ordering::Relaxed);
    }
}

/// While this lives, its thread is not sampled by a profiler of the processor's time, which walks stacks from a signal: the
/// unwinder may hold a lock that such a walk would wait for, forever, on the same thread.
///
/// Neither call can fail: no system refuses these arguments.
struct Unprofiled(Option<SigSet>);

impl Unprofiled {
    fn begin() -> Self {
        let mut profiling = SigSet::empty();
        profiling.add(Signal::SIGPROF);
        Self(profiling.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok())
    }
}

impl Drop for Unprofiled {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            before.thread_set_mask().ok();
        }
    }
}

fn in_use_now() -> MutexGuard<'static, BTreeMap<usize, Drawn>> {
    IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the highest bits alone are left"
)]
fn slot(address: usize) -> usize {
    let mixed = (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> (64 - SLOTS.trailing_zeros())) as usize
}

/// What is in use, by stack, the most bytes first. Takes as long as looking up the names of all functions.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
#[expect(clippy::cast_sign_loss, reason = "a sum of sizes")]
pub fn in_use() -> Vec<Usage> {
    let stacks = THREAD.with(|thread| thread.apart(by_stack));
    // Not apart: what is looked up stays in a cache, which is part of the heap, and frees what it had before.
    let mut usages: Vec<_> = stacks
        .unwrap_or_default()
        .into_iter()
        .map(|(stack, (objects, bytes))| Usage {
            stack: named(&stack),
            objects: objects as u64,
            bytes: bytes as u64,
        })
        .collect();
    usages.sort_by_key(|usage| std::cmp::Reverse(usage.bytes));
    usages
}

/// Objects and bytes of each stack, as estimated.
type ByStack = BTreeMap<Box<[usize]>, (f64, f64)>;

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn by_stack() -> ByStack {
    let mut stacks = ByStack::new();
    for drawn in in_use_now().values() {
        // How many there are for each that is drawn.
        let weight = 1.0 / -(-(drawn.bytes as f64) / f64::from(INTERVAL)).exp_m1();
        let (objects, bytes) = stacks.entry(drawn.stack.clone()).or_default();
        *objects += weight;
        *bytes += weight * drawn.bytes as f64;
    }
    stacks
}

/// The functions of a stack from the one on that wanted memory: without those of this crate, of the allocator's interface, and
/// of boxes and vectors.
fn named(stack: &[usize]) -> Vec<Frame> {
    let mut frames = Vec::with_capacity(stack.len());
    for &address in stack {
        backtrace::resolve(ptr::without_provenance_mut(address), |symbol| {
            frames.push(Frame {
                function: symbol.name().map_or_else(
                    || format!("{address:#x}"),
                    // Without the hash at the end.
                    |name| format!("{name:#}"),
                ),
                file: symbol
                    .filename()
                    .map_or_else(String::new, |file| file.display().to_string()),
                line: symbol.lineno().unwrap_or(0),
            });
        });
    }
    let is_ours = |frame: &Frame| {
        let name = frame.function.as_str();
        name.contains("heap::") || name.contains("__rust") || name.starts_with("backtrace::")
    };
    let is_container = |frame: &&Frame| {
        let name = frame.function.trim_start_matches('<');
        name.starts_with("alloc::") || frame.file.contains("/library/alloc/src/")
    };
    let last = frames.iter().take(16).rposition(is_ours);
    let begin = last.map_or(0, |last| last + 1);
    let containers = frames[begin..].iter().take_while(is_container).count();
    frames.drain(..begin + containers);
    frames
}
