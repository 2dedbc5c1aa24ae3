//! `bench demo`: the real programs together on one machine, one sync on its way through them, and a live line.
//!
//! Every port is checked before anything is started. The processes are stopped in the direction of the data,
//! the producer first, so what was accepted is stored when the demonstration ends.

mod live;

use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use self::live::Live;
use crate::{
    admin, load,
    programs::{Process, Profile, Programs, target_dir},
    traffic::Traffic,
};

const USER_ID: &str = "alice";
const DSP_ID: u32 = 17;
const BUYER_UID: &str = "buyer-17-knows-alice";

const READY_PATIENCE: Duration = Duration::from_secs(60);
const STORED_PATIENCE: Duration = Duration::from_secs(10);
const LOOKUP_INTERVAL: Duration = Duration::from_millis(10);
/// Longer than a process may take to drain.
const STOP_PATIENCE: Duration = Duration::from_secs(12);

/// Says that a folder is the demonstration's, whose data may be removed.
const MARKER: &str = ".cookiesync-demo";

/// Builds and starts a producer and a consumer, and shows a sync on its way through them, until Ctrl-C.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Add a load of this many sync requests a second, and show a line about it each second.
    #[arg(long, value_name = "RATE")]
    pub load: Option<NonZeroU64>,
    /// Where the producer takes sync requests.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub http: SocketAddr,
    /// Where the producer serves gRPC streams.
    #[arg(long, default_value = "127.0.0.1:7676")]
    pub grpc: SocketAddr,
    /// The producer's admin port: metrics, health.
    #[arg(long, default_value = "127.0.0.1:9090")]
    pub producer_admin: SocketAddr,
    /// The consumer's admin port: lookup, metrics, health.
    #[arg(long, default_value = "127.0.0.1:9091")]
    pub consumer_admin: SocketAddr,
    /// Folder for the store and the logs; the previous demonstration's are removed [default: target/demo].
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

impl DemoArgs {
    fn addresses(&self) -> [(SocketAddr, &'static str, &'static str); 4] {
        [
            (self.http, "--http", "sync requests"),
            (self.grpc, "--grpc", "gRPC streams"),
            (
                self.producer_admin,
                "--producer-admin",
                "the producer's admin port",
            ),
            (
                self.consumer_admin,
                "--consumer-admin",
                "the consumer's admin port",
            ),
        ]
    }
}

/// Runs the demonstration until `stop`.
///
/// # Errors
/// When a port is taken, the programs cannot be built, or one of them does not do its work.
pub async fn run(args: &DemoArgs, stop: &CancellationToken) -> Result<()> {
    check_ports(args)?;
    let programs = tokio::task::spawn_blocking(|| Programs::find(Profile::Release)).await?;
    if stop.is_cancelled() {
        // The same Ctrl-C has ended cargo.
        return Ok(());
    }
    let programs = programs?;
    let folder = args
        .dir
        .clone()
        .unwrap_or_else(|| target_dir().join("demo"));
    prepare(&folder)?;
    // Again, since a build can take minutes.
    check_ports(args)?;

    let mut demo = Demo::start(args, &programs, &folder)?;
    let shown = tokio::select! {
        shown = demo.show(args, &folder, stop) => shown,
        () = stop.cancelled() => Ok(()),
    };
    shown?;
    demo.stop().await
}

/// Every taken port in one message, each with the flag that moves it.
fn check_ports(args: &DemoArgs) -> Result<()> {
    let addresses = args.addresses();
    let mut problems = Vec::new();
    for (index, (address, flag, what)) in addresses.iter().enumerate() {
        let twice = addresses[..index].iter().find(|other| other.0 == *address);
        if let Some((_, other, _)) = twice {
            problems.push(format!("{address} is given to both {other} and {flag}"));
            continue;
        }
        match TcpListener::bind(address) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => problems.push(format!(
                "{address}, for {what}, is taken by another process: move it with {flag} {}",
                SocketAddr::new(address.ip(), address.port().wrapping_add(10_000))
            )),
            Err(error) => problems.push(format!(
                "{address}, for {what}, cannot be used ({error}): choose another with {flag}"
            )),
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        bail!("nothing was started\n  {}", problems.join("\n  "))
    }
}

/// Makes the folder ready: empty of what an earlier demonstration left, of nothing else.
fn prepare(folder: &Path) -> Result<()> {
    let named = || format!("{}", folder.display());
    let marker = folder.join(MARKER);
    fs::create_dir_all(folder).with_context(named)?;
    let is_empty = fs::read_dir(folder).with_context(named)?.next().is_none();
    if !is_empty && !marker.exists() {
        bail!(
            "{} holds something else: name another folder with --dir",
            folder.display()
        );
    }
    fs::remove_dir_all(folder).with_context(named)?;
    fs::create_dir_all(folder).with_context(named)?;
    fs::write(&marker, "").with_context(named)
}

struct Demo {
    producer: Process,
    consumer: Process,
}

impl Demo {
    fn start(args: &DemoArgs, programs: &Programs, folder: &Path) -> Result<Self> {
        let producer = flags([
            ("--http", args.http.to_string()),
            ("--grpc", args.grpc.to_string()),
            ("--admin", args.producer_admin.to_string()),
        ]);
        let store = folder.join("store");
        let consumer = flags([
            ("--producer", format!("http://{}", reachable(args.grpc))),
            ("--name", "demo".to_owned()),
            ("--store", format!("embedded:{}", store.display())),
            ("--admin", args.consumer_admin.to_string()),
        ]);
        let log = |name: &str| folder.join(format!("{name}.log"));
        Ok(Self {
            producer: Process::start(
                "the producer",
                &programs.producer,
                &producer,
                &log("producer"),
            )?,
            consumer: Process::start(
                "the consumer",
                &programs.consumer,
                &consumer,
                &log("consumer"),
            )?,
        })
    }

    /// Waits for both, sends one sync, shows its lookup, and then what there is to see until `stop`.
    async fn show(
        &mut self,
        args: &DemoArgs,
        folder: &Path,
        stop: &CancellationToken,
    ) -> Result<()> {
        let producer_admin = reachable(args.producer_admin).to_string();
        let consumer_admin = reachable(args.consumer_admin).to_string();
        self.producer
            .wait_ready(&producer_admin, READY_PATIENCE)
            .await?;
        self.consumer
            .wait_ready(&consumer_admin, READY_PATIENCE)
            .await?;
        println!(
            "producer  {} (sync), {} (gRPC), {} (admin)\nconsumer  {} (lookup, admin), store and logs in {}\n",
            args.http,
            args.grpc,
            args.producer_admin,
            args.consumer_admin,
            folder.display()
        );
        self.send_one(args, &consumer_admin).await?;
        print_what_to_try(args);

        let load_stop = stop.child_token();
        let mut load = JoinSet::new();
        if let Some(rate) = args.load {
            let plan = load_plan(args, rate)?;
            println!("sending {rate} requests a second; Ctrl-C stops everything\n");
            load.spawn(async move { load::run(&plan, &load_stop).await });
        } else {
            println!("running until Ctrl-C; `--load 20000` adds load");
        }
        let mut live = Live::new(producer_admin, consumer_admin);
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    self.check()?;
                    if args.load.is_some() {
                        match live.line().await {
                            Ok(Some(line)) => println!("{line}"),
                            Ok(None) => {}
                            Err(error) => {
                                self.check()?;
                                eprintln!("no figures: {error:#}");
                            }
                        }
                    }
                }
                Some(ended) = load.join_next() => {
                    self.check()?;
                    ended??;
                }
            }
        }
    }

    async fn send_one(&self, args: &DemoArgs, consumer_admin: &str) -> Result<()> {
        let edge = reachable(args.http).to_string();
        println!("GET http://{edge}/?d={DSP_ID}&b={BUYER_UID}   Cookie: uid={USER_ID}");
        let answer = admin::sync(&edge, USER_ID, DSP_ID, BUYER_UID).await?;
        if answer.status != 200 {
            bail!("the edge answers {}: {}", answer.status, answer.body.trim());
        }
        let accepted_at = Instant::now();
        println!("  200");
        let path = format!("/v1/users/{USER_ID}");
        println!("GET http://{consumer_admin}{path}");
        loop {
            let answer = admin::get(consumer_admin, &path).await?;
            if answer.status == 200 && answer.body.contains(BUYER_UID) {
                println!(
                    "  200, {} ms after the edge: {}\n",
                    accepted_at.elapsed().as_millis(),
                    answer.body.trim()
                );
                return Ok(());
            }
            if accepted_at.elapsed() > STORED_PATIENCE {
                bail!(
                    "the consumer does not know the cookie after {STORED_PATIENCE:?}: it answers {} {}",
                    answer.status,
                    answer.body.trim()
                );
            }
            sleep(LOOKUP_INTERVAL).await;
        }
    }

    fn check(&mut self) -> Result<()> {
        self.producer.check()?;
        self.consumer.check()
    }

    async fn stop(mut self) -> Result<()> {
        self.check()?;
        println!("\nstopping");
        for process in [&mut self.producer, &mut self.consumer] {
            let status = process.stop(STOP_PATIENCE).await?;
            if !status.success() {
                bail!(
                    "{} ended with {status}; its last lines:\n{}",
                    process.name(),
                    process.last_lines(20)
                );
            }
        }
        Ok(())
    }
}

fn flags<const N: usize>(flags: [(&str, String); N]) -> Vec<String> {
    flags
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
}

/// Where to reach what listens on `address`: the loopback address when that is all of them.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn load_plan(args: &DemoArgs, rate: NonZeroU64) -> Result<load::Plan> {
    let url = format!("http://{}/", reachable(args.http)).parse()?;
    Ok(load::Plan {
        connections: NonZeroUsize::MIN.saturating_add(7),
        threads: NonZeroUsize::MIN,
        ..load::Plan::new(url, Traffic::new(fastrand::u64(..), None)).rate(rate)
    })
}

fn print_what_to_try(args: &DemoArgs) {
    let (edge, producer, consumer) = (
        reachable(args.http),
        reachable(args.producer_admin),
        reachable(args.consumer_admin),
    );
    println!(
        "try\n  \
         curl -i --cookie 'uid=bob' 'http://{edge}/?d=3&b=bob-at-dsp-3'\n  \
         curl 'http://{consumer}/v1/users/bob'\n  \
         curl 'http://{producer}/metrics'\n  \
         curl 'http://{consumer}/metrics'\n\
         and look at the producer at http://{producer}/ and the consumer at http://{consumer}/\n"
    );
}
