//! The client against an object store in this process that fails as real stores do.

use rivulet_testing_s3::{
    ACCESS_KEY_ID, BUCKET, Fault, POD_TOKEN, REGION, ROLE, S3Server, SECRET_ACCESS_KEY, WEB_IDENTITY_TOKEN,
};

use super::*;
use crate::Place;
use crate::store::{Home, Store};

/// The settings for a bucket of this server.
pub(crate) fn settings(server: &S3Server, prefix: &str) -> S3Settings {
    S3Settings {
        name: BucketName::parse(&format!("s3://{BUCKET}/{prefix}")).unwrap(),
        endpoint: Some(server.endpoint()),
        region: REGION.into(),
        credentials: Credentials::Key {
            access_key_id: ACCESS_KEY_ID.into(),
            secret_access_key: SECRET_ACCESS_KEY.into(),
            session_token: None,
        },
        allows_http: true,
        ca_file: None,
        timeout: Duration::from_secs(5),
    }
}

fn open_store(settings: &S3Settings) -> Result<Store, StorageError> {
    Store::open(&Place::S3(settings.clone()))
}

fn bucket(server: &S3Server, prefix: &str) -> Store {
    open_store(&settings(server, prefix)).unwrap()
}

/// The same store, with objects in parts of this size.
fn with_parts_of(mut store: Store, bytes: usize) -> Store {
    let Home::Bucket(bucket) = &mut store.home else { panic!("a bucket") };
    bucket.part_bytes = bytes;
    store
}

fn parts(parts: &[&'static [u8]]) -> Vec<Bytes> {
    parts.iter().map(|part| Bytes::from_static(part)).collect()
}

#[test]
fn objects_are_put_once_read_in_parts_listed_and_deleted() {
    let server = S3Server::start();
    for prefix in ["", "a plant/line+1"] {
        let bucket = bucket(&server, prefix);
        bucket.put("line/1", parts(&[b"one ", b"", b"two"])).unwrap();
        assert!(matches!(bucket.put("line/1", parts(&[b"other"])), Err(StorageError::Taken { .. })));
        assert_eq!(bucket.get("line/1").unwrap(), "one two");
        assert_eq!(bucket.get_range("line/1", 2..6).unwrap(), "e tw");
        assert_eq!(bucket.bytes("line/1").unwrap(), 7);
        for number in 2..9 {
            bucket.put(&format!("line/{number}"), Vec::new()).unwrap();
        }
        bucket.put("line2/1", parts(&[b"of another line"])).unwrap();
        let listed = bucket.list("line").unwrap();
        assert_eq!(listed.len(), 8, "over several pages");
        assert!(listed.contains(&("line/1".into(), 7)), "{listed:?}");
        bucket.delete("line/1").unwrap();
        bucket.delete("line/1").unwrap();
        for missing in [
            bucket.get("line/1").map(drop),
            bucket.get_range("line/1", 0..1).map(drop),
            bucket.bytes("line/1").map(drop),
        ] {
            assert!(matches!(missing, Err(StorageError::Damaged { .. })), "{missing:?}");
        }
        assert!(matches!(bucket.get_range("line2/1", 10..99), Err(StorageError::Damaged { .. })));
        assert_eq!(bucket.list("").unwrap().len(), 8);
        bucket.list("").unwrap().iter().for_each(|(name, _)| bucket.delete(name).unwrap());
    }
    assert!(server.names().is_empty());
}

#[test]
fn what_fails_for_a_moment_is_asked_again_and_written_once() {
    let server = S3Server::start();
    let bucket = bucket(&server, "p");
    server.set_fault(Some(Fault::Busy(2)));
    bucket.put("a", parts(&[b"a"])).unwrap();
    // The object was written, the answer was lost, and the next attempt finds the object.
    server.set_fault(Some(Fault::LostAnswers(1)));
    bucket.put("b", parts(&[b"b"])).unwrap();
    server.set_fault(Some(Fault::LostAnswers(3)));
    bucket.put("c", parts(&[b"c"])).unwrap();
    server.set_fault(Some(Fault::NoConditions("PUT")));
    bucket.put("d", parts(&[b"d"])).unwrap();
    assert!(matches!(bucket.put("d", parts(&[b"e"])), Err(StorageError::Taken { .. })));
    assert_eq!(server.names(), ["p/a", "p/b", "p/c", "p/d"]);
    assert_eq!(bucket.get("d").unwrap(), "d");
}

#[test]
fn what_fails_for_good_is_said_with_what_to_do() {
    let mut server = S3Server::start();
    let quick = S3Settings { timeout: Duration::from_millis(300), ..settings(&server, "p") };
    let bucket = open_store(&quick).unwrap();
    let said = |bucket: &Store| {
        let texts =
            [bucket.put("a", parts(&[b"a"])).unwrap_err(), bucket.list("").unwrap_err()].map(|error| error.to_string());
        assert!(texts[0].contains(&format!("s3://{BUCKET}/p/a")), "{}", texts[0]);
        texts.into_iter().reduce(|one, other| format!("{one}\n{other}")).unwrap()
    };
    for (fault, words) in [
        (Fault::Denied, ["AccessDenied", "s3:PutObject"]),
        (Fault::NoBucket, ["NoSuchBucket", "create the bucket"]),
        (Fault::Busy(100), ["SlowDown", "next checkpoint"]),
        (Fault::Silent, ["does not answer within 300ms", "checkpoint.s3.endpoint"]),
        (Fault::LostAnswers(100), ["cannot be reached", "checkpoint.s3.endpoint"]),
    ] {
        server.set_fault(Some(fault.clone()));
        let text = said(&bucket);
        words.iter().for_each(|word| assert!(text.contains(word), "{fault:?}: {word} in {text}"));
    }
    server.set_fault(Some(Fault::Full));
    assert!(bucket.put("full", parts(&[b"a"])).unwrap_err().is_full());
    server.set_fault(None);
    for (id, secret) in [(ACCESS_KEY_ID, "another"), ("nobody", SECRET_ACCESS_KEY)] {
        let credentials =
            Credentials::Key { access_key_id: id.into(), secret_access_key: secret.into(), session_token: None };
        let said = said(&open_store(&S3Settings { credentials, ..quick.clone() }).unwrap());
        assert!(said.contains("checkpoint.s3.access_key_id"), "{said}");
    }
    server.stop();
    assert!(said(&bucket).contains("cannot be reached"));
    let plain = S3Settings { allows_http: false, ..quick.clone() };
    let error = open_store(&plain).unwrap_err().to_string();
    assert!(error.contains("not encrypted") && error.contains("allow_http"), "{error}");
    let no_authorities = S3Settings { ca_file: Some("/nowhere/ca.pem".into()), ..quick };
    assert!(open_store(&no_authorities).unwrap_err().to_string().contains("checkpoint.s3.ca_file"));
}

/// Runs against a real object store: `RIVULET_S3_ENDPOINT`, with the bucket, region and key of this test.
#[test]
fn a_store_of_somebody_else_is_served_alike() {
    let Ok(endpoint) = std::env::var("RIVULET_S3_ENDPOINT") else { return };
    let server = S3Server::start();
    let prefix = format!("run-{}", std::process::id());
    let bucket = open_store(&S3Settings { endpoint: Some(endpoint), ..settings(&server, &prefix) }).unwrap();
    bucket.put("line/one more+1", parts(&[b"one ", b"two"])).unwrap();
    assert!(matches!(bucket.put("line/one more+1", parts(&[b"other"])), Err(StorageError::Taken { .. })));
    assert_eq!(bucket.get("line/one more+1").unwrap(), "one two");
    assert_eq!(bucket.get_range("line/one more+1", 2..5).unwrap(), "e t");
    assert_eq!(bucket.list("line").unwrap(), [("line/one more+1".into(), 7)]);
    assert!(matches!(bucket.get("line/2"), Err(StorageError::Damaged { .. })));
    bucket.delete("line/one more+1").unwrap();
    // The least size of a part.
    let store = with_parts_of(bucket, 5 << 20);
    let large = || vec![Bytes::from(vec![7; 11 << 20])];
    store.put("large", large()).unwrap();
    assert!(matches!(store.put("large", large()), Err(StorageError::Taken { .. })));
    assert_eq!(store.bytes("large").unwrap(), 11 << 20);
    assert_eq!(store.read("large", (11 << 20) - 2..11 << 20).unwrap(), [7, 7][..]);
    store.delete("large").unwrap();
    assert!(store.list("").unwrap().is_empty());
}

#[test]
fn a_slow_store_is_waited_for_while_it_does_something() {
    let server = S3Server::start();
    server.set_fault(Some(Fault::Slow(Duration::from_millis(200))));
    let store = crate::Store::open(&Place::S3(settings(&server, "p"))).unwrap();
    store.put("a", parts(&[b"a"])).unwrap();
    assert_eq!(store.names().unwrap(), [("a".into(), 1)]);
    assert_eq!(store.read("a", 0..1).unwrap(), "a");
}

#[test]
fn a_large_object_is_put_in_parts_and_only_where_none_is() {
    let server = S3Server::start();
    let store = with_parts_of(bucket(&server, "p"), 4);
    let pieces: [&[u8]; 4] = [b"one", b"", b"two, three, ", b"four"];
    let whole = pieces.concat();
    store.put("a", parts(&pieces)).unwrap();
    assert_eq!(store.get("a").unwrap(), whole);
    assert_eq!(server.requests().iter().filter(|request| request.starts_with("PUT")).count(), 5);
    assert!(matches!(store.put("a", parts(&[b"other bytes"])), Err(StorageError::Taken { .. })));
    assert_eq!(store.get("a").unwrap(), whole);
    // Whichever answer is lost (of the begin, of a part, of the end), the object is there once and whole.
    for before in 0..8 {
        server.set_fault(Some(Fault::LostAnswerBehind(before)));
        let name = format!("lost-{before}");
        store.put(&name, parts(&pieces)).unwrap();
        assert_eq!(store.get(&name).unwrap(), whole, "behind {before}");
    }
    server.set_fault(Some(Fault::NoPutOf("denied")));
    let before = server.unfinished_uploads();
    let error = store.put("denied", parts(&pieces)).unwrap_err().to_string();
    assert!(error.contains("AccessDenied") && error.contains("s3:PutObject"), "{error}");
    assert_eq!(server.unfinished_uploads(), before, "its parts are removed");
    server.set_fault(Some(Fault::NoConditions("POST")));
    store.put("b", parts(&pieces)).unwrap();
    assert!(matches!(store.put("b", parts(&[b"other bytes"])), Err(StorageError::Taken { .. })));
    assert_eq!(store.get("b").unwrap(), whole);
}

#[test]
fn objects_of_others_with_names_that_are_no_paths_are_passed_over() {
    let server = S3Server::start();
    let bucket = bucket(&server, "p");
    for number in 0..8 {
        bucket.put(&format!("line/{number}"), parts(&[b"a"])).unwrap();
    }
    let before = bucket.names().unwrap();
    for foreign in ["p//a", "p/line//4", "p/line/5/../6", "p/line/./7", "p/line/8//", "p/line/9\u{1}", "p/\u{7f}//b"] {
        server.put_foreign(foreign);
    }
    assert_eq!(bucket.names().unwrap(), before);
    assert_eq!(bucket.list("line").unwrap().len(), 8);
}

#[test]
fn a_list_that_does_not_end_is_given_up() {
    let server = S3Server::start();
    let mut store = bucket(&server, "p");
    let Home::Bucket(of_store) = &mut store.home else { panic!("a bucket") };
    of_store.list_wait = Duration::from_millis(500);
    for number in 0..5 {
        store.put(&format!("line/{number}"), parts(&[b"a"])).unwrap();
    }
    for (is_empty, words) in [(true, "without an object"), (false, "begins again")] {
        server.set_fault(Some(Fault::EndlessLists { is_empty }));
        let error = store.names().unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("hint: check checkpoint.s3.endpoint"), "{error}");
    }
    server.set_fault(None);
    assert_eq!(store.names().unwrap().len(), 5);
}

#[test]
fn an_upload_is_aborted_behind_all_parts_that_travel() {
    let server = S3Server::start();
    let store = with_parts_of(bucket(&server, "p"), 4);
    server.set_fault(Some(Fault::NoPart(2, Duration::from_millis(200))));
    let error = store.put("a", parts(&[&[7; 30]])).unwrap_err().to_string();
    assert!(error.contains("AccessDenied"), "{error}");
    let requests: Vec<String> = server.requests().iter().map(|request| request.replace("/state/p/a", "")).collect();
    let methods: Vec<&str> = requests.iter().map(|request| request.trim()).collect();
    // Of eight parts, those behind the first four are not sent any more.
    assert_eq!(methods, ["POST", "PUT", "PUT", "PUT", "PUT", "DELETE", "HEAD"]);
    assert_eq!(server.unfinished_uploads(), 0);
}

#[test]
fn a_store_that_knows_conditions_for_one_kind_of_put_is_asked_for_them_there() {
    let (small, large): (&[u8], &[u8]) = (b"one", b"one, two, three");
    for (method, without, with) in [("POST", large, small), ("PUT", small, large)] {
        let server = S3Server::start();
        let store = with_parts_of(bucket(&server, "p"), 4);
        server.set_fault(Some(Fault::NoConditions(method)));
        let put = |name: &str, bytes: &'static [u8]| {
            store.put(name, parts(&[bytes])).unwrap();
            assert!(matches!(store.put(name, parts(&[bytes])), Err(StorageError::Taken { .. })), "{name}");
            server.requests().first().unwrap().starts_with("HEAD")
        };
        put("a", without);
        assert!(put("b", without), "it is looked first, for there is no condition");
        assert!(!put("c", with), "{method}");
    }
}

#[test]
fn what_is_no_list_is_not_taken_for_an_empty_one() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = S3Server::start();
    let endpoint = Some(format!("http://{}", listener.local_addr().unwrap()));
    let thread = std::thread::spawn(move || {
        use std::io::{BufRead, BufReader, Write};
        let (mut socket, _) = listener.accept().unwrap();
        let lines = BufReader::new(socket.try_clone().unwrap()).lines();
        lines.map_while(std::result::Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
        let page = "<html><body>Welcome to this network</body></html>";
        write!(socket, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{page}", page.len()).unwrap();
    });
    let store = open_store(&S3Settings { endpoint, ..settings(&server, "p") }).unwrap();
    let error = store.names().unwrap_err().to_string();
    assert!(error.contains("no S3-compatible object store"), "{error}");
    thread.join().unwrap();
}

#[test]
fn keys_that_roles_give_are_renewed() {
    let server = S3Server::start();
    let folder = tempfile::tempdir().unwrap();
    let (token, pod) = (folder.path().join("token"), folder.path().join("pod"));
    std::fs::write(&token, WEB_IDENTITY_TOKEN).unwrap();
    std::fs::write(&pod, POD_TOKEN).unwrap();
    let endpoint = || Some(server.endpoint());
    let web = |role: &str, token_file: &std::path::Path| Credentials::WebIdentity {
        role_arn: role.into(),
        token_file: token_file.into(),
        sts_endpoint: endpoint(),
    };
    let ways = [
        web(ROLE, &token),
        Credentials::Pod { url: format!("{}/v1/credentials", server.endpoint()), token_file: pod.clone() },
        Credentials::Instance { endpoint: endpoint() },
    ];
    for credentials in ways {
        server.forget_given_keys();
        let store = open_store(&S3Settings { credentials: credentials.clone(), ..settings(&server, "p") }).unwrap();
        assert_eq!(server.given_keys(), 0, "nothing is asked before it is needed");
        store.put("a", parts(&[b"a"])).unwrap();
        assert_eq!(store.get("a").unwrap(), "a");
        assert_eq!(server.given_keys(), 1, "{credentials:?}");
        // Keys that expire at once are renewed.
        server.set_expiry("2020-01-01T00:00:00Z");
        let store = open_store(&S3Settings { credentials, ..settings(&server, "p") }).unwrap();
        store.delete("a").unwrap();
        store.delete("a").unwrap();
        assert_eq!(server.given_keys(), 3);
        server.set_expiry("3026-01-01T00:00:00Z");
    }
    let other = open_store(&S3Settings { credentials: web("another role", &token), ..settings(&server, "p") }).unwrap();
    let error = other.get("a").unwrap_err().to_string();
    assert!(error.contains("AccessDenied") && error.contains("checkpoint.s3.role_arn"), "{error}");
    let missing = web(ROLE, &folder.path().join("nowhere"));
    let error = open_store(&S3Settings { credentials: missing, ..settings(&server, "p") }).unwrap_err().to_string();
    assert!(error.contains("nowhere") && error.contains("checkpoint.s3.web_identity_token_file"), "{error}");
}

#[test]
fn a_token_that_fits_into_no_request_is_an_error() {
    let server = S3Server::start();
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("pod");
    let url = format!("{}/v1/credentials", server.endpoint());
    let credentials = Credentials::Pod { url, token_file: token_file.clone() };
    std::fs::write(&token_file, format!("{POD_TOKEN}\n\0")).unwrap();
    let store = open_store(&S3Settings { credentials, ..settings(&server, "p") }).unwrap();
    let error = store.put("a", parts(&[b"a"])).unwrap_err().to_string();
    assert!(error.contains("cannot write") || error.contains("credentials"), "{error}");
    std::fs::write(&token_file, POD_TOKEN).unwrap();
    store.put("a", parts(&[b"a"])).unwrap();
}
