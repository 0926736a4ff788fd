//! Passwords of people: what they are good for, what ends with them, and what guesses of them get.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Barrier;

use rivulet::service::Service;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::accounts::{Fixture, first_administrator, sends};
use super::callers::{Mqtt, ask};
use super::cli::command;
use super::engine::open;
use super::server::{Server, free_port};
use super::support::{TestServer, WAIT_MAX, connect_from, exchange_by, request};

const FIRST: &str = "correct horse battery";
const SECOND: &str = "staple correct horse";

/// Gives a user a password, and returns what is answered.
fn set(fixture: &Fixture, token: &str, user: &str, password: &str) -> (u16, Value) {
    let body = json!({ "password": password }).to_string();
    ask(&fixture.server, token, "PUT", &format!("/api/v1/users/{user}/password"), &body)
}

/// A login as a request.
fn login(user: &str, password: &str) -> String {
    let body = json!({ "user": user, "password": password }).to_string();
    request("POST", "/api/v1/login", "content-type: application/json\r\n", &body)
}

/// Logs in from this address of the machine.
fn log_in_from(from: [u8; 4], server: &TestServer, user: &str, password: &str) -> (u16, Value) {
    let (status, text) = exchange_by(connect_from(from, server.address), &login(user, password));
    let answer: Value = serde_json::from_str(&text).expect(&text);
    (status, answer.get("error").cloned().unwrap_or(answer))
}

fn log_in(fixture: &Fixture, user: &str, password: &str) -> (u16, Value) {
    log_in_from([127, 0, 0, 1], &fixture.server, user, password)
}

fn token_of((status, answer): (u16, Value)) -> String {
    assert_eq!(status, 201, "{answer}");
    answer["token"].as_str().expect("a token").to_owned()
}

#[test]
fn a_password_is_exchanged_for_a_token_that_ends_with_it() {
    let fixture = Fixture::new();
    fixture.done("CREATE USER ann; GRANT read ON QUERY TO ann; CREATE TENANT acme; CREATE USER acme.ann");
    let show = |token: &str| fixture.sql(token, "SHOW QUERIES").0;
    let from = [127, 0, 0, 7];
    assert_eq!(log_in_from(from, &fixture.server, "ann", FIRST).0, 401);
    assert_eq!(set(&fixture, &fixture.admin, "ann", FIRST), (200, json!({"message": "ann has its password"})));
    let (_, answer) = log_in(&fixture, "ann", FIRST);
    let info = &answer["info"];
    assert_eq!(info["expires_s"].as_u64().unwrap() - info["created_s"].as_u64().unwrap(), 12 * 3_600, "{answer}");
    let token = answer["token"].as_str().expect("a token");
    assert_eq!((show(token), show(FIRST)), (200, 401), "the password itself is no token");
    for (user, password) in [("ann", SECOND), ("ann", ""), ("Ann", FIRST), ("acme/ann", FIRST)] {
        let (status, error) = log_in_from(from, &fixture.server, user, password);
        assert_eq!((status, &error["kind"]), (401, &json!("unauthenticated")), "{user} {password}: {error}");
    }
    // Whoever has a token cannot make it last longer.
    assert_eq!(log_in_from([127, 0, 0, 4], &fixture.server, "ann", token).0, 401);
    // Another password ends what the one before was shown for, and nothing else.
    let own = fixture.token("ann");
    assert_eq!(set(&fixture, &fixture.admin, "ann", SECOND).0, 200);
    assert_eq!((show(token), show(&own)), (401, 200));
    let from = [127, 0, 0, 5];
    let second = token_of(log_in_from(from, &fixture.server, "ann", SECOND));
    assert_eq!(log_in_from(from, &fixture.server, "ann", FIRST).0, 401);
    assert_eq!(ask(&fixture.server, &fixture.admin, "DELETE", "/api/v1/users/ann/password", "").0, 204);
    assert_eq!((show(&second), log_in_from(from, &fixture.server, "ann", SECOND).0), (401, 401));
    // A user of another tenant is named with it.
    let body = json!({"password": FIRST}).to_string();
    assert_eq!(ask(&fixture.server, &fixture.admin, "PUT", "/api/v1/users/ann/password?tenant=acme", &body).0, 200);
    assert_eq!(log_in_from([127, 0, 0, 6], &fixture.server, "ann", FIRST).0, 401);
    token_of(log_in_from([127, 0, 0, 6], &fixture.server, "acme/ann", FIRST));
    // A user of the same name is another one.
    fixture.done("DROP USER acme.ann; CREATE USER acme.ann");
    assert_eq!(log_in_from([127, 0, 0, 6], &fixture.server, "acme/ann", FIRST).0, 401);
    let shown = fixture.done("SHOW USERS").to_string();
    assert!(!shown.contains("argon2") && !shown.contains(FIRST), "{shown}");
}

/// Begins a session with the way that a proxy says it came, and returns its cookie.
fn begin_session(url: &str, user: &str, password: &str) -> String {
    let asked = ureq::post(format!("{url}/api/v1/session")).header("x-forwarded-proto", "https, http");
    let answer = asked.send(json!({ "user": user, "password": password }).to_string()).expect("a session");
    assert_eq!(answer.status(), 204);
    answer.headers()["set-cookie"].to_str().expect("text").to_owned()
}

#[test]
fn a_session_ends_the_token_that_was_made_for_it_and_no_other() {
    let fixture = Fixture::new();
    let brought = fixture.user("ann", &["read ON QUERY", "change ON QUERY 'own_%'"]);
    assert_eq!(set(&fixture, &fixture.admin, "ann", FIRST).0, 200);
    let show = |token: &str| fixture.sql(token, "SHOW QUERIES").0;
    let end = |token: &str| ask(&fixture.server, token, "DELETE", "/api/v1/session", "");
    let cookie = begin_session(&fixture.server.url(), "ann", FIRST);
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains("Secure"), "nobody has said that this client is a proxy: {cookie}");
    let token = cookie.split(['=', ';']).nth(1).unwrap();
    assert_eq!(show(token), 200);
    // The cookie, which is named by the port of the host, counts with the header of the page alone.
    let with = |more: &str| request("GET", "/api/v1/queries", &format!("cookie: rivulet={token}\r\n{more}"), "");
    let status = |more: &str| exchange_by(connect_from([127, 0, 0, 1], fixture.server.address), &with(more)).0;
    assert_eq!((status(""), status("x-rivulet-console: 1\r\n")), (401, 200));
    let may =
        |name: &str| ask(&fixture.server, token, "GET", &format!("/api/v1/session?name={name}"), "").1["may"].clone();
    assert_eq!((may("own_1")["change"].clone(), may("other")["change"].clone()), (json!(true), json!(false)));
    assert_eq!((may("other")["read"].clone(), may("own_1")["subscribe"].clone()), (json!(true), json!(false)));
    assert_eq!((end(token).0, show(token), show(&brought)), (204, 401, 200));
    assert_eq!((end(token).0, end(&brought).0, show(&brought)), (204, 204, 200), "one that was brought stays");
}

#[test]
fn the_cookie_of_a_session_is_for_encrypted_ways_if_a_trusted_proxy_has_such_a_one() {
    let folder = TempDir::new().unwrap();
    let token = first_administrator(&folder.path().join("data")).trim().to_owned();
    let server = Server::spawn(folder.path(), free_port(), &[("RIVULET_HTTP_TRUSTED_PROXIES", "127.0.0.1".to_owned())]);
    server.wait_until_ready();
    let put = ureq::put(format!("{}/api/v1/users/admin/password", server.url()));
    let put = put.header("authorization", format!("Bearer {token}"));
    put.send(json!({ "password": FIRST }).to_string()).expect("a password");
    let cookie = begin_session(&server.url(), "admin", FIRST);
    assert!(cookie.contains("; Secure"), "{cookie}");
}

#[test]
fn what_is_no_password_is_refused_and_not_shown() {
    let fixture = Fixture::new();
    let bob = fixture.user("bob", &["read ON QUERY"]);
    fixture.done("CREATE USER ann");
    let long = "long".repeat(257);
    for (password, status) in [("eleven char", 400), (&long, 400), ("", 400), ("twelve chars", 200)] {
        let (found, answer) = set(&fixture, &fixture.admin, "ann", password);
        assert_eq!(found, status, "{answer}");
        assert!(password.is_empty() || !answer.to_string().contains(password), "{answer}");
    }
    assert_eq!(set(&fixture, &fixture.admin, "eve", FIRST).0, 404);
    assert_eq!(set(&fixture, &bob, "ann", FIRST).0, 403);
    assert_eq!(set(&fixture, "", "ann", FIRST).0, 401);
    for body in [r#"{"password": "correct horse"#, r#"{"pass": "correct horse"}"#, r#""correct horse""#] {
        let put = ask(&fixture.server, &fixture.admin, "PUT", "/api/v1/users/ann/password", body);
        let post = ask(&fixture.server, "", "POST", "/api/v1/login", body);
        for (status, answer) in [put, post] {
            assert_eq!(status, 400, "{answer}");
            assert!(!answer.to_string().contains("correct horse"), "{answer}");
        }
    }
    let huge = json!({"user": "ann", "password": "x".repeat(20_000)}).to_string();
    assert_eq!(ask(&fixture.server, "", "POST", "/api/v1/login", &huge).0, 413);
    // A long guess is a wrong one, and is not hashed.
    assert_eq!(log_in(&fixture, "ann", &"x".repeat(10_000)).0, 401);
    let (status, error) = fixture.sql(&fixture.admin, "ALTER USER ann SET PASSWORD 'correct horse battery'");
    assert_eq!(status, 400, "no SQL has a password");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("rivulet user password")), "{error}");
}

#[test]
fn the_seventeenth_login_ends_the_first() {
    let fixture = Fixture::new();
    fixture.done("CREATE USER ann; GRANT read ON QUERY TO ann");
    set(&fixture, &fixture.admin, "ann", FIRST);
    let own = fixture.token("ann");
    let tokens: Vec<String> = (0..17).map(|_| token_of(log_in(&fixture, "ann", FIRST))).collect();
    let show = |token: &str| fixture.sql(token, "SHOW QUERIES").0;
    assert_eq!((show(&own), show(&tokens[1]), show(&tokens[16])), (200, 200, 200));
    assert_eq!(show(&tokens[0]), 401);
    // They take no places of tokens that are made otherwise.
    for _ in 0..31 {
        fixture.token("ann");
    }
    let (status, error) = fixture.sql(&fixture.admin, "CREATE TOKEN FOR ann");
    assert_eq!((status, &error["kind"]), (429, &json!("limit_reached")), "{error}");
}

#[test]
fn guesses_that_come_together_wait_as_if_they_came_one_after_the_other() {
    let fixture = Fixture::new();
    fixture.done("CREATE USER ann");
    set(&fixture, &fixture.admin, "ann", FIRST);
    const GUESSES: usize = 60;
    let (fixture, barrier) = (&fixture, &Barrier::new(GUESSES));
    let guess = |number: usize| {
        barrier.wait();
        // Half of them for a user who is none.
        let user = if number.is_multiple_of(2) { "ann" } else { "nobody" };
        log_in_from([127, 0, 0, 9], &fixture.server, user, &format!("guess number {number}")).0
    };
    let codes: Vec<u16> = std::thread::scope(|scope| {
        let guesses: Vec<_> = (0..GUESSES).map(|number| scope.spawn(move || guess(number))).collect();
        guesses.into_iter().map(|guess| guess.join().expect("an answer")).collect()
    });
    let looked_at = codes.iter().filter(|code| **code == 401).count();
    // Each of the two has its own.
    assert!((10..=24).contains(&looked_at) && codes.iter().all(|code| [401, 429].contains(code)), "{codes:?}");
    // The right one waits as well; other addresses do not.
    let (status, error) = log_in_from([127, 0, 0, 9], &fixture.server, "ann", FIRST);
    assert_eq!(status, 429, "{error}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("wrong passwords of this user")), "{error}");
    token_of(log_in_from([127, 0, 0, 10], &fixture.server, "ann", FIRST));
}

#[test]
fn guesses_from_many_addresses_make_the_user_wait_where_it_has_never_been() {
    let fixture = Fixture::new();
    fixture.done("CREATE USER ann; CREATE USER bob");
    for user in ["ann", "bob"] {
        set(&fixture, &fixture.admin, user, FIRST);
    }
    let home = [127, 0, 1, 1];
    token_of(log_in_from(home, &fixture.server, "ann", FIRST));
    // Three of each address, which are free. A user who is none waits as one who is.
    for (network, user) in [(4, "ann"), (5, "nobody")] {
        let refused = (0..90).find_map(|number: u8| {
            let mut stream = connect_from([127, 0, network, 1 + number / 3], fixture.server.address);
            stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
            stream.write_all(login(user, SECOND).as_bytes()).expect("a request");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            (!answer.starts_with("HTTP/1.1 401 ")).then_some(answer)
        });
        let answer = refused.expect("a pause of the user");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 429 "), "{answer}");
        let seconds = head.lines().find_map(|line| line.strip_prefix("retry-after: ")?.parse::<u32>().ok());
        assert!(seconds.is_some_and(|seconds| (1..=61).contains(&seconds)), "{answer}");
        let error = &serde_json::from_str::<Value>(body).expect(body)["error"];
        assert_eq!(error["kind"], json!("limit_reached"), "{error}");
        assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("token")), "{error}");
    }
    // Neither the address from which it has logged in waits, nor other users, nor a token.
    token_of(log_in_from(home, &fixture.server, "ann", FIRST));
    token_of(log_in_from([127, 0, 3, 1], &fixture.server, "bob", FIRST));
    let ann = fixture.token("ann");
    assert_eq!(fixture.sql(&ann, "SHOW QUERIES").0, 403);
}

#[test]
fn mqtt_clients_log_in_with_name_and_password() {
    let fixture = Fixture::new();
    let broker = fixture.broker();
    fixture.done("CREATE USER ann; GRANT publish ON TOPIC 'in' TO ann; CREATE TENANT acme; CREATE USER acme.eve ADMIN");
    set(&fixture, &fixture.admin, "ann", FIRST);
    let body = json!({"password": SECOND}).to_string();
    ask(&fixture.server, &fixture.admin, "PUT", "/api/v1/users/eve/password?tenant=acme", &body);
    let connect = |from: [u8; 4], user: &str, password: &str| {
        Mqtt::connect_by(connect_from(from, broker), 5, (user, password), "c1", None)
    };
    let (mut ann, code) = connect([127, 0, 0, 1], "ann", FIRST);
    assert_eq!((code, sends(&mut ann, "in"), sends(&mut ann, "out")), (0, true, false));
    let (mut eve, code) = connect([127, 0, 0, 1], "acme/eve", SECOND);
    assert_eq!((code, sends(&mut eve, "acme/in"), sends(&mut eve, "in")), (0, true, false));
    for (user, password) in [("ann", SECOND), ("eve", SECOND), ("", FIRST), ("nobody", FIRST), ("ann", "")] {
        assert_eq!(connect([127, 0, 0, 2], user, password).1, 0x86, "{user} {password}");
    }
    // A token needs no user name, as before.
    assert_eq!(connect([127, 0, 0, 3], "whoever", &fixture.admin).1, 0);
    // An old token with the name of a user does not make its password wait.
    let stale = fixture.user("old", &[]);
    fixture.done("DROP USER old");
    let codes: Vec<u8> = (0..20).map(|_| connect([127, 0, 0, 4], "ann", &stale).1).collect();
    assert!(codes.starts_with(&[0x86]) && codes.contains(&0x97), "{codes:x?}");
    let (mut ann, code) = connect([127, 0, 0, 4], "ann", FIRST);
    assert_eq!(code, 0);
    // Guesses that come together: few are looked at, and others come in meanwhile.
    let (barrier, connect) = (&Barrier::new(41), &connect);
    let codes: Vec<u8> = std::thread::scope(|scope| {
        let guess = |number: usize| {
            barrier.wait();
            connect([127, 0, 0, 7], "ann", &format!("guess number {number}")).1
        };
        let guesses: Vec<_> = (0..40).map(|number| scope.spawn(move || guess(number))).collect();
        barrier.wait();
        assert_eq!(connect([127, 0, 0, 8], "whoever", &fixture.admin).1, 0);
        assert!(sends(&mut ann, "in"));
        guesses.into_iter().map(|guess| guess.join().expect("an answer")).collect()
    });
    let looked_at = codes.iter().filter(|code| **code == 0x86).count();
    assert!((5..=12).contains(&looked_at) && codes.iter().all(|code| [0x86, 0x97].contains(code)), "{codes:x?}");
    // What came in with a password ends with it.
    set(&fixture, &fixture.admin, "ann", SECOND);
    assert!(ann.is_closed());
    assert!(sends(&mut eve, "acme/in"));
    fixture.done("DROP USER acme.eve");
    assert!(eve.is_closed());
}

#[test]
fn an_administrator_with_a_password_closes_the_doors_and_stays() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let server = TestServer::start(engine.clone());
    let sql = |token: &str, script: &str| ask(&server, token, "POST", "/api/v1/sql", script);
    assert_eq!(sql("", "CREATE USER admin ADMIN; CREATE USER ann").0, 200);
    let put = |user: &str| {
        let body = json!({"password": FIRST}).to_string();
        ask(&server, "", "PUT", &format!("/api/v1/users/{user}/password"), &body).0
    };
    assert_eq!((put("ann"), sql("", "SHOW USERS").0), (200, 200), "a user is no administrator");
    token_of(log_in_from([127, 0, 0, 1], &server, "ann", FIRST));
    assert_eq!((put("admin"), sql("", "SHOW USERS").0), (200, 401));
    let admin = token_of(log_in_from([127, 0, 0, 1], &server, "admin", FIRST));
    let drop = |token: &str| ask(&server, token, "DELETE", "/api/v1/users/admin/password", "");
    let (status, error) = drop(&admin);
    assert_eq!((status, &error["kind"]), (409, &json!("conflict")), "{error}");
    // The token of the login would end with the password: it does not count.
    let (_, made) = ask(&server, &admin, "POST", "/api/v1/tokens", r#"{"user":"admin"}"#);
    let own = made["token"].as_str().expect("a token").to_owned();
    assert_eq!(drop(&own).0, 204);
    assert_eq!((sql(&own, "SHOW USERS").0, sql(&admin, "SHOW USERS").0, sql("", "SHOW USERS").0), (200, 401, 401));
    assert!(engine.access().has_accounts());
}

/// Runs the program for a server, with this configuration folder of its user.
fn rivulet(server: &str, home: &Path, token: &str, arguments: &[&str], input: &str) -> Output {
    let mut command = command(arguments);
    command.env("XDG_CONFIG_HOME", home).env("RIVULET_SERVER", server);
    if !token.is_empty() {
        command.env("RIVULET_TOKEN", token);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program");
    // It may end without reading.
    let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
    child.wait_with_output().expect("its end")
}

/// The files below a folder that have a text in them.
fn files_with(folder: &Path, text: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_with(&path, text, found);
        } else if std::fs::read(&path).is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
        {
            found.push(path.display().to_string());
        }
    }
}

#[test]
fn a_password_stands_in_no_file_and_no_log() {
    let folder = TempDir::new().expect("a folder");
    let data = folder.path().join("data");
    let admin = first_administrator(&data);
    // Before the server runs, too.
    let made = command(&["user", "create", "eve", "--data-dir", data.to_str().expect("a path")]).output();
    assert!(made.expect("the program").status.success());
    let arguments = ["user", "password", "eve", "--data-dir", data.to_str().expect("a path")];
    let home = folder.path().join("home");
    let set = rivulet("http://127.0.0.1:9", &home, "", &arguments, &format!("{FIRST}\n"));
    assert!(set.status.success(), "{set:?}");
    let mqtt = super::server::free_port();
    let settings = [
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
        ("RIVULET_LOG_LEVEL", "trace".to_owned()),
        ("RIVULET_AUDIT_READS", "true".to_owned()),
    ];
    let mut server = Server::spawn(folder.path(), mqtt, &settings);
    server.wait_until_ready();
    let url = server.url();
    let run = |token: &str, arguments: &[&str], input: &str| rivulet(&url, &home, token, arguments, input);
    let is_done = |output: Output| assert!(output.status.success(), "{output:?}");
    is_done(run(&admin, &["user", "create", "ann"], ""));
    is_done(run(&admin, &["user", "password", "ann"], &format!("{SECOND}\n")));
    let guess = "an entirely wrong guess";
    let wrong = run("", &["login", "--user", "ann"], guess);
    assert!(!wrong.status.success() && !String::from_utf8_lossy(&wrong.stderr).contains(guess), "{wrong:?}");
    assert!(!run("", &["login", "--user", "a-guess"], guess).status.success());
    is_done(run("", &["login", "--user", "ann"], SECOND));
    is_done(run("", &["login", "--user", "eve"], &format!("{FIRST}\r\n")));
    let shown = run("", &["--json", "user", "list"], "");
    assert!(String::from_utf8_lossy(&shown.stderr).contains("'eve' may not"), "eve is logged in: {shown:?}");
    let listed = run(&admin, &["--json", "user", "list"], "");
    let users: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let with: Vec<&Value> = users.as_array().unwrap().iter().filter(|user| user["password"] == true).collect();
    assert_eq!(with.len(), 2, "{users}");
    assert_eq!(Mqtt::connect_by(connect_from([127, 0, 0, 1], mqtt), 5, ("ann", SECOND), "c", None).1, 0);
    is_done(run(&admin, &["user", "password", "ann", "--remove"], ""));
    let backup = folder.path().join("all.backup");
    is_done(run(&admin, &["backup", backup.to_str().expect("a path"), "--server", &url], ""));
    server.signal("-TERM");
    assert_eq!(server.wait_for_end(), Some(0));
    for secret in [FIRST, SECOND, guess] {
        let mut found = Vec::new();
        files_with(folder.path(), secret, &mut found);
        assert_eq!(found, Vec::<String>::new(), "{secret}");
    }
    let audit = std::fs::read_to_string(data.join("audit/audit.jsonl")).expect("the audit");
    for line in [
        r#""statement":"ALTER USER ann SET PASSWORD""#,
        r#""statement":"ALTER USER ann DROP PASSWORD""#,
        r#""statement":"CREATE TOKEN""#,
        r#""by":"password""#,
    ] {
        assert!(audit.contains(line), "{line} in {audit}");
    }
    let logins = std::fs::read_to_string(data.join("audit/logins/audit.jsonl")).expect("the refused logins");
    assert!(logins.contains(r#""kind":"user","name":"ann""#), "{logins}");
    assert!(!logins.contains("a-guess"), "what is no user's name may be a password in the wrong field: {logins}");
}

#[test]
fn a_login_is_a_request_of_its_tenant_and_a_guess_is_none() {
    let fixture = Fixture::new();
    fixture.done("CREATE TENANT acme WITH (requests_per_second => 1); CREATE USER acme.ann; CREATE USER bob");
    let body = json!({"password": FIRST}).to_string();
    assert_eq!(ask(&fixture.server, &fixture.admin, "PUT", "/api/v1/users/ann/password?tenant=acme", &body).0, 200);
    assert_eq!(set(&fixture, &fixture.admin, "bob", FIRST).0, 200);
    // Otherwise whoever guesses would keep the tenant out.
    for last in 1..=10 {
        assert_eq!(log_in_from([127, 0, 5, last], &fixture.server, "acme/ann", SECOND).0, 401);
    }
    token_of(log_in(&fixture, "acme/ann", FIRST));
    let mut logins = (0..50).map(|_| log_in(&fixture, "acme/ann", FIRST));
    let (status, error) = logins.find(|(status, _)| *status != 201).expect("too many");
    assert_eq!((status, &error["kind"]), (429, &json!("limit_reached")), "{error}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("may send 1 request a second")), "{error}");
    (0..3).for_each(|_| drop(token_of(log_in(&fixture, "bob", FIRST))));
}

#[test]
fn passwords_of_a_backup_end_unless_they_are_to_be_kept() {
    let folder = TempDir::new().expect("a folder");
    let home = folder.path().join("home");
    let nowhere = "http://127.0.0.1:9";
    let offline = |data: &str, arguments: &[&str], input: &str| {
        let output = rivulet(nowhere, &home, "", &[arguments, &["--data-dir", data]].concat(), input);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        (String::from_utf8(output.stdout).expect("text"), said)
    };
    let path = |place: &Path| place.to_str().expect("a path").to_owned();
    let data = path(&folder.path().join("data"));
    // The administrator has nothing but a password.
    offline(&data, &["user", "create", "admin", "--admin"], "");
    offline(&data, &["user", "password", "admin"], &format!("{FIRST}\n"));
    offline(&data, &["user", "create", "ann"], "");
    offline(&data, &["user", "password", "ann"], &format!("{SECOND}\n"));
    offline(&data, &["token", "create", "ann"], "");
    let backup = path(&folder.path().join("all.backup"));
    offline(&data, &["backup", &backup], "");
    for keeps in [false, true] {
        let other = TempDir::new().expect("a folder");
        let data = path(&other.path().join("data"));
        let mut arguments = vec!["restore", &backup];
        arguments.extend(keeps.then_some("--keep-tokens"));
        let (_, said) = offline(&data, &arguments, "");
        assert_eq!(said.contains("1 token and 2 passwords of the backup do not count any more"), !keeps, "{said}");
        let made = (!keeps).then(|| offline(&data, &["token", "create", "admin"], "").0);
        let server = Server::start(other.path());
        let url = server.url();
        // The doors stay closed in both cases.
        assert!(!rivulet(&url, &home, "", &["tenant", "list"], "").status.success());
        for (user, password) in [("admin", FIRST), ("ann", SECOND)] {
            let output = rivulet(&url, &home, "", &["login", "--user", user], password);
            assert_eq!(output.status.success(), keeps, "{output:?}");
        }
        if let Some(token) = made {
            assert!(rivulet(&url, &home, token.trim(), &["tenant", "list"], "").status.success());
            // Another password counts again.
            let set = rivulet(&url, &home, token.trim(), &["user", "password", "ann"], FIRST);
            assert!(set.status.success(), "{set:?}");
            assert!(rivulet(&url, &home, "", &["login", "--user", "ann"], FIRST).status.success());
        }
    }
}
