//! The REST API, one request at a time.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;

use rivulet::api::types::{
    Application, ApplicationList, Explanation, Health, Query, QueryCreated, QueryPage, QuerySubmission, SqlAnswer,
    Status,
};
use rivulet::http_client::{Client, ClientError, WatchEvent};
use serde_json::{Value, json};

use crate::support::{AsOperator, TestServer, WAIT_MAX, exchange, request, wait_until};

fn submit(client: &Client, name: Option<&str>) -> Result<QueryCreated, ClientError> {
    let parameters = json!({"home": "42", "target": 22.5}).as_object().cloned().expect("an object");
    let submission =
        QuerySubmission { name: name.map(str::to_owned), application: "ac_control".into(), parameters, label: None };
    client.post_json("/api/v1/queries", &submission)
}

/// Kind of the error that the server answers with.
fn kind<T: std::fmt::Debug>(result: Result<T, ClientError>) -> String {
    match result.expect_err("a refusal") {
        ClientError::Refused(error) => error.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn applications_are_registered_shown_explained_and_dropped() {
    let (server, _) = TestServer::with_memory();
    let client = server.client();
    let sql = "CREATE APPLICATION heart (patient TEXT)";
    let heart: Application = client.post_text("/api/v1/applications", sql).expect("an application");
    let again: Application = client.post_text("/api/v1/applications", sql).expect("the same application");
    assert_eq!(heart, again);
    assert_eq!(
        kind(client.post_text::<Application>("/api/v1/applications", "CREATE APPLICATION heart")),
        "already_exists"
    );
    let replacing = |path: &str, sql: &str| {
        let application = client.post_text::<Application>(path, sql).expect("an application");
        application.replacement.expect("what became of the one before")
    };
    let replace = "/api/v1/applications?replace=true";
    let same = replacing(replace, sql);
    assert!(!same.is_new && !same.is_changed);
    let other = replacing(&format!("{replace}&discard_state=true"), &format!("{sql} "));
    assert!(other.is_changed && other.queries == 3 && !other.state_discarded.is_empty());
    assert!(replacing(replace, sql).is_changed);
    assert_eq!(kind(client.post_text::<Application>("/api/v1/applications?discard_state=true", sql)), "invalid");
    let list: ApplicationList = client.get("/api/v1/applications", &[]).expect("a list");
    assert_eq!(
        list.applications.iter().map(|application| application.name.as_str()).collect::<Vec<_>>(),
        ["ac_control", "heart"]
    );
    let by_id: Application = client.get(&format!("/api/v1/applications/{}", heart.id), &[]).expect("an application");
    assert_eq!(by_id, heart);
    assert_eq!(by_id.parameters[1].default.as_deref(), Some("24.0"));
    let explanation: Explanation = client.get("/api/v1/applications/heart/explain", &[]).expect("an explanation");
    assert_eq!(explanation.explanation, "dataflow of heart\n  window");

    submit(&client, Some("kims_ac")).expect("a query");
    assert_eq!(kind(client.delete("/api/v1/applications/ac_control", &[])), "conflict");
    client.delete("/api/v1/applications/ac_control", &[("cascade", "true")]).expect("dropped");
    assert_eq!(kind(client.get::<Application>("/api/v1/applications/ac_control", &[])), "not_found");
    assert_eq!(kind(client.get::<Query>("/api/v1/queries/kims_ac", &[])), "not_found");
}

#[test]
fn queries_are_submitted_listed_paused_resumed_and_dropped() {
    let (server, _) = TestServer::with_memory();
    let client = server.client();
    assert_eq!(submit(&client, Some("kims_ac")).expect("a query"), QueryCreated { id: 1, name: "kims_ac".into() });
    assert_eq!(submit(&client, None).expect("a query"), QueryCreated { id: 2, name: "query_2".into() });
    assert_eq!(kind(submit(&client, Some("kims_ac"))), "already_exists");
    let odd = submit(&client, Some("a/b c?ü")).expect("a query with a name that needs care");

    let show =
        |name: &str| client.get::<Query>(&format!("/api/v1/queries/{}", rivulet::http_client::segment(name)), &[]);
    let query = show("kims_ac").expect("the query");
    assert_eq!(Value::Object(query.parameters), json!({"home": "42", "target": 22.5}));
    assert_eq!((query.state.as_str(), query.results, query.events), ("running", Some(3), None));
    client.post_empty("/api/v1/queries/kims_ac/pause").expect("paused");
    assert_eq!(show("kims_ac").expect("the query").state, "paused");
    client.post_empty("/api/v1/queries/kims_ac/resume").expect("resumed");
    assert_eq!(show("kims_ac").expect("the query").state, "running");
    assert_eq!(show(&odd.name).expect("the query").id, Some(odd.id));
    client.delete(&format!("/api/v1/queries/{}", rivulet::http_client::segment(&odd.name)), &[]).expect("dropped");
    assert_eq!(kind(show(&odd.name)), "not_found");
    assert_eq!(kind(client.post_empty("/api/v1/queries/nobody/pause")), "not_found");
}

#[test]
fn lists_have_pages() {
    let (server, _) = TestServer::with_memory();
    let client = server.client();
    for place in 0..5 {
        submit(&client, Some(&format!("home_{place}"))).expect("a query");
    }
    submit(&client, Some("other")).expect("a query");
    let mut names = Vec::new();
    let mut after = String::new();
    loop {
        let page: QueryPage = client
            .get(
                "/api/v1/queries",
                &[("limit", "2"), ("like", "home%"), ("application", "ac_control"), ("after", &after)],
            )
            .expect("a page");
        assert!(page.queries.len() <= 2);
        names.extend(page.queries.into_iter().map(|query| query.name));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(names, ["home_0", "home_1", "home_2", "home_3", "home_4"]);
    for limit in ["0", "1001", "many", "-1"] {
        assert_eq!(kind(client.get::<QueryPage>("/api/v1/queries", &[("limit", limit)])), "invalid", "{limit}");
    }
}

#[test]
fn scripts_answer_with_results_and_the_error_that_stopped_them() {
    let (server, _) = TestServer::with_memory();
    let client = server.client();
    let answer = client.run_script("SHOW QUERIES;\nPAUSE;").expect("an answer");
    assert_eq!(answer.results.len(), 2);
    assert_eq!(answer.results[0].rows[0], [json!("kims_ac"), json!(12)]);
    assert_eq!(answer.error, None);
    let SqlAnswer { results, error, statements_not_run } =
        client.run_script("PAUSE;\nNONSENSE;\nPAUSE;").expect("an answer");
    let error = error.expect("an error");
    assert_eq!((results.len(), statements_not_run), (1, 0), "the service stands for an engine; its script is no SQL");
    assert_eq!((error.kind.as_str(), error.line, error.column), ("invalid", Some(2), Some(3)));
    assert_eq!(error.hint.as_deref(), Some("try SHOW QUERIES"));
    let (status, body) = exchange(server.address, &request("POST", "/api/v1/sql", "", "NONSENSE;"));
    assert_eq!(status, 400);
    assert!(body.starts_with("{\"results\":[],\"error\":{\"kind\":\"invalid\""), "{body}");
}

#[test]
fn every_error_is_json_with_its_status() {
    let (server, service) = TestServer::with_memory();
    service.operator().submit(&[rivulet::service::QueryRequest {
        name: Some("q"),
        application: "ac_control",
        parameters: &[],
        label: None,
    }]);
    let large = "x".repeat((4 << 20) + 1);
    for (method, path, body, status, kind) in [
        ("GET", "/nowhere", "", 404, "not_found"),
        ("GET", "/api/v1/nowhere", "", 404, "not_found"),
        ("DELETE", "/api/v1/status", "", 405, "method_not_allowed"),
        ("POST", "/api/v1/sql", large.as_str(), 413, "too_large"),
        ("POST", "/api/v1/sql", "PANIC;", 500, "internal"),
        ("POST", "/api/v1/sql", "{\"sql\": \"SHOW QUERIES\"}", 400, "invalid"),
        ("POST", "/api/v1/queries", "{\"application\":", 400, "invalid"),
        ("POST", "/api/v1/queries", "{\"application\":\"nobody\"}", 404, "not_found"),
        ("POST", "/api/v1/queries", "{\"application\":\"ac_control\",\"name\":\"q\"}", 409, "already_exists"),
        ("DELETE", "/api/v1/applications/ac_control", "", 409, "conflict"),
        ("DELETE", "/api/v1/applications/ac_control?cascade=perhaps", "", 400, "invalid"),
        ("GET", "/api/v1/queries/q/results?limit=few", "", 400, "invalid"),
        ("GET", "/api/v1/queries/nobody/results", "", 404, "not_found"),
    ] {
        let (got, answer) = exchange(server.address, &request(method, path, "", body));
        assert_eq!(got, status, "{method} {path}: {answer}");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["error"]["kind"], kind, "{method} {path}");
        assert!(answer["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{method} {path}");
    }
    // The defect above harmed nobody else.
    let status: Status = server.client().get("/api/v1/status", &[]).expect("a status");
    assert_eq!(status.queries_running, 2);
}

#[test]
fn pages_of_other_sites_get_and_change_nothing() {
    let (server, _) = TestServer::with_memory();
    let post = |headers: &str| exchange(server.address, &request("POST", "/api/v1/sql", headers, "PAUSE;")).0;
    assert_eq!(post("origin: http://evil.test\r\n"), 403);
    assert_eq!(post("origin: null\r\n"), 403);
    assert_eq!(post("origin: http://localhost\r\n"), 200);
    assert_eq!(post(""), 200);
    // What a browser sends for an image, a script and a frame of a page has no origin.
    let get = |path: &str, headers: &str| exchange(server.address, &request("GET", path, headers, "")).0;
    let image = "sec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\nsec-fetch-dest: image\r\n";
    let frame = "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: iframe\r\n";
    for path in ["/api/v1/status", "/api/v1/queries/q/results", "/metrics", "/api/docs/"] {
        for headers in ["origin: http://evil.test\r\n", image, frame] {
            assert_eq!(get(path, headers), 403, "{path} {headers}");
        }
    }
    let link = "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";
    assert_eq!(get("/metrics", link), 200, "following a link is an act of the user");
    assert_eq!(get("/api/v1/status", "sec-fetch-site: same-origin\r\n"), 200);
}

#[test]
fn browsers_are_told_to_show_answers_in_no_frame_and_to_keep_none() {
    let (server, _) = TestServer::with_memory();
    let evil = "origin: http://evil.test\r\n";
    for (method, path, headers, policy) in [
        ("GET", "/api/v1/status", "", "default-src 'none'; frame-ancestors 'none'"),
        ("GET", "/metrics", "", "default-src 'none'"),
        ("GET", "/no/such/path", "", "default-src 'none'"),
        ("POST", "/api/v1/sql", evil, "default-src 'none'"),
        ("GET", "/api/docs/", "", "default-src 'self'"),
        ("GET", "/", "", "default-src 'none'; script-src 'self'; style-src 'self'"),
    ] {
        let mut stream = TcpStream::connect(server.address).expect("a connection");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        stream.write_all(request(method, path, headers, "").as_bytes()).expect("a request");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let answer = String::from_utf8_lossy(&answer).to_lowercase();
        let head = answer.split("\r\n\r\n").next().unwrap_or_default();
        for line in ["x-content-type-options: nosniff", "x-frame-options: deny", "referrer-policy: no-referrer"] {
            assert!(head.contains(line), "{path}: {head}");
        }
        assert!(head.contains("cross-origin-resource-policy: same-origin"), "{path}: {head}");
        assert!(head.contains("content-security-policy: ") && head.contains(policy), "{path}: {head}");
        assert!(!head.contains("access-control-allow"), "{path}: {head}");
        let is_answer = path.starts_with("/api/v1/") || path == "/metrics";
        assert!(!is_answer || head.contains("cache-control: no-store"), "{path}: {head}");
    }
}

#[test]
fn bodies_of_other_kinds_are_refused_by_name() {
    let (server, _) = TestServer::with_memory();
    let post = |kind: &str| {
        let headers = if kind.is_empty() { String::new() } else { format!("content-type: {kind}\r\n") };
        exchange(server.address, &request("POST", "/api/v1/sql", &headers, "SHOW QUERIES;"))
    };
    for kind in ["", "text/plain", "Text/Plain; charset=utf-8", "application/sql", "application/x-www-form-urlencoded"]
    {
        assert_eq!(post(kind).0, 200, "{kind}");
    }
    for kind in ["multipart/form-data; boundary=x", "text/html", "application/xml", "image/png", "x"] {
        let (status, answer) = post(kind);
        assert!(
            status == 415 && answer.contains("unsupported_media_type") && answer.contains("hint"),
            "{kind}: {answer}"
        );
    }
}

#[test]
fn json_that_is_nested_deeply_is_refused() {
    let (server, _) = TestServer::with_memory();
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let body = format!("{{\"application\":\"ac_control\",\"parameters\":{{\"home\":{nested}}}}}");
    let ask = |method: &str, path: &str, body: &str| exchange(server.address, &request(method, path, "", body));
    assert_eq!(ask("POST", "/api/v1/queries", &body).0, 400);
    assert_eq!(ask("PATCH", "/api/v1/queries/q", &body).0, 400);
    let (status, answer) = ask("POST", "/api/v1/queries/bulk", &format!("{body}\n"));
    assert!(status == 200 && answer.contains("\"error\""), "{answer}");
    assert_eq!(ask("GET", "/api/v1/status", "").0, 200);
}

/// No call that changes anything is a GET, and none takes a token in its address.
#[test]
fn no_get_changes_anything_and_no_address_has_a_token() {
    let document = serde_json::to_value(rivulet::api::openapi()).expect("a document");
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let name = |parameter: &Value| parameter["name"].as_str().expect("a name").to_lowercase();
            let in_address = ["token", "password", "secret", "key", "auth"];
            assert!(!parameters.iter().any(|one| in_address.iter().any(|word| name(one).contains(word))), "{path}");
            let id = operation["operationId"].as_str().expect("an id");
            let looks =
                ["list_", "show_", "explain_", "watch_", "live", "ready"].iter().any(|word| id.starts_with(word));
            assert!(method != "get" || looks, "{method} {path} is {id}");
        }
    }
}

#[test]
fn status_metrics_and_health() {
    let (server, _) = TestServer::with_memory();
    let client = server.client();
    let status: Status = client.get("/api/v1/status", &[]).expect("a status");
    assert_eq!(status.applications[0].refused, BTreeMap::from([("decode".into(), 2), ("late".into(), 0)]));
    assert_eq!(status.applications[0].processing.p99_us, Some(2_500));
    let (code, metrics) = exchange(server.address, &request("GET", "/metrics", "", ""));
    assert_eq!((code, metrics.contains("events_total 1000")), (200, true));
    for (accept, content_type) in [
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    ] {
        let answer = ureq::get(format!("http://{}/metrics", server.address)).header("accept", accept).call();
        assert_eq!(answer.expect("metrics").headers()["content-type"], content_type);
    }
    assert_eq!(client.get::<Health>("/health/live", &[]).expect("alive").status, "ok");
    assert_eq!(client.get::<Health>("/health/ready", &[]).expect("ready").status, "ok");
    client.post_text::<Application>("/api/v1/applications", "CREATE APPLICATION broken").expect("an application");
    let (code, body) = exchange(server.address, &request("GET", "/health/ready", "", ""));
    assert_eq!((code, body.contains("the broker is not connected")), (503, true));
    assert_eq!(client.get::<Health>("/health/live", &[]).expect("alive").status, "ok");
}

#[test]
fn results_are_watched_live_and_losses_are_told() {
    let (server, service) = TestServer::with_memory();
    let client = server.client();
    submit(&client, Some("kims_ac")).expect("a query");
    let watch = |limit| {
        let client = server.client();
        thread::spawn(move || {
            let mut seen = Vec::new();
            let visit = |event: WatchEvent<'_>| {
                seen.push(match event {
                    WatchEvent::Result(result) => result.to_owned(),
                    WatchEvent::Lost(_) => "lost".to_owned(),
                    WatchEvent::Refused(text) => format!("refused: {text}"),
                    WatchEvent::End(reason) => format!("end: {reason}"),
                });
                Ok::<_, ClientError>(())
            };
            client.watch("kims_ac", limit, visit).map(|()| seen)
        })
    };
    let (limited, endless) = (watch(Some(2)), watch(None));
    wait_until("two watch", || service.watchers("kims_ac") == 2);
    for place in 0..2 {
        service.emit("kims_ac", &format!("{{\"action\":\"heat\",\"place\":{place}}}"));
    }
    let seen = limited.join().expect("a watcher").expect("results");
    assert_eq!(seen, ["{\"action\":\"heat\",\"place\":0}", "{\"action\":\"heat\",\"place\":1}", "end: limit"]);
    // Dropping the query ends the stream, and whoever has seen some results has seen all or was told of a loss.
    client.delete("/api/v1/queries/kims_ac", &[]).expect("dropped");
    let seen = endless.join().expect("a watcher").expect("results");
    assert_eq!((seen.len(), seen.last().map(String::as_str)), (3, Some("end: dropped")), "{seen:?}");
}

#[test]
fn a_slow_watcher_is_told_how_many_results_it_lost() {
    let (server, service) = TestServer::with_memory();
    let client = server.client();
    submit(&client, Some("kims_ac")).expect("a query");
    // The watcher holds the first result until more than the channel and the socket hold were emitted after it.
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    let (seen_first, first_seen) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let watcher = {
        let client = server.client();
        thread::spawn(move || {
            let (mut results, mut lost) = (0_u64, 0_u64);
            let visit = |event: WatchEvent<'_>| {
                match event {
                    WatchEvent::Result(_) => results += 1,
                    WatchEvent::Lost(count) => lost += count,
                    WatchEvent::Refused(_) | WatchEvent::End(_) => {}
                }
                if results == 1 && lost == 0 {
                    let _ = seen_first.send(());
                    let _ = may_go_on.recv_timeout(crate::support::WAIT_MAX);
                }
                Ok::<_, ClientError>(())
            };
            client.watch("kims_ac", None, visit).map(|()| (results, lost))
        })
    };
    wait_until("somebody watches", || service.watchers("kims_ac") == 1);
    service.emit("kims_ac", "1");
    first_seen.recv_timeout(crate::support::WAIT_MAX).expect("the first result");
    for _ in 0..64 {
        service.emit("kims_ac", &large);
    }
    go_on.send(()).expect("the watcher");
    client.delete("/api/v1/queries/kims_ac", &[]).expect("dropped");
    let (results, lost) = watcher.join().expect("the watcher").expect("results");
    assert_eq!(results + lost, 65);
    assert!(lost > 0);
}

#[test]
fn stopping_ends_watching() {
    let (mut server, service) = TestServer::with_memory();
    let client = server.client();
    submit(&client, Some("kims_ac")).expect("a query");
    let watcher = {
        let client = server.client();
        thread::spawn(move || {
            let mut reason = None;
            let visit = |event: WatchEvent<'_>| {
                if let WatchEvent::End(end) = event {
                    reason = Some(end.to_owned());
                }
                Ok::<_, ClientError>(())
            };
            client.watch("kims_ac", None, visit).map(|()| reason)
        })
    };
    wait_until("somebody watches", || service.watchers("kims_ac") == 1);
    server.stop();
    let reason = watcher.join().expect("the watcher").expect("an end, not an error");
    assert_eq!(reason.as_deref(), Some("stopping"));
}

#[test]
fn the_root_is_the_console_and_the_paths_are_shown_below_it() {
    let (server, _) = TestServer::with_memory();
    let (status, page) = exchange(server.address, &request("GET", "/", "", ""));
    assert!(status == 200 && page.contains("/console/app.js"), "{page}");
    let docs = format!("{}/api/docs/", server.url());
    let page = unzipped(&ureq::get(docs).call().expect("the page").body_mut().read_to_vec().expect("it"));
    assert!(page.contains("swagger"), "{page}");
}

#[test]
fn the_document_describes_every_path_and_the_page_shows_it() {
    let (server, _) = TestServer::with_memory();
    let document: Value = server.client().get("/api/openapi.json", &[]).expect("the document");
    assert_eq!(document, serde_json::to_value(rivulet::api::openapi()).expect("JSON"));
    let paths: Vec<&String> = document["paths"].as_object().expect("paths").keys().collect();
    assert_eq!(
        paths,
        [
            "/api/v1/applications",
            "/api/v1/applications/{name}",
            "/api/v1/applications/{name}/explain",
            "/api/v1/audit",
            "/api/v1/backup",
            "/api/v1/big-queries",
            "/api/v1/big-queries/{name}/dataflow",
            "/api/v1/checkpoint",
            "/api/v1/clients",
            "/api/v1/grants",
            "/api/v1/grants/revoke",
            "/api/v1/history",
            "/api/v1/login",
            "/api/v1/queries",
            "/api/v1/queries/bulk",
            "/api/v1/queries/{name}",
            "/api/v1/queries/{name}/pause",
            "/api/v1/queries/{name}/results",
            "/api/v1/queries/{name}/resume",
            "/api/v1/secrets",
            "/api/v1/secrets/{name}",
            "/api/v1/select",
            "/api/v1/session",
            "/api/v1/sql",
            "/api/v1/status",
            "/api/v1/tables",
            "/api/v1/tables/{name}",
            "/api/v1/tables/{name}/refresh",
            "/api/v1/tenants",
            "/api/v1/tenants/{name}",
            "/api/v1/tokens",
            "/api/v1/tokens/{name}",
            "/api/v1/tokens/{name}/rotate",
            "/api/v1/trial",
            "/api/v1/users",
            "/api/v1/users/{name}",
            "/api/v1/users/{name}/password",
            "/health/live",
            "/health/ready",
            "/metrics",
        ]
    );
    // Every reference leads somewhere.
    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(document["components"]["schemas"].get(name).is_some(), "{name} is not described");
    }
    let mut answer = ureq::get(format!("http://{}/api/docs/", server.address)).call().expect("the page");
    assert_eq!(answer.headers()["content-encoding"], "gzip");
    let page = unzipped(&answer.body_mut().read_to_vec().expect("the page"));
    assert!(page.contains("swagger-ui") && !page.contains("https://"), "it loads nothing from elsewhere: {page}");
    let (status, script) = exchange(server.address, &request("GET", "/api/docs/swagger-initializer.js", "", ""));
    assert_eq!((status, script.contains("/api/openapi.json")), (200, true), "{script}");
}

/// A file that is stored compressed, as browsers read it.
fn unzipped(file: &[u8]) -> String {
    let mut gzip = Command::new("gzip").arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gzip");
    // It is smaller than what a pipe holds.
    gzip.stdin.take().expect("its input").write_all(file).expect("it reads");
    let output = gzip.wait_with_output().expect("it ends");
    String::from_utf8(output.stdout).expect("text")
}

/// The fields that the document requires of an answer.
fn required(document: &Value, path: &str, method: &str, status: u16) -> Vec<String> {
    let responses = &document["paths"][path][method]["responses"];
    let range = format!("{}XX", status / 100);
    let found = [status.to_string(), range, "default".to_owned()].into_iter().find(|key| responses[key].is_object());
    let found = found.unwrap_or_else(|| panic!("{status} of {method} {path} is not described"));
    let reference = responses[&found]["content"]["application/json"]["schema"]["$ref"].as_str().expect("a schema");
    let name = reference.rsplit('/').next().expect("a name");
    let fields = document["components"]["schemas"][name]["required"].as_array().cloned().unwrap_or_default();
    fields.iter().map(|field| field.as_str().expect("a name").to_owned()).collect()
}

#[test]
fn answers_are_what_the_document_says() {
    let (server, _) = TestServer::with_memory();
    let document: Value = server.client().get("/api/openapi.json", &[]).expect("the document");
    let (large, evil) = ("x".repeat((4 << 20) + 1), "origin: http://evil.test\r\n");
    for (method, path, query, headers, body, status) in [
        ("post", "/api/v1/sql", "", "", "SHOW QUERIES;", 200),
        ("post", "/api/v1/sql", "", "", "NONSENSE;", 400),
        ("post", "/api/v1/sql", "", "", "{\"sql\": 1}", 400),
        ("post", "/api/v1/sql", "", "", large.as_str(), 413),
        ("post", "/api/v1/sql", "", "", "PANIC;", 500),
        ("post", "/api/v1/sql", "", evil, "SHOW QUERIES;", 403),
        ("get", "/api/v1/queries", "?limit=1", "", "", 200),
        ("get", "/api/v1/queries", "?limit=1000", "", "", 200),
        ("get", "/api/v1/queries", "?limit=0", "", "", 400),
        ("get", "/api/v1/queries", "?limit=1001", "", "", 400),
        ("get", "/api/v1/big-queries", "", "", "", 200),
        ("post", "/api/v1/big-queries", "", "", "SHOW QUERIES", 400),
        ("post", "/api/v1/queries", "", "", "{", 400),
        ("get", "/health/ready", "", "", "", 200),
    ] {
        let asked = format!("{method} {path}{query}");
        let text = request(&method.to_uppercase(), &format!("{path}{query}"), headers, body);
        let (code, answer) = exchange(server.address, &text);
        assert_eq!(code, status, "{asked}: {answer}");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        for field in required(&document, path, method, code) {
            assert!(!answer[&field].is_null(), "{asked}: the field {field} is missing in {answer}");
        }
    }
    let limits = document["paths"]["/api/v1/queries"]["get"]["parameters"].as_array().expect("parameters");
    let limit = limits.iter().find(|parameter| parameter["name"] == "limit").expect("a limit");
    assert_eq!((&limit["schema"]["minimum"], &limit["schema"]["maximum"]), (&json!(1), &json!(1000)));
}

#[test]
fn a_port_in_use_is_an_error_with_a_hint() {
    let (server, _) = TestServer::with_memory();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let error = runtime.block_on(rivulet::api::listen(server.address)).expect_err("a port in use");
    assert!(error.to_string().contains(&server.address.to_string()), "{error}");
    assert!(error.hint().contains("RIVULET_HTTP_ADDRESS"), "{}", error.hint());
}

#[test]
fn a_server_that_is_not_there() {
    let address = {
        let (server, _) = TestServer::with_memory();
        server.address
    };
    let client = Client::new(&format!("http://{address}")).expect("an address");
    let error = client.get::<Status>("/api/v1/status", &[]).expect_err("nobody answers");
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
    assert!(error.hint().expect("a hint").contains("rivulet serve"));
    let error = client.submit_bulk(std::io::empty(), false, |_| Ok::<_, ClientError>(())).expect_err("nobody answers");
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
}
