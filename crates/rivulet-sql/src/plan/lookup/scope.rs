//! Names if there are tables: a column alone, or with its table's name before it.

use super::super::check::Scope;
use crate::SqlError;
use crate::statement::Name;

/// The names of a reference table, or of a joined input.
#[derive(Clone)]
pub(in crate::plan) struct ScopeTable {
    pub(in crate::plan) name: String,
    pub(in crate::plan) columns: Vec<String>,
}

impl Scope<'_> {
    /// Resolves a name alone: to itself, or to the column of a table that it means.
    pub(in crate::plan) fn of_table(&self, name: Name) -> Result<Name, SqlError> {
        let full = |table: &ScopeTable| Name { text: full_name(&table.name, &name.text), position: name.position };
        let has = |table: &&ScopeTable| table.columns.contains(&name.text);
        if let Some(table) = self.tables.last().filter(|table| self.in_table && has(table)) {
            return Ok(full(table));
        }
        let mut tables = self.tables.iter().filter(has);
        let Some(table) = tables.next() else { return Ok(name) };
        let other = if self.columns.contains(&name.text.as_str()) {
            Some(self.alias.unwrap_or(self.input))
        } else {
            tables.next().map(|other| other.name.as_str())
        };
        match other {
            None => Ok(full(table)),
            Some(other) => Err(SqlError::new(name.position, format!("the column '{name}' is ambiguous"))
                .hint(format!("write {other}.{name} or {}.{name}", table.name))),
        }
    }

    /// Resolves a column with the name of its table; `None` if there is no table with that name.
    pub(in crate::plan) fn table_column(&self, table: &Name, column: &Name) -> Result<Option<Name>, SqlError> {
        let Some(found) = self.tables.iter().find(|one| one.name == table.text) else { return Ok(None) };
        if found.columns.contains(&column.text) {
            return Ok(Some(Name { text: full_name(&found.name, &column.text), position: column.position }));
        }
        let error = SqlError::new(column.position, format!("unknown column '{table}.{column}'"));
        let names: Vec<&str> = found.columns.iter().map(String::as_str).collect();
        let hint = format!("'{table}' has the columns {}", crate::address::list(&names));
        Err(error.suggest(&column.text, names, hint))
    }

    /// The table of a column's full name.
    pub(in crate::plan) fn table_of(&self, full: &str) -> Option<&str> {
        let is_of = |table: &&ScopeTable| table.columns.iter().any(|column| full_name(&table.name, column) == full);
        self.tables.iter().find(is_of).map(|table| table.name.as_str())
    }

    /// A column's own name.
    pub(in crate::plan) fn plain_name<'n>(&self, full: &'n str) -> &'n str {
        self.table_of(full).map_or(full, |table| &full[table.len() + 1..])
    }
}

/// The full name of a table's column among all columns.
pub(in crate::plan) fn full_name(table: &str, column: &str) -> String {
    format!("{table}.{column}")
}
