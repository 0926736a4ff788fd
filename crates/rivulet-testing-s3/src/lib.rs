//! An S3-compatible object store in the test process, with one bucket in memory, which can be made to fail ([`Fault`]).
//!
//! It checks every signature from what came over the wire, by a calculation of its own, so that a client that signs something else than it
//! sends is found out.
//!
//! The invariant: no product crate depends on this one outside of tests.

mod http;
mod signature;

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use http::{Answer, Request};

/// The bucket that is there.
pub const BUCKET: &str = "state";

/// The region that signatures must be for.
pub const REGION: &str = "eu-test-1";

/// The key that may do everything.
pub const ACCESS_KEY_ID: &str = "test-key";

/// Its secret.
pub const SECRET_ACCESS_KEY: &str = "a secret / with + signs";

/// How many names a page of a list has.
const PAGE: usize = 3;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every request is denied.
    Denied,
    /// The bucket is not there.
    NoBucket,
    /// There is no room for what is put.
    Full,
    /// What is put under a name with this in it is refused.
    NoPutOf(&'static str),
    /// So many requests are answered with 503.
    Busy(u32),
    /// So many are carried out, but their connections are cut instead of an answer.
    LostAnswers(u32),
    /// Nothing is answered.
    Silent,
    /// Each answer takes so long.
    Slow(Duration),
    /// Objects cannot be put on a condition.
    NoConditions,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, (Vec<u8>, String)>,
    fault: Option<Fault>,
    requests: Vec<String>,
    connections: Vec<TcpStream>,
}

/// The object store. It ends when it is dropped.
pub struct S3Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl S3Server {
    /// Starts one with an empty bucket, on a free port.
    ///
    /// # Panics
    /// There is no free port.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut server = Self {
            address: listener.local_addr().expect("an address"),
            state: Arc::default(),
            is_over: Arc::default(),
            thread: None,
        };
        server.listen(listener);
        server
    }

    fn listen(&mut self, listener: TcpListener) {
        let (state, is_over) = (self.state.clone(), Arc::new(AtomicBool::new(false)));
        self.is_over = is_over.clone();
        self.thread = Some(std::thread::spawn(move || {
            for socket in listener.incoming() {
                if is_over.load(Ordering::Acquire) {
                    return;
                }
                let Ok(socket) = socket else { continue };
                if let Ok(own) = socket.try_clone() {
                    state.lock().connections.push(own);
                }
                let (state, is_over) = (state.clone(), is_over.clone());
                std::thread::spawn(move || serve(socket, &state, &is_over));
            }
        }));
    }

    /// Ends it, and cuts all connections. What is in the bucket stays.
    pub fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.is_over.store(true, Ordering::Release);
        self.state.lock().connections.drain(..).for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
        // Wakes it up.
        let _ = TcpStream::connect(self.address);
        thread.join().expect("the server has not panicked");
    }

    /// Starts it again at the same address.
    ///
    /// # Panics
    /// Somebody else has taken the port.
    pub fn restart(&mut self) {
        self.stop();
        let listener = TcpListener::bind(self.address).expect("the same port");
        self.listen(listener);
    }

    /// Where it listens.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Has something go wrong from now on, or nothing any more.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.state.lock().fault = fault;
    }

    /// The names of the objects in the bucket.
    pub fn names(&self) -> Vec<String> {
        self.state.lock().objects.keys().cloned().collect()
    }

    /// Changes the bytes of an object.
    ///
    /// # Panics
    /// There is none of that name.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.state.lock().objects.get_mut(name).expect("an object of that name").0);
    }

    /// Method and path of each request since this was last asked.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().requests)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Answers the requests of one connection until it ends.
fn serve(socket: TcpStream, state: &Mutex<State>, is_over: &AtomicBool) {
    let Ok(mut writer) = socket.try_clone() else { return };
    let mut reader = std::io::BufReader::new(socket);
    while let Some(request) = Request::read(&mut reader).filter(|_| !is_over.load(Ordering::Acquire)) {
        let (answer, loses_it, pause) = {
            let mut state = state.lock();
            state.requests.push(format!("{} {}", request.method, request.path));
            let (mut loses_it, mut pause) = (false, Duration::ZERO);
            match &mut state.fault {
                Some(Fault::LostAnswers(left)) if *left > 0 => {
                    *left -= 1;
                    loses_it = true;
                }
                Some(Fault::Silent) => continue,
                Some(Fault::Slow(by)) => pause = *by,
                _ => {}
            }
            (answer(&request, &mut state), loses_it, pause)
        };
        std::thread::sleep(pause);
        if loses_it || answer.write(&mut writer, request.method == "HEAD").is_err() {
            let _ = writer.shutdown(Shutdown::Both);
            return;
        }
    }
}

fn answer(request: &Request, state: &mut State) -> Answer {
    if let Err(problem) = signature::check(request) {
        return Answer::error(403, "SignatureDoesNotMatch", &problem);
    }
    match &mut state.fault {
        Some(Fault::Denied) => return Answer::error(403, "AccessDenied", "Access Denied"),
        Some(Fault::NoBucket) => return Answer::error(404, "NoSuchBucket", "The specified bucket does not exist"),
        Some(Fault::Busy(left)) if *left > 0 => {
            *left -= 1;
            return Answer::error(503, "SlowDown", "Please reduce your request rate");
        }
        _ => {}
    }
    let Some(name) = request.path.strip_prefix(&format!("/{BUCKET}/")) else {
        return Answer::error(404, "NoSuchBucket", "The specified bucket does not exist");
    };
    let name = http::from_percent(name);
    match (request.method.as_str(), state.objects.get(&name)) {
        ("GET", _) if name.is_empty() => list(request, &state.objects),
        ("PUT", found) => {
            let on_condition = request.header("if-none-match") == Some("*");
            match &state.fault {
                Some(Fault::NoConditions) if on_condition => {
                    return Answer::error(
                        501,
                        "NotImplemented",
                        "A header implies functionality that is not implemented",
                    );
                }
                Some(Fault::Full) => {
                    return Answer::error(507, "XMinioStorageFull", "Storage backend has reached its limit");
                }
                Some(Fault::NoPutOf(part)) if name.contains(part) => {
                    return Answer::error(403, "AccessDenied", "Access Denied");
                }
                _ => {}
            }
            if on_condition && found.is_some() {
                return Answer::error(412, "PreconditionFailed", "At least one of the pre-conditions did not hold");
            }
            let mark = request.header("x-amz-meta-rivulet-put").unwrap_or_default().to_owned();
            state.objects.insert(name, (request.body.clone(), mark));
            Answer::new(200, Vec::new())
        }
        ("DELETE", _) => {
            state.objects.remove(&name);
            Answer::new(204, Vec::new())
        }
        (_, None) => Answer::error(404, "NoSuchKey", "The specified key does not exist"),
        ("HEAD", Some((bytes, mark))) => Answer { mark: Some(mark.clone()), ..Answer::new(200, bytes.clone()) },
        ("GET", Some((bytes, _))) => match request.header("range") {
            None => Answer::new(200, bytes.clone()),
            Some(range) => match http::range(range, bytes.len()) {
                Some(range) => Answer::new(206, bytes[range].to_vec()),
                None => Answer::error(416, "InvalidRange", "The requested range is not satisfiable"),
            },
        },
        _ => Answer::error(405, "MethodNotAllowed", "The specified method is not allowed"),
    }
}

fn list(request: &Request, objects: &BTreeMap<String, (Vec<u8>, String)>) -> Answer {
    let begin = request.query("continuation-token").unwrap_or_default();
    let prefix = request.query("prefix").unwrap_or_default();
    let mut found = objects.iter().filter(|(name, _)| name.starts_with(&prefix) && **name >= begin);
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult>");
    for (name, (bytes, _)) in found.by_ref().take(PAGE) {
        text += &format!("<Contents><Key>{}</Key><Size>{}</Size></Contents>", http::to_percent(name), bytes.len());
    }
    match found.next() {
        Some((next, _)) => {
            text += &format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{next}</NextContinuationToken>");
        }
        None => text += "<IsTruncated>false</IsTruncated>",
    }
    text += "</ListBucketResult>";
    Answer::new(200, text.into_bytes())
}
