//! What a task tells of a query when a user asks: what became of its events ([`Tally`]), and what its operators hold.

use rivulet_dataflow::{Holding, QueryId, Slot, Tally};

use super::Task;

/// The answer to a user's question about a query.
#[derive(Clone, Debug)]
pub struct Examined {
    /// What became of its events since counting began.
    pub tally: Tally,
    /// What each operator holds for it, in chain order.
    pub holdings: Vec<Option<Holding>>,
    /// When its next timer is due, microseconds since the epoch.
    pub timer_us: Option<i64>,
    /// Whether its state is spilled.
    pub is_spilled: bool,
    /// The number of its events that wait.
    pub waiting: u64,
    /// Whether its task waits because the sink has no room.
    pub is_blocked: bool,
    /// The number of all its results, where that outlives the process.
    pub results: Option<u64>,
    /// The host's clock, microseconds since the epoch.
    pub now_us: i64,
}

/// The longest time that a tally waits for a timer.
const TIMER_US_MAX: i64 = 86_400_000_000;

impl Task {
    /// Tells what is known of the query in a slot; `None` if the query is not there, or runs in parts. From now on its
    /// events are counted, until `for_us` after the last question, and after the timer at which a window closes.
    pub(crate) fn examine(&self, slot: Slot, query: QueryId, for_us: i64) -> Option<Examined> {
        let mut core = self.core.lock();
        if self.parts() > 1 {
            return None;
        }
        core.host.table().find(slot, query)?;
        let now_us = self.pool.clock.now_us();
        let timer_us = core.host.slot_deadline_us(slot);
        let wait_us = timer_us.filter(|&timer_us| timer_us != i64::MAX);
        let wait_us = wait_us.map_or(0, |timer_us| timer_us.saturating_sub(now_us).clamp(0, TIMER_US_MAX));
        let tally = core.host.ask(slot, now_us, now_us.saturating_add(wait_us).saturating_add(for_us))?;
        Some(Examined {
            tally,
            holdings: core.host.holdings(slot),
            timer_us,
            is_spilled: self.is_spilled_task(),
            waiting: self.inbox.lock().slots().filter(|of| *of == slot).count() as u64,
            is_blocked: !core.sink.has_room(),
            results: core.host.mark(slot).map(|mark| mark.results),
            now_us,
        })
    }
}
