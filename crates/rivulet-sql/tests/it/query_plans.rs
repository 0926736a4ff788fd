//! Plans of big queries: each file `plans/NAME.sql` is planned over the sources of `plans/prelude.sql`, and explained
//! as `plans/NAME.txt` says. With `RIVULET_UPDATE=1` in the environment the texts are written anew, to be read before
//! they are committed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::DataType;
use rivulet_sql::{
    Model, Name, Position, QueryPlan, Scope, SqlError, Statement, Table, explain_query, parse_script, plan_query,
};

fn folder() -> PathBuf {
    Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is")).join("tests/it/plans")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The sources of the benchmark, a table `side_input` of keys and values, and the model `air.json` of two inputs.
pub(crate) fn scope() -> Scope {
    let mut scope = Scope::new();
    run(&read(&folder().join("prelude.sql")), &mut scope).unwrap();
    let column = || Arc::new(Int64Array::from(vec![0, 1, 2])) as _;
    let rows = RecordBatch::try_from_iter([("key", column()), ("value", column())]).unwrap();
    let name = Name { text: "side_input".into(), position: Position::default() };
    scope.add_table(&name, Arc::new(Table::new("side_input", rows))).unwrap();
    let model = br#"{"kind": "tree", "inputs": ["dust", "air"], "nodes": [{"leaf": "GOOD"}]}"#;
    scope.add_models([("air.json".to_owned(), Arc::new(Model::parse(model).unwrap()))]);
    scope
}

/// Runs a script; the plan of its last query.
pub(crate) fn run(script: &str, scope: &mut Scope) -> Result<Option<QueryPlan>, SqlError> {
    let mut last = None;
    for (statement, _) in parse_script(script)? {
        match statement {
            Statement::CreateSource(create) => scope.add_source(create.declare(|_, _| None)?)?,
            Statement::CreateSink(create) => scope.add_sink(create.declare()?)?,
            Statement::CreateView(create) => scope.add_view(&create)?,
            Statement::RunQuery(query) => last = Some(plan_query(&query, scope)?),
            Statement::CreateBigQuery(create) => last = Some(plan_query(&create.query, scope)?),
            // The table of the benchmark is there.
            Statement::CreateTable(create) => assert!(scope.table(&create.name.text).is_some(), "{}", create.name),
            other => panic!("not a statement of big queries: {other:?}"),
        }
    }
    Ok(last)
}

/// The plan of a script's last query over the sources of the benchmark.
pub(crate) fn planned(script: &str) -> QueryPlan {
    match run(script, &mut scope()) {
        Ok(plan) => plan.expect("the script has a query"),
        Err(error) => panic!("{}", error.render(script)),
    }
}

pub(crate) fn error(script: &str) -> String {
    match run(script, &mut scope()) {
        Ok(_) => panic!("planned without error: {script}"),
        Err(error) => error.to_string(),
    }
}

/// The error of a SELECT over what is declared before it, with the place in the SELECT; or that there is none.
pub(crate) fn big_query_error(declarations: &str, select: &str) -> String {
    let mut scope = scope();
    run(declarations, &mut scope).unwrap();
    run(select, &mut scope).map_or_else(|error| error.to_string(), |_| "no error".to_owned())
}

/// The scripts in a folder, by name.
fn scripts(folder: &Path) -> Vec<PathBuf> {
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
        .collect();
    scripts.sort();
    scripts
}

#[test]
fn the_first_rows_go_to_a_sink_as_they_change() {
    let sink = "CREATE SINK top (price BIGINT) TO 'blackhole:'; ";
    let plan = planned(&format!("{sink}SELECT price FROM bid ORDER BY price DESC LIMIT 3 INTO top"));
    assert!(plan.output.changes && plan.output.order.is_empty() && plan.output.limit.is_none());
    assert!(error(&format!("{sink}SELECT price FROM bid ORDER BY price INTO top")).contains("ORDER BY x LIMIT 10"));
}

#[test]
fn the_queries_of_the_benchmark_can_be_planned() {
    let found = scripts(
        &Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is"))
            .join("../rivulet-bench/nexmark"),
    );
    let queries: Vec<&PathBuf> = found
        .iter()
        .filter(|path| path.file_stem().is_some_and(|name| name.to_string_lossy().starts_with('q')))
        .collect();
    assert!(queries.len() >= 24, "the queries were found");
    for path in queries {
        let script = read(path);
        match run(&script, &mut scope()) {
            Ok(plan) => assert!(plan.is_some_and(|plan| plan.output.sink.is_some()), "{}", path.display()),
            Err(error) => panic!("{}: {}", path.display(), error.render(&script)),
        }
    }
}

#[test]
fn every_query_has_the_plan_that_is_written_down() {
    let is_updated = std::env::var_os("RIVULET_UPDATE").is_some();
    let found = scripts(&folder());
    assert!(found.len() > 30, "the queries were found");
    let mut wrong = Vec::new();
    for path in found.into_iter().filter(|path| path.file_stem().is_some_and(|name| name != "prelude")) {
        let script = read(&path);
        let found = match run(&script, &mut scope()) {
            Ok(plan) => explain_query(&plan.expect("the script has a query")),
            Err(error) => format!("{}\n", error.render(&script)),
        };
        let expected = path.with_extension("txt");
        if is_updated {
            std::fs::write(&expected, found).unwrap();
        } else if found != read(&expected) {
            wrong.push(format!("{}:\n{found}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "other plans than written down; RIVULET_UPDATE=1 writes them anew\n{}", wrong.join("\n"));
}

/// The operators of a plan by name, sources and sink left out.
fn operators(plan: &QueryPlan) -> Vec<String> {
    let names = plan.dataflow.nodes().iter().map(|node| node.work.name());
    names.filter(|name| name != "source" && name != "sink").collect()
}

fn read_columns(plan: &QueryPlan, source: usize) -> Vec<&str> {
    let source = &plan.sources[source];
    source.columns.iter().map(|&column| source.declaration.schema.field(column).name().as_str()).collect()
}

#[test]
fn a_source_is_read_once_and_only_what_is_needed_of_it() {
    let plan = planned("SELECT a.price FROM bid AS a JOIN bid AS b ON a.auction = b.bidder WHERE b.channel = 'x'");
    assert_eq!(plan.sources.len(), 1);
    assert_eq!(read_columns(&plan, 0), ["auction", "bidder", "price", "channel", "date_time"]);
    assert_eq!(plan.sources[0].event_time, Some(4));
    assert_eq!(plan.sources[0].columns, [0, 1, 2, 3, 5]);
    let plan = planned("SELECT count(*) AS n FROM bid");
    assert_eq!(read_columns(&plan, 0), ["date_time"]);
}

/// An aggregate without keys gives a row also where nothing comes, so no condition that names no column may be moved
/// below it.
#[test]
fn a_condition_that_nothing_fulfils_leaves_nothing() {
    const SOURCE: &str = "CREATE SOURCE s (ts TIMESTAMP EVENT TIME, k BIGINT, v BIGINT) FROM 'file:x' FORMAT CSV;";
    for query in [
        "SELECT count(*) AS n FROM s HAVING false",
        "SELECT count(*) AS n FROM s HAVING 1 = 0",
        "SELECT n FROM (SELECT count(v) AS n FROM s) WHERE n IS NULL",
        "SELECT n FROM (SELECT count(v) AS n FROM s) WHERE n = n + NULL",
        "SELECT x.n, y.m FROM (SELECT count(*) AS n FROM s) AS x JOIN (SELECT max(v) AS m FROM s) AS y ON y.m > x.n AND 1 = 0",
    ] {
        let plan = planned(&format!("{SOURCE} {query}"));
        let operators = operators(&plan);
        assert!(!operators.iter().any(|operator| operator == "aggregate"), "{query}: {operators:?}");
        assert!(operators.iter().any(|operator| operator == "filter"), "{query}: {operators:?}");
    }
    // With keys no row comes of nothing, and one that is fulfilled is no condition.
    for query in ["SELECT k, count(*) AS n FROM s GROUP BY k HAVING false", "SELECT count(*) AS n FROM s HAVING 1 = 1"]
    {
        let operators = operators(&planned(&format!("{SOURCE} {query}")));
        assert!(operators.iter().any(|operator| operator == "aggregate"), "{query}: {operators:?}");
    }
}

#[test]
fn two_columns_of_one_name_are_refused_with_what_to_do() {
    let said = error("SELECT price, price FROM bid");
    assert!(
        said.contains("two columns of a SELECT have one name") && said.contains("hint: name one of them"),
        "{said}"
    );
}

#[test]
fn what_is_said_twice_is_done_once() {
    let plan = planned(
        "CREATE VIEW counts AS SELECT auction, count(*) AS n, window_start, window_end
             FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
             GROUP BY auction, window_start, window_end;
         SELECT a.auction, b.n FROM counts AS a
         JOIN (SELECT max(n) AS n, window_end FROM counts GROUP BY window_start, window_end) AS b
         ON a.window_end = b.window_end AND a.n = b.n",
    );
    // The counts once and their maximum once, both in two phases.
    assert_eq!(operators(&plan).iter().filter(|name| *name == "window").count(), 4);
    let plan =
        planned("SELECT price FROM bid WHERE price > 5 UNION ALL SELECT b.price FROM bid AS b WHERE b.price > 5");
    assert_eq!(operators(&plan).iter().filter(|name| *name == "filter").count(), 1);
}

#[test]
fn of_a_burst_query_each_window_that_divides_rows_has_two_steps() {
    // A text is no key for which it would be done otherwise.
    let query = "SELECT channel, count(*) AS n FROM bid GROUP BY channel, tumble(date_time, INTERVAL '1 minute')";
    let windows = |plan: &QueryPlan| operators(plan).iter().filter(|name| *name == "window").count();
    let (plain, burst) = (planned(query), planned(&format!("{query} WITH (burst => true)")));
    assert_eq!((windows(&plain), windows(&burst)), (1, 2));
    assert!(burst.is_burst && !plain.is_burst);
    // State of the one goes on in the other.
    let addresses = |plan: &QueryPlan| {
        let saved = plan.dataflow.addresses().iter().flatten().filter(|one| !one.is_transient);
        saved.map(|one| (one.kind.clone(), one.behind)).collect::<Vec<_>>()
    };
    assert_eq!(addresses(&plain), addresses(&burst));
    // The windows over windows are in one instance for each key already.
    let over = "SELECT auction, max(n) AS n FROM (SELECT auction, count(*) AS n, window_end FROM TABLE(HOP(TABLE bid,
        DESCRIPTOR(date_time), INTERVAL '1 second', INTERVAL '1 minute')) GROUP BY auction, window_start, window_end)
        GROUP BY auction, window_end WITH (burst => true)";
    assert_eq!(windows(&planned(over)), 3, "{}", explain_query(&planned(over)));
}

#[test]
fn a_fingerprint_is_that_of_the_plan_and_of_no_other() {
    let query = "SELECT auction, count(*) AS n FROM bid WHERE price > 5 GROUP BY auction, bidder";
    let found = planned(query).fingerprint();
    assert_eq!(found, planned(query).fingerprint());
    assert_eq!(found.len(), 64);
    for other in [
        query.replace("price > 5", "price > 6"),
        query.replace("bidder", "price"),
        query.replace("count(*)", "max(bidder)"),
        format!("{query} WITH (fuse => 'none')"),
        format!("{query} WITH (state_ttl => INTERVAL '1 hour')"),
    ] {
        assert_ne!(found, planned(&other).fingerprint(), "{other}");
    }
}

#[test]
fn what_a_process_has_read_stays_there() {
    let stays = |script: &str| {
        let plan = planned(script);
        let all = (0..plan.dataflow.nodes().len()).filter_map(|node| plan.stays(node));
        all.collect::<Vec<_>>().join("; ")
    };
    assert_eq!(stays("SELECT auction, count(*) AS n FROM bid WHERE price > 5 GROUP BY auction"), "");
    assert_eq!(
        stays("SELECT bid.auction, side_input.value FROM bid JOIN side_input ON bid.auction = side_input.key"),
        "looks rows up in the table 'side_input', which a worker has not"
    );
    assert_eq!(
        stays("SELECT auction FROM bid WHERE predict('air.json', price, bidder) = 'GOOD'"),
        "uses a model, whose file is on the server only"
    );
    let small = "CREATE SOURCE device (id BIGINT, room TEXT) FROM 'kafka:devices' FORMAT JSON WITH (size => 'small');
        SELECT bid.auction, device.room FROM bid JOIN device ON bid.bidder = device.id";
    assert_eq!(stays(small), "has its small side in every instance");
    let refused = "CREATE SINK letters TO 'blackhole:';
        CREATE SOURCE careful (ts TIMESTAMP EVENT TIME, k BIGINT) FROM 'kafka:x' FORMAT JSON
        WITH (dead_letter => 'letters');
        SELECT k, count(*) AS n FROM careful GROUP BY k, tumble(ts, INTERVAL '1 minute')";
    assert!(stays(refused).starts_with("sends the rows that it refuses to a sink"), "{}", stays(refused));
}

#[test]
fn rows_that_are_divided_already_stay_where_they_are() {
    use rivulet_dataflow::EdgeKind;
    let plan = planned(
        "SELECT auction, count(*) AS bidders FROM
         (SELECT auction, bidder, max(price) AS highest FROM bid GROUP BY auction, bidder) AS each
         GROUP BY auction",
    );
    let kinds: Vec<&EdgeKind> =
        plan.dataflow.edges().iter().map(|edge| &edge.kind).filter(|kind| **kind != EdgeKind::Forward).collect();
    // Those of one auction and bidder are together, but not those of one auction.
    assert_eq!(kinds.len(), 2);
    let plan = planned(
        "SELECT a.auction, a.n, b.n FROM (SELECT auction, count(*) AS n FROM bid GROUP BY auction) AS a
         JOIN (SELECT auction, min(price) AS n FROM bid GROUP BY auction) AS b ON a.auction = b.auction",
    );
    let hashed = plan.dataflow.edges().iter().filter(|edge| matches!(edge.kind, EdgeKind::Hash(_))).count();
    assert_eq!(hashed, 2, "{}", explain_query(&plan));
    assert!(plan.output.changes);
    assert_eq!(plan.output.key, Some(vec![0]));
}

#[test]
fn results_fit_their_sink() {
    let plan = planned(
        "CREATE SINK s (id TEXT, price DOUBLE, day TEXT) TO 'blackhole:';
         INSERT INTO s SELECT auction, price, CAST(date_time AS DATE) FROM bid",
    );
    let types: Vec<&DataType> = plan.output.schema.fields().iter().map(|field| field.data_type()).collect();
    assert_eq!(types, [&DataType::Utf8, &DataType::Float64, &DataType::Utf8]);
    assert_eq!(plan.output.schema.field(0).name(), "id");
    assert_eq!(plan.output.sink.as_ref().unwrap().name.text, "s");
    // Without a sink columns that have one name get different ones, and types are those that formats know.
    let plan = planned(
        "SELECT a.id, b.id, CAST(a.date_time AS DATE) AS day FROM auction AS a JOIN person AS b ON a.seller = b.id",
    );
    let names: Vec<&str> = plan.output.schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["id", "id_1", "day"]);
    assert_eq!(*plan.output.schema.field(2).data_type(), DataType::Date32);
}

#[test]
fn all_rows_of_a_key_come_to_one_instance_of_the_sink() {
    use rivulet_dataflow::EdgeKind;
    let to_sink = |select: &str| {
        let plan = planned(&format!("INSERT INTO results {select}"));
        assert!(plan.output.changes && plan.output.key == Some(vec![0]), "{}", explain_query(&plan));
        plan.dataflow.edges().last().expect("an edge to the sink").kind.clone()
    };
    let joined =
        "SELECT a.auction, a.highest, b.n FROM (SELECT auction, max(price) AS highest FROM bid GROUP BY auction) AS a
         JOIN (SELECT bidder, count(*) AS n FROM bid GROUP BY bidder) AS b ON a.highest = b.bidder";
    assert_eq!(to_sink(joined), EdgeKind::Hash(vec![0]));
    // Divided by the key already.
    assert_eq!(to_sink("SELECT auction, count(*) AS n FROM bid GROUP BY auction"), EdgeKind::Forward);
}

#[test]
fn what_may_be_taken_back_is_known() {
    for (script, changes, key) in [
        ("SELECT auction, price FROM bid", false, None),
        ("SELECT DISTINCT auction FROM bid", false, Some(vec![0])),
        ("SELECT auction, count(*) AS n FROM bid GROUP BY auction", true, Some(vec![0])),
        ("SELECT count(*) AS n FROM bid", true, Some(vec![])),
        (
            "SELECT n, auction FROM (SELECT auction, count(*) AS n FROM bid GROUP BY auction) AS x WHERE n > 2",
            true,
            Some(vec![1]),
        ),
        ("SELECT n FROM (SELECT auction, count(*) AS n FROM bid GROUP BY auction) AS x", true, None),
        (
            "SELECT window_end, auction, count(*) AS n FROM bid GROUP BY auction, tumble(date_time, INTERVAL '1 minute')",
            false,
            Some(vec![1, 0]),
        ),
        ("SELECT a.id, b.price FROM auction AS a LEFT JOIN bid AS b ON a.id = b.auction", true, None),
        (
            "SELECT a.id, b.price FROM auction AS a LEFT JOIN bid AS b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires",
            false,
            None,
        ),
        ("SELECT a.id FROM auction AS a WHERE NOT EXISTS (SELECT 1 FROM bid AS b WHERE b.auction = a.id)", true, None),
    ] {
        let plan = planned(script);
        assert_eq!(
            (plan.output.changes, plan.output.key.clone()),
            (changes, key),
            "{script}\n{}",
            explain_query(&plan)
        );
    }
}

#[test]
fn the_order_at_the_top_is_left_to_the_end() {
    let plan = planned("SELECT auction, price FROM bid ORDER BY price DESC NULLS LAST, auction LIMIT 7");
    let order: Vec<(usize, bool, bool)> =
        plan.output.order.iter().map(|key| (key.column, key.descending, key.nulls_first)).collect();
    assert_eq!((order, plan.output.limit), (vec![(1, true, false), (0, false, false)], Some(7)));
}

#[test]
fn what_is_wrong_is_said_where_it_stands() {
    for (script, expected) in [
        ("SELECT prize FROM bid", "error at line 1, column 8: unknown column 'prize'\nhint: did you mean 'price'?"),
        (
            "SELECT price FROM\n  bids",
            "error at line 2, column 3: there is no source, view or table 'bids'\nhint: did you mean 'bid'?",
        ),
        (
            "SELECT id FROM auction AS a JOIN person AS p ON a.seller = p.id",
            "error at line 1, column 8: more than one input has a column 'id'\nhint: write which one: input.id",
        ),
        (
            "SELECT lowr(channel) FROM bid",
            "error at line 1, column 8: unknown function 'lowr'\nhint: did you mean 'lower'?",
        ),
        (
            "SELECT average(price) AS a FROM bid",
            "error at line 1, column 8: unknown function 'average'\nhint: write avg(x)",
        ),
        (
            "SELECT group_concat(channel) AS a FROM bid",
            "error at line 1, column 8: the aggregate group_concat is not supported yet\nhint: string_agg(name, ', ') is",
        ),
        (
            "SELECT price ^ 2 AS p FROM bid",
            "error at line 1, column 8: the operator '^' is not supported yet\nhint: use power(base, exponent)",
        ),
        (
            "SELECT date_time AT TIME ZONE 'Berlin' AS local FROM bid",
            "error at line 1, column 8: 'Berlin' is no time zone; write for example 'Europe/Berlin' or '+01:00'",
        ),
        (
            "SELECT price FROM bid WHERE channel = 5",
            "error at line 1, column 29: TEXT and BIGINT cannot be compared\nhint: write numbers without quotes",
        ),
        (
            "SELECT price FROM bid WHERE price > channel",
            "error at line 1, column 29: BIGINT and TEXT cannot be compared",
        ),
        ("SELECT price FROM bid WHERE channel IN (1, 2)", "error at line 1, column 29: TEXT and BIGINT cannot be"),
        ("SELECT price FROM bid WHERE date_time > 5", "error at line 1, column 29: TIMESTAMP and BIGINT cannot be"),
        ("SELECT coalesce(channel, 0) AS c FROM bid", "error at line 1, column 17: TEXT and BIGINT cannot be compared"),
        (
            "SELECT b.price FROM bid AS b JOIN person AS p ON b.channel = p.id",
            "error at line 1, column 50: TEXT and BIGINT cannot be compared",
        ),
        (
            "SELECT price FROM bid WHERE channel IN (SELECT id FROM person)",
            "error at line 1, column 29: TEXT and BIGINT cannot be compared",
        ),
        ("SELECT price FROM bid INTO nowhere", "error at line 1, column 28: there is no sink 'nowhere'"),
        (
            "INSERT INTO bid SELECT price FROM bid",
            "error at line 1, column 13: there is no sink 'bid'\nhint: 'bid' is a source: rows come from it",
        ),
        ("SELECT price FROM results", "error at line 1, column 19: there is no source, view or table 'results'"),
        (
            "CREATE SINK two (a BIGINT, b BIGINT) TO 'blackhole:'; SELECT price FROM bid INTO two",
            "error at line 1, column 82: the sink 'two' has 2 columns, and the query gives 1 column",
        ),
        (
            "SELECT count(*) FROM bid GROUP BY tumble(expires, INTERVAL '1 minute')",
            "error at line 1, column 42: unknown column 'expires'",
        ),
        (
            "SELECT count(*) AS n FROM auction GROUP BY tumble(expires, INTERVAL '1 minute')",
            "error at line 1, column 51: 'expires' is not the event time of its rows\nhint: write their event time instead: 'date_time'",
        ),
        (
            "SELECT count(*) AS n FROM auction GROUP BY tumble(seller, INTERVAL '1 minute')",
            "error at line 1, column 51: the time 'seller' of a window must be a TIMESTAMP",
        ),
        (
            "SELECT count(*) AS n FROM bid GROUP BY tumble(date_time, INTERVAL '1 month')",
            "error at line 1, column 67: the length of a window is a constant INTERVAL of fixed length",
        ),
        (
            "SELECT * FROM TABLE(TUMBLE(TABLE bid, INTERVAL '1' MINUTE))",
            "error at line 1, column 21: tumble needs DESCRIPTOR with the column of the time",
        ),
        (
            "SELECT * FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '1' MINUTE))",
            "error at line 1, column 21: the number of INTERVALs in hop is 1, and must be 2",
        ),
        (
            "SELECT * FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '1' MINUTE))",
            "error at line 1, column 1: sessions exist in an aggregate only",
        ),
        (
            "SELECT *, RANK() OVER (PARTITION BY auction ORDER BY price) AS r FROM bid",
            "error at line 1, column 37: RANK() without a bound would number rows without end",
        ),
        (
            "SELECT NTILE(4) OVER (PARTITION BY auction ORDER BY date_time) AS quarter FROM bid",
            "error at line 1, column 8: ntile is not supported yet",
        ),
        (
            "SELECT LEAD(price) OVER (PARTITION BY auction ORDER BY price) AS more FROM bid",
            "error at line 1, column 13: LEAD in another order than that of the event time is not supported yet\nhint: write LEAD(x)",
        ),
        (
            "SELECT LEAD(price, 0) OVER (PARTITION BY auction ORDER BY date_time) AS next FROM bid",
            "error at line 1, column 13: LEAD looks 1 to 100 rows ahead",
        ),
        (
            "SELECT LAG(price) OVER (PARTITION BY auction ORDER BY price) AS less FROM bid",
            "error at line 1, column 12: LAG in another order than that of the event time is not supported yet\nhint: write LAG(x)",
        ),
        (
            "SELECT LAG(price, 200) OVER (PARTITION BY auction ORDER BY date_time) AS old FROM bid",
            "error at line 1, column 12: LAG looks 1 to 100 rows back",
        ),
        (
            "SELECT LAG(price, 1, 0) OVER (PARTITION BY auction ORDER BY date_time) AS old FROM bid",
            "error at line 1, column 12: a default in LAG is not supported yet\nhint: write COALESCE",
        ),
        (
            "SELECT LAG(n) OVER (ORDER BY latest) AS old FROM (SELECT count(*) AS n, max(date_time) AS latest FROM bid GROUP BY auction) AS a",
            "error at line 1, column 12: LAG over rows that may be taken back is not supported yet",
        ),
        (
            "SELECT count(*) AS n FROM bid GROUP BY count_window(date_time)",
            "error at line 1, column 40: count_window takes constant numbers of rows, 1 or more\n\
             hint: write for example count_window(100)",
        ),
        (
            "SELECT count(*) AS n FROM bid GROUP BY count_window(10, 20)",
            "error at line 1, column 40: the slide of 20 rows is longer than the window of 10 rows, \
             so rows would be lost",
        ),
        (
            "SELECT sum(n) AS n FROM (SELECT auction, count(*) AS n FROM bid GROUP BY auction) AS a GROUP BY count_window(10)",
            "error at line 1, column 1: count_window over rows that may be taken back has no order of rows\nhint: use TUMBLE",
        ),
        (
            "SELECT count(*) AS n FROM (SELECT auction, max(date_time) AS t FROM bid GROUP BY auction) AS a GROUP BY session(t, INTERVAL '1 s')",
            "error at line 1, column 1: a session over rows that may be taken back would fall apart",
        ),
        (
            "SELECT corr(n, n) AS m FROM (SELECT count(*) AS n, max(date_time) AS t FROM bid GROUP BY auction) AS a GROUP BY tumble(t, INTERVAL '1 s')",
            "error at line 1, column 13: corr cannot take back a row, and rows of this input may be taken back",
        ),
        (
            "SELECT approx_distinct(n) AS m FROM (SELECT count(*) AS n FROM bid GROUP BY auction) AS a",
            "error at line 1, column 24: approx_distinct cannot take back a row, and rows of this input may be taken back\nhint: write count(DISTINCT x)",
        ),
        (
            "SELECT count(*) AS n FROM (SELECT auction, min(date_time) AS t FROM bid GROUP BY auction) AS a GROUP BY tumble(t, INTERVAL '1 s')",
            "error at line 1, column 112: 'min(date_time)' is not the event time of its rows",
        ),
        (
            "SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price) AS r FROM bid",
            "error at line 1, column 43: ROW_NUMBER() without a bound would number rows without end",
        ),
        (
            "SELECT a.id FROM auction AS a JOIN person AS p ON a.seller > p.id",
            "error at line 1, column 51: a join without an equality would pair every row with every other",
        ),
        ("SELECT price FROM bid LIMIT 5 OFFSET price", "error at line 1, column 38: unknown column 'price'"),
        (
            "SELECT price FROM (SELECT price FROM bid LIMIT 5) AS b",
            "error at line 1, column 48: LIMIT inside of a query needs an ORDER BY, which says which rows there are\nhint: write",
        ),
        (
            "SELECT price FROM bid EXCEPT ALL SELECT seller FROM auction",
            "error at line 1, column 1: EXCEPT ALL is not supported yet",
        ),
        ("SELECT 1", "error at line 1, column 1: the query reads nothing\nhint: name a source in FROM"),
        (
            "SELECT price FROM bid JOIN side_input ON key IS NOT DISTINCT FROM auction",
            "error at line 1, column 67: a join with a table in which null equals null is not supported yet",
        ),
        ("SELECT key FROM side_input", "error at line 1, column 1: the table 'side_input' cannot be read alone"),
        ("SELECT now() FROM bid", "error at line 1, column 8: now asks for the time of evaluation"),
        (
            "SELECT price + $x FROM bid",
            "error at line 1, column 16: '$x' is not a value: a big query has no parameters",
        ),
        (
            "SELECT string_agg(channel, url) FROM bid",
            "error at line 1, column 28: the separator of string_agg is no constant text",
        ),
        (
            "SELECT array_agg(DISTINCT price ORDER BY bidder) FROM bid",
            "error at line 1, column 42: array_agg(DISTINCT x) is ordered by x alone",
        ),
        (
            "SELECT array_agg(price ORDER BY 1) FROM bid",
            "error at line 1, column 33: ORDER BY inside of a call names no constant",
        ),
        (
            "SELECT x FROM bid CROSS JOIN UNNEST(price) AS r (x)",
            "error at line 1, column 37: UNNEST takes an array, which is JSON as TEXT",
        ),
        (
            "SELECT x FROM bid CROSS JOIN UNNEST(url) AS r",
            "error at line 1, column 37: the columns of this UNNEST have",
        ),
        (
            "SELECT x FROM bid LEFT JOIN UNNEST(url) AS r (x) ON TRUE",
            "error at line 1, column 36: a LEFT JOIN of UNNEST",
        ),
        ("SELECT string_agg(price, ', ') FROM bid", "error at line 1, column 8: string_agg does not take"),
        (
            "SELECT PROCTIME() AS p FROM bid",
            "error at line 1, column 1: 'p' is PROCTIME(), which has no value by itself",
        ),
        (
            "SELECT b.price FROM bid FOR SYSTEM_TIME AS OF TIMESTAMP '2026-01-01 00:00:00' AS b",
            "error at line 1, column 57: FOR SYSTEM_TIME AS OF stands in a JOIN, behind the rows whose time it names",
        ),
        (
            "SELECT 1 AS x FROM bid JOIN auction FOR SYSTEM_TIME AS OF bid.date_time + INTERVAL '1 second' AS a \
             ON a.id = bid.auction",
            "error at line 1, column 59: FOR SYSTEM_TIME AS OF names the event time of the rows that are joined",
        ),
        (
            "SELECT 1 AS x FROM bid JOIN auction FOR SYSTEM_TIME AS OF bid.tme AS a ON a.id = bid.auction",
            "error at line 1, column 59: unknown column 'bid.tme'",
        ),
        (
            "SELECT 1 AS x FROM bid JOIN auction FOR SYSTEM_TIME AS OF bid.price AS a ON a.id = bid.auction",
            "error at line 1, column 59: the time of FOR SYSTEM_TIME AS OF must be a TIMESTAMP",
        ),
        (
            "SELECT 1 AS x FROM bid RIGHT JOIN auction FOR SYSTEM_TIME AS OF bid.date_time AS a ON a.id = bid.auction",
            "error at line 1, column 65: FOR SYSTEM_TIME AS OF in a RIGHT JOIN is not supported yet",
        ),
        (
            "SELECT 1 AS x FROM bid JOIN auction FOR SYSTEM_TIME AS OF bid.date_time AS a ON a.id > bid.auction",
            "error at line 1, column 81: FOR SYSTEM_TIME AS OF needs the key of the versions",
        ),
        (
            "SELECT 1 AS x FROM auction JOIN bid FOR SYSTEM_TIME AS OF auction.expires AS b ON b.auction = auction.id",
            "error at line 1, column 59: 'expires' is not the event time of its rows",
        ),
        (
            "SELECT 1 AS x FROM bid JOIN (SELECT * FROM auction FOR SYSTEM_TIME AS OF bid.date_time) AS a \
             ON a.id = bid.auction",
            "error at line 1, column 74: FOR SYSTEM_TIME AS OF stands in a JOIN, behind the rows whose time it names",
        ),
        (
            "CREATE VIEW last AS SELECT auction, max(price) AS m FROM bid GROUP BY auction; \
             SELECT last.m FROM bid JOIN last FOR SYSTEM_TIME AS OF bid.date_time ON last.auction = bid.auction",
            "error at line 1, column 167: FOR SYSTEM_TIME AS OF with rows that may be taken back is not supported yet",
        ),
        (
            "SELECT 1 AS x FROM bid JOIN auction VERSION AS OF 3 AS a ON a.id = bid.auction",
            "error at line 1, column 29: this kind of version is not supported yet",
        ),
        (
            "SELECT a.price FROM bid AS a LEFT JOIN bid AS b ON b.auction = a.auction AND b.bidder IN (SELECT c.bidder \
             FROM bid AS c WHERE c.price > a.price)",
            "error at line 1, column 1: a subquery in ON that names columns of the other side is not supported yet",
        ),
        (
            "SELECT x FROM bid AS b MATCH_RECOGNIZE (MEASURES A.price AS x PATTERN (A) DEFINE A AS price > 3)",
            "error at line 1, column 24: MATCH_RECOGNIZE stands behind the name of a relation in FROM",
        ),
        (
            "SELECT x FROM bid MATCH_RECOGNIZE (MEASURES A.price AS x PATTERN (A) DEFINE A AS prize > 3)",
            "error at line 1, column 82: unknown column 'prize'",
        ),
        (
            "SELECT y FROM bid MATCH_RECOGNIZE (MEASURES A.price AS x PATTERN (A) DEFINE A AS price > 3)",
            "error at line 1, column 8: unknown column 'y'",
        ),
        (
            "SELECT x FROM bid MATCH_RECOGNIZE (ORDER BY price MEASURES A.price AS x PATTERN (A) DEFINE A AS price > 3)",
            "error at line 1, column 45: the rows of a pattern are in order of their time, the oldest first",
        ),
        (
            "SELECT x FROM bid MATCH_RECOGNIZE (MEASURES A.price AS x ALL ROWS PER MATCH PATTERN (A) DEFINE A AS TRUE)",
            "error at line 1, column 58: ALL ROWS PER MATCH is not supported yet",
        ),
        (
            "SELECT x FROM bid MATCH_RECOGNIZE (MEASURES A.price AS x PATTERN (A B",
            "error at line 1, column 70: expected ')', found the end of the statement",
        ),
        (
            "SELECT x FROM (SELECT auction, max(price) AS p FROM bid GROUP BY auction) MATCH_RECOGNIZE (MEASURES A.p AS x \
             PATTERN (A) DEFINE A AS p > 3)",
            "error at line 1, column 75: MATCH_RECOGNIZE over rows that may be taken back is not supported yet",
        ),
        (
            "SELECT count(*) AS n FROM TUMBLE(TABLE (SELECT x FROM bid MATCH_RECOGNIZE (MEASURES A.date_time AS x \
             PATTERN (A) DEFINE A AS price > 3)), DESCRIPTOR(x), INTERVAL '1 minute') GROUP BY window_end",
            "error at line 1, column 150: 'x' is not the event time of its rows",
        ),
        (
            "SELECT x FROM row_pattern(bid, 0) AS m",
            "error at line 1, column 1: MATCH_RECOGNIZE stands behind the name of a relation in FROM",
        ),
        (
            "CREATE VIEW v AS SELECT price FROM bid; CREATE VIEW v AS SELECT price FROM bid",
            "error at line 1, column 53: there is a view 'v' already",
        ),
    ] {
        let found = error(script);
        assert!(found.starts_with(expected), "{script}\n{found}");
    }
}

#[test]
fn windows_of_very_many_panes_are_refused() {
    let many = "a window would consist of 3600000000 panes, at most 100000 are allowed\nhint: ";
    for (script, place) in [
        ("SELECT count(*) AS c FROM bid GROUP BY hop(date_time, INTERVAL '1 microsecond', INTERVAL '1 hour')", 44),
        ("SELECT count(*) AS c FROM bid GROUP BY cumulate(date_time, INTERVAL '1 microsecond', INTERVAL '1 hour')", 49),
        ("SELECT * FROM HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '7 microseconds', INTERVAL '1 hour')", 41),
        (
            "SELECT window_end, count(*) AS c FROM TABLE(CUMULATE(TABLE bid, DESCRIPTOR(date_time), \
             INTERVAL '1 microsecond', INTERVAL '1 hour')) GROUP BY window_start, window_end",
            76,
        ),
    ] {
        let (found, expected) = (error(script), format!("error at line 1, column {place}: {many}"));
        assert!(found.starts_with(&expected), "{script}\n{found}");
    }
}

#[test]
fn a_chain_of_views_that_each_use_the_one_before_many_times_is_planned() {
    let view = |number: u32| {
        format!("CREATE VIEW v{} AS SELECT bidder, {} AS a FROM v{number};", number + 1, ["a"; 10].join(" || "))
    };
    let script: String = (0..12).map(view).collect();
    let plan = planned(&format!(
        "CREATE VIEW v0 AS SELECT bidder, channel AS a FROM bid; {script} SELECT max(length(a)) AS n FROM v12"
    ));
    // Written out, the expression has 10 to the 12th terms.
    assert!(explain_query(&plan).len() < 64 << 20, "{} bytes", explain_query(&plan).len());
}

#[test]
fn names_in_backquotes_and_views_of_views_are_read() {
    let plan = planned(
        "CREATE VIEW `My Bids` AS SELECT auction, price AS `Price`, date_time FROM bid WHERE price > 10;
         CREATE VIEW dear AS SELECT * FROM `My Bids` WHERE `Price` > 1000;
         SELECT window_start, max(`Price`) AS highest FROM dear GROUP BY tumble(date_time, INTERVAL '10 s')",
    );
    assert_eq!(read_columns(&plan, 0), ["price", "date_time"]);
    assert_eq!(operators(&plan), ["filter", "project", "window", "window", "project"]);
}

#[test]
fn no_query_makes_the_planner_panic() {
    // Every query of the benchmark with one word missing is an error or a plan.
    let mut scope = scope();
    for name in [
        "q4",
        "q5",
        "q6",
        "q7",
        "q9",
        "q11",
        "q13",
        "q15",
        "union_all_window",
        "over",
        "lag",
        "dense_rank",
        "count_window",
        "state_ttl",
    ] {
        let script = read(&folder().join(format!("{name}.sql")));
        let words: Vec<&str> = script.split_inclusive([' ', '(', ')', ',', '\n', '.']).collect();
        for missing in 0..words.len() {
            let shorter: String =
                words.iter().enumerate().filter(|(index, _)| *index != missing).map(|(_, word)| *word).collect();
            let _ = run(&shorter, &mut scope);
        }
    }
}

#[test]
fn deep_and_long_queries_are_planned_or_refused() {
    let run = || {
        planned(&format!("SELECT price{} AS p FROM bid", " + 1".repeat(190)));
        planned(&format!("SELECT {}price{} AS p FROM bid", "(".repeat(45), ")".repeat(45)));
        planned(&format!("SELECT price FROM bid WHERE {}", vec!["price = 1"; 60].join(" OR ")));
        planned(&vec!["SELECT price FROM bid"; 15].join(" UNION ALL "));
        let nested =
            (0..20).fold("SELECT price FROM bid".to_owned(), |inner, _| format!("SELECT price FROM ({inner}) AS t"));
        planned(&nested);
        assert!(error(&format!("SELECT price{} AS p FROM bid", " + 1".repeat(5000))).contains("operators in a row"));
        assert!(
            error(&format!("SELECT {}price{} FROM bid", "(".repeat(500), ")".repeat(500))).contains("nest at most")
        );
    };
    // The stack of a thread by default.
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
}

/// A chain of views is planned in a time that does not grow with the square of its length, on a small stack; one that
/// is too long, or that doubles with each view, is refused.
#[test]
fn chains_of_views_are_planned_or_refused() {
    let chain = |body: &str, views: usize| {
        let mut script = String::new();
        for view in 0..views {
            let before = if view == 0 { "bid".to_owned() } else { format!("v{}", view - 1) };
            let body = body.replace("{before}", &before).replace("{view}", &view.to_string());
            script.push_str(&format!("CREATE VIEW v{view} AS {body};\n"));
        }
        script + &format!("SELECT * FROM v{}", views - 1)
    };
    let run = move || {
        let renamed = planned(&chain("SELECT auction, price AS price FROM {before}", 500));
        assert_eq!(operators(&renamed), ["project"]);
        let filtered = planned(&chain("SELECT auction, price FROM {before} WHERE price <> {view}", 300));
        assert_eq!(operators(&filtered), ["filter", "project"]);
        let added = planned(&chain("SELECT auction, price + 1 AS price FROM {before}", 300));
        assert_eq!(operators(&added).len(), 301);
        for body in [
            "SELECT auction, price FROM {before} WHERE price <> {view}",
            "SELECT a.auction, b.price FROM {before} AS a JOIN {before} AS b ON a.auction = b.auction",
        ] {
            let said = error(&chain(body, 1000));
            assert!(said.contains("with its views this is a query of more than"), "{said}");
        }
    };
    // The stack of a thread by default.
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
}

/// The type of a column of a union is that of all its parts at once, in whichever order and however they are nested.
#[test]
fn a_union_has_the_type_of_all_its_parts() {
    const SOURCE: &str = "CREATE SOURCE n (ts TIMESTAMP EVENT TIME, d DECIMAL(7, 2), e DECIMAL(20, 4), b BIGINT, \
                          f DOUBLE) FROM 'file:n.json' FORMAT JSON;";
    let of = |select: &str| {
        let plan = planned(&format!("{SOURCE} {select}"));
        plan.output.schema.fields().iter().map(|field| field.data_type().clone()).collect::<Vec<_>>()
    };
    let columns = ["d", "e", "b", "f"];
    let parts =
        |columns: &[&str]| columns.iter().map(|one| format!("SELECT {one} AS x, ts FROM n")).collect::<Vec<_>>();
    for (one, two, three) in (0..64).map(|case| (columns[case / 16], columns[case / 4 % 4], columns[case % 4])) {
        let [a, b, c] = <[String; 3]>::try_from(parts(&[one, two, three])).unwrap();
        for union in [
            format!("{a} UNION ALL {b} UNION ALL {c}"),
            format!("{a} UNION ALL ({b} UNION ALL {c})"),
            format!("SELECT x, ts FROM ({a} UNION ALL {b}) AS ab UNION ALL {c}"),
            format!("{a} UNION ALL SELECT y AS x, ts FROM (SELECT x AS y, ts FROM ({b} UNION ALL {c}) AS bc) AS bc"),
        ] {
            let is_double = [one, two, three].contains(&"f");
            for select in [
                format!("SELECT x FROM ({union}) AS u"),
                format!("SELECT max(x) AS x FROM ({union}) AS u"),
                format!("SELECT x FROM ({union}) AS u WHERE x > 0"),
                format!("SELECT max(x) AS x FROM ({union}) AS u GROUP BY tumble(ts, INTERVAL '1 minute')"),
            ] {
                assert_eq!(of(&select)[0] == DataType::Float64, is_double, "{select}: {:?}", of(&select));
            }
        }
    }
    // A value and the column of a subquery, and the columns of USING, are compared as such numbers too.
    let by = |select: &str| explain_query(&planned(&format!("{SOURCE} {select}")));
    for select in [
        "SELECT f FROM n WHERE f IN (SELECT d FROM n)",
        "SELECT d FROM n WHERE d IN (SELECT f FROM n)",
        "SELECT f FROM n WHERE f > (SELECT max(d) FROM n)",
        "SELECT k FROM (SELECT d AS k FROM n) AS p JOIN (SELECT f AS k FROM n) AS q USING (k)",
        "SELECT p.d FROM n AS p JOIN n AS q ON p.d = q.f",
    ] {
        assert!(!by(select).contains("DECIMAL(30"), "{}", by(select));
    }
}

#[test]
fn the_size_of_a_source_is_small_or_is_not_said() {
    let declared = |value: &str| format!("CREATE SOURCE few (id BIGINT) FROM 'memory:few' WITH (size => {value})");
    assert!(run(&declared("'small'"), &mut scope()).is_ok());
    for other in ["'large'", "3"] {
        let said = error(&declared(other));
        assert!(said.starts_with("error at line 1, column 63: size takes 'small'\nhint: leave it out"), "{said}");
    }
}
