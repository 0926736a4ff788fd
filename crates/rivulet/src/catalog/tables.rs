//! The tables of the catalog, and the numbers in `meta`.

use redb::{Key, TableDefinition, Value, WriteTransaction};
use rivulet_dataflow::{LogPosition, QueryId};

use super::record::ApplicationNumber;
use super::storage::Failure;

pub(super) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
pub(super) const APPLICATIONS: TableDefinition<&str, &[u8]> = TableDefinition::new("applications");
pub(super) const VERSIONS: TableDefinition<(ApplicationNumber, u64), &[u8]> = TableDefinition::new("versions");
pub(super) const QUERIES: TableDefinition<QueryId, &[u8]> = TableDefinition::new("queries");
pub(super) const PAUSED: TableDefinition<QueryId, ()> = TableDefinition::new("paused");

pub(super) const TABLES: TableDefinition<&str, &str> = TableDefinition::new("tables");
/// Statements about big queries, as they were written, in their order.
pub(super) const STATEMENTS: TableDefinition<u64, &str> = TableDefinition::new("statements");
/// The statements of big queries that are paused.
pub(super) const PAUSED_STATEMENTS: TableDefinition<u64, ()> = TableDefinition::new("paused_statements");
/// The statements of big queries that an error has ended, and the error.
pub(super) const FAILED_STATEMENTS: TableDefinition<u64, &str> = TableDefinition::new("failed_statements");

/// Users by name, each as the text of its record.
pub(super) const USERS: TableDefinition<&str, &str> = TableDefinition::new("users");
/// Tenants by name, besides the default one.
pub(super) const TENANTS: TableDefinition<&str, ()> = TableDefinition::new("tenants");
/// Limits of tenants by the name of the tenant, each as JSON.
pub(super) const QUOTAS: TableDefinition<&str, &str> = TableDefinition::new("quotas");

/// Where something is that belongs to the catalog, and how often that has changed.
pub(super) const PLACES: TableDefinition<&str, (u64, &str)> = TableDefinition::new("places");

pub(super) const META_FORMAT_VERSION: &str = "format_version";
pub(super) const META_SERVER_ID: &str = "server_id";
pub(super) const META_QUERY_ID_NEXT: &str = "query_id_next";
pub(super) const META_STATEMENT_NEXT: &str = "statement_next";
pub(super) const META_APPLICATION_NUMBER_NEXT: &str = "application_number_next";

/// What happened to queries: a number for each row; position, first and last query, change.
pub(super) const LIFECYCLE_LOG: TableDefinition<u64, (LogPosition, QueryId, QueryId, u8)> =
    TableDefinition::new("attendance");

/// Changed queries, by number of the change: position, query, and its record before.
pub(super) const ALTERATIONS: TableDefinition<u64, (LogPosition, QueryId, &[u8])> = TableDefinition::new("alterations");

/// The number of the next change.
pub(super) const META_ALTERATION_NEXT: &str = "alteration_next";

/// An action on every table. A table that is missing here is not made in a new file, so code cannot use it before it is
/// added.
pub(super) trait EachTable {
    fn table<K: Key + 'static, V: Value + 'static>(
        &mut self,
        definition: TableDefinition<'static, K, V>,
    ) -> Result<(), Failure>;

    fn all(&mut self) -> Result<(), Failure> {
        self.table(META)?;
        self.table(APPLICATIONS)?;
        self.table(VERSIONS)?;
        self.table(QUERIES)?;
        self.table(PAUSED)?;
        self.table(TABLES)?;
        self.table(STATEMENTS)?;
        self.table(PAUSED_STATEMENTS)?;
        self.table(FAILED_STATEMENTS)?;
        self.table(LIFECYCLE_LOG)?;
        self.table(ALTERATIONS)?;
        self.table(PLACES)?;
        self.table(USERS)?;
        self.table(TENANTS)?;
        self.table(QUOTAS)
    }
}

/// Makes the tables of a new file.
pub(super) struct MakeTable<'a>(pub(super) &'a WriteTransaction);

impl EachTable for MakeTable<'_> {
    fn table<K: Key + 'static, V: Value + 'static>(
        &mut self,
        definition: TableDefinition<'static, K, V>,
    ) -> Result<(), Failure> {
        Ok(self.0.open_table(definition).map(drop)?)
    }
}
