//! A backup contains the sessions and retained messages of the embedded broker, of a running server and of a stopped
//! one, and the doctor checks them.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::server::{Publisher, Server, free_port, rivulet, said};

/// A client of MQTT 3.1.1 that keeps its session and reads with QoS 1.
struct Keeper(TcpStream);

impl Keeper {
    /// Connects; whether the broker knows the session.
    fn connect(broker: SocketAddr) -> (Self, bool) {
        let mut socket = TcpStream::connect(broker).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        socket.write_all(b"\x10\x12\x00\x04MQTT\x04\x00\x00\x00\x00\x06keeper").unwrap();
        let mut keeper = Self(socket);
        let answer = keeper.packet();
        assert_eq!((answer.0, answer.1[1]), (0x20, 0));
        (keeper, answer.1[0] == 1)
    }

    fn packet(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).unwrap();
        let mut body = vec![0; usize::from(head[1])];
        self.0.read_exact(&mut body).unwrap();
        (head[0], body)
    }

    fn subscribe(&mut self) {
        self.0.write_all(b"\x82\x09\x00\x01\x00\x04in/#\x01").unwrap();
        assert_eq!(self.packet(), (0x90, vec![0, 1, 1]));
    }

    /// Publishes with QoS 1 and waits until the broker has it.
    fn publish(&mut self, topic: &str, payload: &str, retain: bool) {
        let length = u8::try_from(4 + topic.len() + payload.len()).unwrap();
        let mut packet = vec![0x32 | u8::from(retain), length, 0, topic.len() as u8];
        packet.extend_from_slice(topic.as_bytes());
        packet.extend_from_slice(&[0, 9]);
        packet.extend_from_slice(payload.as_bytes());
        self.0.write_all(&packet).unwrap();
        assert_eq!(self.packet(), (0x40, vec![0, 9]));
    }

    /// The payloads of messages of QoS 1 that come, so many.
    fn payloads(&mut self, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| {
                let (first, body) = self.packet();
                assert_eq!(first & 0xf6, 0x32, "a message of QoS 1");
                let topic_end = 2 + usize::from(body[1]);
                self.0.write_all(&[0x40, 2, body[topic_end], body[topic_end + 1]]).unwrap();
                String::from_utf8(body[topic_end + 2..].to_vec()).unwrap()
            })
            .collect()
    }
}

fn program(folder: &Path, arguments: &[&str]) -> String {
    let output = rivulet().current_dir(folder).args(arguments).output().unwrap();
    let text = said(&output);
    assert!(output.status.success(), "{arguments:?}: {text}");
    text
}

/// A server whose keeper has a session, has gone, and has so many messages waiting; a retained message; and a client.
fn with_sessions(folder: &Path, waiting: usize) -> (Server, Keeper) {
    let server = Server::start(folder);
    let (mut keeper, _) = Keeper::connect(server.mqtt);
    keeper.subscribe();
    drop(keeper);
    let mut other = TcpStream::connect(server.mqtt).map(Keeper).unwrap();
    other.0.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    other.0.write_all(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00").unwrap();
    other.packet();
    other.publish("lamp/state", "on", true);
    for number in 0..waiting {
        other.publish("in/kim", &number.to_string(), false);
    }
    (server, other)
}

/// That a server on this data folder gives the keeper its session with so many messages, and a new reader the retained
/// one.
fn has_all(folder: &Path, waiting: usize) {
    let mqtt = free_port();
    let server = Server::start_at(folder, mqtt, 1);
    let (mut keeper, is_known) = Keeper::connect(mqtt);
    assert!(is_known, "the session is there");
    let expected: Vec<String> = (0..waiting).map(|number| number.to_string()).collect();
    assert_eq!(keeper.payloads(waiting), expected);
    let mut reader = Publisher::connect(mqtt);
    reader.subscribe("lamp/#");
    assert_eq!(reader.next(), ("lamp/state".to_owned(), b"on".to_vec()));
    drop(server);
}

#[test]
fn sessions_and_retained_messages_are_in_a_backup_of_a_running_and_of_a_stopped_server() {
    let (folder, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (mut server, mut client) = with_sessions(folder.path(), 3);
    program(elsewhere.path(), &["backup", "running", "--server", &server.url()]);
    client.publish("in/kim", "3", false);
    server.signal("-TERM");
    assert_eq!(server.wait_for_end(), Some(0));
    let data = folder.path().join("data").display().to_string();
    program(elsewhere.path(), &["backup", "stopped", "--data-dir", &data]);
    for (backup, waiting) in [("running", 3), ("stopped", 4)] {
        let restored = elsewhere.path().join(format!("from-{backup}"));
        fs::create_dir(&restored).unwrap();
        program(elsewhere.path(), &["restore", backup, "--data-dir", &format!("from-{backup}/data")]);
        let text = program(&restored, &["doctor", "--data-dir", "data"]);
        let expected = format!(" bytes: 1 session, {waiting} waiting messages, 1 retained message");
        assert!(text.contains("broker: the journal has") && text.contains(&expected), "{text}");
        has_all(&restored, waiting);
    }
}

/// The newest file of the journal.
fn journal_file(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder.join("data/mqtt")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "log")).max().unwrap()
}

#[test]
fn the_doctor_tells_what_is_wrong_with_the_journal_and_what_to_do() {
    let folder = TempDir::new().unwrap();
    let (mut server, _client) = with_sessions(folder.path(), 50);
    server.kill_9();
    let doctor = || rivulet().current_dir(folder.path()).args(["doctor", "--data-dir", "data"]).output().unwrap();
    let file = journal_file(folder.path());
    let whole = fs::read(&file).unwrap();
    assert!(doctor().status.success(), "{}", said(&doctor()));

    // A byte in the middle has changed.
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 0x10;
    fs::write(&file, &damaged).unwrap();
    let (text, code) = (said(&doctor()), doctor().status.code());
    assert!(text.contains("problem broker: ") && text.contains("bytes are damaged"), "{text}");
    assert!(text.contains("a start takes what is whole") && code == Some(1), "{text}");

    // A later version has written it.
    let mut later = whole.clone();
    later[8] = 99;
    let check = xxhash_rust::xxh3::xxh3_64_with_seed(&later[16..32], 99) as u32;
    later[12..16].copy_from_slice(&check.to_le_bytes());
    later.truncate(32);
    fs::write(&file, &later).unwrap();
    let text = said(&doctor());
    assert!(text.contains("problem broker: ") && text.contains("99"), "{text}");

    // The file is gone.
    fs::remove_file(&file).unwrap();
    let text = said(&doctor());
    assert!(text.contains("problem broker: ") && text.contains("the newest file is missing"), "{text}");

    fs::write(&file, &whole).unwrap();
    has_all(folder.path(), 50);
}
