//! Refused requests.

use std::time::Duration;

/// The kind of an error; it decides the HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The named thing does not exist.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// The request is wrong in itself: SQL, parameters, types.
    Invalid,
    /// The request contradicts the present state, for example dropping an application that has queries.
    Conflict,
    /// Not possible now: the server is starting or stopping, or the disk fails.
    Unavailable,
    /// A configured limit is reached.
    LimitReached,
    /// The client's credentials are wrong or missing.
    Unauthenticated,
    /// The caller may not do this.
    Forbidden,
    /// A defect of Rivulet.
    Internal,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::NotFound,
        Self::AlreadyExists,
        Self::Invalid,
        Self::Conflict,
        Self::Unavailable,
        Self::LimitReached,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::Internal,
    ];

    /// The name in answers of the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::Unavailable => "unavailable",
            Self::LimitReached => "limit_reached",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::Internal => "internal",
        }
    }
}

/// A refused request: what was wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ServiceError {
    /// The kind.
    pub kind: ErrorKind,
    /// What was wrong, in one sentence without a full stop.
    pub message: String,
    /// Line in the SQL text, from 1.
    pub line: Option<u32>,
    /// Column in that line in characters, from 1.
    pub column: Option<u32>,
    /// What to do next.
    pub hint: Option<String>,
    /// The parameter of a query that the error is about, if there is one.
    pub parameter: Option<String>,
    /// The number of statements of a script after the one that failed.
    pub statements_not_run: usize,
    /// After how many seconds the client may ask again, if that is known.
    pub retry_after_s: Option<u32>,
}

impl From<rivulet_sql::SqlError> for ServiceError {
    fn from(error: rivulet_sql::SqlError) -> Self {
        Self { hint: error.hint, ..Self::invalid(error.message).at(error.line, error.column) }
    }
}

impl ServiceError {
    /// An error without position and hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        let (line, column, hint, parameter) = (None, None, None, None);
        Self { kind, message, line, column, hint, parameter, statements_not_run: 0, retry_after_s: None }
    }

    /// [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// An error from the text of an error of another crate: text after `\nhint: ` becomes the hint.
    pub fn from_text(kind: ErrorKind, text: &str) -> Self {
        match text.split_once("\nhint: ") {
            Some((message, hint)) => Self::new(kind, message).with_hint(hint),
            None => Self::new(kind, text),
        }
    }

    /// The message, with the hint behind `\nhint: `.
    pub fn text(&self) -> String {
        let hint = self.hint.as_ref().map_or_else(String::new, |hint| format!("\nhint: {hint}"));
        format!("{}{hint}", self.message)
    }

    /// The error with a position in the SQL text, both from 1.
    #[must_use]
    pub fn at(mut self, line: u32, column: u32) -> Self {
        self.line = Some(line);
        self.column = Some(column);
        self
    }

    /// The error at this position, unless it has one.
    #[must_use]
    pub fn or_at(self, position: rivulet_sql::Position) -> Self {
        if self.line.is_some() { self } else { self.at(position.line, position.column) }
    }

    /// The error at a line and column of the text of an application; zeros are no position.
    #[must_use]
    pub fn at_place(self, (line, column): (u32, u32)) -> Self {
        if line == 0 { self } else { self.at(line, column) }
    }

    /// The error with the candidate nearest to `name` as what was probably meant, or with another hint if none is near.
    #[must_use]
    pub fn suggesting<'a>(
        self,
        name: &str,
        candidates: impl IntoIterator<Item = &'a str>,
        otherwise: impl Into<String>,
    ) -> Self {
        match rivulet_sql::nearest(name, candidates) {
            Some(near) => self.with_hint(format!("did you mean '{near}'?")),
            None => self.with_hint(otherwise),
        }
    }

    /// The error of something that is possible again after this time.
    #[must_use]
    pub fn until(mut self, wait: Duration) -> Self {
        // It has passed for sure by then.
        self.retry_after_s = Some(u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1));
        self
    }

    /// The error with what to do next.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_in_a_text_goes_to_its_place() {
        let error = ServiceError::from_text(ErrorKind::Invalid, "no such format 'XML'\nhint: write JSON");
        assert_eq!(error, ServiceError::invalid("no such format 'XML'").with_hint("write JSON"));
        let error = ServiceError::from_text(ErrorKind::Unavailable, "the port is in use");
        assert_eq!(error, ServiceError::new(ErrorKind::Unavailable, "the port is in use"));
    }
}
