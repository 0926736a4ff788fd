//! Statements: what is read, and what is refused where.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use rivulet_dataflow::Fuse;

use super::*;
use crate::statement::Declared;
use crate::value::TIMESTAMP;

const AC: &str = "CREATE APPLICATION ac_control (home TEXT, target DOUBLE DEFAULT 24.0)
INPUT temperature (ts TIMESTAMP EVENT TIME, value DOUBLE) FROM 'mqtt:home/{home}/temperature' FORMAT JSON
OUTPUT 'mqtt:home/{home}/ac' FORMAT JSON
AS SELECT avg(value) AS average FROM temperature GROUP BY hop(ts, INTERVAL '1 second', INTERVAL '30 seconds')
EMIT ON CHANGE";

fn one(script: &str) -> Statement {
    let mut statements = parse_script(script).unwrap_or_else(|error| panic!("{script}: {error}"));
    assert_eq!(statements.len(), 1);
    statements.remove(0).0
}

fn error(script: &str) -> String {
    match parse_script(script) {
        Ok(_) => panic!("read without error: {}", script.chars().take(200).collect::<String>()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn an_application_is_read() {
    let Statement::CreateApplication(create) = one(&format!("  {AC} ;")) else { panic!("not an application") };
    assert_eq!(create.text, AC);
    assert_eq!(create.name.text, "ac_control");
    assert_eq!(create.parameters.len(), 2);
    assert_eq!(create.parameters[1].default.as_ref().unwrap().0, Literal::Float(24.0));
    assert_eq!(create.inputs[0].name.text, "temperature");
    assert!(create.inputs[0].columns[0].event_time && create.inputs[0].columns[0].not_null);
    assert_eq!(create.inputs[0].address.as_ref().unwrap().0, "mqtt:home/{home}/temperature");
    assert_eq!(create.outputs[0].format.name, "json");
    assert!(create.select.open().emit_on_change);
    assert_eq!(create.select.open().group_by.len(), 1);
    // Its own text gives the same application again.
    assert_eq!(parse_application(&create.text).unwrap().id, create.id);
}

#[test]
fn layout_and_case_do_not_change_the_identity() {
    let id = |text: &str| parse_application(text).unwrap().id;
    let shouted = AC.replace("SELECT", "select -- the columns\n").replace("temperature (", "TEMPERATURE(");
    assert_eq!(id(AC), id(&shouted));
    assert_eq!(id(AC), id(&AC.replace("CREATE APPLICATION", "CREATE APPLICATION IF NOT EXISTS")));
    assert_ne!(id(AC), id(&AC.replace("24.0", "24.5")));
    assert_ne!(id(AC), id(&AC.replace("/ac'", "/AC'")));
}

#[test]
fn everything_optional_may_be_left_out_or_given() {
    let Statement::CreateApplication(create) = one("CREATE APPLICATION IF NOT EXISTS \"My App\"
        INPUT t (v DOUBLE PRECISION NOT NULL, n VARCHAR, s SMALLINT)
        FORMAT CSV (delimiter => ';', header => TRUE)
        WITH (lateness => INTERVAL '2 seconds', idle_timeout => INTERVAL 30 SECOND, overflow => 'drop_oldest')
        OUTPUT FORMAT VALUE AS SELECT v FROM t AS x WHERE v > -1.5e3")
    else {
        panic!("not an application")
    };
    assert!(create.if_not_exists && create.name.text == "My App");
    assert!(create.parameters.is_empty() && create.inputs[0].address.is_none() && create.outputs[0].address.is_none());
    assert_eq!(create.inputs[0].format.options[0], ("delimiter".to_owned(), Literal::Text(";".to_owned())));
    assert_eq!(create.inputs[0].options.len(), 3);
    assert_eq!(create.select.open().alias.as_ref().unwrap().text, "x");
    assert!(!create.select.open().emit_on_change);
    let Statement::CreateApplication(create) = one("CREATE APPLICATION a INPUT t (v BIGINT) FORMAT JSON
        OUTPUT up 'link:h:1/s' WITH (tls => true) WHEN v > 1 OUTPUT other 'link:h:1/t' AS SELECT v FROM t")
    else {
        panic!("not an application")
    };
    assert!(create.outputs.len() == 2 && create.outputs.iter().all(|output| output.format.name.is_empty()));
    let topic = "CREATE APPLICATION a INPUT t (v BIGINT) FORMAT JSON OUTPUT 'mqtt:x' AS SELECT v FROM t";
    assert!(parse_script(topic).unwrap_err().to_string().contains("expected FORMAT, found 'AS'"));
}

#[test]
fn a_query_is_read() {
    let Statement::CreateQuery { name, if_not_exists, application, values, label } = one(
        "create query Kims_AC from application ac_control with (home => '42', target => -22.5, \"Odd name\" => null,
         w => interval '5 minutes', n => 3, t => TIMESTAMP '1970-01-01 00:00:01', b => false) label 'home 42'",
    ) else {
        panic!("not a query")
    };
    assert_eq!((name.text.as_str(), if_not_exists, application.text.as_str()), ("kims_ac", false, "ac_control"));
    assert_eq!(label.map(|(text, position)| (text, position.line)), Some(("home 42".into(), 2)));
    let literals: Vec<&Literal> = values.iter().map(|(_, literal, _)| literal).collect();
    assert_eq!(literals[0], &Literal::Text("42".into()));
    assert_eq!(literals[1], &Literal::Float(-22.5));
    assert_eq!(literals[2], &Literal::Null);
    assert!(matches!(literals[3], Literal::Interval(interval) if interval.nanoseconds == 300_000_000_000));
    assert_eq!(literals[4..], [&Literal::Integer(3), &Literal::Timestamp(1_000_000), &Literal::Boolean(false)]);
    assert_eq!(values[2].0.text, "Odd name");
    assert!(
        matches!(one("CREATE QUERY IF NOT EXISTS q FROM APPLICATION a"), Statement::CreateQuery { values, label: None, .. } if values.is_empty())
    );
}

#[test]
fn the_small_statements_are_read() {
    assert!(matches!(
        one("SHOW APPLICATIONS"),
        Statement::Show(Show { kind: ObjectKind::Application, like: None, limit: None, .. })
    ));
    let Statement::Show(Show { kind: ObjectKind::Query, application, like, label, limit }) =
        one("SHOW QUERIES FROM APPLICATION a LIKE 'kim%' LABEL 'home 42' LIMIT 20")
    else {
        panic!("not SHOW QUERIES")
    };
    assert_eq!((application.unwrap().text.as_str(), like.as_deref(), limit), ("a", Some("kim%"), Some(20)));
    assert_eq!(label.as_deref(), Some("home 42"));
    assert!(
        matches!(one("DESCRIBE APPLICATION a"), Statement::Describe(ObjectKind::Application, name) if name.text == "a")
    );
    assert!(matches!(one("DESCRIBE QUERY q"), Statement::Describe(ObjectKind::Query, _)));
    assert!(matches!(one("DESCRIBE SOURCE s"), Statement::Describe(ObjectKind::Declared(Declared::Source), _)));
    assert!(matches!(one("DESCRIBE SINK s"), Statement::Describe(ObjectKind::Declared(Declared::Sink), _)));
    assert!(matches!(
        one("SHOW FUNCTIONS LIKE '%log%' LIMIT 3"),
        Statement::ShowFunctions { like: Some(_), limit: Some(3) }
    ));
    assert!(matches!(one("DESCRIBE FUNCTION If"), Statement::DescribeFunction(name) if name.text == "if"));
    assert!(
        matches!(one("DESCRIBE VIEW v"), Statement::Describe(ObjectKind::Declared(Declared::View), v) if v.text == "v")
    );
    assert!(matches!(one("EXPLAIN APPLICATION a"), Statement::ExplainApplication(_)));
    assert!(matches!(one("EXPLAIN QUERY q"), Statement::ExplainQuery(_)));
    assert!(matches!(one("PAUSE QUERY q"), Statement::PauseQuery(_)));
    for (text, workers) in [("SHOW BURSTS LIKE 'q%' LIMIT 3", false), ("SHOW BURST WORKERS LIKE 'w%' LIMIT 3", true)] {
        let shown = one(text);
        let Statement::ShowBursts { of_workers, like: Some(_), limit: Some(3) } = shown else { panic!("{shown:?}") };
        assert_eq!(of_workers, workers);
    }
    let redirected = |script: &str| match one(script) {
        Statement::RedirectQuery { name, operators, ratio } => (name.text, operators, ratio),
        other => panic!("{other:?}"),
    };
    let (q, at) = ("q".to_owned(), Position { line: 1, column: 24 });
    assert_eq!(redirected("ALTER QUERY q REDIRECT ALL TO BURST 0.7"), (q.clone(), Operators::All, Some(0.7)));
    assert_eq!(redirected("alter query q redirect 4 to burst"), (q.clone(), Operators::Number(4, at), Some(1.0)));
    let window = Operators::Named(Name { text: "window".into(), position: at });
    assert_eq!(redirected("ALTER QUERY q REDIRECT 'window' BACK"), (q, window, None));
    assert!(matches!(one("RESUME QUERY \"q-1\""), Statement::ResumeQuery(name) if name.text == "q-1"));
    assert!(matches!(one("DROP QUERY IF EXISTS q"), Statement::Drop { kind: ObjectKind::Query, if_exists: true, .. }));
    assert!(matches!(
        one("DROP APPLICATION a CASCADE"),
        Statement::Drop { kind: ObjectKind::Application, if_exists: false, cascade: true, .. }
    ));
    let Statement::ExplainCreate(create) = one(&format!("EXPLAIN {AC}")) else { panic!("not EXPLAIN CREATE") };
    assert_eq!(create.text, AC);
    assert_eq!(create.id, parse_application(AC).unwrap().id);
}

#[test]
fn a_script_is_read_in_order_with_places() {
    let statements = parse_script("-- two\nPAUSE QUERY a;\n\n  RESUME QUERY a;").unwrap();
    let places: Vec<Position> = statements.iter().map(|(_, position)| *position).collect();
    assert_eq!(places, [Position { line: 2, column: 1 }, Position { line: 4, column: 3 }]);
    assert!(parse_script(" ; -- nothing\n").unwrap().is_empty());
}

#[test]
fn wrong_statements_are_refused_where_they_are_wrong() {
    for (script, expected) in [
        (
            "PAUSE QUERY a;\nPASUE QUERY a",
            "error at line 2, column 1: unknown statement 'PASUE'\nhint: did you mean 'PAUSE'?",
        ),
        ("PAUSE", "error at line 1, column 6: expected QUERY, found the end of the statement"),
        ("PAUSE QUERY", "error at line 1, column 12: expected the name of a query, found the end of the statement"),
        (
            "PAUSE QUERY 'q'",
            "error at line 1, column 13: expected the name of a query, found the string 'q'\nhint: names stand in double quotes: \"q\"",
        ),
        (
            "PAUSE QUERY q r",
            "error at line 1, column 15: expected the end of the statement, found 'r'\nhint: statements are separated by ';'",
        ),
        (
            "SHOW QUERYS",
            "error at line 1, column 6: expected APPLICATIONS, QUERIES, TABLES, SOURCES, SINKS, VIEWS, CHECKPOINTS, FUNCTIONS, SECRETS, TENANTS, USERS, TOKENS, GRANTS, BURSTS or BURST, found 'QUERYS'\nhint: did you mean 'QUERIES'?",
        ),
        (
            "SHOW STREAMS",
            "error at line 1, column 6: expected APPLICATIONS, QUERIES, TABLES, SOURCES, SINKS, VIEWS, CHECKPOINTS, FUNCTIONS, SECRETS, TENANTS, USERS, TOKENS, GRANTS, BURSTS or BURST, found 'STREAMS'\nhint: write for example SHOW QUERIES, SHOW TABLES or SHOW SOURCES; DESCRIBE TABLE name shows the columns of one",
        ),
        (
            "CREATE SINK s TO 'http://a' FORMAT JSON WITH (token => '\0name')",
            "error at line 1, column 56: a value has no zero byte\nhint: leave the character out",
        ),
        (
            "ALTER QUERY q",
            "error at line 1, column 14: expected SET, LABEL or REDIRECT, found the end of the statement",
        ),
        (
            "ALTER QUERY q SET limit => 3",
            "error at line 1, column 19: expected '(', found 'limit'\nhint: values stand in parentheses, each behind its name: (name => 5, other => 'text')",
        ),
        (
            "ALTER QUERY q SET ()",
            "error at line 1, column 19: SET () sets nothing\nhint: write SET (parameter => value)",
        ),
        (
            "ALTER APPLICATION a INPUT t SET ()",
            "error at line 1, column 33: SET () sets nothing\nhint: write SET (lateness => INTERVAL '5 seconds')",
        ),
        (
            "ALTER TENANT acme SET ()",
            "error at line 1, column 23: SET () sets nothing\nhint: write SET (queries => 1000)",
        ),
        (
            "ALTER QUERY q SETT (a => 3)",
            "error at line 1, column 15: expected SET, LABEL or REDIRECT, found 'SETT'\nhint: did you mean 'SET'?",
        ),
        (
            "ALTER TABLE t SET (a => 3)",
            "error at line 1, column 7: expected QUERY or APPLICATION, found 'TABLE'\nhint: drop it, and create it again",
        ),
        (
            "ALTER QUERY q REDIRECT window TO BURST",
            "error at line 1, column 24: expected ALL, the number of an operator, or its name in single quotes, found 'window'\nhint: EXPLAIN QUERY q shows numbers and names",
        ),
        (
            "ALTER QUERY q REDIRECT 1.5 TO BURST",
            "error at line 1, column 24: expected ALL, the number of an operator, or its name in single quotes, found '1.5'\nhint: EXPLAIN QUERY q shows numbers and names",
        ),
        (
            "ALTER QUERY q REDIRECT ALL",
            "error at line 1, column 27: expected TO or BACK, found the end of the statement",
        ),
        ("ALTER QUERY q REDIRECT ALL TO 0.7", "error at line 1, column 31: expected BURST, found '0.7'"),
        (
            "ALTER QUERY q REDIRECT ALL TO BURST 1.7",
            "error at line 1, column 37: the ratio is a number above 0 and at most 1, found 1.7\nhint: it is the part of the tasks that go: TO BURST 0.7",
        ),
        (
            "ALTER QUERY q REDIRECT ALL TO BURST 'half'",
            "error at line 1, column 37: the ratio is a number above 0 and at most 1, found 'half'\nhint: it is the part of the tasks that go: TO BURST 0.7",
        ),
        ("SHOW QUERIES LIMIT -1", "error at line 1, column 20: LIMIT takes a whole number, 0 or more"),
        (
            "DROP APPLICATION a CASCDE",
            "error at line 1, column 20: expected the end of the statement, found 'CASCDE'\nhint: did you mean 'CASCADE'?",
        ),
        (
            "SHOW CHECKPOINTS LIMIT 3",
            "error at line 1, column 18: expected the end of the statement, found 'LIMIT'\nhint: statements are separated by ';'",
        ),
        (
            "CREATE SOURCE s",
            "error at line 1, column 16: expected FROM, found the end of the statement\nhint: write for example FROM 'file:data/bids.csv' FORMAT CSV",
        ),
        (
            "CREATE SOURCE s (a BIGINT, PRIMARY KEY (a)) FROM 'x:y'",
            "error at line 1, column 28: PRIMARY KEY is of sources of changes, of FORMAT DEBEZIUM\nhint: leave it out: the rows of other sources are events, and each counts",
        ),
        (
            "CREATE SOURCE s (a BIGINT PRIMARY KEY, PRIMARY KEY (a)) FROM 'x:y' FORMAT DEBEZIUM",
            "error at line 1, column 40: a source has one PRIMARY KEY\nhint: name all of its columns together: PRIMARY KEY (a, b)",
        ),
        (
            "CREATE SOURCE s (ts TIMESTAMP, WATERMARK FOR ts AS other - INTERVAL '1' SECOND) FROM 'x:y'",
            "error at line 1, column 52: the watermark of 'ts' is made of 'other'\nhint: write for example WATERMARK FOR ts AS ts - INTERVAL '5' SECOND",
        ),
        (
            "CREATE SOURCE s (ts TIMESTAMP, WATERMARK FOR ts AS (ts - INTERVAL '1' SECOND * 2)) FROM 'x:y'",
            "error at line 1, column 78: expected ')', found '*'\nhint: write for example WATERMARK FOR ts AS ts - INTERVAL '5' SECOND",
        ),
        (
            "CREATE SOURCE s (ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1 month') FROM 'x:y'",
            "error at line 1, column 57: the lateness is a time span of fixed length, and not negative\nhint: write for example WATERMARK FOR ts AS ts - INTERVAL '5' SECOND",
        ),
        (
            "CREATE SINK s (ts TIMESTAMP EVENT TIME) TO 'x:y'",
            "error at line 1, column 16: the column 'ts' of a sink is no event time\nhint: declare it as TIMESTAMP alone",
        ),
        (
            "CREATE SINK s FROM 'x:y'",
            "error at line 1, column 15: expected TO, found 'FROM'\nhint: write for example TO 'file:results' FORMAT CSV",
        ),
        (
            "CREATE VIEW v (a) AS SELECT 1",
            "error at line 1, column 15: a list of columns after the name of a view is not supported yet\nhint: name the columns in the SELECT: SELECT a AS name",
        ),
        (
            "CREATE QUERY q AS SELECT a, b FROM t INTO s, r, q",
            "error at line 1, column 46: a query has one sink\nhint: make a view, and a query for each sink: CREATE VIEW v AS SELECT ...; CREATE QUERY q AS SELECT * FROM v INTO sink",
        ),
        (
            "CREATE VIEW v AS SELECT a FROM t INTO s",
            "error at line 1, column 39: a view has no sink\nhint: read the view: INSERT INTO sink SELECT * FROM view",
        ),
        (
            "CREATE QUERY q AS SELECT 1",
            "error at line 1, column 19: the query 'q' has no sink\nhint: write SELECT ... INTO sink, with a sink made by CREATE SINK",
        ),
        (
            "INSERT INTO s (a) SELECT 1",
            "error at line 1, column 15: a list of columns in INSERT is not supported yet\nhint: leave the list out, and select the columns in the order of the sink: INSERT INTO sink SELECT a, b FROM t",
        ),
        (
            "INSERT INTO s SELECT a FROM t INTO u",
            "error at line 1, column 36: the query has two sinks\nhint: write INSERT INTO sink SELECT ..., or SELECT ... INTO sink",
        ),
        (
            "INSERT INTO s SELCT a FROM t",
            "error at line 1, column 15: expected SELECT, found 'SELCT'\nhint: did you mean 'SELECT'?",
        ),
        (
            "SELECT a FROM t WHERE a >",
            "error at line 1, column 26: expected an expression, found the end of the statement",
        ),
        (
            "SELECT a FROM TABLE(TUMBEL(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MINUTE))",
            "error at line 1, column 21: unknown table function 'TUMBEL'\nhint: did you mean 'TUMBLE'?",
        ),
        ("CREATE QUERY q FROM a", "error at line 1, column 21: expected APPLICATION, found 'a'"),
        (
            "CREATE QUERY q FROM APPLICATION a WITH (x = 1)",
            "error at line 1, column 43: expected '=>', found '='\nhint: write (x => value)",
        ),
        ("CREATE QUERY q FROM APPLICATION a WITH (x => 1, X => 2)", "error at line 1, column 49: 'x' is given twice"),
        (
            "CREATE QUERY q FROM APPLICATION a WITH (x => \"y\")",
            "error at line 1, column 46: expected a value, found '\"y\"'\nhint: strings stand in single quotes: 'y'",
        ),
        (
            "CREATE QUERY q FROM APPLICATION a WITH (x => $y)",
            "error at line 1, column 46: expected a value, found '$y'\nhint: parameters may stand in the SELECT only",
        ),
        (
            "CREATE QUERY q FROM APPLICATION a WITH (x => INTERVAL 'soon')",
            "error at line 1, column 55: 'soon' is not an interval\nhint: write for example INTERVAL '5 minutes'",
        ),
        (
            "CREATE APPLICATION select INPUT t (v DOUBLE)",
            "error at line 1, column 20: expected the name of the application, found 'select'\nhint: to use this word as a name, write it in double quotes: \"select\"",
        ),
        (
            "CREATE APPLICATION a (x DUOBLE)",
            "error at line 1, column 25: unknown type 'DUOBLE'\nhint: did you mean 'DOUBLE'?",
        ),
        (
            "CREATE APPLICATION a ($x DOUBLE)",
            "error at line 1, column 23: expected the name of a parameter, found '$x'\nhint: declare it without the dollar sign: x",
        ),
        ("CREATE APPLICATION a (x DOUBLE, X TEXT)", "error at line 1, column 33: the parameter 'x' is declared twice"),
        ("CREATE APPLICATION a OUTPUT FORMAT JSON", "error at line 1, column 22: expected INPUT, found 'OUTPUT'"),
        (
            "CREATE APPLICATION a INPUT t (v INTERVAL)",
            "error at line 1, column 33: a column of an input cannot be an INTERVAL\nhint: declare it as BIGINT or TEXT; parameters may be intervals",
        ),
        (
            "CREATE APPLICATION a INPUT t (v DOUBLE EVENT TIME)",
            "error at line 1, column 33: the event time 'v' must be a TIMESTAMP\nhint: a number is read as milliseconds since 1970, a text as ISO 8601",
        ),
        (
            "CREATE APPLICATION a INPUT t (a TIMESTAMP EVENT TIME, b TIMESTAMP EVENT TIME)",
            "error at line 1, column 67: an input has one EVENT TIME, and that is 'a' already",
        ),
        (
            "CREATE APPLICATION a INPUT t (arrival_time TIMESTAMP)",
            "error at line 1, column 31: 'arrival_time' is there without being declared\nhint: every input has the column arrival_time TIMESTAMP; give this one another name",
        ),
        (
            "CREATE APPLICATION a INPUT t (v DOUBLE, v TEXT)",
            "error at line 1, column 41: the column 'v' is declared twice",
        ),
        (
            "CREATE APPLICATION a INPUT t (v TIMESTAMP WITH TIME ZONE)",
            "error at line 1, column 43: timestamps with a time zone are not supported\nhint: TIMESTAMP is always in UTC",
        ),
        (
            "CREATE APPLICATION a INPUT t (v DOUBLE) FROM \"x\" FORMAT JSON",
            "error at line 1, column 46: expected an address in single quotes, found '\"x\"'\nhint: strings stand in single quotes: 'x'",
        ),
        (
            "CREATE APPLICATION a INPUT t (v DOUBLE) FORMAT",
            "error at line 1, column 47: expected the name of a format, found the end of the statement\nhint: for example FORMAT JSON",
        ),
        (
            "CREATE APPLICATION a INPUT t (v DOUBLE) FORMAT JSON INPUT u (v DOUBLE)",
            "error at line 1, column 71: expected FORMAT, found the end of the statement\nhint: a format stands behind the address: FORMAT JSON, for example",
        ),
        (
            "CREATE APPLICATION a INPUT t (v DOUBLE) FORMAT JSON OUTPUT FORMAT JSON WHEN AS SELECT v FROM t",
            "error at line 1, column 77: expected a condition after WHEN\nhint: write for example WHEN severity >= 3, over the columns of the SELECT",
        ),
    ] {
        assert_eq!(error(script), expected, "{script}");
    }
}

#[test]
fn a_select_may_be_in_parentheses() {
    let union = "(SELECT k FROM a) UNION ALL (SELECT k FROM b)";
    assert!(matches!(one(union), Statement::RunQuery(_)));
    assert!(matches!(one(&format!("EXPLAIN {union}")), Statement::ExplainBigQuery { .. }));
}

#[test]
fn statements_of_big_queries_are_read() {
    let Statement::CreateSource(source) = one("CREATE SOURCE IF NOT EXISTS `Bids` (price DOUBLE NOT NULL, ts TIMESTAMP(3),
        WATERMARK FOR ts AS ts - INTERVAL '4' SECOND) FROM 'kafka:bids' FORMAT JSON WITH (\"group\" => 'a', start => 'earliest')")
    else {
        panic!("not a source")
    };
    assert!(source.if_not_exists);
    let source = source.declare(|_, _| panic!("the columns are declared")).unwrap();
    assert_eq!((source.name.text.as_str(), source.connector().as_str(), source.rest()), ("Bids", "kafka", "bids"));
    assert_eq!((source.event_time_column, source.lateness_us, source.idle_timeout_us), (Some(1), 4_000_000, None));
    assert!(!source.schema.field(1).is_nullable() && source.options.len() == 2);
    for (watermark, lateness_us) in [("(ts)", 0), ("(ts - INTERVAL '4' SECOND)", 4_000_000)] {
        let text = format!("CREATE SOURCE s (ts TIMESTAMP, WATERMARK FOR ts AS {watermark}) FROM 'x:y'");
        let Statement::CreateSource(source) = one(&text) else { panic!("not a source") };
        let source = source.declare(|_, _| panic!("the columns are declared")).unwrap();
        assert_eq!((source.event_time_column, source.lateness_us), (Some(0), lateness_us), "{text}");
    }

    let own = Arc::new(Schema::new(vec![Field::new("t", TIMESTAMP, true)]));
    let Statement::CreateSource(source) = one(
        "CREATE SOURCE s FROM 'nexmark:' WITH (lateness => INTERVAL '1 s', idle_timeout => '2 s', future_limit => '3 s', rate => 7)",
    ) else {
        panic!("not a source")
    };
    let source = source
        .declare(|connector, rest| (connector == "nexmark" && rest.is_empty()).then_some(Ok((own, Some(0)))))
        .unwrap();
    assert_eq!((source.event_time_column, source.lateness_us), (Some(0), 1_000_000));
    assert_eq!((source.idle_timeout_us, source.options.len()), (Some(2_000_000), 1));
    assert_eq!(source.future_limit_us, Some(3_000_000));

    let Statement::CreateSink(sink) = one("CREATE SINK s (a BIGINT) TO 'stdout:' FORMAT CSV (header => true)") else {
        panic!("not a sink")
    };
    assert_eq!(sink.declare().unwrap().schema.unwrap().fields().len(), 1);
    let Statement::CreateBigQuery(create) = one("CREATE QUERY q AS INSERT INTO s SELECT a FROM t") else {
        panic!("not a query")
    };
    let query = create.query;
    assert_eq!((query.sink.unwrap().text.as_str(), query.position), ("s", Position { line: 1, column: 33 }));
    for (script, sink) in [("SELECT a FROM t INTO s", Some("s")), ("WITH u AS (SELECT a FROM t) SELECT a FROM u", None)]
    {
        let Statement::RunQuery(query) = one(script) else { panic!("not a query") };
        assert_eq!(query.sink.as_ref().map(|name| name.text.as_str()), sink);
    }
    let Statement::CreateBigQuery(create) =
        one("CREATE QUERY q AS SELECT a FROM t INTO s WITH (state_ttl => INTERVAL '1 hour')")
    else {
        panic!("not a query")
    };
    let query = create.query;
    assert_eq!((query.sink.unwrap().text.as_str(), query.state_ttl_us), ("s", Some(3_600_000_000)));
    let fuse = |with: &str| match one(&format!("SELECT a FROM t {with}")) {
        Statement::RunQuery(query) => query.fuse,
        other => panic!("{other:?}"),
    };
    assert_eq!((fuse(""), fuse("WITH (fuse => 'auto')")), (None, Some(Fuse::Auto)));
    assert_eq!(fuse("WITH (state_ttl => INTERVAL '1 hour', Fuse => 'NONE')"), Some(Fuse::None));
    let is_burst = |with: &str| match one(&format!("SELECT a FROM t {with}")) {
        Statement::RunQuery(query) => query.is_burst,
        other => panic!("{other:?}"),
    };
    assert!(is_burst("WITH (burst => true)") && !is_burst("WITH (burst => false)") && !is_burst(""));
    let explained = |script: &str| matches!(one(script), Statement::ExplainBigQuery { analyze: true, .. });
    assert!(explained("EXPLAIN ANALYZE SELECT a FROM t") && !explained("EXPLAIN INSERT INTO s SELECT a FROM t"));
    assert!(matches!(
        one("SHOW SOURCES LIKE 'a%'"),
        Statement::Show(Show { kind: ObjectKind::Declared(Declared::Source), like: Some(_), limit: None, .. })
    ));
    assert!(matches!(
        one("DROP VIEW IF EXISTS v"),
        Statement::Drop { kind: ObjectKind::Declared(Declared::View), if_exists: true, .. }
    ));
}

#[test]
fn wrong_options_of_a_query_are_refused() {
    for (script, expected) in [
        (
            "SELECT a FROM t WITH (state_tl => INTERVAL '1 hour')",
            "error at line 1, column 23: unknown option 'state_tl' of a query\nhint: did you mean 'state_ttl'?",
        ),
        (
            "SELECT a FROM t WITH (state_ttl => 5)",
            "error at line 1, column 36: state_ttl is a time span\nhint: write for example state_ttl => INTERVAL '5 seconds'",
        ),
        (
            "SELECT a FROM t WITH (state_ttl => INTERVAL '0 s')",
            "error at line 1, column 36: state_ttl cannot be 0 seconds\nhint: it is a fixed time span of at most ten years, and not negative",
        ),
        (
            "CREATE QUERY q WITH (state_ttl => INTERVAL '1 hour') AS SELECT a FROM t INTO s",
            "error at line 1, column 16: expected FROM APPLICATION or AS SELECT, found 'WITH'\nhint: the options of a query are state_ttl, fuse and burst, at its end: SELECT ... INTO sink WITH (state_ttl => INTERVAL '1 hour', fuse => 'none')",
        ),
        (
            "SELECT a FROM t WITH (fuse => 'some')",
            "error at line 1, column 31: fuse is 'auto' or 'none'\nhint: 'auto' runs operators together where rows keep their partition, 'none' runs each by itself",
        ),
        (
            "SELECT a FROM t WITH (fuse => 1)",
            "error at line 1, column 31: fuse is 'auto' or 'none'\nhint: 'auto' runs operators together where rows keep their partition, 'none' runs each by itself",
        ),
        (
            "SELECT a FROM t WITH (burst => 8)",
            "error at line 1, column 32: burst is true or false\nhint: with true, tasks of the query may go to burst workers while it runs",
        ),
        (
            "CREATE VIEW v AS SELECT a FROM t WITH (burst => true)",
            "error at line 1, column 18: a view has no tasks that could go to burst workers\nhint: give burst where the view is read: SELECT ... FROM view WITH (burst => true)",
        ),
        ("SELECT a FROM t WITH (fuse => 'none', fuse => 'auto')", "error at line 1, column 39: 'fuse' is given twice"),
        (
            "CREATE QUERY q WITH (fuse => 'none') AS SELECT a FROM t INTO s",
            "error at line 1, column 16: expected FROM APPLICATION or AS SELECT, found 'WITH'\nhint: the options of a query are state_ttl, fuse and burst, at its end: SELECT ... INTO sink WITH (state_ttl => INTERVAL '1 hour', fuse => 'none')",
        ),
        (
            "CREATE OR REPLACE QUERY q WITH (fuse => 'none') AS SELECT a FROM t INTO s",
            "error at line 1, column 33: unknown option 'fuse'\nhint: the options of a query are state_ttl, fuse and burst, at its end: SELECT ... INTO sink WITH (state_ttl => INTERVAL '1 hour', fuse => 'none')",
        ),
        (
            "CREATE VIEW v AS SELECT a FROM t WITH (fuse => 'auto')",
            "error at line 1, column 18: a view does not run by itself\nhint: give fuse where the view is read: SELECT ... FROM view WITH (fuse => 'none')",
        ),
        (
            "CREATE VIEW v AS SELECT a FROM t WITH (state_ttl => INTERVAL '1 hour')",
            "error at line 1, column 18: a view keeps no state\nhint: give state_ttl where the view is read: SELECT ... FROM view WITH (state_ttl => ...)",
        ),
    ] {
        assert_eq!(error(script), expected, "{script}");
    }
}

#[test]
fn wrong_declarations_are_refused_where_they_are_wrong() {
    for (script, expected) in [
        ("CREATE SOURCE s FROM 'file:a.csv'", "error at line 1, column 15: the source 's' has no columns"),
        (
            "CREATE SOURCE s (a BIGINT) FROM 'nowhere'",
            "error at line 1, column 33: 'nowhere' does not say which connector to use",
        ),
        (
            "CREATE SOURCE s (a BIGINT, WATERMARK FOR b AS b) FROM 'x:y'",
            "error at line 1, column 42: unknown column 'b'",
        ),
        (
            "CREATE SOURCE s (a BIGINT, WATERMARK FOR a AS a) FROM 'x:y'",
            "error at line 1, column 42: the event time 'a' must be a TIMESTAMP, not BIGINT",
        ),
        (
            "CREATE SOURCE s (a TIMESTAMP EVENT TIME, b TIMESTAMP, WATERMARK FOR b AS b) FROM 'x:y'",
            "error at line 1, column 69: a source has one EVENT TIME, and that is 'a' already",
        ),
        (
            "CREATE SOURCE s (a BIGINT) FROM 'x:y' WITH (lateness => 5)",
            "error at line 1, column 57: lateness is a time span",
        ),
        (
            "CREATE SOURCE s (a BIGINT) FROM 'x:y' WITH (idle_timeout => INTERVAL '0 s')",
            "error at line 1, column 61: idle_timeout cannot be 0 s",
        ),
    ] {
        let Statement::CreateSource(create) = one(script) else { panic!("not a source") };
        let error = create.declare(|_, _| None).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{script}: {error}");
    }
}

#[test]
fn what_a_select_may_not_have_is_refused_by_name() {
    let head = "CREATE APPLICATION a INPUT t (v DOUBLE) FORMAT JSON OUTPUT FORMAT JSON AS\n";
    for (select, expected) in [
        (
            "WITH x AS (SELECT 1) SELECT v FROM x",
            "error at line 2, column 20: expected FROM and the name of the input, found the end of the statement",
        ),
        (
            "SELECT v FROM t UNION ALL SELECT v FROM t",
            "error at line 2, column 17: UNION of two whole SELECTs is not supported yet\nhint: write SELECT ... FROM (SELECT ts, value FROM a UNION ALL SELECT ts, value FROM b) AS both",
        ),
        (
            "SELECT v FROM t OFFSET 5",
            "error at line 2, column 17: OFFSET is not supported yet\nhint: LIMIT gives the first rows of each window; QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY ...) > 3 leaves them out",
        ),
        (
            "SELECT v FROM t FETCH FIRST 5 ROWS ONLY",
            "error at line 2, column 17: FETCH is not supported yet\nhint: write LIMIT 3",
        ),
        (
            "SELECT DISTINCT ON (v) v FROM t",
            "error at line 2, column 8: DISTINCT ON is not supported yet\nhint: write QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end, key ORDER BY ...) = 1",
        ),
        (
            "SELECT v FROM t, u",
            "error at line 2, column 18: a list of inputs in FROM is not supported yet\nhint: inputs are joined with JOIN b ON b.key = a.key AND b.ts BETWEEN a.ts - INTERVAL '1 minute' AND a.ts + INTERVAL '1 minute', or with JOIN LATEST(b) ON b.key = a.key, and put together with UNION ALL",
        ),
        (
            "SELECT v FROM t FULL JOIN u ON t.v = u.v",
            "error at line 2, column 22: FULL JOIN is not supported yet\nhint: look up a table with JOIN rooms AS r ON r.id = t.room (LEFT JOIN keeps rows without a partner), or with CROSS JOIN LATERAL (SELECT ... FROM rooms WHERE ... ORDER BY ... LIMIT 3) AS near; join two inputs with JOIN LATEST(b) AS b ON b.key = a.key",
        ),
        (
            "SELECT v FROM t LEFT OUTER JOIN u USING (v)",
            "error at line 2, column 28: USING is not supported yet\nhint: look up a table with JOIN rooms AS r ON r.id = t.room (LEFT JOIN keeps rows without a partner), or with CROSS JOIN LATERAL (SELECT ... FROM rooms WHERE ... ORDER BY ... LIMIT 3) AS near; join two inputs with JOIN LATEST(b) AS b ON b.key = a.key",
        ),
        (
            "SELECT v FROM ((SELECT v FROM t)) x",
            "error at line 2, column 17: a subquery other than a SELECT or a UNION ALL of inputs is not supported yet\nhint: write FROM (SELECT ...) AS m, without parentheses around the SELECT inside",
        ),
        (
            "SELECT v FROM f(1)",
            "error at line 2, column 15: a function in FROM other than LATEST is not supported yet\nhint: windows stand in GROUP BY: GROUP BY tumble(ts, INTERVAL '1 minute')",
        ),
        (
            "SELECT v FROM a.t",
            "error at line 2, column 15: a name with points in FROM is not supported yet\nhint: inputs and tables have no schema: write FROM t",
        ),
        (
            "SELECT v FROM t GROUP BY ALL",
            "error at line 2, column 26: GROUP BY ALL is not supported yet\nhint: name the keys: GROUP BY device, tumble(ts, INTERVAL '1 minute')",
        ),
        (
            "SELECT v INTO x FROM t",
            "error at line 2, column 10: SELECT INTO is not supported yet\nhint: leave it out: results go to the OUTPUT of the application",
        ),
        (
            "SELECT v",
            "error at line 2, column 9: expected FROM and the name of the input, found the end of the statement",
        ),
        ("SELECT FROM t", "error at line 2, column 8: expected an expression, found 'FROM'"),
        (
            "SELECT v FORM t",
            "error at line 2, column 15: expected the end of the statement, found 't'\nhint: did you mean FROM instead of 'FORM'?",
        ),
        ("SELECT v FROM t WHERE (v > 1", "error at line 2, column 29: expected ')', found the end of the statement"),
        (
            "SELECT v FROM t EMIT FINAL",
            "error at line 2, column 17: expected EMIT ON CHANGE\nhint: without EMIT a row is emitted whenever a window closes",
        ),
        (
            "SELECT v FROM t EMIT ON CHANGE WHERE v > 1",
            "error at line 2, column 32: expected the end of the statement, found 'WHERE'\nhint: EMIT ON CHANGE is the last clause",
        ),
        ("SELCT v FROM t", "error at line 2, column 1: expected SELECT, found 'SELCT'\nhint: did you mean 'SELECT'?"),
        (
            "(SELECT v FROM t)",
            "error at line 2, column 1: a SELECT in parentheses is not supported yet\nhint: leave the parentheses out",
        ),
        ("VALUES (1)", "error at line 2, column 1: expected SELECT, found 'VALUES'"),
        ("", "error at line 1, column 74: expected SELECT, found the end of the statement"),
    ] {
        assert_eq!(error(&format!("{head}{select}")), expected, "{select}");
    }
}

#[test]
fn deep_and_long_expressions_end_in_an_error_and_not_in_the_stack() {
    let head = "CREATE APPLICATION a INPUT t (v DOUBLE) FORMAT JSON OUTPUT FORMAT JSON AS SELECT ";
    // On the smallest stack that threads usually have.
    let small_stack = std::thread::Builder::new().stack_size(2 << 20);
    let run = move || {
        for (what, expected) in [
            (format!("{}v{}", "(".repeat(10_000), ")".repeat(10_000)), "nest at most"),
            (format!("v{}", " + 1".repeat(40_000)), "operators in a row"),
            (format!("{}v", "- ".repeat(50_000)), "operators in a row"),
            (format!("{}v", "NOT ".repeat(50_000)), "operators in a row"),
            (format!("v{}", "::DOUBLE".repeat(8_000)), "operators in a row"),
            (format!("{} v {}", "CASE WHEN true THEN ".repeat(8_000), " END".repeat(8_000)), "nest at most"),
            (format!("v{}", " IS NULL".repeat(20_000)), "operators in a row"),
            (format!("{}v{}", "abs(".repeat(10_000), ")".repeat(10_000)), "nest at most"),
            (format!("v{}", " AND (v".repeat(10_000)), "nest at most"),
        ] {
            let message = error(&format!("{head}{what} FROM t"));
            assert!(message.contains(expected), "{}: {message}", &what[..40]);
        }
        // A long list is not deep.
        let list = vec!["1.5"; 20_000].join(", ");
        assert!(parse_script(&format!("{head}v FROM t WHERE v IN ({list})")).is_ok());
    };
    small_stack.spawn(run).unwrap().join().unwrap();
}

#[test]
fn no_text_makes_the_parser_panic() {
    // Every prefix and every text with one token missing is an error or a statement.
    let script = format!("{AC}; CREATE QUERY q FROM APPLICATION a WITH (x => INTERVAL '1 s', y => -2);
        CREATE SOURCE t (a BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '4' SECOND) FROM 'x:y';
        CREATE QUERY r AS SELECT count(*) FROM TABLE(SESSION(TABLE t PARTITION BY a, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) INTO s");
    for end in (0..script.len()).filter(|&end| script.is_char_boundary(end)) {
        let _ = parse_script(&script[..end]);
    }
    let words: Vec<&str> = script.split_inclusive([' ', '(', ')', ',', '\n']).collect();
    for missing in 0..words.len() {
        let shorter: String =
            words.iter().enumerate().filter(|(index, _)| *index != missing).map(|(_, word)| *word).collect();
        let _ = parse_script(&shorter);
    }
}

#[test]
fn a_replacement_is_the_same_application() {
    let plain = "CREATE APPLICATION a (p BIGINT) INPUT t (v DOUBLE) FROM 'mqtt:x' FORMAT JSON OUTPUT 'mqtt:y' FORMAT JSON \
                 AS SELECT v FROM t WHERE v > $p";
    let parse = |sql: &str| parse_application(sql).unwrap_or_else(|error| panic!("{error}: {sql}"));
    let id = parse(plain).id;
    assert_eq!(parse(plain).replaces, None);
    for (words, wish) in [
        ("OR REPLACE APPLICATION a", StateWish::Keep),
        ("or replace application A with (state => 'keep')", StateWish::Keep),
        ("OR REPLACE APPLICATION a WITH (state => 'discard')", StateWish::Discard),
    ] {
        let create = parse(&plain.replace("APPLICATION a", words));
        assert_eq!((create.replaces, create.id, create.name.text), (Some(wish), id.clone(), "a".into()), "{words}");
    }
    for (words, message) in [
        ("OR REPLACE APPLICATION IF NOT EXISTS a", "contradict"),
        ("OR REPLACE APPLICATION a WITH (state => 'lose')", "'keep' or 'discard'"),
        ("OR REPLACE APPLICATION a WITH (speed => 1)", "unknown option 'speed'"),
        ("OR REPLACE VIEW a", "for applications, queries, tables and secrets alone"),
    ] {
        let error = parse_application(&plain.replace("APPLICATION a", words)).expect_err(words).to_string();
        assert!(error.contains(message) && error.contains("hint:"), "{error}");
    }
}

#[test]
fn a_replacement_is_the_same_query() {
    let plain = "CREATE QUERY q AS SELECT v FROM t INTO s WITH (state_ttl => INTERVAL '1 hour')";
    let parse = |sql: &str| match parse_script(sql).unwrap_or_else(|error| panic!("{error}: {sql}")).pop() {
        Some((Statement::CreateBigQuery(create), _)) => create,
        other => panic!("{other:?}: {sql}"),
    };
    let first = parse(plain);
    assert_eq!(first.replaces, None);
    assert_ne!(first.id, parse(&plain.replace("SELECT v", "SELECT v + 1")).id);
    for (words, wish) in [
        ("OR REPLACE QUERY q", StateWish::Keep),
        ("or replace query Q  with (state => 'Keep')", StateWish::Keep),
        ("OR REPLACE QUERY q WITH (state => 'discard')", StateWish::Discard),
    ] {
        let text = plain.replace("QUERY q", words);
        let create = parse(&text);
        assert_eq!((create.replaces, &create.id, create.name.text.as_str()), (Some(wish), &first.id, "q"), "{words}");
        assert_eq!((create.query.text.as_str(), create.query.state_ttl_us), (text.as_str(), Some(3_600_000_000)));
        assert_eq!(create.query.sink.map(|sink| sink.text).as_deref(), Some("s"));
    }
    for (script, message) in [
        ("CREATE OR REPLACE QUERY IF NOT EXISTS q AS SELECT v FROM t INTO s", "contradict"),
        ("CREATE OR REPLACE QUERY q WITH (state => 'lose') AS SELECT v FROM t INTO s", "'keep' or 'discard'"),
        ("CREATE OR REPLACE QUERY q FROM APPLICATION a WITH (x => 1)", "for queries that say AS SELECT"),
        ("CREATE OR REPLACE VIEW v AS SELECT v FROM t", "for applications, queries, tables and secrets alone"),
    ] {
        let error = parse_script(script).expect_err(script).to_string();
        assert!(error.contains(message) && error.contains("hint:"), "{error}");
    }
}

#[test]
fn names_of_options_may_have_dots() {
    let names = |options: &str| {
        let script = format!("CREATE SINK s TO 'x:y' WITH ({options})");
        let Statement::CreateSink(create) = one(&script) else { panic!("not a sink") };
        create.declare().unwrap().options.into_iter().map(|(name, ..)| name.text).collect::<Vec<_>>()
    };
    let plain =
        names("headers.authorization => 'a', Properties.Max.In.Flight => 5, \"Headers.x-y\" => 'b', a . b => 1");
    assert_eq!(plain, ["headers.authorization", "properties.max.in.flight", "Headers.x-y", "a.b"]);
    for (options, expected) in [
        ("headers.x-y => 'a'", "hint: a name with '-' stands in double quotes: (\"headers.x-...\" => value)"),
        ("headers. => 'a'", "hint: a name of other than letters, digits, '_' and '.' stands in double quotes"),
        ("a.b => 1, \"a.b\" => 2", "'a.b' is given twice"),
    ] {
        let error = parse_script(&format!("CREATE SINK s TO 'x:y' WITH ({options})")).unwrap_err().to_string();
        assert!(error.contains(expected), "{options}: {error}");
    }
}

#[test]
fn secrets_do_not_stand_in_statements_that_are_shown() {
    let shown = |text: &str| {
        crate::shown_statement(text, &|connector, is_sink, name, value| {
            assert_eq!(connector, "x");
            match (is_sink, name) {
                (_, "token") | (true, "headers.a") => "***".into(),
                _ => value.into(),
            }
        })
    };
    for (text, expected) in [
        (
            "CREATE SINK s TO 'x:y' -- e\u{301} 'token'\n  WITH (\"token\" => 'it''s',\n headers.a => -5 , b => 'c')",
            "CREATE SINK s TO 'x:y' -- e\u{301} 'token'\n  WITH (\"token\" => '***',\n headers.a => '***' , b => 'c')",
        ),
        (
            "CREATE SOURCE s (token TEXT) FROM 'x:y' WITH (token => TIMESTAMP '2026-11-21', headers.a => 1)",
            "CREATE SOURCE s (token TEXT) FROM 'x:y' WITH (token => '***', headers.a => 1)",
        ),
        ("CREATE SOURCE s (a TEXT) FROM 'x:y'", "CREATE SOURCE s (a TEXT) FROM 'x:y'"),
        (
            "CREATE SINK s TO 'https://h/a?token=ro''se&b' FORMAT JSON",
            "CREATE SINK s TO 'https://h/a?token=***&***' FORMAT JSON",
        ),
        ("CREATE SINK s TO 'x:y' WITH (token => 'rose'", "(this version does not understand the statement)"),
    ] {
        assert_eq!(shown(text), expected);
    }
}

#[test]
fn secrets_are_named_in_options_and_no_error_has_a_value() {
    let one = |text: &str| parse_script(text).unwrap().remove(0).0;
    let Statement::CreateSecret(create) = one("CREATE OR REPLACE SECRET IF NOT EXISTS \"My s\" AS 'it''s'") else {
        panic!("another statement")
    };
    assert!(create.replaces && create.if_not_exists && create.name.text == "My s" && create.value.0 == "it's");
    assert!(!format!("{create:?}").contains("it's"));
    let application = "CREATE APPLICATION a (p TEXT) INPUT t (v BIGINT) FROM 'kafka:h/t' FORMAT JSON \
                       WITH (key => '{p}', properties.sasl.password => SECRET one) \
                       OUTPUT 'http:h' FORMAT JSON WITH (headers.x => Secret \"Two\") AS SELECT v FROM t";
    for (text, expected) in [
        (application, &["one", "Two"][..]),
        ("CREATE SINK s TO 'http://h' WITH (headers.x => SECRET token, timeout => '1 s')", &["token"]),
        ("CREATE SOURCE s (a TEXT) FROM 'http:h:1/x' WITH (token => SECRET token)", &["token"]),
        ("ALTER APPLICATION a SET (token => SECRET token)", &["token"]),
        ("CREATE SINK s TO 'http://h' WITH (headers.x => 'secret')", &[]),
        ("SHOW SECRETS LIKE 'a%' LIMIT 2", &[]),
        ("DROP SECRET IF EXISTS s", &[]),
    ] {
        let statement = one(text);
        assert_eq!(statement.secrets().iter().map(|(name, _)| *name).collect::<Vec<_>>(), expected, "{text}");
    }
    for wrong in [
        "CREATE SECRET s AS rose",
        "CREATE SECRET s AS \"rose\"",
        "CREATE SECRET s AS 'x' rose",
        "CREATE SECRET s AS 'x' 'rose'",
        "CREATE SECRET s AS ''",
        "CREATE SECRET s 'rose'",
        "CREATE SECRET 'rose'",
        "CREATE QUERY q FROM APPLICATION a WITH (p => SECRET s)",
        "CREATE SINK s TO 'file:x' FORMAT CSV (delimiter => SECRET s)",
        "CREATE SINK s TO 'http://h' WITH (headers.x => SECRET 'rose')",
        "SELECT a FROM t WITH (state_ttl => SECRET s)",
    ] {
        let error = parse_script(wrong).unwrap_err().to_string();
        assert!(!error.contains("rose"), "{wrong}: {error}");
    }
}
