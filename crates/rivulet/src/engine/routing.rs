//! Routing: how events reach the queries of applications. It has subscriptions, inboxes, routes, and topics that many
//! queries read ([`super::shared_input`]).
//!
//! What must hold: the routes of an application change one after the other. So its lock is held from the lookup of
//! which topics are shared until the router has the routes. It is taken after the locks of queries and applications,
//! and before those of groups and of the router. While it is held, nothing waits for anything outside of the process.

mod behind;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_connectors::mqtt::{InboxId, Parted, Route, RouteError};
use rivulet_dataflow::{Inbox, InputIndex, LogPosition, Slot};
use rivulet_runtime::{Group, GroupInput, InboxLimits, Joined, Workers};

use super::event_log::EventLog;
use super::messaging::Messaging;
use super::running::{Running, topics_of};
use super::shared_input::{NO_QUERY, SharedInputs};
use super::sources::Sources;
use super::topics::{InputTopics, Topics};

/// How often [`Routing::let_pass`] checks whether shared events are decoded.
const PASS_LOOK_PERIOD: Duration = Duration::from_millis(1);

/// Brings events to the queries of applications.
pub(super) struct Routing {
    messaging: Arc<Messaging>,
    pub(super) event_log: Arc<EventLog>,
    sources: Arc<Sources>,
    shared: Mutex<SharedInputs>,
}

impl Routing {
    /// Inboxes of topics that many queries read have these limits.
    pub(super) fn new(
        messaging: Arc<Messaging>,
        event_log: Arc<EventLog>,
        sources: Arc<Sources>,
        workers: Arc<Workers>,
        limits: InboxLimits,
    ) -> Self {
        let shared = Mutex::new(SharedInputs::new(messaging.router().clone(), workers, limits));
        Self { messaging, event_log, sources, shared }
    }

    /// The sources of inputs that read no topics.
    pub(super) fn sources(&self) -> &Arc<Sources> {
        &self.sources
    }

    /// Registers the inboxes of an application, one for each input, and subscribes to the topics that serve all its
    /// queries.
    pub(super) fn register_inboxes(&self, group: &Arc<Group>, topics: &Topics) -> Vec<InboxId> {
        self.messaging.subscribe(topics.inputs.iter().filter_map(|input| input.filter.as_deref()));
        let router = self.messaging.router();
        let register = |(input, of_input): (usize, &InputTopics)| match of_input.is_logged {
            true => router.register_logged_inbox(inbox_of(group, input)),
            false => router.register_inbox(inbox_of(group, input)),
        };
        topics.inputs.iter().enumerate().map(register).collect()
    }

    /// Opens an application whose inboxes were registered. The results that it may read are kept in the log from
    /// [`Routing::keep_results`] on.
    pub(super) fn open(&self, running: &Arc<Running>) {
        self.shared.lock().attach(running);
        self.sources.open(running);
    }

    /// Ends what [`Routing::register_inboxes`] and [`Routing::open`] began. By then no query has a route any more.
    pub(super) fn close(&self, running: &Running) {
        self.messaging.unsubscribe(running.topics.inputs.iter().filter_map(|input| input.filter.as_deref()));
        self.keep_results(running, false);
        self.sources.close(running);
        running.inboxes.iter().for_each(|inbox| self.messaging.router().unregister_inbox(*inbox));
        self.shared.lock().detach(running);
    }

    /// Gives the inboxes of an application to its next version, which reads the same topics in the same way.
    pub(super) fn succeed(&self, before: &Running, after: &Arc<Running>) {
        let router = self.messaging.router();
        for (input, &inbox) in after.inboxes.iter().enumerate() {
            router.replace_inbox(inbox, inbox_of(&after.group, input));
        }
        let mut shared = self.shared.lock();
        shared.succeed(before, after);
        shared.attach(after);
        drop(shared);
        self.sources.open(after);
        self.sources.begin_of(after);
    }

    /// Keeps in the log the results of other queries that an application may read. This begins when the application is
    /// registered, not when the first query reads them: results that are given once more after a crash are then known
    /// to be older than that query.
    pub(super) fn keep_results(&self, running: &Running, are_kept: bool) {
        let router = self.messaging.router();
        let may_be_results = |(_, input): &(usize, &InputTopics)| input.is_logged && input.source.is_none();
        for (place, input) in running.topics.inputs.iter().enumerate().filter(may_be_results) {
            // Where each query names its own topic, the topic may be any.
            let filter = input.filter.as_deref().unwrap_or("#");
            let number = u64::from(running.number) << InputIndex::BITS | place as u64;
            match are_kept {
                true => router.keep_results(filter, number),
                false => router.keep_results_no_more(filter, number),
            }
        }
    }

    /// Queries of an application are about to read these topics before the log is replayed, or are so no more. What
    /// comes on them until then is in the log, and is replayed for those who read them at its place.
    pub(super) fn await_routes(&self, running: &Running, topics: &[Vec<String>], are_awaited: bool) {
        let (router, number) = (self.messaging.router(), u64::from(running.number));
        let of_inputs = topics.iter().flat_map(|topics| running.topics.inputs.iter().zip(topics));
        let awaited = of_inputs.filter(|(input, _)| input.is_logged).map(|(_, topic)| topic);
        if are_awaited {
            self.messaging.subscribe(own_topics(running, topics));
            awaited.for_each(|topic| router.await_routes(topic, number));
        } else {
            awaited.for_each(|topic| router.await_routes_no_more(topic, number));
            self.messaging.unsubscribe(own_topics(running, topics));
        }
    }

    /// Routes events to the slots that new queries have got. `topics` has for each query one topic per input. Returns
    /// a position of the log as [`Routing::add_routes`] does.
    pub(super) fn add_routes_of_new(
        &self,
        running: &Running,
        joined: &[Joined],
        topics: &[Vec<String>],
    ) -> LogPosition {
        if joined.iter().all(|one| one.is_new) {
            let slots: Vec<Slot> = joined.iter().map(|one| one.slot).collect();
            return self.add_routes(running, &slots, topics);
        }
        let new = joined.iter().zip(topics).filter(|(one, _)| one.is_new);
        let (slots, topics): (Vec<Slot>, Vec<Vec<String>>) =
            new.map(|(one, topics)| (one.slot, topics.clone())).unzip();
        self.add_routes(running, &slots, &topics)
    }

    /// Routes events of the topics to the slots: for each slot one topic per input. Returns the position of the log
    /// from which on events find the routes, as [`Router::add`](rivulet_connectors::mqtt::Router::add) does. Rows of
    /// shared topics may be of earlier events.
    pub(super) fn add_routes(&self, running: &Running, slots: &[Slot], topics: &[Vec<String>]) -> LogPosition {
        self.messaging.subscribe(own_topics(running, topics));
        let mut shared = self.shared.lock();
        let (own, of_shared) = shared.split(running, slots, topics);
        shared.join(running, &of_shared);
        let from = self.add_own(running, &own);
        if let Some(shape) = &running.shape {
            shared.share_crowded(shape, own.iter().map(|route| route.filter));
        }
        from
    }

    /// Routes the events of a slot that a query shared also to the one that it has got for itself: of messages under
    /// way those that the shared slot is yet to get. The group takes in no event meanwhile.
    ///
    /// It makes no topic shared if routes of the slot [change](Routing::change_routes) at once, or its key does: the
    /// group that decodes shared topics would then take in events that find no reader after the change, or would find
    /// the reader by its key of before.
    pub(super) fn add_routes_of_parted(&self, running: &Running, from: Slot, to: Slot, routes_change: bool) {
        let topics = topics_of(running, &[to]);
        self.messaging.subscribe(own_topics(running, &topics));
        let parted: Vec<Parted> = running.inboxes.iter().map(|&inbox| Parted { inbox, from, to }).collect();
        let mut shared = self.shared.lock();
        let (own, of_shared) = shared.split(running, &[to], &topics);
        shared.join(running, &of_shared);
        if let Err(error) = self.messaging.router().add_parted(&own, &parted) {
            not_routed(running, &error);
        }
        if let Some(shape) = running.shape.as_ref().filter(|_| !routes_change) {
            shared.share_crowded(shape, own.iter().map(|route| route.filter));
        }
    }

    /// Opens routes to slots that are about to read other topics by [`Routing::change_routes`]. An event of these
    /// topics finds their group, which is quiesced and refuses the event until the group continues.
    pub(super) fn open_routes(&self, running: &Running, slots: &[Slot], topics: &[Vec<String>]) {
        self.messaging.subscribe(own_topics(running, topics));
        let shared = self.shared.lock();
        self.add_own(running, &shared.split(running, slots, topics).0);
    }

    /// Takes back [`Routing::open_routes`]: the slots keep reading their topics of before.
    pub(super) fn close_routes(&self, running: &Running, slots: &[Slot], topics: &[Vec<String>]) {
        let before = topics_of(running, slots);
        let shared = self.shared.lock();
        let (own, stay) = (shared.split(running, slots, topics).0, shared.split(running, slots, &before).0);
        self.messaging.router().remove(&without(own, &stay));
        drop(shared);
        self.messaging.unsubscribe(own_topics(running, topics));
    }

    /// For each query, given its topics, whether it shares one with others.
    pub(super) fn are_shared(&self, running: &Running, topics: &[Vec<String>]) -> Vec<bool> {
        self.shared.lock().are_shared(running, topics)
    }

    /// Makes those of these topics shared that many queries read by now, which
    /// [`add_routes_of_parted`](Routing::add_routes_of_parted) leaves out if routes change.
    pub(super) fn share_crowded(&self, running: &Running, topics: &[Vec<String>]) {
        if let Some(shape) = &running.shape {
            self.shared.lock().share_crowded(shape, topics.iter().flatten().map(String::as_str));
        }
    }

    fn add_own(&self, running: &Running, routes: &[Route<'_>]) -> LogPosition {
        // Topics were checked when the query was bound, and the inbox is registered as long as the application runs.
        self.messaging.router().add(routes).unwrap_or_else(|error| {
            not_routed(running, &error);
            self.event_log.end()
        })
    }

    /// Makes slots read other topics, or changes the keys by which they are found among the slots that share a topic.
    /// This holds from the moment at which `change` gives them their values. Their group is quiesced, and nothing waits
    /// in the group that decodes events for many queries. Their routes are [open](Routing::open_routes): an event that
    /// comes meanwhile finds one, and is refused until the group continues.
    pub(super) fn change_routes(
        &self,
        running: &Running,
        slots: &[Slot],
        topics: &[Vec<String>],
        change: impl FnOnce(),
    ) {
        let before = topics_of(running, slots);
        // A topic that they read afterwards too is not given up. Its events would find no route until the change is
        // made.
        let stay: HashSet<&str> = topics.iter().flatten().map(String::as_str).collect();
        let left = before.iter().map(|of_slot| of_slot.iter().filter(|topic| !stay.contains(topic.as_str())));
        let left: Vec<Vec<String>> = left.map(|of_slot| of_slot.cloned().collect()).collect();
        let moved = slots.iter().zip(&before).zip(topics).filter(|((_, before), after)| before != after);
        let moved: Vec<Slot> = moved.map(|((slot, _), _)| *slot).collect();
        let mut shared = self.shared.lock();
        let (own_after, _) = shared.split(running, slots, topics);
        let (own_before, shared_before) = shared.split(running, slots, &before);
        self.messaging.router().remove(&without(own_before, &own_after));
        shared.leave(running, &shared_before, &left);
        // A message under way stays one for a query that changes its key and not its topic.
        self.messaging.router().forget_rerouted(&running.inboxes, &moved);
        change();
        // A topic that no other query read is no longer shared.
        let (own, of_shared) = shared.split(running, slots, topics);
        self.add_own(running, &own);
        shared.join(running, &of_shared);
        if let Some(shape) = &running.shape {
            shared.share_crowded(shape, own.iter().map(|route| route.filter));
        }
        drop(shared);
        self.messaging.unsubscribe(own_topics(running, &before));
    }

    /// Ends what [`Routing::add_routes`] began. Returns the position of the log from which on no event finds the
    /// routes.
    pub(super) fn remove_routes(&self, running: &Running, slots: &[Slot]) -> LogPosition {
        let topics = topics_of(running, slots);
        let mut shared = self.shared.lock();
        let (own, of_shared) = shared.split(running, slots, &topics);
        let until = self.messaging.router().remove(&own);
        shared.leave(running, &of_shared, &topics);
        self.messaging.router().forget(&running.inboxes, slots);
        drop(shared);
        self.messaging.unsubscribe(own_topics(running, &topics));
        until
    }

    /// Paused queries are routed to until the log is replayed, but only from inputs that are in the log.
    pub(super) fn route_log_only(&self, running: &Running, slots: &[Slot]) {
        let inputs = &running.topics.inputs;
        if slots.is_empty() || inputs.iter().all(|input| input.is_logged) {
            return;
        }
        let topics = topics_of(running, slots);
        let routes = slots.iter().zip(&topics).flat_map(|(&slot, topics)| {
            let unlogged = running.inboxes.iter().zip(topics).zip(inputs).filter(|(_, input)| !input.is_logged);
            unlogged.map(move |((&inbox, filter), _)| Route { filter, inbox, slot })
        });
        self.messaging.router().remove(&routes.collect::<Vec<_>>());
    }

    /// The number of events of a topic that many queries read, counted since a user asked about one of these queries;
    /// `None` for any other topic. Counting ends `for_us` after the last question.
    pub(super) fn events_of_shared(&self, running: &Running, topic: &str, for_us: i64) -> Option<u64> {
        let (group, slot) = self.shared.lock().topic_of(running, topic)?;
        let found = group.examine(slot, NO_QUERY, for_us)?;
        Some(found.tally.inputs.first().map_or(0, |came| came.rows))
    }

    /// The groups that decode topics which many queries read.
    pub(super) fn shared_groups(&self) -> Vec<Arc<Group>> {
        self.shared.lock().groups()
    }

    /// The group that decodes shared topics for an application, if any of its queries may read one.
    pub(super) fn shared_group_of(&self, running: &Running) -> Option<Arc<Group>> {
        self.shared.lock().group_of(running)
    }

    /// Waits until no message is being routed. From then on every message sees the current routes.
    pub(super) fn await_routing(&self) {
        self.messaging.router().await_routing();
    }

    /// Waits until no rows are being handed on to an application. From then on every sender knows whether it takes any.
    pub(super) fn await_shared_rows(&self, running: &Running) {
        self.shared.lock().await_rows(running);
    }

    /// The number of shared topics, and of the queries that read them.
    pub(super) fn shared_counts(&self) -> (usize, usize) {
        self.shared.lock().counts()
    }

    /// Waits until the queries of an application have all events that have come, including those that are yet to be
    /// decoded for many queries. A query that stops reading a shared topic does not get the rows that are yet to be
    /// handed on. Gives up after `wait_max`, or once none of the events has been handed on for as long as `patience`.
    pub(super) fn let_pass(&self, running: &Running, wait_max: Duration, patience: Duration) {
        let Some(shared) = self.shared_group_of(running) else { return };
        let (end, begun) = (self.event_log.end(), Instant::now());
        let (mut reached, mut since) = (0, begun);
        while let Some(oldest) = shared.oldest_position().filter(|&oldest| oldest < end) {
            if oldest != reached {
                (reached, since) = (oldest, Instant::now());
            }
            if begun.elapsed() >= wait_max || since.elapsed() >= patience {
                return;
            }
            std::thread::sleep(PASS_LOOK_PERIOD);
        }
    }

    /// The position of the log up to which the query in a slot, whose group is [quiesced](Routing::quiesced), has the
    /// events that have come: the first that is yet to come to it from a topic that many queries read, or the end.
    pub(super) fn passed_to(&self, running: &Running, slot: Slot) -> LogPosition {
        let end = self.event_log.end();
        let topics = topics_of(running, &[slot]);
        let shared = self.shared.lock();
        let oldest = topics.iter().flatten().filter_map(|topic| shared.oldest_for(running, slot, topic)).min();
        oldest.map_or(end, |oldest| oldest.min(end))
    }

    /// Whether the query in a slot reads a topic that many queries read.
    pub(super) fn shares(&self, running: &Running, slot: Slot) -> bool {
        let topics = topics_of(running, &[slot]);
        let shared = self.shared.lock();
        topics.iter().flatten().any(|topic| shared.topic_of(running, topic).is_some())
    }
}

fn not_routed(running: &Running, error: &RouteError) {
    tracing::error!(application = running.full_name().in_log(), "queries get no events (a defect): {error}");
}

/// The inbox for events of an input of a group's application.
fn inbox_of(group: &Arc<Group>, input: usize) -> Arc<dyn Inbox> {
    match input {
        0 => group.clone(),
        input => Arc::new(GroupInput::new(group.clone(), input as InputIndex)),
    }
}

/// Routes without those in `stay`.
fn without<'t>(mut routes: Vec<Route<'t>>, stay: &[Route<'_>]) -> Vec<Route<'t>> {
    let stay: HashSet<(&str, InboxId, Slot)> =
        stay.iter().map(|route| (route.filter, route.inbox, route.slot)).collect();
    routes.retain(|route| !stay.contains(&(route.filter, route.inbox, route.slot)));
    routes
}

/// The topics that queries read and that no subscription for all queries covers.
fn own_topics<'t>(running: &'t Running, topics: &'t [Vec<String>]) -> impl Iterator<Item = &'t str> + Clone {
    let own = |(input, topic): (&'t InputTopics, &'t String)| {
        (input.filter.is_none() && input.source.is_none()).then_some(topic.as_str())
    };
    topics.iter().flat_map(move |topics| running.topics.inputs.iter().zip(topics).filter_map(own))
}
