//! The disk fills up under load over MQTT QoS 1, and later has room again, with and without a crash in between: every
//! acknowledged event is counted once. `RIVULET_KILLS` is how often it fills up; every second time the server is also
//! killed.
//!
//! The disk is a small file system in memory. The process needs the right to mount it.

use std::fs::{self, File};
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use crate::kill::{Load, WINDOW, kills};
use crate::server::{Server, free_port, wait};

/// Enough for the catalog, checkpoints and what the log gathers meanwhile.
const DISK_SIZE: &str = "160m";

const DEVICES: usize = 3;

/// A file system of its own; gone when dropped.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// A disk of this size, as `mount` takes it; `None`, and a word about it, where that is not allowed.
    pub(crate) fn mount(folder: &Path, size: &str) -> Option<Self> {
        fs::create_dir(folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        if !mounted {
            _ = writeln!(stderr(), "skipped: this process may not mount a file system");
        }
        mounted.then(|| Self(folder.to_owned()))
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Leaves no room.
    pub(crate) fn fill(&self) {
        let mut file = File::create(self.ballast()).unwrap();
        // Smaller and smaller pieces, until not one byte fits.
        for piece in [1 << 20, 4096, 1] {
            let piece = vec![0; piece];
            while file.write_all(&piece).is_ok() {}
        }
    }

    pub(crate) fn make_room(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn what_was_acknowledged_is_there_after_the_disk_was_full() {
    let folder = TempDir::new().unwrap();
    let Some(disk) = Disk::mount(&folder.path().join("data"), DISK_SIZE) else { return };
    let mqtt = free_port();
    let start = || Server::start_at(folder.path(), mqtt, 1);
    let mut server = start();
    let load = Load::start(&server, DEVICES);
    for crashes in [false, true].into_iter().cycle().take(kills(2) as usize) {
        load.wait_for_more(200);
        disk.fill();
        wait("the server to say that the disk is full", || !server.status()["log"]["problem"].is_null());
        // Nobody is told that an event is safe that is not. What the log deletes may make room for some more, and what
        // was safe may be on its way.
        let durable = || server.status()["log"]["durable"].as_u64().unwrap();
        let (durable_before, before) = (durable(), load.acknowledged());
        std::thread::sleep(Duration::from_secs(1));
        let acknowledged = load.acknowledged() - before;
        let became_durable = durable() - durable_before;
        let on_their_way = (DEVICES * WINDOW) as u64;
        assert!(acknowledged <= became_durable + on_their_way, "{acknowledged}, and {became_durable} became durable");
        if crashes {
            server.kill_9();
            // With what was kept for that, it starts on a full disk: people see what is wrong. What comes takes up the
            // room again.
            for _ in 0..2 {
                let settings = [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string())];
                server = Server::spawn(folder.path(), mqtt, &settings);
                server.wait_until_started();
                assert_eq!(server.status()["queries_running"], DEVICES);
                wait("the disk to be full again", || !server.status()["log"]["problem"].is_null());
                server.kill_9();
            }
        }
        disk.make_room();
        if crashes {
            server = start();
            wait("the end of the replay", || server.status()["log"]["is_replaying"] == json!(false));
        }
        wait("the server to be well again", || server.status()["log"]["problem"].is_null());
    }
    load.wait_for_more(200);
    load.finish(mqtt);
    // Before its disk goes.
    drop(server);
}
