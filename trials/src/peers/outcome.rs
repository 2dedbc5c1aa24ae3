//! What a run of `trials peers` found, and how it is said in a terminal.

use bench::report::{grouped, rate};
use serde::Serialize;

use super::peer::Peer;

/// Everything.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Subscriber counts that were to be measured.
    pub subscribers: Vec<usize>,
    /// Cookies a message that were to be measured.
    pub batches: Vec<u32>,
    /// Cookies a second that were asked for.
    pub rate: Option<u64>,
    /// How long each step publishes.
    pub step_seconds: f64,
    /// Most cookies kept for a subscriber where it can be said.
    pub keep: u64,
    /// Seed of the cookies.
    pub seed: u64,
    /// From the first server's start to the last one's end.
    pub seconds: f64,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// The peers that were asked for.
    pub peers: Vec<Participant>,
    /// Steps in the order in which they ran.
    pub steps: Vec<Step>,
    /// What one stopped subscriber did to each.
    pub stopped: Vec<Stopped>,
    /// What is wrong; empty when all is well.
    pub faults: Vec<String>,
}

/// A peer that was asked for.
#[derive(Debug, Clone, Serialize)]
pub struct Participant {
    /// The peer.
    pub peer: Peer,
    /// Its program's version.
    pub version: String,
    /// Why it did not take part.
    pub skipped: Option<String>,
}

/// What one step measured.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// The peer.
    pub peer: Peer,
    /// Subscribers.
    pub subscribers: usize,
    /// Cookies a message that is published; ours makes chunks of all that are more than one.
    pub batch: u32,
    /// Cookies in the messages that arrived, on average.
    pub cookies_per_message: f64,
    /// What the server said of its version as it started.
    #[serde(skip)]
    pub(super) said_version: Option<String>,
    /// Cookies published.
    pub published: u64,
    /// Cookies that were not taken.
    pub refused: u64,
    /// How long that took.
    pub publish_seconds: f64,
    /// `published` a second.
    pub published_per_second: f64,
    /// Distinct cookies that reached a subscriber, over all subscribers. Cookies of ours at 1 a message have no
    /// sequence: one that came twice would count twice.
    pub delivered: u64,
    /// From the first delivery to the last, and at least as long as publishing took.
    pub deliver_seconds: f64,
    /// `delivered` a second.
    pub deliveries_per_second: f64,
    /// Cookies published, for each subscriber, that did not reach it.
    pub lost: u64,
    /// As many of those as subscribers were told of, or our producer counted where the call does not tell.
    pub told_lost: u64,
    /// Deliveries beyond what was published: cookies that came twice without a sequence to tell it by, or whose request was taken but not
    /// answered.
    pub surplus: u64,
    /// Cookies that came again, where sequences tell it.
    pub repeated: u64,
    /// Messages that could not be read.
    pub unreadable: u64,
    /// Connections of subscribers that ended.
    pub disconnects: u64,
    /// CPU time of the server.
    pub broker_cpu_seconds: f64,
    /// The same for each delivery.
    pub broker_cpu_micros_per_delivery: f64,
    /// CPU time of the publishing process for each cookie, making it included.
    pub publisher_cpu_micros_per_cookie: f64,
    /// CPU time of the subscribers' process for each delivery.
    pub reader_cpu_micros_per_delivery: f64,
    /// Most memory of the server.
    pub broker_peak_bytes: u64,
    /// The delivery rate over time.
    pub deliveries_per_second_by_second: Vec<f64>,
}

/// What one stopped subscriber did, and what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct Stopped {
    /// The peer.
    pub peer: Peer,
    /// Cookies a message.
    pub batch: u32,
    /// Cookies a second that were asked for.
    pub rate: u64,
    /// How long it was stopped.
    pub stopped_seconds: f64,
    /// Whether it was stopped and went on within the load.
    pub was_stopped: bool,
    /// Cookies published.
    pub published: u64,
    /// Memory of the server as the subscriber was stopped.
    pub memory_before_bytes: u64,
    /// Most memory from then on.
    pub memory_peak_bytes: u64,
    /// Cookies that did not reach the other two subscribers.
    pub others_lost: u64,
    /// Connections of those that ended.
    pub others_disconnects: u64,
    /// Distinct cookies that reached the stopped one.
    pub delivered: u64,
    /// Cookies that did not.
    pub lost: u64,
    /// As many of those as it was told of.
    pub told_lost: u64,
    /// How often its connection ended.
    pub disconnects: u64,
    /// Cookies it got again.
    pub repeated: u64,
}

impl Step {
    /// Cookies that a subscriber did not get and that nobody counted as lost.
    pub(super) fn silently_lost(&self) -> u64 {
        self.lost.saturating_sub(self.told_lost)
    }

    /// As in names.
    pub(super) fn packing(&self) -> String {
        self.peer.packing(self.batch)
    }

    /// As in tables.
    #[must_use]
    pub fn lost_share(&self) -> String {
        let expected = self.lost + self.delivered;
        if self.lost == 0 {
            return "0".to_owned();
        }
        let percent = 100.0 * self.lost as f64 / expected as f64;
        format!("{} ({percent:.1} %)", grouped(self.lost))
    }

    fn line(&self) -> String {
        format!(
            "{:>5} × {:<6} {:<14} {:>12} {:>14} {:>9.3} {:>9.3} {:>9.3} {:>9}  {}",
            self.subscribers,
            self.peer.packing_short(self.batch),
            self.peer.name(),
            rate(self.published_per_second),
            rate(self.deliveries_per_second),
            self.broker_cpu_micros_per_delivery,
            self.publisher_cpu_micros_per_cookie,
            self.reader_cpu_micros_per_delivery,
            mebibytes(self.broker_peak_bytes),
            self.lost_share(),
        )
    }
}

impl Stopped {
    /// What became of the subscriber, in words that follow from the counts alone.
    #[must_use]
    pub fn verdict(&self) -> String {
        if !self.was_stopped {
            return "was not stopped for the whole time: interrupted".to_owned();
        }
        let (lost, told) = (grouped(self.lost), grouped(self.told_lost));
        let fate = match (self.lost, self.told_lost) {
            (0, 0) if self.disconnects == 0 => "got everything, late".to_owned(),
            (0, 0) => "got everything".to_owned(),
            (count, said) if count == said => format!("was told exactly that it lost {told}"),
            _ => format!("lost {lost}; it was told of {told}"),
        };
        match self.disconnects {
            0 => fate,
            times => format!("was disconnected ({times}×), came back and {fate}"),
        }
    }

    /// What it cost the server.
    #[must_use]
    pub fn memory_growth_bytes(&self) -> u64 {
        self.memory_peak_bytes
            .saturating_sub(self.memory_before_bytes)
    }

    fn line(&self) -> String {
        format!(
            "{:<14} grew by {:>9} to {:>9}; the others lost {}; the stopped one {}",
            self.peer.name(),
            mebibytes(self.memory_growth_bytes()),
            mebibytes(self.memory_peak_bytes),
            grouped(self.others_lost),
            self.verdict()
        )
    }
}

/// As in tables.
pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

impl Outcome {
    /// True when we lost nothing and every peer that was found could be run.
    #[must_use]
    pub fn is_faultless(&self) -> bool {
        self.faults.is_empty()
    }

    /// What is wrong with a step, if anything.
    pub(super) fn check_step(&mut self, step: &Step) {
        let at = format!("{} subscribers, {}", step.subscribers, step.packing());
        let name = step.peer.name();
        if step.surplus > 0 {
            let surplus = grouped(step.surplus);
            self.faults.push(format!(
                "{name}, {at}: {surplus} more cookies arrived than were published"
            ));
        }
        if step.unreadable > 0 {
            let count = grouped(step.unreadable);
            self.faults
                .push(format!("{name}, {at}: {count} messages could not be read"));
        }
        if step.peer != Peer::Ours {
            return;
        }
        let silent = step.silently_lost();
        if silent > 0 {
            let silent = grouped(silent);
            self.faults.push(format!(
                "ours, {at}: {silent} cookies were lost and not counted as such"
            ));
        }
        if step.refused > 0 {
            let refused = grouped(step.refused);
            self.faults.push(format!(
                "ours, {at}: {refused} requests were not answered with 200"
            ));
        }
    }

    /// What is wrong with how we treated a stopped subscriber, if anything.
    pub(super) fn check_stopped(&mut self, stopped: &Stopped) {
        if stopped.peer != Peer::Ours {
            return;
        }
        if stopped.others_lost > 0 {
            let lost = grouped(stopped.others_lost);
            self.faults
                .push(format!("ours, one stopped: the others lost {lost} cookies"));
        }
        let silent = stopped.lost.saturating_sub(stopped.told_lost);
        if stopped.batch > 1 && silent > 0 {
            let silent = grouped(silent);
            self.faults.push(format!(
                "ours, one stopped: it lost {silent} cookies and was not told"
            ));
        }
    }

    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut lines = Vec::new();
        for Participant {
            peer,
            version,
            skipped,
        } in &self.peers
        {
            lines.push(match skipped {
                None => format!("{:<14} {version}", peer.name()),
                Some(why) => format!("{:<14} skipped: {why}", peer.name()),
            });
        }
        if !self.steps.is_empty() {
            lines.push(format!(
                "{:>5} × {:<6} {:<14} {:>12} {:>14} {:>9} {:>9} {:>9} {:>9}  lost",
                "subs",
                "batch",
                "",
                "published",
                "delivered",
                "broker",
                "publisher",
                "reader",
                "memory"
            ));
            lines.extend(self.steps.iter().map(Step::line));
            lines.push("CPU in µs: broker and reader for each delivery, publisher for each cookie; ours with its HTTP edge".to_owned());
        }
        if let Some(stopped) = self.stopped.first() {
            lines.push(format!(
                "one of three subscribers stopped for {:.0} s at {}:",
                stopped.stopped_seconds,
                rate(stopped.rate as f64)
            ));
        }
        lines.extend(self.stopped.iter().map(Stopped::line));
        if self.interrupted {
            lines.push("interrupted".to_owned());
        }
        lines.extend(self.faults.iter().map(|fault| format!("WRONG     {fault}")));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_subscribers_fate_follows_from_its_counts() {
        let fate = |lost, told_lost, disconnects| {
            let stopped = Stopped {
                peer: Peer::Ours,
                batch: 500,
                rate: 1,
                stopped_seconds: 1.0,
                was_stopped: true,
                published: 100,
                memory_before_bytes: 5,
                memory_peak_bytes: 7,
                others_lost: 0,
                others_disconnects: 0,
                delivered: 100 - lost,
                lost,
                told_lost,
                disconnects,
                repeated: 0,
            };
            stopped.verdict()
        };
        assert_eq!(fate(0, 0, 0), "got everything, late");
        assert_eq!(
            fate(0, 0, 1),
            "was disconnected (1×), came back and got everything"
        );
        assert_eq!(fate(9, 9, 0), "was told exactly that it lost 9");
        assert_eq!(fate(9, 0, 0), "lost 9; it was told of 0");
        assert_eq!(fate(9, 12, 0), "lost 9; it was told of 12");
        assert_eq!(fate(0, 3, 0), "lost 0; it was told of 3");
        assert_eq!(
            fate(9, 0, 2),
            "was disconnected (2×), came back and lost 9; it was told of 0"
        );
    }
}
