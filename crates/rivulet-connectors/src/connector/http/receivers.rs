//! Requests that wait for their receivers: a queue for each receiver, and the choice of the next one.
//!
//! A receiver is fast until an attempt fails or takes long. Slow receivers share half of the connections. A fast one
//! may hang at any moment, and that shows only when its time is over. So a request that is late takes no place of
//! others: there are more connections than requests that are not late. One host cannot have them all.
//!
//! What must hold: the requests of one receiver leave in their order. Waiting requests are bounded: for fast receivers
//! the sinks ask whether there is room; of a slow one, if each row has its own receiver, the oldest requests are
//! dropped.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::address::host_of;

/// The first pause between two attempts; it doubles.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The longest pause, even if the receiver asks for more.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A request that takes longer is late.
const LATE: Duration = Duration::from_millis(100);

/// So many times as many requests may be on their way together, if all but one part are late.
const WITH_LATE: usize = 4;

/// A receiver that takes longer for a request is slow.
const FAST: Duration = Duration::from_secs(1);

/// A receiver is also slow if a request has waited for this long.
const WAITS_MAX: Duration = Duration::from_secs(5);

/// The most that waits for one slow receiver.
const SLOW_BYTES: usize = 1 << 20;
const SLOW_REQUESTS: usize = 1_024;

/// The most that waits for all slow receivers together.
const SLOW_BYTES_ALL: usize = 64 << 20;

/// The same in words, and why requests give way.
pub(super) const WAITING_MAX: &str = "1,024 requests or 1 MiB";
pub(super) const TOO_MUCH: &str =
    "more than 1,024 requests or 1 MiB wait for a receiver that takes nothing, or 64 MiB for all such";

/// After this many requests to fast receivers there is one to a slow receiver.
const FAST_IN_A_ROW: usize = 8;

/// The number of receivers whose pace is remembered while nothing waits for them.
const RECEIVERS_MAX: usize = 65_536;

/// A request to be posted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The URL that it is posted to.
    pub(super) url: Arc<str>,
    pub(super) body: Vec<u8>,
    pub(super) rows: usize,
    /// Unique to the request, and the same however often it is posted.
    pub(super) idempotency_key: String,
    /// The query that it belongs to, if a sink has rows of many queries.
    pub(super) query: Option<u64>,
}

/// A request, since when it waits, and since when it is tried.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) request: Arc<Request>,
    since: Instant,
    tried: Option<Instant>,
    /// When it was posted last.
    posted: Option<Instant>,
}

/// One receiver.
#[derive(Debug)]
struct Receiver {
    queue: VecDeque<Waiting>,
    on_their_way: Vec<Arc<Request>>,
    /// The bytes of both.
    bytes: usize,
    pause: Duration,
    is_slow: bool,
    is_failing: bool,
    /// Nothing is posted to it before this moment.
    rests_until: Option<Instant>,
    /// Whether it is in a list of receivers with a request to post.
    is_listed: bool,
    /// Whether it is parked at its host instead.
    is_parked: bool,
    /// Whether it has one of the places of its host.
    has_place: bool,
}

/// A host with fast receivers.
#[derive(Debug, Default)]
struct Host {
    /// How many of them are listed or have a request on its way.
    places_taken: usize,
    /// The others with a request to post.
    parked: VecDeque<Arc<str>>,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            on_their_way: Vec::new(),
            bytes: 0,
            pause: PAUSE_MIN,
            is_slow: false,
            is_failing: false,
            rests_until: None,
            is_listed: false,
            is_parked: false,
            has_place: false,
        }
    }
}

/// What waits or is on its way.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    bytes: usize,
    requests: usize,
}

/// The places of fast and of slow receivers in arrays.
const FAST_ONES: usize = 0;
const SLOW_ONES: usize = 1;

/// All receivers of a sink.
#[derive(Debug)]
pub(super) struct Receivers {
    known: HashMap<Arc<str>, Receiver>,
    /// When more receivers are known than this, idle ones are forgotten: twice as many as were left the last time, so
    /// that a request costs no search on average.
    sweep_at: usize,
    /// The receivers with a request to post, by pace.
    listed: [VecDeque<Arc<str>>; 2],
    /// By scheme, name and port.
    hosts: HashMap<Box<str>, Host>,
    resting: BTreeSet<(Instant, Arc<str>)>,
    /// When each request on its way was posted, oldest first.
    on_their_way: VecDeque<Instant>,
    /// The most requests on their way that are not late; also the places of a host.
    connections: usize,
    /// The most requests on their way.
    on_their_way_max: usize,
    /// The most requests on their way: to one receiver, and to all slow receivers.
    of_one_max: usize,
    slow_max: usize,
    slow_on_their_way: usize,
    /// How often a fast receiver was chosen since a slow one was.
    fast_in_a_row: usize,
    /// By pace.
    load: [Load; 2],
    failing: usize,
    /// Whether requests for slow receivers are dropped when there are too many.
    gives_way: bool,
}

/// A receiver begins to fail, or accepts requests again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Recovered,
}

impl Receivers {
    /// With one receiver, `connections` is the number of requests to it on their way at a time. If it `gives_way`,
    /// there may be a receiver for each row, and it is the number of requests to all of them together, except late
    /// ones.
    pub(super) fn new(connections: usize, gives_way: bool) -> Self {
        Self {
            known: HashMap::new(),
            sweep_at: RECEIVERS_MAX,
            listed: Default::default(),
            hosts: HashMap::new(),
            resting: BTreeSet::new(),
            on_their_way: VecDeque::new(),
            connections,
            on_their_way_max: if gives_way { WITH_LATE * connections } else { connections },
            of_one_max: if gives_way { 1 } else { connections },
            slow_max: if gives_way { (connections / 2).max(1) } else { connections },
            slow_on_their_way: 0,
            fast_in_a_row: 0,
            load: Default::default(),
            failing: 0,
            gives_way,
        }
    }

    /// Adds a request. Returns the requests that are dropped for it.
    pub(super) fn push(&mut self, request: Arc<Request>, now: Instant) -> Vec<Arc<Request>> {
        let (url, bytes) = (request.url.clone(), request.body.len());
        if self.known.len() > self.sweep_at {
            self.known.retain(|_, one| !one.is_idle());
            self.sweep_at = RECEIVERS_MAX.max(2 * self.known.len());
        }
        let receiver = self.known.entry(url.clone()).or_default();
        let waits = receiver.queue.front().is_some_and(|first| now.duration_since(first.since) > WAITS_MAX);
        receiver.queue.push_back(Waiting { request, since: now, tried: None, posted: None });
        receiver.bytes += bytes;
        self.load[receiver.pace()].add(bytes, 1);
        if waits && self.gives_way {
            self.mark(&url, true);
        }
        let gone = if self.gives_way { self.give_way(&url) } else { Vec::new() };
        self.list(&url);
        gone
    }

    /// Takes the next request to post, whose receiver is not resting. The error is the time at which there may be one,
    /// if that is known.
    pub(super) fn next(&mut self, now: Instant) -> Result<Waiting, Option<Instant>> {
        while let Some((until, _)) = self.resting.first().filter(|(until, _)| *until <= now) {
            let until = *until;
            let (_, url) = self.resting.pop_first().expect("it was looked at");
            if let Some(receiver) = self.known.get_mut(&url).filter(|receiver| receiver.rests_until == Some(until)) {
                receiver.rests_until = None;
            }
            self.list(&url);
        }
        while self.is_ready() {
            self.has_connection(now)?;
            let has_slow = self.slow_on_their_way < self.slow_max && !self.listed[SLOW_ONES].is_empty();
            let is_slow = has_slow && (self.listed[FAST_ONES].is_empty() || self.fast_in_a_row >= FAST_IN_A_ROW);
            self.fast_in_a_row = if is_slow { 0 } else { self.fast_in_a_row + 1 };
            let Some(url) = self.listed[usize::from(is_slow)].pop_front() else { break };
            let Some(receiver) = self.known.get_mut(&url) else { continue };
            receiver.is_listed = false;
            // A receiver that has begun to rest since it was listed is listed again after its rest.
            let is_free = receiver.rests_until.is_none() && receiver.on_their_way.len() < self.of_one_max;
            let waiting = if is_free { receiver.queue.pop_front() } else { None };
            let Some(mut waiting) = waiting else {
                self.leave_place(&url);
                continue;
            };
            waiting.tried.get_or_insert(now);
            waiting.posted = Some(now);
            receiver.on_their_way.push(waiting.request.clone());
            self.slow_on_their_way += usize::from(receiver.is_slow);
            self.on_their_way.push_back(now);
            self.list(&url);
            return Ok(waiting);
        }
        Err(self.resting.first().map(|(until, _)| *until))
    }

    /// Whether there is a connection for one more request. The error is the time at which there is, if nothing comes
    /// back before.
    fn has_connection(&self, now: Instant) -> Result<(), Option<Instant>> {
        let late = self.on_their_way.partition_point(|posted| now.duration_since(*posted) >= LATE);
        match self.on_their_way.get(late) {
            _ if self.on_their_way.len() >= self.on_their_way_max => Err(None),
            Some(posted) if self.on_their_way.len() - late >= self.connections => Err(Some(*posted + LATE)),
            _ => Ok(()),
        }
    }

    /// The most requests on their way.
    pub(super) fn on_their_way_max(&self) -> usize {
        self.on_their_way_max
    }

    /// Whether a request waits for nothing but a connection.
    pub(super) fn is_ready(&self) -> bool {
        let [fast, slow] = &self.listed;
        !fast.is_empty() || (!slow.is_empty() && self.slow_on_their_way < self.slow_max)
    }

    /// Notes that a request is done: accepted within this time, or left out.
    pub(super) fn done(&mut self, waiting: &Waiting, took: Duration) -> Change {
        let url = &waiting.request.url;
        self.forget(waiting);
        let Some(receiver) = self.known.get_mut(url) else { return Change::None };
        receiver.pause = PAUSE_MIN;
        let was_failing = std::mem::take(&mut receiver.is_failing);
        self.failing -= usize::from(was_failing);
        self.mark(url, took > FAST);
        self.list(url);
        if self.known.get(url).is_some_and(|one| one.is_idle() && !one.is_slow) {
            self.known.remove(url);
        }
        if was_failing { Change::Recovered } else { Change::None }
    }

    /// Notes that an attempt failed: the request is first again when its receiver has rested.
    pub(super) fn again(&mut self, waiting: Waiting, rest: Duration, now: Instant) {
        let (url, until) = (waiting.request.url.clone(), now + rest);
        self.mark(&url, true);
        self.come_back(&waiting);
        let Some(receiver) = self.known.get_mut(&url) else { return };
        receiver.queue.push_front(waiting);
        receiver.pause = (2 * receiver.pause).min(PAUSE_MAX);
        self.failing += usize::from(!std::mem::replace(&mut receiver.is_failing, true));
        receiver.rests_until = Some(until);
        self.resting.insert((until, url));
    }

    /// Abandons a request, and with it all requests of its receiver that have waited since before `begin`.
    pub(super) fn give_up(&mut self, waiting: &Waiting, begin: Option<Instant>) -> Vec<Arc<Request>> {
        self.mark(&waiting.request.url, true);
        let mut gone = vec![waiting.request.clone()];
        self.forget(waiting);
        let Some(receiver) = self.known.get_mut(&waiting.request.url) else { return gone };
        while let Some(old) = receiver.queue.pop_front_if(|one| begin.is_some_and(|begin| one.since < begin)) {
            receiver.bytes -= old.request.body.len();
            self.load[SLOW_ONES].remove(old.request.body.len(), 1);
            gone.push(old.request);
        }
        self.list(&waiting.request.url);
        self.note_idle(&waiting.request.url);
        gone
    }

    /// How long a receiver rests that does not say so itself.
    pub(super) fn pause_of(&self, url: &str) -> Duration {
        self.known.get(url).map_or(PAUSE_MIN, |receiver| receiver.pause)
    }

    /// The number of requests that a receiver has not accepted.
    pub(super) fn requests_of(&self, url: &str) -> usize {
        self.known.get(url).map_or(0, |receiver| receiver.queue.len() + receiver.on_their_way.len())
    }

    /// The number of receivers that accept no requests at present.
    pub(super) fn failing(&self) -> usize {
        self.failing
    }

    /// Bytes and requests for receivers that are waited for.
    pub(super) fn room_taken(&self) -> (usize, usize) {
        let waited_for = if self.gives_way { &self.load[..=FAST_ONES] } else { &self.load[..] };
        (waited_for.iter().map(|load| load.bytes).sum(), waited_for.iter().map(|load| load.requests).sum())
    }

    /// Whether nothing waits or is on its way.
    pub(super) fn are_idle(&self) -> bool {
        self.load.iter().all(|load| load.requests == 0)
    }

    /// Whether nothing waits.
    pub(super) fn have_no_queue(&self) -> bool {
        self.resting.is_empty() && self.listed.iter().all(VecDeque::is_empty)
    }

    /// All requests that have not been accepted, for each receiver in their order.
    pub(super) fn undelivered(&self) -> Vec<Arc<Request>> {
        if self.are_idle() {
            return Vec::new();
        }
        let requests = self.known.values().flat_map(|receiver| {
            receiver.on_their_way.iter().chain(receiver.queue.iter().map(|waiting| &waiting.request))
        });
        requests.cloned().collect()
    }

    /// Lists a receiver as having a request to post, if it has one and may get it. A fast one needs a place of its
    /// host.
    fn list(&mut self, url: &Arc<str>) {
        let Some(receiver) = self.known.get_mut(url) else { return };
        let is_free = receiver.on_their_way.len() < self.of_one_max && receiver.rests_until.is_none();
        if receiver.is_listed || receiver.is_parked || receiver.queue.is_empty() || !is_free {
            return;
        }
        if !receiver.is_slow && !receiver.has_place {
            let name = host_of(url);
            if !self.hosts.contains_key(name) {
                self.hosts.insert(name.into(), Host::default());
            }
            let host = self.hosts.get_mut(name).expect("it is there now");
            if host.places_taken >= self.connections {
                receiver.is_parked = true;
                return host.parked.push_back(url.clone());
            }
            host.places_taken += 1;
            receiver.has_place = true;
        }
        receiver.is_listed = true;
        self.listed[receiver.pace()].push_back(url.clone());
    }

    /// Leaves the place of a receiver that needs it no more to the next one of its host.
    fn leave_place(&mut self, url: &Arc<str>) {
        let Some(receiver) = self.known.get_mut(url) else { return };
        let needs = !receiver.is_slow && (receiver.is_listed || !receiver.on_their_way.is_empty());
        if needs || !std::mem::take(&mut receiver.has_place) {
            return;
        }
        let Some(host) = self.hosts.get_mut(host_of(url)) else { return };
        host.places_taken -= 1;
        if let Some(next) = host.parked.pop_front() {
            self.known.get_mut(&next).iter_mut().for_each(|one| one.is_parked = false);
            self.list(&next);
        } else if host.places_taken == 0 {
            self.hosts.remove(host_of(url));
        }
    }

    /// Notes the pace of a receiver.
    fn mark(&mut self, url: &Arc<str>, is_slow: bool) {
        let Some(receiver) = self.known.get_mut(url).filter(|receiver| receiver.is_slow != is_slow) else { return };
        let (bytes, on_their_way) = (receiver.bytes, receiver.on_their_way.len());
        let requests = receiver.queue.len() + on_their_way;
        if std::mem::take(&mut receiver.is_listed) {
            self.listed[receiver.pace()].retain(|one| one != url);
        }
        if std::mem::take(&mut receiver.is_parked) {
            self.hosts.get_mut(host_of(url)).iter_mut().for_each(|host| host.parked.retain(|one| one != url));
        }
        self.load[receiver.pace()].remove(bytes, requests);
        receiver.is_slow = is_slow;
        self.load[receiver.pace()].add(bytes, requests);
        match is_slow {
            true => self.slow_on_their_way += on_their_way,
            false => self.slow_on_their_way -= on_their_way,
        }
        self.leave_place(url);
        self.list(url);
    }

    /// Removes the counts of a request that is neither waiting nor on its way any more.
    fn forget(&mut self, waiting: &Waiting) {
        self.come_back(waiting);
        let Some(receiver) = self.known.get_mut(&waiting.request.url) else { return };
        let bytes = waiting.request.body.len();
        receiver.bytes -= bytes;
        self.load[receiver.pace()].remove(bytes, 1);
    }

    /// Notes that a request is not on its way any more.
    fn come_back(&mut self, waiting: &Waiting) {
        if let Some(at) = self.on_their_way.iter().position(|posted| Some(*posted) == waiting.posted) {
            self.on_their_way.remove(at);
        }
        let Some(receiver) = self.known.get_mut(&waiting.request.url) else { return };
        receiver.on_their_way.retain(|one| !Arc::ptr_eq(one, &waiting.request));
        self.slow_on_their_way -= usize::from(receiver.is_slow);
        self.leave_place(&waiting.request.url);
    }

    /// Drops the oldest requests of a slow receiver until its waiting requests are within bounds; then those of the
    /// receiver with the most waiting bytes, until all together are.
    fn give_way(&mut self, url: &Arc<str>) -> Vec<Arc<Request>> {
        let mut gone = Vec::new();
        let Some(receiver) = self.known.get(url).filter(|receiver| receiver.is_slow) else { return gone };
        let (bytes, requests) = (receiver.bytes, receiver.queue.len() + receiver.on_their_way.len());
        if bytes > SLOW_BYTES || requests > SLOW_REQUESTS {
            // The newest request stays, however large it is.
            self.drop_oldest(url, SLOW_BYTES, SLOW_REQUESTS, 1, &mut gone);
        }
        while self.load[SLOW_ONES].bytes > SLOW_BYTES_ALL {
            let slow = self.known.iter().filter(|(_, one)| one.is_slow && !one.queue.is_empty());
            let largest = slow.max_by_key(|(_, one)| one.bytes).map(|(url, one)| (url.clone(), one.bytes));
            // The rest is on its way.
            let Some((largest, bytes)) = largest else { break };
            // Half of its bytes are dropped, so that the largest is not searched again with the next request.
            let before = gone.len();
            self.drop_oldest(&largest, bytes / 2, usize::MAX, 0, &mut gone);
            self.note_idle(&largest);
            if gone.len() == before {
                break;
            }
        }
        gone
    }

    /// Drops requests down to this many bytes and requests, but none that is on its way, and not the newest ones.
    fn drop_oldest(
        &mut self,
        url: &Arc<str>,
        bytes: usize,
        requests: usize,
        newest: usize,
        gone: &mut Vec<Arc<Request>>,
    ) {
        let Some(receiver) = self.known.get_mut(url) else { return };
        while receiver.queue.len() > newest
            && (receiver.bytes > bytes || receiver.queue.len() + receiver.on_their_way.len() > requests)
        {
            let Some(oldest) = receiver.queue.pop_front() else { break };
            receiver.bytes -= oldest.request.body.len();
            self.load[SLOW_ONES].remove(oldest.request.body.len(), 1);
            gone.push(oldest.request);
        }
    }

    /// Clears the failure of a receiver for which nothing waits.
    fn note_idle(&mut self, url: &Arc<str>) {
        if let Some(receiver) = self.known.get_mut(url).filter(|one| one.is_idle()) {
            self.failing -= usize::from(std::mem::take(&mut receiver.is_failing));
        }
    }
}

impl Load {
    fn add(&mut self, bytes: usize, requests: usize) {
        (self.bytes, self.requests) = (self.bytes + bytes, self.requests + requests);
    }

    fn remove(&mut self, bytes: usize, requests: usize) {
        (self.bytes, self.requests) = (self.bytes - bytes, self.requests - requests);
    }
}

impl Receiver {
    /// Its place in arrays by pace.
    fn pace(&self) -> usize {
        usize::from(self.is_slow)
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.on_their_way.is_empty()
    }
}

impl Waiting {
    /// Since when it is tried, or since when it waits if that counts.
    pub(super) fn begun(&self, counts_waiting: bool) -> Instant {
        if counts_waiting { self.since } else { self.tried.unwrap_or(self.since) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(url: &str, body: &str) -> Arc<Request> {
        Arc::new(Request {
            url: url.into(),
            body: body.as_bytes().to_vec(),
            rows: 1,
            idempotency_key: String::new(),
            query: None,
        })
    }

    fn body(waiting: &Waiting) -> &str {
        std::str::from_utf8(&waiting.request.body).unwrap()
    }

    /// Checks that the counters match the requests.
    fn check(receivers: &Receivers) {
        let count = |is_slow: bool| {
            let of = receivers.known.values().filter(|one| one.is_slow == is_slow);
            of.fold((0, 0), |(bytes, requests), one| {
                let all = one.queue.iter().map(|waiting| &waiting.request).chain(&one.on_their_way);
                assert_eq!(one.bytes, all.map(|one| one.body.len()).sum::<usize>());
                (bytes + one.bytes, requests + one.queue.len() + one.on_their_way.len())
            })
        };
        assert_eq!([count(false), count(true)], receivers.load.map(|load| (load.bytes, load.requests)));
        let slow = receivers.known.values().filter(|one| one.is_slow);
        assert_eq!(slow.map(|one| one.on_their_way.len()).sum::<usize>(), receivers.slow_on_their_way);
        assert_eq!(receivers.known.values().filter(|one| one.is_failing).count(), receivers.failing);
        let on_their_way = receivers.known.values().map(|one| one.on_their_way.len()).sum::<usize>();
        assert_eq!(receivers.on_their_way.len(), on_their_way);
        let count = |is: fn(&Receiver) -> bool| receivers.known.values().filter(|one| is(one)).count();
        let hosts = receivers.hosts.values();
        assert_eq!(hosts.clone().map(|host| host.places_taken).sum::<usize>(), count(|one| one.has_place));
        assert_eq!(hosts.clone().map(|host| host.parked.len()).sum::<usize>(), count(|one| one.is_parked));
        assert!(hosts.clone().all(|host| host.parked.is_empty() || host.places_taken == receivers.connections));
        assert_eq!(receivers.listed.iter().map(VecDeque::len).sum::<usize>(), count(|one| one.is_listed));
    }

    #[test]
    fn slow_receivers_leave_connections_to_the_others() {
        let mut receivers = Receivers::new(4, true);
        let now = Instant::now();
        for url in ["a", "b", "c", "d"] {
            (0..2).for_each(|n| assert!(receivers.push(request(url, &format!("{url}{n}")), now).is_empty()));
        }
        // One request for each receiver, all at a time.
        let taken: Vec<Waiting> = (0..4).map(|_| receivers.next(now).unwrap()).collect();
        assert_eq!(taken.iter().map(body).collect::<Vec<_>>(), ["a0", "b0", "c0", "d0"]);
        assert_eq!(receivers.next(now).unwrap_err(), None);
        check(&receivers);
        // Three of them fail, and rest.
        let later = now + Duration::from_secs(10);
        let mut taken = taken.into_iter();
        let d = taken.next_back().unwrap();
        taken.for_each(|waiting| receivers.again(waiting, PAUSE_MIN, later));
        assert_eq!((receivers.failing(), receivers.next(later).unwrap_err()), (3, Some(later + PAUSE_MIN)));
        check(&receivers);
        assert_eq!(receivers.done(&d, Duration::ZERO), Change::None);
        assert_eq!(body(&receivers.next(later).unwrap()), "d1");
        // Two of the four connections are for the slow receivers.
        let later = later + PAUSE_MIN;
        let first = receivers.next(later).unwrap();
        let second = receivers.next(later).unwrap();
        assert_eq!((body(&first), body(&second)), ("a0", "b0"), "in order, and what failed comes first");
        assert!(receivers.next(later).is_err());
        receivers.push(request("e", "e0"), later);
        assert_eq!(body(&receivers.next(later).unwrap()), "e0");
        assert_eq!(receivers.done(&first, Duration::from_millis(5)), Change::Recovered);
        assert_eq!(receivers.failing(), 2);
        assert_eq!(body(&receivers.next(later).unwrap()), "a1", "it is fast again");
        check(&receivers);
    }

    #[test]
    fn requests_that_hang_take_no_connection_from_others() {
        let mut receivers = Receivers::new(2, true);
        let mut now = Instant::now();
        for url in ["a", "b", "c", "d", "e", "f", "fast"] {
            (0..2).for_each(|n| assert!(receivers.push(request(url, &format!("{url}{n}")), now).is_empty()));
        }
        let mut hang = Vec::new();
        for _ in 0..3 {
            (0..2).for_each(|_| hang.push(receivers.next(now).unwrap()));
            assert_eq!(receivers.next(now).unwrap_err(), Some(now + LATE), "as soon as these are late");
            now += LATE;
            check(&receivers);
        }
        for n in 0..2 {
            let fast = receivers.next(now).unwrap();
            assert_eq!(body(&fast), format!("fast{n}"));
            receivers.done(&fast, Duration::ZERO);
        }
        assert_eq!(receivers.next(now).unwrap_err(), None, "one request at a time for each of the others");
        check(&receivers);
        // There is a bound, and requests wait behind it for the first that comes back.
        ["g", "h", "i"].iter().for_each(|url| assert!(receivers.push(request(url, url), now).is_empty()));
        hang.extend([receivers.next(now).unwrap(), receivers.next(now).unwrap()]);
        assert_eq!(receivers.next(now + LATE).unwrap_err(), None);
        receivers.again(hang.remove(0), PAUSE_MIN, now + LATE);
        assert_eq!(body(&receivers.next(now + LATE).unwrap()), "i");
        check(&receivers);
    }

    #[test]
    fn one_host_does_not_have_all_connections() {
        let mut receivers = Receivers::new(2, true);
        let mut now = Instant::now();
        let hooks: Vec<String> = (0..100).map(|n| format!("http://many/{n}")).collect();
        hooks.iter().for_each(|url| assert!(receivers.push(request(url, url), now).is_empty()));
        receivers.push(request("http://other/x", "other"), now);
        let hang = [receivers.next(now).unwrap(), receivers.next(now).unwrap()];
        now += LATE;
        let other = receivers.next(now).unwrap();
        assert_eq!((body(&other), receivers.next(now).unwrap_err()), ("other", None), "though there are connections");
        receivers.done(&other, Duration::ZERO);
        check(&receivers);
        // Each that comes back leaves its place to the one that waits longest; one that fails, too.
        let [first, second] = hang;
        receivers.push(request(&hooks[0], "again"), now);
        receivers.done(&first, Duration::ZERO);
        receivers.again(second, 10 * PAUSE_MAX, now);
        check(&receivers);
        let mut next = || {
            let waiting = receivers.next(now).unwrap();
            receivers.done(&waiting, Duration::ZERO);
            check(&receivers);
            body(&waiting).to_owned()
        };
        assert_eq!((2..100).map(|_| next()).collect::<Vec<_>>(), hooks[2..]);
        assert_eq!(next(), "again");
        assert_eq!(receivers.hosts.len(), 0, "nothing is left of hosts for which nothing waits");
    }

    #[test]
    fn what_waits_for_a_slow_receiver_is_bounded_and_the_oldest_gives_way() {
        assert_eq!((SLOW_REQUESTS, SLOW_BYTES, SLOW_BYTES_ALL), (1_024, 1 << 20, 64 << 20), "what the words say");
        assert!(TOO_MUCH.contains(WAITING_MAX));
        let mut receivers = Receivers::new(2, true);
        let now = Instant::now();
        receivers.push(request("a", "first"), now);
        let first = receivers.next(now).unwrap();
        receivers.again(first, PAUSE_MIN, now);
        let gone = |n: usize, receivers: &mut Receivers| receivers.push(request("a", &format!("{n}")), now).len();
        let gone: usize = (0..2 * SLOW_REQUESTS).map(|n| gone(n, &mut receivers)).sum();
        assert_eq!(gone, SLOW_REQUESTS + 1);
        check(&receivers);
        assert_eq!(receivers.room_taken(), (0, 0), "nobody waits for it");
        let next = receivers.next(now + PAUSE_MIN).unwrap();
        assert_eq!(body(&next), format!("{SLOW_REQUESTS}"), "the newest are there");
        // A while later all requests are old.
        let later = now + Duration::from_secs(60);
        assert_eq!(receivers.give_up(&next, Some(later)).len(), SLOW_REQUESTS);
        assert!(receivers.are_idle() && receivers.failing() == 0, "nothing waits for it");
        check(&receivers);
    }

    #[test]
    fn all_slow_receivers_together_are_bounded_too() {
        let mut receivers = Receivers::new(2, true);
        let now = Instant::now();
        let large = "x".repeat(SLOW_BYTES / 2);
        let mut gone = 0;
        for n in 0..200 {
            let url = format!("r{n}");
            gone += receivers.push(request(&url, &large), now).len();
            let waiting = receivers.next(now).unwrap();
            receivers.again(waiting, Duration::from_secs(60), now);
            gone += receivers.push(request(&url, &large), now).len();
            check(&receivers);
        }
        assert!(receivers.load[SLOW_ONES].bytes <= SLOW_BYTES_ALL && gone > 0, "{gone}");
    }

    #[test]
    fn one_receiver_waits_and_nothing_gives_way() {
        let mut receivers = Receivers::new(2, false);
        let now = Instant::now();
        for n in 0..2_000 {
            assert!(receivers.push(request("a", &format!("{n}")), now).is_empty());
        }
        let (first, second) = (receivers.next(now).unwrap(), receivers.next(now).unwrap());
        assert!(receivers.next(now).is_err(), "two connections");
        receivers.done(&second, Duration::ZERO);
        receivers.again(first, PAUSE_MIN, now);
        assert!(receivers.next(now).is_err(), "it rests");
        check(&receivers);
        assert_eq!(body(&receivers.next(now + PAUSE_MIN).unwrap()), "0");
        assert_eq!(receivers.room_taken().1, 1_999);
    }
}
