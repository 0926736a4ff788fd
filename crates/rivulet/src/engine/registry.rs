//! The queries in memory: by number, and by name for each tenant, some 60 bytes each.
//!
//! The parameters of a query are not here. They are in the slot table of its group, and durably in the catalog.

use std::collections::BTreeMap;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use rivulet_dataflow::QueryId;

use super::lifecycle::{Lifecycle, Slotted};
use crate::catalog::ApplicationNumber;
use crate::service::{Tenant, generated_id, generated_name};

/// A query, as the engine knows it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: QueryId,
    /// The name it was given; empty if it has a generated one.
    name: Box<str>,
    /// Its application; [`GONE`] once the query is gone.
    pub(super) application: ApplicationNumber,
    /// The tenant of its application.
    tenant: TenantNumber,
    /// Whether it runs, and in which slot of the application's group.
    pub(super) life: Lifecycle<Slotted>,
}

/// The number of a tenant in this registry, until the server ends: shorter than its name.
type TenantNumber = u32;

/// The application of a query that is gone.
const GONE: ApplicationNumber = ApplicationNumber::MAX;

/// How many entries are looked at together for a list: some tenths of a millisecond.
const LOOKED_AT: usize = 4_096;

impl Entry {
    fn is_gone(&self) -> bool {
        self.application == GONE
    }
}

/// All queries.
#[derive(Debug, Default)]
pub(super) struct Registry {
    /// Ordered by number. Numbers only grow, so new ones are appended. Entries of gone queries stay as marks until they
    /// are a quarter of all.
    entries: Vec<Entry>,
    gone: usize,
    /// Queries with a given name, by the hash of tenant and name.
    named: HashTable<QueryId>,
    /// The tenants that have ever had a query.
    tenants: BTreeMap<Tenant, TenantNumber>,
    /// The number of queries of each of them.
    counts: Vec<usize>,
    hasher: RandomState,
}

impl Registry {
    /// The number of queries.
    pub(super) fn count(&self) -> usize {
        self.entries.len() - self.gone
    }

    /// The number of queries of a tenant.
    pub(super) fn count_of(&self, tenant: &Tenant) -> usize {
        self.tenants.get(tenant).map_or(0, |&tenant| self.counts[tenant as usize])
    }

    /// The number of queries of each tenant that has ever had one.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&Tenant, usize)> {
        self.tenants.iter().map(|(tenant, &number)| (tenant, self.counts[number as usize]))
    }

    /// Whether a tenant has a query of this name.
    pub(super) fn contains(&self, tenant: &Tenant, name: &str) -> bool {
        self.id_of(tenant, name).is_some()
    }

    /// The number of a tenant's query with this name.
    pub(super) fn id_of(&self, tenant: &Tenant, name: &str) -> Option<QueryId> {
        let tenant = *self.tenants.get(tenant)?;
        if let Some(id) = generated_id(name) {
            let found = self.get(id).filter(|entry| entry.name.is_empty() && entry.tenant == tenant);
            return found.map(|entry| entry.id);
        }
        let hash = self.hasher.hash_one((tenant, name));
        self.named.find(hash, |&id| name_of(&self.entries, id) == (tenant, name)).copied()
    }

    /// A query by number.
    pub(super) fn get(&self, id: QueryId) -> Option<&Entry> {
        self.entries.get(place_of(&self.entries, id)?).filter(|entry| !entry.is_gone())
    }

    /// A query by number, to pause or resume it.
    pub(super) fn get_mut(&mut self, id: QueryId) -> Option<&mut Entry> {
        let place = place_of(&self.entries, id)?;
        self.entries.get_mut(place).filter(|entry| !entry.is_gone())
    }

    /// The name of a query.
    pub(super) fn name(&self, id: QueryId) -> String {
        match name_of(&self.entries, id).1 {
            "" => generated_name(id),
            name => name.to_owned(),
        }
    }

    /// Adds a query.
    ///
    /// # Panics
    /// If its number is not higher than all numbers before it: the catalog gives out numbers in order.
    pub(super) fn insert(
        &mut self,
        id: QueryId,
        (tenant, name): (&Tenant, Option<&str>),
        application: ApplicationNumber,
        life: Lifecycle<Slotted>,
    ) {
        assert!(self.entries.last().is_none_or(|last| last.id < id), "query number {id} is new and the highest");
        if self.entries.len() == self.entries.capacity() {
            // Grows by half: memory that is not written to yet is not used, and each growth copies everything.
            self.entries.reserve_exact(self.entries.len() / 2 + 1024);
        }
        let tenant = match self.tenants.get(tenant) {
            Some(tenant) => *tenant,
            None => {
                let number = TenantNumber::try_from(self.tenants.len()).expect("each tenant has a query");
                self.counts.push(0);
                *self.tenants.entry(tenant.clone()).or_insert(number)
            }
        };
        self.counts[tenant as usize] += 1;
        self.entries.push(Entry { id, name: name.unwrap_or_default().into(), application, tenant, life });
        if let Some(name) = name {
            let Self { entries, named, hasher, .. } = self;
            named.insert_unique(hasher.hash_one((tenant, name)), id, |&id| hasher.hash_one(name_of(entries, id)));
        }
    }

    /// Removes a query.
    pub(super) fn remove(&mut self, id: QueryId) -> Option<Entry> {
        let place = place_of(&self.entries, id).filter(|&place| !self.entries[place].is_gone())?;
        let hash = self.hasher.hash_one((self.entries[place].tenant, &*self.entries[place].name));
        if let Ok(found) = self.named.find_entry(hash, |&named| named == id) {
            found.remove();
        }
        let life = Lifecycle::without_slot(true);
        let mark = Entry { id, name: Box::default(), application: GONE, tenant: TenantNumber::MAX, life };
        let removed = std::mem::replace(&mut self.entries[place], mark);
        self.counts[removed.tenant as usize] -= 1;
        self.gone += 1;
        if self.gone > self.entries.len() / 4 {
            self.entries.retain(|entry| !entry.is_gone());
            self.entries.shrink_to(self.entries.len() + self.entries.len() / 8);
            self.gone = 0;
        }
        Some(removed)
    }

    /// The memory of the registry, in bytes. Linear in the number of queries.
    pub(super) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.entries.iter().map(|entry| entry.name.len()).sum::<usize>()
            + self.named.allocation_size()
    }

    /// The queries of one application.
    pub(super) fn of_application(&self, application: ApplicationNumber) -> impl Iterator<Item = QueryId> {
        self.entries.iter().filter(move |entry| entry.application == application).map(|entry| entry.id)
    }

    /// Looks at the next [`LOOKED_AT`] entries from the number `from` on, and returns where the rest begins. Those that
    /// are queries of a tenant, come after the name `after` and pass `keep` go to a page, which keeps the first `limit`
    /// by name. Between two looks others may have the registry.
    pub(super) fn look(
        &self,
        page: &mut BTreeMap<String, QueryId>,
        from: QueryId,
        tenant: &Tenant,
        (after, limit): (Option<&str>, usize),
        keep: impl Fn(&str, &Entry) -> bool,
    ) -> Option<QueryId> {
        let &tenant = self.tenants.get(tenant)?;
        let begin = self.entries.partition_point(|entry| entry.id < from);
        let end = self.entries.len().min(begin + LOOKED_AT);
        for entry in self.entries[begin..end].iter().filter(|entry| entry.tenant == tenant && !entry.is_gone()) {
            let generated;
            let name = match &*entry.name {
                "" => {
                    generated = generated_name(entry.id);
                    &generated
                }
                name => name,
            };
            let is_full = page.len() >= limit && page.last_key_value().is_none_or(|(last, _)| name >= last.as_str());
            if is_full || after.is_some_and(|after| name <= after) || !keep(name, entry) {
                continue;
            }
            page.insert(name.to_owned(), entry.id);
            if page.len() > limit {
                page.pop_last();
            }
        }
        self.entries.get(end).map(|entry| entry.id)
    }
}

/// The index of a query in the entries, if it exists. It is found at once if no number is missing before it, which is
/// usual.
fn place_of(entries: &[Entry], id: QueryId) -> Option<usize> {
    let guess = usize::try_from(id.checked_sub(entries.first()?.id)?).ok()?;
    match entries.get(guess) {
        Some(entry) if entry.id == id => Some(guess),
        _ => entries[..guess.min(entries.len())].binary_search_by_key(&id, |entry| entry.id).ok(),
    }
}

/// The tenant of a query and its given name; empty if it was given none.
fn name_of(entries: &[Entry], id: QueryId) -> (TenantNumber, &str) {
    place_of(entries, id).map_or((TenantNumber::MAX, ""), |place| (entries[place].tenant, &entries[place].name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_found_by_number_and_name() {
        let (mut registry, own) = (Registry::default(), Tenant::default());
        registry.insert(1, (&own, Some("kims_ac")), 0, Lifecycle::Running(0));
        registry.insert(2, (&own, None), 0, Lifecycle::Running(1));
        registry.insert(3, (&own, Some("anna")), 1, Lifecycle::Paused(0));
        assert_eq!(registry.id_of(&own, "kims_ac"), Some(1));
        assert_eq!(registry.id_of(&own, "query_2"), Some(2));
        assert_eq!(registry.id_of(&own, "query_1"), None, "a named query has no other name");
        assert_eq!(registry.name(2), "query_2");
        assert_eq!(registry.of_application(0).collect::<Vec<_>>(), [1, 2]);
        let names = |after: Option<&str>, limit| {
            let mut page = BTreeMap::new();
            assert_eq!(registry.look(&mut page, 0, &own, (after, limit), |_, _| true), None);
            page.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(names(None, 10), ["anna", "kims_ac", "query_2"]);
        assert_eq!(names(Some("anna"), 1), ["kims_ac"]);
        assert!(registry.remove(1).is_some() && registry.remove(1).is_none());
        assert!(!registry.contains(&own, "kims_ac") && registry.contains(&own, "anna"));
    }

    #[test]
    fn each_tenant_has_names_of_its_own() {
        assert!(size_of::<Entry>() <= 40, "a number of the tenant fits beside the rest");
        let (mut registry, tenants) = (Registry::default(), ["default", "acme", "zoo"].map(Tenant::new));
        for id in 0..3_000 {
            let tenant = &tenants[id as usize % 3];
            let name = format!("q{}", id / 3);
            let name = (id < 2_999).then_some(name.as_str());
            registry.insert(id, (tenant, name), (id % 3) as u32, Lifecycle::Running(0));
        }
        let [own, acme, zoo] = &tenants;
        assert_eq!([own, acme, zoo].map(|tenant| registry.id_of(tenant, "q7")), [Some(21), Some(22), Some(23)]);
        assert_eq!([own, acme, zoo].map(|tenant| registry.id_of(tenant, "query_2999")), [None, None, Some(2_999)]);
        assert!(registry.remove(22).is_some());
        assert_eq!([own, acme, zoo].map(|tenant| registry.contains(tenant, "q7")), [true, false, true]);
        assert_eq!([own, acme, zoo].map(|tenant| registry.count_of(tenant)), [1_000, 999, 1_000]);
        let names = |tenant| {
            let mut page = BTreeMap::new();
            assert_eq!(registry.look(&mut page, 0, tenant, (Some("q69"), 3), |_, _| true), None);
            page.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(names(acme), ["q690", "q691", "q692"]);
        assert_eq!(names(zoo), ["q690", "q691", "q692"]);
        let nobody = Tenant::new("nobody");
        assert!(!registry.contains(&nobody, "q7") && names(&nobody).is_empty());
        assert_eq!(registry.count_of(&nobody), 0);
    }

    #[test]
    fn a_list_is_made_in_parts() {
        let (mut registry, own) = (Registry::default(), Tenant::default());
        let count = 2 * LOOKED_AT as QueryId + 10;
        for id in 0..count {
            registry.insert(id, (&own, Some(&format!("q{}", count - id))), 0, Lifecycle::Running(0));
        }
        let (mut page, mut from, mut parts) = (BTreeMap::new(), Some(0), 0);
        while let Some(id) = from.filter(|_| parts < 10) {
            (from, parts) = (registry.look(&mut page, id, &own, (None, 3), |_, _| true), parts + 1);
            // What goes between two parts moves the entries after it.
            (0..id).take(LOOKED_AT).for_each(|gone| drop(registry.remove(gone)));
        }
        let names: Vec<String> = page.into_keys().collect();
        assert_eq!((parts, names), (3, ["q1", "q10", "q100"].map(String::from).to_vec()));
    }

    #[test]
    fn numbers_may_be_missing() {
        let mut registry = Registry::default();
        for id in [3, 4, 9, 12, 13] {
            registry.insert(id, (&Tenant::default(), None), 0, Lifecycle::Running(0));
        }
        let found: Vec<QueryId> = (0..20).filter(|&id| registry.get(id).is_some()).collect();
        assert_eq!(found, [3, 4, 9, 12, 13]);
        assert!(registry.get(QueryId::MAX).is_none());
    }

    #[test]
    fn queries_that_went_leave_nothing_behind() {
        let (mut registry, own) = (Registry::default(), Tenant::default());
        for id in 0..10_000 {
            registry.insert(id, (&own, Some(&format!("name{id}"))), (id % 2) as u32, Lifecycle::Running(0));
            if id >= 100 {
                registry.remove(id - 100);
            }
        }
        assert!(registry.entries.len() < 200 && registry.entries.capacity() < 4_000);
        assert_eq!(registry.of_application(1).count(), 50);
        assert_eq!(registry.id_of(&own, "name9950"), Some(9_950));
        assert_eq!(registry.id_of(&own, "name9899"), None);
    }
}
