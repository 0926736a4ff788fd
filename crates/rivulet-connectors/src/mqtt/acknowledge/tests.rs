//! Deduplication windows without connections: what they acknowledge, know, forget and hand on to the next connection.

use super::*;

fn acknowledge(dedup_window: &DedupWindow, position: LogPosition, packet_id: u16) -> Vec<u8> {
    let mut out = Vec::new();
    dedup_window.acknowledge(position, Answer::success(packet_id), (b"t", &packet_id.to_be_bytes()), &mut out);
    out
}

/// The known position of a message that is marked as a duplicate.
fn find(dedup_window: &DedupWindow, packet_id: u16) -> Option<LogPosition> {
    dedup_window.known_at(true, packet_id, b"t", &packet_id.to_be_bytes())
}

/// The known position of a message without that mark.
fn find_unmarked(dedup_window: &DedupWindow, packet_id: u16) -> Option<LogPosition> {
    dedup_window.known_at(false, packet_id, b"t", &packet_id.to_be_bytes())
}

fn released(dedup_window: &DedupWindow, durable: LogPosition) -> Vec<u8> {
    let mut out = Vec::new();
    dedup_window.release(durable, Instant::now(), &mut out);
    out.chunks(4).map(|puback| puback[3]).collect()
}

#[test]
fn acknowledgements_wait_for_the_log_and_keep_their_order() {
    let dedup_window = DedupWindows::default().begin(b"kim");
    assert_eq!(acknowledge(&dedup_window, 0, 1).len(), 4, "nothing to wait for");
    for (position, packet_id) in [(5, 2), (0, 3), (7, 4), (6, 5)] {
        assert!(acknowledge(&dedup_window, position, packet_id).is_empty());
    }
    assert_eq!((released(&dedup_window, 4), released(&dedup_window, 6)), (vec![], vec![2, 3]));
    assert_eq!((released(&dedup_window, 7), dedup_window.waiting()), (vec![4, 5], 0));
    assert_eq!(acknowledge(&dedup_window, 0, 6).len(), 4);
}

/// A connection of `kim` that has sent 1 to 4 and has acknowledgements of 1 and 2; then it is lost.
fn lost_after_two() -> DedupWindows {
    let dedup_windows = DedupWindows::default();
    let first = dedup_windows.begin(b"kim");
    for packet_id in 1..=4 {
        acknowledge(&first, u64::from(packet_id) + 10, packet_id);
    }
    assert_eq!((find(&first, 2), find(&first, 5)), (Some(12), None), "it waits on this connection");
    assert_eq!(released(&first, 12), [1, 2]);
    dedup_windows.end(b"kim", &first);
    dedup_windows
}

#[test]
fn repeats_are_known_whatever_comes_before_and_between_them() {
    for new in [&[][..], &[5], &[5, 6, 7]] {
        let dedup_windows = lost_after_two();
        let second = dedup_windows.begin(b"kim");
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
        let dedup_windows = lost_after_two();
        let second = dedup_windows.begin(b"kim");
        if has_lost_session {
            second.lost_session();
        }
        let found = [1, 2, 3, 4].map(|packet_id| find_unmarked(&second, packet_id));
        assert_eq!(found, repeats, "session lost: {has_lost_session}");
        // A repeat is recognised once: the next message with that identifier is new.
        let again = [1, 2, 3, 4].map(|packet_id| find_unmarked(&second, packet_id));
        assert_eq!(again, [None; 4]);
    }
}

#[test]
fn a_refused_message_is_answered_in_its_turn_and_is_not_known_when_it_comes_again() {
    let dedup_windows = DedupWindows::default();
    let first = dedup_windows.begin(b"kim");
    acknowledge(&first, 1, 1);
    let mut out = Vec::new();
    first.refuse(Answer { reason: 0x87, ..Answer::success(2) }, &mut out);
    acknowledge(&first, 0, 3);
    assert!(out.is_empty());
    assert_eq!([1, 2, 3].map(|packet_id| find(&first, packet_id)), [Some(1), None, Some(1)], "while it waits");
    dedup_windows.end(b"kim", &first);
    let second = dedup_windows.begin(b"kim");
    assert_eq!([1, 2, 3].map(|packet_id| find(&second, packet_id)), [Some(1), None, Some(1)]);
    second.refuse(Answer::success(4), &mut out);
    assert_eq!(out.len(), 4, "nothing to wait for");
    acknowledge(&second, 1, 1);
    second.refuse(Answer::success(1), &mut out);
    second.release(1, Instant::now(), &mut out);
    assert_eq!(find(&second, 1), None, "the newest with that identifier was refused");
}

#[test]
fn an_identifier_that_is_used_again_is_that_of_the_newest_message() {
    let dedup_windows = lost_after_two();
    let second = dedup_windows.begin(b"kim");
    assert_eq!(second.known_at(false, 3, b"t", b"another"), None);
    assert_eq!(find(&second, 3), None, "another message was sent with it since");
    assert_eq!(second.known_at(true, 4, b"t", b"another"), None);
    assert_eq!(find(&second, 1), Some(11));
    acknowledge(&second, 11, 1);
    dedup_windows.end(b"kim", &second);
    // The repeat of 1 was not acknowledged, 2 did not come again, and 3 and 4 were used for messages that are not in
    // the log.
    let third = dedup_windows.begin(b"kim");
    assert_eq!([1, 2, 3, 4].map(|packet_id| find(&third, packet_id)), [Some(11), Some(12), None, None]);
    dedup_windows.end(b"kim", &third);
    let first = lost_after_two();
    let second = first.begin(b"kim");
    second.forget_earlier();
    assert_eq!((find(&second, 1), first.total.load(Ordering::Relaxed)), (None, 0));
}

#[test]
fn who_was_heard_long_after_an_acknowledgement_has_it() {
    let dedup_windows = DedupWindows::default();
    let first = dedup_windows.begin(b"kim");
    let begun = Instant::now();
    let mut out = Vec::new();
    for (packet_id, after_s) in [(1, 0), (2, 70)] {
        acknowledge(&first, u64::from(packet_id), packet_id);
        first.release(u64::from(packet_id), begun + Duration::from_secs(after_s), &mut out);
    }
    acknowledge(&first, 3, 3);
    first.heard(begun + Duration::from_secs(100));
    dedup_windows.end(b"kim", &first);
    let second = dedup_windows.begin(b"kim");
    assert_eq!([1, 2, 3].map(|packet_id| find(&second, packet_id)), [None, Some(2), Some(3)]);
}

/// Notes a message like those of [`acknowledge`], in the log of an earlier process.
fn remember(dedup_windows: &DedupWindows, client: &[u8], packet_id: u16, position: LogPosition, arrival_s: i64) {
    let payload = packet_id.to_be_bytes();
    let arrival_us = arrival_s * 1_000_000;
    let message = Received { arrival_us, client, packet_id, topic: b"t", payload: &payload };
    dedup_windows.remember(&message, position);
}

#[test]
fn an_earlier_process_is_remembered_for_a_while() {
    let dedup_windows = DedupWindows::default();
    remember(&dedup_windows, b"kim", 1, 7, 1_000);
    remember(&dedup_windows, b"kim", 2, 9, 1_000 + ARRIVES_WITHIN.as_secs() as i64);
    remember(&dedup_windows, b"lee", 1, 8, 1_000);
    let kim = dedup_windows.begin(b"kim");
    assert_eq!((find(&kim, 1), find(&kim, 2)), (Some(7), Some(9)));
    dedup_windows.keep_house(Instant::now() + REMEMBERED_FOR);
    assert_eq!(dedup_windows.clients.lock().len(), 1, "kim is here");
    remember(&dedup_windows, b"max", 1, 10, 2_000);
    remember(&dedup_windows, b"max", 2, 11, 2_001 + ARRIVES_WITHIN.as_secs() as i64);
    assert_eq!(find(&dedup_windows.begin(b"max"), 1), None, "max went on, and knows");
}

#[test]
fn whatever_was_acknowledged_a_moment_ago_is_known_when_it_comes_again() {
    let dedup_windows = DedupWindows::default();
    let first = dedup_windows.begin(b"kim");
    for packet_id in 1..=500 {
        acknowledge(&first, u64::from(packet_id), packet_id);
    }
    assert_eq!(released(&first, 500).len(), 500);
    dedup_windows.end(b"kim", &first);
    let second = dedup_windows.begin(b"kim");
    assert!((1..=500).all(|packet_id| find(&second, packet_id) == Some(u64::from(packet_id))));
}

#[test]
fn acknowledged_messages_are_forgotten_by_age_number_and_reuse() {
    let dedup_windows = DedupWindows::default();
    let dedup_window = dedup_windows.begin(b"kim");
    let (mut position, mut out) = (0, Vec::new());
    let mut next = |packet_id: u16, at: Instant| {
        position += 1;
        acknowledge(&dedup_window, position, packet_id);
        dedup_window.release(position, at, &mut out);
    };
    let now = Instant::now();
    for packet_id in [1, 1, 2, 3, 1] {
        next(packet_id, now);
    }
    let sent = || dedup_window.state.lock().sent.iter().map(|message| message.answer.packet_id).collect::<Vec<_>>();
    assert_eq!(sent(), [2, 3, 1]);
    next(9, now + ARRIVES_WITHIN + Duration::from_secs(2));
    assert_eq!(sent(), [9]);
    for packet_id in 0..40_000 {
        next(packet_id, now + ARRIVES_WITHIN + Duration::from_secs(2));
    }
    assert_eq!((sent().len(), dedup_windows.total.load(Ordering::Relaxed)), (SENT_MAX, SENT_MAX));
    dedup_windows.end(b"kim", &dedup_window);
    drop(dedup_window);
    dedup_windows.keep_house(Instant::now() + REMEMBERED_FOR);
    assert_eq!(dedup_windows.total.load(Ordering::Relaxed), 0);
}

#[test]
fn repeating_on_one_connection_is_known_by_packet_identifier() {
    let dedup_window = DedupWindows::default().begin(b"kim");
    acknowledge(&dedup_window, 1, 1);
    acknowledge(&dedup_window, 2, 2);
    assert_eq!(released(&dedup_window, 1), [1]);
    assert_eq!((find(&dedup_window, 1), find(&dedup_window, 2), find(&dedup_window, 3)), (Some(1), Some(2), None));
    acknowledge(&dedup_window, 3, 3);
    assert_eq!(find(&dedup_window, 3), Some(3), "the index grows with what comes");
    // Without the mark it is a new message, whose sender has the acknowledgement of the first.
    assert_eq!(find_unmarked(&dedup_window, 1), None);
    // The newest message of an identifier counts.
    let mut out = Vec::new();
    dedup_window.acknowledge(4, Answer::success(2), (b"t", b"another"), &mut out);
    assert_eq!((find(&dedup_window, 2), dedup_window.known_at(true, 2, b"t", b"another")), (None, Some(4)));
}

#[tokio::test]
async fn what_an_earlier_connection_had_read_is_known_to_the_next_before_it_begins() {
    let dedup_windows = Arc::new(DedupWindows::default());
    let first = dedup_windows.begin(b"kim");
    acknowledge(&first, 1, 1);
    let second = dedup_windows.begin(b"kim");
    let third = dedup_windows.begin(b"kim");
    let taking = tokio::spawn({
        let third = third.clone();
        async move { third.take_over().await }
    });
    tokio::task::yield_now().await;
    assert!(!taking.is_finished(), "the one before has not ended");
    // The first connection has read more messages, which waited for room.
    acknowledge(&first, 2, 2);
    dedup_windows.end(b"kim", &first);
    second.take_over().await;
    assert_eq!(find(&second, 2), Some(2));
    acknowledge(&second, 2, 2);
    assert_eq!(first.admission(), Admission::TakenOver);
    dedup_windows.end(b"kim", &second);
    taking.await.unwrap();
    assert_eq!((find(&third, 1), find(&third, 2)), (Some(1), Some(2)));
}

#[test]
fn of_too_many_clients_those_are_forgotten_that_went_first() {
    let dedup_windows = DedupWindows::default();
    let name = |number: usize| number.to_be_bytes();
    let connected = dedup_windows.begin(b"connected");
    for number in 0..CLIENTS_MAX {
        remember(&dedup_windows, &name(number), 1, 7, 1_000);
    }
    assert!(dedup_windows.forgotten() > 0);
    assert!(dedup_windows.clients.lock().len() <= CLIENTS_MAX);
    assert_eq!(find(&dedup_windows.begin(&name(CLIENTS_MAX - 1)), 1), Some(7));
    assert_eq!(find(&dedup_windows.begin(&name(0)), 1), None);
    assert!(Arc::ptr_eq(&dedup_windows.clients.lock()[&b"connected"[..]].dedup_window, &connected));
}
