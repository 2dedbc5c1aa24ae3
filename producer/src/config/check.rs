//! From what is written to what is meant, with all mistakes at once.

use std::time::Duration;

use proto::{
    ids,
    limits::{self, BUYER_UID_BYTES_MAX, USER_ID_BYTES_MAX},
};
use runtime::{
    listen::Limits,
    settings::{
        Change, Common, Mistakes, Settings, address, number, optional_number, size, time,
        time_within,
    },
};

use super::{
    Args, Config, Drain,
    args::{self, KeepingArgs, LimitArgs, ListeningArgs, StoppingArgs},
};
use crate::{edge::request::IdLimits, epoch_history::State, server::SEND_BUFFER_BYTES};

/// Most connections that can be asked for: far beyond what one machine has.
const CONNECTIONS: (usize, usize) = (1, 1_000_000);

impl Settings for Args {
    type Config = Config;
    const CHANGES: &'static [(&'static str, Change)] = args::CHANGES;

    fn check(&self, m: &mut Mistakes) -> Config {
        let listening = &self.listening;
        let keeping = &self.keeping;
        let granted = &self.limits;
        let config = Config {
            http: address(m, "--http", &listening.http),
            grpc: address(m, "--grpc", &listening.grpc),
            admin: address(m, "--admin", &listening.admin),
            id: listening.id(m),
            state: listening.state(),
            log_bytes_max: size(m, "--log-bytes", &keeping.log_bytes, (1 << 20, usize::MAX)),
            chunk_bytes: keeping.chunk_bytes(m),
            chunk_age: time(m, "--chunk-age", &keeping.chunk_age, ms(1)),
            queue_cookies_max: number(m, "--queue-cookies", &keeping.queue_cookies, (1, u64::MAX)),
            subscriber_retention: keeping.subscriber_retention(m),
            subscribers_max: number(m, "--subscribers", &granted.subscribers, CONNECTIONS),
            rewind_bytes: size(m, "--rewind-bytes", &keeping.rewind_bytes, (0, usize::MAX)),
            pinned_bytes_max: size(m, "--pinned-bytes", &granted.pinned_bytes, (0, usize::MAX)),
            heartbeat: keeping.heartbeat(m),
            ids: granted.ids(m),
            dsps: self.dsps.check(m),
            http_limits: granted.http(m),
            grpc_connections_max: number(
                m,
                "--grpc-connections",
                &granted.grpc_connections,
                CONNECTIONS,
            ),
            grpc_connections_per_address_max: optional_number(
                m,
                "--grpc-connections-per-address",
                &granted.grpc_connections_per_address,
                CONNECTIONS,
            ),
            security: self.security.check(m),
            drain: self.stopping.check(m),
            common: self.common.check(m),
        };
        let held_by_one = SEND_BUFFER_BYTES + 2 * config.chunk_bytes;
        if config.pinned_bytes_max < held_by_one {
            m.add(format!(
                "--pinned-bytes: less than one stalled stream may hold, {held_by_one} bytes with these chunks"
            ));
        }
        config
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

impl ListeningArgs {
    fn id(&self, m: &mut Mistakes) -> Option<String> {
        if self.id.is_empty() {
            return None;
        }
        if ids::check_name(&self.id).is_err() {
            m.add("--id: longer than 256 bytes, or with control characters");
        }
        Some(self.id.clone())
    }

    fn state(&self) -> State {
        match self.state.as_str() {
            "" => State::Default,
            "none" => State::Off,
            folder => State::Folder(folder.into()),
        }
    }
}

impl KeepingArgs {
    fn chunk_bytes(&self, m: &mut Mistakes) -> usize {
        let range = (limits::CHUNK_BYTES_MIN, limits::CHUNK_BYTES_MAX);
        size(m, "--chunk-bytes", &self.chunk_bytes, range)
    }

    fn subscriber_retention(&self, m: &mut Mistakes) -> Duration {
        let text = &self.subscriber_retention;
        time(m, "--subscriber-retention", text, Duration::ZERO)
    }

    fn heartbeat(&self, m: &mut Mistakes) -> Duration {
        let range = (ms(10), limits::HEARTBEAT_MAX);
        time_within(m, "--heartbeat", &self.heartbeat, range)
    }
}

impl LimitArgs {
    fn ids(&self, m: &mut Mistakes) -> IdLimits {
        let user_id = (1, USER_ID_BYTES_MAX);
        let buyer_uid = (1, BUYER_UID_BYTES_MAX);
        IdLimits {
            user_id_bytes_max: number(m, "--user-id-bytes", &self.user_id_bytes, user_id),
            buyer_uid_bytes_max: number(m, "--buyer-uid-bytes", &self.buyer_uid_bytes, buyer_uid),
        }
    }

    fn http(&self, m: &mut Mistakes) -> Limits {
        let connections = &self.http_connections;
        Limits {
            connections_max: number(m, "--http-connections", connections, CONNECTIONS),
            connections_per_address_max: optional_number(
                m,
                "--http-connections-per-address",
                &self.http_connections_per_address,
                CONNECTIONS,
            ),
            request_timeout: Some(time(m, "--request-timeout", &self.request_timeout, ms(10))),
            idle_timeout: time(m, "--idle-timeout", &self.idle_timeout, ms(10)),
            write_timeout: Some(time(m, "--write-timeout", &self.write_timeout, ms(10))),
        }
    }
}

impl StoppingArgs {
    fn check(&self, m: &mut Mistakes) -> Drain {
        Drain {
            delay: time(m, "--drain-delay", &self.drain_delay, Duration::ZERO),
            timeout: time(m, "--drain-timeout", &self.drain_timeout, Duration::ZERO),
        }
    }
}
