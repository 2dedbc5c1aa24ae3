//! `cargo demo limits`: one DSP sends twice what its limit lets through, and the limit is changed meanwhile.
//!
//! All times are parts of how long is sent, so that a short run goes through the same states as a long one.

mod contract;
mod ledger;
mod live;
mod screen;

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use self::{
    contract::{CHANGED_RATE, Contract, DSP_ID, RATE},
    live::Live,
    screen::Screen,
};
use crate::{
    args::{LimitsArgs, Places, reachable},
    running::{Prepared, Running},
};

/// What is offered, a second.
const OFFERED: u64 = 600;

/// Distinct users for each request: so many that few come again while a cookie of theirs waits.
const USERS_PER_REQUEST: u64 = 10;

/// Runs the demonstration to its end or until `stop`; the ledger is told in both cases.
///
/// # Errors
/// When a port is taken, the programs cannot be built, one of them does not do its work, or the ledger does not add up.
pub(crate) async fn run(args: &LimitsArgs, stop: &CancellationToken) -> Result<()> {
    let places = &args.places;
    let Some(prepared) = Prepared::prepare(places, true, stop).await? else {
        return Ok(());
    };
    let contract = Contract::new(&prepared.folder, args.seconds);
    contract.write(RATE)?;
    let mut running = Running::start(places, &prepared, contract.flags())?;
    let mut show = Show {
        running: &mut running,
        contract: &contract,
        screen: Screen::new(),
        began: None,
    };
    let shown = tokio::select! {
        shown = show.run(args, &prepared) => shown,
        () = stop.cancelled() => Ok(()),
    };
    show.screen.end_line();
    let began = show.began;
    shown?;
    running.stop_load().await;
    if began.is_some() {
        ledger::tell(&running, &contract).await?;
    }
    running.stop().await?;
    contract.tell_spool();
    Ok(())
}

struct Show<'a> {
    running: &'a mut Running,
    contract: &'a Contract,
    screen: Screen,
    /// When the load was started.
    began: Option<Instant>,
}

impl Show<'_> {
    /// Sends the load, changes the limit at half time, and looks on until some time after the load's end.
    async fn run(&mut self, args: &LimitsArgs, prepared: &Prepared) -> Result<()> {
        let places = &args.places;
        self.running.wait_ready(places, prepared).await?;
        self.tell_what_comes(places);
        self.start_load(args, prepared)?;
        let began = Instant::now();
        self.began = Some(began);
        let half_time = began + Duration::from_secs(args.seconds) / 2;
        let mut live = Live::new(&self.running.producer_admin, began);
        let mut is_changed = false;
        let mut ends = None;
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while ends.is_none_or(|ends| Instant::now() < ends) {
            ticks.tick().await;
            self.running.check_both()?;
            if !is_changed && Instant::now() >= half_time {
                self.contract.write(CHANGED_RATE)?;
                is_changed = true;
                let file = self.contract.file.display();
                self.screen
                    .say(&format!("now {file} says {CHANGED_RATE}/s"));
            }
            if ends.is_none() && self.load_is_over()? {
                let horizon = self.contract.horizon;
                self.screen.say(&format!(
                    "nothing more is sent: the line gets shorter, and dead letters come back, for {horizon:?}"
                ));
                ends = Some(Instant::now() + horizon);
            }
            self.look(&mut live).await?;
        }
        Ok(())
    }

    fn tell_what_comes(&self, places: &Places) {
        let contract = self.contract;
        println!(
            "DSP {DSP_ID} may send {RATE} cookies a second, says {}\nits page is http://{}/\n",
            contract.file.display(),
            reachable(places.producer_admin)
        );
        println!(
            "sending {OFFERED} a second for {:?}: what is over the limit waits, for {:?} at most, and after {:?} it is\n\
             a dead letter; at half time the file will say {CHANGED_RATE}/s; Ctrl-C ends it early, with the ledger\n",
            contract.sending, contract.horizon, contract.max_age
        );
    }

    fn start_load(&mut self, args: &LimitsArgs, prepared: &Prepared) -> Result<()> {
        let users = OFFERED * args.seconds * USERS_PER_REQUEST;
        let flags = [
            ("--rate", OFFERED.to_string()),
            ("--duration", format!("{}s", args.seconds)),
            ("--dsps", DSP_ID.to_string()),
            ("--users", users.to_string()),
            ("--repeat-changed", "1".to_owned()),
        ];
        self.running.start_load(&args.places, prepared, flags)
    }

    fn load_is_over(&mut self) -> Result<bool> {
        let Some(status) = self.running.load_ended()? else {
            return Ok(false);
        };
        if !status.success() {
            // What was accepted counts, however much of it that is.
            let text = format!("not everything was sent as planned ({status}): load.log says why");
            self.screen.say(&text);
        }
        Ok(true)
    }

    /// Shows a line, and what the producer says of the file.
    async fn look(&mut self, live: &mut Live) -> Result<()> {
        let looked = match live.look().await {
            Ok(looked) => looked,
            Err(error) => {
                self.running.check_both()?;
                self.screen.say(&format!("no figures: {error:#}"));
                return Ok(());
            }
        };
        if looked.is_refused {
            bail!("the producer refuses what its file of limits says: see its log");
        }
        if let Some(version) = looked.new_version {
            self.screen
                .say(&format!("version {version} of the limits is in force"));
        }
        if let Some(line) = looked.line {
            self.screen.show(live::HEADING, &line);
        }
        Ok(())
    }
}
