//! The report of a task.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::FlowTask;
use crate::flow::reader::Reader;
use crate::flow::report::{FlowReport, TaskReport};

impl FlowTask {
    /// Adds what the task has done to a report; for a task that runs for longer than `patience`, some figures are those
    /// of its last rest. The task reads `source`, if any.
    pub(in crate::flow) fn add_to(
        &self,
        (source, patience): (Option<usize>, Duration),
        report: &mut FlowReport,
        progress: &mut Option<(u64, u64)>,
    ) {
        // Figures that need the lock are those of the last time it was free.
        let core = self.core.try_lock_for(patience);
        let mut figures = self.figures.lock();
        if let Some(core) = core.as_ref().filter(|core| !core.has_ended) {
            figures.state_bytes = core.stage.memory_bytes();
            figures.progress = core.reader.as_ref().and_then(Reader::progress);
        }
        drop(core);
        let (waiting_rows, waiting_rows_max) = self.inbox.rows();
        let one = TaskReport {
            stage: self.stage,
            name: self.operators.title.clone(),
            instance: self.instance,
            worker: self.pool.policy.is_balanced().then_some(self.worker),
            node: self.pool.node(self.worker).filter(|_| self.pool.policy.is_balanced()),
            rows_in: self.counters.rows_in.load(Ordering::Relaxed),
            rows_out: self.counters.rows_out.load(Ordering::Relaxed),
            busy_us: self.times.busy_us.load(Ordering::Relaxed) + figures.away_busy_us,
            away_us: figures.away_busy_us,
            ready_us: self.times.ready_us.load(Ordering::Relaxed),
            blocked_us: self.times.blocked_us.load(Ordering::Relaxed),
            queued_row_us: self.times.queued_row_us.load(Ordering::Relaxed),
            scheduled_row_us: self.times.scheduled_row_us.load(Ordering::Relaxed),
            has_queue: self.aligned.is_none(),
            source_rows: 0,
            waiting_rows,
            waiting_rows_max,
            watermark_us: figures.reached_us,
            operators: self
                .operators
                .names
                .iter()
                .zip(&self.operators.nodes)
                .zip(&self.measured)
                .map(|((name, &node), counters)| counters.report(name, node))
                .collect(),
        };
        if self.aligned.is_some() {
            report.rows_in += one.rows_in;
            *progress = progress.zip(figures.progress).map(|((done, all), (more, of))| (done + more, all + of));
        }
        if self.writes && self.is_of_results {
            report.rows_out += one.rows_out;
            report.watermark_us = match (report.watermark_us, one.watermark_us) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        report.tasks.push(one);
        report.refused.iter_mut().zip(figures.refused).for_each(|(all, more)| *all += more);
        if let Some(source) = source {
            figures.seconds.add_to(&mut report.seconds, source);
        }
        report.refusals.extend_from_slice(&figures.told);
        report.waits.add(figures.waits);
        if self.is_of_results {
            report.latency_us.merge(&figures.latency_us);
        }
        report.state_bytes += figures.state_bytes;
    }
}
