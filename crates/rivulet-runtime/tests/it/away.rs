//! Tasks whose operators run elsewhere, at the other end of a pair of pipes in memory. Both sides are stepped in an
//! order of the seed, and what is under way arrives when the seed says so: the streams are in no order to each other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_dataflow::{
    Address, Batch, CollectedState, Context, Dataflow, Description, EdgeKind, Element, ManualClock, Operator,
    OperatorError, OperatorFactory, PartitionState, Polled, Reason, Refusals, Sink, SinkError, Snapshot, Source,
    SourceError, StateError, StateFrame, StateSelection, Work,
};
use rivulet_runtime::flow::checkpoint::CheckpointError;
use rivulet_runtime::{
    Flow, FlowParts, Guest, GuestParts, MoveError, MoveStep, Partition, Phase, Pipe, PipeError, Placement, SourceTime,
    Waker, Word, Workers,
};

use crate::flows::{Collected, CountByKey, Numbers, Then, numbers, parts, schema, workers};

type Place = (usize, usize);

/// Rows of all sources together, and of a batch.
const ROWS: i64 = 6_000;
const BATCH_ROWS: usize = 150;

/// What a task may have, and what one with counts says that it has.
const STATE_BYTES: usize = 1_000;

/// More than any test needs, and less than would take a second.
const STEPS_MAX: usize = 200_000;

/// What was sent, and what of it has arrived.
struct Stream<T> {
    sent: VecDeque<T>,
    arrived: VecDeque<T>,
}

impl<T> Stream<T> {
    fn arrive(&mut self, count: usize) {
        let count = count.min(self.sent.len());
        self.arrived.extend(self.sent.drain(..count));
    }
}

impl<T> Default for Stream<T> {
    fn default() -> Self {
        Self { sent: VecDeque::new(), arrived: VecDeque::new() }
    }
}

/// One direction.
#[derive(Default)]
struct Way {
    elements: Mutex<Stream<(usize, Element)>>,
    words: Mutex<Stream<Word>>,
    /// Whether the sender found no room.
    is_waited_for: AtomicBool,
    /// Rows that were sent.
    rows: AtomicUsize,
    /// Wakes the sender, and the receiver.
    wakers: Mutex<[Option<Waker>; 2]>,
}

impl Way {
    fn wake(&self, receiver: bool) {
        let waker = self.wakers.lock()[usize::from(receiver)].clone();
        waker.iter().for_each(|waker| waker());
    }

    /// Lets some of what is under way arrive; whether there was anything.
    fn carry(&self, random: &mut StdRng) -> bool {
        let (words, count) = (random.random_bool(0.5), random.random_range(1..4));
        let under_way = [self.elements.lock().sent.len(), self.words.lock().sent.len()];
        if under_way == [0, 0] {
            return false;
        }
        if words && under_way[1] > 0 || under_way[0] == 0 {
            self.words.lock().arrive(count);
        } else {
            self.elements.lock().arrive(count);
        }
        self.wake(true);
        true
    }
}

/// Told how often it was asked whether something has come.
type OnAsked = Box<dyn FnMut(usize) + Send>;

/// What happens once.
type Happens = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// One end of a pair of pipes.
#[derive(Clone)]
struct End {
    out: Arc<Way>,
    into: Arc<Way>,
    room: usize,
    is_lost: Arc<AtomicBool>,
    /// What happens just before it is asked whether something has come.
    on_asked: Arc<Mutex<Option<(usize, OnAsked)>>>,
}

impl End {
    /// Lets all that is under way to this end arrive.
    fn arrive(&self) {
        self.into.elements.lock().arrive(usize::MAX);
        self.into.words.lock().arrive(usize::MAX);
        self.into.wake(true);
    }

    /// As if the other end had sent these, and they had arrived.
    fn arrives(&self, words: Vec<Word>, elements: Vec<Element>) {
        self.into.words.lock().arrived.extend(words);
        self.into.elements.lock().arrived.extend(elements.into_iter().map(|element| (0, element)));
        self.into.wake(true);
    }

    /// How many elements have arrived and were not taken.
    fn waiting(&self) -> usize {
        self.into.elements.lock().arrived.len()
    }

    fn on_asked(&self, happens: impl FnMut(usize) + Send + 'static) {
        *self.on_asked.lock() = Some((0, Box::new(happens)));
    }

    fn check(&self) -> Result<(), PipeError> {
        if self.is_lost.load(Ordering::SeqCst) { Err(PipeError::Lost("the line is cut".into())) } else { Ok(()) }
    }

    fn is_below(&self) -> bool {
        let elements = self.out.elements.lock();
        elements.sent.len() + elements.arrived.len() < self.room || self.check().is_err()
    }
}

impl Pipe for End {
    fn has_room(&self) -> bool {
        if self.is_below() {
            return true;
        }
        self.out.is_waited_for.store(true, Ordering::SeqCst);
        self.is_below()
    }

    fn push(&self, channel: usize, element: &Element) -> Result<(), PipeError> {
        self.check()?;
        if let Element::Batch(batch) = element {
            self.out.rows.fetch_add(batch.rows(), Ordering::SeqCst);
        }
        self.out.elements.lock().sent.push_back((channel, element.clone()));
        Ok(())
    }

    fn take(&self) -> Result<Option<(usize, Element)>, PipeError> {
        self.check()?;
        let taken = self.into.elements.lock().arrived.pop_front();
        if taken.is_some() && self.into.is_waited_for.swap(false, Ordering::SeqCst) {
            self.into.wake(false);
        }
        Ok(taken)
    }

    fn say(&self, word: Word) -> Result<(), PipeError> {
        self.check()?;
        self.out.words.lock().sent.push_back(word);
        Ok(())
    }

    fn heard(&self) -> Result<Option<Word>, PipeError> {
        self.check()?;
        Ok(self.into.words.lock().arrived.pop_front())
    }

    fn has_some(&self) -> bool {
        if let Some((times, happens)) = &mut *self.on_asked.lock() {
            *times += 1;
            happens(*times);
        }
        let has_elements = !self.into.elements.lock().arrived.is_empty();
        has_elements || !self.into.words.lock().arrived.is_empty() || self.check().is_err()
    }

    fn flush(&self) {}
}

/// A move: both ends, and the guest once it has begun.
struct Line {
    place: Place,
    here: End,
    there: End,
    state: Vec<(usize, usize, StateFrame)>,
    guest: Option<Guest>,
    has_begun: bool,
    has_reopened: bool,
}

/// A flow, and who works for it.
struct World {
    /// None where the workers have threads.
    clock: Option<Arc<ManualClock>>,
    flow: Arc<Flow>,
    server: Workers,
    worker: Workers,
    lines: Vec<Line>,
    random: StdRng,
    room: usize,
    /// Whether guests begin and run, and whether anything arrives.
    works: bool,
    carries: bool,
    then: Then,
    /// What was told to sources that were opened again.
    confirmed: Arc<Mutex<Vec<i64>>>,
}

/// Numbers that note at which position they were told that it is durable.
struct Confirming {
    numbers: Numbers,
    asked_at: i64,
    confirmed: Arc<Mutex<Vec<i64>>>,
}

impl Source for Confirming {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        self.numbers.poll(rows_max, now_us, refusals)
    }

    fn position(&mut self) -> Option<String> {
        self.asked_at = self.numbers.next;
        self.numbers.position()
    }

    fn confirm(&mut self) {
        self.confirmed.lock().push(self.asked_at);
    }

    fn progress(&self) -> Option<(u64, u64)> {
        self.numbers.progress()
    }
}

/// Partitions of numbers, where they were.
fn reopened(states: &[PartitionState], then: Then, confirmed: &Arc<Mutex<Vec<i64>>>) -> Vec<Partition> {
    let of_state = |state: &PartitionState| {
        let (next, end) = state.position.as_ref().unwrap().split_once(' ').unwrap();
        let (next, end) = (next.parse().unwrap(), end.parse().unwrap());
        let numbers = Numbers { next, end, then, polled: Arc::default() };
        let confirmed = confirmed.clone();
        let source: Box<dyn Source> = Box::new(Confirming { numbers, asked_at: -1, confirmed });
        let idle_timeout_us = Some(20_000);
        Partition { event_time_column: Some(1), newest_us: state.newest_us, idle_timeout_us, ..Partition::from(source) }
    };
    states.iter().map(of_state).collect()
}

impl World {
    fn new(parts: FlowParts, seed: u64) -> Self {
        let clock = Arc::new(ManualClock::new(1_000_000));
        let workers = [Workers::stepped(clock.clone()), Workers::stepped(clock.clone())];
        Self::of(workers, Some(clock), parts, seed)
    }

    fn of([server, worker]: [Workers; 2], clock: Option<Arc<ManualClock>>, mut parts: FlowParts, seed: u64) -> Self {
        parts.limits.batch_rows = BATCH_ROWS;
        Self {
            flow: Arc::new(server.start_flow(parts).unwrap()),
            clock,
            server,
            worker,
            lines: Vec::new(),
            random: StdRng::seed_from_u64(seed),
            room: 4,
            works: true,
            carries: true,
            then: Then::End,
            confirmed: Arc::default(),
        }
    }

    fn placement(&self, place: Place) -> Option<Placement> {
        self.flow.placements().into_iter().find(|one| (one.stage, one.instance) == place)
    }

    fn step_of(&self, place: Place) -> MoveStep {
        self.placement(place).map_or(MoveStep::Home, |placement| placement.step)
    }

    fn redirect(&mut self, place: Place) -> Result<(), MoveError> {
        let line = self.line(place);
        self.flow.redirect(place, Arc::new(line.here.clone()), 10, STATE_BYTES)?;
        self.add(line);
        Ok(())
    }

    fn add(&mut self, line: Line) {
        self.lines.retain(|other| other.place != line.place);
        self.lines.push(line);
    }

    fn line(&self, place: Place) -> Line {
        let (out, back) = <(Arc<Way>, Arc<Way>)>::default();
        let (is_lost, room) = (Arc::<AtomicBool>::default(), self.room);
        let (out_again, back_again) = (out.clone(), back.clone());
        let here = End { out, into: back, room, is_lost: is_lost.clone(), on_asked: Arc::default() };
        let there = End { out: back_again, into: out_again, room, is_lost, on_asked: Arc::default() };
        let waker = self.flow.waker(place).unwrap();
        here.out.wakers.lock()[0] = Some(waker.clone());
        here.into.wakers.lock()[1] = Some(waker);
        let (state, guest) = (Vec::new(), None);
        Line { place, here, there, state, guest, has_begun: false, has_reopened: false }
    }

    /// The flow's end of the newest line.
    fn here(&self) -> End {
        self.lines.last().unwrap().here.clone()
    }

    /// One activation of a task of the flow, which is the only one that has work.
    fn activate(&mut self) {
        assert!(self.server.run_one(|ready| ready - 1, Duration::ZERO), "it has work");
    }

    /// What who owns the worker does, and who owns the server.
    fn turn(&mut self) {
        let limits = self.limits();
        for line in self.lines.iter_mut().filter(|_| self.works) {
            let placements = self.flow.placements();
            let placement = placements.iter().find(|one| (one.stage, one.instance) == line.place);
            if let Some(reopens) = placement.and_then(|placement| placement.reopens.as_ref())
                && !std::mem::replace(&mut line.has_reopened, true)
            {
                self.flow.reopened(line.place, reopened(reopens, self.then, &self.confirmed)).unwrap();
            }
            if line.guest.as_ref().is_some_and(Guest::has_ended) {
                line.guest = None;
            }
            while !line.has_begun
                && let Ok(Some(word)) = line.there.heard()
            {
                match word {
                    Word::State { operator, part, frame } => line.state.push((operator, part, frame)),
                    Word::Begin { parts, snapshot, rows_max } => {
                        assert_eq!(parts, line.state.len());
                        let stage = &self.flow.stages()[line.place.0];
                        let partitions = snapshot.partitions.as_ref();
                        let inputs = stage.inputs.iter().map(|input| input.input + 1).max().unwrap_or(0);
                        let guest = self.worker.start_guest(GuestParts {
                            name: "test".into(),
                            dataflow: self.flow.dataflow().clone(),
                            nodes: stage.nodes.clone(),
                            instance: line.place.1,
                            inputs,
                            partitions: partitions.map(|partitions| reopened(partitions, self.then, &self.confirmed)),
                            limits,
                            pipe: Arc::new(line.there.clone()),
                            begins: snapshot,
                            rows_max,
                            state: std::mem::take(&mut line.state),
                        });
                        let guest = guest.unwrap();
                        line.there.out.wakers.lock()[0] = Some(guest.waker());
                        line.there.into.wakers.lock()[1] = Some(guest.waker());
                        (line.guest, line.has_begun) = (Some(guest), true);
                    }
                    word => panic!("{word:?} before the guest has begun"),
                }
            }
        }
    }

    fn limits(&self) -> rivulet_runtime::FlowLimits {
        rivulet_runtime::FlowLimits { rows_max: 4_000, bytes_max: 1 << 20, batch_rows: BATCH_ROWS }
    }

    /// One step of one side, or of what is under way. Whether anything was done.
    fn step(&mut self) -> bool {
        self.turn();
        let first = self.random.random_range(0..3);
        (first..first + 3).any(|which| {
            let random = &mut self.random;
            match which % 3 {
                0 => self.server.run_one(|ready| random.random_range(0..ready), Duration::ZERO),
                1 => self.works && self.worker.run_one(|ready| random.random_range(0..ready), Duration::ZERO),
                _ => {
                    let mut ways = self.lines.iter().flat_map(|line| [&line.here.out, &line.there.out]);
                    self.carries && ways.any(|way| way.carry(random))
                }
            }
        })
    }

    /// Steps until nothing is left to do.
    fn rest(&mut self) {
        assert!((0..STEPS_MAX).any(|_| !self.step()), "tasks run for ever");
        self.turn();
        assert!((0..STEPS_MAX).any(|_| !self.step()), "tasks run for ever");
    }

    /// Lets some time pass.
    fn pass(&mut self, time_us: i64) {
        let Some(clock) = &self.clock else { return std::thread::sleep(Duration::from_millis(1)) };
        clock.advance_us(time_us);
        self.server.keep_time_once();
        self.worker.keep_time_once();
    }

    /// Steps, and lets time pass when nothing else is left to do.
    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..STEPS_MAX {
            if is_so(self) {
                return;
            }
            if !self.step() {
                self.pass(10_000);
            }
        }
        panic!("{what}: {:?}, {:?}", self.flow.placements(), self.flow.report().tasks);
    }

    fn until_step(&mut self, place: Place, step: MoveStep) {
        self.until(&format!("{place:?} is {step:?}"), |world| world.step_of(place) == step);
    }

    fn until_ended(&mut self) -> Result<(), String> {
        self.until("it ends", |world| world.flow.ended().is_some());
        self.flow.wait(Duration::ZERO).unwrap().map_err(|error| error.to_string())
    }

    fn begin_checkpoint(&self, number: u64) -> Result<Arc<CollectedState>, CheckpointError> {
        let into = Arc::new(CollectedState::default());
        self.flow.begin_checkpoint(number, into.clone()).map(|()| into)
    }

    /// The checkpoint that was begun, once all tasks have come to the barrier.
    fn taken(&mut self) -> Result<Snapshot, CheckpointError> {
        for _ in 0..STEPS_MAX {
            if let Some(taken) = self.flow.look_at_checkpoint() {
                return taken;
            }
            if !self.step() || self.random.random_bool(0.05) {
                self.pass(TICK_US);
            }
        }
        panic!("not all come to the barrier: {:?}", self.flow.placements());
    }

    fn cut(&self, place: Place) {
        let line = self.lines.iter().find(|line| line.place == place).unwrap();
        line.here.is_lost.store(true, Ordering::SeqCst);
        line.here.into.wake(true);
        line.there.into.wake(true);
    }
}

/// Holds back up to three batches, and gives them the time at which they leave, as who counts beforehand does.
#[derive(Default)]
struct Holding {
    batches: Vec<Batch>,
    watermark_us: i64,
    due_us: i64,
}

impl Operator for Holding {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => {
                self.due_us = context.now_us + 5_000;
                self.batches.push(batch);
            }
            Element::Watermark(watermark_us) => self.watermark_us = watermark_us,
            _ => return self.give(context),
        }
        if self.batches.len() > 3 { self.give(context) } else { Ok(()) }
    }

    fn deadline_us(&self) -> Option<i64> {
        (!self.batches.is_empty()).then_some(self.due_us)
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.give(context)
    }

    fn export_state(&self, _: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        assert!(self.batches.is_empty(), "what is held back leaves before the state");
        Ok(None)
    }
}

impl Holding {
    fn give(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        for mut batch in self.batches.drain(..) {
            batch.event_time_us = batch.event_time_us.iter().map(|&time_us| time_us.max(self.watermark_us)).collect();
            context.emit(batch);
        }
        Ok(())
    }
}

struct Holds;

impl OperatorFactory for Holds {
    fn create(&self) -> Box<dyn Operator> {
        Box::<Holding>::default()
    }

    fn describe(&self) -> Description {
        Description { operator: "hold".into(), ..Description::default() }
    }

    fn state(&self) -> Option<Address> {
        None
    }
}

/// How often counts are given by the clock.
const TICK_US: i64 = 30_000;

/// Counts rows by key and input: the keys of input 1 are 100 higher. Gives the counts also by the clock, and
/// says of the rows of key 7 that they were refused.
struct BySide(Box<dyn Operator>, i64);

impl Operator for BySide {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.0.process(element, context)
    }

    fn process_input(&mut self, input: usize, element: Element, to: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(batch) = element else { return self.0.process(element, to) };
        let refused = batch.column(0).as_primitive::<Int64Type>().values().iter().filter(|&&key| key == 7).count();
        to.refusals.count(Reason::Late, refused as u64);
        let keys = batch.column(0).as_primitive::<Int64Type>().unary::<_, Int64Type>(|key| key + 100 * input as i64);
        let columns: Vec<ArrayRef> = vec![Arc::new(keys), batch.column(1).clone()];
        self.0.process(Element::Batch(batch.with_columns(RecordBatch::try_new(schema(), columns)?)), to)
    }

    fn deadline_us(&self) -> Option<i64> {
        Some(self.1)
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.1 = context.now_us + TICK_US;
        self.0.process(Element::End, context)
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        self.0.export_state(selection)
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        self.0.import_state(frame)
    }

    fn memory_bytes(&self) -> usize {
        STATE_BYTES
    }
}

struct CountBySide(CountByKey);

impl OperatorFactory for CountBySide {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(BySide(self.0.create(), i64::MIN))
    }

    fn describe(&self) -> Description {
        Description { operator: "count by side".into(), ..Description::default() }
    }

    fn state(&self) -> Option<Address> {
        self.0.state()
    }
}

/// Sources whose rows are held back, counted by key and side, to sinks in turn.
fn dataflow(sources: usize, emits_at_us: i64) -> Dataflow {
    let mut dataflow = Dataflow::default();
    let held: Vec<usize> = (0..sources)
        .map(|source| {
            let source = dataflow.add(Work::Source(source), schema());
            dataflow.then(source, EdgeKind::Forward, Arc::new(Holds), schema())
        })
        .collect();
    let count = dataflow.add(Work::Operator(Arc::new(CountBySide(CountByKey { emits_at_us }))), schema());
    held.into_iter().enumerate().for_each(|(input, held)| {
        dataflow.connect(held, count, input, EdgeKind::Hash(vec![0]));
    });
    let end = dataflow.add(Work::Sink(0), schema());
    dataflow.connect(count, end, 0, EdgeKind::RoundRobin);
    dataflow
}

/// Each source has the rows in two partitions.
fn counting(sources: usize, parallelism: usize, sink: &Collected, then: Then) -> FlowParts {
    let partitions = || vec![numbers(0..ROWS / 2, then), numbers(ROWS / 2..ROWS, then)];
    parts(dataflow(sources, 2_000), (0..sources).map(|_| partitions()).collect(), parallelism, sink)
}

/// How many rows of each key and side were counted.
fn sums(rows: &[(i64, i64)], sources: usize) -> Vec<i64> {
    let mut sums = vec![0; 100 * sources];
    rows.iter().for_each(|&(key, count)| sums[key as usize] += count);
    sums
}

fn all(sources: usize) -> Vec<i64> {
    vec![ROWS / 100; 100 * sources]
}

/// Runs a flow, and every so many steps one task of `stages` goes out or comes home. Returns how many went out.
fn run_with_moves(sources: usize, stages: &[usize], seed: u64) -> usize {
    let sink = Collected::default();
    let world = World::new(counting(sources, 2, &sink, Then::End), seed);
    move_about(world, &sink, sources, stages, seed)
}

fn move_about(mut world: World, sink: &Collected, sources: usize, stages: &[usize], seed: u64) -> usize {
    world.room = 1 + (seed as usize) % 5;
    let period = world.random.random_range(1..40);
    let mut moves = 0;
    for step in 0..STEPS_MAX {
        if world.flow.ended().is_some() {
            break;
        }
        if step % period == 0 {
            let stage = stages[world.random.random_range(0..stages.len())];
            let place = (stage, world.random.random_range(0..2));
            match world.step_of(place) {
                MoveStep::Home => moves += usize::from(world.redirect(place).is_ok()),
                _ => drop(world.flow.bring_back(place)),
            }
        }
        if !world.step() {
            world.pass(10_000);
        }
    }
    world.until_ended().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!(sums(&sink.rows.lock(), sources), all(sources), "seed {seed}");
    let (report, all) = (world.flow.report(), sources as u64 * ROWS as u64);
    let counted = (report.rows_in, report.refused[Reason::Late as usize]);
    assert_eq!(counted, (all, all / 100), "seed {seed}: what a guest has read and refused counts");
    world.turn();
    world.rest();
    world.turn();
    assert!(world.lines.iter().all(|line| line.guest.is_none() || !line.has_begun), "seed {seed}: a guest is left");
    moves
}

#[test]
fn results_are_the_same_wherever_a_stage_runs() {
    let moves: usize = (0..60).map(|seed| run_with_moves(1, &[1], seed)).sum();
    assert!(moves > 200, "{moves}");
}

#[test]
fn a_source_goes_on_where_it_was() {
    let moves: usize = (0..60).map(|seed| run_with_moves(1, &[0, 1], seed)).sum();
    assert!(moves > 200, "{moves}");
}

#[test]
fn two_inputs_align_there() {
    let moves: usize = (0..60).map(|seed| run_with_moves(2, &[0, 1, 2], seed)).sum();
    assert!(moves > 200, "{moves}");
}

#[test]
fn no_task_spins_while_it_waits_and_a_full_pipe_holds_up_its_senders() {
    let sink = Collected::default();
    let mut world = World::new(counting(1, 1, &sink, Then::End), 1);
    world.room = 2;
    let place = (1, 0);
    // Nobody has begun: the task has its state, and takes nothing.
    world.works = false;
    world.redirect(place).unwrap();
    world.rest();
    assert_eq!((world.step_of(place), world.redirect(place)), (MoveStep::Beginning, Err(MoveError::Away)));
    let read = world.flow.report().rows_in;
    assert!((1..ROWS as u64).contains(&read), "{read} rows were read");
    world.works = true;
    world.until_step(place, MoveStep::Running);
    // The guest does not run, so the pipe is full, and the inbox behind it.
    world.works = false;
    world.rest();
    let sent = world.placement(place).unwrap();
    assert!(sent.rows_sent <= 3 * BATCH_ROWS as u64, "{sent:?}");
    let report = world.flow.report();
    let waiting = report.tasks.iter().find(|task| task.stage == 1).unwrap();
    // Senders are woken when half of it is free.
    assert!(waiting.waiting_rows >= 2_000 && report.rows_in < ROWS as u64, "{waiting:?}");
    for _ in 0..10 {
        world.pass(1_000_000);
        world.rest();
    }
    assert_eq!(
        (world.flow.report().rows_in, world.placement(place).unwrap().rows_sent),
        (report.rows_in, sent.rows_sent)
    );
    // Its state does not come.
    (world.works, world.carries) = (true, false);
    world.flow.bring_back(place).unwrap();
    world.rest();
    assert_eq!(world.step_of(place), MoveStep::Returning);
    world.pass(5_000_000);
    assert!(world.placement(place).unwrap().unanswered_us.is_some_and(|us| us >= 5_000_000));
    world.rest();
    world.carries = true;
    world.until_ended().unwrap();
    assert_eq!(sums(&sink.rows.lock(), 1), all(1));
    assert_eq!(world.step_of(place), MoveStep::Home);
    assert_eq!(world.redirect(place), Err(MoveError::Ended));
    assert_eq!(world.flow.bring_back(place), Err(MoveError::Home));
    assert_eq!(world.redirect((2, 0)), Err(MoveError::Sink(2)));
    assert_eq!(world.flow.lose((7, 0), ""), Err(MoveError::Unknown(7, 0)));
}

#[test]
fn results_are_the_same_where_threads_run_the_tasks() {
    for seed in 0..20 {
        let sink = Collected::default();
        let world = World::of([workers(2), workers(2)], None, counting(2, 2, &sink, Then::End), seed);
        move_about(world, &sink, 2, &[0, 1, 2], seed);
    }
}

/// Runs a flow with tasks of these stages away, makes a checkpoint, and starts it anew from there.
fn run_with_restart(stages: &[usize], parallelism: usize, seed: u64) {
    let sink = Collected::default();
    let mut world = World::new(counting(1, 2, &sink, Then::End), seed);
    for (stage, instance) in stages.iter().flat_map(|&stage| [(stage, 0), (stage, 1)]) {
        world.redirect((stage, instance)).unwrap();
    }
    for _ in 0..world.random.random_range(0..400) {
        world.step();
    }
    let mut kept = Vec::new();
    let mut snapshot: Option<Snapshot> = None;
    for number in 1..4 {
        let Ok(into) = world.begin_checkpoint(number) else { break };
        // One that is given up at any moment costs nothing.
        if number == 1 {
            for _ in 0..world.random.random_range(0..60) {
                world.step();
            }
            world.flow.abandon_checkpoint();
        } else {
            // Otherwise it has come to its end.
            if let Ok(taken) = world.taken() {
                kept.clone_from(&sink.rows.lock());
                snapshot = Some(Snapshot { state: into.take_all(), ..taken });
                world.flow.committed(number);
            }
        }
        world.pass(TICK_US);
        for _ in 0..world.random.random_range(0..100) {
            world.step();
        }
    }
    let Some(snapshot) = snapshot else { return };
    drop(world);
    let sink = Collected::default();
    let sources = vec![reopened(&snapshot.sources[0], Then::End, &Arc::default())];
    let parts = FlowParts { restored: Some(snapshot), ..parts(dataflow(1, 2_000), sources, parallelism, &sink) };
    let mut world = World::new(parts, seed);
    world.until_ended().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    kept.extend_from_slice(&sink.rows.lock());
    assert_eq!(sums(&kept, 1), all(1), "seed {seed}");
}

#[test]
fn a_checkpoint_has_the_state_that_is_away() {
    for seed in 0..40 {
        run_with_restart(&[1], 1 + seed as usize % 3, seed);
        run_with_restart(&[0, 1], 1 + seed as usize % 3, seed);
    }
}

#[test]
fn a_guest_has_its_timers_and_goes_on_behind_a_checkpoint() {
    for is_given_up in [false, true] {
        let sink = Collected::default();
        let parts = parts(dataflow(1, i64::MAX), vec![vec![numbers(0..ROWS, Then::Silence)]], 1, &sink);
        let mut world = World::new(parts, 4);
        world.flow.pause();
        world.redirect((1, 0)).unwrap();
        world.until_step((1, 0), MoveStep::Running);
        world.begin_checkpoint(1).unwrap();
        if is_given_up {
            (0..3).for_each(|_| assert!(world.step()));
            world.flow.abandon_checkpoint();
            world.rest();
        } else {
            world.taken().unwrap();
        }
        world.flow.resume();
        world.until("timers count all", |_| sums(&sink.rows.lock(), 1) == all(1));
        assert_eq!(world.step_of((1, 0)), MoveStep::Running);
    }
}

#[test]
fn who_is_lost_before_it_has_begun_costs_nothing() {
    for (seed, place) in [(0, 0), (1, 0), (0, 1), (1, 1)].into_iter().enumerate() {
        let sink = Collected::default();
        let mut world = World::new(counting(1, 2, &sink, Then::End), seed as u64);
        world.works = false;
        (0..3).for_each(|_| assert!(world.step()));
        world.redirect(place).unwrap();
        world.rest();
        if seed % 2 == 0 {
            world.cut(place);
            // Who is told of it twice moves again all the same.
            world.activate();
        }
        if seed > 0 {
            world.flow.lose(place, "the line is cut").unwrap()
        }
        world.until_step(place, MoveStep::Home);
        assert_eq!(world.placement(place).unwrap().why.as_deref(), Some("the line is cut"));
        // Another one takes its place, or is called back before it has gone.
        world.redirect(place).unwrap();
        world.rest();
        assert_eq!(world.step_of(place), MoveStep::Beginning);
        world.flow.bring_back(place).unwrap();
        world.works = true;
        world.until_ended().unwrap();
        assert_eq!(sums(&sink.rows.lock(), 1), all(1));
        assert_eq!(world.flow.report().rows_in, ROWS as u64);
    }
}

#[test]
fn who_is_lost_later_fails_the_flow_so_that_it_may_restart() {
    for place in [(0, 0), (1, 0)] {
        for seed in 0..10 {
            let sink = Collected::default();
            let mut world = World::new(counting(1, 2, &sink, Then::Silence), seed);
            world.then = Then::Silence;
            world.redirect(place).unwrap();
            world.until_step(place, MoveStep::Running);
            for _ in 0..world.random.random_range(0..50) {
                world.step();
            }
            if seed % 3 == 2 {
                world.flow.bring_back(place).unwrap();
                world.until_step(place, MoveStep::Returning);
            }
            if seed % 2 == 0 {
                world.cut(place)
            } else {
                world.flow.lose(place, "the line is cut").unwrap()
            }
            assert_eq!(world.until_ended(), Err("the line is cut".into()));
            assert!(world.flow.is_undone());
            world.until("all let go", |world| world.flow.wait_closed(Duration::ZERO));
        }
    }
}

#[test]
fn no_row_of_a_moved_source_crosses_the_server_and_a_stop_brings_it_home() {
    for drains in [true, false] {
        let sink = Collected::default();
        let mut world = World::new(counting(1, 1, &sink, Then::Silence), 3);
        world.then = Then::Silence;
        world.flow.pause();
        let place = (0, 0);
        world.redirect(place).unwrap();
        world.until_step(place, MoveStep::Running);
        world.rest();
        world.pass(1_000_000);
        world.rest();
        assert_eq!(world.flow.report().rows_in, 0, "it is paused there too");
        world.flow.resume();
        world.until("all is read", |world| world.flow.report().rows_in == ROWS as u64);
        assert_eq!(world.lines[0].here.out.rows.load(Ordering::SeqCst), 0);
        world.flow.stop(drains);
        world.until_ended().unwrap();
        let counted: i64 = sink.rows.lock().iter().map(|(_, count)| count).sum();
        // What is counted when the watermark passes 2,000 was open no more.
        assert!(counted == ROWS || !drains && counted > 0, "{counted}");
        world.rest();
        assert!(world.lines[0].guest.is_none());
    }
}

#[test]
fn a_moved_source_hears_what_is_durable_of_what_it_captured() {
    let sink = Collected::default();
    let partition = vec![numbers(0..ROWS, Then::Silence)];
    let mut world = World::new(parts(dataflow(1, 2_000), vec![partition], 1, &sink), 8);
    world.then = Then::Silence;
    let place = (0, 0);
    // What is durable of the reader before it left is nothing to the guest.
    world.begin_checkpoint(1).unwrap();
    world.taken().unwrap();
    world.redirect(place).unwrap();
    world.until_step(place, MoveStep::Running);
    world.flow.committed(1);
    for _ in 0..20 {
        world.step();
    }
    world.begin_checkpoint(2).unwrap();
    let position = world.taken().unwrap().sources[0][0].position.clone().unwrap();
    world.flow.committed(2);
    world.until("it is told", |world| !world.confirmed.lock().is_empty());
    world.rest();
    let confirmed = world.confirmed.lock().clone();
    assert_eq!(confirmed.iter().map(|next| format!("{next} {ROWS}")).collect::<Vec<_>>(), [position]);
}

/// One source is silent from the start and away; the other one goes on.
#[test]
fn an_idle_moved_source_holds_up_nobody() {
    let sink = Collected::default();
    let sources = vec![vec![numbers(0..10, Then::Silence)], vec![numbers(0..ROWS, Then::Silence)]];
    let mut world = World::new(parts(dataflow(2, 2_000), sources, 1, &sink), 5);
    world.then = Then::Silence;
    world.redirect((0, 0)).unwrap();
    world.until("the time of the other one counts", |world| {
        sink.rows.lock().iter().map(|(_, count)| count).sum::<i64>() >= 2_000 && world.step_of((0, 0)) != MoveStep::Home
    });
    // And the other way round: here who is idle goes on with the one that is away.
    let sink = Collected::default();
    let sources = vec![vec![numbers(0..10, Then::Silence)], vec![numbers(0..ROWS, Then::Silence)]];
    let mut world = World::new(parts(dataflow(2, 2_000), sources, 1, &sink), 6);
    world.then = Then::Silence;
    world.redirect((1, 0)).unwrap();
    world.until("the time of the one that is away counts", |_| {
        sink.rows.lock().iter().map(|(_, count)| count).sum::<i64>() >= 2_000
    });
}

#[test]
fn what_a_guest_says_wrong_is_a_loss() {
    let sink = Collected::default();
    let mut world = World::new(counting(1, 1, &sink, Then::Silence), 7);
    world.redirect((1, 0)).unwrap();
    world.until_step((1, 0), MoveStep::Running);
    world.lines[0].there.say(Word::Phase(Phase::Running)).unwrap();
    let error = world.until_ended().unwrap_err();
    assert!(error.contains("out of place") && world.flow.is_undone(), "{error}");
}

/// The checkpoint of a source that is away is given up, and the source called back before the guest has answered.
#[test]
fn a_source_comes_home_behind_a_barrier_that_was_given_up() {
    let sink = Collected::default();
    let mut world = World::new(counting(1, 1, &sink, Then::Silence), 9);
    (world.then, world.works) = (Then::Silence, true);
    let place = (0, 0);
    world.redirect(place).unwrap();
    world.until("all is read", |world| world.flow.report().rows_in == ROWS as u64);
    world.rest();
    world.begin_checkpoint(1).unwrap();
    world.carries = false;
    world.rest();
    world.lines[0].there.arrive();
    world.rest();
    // It has answered; now it is called back too.
    world.flow.abandon_checkpoint();
    world.flow.bring_back(place).unwrap();
    world.rest();
    world.lines[0].there.arrive();
    world.rest();
    let (here, into) = (world.here(), world.here().into);
    let captured = into.words.lock().sent.iter().position(|word| matches!(word, Word::Captured { .. })).unwrap();
    into.words.lock().arrive(captured + 1);
    into.elements.lock().arrive(1);
    // The rest arrives while the task takes that.
    let later = into.clone();
    here.on_asked(move |_| {
        if later.words.lock().arrived.is_empty() && later.elements.lock().arrived.is_empty() {
            later.words.lock().arrive(usize::MAX);
            later.elements.lock().arrive(usize::MAX);
        }
    });
    into.wake(true);
    world.activate();
    *here.on_asked.lock() = None;
    // It takes a while to open the source.
    world.works = false;
    world.rest();
    (world.works, world.carries) = (true, true);
    world.until_step(place, MoveStep::Home);
    world.flow.stop(true);
    world.until_ended().unwrap();
    assert_eq!(sums(&sink.rows.lock(), 1), all(1));
}

/// A task whose guest is played by the test: it has gone out, and waits for its word.
fn played(sources: usize, place: Place, then: Then, sink: &Collected) -> World {
    let mut world = World::new(counting(sources, 1, sink, then), 10);
    (world.then, world.works) = (then, false);
    world.redirect(place).unwrap();
    world.rest();
    assert_eq!(world.step_of(place), MoveStep::Beginning);
    world
}

#[test]
fn a_guest_that_never_pauses_does_not_keep_its_task_from_others() {
    let mut world = played(1, (1, 0), Then::Silence, &Collected::default());
    let watermarks = (0..10_000).map(|second| Element::Watermark(1_000_000 * second));
    world.here().arrives(vec![Word::Begun], watermarks.collect());
    world.activate();
    let waiting = world.here().waiting();
    assert!(waiting > 9_900, "{waiting} are left");
    world.flow.cancel();
    world.until("all let go", |world| world.flow.wait_closed(Duration::ZERO));
    assert!(world.here().waiting() > 9_800);
}

/// What the task waits for at a barrier arrives between two looks of one step.
#[test]
fn what_arrives_at_any_moment_is_not_left_lying() {
    for place in [(0, 0), (1, 0)] {
        let mut world = World::new(counting(1, 1, &Collected::default(), Then::Silence), 11);
        world.then = Then::Silence;
        world.redirect(place).unwrap();
        world.until("all is read", |world| world.flow.report().rows_in == ROWS as u64);
        world.rest();
        world.begin_checkpoint(1).unwrap();
        world.carries = false;
        world.rest();
        world.lines[0].there.arrive();
        world.rest();
        let into = world.here().into;
        let later = into.clone();
        world.here().on_asked(move |times| {
            if times == 2 {
                later.words.lock().arrive(usize::MAX);
                later.elements.lock().arrive(usize::MAX);
            }
        });
        into.wake(true);
        world.activate();
        *world.here().on_asked.lock() = None;
        assert!(into.words.lock().sent.is_empty());
        world.rest();
        assert!(world.flow.look_at_checkpoint().is_some_and(|taken| taken.is_ok()), "{place:?} has captured");
    }
}

/// Does something at its first poll behind the moment at which it was asked to.
struct Interrupted {
    numbers: Numbers,
    happens: Happens,
}

impl Source for Interrupted {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        self.happens.lock().take().into_iter().for_each(|happens| happens());
        self.numbers.poll(rows_max, now_us, refusals)
    }

    fn position(&mut self) -> Option<String> {
        self.numbers.position()
    }
}

/// A checkpoint becomes durable, and a move is wanted, while a source reads: its rows wait until the task has noted
/// that.
#[test]
fn a_source_leaves_with_nothing_read_that_is_not_processed() {
    let sink = Collected::default();
    let happens = Happens::default();
    let numbers = Numbers { next: 0, end: ROWS, then: Then::End, polled: Arc::default() };
    let source: Box<dyn Source> = Box::new(Interrupted { numbers, happens: happens.clone() });
    let partition = Partition { event_time_column: Some(1), ..Partition::from(source) };
    let mut world = World::new(parts(dataflow(1, 2_000), vec![vec![partition]], 1, &sink), 12);
    (0..20).for_each(|_| assert!(world.step()));
    world.begin_checkpoint(1).unwrap();
    world.taken().unwrap();
    let line = world.line((0, 0));
    let (flow, here) = (Arc::downgrade(&world.flow), line.here.clone());
    *happens.lock() = Some(Box::new(move || {
        let flow = flow.upgrade().unwrap();
        flow.committed(1);
        flow.redirect((0, 0), Arc::new(here), 10, usize::MAX).unwrap();
    }));
    world.until("it is polled", |_| happens.lock().is_none());
    world.add(line);
    world.until_ended().unwrap();
    assert_eq!(sums(&sink.rows.lock(), 1), all(1));
    assert_eq!(world.flow.report().rows_in, ROWS as u64);
}

/// A timer of the guest was due at once, and its output overtakes the word that it has begun.
#[test]
fn what_a_guest_has_given_shows_that_it_has_begun() {
    let sink = Collected::default();
    let mut world = played(1, (1, 0), Then::End, &sink);
    world.here().arrives(Vec::new(), vec![Element::Watermark(10)]);
    world.rest();
    world.cut((1, 0));
    assert_eq!(world.until_ended(), Err("the line is cut".into()));
    assert!(world.flow.is_undone());
    // The word itself may come behind it.
    let mut world = played(1, (1, 0), Then::End, &sink);
    world.here().arrives(Vec::new(), vec![Element::Watermark(10)]);
    world.rest();
    world.here().arrives(vec![Word::Begun], Vec::new());
    world.rest();
    assert_eq!(world.step_of((1, 0)), MoveStep::Running);
    assert!(world.flow.ended().is_none());
}

/// All is read by a source that is away, and nothing else comes of it.
fn silent_away(seed: u64) -> World {
    let mut world = World::new(counting(1, 1, &Collected::default(), Then::Silence), seed);
    world.then = Then::Silence;
    world.redirect((0, 0)).unwrap();
    world.until("all is read", |world| world.flow.report().rows_in == ROWS as u64);
    // It is idle, and has said so.
    (0..100).for_each(|_| {
        world.pass(10_000);
        world.rest();
    });
    assert_eq!(world.placement((0, 0)).unwrap().unanswered_us, None);
    world
}

#[test]
fn who_has_nothing_to_answer_is_not_late() {
    let mut world = silent_away(13);
    // The barrier and its end reach the guest together.
    world.begin_checkpoint(1).unwrap();
    world.carries = false;
    world.rest();
    world.flow.abandon_checkpoint();
    world.rest();
    world.carries = true;
    world.rest();
    world.pass(5_000_000);
    assert_eq!(world.placement((0, 0)).unwrap().unanswered_us, None);
}

#[test]
fn who_owes_state_is_late_though_other_answers_have_come() {
    let mut world = played(1, (1, 0), Then::Silence, &Collected::default());
    world.room = 1_000;
    let place = (1, 0);
    world.here().arrives(vec![Word::Begun], Vec::new());
    world.until("it is given something", |world| world.placement(place).unwrap().rows_sent > 0);
    world.begin_checkpoint(1).unwrap();
    let has_barrier = |world: &World| {
        let out = world.here().out;
        let elements = out.elements.lock();
        elements.sent.iter().chain(&elements.arrived).any(|(_, element)| matches!(element, Element::Barrier(1)))
    };
    world.until("it is given the barrier", |world| {
        // There is room again.
        world.here().out.elements.lock().sent.retain(|(_, element)| matches!(element, Element::Barrier(_)));
        world.here().out.elements.lock().arrived.retain(|(_, element)| matches!(element, Element::Barrier(_)));
        world.here().out.wake(false);
        has_barrier(world)
    });
    world.rest();
    world.pass(1_000_000);
    world.here().arrives(Vec::new(), vec![Element::Watermark(10)]);
    world.rest();
    assert!(world.placement(place).unwrap().unanswered_us.is_some_and(|us| us < 1_000_000), "it is alive");
    world.pass(2_000_000);
    world.rest();
    assert!(world.placement(place).unwrap().unanswered_us.is_some_and(|us| us >= 2_000_000));
    world.here().arrives(Vec::new(), vec![Element::Barrier(1)]);
    world.rest();
    world.pass(2_000_000);
    assert!(world.placement(place).unwrap().unanswered_us.is_some(), "the state has not come");
}

/// Gives a checkpoint what waits for it.
struct HandsOver(Collected);

impl Sink for HandsOver {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.0.write(batch)
    }

    fn finish(&mut self) -> Result<bool, SinkError> {
        self.0.finish()
    }

    fn has_room(&self) -> bool {
        self.0.has_room()
    }

    fn hands_over(&self) -> bool {
        true
    }
}

#[test]
fn a_moved_source_rests_while_a_sink_has_more_than_it_has_room_for() {
    let sink = Collected::default();
    let source = vec![numbers(0..1_000 * ROWS, Then::Silence)];
    let mut parts = parts(dataflow(1, 0), vec![source], 1, &sink);
    parts.sinks = vec![vec![Box::new(HandsOver(sink.clone()))]];
    let mut world = World::new(parts, 14);
    world.then = Then::Silence;
    let place = (0, 0);
    world.redirect(place).unwrap();
    world.until_step(place, MoveStep::Running);
    world.until("it writes", |_| !sink.rows.lock().is_empty());
    sink.closed.store(true, Ordering::Release);
    world.begin_checkpoint(1).unwrap();
    world.taken().unwrap();
    let read = |world: &mut World| {
        world.rest();
        world.pass(1_000_000);
        world.rest();
        world.placement(place).unwrap().figures.rows_in
    };
    let before = read(&mut world);
    assert_eq!(read(&mut world), before);
    world.begin_checkpoint(2).unwrap();
    world.taken().unwrap();
    assert_eq!(read(&mut world), before, "it read on behind a barrier");
    sink.closed.store(false, Ordering::Release);
    world.until("it goes on", |world| world.placement(place).unwrap().figures.rows_in > before);
}

#[test]
fn an_idle_guest_hears_of_others_as_fast_as_it_answers() {
    let sink = Collected::default();
    let sources = vec![vec![numbers(0..10, Then::Silence)], vec![numbers(0..ROWS, Then::Silence)]];
    let mut world = World::new(parts(dataflow(2, 2_000), sources, 1, &sink), 15);
    world.then = Then::Silence;
    world.flow.pause();
    world.redirect((0, 0)).unwrap();
    world.until_step((0, 0), MoveStep::Running);
    world.rest();
    // It says that it is idle, and hears nothing any more.
    let here = world.here();
    here.arrives(vec![Word::Reached(SourceTime::Idle(9))], Vec::new());
    world.works = false;
    world.flow.resume();
    world.rest();
    let words = here.out.words.lock();
    let told: Vec<&Word> = words.sent.iter().chain(&words.arrived).collect();
    assert!(matches!(told[..], [Word::Phase(Phase::Running), Word::Others(_)]), "{told:?}");
}

#[test]
fn what_becomes_durable_while_a_source_leaves_is_not_what_it_leaves_with() {
    let sink = Collected::default();
    let mut world = World::new(counting(1, 1, &sink, Then::Silence), 16);
    let state = PartitionState { position: Some(format!("0 {ROWS}")), newest_us: None };
    let source = vec![reopened(&[state], Then::Silence, &world.confirmed)];
    world.flow = Arc::new(world.server.start_flow(parts(dataflow(1, 2_000), source, 1, &sink)).unwrap());
    world.then = Then::Silence;
    (0..5).for_each(|_| assert!(world.step()));
    world.begin_checkpoint(1).unwrap();
    let position = world.taken().unwrap().sources[0][0].position.clone().unwrap();
    let is_that = |next: &i64| format!("{next} {ROWS}") == position;
    (0..5).for_each(|_| assert!(world.step()));
    world.works = false;
    world.redirect((0, 0)).unwrap();
    world.rest();
    world.flow.committed(1);
    world.rest();
    assert!(world.confirmed.lock().iter().all(is_that), "{:?}, {position}", world.confirmed.lock());
}

#[test]
fn a_task_stays_where_it_is_when_the_flow_ends() {
    for is_wanted_first in [true, false] {
        let sink = Collected::default();
        let mut world = World::new(counting(1, 1, &sink, Then::Silence), 17);
        world.until("all is read", |world| world.flow.report().rows_in == ROWS as u64);
        // Nobody ever begins.
        world.works = false;
        if is_wanted_first {
            world.redirect((0, 0)).unwrap();
            world.rest();
            assert_eq!(world.step_of((0, 0)), MoveStep::Beginning);
            world.flow.stop(true);
        } else {
            world.flow.stop(true);
            world.redirect((0, 0)).unwrap();
        }
        world.until_ended().unwrap();
        assert_eq!(sums(&sink.rows.lock(), 1), all(1));
    }
}

#[test]
fn who_has_too_much_state_stays() {
    let sink = Collected::default();
    let mut world = World::new(counting(1, 1, &sink, Then::End), 18);
    let line = world.line((1, 0));
    world.flow.redirect((1, 0), Arc::new(line.here.clone()), 10, STATE_BYTES - 1).unwrap();
    world.until_step((1, 0), MoveStep::Home);
    let why = world.placement((1, 0)).unwrap().why.unwrap();
    assert_eq!(why, "it has 1000 bytes of state, and at most 999 move");
    assert!(line.here.out.words.lock().sent.is_empty());
    world.until_ended().unwrap();
    assert_eq!(sums(&sink.rows.lock(), 1), all(1));
}
