//! Benchmark of each step on the path of a cookie through the producer, without sockets and waits.
//!
//! The measured functions are in [`counted`]: `cargo bench --bench parts` measures their time, and `.ci/instructions`
//! counts their instructions. Each function processes [`ITEMS`] items per call.

use std::{
    io::Write as _,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use divan::{Bencher, counter::ItemsCount};
use producer::{
    contracts::file::File,
    edge::browser_cookies::BrowserCookies,
    inlet::Inlet,
    log::{AppendBatch, Config, Delivery, Log, Reader},
};
use proto::{
    units::{DspId, Epoch, Sequence},
    wire::{ChunkRef, CookieRef},
};
use runtime::reload::{NamedFile, Reloader};

/// Items per call of a measured function; `.ci/instructions` divides by it.
const ITEMS: usize = 10_000;

/// Chunks per reader: the number sealed in one second at a chunk age of 10 ms.
const CHUNKS: usize = 100;

/// Requests in one read of a busy connection.
const PIPELINED: usize = 32;

fn main() {
    divan::main();
}

/// The measured functions. They are neither inlined nor generic, so that each function is one symbol. Each is called only
/// by the benchmark of the same name, because `.ci/instructions` counts every call.
mod counted {
    use std::{hint::black_box, time::Instant};

    use producer::{
        edge::{
            browser_cookies::BrowserCookies,
            query::{Query, Scratch},
            request::StatedMatch,
        },
        inlet::Inlet,
        log::{AppendBatch, Delivery, Log, Reader},
    };
    use proto::wire::{self, ChunkRef, CookieRef};
    use runtime::http1::head;

    /// Parses pipelined requests into cookies.
    #[inline(never)]
    pub(super) fn request(browser_cookies: &BrowserCookies, mut input: &[u8]) {
        while !input.is_empty() {
            let mut storage = head::headers();
            let (head, headers) = head::parse(input, &mut storage)
                .expect("valid HTTP")
                .expect("a complete head");
            let mut scratch = Scratch::default();
            let user_id = browser_cookies.user_id(head::cookies(headers));
            let query = Query::parse(head.query, &mut scratch);
            let stated = StatedMatch::parse(&query).expect("valid parameters");
            black_box(stated.cookie(user_id, false).expect("a valid cookie"));
            input = &input[head.length..];
        }
    }

    /// Appends cookies to the log, `together` per lock.
    #[inline(never)]
    pub(super) fn append(
        log: &Log,
        batch: &mut AppendBatch,
        cookies: &[CookieRef<'_>],
        together: usize,
    ) {
        for read in cookies.chunks(together) {
            for cookie in read {
                if batch.is_full() {
                    log.append(batch).expect("the log is open");
                }
                batch.push(cookie);
            }
            log.append(batch).expect("the log is open");
        }
    }

    /// Like [`append`], under a limit in observe mode.
    #[inline(never)]
    pub(super) fn limited(
        inlet: &Inlet,
        batch: &mut AppendBatch,
        cookies: &[CookieRef<'_>],
        together: usize,
    ) {
        for read in cookies.chunks(together) {
            let now = Instant::now();
            for cookie in read {
                if batch.is_full() {
                    inlet.append(batch, now).expect("the log is open");
                }
                batch.push(cookie);
            }
            inlet.append(batch, now).expect("the log is open");
        }
    }

    /// Reads the same chunks with all readers, chunk by chunk.
    #[inline(never)]
    pub(super) fn read(readers: &mut [Reader], chunks: usize) {
        for _ in 0..chunks {
            for reader in &mut *readers {
                match super::take(reader) {
                    Some(Delivery::Chunk { chunk, first }) => black_box(chunk.wire_from(first)),
                    other => unreachable!("expected a chunk, not {other:?}"),
                };
            }
        }
    }

    /// Encodes chunks as `GetCookies` messages.
    #[inline(never)]
    pub(super) fn messages(chunks: &[ChunkRef]) {
        for chunk in chunks {
            black_box(wire::cookie_messages(chunk, false).expect("a valid chunk"));
        }
    }
}

/// The next delivery, if it is available immediately.
#[inline]
fn take(reader: &mut Reader) -> Option<Delivery> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(reader.next()).poll(&mut context) {
        Poll::Ready(delivery) => Some(delivery),
        Poll::Pending => None,
    }
}

/// Request headers besides the Cookie header.
#[derive(Debug, Clone, Copy)]
enum Headers {
    /// No further headers, like `bench load`.
    Bare,
    /// Headers of a browser that follows a redirect.
    Browser,
}

impl Headers {
    fn text(self) -> &'static str {
        match self {
            Self::Bare => "",
            Self::Browser => concat!(
                "Connection: keep-alive\r\n",
                "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) ",
                "Chrome/130.0.0.0 Safari/537.36\r\n",
                "Accept: image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8\r\n",
                "Sec-Fetch-Site: cross-site\r\n",
                "Sec-Fetch-Mode: no-cors\r\n",
                "Sec-Fetch-Dest: image\r\n",
                "Referer: https://news.example.org/\r\n",
                "Accept-Encoding: gzip, deflate, br, zstd\r\n",
                "Accept-Language: en-US,en;q=0.9\r\n",
            ),
        }
    }
}

/// A realistic cookie: a user id of 20 digits, one of 20 DSPs, and a buyer uid of 16 to 36 characters.
struct SampleCookie(String, u32, String);

impl SampleCookie {
    /// [`ITEMS`] cookies, the same in each run.
    fn many() -> Vec<Self> {
        let mut random = fastrand::Rng::with_seed(1);
        let mut one = || {
            let user_id = (0..20).map(|_| random.digit(16)).collect();
            let dsp_id = random.u32(1..=20);
            let length = random.usize(16..=36);
            let buyer_uid = (0..length).map(|_| random.alphanumeric()).collect();
            Self(user_id, dsp_id, buyer_uid)
        };
        (0..ITEMS).map(|_| one()).collect()
    }

    fn cookie(&self) -> CookieRef<'_> {
        CookieRef {
            user_id: &self.0,
            dsp_id: DspId(self.1),
            buyer_uid: &self.2,
            age_micros: 0,
        }
    }

    fn request(&self, headers: Headers) -> String {
        let (Self(user_id, dsp_id, buyer_uid), headers) = (self, headers.text());
        format!(
            "GET /?d={dsp_id}&b={buyer_uid} HTTP/1.1\r\nHost: sync.example.com\r\n{headers}Cookie: uid={user_id}\r\n\r\n"
        )
    }
}

/// A log that seals by size only, because its timers do not run.
fn log(chunk_bytes: usize, bytes_max: usize) -> Log {
    Log::new(Config {
        epoch: Epoch(1),
        bytes_max,
        chunk_bytes,
        chunk_age: Duration::from_millis(10),
        idle_after: Duration::from_secs(5),
    })
}

/// Like [`counted::append`], but outside of the measurement.
fn fill(log: &Log, cookies: &[CookieRef<'_>]) {
    let mut batch = AppendBatch::default();
    for cookie in cookies {
        batch.push(cookie);
        if batch.is_full() {
            log.append(&mut batch).expect("the log is open");
        }
    }
    log.append(&mut batch).expect("the log is open");
}

/// A log with `CHUNKS` chunks, and its oldest sequence number.
fn full_log() -> (Log, Sequence) {
    let log = log(proto::limits::CHUNK_BYTES_MIN, usize::MAX);
    let synced = SampleCookie::many();
    let cookies: Vec<_> = synced.iter().map(SampleCookie::cookie).collect();
    while log.stats().chunks < CHUNKS {
        fill(&log, &cookies);
    }
    let first = log.span().oldest;
    (log, first)
}

#[divan::bench(args = [Headers::Bare, Headers::Browser])]
fn request(bencher: Bencher<'_, '_>, headers: Headers) {
    let requests = SampleCookie::many()
        .iter()
        .map(|synced| synced.request(headers))
        .collect::<String>();
    let browser_cookies = BrowserCookies::default();
    bencher
        .counter(ItemsCount::new(ITEMS))
        .bench_local(|| counted::request(&browser_cookies, requests.as_bytes()));
}

/// `together` is the number of requests per read of a connection. The ring is full, so chunks are evicted.
#[divan::bench(args = [1, PIPELINED])]
fn append(bencher: Bencher<'_, '_>, together: usize) {
    let log = log(proto::limits::CHUNK_BYTES_DEFAULT, 1 << 20);
    let synced = SampleCookie::many();
    let cookies: Vec<_> = synced.iter().map(SampleCookie::cookie).collect();
    fill(&log, &cookies);
    fill(&log, &cookies);
    let mut batch = AppendBatch::default();
    bencher
        .counter(ItemsCount::new(ITEMS))
        .bench_local(|| counted::append(&log, &mut batch, &cookies, together));
}

/// Like [`append`], with one rule in observe mode.
#[divan::bench(args = [1, PIPELINED])]
fn limited(bencher: Bencher<'_, '_>, together: usize) {
    const LIMITS: &str = r#"
        unknown = "all"
        [limits.all]
        rules = [ { id = "peak", rate = "1000000/s", burst = 1000000 } ]
    "#;
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(LIMITS.as_bytes())
        .expect("the file is written");
    let path = file.path().display().to_string();
    let named = NamedFile::from_flag("--contracts", &path).expect("a path");
    let limits = Reloader::load(File::new(named)).expect("valid limits");
    let log = log(proto::limits::CHUNK_BYTES_DEFAULT, 1 << 20);
    let synced = SampleCookie::many();
    let cookies: Vec<_> = synced.iter().map(SampleCookie::cookie).collect();
    fill(&log, &cookies);
    fill(&log, &cookies);
    let inlet = Inlet::start("", Some(Arc::new(limits)), None, log).expect("no spool");
    let mut batch = AppendBatch::default();
    bencher
        .counter(ItemsCount::new(ITEMS))
        .bench_local(|| counted::limited(&inlet, &mut batch, &cookies, together));
}

/// An item is a chunk delivered to a reader. All `readers` read each chunk, one after the other.
#[divan::bench(args = [1, 100])]
fn read(bencher: Bencher<'_, '_>, readers: usize) {
    let (log, first) = full_log();
    bencher
        .counter(ItemsCount::new(ITEMS))
        .with_inputs(|| -> Vec<Reader> {
            (0..ITEMS / CHUNKS)
                .map(|_| log.reader(first, u64::MAX, Sequence(0)))
                .collect()
        })
        .bench_local_refs(|all| {
            for group in all.chunks_mut(readers) {
                counted::read(group, CHUNKS);
            }
        });
}

#[divan::bench]
fn messages(bencher: Bencher<'_, '_>) {
    let log = log(proto::limits::CHUNK_BYTES_DEFAULT, usize::MAX);
    let synced = SampleCookie::many();
    let cookies: Vec<_> = synced.iter().map(SampleCookie::cookie).collect();
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    fill(&log, &cookies);
    log.close();
    let mut chunks: Vec<ChunkRef> = Vec::new();
    while let Some(Delivery::Chunk { chunk, first }) = take(&mut reader) {
        chunks.push(chunk.cookies_from(first));
    }
    bencher
        .counter(ItemsCount::new(ITEMS))
        .bench_local(|| counted::messages(&chunks));
}
