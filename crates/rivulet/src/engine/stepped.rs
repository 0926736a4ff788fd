//! An engine without threads: its caller decides what happens when, and on which disk, network and clock. Simulations
//! use it, and so does the [trial](crate::trial) of an application.
//!
//! Everything else is what a server runs: catalog, statements, routes, groups, log, checkpoints, recovery. Nothing
//! happens between two calls, so the same calls have the same results.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rivulet_connectors::mqtt::Router;
use rivulet_dataflow::{Clock, LogPosition};
use rivulet_operators::application::{Application, Tables};
use rivulet_runtime::{Group, Workers};
use rivulet_sql::Statement;
use rivulet_storage::log::LogSettings;
use rivulet_storage::{Disk, Store};

use super::big_queries::Starts;
use super::checkpoints::Checkpoints;
use super::event_log::EventLog;
use super::memory::MemoryBound;
use super::messaging::Messaging;
use super::{Doors, Engine, Extensions, Parts};
use crate::catalog::Catalog;
use crate::config::Config;
use crate::service::{Permit, ServiceError, StatementResult, Tenant};

pub use super::messaging::Network;

/// The environment of a stepped engine.
pub struct Environment {
    /// Its time.
    pub clock: Arc<dyn Clock>,
    /// The disk of the log, which is in the folder `log` of the configured one.
    pub disk: Arc<dyn Disk>,
    /// The size of the log.
    pub log: LogSettings,
    /// The store of checkpoints.
    pub store: Arc<Store>,
    /// Applications and queries.
    pub catalog: Catalog,
    /// Where messages come from and go to.
    pub network: Arc<dyn Network>,
}

impl Engine {
    /// Opens a stepped engine. It has recovered what was saved, and the events that the log has beyond that wait for
    /// [`Engine::replay_some`].
    ///
    /// # Errors
    /// The data on the disk cannot be used.
    pub fn stepped(config: Config, environment: Environment) -> Result<Arc<Self>, ServiceError> {
        let Environment { clock, disk, log, store, catalog, network } = environment;
        let (extensions, catalog) = (Extensions::default(), Arc::new(catalog));
        let doors = Doors::of(&extensions, None)?;
        doors.load(&catalog, &config)?;
        let parts = Parts {
            doors,
            extensions,
            messaging: Messaging::stepped(network, &config),
            catalog,
            workers: Workers::stepped(clock.clone()),
            memory: MemoryBound::new(&config),
            checkpoints: config
                .checkpoint
                .as_ref()
                .map(|settings| Checkpoints::open_in(store, settings))
                .transpose()?,
            event_log: EventLog::stepped(disk, Path::new("log"), log, clock)?,
            starts: Starts::default(),
        };
        Self::assemble(config, parts)
    }

    /// The router, by which messages enter.
    pub fn router(&self) -> &Arc<Router> {
        self.messaging.router()
    }

    /// The groups of its applications and shared inputs, to split, merge and spill.
    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.workers.groups()
    }

    /// Runs one of the tasks that are ready, for a slice: see [`Workers::run_one`].
    pub fn run_one(&self, choose: impl FnOnce(usize) -> usize, slice: Duration) -> bool {
        self.workers.run_one(choose, slice)
    }

    /// Makes timers read the clock.
    pub fn keep_time_once(&self) {
        self.workers.keep_time_once();
    }

    /// When the next timer of an application is due, microseconds since the epoch.
    pub fn next_timer_us(&self) -> Option<i64> {
        self.workers.next_timer_us()
    }

    /// Carries out one statement of a script.
    ///
    /// # Errors
    /// It is refused.
    pub(crate) fn carry_out(&self, statement: Statement) -> Result<StatementResult, ServiceError> {
        self.execute_statement(&Permit::of_operator(), statement)
    }

    /// The reference tables that an application may be planned with.
    pub(crate) fn loaded_tables(&self) -> Tables {
        self.tables.loaded(Tenant::of_operator())
    }

    /// Registers an application that was planned already.
    ///
    /// # Errors
    /// It is refused.
    pub(crate) fn register(&self, application: Application) -> Result<(), ServiceError> {
        self.applications.register(Tenant::of_operator(), application).map(drop)
    }

    /// Tries to write the waiting records of the log. Returns whether none is left.
    pub fn commit_log(&self) -> bool {
        self.event_log.commit()
    }

    /// The position up to which the log is on disk.
    pub fn logged_to(&self) -> LogPosition {
        self.event_log.stats().durable
    }

    /// The position up to which the log was on disk when it was opened.
    pub fn found_to(&self) -> LogPosition {
        self.event_log.found_to()
    }

    /// Replays at most this many events, and all that are left if it `ends`. Returns whether the replay is over.
    pub fn replay_some(&self, events_max: u64, ends: bool) -> bool {
        self.event_log.replay_some(events_max, ends)
    }
}

#[cfg(test)]
mod tests {
    mod behind;
    mod meanwhile;
    mod waiting;

    use std::fs;
    use std::io;
    use std::path::PathBuf;
    use std::sync::atomic::Ordering;

    use rivulet_connectors::mqtt::{Pending, Received};
    use rivulet_dataflow::{ManualClock, Push};
    use rivulet_storage::{DiskFile, Place, RealDisk};

    use super::*;
    use crate::catalog;
    use crate::config::{self, CheckpointConfig, FilesConfig, Sources};
    use crate::service::Caller;
    use crate::trial::network::Results;

    /// The disk below a folder.
    #[derive(Debug)]
    struct Below(PathBuf);

    impl Disk for Below {
        fn make_folder(&self, folder: &Path) -> io::Result<()> {
            RealDisk.make_folder(&self.0.join(folder))
        }

        fn list(&self, folder: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
            RealDisk.list(&self.0.join(folder))
        }

        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            RealDisk.read(&self.0.join(path))
        }

        fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
            RealDisk.create(&self.0.join(path))
        }

        fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
            RealDisk.open(&self.0.join(path))
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            RealDisk.remove(&self.0.join(path))
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            RealDisk.rename(&self.0.join(from), &self.0.join(to))
        }

        fn sync_folder(&self, folder: &Path) -> io::Result<()> {
            RealDisk.sync_folder(&self.0.join(folder))
        }
    }

    fn start(folder: &Path, allowed: &Path) -> (Arc<Engine>, Arc<Results>) {
        start_with(folder, allowed, LogSettings::default())
    }

    fn start_with(folder: &Path, allowed: &Path, log: LogSettings) -> (Arc<Engine>, Arc<Results>) {
        let sources = Sources { file: Some("/dev/null".into()), ..Sources::default() };
        let loaded = config::load(&sources).expect("what is not configured has its default").config;
        let checkpoint = CheckpointConfig { interval: None, place: Place::Folder("checkpoints".into()), retained: 2 };
        let config = Config {
            data_dir: folder.to_owned(),
            files: FilesConfig { allow: vec![allowed.to_owned()], ..loaded.files },
            memory_bytes_max: None,
            spill_after: None,
            checkpoint: Some(checkpoint),
            ..loaded
        };
        let network = Arc::<Results>::default();
        let environment = Environment {
            clock: Arc::new(ManualClock::new(0)),
            disk: Arc::new(Below(folder.to_owned())),
            log,
            store: Arc::new(Store::folder(&folder.join("checkpoints")).expect("a store")),
            catalog: Catalog::open(folder).expect("a catalog"),
            network: network.clone(),
        };
        (Engine::stepped(config, environment).expect("an engine"), network)
    }

    fn run(engine: &Engine, script: &str) {
        for answer in engine.session(Caller::local_operator()).execute(script) {
            answer.unwrap_or_else(|error| panic!("{script}: {error}"));
        }
    }

    fn run_tasks(engine: &Engine) {
        while engine.run_one(|_| 0, Duration::MAX) {}
    }

    /// Copies a folder as a crash would leave it.
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).expect("a folder");
        for entry in fs::read_dir(from).expect("a folder") {
            let entry = entry.expect("a file");
            match entry.path().is_dir() {
                true => copy(&entry.path(), &to.join(entry.file_name())),
                false => drop(fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy")),
            }
        }
    }

    /// A durable application that needs a table, with a query, and another one that reads the same topics.
    fn script(rooms: &Path) -> String {
        let input = "INPUT t (room TEXT, n BIGINT) FROM 'mqtt:in' FORMAT JSON WITH (durability => 'log')";
        format!(
            "CREATE TABLE rooms (room TEXT, floor BIGINT) FROM 'file:{}' FORMAT CSV (header => true);
             CREATE APPLICATION late (low BIGINT) {input} OUTPUT 'mqtt:out' FORMAT JSON
             AS SELECT sum(n) AS total FROM t JOIN rooms AS r ON r.room = t.room WHERE n > $low
             GROUP BY count_window(3);
             CREATE APPLICATION other (low BIGINT) {input} OUTPUT 'mqtt:other' FORMAT JSON
             AS SELECT n FROM t WHERE n > $low;
             CREATE QUERY q FROM APPLICATION late WITH (low => 0);
             CREATE QUERY r FROM APPLICATION other WITH (low => 0); CHECKPOINT",
            rooms.display()
        )
    }

    fn send(engine: &Engine, n: u16) {
        send_to(engine, "in", n);
    }

    fn send_to(engine: &Engine, topic: &str, n: u16) {
        let payload = format!("{{\"room\":\"a\",\"n\":{n}}}");
        let (client, topic, payload) = (b"c", topic.as_bytes(), payload.as_bytes());
        let received = Received { client, packet_id: n, topic, payload, ..Received::default() };
        assert_eq!(engine.router().read().route(&received, &mut Pending::default()), Push::Taken);
        run_tasks(engine);
    }

    /// The most rounds in which a replay gets no further. Each change of values waits until the events before it are
    /// processed, and another thread may have these events in hand for as long as it likes.
    const ROUNDS_MAX: usize = 10_000;

    /// Replays what is left.
    fn replay(engine: &Engine) {
        let reached =
            || (engine.event_log.status().replayed_events, engine.queries.next_change.load(Ordering::Acquire));
        let (mut before, mut rounds) = (reached(), 0);
        while !engine.replay_some(u64::MAX, true) {
            run_tasks(engine);
            if reached() == before {
                rounds += 1;
                assert!(rounds < ROUNDS_MAX, "the replay comes to its end, and is at {before:?}");
                std::thread::sleep(Duration::from_millis(1));
            } else {
                (before, rounds) = (reached(), 0);
            }
        }
        run_tasks(engine);
    }

    /// The results of the query.
    fn totals(results: &Results) -> Vec<String> {
        let of_query = results.take().into_iter().filter(|(topic, _)| topic == "out");
        of_query.map(|(_, payload)| String::from_utf8(payload).expect("text")).collect()
    }

    #[test]
    fn who_starts_while_the_log_is_replayed_gets_changes_of_values_at_their_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let [before, after, rooms, away] =
            ["before", "after", "rooms.csv", "away.csv"].map(|name| folder.path().join(name));
        fs::create_dir(&before).expect("a folder");
        fs::write(&rooms, "room,floor\na,1\n").expect("a table");
        let (engine, _) = start(&before, folder.path());
        replay(&engine);
        run(&engine, &script(&rooms));
        (1..=2).for_each(|n| send(&engine, n));
        run(&engine, "ALTER QUERY q SET (low => 5)");
        [3, 10, 20].into_iter().for_each(|n| send(&engine, n));
        engine.commit_log();
        copy(&before, &after);
        fs::rename(&rooms, &away).expect("it goes away");
        let (engine, results) = start(&after, folder.path());
        assert!(!engine.replay_some(1, false));
        run_tasks(&engine);
        fs::rename(&away, &rooms).expect("it comes back");
        run(&engine, "REFRESH TABLE rooms");
        replay(&engine);
        assert_eq!(totals(&results), ["{\"total\":32}"], "2 with the values of before, and not 3");
    }

    /// A durable application whose queries name their topics.
    const MOVED: &str = "CREATE APPLICATION moved (topic TEXT, name TEXT)
        INPUT t (n BIGINT) FROM 'mqtt:in/{topic}' FORMAT JSON WITH (durability => 'log')
        OUTPUT 'mqtt:out/{name}' FORMAT JSON AS SELECT n FROM t;
        CREATE QUERY q FROM APPLICATION moved WITH (topic => 'a', name => 'q');
        CREATE QUERY r FROM APPLICATION moved WITH (topic => 'a', name => 'r'); CHECKPOINT";

    #[test]
    fn what_comes_while_the_log_is_replayed_counts_for_who_is_about_to_read_its_topic() {
        let folder = tempfile::tempdir().expect("a folder");
        let [before, after] = ["before", "after"].map(|name| folder.path().join(name));
        fs::create_dir(&before).expect("a folder");
        let (engine, _) = start(&before, folder.path());
        replay(&engine);
        run(&engine, MOVED);
        send_to(&engine, "in/a", 1);
        run(&engine, "ALTER QUERY q SET (topic => 'b'); ALTER QUERY r SET (topic => 'b')");
        send_to(&engine, "in/b", 2);
        run(&engine, "ALTER QUERY r SET (topic => 'a')");
        send_to(&engine, "in/a", 3);
        engine.commit_log();
        copy(&before, &after);
        let (engine, results) = start(&after, folder.path());
        // Nobody reads that before the change of q is made again.
        send_to(&engine, "in/b", 4);
        for _ in 0..2 {
            assert!(!engine.replay_some(1, false));
            run_tasks(&engine);
        }
        // Both read the other topic by now.
        send_to(&engine, "in/a", 5);
        replay(&engine);
        // It is read as if nothing had been.
        send_to(&engine, "in/a", 6);
        send_to(&engine, "in/b", 7);
        let mut given = results
            .take()
            .into_iter()
            .map(|(topic, payload)| (topic, String::from_utf8(payload.to_vec()).expect("text")))
            .collect::<Vec<_>>();
        given.sort();
        let of = |name: &str, numbers: &[u16]| {
            numbers.iter().map(|n| (format!("out/{name}"), format!("{{\"n\":{n}}}"))).collect::<Vec<_>>()
        };
        assert_eq!(given, [of("q", &[1, 2, 4, 7]), of("r", &[1, 2, 3, 5, 6])].concat());
    }

    #[test]
    fn who_starts_late_gets_no_state_of_values_that_an_older_catalog_does_not_know() {
        let folder = tempfile::tempdir().expect("a folder");
        let [before, after, rooms, away, old] =
            ["before", "after", "rooms.csv", "away.csv", "old"].map(|name| folder.path().join(name));
        fs::create_dir(&before).expect("a folder");
        fs::write(&rooms, "room,floor\na,1\n").expect("a table");
        let (engine, _) = start(&before, folder.path());
        replay(&engine);
        run(&engine, &script(&rooms));
        copy(&before, &old);
        send(&engine, 1);
        run(&engine, "ALTER QUERY q SET (low => 5)");
        send(&engine, 10);
        run(&engine, "CHECKPOINT");
        copy(&before, &after);
        fs::copy(old.join(catalog::FILE_NAME), after.join(catalog::FILE_NAME)).expect("a copy");
        fs::rename(&rooms, &away).expect("it goes away");
        let (engine, results) = start(&after, folder.path());
        replay(&engine);
        fs::rename(&away, &rooms).expect("it comes back");
        run(&engine, "REFRESH TABLE rooms");
        [2, 3, 4].into_iter().for_each(|n| send(&engine, n));
        assert_eq!(totals(&results), ["{\"total\":9}"], "it begins anew");
    }
}
