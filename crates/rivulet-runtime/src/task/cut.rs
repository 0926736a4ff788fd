//! A task in several parts: one query that is too much for a worker is processed by several workers.
//!
//! To all other code the task is unchanged: one inbox, one slot table, one owner. Each of its *parts* has a decoder,
//! operators and a sink. A free part takes a block of events from the inbox and prepares it: it decodes the events and
//! runs the operators that have no state between rows. Parts prepare blocks side by side, and hand them over in the
//! order in which they were taken ([`order`](super::order)):
//! - Without state, handing over means sending the results, so results leave in the order of the events.
//! - With state by key, every part gets the block and processes the rows of its own key groups. Of the other rows it
//!   takes the times, so that the clock of a query is the same in all parts, and a window closes after the same row as
//!   in a task without parts. The results of a key leave in order; those of different keys leave side by side.
//!
//! Code that changes a task, or wants its state, needs the task whole, and [`Task::lock`] makes it whole: it waits for
//! the parts, processes what is handed over, and joins their state. The next activation cuts the task again, as long as
//! the balancer wants it cut. So no other code knows of parts.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use rivulet_dataflow::{Chunk, Cut, Reason, Slot, SlotHost, StateError, StateSelection};

use super::order::Order;
use super::parts::{Block, OtherPart, PartCore, Parts, ProcessedByPart, Times, UnderWay, Work};
use super::{Core, TICK_GRACE_US, Task};
use crate::Activation;
use crate::scheduler::{Budget, Runnable, Standing};

impl Task {
    /// Sets the workers of the further parts; without any, the task runs in one piece, as it does if it cannot be cut.
    /// Takes effect with the next activation.
    pub(crate) fn cut_on(&self, workers: &[usize]) {
        let workers = if self.settings.can_be_cut() { workers } else { &[] };
        {
            let mut wanted = self.wanted_on.lock();
            wanted.clear();
            wanted.extend_from_slice(workers);
            self.parts_wanted.store(workers.len() + 1, Ordering::Release);
        }
        if self.parts() != workers.len() + 1 {
            self.schedule_myself();
        }
    }

    /// Whether most of its work is for a single query that can be cut.
    pub(crate) fn is_one_hot_query(&self) -> bool {
        self.settings.can_be_cut() && (self.queries() == 1 || self.hottest().is_some())
    }

    /// The slot with most of the waiting events, if one has.
    pub(crate) fn hottest(&self) -> Option<Slot> {
        let queue = self.inbox.lock();
        // Majority vote (Boyer and Moore, 1981): if one slot has the majority it is left, and a second pass checks that
        // it has.
        let mut left = (0, 0_usize);
        for slot in queue.slots() {
            left = match left {
                (_, 0) => (slot, 1),
                (of, votes) if of == slot => (of, votes + 1),
                (of, votes) => (of, votes - 1),
            };
        }
        let votes = queue.slots().filter(|&slot| slot == left.0).count();
        (votes * 2 > queue.waiting().0).then_some(left.0)
    }

    /// The present number of parts; 1 for a task in one piece.
    pub fn parts(&self) -> usize {
        self.parts.read().as_ref().map_or(1, |parts| parts.count())
    }

    /// The workers of its further parts.
    pub(crate) fn workers_of_parts(&self) -> Vec<usize> {
        self.parts.read().as_ref().map_or_else(Vec::new, |parts| parts.workers().collect())
    }

    /// Runs one of its parts for at least one step, for stepped tasks; does nothing if there is no such part.
    pub fn step_part(&self, number: usize, budget: Budget) -> Activation {
        let part = self
            .parts
            .read()
            .as_ref()
            .and_then(|parts| Some(parts.others.get(number.checked_sub(1)?)?.runnable.clone()));
        match (number, part) {
            (0, _) => self.run(budget),
            (_, Some(part)) => part.run(budget),
            (_, None) => Activation::Ran(0),
        }
    }

    /// Runs the task and its parts until none has work, for stepped tasks.
    pub(crate) fn run_all_parts(&self) -> Activation {
        let mut rows = 0;
        loop {
            // The first part decides how many parts there are.
            let mut number = 0;
            while number < self.parts() {
                match self.step_part(number, Budget::ENDLESS) {
                    Activation::Ran(events) | Activation::Yielded(events) => rows += events,
                    Activation::Blocked => return Activation::Blocked,
                }
                number += 1;
            }
            let has_work = |parts: &Arc<Parts>| (0..parts.count()).any(|number| parts.has_work(&self.inbox, number));
            if !self.parts.read().clone().as_ref().is_some_and(has_work) {
                return Activation::Ran(rows);
            }
        }
    }

    /// Cuts or joins the task as wanted. Returns its parts, if it has any.
    pub(super) fn parts_as_wanted(&self, core: &mut Core) -> Option<Arc<Parts>> {
        let parts = self.parts.read().clone();
        let wanted = self.parts_wanted.load(Ordering::Acquire);
        if parts.as_ref().map_or(1, |parts| parts.count()) == wanted {
            return parts;
        }
        if let Some(parts) = parts {
            self.join(core, &parts);
        }
        // Events of removed queries are recognised by their slots, which only the whole task knows.
        if wanted == 1 || core.host.table().has_retired() || core.host.table().live() == 0 {
            return None;
        }
        let workers = self.wanted_on.lock().clone();
        match self.cut_up(core, &workers) {
            Ok(parts) => {
                *self.parts.write() = Some(parts.clone());
                (1..parts.count()).for_each(|number| parts.wake(number));
                Some(parts)
            }
            Err(error) => {
                self.parts_wanted.store(1, Ordering::Release);
                self.wanted_on.lock().clear();
                tracing::error!(application = self.name(), "a query stays in one piece: {error}");
                None
            }
        }
    }

    /// Makes the parts. After an error everything is unchanged.
    fn cut_up(&self, core: &mut Core, workers: &[usize]) -> Result<Arc<Parts>, StateError> {
        let count = workers.len() + 1;
        let (cut, key_groups) = (self.settings.cut.clone(), core.host.key_groups());
        let now_us = self.pool.clock.now_us();
        let mut cores = Vec::with_capacity(count);
        for number in 0..count {
            let mut parts = (self.settings.make)();
            let host = core.host.fork(parts.decoder, parts.chain, now_us, &mut *parts.sink);
            let mut of_part = Core::new(host, parts.sink);
            of_part.note(self.name());
            if matches!(cut, Cut::ByKey(_)) {
                let own = StateSelection::KeyGroups(key_groups, key_groups.range_of(number, count));
                of_part.host.import_state(&core.host.export_state(&own)?)?;
            }
            cores.push(of_part);
        }
        // The first part is the task itself, with its share of the state.
        core.host.become_part(cores.remove(0).host);
        let deadline_us = |core: &Core| AtomicI64::new(core.host.deadline_us().unwrap_or(i64::MAX));
        let deadlines_us = std::iter::once(&*core).chain(&cores).map(deadline_us).collect();
        let name: Arc<str> = self.name().into();
        Ok(Arc::new_cyclic(|parts| Parts {
            pool: self.pool.clone(),
            first: self.myself.clone(),
            cut,
            key_groups,
            order: Mutex::new(Order::new(count)),
            deadlines_us,
            ticked_us: AtomicI64::new(i64::MIN),
            is_over: AtomicBool::new(false),
            others: cores
                .into_iter()
                .zip(workers)
                .enumerate()
                .map(|(index, (core, &worker))| {
                    let core = Arc::new(Mutex::new(Some(core)));
                    let part = Part {
                        task: self.myself.clone(),
                        parts: parts.clone(),
                        number: index + 1,
                        name: name.clone(),
                        worker,
                        standing: self.settings.standing(),
                        core: core.clone(),
                    };
                    OtherPart { runnable: Arc::new(part), core }
                })
                .collect(),
        }))
    }

    /// Joins the parts of the task, if it has any.
    pub(super) fn make_whole(&self, core: &mut Core) {
        let parts = self.parts.read().clone();
        if let Some(parts) = parts {
            self.join(core, &parts);
        }
    }

    /// Joins the parts. The caller runs the first one, or prevents its running.
    fn join(&self, core: &mut Core, parts: &Parts) {
        // A running part holds its core, and releases it only when each block it took is prepared.
        let mut others: Vec<MutexGuard<'_, Option<Core>>> = parts.others.iter().map(|part| part.core.lock()).collect();
        {
            let others = others.iter_mut().map(|other| other.as_mut().expect("parts are put together once"));
            let mut cores: Vec<&mut Core> = std::iter::once(&mut *core).chain(others).collect();
            self.finish_blocks(parts, &mut cores);
            if parts.has_state() {
                // All parts must have ticked as far as the furthest one: then none has anything left that was due
                // before.
                let ticked_us = parts.ticked_us.load(Ordering::Acquire);
                for core in &mut cores {
                    core.host.tick(ticked_us, &mut *core.sink);
                    core.finish(self.name());
                }
                let (whole, others) = cores.split_first_mut().expect("the first part is the task itself");
                let others: Vec<&SlotHost> = others.iter().map(|other| &other.host).collect();
                if let Err(error) = whole.host.take_state_of(&others) {
                    whole.metrics.refused[Reason::Internal as usize] += 1;
                    tracing::error!(application = self.name(), "state of a query in parts is lost: {error}");
                }
            }
        }
        for other in &mut others {
            if let Some(mut part) = other.take() {
                core.metrics.merge(&part.metrics);
                core.host.take_tallies_of(&mut part.host);
            }
        }
        parts.is_over.store(true, Ordering::Release);
        *self.parts.write() = None;
        drop(others);
        core.host.end_parts();
        self.note_deadline(core);
        // No part may be left that would check the inbox.
        if !self.inbox.is_empty() {
            self.schedule_myself();
        }
    }

    /// Finishes the blocks that were taken.
    fn finish_blocks(&self, parts: &Parts, cores: &mut [&mut Core]) {
        loop {
            let next = parts.order.lock().next_in_turn();
            let Some(number) = next else { break };
            let in_turn = parts.order.lock().turn_of(number);
            let Some((block, times)) = in_turn else { break };
            self.send(parts, cores[number], block, &times);
        }
        for (number, core) in cores.iter_mut().enumerate() {
            loop {
                let next = parts.order.lock().next_of(number);
                let Some(block) = next else { break };
                self.process_own(parts, number, core, &block);
            }
        }
    }

    /// One activation of a part.
    pub(super) fn run_part(&self, parts: &Parts, number: usize, core: &mut Core, budget: Budget) -> Activation {
        let clock = &self.pool.clock;
        let (start_us, begun_us) = (clock.now_us(), clock.steady_us());
        let (mut rows, mut spare) = (0, None);
        let outcome = loop {
            if !core.sink.has_room() {
                break Activation::Blocked;
            }
            match parts.next(&self.inbox, number, spare.take(), budget.left(rows)) {
                Work::Nothing => break Activation::Ran(rows),
                Work::Send(block, times) => self.send(parts, core, block, &times),
                Work::Own(block) => self.process_own(parts, number, core, &block),
                Work::Prepare(block, chunk) => {
                    rows += chunk.rows();
                    spare = Some(self.prepare(parts, number, core, block, chunk));
                }
            }
            if budget.is_spent(rows, clock.steady_us() - begun_us) {
                break Activation::Yielded(rows);
            }
        };
        if spare.is_some() {
            self.inbox.lock().keep(spare);
        }
        if outcome != Activation::Blocked {
            self.tick_part(parts, number, core, start_us - TICK_GRACE_US);
        }
        let busy_us = (clock.steady_us() - begun_us).max(0) as u64;
        core.metrics.activations += 1;
        core.metrics.busy_us += busy_us;
        self.busy_us.fetch_add(busy_us, Ordering::Relaxed);
        self.note_deadline_of(parts, number, core);
        if number == 0 {
            // The timekeeper knows the task, not its parts.
            let is_due =
                |number: &usize| parts.deadlines_us[*number].load(Ordering::Acquire) <= start_us - TICK_GRACE_US;
            (1..parts.count()).filter(is_due).for_each(|number| parts.wake(number));
        }
        outcome
    }

    /// Sends the results of a block whose turn it is.
    fn send(&self, parts: &Parts, core: &mut Core, block: u64, times: &Times) {
        // Dropped, and so handed over, when everything is sent or has failed: only then may the next block be sent.
        let _under_way = UnderWay { parts, block: Some(block) };
        core.finish(self.name());
        times.record(&mut core.metrics, self.pool.clock.now_us());
    }

    /// Decodes a block, runs it as far as possible without state, and hands it over. Returns the memory of its events.
    fn prepare(&self, parts: &Parts, number: usize, core: &mut Core, block: u64, chunk: Chunk) -> Chunk {
        let mut under_way = UnderWay { parts, block: Some(block) };
        let (now_us, events) = (self.pool.clock.now_us(), chunk.rows());
        core.host.table().take_leaps(&*self.pool.clock);
        core.count_events(&chunk, now_us);
        let batch = core.host.decode(&chunk);
        let arrival_us = chunk.arrival_us(batch.as_ref().map_or(&[], |batch| &batch.arrival_us)).to_vec();
        core.metrics.waiting_us += arrival_us.first().map_or(0, |first| (now_us - first).max(0)) as u64;
        let event_times =
            self.settings.event_time_column.zip(batch.as_ref()).map(|(column, batch)| batch.column(column).clone());
        let times = Times { arrival_us, event_times };
        match parts.cut {
            Cut::ByKey(place) => {
                let batches = batch.map_or_else(Vec::new, |batch| core.host.prepare(place, batch, now_us));
                core.finish(self.name());
                under_way.block = None;
                if batches.is_empty() {
                    times.record(&mut core.metrics, self.pool.clock.now_us());
                    parts.hand_over(block, None);
                } else {
                    let missing = AtomicUsize::new(parts.count());
                    parts.hand_over(block, Some(Arc::new(Block { batches, times, events, missing })));
                }
            }
            _ => {
                if let Some(batch) = batch {
                    core.host.process(batch, now_us, &mut *core.sink);
                }
                under_way.block = None;
                // Its turn may have come already; the next check sees that.
                parts.order.lock().park(number, block, times);
            }
        }
        chunk
    }

    /// Processes the rows of a part's own keys.
    fn process_own(&self, parts: &Parts, number: usize, core: &mut Core, block: &Block) {
        let processed = ProcessedByPart { parts, block };
        let Cut::ByKey(place) = parts.cut else { return };
        let now_us = self.pool.clock.now_us();
        core.host.table().take_leaps(&*self.pool.clock);
        for (batch, key_groups) in &block.batches {
            let own = parts.own(key_groups, number);
            core.host.process_own(place, batch, &own, now_us, &mut *core.sink);
        }
        core.finish(self.name());
        if processed.finish() {
            block.times.record(&mut core.metrics, self.pool.clock.now_us());
        }
    }

    /// As [`Task::tick`], for one part.
    fn tick_part(&self, parts: &Parts, number: usize, core: &mut Core, now_us: i64) {
        let is_due = |core: &Core, now_us| core.host.deadline_us().is_some_and(|deadline_us| deadline_us <= now_us);
        if !is_due(core, now_us) {
            return;
        }
        let under_way_us = self.oldest_under_way_us();
        let oldest_us = {
            let order = parts.order.lock();
            order.oldest_us(number).min(self.inbox.lock().oldest_arrival_us().unwrap_or(i64::MAX))
        };
        let now_us = now_us.min(oldest_us.min(under_way_us).saturating_sub(1));
        if is_due(core, now_us) {
            core.host.table().take_leaps(&*self.pool.clock);
            core.host.tick(now_us, &mut *core.sink);
            core.finish(self.name());
            parts.ticked_us.fetch_max(now_us, Ordering::AcqRel);
        }
    }

    fn note_deadline_of(&self, parts: &Parts, number: usize, core: &Core) {
        // Locked, so that of two parts the later one does not restore an older value.
        let _order = parts.order.lock();
        parts.deadlines_us[number].store(core.host.deadline_us().unwrap_or(i64::MAX), Ordering::Release);
        self.pool.deadlines.set(self.deadline, parts.deadline_us().saturating_add(TICK_GRACE_US));
    }
}

/// One of the further parts of a task.
struct Part {
    task: Weak<Task>,
    parts: Weak<Parts>,
    /// Its number; the task itself is number 0.
    number: usize,
    name: Arc<str>,
    worker: usize,
    standing: Standing,
    core: PartCore,
}

impl Runnable for Part {
    fn name(&self) -> &str {
        &self.name
    }

    fn worker(&self) -> usize {
        self.worker
    }

    fn standing(&self) -> &Standing {
        &self.standing
    }

    /// The pending events of the task: all parts take from its inbox.
    fn pending(&self) -> usize {
        self.task.upgrade().map_or(0, |task| task.pending())
    }

    fn run(&self, budget: Budget) -> Activation {
        let (Some(parts), Some(task)) = (self.parts.upgrade(), self.task.upgrade()) else { return Activation::Ran(0) };
        match self.core.lock().as_mut() {
            Some(core) => task.run_part(&parts, self.number, core, budget),
            None => Activation::Ran(0),
        }
    }

    fn has_work(&self) -> bool {
        let parts = self.parts.upgrade().filter(|parts| !parts.is_over.load(Ordering::Acquire));
        parts.zip(self.task.upgrade()).is_some_and(|(parts, task)| parts.has_work(&task.inbox, self.number))
    }
}

impl super::TaskSettings {
    /// Whether one query can use several workers here.
    pub(crate) fn can_be_cut(&self) -> bool {
        !self.passes_on && self.batch_rows_max.is_none() && !matches!(self.cut, Cut::Never(_))
    }
}
