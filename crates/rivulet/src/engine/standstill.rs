//! Applications that stand still because an output cannot deliver: they hold up nobody else.
//!
//! Events of a durable input are in the log. The application leaves them there, and reads on from there when its output
//! delivers again. Events of other topics wait in its inbox; beyond its bounds the newest are dropped and counted,
//! unless the input says `overflow => 'drop_oldest'`. A source of its own (Kafka, HTTP) holds up nobody else, and
//! waits.
//!
//! What must hold: a query gets each event of the log once, in their order, whether by its inbox or from the log.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_connectors::mqtt::Received;
use rivulet_dataflow::LogPosition;

use super::applications::Applications;
use super::event_log::{DISK_WAIT_MAX, EventLog, FULL_PAUSE, REST_MAX};
use super::outlets::Outlets;
use super::queries::Queries;
use super::routing::Routing;
use super::running::Running;
use super::threads::{Bell, Threads};
use crate::catalog::ApplicationNumber;
use crate::service::ServiceError;

/// How often outputs are looked at, and the log for those that are behind.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// The same where there are no outputs.
const IDLE_PERIOD: Duration = Duration::from_secs(2);

/// The same for the log where nobody is behind: the bell rings when somebody is.
const NONE_BEHIND_PERIOD: Duration = Duration::from_secs(60);

/// How long one application reads before the next has its turn.
const TURN_MAX: Duration = Duration::from_millis(500);

/// The applications that stand still, or are behind.
pub(super) struct Standstills {
    pub(super) applications: Arc<Applications>,
    pub(super) queries: Arc<Queries>,
    pub(super) outlets: Arc<Outlets>,
    pub(super) routing: Arc<Routing>,
    pub(super) event_log: Arc<EventLog>,
    pub(super) is_stopped: Arc<AtomicBool>,
    pub(super) known: Mutex<BTreeMap<ApplicationNumber, Arc<Running>>>,
    /// Rings while there are some.
    pub(super) has_some: Arc<Bell>,
    /// The position of the log before which events were given up last.
    pub(super) given_up_to: AtomicU64,
}

impl Standstills {
    /// Starts the threads that look after them.
    pub(super) fn watch(self: &Arc<Self>, threads: &Arc<Threads>) -> io::Result<()> {
        let (looks, reads) = (self.clone(), self.clone());
        threads.start_paced("rivulet-standing", &Arc::default(), move || {
            if looks.look() { LOOK_PERIOD } else { IDLE_PERIOD }
        })?;
        threads.start_paced("rivulet-behind", &self.has_some, move || {
            reads.catch_up();
            if reads.known.lock().is_empty() { NONE_BEHIND_PERIOD } else { LOOK_PERIOD }
        })
    }

    /// Looks at all outputs. Returns whether there are any.
    fn look(&self) -> bool {
        let standing = self.outlets.standing();
        let mut known = self.known.lock();
        for number in &standing {
            let Some(running) = self.applications.numbered(*number) else { continue };
            self.stand_still(&running);
            let before = known.insert(*number, running.clone());
            if before.is_none_or(|before| !Arc::ptr_eq(&before, &running)) {
                let name = running.full_name().in_log();
                tracing::warn!(
                    application = name,
                    "the application stands still: an output has no room, and its receiver takes nothing"
                );
            }
        }
        known.retain(|number, running| self.stays(*number, running, &standing));
        if !known.is_empty() {
            self.has_some.ring();
        }
        let has_some = !(known.is_empty() && self.outlets.are_none());
        drop(known);
        let are_to_end = || self.queries.state.try_lock().is_some_and(|queries| queries.has_absences_to_end());
        if !self.event_log.is_replaying() && are_to_end() {
            self.queries.end_absences();
        }
        has_some
    }

    fn stand_still(&self, running: &Running) {
        let gives_way = running.topics.inputs.iter().map(|input| input.source.is_none() && !input.is_logged);
        running
            .group
            .stand_still(gives_way.zip(0..u32::BITS).map(|(gives_way, bit)| u32::from(gives_way) << bit).sum());
        let reads_log = running.topics.inputs.iter().any(|input| input.is_logged && input.source.is_none());
        if reads_log && running.group.is_checkpointed() && !running.group.is_behind() {
            // No query of it is being changed meanwhile. Where this has to wait, others must not: the next look does
            // it.
            let Some(queries) = self.queries.state.try_lock() else { return };
            // Changes of values that a replay makes have their places among the events.
            if !running.group.rests() && !queries.has_changes_to_make_of(running.number) {
                self.routing.fall_behind(running);
            }
        }
    }

    /// Whether an application is to be looked after further.
    fn stays(&self, number: ApplicationNumber, running: &Arc<Running>, standing: &BTreeSet<ApplicationNumber>) -> bool {
        if self.applications.numbered(number).is_none_or(|now| !Arc::ptr_eq(&now, running)) {
            return false;
        }
        // Until it has read all, its inbox is full of that, and others must not wait for it.
        if standing.contains(&number) || running.group.is_behind() {
            return true;
        }
        running.group.stand_still(0);
        tracing::info!(
            application = running.full_name().in_log(),
            "the application goes on, and has lost nothing of the log"
        );
        false
    }

    /// Lets each application that is behind read some of the log.
    fn catch_up(&self) {
        let behind: Vec<Arc<Running>> =
            self.known.lock().values().filter(|one| one.group.is_behind()).cloned().collect();
        let standing = self.outlets.standing();
        let (stuck, others): (Vec<_>, Vec<_>) =
            behind.into_iter().partition(|running| standing.contains(&running.number));
        if let Err(error) = self.give_up_some(&stuck) {
            tracing::error!("the log cannot be read, and it is tried again: {error}");
        }
        for running in others {
            if let Err(error) = self.read_for(&running) {
                let name = running.full_name().in_log();
                tracing::error!(application = name, "the log cannot be read, and it is tried again: {error}");
            }
        }
    }

    /// If the log is nearly full, the application that is furthest behind, and whose output takes nothing, gives up the
    /// older half of what is left for it: a full log would stop all. It does so once more when the log was shortened by
    /// that, and is full again.
    fn give_up_some(&self, stuck: &[Arc<Running>]) -> Result<(), ServiceError> {
        let forgotten = self.event_log.forgotten();
        if !self.event_log.is_nearly_full() || forgotten < self.given_up_to.load(Ordering::Acquire) {
            return Ok(());
        }
        let oldest = |running: &&Arc<Running>| running.group.oldest_position().unwrap_or(LogPosition::MAX);
        let Some(furthest) = stuck.iter().min_by_key(oldest) else { return Ok(()) };
        let (from, end) = (oldest(&furthest), self.event_log.next());
        let Some((left_from, _)) = furthest.group.behind_from() else { return Ok(()) };
        // Others may be the reason that the log is full.
        if from.saturating_sub(forgotten) > end.saturating_sub(forgotten) / 4 {
            return Ok(());
        }
        let middle = left_from + end.saturating_sub(left_from) / 2;
        let mut events = 0;
        // What is not on disk yet cannot be counted, and is not given up.
        let read_to = self.event_log.read(left_from, middle, &mut |message, _| {
            events += self.routing.targets(furthest, message.topic).len() as u64;
            true
        })?;
        furthest.group.caught_up_to(read_to);
        furthest.group.give_up_waiting(events);
        self.given_up_to.store(read_to, Ordering::Release);
        let name = furthest.full_name().in_log();
        tracing::error!(
            application = name,
            events,
            "the log is nearly full, and the application gives up events that wait for its output"
        );
        Ok(())
    }

    fn read_for(&self, running: &Running) -> Result<(), ServiceError> {
        let Some((_, fell_at)) = running.group.behind_from() else { return Ok(()) };
        // Rows that are on their way from before may be the first that are missing. Once there are none, the place
        // where reading begins stays.
        if self.routing.has_earlier_rows(running, fell_at) {
            return Ok(());
        }
        let Some((from, _)) = running.group.behind_from() else { return Ok(()) };
        let until = Instant::now() + TURN_MAX;
        let is_over = || self.is_stopped.load(Ordering::Acquire) || Instant::now() >= until;
        let next = self.event_log.read(from, self.event_log.next(), &mut |message, position| {
            while !self.routing.catch_up(running, message, position) {
                if is_over() {
                    return false;
                }
                std::thread::sleep(FULL_PAUSE);
            }
            !is_over()
        })?;
        let read_to = next.max(running.group.behind_from().map_or(0, |(from, _)| from));
        running.group.caught_up_to(read_to);
        let end = self.event_log.next();
        let is_near = end.saturating_sub(read_to) <= REST_MAX;
        // Nobody is held up by a slow disk.
        if is_near && !is_over() && self.event_log.wait_durable(end.saturating_sub(1), DISK_WAIT_MAX) {
            running.group.expect_repeats(end + 2 * REST_MAX);
            self.routing.end_catch_up(running, |end, hand_over| self.read_rest(read_to, end, hand_over));
        }
        Ok(())
    }

    /// Hands over the last events before `end`. Returns whether these were all.
    fn read_rest(
        &self,
        from: LogPosition,
        end: LogPosition,
        hand_over: &mut dyn FnMut(&Received<'_>, LogPosition),
    ) -> bool {
        // An end of the replay is on disk.
        let is_durable = end <= from || self.event_log.wait_durable(end - 1, DISK_WAIT_MAX);
        if !is_durable || end.saturating_sub(from) > 2 * REST_MAX {
            return false;
        }
        let read = self.event_log.read(from, end, &mut |message, position| {
            hand_over(message, position);
            true
        });
        end <= from || read.is_ok_and(|next| next == end)
    }
}
