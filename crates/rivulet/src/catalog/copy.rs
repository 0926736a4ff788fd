//! Copies of the catalog as it is at one moment, while changes continue: as a file, and in parts for an object store.
//!
//! A part has some rows of one table, with neighboring keys or keys of the same hash, so that a change of the catalog
//! changes few parts. For each row it has the length of its key (4), key, length of its value (4), value; numbers are
//! little-endian.

use std::collections::BTreeMap;
use std::path::Path;

use redb::{Key, ReadTransaction, ReadableTable, TableDefinition, TableHandle, Value, WriteTransaction};
use rivulet_dataflow::QueryId;
use xxhash_rust::xxh3::xxh3_64;

use super::storage::Failure;
use super::tables::{
    EachTable, META, META_ALTERATION_NEXT, META_APPLICATION_NUMBER_NEXT, META_FORMAT_VERSION, META_QUERY_ID_NEXT,
    META_STATEMENT_NEXT, STATEMENTS, TABLES,
};
use super::{ApplicationNumber, CACHE_BYTES, Catalog, CatalogError, FORMAT_VERSION, keep_to_owner};

/// The number of consecutive numbers whose rows are in one part.
const NUMBERS_OF_A_PART: u64 = 4_096;

/// The number of parts of a table whose keys are texts.
const PARTS_BY_TEXT: u64 = 16;

impl Catalog {
    /// The format that this version writes.
    pub const FORMAT: u64 = FORMAT_VERSION;

    /// Writes the current content of the catalog to a new file, which is on disk when this returns.
    ///
    /// # Errors
    /// Disk errors, and damage; the file is of no use then.
    pub fn copy_to(&self, path: &Path) -> Result<(), CatalogError> {
        self.look(|from| {
            let copy = redb::Builder::new().set_cache_size(CACHE_BYTES).create(path)?;
            keep_to_owner(path);
            let mut to = copy.begin_write()?;
            to.set_quick_repair(true);
            CopyTable { from, to: &to }.all()?;
            to.commit()?;
            Ok(())
        })
    }

    /// Gives every part of the catalog, by its name. A part that has not changed has the same bytes again.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn parts(&self, take: &mut dyn FnMut(String, Vec<u8>)) -> Result<(), CatalogError> {
        self.look(|from| GiveParts { from, take }.all())
    }

    /// Whether nothing but accounts was ever stored in it, as far as that is visible.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn is_new(&self) -> Result<bool, CatalogError> {
        use redb::ReadableTableMetadata;
        self.look(|from| {
            // Besides the format and the identity, the counters of numbers stay in this table.
            let numbers = from.open_table(META)?.len()? > 2;
            let others = from.open_table(TABLES)?.len()? + from.open_table(STATEMENTS)?.len()?;
            Ok(!numbers && others == 0)
        })
    }

    /// Stores the parts of another catalog ([`Catalog::parts`]), and prevents numbers that are `used` from being given
    /// out; all or nothing.
    ///
    /// # Errors
    /// Disk errors; parts that are not of a catalog.
    pub fn fill(&self, parts: &BTreeMap<String, Vec<u8>>, used: Used) -> Result<(), CatalogError> {
        self.write(|to| {
            FillTable { parts, to }.all()?;
            // The parts may be of an earlier format, and later changes are written in this one.
            to.open_table(META)?.insert(META_FORMAT_VERSION, FORMAT_VERSION)?;
            used.note(to)
        })
    }

    /// Prevents numbers from being given out that are `used` by saved data elsewhere, and may not be in this catalog.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn pass(&self, used: Used) -> Result<(), CatalogError> {
        match self.look(|from| used.are_passed(&from.open_table(META)?))? {
            true => Ok(()),
            false => self.write(|to| used.note(to)),
        }
    }
}

/// The highest numbers that identify anything elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Of a query.
    pub query: Option<QueryId>,
    /// Of an application.
    pub application: Option<ApplicationNumber>,
    /// Of a statement about a big query.
    pub statement: Option<u64>,
    /// Of a change of a query's values.
    pub alteration: Option<u64>,
}

impl Used {
    /// The key of each counter with the lowest number that it may give out.
    fn counters(self) -> impl Iterator<Item = (&'static str, u64)> {
        let application = self.application.map(u64::from);
        let highest = [
            (META_QUERY_ID_NEXT, self.query),
            (META_APPLICATION_NUMBER_NEXT, application),
            (META_STATEMENT_NEXT, self.statement),
            (META_ALTERATION_NEXT, self.alteration),
        ];
        highest.into_iter().filter_map(|(key, number)| Some((key, number?.saturating_add(1))))
    }

    fn are_passed(self, meta: &impl ReadableTable<&'static str, u64>) -> Result<bool, Failure> {
        for (key, least) in self.counters() {
            if meta.get(key)?.is_none_or(|next| next.value() < least) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn note(self, to: &WriteTransaction) -> Result<(), Failure> {
        let mut meta = to.open_table(META)?;
        for (key, least) in self.counters() {
            let next = meta.get(key)?.map_or(0, |next| next.value());
            meta.insert(key, next.max(least))?;
        }
        Ok(())
    }
}

struct CopyTable<'a> {
    from: &'a ReadTransaction,
    to: &'a WriteTransaction,
}

impl EachTable for CopyTable<'_> {
    fn table<K: Key + 'static, V: Value + 'static>(
        &mut self,
        definition: TableDefinition<'static, K, V>,
    ) -> Result<(), Failure> {
        let mut copy = self.to.open_table(definition)?;
        for entry in self.from.open_table(definition)?.iter()? {
            let (key, value) = entry?;
            copy.insert(key.value(), value.value())?;
        }
        Ok(())
    }
}

struct GiveParts<'a> {
    from: &'a ReadTransaction,
    take: &'a mut dyn FnMut(String, Vec<u8>),
}

impl EachTable for GiveParts<'_> {
    fn table<K: Key + 'static, V: Value + 'static>(
        &mut self,
        definition: TableDefinition<'static, K, V>,
    ) -> Result<(), Failure> {
        let mut parts: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for entry in self.from.open_table(definition)?.iter()? {
            let (key, value) = entry?;
            let (key, value) = (key.value(), value.value());
            let (key, value) = (K::as_bytes(&key), V::as_bytes(&value));
            let (key, value) = (key.as_ref(), value.as_ref());
            let number = <[u8; 8]>::try_from(key).ok().filter(|_| K::fixed_width() == Some(size_of::<u64>()));
            let part = match number {
                Some(number) => u64::from_le_bytes(number) / NUMBERS_OF_A_PART,
                None => xxh3_64(key) % PARTS_BY_TEXT,
            };
            // Numbers come in ascending order: rows of an earlier part do not come any more.
            if number.is_some()
                && let Some(done) = parts.first_entry().filter(|first| *first.key() < part)
            {
                let (done, rows) = done.remove_entry();
                (self.take)(format!("{}/{done}", definition.name()), rows);
            }
            let rows = parts.entry(part).or_default();
            for bytes in [key, value] {
                rows.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                rows.extend_from_slice(bytes);
            }
        }
        parts.into_iter().for_each(|(part, rows)| (self.take)(format!("{}/{part}", definition.name()), rows));
        Ok(())
    }
}

struct FillTable<'a> {
    parts: &'a BTreeMap<String, Vec<u8>>,
    to: &'a WriteTransaction,
}

impl EachTable for FillTable<'_> {
    fn table<K: Key + 'static, V: Value + 'static>(
        &mut self,
        definition: TableDefinition<'static, K, V>,
    ) -> Result<(), Failure> {
        let mut table = self.to.open_table(definition)?;
        let belongs = |name: &str| name.strip_prefix(definition.name()).is_some_and(|rest| rest.starts_with('/'));
        for (name, rows) in self.parts.iter().filter(|(name, _)| belongs(name)) {
            let mut rest = rows.as_slice();
            let mut next = || -> Option<&[u8]> {
                let (length, behind) = rest.split_first_chunk::<4>()?;
                let (bytes, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
                rest = behind;
                Some(bytes)
            };
            while let Some(key) = next() {
                let value = next().ok_or_else(|| Failure::Damage(format!("a copy of its part {name} ends early")))?;
                table.insert(K::from_bytes(key), V::from_bytes(value))?;
            }
            if !rest.is_empty() {
                return Err(Failure::Damage(format!("a copy of its part {name} ends early")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{AlteredQuery, CheckpointPlace, NewApplication, NewQuery};
    use super::*;
    use crate::service::{Parameter, Tenant};

    fn parts(catalog: &Catalog) -> BTreeMap<String, Vec<u8>> {
        let mut parts = BTreeMap::new();
        catalog.parts(&mut |name, bytes| assert!(parts.insert(name, bytes).is_none(), "a part comes once")).unwrap();
        parts
    }

    #[test]
    fn copies_say_the_same_and_a_change_changes_few_parts() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(folder.path()).unwrap();
        assert!(catalog.is_new().unwrap());
        let number =
            catalog.insert_application(NewApplication::sql("steps", "hash", "CREATE APPLICATION steps ...")).unwrap();
        let parameters: &[Parameter<'_>] = &[];
        let query = NewQuery { application: number, name: "", parameters, label: Some("home") };
        catalog.insert_queries(&vec![query; 10_000], Some(7)).unwrap();
        for version in 1..=60 {
            catalog
                .replace_application(
                    NewApplication::sql("steps", &version.to_string(), "CREATE APPLICATION steps ..."),
                    &[],
                    [],
                )
                .unwrap();
            let name = format!("other {version}");
            catalog.insert_application(NewApplication::sql(&name, &name, "CREATE APPLICATION ...")).unwrap();
            catalog
                .replace_application(NewApplication::sql(&name, "newer", "CREATE APPLICATION ..."), &[], [])
                .unwrap();
        }
        catalog.set_paused(&[17], true, Some(9)).unwrap();
        let altered = AlteredQuery { id: 18, parameters, label: Some("cellar"), noted_at: Some(10) };
        catalog.alter_queries(&[altered]).unwrap();
        let place = CheckpointPlace { generation: 1, place: "checkpoints".into() };
        catalog.set_checkpoint_place(&place).unwrap();
        catalog.insert_table(&Tenant::default().named("rooms"), "CREATE TABLE rooms ...").unwrap();
        let statement = catalog.insert_statement(&Tenant::default(), "CREATE SOURCE s ...").unwrap();
        catalog.set_statement_failure(statement, Some("a reason")).unwrap();
        catalog.set_statement_paused(statement, true).unwrap();
        catalog.put_tenant(&Tenant::new("acme"), Some("{\"queries\":3}")).unwrap();
        catalog.put_users(&[(&Tenant::new("acme").named("ann"), Some("{}"))]).unwrap();
        let before = parts(&catalog);
        let tables = |parts: &BTreeMap<String, Vec<u8>>| -> BTreeSet<String> {
            parts.keys().filter_map(|name| Some(name.split_once('/')?.0.to_owned())).collect()
        };
        assert_eq!(tables(&before), tables_of(&catalog), "every table has rows here, and parts");
        catalog.insert_queries(&[query], None).unwrap();
        let after = parts(&catalog);
        let changed: Vec<&String> = after.keys().filter(|name| before.get(*name) != after.get(*name)).collect();
        assert!(changed.iter().filter(|name| name.starts_with("queries/")).count() == 1, "{changed:?}");

        let filled = Catalog::in_memory().unwrap();
        filled.fill(&after, Used::default()).unwrap();
        assert_eq!(parts(&filled), after);
        // Parts that an earlier version has saved become a catalog of this one.
        let mut earlier = after.clone();
        let version = |parts: &BTreeMap<String, Vec<u8>>| -> Vec<String> {
            let of_meta = parts.iter().filter(|(name, _)| name.starts_with("meta/"));
            of_meta.map(|(name, rows)| format!("{name} {rows:?}")).collect()
        };
        for rows in earlier.iter_mut().filter(|(name, _)| name.starts_with("meta/")).map(|(_, rows)| rows) {
            let key = META_FORMAT_VERSION.as_bytes();
            if let Some(place) = rows.windows(key.len()).position(|window| window == key) {
                rows[place + key.len() + 4] = 6;
            }
        }
        assert_ne!(version(&earlier), version(&after));
        let filled = Catalog::in_memory().unwrap();
        filled.fill(&earlier, Used::default()).unwrap();
        assert_eq!(version(&parts(&filled)), version(&after));
        assert_eq!(filled.queries_count().unwrap(), 10_001);
        assert!(!filled.is_new().unwrap());
        assert_eq!(filled.lifecycle_after(0).unwrap(), catalog.lifecycle_after(0).unwrap());
        let ids = |catalog: &Catalog| -> Vec<String> {
            catalog.versions(number).unwrap().into_iter().map(|version| version.id).collect()
        };
        assert_eq!((ids(&filled), ids(&catalog).len()), (ids(&catalog), super::super::VERSIONS_MAX));
        let copy = tempfile::tempdir().unwrap();
        catalog.copy_to(&copy.path().join(super::super::FILE_NAME)).unwrap();
        assert_eq!(parts(&Catalog::open(copy.path()).unwrap()), after);

        let cut = BTreeMap::from([("applications/1".to_owned(), after.values().next().unwrap()[..6].to_vec())]);
        let other = Catalog::in_memory().unwrap();
        assert!(other.fill(&cut, Used::default()).is_err() && other.is_new().unwrap());
    }

    /// The tables of the file.
    fn tables_of(catalog: &Catalog) -> BTreeSet<String> {
        let names = catalog.look(|from| Ok(from.list_tables()?.map(|table| table.name().to_owned()).collect()));
        names.unwrap()
    }

    #[test]
    fn numbers_that_something_goes_by_elsewhere_are_not_given_out() {
        let catalog = Catalog::in_memory().unwrap();
        let used = Used { query: Some(41), application: Some(6), statement: Some(3), alteration: Some(11) };
        catalog.fill(&BTreeMap::new(), Used { statement: Some(9), ..Used::default() }).unwrap();
        for _ in 0..2 {
            catalog.pass(used).unwrap();
        }
        let changes = catalog.changes();
        catalog.pass(used).unwrap();
        catalog.pass(Used { query: Some(7), ..Used::default() }).unwrap();
        assert_eq!(catalog.changes(), changes, "nothing is written where nothing is to be passed");
        let number =
            catalog.insert_application(NewApplication::sql("steps", "hash", "CREATE APPLICATION steps ...")).unwrap();
        let parameters: &[Parameter<'_>] = &[];
        let query = NewQuery { application: number, name: "", parameters, label: None };
        assert_eq!((number, catalog.insert_queries(&[query], None).unwrap()), (7, 42));
        assert_eq!(catalog.alteration_next().unwrap(), 12);
        assert_eq!(
            catalog.insert_statement(&Tenant::default(), "CREATE SOURCE s ...").unwrap(),
            10,
            "it stays what is higher"
        );
    }
}
