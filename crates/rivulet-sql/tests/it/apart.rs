//! A window in two servers: what the first one sends is what the second one reads, and nothing else is.

use rivulet_sql::{QueryPlan, explain_query};

use crate::query_plans::{run, scope};

const COLUMNS: &str = "device TEXT, room BIGINT, ts TIMESTAMP EVENT TIME, value DOUBLE";

/// The plan at a gateway, and that in the cloud; or why there is none.
fn plans(select: &str, columns: [&str; 2]) -> Result<[QueryPlan; 2], String> {
    let plan = |declarations: String, into: &str| {
        let script = format!("{declarations}; CREATE QUERY q AS {select} INTO {into}");
        run(&script, &mut scope()).map(|plan| plan.expect("it has a query")).map_err(|error| error.to_string())
    };
    let gateway = plan(
        format!(
            "CREATE SOURCE r ({}) FROM 'mqtt:x/+' FORMAT JSON;
             CREATE SINK up TO 'link:cloud:1/x' WITH (partial => true)",
            columns[0]
        ),
        "up",
    )?;
    let cloud = plan(
        format!(
            "CREATE SOURCE r ({}) FROM 'link:x' WITH (partial => true, lateness => INTERVAL '1 day');
             CREATE SINK there TO 'mqtt:there' FORMAT JSON",
            columns[1]
        ),
        "there",
    )?;
    Ok([gateway, cloud])
}

const WINDOWS: [&str; 5] = [
    "SELECT device, avg(value) AS v, window_end FROM TABLE(TUMBLE(TABLE r, DESCRIPTOR(ts), INTERVAL '1 HOUR'))
     GROUP BY device, window_end",
    "SELECT window_end, count(*) AS n, count(*) * 2 AS b, count(*) * 3 AS c
     FROM TABLE(TUMBLE(TABLE r, DESCRIPTOR(ts), INTERVAL '1 HOUR')) GROUP BY window_end HAVING count(*) > 1",
    "SELECT room, min(value) AS v, max(value) AS w, window_start
     FROM TABLE(HOP(TABLE r, DESCRIPTOR(ts), INTERVAL '5 MINUTES', INTERVAL '1 HOUR'))
     WHERE value > 0 GROUP BY room, window_start, window_end",
    "SELECT room * 2 AS twice, sum(value + 1) AS v, window_end
     FROM TABLE(CUMULATE(TABLE r, DESCRIPTOR(ts), INTERVAL '5 MINUTES', INTERVAL '1 HOUR'))
     GROUP BY room * 2, window_end",
    "SELECT n % 2 AS odd, count(*) AS m FROM (SELECT device, count(*) AS n, window_end
     FROM TABLE(TUMBLE(TABLE r, DESCRIPTOR(ts), INTERVAL '1 HOUR')) GROUP BY device, window_end) GROUP BY n % 2",
];

#[test]
fn what_a_gateway_sends_is_what_the_cloud_reads() {
    for select in WINDOWS {
        let [gateway, cloud] = plans(select, [COLUMNS, COLUMNS]).unwrap_or_else(|error| panic!("{select}: {error}"));
        assert_eq!(gateway.output.schema, cloud.sources[0].declaration.declared, "{select}");
        assert_eq!((gateway.sources.len(), cloud.sources.len()), (1, 1));
        let texts = [explain_query(&gateway), explain_query(&cloud)];
        let has = |text: &str, word: &str| text.lines().any(|line| line.trim() == word);
        assert!(has(&texts[0], "partial") && !has(&texts[0], "final"), "{}", texts[0]);
        assert!(has(&texts[1], "final") && !has(&texts[1], "partial"), "{}", texts[1]);
    }
}

#[test]
fn states_of_something_else_do_not_fit() {
    let states = |select: &str, columns: &str| {
        let [gateway, _] = plans(select, [columns, columns]).unwrap_or_else(|error| panic!("{select}: {error}"));
        format!("{:?}", gateway.output.schema)
    };
    let hour = states(WINDOWS[2], COLUMNS);
    assert_eq!(hour, states(WINDOWS[2], COLUMNS));
    let others = [
        states(&WINDOWS[2].replace("value > 0", "value > 1"), COLUMNS),
        states(&WINDOWS[2].replace("'1 HOUR'", "'2 HOURS'"), COLUMNS),
        states(&WINDOWS[2].replace("min(value)", "max(value)"), COLUMNS),
        states(WINDOWS[2], &COLUMNS.replace("value DOUBLE", "value BIGINT")),
    ];
    assert!(others.iter().all(|other| *other != hour), "{others:?}");
}

#[test]
fn what_cannot_be_computed_in_two_parts_is_refused() {
    let tumble = "FROM TABLE(TUMBLE(TABLE r, DESCRIPTOR(ts), INTERVAL '1 HOUR'))";
    for (select, why) in [
        ("SELECT device, value FROM r".to_owned(), "needs one window"),
        ("SELECT device, count(*) AS n FROM r GROUP BY device".to_owned(), "needs one window"),
        (
            format!("SELECT device, count(DISTINCT value) AS m, window_end {tumble} GROUP BY device, window_end"),
            "needs one window",
        ),
        (
            "SELECT d, count(*) AS n, window_end FROM TABLE(TUMBLE(TABLE (SELECT device AS d, ts,
             LAG(value) OVER (PARTITION BY device ORDER BY ts) AS before FROM r), DESCRIPTOR(ts), INTERVAL '1 HOUR'))
             WHERE before > 1 GROUP BY d, window_end"
                .to_owned(),
            "only filtered and computed",
        ),
    ] {
        let error = plans(&select, [COLUMNS, COLUMNS]).err().unwrap_or_else(|| panic!("planned: {select}"));
        assert!(error.contains(why), "{select}: {error}");
    }
}
