//! What EXPLAIN shows.

use rivulet_sql::{parse_application, plan_application};

fn explained(text: &str) -> String {
    let create = parse_application(text).unwrap_or_else(|error| panic!("{}", error.render(text)));
    plan_application(&create).unwrap_or_else(|error| panic!("{}", error.render(text))).explain()
}

#[test]
fn an_application_with_a_window() {
    let text = explained(
        "CREATE APPLICATION ac_control (home TEXT, target DOUBLE DEFAULT 24.0, span INTERVAL DEFAULT INTERVAL '30 seconds')
         INPUT temperature (ts TIMESTAMP EVENT TIME, room TEXT, value DOUBLE NOT NULL)
         FROM 'mqtt:home/{home}/temperature' FORMAT CSV (delimiter => ';')
         WITH (lateness => INTERVAL '2 seconds', late => 'mqtt:late/{home}', overflow => 'drop_oldest',
               durability => 'log')
         OUTPUT FORMAT JSON
         AS SELECT room, CASE WHEN avg(value) > $target + 0.5 THEN 'cool' ELSE 'off' END AS action
            FROM temperature WHERE value < 100 GROUP BY hop(ts, INTERVAL '1 second', $span), room
            HAVING count(*) > 2 EMIT ON CHANGE",
    );
    for line in [
        "application ac_control",
        "  $home    TEXT      required",
        "  $target  DOUBLE    default 24.0",
        "  $span    INTERVAL  default INTERVAL '30 seconds'",
        "  $output  TEXT      required, an address",
        "input temperature from mqtt:home/{home}/temperature, format csv (delimiter => ';')",
        "  ts     TIMESTAMP  event time",
        "  value  DOUBLE     not null",
        "  time: event time is ts; lateness 2 s, idle timeout 30 s, future limit 5 min",
        "  full inbox: drop_oldest",
        "  durability: log",
        "  late rows: counted, and sent to mqtt:late/{home}",
        "  dead letters: counted",
        "  1. assign time (from the input)",
        "     shared:    event time: ts",
        "                future limit 5 min",
        "  2. filter (forward from 1)",
        "     shared:    value < 100",
        "  3. window aggregate, with state (forward from 2)",
        "     shared:    hop(ts, INTERVAL '1 second', $span)",
        "                by room",
        "                avg(value)",
        "                count(*)",
        "                lateness 2 s, idle timeout 30 s",
        "  4. filter (forward from 3)",
        "     shared:    count(*) > 2",
        "  5. project (forward from 4)",
        "     shared:    room",
        "                CASE WHEN avg(value) > $target + 0.5 THEN 'cool' ELSE 'off' END AS action",
        "  6. emit on change, with state (forward from 5)",
        "     shared:    compares room, action",
        "                by room",
        "output to mqtt:{output}, format json",
        "  action  TEXT",
    ] {
        assert!(text.lines().any(|found| found == line), "'{line}' is not in\n{text}");
    }
    // What differs by query is told apart from what is there once.
    let target = text.lines().position(|line| line.contains("per query: $target")).unwrap();
    let project = text.lines().position(|line| line.contains("5. project")).unwrap();
    assert!(target > project, "{text}");
    assert!(text.contains("avg(value)") && text.contains("watermark"), "{text}");
}

#[test]
fn functions_over_earlier_rows_are_steps_of_their_own() {
    let text = explained(
        "CREATE APPLICATION moods (low DOUBLE, high DOUBLE)
         INPUT t (ts TIMESTAMP EVENT TIME, room TEXT, v DOUBLE) FORMAT JSON OUTPUT FORMAT JSON
         AS SELECT room, avg(v) - lag(avg(v), 2) AS step, hysteresis(avg(v), $low, $high) OVER (PARTITION BY room) AS on_
            FROM t GROUP BY tumble(ts, INTERVAL '1 minute'), room
            QUALIFY on_ AND changed(room) AND avg(v) > lag(avg(v), 2) EMIT ON CHANGE",
    );
    let expected = "  3. history, with state (forward from 2)
     shared:    lag(avg(v), 2)
                changed(room)
     per query: 3 remembered values
  4. history, with state (forward from 3)
     shared:    hysteresis(avg(v), $low, $high) OVER (PARTITION BY room)
     per query: $low
                $high
                1 remembered value of each key
  5. filter (forward from 4)
     shared:    on_ AND changed(room) AND avg(v) > lag(avg(v), 2)
  6. project (forward from 5)
     shared:    room
                avg(v) - lag(avg(v), 2) AS step
                hysteresis(avg(v), $low, $high) OVER (PARTITION BY room) AS on_
  7. emit on change, with state (forward from 6)
";
    assert!(text.contains(expected), "{expected} is not in\n{text}");
}

#[test]
fn constants_and_names_are_shown_as_in_sql() {
    let text = explained(
        "CREATE APPLICATION a (limit_ DOUBLE DEFAULT -1, word TEXT DEFAULT 'it''s', since TIMESTAMP DEFAULT TIMESTAMP '2026-11-21 08:30:00',
             span INTERVAL DEFAULT INTERVAL '5 minutes', on_ BOOLEAN DEFAULT NULL, n BIGINT DEFAULT 3)
         INPUT t (v DOUBLE, d TEXT) FROM 'mqtt:in' FORMAT JSON OUTPUT 'mqtt:out' FORMAT JSON
         AS SELECT *, d || 'x' AS longer, arrival_time - INTERVAL '1' MINUTE AS before FROM t WHERE d IN ('a', 'b') AND v > $limit_",
    );
    for line in [
        "  $limit_  DOUBLE     default -1.0",
        "  $word    TEXT       default 'it''s'",
        "  $since   TIMESTAMP  default TIMESTAMP '2026-11-21 08:30:00'",
        "  $span    INTERVAL   default INTERVAL '5 minutes'",
        "  $on_     BOOLEAN    default NULL",
        "  $n       BIGINT     default 3",
        "     shared:    event time: arrival_time",
        "                adds arrival_time",
        "     shared:    d IN ('a', 'b') AND v > $limit_",
        "     shared:    v",
        "                d",
        "                d || 'x' AS longer",
        "                arrival_time - INTERVAL '1' MINUTE AS before",
    ] {
        assert!(text.lines().any(|found| found == line), "'{line}' is not in\n{text}");
    }
}

#[test]
fn a_window_in_from_and_one_in_group_by_have_the_same_plan() {
    let plan = |select: &str| {
        let text = explained(&format!(
            "CREATE APPLICATION a (span INTERVAL) INPUT t (ts TIMESTAMP EVENT TIME, d TEXT, v DOUBLE) FROM 'mqtt:in' FORMAT JSON
             OUTPUT 'mqtt:out' FORMAT JSON AS {select}"
        ));
        // The text is another, and so is its id.
        text.lines().filter(|line| !line.starts_with("id ")).collect::<Vec<_>>().join("\n")
    };
    for (from, group_by) in [
        ("TUMBLE(TABLE t, DESCRIPTOR(ts), $span)", "tumble(ts, $span)"),
        ("HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '1 second', $span)", "hop(ts, INTERVAL '1 second', $span)"),
        ("SESSION(TABLE t, DESCRIPTOR(ts), $span)", "session(ts, $span)"),
    ] {
        assert_eq!(
            plan(&format!("SELECT d, window_end, avg(v) AS a FROM TABLE({from}) GROUP BY window_start, window_end, d")),
            plan(&format!("SELECT d, window_end, avg(v) AS a FROM t GROUP BY {group_by}, d"))
        );
    }
}

#[test]
fn an_application_without_window_or_parameters() {
    let text = explained(
        "CREATE APPLICATION plain INPUT t (v DOUBLE) FROM 'mqtt:in' FORMAT VALUE OUTPUT 'mqtt:out' FORMAT JSON
         AS SELECT v * 2 AS twice FROM t",
    );
    for line in [
        "  none",
        "  time: event time is the arrival; lateness 0 s, idle timeout 30 s, future limit 5 min",
        "  2. project (forward from 1)",
        "  a row for each row that passes",
    ] {
        assert!(text.lines().any(|found| found == line), "'{line}' is not in\n{text}");
    }
}

#[test]
fn an_application_with_several_inputs_and_outputs() {
    let text = explained(
        "CREATE APPLICATION pairs (span INTERVAL)
         INPUT a (ts TIMESTAMP EVENT TIME, x DOUBLE) FROM 'mqtt:a' FORMAT JSON WITH (lateness => INTERVAL '2 seconds')
         INPUT b (x DOUBLE, at TIMESTAMP EVENT TIME) FORMAT CSV
         OUTPUT big 'mqtt:big' FORMAT JSON WHEN apart > 3
         OUTPUT every 'mqtt:every' FORMAT JSON
         AS SELECT a.x - b.x AS apart FROM a JOIN b ON b.at BETWEEN a.ts - $span AND a.ts",
    );
    for line in [
        "  $b     TEXT      required, an address",
        "input a from mqtt:a, format json",
        "input b from mqtt:{b}, format csv",
        "  1. assign time (from the inputs)",
        "     shared:    event time of a: ts, future limit 5 min",
        "                event time of b: at, future limit 5 min",
        "  2. interval join, with state (forward from 1)",
        "     shared:    a with b ON b.at BETWEEN a.ts - $span AND a.ts",
        "                lateness 2 s",
        "     per query: $span",
        "                the rows of both sides within the interval",
        "  4. route (forward from 3)",
        "     shared:    output 1: apart > 3",
        "                output 2: every row",
        "output big to mqtt:big, format json",
        "  when apart > 3",
        "output every to mqtt:every, format json",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} in\n{text}");
    }
}

#[test]
fn a_row_pattern() {
    let text = explained(
        "CREATE APPLICATION falls (step DOUBLE, patience INTERVAL DEFAULT INTERVAL '1 hour')
         INPUT t (ts TIMESTAMP EVENT TIME, device TEXT, value DOUBLE) FROM 'mqtt:in' FORMAT JSON
         OUTPUT 'mqtt:out' FORMAT JSON
         AS SELECT device, bottom FROM t MATCH_RECOGNIZE (
              PARTITION BY device
              MEASURES LAST(B.value) AS bottom
              AFTER MATCH SKIP TO NEXT ROW
              PATTERN (A B{2,} C?) WITHIN $patience
              DEFINE B AS B.value < PREV(B.value) - $step, C AS C.value > 3
            ) WHERE bottom < 10",
    );
    for line in [
        "  1. assign time (from the input)",
        "  2. pattern, with state (forward from 1)",
        "     shared:    PATTERN (a b{2,} c?) WITHIN $patience",
        "                b AS B.value < PREV(B.value) - $step",
        "                c AS C.value > 3",
        "                by device",
        "                after a match: its second row",
        "                lateness 0 s, idle timeout 30 s",
        "     per query: $step",
        "                $patience",
        "                watermark",
        "                rows of the match under way",
        "  3. project (forward from 2)",
        "     shared:    device",
        "                LAST(B.value) AS bottom",
        "  4. filter (forward from 3)",
        "     shared:    bottom < 10",
        "  5. project (forward from 4)",
        "  bottom  DOUBLE",
    ] {
        assert!(text.lines().any(|found| found == line), "'{line}' is not in\n{text}");
    }
}

#[test]
fn a_select_that_reads_another_one_is_further_down_the_same_line() {
    let text = explained(
        "CREATE APPLICATION a (most DOUBLE, span INTERVAL DEFAULT INTERVAL '1 minute')
         INPUT t (ts TIMESTAMP EVENT TIME, room TEXT, v DOUBLE) FORMAT JSON OUTPUT FORMAT JSON
         AS WITH m AS (SELECT room, avg(v) AS mean, window_end FROM t WHERE v < 100 GROUP BY tumble(ts, $span), room)
            SELECT room, max(mean) AS top, window_end FROM m WHERE mean < $most
            GROUP BY hop(window_end, INTERVAL '1 minute', INTERVAL '1 hour'), room",
    );
    let start = text.find("dataflow").unwrap();
    let end = text.find("output to").unwrap();
    assert_eq!(
        text[start..end].trim(),
        "dataflow (one for all queries)
  1. assign time (from the input)
     shared:    event time: ts
                future limit 5 min
  2. filter (forward from 1)
     shared:    v < 100
  3. window aggregate, with state (forward from 2)
     shared:    tumble(ts, $span)
                by room
                avg(v)
                lateness 0 s, idle timeout 30 s
     per query: $span
                watermark
                16 bytes a pane
  4. project (forward from 3)
     shared:    room
                avg(v) AS mean
                window_end
  5. filter (forward from 4)
     shared:    mean < $most
     per query: $most
  6. window aggregate, with state (forward from 5)
     shared:    hop(window_end, INTERVAL '1 minute', INTERVAL '1 hour')
                by room
                max(mean)
                over tumble(ts, $span): room, avg(v) AS mean, window_end
     per query: watermark
                16 bytes a pane
  7. project (forward from 6)
     shared:    room
                max(mean) AS top
                window_end"
    );
}

#[test]
fn conditions_of_outputs_name_the_input_as_from_does() {
    let text = |from: &str, name: &str| {
        format!(
            "CREATE APPLICATION x (id TEXT) INPUT readings (ts TIMESTAMP EVENT TIME, room TEXT, v DOUBLE) FROM 'mqtt:r/{{id}}' \
             FORMAT JSON INPUT modes (ts TIMESTAMP EVENT TIME, room TEXT, mode TEXT) FROM 'mqtt:m/{{id}}' FORMAT JSON \
             OUTPUT 'mqtt:o/{{id}}' FORMAT JSON WHEN {name}.v > 30 AS SELECT r.v, m.mode FROM {from}"
        )
    };
    let plan = explained(&text("readings AS r JOIN LATEST(modes) AS m ON m.room = r.room", "r"));
    assert!(plan.contains("output 1: r.v > 30"), "{plan}");
}
