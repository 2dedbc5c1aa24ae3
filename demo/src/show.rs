//! Builds and starts the programs, shows one sync on its way through them, and then what there is to see.
//!
//! Every port is checked before anything is built or started. The processes are stopped in the direction of the data,
//! the load first and then the producer, so what was accepted is stored when the demonstration ends.

use std::{fs, num::NonZeroU64, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use launcher::{
    admin,
    producer::{Addresses, Launch},
    programs::{Process, Programs, target_dir},
};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{Args, reachable},
    live::Live,
};

const USER_ID: &str = "alice";
const DSP_ID: u32 = 17;
const BUYER_UID: &str = "buyer-17-knows-alice";

const READY_PATIENCE: Duration = Duration::from_secs(60);
const STORED_PATIENCE: Duration = Duration::from_secs(10);
const LOOKUP_INTERVAL: Duration = Duration::from_millis(10);
/// Longer than a process may take to drain.
const STOP_PATIENCE: Duration = Duration::from_secs(12);

/// As long as a load can be.
const LOAD_DURATION: &str = "30d";

const HOW_TO_MEASURE: &str = "these programs were built to be looked at; to measure: cargo build --profile dist -p producer -p consumer -p bench";

/// Says that a folder is the demonstration's, whose data may be removed.
const MARKER: &str = ".cookiesync-demo";

/// Runs the demonstration until `stop`.
///
/// # Errors
/// When a port is taken, the programs cannot be built, or one of them does not do its work.
pub(crate) async fn run(args: &Args, stop: &CancellationToken) -> Result<()> {
    args.check_ports()?;
    let with_load = args.load.is_some();
    let programs = tokio::task::spawn_blocking(move || {
        if with_load {
            Programs::find_with_bench()
        } else {
            Programs::find()
        }
    })
    .await?;
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
    args.check_ports()?;

    let mut demo = Demo::start(args, &programs, &folder)?;
    let shown = tokio::select! {
        shown = demo.show(args, &programs, &folder) => shown,
        () = stop.cancelled() => Ok(()),
    };
    shown?;
    demo.stop().await
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
    load: Option<Process>,
}

impl Demo {
    fn start(args: &Args, programs: &Programs, folder: &Path) -> Result<Self> {
        let producer = Launch {
            program: &programs.producer,
            name: "producer".to_owned(),
            addresses: Addresses {
                http: args.http.to_string(),
                grpc: args.grpc.to_string(),
                admin: args.producer_admin.to_string(),
            },
            folder,
            flags: Vec::new(),
        };
        let store = folder.join("store");
        let consumer = flags([
            ("--producer", format!("http://{}", reachable(args.grpc))),
            ("--name", "demo".to_owned()),
            ("--store", format!("embedded:{}", store.display())),
            ("--admin", args.consumer_admin.to_string()),
            (
                "--dead-letters",
                folder.join("dead-letters.jsonl").display().to_string(),
            ),
        ]);
        Ok(Self {
            producer: producer.start()?.process,
            consumer: start("consumer", &programs.consumer, &consumer, folder)?,
            load: None,
        })
    }

    /// Starts what sends `rate` requests a second.
    fn start_load(
        &mut self,
        args: &Args,
        rate: NonZeroU64,
        program: &Path,
        folder: &Path,
    ) -> Result<()> {
        let mut load = vec!["load".to_owned(), "--no-report".to_owned()];
        load.extend(flags([
            ("--url", format!("http://{}/", reachable(args.http))),
            ("--rate", rate.to_string()),
            ("--duration", LOAD_DURATION.to_owned()),
            ("--connections", "8".to_owned()),
            ("--threads", "1".to_owned()),
        ]));
        self.load = Some(start("load", program, &load, folder)?);
        Ok(())
    }

    /// Waits for both, sends one sync, shows its lookup, and then what there is to see for as long as nothing fails.
    async fn show(&mut self, args: &Args, programs: &Programs, folder: &Path) -> Result<()> {
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
        if cfg!(debug_assertions) {
            println!("{HOW_TO_MEASURE}");
        }
        if let Some((rate, bench)) = args.load.zip(programs.bench.as_ref()) {
            println!("sending {rate} requests a second; Ctrl-C stops everything\n");
            self.start_load(args, rate, bench, folder)?;
        } else {
            println!("running until Ctrl-C; `--load 20000` adds load");
        }
        let mut live = Live::new(producer_admin, consumer_admin);
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.check()?;
            if args.load.is_none() {
                continue;
            }
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

    async fn send_one(&self, args: &Args, consumer_admin: &str) -> Result<()> {
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
        self.consumer.check()?;
        self.load.as_mut().map_or(Ok(()), Process::check)
    }

    async fn stop(mut self) -> Result<()> {
        println!("\nstopping");
        if let Some(load) = &mut self.load {
            // It is no part of what is shown, so the others drain however it ends.
            if let Err(error) = load.stop(STOP_PATIENCE).await {
                eprintln!("the load: {error:#}");
            }
        }
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

/// Starts a program with its output in a file of its name.
fn start(name: &str, program: &Path, flags: &[String], folder: &Path) -> Result<Process> {
    let log = folder.join(format!("{name}.log"));
    Process::start(&format!("the {name}"), program, flags, &log)
}

fn flags<const N: usize>(flags: [(&str, String); N]) -> Vec<String> {
    flags
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
}

fn print_what_to_try(args: &Args) {
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
