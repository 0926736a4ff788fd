//! The routes: from the topic of a message to its deliveries.
//!
//! Nothing here locks, logs, counts, pushes or reads a clock. The caller carries out the deliveries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use rivulet_dataflow::{Inbox, Slot};

use super::super::index::TopicIndex;
use super::super::topic::TopicError;

/// A registered inbox. Numbers are reused, but not while a route names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InboxId(pub(super) u32);

/// Sends messages of a topic, or of all topics that match a filter, to a slot of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<'a> {
    /// A topic or a filter.
    pub filter: &'a str,
    /// The inbox of the query.
    pub inbox: InboxId,
    /// The query's slot in that inbox.
    pub slot: Slot,
}

/// A slot that a query has got for itself, and the slot that it shared before. It continues that one: whatever the
/// query was still to get there, it gets here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parted {
    /// The inbox of both.
    pub inbox: InboxId,
    /// The slot that it shared.
    pub from: Slot,
    /// Its own slot.
    pub to: Slot,
}

impl Route<'_> {
    fn target(&self) -> Target {
        Target { inbox: self.inbox.0, slot: self.slot }
    }
}

/// Why a route cannot be added. None of the routes given with it was added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The filter is invalid.
    #[error(transparent)]
    Filter(#[from] TopicError),
    /// The inbox is not registered, or not any more.
    #[error(
        "the inbox of the route for '{filter}' is not registered\n\
         hint: register it before its routes, and remove the routes first"
    )]
    Inbox {
        /// The route's filter.
        filter: String,
    },
}

impl RouteError {
    fn no_inbox(filter: &str) -> Self {
        Self::Inbox { filter: filter.to_owned() }
    }
}

/// The target of a route, in eight bytes because there may be millions. Inboxes of one application are registered in
/// the order of its inputs, so its targets have that order too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Target {
    inbox: u32,
    pub(super) slot: Slot,
}

impl Target {
    pub(super) fn inbox_id(self) -> InboxId {
        InboxId(self.inbox)
    }

    const FIRST: Self = Self { inbox: 0, slot: 0 };
    const LAST: Self = Self { inbox: u32::MAX, slot: Slot::MAX };
}

/// A message for one slot of an inbox.
#[derive(Clone, Copy)]
pub(super) struct Delivery<'r> {
    pub(super) target: Target,
    pub(super) inbox: &'r dyn Inbox,
    /// Whether it is for a durable input.
    pub(super) is_logged: bool,
}

struct Registered {
    /// `None` once unregistered.
    inbox: Option<Arc<dyn Inbox>>,
    /// The number of routes that name it.
    routes: usize,
    /// Whether its messages have to be in the log.
    is_logged: bool,
}

#[derive(Default)]
pub(super) struct Routes {
    index: TopicIndex<Target>,
    inboxes: Vec<Registered>,
    /// The number of logged inboxes.
    logged_inboxes: usize,
    /// Numbers that can be reused, the lowest first: inboxes that are registered one after the other have ascending
    /// numbers.
    free: BTreeSet<u32>,
    /// Changes with every change of the routes.
    version: u64,
    /// Targets whose route was replaced by another. A message that was under way at that moment still goes to them.
    rerouted: HashSet<Target, foldhash::fast::RandomState>,
    /// Targets that continue another one, by that one, each with the version of the routes since which it does.
    continued: BTreeMap<(Target, Target), u64>,
    /// The same, from the other side: which target each of them continues.
    continues: HashMap<Target, Target, foldhash::fast::RandomState>,
}

impl Routes {
    pub(super) fn register(&mut self, inbox: Arc<dyn Inbox>, is_logged: bool) -> InboxId {
        self.logged_inboxes += usize::from(is_logged);
        let registered = Registered { inbox: Some(inbox), routes: 0, is_logged };
        InboxId(match self.free.pop_first() {
            Some(id) => {
                self.inboxes[id as usize] = registered;
                id
            }
            None => {
                let id = u32::try_from(self.inboxes.len()).expect("inboxes fit into memory, so they fit into 32 bits");
                self.inboxes.push(registered);
                id
            }
        })
    }

    /// Replaces an inbox by another.
    pub(super) fn replace(&mut self, id: InboxId, inbox: Arc<dyn Inbox>) {
        if let Some(registered) = self.registered(id) {
            registered.inbox = Some(inbox);
        }
    }

    /// Unregisters an inbox. Its number is reused when the last route that names it is removed.
    pub(super) fn unregister(&mut self, id: InboxId) {
        self.version += 1;
        let Some(registered) = self.registered(id) else { return };
        registered.inbox = None;
        let (is_logged, routes) = (registered.is_logged, registered.routes);
        self.logged_inboxes -= usize::from(is_logged);
        if routes == 0 {
            self.free.insert(id.0);
        }
    }

    fn registered(&mut self, id: InboxId) -> Option<&mut Registered> {
        self.inboxes.get_mut(id.0 as usize).filter(|one| one.inbox.is_some())
    }

    /// Adds all of these routes, or none. Their filters are valid.
    pub(super) fn add(&mut self, routes: &[Route<'_>]) -> Result<(), RouteError> {
        if let Some(unknown) = routes.iter().find(|route| self.registered(route.inbox).is_none()) {
            return Err(RouteError::no_inbox(unknown.filter));
        }
        self.version += 1;
        for route in routes {
            if self.index.insert(route.filter, route.target()) {
                self.inboxes[route.inbox.0 as usize].routes += 1;
            }
        }
        Ok(())
    }

    /// Removes routes. Ignores those that do not exist.
    pub(super) fn remove(&mut self, routes: &[Route<'_>]) {
        self.version += 1;
        for route in routes {
            if self.index.remove(route.filter, route.target()) {
                let registered = &mut self.inboxes[route.inbox.0 as usize];
                registered.routes -= 1;
                if registered.routes == 0 && registered.inbox.is_none() {
                    self.free.insert(route.inbox.0);
                }
            }
        }
    }

    /// Replaces the routes of `others` at the same topic or filter by one.
    pub(super) fn reroute(&mut self, others: &[(InboxId, Slot)], through: Route<'_>) -> Result<(), RouteError> {
        self.add(&[through])?;
        for &(inbox, slot) in others {
            let target = Target { inbox: inbox.0, slot };
            if self.index.remove(through.filter, target) {
                self.inboxes[inbox.0 as usize].routes -= 1;
                self.rerouted.insert(target);
            }
        }
        Ok(())
    }

    /// Notes that a slot continues another one. Its routes were added under the same lock.
    pub(super) fn note_parted(&mut self, &Parted { inbox, from, to }: &Parted) {
        self.version += 1;
        let [from, to] = [from, to].map(|slot| Target { inbox: inbox.0, slot });
        self.forget_parted(to);
        self.continued.insert((from, to), self.version);
        self.continues.insert(to, from);
        // What is under way to the shared slot by its route of before reaches its own slot in the same way.
        if self.rerouted.contains(&from) {
            self.rerouted.insert(to);
        }
    }

    fn forget_parted(&mut self, to: Target) {
        if let Some(from) = self.continues.remove(&to) {
            self.continued.remove(&(from, to));
        }
    }

    pub(super) fn forget_rerouted(&mut self, inbox: InboxId, slots: &[Slot]) {
        self.version += 1;
        for &slot in slots {
            self.rerouted.remove(&Target { inbox: inbox.0, slot });
        }
    }

    /// Forgets which routes of these slots were replaced, and which slots they continue.
    pub(super) fn forget(&mut self, inbox: InboxId, slots: &[Slot]) {
        self.forget_rerouted(inbox, slots);
        slots.iter().for_each(|&slot| self.forget_parted(Target { inbox: inbox.0, slot }));
    }

    /// Whether there is anything to [forget](Routes::forget).
    pub(super) fn remembers(&self) -> bool {
        !self.rerouted.is_empty() || !self.continues.is_empty()
    }

    pub(super) fn reserve(&mut self, additional: usize) {
        self.index.reserve(additional);
    }

    /// The targets of each topic and filter.
    #[inline]
    pub(super) fn index(&self) -> &TopicIndex<Target> {
        &self.index
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Whether a durable input is among the inboxes.
    pub(super) fn has_logged(&self) -> bool {
        self.logged_inboxes > 0
    }

    /// The routes of exactly this topic or filter.
    pub(super) fn at(&self, filter: &str) -> Vec<(InboxId, Slot)> {
        self.index.values_at(filter).into_iter().map(|target| (InboxId(target.inbox), target.slot)).collect()
    }

    /// Calls `each` with every delivery of a message of this topic.
    #[inline]
    pub(super) fn for_each<'r>(&'r self, topic: &[u8], mut each: impl FnMut(Delivery<'r>)) {
        self.index.for_each(topic, |&target| {
            if let Some(delivery) = self.delivery(target) {
                each(delivery);
            }
        });
    }

    /// The delivery to a target; `None` if its inbox is not registered any more.
    #[inline]
    pub(super) fn delivery(&self, target: Target) -> Option<Delivery<'_>> {
        let Registered { inbox, is_logged, .. } = &self.inboxes[target.inbox as usize];
        inbox.as_deref().map(|inbox| Delivery { target, inbox, is_logged: *is_logged })
    }

    /// Brings the targets of a message that are still to get it, found at an earlier `version`, up to date. Those that
    /// are no longer there are left out: a slot may have gone, and its number may belong to another query by now. A
    /// target that continues one of them since then is added. If it continues one that has the message already, it is
    /// not: its query has the message by that one.
    pub(super) fn bring_up_to_date(&self, topic: &[u8], version: u64, targets: &mut Vec<Target>) {
        if !self.continued.is_empty() {
            self.add_continuing(version, targets);
        }
        targets.sort_unstable();
        let mut present = Vec::new();
        self.index.for_each(topic, |target| {
            if targets.binary_search(target).is_ok() {
                present.push(*target);
            }
        });
        present.extend(targets.iter().filter(|target| self.rerouted.contains(*target)));
        present.sort_unstable();
        present.dedup();
        *targets = present;
    }

    fn add_continuing(&self, version: u64, targets: &mut Vec<Target>) {
        let mut since = vec![version; targets.len()];
        let mut place = 0;
        // Versions rise from each target to those that continue it, so this comes to an end.
        while let Some(&from) = targets.get(place) {
            for (&(_, to), &parted) in self.continued.range((from, Target::FIRST)..=(from, Target::LAST)) {
                if parted > since[place] {
                    targets.push(to);
                    since.push(parted);
                }
            }
            place += 1;
        }
    }
}
