//! Burst workers that are functions of AWS Lambda, which `rivulet burst emulate` emulates: the server starts them when
//! tasks are to move, and says why if it does not.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::bursts::{
    COUNTS, away, check, decisions, has_ended, message, operator, redirect, restart_with, said, schedule_of_now,
    with_bids,
};
use super::server::{Server, free_port, rivulet, wait, wait_for};

/// The longest wait for an end.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A `rivulet burst emulate`; it is told to end when dropped, so that it ends its instances.
struct Emulator {
    child: Child,
    address: SocketAddr,
}

impl Emulator {
    fn start(folder: &Path, more: &[&str]) -> Self {
        Self::of(rivulet(), folder, more)
    }

    /// The same of another program.
    fn of(mut command: Command, folder: &Path, more: &[&str]) -> Self {
        let (address, log) = (free_port(), std::fs::File::create(folder.join("emulator")).unwrap());
        command.args(["burst", "emulate", "--listen", &address.to_string()]).args(more).stdin(Stdio::null());
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        wait_for(WAIT_MAX, "the emulator", || said(folder, "emulator").contains("emulates AWS Lambda at http://"));
        Self { child, address }
    }

    /// The processes of its instances.
    fn instances(&self) -> BTreeSet<u32> {
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let process: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            // After the name in brackets come the state and the parent's id.
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            let parent: u32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            (parent == self.child.id()).then_some(process)
        });
        processes.collect()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let until = std::time::Instant::now() + WAIT_MAX;
        while std::time::Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process listens to others.
fn listens(process: u32) -> bool {
    let sockets: BTreeSet<String> = std::fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    assert!(!sockets.is_empty(), "it is connected");
    let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/{process}/net/{table}")));
    let lines: Vec<String> =
        tables.into_iter().flatten().flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    lines.iter().any(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns.get(3) == Some(&"0A") && columns.get(9).is_some_and(|inode| sockets.contains(*inode))
    })
}

/// A server with that function, and what it is configured with besides.
fn server(folder: &Path, endpoint: SocketAddr, more: &[(&'static str, &str)]) -> Server {
    let endpoint = format!("http://{endpoint}");
    let own = [
        ("AWS_ENDPOINT_URL_LAMBDA", &*endpoint),
        ("AWS_ACCESS_KEY_ID", "emulated"),
        ("AWS_SECRET_ACCESS_KEY", "emulated"),
        ("AWS_SESSION_TOKEN", ""),
        ("AWS_REGION", ""),
        ("AWS_DEFAULT_REGION", ""),
        ("RIVULET_BURST_LAMBDA_FUNCTION", "rivulet-burst"),
        ("RIVULET_BURST_LAMBDA_MEMORY_MB", "3538"),
        ("RIVULET_BURST_ANSWER_S_MAX", "60"),
    ];
    restart_with(folder, free_port(), &[&own, more].concat())
}

/// What the status says of functions.
fn functions(server: &Server) -> Value {
    server.status()["functions"].clone()
}

/// Creates the query, and returns the operator of its window.
fn create(server: &Server, source: &str) -> String {
    let counts = COUNTS.replace("{bid}", source);
    server.sql_ok(&format!("CREATE QUERY q AS {counts} INTO moved WITH (burst => true, fuse => 'none')"));
    operator(server, "q", "with its state")
}

#[test]
fn tasks_go_to_functions_that_the_server_starts_and_come_back() {
    let folder = TempDir::new().unwrap();
    let (zip, bootstrap) = (folder.path().join("f.zip"), folder.path().join("bootstrap"));
    let packaged = rivulet().args(["burst", "package"]).arg(&zip).output().unwrap();
    let told = String::from_utf8(packaged.stderr).unwrap();
    assert!(told.contains(concat!("version ", env!("CARGO_PKG_VERSION"))), "{told}");
    {
        let mut archive = zip::ZipArchive::new(std::fs::File::open(&zip).unwrap()).unwrap();
        let mut file = archive.by_index(0).unwrap();
        assert_eq!((&*file.name().unwrap(), file.unix_mode(), file.is_file()), ("bootstrap", Some(0o100_755), true));
        assert!(file.size() > file.compressed_size());
        // Reading it to its end checks it.
        std::io::copy(&mut file, &mut std::fs::File::create(&bootstrap).unwrap()).unwrap();
    }
    std::fs::set_permissions(&bootstrap, Permissions::from_mode(0o755)).unwrap();
    let emulator = Emulator::of(Command::new(&bootstrap), folder.path(), &["--cold-ms", "300"]);
    let server = server(folder.path(), emulator.address, &[]);
    let server = with_bids(server, 300_000);
    let window = create(&server, "bid");
    assert_eq!(functions(&server)["invoked"], 0);
    let out = format!("ALTER QUERY q REDIRECT {window} TO BURST");
    let moved = redirect(&server, &out);
    assert!(moved.starts_with("query q: 4 of 4 tasks are on burst workers now: rivulet-burst-"), "{moved}");
    assert!(moved.contains("-1, rivulet-burst-") && moved.ends_with("-2"), "{moved}");
    let (instances, known) = (emulator.instances(), functions(&server));
    assert_eq!((instances.len(), &known["running"], &known["invoked"]), (2, &2.into(), &2.into()), "{known}");
    // Reserved: 310 s with 3,538 MB each.
    assert!(known["reserved_microdollars"].as_u64().unwrap() >= 2 * 17_000, "{known}");
    assert!(instances.iter().all(|&process| !listens(process)), "a worker has no other peer than the server");
    server.sql_ok("CHECKPOINT");
    let back = format!("ALTER QUERY q REDIRECT {window} BACK");
    assert_eq!(message(&server, &back), Ok("query q: 4 tasks came back".into()));
    wait("functions without tasks to end", || functions(&server)["running"] == 0);
    let known = functions(&server);
    assert!(known.get("last_error").is_none(), "{known}");
    assert!(known["spent_today_microdollars"].as_u64().unwrap() < 2 * 17_000, "{known}");
    assert_eq!(known["reserved_microdollars"], 0, "{known}");
    let moved = redirect(&server, &out);
    assert!(moved.contains("-3, rivulet-burst-") && moved.ends_with("-4"), "{moved}");
    assert_eq!(emulator.instances(), instances, "they were warm");
    check(&server, folder.path());
    let metrics = ureq::get(format!("{}/metrics", server.url())).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(metrics.contains("rivulet_burst_functions_invoked_total 4"), "{metrics}");
    let shown = rivulet().arg("status").env("RIVULET_SERVER", server.url()).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("function rivulet-burst: ") && shown.contains(" of 1.000000 dollars spent today, "),
        "{shown}"
    );
}

#[test]
fn what_lambda_refuses_once_is_tried_again() {
    let folder = TempDir::new().unwrap();
    let emulator = Emulator::start(folder.path(), &["--throttle-every", "2"]);
    let server = with_bids(server(folder.path(), emulator.address, &[]), 150_000);
    let window = create(&server, "bid");
    redirect(&server, &format!("ALTER QUERY q REDIRECT {window} TO BURST"));
    assert_eq!(away(&server, "q").0, 4);
    check(&server, folder.path());
}

#[test]
fn tasks_come_home_before_the_time_limit_of_a_function() {
    let folder = TempDir::new().unwrap();
    let emulator = Emulator::start(folder.path(), &["--time-limit-s", "30"]);
    let margin = [("RIVULET_BURST_MARGIN_S", "10")];
    let server = with_bids(server(folder.path(), emulator.address, &margin), 450_000);
    let window = create(&server, "bid");
    redirect(&server, &format!("ALTER QUERY q REDIRECT {window} TO BURST"));
    wait("the tasks to come back", || away(&server, "q").0 == 0 && functions(&server)["running"] == 0);
    check(&server, folder.path());
    assert!(functions(&server).get("last_error").is_none());
    let log = said(folder.path(), "log");
    assert!(log.contains("comes back: its worker ends soon") && !log.contains("a query has failed"), "{log}");
}

#[test]
fn a_function_that_is_ended_costs_no_row() {
    let folder = TempDir::new().unwrap();
    let emulator = Emulator::start(folder.path(), &[]);
    let server = with_bids(server(folder.path(), emulator.address, &[]), 150_000);
    let window = create(&server, "bid");
    redirect(&server, &format!("ALTER QUERY q REDIRECT {window} TO BURST"));
    assert_eq!(away(&server, "q").0, 4);
    let instance = *emulator.instances().first().unwrap();
    assert!(Command::new("kill").args(["-KILL", &instance.to_string()]).status().unwrap().success());
    wait("the failure", || functions(&server)["last_error"].as_str().is_some_and(|why| why.contains("Runtime exited")));
    check(&server, folder.path());
}

#[test]
fn a_function_has_as_many_tasks_as_threads_and_the_answer_says_why_others_stay() {
    let folder = TempDir::new().unwrap();
    let emulator = Emulator::start(folder.path(), &[]);
    let server = server(folder.path(), emulator.address, &[("RIVULET_BURST_LAMBDA_WORKERS_MAX", "1")]);
    let server = with_bids(server, 150_000);
    let window = create(&server, "bid");
    let moved = redirect(&server, &format!("ALTER QUERY q REDIRECT {window} TO BURST"));
    let why = "; not the others: burst.lambda.workers_max is 1, and more are needed; the burst workers have no \
               thread free";
    assert!(moved.starts_with("query q: 2 of 4 tasks are on burst workers now: ") && moved.ends_with(why), "{moved}");
    check(&server, folder.path());
}

#[test]
fn why_no_function_comes_is_said_and_the_query_stays() {
    let folder = TempDir::new().unwrap();
    let emulator = Emulator::start(folder.path(), &[]);
    let busy = TempDir::new().unwrap();
    let refuses = Emulator::start(busy.path(), &["--throttle-every", "1"]);
    let short = TempDir::new().unwrap();
    let ends_soon = Emulator::start(short.path(), &["--time-limit-s", "12"]);
    let nobody = free_port();
    let now = schedule_of_now();
    type Case<'a> = (SocketAddr, &'a [(&'static str, &'a str)], &'a [&'a str]);
    let cases: [Case<'_>; 6] = [
        (
            emulator.address,
            &[("AWS_SECRET_ACCESS_KEY", "another")],
            &["AWS refuses the credentials of burst.lambda: InvalidSignatureException: The request signature"],
        ),
        (
            emulator.address,
            &[("RIVULET_BURST_LAMBDA_FUNCTION", "other")],
            &["there is no function 'other' in us-east-1: Function not found: arn:aws:lambda:us-east-1:"],
        ),
        (
            refuses.address,
            &[("RIVULET_BURST_ANSWER_S_MAX", "3")],
            &["AWS has no room for the function 'rivulet-burst' now: Rate Exceeded."],
        ),
        (
            emulator.address,
            &[("RIVULET_BURST_COST_MAX", "0.01"), ("RIVULET_BURST_SCHEDULE", &now)],
            &["the budget of today is used up: a function may cost 0.0", " dollars, and burst.cost_max is 0.010000"],
        ),
        (ends_soon.address, &[], &[" s of its timeout are left, less than burst.margin_s (20 s): raise the timeout"]),
        (nobody, &[], &["does not answer: io: Connection refused"]),
    ];
    for (endpoint, settings, words) in cases {
        let folder = TempDir::new().unwrap();
        let server = with_bids(server(folder.path(), endpoint, settings), 1);
        server.sql_ok("CREATE SOURCE slow FROM 'nexmark:bid' WITH (rate => 100)");
        let window = create(&server, "slow");
        let answer = message(&server, &format!("ALTER QUERY q REDIRECT {window} TO BURST")).unwrap_err();
        let expected = "no burst worker is connected; ";
        assert!(answer.contains(expected) && words.iter().all(|word| answer.contains(word)), "{answer}");
        let known = functions(&server);
        assert!(known["last_error"].as_str().is_some_and(|error| error.contains(words[0])), "{known}");
        // A failure counts for all that follow; a budget that is used up is none.
        let rests = known["last_error"].as_str().unwrap().ends_with("; no other one is invoked for 10 s");
        assert_eq!(rests, known["invoked"] != 0, "{known}");
        // Some have run for a moment; nothing is reserved.
        assert!(
            known["running"] == 0
                && known["reserved_microdollars"] == 0
                && known["spent_today_microdollars"].as_u64() < Some(2_000),
            "{known}"
        );
        assert!(away(&server, "q").0 == 0 && !has_ended(&server, "q"));
        if settings.contains(&("RIVULET_BURST_SCHEDULE", &now)) {
            wait("the policy to say it", || decisions(&server).contains(words[0]));
        }
    }
}

#[test]
fn functions_are_kept_warm_while_a_query_may_need_them() {
    let folder = TempDir::new().unwrap();
    let emulator = Emulator::start(folder.path(), &[]);
    let warm = [("RIVULET_BURST_LAMBDA_WARM", "2"), ("RIVULET_BURST_LAMBDA_WARM_S", "1")];
    let server = with_bids(server(folder.path(), emulator.address, &warm), 1);
    assert!(emulator.instances().is_empty() && functions(&server)["invoked"] == 0);
    server.sql_ok("CREATE SOURCE slow FROM 'nexmark:bid' WITH (rate => 100)");
    create(&server, "slow");
    wait("warm instances", || emulator.instances().len() == 2);
    let (instances, invoked) = (emulator.instances(), || functions(&server)["invoked"].as_u64().unwrap());
    let first = invoked();
    wait("more invocations", || invoked() >= first + 6);
    assert_eq!(emulator.instances(), instances);
    let known = functions(&server);
    assert!(known["spent_today_microdollars"].as_u64().unwrap() > 0 && known.get("last_error").is_none(), "{known}");
}
