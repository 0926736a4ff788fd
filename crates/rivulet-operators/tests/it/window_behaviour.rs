//! Windows by example: what closes when, what is late, and what a query leaves behind.

use crate::common::*;
use rivulet_dataflow::{Control, Element, OperatorFactory, Reason, StateFrame, StateSelection};
use rivulet_operators::{AggregateFunction as F, WindowAggregate};

fn count_rows() -> Vec<rivulet_operators::AggregateSpec> {
    vec![aggregate(F::Count, vec![])]
}

fn counts(hand: &Hand) -> Vec<(i64, i64, i64)> {
    hand.windows
        .iter()
        .map(|window| match window.values[0] {
            Value::Integer(count) => (window.start, window.end, count),
            ref other => panic!("a count is an integer, not {other:?}"),
        })
        .collect()
}

#[test]
fn a_tumbling_window_closes_when_a_row_reaches_its_end() {
    let mut hand = Hand::new(spec(tumble(), false, count_rows()), &[(10, 10), (100, 100)]);
    hand.rows(&[row(0, 1, 0.0), row(0, 9, 0.0), row(1, 50, 0.0)]);
    assert!(hand.windows.is_empty());
    hand.rows(&[row(0, 35, 0.0)]);
    // The windows from 10 to 30 hold no row, and slot 1 has a clock of its own.
    assert_eq!(counts(&hand), [(0, 10, 2)]);
    assert_eq!((hand.windows[0].slot, hand.arrivals[0]), (0, 35));
    hand.element(Element::End);
    assert_eq!(counts(&hand)[1..], [(30, 40, 1), (0, 100, 1)]);
}

#[test]
fn a_hopping_window_counts_a_row_in_every_window_that_holds_it() {
    let mut hand = Hand::new(spec(hop(), false, count_rows()), &[(30, 10)]);
    hand.rows(&[row(0, 5, 0.0), row(0, 15, 0.0), row(0, 100, 0.0)]);
    assert_eq!(counts(&hand), [(-20, 10, 1), (-10, 20, 2), (0, 30, 2), (10, 40, 1)]);
}

#[test]
fn rows_between_windows_with_gaps_are_in_none_but_move_the_clock() {
    let mut hand = Hand::new(spec(hop(), false, count_rows()), &[(4, 10)]);
    hand.rows(&[row(0, 1, 0.0), row(0, 7, 0.0), row(0, 8, 0.0), row(0, 2, 0.0)]);
    assert_eq!(counts(&hand), [(0, 4, 1)]);
    assert_eq!(hand.refused(Reason::Late), 1);
}

#[test]
fn lateness_keeps_windows_open_and_late_rows_are_refused_with_their_content() {
    let mut late = spec(tumble(), false, count_rows());
    late.lateness_us = 5;
    let mut hand = Hand::new(late, &[(10, 10)]);
    hand.rows(&[row(0, 3, 0.0), row(0, 14, 0.0), row(0, 4, 0.0)]);
    assert!(hand.windows.is_empty());
    hand.rows(&[row(0, 15, 0.0)]);
    assert_eq!(counts(&hand), [(0, 10, 2)]);
    hand.rows(&[row(0, 9, 0.0), row(0, 10, 0.0)]);
    assert_eq!(hand.refused(Reason::Late), 1);
    assert_eq!(hand.refusals.records()[0].reason, Reason::Late);
}

#[test]
fn a_row_counts_in_those_of_its_windows_that_are_open() {
    let mut hand = Hand::new(spec(hop(), false, count_rows()), &[(30, 10)]);
    // At 21 the windows ending at 10 and 20 are closed; those ending at 30 and 40 still take the row at 12.
    hand.rows(&[row(0, 21, 0.0), row(0, 12, 0.0), row(0, 90, 0.0)]);
    assert_eq!(counts(&hand), [(0, 30, 2), (10, 40, 2), (20, 50, 1)]);
    assert_eq!(hand.refused(Reason::Late), 0);
}

#[test]
fn a_silent_slot_closes_by_the_clock() {
    let mut idle = spec(tumble(), false, count_rows());
    idle.idle_timeout_us = 100;
    let mut hand = Hand::new(idle, &[(10, 10), (1000, 1000)]);
    let mut first = row(0, 3, 0.0);
    first.arrival = 50;
    let mut second = row(1, 3, 0.0);
    second.arrival = 60;
    hand.rows(&[first, second]);
    // Slot 0 is due at the idle timeout, slot 1 when the clock has moved on by the rest of its window.
    assert_eq!(hand.operator.deadline_us(), Some(150));
    hand.tick(149);
    assert!(hand.windows.is_empty());
    hand.tick(150);
    assert_eq!(counts(&hand), [(0, 10, 1)]);
    assert_eq!(hand.operator.deadline_us(), Some(60 + 997));
    hand.tick(1057);
    assert_eq!(counts(&hand)[1], (0, 1000, 1));
    assert_eq!(hand.operator.deadline_us(), None);
    // The clock has passed: a row of the old time is late now.
    hand.rows(&[Row { arrival: 1060, ..row(1, 4, 0.0) }]);
    assert_eq!(hand.refused(Reason::Late), 1);
}

#[test]
fn windows_over_arrival_time_close_by_ticks() {
    let mut arrival = spec(hop(), false, count_rows());
    arrival.arrival_time = true;
    let mut hand = Hand::new(arrival, &[(20, 10)]);
    hand.rows(&[Row { arrival: 12, ..row(0, 99_999, 0.0) }]);
    assert_eq!(hand.operator.deadline_us(), Some(20));
    hand.tick(25);
    assert_eq!(counts(&hand), [(0, 20, 1)]);
    assert_eq!(hand.operator.deadline_us(), Some(30));
    hand.tick(1000);
    assert_eq!(counts(&hand), [(0, 20, 1), (10, 30, 1)]);
    assert_eq!(hand.refused(Reason::Late), 0);
}

#[test]
fn the_watermark_of_a_slot_is_shared_by_its_keys() {
    let mut hand = Hand::new(spec(tumble(), true, count_rows()), &[(10, 10)]);
    let keyed = |time, key| Row { key, ..row(0, time, 0.0) };
    hand.rows(&[keyed(1, Some(7)), keyed(2, None), keyed(3, Some(5)), keyed(4, Some(7)), keyed(12, Some(5))]);
    let closed: Vec<_> = hand.windows.iter().map(|window| (window.key, window.values[0].clone())).collect();
    assert_eq!(
        closed,
        [(Some(7), Value::Integer(2)), (None, Value::Integer(1)), (Some(5), Value::Integer(1))],
        "one end, from the oldest key to the youngest"
    );
}

#[test]
fn sessions_grow_join_and_close() {
    let mut late = spec(session(), false, count_rows());
    late.lateness_us = 30;
    let mut hand = Hand::new(late, &[(10, 10)]);
    hand.rows(&[row(0, 0, 0.0), row(0, 18, 0.0), row(0, 39, 0.0), row(0, 9, 0.0)]);
    // 9 lies within 10 of both 0 and 18 and joins them: [0, 28). 39 is a session of its own.
    hand.rows(&[row(0, 58, 0.0)]);
    assert_eq!(counts(&hand), [(0, 28, 3)]);
    hand.rows(&[row(0, 17, 0.0)]);
    assert_eq!(hand.refused(Reason::Late), 1, "17 reaches no open session and ends before the watermark");
    hand.element(Element::End);
    assert_eq!(counts(&hand)[1..], [(39, 49, 1), (58, 68, 1)]);
}

#[test]
fn a_row_exactly_one_gap_behind_begins_a_new_session() {
    let mut hand = Hand::new(spec(session(), false, count_rows()), &[(10, 10)]);
    hand.rows(&[row(0, 0, 0.0), row(0, 10, 0.0), row(0, 30, 0.0)]);
    assert_eq!(counts(&hand), [(0, 10, 1), (10, 20, 1)]);
}

#[test]
fn count_windows_count_rows_of_a_key_in_order_of_arrival() {
    let mut hand = Hand::new(spec(count(false), true, count_rows()), &[(3, 3)]);
    let keyed = |time, key| Row { key: Some(key), ..row(0, time, 0.0) };
    hand.rows(&[keyed(9, 1), keyed(5, 1), keyed(1, 2), keyed(7, 1), keyed(8, 1)]);
    // Event times do not matter, but the bounds are those of the first and the last row.
    assert_eq!(counts(&hand), [(9, 7, 3)]);
    assert_eq!(hand.operator.deadline_us(), None);
    hand.element(Element::End);
    assert_eq!(counts(&hand)[1..], [(1, 1, 1), (8, 8, 1)]);
}

#[test]
fn sliding_count_windows_begin_when_the_first_is_full() {
    let mut hand = Hand::new(spec(count(true), false, count_rows()), &[(4, 2)]);
    (1..=9).for_each(|time| hand.rows(&[row(0, time, 0.0)]));
    assert_eq!(counts(&hand), [(1, 4, 4), (3, 6, 4), (5, 8, 4)]);
    hand.element(Element::End);
    assert_eq!(counts(&hand)[3..], [(7, 9, 3), (9, 9, 1)]);
}

#[test]
fn an_overflowing_sum_is_refused_and_not_wrapped() {
    let sums = vec![aggregate(F::Sum, vec![column(1)]), aggregate(F::Count, vec![])];
    let mut hand = Hand::new(spec(tumble(), false, sums), &[(10, 10), (10, 10)]);
    let big = |slot, time, n| Row { n: Some(n), ..row(slot, time, 0.0) };
    hand.rows(&[big(0, 1, i64::MAX), big(0, 2, 1), big(1, 1, i64::MAX), big(1, 2, 1), big(1, 3, -2)]);
    hand.element(Element::End);
    assert_eq!(hand.windows.len(), 1);
    assert_eq!((hand.windows[0].slot, &hand.windows[0].values[0]), (1, &Value::Integer(i64::MAX - 1)));
    assert_eq!(hand.refused(Reason::Expression), 1);
    assert!(hand.refusals.records()[0].detail.contains("sum overflows BIGINT"));
}

#[test]
fn a_window_without_length_refuses_its_rows_and_no_others() {
    let mut hand = Hand::new(spec(tumble(), false, count_rows()), &[(0, 0), (10, 10)]);
    hand.rows(&[row(0, 1, 0.0), row(1, 1, 0.0), row(1, 11, 0.0)]);
    assert_eq!(counts(&hand), [(0, 10, 1)]);
    assert_eq!(hand.refused(Reason::Expression), 1);
    let detail = &hand.refusals.records()[0].detail;
    assert!(detail.contains("must be greater than zero") && detail.contains("hint:"), "{detail}");
}

#[test]
fn times_thousands_of_years_away_are_refused() {
    let mut hand = Hand::new(spec(hop(), false, count_rows()), &[(30, 10)]);
    hand.rows(&[row(0, i64::MAX, 0.0), row(0, i64::MIN, 0.0), row(0, 5, 0.0)]);
    hand.element(Element::End);
    assert_eq!(hand.refused(Reason::Future), 2);
    assert_eq!(hand.windows.len(), 3);
}

#[test]
fn a_removed_slot_leaves_nothing_to_its_successor() {
    for keyed in [false, true] {
        let aggregates = vec![aggregate(F::Count, vec![]), aggregate(F::Median, vec![column(0)])];
        let mut hand = Hand::new(spec(hop(), keyed, aggregates), &[(30, 10), (30, 10)]);
        let empty_bytes = hand.operator.memory_bytes();
        hand.rows(&[row(0, 5, 0.0), row(1, 1000, 0.0)]);
        hand.element(Element::Control(Control::RemoveSlots(vec![0, 1])));
        assert_eq!(hand.operator.deadline_us().map(|_| ()), None);
        hand.element(Element::Control(Control::AddSlots(vec![0, 1])));
        // The clock is gone too: 2 is far behind the old query's 1000.
        hand.rows(&[row(1, 2, 1.0)]);
        hand.element(Element::End);
        assert_eq!(hand.bounds(), [(-20, 10), (-10, 20), (0, 30)]);
        assert_eq!(hand.refused(Reason::Late), 0);
        hand.element(Element::Control(Control::RemoveSlots(vec![0, 1])));
        let left_bytes = hand.operator.memory_bytes() - empty_bytes;
        assert!(left_bytes < 4096, "{left_bytes} bytes are buffers, not state");
    }
}

#[test]
fn a_row_that_comes_before_its_query_is_announced_counts() {
    let factory = WindowAggregate::new(spec(tumble(), false, count_rows())).unwrap();
    let mut hand = Hand::new(spec(tumble(), false, count_rows()), &[(10, 10)]);
    hand.operator = factory.create();
    hand.rows(&[row(0, 1, 0.0), row(0, 11, 0.0)]);
    assert_eq!(counts(&hand), [(0, 10, 1)]);
}

#[test]
fn rows_of_a_query_that_is_gone_are_dropped() {
    let mut hand = Hand::new(spec(tumble(), false, count_rows()), &[(10, 10)]);
    hand.element(Element::Control(Control::RemoveSlots(vec![0])));
    hand.table.retire(&[0]);
    hand.rows(&[row(0, 1, 0.0), row(0, 11, 0.0)]);
    hand.element(Element::End);
    assert!(hand.windows.is_empty());
    assert_eq!(hand.operator.export_state(&StateSelection::All).unwrap().unwrap().rows.num_rows(), 0);
}

#[test]
fn a_tick_of_nobody_costs_nothing() {
    let mut hand = Hand::new(spec(tumble(), false, count_rows()), &[(10, 10)]);
    assert_eq!(hand.operator.deadline_us(), None);
    hand.rows(&[row(0, 1, 0.0)]);
    // Without an idle timeout only rows close windows.
    assert_eq!(hand.operator.deadline_us(), None);
}

#[test]
fn state_can_be_split_by_slot_and_by_key_group() {
    let mut hand = Hand::new(spec(tumble(), true, count_rows()), &[(10, 10), (10, 10)]);
    let keyed = |slot, time, key| Row { key: Some(key), ..row(slot, time, 0.0) };
    let rows: Vec<Row> = (0..50).map(|key| keyed((key % 2) as u32, key % 10, key)).collect();
    hand.rows(&rows);
    let export = |hand: &Hand, selection| hand.operator.export_state(&selection).unwrap().unwrap();
    assert_eq!(export(&hand, StateSelection::All).rows.num_rows(), 50);
    assert_eq!(export(&hand, StateSelection::Slots(vec![1])).rows.num_rows(), 25);
    let parts = [0..64, 64..256].map(|range| export(&hand, StateSelection::KeyGroups(range)));
    assert_eq!(parts.iter().map(|part| part.rows.num_rows()).sum::<usize>(), 50);

    // Two tasks at another parallelism, each with the keys of its key groups: together they put out the same.
    let mut outputs: Vec<Window> = Vec::new();
    for part in parts {
        let mut task = Hand::new(spec(tumble(), true, count_rows()), &[(10, 10), (10, 10)]);
        task.operator.import_state(&StateFrame::from_bytes(&part.to_bytes().unwrap()).unwrap()).unwrap();
        task.element(Element::End);
        outputs.extend(task.windows);
    }
    hand.element(Element::End);
    let sorted = |mut windows: Vec<Window>| {
        windows.sort_by_key(|window| (window.slot, window.key));
        windows
    };
    assert_eq!(sorted(outputs), sorted(hand.windows));
}

#[test]
fn state_of_other_aggregates_is_refused() {
    let hand = Hand::new(spec(tumble(), false, count_rows()), &[(10, 10)]);
    let frame = hand.operator.export_state(&StateSelection::All).unwrap().unwrap();
    for other in [
        spec(tumble(), true, count_rows()),
        spec(session(), false, count_rows()),
        spec(tumble(), false, vec![aggregate(F::Sum, vec![column(1)])]),
    ] {
        let error = Hand::new(other, &[(10, 10)]).operator.import_state(&frame).unwrap_err().to_string();
        assert!(error.contains("other keys or aggregates"), "{error}");
    }
}

#[test]
fn explain_says_what_is_shared_and_what_is_per_slot() {
    let mut plan = spec(hop(), true, vec![aggregate(F::Avg, vec![column(0)]), aggregate(F::Count, vec![])]);
    plan.lateness_us = 2_000_000;
    plan.idle_timeout_us = 30_000_000;
    plan.aggregates[0].filter = Some(positive());
    let description = WindowAggregate::new(plan).unwrap().describe();
    assert_eq!(
        description.shared,
        [
            "hop(slide, width)",
            "by key",
            "avg(v) FILTER (WHERE n > 0)",
            "count(*)",
            "lateness 2000 ms, idle timeout 30000 ms"
        ]
    );
    assert_eq!(description.per_slot, ["$width", "$slide", "watermark", "24 bytes a pane"]);
}

#[test]
fn panes_of_the_applications_are_small() {
    let (v, n) = (|| column(0), || column(1));
    let bytes = |aggregates| {
        let description = WindowAggregate::new(spec(hop(), false, aggregates)).unwrap().describe();
        let text = description.per_slot.last().unwrap().strip_suffix(" bytes a pane").unwrap().to_owned();
        text.parse::<usize>().unwrap()
    };
    let one = |function| aggregate(function, vec![v()]);
    let rows = || aggregate(F::Count, vec![]);
    let filtered = rivulet_operators::AggregateSpec { filter: Some(positive()), ..rows() };
    assert_eq!(bytes(vec![one(F::Avg)]), 16);
    assert_eq!(bytes(vec![one(F::Min), one(F::Max)]), 24);
    assert_eq!(bytes(vec![one(F::StddevSamp), rows()]), 32);
    assert_eq!(bytes(vec![filtered, rows(), aggregate(F::Max, vec![n()])]), 24);
    assert_eq!(bytes(vec![one(F::LastValue), one(F::Avg), rows(), one(F::VarPop)]), 48);
}

#[test]
fn an_average_beside_a_variance_is_the_same_number() {
    let aggregates = vec![aggregate(F::Avg, vec![column(0)]), aggregate(F::VarPop, vec![column(0)])];
    let mut hand = Hand::new(spec(hop(), false, aggregates), &[(30, 10)]);
    let rows: Vec<Row> = (0..40).map(|time| row(0, time, 20.0 + (time % 7) as f64)).collect();
    hand.rows(&rows);
    for window in &hand.windows {
        let inside: Vec<f64> =
            rows.iter().filter(|row| (window.start..window.end).contains(&row.time)).filter_map(|row| row.v).collect();
        let Value::Float(bits) = window.values[0] else { panic!("an average is a number") };
        let expected = inside.iter().sum::<f64>() / inside.len() as f64;
        assert!((f64::from_bits(bits) - expected).abs() < 1e-13, "{} is not {expected}", f64::from_bits(bits));
    }
    assert_eq!(hand.windows.len(), 3);
}

#[test]
fn a_leap_of_years_closes_what_was_open() {
    let year_us = 366 * 86_400_000_000;
    for keyed in [false, true] {
        // Panes of 7 us: a year has more of them than 32 bits can number.
        let mut hand = Hand::new(spec(hop(), keyed, count_rows()), &[(21, 7)]);
        let first = 7 * 1_000_000;
        hand.rows(&[row(0, first, 0.0), row(0, first + 8, 0.0), row(0, first + year_us / 7 * 7, 0.0)]);
        hand.element(Element::End);
        let starts: Vec<i64> = hand.windows.iter().map(|window| window.start - first).collect();
        let leap = year_us / 7 * 7;
        assert_eq!(starts, [-14, -7, 0, 7, leap - 14, leap - 7, leap]);
    }
}
