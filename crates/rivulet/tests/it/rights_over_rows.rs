//! Rights over rows: whoever creates a view, a query or an application, or runs a SELECT, gets no rows that it may not
//! have, and writes to no sink that it may not write to.

use rivulet::service::{Credentials, ErrorKind, Service};
use serde_json::json;

use super::accounts::Fixture;
use super::callers::ask;

/// What the administrator has declared. The name of the last table has a letter that only some rules make small.
const DECLARED: &str = "
    CREATE TABLE rooms (id TEXT, since TIMESTAMP) FROM 'data:,attic,2026-01-01T00:00:00Z' FORMAT CSV;
    CREATE TABLE \"\u{c9}tages\" (id TEXT) FROM 'data:,attic' FORMAT CSV;
    CREATE SOURCE bids (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/bids' FORMAT JSON;
    CREATE VIEW doubled AS SELECT n * 2 AS n FROM bids;
    CREATE SINK results TO 'mqtt:out/results' FORMAT JSON";

/// An application that joins a table.
const JOINED: &str = "CREATE APPLICATION ann_a (home TEXT) INPUT readings (room TEXT) FROM 'mqtt:in/{home}' FORMAT JSON \
                      OUTPUT 'mqtt:out/{home}' FORMAT JSON \
                      AS SELECT r.since FROM readings JOIN rooms AS r ON r.id = readings.room";

#[test]
fn nobody_gets_rows_by_a_statement_that_it_may_not_have() {
    let fixture = Fixture::new();
    fixture.done(DECLARED);
    let ann = fixture.user(
        "ann",
        &[
            "change ON VIEW 'ann_%'",
            "change ON QUERY 'ann_%'",
            "change ON APPLICATION 'ann_%'",
            "change ON SOURCE 'ann_%'",
            "publish ON SINK 'results'",
        ],
    );
    let bids = "the source 'bids'";
    for (select, refused) in [
        ("SELECT n FROM bids", bids),
        ("SELECT n FROM BIDS AS b", bids),
        ("SELECT n FROM \"bids\" WHERE n > 1", bids),
        ("SELECT n FROM (SELECT n FROM (SELECT n FROM bids) AS one) AS two", bids),
        ("WITH one AS (SELECT n FROM bids) SELECT n FROM one", bids),
        (
            "SELECT count(*) AS n FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1 minute')) GROUP BY window_end",
            bids,
        ),
        (
            "SELECT count(*) AS n FROM HOP(DATA => bids, TIMECOL => DESCRIPTOR(ts), SLIDE => INTERVAL '1 minute', \
          SIZE => INTERVAL '2 minutes') GROUP BY window_end",
            bids,
        ),
        (
            "SELECT m.n FROM bids MATCH_RECOGNIZE (ORDER BY ts MEASURES B.n AS n PATTERN (A B) DEFINE B AS B.n > A.n) AS m",
            bids,
        ),
        ("SELECT b.n FROM doubled AS b", "the view 'doubled'"),
        ("SELECT o.payload AS n FROM rooms AS r JOIN rooms AS o ON o.id = r.id", "the table 'rooms'"),
        ("SELECT r.id FROM TUMBLE(TABLE rooms, DESCRIPTOR(since), INTERVAL '1 minute') AS r", "the table 'rooms'"),
        ("SELECT id FROM \u{c9}tages", "the table '\u{c9}tages'"),
    ] {
        let message = format!("'ann' may not subscribe to {refused}, which the statement reads");
        let view = format!("CREATE VIEW ann_v AS {select}");
        let query = format!("CREATE QUERY ann_q AS {select} INTO results");
        for (path, statement) in [
            ("/api/v1/sql", &view),
            ("/api/v1/sql", &query),
            ("/api/v1/big-queries", &query),
            ("/api/v1/select", &select.to_owned()),
        ] {
            let (status, error) = ask(&fixture.server, &ann, "POST", path, statement);
            assert_eq!((status, &error["message"]), (403, &json!(message)), "{path}: {statement}: {error}");
            assert!(error["column"].as_u64().is_some_and(|column| column > 1), "{statement}: {error}");
        }
    }
    let (status, error) = fixture.sql(&ann, JOINED);
    let message = "'ann' may not subscribe to the table 'rooms', which the statement reads";
    assert_eq!((status, &error["message"]), (403, &json!(message)), "{error}");
    // What earlier statements of a script declare counts too, and nothing of the script is run.
    let own = "CREATE SOURCE ann_s (n BIGINT) FROM 'mqtt:in/ann' FORMAT JSON";
    let (status, error) = fixture.sql(&ann, &format!("{own}; CREATE VIEW ann_v AS SELECT n FROM ann_s"));
    let message = "'ann' may not subscribe to the source 'ann_s', which the statement reads";
    assert_eq!((status, &error["message"], &error["line"]), (403, &json!(message), &json!(1)), "{error}");
    assert_eq!(fixture.done("SHOW SOURCES").as_array().map(Vec::len), Some(1));

    // With the right it works, and a view is a right of its own: its reader needs none over what it reads.
    fixture.done("GRANT subscribe ON SOURCE 'bids' TO ann; GRANT subscribe ON TABLE 'rooms' TO ann");
    for statement in
        ["CREATE VIEW ann_v AS SELECT n FROM bids", "CREATE QUERY ann_q AS SELECT n FROM bids INTO results", JOINED]
    {
        let (status, answer) = fixture.sql(&ann, statement);
        assert_eq!(status, 200, "{statement}: {answer}");
    }
    let bob = fixture.user("bob", &["subscribe ON VIEW 'ann_v'"]);
    for (select, may) in
        [("SELECT n FROM ann_v", true), ("SELECT n FROM bids", false), ("SELECT n FROM doubled", false)]
    {
        let refused = select_refused(&fixture, &bob, select);
        assert_eq!(refused, !may, "{select}");
    }
}

#[test]
fn a_plan_tells_of_nothing_that_its_reader_may_not_have() {
    let fixture = Fixture::new();
    fixture.done(DECLARED);
    let ann = fixture.user("ann", &["read ON QUERY", "read ON APPLICATION"]);
    let reads = |what: &str| format!("'ann' may not subscribe to {what}, which the statement reads");
    let (bids, rooms) = (reads("the source 'bids'"), reads("the table 'rooms'"));
    let sink = "'ann' may not publish to the sink 'results', to which the statement writes".to_owned();
    let explained = format!("EXPLAIN {JOINED}");
    for (statement, message) in [
        ("EXPLAIN SELECT n FROM bids", &bids),
        // Without the right there is no error that names the columns.
        ("EXPLAIN SELECT nothing FROM bids", &bids),
        ("EXPLAIN SELECT r.id FROM rooms AS r JOIN bids AS b ON b.n = 1", &rooms),
        ("EXPLAIN SELECT n FROM doubled", &reads("the view 'doubled'")),
        ("EXPLAIN SELECT 1 AS n INTO results", &sink),
        (&explained, &rooms),
    ] {
        let (status, error) = fixture.sql(&ann, statement);
        assert_eq!((status, &error["message"]), (403, &json!(message)), "{statement}: {error}");
    }
    fixture.done("GRANT subscribe ON SOURCE 'bids' TO ann; GRANT subscribe ON TABLE 'rooms' TO ann");
    for statement in ["EXPLAIN SELECT n FROM bids", &explained] {
        let (status, answer) = fixture.sql(&ann, statement);
        assert_eq!(status, 200, "{statement}: {answer}");
    }
}

/// Whether a SELECT is forbidden to a user with this token.
fn select_refused(fixture: &Fixture, token: &str, select: &str) -> bool {
    let access = fixture.engine.access();
    let credentials = Credentials { secret: Some(token.as_bytes()), ..Credentials::default() };
    let caller = access.authenticate(&credentials).expect("a caller");
    let refused = fixture.engine.session(caller).select(select).map(drop).err();
    refused.is_some_and(|error| error.kind == ErrorKind::Forbidden)
}

#[test]
fn nobody_writes_to_a_sink_without_the_right() {
    let fixture = Fixture::new();
    fixture.done(DECLARED);
    let ann = fixture.user(
        "ann",
        &[
            "change ON QUERY",
            "change ON SOURCE",
            "change ON APPLICATION",
            "subscribe ON SOURCE",
            "change ON SINK 'ann_%'",
        ],
    );
    let query = "CREATE QUERY q AS SELECT n FROM bids INTO results";
    let inserted = "CREATE QUERY q AS INSERT INTO results SELECT n FROM bids";
    let source =
        |option: &str| format!("CREATE SOURCE s (n BIGINT) FROM 'mqtt:in/s' FORMAT JSON WITH ({option} => 'results')");
    for statement in [query, inserted, &source("dead_letter"), &source("late")] {
        let (status, error) = fixture.sql(&ann, statement);
        let message = "'ann' may not publish to the sink 'results', to which the statement writes";
        assert_eq!((status, &error["message"]), (403, &json!(message)), "{statement}: {error}");
    }
    // An output that is no topic is a sink without a name.
    let output = "CREATE APPLICATION a (home TEXT) INPUT t (v BIGINT) FROM 'mqtt:in/{home}' FORMAT JSON \
                  OUTPUT 'file:out.jsonl' FORMAT JSON WITH (append => true) AS SELECT v FROM t";
    let (status, error) = fixture.sql(&ann, output);
    assert_eq!((status, &error["message"]), (403, &json!("'ann' may not change sinks")), "{error}");
    fixture.done("GRANT publish ON SINK 'results' TO ann; GRANT change ON SINK TO ann");
    for statement in [query, output] {
        let (status, answer) = fixture.sql(&ann, statement);
        assert_eq!(status, 200, "{statement}: {answer}");
    }
}

#[test]
fn files_of_models_are_read_for_whoever_may_declare_a_source() {
    let fixture = Fixture::new();
    fixture.done(DECLARED);
    let rights = ["change ON VIEW", "change ON QUERY", "subscribe ON SOURCE 'bids'", "publish ON SINK 'results'"];
    let ben = fixture.user("ben", &rights);
    let eve = fixture.user("eve", &[&rights[..], &["change ON SOURCE"]].concat());
    let select = "SELECT predict('none.json', n) AS y FROM bids";
    for (path, statement) in [
        ("/api/v1/sql", format!("CREATE VIEW v AS {select}")),
        ("/api/v1/sql", format!("CREATE QUERY q AS {select} INTO results")),
        ("/api/v1/big-queries", format!("CREATE QUERY q AS {select} INTO results")),
        ("/api/v1/select", select.to_owned()),
    ] {
        let (status, error) = ask(&fixture.server, &ben, "POST", path, &statement);
        let message = error["message"].as_str().unwrap_or_default();
        assert!(status == 403 && message == "'ben' may not change sources", "{path}: {statement}: {status} {error}");
        // The file is looked for, and is not there.
        let (status, error) = ask(&fixture.server, &eve, "POST", path, &statement);
        let message = error["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains("'none.json'"), "{path}: {statement}: {status} {error}");
    }
}
