//! The host of one instance of a stage: it steps the operators, aligns watermarks and barriers of the channels, and
//! saves and restores state.
//!
//! The host is driven by calls alone. [`StageHost::give`] takes elements by channel. Each [`StageHost::step`] does one
//! bounded piece of the work and hands the output to a callback. Between two steps the driver checks whether there is
//! room for more output and whether another task should have its turn. Time, queries and refused rows come with each
//! call.
//!
//! What must hold:
//! - Operators get the rows of a channel in order, and the watermark of all channels behind the rows that were given
//!   before it.
//! - An element other than a batch is passed on behind all output that it causes. The end is passed on last, and once.
//! - At a barrier nothing is in flight: all that was given before it is in the state or has left. The driver gives
//!   nothing behind the barrier of a channel until [`StageHost::pass_barrier`] or [`StageHost::give_up_barrier`].
//!
//! The operators may be elsewhere. Then the driver takes what they are to process with [`StageHost::take_next`], and
//! tells the host by [`StageHost::pass`] when they have done so. It takes nothing behind an end or a barrier before.

use std::collections::VecDeque;

use arrow::error::ArrowError;

use super::snapshot::StageSnapshot;
use super::watermarks::Watermarks;
use crate::operator::caught;
use crate::{Batch, Chain, Element, OperatorError, StateError, StateFrame, Surroundings};

/// One instance of a stage.
#[derive(Debug)]
pub struct StageHost {
    chain: Chain,
    channels: Channels,
    /// Batches and control elements that were given and not processed, each with its input.
    pending: VecDeque<(usize, Element)>,
    /// Small batches are joined up to this number of rows.
    batch_rows: usize,
    /// The watermark of the restored state, until operators have been told.
    begins_at_us: Option<i64>,
    /// The element, other than a batch, that operators are still processing.
    in_hand: Option<Element>,
    /// The barrier at which the host waits.
    at_barrier: Option<u64>,
    /// Whether elements were given or have left since the last step without work.
    has_work: bool,
    /// Whether open windows are dropped at the end, at the driver's request.
    discards_open: bool,
    /// Whether the restored state had ended: nothing is open.
    had_ended: bool,
    has_ended: bool,
}

/// The state of the channels that lead to a stage.
#[derive(Debug)]
struct Channels {
    /// For each channel the input of the first operator.
    inputs: Vec<usize>,
    watermarks: Watermarks,
    /// The newest barrier of each channel.
    barriers: Vec<u64>,
    /// The newest barrier that was passed or abandoned.
    passed: u64,
}

impl Channels {
    /// The barrier that has come by all open channels, if it is a new one.
    fn aligned(&self) -> Option<u64> {
        let open = (0..self.barriers.len()).filter(|&channel| !self.watermarks.is_ended(channel));
        open.map(|channel| self.barriers[channel]).min().filter(|&number| number > self.passed)
    }
}

impl StageHost {
    /// Makes a host without state. `inputs` has for each channel the input of the first operator that its rows are for.
    /// Consecutive small batches are joined up to `batch_rows`.
    pub fn new(chain: Chain, inputs: Vec<usize>, batch_rows: usize) -> Self {
        let count = inputs.len();
        let channels = Channels { inputs, watermarks: Watermarks::new(count), barriers: vec![0; count], passed: 0 };
        Self {
            chain,
            channels,
            pending: VecDeque::new(),
            batch_rows,
            begins_at_us: None,
            in_hand: None,
            at_barrier: None,
            has_work: false,
            discards_open: false,
            had_ended: false,
            has_ended: false,
        }
    }

    /// Continues from a snapshot and the state of each operator, restricted to the key groups of this instance: before
    /// the first step of the operators.
    ///
    /// # Errors
    /// State of other operators.
    pub fn restore(&mut self, snapshot: &StageSnapshot, state: &[Option<StateFrame>]) -> Result<(), StateError> {
        if !state.is_empty() {
            self.chain.import_state(state)?;
        }
        self.begins_at_us = snapshot.reached_us;
        self.channels.watermarks.begin_at(snapshot.reached_us);
        if snapshot.has_ended {
            self.had_ended = true;
            (0..self.channels.inputs.len()).for_each(|channel| self.channels.watermarks.end(channel));
        }
        self.has_work |= snapshot.reached_us.is_some() || snapshot.has_ended;
        Ok(())
    }

    /// Takes an element of a channel. The driver bounds how many it gives between steps.
    pub fn give(&mut self, channel: usize, element: Element) {
        let Channels { inputs, watermarks, barriers, .. } = &mut self.channels;
        match element {
            Element::Batch(_) | Element::Control(_) => self.pending.push_back((inputs[channel], element)),
            Element::Watermark(watermark_us) => watermarks.advance(channel, watermark_us),
            Element::Barrier(number) => barriers[channel] = number,
            Element::End => watermarks.end(channel),
            Element::Clocks(_) => return,
        }
        self.has_work = true;
    }

    /// Whether a step would do anything.
    pub fn has_work(&self) -> bool {
        self.has_work && self.at_barrier.is_none()
    }

    /// The number of rows that were given and not processed; at least one where the current element has more output.
    pub fn rows_waiting(&self) -> usize {
        let pending = self.pending.iter().map(|(_, element)| match element {
            Element::Batch(batch) => batch.rows(),
            _ => 0,
        });
        pending.sum::<usize>().max(usize::from(self.chain.has_more()))
    }

    /// Whether the current element has more output, so that other tasks should have a turn before the next step.
    pub fn has_more(&self) -> bool {
        self.chain.has_more()
    }

    /// Does one piece of the work; `out` gets what leaves the stage.
    ///
    /// # Errors
    /// An operator failed or panicked, which is a defect. What it emitted before has left the stage, which must not be
    /// stepped any more.
    pub fn step(&mut self, with: Surroundings<'_>, out: &mut dyn FnMut(Element)) -> Result<(), OperatorError> {
        let next = if self.chain.has_more() { None } else { self.next()? };
        if next.is_none() && !self.chain.has_more() {
            self.has_work = false;
            return Ok(());
        }
        let Self { chain, in_hand, .. } = self;
        let mut leave = |batch: Batch| out(Element::Batch(batch));
        let result = match next {
            None => caught(|| chain.go_on(with, &mut leave)),
            Some((_, Element::End)) if self.discards_open || self.had_ended => {
                *in_hand = Some(Element::End);
                Ok(())
            }
            Some((input, element)) => {
                *in_hand = (!matches!(element, Element::Batch(_))).then(|| element.clone());
                caught(|| chain.process_input(input, element, with, &mut leave))
            }
        };
        if !self.chain.has_more() {
            self.complete(out);
        }
        result
    }

    /// The next element, and its input, for operators that are elsewhere. A barrier or the end comes again until it is
    /// passed.
    ///
    /// # Errors
    /// Batches of different columns.
    pub fn take_next(&mut self) -> Result<Option<(usize, Element)>, ArrowError> {
        let next = self.next()?;
        self.has_work = next.is_some();
        Ok(next)
    }

    /// Operators that are elsewhere have processed this element; all their output before it has left.
    pub fn pass(&mut self, element: Element, out: &mut dyn FnMut(Element)) {
        match element {
            Element::Batch(batch) => return out(Element::Batch(batch)),
            // Of a source that is read elsewhere.
            Element::Watermark(watermark_us) => {
                self.channels.watermarks.begin_at(self.reached_us().max(Some(watermark_us)));
            }
            _ => {}
        }
        self.in_hand = Some(element);
        self.has_work = true;
        self.complete(out);
    }

    /// Whether operators have processed each element that they got, and wait for the next: they may be exchanged.
    pub fn is_between(&self) -> bool {
        let is_told = self.in_hand.is_none() && !self.chain.has_more() && self.begins_at_us.is_none();
        is_told && self.at_barrier.is_none() && !self.had_ended && !self.has_ended
    }

    /// Makes operators emit what they hold back, as at a barrier, so that their state can be exported.
    ///
    /// # Errors
    /// As [`StageHost::step`].
    pub fn flush(&mut self, with: Surroundings<'_>, out: &mut dyn FnMut(Element)) -> Result<(), OperatorError> {
        caught(|| self.chain.process(Element::Barrier(0), with, &mut |batch| out(Element::Batch(batch))))
    }

    /// Puts other operators in the place of these, which it returns. [`StageHost::restore`] gives them state, and the
    /// watermark first.
    pub fn exchange(&mut self, chain: Chain) -> Chain {
        std::mem::replace(&mut self.chain, chain)
    }

    /// The next element for the operators, and its input.
    fn next(&mut self) -> Result<Option<(usize, Element)>, ArrowError> {
        if self.has_ended || self.at_barrier.is_some() {
            return Ok(None);
        }
        // The operators, and the stages behind, get the restored watermark before the first row.
        if let Some(reached_us) = self.begins_at_us.take() {
            return Ok(Some((0, Element::Watermark(reached_us))));
        }
        if let Some(pending) = self.next_pending()? {
            return Ok(Some(pending));
        }
        let channels = &mut self.channels;
        let element = if let Some(watermark_us) = channels.watermarks.advanced() {
            Some(Element::Watermark(watermark_us))
        } else if channels.watermarks.has_ended() {
            Some(Element::End)
        } else {
            channels.aligned().map(Element::Barrier)
        };
        Ok(element.map(|element| (0, element)))
    }

    /// The next element of those given. Consecutive batches of one input are joined, so batches grow with the load.
    fn next_pending(&mut self) -> Result<Option<(usize, Element)>, ArrowError> {
        let (input, first) = match self.pending.pop_front() {
            Some((input, Element::Batch(batch))) => (input, batch),
            other => return Ok(other),
        };
        // For larger batches the copy costs more than it saves.
        let (rows_min, rows_max) = (self.batch_rows / 8, self.batch_rows);
        let mut rows = first.rows();
        if rows >= rows_min {
            return Ok(Some((input, Element::Batch(first))));
        }
        let mut batches = vec![first];
        while rows < rows_min {
            let fits = |(next, element): &mut (usize, Element)| {
                *next == input && matches!(element, Element::Batch(batch) if rows + batch.rows() <= rows_max)
            };
            let Some((_, Element::Batch(batch))) = self.pending.pop_front_if(fits) else { break };
            rows += batch.rows();
            batches.push(batch);
        }
        Ok(Some((input, Element::Batch(Batch::concat(batches)?))))
    }

    /// Called when all output of the current element has left.
    fn complete(&mut self, out: &mut dyn FnMut(Element)) {
        match self.in_hand.take() {
            None => {}
            Some(Element::Barrier(number)) => self.at_barrier = Some(number),
            Some(element) => {
                self.has_ended = matches!(element, Element::End);
                out(element);
            }
        }
    }

    /// Lets operators do what is due by the time of the call. At a barrier it does nothing: the output would be in the
    /// state and come again.
    ///
    /// # Errors
    /// As [`StageHost::step`].
    pub fn tick(&mut self, with: Surroundings<'_>, out: &mut dyn FnMut(Element)) -> Result<(), OperatorError> {
        if self.deadline_us().is_none_or(|deadline_us| deadline_us > with.now_us) {
            return Ok(());
        }
        caught(|| self.chain.tick(with, &mut |batch| out(Element::Batch(batch))))
    }

    /// When operators next have something to do, microseconds since the epoch; `None` if they wait for elements only.
    pub fn deadline_us(&self) -> Option<i64> {
        let rests = self.has_ended || self.had_ended || self.at_barrier.is_some();
        if rests { None } else { self.chain.deadline_us() }
    }

    /// The barrier at which the host waits, behind all rows before it; `None` if it does not wait.
    pub fn barrier(&self) -> Option<u64> {
        self.at_barrier
    }

    /// Exports the state to `into`, as [`Chain::export_parts`] does, and returns the rest of the snapshot. The driver
    /// adds partitions and sink.
    ///
    /// # Errors
    /// State that cannot be exported, or an error of `into`.
    ///
    /// # Panics
    /// If the host neither waits at a barrier nor is between two elements ([`StageHost::flush`] comes first then):
    /// operators may hold rows that are not part of any state.
    pub fn snapshot(
        &self,
        rows_max: usize,
        into: &mut dyn FnMut(usize, usize, StateFrame) -> Result<(), StateError>,
    ) -> Result<StageSnapshot, StateError> {
        assert!(self.at_barrier.is_some() || self.is_between(), "a snapshot is made at a barrier");
        self.chain.export_parts(rows_max, into)?;
        Ok(StageSnapshot { reached_us: self.reached_us(), ..StageSnapshot::default() })
    }

    /// Passes the barrier on and continues behind it.
    pub fn pass_barrier(&mut self, out: &mut dyn FnMut(Element)) {
        if let Some(number) = self.at_barrier {
            out(Element::Barrier(number));
            self.give_up_barrier();
        }
    }

    /// Continues as if there had been no barrier; receivers get none.
    pub fn give_up_barrier(&mut self) {
        if let Some(number) = self.at_barrier.take() {
            self.channels.passed = number;
            self.has_work = true;
        }
    }

    /// Sets whether open windows are dropped at the end instead of emitted. The last call before the end counts.
    pub fn discard_open(&mut self, discards: bool) {
        self.discards_open = discards;
    }

    /// Whether the end has left the stage.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The highest watermark so far, microseconds since the epoch; `None` before the first.
    pub fn reached_us(&self) -> Option<i64> {
        self.channels.watermarks.reached_us()
    }

    /// State held by the operators, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.chain.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use arrow::datatypes::Schema;

    use super::*;
    use crate::{Context, Operator, Refusals, SlotTable};

    /// A stage that only passes rows on, and its output as text.
    struct Stage(StageHost);

    impl Stage {
        fn new(channels: usize) -> Self {
            Self(StageHost::new(Chain::new(Vec::new()), vec![0; channels], 16))
        }

        fn give(&mut self, elements: impl IntoIterator<Item = (usize, Element)>) -> Vec<String> {
            elements.into_iter().for_each(|(channel, element)| self.0.give(channel, element));
            let (slots, mut refusals) = (SlotTable::new(Arc::new(Schema::empty())), Refusals::new(0));
            let mut left = Vec::new();
            while self.0.has_work() {
                let with = Surroundings { now_us: 0, slots: &slots, refusals: &mut refusals };
                self.0.step(with, &mut |element| left.push(words(&element))).unwrap();
            }
            left
        }

        fn pass(&mut self) -> Vec<String> {
            let mut left = Vec::new();
            self.0.pass_barrier(&mut |element| left.push(words(&element)));
            left.extend(self.give([]));
            left
        }
    }

    fn words(element: &Element) -> String {
        match element {
            Element::Batch(batch) => format!("{} rows", batch.rows()),
            other => format!("{other:?}"),
        }
    }

    fn rows(rows: usize) -> Element {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1; rows]));
        let columns = RecordBatch::try_from_iter([("v", column)]).unwrap();
        Element::Batch(Batch::new(vec![0; rows].into(), vec![0; rows].into(), vec![0; rows].into(), columns))
    }

    #[test]
    fn the_lowest_watermark_leaves_behind_the_rows_and_small_batches_are_put_together() {
        let mut stage = Stage::new(2);
        assert_eq!(stage.give([(0, Element::Watermark(5)), (0, rows(1)), (0, rows(20)), (1, rows(1))]).len(), 3);
        assert_eq!(stage.give([(0, rows(1)), (0, rows(1)), (1, Element::Watermark(3))]), ["2 rows", "Watermark(3)"]);
        assert_eq!(stage.give([(1, Element::Watermark(2))]), [""; 0]);
        assert_eq!(stage.give([(0, Element::End)]), [""; 0]);
        assert_eq!(stage.give([(1, Element::Watermark(9)), (1, Element::End)]), ["End"]);
        assert!(stage.0.has_ended() && stage.give([]).is_empty());
    }

    #[test]
    fn a_barrier_waits_for_all_channels_that_are_open_and_for_the_driver() {
        let mut stage = Stage::new(3);
        assert_eq!(stage.give([(0, Element::Barrier(1)), (2, Element::End), (1, rows(1))]), ["1 rows"]);
        assert_eq!(stage.0.barrier(), None);
        assert_eq!(stage.give([(1, Element::Barrier(1))]), [""; 0]);
        assert_eq!((stage.0.barrier(), stage.0.has_work()), (Some(1), false));
        stage.0.snapshot(1, &mut |_, _, _| panic!("it has no state")).unwrap();
        assert_eq!(stage.pass(), ["Barrier(1)"]);
        stage.give([(0, Element::Barrier(2)), (1, Element::Barrier(2))]);
        stage.0.give_up_barrier();
        assert_eq!(stage.give([]), [""; 0]);
        assert_eq!(stage.give([(0, rows(1))]), ["1 rows"]);
    }

    /// Keeps a batch until the end.
    struct Keeps(Option<Batch>);

    impl Operator for Keeps {
        fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
            match element {
                Element::Batch(batch) => self.0 = Some(batch),
                Element::Barrier(_) | Element::End => self.0.take().into_iter().for_each(|batch| context.emit(batch)),
                _ => {}
            }
            Ok(())
        }
    }

    /// Panics at every batch, and in a timer.
    struct Panics;

    impl Operator for Panics {
        fn process(&mut self, element: Element, _: &mut Context<'_>) -> Result<(), OperatorError> {
            assert!(!matches!(element, Element::Batch(_)), "at rows");
            Ok(())
        }

        fn deadline_us(&self) -> Option<i64> {
            Some(5)
        }

        fn tick(&mut self, _: &mut Context<'_>) -> Result<(), OperatorError> {
            panic!("in a timer")
        }
    }

    #[test]
    fn no_panic_of_an_operator_gets_out() {
        let (slots, mut refusals) = (SlotTable::new(Arc::new(Schema::empty())), Refusals::new(0));
        let mut host = StageHost::new(Chain::new(vec![Box::new(Panics)]), vec![0], 16);
        host.give(0, rows(1));
        let with = Surroundings { now_us: 4, slots: &slots, refusals: &mut refusals };
        assert_eq!(host.step(with, &mut |_| {}), Err(OperatorError::new("at rows")));
        let with = Surroundings { now_us: 5, slots: &slots, refusals: &mut refusals };
        assert_eq!(host.tick(with, &mut |_| {}), Err(OperatorError::new("in a timer")));
    }

    #[test]
    fn what_is_open_at_the_end_is_forgotten_if_that_was_said_last() {
        for (said, left) in
            [(&[true][..], &["End"][..]), (&[true, false], &["1 rows", "End"]), (&[false, true], &["End"])]
        {
            let chain = Chain::new(vec![Box::new(Keeps(None))]);
            let mut stage = Stage(StageHost::new(chain, vec![0], 16));
            for &discards in said {
                stage.0.discard_open(discards);
                assert_eq!(stage.give([(0, rows(1))]), [""; 0]);
            }
            assert_eq!(stage.give([(0, Element::End)]), left);
        }
    }

    #[test]
    fn one_that_goes_on_tells_how_far_it_was_and_one_that_had_ended_ends() {
        let mut stage = Stage::new(1);
        stage.0.restore(&StageSnapshot { reached_us: Some(7), ..StageSnapshot::default() }, &[]).unwrap();
        assert_eq!(stage.give([(0, rows(1)), (0, Element::Watermark(7))]), ["Watermark(7)", "1 rows"]);
        let mut stage = Stage::new(1);
        stage.0.restore(&StageSnapshot { has_ended: true, ..StageSnapshot::default() }, &[]).unwrap();
        assert_eq!((stage.give([]), stage.0.has_ended()), (vec!["End".into()], true));
        // Its operators are without their state, so no timer of theirs runs before that.
        let mut host = StageHost::new(Chain::new(vec![Box::new(Panics)]), vec![0], 16);
        assert_eq!(host.deadline_us(), Some(5));
        host.restore(&StageSnapshot { has_ended: true, ..StageSnapshot::default() }, &[]).unwrap();
        assert_eq!(host.deadline_us(), None);
    }
    #[test]
    fn a_flush_gives_what_is_held_and_waits_for_nobody() {
        let mut stage = Stage(StageHost::new(Chain::new(vec![Box::new(Keeps(None))]), vec![0], 16));
        assert_eq!(stage.give([(0, rows(1))]), [""; 0]);
        assert!(stage.0.is_between());
        let (slots, mut refusals) = (SlotTable::new(Arc::new(Schema::empty())), Refusals::new(0));
        let with = Surroundings { now_us: 0, slots: &slots, refusals: &mut refusals };
        let mut left = Vec::new();
        stage.0.flush(with, &mut |element| left.push(words(&element))).unwrap();
        assert_eq!((left, stage.0.barrier()), (vec!["1 rows".into()], None));
        assert!(stage.0.snapshot(10, &mut |_, _, _| Ok(())).is_ok());
        assert_eq!(stage.give([(0, Element::Barrier(3))]), [""; 0]);
        assert!(!stage.0.is_between());
        assert_eq!(stage.pass(), ["Barrier(3)"]);
    }

    #[test]
    fn a_chain_that_is_exchanged_hears_its_watermark_first() {
        let mut stage = Stage::new(1);
        assert_eq!(stage.give([(0, rows(1)), (0, Element::Watermark(7))]), ["1 rows", "Watermark(7)"]);
        stage.0.exchange(Chain::new(Vec::new()));
        stage.0.restore(&StageSnapshot { reached_us: stage.0.reached_us(), ..StageSnapshot::default() }, &[]).unwrap();
        assert!(!stage.0.is_between(), "it is yet to hear it");
        let elements = [(0, rows(2)), (0, Element::Watermark(7)), (0, Element::Watermark(8))];
        assert_eq!(stage.give(elements), ["Watermark(7)", "2 rows", "Watermark(8)"]);
    }

    #[test]
    fn what_is_processed_elsewhere_is_taken_in_order_and_passed() {
        let mut stage = Stage::new(2);
        let mut left = Vec::new();
        let mut pass = |host: &mut StageHost, element| host.pass(element, &mut |element| left.push(words(&element)));
        stage.0.give(0, rows(2));
        (0..2).for_each(|channel| stage.0.give(channel, Element::Watermark(5)));
        (0..2).for_each(|channel| stage.0.give(channel, Element::Barrier(1)));
        let take = |host: &mut StageHost| host.take_next().unwrap().map(|(_, element)| words(&element));
        let taken = [0; 4].map(|_| take(&mut stage.0).unwrap_or_default());
        assert_eq!(taken, ["2 rows", "Watermark(5)", "Barrier(1)", "Barrier(1)"]);
        pass(&mut stage.0, rows(1));
        pass(&mut stage.0, Element::Watermark(5));
        pass(&mut stage.0, Element::Barrier(1));
        assert_eq!((stage.0.barrier(), take(&mut stage.0), stage.0.reached_us()), (Some(1), None, Some(5)));
        stage.0.give_up_barrier();
        assert!(stage.0.has_work() && take(&mut stage.0).is_none() && !stage.0.has_work());
        pass(&mut stage.0, Element::End);
        assert_eq!((left, stage.0.has_ended()), (vec!["1 rows".into(), "Watermark(5)".into(), "End".into()], true));
    }
}
