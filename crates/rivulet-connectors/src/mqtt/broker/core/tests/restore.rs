//! After any operations and a crash at any point of the journal, the restored state is the saved state.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;
use rivulet_dataflow::ManualClock;

use super::super::super::super::codec::Publish;
use super::super::super::incoming::Arrival;
use super::super::super::journal::tests::MemoryJournal;
use super::super::super::journal::{Journal, Lasting, MessageNumber, Record, SessionNumber, UnderWay};
use super::super::super::message::{Identifiers, Manner, OfGroup};
use super::super::*;
use super::{MaySubscribe, connect_from, core, publish_to, sent, subscribe_with};

const CLIENTS: [&str; 3] = ["a", "b", "c"];
const TOPICS: [&str; 3] = ["t/1", "t/2", "u"];
const FILTERS: [&str; 4] = ["t/1", "t/+", "#", "u"];

#[derive(Clone, Debug)]
enum Op {
    Connect {
        client: usize,
        clean: bool,
        expiry_s: u32,
    },
    Disconnect {
        client: usize,
        expiry_s: Option<u32>,
    },
    Subscribe {
        client: usize,
        filter: usize,
        qos: Qos,
    },
    Unsubscribe {
        client: usize,
        filter: usize,
    },
    Publish {
        topic: usize,
        qos: Qos,
        retain: bool,
        is_empty: bool,
    },
    /// Reads what was sent, and acknowledges all of it or the last message.
    Read {
        client: usize,
        all: bool,
    },
    Rewrite,
}

fn op() -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS.len();
    let qos = || prop::sample::select(vec![Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce]);
    prop_oneof![
        2 => (client.clone(), any::<bool>(), prop::sample::select(vec![0, 60, 60, 90]))
            .prop_map(|(client, clean, expiry_s)| Op::Connect { client, clean: clean && expiry_s != 60, expiry_s }),
        1 => (client.clone(), prop::sample::select(vec![None, None, Some(0), Some(30)]))
            .prop_map(|(client, expiry_s)| Op::Disconnect { client, expiry_s }),
        3 => (client.clone(), 0..FILTERS.len(), qos())
            .prop_map(|(client, filter, qos)| Op::Subscribe { client, filter, qos }),
        1 => (client.clone(), 0..FILTERS.len()).prop_map(|(client, filter)| Op::Unsubscribe { client, filter }),
        8 => (0..TOPICS.len(), qos(), any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(topic, qos, retain, is_empty)| {
            Op::Publish { topic, qos, retain, is_empty }
        }),
        3 => (client, any::<bool>()).prop_map(|(client, all)| Op::Read { client, all }),
        2 => Just(Op::Rewrite),
    ]
}

/// The state that is to outlive the process: for each client its expiry, its filters (with whether retained messages
/// are on their way) and the messages that wait for it; and the retained messages.
type State = (BTreeMap<String, (u32, BTreeMap<String, (Qos, bool)>, Vec<String>)>, BTreeMap<String, String>);

fn state(core: &Core) -> State {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let sessions = core.sessions.iter().filter(|(_, session)| session.expiry_s > 0).map(|(_, session)| {
        let subscription = |number: &u32| core.subscriptions.get(*number).unwrap();
        let filters = session.subscriptions.iter();
        let options = |number| (subscription(number).qos, session.wants_retained(*number));
        let filters = filters.map(|(filter, number)| (filter.to_string(), options(number))).collect();
        let messages = session.messages().map(|(message, manner)| {
            assert!(manner.qos > Qos::AtMostOnce);
            text(&message.payload)
        });
        // What is released follows the messages.
        let released = session.under_way().released.into_iter().map(|packet_id| format!("-{packet_id}"));
        (session.client_id.to_string(), (session.expiry_s, filters, messages.chain(released).collect()))
    });
    let retained = core.retained.from(b"").map(|(topic, message)| (text(topic), text(&message.payload)));
    (sessions.collect(), retained.collect())
}

fn new_core() -> Core {
    core(|options| (options.limits.session_queue_messages_max, options.limits.retained_messages_max) = (5, 2))
}

fn restored(journal: MemoryJournal) -> Core {
    let mut core = new_core();
    core.restore(Arc::new(journal), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
    core
}

#[derive(Default)]
struct World {
    connections: BTreeMap<usize, (SessionKey, Arc<Outbox>)>,
    published: u64,
}

impl World {
    fn run(&mut self, core: &mut Core, op: &Op) {
        match *op {
            Op::Connect { client, clean, expiry_s } => {
                let (key, outbox, _) = connect_from(core, client as u8, CLIENTS[client], clean, expiry_s).unwrap();
                self.connections.insert(client, (key, outbox));
            }
            Op::Disconnect { client, expiry_s } => {
                if let Some((key, outbox)) = self.connections.remove(&client) {
                    core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s });
                }
            }
            Op::Subscribe { client, filter, qos } => {
                if let Some((key, _)) = self.connections.get(&client) {
                    subscribe_with(core, *key, FILTERS[filter], qos, RetainHandling::Always);
                }
            }
            Op::Unsubscribe { client, filter } => {
                if let Some((key, _)) = self.connections.get(&client) {
                    core.unsubscribe(*key, FILTERS[filter]);
                }
            }
            Op::Publish { topic, qos, retain, is_empty } => {
                self.published += 1;
                let payload = if is_empty { String::new() } else { self.published.to_string() };
                publish_to(core, TOPICS[topic], payload.as_bytes(), qos, retain);
            }
            Op::Read { client, all } => {
                if let Some((key, outbox)) = self.connections.get(&client) {
                    let packets = sent(outbox);
                    let from = if all { 0 } else { packets.len().saturating_sub(1) };
                    for (_, packet_id, _) in &packets[from..] {
                        core.acknowledge(*key, *packet_id);
                        core.received(*key, *packet_id, false);
                        if all {
                            core.completed(*key, *packet_id);
                        }
                    }
                    core.pump(*key, outbox);
                }
            }
            Op::Rewrite => drop(core.rewrite_some()),
        }
        core.save_rest();
    }
}

proptest! {
    #[test]
    fn what_comes_back_is_what_was_there(ops in prop::collection::vec(op(), 1..60), cut in any::<prop::sample::Index>()) {
        let journal = Arc::new(MemoryJournal::default());
        let mut core = new_core();
        core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
        // The journal is rewritten whenever an operation asks for it.
        core.saving.as_mut().unwrap().spare_bytes = 0;
        let mut world = World::default();
        let mut states = vec![(0, state(&core))];
        for op in &ops {
            world.run(&mut core, op);
            let position = journal.next() - 1;
            journal.set_durable(position);
            states.push((position, state(&core)));
        }
        // A crash after any of the operations: records that were forgotten are not missed, for all that is kept was
        // written again.
        let (position, before) = states.last().unwrap();
        let mut again = restored(journal.crashed_at(*position));
        prop_assert_eq!(&state(&again), before);
        // Restores once more, from the journal of a process that was itself restored.
        let key = |core: &Core| core.by_client_id.get("a").copied();
        if key(&again).is_some() {
            let (_, _, present) = connect_from(&mut again, 9, "a", false, 90).unwrap();
            prop_assert!(present);
            publish_to(&mut again, "t/1", b"later", Qos::AtLeastOnce, true);
        }
        // A crash in the middle of an operation invents nothing.
        let cut = cut.index(*position as usize + 1) as u64;
        let (sessions, retained) = state(&restored(journal.crashed_at(cut)));
        for (client, (_, _, messages)) in sessions {
            prop_assert!(CLIENTS.contains(&&*client));
            prop_assert!(messages.iter().all(|payload| payload.parse().unwrap_or(0) <= world.published));
        }
        prop_assert!(retained.keys().all(|topic| TOPICS.contains(&&**topic)));
    }
}

#[test]
fn a_journal_stays_short_and_nothing_in_it_is_missed() {
    let journal = Arc::new(MemoryJournal::default());
    let mut core = core(|_| {});
    core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
    core.saving.as_mut().unwrap().spare_bytes = 100_000;
    let (key, outbox, _) = connect_from(&mut core, 1, "away", false, 60).unwrap();
    subscribe_with(&mut core, key, "kept", Qos::AtLeastOnce, RetainHandling::Never);
    core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    for number in 0..50 {
        publish_to(&mut core, "kept", format!("{number}").as_bytes(), Qos::AtLeastOnce, false);
    }
    let mut largest = 0;
    for number in 0..20_000 {
        publish_to(&mut core, &format!("home/{}", number % 10), format!("{number}").as_bytes(), Qos::AtMostOnce, true);
        journal.set_durable(journal.next() - 1);
        core.rewrite_some();
        largest = largest.max(journal.disk_bytes());
    }
    assert!(largest < 250_000, "{largest}");
    let again = restored_from(&journal);
    assert_eq!(state(&again), state(&core));
    assert_eq!((again.stats(SeatCounts::default()).waiting_messages, again.retained.len()), (50, 10));
}

fn restored_from(journal: &MemoryJournal) -> Core {
    let mut again = core(|_| {});
    again.restore(Arc::new(journal.crashed_at(journal.next() - 1)), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
    again
}

#[test]
fn time_goes_on_while_there_is_no_process() {
    let journal = Arc::new(MemoryJournal::default());
    let mut core = core(|_| {});
    let clock = Arc::new(ManualClock::new(1_000_000));
    core.restore(journal.clone(), clock.clone(), 0).unwrap();
    for (client_id, expiry_s) in [("short", 50), ("long", 500), ("connected", 50)] {
        let (key, outbox, _) = connect_from(&mut core, 1, client_id, false, expiry_s).unwrap();
        subscribe_with(&mut core, key, "t", Qos::AtLeastOnce, RetainHandling::Never);
        if client_id != "connected" {
            core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
        }
    }
    let expires_at = Some(Instant::now() + Duration::from_secs(60));
    let publish = Publish { topic: b"t", payload: b"x", qos: Qos::AtLeastOnce, retain: true, ..Publish::default() };
    core.publish(&publish, None, expires_at);
    clock.advance_us(100_000_000);
    let mut again = self::core(|_| {});
    again.restore(Arc::new(journal.crashed_at(journal.next() - 1)), clock, 0).unwrap();
    let (sessions, retained) = state(&again);
    assert_eq!(sessions.keys().collect::<Vec<_>>(), ["connected", "long"], "a connection ends with the process");
    assert!(retained.values().all(|payload| payload == "x"));
    let now = Instant::now();
    again.keep_house(now + Duration::from_secs(1));
    assert_eq!(again.retained.len(), 0, "it has expired meanwhile");
    again.keep_house(now + Duration::from_secs(51));
    assert_eq!(state(&again).0.len(), 1);
    again.keep_house(now + Duration::from_secs(399));
    assert_eq!(state(&again).0.len(), 1);
    again.keep_house(now + Duration::from_secs(402));
    assert_eq!(state(&again).0.len(), 0);
}

#[test]
fn a_full_journal_is_written_anew() {
    let journal = Arc::new(MemoryJournal::default());
    let mut core = core(|_| {});
    core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
    let (key, outbox, _) = connect_from(&mut core, 1, "away", false, 60).unwrap();
    subscribe_with(&mut core, key, "kept", Qos::AtLeastOnce, RetainHandling::Never);
    core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    publish_to(&mut core, "kept", b"x", Qos::AtLeastOnce, false);
    journal.set_bytes_max(50_000);
    for number in 0..10_000 {
        core.begin_turn();
        if !core.has_room_to_save() {
            break;
        }
        publish_to(&mut core, &format!("home/{}", number % 10), format!("{number}").as_bytes(), Qos::AtMostOnce, true);
    }
    assert!(!core.has_room_to_save() && core.will_have_room_to_save());
    for _ in 0..10 {
        core.rewrite_some();
        journal.set_durable(journal.next() - 1);
    }
    core.begin_turn();
    assert!(core.has_room_to_save() && journal.disk_bytes() < 5_000, "{}", journal.disk_bytes());
    assert_eq!(state(&restored_from(&journal)), state(&core));
}

#[test]
fn what_a_backup_holds_is_forgotten_when_it_is_over() {
    let journal = Arc::new(MemoryJournal::default());
    let mut core = core(|_| {});
    core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
    if let Some(saving) = &mut core.saving {
        saving.spare_bytes = 2_000;
    }
    for number in 0..200 {
        publish_to(&mut core, "home", format!("{number}").as_bytes(), Qos::AtMostOnce, true);
    }
    let (before, kept) = (journal.disk_bytes(), state(&core));
    journal.set_held(true);
    for _ in 0..10 {
        core.rewrite_some();
        journal.set_durable(journal.next() - 1);
    }
    assert!((before..before + 200).contains(&journal.disk_bytes()), "written anew once, and nothing is forgotten");
    assert_eq!(state(&restored_from(&journal)), kept);
    journal.set_held(false);
    core.rewrite_some();
    assert!(journal.disk_bytes() < 200, "{}", journal.disk_bytes());
    assert_eq!(state(&restored_from(&journal)), kept);
}

#[test]
fn contents_are_counted_without_a_broker() {
    let journal = Arc::new(MemoryJournal::default());
    let mut core = core(|_| {});
    core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
    for (number, (client_id, expiry_s)) in [("a", 60), ("b", 90)].into_iter().enumerate() {
        let (key, outbox, _) = connect_from(&mut core, number as u8, client_id, false, expiry_s).unwrap();
        subscribe_with(&mut core, key, "t", Qos::AtLeastOnce, RetainHandling::Never);
        core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    }
    publish_to(&mut core, "t", b"x", Qos::AtLeastOnce, true);
    publish_to(&mut core, "t", b"y", Qos::AtLeastOnce, false);
    let summary = |skipped: Option<usize>, now_us: i64| {
        let (mut contents, mut index) = (JournalContents::default(), 0);
        let take = &mut |_, record: &[u8]| {
            if Some(index) != skipped {
                contents.take(record);
            }
            index += 1;
        };
        journal.read(take).unwrap();
        (contents.finish(now_us), index)
    };
    const BEGIN_US: i64 = 1_000_000;
    let (whole, records) = summary(None, BEGIN_US);
    assert_eq!(whole, JournalSummary { sessions: 2, waiting: 4, retained: 1, missing: 0, unreadable: 0 });
    // Without its record nothing is known of a message; the session's own record says that it waits for one.
    assert_eq!(summary(Some(records - 1), BEGIN_US).0, JournalSummary { waiting: 2, ..whole });
    // A session whose time is over ends with the next start, and so do the messages that wait for it.
    assert_eq!(summary(None, BEGIN_US + 59_000_000).0, whole);
    assert_eq!(summary(None, BEGIN_US + 60_000_000).0, JournalSummary { sessions: 1, waiting: 2, ..whole });
    let mut contents = JournalContents::default();
    contents.take(b"\xffno record");
    assert_eq!(contents.finish(0), JournalSummary { unreadable: 1, ..JournalSummary::default() });
}

#[test]
fn messages_of_an_older_session_of_a_client_are_not_missing() {
    let identifiers = Identifiers::default();
    let manner =
        Manner { qos: Qos::AtLeastOnce, retain: false, is_shared: false, group: OfGroup::default(), identifiers };
    let lasting = Lasting { expiry_s: 60, away_since_us: 1, address: IpAddr::from([127, 0, 0, 1]) };
    let session = |session: SessionNumber, queue: &[MessageNumber]| {
        let queue = queue.iter().map(|&number| (number, manner)).collect();
        let mut bytes = Vec::new();
        let under_way = UnderWay::default();
        let subscriptions = Vec::new();
        Record::Session { session, client_id: "c", lasting, subscriptions, queue, under_way }.encode(&mut bytes);
        bytes
    };
    let summary = |records: &[Vec<u8>]| {
        let mut contents = JournalContents::default();
        records.iter().for_each(|record| contents.take(record));
        contents.finish(2)
    };
    // There was no room for the end of the first session, and its messages were forgotten since.
    let found = summary(&[session(1, &[7, 8]), session(2, &[])]);
    assert_eq!(found, JournalSummary { sessions: 1, ..JournalSummary::default() });
    let found = summary(&[session(1, &[7, 8]), session(2, &[9])]);
    assert_eq!(found, JournalSummary { sessions: 1, waiting: 1, missing: 1, ..JournalSummary::default() });
}

#[test]
fn a_session_that_began_without_room_is_saved_when_it_subscribes() {
    let journal = Arc::new(MemoryJournal::default());
    let mut core = core(|_| {});
    core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
    let (key, _, _) = connect_from(&mut core, 1, "c", false, 60).unwrap();
    subscribe_with(&mut core, key, "old", Qos::AtLeastOnce, RetainHandling::Never);
    // Neither the end of this session nor the beginning of the next one can be saved.
    journal.set_broken(true);
    let (key, outbox, present) = connect_from(&mut core, 1, "c", true, 60).unwrap();
    assert!(!present && !core.has_room_to_save());
    journal.set_broken(false);
    core.begin_turn();
    subscribe_with(&mut core, key, "t", Qos::AtLeastOnce, RetainHandling::Never);
    publish_to(&mut core, "t", b"x", Qos::AtLeastOnce, false);
    core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    let again = restored_from(&journal);
    assert_eq!(state(&again), state(&core));
    assert_eq!(again.stats(SeatCounts::default()).waiting_messages, 1);
}

#[test]
fn a_session_ends_in_time_however_often_the_process_starts() {
    let journal = Arc::new(MemoryJournal::default());
    let clock = Arc::new(ManualClock::new(1_000_000));
    let mut core = core(|_| {});
    core.restore(journal.clone(), clock.clone(), 0).unwrap();
    connect_from(&mut core, 1, "connected", false, 50).unwrap();
    let mut left = Vec::new();
    for _ in 0..3 {
        let mut again = self::core(|_| {});
        again.restore(journal.clone(), clock.clone(), 0).unwrap();
        left.push(again.sessions.len());
        clock.advance_us(30_000_000);
    }
    assert_eq!(left, [1, 1, 0]);
}

/// A message of QoS 2 from a session.
fn once(packet_id: u16) -> Publish<'static> {
    Publish { topic: b"t", payload: b"x", qos: Qos::ExactlyOnce, packet_id, ..Publish::default() }
}

#[test]
fn what_a_client_has_not_released_is_known_after_a_crash() {
    let journal = Arc::new(MemoryJournal::default());
    let mut core = core(|_| {});
    core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
    let (reader, _, _) = connect_from(&mut core, 1, "reader", false, 60).unwrap();
    subscribe_with(&mut core, reader, "t", Qos::ExactlyOnce, RetainHandling::Never);
    let (sensor, _, _) = connect_from(&mut core, 1, "sensor", false, 60).unwrap();
    for (packet_id, position) in [(1, 0), (2, 9), (3, 10), (4, 8)] {
        assert!(core.publish_once(sensor, &once(packet_id), None, position).saved_at > 0);
    }
    assert!(core.release(sensor, 4).1 > 0);
    let after = |journal: &MemoryJournal, log_end| {
        let mut again = self::core(|_| {});
        let crashed = Arc::new(journal.crashed_at(journal.next() - 1));
        again.restore(crashed.clone(), Arc::new(ManualClock::new(1_000_000)), log_end).unwrap();
        (again, crashed)
    };
    // The log of events ends before the third message.
    let (mut again, crashed) = after(&journal, 10);
    let (sensor, _, present) = connect_from(&mut again, 1, "sensor", false, 60).unwrap();
    assert!(present);
    let arrivals = [1, 2, 3, 4].map(|packet_id| again.arrival(sensor, packet_id).unwrap());
    assert_eq!(arrivals, [Arrival::Lost, Arrival::Repeat, Arrival::Lost, Arrival::New]);
    // When another message has its position, it is still not there.
    let (later, _) = after(&crashed, 11);
    assert_eq!(later.arrival(later.by_client_id["sensor"], 3), Some(Arrival::Lost));
    // The log of events has messages that came before: one that was released does not come again.
    let done = [(4, 8), (4, 9), (2, 9)].map(|(packet_id, position)| again.is_done(b"sensor", packet_id, position));
    assert_eq!(done, [true, false, false]);
    let waiting = |core: &Core| core.stats(SeatCounts::default()).waiting_messages;
    assert_eq!(waiting(&again), 4);
    // It goes into the log of events alone: the reader has it.
    again.publish_once(sensor, &once(3), None, 10);
    assert_eq!((waiting(&again), again.arrival(sensor, 3)), (4, Some(Arrival::Repeat)));
    let (again, _) = after(&crashed, 11);
    let sensor = again.by_client_id["sensor"];
    assert_eq!(again.arrival(sensor, 3), Some(Arrival::Repeat));
}

#[test]
fn a_message_is_marked_as_sent_again_if_it_may_have_been_sent_and_only_then() {
    let journal = Arc::new(MemoryJournal::default());
    let mut core = core(|_| {});
    core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
    let (key, outbox, _) = connect_from(&mut core, 1, "reader", false, 60).unwrap();
    subscribe_with(&mut core, key, "t", Qos::AtLeastOnce, RetainHandling::Never);
    let _ = ["1", "2", "3"].map(|payload| publish_to(&mut core, "t", payload.as_bytes(), Qos::AtLeastOnce, false));
    assert_eq!(sent(&outbox).len(), 2, "the client takes two at a time");
    core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    publish_to(&mut core, "t", b"4", Qos::AtLeastOnce, false);
    let killed = journal.crashed_at(journal.next() - 1);
    core.save_stopped();
    let stopped = Arc::new(journal.crashed_at(journal.next() - 1));
    let marks = |journal: &Arc<MemoryJournal>| {
        let mut core = self::core(|_| {});
        core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
        let (key, outbox, _) = connect_from(&mut core, 1, "reader", false, 60).unwrap();
        let mut marks = Vec::new();
        while marks.len() < 4 {
            for (payload, packet_id, is_again) in sent(&outbox) {
                marks.push((payload[0], is_again));
                core.acknowledge(key, packet_id);
            }
        }
        marks
    };
    assert_eq!(marks(&Arc::new(killed)), [(b'1', true), (b'2', true), (b'3', true), (b'4', true)]);
    // The client of this process acknowledges nothing that is recorded, and the process is killed.
    let mut again = self::core(|_| {});
    again.restore(stopped.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
    let killed = Arc::new(stopped.crashed_at(stopped.next() - 1));
    let stopped = Arc::new(journal.crashed_at(journal.next() - 1));
    assert_eq!(marks(&stopped), [(b'1', true), (b'2', true), (b'3', false), (b'4', false)]);
    assert_eq!(marks(&killed), [(b'1', true), (b'2', true), (b'3', true), (b'4', true)]);
}

#[test]
fn retained_messages_that_were_removed_by_a_level_are_gone_after_a_crash() {
    let journal = Arc::new(MemoryJournal::default());
    let mut core = core(|_| {});
    core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
    for topic in ["acme", "acme-b/x", "acme/", "acme/a/b", "acme/c", "acme0", "acm", "b/acme/x"] {
        publish_to(&mut core, topic, b"x", Qos::AtLeastOnce, true);
    }
    assert_eq!(core.forget_retained("acme"), Some(true));
    let left = ["acm", "acme-b/x", "acme0", "b/acme/x"];
    for core in [&core, &restored_from(&journal)] {
        assert!(state(core).1.keys().eq(left), "{:?}", state(core).1);
    }
}

#[test]
fn a_message_of_qos_2_keeps_its_packet_identifier_after_a_crash() {
    let journal = Arc::new(MemoryJournal::default());
    let mut core = core(|_| {});
    core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
    let (reader, outbox, _) = connect_from(&mut core, 1, "reader", false, 60).unwrap();
    subscribe_with(&mut core, reader, "t", Qos::ExactlyOnce, RetainHandling::Never);
    // The reader takes two at a time; the others wait.
    for payload in [b"1", b"2", b"3", b"4"] {
        publish_to(&mut core, "t", payload, Qos::ExactlyOnce, false);
    }
    let first = sent(&outbox);
    assert_eq!(first, [(b"1".to_vec(), 1, false), (b"2".to_vec(), 2, false)]);
    assert!(core.received(reader, 1, false).1 > 0);
    let mut again = restored_from(&journal);
    let (reader, outbox, _) = connect_from(&mut again, 1, "reader", false, 60).unwrap();
    // One identifier is released and one message in flight.
    assert_eq!(again.sessions.get(reader).unwrap().under_way().released, [1]);
    assert_eq!(sent(&outbox), [(b"2".to_vec(), 2, true)]);
    again.completed(reader, 1);
    let third = sent(&outbox);
    assert_eq!((&third[0].0[..], third[0].2), (&b"3"[..], true));
    assert!(third[0].1 > 10_000, "far from those that the client may have: {third:?}");
}

#[test]
fn what_was_sent_before_a_right_ended_does_not_come_again_even_after_a_crash() {
    for (qos, unsubscribes, crashes) in [
        (Qos::AtLeastOnce, false, false),
        (Qos::AtLeastOnce, true, true),
        (Qos::ExactlyOnce, true, false),
        (Qos::ExactlyOnce, false, true),
    ] {
        let mut journal = Arc::new(MemoryJournal::default());
        let mut core = core(|_| {});
        core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
        let (key, outbox, _) = connect_from(&mut core, 1, "c", false, 60).unwrap();
        for filter in ["t", "u"] {
            subscribe_with(&mut core, key, filter, qos, RetainHandling::Never);
        }
        for (topic, payload) in [("t", b"1"), ("u", b"2"), ("t", b"3"), ("u", b"4")] {
            publish_to(&mut core, topic, payload, qos, false);
        }
        let payloads = |outbox: &Outbox| sent(outbox).into_iter().map(|(payload, ..)| payload).collect::<Vec<_>>();
        assert_eq!(payloads(&outbox), [b"1", b"2"], "the client takes two at a time");
        if unsubscribes {
            assert!(core.unsubscribe(key, "t").is_some() && core.unsubscribe(key, "u").is_some());
        }
        core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
        let mut crash = |core: &mut Core| {
            journal = Arc::new(journal.crashed_at(journal.next() - 1));
            *core = self::core(|_| {});
            core.restore(journal.clone(), Arc::new(ManualClock::new(1_000_000)), 0).unwrap();
        };
        if crashes {
            crash(&mut core);
        }
        let rights: Rights = Some(Arc::new(MaySubscribe("u")));
        core.keep_permitted("c", &rights);
        core.save_rest();
        let dropped = core.counters.drops.rights_ended;
        // After one more crash the rights are not asked: the journal agrees.
        if crashes {
            crash(&mut core);
        }
        let (_, outbox, is_present) = connect_from(&mut core, 1, "c", false, 60).unwrap();
        assert!(is_present);
        assert_eq!((payloads(&outbox), dropped), (vec![b"2".to_vec(), b"4".to_vec()], 2), "{qos:?} {unsubscribes}");
        assert_eq!(core.stats(SeatCounts::default()).waiting_messages, 2);
    }
}
