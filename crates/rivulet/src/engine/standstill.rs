//! Applications that stand still because an output cannot deliver: they hold up nobody else.
//!
//! Events of a durable input are in the log. The application leaves them there, and reads on from there when its output
//! delivers again. Events of other topics wait in its inbox; beyond its bounds the newest are dropped and counted,
//! unless the input says `overflow => 'drop_oldest'`. A source of its own (Kafka, HTTP) holds up nobody else, and
//! waits; but what the log repeats of it after a restart is left there, too.
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
use rivulet_storage::log::Read;

use super::applications::Applications;
use super::event_log::EventLog;
use super::outlets::Outlets;
use super::queries::Queries;
use super::routing::Routing;
use super::running::Running;
use super::threads::{Bell, Threads};
use super::topics::InputTopics;
use crate::catalog::ApplicationNumber;
use crate::counted::counted;
use crate::service::ServiceError;

/// How often outputs are looked at, and the log while all that are behind are stuck.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// How often applications that read on from the log are looked at, whether they have room for more.
const READ_PERIOD: Duration = Duration::from_millis(5);

/// The pause before outputs are looked at again where there are none, and of an application for which the log cannot be
/// read.
const IDLE_PERIOD: Duration = Duration::from_secs(2);

/// The pause of the thread that reads the log where nobody is behind: the bell rings when somebody is.
const NONE_BEHIND_PERIOD: Duration = Duration::from_secs(60);

/// How long one application reads before the next has its turn.
const TURN_MAX: Duration = Duration::from_millis(500);

/// After so many failures in a row the log counts as one that cannot be read for an application.
const FAILURES_MAX: u32 = 5;

/// The most events that may come between the end of reading and the moment at which no message is routed.
const REST_MAX: u64 = 8_192;

/// An application for which the log could not be read.
pub(super) struct Failed {
    /// When it was tried last.
    pub(super) at: Instant,
    /// How often in a row.
    pub(super) times: u32,
    /// What any user may know of it.
    pub(super) text: String,
}

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
    /// Rings as long as the log is nearly full.
    pub(super) log_waits: Arc<Bell>,
    /// The applications for which the log could not be read.
    pub(super) failed: Mutex<BTreeMap<ApplicationNumber, Failed>>,
    /// The position of the log before which applications give up events, so that it is not full.
    pub(super) given_up_to: AtomicU64,
}

impl Standstills {
    /// Starts the threads that look after them.
    pub(super) fn watch(self: &Arc<Self>, threads: &Arc<Threads>) -> io::Result<()> {
        let (looks, reads) = (self.clone(), self.clone());
        threads.start_paced("rivulet-standing", &Arc::default(), Duration::ZERO, move || {
            if looks.look() { LOOK_PERIOD } else { IDLE_PERIOD }
        })?;
        threads.start_paced("rivulet-behind", &self.has_some, Duration::ZERO, move || {
            let pause = reads.catch_up();
            if reads.known.lock().is_empty() { NONE_BEHIND_PERIOD } else { pause }
        })
    }

    /// Looks at all outputs. Returns whether there are any.
    fn look(&self) -> bool {
        let standing = self.outlets.standing();
        let mut known = self.known.lock();
        let were_none = known.is_empty();
        for number in &standing {
            let Some(running) = self.applications.numbered(*number) else { continue };
            self.stand_still(&running);
            if known.insert(*number, running.clone()).is_none() {
                let name = running.full_name().in_log();
                tracing::warn!(
                    application = name,
                    "the application stands still: an output has no room, and its receiver takes nothing"
                );
            }
        }
        known.retain(|number, running| self.stays(*number, running, &standing));
        if were_none && !known.is_empty() {
            self.has_some.ring();
        }
        let has_some = !(known.is_empty() && self.outlets.are_none());
        drop(known);
        if self.event_log.is_nearly_full() {
            self.log_waits.ring();
        }
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
        // What the log repeats of a source waits for nobody: events of others stand behind it.
        let is_replaying = self.event_log.is_replaying();
        let is_left = |input: &InputTopics| input.is_logged && (input.source.is_none() || is_replaying);
        let reads_log = running.topics.inputs.iter().any(is_left);
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
    fn stays(
        &self,
        number: ApplicationNumber,
        running: &mut Arc<Running>,
        standing: &BTreeSet<ApplicationNumber>,
    ) -> bool {
        // A new version goes on where the one before has come to.
        let Some(now) = self.applications.numbered(number) else { return false };
        *running = now;
        // Until it has read all, its inbox is full of that, and others must not wait for it.
        if standing.contains(&number) || running.group.is_behind() {
            return true;
        }
        running.group.stand_still(0);
        tracing::info!(
            application = running.full_name().in_log(),
            "the application goes on, and has read what the log had for it"
        );
        false
    }

    /// Lets each application that is behind read some of the log. Returns when the next part is to be read.
    pub(super) fn catch_up(&self) -> Duration {
        let behind: Vec<Arc<Running>> =
            self.known.lock().values().filter(|one| one.group.is_behind()).cloned().collect();
        let standing = self.outlets.standing();
        let mut failed = self.failed.lock();
        failed.retain(|number, _| behind.iter().any(|running| running.number == *number));
        for running in behind.iter().filter(|running| !standing.contains(&running.number)) {
            if failed.get(&running.number).is_some_and(|one| one.at.elapsed() < IDLE_PERIOD) {
                continue;
            }
            match self.read_for(running) {
                Ok(true) => _ = failed.remove(&running.number),
                Ok(false) => {}
                Err(error) => {
                    let name = running.full_name();
                    let (application, public) = (name.in_log(), name.in_public());
                    tracing::error!(application, "the log cannot be read, and it is tried again: {error}");
                    let text = format!("the application {public} cannot read on from the log: {error}");
                    let times = failed.get(&running.number).map_or(0, |one| one.times) + 1;
                    failed.insert(running.number, Failed { at: Instant::now(), times, text });
                }
            }
        }
        self.event_log.note_unread(failed.values().next().map(|one| one.text.clone()));
        let cannot_read = |number: ApplicationNumber| failed.get(&number).is_some_and(|one| one.times >= FAILURES_MAX);
        let is_stuck = |running: &Arc<Running>| standing.contains(&running.number) || cannot_read(running.number);
        let (stuck, others): (Vec<_>, Vec<_>) = behind.into_iter().partition(is_stuck);
        self.give_up_some(&stuck, |running| standing.contains(&running.number));
        if others.is_empty() { LOOK_PERIOD } else { READ_PERIOD }
    }

    /// If the log is nearly full, applications that cannot read on give up the older half of what is left for
    /// the one that is furthest behind: a full log would stop all. They do so once more when the log was shortened by
    /// that, and is full again. Each call gives up as much as there is time for.
    ///
    /// One that does not stand still takes what waits in its inbox, and gives up only the file that cannot be read.
    pub(super) fn give_up_some(&self, stuck: &[Arc<Running>], stands_still: impl Fn(&Running) -> bool) {
        let (forgotten, end) = (self.event_log.forgotten(), self.event_log.next());
        if !self.event_log.is_nearly_full() {
            return;
        }
        let oldest = |running: &&Arc<Running>| running.group.oldest_position().unwrap_or(LogPosition::MAX);
        if forgotten >= self.given_up_to.load(Ordering::Acquire) {
            let Some(furthest) = stuck.iter().min_by_key(oldest) else { return };
            let Some((from, _)) = furthest.group.behind_from() else { return };
            // Others may be the reason that the log is full.
            if oldest(&furthest).saturating_sub(forgotten) > end.saturating_sub(forgotten) / 4 {
                return;
            }
            self.given_up_to.store(from + end.saturating_sub(from) / 2, Ordering::Release);
        }
        let to = self.given_up_to.load(Ordering::Acquire);
        for running in stuck.iter().filter(|running| oldest(running) < to) {
            let Some((from, fell_at)) = running.group.behind_from() else { continue };
            // They may lower the place where reading begins.
            if self.routing.has_earlier_rows(running, fell_at) {
                continue;
            }
            let is_standing = stands_still(running);
            let to = if is_standing { to } else { to.min(self.event_log.file_end(from)) };
            let (mut events, mut found) = (0, Vec::new());
            let read = self.read_some(from, to, &mut |message, _| {
                self.routing.find_targets(running, message.topic, &mut found);
                events += found.len() as u64;
                true
            });
            let next = match read {
                Ok(read) if is_standing => {
                    events += read.lost;
                    read.next
                }
                Ok(_) => continue,
                Err(error) => {
                    tracing::error!("the log cannot be read: {error}");
                    events = to.saturating_sub(from);
                    to.max(from)
                }
            };
            if !running.group.pass_over(from, next) {
                continue;
            }
            running.group.count_given_up(events);
            if is_standing {
                events += running.group.give_up_waiting();
            }
            if events > 0 {
                tracing::error!(
                    application = running.full_name().in_log(),
                    events,
                    "the log is nearly full, and the application gives up events that it cannot take"
                );
            }
        }
    }

    /// Returns whether the log was read.
    fn read_for(&self, running: &Running) -> Result<bool, ServiceError> {
        let Some((from, fell_at)) = running.group.behind_from() else { return Ok(false) };
        // Rows that are on their way from before may be the first that are missing. Once there are none, the place
        // where reading begins stays. A turn reads at least a file of the log: not for a few events.
        if self.routing.has_earlier_rows(running, fell_at) || !running.group.has_room_to_catch_up() {
            return Ok(false);
        }
        let (end, mut found) = (self.event_log.next(), Vec::new());
        let mut take = |message: &Received<'_>, position| self.routing.catch_up(running, &mut found, message, position);
        let Read { next: read, lost, .. } = self.read_some(from, end, &mut take)?;
        running.group.caught_up_to(read);
        if lost > 0 {
            running.group.count_given_up(lost);
            tracing::error!(
                application = running.full_name().in_log(),
                "up to {} of the log, which the application was to read, are lost or damaged",
                counted(lost, "event")
            );
        }
        if read == end {
            running.group.expect_repeats(end + REST_MAX);
            // What has come meanwhile.
            let read = self.event_log.read_pending(read, self.event_log.next(), &mut take);
            self.routing.end_catch_up(running, read, end + REST_MAX);
        }
        Ok(true)
    }

    /// Reads what is left for an application, as much as there is time for.
    fn read_some(
        &self,
        from: LogPosition,
        until: LogPosition,
        take: &mut dyn FnMut(&Received<'_>, LogPosition) -> bool,
    ) -> Result<Read, ServiceError> {
        let (deadline, mut is_over) = (Instant::now() + TURN_MAX, false);
        self.event_log.read(from, until, &mut |message, position| {
            // At least one, however long its file takes to be read.
            let is_taken = !is_over && take(message, position);
            is_over = self.is_stopped.load(Ordering::Acquire) || Instant::now() >= deadline;
            is_taken
        })
    }
}
