//! An S3-compatible object store in the test process, with one bucket in memory. It can be made to fail ([`Fault`]).
//!
//! It computes every signature from the received request by itself, so that it detects a client that signs something
//! else than it sends. It also accepts objects in parts, and gives temporary keys as the services of roles do (`keys`).
//!
//! The invariant: no product crate depends on this one outside of tests.

mod http;
mod keys;
mod signature;

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use http::{Answer, Request};
use keys::Key;

pub use keys::{ACCESS_KEY_ID, POD_TOKEN, ROLE, SECRET_ACCESS_KEY, WEB_IDENTITY_TOKEN};
pub use signature::REGION;

/// The only bucket.
pub const BUCKET: &str = "state";

/// The time at which all objects were written.
const MOMENT: &str = "2026-01-02T03:04:05Z";

/// The number of names on a page of a list.
const PAGE: usize = 3;

/// How long a part waits for the refusal of another one, and how often it looks.
const REFUSAL_WAIT_MAX: Duration = Duration::from_secs(10);
const LOOK_PERIOD: Duration = Duration::from_millis(1);

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every request is denied.
    Denied,
    /// The bucket does not exist.
    NoBucket,
    /// There is no room for new objects.
    Full,
    /// An object whose name contains this is refused.
    NoPutOf(&'static str),
    /// This number of requests is answered with 503.
    Busy(u32),
    /// This number of requests is carried out, but their connections are cut instead of an answer.
    LostAnswers(u32),
    /// This number of requests is answered, and the next one is carried out without an answer.
    LostAnswerBehind(u32),
    /// No request is answered.
    Silent,
    /// Each answer takes this long.
    Slow(Duration),
    /// Lists do not end: each page is empty, or the first one again.
    EndlessLists {
        /// Whether each page is empty.
        is_empty: bool,
    },
    /// This part of an upload is refused; every other part is answered this long after that.
    NoPart(usize, Duration),
    /// Requests of this method cannot put objects on a condition.
    NoConditions(&'static str),
}

#[derive(Clone, Default)]
struct Object {
    bytes: Vec<u8>,
    mark: String,
}

struct Upload {
    name: String,
    mark: String,
    parts: BTreeMap<usize, Vec<u8>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Object>,
    /// Uploads in progress, with their parts.
    uploads: BTreeMap<String, Upload>,
    /// The temporary keys, behind the permanent one.
    keys: Vec<Key>,
    /// When keys end that are given from now on.
    expiry: Option<String>,
    begun_uploads: usize,
    fault: Option<Fault>,
    /// Whether the part of [`Fault::NoPart`] was answered.
    has_refused_part: bool,
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
    /// Starts a store with an empty bucket, on a free port.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut server = Self {
            address: listener.local_addr().expect("an address"),
            state: Arc::new(Mutex::new(State { keys: vec![Key::lasting()], ..State::default() })),
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

    /// Stops the store, and cuts all connections. The content of the bucket stays.
    pub fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.is_over.store(true, Ordering::Release);
        self.state.lock().connections.drain(..).for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
        // Wakes up the accepting thread.
        let _ = TcpStream::connect(self.address);
        thread.join().expect("the server has not panicked");
    }

    /// Starts the store again at the same address.
    ///
    /// # Panics
    ///
    /// If another program has taken the port.
    pub fn restart(&mut self) {
        self.stop();
        let listener = TcpListener::bind(self.address).expect("the same port");
        self.listen(listener);
    }

    /// The address where it listens.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes the store fail in this way from now on, or not at all.
    pub fn set_fault(&self, fault: Option<Fault>) {
        let mut state = self.state.lock();
        (state.fault, state.has_refused_part) = (fault, false);
    }

    /// Puts an object into the bucket as another client would.
    pub fn put_foreign(&self, name: &str) {
        self.state.lock().objects.insert(name.into(), Object::default());
    }

    /// The names of the objects in the bucket.
    pub fn names(&self) -> Vec<String> {
        self.state.lock().objects.keys().cloned().collect()
    }

    /// Changes the bytes of an object.
    ///
    /// # Panics
    ///
    /// If there is no object of that name.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.state.lock().objects.get_mut(name).expect("an object of that name").bytes);
    }

    /// The number of uploads in parts that have begun and not ended.
    pub fn unfinished_uploads(&self) -> usize {
        self.state.lock().uploads.len()
    }

    /// The number of temporary keys that were given.
    pub fn given_keys(&self) -> usize {
        self.state.lock().keys.len().saturating_sub(1)
    }

    /// Sets when keys end that are given from now on, as text of ISO 8601. Without this call, in a thousand years.
    pub fn set_expiry(&self, moment: &str) {
        self.state.lock().expiry = Some(moment.into());
    }

    /// Forgets all temporary keys.
    pub fn forget_given_keys(&self) {
        self.state.lock().keys.truncate(1);
    }

    /// Returns the method and path of each request since the last call, in the order in which they were carried out.
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
        let (loses_it, pause, refused) = {
            let mut state = state.lock();
            let (mut loses_it, mut pause, mut refused) = (false, Duration::ZERO, None);
            match &mut state.fault {
                Some(Fault::LostAnswers(left)) if *left > 0 => {
                    *left -= 1;
                    loses_it = true;
                }
                Some(Fault::LostAnswerBehind(left)) if *left > 0 => *left -= 1,
                Some(Fault::LostAnswerBehind(_)) => {
                    state.fault = None;
                    loses_it = true;
                }
                Some(Fault::Slow(by)) => pause = *by,
                Some(Fault::NoPart(part, by)) => {
                    refused = part_number(&request).map(|number| number == *part);
                    pause = if refused == Some(false) { *by } else { pause };
                }
                _ => {}
            }
            (loses_it, pause, refused)
        };
        let until = Instant::now() + REFUSAL_WAIT_MAX;
        while refused == Some(false) && !state.lock().has_refused_part && Instant::now() < until {
            std::thread::sleep(LOOK_PERIOD);
        }
        std::thread::sleep(pause);
        let answer = {
            let mut state = state.lock();
            state.requests.push(format!("{} {}", request.method, request.path));
            if state.fault == Some(Fault::Silent) {
                continue;
            }
            answer(&request, &mut state)
        };
        if loses_it || answer.write(&mut writer, request.method == "HEAD").is_err() {
            let _ = writer.shutdown(Shutdown::Both);
            return;
        }
        state.lock().has_refused_part |= refused == Some(true);
    }
}

fn answer(request: &Request, state: &mut State) -> Answer {
    let expiry = state.expiry.clone().unwrap_or_else(|| "3026-01-01T00:00:00Z".into());
    if let Some(answer) = keys::answer(request, &mut state.keys, &expiry) {
        return answer;
    }
    if let Err(problem) = signature::check(request, &state.keys) {
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
    let Some(name) = request.path.strip_prefix(&format!("/{BUCKET}")) else {
        return Answer::error(404, "NoSuchBucket", "The specified bucket does not exist");
    };
    let name = http::from_percent(name.strip_prefix('/').unwrap_or(name));
    if let Some(upload) = request.query("uploadId") {
        return answer_upload(request, state, name, &upload);
    }
    match (request.method.as_str(), state.objects.get(&name)) {
        ("GET", _) if name.is_empty() => list(request, &state.objects, state.fault.as_ref()),
        ("POST", _) if request.query("uploads").is_some() => {
            state.begun_uploads += 1;
            let id = format!("upload/{}", state.begun_uploads);
            let upload = Upload { name, mark: mark(request), parts: BTreeMap::new() };
            state.uploads.insert(id.clone(), upload);
            let text =
                format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>");
            Answer::new(200, text.into_bytes())
        }
        ("PUT", _) => {
            let object = Object { bytes: request.body.clone(), mark: mark(request) };
            put(request, state, name, object)
                .unwrap_or_else(|| Answer::new(200, Vec::new()).with_header("etag", "\"1\""))
        }
        ("DELETE", _) => {
            state.objects.remove(&name);
            Answer::new(204, Vec::new())
        }
        (_, None) => Answer::error(404, "NoSuchKey", "The specified key does not exist"),
        ("HEAD", Some(object)) => Answer::new(200, object.bytes.clone())
            .with_header("etag", "\"1\"")
            .with_header("x-amz-meta-rivulet-put", &object.mark),
        ("GET", Some(Object { bytes, .. })) => match request.header("range") {
            None => Answer::new(200, bytes.clone()).with_header("etag", "\"1\""),
            Some(range) => match http::range(range, bytes.len()) {
                Some(range) => Answer::new(206, bytes[range.clone()].to_vec())
                    .with_header("content-range", format!("bytes {}-{}/{}", range.start, range.end - 1, bytes.len())),
                None => Answer::error(416, "InvalidRange", "The requested range is not satisfiable"),
            },
        },
        _ => Answer::error(405, "MethodNotAllowed", "The specified method is not allowed"),
    }
}

fn mark(request: &Request) -> String {
    request.header("x-amz-meta-rivulet-put").unwrap_or_default().to_owned()
}

/// Puts an object; returns an error answer if that is not possible.
fn put(request: &Request, state: &mut State, name: String, object: Object) -> Option<Answer> {
    let on_condition = request.header("if-none-match") == Some("*");
    match &state.fault {
        Some(Fault::NoConditions(method)) if on_condition && request.method == *method => {
            return Some(Answer::error(
                501,
                "NotImplemented",
                "A header implies functionality that is not implemented",
            ));
        }
        Some(Fault::Full) => {
            return Some(Answer::error(507, "XMinioStorageFull", "Storage backend has reached its limit"));
        }
        Some(Fault::NoPutOf(part)) if name.contains(part) => {
            return Some(Answer::error(403, "AccessDenied", "Access Denied"));
        }
        _ => {}
    }
    if on_condition && state.objects.contains_key(&name) {
        return Some(Answer::error(412, "PreconditionFailed", "At least one of the pre-conditions did not hold"));
    }
    state.objects.insert(name, object);
    None
}

/// The number of the part in a request.
fn part_number(request: &Request) -> Option<usize> {
    request.query("partNumber")?.parse().ok()
}

/// Answers requests about a part of an upload, its end, or its abort.
fn answer_upload(request: &Request, state: &mut State, name: String, id: &str) -> Answer {
    let unknown = || Answer::error(404, "NoSuchUpload", "The specified upload does not exist");
    let Some(upload) = state.uploads.get_mut(id).filter(|upload| upload.name == name) else { return unknown() };
    match request.method.as_str() {
        "PUT" => {
            let Some(number) = part_number(request) else {
                return Answer::error(400, "InvalidArgument", "There is no number");
            };
            if matches!(state.fault, Some(Fault::NoPart(refused, _)) if refused == number) {
                return Answer::error(403, "AccessDenied", "Access Denied");
            }
            upload.parts.insert(number, request.body.clone());
            Answer::new(200, Vec::new()).with_header("etag", format!("\"part {number}\""))
        }
        "POST" => {
            let text = String::from_utf8_lossy(&request.body);
            let is_named = |number: &usize| {
                text.contains(&format!("<PartNumber>{number}</PartNumber>")) && text.contains(&format!("part {number}"))
            };
            if upload.parts.is_empty() || !upload.parts.keys().all(is_named) {
                return Answer::error(400, "InvalidPart", "One or more of the parts could not be found");
            }
            let bytes = upload.parts.values().flatten().copied().collect();
            let object = Object { bytes, mark: upload.mark.clone() };
            if let Some(refusal) = put(request, state, name, object) {
                return refusal;
            }
            state.uploads.remove(id);
            let text = "<CompleteMultipartUploadResult><ETag>\"1\"</ETag></CompleteMultipartUploadResult>";
            Answer::new(200, text.into())
        }
        "DELETE" => {
            state.uploads.remove(id);
            Answer::new(204, Vec::new())
        }
        _ => unknown(),
    }
}

fn list(request: &Request, objects: &BTreeMap<String, Object>, fault: Option<&Fault>) -> Answer {
    let (is_endless, is_empty) = match fault {
        Some(Fault::EndlessLists { is_empty }) => (true, *is_empty),
        _ => (false, false),
    };
    let begin = request.query("continuation-token").filter(|_| !is_endless).unwrap_or_default();
    let prefix = request.query("prefix").unwrap_or_default();
    let mut found = objects.iter().filter(|(name, _)| !is_empty && name.starts_with(&prefix) && **name >= begin);
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult>");
    for (name, Object { bytes, .. }) in found.by_ref().take(PAGE) {
        let size = bytes.len();
        text += &format!(
            "<Contents><Key>{name}</Key><LastModified>{MOMENT}</LastModified><ETag>&quot;1&quot;</ETag>\
             <Size>{size}</Size></Contents>"
        );
    }
    let again = String::from("again");
    match found.next().map(|(next, _)| next).or(is_endless.then_some(&again)) {
        Some(next) => {
            text += &format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{next}</NextContinuationToken>");
        }
        None => text += "<IsTruncated>false</IsTruncated>",
    }
    text += "</ListBucketResult>";
    Answer::new(200, text.into_bytes())
}
