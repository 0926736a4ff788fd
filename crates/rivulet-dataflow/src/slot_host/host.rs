//! [`SlotHost`]: queries of a group, their operators, and one call for each thing that can happen to them.

use std::collections::HashSet;
use std::ops::Range;

use arrow::array::RecordBatch;

use super::idle::Idle;
use super::progress::Progress;
use super::report::{Failure, SlotReport};
use super::table::Table;
use crate::operator::caught;
use crate::{
    Batch, Chain, Chunk, Control, Decoder, Element, Fault, GroupSink, Holding, OperatorError, QueryId, Reason,
    Refusals, Slot, SlotTable, StateError, StateFrame, StateSelection, Surroundings,
};

/// How many refused rows of one step keep their content for the dead-letter output; the others are only counted.
const REFUSED_CONTENT_MAX: usize = 256;

/// Queries of a group, stepped by calls alone: there is no thread, inbox, file or clock in it. Time and the sink come
/// with each call.
///
/// The driver gives events in four steps, and looks at them in between, for example to count:
/// [`skip_repeated`](Self::skip_repeated), [`accept`](Self::accept), [`decode`](Self::decode),
/// [`process`](Self::process). It calls [`tick`](Self::tick) when [`deadline_us`](Self::deadline_us) has come, and
/// [`flush`](Self::flush) at the end of each step. [`report`](Self::report) tells what all calls have done.
///
/// What must hold:
/// - Operators hear of a slot before its first row, and when it is removed.
/// - A query's parameters, state and [progress](super::Mark) belong to the same moment, between any two calls.
/// - A defect of an operator or of the decoder costs the rows of the call and nothing else; no call panics because of
///   it. A failure of user code costs the rows of its query.
pub struct SlotHost {
    pub(super) slots: Table,
    decoder: Box<dyn Decoder>,
    pub(super) chain: Chain,
    pub(super) refusals: Refusals,
    pub(super) idle: Idle,
    pub(super) progress: Option<Box<Progress>>,
    /// Whether events of queries are counted from the start, while they are few.
    pub(super) counts_few: bool,
    pub(super) report: SlotReport,
}

impl SlotHost {
    /// A host of the queries in this table, of which the operators do not know yet; usually there are none.
    pub fn new(slots: SlotTable, decoder: Box<dyn Decoder>, chain: Chain) -> Self {
        Self::over(slots.into(), decoder, chain)
    }

    pub(super) fn over(slots: Table, decoder: Box<dyn Decoder>, chain: Chain) -> Self {
        Self {
            slots,
            decoder,
            chain,
            refusals: Refusals::new(REFUSED_CONTENT_MAX),
            idle: Idle::default(),
            progress: None,
            counts_few: false,
            report: SlotReport::default(),
        }
    }

    /// Keeps the progress of each query, which checkpoints need: some 16 bytes for each.
    #[must_use]
    pub fn with_progress(self) -> Self {
        Self { progress: Some(Box::default()), ..self }
    }

    /// Counts what becomes of the events of each query as long as there are few.
    #[must_use]
    pub fn counting_few(self) -> Self {
        Self { counts_few: true, ..self }
    }

    /// The queries and their parameters.
    pub fn table(&self) -> &SlotTable {
        &self.slots
    }

    /// Adds queries, one for each row of `parameters`, and returns their slots.
    pub fn add(
        &mut self,
        queries: &[QueryId],
        parameters: &RecordBatch,
        now_us: i64,
        sink: &mut dyn GroupSink,
    ) -> Vec<Slot> {
        let slots = self.slots.add(queries, parameters);
        self.idle.note(&slots);
        if let Some(progress) = &mut self.progress {
            progress.reset(&slots);
        }
        self.tally_new(&slots, now_us);
        self.control(Control::AddSlots(slots.clone()), now_us, sink);
        slots
    }

    /// Removes all queries in these slots. Their numbers are free after [`SlotHost::recycle`].
    pub fn remove(&mut self, slots: &[Slot], now_us: i64, sink: &mut dyn GroupSink) {
        self.control(Control::RemoveSlots(slots.to_vec()), now_us, sink);
        self.slots.retire(slots);
        self.forget_tallies(slots);
        if let Some(progress) = &mut self.progress {
            progress.reset(slots);
        }
    }

    /// Frees the slots of removed queries: the driver knows that no event of theirs can come any more.
    pub fn recycle(&mut self) {
        self.slots.recycle();
    }

    /// Drops all state of these slots, ascending.
    pub fn begin_anew(&mut self, slots: &[Slot], now_us: i64, sink: &mut dyn GroupSink) {
        self.control(Control::RemoveSlots(slots.to_vec()), now_us, sink);
        self.control(Control::AddSlots(slots.to_vec()), now_us, sink);
    }

    /// Adds further queries to a slot: see [`SlotTable::share`].
    pub fn share(&mut self, slot: Slot, queries: &[QueryId], parameters: &RecordBatch) {
        self.slots.share(slot, queries, parameters);
    }

    /// Removes a query from a slot that others share: see [`SlotTable::leave`].
    pub fn leave(&mut self, slot: Slot, query: QueryId) -> bool {
        self.slots.leave(slot, query)
    }

    /// Gives queries the parameters of rows: each with its slot, its number and the row. `numbers` has the number of
    /// each change; 0 if a restart need not know it. Operators keep their state.
    pub fn set(&mut self, changes: &[(Slot, QueryId, usize)], numbers: &[u64], parameters: &RecordBatch) {
        self.slots.set(changes, parameters);
        let Some(progress) = &mut self.progress else { return };
        let noted = changes.iter().zip(numbers).filter(|(_, number)| **number > 0);
        noted.for_each(|((slot, ..), number)| progress.alter(*slot, *number));
    }

    /// Removes events that are already in the state of their slots, and those that fall into an absence of their query:
    /// the log repeats them after a restart. One that was in the inbox when its group fell behind may come from the log
    /// too, in the same chunk.
    pub fn skip_repeated(&self, chunk: &mut Chunk) {
        let Some(progress) = &self.progress else { return };
        // Behind the last repeated event, this check is the whole cost.
        if !chunk.has_positions() || !(0..chunk.rows()).any(|row| progress.may_repeat(chunk.stamp(row))) {
            return;
        }
        // What came from the log after it was in the inbox is not behind all that came before it.
        let key = |row: usize| (chunk.stamp(row), chunk.slots()[row]);
        let may_be_twice = (1..chunk.rows()).any(|row| key(row) <= key(row - 1));
        let mut seen = HashSet::new();
        let is_repeated = |row| {
            let (slot, stamp) = (chunk.slots()[row], chunk.stamp(row));
            progress.has_applied(slot, stamp)
                || progress.was_away(self.slots.query(slot), stamp)
                || (may_be_twice && stamp != 0 && !seen.insert((slot, stamp)))
        };
        let repeated: Vec<bool> = (0..chunk.rows()).map(is_repeated).collect();
        if repeated.contains(&true) {
            chunk.retain_rows(|row| !repeated[row]);
        }
    }

    /// Takes events in, which are processed next. Those of removed queries are counted and dropped.
    pub fn accept(&mut self, chunk: &mut Chunk) {
        if self.slots.has_retired() {
            let events = chunk.rows();
            chunk.retain_slots(|slot| self.slots.query(slot).is_some());
            self.report.refused[Reason::Removed as usize] += (events - chunk.rows()) as u64;
        }
        self.idle.note(chunk.slots());
        let Some(progress) = &mut self.progress else { return };
        if !chunk.has_positions() {
            return progress.change_all(chunk.slots().iter().copied());
        }
        for (row, &slot) in chunk.slots().iter().enumerate() {
            progress.note_event(slot, chunk.stamp(row));
        }
    }

    /// The rows of events; `None` if the decoder failed, which costs these events.
    pub fn decode(&mut self, chunk: &Chunk) -> Option<Batch> {
        self.refusals.keep_slots(self.slots.further() > 0);
        let events = match chunk {
            Chunk::Raw(events) => events,
            Chunk::Rows(picked) => {
                let rows = picked.to_batch();
                if let Some(tallies) = self.refusals.tallies_mut() {
                    tallies.decoded(&rows, None);
                }
                return Some(rows);
            }
        };
        let Self { decoder, refusals, .. } = self;
        let decoded = caught(|| Ok(decoder.decode(events, refusals)));
        if let (Ok(rows), Some(tallies)) = (&decoded, refusals.tallies_mut()) {
            tallies.decoded(rows, Some(events));
        }
        decoded.map_err(|error| self.failed(error, events.rows() as u64)).ok()
    }

    /// Runs rows through the operators and hands the results to the sink.
    pub fn process(&mut self, batch: Batch, now_us: i64, sink: &mut dyn GroupSink) {
        let rows = batch.rows() as u64;
        self.run(rows, now_us, sink, |chain, with, out| chain.process(Element::Batch(batch), with, out));
    }

    /// Lets operators do what is due by `now_us`, for example close windows of silent queries. The driver gives no
    /// event behind it that arrived before.
    pub fn tick(&mut self, now_us: i64, sink: &mut dyn GroupSink) {
        self.run(0, now_us, sink, |chain, with, out| chain.tick(with, out));
    }

    /// Ends the input: open windows are closed.
    pub fn end(&mut self, now_us: i64, sink: &mut dyn GroupSink) {
        self.run(0, now_us, sink, |chain, with, out| chain.process(Element::End, with, out));
    }

    pub(super) fn control(&mut self, control: Control, now_us: i64, sink: &mut dyn GroupSink) {
        self.run(0, now_us, sink, |chain, with, out| chain.process(Element::Control(control), with, out));
    }

    /// Runs the chain and hands its output to the sink.
    pub(super) fn run(
        &mut self,
        rows: u64,
        now_us: i64,
        sink: &mut dyn GroupSink,
        act: impl FnOnce(&mut Chain, Surroundings<'_>, &mut dyn FnMut(Batch)) -> Result<(), OperatorError>,
    ) {
        self.refusals.keep_slots(self.slots.further() > 0);
        let Self { chain, slots, refusals, progress, report, .. } = self;
        let slots: &SlotTable = slots;
        let mut sink_error = None;
        let mut out = |batch: Batch| {
            report.results += batch.rows() as u64 + slots.further_of(&batch.slots);
            let numbers = progress.as_mut().map(|progress| progress.number(&batch.slots));
            if let Err(error) = sink.write(&batch, numbers, slots) {
                sink_error.get_or_insert(error);
            }
        };
        let with = Surroundings { now_us, slots, refusals };
        let outcome = caught(|| act(chain, with, &mut out));
        if let Some(error) = sink_error {
            self.report.add(Failure::Results(error));
        }
        if let Err(error) = outcome {
            self.failed(error, rows);
        }
    }

    /// Counts what a failure has cost. Failures of user code were refused by the chain, row by row, unless they came
    /// without rows: in a timer, or when queries were added or removed.
    pub(super) fn failed(&mut self, error: OperatorError, rows: u64) {
        match error.fault {
            Fault::UserCode => {
                self.refusals.count(Reason::UserCode, error.slots.len().max(1) as u64);
                self.report.add(Failure::Operator(error, 0));
            }
            Fault::Engine => {
                self.refusals.count(Reason::Internal, rows);
                self.report.add(Failure::Operator(error, rows));
            }
        }
    }

    /// Hands refused rows to the sink and lets it send what it has.
    pub fn flush(&mut self, sink: &mut dyn GroupSink) {
        let Self { slots, refusals, report, .. } = self;
        if !refusals.is_empty() {
            for reason in Reason::ALL {
                report.refused[reason as usize] += refusals.counted(reason);
            }
            for &(reason, slot) in refusals.slots() {
                report.refused[reason as usize] += slots.further_of(&[slot]);
            }
            let has_told = !refusals.records().is_empty() || !refusals.seconds().is_empty();
            if has_told && let Err(error) = sink.refused(refusals, slots) {
                report.add(Failure::Refused(error));
            }
            refusals.clear();
        }
        if let Err(error) = sink.flush() {
            report.add(Failure::Flush(error));
        }
    }

    /// What was done since the last report. Refusals count from the next [`SlotHost::flush`] on.
    #[must_use]
    pub fn report(&mut self) -> SlotReport {
        std::mem::take(&mut self.report)
    }

    /// When operators next have something to do, microseconds since the epoch; `None` if they wait for events only.
    pub fn deadline_us(&self) -> Option<i64> {
        self.chain.deadline_us()
    }

    /// The same for one slot.
    pub fn slot_deadline_us(&self, slot: Slot) -> Option<i64> {
        self.chain.slot_deadline_us(slot)
    }

    /// What each operator holds for a slot, in chain order.
    pub fn holdings(&self, slot: Slot) -> Vec<Option<Holding>> {
        self.chain.holdings(slot)
    }

    /// The selected state of every operator.
    ///
    /// # Errors
    /// State that cannot be exported.
    pub fn export_state(&self, selection: &StateSelection) -> Result<Vec<Option<StateFrame>>, StateError> {
        self.chain.export_state(selection)
    }

    /// Imports state that was exported from a host of the same operators, with the slots of this host.
    ///
    /// # Errors
    /// State of other operators.
    pub fn import_state(&mut self, frames: &[Option<StateFrame>]) -> Result<(), StateError> {
        self.chain.import_state(frames)
    }

    /// Whether any operator has state.
    ///
    /// # Errors
    /// State that cannot be exported.
    pub fn is_stateful(&self) -> Result<bool, StateError> {
        Ok(self.chain.export_state(&StateSelection::Slots(Vec::new()))?.iter().any(Option::is_some))
    }

    /// Counts one more sweep of silence for every query.
    pub fn age(&mut self) {
        self.idle.age(self.slots.capacity());
    }

    /// The slots in a range whose query [is silent](Self::is_silent).
    pub fn silent(&self, range: Range<Slot>, sweeps: u8, until_us: i64) -> Vec<Slot> {
        let is_silent = |slot: &Slot| self.is_silent(*slot, sweeps, until_us) && self.slots.query(*slot).is_some();
        range.filter(is_silent).collect()
    }

    /// Whether `sweeps` sweeps have passed since the slot's last event and nothing is due before `until_us`.
    pub fn is_silent(&self, slot: Slot, sweeps: u8, until_us: i64) -> bool {
        self.idle.has_passed(slot, sweeps) && self.slot_deadline_us(slot).is_none_or(|due_us| due_us >= until_us)
    }

    /// Replaces the tables of a host without queries by new ones: they do not shrink by themselves.
    ///
    /// # Panics
    /// If there are queries.
    pub fn renew(&mut self, slots: SlotTable, chain: Chain) {
        assert_eq!(self.slots.live(), 0, "a host that is renewed has no queries");
        (self.slots, self.chain, self.idle) = (slots.into(), chain, Idle::default());
        self.progress = self.progress.is_some().then(Box::default);
    }

    /// State held by the operators, in bytes.
    pub fn state_bytes(&self) -> usize {
        self.chain.memory_bytes()
    }

    /// Memory held by parameters, state and progress, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
            + self.chain.memory_bytes()
            + self.idle.memory_bytes()
            + self.progress.as_ref().map_or(0, |progress| progress.memory_bytes())
    }
}
