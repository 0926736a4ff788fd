//! The client against an object store in this process that fails as such stores do.

use rivulet_testing_s3::{ACCESS_KEY_ID, BUCKET, Fault, REGION, S3Server, SECRET_ACCESS_KEY};

use super::*;
use crate::Place;

/// How a bucket of the store is reached.
pub(crate) fn settings(server: &S3Server, prefix: &str) -> S3Settings {
    S3Settings {
        name: BucketName::parse(&format!("s3://{BUCKET}/{prefix}")).unwrap(),
        endpoint: Some(server.endpoint()),
        region: REGION.into(),
        credentials: Credentials {
            access_key_id: ACCESS_KEY_ID.into(),
            secret_access_key: SECRET_ACCESS_KEY.into(),
            session_token: None,
        },
        allows_http: true,
        ca_file: None,
        timeout: Duration::from_secs(5),
    }
}

fn bucket(server: &S3Server, prefix: &str) -> Bucket {
    Bucket::new(settings(server, prefix)).unwrap()
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
        assert_eq!(listed[0], ("line/1".into(), 7));
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
    // It was written, nobody was told, and the next attempt meets it.
    server.set_fault(Some(Fault::LostAnswers(1)));
    bucket.put("b", parts(&[b"b"])).unwrap();
    server.set_fault(Some(Fault::LostAnswers(3)));
    bucket.put("c", parts(&[b"c"])).unwrap();
    server.set_fault(Some(Fault::NoConditions));
    bucket.put("d", parts(&[b"d"])).unwrap();
    assert!(matches!(bucket.put("d", parts(&[b"e"])), Err(StorageError::Taken { .. })));
    assert_eq!(server.names(), ["p/a", "p/b", "p/c", "p/d"]);
    assert_eq!(bucket.get("d").unwrap(), "d");
}

#[test]
fn what_fails_for_good_is_said_with_what_to_do() {
    let mut server = S3Server::start();
    let quick = S3Settings { timeout: Duration::from_millis(300), ..settings(&server, "p") };
    let bucket = Bucket::new(quick.clone()).unwrap();
    let said = |bucket: &Bucket| {
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
    let other = |change: fn(&mut Credentials)| {
        let mut settings = quick.clone();
        change(&mut settings.credentials);
        said(&Bucket::new(settings).unwrap())
    };
    assert!(other(|one| one.secret_access_key = "another".into()).contains("checkpoint.s3.access_key_id"));
    assert!(other(|one| one.access_key_id = "nobody".into()).contains("checkpoint.s3.access_key_id"));
    server.stop();
    assert!(said(&bucket).contains("cannot be reached"));
    let plain = S3Settings { allows_http: false, ..quick.clone() };
    let error = Bucket::new(plain).unwrap_err().to_string();
    assert!(error.contains("not encrypted") && error.contains("allow_http"), "{error}");
    let no_authorities = S3Settings { ca_file: Some("/nowhere/ca.pem".into()), ..quick };
    assert!(Bucket::new(no_authorities).unwrap_err().to_string().contains("checkpoint.s3.ca_file"));
}

/// For who has an object store at hand: `RIVULET_S3_ENDPOINT`, with the bucket, region and key of this test.
#[test]
fn a_store_of_somebody_else_is_served_alike() {
    let Ok(endpoint) = std::env::var("RIVULET_S3_ENDPOINT") else { return };
    let server = S3Server::start();
    let prefix = format!("run-{}", std::process::id());
    let bucket = Bucket::new(S3Settings { endpoint: Some(endpoint), ..settings(&server, &prefix) }).unwrap();
    bucket.put("line/one more+1", parts(&[b"one ", b"two"])).unwrap();
    assert!(matches!(bucket.put("line/one more+1", parts(&[b"other"])), Err(StorageError::Taken { .. })));
    assert_eq!(bucket.get("line/one more+1").unwrap(), "one two");
    assert_eq!(bucket.get_range("line/one more+1", 2..5).unwrap(), "e t");
    assert_eq!(bucket.list("line").unwrap(), [("line/one more+1".into(), 7)]);
    assert!(bucket.has_mark("line/one more+1", "another").is_ok_and(|is_ours| !is_ours));
    assert!(matches!(bucket.get("line/2"), Err(StorageError::Damaged { .. })));
    bucket.delete("line/one more+1").unwrap();
    assert!(bucket.list("").unwrap().is_empty());
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
