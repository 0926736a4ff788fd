//! The journal of the embedded broker: sessions, messages of QoS 2 on their way, and what is retained, with records
//! that were changed, exchanged or lost. The broker takes over what can be read, serves clients of it in whole packets,
//! and what it keeps from then on can be read again. A journal that was not changed gives the session back.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rivulet_connectors::mqtt::{Broker, Journal, Room, Router};
use rivulet_dataflow::{LogPosition, ManualClock};
use tokio::sync::Notify;

use super::mqtt_broker::{Client, check_answer, options, runtime};
use crate::Target;
use crate::edits::{self, Files};
use crate::input::Input;

/// See the module.
pub const TARGET: Target = Target {
    name: "mqtt_journal",
    run,
    words: &["a/#", "$share/g/b", "kept", "\u{1}", "\u{6}", "\u{a}", "\u{f}", "\u{10}"],
    mutations: 600,
};

/// A client of version 5 whose session is kept, with QoS 2: CONNECT, and subscriptions to `a/#` and `$share/g/b`.
const CONNECT: &[u8] = b"\x10\x16\x00\x04MQTT\x05\x00\x00\x3c\x05\x11\x00\x00\xff\xff\x00\x04kept";
const SUBSCRIBE: &[u8] = b"\x82\x16\x00\x09\x00\x00\x03a/#\x02\x00\x0a$share/g/b\x01";

/// One that publishes, and whose session is not kept.
const OTHER: &[u8] = b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01o";

/// Messages of QoS 2 (released and not), 1 with retain, and one for the shared subscription.
const MESSAGES: &[u8] = b"\x34\x09\x00\x03a/1\x00\x01\x00x\x62\x02\x00\x01\x34\x09\x00\x03a/2\x00\x02\x00y\
                          \x33\x09\x00\x03a/3\x00\x03\x00z\x32\x07\x00\x01b\x00\x04\x00w";

/// The client has the first message of QoS 2, and says so.
const RECEIVED: &[u8] = b"\x50\x02\x00\x01";

fn run(bytes: &[u8]) {
    let mut records = whole().clone();
    let is_changed = edits::apply(&mut records, &mut Input::new(bytes));
    runtime().block_on(async {
        let journal = Arc::new(Kept::of(records.into_values()));
        let Some(answer) = serve(&journal, &[CONNECT, RECEIVED, SUBSCRIBE, MESSAGES]).await else {
            return assert!(is_changed, "a journal that was not changed can be read");
        };
        // Behind the head of a CONNACK its flags: the session was there.
        assert!(is_changed || answer.get(..3).is_some_and(|head| head[0] == 0x20 && head[2] == 1), "{answer:x?}");
        assert!(serve(&journal, &[CONNECT]).await.is_some(), "what the broker keeps, it reads");
    });
}

/// What a client gets from a broker with this journal; `None` if the broker does not take it.
async fn serve(journal: &Arc<Kept>, packets: &[&[u8]]) -> Option<Vec<u8>> {
    let (router, clock) = (Arc::new(Router::new()), Arc::new(ManualClock::new(1_000_000)));
    let broker = Broker::start(options(), router, clock).await.expect("it listens nowhere");
    broker.keep_in(journal.clone(), 0).ok()?;
    let mut client = Client::new(&broker);
    for packet in packets {
        client.send(packet).await;
    }
    let answer = client.end().await;
    check_answer(&answer);
    assert_eq!(broker.stats().panics, 0, "{:?}", broker.last_panic());
    broker.shutdown(std::time::Duration::ZERO).await;
    Some(answer)
}

/// The records of a broker whose client was away while messages came for it.
fn whole() -> &'static Files {
    static WHOLE: OnceLock<Files> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let journal = Arc::new(Kept::default());
        runtime().block_on(async {
            serve(&journal, &[CONNECT, SUBSCRIBE]).await.expect("it is empty");
            serve(&journal, &[OTHER, MESSAGES]).await.expect("it was written so");
            serve(&journal, &[CONNECT, RECEIVED]).await.expect("it was written so");
        });
        let records = journal.records.lock();
        assert!(records.len() > 8, "{} records", records.len());
        let named = |(number, (_, record)): (usize, &(LogPosition, Vec<u8>))| (format!("{number:04}"), record.clone());
        records.iter().enumerate().map(named).collect()
    })
}

/// A journal in memory, whose records are durable at once.
#[derive(Default)]
struct Kept {
    records: Mutex<Vec<(LogPosition, Vec<u8>)>>,
    committed: Notify,
}

impl Kept {
    fn of(records: impl Iterator<Item = Vec<u8>>) -> Self {
        Self { records: Mutex::new((1..).zip(records).collect()), committed: Notify::new() }
    }

    fn last(&self) -> LogPosition {
        self.records.lock().last().map_or(0, |(position, _)| *position)
    }
}

impl Journal for Kept {
    fn append(&self, record: &[u8], _may_exceed: bool) -> Option<LogPosition> {
        let position = self.last() + 1;
        self.records.lock().push((position, record.to_vec()));
        self.committed.notify_waiters();
        Some(position)
    }

    fn room(&self) -> Room {
        Room::Free
    }

    fn can_rewrite(&self) -> bool {
        true
    }

    fn next(&self) -> LogPosition {
        self.last() + 1
    }

    fn durable(&self) -> LogPosition {
        self.last()
    }

    fn committed(&self) -> &Notify {
        &self.committed
    }

    fn disk_bytes(&self) -> u64 {
        self.records.lock().iter().map(|(_, record)| record.len() as u64).sum()
    }

    fn bytes_max(&self) -> u64 {
        u64::MAX
    }

    fn forget_before(&self, position: LogPosition) -> bool {
        self.records.lock().retain(|(at, _)| *at >= position);
        true
    }

    fn read(&self, take: &mut dyn FnMut(LogPosition, &[u8])) -> Result<(), String> {
        self.records.lock().iter().for_each(|(position, record)| take(*position, record));
        Ok(())
    }
}
