//! The recording of a load that has ended: since its requests are made again from their numbers, it takes only how many each
//! connection sent, and nothing has to be written while it runs.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use anyhow::Result;

use super::{history::History, outcome::Outcome, plan::Plan, recording::RecordingFile, task::Task};

/// Writes what was sent, in order of time: the intended time of each request, or without a schedule the time when it left, to
/// 10 ms.
pub(super) async fn write(plan: &Plan, outcome: &Outcome, file: RecordingFile) -> Result<()> {
    let tasks = plan.tasks().await?;
    let histories = Arc::new(outcome.histories.clone());
    tokio::task::spawn_blocking(move || write_all(&tasks, &histories, file)).await?
}

fn write_all(tasks: &[Task], histories: &[History], mut file: RecordingFile) -> Result<()> {
    let first = histories.iter().map(|history| history.sent_after(0)).min();
    let time_of = |index: usize, number: u64| match &tasks[index].schedule {
        Some(schedule) => Duration::from_nanos(schedule.intended_nanos(number)),
        None => {
            let at = histories[index].sent_after(number);
            first.map_or(Duration::ZERO, |first| at - first)
        }
    };
    let mut next: BinaryHeap<_> = (0..tasks.len())
        .filter(|&index| histories[index].sent() > 0)
        .map(|index| Reverse((time_of(index, 0), index, 0)))
        .collect();
    while let Some(Reverse((at, index, number))) = next.pop() {
        let Task {
            source, template, ..
        } = &tasks[index];
        let line = source.line(template, number);
        let cookie = line.cookie.as_deref();
        file.write(at, &line.target, cookie, source.is_malformed(number))?;
        let after = number + 1;
        if after < histories[index].sent() {
            next.push(Reverse((time_of(index, after), index, after)));
        }
    }
    file.finish()
}
