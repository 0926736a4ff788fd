//! The machine's clock is set forward: no query counts as silent for that, so results are the same as without it.

use proptest::prelude::*;
use rivulet_sql::ParamValue;
use rivulet_testing::TestGroup;
use rivulet_testing::group::Results;

const START_US: i64 = 1_766_275_200_000_000;

const WINDOWS: &str = "CREATE APPLICATION windows (home TEXT) INPUT t (ts TIMESTAMP EVENT TIME, n BIGINT) FORMAT JSON \
    WITH (idle_timeout => INTERVAL '5 seconds') OUTPUT FORMAT JSON \
    AS SELECT window_end, count(*) AS events, sum(n) AS total FROM t GROUP BY tumble(ts, INTERVAL '10 seconds')";

const PATTERNS: &str = "CREATE APPLICATION patterns (home TEXT) INPUT t (ts TIMESTAMP EVENT TIME, n BIGINT) FORMAT JSON \
    WITH (idle_timeout => INTERVAL '5 seconds') OUTPUT FORMAT JSON \
    AS SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS events, last(u.n) AS newest PATTERN (d u+) \
    WITHIN INTERVAL '10 seconds' DEFINE d AS n < 5, u AS n >= 5)";

/// Silences by the arrival of events, with and without a pattern.
const SESSIONS: &str = "CREATE APPLICATION sessions (home TEXT) INPUT t (ts TIMESTAMP, n BIGINT) FORMAT JSON \
    OUTPUT FORMAT JSON AS SELECT count(*) AS events, sum(n) AS total FROM t \
    GROUP BY session(arrival_time, INTERVAL '10 seconds')";

const UNANSWERED: &str = "CREATE APPLICATION unanswered (home TEXT) INPUT t (ts TIMESTAMP, n BIGINT) FORMAT JSON \
    OUTPUT FORMAT JSON AS SELECT * FROM t MATCH_RECOGNIZE (ORDER BY arrival_time MEASURES count(*) AS events, \
    last(u.n) AS newest PATTERN (d u+) WITHIN INTERVAL '10 seconds' DEFINE d AS n < 5, u AS n >= 5)";

#[derive(Clone, Debug)]
enum Step {
    /// An event of a query so long after the one before, in milliseconds; how far event time goes on in it; its value.
    Event {
        query: usize,
        after_ms: i64,
        ts_ms: i64,
        n: i64,
    },
    /// The clock is set forward by so many milliseconds.
    Leap {
        by_ms: i64,
    },
    Run,
    /// Time passes, and timers are looked at.
    Wait {
        ms: i64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2usize, 0..7_000i64, 0..6_000i64, 0..10i64)
            .prop_map(|(query, after_ms, ts_ms, n)| Step::Event { query, after_ms, ts_ms, n }),
        1 => prop_oneof![Just(4_000i64), Just(60_000), Just(31_536_000_000)].prop_map(|by_ms| Step::Leap { by_ms }),
        2 => Just(Step::Run),
        1 => (0..12_000i64).prop_map(|ms| Step::Wait { ms }),
    ]
}

fn results(sql: &str, steps: &[Step], leaps: bool) -> Results {
    let group = TestGroup::new(sql, START_US);
    let slots = [(1, "a"), (2, "b")].map(|(query, home)| {
        let text = ParamValue::Text;
        group.add(query, &[("home", text(home)), ("input", text(home)), ("output", text("out"))])
    });
    let (mut now_us, mut ts_ms) = (START_US, [START_US / 1000 - 1_000_000; 2]);
    for step in steps {
        match *step {
            Step::Event { query, after_ms, ts_ms: by_ms, n } => {
                now_us += after_ms * 1000;
                ts_ms[query] += by_ms;
                group.push(slots[query], now_us, &format!("{{\"ts\":{},\"n\":{n}}}", ts_ms[query]));
            }
            // What waits in the inbox is from before.
            Step::Leap { by_ms } if leaps => {
                group.leap(by_ms * 1000);
                now_us += by_ms * 1000;
            }
            Step::Leap { .. } => {}
            Step::Run => group.run(),
            Step::Wait { ms } => {
                now_us += ms * 1000;
                group.run_at(now_us);
            }
        }
    }
    group.run_at(now_us + 4_000_000);
    group.results()
}

proptest! {
    #[test]
    fn leaps_of_the_clock_change_no_result(steps in proptest::collection::vec(step(), 1..60)) {
        for sql in [WINDOWS, PATTERNS, SESSIONS, UNANSWERED] {
            prop_assert_eq!(results(sql, &steps, true), results(sql, &steps, false));
        }
    }
}

/// A device sends every second, and the clock steps a year: it was never silent, by whichever clock it is judged.
#[test]
fn no_silence_is_seen_where_the_clock_steps_a_year() {
    const YEAR_US: i64 = 31_536_000_000_000;
    for sql in [WINDOWS, SESSIONS, UNANSWERED] {
        let group = TestGroup::new(sql, START_US);
        let text = ParamValue::Text;
        let slot = group.add(1, &[("home", text("a")), ("input", text("a")), ("output", text("out"))]);
        for second in 0..8_i64 {
            let arrival_us = START_US + second * 1_000_000 + if second < 4 { 0 } else { YEAR_US };
            if second == 4 {
                group.leap(YEAR_US);
                group.run_at(arrival_us);
            }
            group.push(
                slot,
                arrival_us,
                &format!("{{\"ts\":{},\"n\":{}}}", START_US / 1000 + 1000 * second, 4 + second),
            );
            group.run_at(arrival_us + 500_000);
        }
        assert!(group.results().get(&1).is_none_or(Vec::is_empty), "{:?}", group.results());
        group.run_at(START_US + 22_000_000 + YEAR_US);
        let results = group.results();
        assert!(results[&1].len() == 1 && results[&1][0].contains("\"events\":8"), "{results:?}");
    }
}

/// The inbox has events from before and from behind the leap when they are processed.
#[test]
fn a_busy_query_is_not_silent_when_the_clock_is_set_forward_by_a_year() {
    const YEAR_US: i64 = 31_536_000_000_000;
    let group = TestGroup::new(WINDOWS, START_US);
    let text = ParamValue::Text;
    let slot = group.add(1, &[("home", text("a")), ("input", text("a")), ("output", text("out"))]);
    let push = |second: i64, leapt_us: i64| {
        let payload = format!("{{\"ts\":{},\"n\":1}}", START_US / 1000 - 1_000_000 + 1000 * second);
        group.push(slot, START_US + second * 1_000_000 + leapt_us, &payload);
    };
    (0..5).for_each(|second| push(second, 0));
    group.leap(YEAR_US);
    (5..11).for_each(|second| push(second, YEAR_US));
    group.run();
    group.run_at(START_US + 14_000_000 + YEAR_US);
    assert_eq!(group.results()[&1].len(), 1, "only the window that its events have closed");
    assert!(group.results()[&1][0].contains("\"events\":10"), "{:?}", group.results());
    // Now it is silent for long enough.
    group.run_at(START_US + 21_000_000 + YEAR_US);
    assert_eq!(group.results()[&1].len(), 2);
}
