//! Adds to an error of the planner what the text of the query shows: its place, and better words.

use datafusion_sql::sqlparser::ast;

use crate::clauses;
use crate::error::{Problem, RelationalError};
use crate::walk::{first_name, text};

impl RelationalError {
    /// Adds the place of the wrong name, if the planner has not kept one.
    pub(crate) fn located(self, query: &ast::Query) -> Self {
        match (&self.problem, self.place) {
            (Problem::FieldOfColumn(name), _) => Self::field_of_column(name, query),
            (Problem::DuplicateColumn(input, name), _) => clauses::twice(input, name, query),
            (Problem::Foreign(message), place) => match clauses::said(message, place, query) {
                Some(own) => Self { place: own.place.or(place), ..own },
                None => self,
            },
            (Problem::UnknownColumn(name, _) | Problem::AmbiguousColumn(name), None) => {
                let bare = name.rsplit('.').next().unwrap_or(name).trim_matches('"');
                let same = |ident: &ast::Ident| ident.value.eq_ignore_ascii_case(bare);
                let found = first_name(query, |idents| {
                    text(idents).eq_ignore_ascii_case(name) || !name.contains('.') && idents.last().is_some_and(same)
                });
                let found = found.or_else(|| first_name(query, |idents| idents.last().is_some_and(same)));
                let place = found.and_then(|found| found.place).or_else(|| clauses::using(bare, query));
                Self { place, ..self }
            }
            _ => self,
        }
    }

    /// The error for a name with a dot whose first part is the name of a column and not of an input.
    fn field_of_column(name: &str, query: &ast::Query) -> Self {
        let (first, has_rest) = name.split_once('.').map_or((name, false), |(first, _)| (first, true));
        let found = first_name(query, |idents| {
            let is_first = idents.first().is_some_and(|ident| ident.value.eq_ignore_ascii_case(first));
            is_first && idents.len() > 1 && (!has_rest || text(idents).eq_ignore_ascii_case(name))
        });
        let place = found.as_ref().and_then(|found| found.place);
        let name = found.map_or_else(|| name.to_owned(), |found| found.text);
        let message = format!("'{name}' would be a part of the column '{first}', and columns have no parts");
        Self { place, ..Self::new(message).hint(format!("write {first} for the column, or input.{first}")) }
    }
}
