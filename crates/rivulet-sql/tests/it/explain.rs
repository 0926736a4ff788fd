//! What EXPLAIN shows.

use rivulet_sql::{explain, parse_application, plan_application};

fn explained(text: &str) -> String {
    let create = parse_application(text).unwrap_or_else(|error| panic!("{}", error.render(text)));
    explain(&plan_application(&create).unwrap_or_else(|error| panic!("{}", error.render(text))))
}

#[test]
fn an_application_with_a_window() {
    let text = explained(
        "CREATE APPLICATION ac_control (home TEXT, target DOUBLE DEFAULT 24.0, span INTERVAL DEFAULT INTERVAL '30 seconds')
         INPUT temperature (ts TIMESTAMP EVENT TIME, room TEXT, value DOUBLE NOT NULL)
         FROM 'mqtt:home/{home}/temperature' FORMAT CSV (delimiter => ';')
         WITH (lateness => INTERVAL '2 seconds', late => 'mqtt:late/{home}', overflow => 'drop_oldest')
         OUTPUT FORMAT JSON
         AS SELECT room, CASE WHEN avg(value) > $target + 0.5 THEN 'cool' ELSE 'off' END AS action
            FROM temperature WHERE value < 100 GROUP BY hop(ts, INTERVAL '1 second', $span), room
            HAVING count(*) > 2 EMIT ON CHANGE",
    );
    for line in [
        "application ac_control",
        "  $home    TEXT      required",
        "  $target  DOUBLE    default 24",
        "  $span    INTERVAL  default INTERVAL '30 s'",
        "  $output  TEXT      required, an address",
        "input temperature from mqtt:home/{home}/temperature, format csv (delimiter => ';')",
        "  ts     TIMESTAMP  event time",
        "  value  DOUBLE     not null",
        "  time: event time is ts; lateness 2 s, idle timeout 30 s, future limit 5 min",
        "  full inbox: drop_oldest",
        "  late rows: counted, and sent to mqtt:late/{home}",
        "  dead letters: counted",
        "  1. assign time (from the input)",
        "  2. filter (forward from 1)",
        "  3. window aggregate, with state (forward from 2)",
        "  4. filter (forward from 3)",
        "  5. project (forward from 4)",
        "  6. emit on change, with state (forward from 5)",
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
