//! Topics that many queries read: each event is decoded once, and an index finds the queries that it can concern.
//!
//! Usually a route leads from a topic to a query's slot, and the query's group decodes the events. If [`QUERIES_MIN`]
//! queries read one topic, of one application or of several with the same declared columns and format, one route leads
//! to a *shared input* instead: a group whose slots are topics. Its sink ([`fan_out`]) hands each decoded row on to the
//! queries that it can concern, which the index over their parameters finds ([`readers`]). Payloads that cannot be
//! decoded go to each of the queries unchanged, so that each refuses them in its own way.
//!
//! What must hold: a query gets exactly the events it would get by a route of its own, in the same order and before the
//! same timers. The only exceptions are rows that its WHERE does not let through anyway (or would fail on after a part
//! that is false).

mod fan_out;
mod readers;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::Schema;
use rivulet_connectors::mqtt::{InboxId, Route, Router};
use rivulet_dataflow::{Chain, Cut, LogPosition, QueryId, Slot};
use rivulet_runtime::{Group, GroupParts, InboxLimits, Overflow, TaskParts, Workers};

use super::running::{InputShape, Running};
use fan_out::FanOut;
use readers::Readers;

/// The number of queries of one topic from which on sharing is worth its additional step.
const QUERIES_MIN: usize = 16;

/// The most events in a batch of a shared input: few enough that the content of each refused event is kept.
const BATCH_ROWS_MAX: usize = 256;

/// The query number in the slot of a topic. No query has this number; the slot only needs one.
pub(super) const NO_QUERY: QueryId = 0;

/// The topics that many queries with one kind of input read.
pub(super) struct SharedInput {
    group: Arc<Group>,
    inbox: InboxId,
    /// The slot of each topic in `group`.
    topics: HashMap<Box<str>, Slot>,
    readers: Arc<Readers>,
}

impl SharedInput {
    /// A shared input without topics; `register` registers its inbox with the router.
    fn new(
        shape: &Arc<InputShape>,
        limits: InboxLimits,
        workers: &Workers,
        register: impl FnOnce(Arc<Group>) -> InboxId,
    ) -> Self {
        let readers = Arc::<Readers>::default();
        let (shape, of_sink, topic_inputs) = (shape.clone(), readers.clone(), shape.topic_inputs);
        let make = move || TaskParts {
            decoder: (shape.decoder)(),
            chain: Chain::new(Vec::new()),
            sink: Box::new(FanOut::new(of_sink.clone())),
        };
        let group = workers.create_group(GroupParts {
            name: "shared input".into(),
            parameters: Arc::new(Schema::empty()),
            make: Box::new(make),
            limits: InboxLimits { overflow: Overflow::Block, ..limits },
            topic_inputs,
            event_time_column: None,
            task_queries_max: None,
            batch_rows_max: Some(BATCH_ROWS_MAX),
            equal_by: None,
            cut: Cut::Never("it hands rows on in the order of its topics"),
            passes_on: true,
            is_checkpointed: false,
        });
        Self { inbox: register(group.clone()), group, topics: HashMap::new(), readers }
    }

    /// The slot of a topic, if it is shared.
    fn topic(&self, topic: &str) -> Option<Slot> {
        self.topics.get(topic).copied()
    }

    /// Makes a topic shared and returns its slot. No query reads it yet.
    fn add_topic(&mut self, topic: &str) -> Slot {
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let nothing = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options);
        let slot = self.group.add(&[NO_QUERY], &nothing.expect("a row without columns"))[0];
        self.readers.add_topic(slot);
        self.topics.insert(topic.into(), slot);
        slot
    }

    /// Makes queries read shared topics: each of `slots` reads the topic with the same index, given by its slot here.
    fn add(&self, running: &Running, slots: &[Slot], topics: &[Slot]) {
        running.group.follow(&self.group);
        self.readers.add(running, slots, topics);
    }

    /// Removes those topics that no query reads, and returns them with their slots.
    fn take_unread<'t>(&mut self, topics: impl Iterator<Item = &'t str>) -> Vec<(&'t str, Slot)> {
        let known = topics.filter_map(|topic| Some((topic, self.topic(topic)?)));
        let mut unread: Vec<(&str, Slot)> = known.filter(|(_, slot)| self.readers.is_unread(*slot)).collect();
        unread.sort_unstable();
        unread.dedup();
        for (topic, _) in &unread {
            self.topics.remove(*topic);
        }
        unread
    }
}

/// Queries whose topic is shared, with the slot of the topic in the shared input.
#[derive(Default)]
pub(super) struct Shared {
    slots: Vec<Slot>,
    topics: Vec<Slot>,
}

/// The shared inputs of an engine, by the signature of their payloads.
pub(super) struct SharedInputs {
    router: Arc<Router>,
    workers: Arc<Workers>,
    limits: InboxLimits,
    inputs: HashMap<String, SharedInput>,
    /// The applications that may share topics, by their inbox.
    by_inbox: HashMap<InboxId, Arc<Running>>,
}

impl SharedInputs {
    /// Without any inputs yet; their inboxes will have these limits.
    pub(super) fn new(router: Arc<Router>, workers: Arc<Workers>, limits: InboxLimits) -> Self {
        Self { router, workers, limits, inputs: HashMap::new(), by_inbox: HashMap::new() }
    }

    /// An application runs, or another version of it does.
    pub(super) fn attach(&mut self, running: &Arc<Running>) {
        self.by_inbox.extend(running.inboxes.iter().map(|&inbox| (inbox, running.clone())));
    }

    /// An application no longer runs.
    pub(super) fn detach(&mut self, running: &Running) {
        running.inboxes.iter().for_each(|inbox| drop(self.by_inbox.remove(inbox)));
    }

    /// The group that decodes a topic for queries of an application, and the slot of the topic there, if it is shared.
    pub(super) fn topic_of(&self, running: &Running, topic: &str) -> Option<(Arc<Group>, Slot)> {
        let input = self.inputs.get(&running.shape.as_ref()?.signature)?;
        Some((input.group.clone(), input.topic(topic)?))
    }

    /// The lowest position of the log of the events of a topic that a query in a slot is yet to get from there; `None`
    /// if there are none, or it is not shared.
    pub(super) fn oldest_for(&self, running: &Running, slot: Slot, topic: &str) -> Option<LogPosition> {
        let input = self.inputs.get(&running.shape.as_ref()?.signature)?;
        let of_topic = input.topic(topic)?;
        // Nothing is in the hands of a worker: it waits to be decoded, or to be handed on.
        let _suspended = input.group.suspended();
        let to_decode = input.group.waiting_from(of_topic);
        to_decode.into_iter().chain(input.readers.oldest_for(&running.group, slot, of_topic)).min()
    }

    /// Calls `each` with every slot of an application that reads the topic in this slot of the inbox of a shared input.
    pub(super) fn for_each_reader(&self, running: &Running, inbox: InboxId, topic: Slot, each: impl FnMut(Slot)) {
        let input = running.shape.as_ref().and_then(|shape| self.inputs.get(&shape.signature));
        if let Some(input) = input.filter(|input| input.inbox == inbox) {
            let known = input.readers.known();
            let of_it = known.all(topic).filter(|(group, _)| Arc::ptr_eq(group, &running.group));
            of_it.map(|(_, slot)| slot).for_each(each);
        }
    }

    /// The number of shared topics, and of the queries that read them.
    pub(super) fn counts(&self) -> (usize, usize) {
        let inputs = || self.inputs.values();
        (inputs().map(|input| input.topics.len()).sum(), inputs().map(|input| input.readers.queries()).sum())
    }

    /// The groups that decode topics which many queries read.
    pub(super) fn groups(&self) -> Vec<Arc<Group>> {
        self.inputs.values().map(|input| input.group.clone()).collect()
    }

    /// Divides queries into those without a shared topic, for which it returns routes, and those with one. `topics` has
    /// for each slot the topics of its inputs.
    pub(super) fn split<'t>(
        &self,
        running: &Running,
        slots: &[Slot],
        topics: &'t [Vec<String>],
    ) -> (Vec<Route<'t>>, Shared) {
        let input = running.shape.as_ref().and_then(|shape| self.inputs.get(&shape.signature));
        let (mut own, mut shared) = (Vec::new(), Shared::default());
        for (&slot, topics) in slots.iter().zip(topics) {
            // Only an application with one input has a shape, and so can share topics.
            match input.and_then(|input| input.topic(&topics[0])) {
                Some(of_topic) => {
                    shared.slots.push(slot);
                    shared.topics.push(of_topic);
                }
                None => {
                    let routes = running.inboxes.iter().zip(topics);
                    own.extend(routes.map(|(&inbox, topic)| Route { filter: topic, inbox, slot }));
                }
            }
        }
        (own, shared)
    }

    /// For each query of an application, given its topics, whether it shares one.
    pub(super) fn are_shared(&self, running: &Running, topics: &[Vec<String>]) -> Vec<bool> {
        let input = running.shape.as_ref().and_then(|shape| self.inputs.get(&shape.signature));
        // Only an application with one input has a shape, and so can share topics.
        let is_shared = |topics: &Vec<String>| input.is_some_and(|input| input.topic(&topics[0]).is_some());
        topics.iter().map(is_shared).collect()
    }

    /// The group that decodes shared topics for an application, if any of its queries may read one.
    pub(super) fn group_of(&self, running: &Running) -> Option<Arc<Group>> {
        self.inputs.get(&running.shape.as_ref()?.signature).map(|input| input.group.clone())
    }

    /// Waits until no rows are being handed on to an application. From then on every sender knows whether it takes any,
    /// and which rows have been handed on.
    pub(super) fn await_rows(&self, running: &Running) {
        let input = running.shape.as_ref().and_then(|shape| self.inputs.get(&shape.signature));
        if let Some(input) = input {
            input.group.wait_for_activations();
            input.readers.await_rows();
        }
    }

    /// Makes the next version of an application, with an input of the same shape, read what the version before reads.
    pub(super) fn succeed(&self, before: &Running, after: &Running) {
        let Some(input) = after.shape.as_ref().and_then(|shape| self.inputs.get(&shape.signature)) else {
            return;
        };
        after.group.follow(&input.group);
        input.readers.succeed(before, after);
    }

    /// Makes queries read the shared topics that `split` has found.
    pub(super) fn join(&self, running: &Running, shared: &Shared) {
        let input = running.shape.as_ref().and_then(|shape| self.inputs.get(&shape.signature));
        if let Some(input) = input.filter(|_| !shared.slots.is_empty()) {
            input.add(running, &shared.slots, &shared.topics);
        }
    }

    /// Makes those topics shared that many queries with inputs of this shape read.
    pub(super) fn share_crowded<'t>(&mut self, shape: &Arc<InputShape>, topics: impl Iterator<Item = &'t str>) {
        let router = &self.router;
        let mut crowded = router.crowded(topics, QUERIES_MIN);
        crowded.sort_unstable();
        crowded.dedup();
        for topic in crowded {
            let reads_so = |inbox: InboxId| {
                let running = self.by_inbox.get(&inbox)?;
                running.shape.as_ref().filter(|one| one.signature == shape.signature).map(|_| running.clone())
            };
            let mut routes = router.routes_of(topic);
            routes.sort_unstable();
            let routes: Vec<(InboxId, Slot)> =
                routes.into_iter().filter(|&(inbox, _)| reads_so(inbox).is_some()).collect();
            if routes.len() < QUERIES_MIN {
                continue;
            }
            let readers: Vec<(Arc<Running>, Vec<Slot>)> = routes
                .chunk_by(|(one, _), (other, _)| one == other)
                .filter_map(|of_one| Some((reads_so(of_one[0].0)?, of_one.iter().map(|(_, slot)| *slot).collect())))
                .collect();
            let input = self.inputs.entry(shape.signature.clone()).or_insert_with(|| {
                SharedInput::new(shape, self.limits, &self.workers, |group| match shape.is_logged {
                    true => router.register_logged_inbox(group),
                    false => router.register_inbox(group),
                })
            });
            let slot = input.add_topic(topic);
            for (running, slots) in readers {
                input.add(&running, &slots, &vec![slot; slots.len()]);
            }
            let through = Route { filter: topic, inbox: input.inbox, slot };
            if let Err(error) = router.reroute(&routes, through) {
                tracing::error!(topic, "its events stay with each query (a defect): {error}");
            }
        }
    }

    /// Ends for some queries of one application what `share_crowded` or `join` began.
    pub(super) fn leave(&mut self, running: &Running, shared: &Shared, topics: &[Vec<String>]) {
        let Some(shape) = running.shape.as_ref().filter(|_| !shared.slots.is_empty()) else { return };
        let Some(input) = self.inputs.get_mut(&shape.signature) else { return };
        input.readers.remove(running, &shared.slots, &shared.topics);
        let router = &self.router;
        let unread = input.take_unread(topics.iter().flatten().map(String::as_str));
        let (routes, slots): (Vec<Route<'_>>, Vec<Slot>) =
            unread.into_iter().map(|(filter, slot)| (Route { filter, inbox: input.inbox, slot }, slot)).unzip();
        router.remove(&routes);
        // Waits for the activation under way. The rows that it has left are dropped before another topic can get the
        // slot.
        input.group.remove(&slots);
        input.readers.forget_topics(&slots);
        if input.topics.is_empty() {
            router.unregister_inbox(input.inbox);
            self.workers.remove_group(input.group.id());
            self.inputs.remove(&shape.signature);
        }
    }
}
