//! The limits of a limiter: followed by keeping its newest version in the file of limits.
//!
//! A request is held by the limiter until its limits change. A version that this producer can go by is written into the file of
//! `--limits`, whole, synced and in place of the one before, where it is found as any change of that file is. So a producer that
//! starts without its limiter goes by the last version it had, nothing waits for the limiter, and a version with mistakes changes nothing. Only
//! a producer that has no file yet asks at its start, and needs an answer.

mod request;

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use figures::producer::{FEED_AGE, FEED_ANSWERS};
use limits::rules::Document;
use prometheus::{IntCounterVec, proto::MetricFamily};
use runtime::{
    metrics::{Registry, family},
    reload::{self, NamedFile, Reloaded, Source as _},
    token,
};
use tokio::{task::spawn_blocking, time::sleep};
use tokio_util::sync::CancellationToken;

use self::request::Newest;
pub(crate) use self::request::Url;
use super::contract::File;

/// For how long the limiter holds an answer.
const WAIT: Duration = Duration::from_secs(25);

/// The pause between two requests; after one that failed it doubles, up to the longest.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The outcomes of a request.
const OUTCOMES: [&str; 4] = ["changed", "same", "refused", "failed"];

/// A limiter whose limits a producer follows; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Feed {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    url: Url,
    token: Option<Arc<Reloaded<token::File>>>,
    file: PathBuf,
    told: Mutex<Told>,
}

#[derive(Debug)]
struct Told {
    /// When it answered last, or this began.
    answered: Instant,
    /// Why its newest version is not in the file.
    refused: Option<String>,
    /// Why it does not answer.
    failed: Option<String>,
    counts: Option<IntCounterVec>,
}

impl Feed {
    /// Of this limiter, into this file.
    pub(crate) fn new(url: Url, token: Option<Arc<Reloaded<token::File>>>, file: PathBuf) -> Self {
        Self {
            shared: Arc::new(Shared {
                url,
                token,
                file,
                told: Mutex::new(Told {
                    answered: Instant::now(),
                    refused: None,
                    failed: None,
                    counts: None,
                }),
            }),
        }
    }

    /// Whether what is sent stays on this machine.
    pub(crate) fn stays_here(&self) -> bool {
        runtime::connect::credentials::stays_here(self.shared.url.host())
    }

    /// Sees to it that there is a file: asks for the first version if there is none. Blocks meanwhile.
    ///
    /// # Errors
    /// When there is no version that this producer can go by.
    pub(crate) fn first(&self) -> Result<(), String> {
        if self.shared.file.exists() {
            return Ok(());
        }
        let asked = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                let runtime = runtime.map_err(|error| error.to_string())?;
                runtime.block_on(self.ask(None, Duration::ZERO))
            });
            asking
                .join()
                .unwrap_or_else(|_| Err("it failed".to_owned()))
        });
        let (url, file) = (&self.shared.url, self.shared.file.display());
        let newest = asked.map_err(|why| {
            format!("{url}: {why}; and {file}, which would have its last version, is not there")
        })?;
        let newest = newest.ok_or_else(|| format!("{url}: it answered without a version"))?;
        let text = self.text(&newest).map_err(|why| format!("{url}: {why}"))?;
        write(&self.shared.file, &text).map_err(|error| format!("{file}: {error}"))
    }

    /// Follows the limiter until `stop`.
    pub(crate) async fn run(self, files: reload::Metrics, stop: CancellationToken) {
        let token = self.shared.token.clone();
        let watching = async {
            if let Some(token) = token {
                token.watch(files, stop.clone()).await;
            }
        };
        let following = stop.run_until_cancelled(self.follow());
        tokio::join!(watching, following);
    }

    async fn follow(&self) {
        let mut known = None;
        let mut pause = PAUSE;
        loop {
            let asked = self.ask(known.as_deref(), WAIT).await;
            let taken = match asked {
                Ok(None) => {
                    self.answered("same");
                    Ok(())
                }
                Ok(Some(newest)) => {
                    let etag = newest.etag.clone();
                    let taken = self.take(newest).await;
                    known = etag.filter(|_| taken.is_ok());
                    taken
                }
                Err(why) => Err(why),
            };
            pause = match taken {
                Ok(()) => PAUSE,
                Err(why) => {
                    self.failed(why);
                    (pause * 2).min(PAUSE_MAX)
                }
            };
            // Producers that lost their limiter together do not come back together.
            sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        }
    }

    async fn ask(&self, known: Option<&str>, wait: Duration) -> Result<Option<Newest>, String> {
        let token = self.shared.token.as_ref().map(|token| token.current());
        let token = token.as_deref().map(token::Tokens::first);
        self.shared.url.ask(token, known, wait).await
    }

    /// Brings a version into the file, if the producer can go by it. An error is of the file.
    async fn take(&self, newest: Newest) -> Result<(), String> {
        let this = self.clone();
        let text = spawn_blocking(move || this.text(&newest)).await;
        let text = match text.map_err(|error| error.to_string())? {
            Ok(text) => text,
            Err(why) => {
                self.answered("refused");
                let is_new = self.told().refused.replace(why.clone()) != Some(why.clone());
                if is_new {
                    tracing::warn!(
                        url = %self.shared.url,
                        why,
                        "limits of the limiter cannot be used: the ones before stay in use"
                    );
                }
                return Ok(());
            }
        };
        let file = self.shared.file.clone();
        let written = spawn_blocking(move || {
            let is_same = fs::read(&file).is_ok_and(|it| it == text.as_bytes());
            if is_same {
                return Ok(false);
            }
            write(&file, &text).map(|()| true)
        });
        let written = written.await.map_err(io::Error::other);
        let file = self.shared.file.display();
        let is_changed = written
            .and_then(|written| written)
            .map_err(|error| format!("{file}: {error}"))?;
        self.answered(if is_changed { "changed" } else { "same" });
        self.told().refused = None;
        if is_changed {
            tracing::info!(url = %self.shared.url, "limits of the limiter have changed");
        }
        Ok(())
    }

    /// A version as the file has it.
    fn text(&self, newest: &Newest) -> Result<String, String> {
        let document: Document = serde_json::from_slice(&newest.body)
            .map_err(|error| format!("what it sent is not a document of limits: {error}"))?;
        let url = self.shared.url.to_string();
        let text = format!("# Written by the producer: the newest limits of {url}.\n{document}");
        if text.len() as u64 > reload::FILE_BYTES_MAX {
            return Err("as a file it is larger than 4 MiB".to_owned());
        }
        let file = File(NamedFile {
            flag: "--limits-feed",
            path: PathBuf::from(url),
        });
        match file.build(&[text.clone().into_bytes()]) {
            Ok(_) => Ok(text),
            Err(mistakes) => Err(mistakes.join("; ")),
        }
    }

    fn answered(&self, outcome: &str) {
        let mut told = self.told();
        told.answered = Instant::now();
        told.count(outcome);
        let failed = told.failed.take();
        drop(told);
        if failed.is_some() {
            tracing::info!(url = %self.shared.url, "the limiter is followed again");
        }
    }

    fn failed(&self, why: String) {
        let mut told = self.told();
        told.count("failed");
        let is_new = told.failed.replace(why.clone()).is_none();
        drop(told);
        if is_new {
            tracing::warn!(
                url = %self.shared.url,
                why,
                "the limiter cannot be followed, trying again: its last limits stay in use"
            );
        }
    }

    /// Why the limiter's newest version is not in the file.
    pub(crate) fn refused(&self) -> Option<String> {
        self.told().refused.clone()
    }

    /// Registers what is counted of `feed`; without one there are no values.
    ///
    /// # Errors
    /// When a metric of these names is registered already.
    pub(crate) fn register(registry: &Registry, feed: Option<Self>) -> prometheus::Result<()> {
        let counts: IntCounterVec = registry.add(FEED_ANSWERS)?;
        for outcome in OUTCOMES {
            counts.with_label_values(&[outcome]);
        }
        if let Some(feed) = &feed {
            feed.told().counts = Some(counts);
        }
        registry.read([FEED_AGE], move || vec![age(feed.as_ref())])
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        let told = &self.shared.told;
        told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    fn count(&self, outcome: &str) {
        if let Some(counts) = &self.counts {
            counts.with_label_values(&[outcome]).inc();
        }
    }
}

fn age(feed: Option<&Feed>) -> MetricFamily {
    let age = feed.map(|feed| ([], feed.told().answered.elapsed().as_secs_f64()));
    family::<[&str; 0]>(FEED_AGE, age)
}

/// Puts a text in the place of the file, for this user alone; it is on the disk when this returns. Others may do the same at that moment.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{:016x}", fastrand::u64(..)));
    let unfinished = PathBuf::from(unfinished);
    let written = write_new(&unfinished, text).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        drop(fs::remove_file(&unfinished));
        return written;
    }
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
