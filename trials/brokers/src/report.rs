//! Results of all runs, and their tables.

use launcher::numbers::{grouped, per_second, rate};
use serde::Serialize;

use crate::broker::Broker;

/// Results of all runs.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Steps in the order of the runs.
    pub(crate) steps: Vec<Step>,
    /// Failed checks.
    pub(crate) failures: Vec<String>,
}

/// Results of one run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Step {
    pub(crate) broker: Broker,
    pub(crate) subscribers: usize,
    /// Cookies per published message. The producer builds its own chunks for any value above 1.
    pub(crate) batch: u32,
    /// Cookies published.
    pub(crate) published: u64,
    /// Cookies rejected by the server.
    pub(crate) rejected: u64,
    pub(crate) publish_seconds: f64,
    /// Distinct cookies received, over all subscribers except the stopped one.
    pub(crate) delivered: u64,
    /// Time to the last delivery, or the time of publishing if that is longer.
    pub(crate) deliver_seconds: f64,
    /// Published cookies that a subscriber did not receive, over all subscribers.
    pub(crate) lost: u64,
    /// Lost cookies that were reported to subscribers, or that the producer counted if the call cannot report them.
    pub(crate) reported_lost: u64,
    /// Deliveries beyond the published cookies.
    pub(crate) surplus: u64,
    /// Cookies received more than once; 0 if they have no sequence numbers.
    pub(crate) repeated: u64,
    /// Messages that could not be decoded.
    pub(crate) unreadable: u64,
    /// Closed connections of subscribers.
    pub(crate) disconnects: u64,
    pub(crate) server_cpu_seconds: f64,
    pub(crate) server_peak_bytes: u64,
    /// Results of the stopped subscriber, if any.
    pub(crate) stopped: Option<Stopped>,
}

/// Results of a subscriber that was stopped for a time.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Stopped {
    pub(crate) seconds: f64,
    /// Cookies that the subscriber did not receive.
    pub(crate) lost: u64,
    /// Lost cookies that were reported to the subscriber.
    pub(crate) reported_lost: u64,
    pub(crate) disconnects: u64,
    /// Memory of the server when the subscriber was stopped.
    pub(crate) memory_before_bytes: u64,
}

impl Report {
    /// Adds a run and its failed checks.
    pub(crate) fn add(&mut self, step: Step) {
        let name = format!(
            "{}, {} subscribers, {} per message",
            step.broker, step.subscribers, step.batch
        );
        let is_producer = step.broker == Broker::Cookiesync;
        let unreported = step.lost.saturating_sub(step.reported_lost);
        let mut failures = vec![
            (step.surplus, "more cookies arrived than were published"),
            (step.unreadable, "messages could not be decoded"),
        ];
        if is_producer {
            failures.push((unreported, "cookies were lost without being counted"));
            failures.push((step.rejected, "requests did not return 200"));
        }
        if let Some(stopped) = step.stopped.as_ref().filter(|_| is_producer) {
            failures.push((step.lost, "cookies were lost by the other subscribers"));
            // GetCookies cannot report losses.
            if step.batch > 1 {
                let unreported = stopped.lost.saturating_sub(stopped.reported_lost);
                failures.push((
                    unreported,
                    "cookies lost by the stopped subscriber were not reported",
                ));
            }
        }
        let failures = failures.into_iter().filter(|(count, _)| *count > 0);
        let failures = failures.map(|(count, what)| format!("{name}: {} {what}", grouped(count)));
        self.failures.extend(failures);
        self.steps.push(step);
    }

    /// Both tables and the failed checks.
    pub(crate) fn markdown(&self) -> String {
        let (stopped, measured): (Vec<_>, Vec<_>) =
            self.steps.iter().partition(|step| step.stopped.is_some());
        let mut lines = vec![
            "| subscribers | cookies per message | system | published | delivered | server CPU per delivery | lost | server memory | disconnects |".to_owned(),
            "|---:|---:|---|---:|---:|---:|---:|---:|---:|".to_owned(),
        ];
        lines.extend(measured.into_iter().map(Step::row));
        if !stopped.is_empty() {
            lines.extend([
                "\nWith one additional subscriber that is stopped for a time:\n".to_owned(),
                "| system | stopped for | published | server memory before | peak | lost by the others | lost by the stopped one | of which reported | its disconnects |".to_owned(),
                "|---|---:|---:|---:|---:|---:|---:|---:|---:|".to_owned(),
            ]);
        }
        lines.extend(stopped.into_iter().filter_map(Step::stopped_row));
        lines.extend(
            self.failures
                .iter()
                .map(|failure| format!("\nFAILED: {failure}")),
        );
        lines.join("\n")
    }
}

impl Step {
    fn row(&self) -> String {
        let batch = match (self.broker, self.batch) {
            (Broker::Cookiesync, 2..) => "chunks".to_owned(),
            (_, batch) => batch.to_string(),
        };
        let micros = self.server_cpu_seconds * 1e6 / self.delivered.max(1) as f64;
        let expected = self.lost + self.delivered;
        let lost_percent = 100.0 * self.lost as f64 / expected.max(1) as f64;
        format!(
            "| {} | {batch} | {} | {} | {} | {micros:.3} µs | {} ({lost_percent:.1} %) | {} | {} |",
            self.subscribers,
            self.broker,
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
            self.broker,
            stopped.seconds,
            grouped(self.published),
            mebibytes(stopped.memory_before_bytes),
            mebibytes(self.server_peak_bytes),
            grouped(self.lost),
            grouped(stopped.lost),
            grouped(stopped.reported_lost),
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
    fn check(step: Step, failures: &[&str]) {
        let mut report = Report::default();
        report.add(step);
        let found: Vec<_> = report
            .failures
            .iter()
            .filter_map(|it| it.split_once(": "))
            .collect();
        let found: Vec<_> = found.into_iter().map(|(_, what)| what).collect();
        assert_eq!(found, failures);
    }

    #[test]
    fn only_uncounted_losses_are_failures() {
        let producer = |lost, reported_lost, rejected| Step {
            lost,
            reported_lost,
            rejected,
            ..Step::default()
        };
        check(producer(9, 9, 0), &[]);
        check(
            producer(9, 7, 0),
            &["2 cookies were lost without being counted"],
        );
        check(producer(0, 3, 1), &["1 requests did not return 200"]);
        let others = Step {
            broker: Broker::Nats,
            surplus: 3,
            ..producer(9, 0, 0)
        };
        check(others, &["3 more cookies arrived than were published"]);
    }

    #[test]
    fn losses_of_a_stopped_subscriber_must_be_reported() {
        let stopped = |batch, reported_lost| Step {
            batch,
            stopped: Some(Stopped {
                lost: 5,
                reported_lost,
                ..Stopped::default()
            }),
            ..Step::default()
        };
        check(stopped(500, 5), &[]);
        check(stopped(1, 0), &[]);
        check(
            stopped(500, 4),
            &["1 cookies lost by the stopped subscriber were not reported"],
        );
    }
}
