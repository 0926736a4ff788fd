//! The one error of reading and planning SQL: what is wrong, where, and what to do about it.

use std::fmt;

use datafusion_sql::sqlparser::tokenizer::{Location, Span};

use crate::suggest;

/// A place in a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line, counted from 1.
    pub line: u32,
    /// The column, counted from 1 in characters (not bytes).
    pub column: u32,
}

impl Position {
    /// Whether this is a real position: the parser uses line 0 where it knows none.
    pub(crate) fn is_known(self) -> bool {
        self.line > 0
    }

    /// This position, or `other` if this one is not known.
    pub(crate) fn or(self, other: Self) -> Self {
        if self.is_known() { self } else { other }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

impl From<(u32, u32)> for Position {
    fn from((line, column): (u32, u32)) -> Self {
        Self { line, column }
    }
}

impl From<Position> for (u32, u32) {
    fn from(position: Position) -> Self {
        (position.line, position.column)
    }
}

impl From<(u64, u64)> for Position {
    fn from((line, column): (u64, u64)) -> Self {
        let bounded = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Self { line: bounded(line), column: bounded(column) }
    }
}

impl From<Location> for Position {
    fn from(location: Location) -> Self {
        (location.line, location.column).into()
    }
}

impl From<Span> for Position {
    fn from(span: Span) -> Self {
        span.start.into()
    }
}

/// A statement that cannot be understood or will not be run.
///
/// Displays as `error at line 3, column 14: unknown parameter '$targt'`, followed by a line `hint: ...` if there is a
/// suggestion. [`SqlError::render`] also shows the line of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlError {
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// The line of the script, counted from 1.
    pub line: u32,
    /// The column in that line, counted from 1 in characters.
    pub column: u32,
    /// What to do about it.
    pub hint: Option<String>,
}

impl SqlError {
    pub(crate) fn new(position: impl Into<Position>, message: impl Into<String>) -> Self {
        let Position { line, column } = position.into();
        Self { message: message.into(), line, column, hint: None }
    }

    /// Makes an error from the text of a caller of the planner, which adds the position here: a message, and behind
    /// `\nhint: ` what to do.
    pub fn without_place(text: &str) -> Self {
        let (message, hint) = text.split_once("\nhint: ").map_or((text, None), |(message, hint)| (message, Some(hint)));
        let error = Self::new(Position::default(), message);
        Self { hint: hint.map(str::to_owned), ..error }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds `did you mean ...?` if there is a suggestion, and leaves the error as it is otherwise.
    pub(crate) fn did_you_mean(self, suggestion: Option<impl fmt::Display>) -> Self {
        match suggestion {
            Some(suggestion) => self.hint(format!("did you mean '{suggestion}'?")),
            None => self,
        }
    }

    /// Adds the candidate nearest to `word` as what was probably meant, or another hint if none is near.
    pub(crate) fn suggest<'a>(
        self,
        word: &str,
        candidates: impl IntoIterator<Item = &'a str>,
        otherwise: impl Into<String>,
    ) -> Self {
        match suggest::nearest(word, candidates) {
            Some(near) => self.did_you_mean(Some(near)),
            None => self.hint(otherwise),
        }
    }

    /// The error, at `position` if it has none: the parser below does not keep a position for everything.
    pub(crate) fn or_at(mut self, position: Position) -> Self {
        Position { line: self.line, column: self.column } = self.position().or(position);
        self
    }

    /// The position of the error.
    pub fn position(&self) -> Position {
        Position { line: self.line, column: self.column }
    }

    /// The error with the line of `script` it is about and a caret under the column:
    ///
    /// ```text
    /// error at line 3, column 14: unknown parameter '$targt'
    ///   |
    /// 3 | WHERE temp > $targt
    ///   |              ^
    /// hint: did you mean '$target'?
    /// ```
    ///
    /// `script` is the text that was parsed.
    pub fn render(&self, script: &str) -> String {
        let mut text = format!("error at {}: {}", self.position(), self.message);
        if let Some((shown, indent)) = excerpt(script, self.position()) {
            let number = self.line.to_string();
            let margin = " ".repeat(number.len());
            text.push_str(&format!("\n{margin} |\n{number} | {shown}\n{margin} | {indent}^"));
        }
        if let Some(hint) = &self.hint {
            text.push_str("\nhint: ");
            text.push_str(hint);
        }
        text
    }
}

/// The line of `script` that contains a position, shortened if it is long, and the indent that puts a caret below it
/// under the column. `None` if there is no such line.
pub fn excerpt(script: &str, position: Position) -> Option<(String, String)> {
    /// Longer lines are shown from a point shortly before the column.
    const SHOWN_CHARACTERS_MAX: usize = 120;
    let line = usize::try_from(position.line).ok()?.checked_sub(1)?;
    let line = script.split('\n').nth(line)?;
    let column = (position.column as usize).saturating_sub(1);
    let skipped = if column + 20 > SHOWN_CHARACTERS_MAX { column.saturating_sub(60) } else { 0 };
    let shown: String = line.trim_end().chars().skip(skipped).take(SHOWN_CHARACTERS_MAX).collect();
    // Tabs before the caret are repeated below the line, so that the caret is under its character at any tab width.
    let indent = shown.chars().chain(std::iter::repeat(' ')).take(column - skipped).map(blank_like).collect();
    Some((shown, indent))
}

fn blank_like(character: char) -> char {
    if character == '\t' { '\t' } else { ' ' }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error at {}: {}", self.position(), self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for SqlError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_stands_under_the_column() {
        let script = "SELECT a\nFROM t\n\tWHERE ü > $targt";
        let error =
            SqlError::new(Position { line: 3, column: 12 }, "unknown parameter '$targt'").did_you_mean(Some("$target"));
        assert_eq!(
            error.render(script),
            "error at line 3, column 12: unknown parameter '$targt'\n  |\n3 | \tWHERE ü > $targt\n  | \t          ^\nhint: did you mean '$target'?"
        );
        assert_eq!(
            error.to_string(),
            "error at line 3, column 12: unknown parameter '$targt'\nhint: did you mean '$target'?"
        );
    }

    #[test]
    fn a_very_long_line_is_cut_around_the_caret() {
        let script = format!("{}x", " ".repeat(5000));
        let rendered = SqlError::new(Position { line: 1, column: 5001 }, "no").render(&script);
        let lines: Vec<&str> = rendered.lines().collect();
        assert!(lines[2].len() < 140, "{rendered}");
        assert_eq!(lines[2].find('x'), lines[3].find('^'));
    }

    #[test]
    fn a_position_outside_the_script_does_not_panic() {
        for (line, column) in [(0, 0), (1, 0), (9, 9), (u32::MAX, u32::MAX)] {
            assert!(SqlError::new(Position { line, column }, "no").render("SELECT").contains("no"));
        }
    }
}
