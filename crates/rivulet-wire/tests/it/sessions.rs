//! Two processes, streams in both directions, and a network that cuts, delays and breaks off. The test owns the clock.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use proptest::prelude::*;
use rivulet_dataflow::{Batch, Element};
use rivulet_wire::{
    Compression, Connection, Event, Hello, Packed, Packer, ReceiveOptions, Received, SendOptions, Session, StreamId,
    WireError,
};

const STREAMS: usize = 3;

fn schema() -> SchemaRef {
    let number = Field::new("number", DataType::Int64, false);
    Arc::new(Schema::new(vec![number, Field::new("text", DataType::Utf8, false)]))
}

/// Rows with these numbers.
fn rows(from: u64, rows: u64) -> Element {
    let numbers: Vec<i64> = (from..from + rows).map(u64::cast_signed).collect();
    let texts: StringArray = numbers.iter().map(|number| Some(format!("row {number} of many"))).collect();
    let zeros = || vec![0_i64; numbers.len()];
    let (slots, times) = (vec![0; numbers.len()], (zeros().into(), zeros().into()));
    let columns = RecordBatch::try_new(schema(), vec![Arc::new(Int64Array::from(numbers)), Arc::new(texts)]).unwrap();
    Element::Batch(Batch::new(slots.into(), times.0, times.1, columns))
}

/// The buffers of a stream, those that are durable on the other side without their bytes, and the next number that goes
/// into one.
struct Store {
    packer: Packer,
    buffers: Vec<Option<Vec<u8>>>,
    next: u64,
}

fn options(compression: Compression) -> SendOptions {
    SendOptions { buffer_bytes: 2_000, flush_us: 500, compression }
}

const RECEIVE: ReceiveOptions = ReceiveOptions { high_bytes: 6_000, low_bytes: 3_000 };

const COMPRESSIONS: [Compression; STREAMS] = [Compression::None, Compression::Lz4, Compression::Auto];

/// A process with its streams: it sends numbers, and keeps those that it gets.
struct Process {
    me: Hello,
    session: Session,
    /// Its streams, and the next number of each.
    sends: Vec<(StreamId, u64)>,
    /// The buffers of its streams, if they are stored: they survive the process.
    stores: Option<Vec<Store>>,
    /// What it has got of each stream of the other side, by the names of these, and the last buffer; and the same as of
    /// its last checkpoint, which survives the process.
    got: Vec<u64>,
    last: Vec<u64>,
    saved: Vec<(u64, u64)>,
    /// The streams of the other side.
    takes: Vec<Option<Received>>,
    /// What came and was not looked at.
    unread: VecDeque<u8>,
    /// A connection whose other side has not said who it is.
    greeting: Option<Connection>,
}

impl Process {
    fn new(name: &str, is_stored: bool) -> Self {
        let me = Hello { name: name.into(), run: 0, token: None };
        let store = |compression| Store { packer: Packer::new(options(compression)), buffers: Vec::new(), next: 1 };
        let mut process = Self {
            me,
            session: Session::default(),
            sends: Vec::new(),
            stores: is_stored.then(|| COMPRESSIONS.map(store).into_iter().collect()),
            got: vec![0; STREAMS],
            last: vec![0; STREAMS],
            saved: vec![(0, 0); STREAMS],
            takes: vec![None; STREAMS],
            unread: VecDeque::new(),
            greeting: None,
        };
        process.begin();
        process
    }

    /// The process begins, without what it had in memory before.
    fn begin(&mut self) {
        self.me.run += 1;
        self.session = Session::default();
        self.takes = vec![None; STREAMS];
        (self.got, self.last) = self.saved.iter().copied().unzip();
        self.sends = (0..STREAMS).map(|stream| (self.open(stream), 1)).collect();
        self.end_connection();
    }

    fn open(&mut self, stream: usize) -> StreamId {
        let name = format!("stream {stream}");
        match &self.stores {
            Some(_) => self.session.open_stored(name, schema(), 100 + stream as u64),
            None => self.session.open(name, schema(), options(COMPRESSIONS[stream])),
        }
    }

    /// A stream ends, and its store is opened once more.
    fn reopen(&mut self, stream: usize) {
        self.session.close(self.sends[stream].0);
        self.sends[stream].0 = self.open(stream);
    }

    /// Whoever takes a stream ends, and takes it once more from its last checkpoint if it is stored.
    fn retake(&mut self, place: usize) {
        let Some(stream) = self.takes[place] else { return };
        self.session.refuse(stream, "nobody takes it");
        let mut after = None;
        if self.stores.is_some() {
            (self.got[place], self.last[place]) = self.saved[place];
            after = Some((self.last[place], 0)).filter(|(last, _)| *last > 0);
        }
        self.session.accept(stream, after, RECEIVE);
    }

    fn connect(&mut self, now_us: i64) {
        let mut connection = Connection::new(now_us);
        connection.say_hello(&self.me);
        self.greeting = Some(connection);
    }

    fn end_connection(&mut self) {
        self.session.detach();
        self.greeting = None;
        self.unread.clear();
    }

    /// Works, and takes at most `takes` elements of the streams of `open`.
    fn work(&mut self, now_us: i64, takes: usize, open: &[usize], until: u64) -> Result<(), WireError> {
        let unread: Vec<u8> = self.unread.drain(..).collect();
        let mut bytes = &unread[..];
        if let Some(connection) = &mut self.greeting {
            connection.greet(&mut bytes, now_us)?;
            if connection.them().is_some() {
                self.session.attach(self.greeting.take().expect("it is there"));
            }
        }
        self.session.receive(bytes, now_us)?;
        for asked in self.session.asked() {
            let place: usize = asked.name.trim_start_matches("stream ").parse().unwrap();
            // That of an earlier process.
            self.takes[place].replace(asked.stream).into_iter().for_each(|old| self.session.abandon(old));
            assert_eq!(asked.store, self.stores.as_ref().map(|_| 100 + place as u64));
            let after = asked.store.and(Some((self.last[place], 0))).filter(|(last, _)| *last > 0);
            self.session.accept(asked.stream, after, RECEIVE);
        }
        while let Some(event) = self.session.event() {
            match event {
                Event::Accepted { .. } | Event::Arrived { .. } => {}
                Event::Durable { stream, number } => {
                    let place = self.sends.iter().position(|(id, _)| *id == stream);
                    if let (Some(place), Some(stores)) = (place, &mut self.stores) {
                        stores[place].buffers[..number as usize].fill(None);
                    }
                }
                // Nobody took it for a moment, or it was opened while its end was under way.
                Event::Refused { .. } => {}
            }
        }
        for (stream, next) in &mut self.sends {
            while self.stores.is_none() && self.session.has_room(*stream) && *next <= until {
                let many = 1 + *next % 40;
                self.session.push(*stream, &rows(*next, many), now_us)?;
                *next += many;
            }
        }
        for Store { packer, buffers, next } in self.stores.iter_mut().flatten() {
            let mut take = |packed: Packed<'_>| {
                let mut buffer = Vec::new();
                packed.write(&mut buffer);
                buffers.push(Some(buffer));
            };
            let many = 1 + *next % 40;
            if *next <= until {
                packer.push(&rows(*next, many), now_us, &mut take)?;
                *next += many;
            }
            packer.tick(now_us, &mut take);
        }
        for (stream, number) in self.session.wants() {
            let place = self.sends.iter().position(|(id, _)| *id == stream).unwrap();
            let buffers = &self.stores.as_ref().unwrap()[place].buffers;
            let first = buffers.iter().take_while(|buffer| buffer.is_none()).count() as u64 + 1;
            let mut number = if number == 0 { first } else { number };
            while let Some(buffer) = buffers.get(number as usize - 1) {
                let buffer = buffer.as_ref().expect("what is not durable is there");
                if !self.session.supply(stream, number, Packed::read(buffer)?) {
                    break;
                }
                number += 1;
            }
        }
        for place in open {
            for _ in 0..takes {
                let Some(stream) = self.takes[*place] else { continue };
                let Some(buffer) = self.session.take(stream) else { break };
                let number = buffer.number();
                let mut elements = buffer.elements()?;
                while let Some(element) = elements.next_element()? {
                    let Element::Batch(batch) = element else { panic!("{element:?}") };
                    let numbers = batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap();
                    for number in numbers.values() {
                        assert_eq!(number.cast_unsigned(), self.got[*place] + 1, "stream {place} of {}", self.me.name);
                        self.got[*place] += 1;
                    }
                }
                self.last[*place] = number;
                // A checkpoint now and then.
                if number.is_multiple_of(3) {
                    self.saved[*place] = (self.got[*place], number);
                    self.session.confirm(stream, number);
                }
            }
        }
        self.session.tick(now_us)
    }

    /// Sends at most so many bytes.
    fn send(&mut self, bytes_max: usize, now_us: i64, to: &mut VecDeque<u8>) {
        let Some(connection) = self.greeting.as_mut().or(self.session.connection()) else { return };
        let bytes = connection.to_send().len().min(bytes_max);
        to.extend(&connection.to_send()[..bytes]);
        connection.sent(bytes, now_us);
    }
}

/// What happens in a step.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Both work, and the network carries at most so many bytes each way.
    Work { bytes_max: usize, takes: usize, for_us: i64 },
    /// The connection breaks: what is under way is lost.
    Break,
    /// A process begins anew.
    Restart { first: bool },
    /// A stream of the first process ends and begins.
    Reopen { stream: usize },
    /// What takes a stream in the second process does.
    Retake { stream: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0..5_000_usize, 0..6_usize, 0..2_000_i64)
            .prop_map(|(bytes_max, takes, for_us)| Step::Work { bytes_max, takes, for_us }),
        2 => Just(Step::Break),
        1 => any::<bool>().prop_map(|first| Step::Restart { first }),
        1 => (0..STREAMS).prop_map(|stream| Step::Reopen { stream }),
        1 => (0..STREAMS).prop_map(|stream| Step::Retake { stream }),
    ]
}

/// Runs steps, and then until all has come.
fn run(steps: &[Step], until: u64, is_stored: bool) {
    let mut processes = [Process::new("gateway", is_stored), Process::new("cloud", is_stored)];
    let mut wires: [VecDeque<u8>; 2] = Default::default();
    let (mut now_us, mut is_connected) = (0, false);
    let to_the_end = Step::Work { bytes_max: 100_000, takes: 100, for_us: 600 };
    for turn in 0..steps.len() + 20_000 {
        let step = steps.get(turn).copied().unwrap_or(to_the_end);
        match step {
            Step::Work { bytes_max, takes, for_us } => {
                now_us += for_us;
                if !is_connected {
                    processes.iter_mut().for_each(|process| process.connect(now_us));
                    is_connected = true;
                }
                for (place, process) in processes.iter_mut().enumerate() {
                    let arrived = wires[1 - place].len().min(bytes_max);
                    process.unread.extend(wires[1 - place].drain(..arrived));
                    process.work(now_us, takes, &[0, 1, 2], until).expect("an orderly other side");
                    process.send(bytes_max, now_us, &mut wires[place]);
                }
            }
            Step::Reopen { stream } if is_stored => processes[0].reopen(stream),
            Step::Reopen { .. } => {}
            Step::Retake { stream } => processes[1].retake(stream),
            Step::Break | Step::Restart { .. } => {
                if let (Step::Restart { first }, true) = (step, is_stored) {
                    processes[usize::from(!first)].begin();
                }
                processes.iter_mut().for_each(Process::end_connection);
                wires.iter_mut().for_each(VecDeque::clear);
                is_connected = false;
            }
        }
        let all = processes.iter().all(|process| process.got.iter().all(|got| *got >= until));
        if turn >= steps.len() && all {
            return;
        }
    }
    panic!("not all came: {:?}", processes.map(|process| process.got));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Each row comes once and in order, however the connection breaks; stored ones also if processes begin anew.
    #[test]
    fn every_row_comes_once_and_in_order(steps in prop::collection::vec(step(), 0..120), is_stored in any::<bool>()) {
        run(&steps, 800, is_stored);
    }
}

#[test]
fn a_stream_that_nobody_takes_from_holds_up_no_other_and_stays_within_its_bounds() {
    let mut processes = [Process::new("gateway", false), Process::new("cloud", false)];
    processes.iter_mut().for_each(|process| process.connect(0));
    let mut wires: [VecDeque<u8>; 2] = Default::default();
    for turn in 0..2_000 {
        for (place, process) in processes.iter_mut().enumerate() {
            process.unread.extend(wires[1 - place].drain(..));
            process.work(turn * 600, 100, &[0, 2], 50_000).unwrap();
            process.send(usize::MAX, turn * 600, &mut wires[place]);
        }
    }
    for process in &mut processes {
        assert_eq!((process.got[0] >= 50_000, process.got[1], process.got[2] >= 50_000), (true, 0, true));
        let unread = process.takes[1].expect("it is accepted");
        assert!((6_000..10_000).contains(&process.session.waiting_bytes(unread)));
        assert!(!process.session.has_room(process.sends[1].0));
    }
}

/// Attaches two sessions to each other.
fn attached() -> [Process; 2] {
    let mut processes = [Process::new("gateway", false), Process::new("cloud", false)];
    processes.iter_mut().for_each(|process| process.connect(0));
    let mut wires: [VecDeque<u8>; 2] = Default::default();
    for _ in 0..6 {
        for (place, process) in processes.iter_mut().enumerate() {
            process.unread.extend(wires[1 - place].drain(..));
            process.work(0, 0, &[], 0).unwrap();
            process.send(usize::MAX, 0, &mut wires[place]);
        }
    }
    processes
}

#[test]
fn a_name_is_used_once_and_a_refusal_says_why() {
    let [mut gateway, mut cloud] = attached();
    gateway.session.open("stream 1".into(), schema(), SendOptions::default());
    gateway.session.open("other".into(), schema(), SendOptions::default());
    let mut wire = VecDeque::new();
    gateway.send(usize::MAX, 0, &mut wire);
    cloud.session.receive(wire.make_contiguous(), 0).unwrap();
    let asked = cloud.session.asked();
    let [asked] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((asked.name.as_str(), &asked.schema), ("other", &schema()));
    // It is told once.
    cloud.session.refuse(asked.stream, "nobody reads it");
    cloud.session.refuse(asked.stream, "nobody reads it");
    let mut wire = VecDeque::new();
    cloud.send(usize::MAX, 0, &mut wire);
    gateway.session.receive(wire.make_contiguous(), 0).unwrap();
    let refusals: Vec<String> = std::iter::from_fn(|| gateway.session.event())
        .map(|event| match event {
            Event::Refused { why, .. } => why,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(refusals, ["another stream of the same process has this name", "nobody reads it"]);
}

#[test]
fn the_sender_of_a_stored_stream_learns_what_the_other_side_has_of_it() {
    let [mut gateway, mut cloud] = attached();
    let stream = gateway.session.open_stored("stored".into(), schema(), 7);
    let mut wire = VecDeque::new();
    gateway.send(usize::MAX, 0, &mut wire);
    cloud.session.receive(wire.make_contiguous(), 0).unwrap();
    let asked = cloud.session.asked();
    cloud.session.accept(asked[0].stream, Some((4, 99)), ReceiveOptions::default());
    let mut wire = VecDeque::new();
    cloud.send(usize::MAX, 0, &mut wire);
    gateway.session.receive(wire.make_contiguous(), 0).unwrap();
    assert_eq!(gateway.session.event(), Some(Event::Accepted { stream, after: Some((4, 99)) }));
    assert_eq!(gateway.session.wants(), [(stream, 5)]);
}

#[test]
fn what_is_repeated_forged_or_more_than_it_may_ends_the_connection() {
    let [mut gateway, mut cloud] = attached();
    let stream = gateway.sends[0].0;
    gateway.session.push(stream, &rows(1, 5), 0).unwrap();
    gateway.session.tick(10_000).unwrap();
    let mut wire = VecDeque::new();
    gateway.send(usize::MAX, 0, &mut wire);
    let sent = wire.make_contiguous();
    cloud.session.receive(sent, 0).unwrap();
    assert_eq!(cloud.session.receive(sent, 0), Err(WireError::Broken("the buffers of a stream in another order")));

    let [_, mut cloud] = attached();
    sent[40] ^= 1;
    assert_eq!(cloud.session.receive(sent, 0), Err(WireError::Broken("a frame that is not as it was sent")));
}

#[test]
fn a_silent_side_is_given_up_and_one_that_lives_is_not() {
    let [mut gateway, mut cloud] = attached();
    let mut wire = VecDeque::new();
    for second in 1..100 {
        gateway.work(second * 1_000_000, 0, &[], 0).unwrap();
        gateway.send(usize::MAX, second * 1_000_000, &mut wire);
        cloud.unread.extend(wire.drain(..));
        cloud.work(second * 1_000_000, 0, &[], 0).unwrap();
        cloud.send(usize::MAX, second * 1_000_000, &mut wire);
        gateway.unread.extend(wire.drain(..));
    }
    let silent = (100..200).find_map(|second| gateway.work(second * 1_000_000, 0, &[], 0).err());
    assert_eq!(silent, Some(WireError::Silent { us: 20_000_000 }));
}

#[test]
fn who_is_refused_learns_why() {
    let mut connection = Connection::new(0);
    connection.say_bye("the token is wrong");
    let answer = connection.to_send().to_vec();
    let refused = Connection::new(0).greet(&mut &answer[..], 0);
    assert_eq!(refused, Err(WireError::Refused("the token is wrong".into())));
}

#[test]
fn a_stream_that_was_dropped_and_made_again_goes_on_and_the_last_buffer_is_acknowledged() {
    let mut processes = attached();
    let mut wires: [VecDeque<u8>; 2] = Default::default();
    let mut got = Vec::new();
    for round in 0..1_100_u64 {
        let [gateway, cloud] = &mut processes;
        let stream = gateway.session.open("again".into(), schema(), SendOptions::default());
        for turn in 0..20 {
            let now_us = (round * 20 + turn).cast_signed() * 10;
            for (place, process) in [&mut *gateway, &mut *cloud].into_iter().enumerate() {
                process.unread.extend(wires[1 - place].drain(..));
                let unread: Vec<u8> = process.unread.drain(..).collect();
                process.session.receive(&unread, now_us).unwrap();
            }
            for asked in cloud.session.asked() {
                cloud.session.accept(asked.stream, None, ReceiveOptions::default());
                got.push(asked.stream);
            }
            while gateway.session.event().is_some() {}
            while cloud.session.event().is_some() {}
            if turn == 5 {
                assert!(gateway.session.has_room(stream), "round {round}");
                gateway.session.push(stream, &rows(1, 3), now_us).unwrap();
                gateway.session.flush(stream);
            }
            let taken = got.last().and_then(|last| cloud.session.take(*last));
            assert!(taken.is_none() || turn > 5);
            for (place, process) in [&mut *gateway, &mut *cloud].into_iter().enumerate() {
                process.session.tick(now_us).unwrap();
                process.send(usize::MAX, now_us, &mut wires[place]);
            }
        }
        let (taken, is_all) = gateway.session.taken(stream);
        assert_eq!((taken.rows, is_all), (3, true), "round {round}");
        gateway.session.close(stream);
    }
    let [_, cloud] = &processes;
    assert_eq!(got.iter().filter(|stream| cloud.session.is_there(**stream)).count(), 1, "they are freed");
}
