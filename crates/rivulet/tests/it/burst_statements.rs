//! What of a query may go to burst workers, and what statements about that say. No worker is there.

use std::path::Path;
use std::sync::Arc;

use rivulet::engine::Engine;
use rivulet::service::{ErrorKind, ServiceError, StatementResult};
use tempfile::TempDir;

use super::engine::{configuration, open};
use super::support::{AsOperator, wait_until};
use super::tables::said;

fn run(engine: &Engine, script: &str) -> Result<StatementResult, ServiceError> {
    engine.execute(script).pop().expect("an answer")
}

fn refused(engine: &Engine, script: &str) -> ServiceError {
    run(engine, script).expect_err(script)
}

/// A generator of bids, a file that is followed, a table, and files for results.
fn declare(engine: &Engine, folder: &Path) {
    std::fs::write(folder.join("in.jsonl"), "").expect("a file");
    std::fs::write(folder.join("rooms.csv"), "id,floor\n1,2\n").expect("a file");
    let at = |name: &str| folder.join(name).display().to_string();
    said(engine, "CREATE SOURCE bid FROM 'nexmark:bid' WITH (rate => 20000)");
    said(
        engine,
        &format!(
            "CREATE SOURCE readings (ts TIMESTAMP EVENT TIME, room BIGINT) FROM 'file:{}' FORMAT JSON \
             WITH (follow => true)",
            at("in.jsonl")
        ),
    );
    said(
        engine,
        &format!(
            "CREATE TABLE rooms (id BIGINT, floor BIGINT) FROM 'file:{}' FORMAT CSV (header => true)",
            at("rooms.csv")
        ),
    );
    said(engine, "CREATE SOURCE slow FROM 'nexmark:person' WITH (rate => 1, size => 'small')");
    for sink in ["a", "b", "c", "d", "e"] {
        said(engine, &format!("CREATE SINK {sink} TO 'file:{}' FORMAT JSON", at(&format!("{sink}.jsonl"))));
    }
}

const COUNTS: &str = "SELECT channel, count(*) AS n, window_end FROM bid WHERE price > 5 \
                      GROUP BY channel, tumble(date_time, INTERVAL '1 second')";

fn plan(engine: &Engine, query: &str) -> String {
    let rows = run(engine, query).expect(query).rows;
    rows.iter().filter_map(|row| row[0].as_str()).map(|line| format!("{line}\n")).collect()
}

/// The lines about bursts in a plan.
fn bursts(plan: &str) -> Vec<&str> {
    plan.lines()
        .skip_while(|line| *line != "bursts")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(str::trim)
        .collect()
}

#[test]
fn explain_says_of_each_stage_whether_and_how_it_may_go() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    declare(&engine, folder.path());
    let before = plan(&engine, &format!("EXPLAIN {COUNTS} WITH (burst => true)"));
    let known = "; what a row costs is not known yet";
    let first =
        format!("stage 1 (1-4: source bid > filter > project > window) goes with its source, by merging{known}");
    assert_eq!(bursts(&before)[0], first, "{before}");
    assert!(bursts(&before)[1].contains("window") && bursts(&before)[1].contains("goes with its state"), "{before}");
    assert!(bursts(&plan(&engine, &format!("EXPLAIN {COUNTS}"))).is_empty());
    // Batches are large.
    said(&engine, "CREATE SOURCE fast FROM 'nexmark:bid' WITH (rate => 50000, burst => '1 second')");
    let counts = COUNTS.replace("FROM bid", "FROM fast");
    said(&engine, &format!("CREATE QUERY q AS {counts} INTO a WITH (burst => true)"));
    let running = plan(&engine, "EXPLAIN QUERY q");
    let second = bursts(&running)[1];
    assert!(second.starts_with("stage 2 (5-") && second.contains(" tasks goes with its state"), "{running}");
    // What a row costs is known as soon as enough of them have come.
    wait_until("10,000 rows were read", || bursts(&plan(&engine, "EXPLAIN QUERY q"))[0].contains(" ns a row here, "));
    let read = "EXPLAIN SELECT room, floor FROM readings JOIN rooms ON readings.room = rooms.id WITH (burst => true)";
    let read = plan(&engine, read);
    assert!(
        bursts(&read)[0].ends_with("stays: the source 'readings' reads file:, which is bound to this server"),
        "{read}"
    );
}

#[test]
fn what_cannot_go_is_refused_by_name() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    declare(&engine, folder.path());
    for query in [
        format!("CREATE QUERY q AS {COUNTS} INTO a WITH (burst => true)"),
        format!("CREATE QUERY plain AS {COUNTS} INTO b"),
        "CREATE QUERY looked AS SELECT bid.price, floor FROM bid JOIN rooms ON bid.auction = rooms.id INTO c \
         WITH (burst => true, fuse => 'none')"
            .into(),
        "CREATE QUERY bound AS SELECT room, count(*) AS n FROM readings GROUP BY room, tumble(ts, INTERVAL '1 second') INTO d \
         WITH (burst => true, fuse => 'none')"
            .into(),
        "CREATE QUERY joined AS SELECT bid.price, slow.name FROM bid JOIN slow ON bid.bidder = slow.id INTO e \
         WITH (burst => true)"
            .into(),
    ] {
        said(&engine, &query);
    }
    let number = |query: &str, operator: &str| -> usize {
        let plan = plan(&engine, &format!("EXPLAIN QUERY {query}"));
        let line =
            plan.lines().map(str::trim).find(|line| line.contains(&format!(". {operator}"))).expect("it is there");
        line.split('.').next().and_then(|number| number.parse().ok()).expect("a number")
    };
    let (lookup, sink, join) = (number("looked", "lookup"), number("looked", "sink"), number("joined", "join"));
    let windows = [number("q", "window"), number("q", "window") + 1];
    for (statement, column, message, hint) in [
        ("q REDIRECT 99 TO BURST 0.5".to_owned(), 24, "the query 'q' has no operator 99", "EXPLAIN QUERY q shows"),
        ("q REDIRECT 'over' TO BURST".into(), 24, "the query 'q' has no operator 'over'", "EXPLAIN QUERY q shows"),
        (
            "q REDIRECT 'window' TO BURST".into(),
            24,
            &*format!("'window' is the name of 2 operators: {} and {}", windows[0], windows[1]),
            "EXPLAIN QUERY q shows",
        ),
        ("q REDIRECT 99 BACK".into(), 24, "the query 'q' has no operator 99", "EXPLAIN QUERY q shows"),
        (
            "plain REDIRECT ALL TO BURST".into(),
            13,
            "'plain' was not created with burst => true",
            "CREATE OR REPLACE QUERY plain AS",
        ),
        (
            format!("looked REDIRECT {lookup} TO BURST"),
            29,
            &*format!("operator {lookup} looks rows up in the table 'rooms', which a worker has not"),
            "EXPLAIN QUERY looked says",
        ),
        (format!("looked REDIRECT {sink} TO BURST"), 29, "and sinks stay on the server", "EXPLAIN QUERY looked says"),
        (
            "bound REDIRECT 1 TO BURST".into(),
            28,
            "the source 'readings' reads file:, which is bound to this server",
            "EXPLAIN QUERY bound says",
        ),
        (
            format!("joined REDIRECT {join} TO BURST"),
            29,
            &*format!("operator {join} has its small side in every instance"),
            "EXPLAIN QUERY joined says",
        ),
        ("nobody REDIRECT ALL TO BURST".into(), 13, "there is no query 'nobody'", "AS SELECT"),
        ("q REDIRECT 1 TO BURST".into(), 13, "no burst worker is connected", "rivulet burst-worker --connect"),
    ] {
        let error = refused(&engine, &format!("ALTER QUERY {statement}"));
        assert!(error.message.contains(message), "{statement}: {}", error.message);
        assert_eq!((error.line, error.column), (Some(1), Some(column)), "{statement}");
        assert!(error.hint.as_deref().is_some_and(|said| said.contains(hint)), "{statement}: {:?}", error.hint);
    }
    for shown in ["SHOW BURSTS", "SHOW BURST WORKERS"] {
        assert_eq!(run(&engine, shown).expect(shown).rows.len(), 0);
    }
    let answer = said(&engine, "ALTER QUERY q REDIRECT ALL BACK");
    assert!(answer.starts_with("query q: nothing of it is on a burst worker"), "{answer}");
}

#[test]
fn a_query_without_checkpoints_stays() {
    for is_enabled in [false, true] {
        let folder = TempDir::new().expect("a folder");
        let mut config = configuration(folder.path());
        config.checkpoint = config.checkpoint.filter(|_| is_enabled);
        // Only when asked.
        config.checkpoint.iter_mut().for_each(|checkpoint| checkpoint.interval = None);
        let engine: Arc<Engine> = Engine::open(config).expect("an engine");
        declare(&engine, folder.path());
        said(&engine, &format!("CREATE QUERY q AS {COUNTS} INTO a WITH (burst => true)"));
        let error = refused(&engine, "ALTER QUERY q REDIRECT ALL TO BURST");
        assert!(
            error.kind == ErrorKind::Conflict && error.message.starts_with("the query makes no periodic checkpoints")
        );
        for explained in ["EXPLAIN QUERY q".into(), format!("EXPLAIN {COUNTS} WITH (burst => true)")] {
            assert_eq!(bursts(&plan(&engine, &explained)), [format!("nothing goes: {}", error.message)]);
        }
        assert!(error.hint.is_some_and(|hint| hint.contains("checkpoint.interval_s")));
    }
}
