//! What a load consists of, and what each connection is to do in it.

use std::{
    net::SocketAddr,
    num::{NonZeroU64, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use http::Uri;
use tokio::net::lookup_host;

use super::{
    malformed::Malformed, profile::Profile, recorder::nanos, recording::Replay, request::Template,
    schedule::Schedule, source::Source, task::Task,
};
use crate::traffic::Traffic;

/// Requests without an answer over all connections with a schedule, and at least on each, unless told otherwise. So the sender
/// goes on beside a server that stands still for 5 s at 200,000 requests a second, and needs at most 32 MiB for it,
/// or 128 KiB for each of more than 256 connections.
const OPEN_LOOP_OUTSTANDING: usize = 1 << 20;
const OPEN_LOOP_PIPELINE_MIN: usize = 4_096;

/// What a load consists of.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where to send the requests: `http://`. Connection i goes to the i-th of them, and over again.
    pub urls: Vec<Uri>,
    /// Number of connections.
    pub connections: NonZeroUsize,
    /// Most requests without an answer on each connection. Without it: 1 without a schedule; with one,
    /// 1,048,576 over all connections or 4,096 on each, whichever is more, so that the schedule is kept beside a server that
    /// stands still.
    pub pipeline: Option<NonZeroUsize>,
    /// How long to send; without it and without `requests`, until the schedule or the replay ends, or stopped.
    pub duration: Option<Duration>,
    /// How many requests to send, over all connections.
    pub requests: Option<u64>,
    /// When requests leave, over all connections; without it, as fast as answers come.
    pub schedule: Option<Profile>,
    /// Threads to send from.
    pub threads: NonZeroUsize,
    /// Makes the cookies: connection `i` sends numbers 0, 1, … of connection `first_connection + i`.
    pub traffic: Traffic,
    /// The traffic's stream of the first connection: another for each load, and two loads of one seed send other cookies
    /// of the same users.
    pub first_connection: u64,
    /// Share of the requests, 0 to 1, that break a rule and must be refused.
    pub malformed: f64,
    /// Sends these requests instead of the traffic's.
    pub replay: Option<Replay>,
    /// Keep the fate and the time of each request, for [`Outcome::histories`](super::Outcome::histories): 32 bytes for each 10 ms
    /// on each connection.
    pub keeps_history: bool,
}

/// How many requests should leave when, over all connections.
#[derive(Debug, Clone)]
pub(super) enum Intended {
    /// As the profile has it, but no more than so many.
    Profile(Profile, u64),
    /// These times, in nanoseconds after the start.
    Times(Vec<u64>),
}

impl Intended {
    fn before(&self, nanos: u64) -> u64 {
        match self {
            Self::Profile(profile, total) => profile.requests_before(nanos).min(*total),
            Self::Times(times) => times.partition_point(|&time| time < nanos) as u64,
        }
    }

    /// Those of one second.
    pub(super) fn within(&self, second: u64) -> u64 {
        let at = |second: u64| self.before(second.saturating_mul(1_000_000_000));
        at(second + 1) - at(second)
    }
}

impl Plan {
    /// Two threads, or one on a single core: enough to outrun a producer on the same machine.
    #[must_use]
    pub fn default_threads() -> NonZeroUsize {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        NonZeroUsize::new(cores.min(2)).unwrap_or(NonZeroUsize::MIN)
    }

    /// A plan with one connection, no pipelining, no schedule and no end.
    #[must_use]
    pub fn new(url: Uri, traffic: Traffic) -> Self {
        Self {
            urls: vec![url],
            connections: NonZeroUsize::MIN,
            pipeline: None,
            duration: None,
            requests: None,
            schedule: None,
            threads: Self::default_threads(),
            traffic,
            first_connection: 0,
            malformed: 0.0,
            replay: None,
            keeps_history: true,
        }
    }

    /// The same at a constant rate, over all connections.
    #[must_use]
    pub fn rate(self, requests_per_second: NonZeroU64) -> Self {
        Self {
            schedule: Some(Profile::constant(requests_per_second)),
            ..self
        }
    }

    /// The most requests without an answer on each connection.
    #[must_use]
    pub fn pipeline_max(&self) -> usize {
        match self.pipeline {
            Some(pipeline) => pipeline.get(),
            None if self.is_scheduled() => {
                (OPEN_LOOP_OUTSTANDING / self.connections).max(OPEN_LOOP_PIPELINE_MIN)
            }
            None => 1,
        }
    }

    /// True when requests have intended times.
    #[must_use]
    pub fn is_scheduled(&self) -> bool {
        self.schedule.is_some() || self.replay_speed().is_some()
    }

    fn replay_speed(&self) -> Option<f64> {
        self.replay.as_ref().and_then(|replay| replay.speed)
    }

    /// When no further request is due; `None` when only their number, or nobody, knows.
    pub(super) fn ends_after(&self) -> Option<Duration> {
        let schedule_ends = self.schedule.as_ref().and_then(Profile::ends_after);
        [self.duration, schedule_ends].into_iter().flatten().min()
    }

    /// When the last request is due, at the latest; `None` when nobody knows, as without a schedule.
    pub(super) fn last_due(&self) -> Option<Duration> {
        let last = self.total().checked_sub(1)?;
        let nanos = match (&self.schedule, &self.replay) {
            (Some(profile), _) => profile.intended_nanos(last),
            (None, Some(replay)) => {
                let last = u32::try_from(last).ok()?;
                replay.recording.nanos(last, replay.speed?)
            }
            (None, None) => u64::MAX,
        };
        let due = (nanos < u64::MAX).then(|| Duration::from_nanos(nanos));
        [due, self.ends_after()].into_iter().flatten().min()
    }

    /// True when a number of requests ends it, and no time.
    pub(super) fn ends_by_count(&self) -> bool {
        self.ends_after().is_none() && self.total() < u64::MAX
    }

    /// How many requests to send over all connections; `u64::MAX` for no end.
    fn total(&self) -> u64 {
        let scheduled = self.schedule.as_ref().zip(self.ends_after());
        let scheduled = scheduled.map(|(profile, end)| profile.requests_before(nanos(end)));
        let recorded = self
            .replay
            .as_ref()
            .map(|replay| replay.recording.len() as u64);
        let bounds = [self.requests, scheduled, recorded];
        bounds.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// What should leave when; `None` without a schedule.
    pub(super) fn intended(&self) -> Option<Intended> {
        if let Some(profile) = &self.schedule {
            return Some(Intended::Profile(profile.clone(), self.total()));
        }
        let replay = self.replay.as_ref()?;
        let speed = replay.speed?;
        let end = self.duration.map_or(u64::MAX, nanos);
        let count = u32::try_from(self.total()).unwrap_or(u32::MAX);
        let times = (0..count).map(|line| replay.recording.nanos(line, speed));
        Some(Intended::Times(
            times.take_while(|&time| time < end).collect(),
        ))
    }

    /// The task of each connection.
    pub(super) async fn tasks(&self) -> Result<Vec<Task>> {
        ensure!(
            !self.urls.is_empty(),
            "there is nowhere to send requests to"
        );
        let mut targets = Vec::with_capacity(self.urls.len());
        for url in &self.urls {
            let template = Template::new(url)?;
            targets.push((resolve(&template).await?, Arc::new(template)));
        }
        let work = match &self.replay {
            Some(replay) => self.recorded(replay),
            None => self.made(),
        };
        let pipeline = self.pipeline_max() as u64;
        let tasks = work.into_iter().zip(targets.iter().cycle()).zip(0..);
        let tasks = tasks.map(|((work, (address, template)), index)| Task {
            connection: self.first_connection + index,
            address: *address,
            template: Arc::clone(template),
            source: work.source,
            pipeline,
            schedule: work.schedule,
            requests: work.requests,
            keeps_history: self.keeps_history,
        });
        Ok(tasks.collect())
    }

    fn made(&self) -> Vec<Work> {
        let connections = self.connections.get() as u64;
        let total = self.total();
        let malformed = Malformed::new(self.traffic.seed(), self.malformed);
        let work = |index: u64| Work {
            source: Source::Made {
                traffic: self.traffic.clone(),
                malformed,
                connection: self.first_connection + index,
            },
            schedule: self.schedule.as_ref().map(|profile| Schedule::Turns {
                profile: profile.clone(),
                connections,
                connection: index,
            }),
            requests: match total {
                u64::MAX => u64::MAX,
                total => total / connections + u64::from(index < total % connections),
            },
        };
        (0..connections).map(work).collect()
    }

    fn recorded(&self, replay: &Replay) -> Vec<Work> {
        let count = usize::try_from(self.total()).unwrap_or(usize::MAX);
        let end = self.duration.map_or(u64::MAX, nanos);
        let nanos_of = |line: u32| match (&self.schedule, replay.speed) {
            (Some(profile), _) => profile.intended_nanos(u64::from(line)),
            (None, Some(speed)) => replay.recording.nanos(line, speed),
            (None, None) => 0,
        };
        let shares = replay.recording.share_out(self.connections.get(), count);
        let work = |lines: Vec<u32>| {
            let times: Vec<u64> = lines.iter().map(|&line| nanos_of(line)).collect();
            Work {
                requests: times.partition_point(|&time| time < end) as u64,
                schedule: self.is_scheduled().then(|| Schedule::Times(times.into())),
                source: Source::Recorded {
                    recording: Arc::clone(&replay.recording),
                    lines: lines.into(),
                },
            }
        };
        shares.into_iter().map(work).collect()
    }
}

/// What differs between the tasks of connections.
struct Work {
    source: Source,
    schedule: Option<Schedule>,
    requests: u64,
}

async fn resolve(template: &Template) -> Result<SocketAddr> {
    let (host, port) = template.host_and_port();
    lookup_host((host, port))
        .await
        .with_context(|| format!("cannot resolve {host}"))?
        .next()
        .with_context(|| format!("{host} has no address"))
}
