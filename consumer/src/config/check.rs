//! From what is written to what is meant, with all mistakes at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use jiff::tz::TimeZone;
use runtime::settings::{
    Change, Common, Mistakes, Settings, address, number, optional_number, size, time,
};

use super::{
    Args, Config, ProducerUrl, StoreConfig,
    args::{self, KeepingArgs, NightArgs, ReadingArgs, StoringArgs},
    parse::{
        parse_dsp, parse_dsp_ttl, parse_name, parse_prefix, parse_producer, parse_store,
        parse_time_zone,
    },
};
use crate::{ttl::Ttls, window::Window};

/// Room for a thousand users at least; the upper bound is far beyond any use.
const REFRESH_BYTES: (usize, usize) = (64 << 10, 1 << 40);

/// Room for many letters of the largest size at least.
const DEAD_LETTER_BYTES: (usize, usize) = (64 << 10, 1 << 40);

/// Far more than anybody trades with.
const DSPS_MAX: usize = 100_000;

/// Room for a batch of a DSP at least; the upper bound is far beyond any use.
const SET_ASIDE_BYTES: (usize, usize) = (1 << 20, 1 << 40);

/// Room for one chunk at least; the upper bound is far beyond any use.
const BUFFER_BYTES: (usize, usize) = (64 << 10, 16 << 30);

impl Settings for Args {
    type Config = Config;
    const CHANGES: &'static [(&'static str, Change)] = args::CHANGES;

    fn check(&self, m: &mut Mistakes) -> Config {
        let producers = self.reading.producers(m);
        let expected = &self.reading.producers_expected;
        let expected = optional_number(m, "--producers-expected", expected, (1, u32::MAX));
        let storing = &self.storing;
        let mongodb = &self.mongodb;
        Config {
            security: self.security.check(m, &producers),
            // Each name is looked up in its own time, and has at least one address.
            producers_expected: expected.map_or(producers.len(), |expected| expected as usize),
            producers,
            name: self.reading.name(m),
            store: storing.store(m),
            flush_interval: time(
                m,
                "--flush-interval",
                &storing.flush_interval,
                Duration::from_millis(1),
            ),
            admin: address(m, "--admin", &self.running.admin),
            batch_cookies_max: number(
                m,
                "--batch-cookies",
                &storing.batch_cookies,
                (1, 10_000_000),
            ),
            buffer_bytes_max: size(m, "--buffer-bytes", &storing.buffer_bytes, BUFFER_BYTES),
            ttls: self.keeping.ttls(m),
            refresh_interval: time(
                m,
                "--refresh-interval",
                &self.keeping.refresh_interval,
                Duration::ZERO,
            ),
            refresh_bytes_max: size(
                m,
                "--refresh-bytes",
                &self.keeping.refresh_bytes,
                REFRESH_BYTES,
            ),
            dead_letters: storing.dead_letters.clone(),
            dead_letter_bytes_max: size(
                m,
                "--dead-letter-bytes",
                &storing.dead_letter_bytes,
                DEAD_LETTER_BYTES,
            ),
            set_aside: storing.set_aside(),
            set_aside_bytes_max: size(
                m,
                "--set-aside-bytes",
                &storing.set_aside_bytes,
                SET_ASIDE_BYTES,
            ),
            dsps: dsps(m, "--dsps", &storing.dsps),
            dsps_max: number(m, "--dsps-max", &storing.dsps_max, (0, DSPS_MAX)),
            dsps_refused: storing.dsps_refused(m),
            mongodb_prefix: m.check("--mongodb-prefix", parse_prefix(&mongodb.mongodb_prefix)),
            mongodb_writers: number(m, "--mongodb-writers", &mongodb.mongodb_writers, (1, 64)),
            expiry_window: window(m, "--expiry-window", &self.night.expiry_window),
            compaction_window: window(m, "--compaction-window", &self.night.compaction_window),
            time_zone: self.night.time_zone(m),
            drain_timeout: time(
                m,
                "--drain-timeout",
                &self.running.drain_timeout,
                Duration::ZERO,
            ),
            common: self.common.check(m),
        }
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }
}

impl ReadingArgs {
    fn producers(&self, m: &mut Mistakes) -> Vec<ProducerUrl> {
        let texts = self.producer.iter();
        texts
            .filter_map(|text| m.good("--producer", parse_producer(text)))
            .collect()
    }

    fn name(&self, m: &mut Mistakes) -> String {
        let name = if self.name.is_empty() {
            gethostname::gethostname().to_string_lossy().into_owned()
        } else {
            self.name.clone()
        };
        m.check("--name", parse_name(&name))
    }
}

fn dsps(m: &mut Mistakes, flag: &'static str, given: &[String]) -> BTreeSet<u32> {
    let given = given.iter().map(|dsp| dsp.trim());
    let given = given.filter(|dsp| !dsp.is_empty());
    given
        .filter_map(|dsp| m.good(flag, parse_dsp(dsp)))
        .collect()
}

impl StoringArgs {
    fn store(&self, m: &mut Mistakes) -> StoreConfig {
        m.good("--store", parse_store(&self.store.0))
            .unwrap_or(StoreConfig::Discard)
    }

    fn dsps_refused(&self, m: &mut Mistakes) -> BTreeSet<u32> {
        let refused = dsps(m, "--dsps-refused", &self.dsps_refused);
        let listed = self
            .dsps
            .iter()
            .filter_map(|dsp| parse_dsp(dsp.trim()).ok());
        if let Some(both) = listed.into_iter().find(|dsp| refused.contains(dsp)) {
            m.add(format!("--dsps-refused: DSP {both} is in --dsps, too"));
        }
        refused
    }

    fn set_aside(&self) -> PathBuf {
        if self.set_aside.is_empty() {
            let mut folder = self.dead_letters.clone().into_os_string();
            folder.push(".aside");
            return folder.into();
        }
        PathBuf::from(&self.set_aside)
    }
}

impl KeepingArgs {
    fn ttls(&self, m: &mut Mistakes) -> Ttls {
        let shortest = Duration::from_secs(1);
        let default = time(m, "--ttl", &self.ttl, shortest);
        let mut by_dsp = BTreeMap::new();
        for text in &self.dsp_ttl {
            let Some((dsp_id, ttl)) = m.good("--dsp-ttl", parse_dsp_ttl(text)) else {
                continue;
            };
            let ttl = time(m, "--dsp-ttl", ttl, shortest);
            if by_dsp.insert(dsp_id, ttl).is_some() {
                m.good::<(), _>("--dsp-ttl", Err(format!("DSP {dsp_id} is named twice")));
            }
        }
        Ttls::new(default, by_dsp)
    }
}

impl NightArgs {
    fn time_zone(&self, m: &mut Mistakes) -> TimeZone {
        m.good("--time-zone", parse_time_zone(&self.time_zone))
            .unwrap_or(TimeZone::UTC)
    }
}

fn window(mistakes: &mut Mistakes, flag: &str, text: &str) -> Window {
    let parsed = text.parse::<Window>();
    mistakes.good(flag, parsed).unwrap_or(Window::Never)
}
