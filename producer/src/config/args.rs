//! The command-line settings. Each is one field, which defines its name, type, default, help and, if it can change at
//! runtime, reload group.
//!
//! A change of any other setting requires a restart: consumers identify a producer by its addresses and its id, and the
//! sizes of the log are fixed at startup.

use std::{
    net::{AddrParseError, IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

use clap::Parser;
use ipnet::IpNet;
use proto::{
    ids,
    limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN},
};
use runtime::{
    listen::Proxies,
    settings::{
        CommonArgs, ConfigErrors, RELOADED, TIME_MAX, address, count, optional, size, time,
    },
};

use super::{api::ApiArgs, archive::ArchiveArgs, dsps::DspsArgs};
use crate::{
    contracts::redirect,
    edge::{
        browser_cookies::{self, AGE_MAX, BrowserCookies},
        mint::UidMode,
    },
    epoch_history::DEFAULT_DIR,
    security::SecurityArgs,
};

/// Range of connection limits; the maximum is far beyond the capacity of one machine.
const CONNECTIONS: RangeInclusive<usize> = 1..=1_000_000;

const EXAMPLES: &str = "\
Examples:
  Retain 4 GiB for disconnected consumers, and require a token from them:
    producer --grpc 0.0.0.0:7676 --log-bytes 4GiB --token-file /etc/cookiesync/tokens

  Write the settings to a file, and validate the file after a change:
    producer --log-bytes 4GiB --print-config > producer.toml
    producer --config producer.toml --check-config

  Validate a contracts file, and print the effective contracts:
    producer contracts check contracts.toml";

/// Accepts sync requests over HTTP and streams their cookies (matches of a user id and a buyer uid) to every exchange node
#[derive(Debug, Clone, Parser)]
#[command(name = "producer", after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub(super) network: Network,
    #[command(flatten)]
    pub(super) retention: Retention,
    #[command(flatten)]
    pub(super) limits: ResourceLimits,
    #[command(flatten)]
    pub(super) dsps: DspsArgs,
    #[command(flatten)]
    pub(super) security: SecurityArgs,
    #[command(flatten)]
    pub(super) api: ApiArgs,
    #[command(flatten)]
    pub(super) archive: ArchiveArgs,
    #[command(flatten)]
    pub(super) shutdown: Shutdown,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

/// Addresses and identity.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Network and identity")]
pub struct Network {
    /// Address for sync requests (HTTP/1.1)
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080", value_parser = address)]
    pub http: SocketAddr,

    /// Addresses or networks, such as 10.0.0.0/8, of load balancers that send a PROXY header (version 2) on each HTTP connection
    ///
    /// --http-connections-per-address and the limit on opt-outs then apply to the client address in the header. A connection from
    /// one of these addresses is closed if it sends no header. A header from any other address is rejected as an invalid request.
    #[arg(long, value_name = "NETWORK", value_delimiter = ',', value_parser = parse_network)]
    pub proxy_protocol_from: Vec<std::option::Option<IpNet>>,

    /// Response to a browser without the HTTP cookie `uid`: `require` (an error), `mint` (a new `uid`, and a redirect that
    /// repeats the request) or `mint-partitioned` (like `mint`, with the cookie attribute Partitioned)
    ///
    /// A match is recorded only if the browser then returns the HTTP cookie. With `mint-partitioned`, an opt-out holds only on websites
    /// that show the opt-out page in a frame.
    #[arg(
        long,
        value_name = "MODE",
        value_enum,
        default_value = "require",
        hide_possible_values = true
    )]
    pub uid: UidMode,

    #[command(flatten)]
    pub(super) cookies: CookieArgs,

    /// Address for subscribers (gRPC). If it is not a loopback address, set --token-file, --tls-client-ca or --grpc-insecure
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7676", value_parser = address)]
    pub grpc: SocketAddr,

    /// Address for the status page, /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9090", value_parser = address)]
    pub admin: SocketAddr,

    /// Producer ID, which must be unique among all producers and stay the same across restarts [default: HOSTNAME:GRPC_PORT]
    #[arg(long, value_name = "NAME", default_value = "", value_parser = optional(|text| Ok(name(text)?)))]
    pub id: std::option::Option<String>,

    /// Directory for the epoch history (a record of earlier runs)
    ///
    /// After a restart, consumers learn from this history how many cookies they missed. The directory must be in memory (tmpfs), and the
    /// same for every run of a producer.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub state: PathBuf,
}

/// HTTP cookies of browsers.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct CookieArgs {
    /// Name of the HTTP cookie with the user id
    #[arg(long, value_name = "NAME", default_value = "uid", value_parser = browser_cookies::name)]
    uid_cookie: String,

    /// Domain of HTTP cookies that the producer sets, such as example.com: browsers then also send them to its subdomains [default: only
    /// the host of the request]
    #[arg(long, value_name = "DOMAIN", default_value = "", value_parser = optional(|text| Ok(domain(text)?)))]
    uid_cookie_domain: std::option::Option<String>,

    /// Lifetime of a new user id in a browser, up to 400d, the maximum of browsers
    #[arg(
        long,
        value_name = "TIME",
        default_value = "400d",
        value_parser = time(Duration::from_secs(1)..=AGE_MAX)
    )]
    uid_cookie_max_age: Duration,

    /// HTTP cookies with which other pages opt browsers out: matches of a browser that sends one are not recorded
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',', value_parser = optional(|text| Ok(browser_cookies::cookie(text)?)))]
    opt_out_cookie: Vec<std::option::Option<String>>,
}

impl CookieArgs {
    pub(super) fn check(self, errors: &mut ConfigErrors) -> BrowserCookies {
        let cookies = BrowserCookies::new(
            &self.uid_cookie,
            self.uid_cookie_max_age,
            self.uid_cookie_domain,
            self.opt_out_cookie.into_iter().flatten().collect(),
        );
        cookies.unwrap_or_else(|error| {
            errors.add(error);
            BrowserCookies::default()
        })
    }
}

impl Network {
    /// The load balancers that send PROXY headers.
    pub(crate) fn proxies(&self) -> Proxies {
        Proxies::new(self.proxy_protocol_from.iter().flatten().copied())
    }
}

/// Size of the log, and how long disconnected subscribers are retained.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Log and retention")]
pub struct Retention {
    /// Maximum size of the in-memory log
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "1GiB",
        value_parser = size(1 << 20..=usize::MAX)
    )]
    pub log_bytes: usize,

    /// Size at which a chunk (a block of cookies) is sealed and sent
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "64KiB",
        hide_short_help = true,
        value_parser = size(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX)
    )]
    pub chunk_bytes: usize,

    /// Age at which a chunk is sealed, tripled for chunks smaller than 2 KiB. Higher values use less CPU but add latency
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = time(ms(1)..=TIME_MAX))]
    pub chunk_age: Duration,

    /// Maximum lag of a connected subscriber, in cookies. A subscriber that lags by more loses the oldest cookies that it has not received
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "16000000",
        value_parser = count(1..=usize::MAX)
    )]
    pub queue_cookies: usize,

    /// Time to keep the log position of a disconnected subscriber
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "60s",
        value_parser = time(Duration::ZERO..=TIME_MAX)
    )]
    pub subscriber_retention: Duration,

    /// Maximum number of bytes to send again to a subscriber that reconnects without a cursor (the position that the subscriber recorded)
    ///
    /// They replace bytes in flight that were lost with the connection. If the subscriber's receive window is smaller than this maximum,
    /// fewer bytes are sent again.
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "34MiB",
        hide_short_help = true,
        value_parser = size(0..=usize::MAX)
    )]
    pub rewind_bytes: usize,
}

/// Limits of connections, memory and time for clients.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Resource limits")]
pub struct ResourceLimits {
    /// Maximum number of subscribers, including those disconnected for less than --subscriber-retention
    #[arg(
        long,
        group = RELOADED,
        value_name = "COUNT",
        default_value = "1024",
        hide_short_help = true,
        value_parser = count(CONNECTIONS)
    )]
    pub subscribers: usize,

    /// Maximum number of bytes in flight (handed to connections, but not yet written), which do not count toward --log-bytes
    ///
    /// When this is exceeded, stalled subscribers are disconnected first, then those with the most bytes in flight. At least 256 KiB
    /// plus 3 chunks.
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "256MiB",
        value_parser = size(0..=usize::MAX)
    )]
    pub in_flight_bytes: usize,

    /// Maximum number of HTTP connections
    #[arg(
        long,
        group = RELOADED,
        value_name = "COUNT",
        default_value = "16384",
        value_parser = count(CONNECTIONS)
    )]
    pub http_connections: usize,

    /// Maximum number of gRPC connections
    #[arg(
        long,
        group = RELOADED,
        value_name = "COUNT",
        default_value = "2048",
        value_parser = count(CONNECTIONS)
    )]
    pub grpc_connections: usize,

    /// Maximum number of HTTP connections per client address [default: --http-connections]
    ///
    /// IPv6 clients are counted per /64. Behind a load balancer that sends no PROXY headers, all clients share one address.
    #[arg(
        long,
        group = RELOADED,
        value_name = "COUNT",
        default_value = "",
        hide_short_help = true,
        value_parser = optional(count(CONNECTIONS))
    )]
    pub http_connections_per_address: std::option::Option<usize>,

    /// Maximum number of gRPC connections per client address [default: half of --grpc-connections]
    ///
    /// IPv6 clients are counted per /64.
    #[arg(
        long,
        group = RELOADED,
        value_name = "COUNT",
        default_value = "",
        hide_short_help = true,
        value_parser = optional(count(CONNECTIONS))
    )]
    pub grpc_connections_per_address: std::option::Option<usize>,

    /// Time limit for an HTTP client to send the headers of a request, or to read a response
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "10s",
        hide_short_help = true,
        value_parser = time(ms(10)..=TIME_MAX)
    )]
    pub request_timeout: Duration,

    /// Idle timeout of HTTP connections. While more than 80% of --http-connections are in use, only 1/16 of this time is allowed
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "75s",
        value_parser = time(ms(10)..=TIME_MAX)
    )]
    pub idle_timeout: Duration,
}

/// Time limits of the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Shutdown")]
pub struct Shutdown {
    /// Time to keep accepting requests after a shutdown signal
    ///
    /// During this time, `/readyz` returns 503, and each connection is closed after its response. The delay must exceed the load
    /// balancer's reaction time.
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "0s",
        value_parser = time(Duration::ZERO..=TIME_MAX)
    )]
    pub drain_delay: Duration,

    /// Maximum time to drain (finish requests and send the rest of the log), counted from the end of --drain-delay
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "10s",
        value_parser = time(Duration::ZERO..=TIME_MAX)
    )]
    pub drain_timeout: Duration,
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn name(text: &str) -> Result<String, String> {
    let error =
        "must have at most 256 bytes of printable characters, without a space at either end";
    let checked = ids::check_name(text);
    checked
        .map(|()| text.to_owned())
        .map_err(|_| error.to_owned())
}

fn domain(text: &str) -> Result<String, String> {
    redirect::check_host(text).map(|()| text.to_owned())
}

fn parse_network(text: &str) -> Result<Option<IpNet>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let network = text
        .parse()
        .or_else(|_| Ok(IpNet::from(text.parse::<IpAddr>()?)));
    network.map(Some).map_err(|_: AddrParseError| {
        format!("{text:?} is neither an address nor a network, such as 10.0.0.0/8")
    })
}
