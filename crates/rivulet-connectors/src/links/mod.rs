//! Links: streams of rows to and from other servers, over connections of `rivulet-wire`.
//!
//! - [`rights`]: who may link; [`peer`]: another process, the streams in both directions, and what works a connection
//!   to it; [`spool`]: what is on disk of a stream until the other side has made it durable;
//! - [`dial`]: connections that this process makes; [`listen`]: those that others make.
//!
//! One thread does all input and output; the tasks of queries push and take elements under the lock of a peer.
//!
//! What must hold: a peer that is slow, silent or broken holds up nothing but its own streams. It is known who may send
//! before anything but a name is read.

mod rights;
mod peer;
mod spool;
mod dial;
mod listen;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use rivulet_wire::{Connection, Hello};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use xxhash_rust::xxh3::xxh3_64;

pub use dial::{Target, Token};
use listen::Known;
pub use listen::{Listener, Listening};
use peer::{Common, random};
pub use peer::{Keep, Machine, OnRoom, Outgoing, Peer, Receive, Store, Worked};
pub use rights::{LinkAuthorizer, LinkLogin, LinkRights};
pub use rivulet_wire::{Asked, Compression, Decoder, Received, SendOptions, WireError};
pub use spool::{Delivery, OpenSpools, Prepared, Spool, SpoolOptions, Spooled};

/// The links of this process. Its thread begins with the first of them.
pub struct Links {
    common: Arc<Common>,
    pub(crate) machine: Machine,
    pub(crate) open: OpenSpools,
    /// Processes that this one dials.
    dialled: Mutex<HashMap<Target, Weak<Peer>>>,
    known: Arc<Known>,
    /// Where spools are; `None` if this process has no folder for them.
    spools: Option<PathBuf>,
    /// The open spools of stepped links, and where each is sent.
    kept: Mutex<Vec<(Weak<Spool>, Weak<Peer>)>>,
    /// The thread, which ends when this is dropped.
    thread: OnceLock<(Handle, oneshot::Sender<()>)>,
}

impl Links {
    /// The links of a process with this name, which no other process has that links to the same ones, and a folder for
    /// what waits to be sent. `on_room` is called when a stream may have room again.
    pub fn new(name: &str, spools: Option<PathBuf>, on_room: OnRoom) -> Self {
        Self::on(Machine::real(), name, spools, on_room)
    }

    /// The same on any machine.
    pub fn on(machine: Machine, name: &str, spools: Option<PathBuf>, on_room: OnRoom) -> Self {
        let (run, clock) = ((machine.random)(), machine.clock.clone());
        let common = Common { name: name.to_owned(), run, clock, receivers: Mutex::default(), on_room };
        let (open, dialled, known) = (OpenSpools::default(), Mutex::default(), Arc::default());
        let (kept, thread) = (Mutex::default(), OnceLock::new());
        Self { common: Arc::new(common), machine, open, dialled, known, spools, kept, thread }
    }

    /// The folder for what waits to be sent of a query of a server; `None` if this process has none. A query's sinks of
    /// refused rows have names that begin with its own and a slash.
    pub fn spool_of(&self, server: &str, query: &str) -> Option<PathBuf> {
        let of_query = self.spools_of(server, query.split('/').next().unwrap_or_default())?;
        Some(of_query.join(format!("{:016x}", xxh3_64(query.as_bytes()))))
    }

    fn spools_of(&self, server: &str, query: &str) -> Option<PathBuf> {
        // A name may have any characters.
        Some(self.spools.as_ref()?.join(format!("{:016x}", xxh3_64(format!("{server}\0{query}").as_bytes()))))
    }

    /// Forgets what waits to be sent of a query that is gone.
    pub fn forget(&self, server: &str, query: &str) {
        if let Some(folder) = self.spools_of(server, query)
            && let Err(error) = std::fs::remove_dir_all(&folder)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("what waited to be sent of the query {query} is left in {}: {error}", folder.display());
        }
    }

    /// The links of this process where there is no server.
    pub fn of_process() -> &'static Arc<Self> {
        static LINKS: LazyLock<Arc<Links>> =
            LazyLock::new(|| Arc::new(Links::new(&format!("run {:016x}", random()), None, None)));
        &LINKS
    }

    /// A number that nothing else has.
    pub fn random(&self) -> u64 {
        (self.machine.random)()
    }

    /// Runs a task on the thread. Stepped links have none, and their caller does what such a task does.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        if !self.machine.is_stepped {
            self.runtime()?.spawn(task);
        }
        Ok(())
    }

    fn runtime(&self) -> io::Result<&Handle> {
        if self.thread.get().is_none() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (handle, (stop, stopped)) = (runtime.handle().clone(), oneshot::channel::<()>());
            std::thread::Builder::new().name("links".into()).spawn(move || _ = runtime.block_on(stopped))?;
            // If another caller was faster, this thread ends at once.
            let _ = self.thread.set((handle, stop));
        }
        Ok(&self.thread.get().expect("it is set").0)
    }

    /// Opens a stream to another process, which is dialled for as long as such streams exist.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn send(&self, target: Target, name: String, schema: SchemaRef, keep: Keep) -> io::Result<Outgoing> {
        Ok(Outgoing::open(self.dial(target)?, self.common.clock.clone(), name, schema, keep))
    }

    /// Dials a process for as long as the answer or a stream to it exists, and takes the streams from it that `rights`
    /// allow.
    ///
    /// # Errors
    /// As with [`Links::send`].
    pub fn join(&self, target: Target, rights: Arc<dyn LinkRights>) -> io::Result<Arc<Peer>> {
        let peer = self.dial(target)?;
        *peer.rights.lock() = Some(rights);
        peer.tell_news();
        Ok(peer)
    }

    /// Opens a stream to a process, whichever side dials, that ends with this process.
    pub fn open_to(&self, peer: &Arc<Peer>, name: String, schema: SchemaRef, options: SendOptions) -> Outgoing {
        Outgoing::open(peer.clone(), self.common.clock.clone(), name, schema, Keep::InMemory(options))
    }

    fn dial(&self, target: Target) -> io::Result<Arc<Peer>> {
        let mut dialled = self.dialled.lock();
        dialled.retain(|_, peer| peer.strong_count() > 0);
        if let Some(peer) = dialled.get(&target).and_then(Weak::upgrade) {
            return Ok(peer);
        }
        let peer = Arc::new(Peer::new(None, false));
        self.spawn(dial::dial(self.common.clone(), target.clone(), Arc::downgrade(&peer)))?;
        dialled.insert(target, Arc::downgrade(&peer));
        Ok(peer)
    }

    /// Opens a stream, as [`Links::send`] does, whose rows are in a spool until the other side has made them durable.
    ///
    /// # Errors
    /// As with [`Links::send`].
    pub fn send_spooled(
        &self,
        target: Target,
        name: String,
        schema: SchemaRef,
        spool: Arc<Spool>,
    ) -> io::Result<Spooled> {
        let outgoing = self.send(target, name, schema, Keep::InStore(spool.number(), spool.clone()))?;
        self.spawn(spool::keep(spool.clone(), outgoing.peer()))?;
        if self.machine.is_stepped {
            self.kept.lock().push((Arc::downgrade(&spool), outgoing.peer()));
        }
        Ok(Spooled::new(spool, outgoing))
    }

    /// For stepped links: writes what waits in spools, and with `saves` what else is known of them.
    pub fn keep_once(&self, saves: bool) {
        let mut kept = self.kept.lock();
        kept.retain(|(spool, peer)| spool.upgrade().inspect(|spool| spool.keep_once(peer, saves)).is_some());
    }

    /// For stepped links: goes on with the process that they dial, over a connection on which it has said who it is.
    /// `None` if they dial nobody.
    pub fn dialled(&self, connection: Connection) -> Option<Worked> {
        let peer = self.dialled.lock().values().find_map(Weak::upgrade)?;
        Some(Worked::begin(&self.common, &peer, connection))
    }

    /// For stepped links: the same with a process that dials them, and that has these rights.
    ///
    /// # Errors
    /// Why it is not let in.
    pub fn admitted(&self, rights: Arc<dyn LinkRights>, mut connection: Connection) -> Result<Worked, String> {
        let them = connection.them().ok_or("it has not said who it is")?;
        let peer = listen::peer_of(&self.known, (rights, true), them).map_err(|(why, _)| why)?;
        connection.say_hello(&Hello { name: self.common.name.clone(), run: self.common.run, token: None });
        Ok(Worked::begin(&self.common, &peer, connection))
    }

    /// Takes the streams with this name in a scope, for as long as the receiver exists.
    ///
    /// # Errors
    /// Another one takes them.
    pub fn receive(&self, scope: &str, name: &str, receiver: &Arc<dyn Receive>) -> Result<(), String> {
        {
            let mut receivers = self.common.receivers.lock();
            receivers.retain(|_, receiver| receiver.strong_count() > 0);
            let key = (scope.to_owned(), name.to_owned());
            if let Some(reader) = receivers.get(&key).and_then(Weak::upgrade) {
                let query = reader.query().to_owned();
                drop(receivers);
                return Err(format!("'{query}' reads the stream '{name}' already, and a stream has one reader"));
            }
            receivers.insert(key, Arc::downgrade(receiver));
        }
        // Streams may wait for it.
        self.known.tell_news();
        Ok(())
    }

    /// Listens for other processes, for as long as the answer exists.
    ///
    /// # Errors
    /// Those of the system: mostly that the port is in use.
    pub fn listen(&self, listening: Listening) -> io::Result<Listener> {
        listen::start(self.runtime()?, (&self.common, &self.known), listening)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use arrow::datatypes::Schema;
    use rivulet_dataflow::Element;

    use super::*;

    struct Anybody;

    impl LinkRights for Anybody {
        fn scope(&self) -> &str {
            ""
        }

        fn may_send(&self, _stream: &str) -> Result<(), String> {
            Ok(())
        }
    }

    /// Takes all streams of its name.
    #[derive(Default)]
    struct Taker(Mutex<Vec<(Arc<Peer>, Received)>>);

    impl Receive for Taker {
        fn accept(&self, peer: &Arc<Peer>, asked: &Asked) -> Result<Option<(u64, u64)>, String> {
            self.0.lock().push((peer.clone(), asked.stream));
            Ok(None)
        }

        fn arrived(&self, _peer: &Arc<Peer>, _stream: Received) {}

        fn query(&self) -> &str {
            "a test"
        }
    }

    /// A process without threads, what takes its streams, and how often something had room.
    struct Process {
        links: Links,
        taker: Arc<Taker>,
        has_room: Arc<AtomicUsize>,
    }

    impl Process {
        fn new(name: &str) -> Self {
            let has_room = Arc::<AtomicUsize>::default();
            let counted = has_room.clone();
            let on_room: OnRoom = Some(Arc::new(move || _ = counted.fetch_add(1, Ordering::Relaxed)));
            let links = Links::on(Machine { is_stepped: true, ..Machine::real() }, name, None, on_room);
            let taker = Arc::<Taker>::default();
            links.receive("", "words", &(taker.clone() as Arc<dyn Receive>)).unwrap();
            Self { links, taker, has_room }
        }

        fn open_to(&self, peer: &Arc<Peer>, name: &str) -> Outgoing {
            let options = SendOptions { buffer_bytes: 1, flush_us: 0, compression: Compression::None };
            self.links.open_to(peer, name.to_owned(), Arc::new(Schema::empty()), options)
        }

        /// The next element that came by its stream with this number.
        fn next(&self, stream: usize) -> Option<Element> {
            let (peer, stream) = self.taker.0.lock()[stream].clone();
            peer.take(stream)?.elements().unwrap().next_element().unwrap()
        }
    }

    /// Carries bytes, of which these have come to the one side, until neither side has any more to say.
    fn carry(one: &Worked, other: &Worked, came: &[u8]) {
        let mut bytes = (came.to_vec(), Vec::new());
        loop {
            let (to_one, to_other) = std::mem::take(&mut bytes);
            one.step(&to_one, &mut bytes.1).unwrap();
            other.step(&to_other, &mut bytes.0).unwrap();
            if bytes.0.is_empty() && bytes.1.is_empty() {
                return;
            }
        }
    }

    #[test]
    fn a_process_that_was_trusted_with_secrets_is_not_followed_onto_an_open_wire() {
        let (known, them) = (Known::default(), Hello { name: "far".into(), run: 1, token: None });
        let comes = |is_private| listen::peer_of(&known, (Arc::new(Anybody), is_private), &them);
        assert!(comes(true).is_ok_and(|peer| peer.is_private()));
        assert!(
            comes(false).is_err_and(|(why, lasts)| lasts && why.contains("from this machine before"))
                && comes(true).is_ok()
        );
        let them = Hello { run: 2, ..them.clone() };
        let comes = |is_private| listen::peer_of(&known, (Arc::new(Anybody), is_private), &them);
        assert!(comes(false).is_ok_and(|peer| !peer.is_private()));
        assert!(comes(true).is_ok_and(|peer| !peer.is_private()), "what was sent before may have been read");
    }

    #[test]
    fn both_sides_of_a_connection_send_and_what_is_forgotten_is_not_taken() {
        let (near, far) = (Process::new("near"), Process::new("far"));
        let now_us = near.links.common.now_us();
        let target = Target {
            scope: String::new(),
            host: "far".into(),
            port: 1,
            tls: None,
            token: None,
            reach: crate::reach::AllowedHosts::default(),
        };
        let far_of_near = near.links.join(target, Arc::new(Anybody)).unwrap();
        let words = near.open_to(&far_of_near, "words#near");
        let (mut dials, mut listens) = (Connection::new(now_us), Connection::new(now_us));
        dials.say_hello(&Hello { name: "near".into(), run: 1, token: None });
        let mut bytes = Vec::new();
        dials.take_to_send(&mut bytes, now_us);
        listens.greet(&mut &bytes[..], now_us).unwrap();
        let listens = far.links.admitted(Arc::new(Anybody), listens).unwrap();
        let mut bytes = Vec::new();
        listens.step(&[], &mut bytes).unwrap();
        let mut rest = &bytes[..];
        dials.greet(&mut rest, now_us).unwrap();
        let dials = near.links.dialled(dials).unwrap();
        assert!(far_of_near.is_connected() && !words.has_room());
        carry(&dials, &listens, rest);
        assert!(words.has_room() && near.has_room.load(Ordering::Relaxed) > 0, "it is told so");
        let near_of_far = far.taker.0.lock()[0].0.clone();
        let answers = far.open_to(&near_of_far, "words#far");
        carry(&dials, &listens, &[]);
        words.push(&Element::Watermark(1)).unwrap();
        answers.push(&Element::Watermark(2)).unwrap();
        carry(&dials, &listens, &[]);
        assert!(matches!(far.next(0), Some(Element::Watermark(1))));
        assert!(matches!(near.next(0), Some(Element::Watermark(2))));
        answers.push(&Element::Watermark(3)).unwrap();
        carry(&dials, &listens, &[]);
        let (peer, stream) = near.taker.0.lock()[0].clone();
        peer.forget(stream);
        assert!(peer.take(stream).is_none() && !peer.has(stream));
        carry(&dials, &listens, &[]);
        assert!(answers.problem().is_some_and(|why| why.contains("not needed any more")));
        drop(listens);
        assert!(!near_of_far.is_connected() && far_of_near.is_connected());
    }
}
