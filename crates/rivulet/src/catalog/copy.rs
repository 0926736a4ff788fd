//! Copies of the catalog as it is at one moment, while it goes on being changed: as a file, and in parts for an object store.
//!
//! A part has some rows of one table, those whose keys are near each other or hash alike, so that a change of the catalog changes few parts:
//! of each row the length of its key (4), key, length of its value (4), value; numbers are little-endian.

use std::collections::BTreeMap;
use std::path::Path;

use redb::{Key, ReadTransaction, ReadableTable, TableDefinition, TableHandle, Value, WriteTransaction};
use xxhash_rust::xxh3::xxh3_64;

use super::storage::{Failure, guard};
use super::{
    APPLICATIONS, CACHE_BYTES, Catalog, CatalogError, FAILED_STATEMENTS, FORMAT_VERSION, META, PAUSED,
    PAUSED_STATEMENTS, QUERIES, STATEMENTS, TABLES,
};

/// So many numbers that follow each other have their rows in one part.
const NUMBERS_OF_A_PART: u64 = 4_096;

/// So many parts the rows of a table have that are found by text.
const PARTS_BY_TEXT: u64 = 16;

/// Something that is done with every table.
trait EachTable {
    fn table<K: Key + 'static, V: Value + 'static>(
        &mut self,
        definition: TableDefinition<'static, K, V>,
    ) -> Result<(), Failure>;

    fn all(&mut self) -> Result<(), Failure> {
        self.table(META)?;
        self.table(APPLICATIONS)?;
        self.table(QUERIES)?;
        self.table(PAUSED)?;
        self.table(TABLES)?;
        self.table(STATEMENTS)?;
        self.table(PAUSED_STATEMENTS)?;
        self.table(FAILED_STATEMENTS)
    }
}

impl Catalog {
    /// The format of what is written.
    pub const FORMAT: u64 = FORMAT_VERSION;

    /// Writes what the catalog says now to a new file, which is on disk when this returns.
    ///
    /// # Errors
    /// Disk errors, and damage; what is in the file then is of no use.
    pub fn copy_to(&self, path: &Path) -> Result<(), CatalogError> {
        self.read(|from| {
            guard(|| {
                let copy = redb::Builder::new().set_cache_size(CACHE_BYTES).create(path)?;
                let mut to = copy.begin_write()?;
                to.set_quick_repair(true);
                CopyTable { from, to: &to }.all()?;
                to.commit()?;
                Ok(())
            })
        })
    }

    /// Gives every part of the catalog, by its name. What has not changed gives the same bytes again.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn parts(&self, take: &mut dyn FnMut(String, Vec<u8>)) -> Result<(), CatalogError> {
        self.read(|from| guard(|| GiveParts { from, take }.all()))
    }

    /// Whether nothing was ever stored in it, as far as that can be seen.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn is_new(&self) -> Result<bool, CatalogError> {
        use redb::ReadableTableMetadata;
        self.read(|from| {
            guard(|| {
                // Beside the format and the identity, numbers that were given out stay there.
                let numbers = from.open_table(META)?.len()? > 2;
                let others = from.open_table(TABLES)?.len()? + from.open_table(STATEMENTS)?.len()?;
                Ok(!numbers && others == 0)
            })
        })
    }

    /// Stores what [`Catalog::parts`] of another catalog gave, all or nothing.
    ///
    /// # Errors
    /// Disk errors; parts that no catalog has given.
    pub fn fill(&self, parts: &BTreeMap<String, Vec<u8>>) -> Result<(), CatalogError> {
        self.write(|to| FillTable { parts, to }.all())
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
            let part = match <[u8; 8]>::try_from(key).ok().filter(|_| K::fixed_width().is_some()) {
                Some(number) => u64::from_le_bytes(number) / NUMBERS_OF_A_PART,
                None => xxh3_64(key) % PARTS_BY_TEXT,
            };
            // Numbers come in their order: what is behind one part does not come again.
            if K::fixed_width().is_some()
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
    use super::super::NewQuery;
    use super::*;
    use crate::service::Parameter;

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
        let number = catalog.insert_application("steps", "hash", "CREATE APPLICATION steps ...").unwrap();
        let parameters: &[Parameter<'_>] = &[];
        let query = NewQuery { application: number, name: "", parameters, label: Some("home") };
        catalog.insert_queries(&vec![query; 10_000]).unwrap();
        catalog.insert_table("rooms", "CREATE TABLE rooms ...").unwrap();
        let statement = catalog.insert_statement("CREATE SOURCE s ...").unwrap();
        catalog.set_statement_failure(statement, Some("a reason")).unwrap();
        let before = parts(&catalog);
        assert!(before.len() >= 6, "{:?}", before.keys());
        catalog.insert_queries(&[query]).unwrap();
        let after = parts(&catalog);
        let changed: Vec<&String> = after.keys().filter(|name| before.get(*name) != after.get(*name)).collect();
        assert!(changed.iter().filter(|name| name.starts_with("queries/")).count() == 1, "{changed:?}");

        let filled = Catalog::in_memory().unwrap();
        filled.fill(&after).unwrap();
        assert_eq!(parts(&filled), after);
        assert_eq!(filled.queries_count().unwrap(), 10_001);
        assert!(!filled.is_new().unwrap());
        let copy = tempfile::tempdir().unwrap();
        catalog.copy_to(&copy.path().join(super::super::FILE_NAME)).unwrap();
        assert_eq!(parts(&Catalog::open(copy.path()).unwrap()), after);

        let cut = BTreeMap::from([("applications/1".to_owned(), after.values().next().unwrap()[..6].to_vec())]);
        let other = Catalog::in_memory().unwrap();
        assert!(other.fill(&cut).is_err() && other.is_new().unwrap());
    }
}
