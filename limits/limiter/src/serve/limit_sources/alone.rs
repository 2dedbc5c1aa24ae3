//! Changes of clients: one at a time, each on the disk before the next, also where a client goes away meanwhile.

use std::{future::pending, panic::resume_unwind, sync::Arc, time::Duration};

use tokio::{sync::MutexGuard, task::JoinSet, time::timeout};

use super::{super::aside::aside, LimitSources, NotChanged};

/// The change that is being made, at most one: whether it is on the disk.
pub(super) type Changing = JoinSet<Result<bool, NotChanged>>;

/// Nobody else changes a limit for as long as this is there.
#[derive(Debug)]
pub struct Alone<'a> {
    sources: &'a LimitSources,
    changing: MutexGuard<'a, Changing>,
}

impl LimitSources {
    /// Waits until the changes of others are made, and on the disk or not for too long.
    pub async fn alone(&self) -> Alone<'_> {
        let mut changing = self.shared.changing.lock().await;
        // That of a client that went away.
        while changing.join_next().await.is_some() {}
        Alone {
            sources: self,
            changing,
        }
    }
}

impl Alone<'_> {
    /// Makes a change where it holds up no call, and waits for the snapshot of the number that `make` returns; false when that is not on the disk
    /// within `within`.
    ///
    /// # Errors
    /// When it is not made, and nothing is changed.
    pub async fn change(
        &mut self,
        within: Duration,
        make: impl FnOnce(&LimitSources) -> Result<u64, NotChanged> + Send + 'static,
    ) -> Result<bool, NotChanged> {
        let sources = self.sources.clone();
        let engine = Arc::clone(&sources.shared.engine);
        self.changing.spawn(async move {
            let number = aside(move || make(&sources)).await?;
            Ok(timeout(within, engine.saved(number)).await.is_ok())
        });
        match self.changing.join_next().await {
            Some(Ok(made)) => made,
            Some(Err(error)) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime ends, and with it who waits here.
            Some(Err(_)) | None => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::ready, pin::pin};

    use limits::rules::Document;
    use runtime::metrics::Registry;

    use super::{
        super::{
            super::{
                clock::Clock,
                engine::{Counting, Engine, Options},
            },
            Begun, Change, Changes,
        },
        *,
    };

    const LONG: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn change_of_a_client_that_goes_away_is_on_the_disk_before_the_next() {
        let text = "[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]";
        let begun = Begun::of(&Document::parse(text).unwrap(), &[], false).unwrap();
        let options = Options {
            counters_max: 100,
            counters_bytes_max: usize::MAX,
            learned_max: LONG,
            is_saved: true,
            counting: Counting::Here,
        };
        let clock = Clock::start();
        let engine = Engine::new(options, &begun.plan().rules.limits, clock.now());
        let engine = Arc::new(engine);
        let changes = Changes::register(&Registry::new()).unwrap();
        let sources = LimitSources::new(begun, Arc::clone(&engine), clock.clone(), changes);
        let terms = sources.plan().origin("a").unwrap().terms;
        let change = Change {
            limit: "a",
            who: "",
        };
        let mut in_force = sources.watch();
        let mut alone = sources.alone().await;
        let put = move |sources: &LimitSources| sources.put(change, terms, |_| true);
        tokio::select! {
            made = alone.change(LONG, put) => panic!("nothing is saved: {made:?}"),
            changed = in_force.changed() => changed.unwrap(),
        }
        drop(alone);
        let mut next = pin!(sources.alone());
        tokio::select! {
            biased;
            _ = &mut next => panic!("the change before is not on the disk"),
            () = ready(()) => {}
        }
        let snapshot = engine.snapshot(false, clock.now());
        engine.is_saved(&snapshot, clock.now());
        next.await;
    }
}
