//! `cargo demo limits`: one DSP sends twice what its limit allows, and the limit is changed meanwhile.
//!
//! All times are fractions of the sending time, so that a short run passes through the same states as a long one.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use launcher::{
    admin, ledger,
    numbers::{grouped, per_second, rate},
    scrape::{Samples, names},
};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{LimitsArgs, Places, reachable},
    running::{Prepared, Running, flags},
};

/// The DSP that sends.
const DSP_ID: u32 = 1;
/// The name of its limit.
const LIMIT: &str = "dsp-1";
/// Requests a second that it sends.
const OFFERED: u64 = 600;
/// Cookies a second that it may send, at first and from half time on.
const RATES: [u64; 2] = [300, 450];
/// Distinct users for each request: so many that few repeat while a cookie of theirs waits.
const USERS_PER_REQUEST: u64 = 10;

/// Runs the demonstration to its end or until `stop`, and prints the ledger in both cases.
///
/// # Errors
/// When a port is taken, the programs cannot be built, one of them fails, or the ledger does not add up.
pub(crate) async fn run(args: &LimitsArgs, stop: &CancellationToken) -> Result<()> {
    let places = &args.places;
    let Some(prepared) = Prepared::prepare(places, true, stop).await? else {
        return Ok(());
    };
    let contract = Contract::new(&prepared.dir, args.seconds);
    contract.write(RATES[0])?;
    let mut running = Running::start(places, &prepared, contract.flags())?;
    let shown = tokio::select! {
        shown = show(&mut running, &contract, places, &prepared) => shown,
        () = stop.cancelled() => Ok(()),
    };
    shown?;
    if running.stop_load().await {
        print_ledger(&running).await?;
    }
    running.stop().await?;
    if contract.spool.exists() {
        let spool = contract.spool.display();
        println!("cookies that still waited are kept in {spool} for the next start");
    }
    Ok(())
}

/// The file of limits, and where cookies that wait at the end are kept.
struct Contract {
    file: PathBuf,
    spool: PathBuf,
    /// How long the DSP sends.
    sending: Duration,
    /// The longest wait that is planned.
    max_wait: Duration,
    /// An older cookie is a dead letter.
    max_age: Duration,
}

impl Contract {
    /// For 180 s of sending, the maximum wait is 30 s and the maximum age 60 s, as by default; for a shorter time, less.
    fn new(dir: &Path, seconds: u64) -> Self {
        let sending = Duration::from_secs(seconds);
        Self {
            file: dir.join("limits.toml"),
            spool: dir.join("limits.spool"),
            sending,
            max_wait: sending / 6,
            max_age: sending / 3,
        }
    }

    /// The flags of a producer with this contract.
    fn flags(&self) -> Vec<String> {
        flags([
            ("--limits", self.file.display().to_string()),
            ("--limits-spool", self.spool.display().to_string()),
        ])
    }

    /// Replaces the file as a whole by one with this rate.
    fn write(&self, rate: u64) -> Result<()> {
        let [max_wait, max_age] = [self.max_wait, self.max_age].map(|time| time.as_millis());
        let text = format!(
            "# Change the rate while the producer runs: a second later it is in force.\n\
             unknown = \"unlimited\"\n\n\
             [limits.{LIMIT}]\n\
             keys = [{DSP_ID}]\n\
             rules = [ {{ id = \"peak\", rate = \"{rate}/s\", burst = 5 }} ]\n\
             mode = \"shape\"\n\
             shape = {{ max_wait = \"{max_wait}ms\", max_age = \"{max_age}ms\" }}\n\
             dead_letter = {{ base = \"{max_wait}ms\" }}\n"
        );
        let new = self.file.with_extension("new");
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.file));
        written.with_context(|| format!("cannot write {}", self.file.display()))
    }
}

/// Sends the load, changes the limit at half time, and shows a line a second until one maximum wait after the load's end.
async fn show(
    running: &mut Running,
    contract: &Contract,
    places: &Places,
    prepared: &Prepared,
) -> Result<()> {
    running.wait_ready(places, prepared).await?;
    let ([first, second], sending) = (RATES, contract.sending);
    println!(
        "DSP {DSP_ID} may send {first} cookies a second by {}, and its status page is http://{}/\n\n\
         sending {OFFERED} a second for {sending:?}: cookies over the limit wait for up to {:?}, and after {:?} become dead\n\
         letters; at half time the file will say {second}/s; Ctrl-C ends it early\n",
        contract.file.display(),
        reachable(places.producer_admin),
        contract.max_wait,
        contract.max_age
    );
    let users = OFFERED * sending.as_secs() * USERS_PER_REQUEST;
    let load = [
        ("--rate", OFFERED.to_string()),
        ("--duration", format!("{}s", sending.as_secs())),
        ("--dsps", DSP_ID.to_string()),
        ("--users", users.to_string()),
        ("--repeat-changed", "1".to_owned()),
    ];
    running.start_load(places, prepared, load)?;
    let began = Instant::now();
    let (mut is_changed, mut end, mut last) = (false, None, None::<Look>);
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    println!("   time         in        out     queued     oldest       dead    requeued");
    while end.is_none_or(|end| Instant::now() < end) {
        ticks.tick().await;
        running.check_both()?;
        if !is_changed && began.elapsed() >= sending / 2 {
            contract.write(second)?;
            is_changed = true;
            println!("now {} says {second}/s", contract.file.display());
        }
        if end.is_none()
            && let Some(status) = running.load_ended()?
        {
            let max_wait = contract.max_wait;
            println!(
                "the load has ended ({status}): the queue empties and dead letters return, for {max_wait:?}"
            );
            end = Some(Instant::now() + max_wait);
        }
        let look = match Look::at(&running.producer_admin).await {
            Ok(look) => look,
            Err(error) => {
                println!("no figures: {error:#}");
                continue;
            }
        };
        if look.is_refused {
            bail!("the producer refuses its file of limits: see its log");
        }
        if let Some(last) = &last {
            if look.version != last.version {
                println!("version {} of the limits is in force", look.version);
            }
            look.print(last, began);
        }
        last = Some(look);
    }
    Ok(())
}

/// One scrape of the producer.
struct Look {
    at: Instant,
    samples: Samples,
    /// The version of the file in force.
    version: u64,
    /// Whether the file as it is now is refused.
    is_refused: bool,
}

impl Look {
    async fn at(producer: &str) -> Result<Self> {
        let samples = admin::metrics(producer).await?;
        Ok(Self {
            at: Instant::now(),
            version: samples.count(names::SHAPING_VERSION, &[]),
            is_refused: samples.count(names::SHAPING_REFUSED_VERSION, &[]) > 0,
            samples,
        })
    }

    fn print(&self, last: &Self, began: Instant) {
        let labels = [("limit", LIMIT)];
        let count = |samples: &Samples, figure| samples.count(figure, &labels);
        let seconds = (self.at - last.at).as_secs_f64();
        let rate_of = |figure| {
            let more = count(&self.samples, figure).saturating_sub(count(&last.samples, figure));
            rate(per_second(more, seconds))
        };
        let held = |figure| grouped(count(&self.samples, figure));
        println!(
            "{:>5} s {:>10} {:>10} {:>10} {:>8.1} s {:>10} {:>10}",
            (self.at - began).as_secs(),
            rate_of(names::SHAPING_ACCEPTED),
            rate_of(names::SHAPING_RELEASED),
            held(names::SHAPING_QUEUED),
            self.samples
                .sum(names::SHAPING_OLDEST, &labels)
                .unwrap_or(0.0),
            held(names::SHAPING_DEAD),
            held(names::SHAPING_REQUEUED),
        );
    }
}

/// Prints what became of every cookie, from one scrape.
async fn print_ledger(running: &Running) -> Result<()> {
    let address = &running.producer_admin;
    let (accepted, fates) = ledger::limit_outcomes(&admin::metrics(address).await?, LIMIT)?;
    println!("\nthe ledger of the limit, from one scrape of http://{address}/metrics\n");
    println!("    {:<10} {:>10}", "accepted", grouped(accepted));
    for (index, (fate, count)) in fates.iter().enumerate() {
        let sign = if index == 0 { '=' } else { '+' };
        println!("  {sign} {fate:<10} {:>10}", grouped(*count));
    }
    Ok(())
}
