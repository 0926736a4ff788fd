//! Ledgers by hand: what is acknowledged, known, forgotten and handed on from connection to connection.

use super::*;

fn acknowledge(ledger: &Ledger, position: LogPosition, packet_id: u16) -> Vec<u8> {
    let mut out = Vec::new();
    ledger.acknowledge(position, Answer::success(packet_id), (b"t", &packet_id.to_be_bytes()), &mut out);
    out
}

/// Where a message that is marked as a duplicate is known.
fn find(ledger: &Ledger, packet_id: u16) -> Option<LogPosition> {
    ledger.known_at(true, packet_id, b"t", &packet_id.to_be_bytes())
}

/// Where a message without that mark is known.
fn find_unmarked(ledger: &Ledger, packet_id: u16) -> Option<LogPosition> {
    ledger.known_at(false, packet_id, b"t", &packet_id.to_be_bytes())
}

fn released(ledger: &Ledger, durable: LogPosition) -> Vec<u8> {
    let mut out = Vec::new();
    ledger.release(durable, Instant::now(), &mut out);
    out.chunks(4).map(|puback| puback[3]).collect()
}

#[test]
fn acknowledgements_wait_for_the_log_and_keep_their_order() {
    let ledger = Ledgers::default().begin(b"kim");
    assert_eq!(acknowledge(&ledger, 0, 1).len(), 4, "nothing to wait for");
    for (position, packet_id) in [(5, 2), (0, 3), (7, 4), (6, 5)] {
        assert!(acknowledge(&ledger, position, packet_id).is_empty());
    }
    assert_eq!((released(&ledger, 4), released(&ledger, 6)), (vec![], vec![2, 3]));
    assert_eq!((released(&ledger, 7), ledger.waiting()), (vec![4, 5], 0));
    assert_eq!(acknowledge(&ledger, 0, 6).len(), 4);
}

/// A connection of `kim` that has sent 1 to 4 and was told of 1 and 2; then it is lost.
fn lost_after_two() -> Ledgers {
    let ledgers = Ledgers::default();
    let first = ledgers.begin(b"kim");
    for packet_id in 1..=4 {
        acknowledge(&first, u64::from(packet_id) + 10, packet_id);
    }
    assert_eq!((find(&first, 2), find(&first, 5)), (Some(12), None), "it waits on this connection");
    assert_eq!(released(&first, 12), [1, 2]);
    ledgers.end(b"kim", &first);
    ledgers
}

#[test]
fn repeats_are_known_whatever_comes_before_and_between_them() {
    for new in [&[][..], &[5], &[5, 6, 7]] {
        let ledgers = lost_after_two();
        let second = ledgers.begin(b"kim");
        for (repeat, packet_id) in (1..=4).enumerate() {
            for new in new {
                assert_eq!(find_unmarked(&second, new + 10 * repeat as u16), None);
            }
            assert_eq!(find(&second, packet_id), Some(u64::from(packet_id) + 10), "{packet_id} behind {new:?}");
        }
    }
}

#[test]
fn what_a_message_without_the_mark_is_depends_on_what_its_sender_can_know() {
    // Whether its session was lost, and which of 1 to 4 are repeats.
    for (has_lost_session, repeats) in [(false, [None, None, Some(13), Some(14)]), (true, [11, 12, 13, 14].map(Some))] {
        let ledgers = lost_after_two();
        let second = ledgers.begin(b"kim");
        if has_lost_session {
            second.lost_session();
        }
        let found = [1, 2, 3, 4].map(|packet_id| find_unmarked(&second, packet_id));
        assert_eq!(found, repeats, "session lost: {has_lost_session}");
        // Once is enough: the next with that identifier is new.
        let again = [1, 2, 3, 4].map(|packet_id| find_unmarked(&second, packet_id));
        assert_eq!(again, [None; 4]);
    }
}

#[test]
fn an_identifier_that_is_used_again_is_that_of_the_newest_message() {
    let ledgers = lost_after_two();
    let second = ledgers.begin(b"kim");
    assert_eq!(second.known_at(false, 3, b"t", b"another"), None);
    assert_eq!(find(&second, 3), None, "another message was sent with it since");
    assert_eq!(second.known_at(true, 4, b"t", b"another"), None);
    assert_eq!(find(&second, 1), Some(11));
    acknowledge(&second, 11, 1);
    ledgers.end(b"kim", &second);
    // The repeat of 1 was not told, 2 did not come again, and 3 and 4 were used for messages that are nowhere.
    let third = ledgers.begin(b"kim");
    assert_eq!([1, 2, 3, 4].map(|packet_id| find(&third, packet_id)), [Some(11), Some(12), None, None]);
    ledgers.end(b"kim", &third);
    let first = lost_after_two();
    let second = first.begin(b"kim");
    second.forget_earlier();
    assert_eq!((find(&second, 1), first.total.load(Ordering::Relaxed)), (None, 0));
}

#[test]
fn who_was_heard_long_after_an_acknowledgement_has_it() {
    let ledgers = Ledgers::default();
    let first = ledgers.begin(b"kim");
    let begun = Instant::now();
    let mut out = Vec::new();
    for (packet_id, after_s) in [(1, 0), (2, 70)] {
        acknowledge(&first, u64::from(packet_id), packet_id);
        first.release(u64::from(packet_id), begun + Duration::from_secs(after_s), &mut out);
    }
    acknowledge(&first, 3, 3);
    first.heard(begun + Duration::from_secs(100));
    ledgers.end(b"kim", &first);
    let second = ledgers.begin(b"kim");
    assert_eq!([1, 2, 3].map(|packet_id| find(&second, packet_id)), [None, Some(2), Some(3)]);
}

/// As [`acknowledge`] would have it, in the log of an earlier process.
fn remember(ledgers: &Ledgers, client: &[u8], packet_id: u16, position: LogPosition, arrival_s: i64) {
    let payload = packet_id.to_be_bytes();
    let arrival_us = arrival_s * 1_000_000;
    let message = Received { arrival_us, client, packet_id, topic: b"t", payload: &payload };
    ledgers.remember(&message, position);
}

#[test]
fn an_earlier_process_is_remembered_for_a_while() {
    let ledgers = Ledgers::default();
    remember(&ledgers, b"kim", 1, 7, 1_000);
    remember(&ledgers, b"kim", 2, 9, 1_000 + ARRIVES_WITHIN.as_secs() as i64);
    remember(&ledgers, b"lee", 1, 8, 1_000);
    let kim = ledgers.begin(b"kim");
    assert_eq!((find(&kim, 1), find(&kim, 2)), (Some(7), Some(9)));
    ledgers.keep_house(Instant::now() + REMEMBERED_FOR);
    assert_eq!(ledgers.clients.lock().len(), 1, "kim is here");
    remember(&ledgers, b"max", 1, 10, 2_000);
    remember(&ledgers, b"max", 2, 11, 2_001 + ARRIVES_WITHIN.as_secs() as i64);
    assert_eq!(find(&ledgers.begin(b"max"), 1), None, "max went on, and knows");
}

#[test]
fn whatever_was_acknowledged_a_moment_ago_is_known_when_it_comes_again() {
    let ledgers = Ledgers::default();
    let first = ledgers.begin(b"kim");
    for packet_id in 1..=500 {
        acknowledge(&first, u64::from(packet_id), packet_id);
    }
    assert_eq!(released(&first, 500).len(), 500);
    ledgers.end(b"kim", &first);
    let second = ledgers.begin(b"kim");
    assert!((1..=500).all(|packet_id| find(&second, packet_id) == Some(u64::from(packet_id))));
}

#[test]
fn acknowledged_messages_are_forgotten_by_age_number_and_reuse() {
    let ledgers = Ledgers::default();
    let ledger = ledgers.begin(b"kim");
    let (mut position, mut out) = (0, Vec::new());
    let mut next = |packet_id: u16, at: Instant| {
        position += 1;
        acknowledge(&ledger, position, packet_id);
        ledger.release(position, at, &mut out);
    };
    let now = Instant::now();
    for packet_id in [1, 1, 2, 3, 1] {
        next(packet_id, now);
    }
    let sent = || ledger.state.lock().sent.iter().map(|message| message.answer.packet_id).collect::<Vec<_>>();
    assert_eq!(sent(), [2, 3, 1]);
    next(9, now + ARRIVES_WITHIN + Duration::from_secs(2));
    assert_eq!(sent(), [9]);
    for packet_id in 0..40_000 {
        next(packet_id, now + ARRIVES_WITHIN + Duration::from_secs(2));
    }
    assert_eq!((sent().len(), ledgers.total.load(Ordering::Relaxed)), (SENT_MAX, SENT_MAX));
    ledgers.end(b"kim", &ledger);
    drop(ledger);
    ledgers.keep_house(Instant::now() + REMEMBERED_FOR);
    assert_eq!(ledgers.total.load(Ordering::Relaxed), 0);
}

#[test]
fn repeating_on_one_connection_is_known_by_packet_identifier() {
    let ledger = Ledgers::default().begin(b"kim");
    acknowledge(&ledger, 1, 1);
    acknowledge(&ledger, 2, 2);
    assert_eq!(released(&ledger, 1), [1]);
    assert_eq!((find(&ledger, 1), find(&ledger, 2), find(&ledger, 3)), (Some(1), Some(2), None));
    acknowledge(&ledger, 3, 3);
    assert_eq!(find(&ledger, 3), Some(3), "the index grows with what comes");
    // Without the mark it is a new message, whose sender has the acknowledgement of the first.
    assert_eq!(find_unmarked(&ledger, 1), None);
    // The newest message of an identifier counts.
    let mut out = Vec::new();
    ledger.acknowledge(4, Answer::success(2), (b"t", b"another"), &mut out);
    assert_eq!((find(&ledger, 2), ledger.known_at(true, 2, b"t", b"another")), (None, Some(4)));
}

#[tokio::test]
async fn what_an_earlier_connection_had_read_is_known_to_the_next_before_it_begins() {
    let ledgers = Arc::new(Ledgers::default());
    let first = ledgers.begin(b"kim");
    acknowledge(&first, 1, 1);
    let second = ledgers.begin(b"kim");
    let third = ledgers.begin(b"kim");
    let taking = tokio::spawn({
        let third = third.clone();
        async move { third.take_over().await }
    });
    tokio::task::yield_now().await;
    assert!(!taking.is_finished(), "the one before has not ended");
    // The first has read more, which waited for room.
    acknowledge(&first, 2, 2);
    ledgers.end(b"kim", &first);
    second.take_over().await;
    assert_eq!(find(&second, 2), Some(2));
    acknowledge(&second, 2, 2);
    assert_eq!(first.admission(), Admission::TakenOver);
    ledgers.end(b"kim", &second);
    taking.await.unwrap();
    assert_eq!((find(&third, 1), find(&third, 2)), (Some(1), Some(2)));
}

#[test]
fn of_too_many_clients_those_are_forgotten_that_went_first() {
    let ledgers = Ledgers::default();
    let name = |number: usize| number.to_be_bytes();
    let connected = ledgers.begin(b"connected");
    for number in 0..CLIENTS_MAX {
        remember(&ledgers, &name(number), 1, 7, 1_000);
    }
    assert!(ledgers.forgotten() > 0);
    assert!(ledgers.clients.lock().len() <= CLIENTS_MAX);
    assert_eq!(find(&ledgers.begin(&name(CLIENTS_MAX - 1)), 1), Some(7));
    assert_eq!(find(&ledgers.begin(&name(0)), 1), None);
    assert!(Arc::ptr_eq(&ledgers.clients.lock()[&b"connected"[..]].ledger, &connected));
}
