//! Burst workers that are functions of AWS Lambda, which `rivulet burst emulate` emulates: the server starts them when
//! tasks are to move, and says why if it does not.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
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
        let (address, log) = (free_port(), std::fs::File::create(folder.join("emulator")).unwrap());
        let mut command = rivulet();
        command.args(["burst", "emulate", "--listen", &address.to_string()]).args(more);
        command.env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE").env("AWS_SECRET_ACCESS_KEY", "secret").stdin(Stdio::null());
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        wait_for(WAIT_MAX, "the emulator", || said(folder, "emulator").contains("emulates AWS Lambda at http://"));
        Self { child, address }
    }

    /// The processes of its instances.
    fn instances(&self) -> BTreeSet<u32> {
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let process: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            // Behind the name, which is in brackets, there is the state, and the process that has started it.
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
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
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
    let zip = folder.path().join("f.zip");
    let packaged = rivulet().args(["burst", "package"]).arg(&zip).output().unwrap();
    let told = String::from_utf8(packaged.stderr).unwrap();
    assert!(told.contains(concat!("version ", env!("CARGO_PKG_VERSION"))), "{told}");
    {
        let mut archive = zip::ZipArchive::new(std::fs::File::open(&zip).unwrap()).unwrap();
        let mut file = archive.by_index(0).unwrap();
        assert_eq!((&*file.name().unwrap(), file.unix_mode(), file.is_file()), ("bootstrap", Some(0o100_755), true));
        assert!(file.size() > file.compressed_size());
        // Reading it to its end checks it.
        std::io::copy(&mut file, &mut std::io::sink()).unwrap();
    }
    let emulator = Emulator::start(folder.path(), &["--zip", zip.to_str().unwrap(), "--cold-ms", "300"]);
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
    // Reserved: 910 s with 3,538 MB each.
    assert!(known["spent_today_microdollars"].as_u64().unwrap() >= 2 * 52_000, "{known}");
    assert!(instances.iter().all(|&process| !listens(process)), "a worker has no other peer than the server");
    server.sql_ok("CHECKPOINT");
    let back = format!("ALTER QUERY q REDIRECT {window} BACK");
    assert_eq!(message(&server, &back), Ok("query q: 4 tasks came back".into()));
    wait("functions without tasks to end", || functions(&server)["running"] == 0);
    let known = functions(&server);
    assert!(known.get("last_error").is_none(), "{known}");
    assert!(known["spent_today_microdollars"].as_u64().unwrap() < 2 * 52_000, "{known}");
    let moved = redirect(&server, &out);
    assert!(moved.contains("-3, rivulet-burst-") && moved.ends_with("-4"), "{moved}");
    assert_eq!(emulator.instances(), instances, "they were warm");
    check(&server, folder.path());
    let metrics = ureq::get(format!("{}/metrics", server.url())).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(metrics.contains("rivulet_burst_functions_invoked_total 4"), "{metrics}");
    let shown = rivulet().arg("status").env("RIVULET_SERVER", server.url()).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("function rivulet-burst: ") && shown.contains(" of 1.00 dollars spent or reserved today"),
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
    let server = with_bids(server(folder.path(), emulator.address, &margin), 300_000);
    let window = create(&server, "bid");
    redirect(&server, &format!("ALTER QUERY q REDIRECT {window} TO BURST"));
    wait("the tasks to come back", || away(&server, "q").0 == 0 && functions(&server)["running"] == 0);
    check(&server, folder.path());
    assert!(functions(&server).get("last_error").is_none());
    let log = said(folder.path(), "log");
    assert!(!log.contains("a query has failed"), "{log}");
}

#[test]
fn a_function_that_is_ended_costs_no_row() {
    let folder = TempDir::new().unwrap();
    let emulator = Emulator::start(folder.path(), &[]);
    let server = with_bids(server(folder.path(), emulator.address, &[]), 150_000);
    let window = create(&server, "bid");
    redirect(&server, &format!("ALTER QUERY q REDIRECT {window} TO BURST"));
    let instance = *emulator.instances().first().unwrap();
    assert!(Command::new("kill").args(["-KILL", &instance.to_string()]).status().unwrap().success());
    wait("the failure", || functions(&server)["last_error"].as_str().is_some_and(|why| why.contains("has ended")));
    check(&server, folder.path());
}

/// Answers one request as a function of an earlier version does.
fn earlier_version() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let (mut request, mut byte) = (Vec::new(), [0]);
            while !request.ends_with(b"}}") && stream.read(&mut byte).unwrap_or(0) == 1 {
                request.push(byte[0]);
            }
            let body = r#"{"version":"0.0.0"}"#;
            let _ =
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
        }
    });
    address
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
    let cases: [Case<'_>; 8] = [
        (
            emulator.address,
            &[("AWS_SECRET_ACCESS_KEY", "another")],
            &["AWS refuses the credentials of burst.lambda: InvalidSignatureException: The request signature"],
        ),
        (
            emulator.address,
            &[("AWS_ACCESS_KEY_ID", "unknown")],
            &["AWS refuses the credentials of burst.lambda: UnrecognizedClientException: The security token"],
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
            &[("RIVULET_BURST_COST_MAX", "0.05"), ("RIVULET_BURST_SCHEDULE", &now)],
            &["the budget of today is used up: 0.00 of 0.05 dollars are spent or reserved"],
        ),
        (
            earlier_version(),
            &[],
            &[
                "the function 'rivulet-burst' is not used: the function is version 0.0.0, and the server ",
                "burst package",
            ],
        ),
        (ends_soon.address, &[], &["its time limit leaves ", "burst.margin_s before, 20 s: give it more time"]),
        (nobody, &[], &["does not answer: io: Connection refused"]),
    ];
    for (endpoint, settings, words) in cases {
        let folder = TempDir::new().unwrap();
        let server = with_bids(server(folder.path(), endpoint, settings), 1);
        server.sql_ok("CREATE SOURCE slow FROM 'nexmark:bid' WITH (rate => 100)");
        let window = create(&server, "slow");
        let answer = message(&server, &format!("ALTER QUERY q REDIRECT {window} TO BURST")).unwrap_err();
        let expected = "no burst worker is connected, and none was started: ";
        assert!(answer.contains(expected) && words.iter().all(|word| answer.contains(word)), "{answer}");
        let known = functions(&server);
        assert!(known["last_error"].as_str().is_some_and(|error| error.contains(words[0])), "{known}");
        // Some have run for a moment; nothing is reserved.
        assert!(known["running"] == 0 && known["spent_today_microdollars"].as_u64() < Some(2_000), "{known}");
        assert!(away(&server, "q").0 == 0 && !has_ended(&server, "q"));
        if settings.contains(&("RIVULET_BURST_SCHEDULE", &now)) {
            wait("the policy to say it", || decisions(&server).contains(words[0]));
        }
    }
}

#[test]
fn functions_are_kept_warm_while_a_query_may_need_them() {
    let folder = TempDir::new().unwrap();
    let emulator = Emulator::start(folder.path(), &["--idle-s", "2"]);
    let warm = [("RIVULET_BURST_LAMBDA_WARM", "2"), ("RIVULET_BURST_LAMBDA_WARM_S", "1")];
    let server = with_bids(server(folder.path(), emulator.address, &warm), 1);
    assert!(emulator.instances().is_empty() && functions(&server)["invoked"] == 0);
    server.sql_ok("CREATE SOURCE slow FROM 'nexmark:bid' WITH (rate => 100)");
    create(&server, "slow");
    wait("warm instances", || functions(&server)["invoked"].as_u64().unwrap() >= 6 && !emulator.instances().is_empty());
    let known = functions(&server);
    assert!(known["spent_today_microdollars"].as_u64().unwrap() > 0 && known.get("last_error").is_none(), "{known}");
    server.sql_ok("DROP QUERY q");
    wait("idle instances to end", || emulator.instances().is_empty());
}
