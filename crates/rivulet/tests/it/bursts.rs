//! Tasks of big queries on burst workers, which are processes of their own: results are the same wherever a task runs.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrow::array::{ArrayRef, AsArray, BinaryArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use rivulet_connectors::links::{Asked, Compression, LinkRights, Links, Peer, Receive, Received, SendOptions, Target};
use rivulet_connectors::reach::AllowedHosts;
use rivulet_dataflow::{Batch, Element};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::links::{Way, carry, start};
use super::links_bad::sql_as;
use super::server::{Server, free_port, rivulet, wait, wait_for};

/// The longest wait for anything.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A `rivulet burst-worker`; killed when dropped.
struct Worker(Child);

impl Worker {
    /// Its messages go to a file of its name in the folder.
    fn start(folder: &Path, name: &str, link: SocketAddr, more: &[&str]) -> Self {
        let log = File::options().create(true).append(true).open(folder.join(name)).unwrap();
        let mut command = rivulet();
        command.args(["burst-worker", "--connect", &link.to_string(), "--name", name, "--threads", "2"]).args(more);
        Self(command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
    }

    fn kill_9(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn end(&mut self) -> Option<i32> {
        let mut code = None;
        wait_for(WAIT_MAX, "the worker to end", || {
            code = self.0.try_wait().unwrap();
            code.is_some()
        });
        code.and_then(|status| status.code())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a worker has said.
pub(super) fn said(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_default()
}

pub(super) fn rows(server: &Server, statement: &str) -> Vec<Vec<Value>> {
    let answer = server.sql_ok(statement);
    serde_json::from_value(answer["results"][0]["rows"].clone()).unwrap()
}

/// The message of a statement, or its error.
pub(super) fn message(server: &Server, statement: &str) -> Result<String, String> {
    let answer = server.sql(statement);
    match answer.get("error") {
        Some(error) => Err(error.to_string()),
        None => Ok(answer["results"][0]["message"].as_str().unwrap_or_default().to_owned()),
    }
}

/// Runs a statement that needs a worker, which may still be on its way, and a query, which may just begin again.
pub(super) fn redirect(server: &Server, statement: &str) -> String {
    let mut answer = Err(String::new());
    wait_for(WAIT_MAX, statement, || {
        answer = message(server, statement);
        if let Err(error) = &answer {
            let passes = ["no burst worker is connected", "does not run", "was lost: it has"];
            assert!(passes.iter().any(|why| error.contains(why)), "{error}");
        }
        answer.is_ok()
    });
    answer.unwrap()
}

/// The number of the first operator of the stage of a query of which EXPLAIN says this.
pub(super) fn operator(server: &Server, query: &str, what: &str) -> String {
    let plan = rows(server, &format!("EXPLAIN QUERY {query}"));
    let lines: Vec<&str> = plan.iter().filter_map(|row| row[0].as_str()).collect();
    let line = lines.iter().rfind(|line| line.trim().starts_with("stage ") && line.contains(what));
    let line = line.unwrap_or_else(|| panic!("no {what} in {}", lines.join("\n")));
    let numbers = line.split_once('(').unwrap().1;
    numbers.chars().take_while(char::is_ascii_digit).collect()
}

/// How many tasks of a query are away, and on which workers.
pub(super) fn away(server: &Server, query: &str) -> (u64, String) {
    let of_query = rows(server, "SHOW BURSTS").into_iter().filter(|row| row[0] == query);
    let all: Vec<(u64, String)> =
        of_query.map(|row| (row[4].as_u64().unwrap(), row[5].as_str().unwrap().into())).collect();
    let names: Vec<&str> = all.iter().map(|(_, names)| names.as_str()).filter(|names| !names.is_empty()).collect();
    (all.iter().map(|(tasks, _)| tasks).sum(), names.join(", "))
}

/// The rows in the files of a sink, as far as they are final, in order.
fn results(folder: &Path) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let files = files.map(|entry| entry.unwrap().path());
    let whole = files.filter(|file| !file.file_name().unwrap().to_string_lossy().starts_with('.'));
    let texts: Vec<String> = whole.filter_map(|file| std::fs::read_to_string(file).ok()).collect();
    let mut rows: Vec<String> = texts.iter().flat_map(|text| text.lines()).map(str::to_owned).collect();
    rows.sort_unstable();
    rows
}

pub(super) fn has_ended(server: &Server, query: &str) -> bool {
    let status = server.status();
    let mut queries = status["big_queries"].as_array().unwrap().iter();
    queries.any(|one| one["name"] == query && one["state"] == "ended")
}

pub(super) const COUNTS: &str = "SELECT channel, count(*) AS n, sum(price) AS total, window_end FROM {bid}
                      GROUP BY channel, tumble(date_time, INTERVAL '1 second')";

/// A server with a door for workers, and a stream of bids: `bid` at a rate, `every` at once.
fn server_with_bids(folder: &Path, events: u64) -> (Server, SocketAddr) {
    let link = free_port();
    (with_bids(restart(folder, link), events), link)
}

pub(super) fn with_bids(server: Server, events: u64) -> Server {
    let options = format!("events => {events}, seed => 7, event_rate => 10000, partitions => 2");
    server.sql_ok(&format!("CREATE SOURCE bid FROM 'nexmark:bid' WITH ({options}, rate => 10000)"));
    server.sql_ok(&format!("CREATE SOURCE every FROM 'nexmark:bid' WITH ({options})"));
    for sink in ["moved", "plain"] {
        let options = "commit_interval => '300 ms'";
        server.sql_ok(&format!("CREATE SINK {sink} TO 'file:{sink}/' FORMAT JSON WITH ({options})"));
    }
    server
}

fn restart(folder: &Path, link: SocketAddr) -> Server {
    restart_with(folder, link, &[])
}

pub(super) fn restart_with(folder: &Path, link: SocketAddr, more: &[(&'static str, &str)]) -> Server {
    let settings = [
        ("RIVULET_LINK_ADDRESS", link.to_string()),
        ("RIVULET_CHECKPOINT_INTERVAL_S", "1".to_owned()),
        ("RIVULET_BURST_INSTANCES", "4".to_owned()),
        // There are no fewer instances than these.
        ("RIVULET_WORKERS", "2".to_owned()),
        // On a busy machine a process may stand still for longer than the default.
        ("RIVULET_BURST_LOST_AFTER_MS", "5000".to_owned()),
    ];
    let more = more.iter().map(|&(key, value)| (key, value.to_owned()));
    start(folder, &settings.into_iter().chain(more).collect::<Vec<_>>())
}

/// What SHOW BURSTS says of the first stage of a query.
pub(super) fn decisions(server: &Server) -> String {
    let all = rows(server, "SHOW BURSTS");
    all.first().map(|row| row[9].as_str().unwrap().to_owned()).unwrap_or_default()
}

/// How many times the server has said that a worker of this name has come.
fn comings(folder: &Path, name: &str) -> usize {
    let is_one = |line: &&str| line.contains("a burst worker has come") && line.contains(&format!("worker=\"{name}\""));
    said(folder, "log").lines().filter(is_one).count()
}

/// Waits until both queries have ended, and compares what they wrote.
pub(super) fn check(server: &Server, folder: &Path) {
    check_of(COUNTS, server, folder);
}

fn check_of(select: &str, server: &Server, folder: &Path) {
    server.sql_ok(&format!("CREATE QUERY plain AS {} INTO plain", select.replace("{bid}", "every")));
    for query in ["plain", "q"] {
        wait(&format!("{query} to end"), || has_ended(server, query));
    }
    let [moved, plain] = ["moved", "plain"].map(|sink| results(&folder.join(sink)));
    assert!(plain.len() > 10, "{} rows", plain.len());
    let first = moved.iter().zip(&plain).find(|(moved, plain)| moved != plain);
    assert!(moved == plain, "{} rows, and {} are right: {first:?}", moved.len(), plain.len());
}

#[test]
fn a_window_goes_out_and_comes_back() {
    let folder = TempDir::new().unwrap();
    let (server, link) = server_with_bids(folder.path(), 150_000);
    let counts = COUNTS.replace("{bid}", "bid");
    server.sql_ok(&format!("CREATE QUERY q AS {counts} INTO moved WITH (burst => true, fuse => 'none')"));
    let window = operator(&server, "q", "with its state");
    let one = Worker::start(folder.path(), "one", link, &[]);
    let out = format!("ALTER QUERY q REDIRECT {window} TO BURST 0.5");
    assert_eq!(redirect(&server, &out), "query q: 2 of 4 tasks are on burst workers now: one");
    assert_eq!(away(&server, "q"), (2, "one".into()));
    assert_eq!(
        rows(&server, "SHOW BURST WORKERS"),
        [[json!("one"), json!("127.0.0.1"), json!(2), json!(2), json!(null)]]
    );
    assert_eq!(server.status()["burst_workers"][0]["tasks"], 2);
    assert!(said(folder.path(), "log").contains("2 of 4 tasks are on burst workers now: one"));
    let two = Worker::start(folder.path(), "two", link, &[]);
    wait("the second worker", || comings(folder.path(), "two") == 1);
    server.sql_ok("CHECKPOINT");
    let out = format!("ALTER QUERY q REDIRECT {window} TO BURST");
    wait("the others to go to the second worker", || {
        redirect(&server, &out).contains("two") || away(&server, "q").0 == 4
    });
    assert_eq!(away(&server, "q").0, 4);
    let back = format!("ALTER QUERY q REDIRECT {window} BACK");
    assert_eq!(message(&server, &back), Ok("query q: 4 tasks came back".into()));
    assert_eq!(away(&server, "q"), (0, String::new()));
    assert_eq!(redirect(&server, &out), "query q: 4 of 4 tasks are on burst workers now: one, two");
    check(&server, folder.path());
    drop((one, two));
}

#[test]
fn a_killed_worker_costs_no_row_and_none_comes_twice() {
    let folder = TempDir::new().unwrap();
    let (server, link) = server_with_bids(folder.path(), 300_000);
    let counts = COUNTS.replace("{bid}", "bid");
    server.sql_ok(&format!("CREATE QUERY q AS {counts} INTO moved WITH (burst => true, fuse => 'none')"));
    let window = operator(&server, "q", "with its state");
    for kill in 0..2 {
        let name = format!("worker{kill}");
        let mut worker = Worker::start(folder.path(), &name, link, &[]);
        redirect(&server, &format!("ALTER QUERY q REDIRECT {window} TO BURST"));
        assert_eq!(away(&server, "q"), (4, name));
        let before = results(&folder.path().join("moved")).len();
        wait("more results", || results(&folder.path().join("moved")).len() > before || has_ended(&server, "q"));
        worker.kill_9();
        let why = format!("came back from worker{kill} when the query went on from its checkpoint");
        let is_told = |row: &Vec<Value>| row[9].as_str().unwrap().contains(&why);
        wait(&why, || rows(&server, "SHOW BURSTS").iter().any(is_told) || has_ended(&server, "q"));
        assert_eq!(away(&server, "q").0, 0);
    }
    check(&server, folder.path());
    let error = message(&server, "ALTER QUERY q REDIRECT ALL BACK").unwrap_err();
    assert!(error.contains("'q' has ended"), "{error}");
}

#[test]
fn a_worker_ends_when_it_has_nothing_to_do_and_hands_its_tasks_back_before_its_end() {
    let folder = TempDir::new().unwrap();
    let (server, link) = server_with_bids(folder.path(), 250_000);
    let counts = COUNTS.replace("{bid}", "bid");
    server.sql_ok(&format!("CREATE QUERY q AS {counts} INTO moved WITH (burst => true, fuse => 'none')"));
    let window = operator(&server, "q", "with its state");
    assert_eq!(Worker::start(folder.path(), "idle", link, &["--idle-s", "1"]).end(), Some(0));
    // The margin is 20 s.
    let mut limited = Worker::start(folder.path(), "limited", link, &["--limit-s", "30"]);
    redirect(&server, &format!("ALTER QUERY q REDIRECT {window} TO BURST"));
    wait("the tasks to come back", || away(&server, "q").0 == 0);
    assert_eq!(limited.end(), Some(0));
    check(&server, folder.path());
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!log.contains("a query has failed"), "{log}");
}

#[test]
fn a_worker_that_is_stopped_hands_its_tasks_back() {
    let folder = TempDir::new().unwrap();
    let (server, link) = server_with_bids(folder.path(), 150_000);
    let counts = COUNTS.replace("{bid}", "bid");
    server.sql_ok(&format!("CREATE QUERY q AS {counts} INTO moved WITH (burst => true, fuse => 'none')"));
    let window = operator(&server, "q", "with its state");
    let mut worker = Worker::start(folder.path(), "one", link, &[]);
    redirect(&server, &format!("ALTER QUERY q REDIRECT {window} TO BURST"));
    let stopped = Command::new("kill").args(["-TERM", &worker.0.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    assert_eq!(worker.end(), Some(0));
    check(&server, folder.path());
    let log = said(folder.path(), "log");
    assert!(!log.contains("a query has failed") && !log.contains("was lost"), "{log}");
    assert!(log.contains("a burst worker ends, and gives its tasks back"), "{log}");
    assert!(said(folder.path(), "one").contains("stops: gives 4 tasks back to the server"));
}

#[test]
fn a_source_and_all_after_it_go_out_and_go_on_where_they_were() {
    let folder = TempDir::new().unwrap();
    let (server, link) = server_with_bids(folder.path(), 150_000);
    let counts = COUNTS.replace("{bid}", "bid");
    server.sql_ok(&format!("CREATE QUERY q AS {counts} INTO moved WITH (burst => true)"));
    let mut worker = Worker::start(folder.path(), "one", link, &[]);
    let out = "ALTER QUERY q REDIRECT ALL TO BURST";
    // The source with the first step of the window, and its second step, whose results are written by the server.
    assert_eq!(redirect(&server, out), "query q: 6 of 6 tasks are on burst workers now: one");
    server.sql_ok("CHECKPOINT");
    assert_eq!(message(&server, "ALTER QUERY q REDIRECT ALL BACK"), Ok("query q: 6 tasks came back".into()));
    redirect(&server, out);
    server.sql_ok("PAUSE QUERY q");
    server.sql_ok("RESUME QUERY q");
    worker.kill_9();
    wait("the query to go on without it", || away(&server, "q").0 == 0);
    check(&server, folder.path());
}

/// A query whose source does not end within the test, so that the pace of the machine does not matter.
fn server_that_decides(folder: &Path, link: SocketAddr, settings: &[(&'static str, &str)], rate: &str) -> Server {
    let server = restart_with(folder, link, settings);
    let options = "events => 0, seed => 7, event_rate => 10000, partitions => 2";
    server.sql_ok(&format!("CREATE SOURCE bid FROM 'nexmark:bid' WITH ({options}{rate})"));
    server.sql_ok("CREATE SINK moved TO 'file:moved/' FORMAT JSON WITH (commit_interval => '300 ms')");
    let counts = COUNTS.replace("{bid}", "bid");
    server.sql_ok(&format!("CREATE QUERY q AS {counts} INTO moved WITH (burst => true)"));
    server
}

/// A schedule whose time has come, and lasts.
pub(super) fn schedule_of_now() -> String {
    let minute = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 60 % 1_440;
    let [from, to] =
        [1_380, 720].map(|more| (minute + more) % 1_440).map(|at| format!("{:02}:{:02}", at / 60, at % 60));
    format!("{from}-{to}")
}

#[test]
fn a_server_keeps_to_a_schedule_and_a_statement_wins_for_a_while() {
    let (folder, link) = (TempDir::new().unwrap(), free_port());
    let (times, slack) = (schedule_of_now(), ("RIVULET_BURST_SLACK_S", "1"));
    let settings = [("RIVULET_BURST_SCHEDULE", times.as_str()), slack];
    let server = server_that_decides(folder.path(), link, &settings, ", rate => 10000");
    wait("the server to want a worker", || decisions(&server).contains("no burst worker is connected"));
    let _worker = Worker::start(folder.path(), "one", link, &[]);
    wait("the tasks to go out", || decisions(&server).contains("tasks are on burst workers now: one"));
    let why = decisions(&server);
    assert!(why.contains(": out, 100 %: the time of the schedule has come; "), "{why}");
    let back = message(&server, "ALTER QUERY q REDIRECT ALL BACK").unwrap();
    assert!(back.ends_with(" came back"), "{back}");
    let why = decisions(&server);
    assert!(why.contains("a statement has moved tasks, and the policy rests until 2"), "{why}");
    // Ten times the slack is over.
    wait("the tasks to go out again", || away(&server, "q").0 > 0);
    let log = said(folder.path(), "log");
    for decision in ["out, 100 %: the time of the schedule", "a statement has moved tasks"] {
        assert!(log.contains(&format!("burst policy: {decision}")), "{log}");
    }
}

/// The source gives what the workers can do. The bounds are low: how fast the machine is does not matter.
#[test]
fn a_busy_server_sends_tasks_out_by_itself() {
    let (folder, link) = (TempDir::new().unwrap(), free_port());
    let bounds = ["RIVULET_BURST_OUT_ABOVE_PERCENT", "RIVULET_BURST_IN_BELOW_PERCENT"];
    let settings = [("RIVULET_BURST_POLICY", "auto"), (bounds[0], "5"), (bounds[1], "0")];
    let server = server_that_decides(folder.path(), link, &settings, "");
    let mut worker = Worker::start(folder.path(), "one", link, &[]);
    wait("the tasks to go out", || decisions(&server).contains("tasks are on burst workers now: one"));
    let why = decisions(&server);
    assert!(why.contains(": out, ") && why.contains(" rows/s, "), "{why}");
    assert!(away(&server, "q").0 > 0);
    worker.kill_9();
    let rests = "the query started again with tasks away, and the policy rests until 2";
    wait("the policy to rest", || decisions(&server).contains(rests));
    // Another text is another query to it.
    let counts = COUNTS.replace("{bid}", "bid WHERE price > 1");
    server.sql_ok(&format!("CREATE OR REPLACE QUERY q AS {counts} INTO moved WITH (burst => true)"));
    assert!(!decisions(&server).contains(rests), "{}", decisions(&server));
}

#[test]
fn a_window_after_a_lookup_goes_and_the_credentials_of_a_sink_stay() {
    let folder = TempDir::new().unwrap();
    let (server, link) = server_with_bids(folder.path(), 150_000);
    server
        .sql_ok("CREATE TABLE weights (name TEXT NOT NULL, weight BIGINT) FROM 'data:,Apple,2%0AGoogle,3' FORMAT CSV");
    server.sql_ok("CREATE SECRET hidden AS 'rose'");
    server.sql_ok(
        "CREATE SINK far_away TO 'http://127.0.0.1:1/x' FORMAT JSON WITH (headers.authorization => SECRET hidden)",
    );
    let select = "SELECT channel, weight, count(*) AS n, window_end FROM {bid} /* not far_away */
                  JOIN weights ON channel = weights.name GROUP BY channel, weight,
                  tumble(date_time, INTERVAL '1 second')";
    let query = select.replace("{bid}", "bid");
    server.sql_ok(&format!("CREATE QUERY q AS {query} INTO moved WITH (burst => true, fuse => 'none')"));
    let window = operator(&server, "q", "with its state");
    let worker = Worker::start(folder.path(), "one", link, &[]);
    let out = format!("ALTER QUERY q REDIRECT {window} TO BURST");
    assert_eq!(redirect(&server, &out), "query q: 4 of 4 tasks are on burst workers now: one");
    check_of(select, &server, folder.path());
    drop(worker);
}

#[test]
fn a_worker_that_was_lost_and_comes_again_stays() {
    let folder = TempDir::new().unwrap();
    let (server, link) = server_with_bids(folder.path(), 1);
    let is_cut = Arc::<AtomicBool>::default();
    let cut = is_cut.clone();
    let way = Way::that(move |from, _, _| {
        if let (false, Ok(to)) = (cut.load(Ordering::Relaxed), TcpStream::connect(link)) {
            carry(from, &to, usize::MAX, &cut, &mut |_| ());
        }
    });
    let worker = Worker::start(folder.path(), "one", way.address, &[]);
    wait("the worker", || comings(folder.path(), "one") == 1);
    is_cut.store(true, Ordering::Relaxed);
    let lost = || said(folder.path(), "log").matches("the burst worker 'one' has gone").count();
    wait("the worker to be lost", || lost() == 1);
    is_cut.store(false, Ordering::Relaxed);
    wait_for(WAIT_MAX, "the worker to come again", || comings(folder.path(), "one") == 2);
    server.sql_ok("CREATE SOURCE slow FROM 'nexmark:bid' WITH (rate => 100)");
    let counts = COUNTS.replace("{bid}", "slow");
    server.sql_ok(&format!("CREATE QUERY q AS {counts} INTO moved WITH (burst => true, fuse => 'none')"));
    let window = operator(&server, "q", "with its state");
    let out = format!("ALTER QUERY q REDIRECT {window} TO BURST");
    assert_eq!(redirect(&server, &out), "query q: 4 of 4 tasks are on burst workers now: one");
    let back = format!("ALTER QUERY q REDIRECT {window} BACK");
    assert_eq!(message(&server, &back), Ok("query q: 4 tasks came back".into()));
    assert_eq!((comings(folder.path(), "one"), lost()), (2, 1), "{}", said(folder.path(), "log"));
    is_cut.store(true, Ordering::Relaxed);
    drop((worker, way));
}

#[test]
fn one_without_the_right_is_refused() {
    let (folder, link) = (TempDir::new().unwrap(), free_port());
    let server = restart(folder.path(), link);
    server.sql_ok("CREATE USER admin ADMIN");
    let made = server.sql_ok("CREATE TOKEN FOR admin");
    let admin = made["results"][0]["rows"][0][0].as_str().unwrap().to_owned();
    let other = sql_as(&server, &admin, "CREATE USER other; CREATE TOKEN FOR other");
    let start = |name: &str, token: &str| {
        let file = folder.path().join(format!("{name}.token"));
        std::fs::write(&file, token).unwrap();
        Worker::start(folder.path(), name, link, &["--token-file", file.to_str().unwrap()])
    };
    let admin_token = admin;
    let (mut nobody, mut other, admin) =
        (Worker::start(folder.path(), "nobody", link, &[]), start("other", &other), start("admin", &admin_token));
    let told = |name: &str, text: &str| wait_for(WAIT_MAX, text, || said(folder.path(), name).contains(text));
    // What lasts ends the command.
    assert_eq!((nobody.end(), other.end()), (Some(1), Some(1)));
    let hint = "make one there (`rivulet token create USER`), and give it to the sink (`token => SECRET NAME`) or the \
                command (`--token-file FILE`)";
    told("nobody", &format!("the other side has refused the connection: the server asks for credentials: {hint}"));
    told("other", "the user of the token may not administer the server, which a burst worker needs");
    told("log", "a burst worker has come");
    let log = said(folder.path(), "log");
    assert!(!["nobody", "other"].iter().any(|name| log.contains(&format!("worker=\"{name}\""))), "{log}");
    let helper = sql_as(
        &server,
        &admin_token,
        "CREATE USER helper; GRANT administer ON SERVER TO helper; CREATE TOKEN FOR helper",
    );
    let mut helper = start("helper", &helper);
    wait_for(WAIT_MAX, "the helper", || comings(folder.path(), "helper") == 1);
    sql_as(&server, &admin_token, "REVOKE administer ON SERVER FROM helper");
    told("log", "the burst worker 'helper' has gone: the user of the token may not administer the server");
    assert_eq!(helper.end(), Some(1));
    drop((nobody, other, admin, helper));
}

#[test]
fn workers_of_one_name_have_numbers() {
    let (folder, link) = (TempDir::new().unwrap(), free_port());
    let server = restart(folder.path(), link);
    let first = Worker::start(folder.path(), "one", link, &[]);
    wait_for(WAIT_MAX, "the first", || comings(folder.path(), "one") == 1);
    let second = Worker::start(folder.path(), "one", link, &[]);
    wait_for(WAIT_MAX, "the second", || comings(folder.path(), "one-2") == 1);
    assert_eq!(rows(&server, "SHOW BURST WORKERS LIKE 'one%'").len(), 2);
    drop((first, second));
}

#[test]
fn what_lasts_ends_the_command_and_what_passes_is_tried_again() {
    let folder = TempDir::new().unwrap();
    // It answers as a web server does.
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = web.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in web.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 1_000]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            // What is left unread would reset the connection.
            let _ = stream.shutdown(Shutdown::Write);
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    let mut web = Worker::start(folder.path(), "web", address, &[]);
    assert_eq!(web.end(), Some(1));
    assert!(said(folder.path(), "web").contains("what answers there is no link of Rivulet"));
    let mut tls = Worker::start(folder.path(), "tls", address, &["--tls"]);
    assert_eq!(tls.end(), Some(1));
    assert!(said(folder.path(), "tls").contains("the server does not speak TLS on this port"));
    let mut authority = Worker::start(folder.path(), "authority", address, &["--ca", "missing.pem"]);
    assert_eq!(authority.end(), Some(1));
    assert!(said(folder.path(), "authority").contains("missing.pem"));
    let _waits = Worker::start(folder.path(), "waits", free_port(), &[]);
    wait_for(WAIT_MAX, "another attempt", || said(folder.path(), "waits").contains("; tries again"));
    let url = rivulet().args(["burst-worker", "--connect", "http://127.0.0.1:7117"]).output().unwrap();
    assert!(!url.status.success() && String::from_utf8_lossy(&url.stderr).contains("without http://"));
}

struct Anything;

impl LinkRights for Anything {
    fn scope(&self) -> &str {
        ""
    }

    fn may_send(&self, _stream: &str) -> Result<(), String> {
        Ok(())
    }
}

/// Takes the control words of a server.
#[derive(Default)]
struct Words(Mutex<Vec<(Arc<Peer>, Received)>>);

impl Receive for Words {
    fn accept(&self, peer: &Arc<Peer>, asked: &Asked) -> Result<Option<(u64, u64)>, String> {
        self.0.lock().unwrap().push((peer.clone(), asked.stream));
        Ok(None)
    }

    fn arrived(&self, _peer: &Arc<Peer>, _stream: Received) {}

    fn query(&self) -> &str {
        "a test"
    }
}

#[test]
fn a_worker_of_another_version_and_streams_of_tasks_that_it_has_not_are_refused() {
    let (folder, link) = (TempDir::new().unwrap(), free_port());
    let server = restart(folder.path(), link);
    let links = Links::new("fake", None, None);
    let words = Arc::<Words>::default();
    links.receive("", "$burst", &(words.clone() as Arc<dyn Receive>)).unwrap();
    let (host, port, reach) = (link.ip().to_string(), link.port(), AllowedHosts::everything());
    let target = Target { scope: String::new(), host, port, tls: None, token: None, reach };
    let peer = links.join(target, Arc::new(Anything)).unwrap();
    let fields = [("message", DataType::Utf8, false), ("bytes", DataType::Binary, true)];
    let fields = fields.map(|(name, data_type, is_nullable)| Field::new(name, data_type, is_nullable));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let options = SendOptions { buffer_bytes: 1, flush_us: 0, compression: Compression::None };
    let open = |name: &str| links.open_to(&peer, name.to_owned(), schema.clone(), options);
    let stranger = open("$burst#00000000000000aa/words");
    let nameless = open("$burst#something");
    let control = open("$burst#control/1");
    for (stream, why) in [(&stranger, "no such ticket"), (&nameless, "no such ticket")] {
        wait_for(WAIT_MAX, why, || stream.problem().is_some_and(|problem| problem.contains(why)));
    }
    wait_for(WAIT_MAX, "the control words to be taken", || control.has_room());
    let hello = r#"{"Hello":{"version":"0.0.0","name":"fake","threads":1,"limit_s":null}}"#;
    let columns: Vec<ArrayRef> =
        vec![Arc::new(StringArray::from(vec![hello])), Arc::new(BinaryArray::from_opt_vec(vec![None]))];
    let columns = RecordBatch::try_new(schema.clone(), columns).unwrap();
    let row = Batch::new(vec![0].into(), vec![0].into(), vec![0].into(), columns);
    control.push(&Element::Batch(row)).unwrap();
    let mut answer = String::new();
    wait_for(WAIT_MAX, "an answer", || {
        let streams = words.0.lock().unwrap().clone();
        let buffer = streams.iter().find_map(|(peer, stream)| peer.take(*stream));
        let element = buffer.and_then(|buffer| buffer.elements().unwrap().next_element().unwrap());
        if let Some(Element::Batch(batch)) = element {
            answer = batch.column(0).as_string::<i32>().value(0).to_owned();
        }
        !answer.is_empty()
    });
    assert!(answer.contains("Bye") && answer.contains("the worker is of version 0.0.0"), "{answer}");
    assert!(said(folder.path(), "log").contains("a burst worker is refused"));
    server.sql_ok("SHOW BURSTS");
}
