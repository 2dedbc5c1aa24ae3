//! What the runs measured, and the tables of it.

use launcher::numbers::{grouped, per_second, rate};
use serde::Serialize;

use crate::peer::Peer;

/// Everything.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// In the order in which they ran.
    pub(crate) steps: Vec<Step>,
    /// What is wrong; empty when all is well.
    pub(crate) faults: Vec<String>,
}

/// What one run measured.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Step {
    pub(crate) peer: Peer,
    pub(crate) subscribers: usize,
    /// Cookies a message that is published; ours makes chunks of all that are more than one.
    pub(crate) batch: u32,
    /// Cookies published.
    pub(crate) published: u64,
    /// Cookies that were not taken.
    pub(crate) refused: u64,
    pub(crate) publish_seconds: f64,
    /// Distinct cookies that reached a subscriber, over all subscribers but the stopped one.
    pub(crate) delivered: u64,
    /// Until the last delivery, and at least as long as publishing took.
    pub(crate) deliver_seconds: f64,
    /// Cookies published, for each subscriber, that did not reach it.
    pub(crate) lost: u64,
    /// As many of those as subscribers were told of, or our producer counted where the call does not tell.
    pub(crate) told_lost: u64,
    /// Deliveries beyond what was published.
    pub(crate) surplus: u64,
    /// Cookies that came again, where sequences tell it.
    pub(crate) repeated: u64,
    /// Messages that could not be read.
    pub(crate) unreadable: u64,
    /// Connections of subscribers that ended.
    pub(crate) disconnects: u64,
    pub(crate) server_cpu_seconds: f64,
    pub(crate) server_peak_bytes: u64,
    /// What became of the subscriber that was stopped, if one was.
    pub(crate) stopped: Option<Stopped>,
}

/// What became of a subscriber that was stopped for a time.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Stopped {
    pub(crate) seconds: f64,
    /// Cookies that did not reach it.
    pub(crate) lost: u64,
    /// As many of those as it was told of.
    pub(crate) told_lost: u64,
    pub(crate) disconnects: u64,
    /// Memory of the server as it was stopped.
    pub(crate) memory_before_bytes: u64,
}

impl Report {
    /// Adds a run and what is wrong with it.
    pub(crate) fn add(&mut self, step: Step) {
        let name = format!(
            "{}, {} subscribers, {} a message",
            step.peer, step.subscribers, step.batch
        );
        let is_ours = step.peer == Peer::Ours;
        let silently_lost = step.lost.saturating_sub(step.told_lost);
        let mut faults = vec![
            (step.surplus, "more cookies arrived than were published"),
            (step.unreadable, "messages could not be read"),
        ];
        if is_ours {
            faults.push((silently_lost, "cookies were lost and not counted"));
            faults.push((step.refused, "requests were not answered with 200"));
        }
        if let Some(stopped) = step.stopped.as_ref().filter(|_| is_ours) {
            faults.push((step.lost, "cookies were lost by those not stopped"));
            // GetCookies has no way to tell.
            if step.batch > 1 {
                let silently_lost = stopped.lost.saturating_sub(stopped.told_lost);
                faults.push((
                    silently_lost,
                    "cookies were lost by the stopped one, untold",
                ));
            }
        }
        let faults = faults.into_iter().filter(|(count, _)| *count > 0);
        let faults = faults.map(|(count, what)| format!("{name}: {} {what}", grouped(count)));
        self.faults.extend(faults);
        self.steps.push(step);
    }

    /// Both tables and the faults.
    pub(crate) fn markdown(&self) -> String {
        let (stopped, measured): (Vec<_>, Vec<_>) =
            self.steps.iter().partition(|step| step.stopped.is_some());
        let mut lines = vec![
            "| subscribers | cookies a message | system | published | delivered | server CPU a delivery | lost | server memory | disconnects |".to_owned(),
            "|---:|---:|---|---:|---:|---:|---:|---:|---:|".to_owned(),
        ];
        lines.extend(measured.into_iter().map(Step::row));
        if !stopped.is_empty() {
            lines.extend([
                "\nOne more subscriber stopped for a time:\n".to_owned(),
                "| system | stopped for | published | server memory before | maximum | lost by the others | by the stopped one | of which told | its disconnects |".to_owned(),
                "|---|---:|---:|---:|---:|---:|---:|---:|---:|".to_owned(),
            ]);
        }
        lines.extend(stopped.into_iter().filter_map(Step::stopped_row));
        lines.extend(self.faults.iter().map(|fault| format!("\nWRONG: {fault}")));
        lines.join("\n")
    }
}

impl Step {
    fn row(&self) -> String {
        let batch = match (self.peer, self.batch) {
            (Peer::Ours, 2..) => "chunks".to_owned(),
            (_, batch) => batch.to_string(),
        };
        let micros = self.server_cpu_seconds * 1e6 / self.delivered.max(1) as f64;
        let expected = self.lost + self.delivered;
        let lost_percent = 100.0 * self.lost as f64 / expected.max(1) as f64;
        format!(
            "| {} | {batch} | {} | {} | {} | {micros:.3} µs | {} ({lost_percent:.1} %) | {} | {} |",
            self.subscribers,
            self.peer,
            rate(per_second(self.published, self.publish_seconds)),
            rate(per_second(self.delivered, self.deliver_seconds)),
            grouped(self.lost),
            mebibytes(self.server_peak_bytes),
            self.disconnects,
        )
    }

    fn stopped_row(&self) -> Option<String> {
        let stopped = self.stopped.as_ref()?;
        Some(format!(
            "| {} | {:.0} s | {} | {} | {} | {} | {} | {} | {} |",
            self.peer,
            stopped.seconds,
            grouped(self.published),
            mebibytes(stopped.memory_before_bytes),
            mebibytes(self.server_peak_bytes),
            grouped(self.lost),
            grouped(stopped.lost),
            grouped(stopped.told_lost),
            stopped.disconnects,
        ))
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(step: Step, faults: &[&str]) {
        let mut report = Report::default();
        report.add(step);
        let found: Vec<_> = report
            .faults
            .iter()
            .filter_map(|it| it.split_once(": "))
            .collect();
        let found: Vec<_> = found.into_iter().map(|(_, what)| what).collect();
        assert_eq!(found, faults);
    }

    #[test]
    fn only_what_nobody_counted_is_wrong() {
        let ours = |lost, told_lost, refused| Step {
            lost,
            told_lost,
            refused,
            ..Step::default()
        };
        check(ours(9, 9, 0), &[]);
        check(ours(9, 7, 0), &["2 cookies were lost and not counted"]);
        check(ours(0, 3, 1), &["1 requests were not answered with 200"]);
        let others = Step {
            peer: Peer::Nats,
            surplus: 3,
            ..ours(9, 0, 0)
        };
        check(others, &["3 more cookies arrived than were published"]);
    }

    #[test]
    fn a_stopped_subscriber_must_be_told_and_the_others_lose_nothing() {
        let stopped = |batch, told_lost| Step {
            batch,
            stopped: Some(Stopped {
                lost: 5,
                told_lost,
                ..Stopped::default()
            }),
            ..Step::default()
        };
        check(stopped(500, 5), &[]);
        check(stopped(1, 0), &[]);
        check(
            stopped(500, 4),
            &["1 cookies were lost by the stopped one, untold"],
        );
    }
}
