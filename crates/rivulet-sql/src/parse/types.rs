//! Declared types that have parts: arrays, maps and rows, in each other.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion_sql::sqlparser::tokenizer::Token;
use rivulet_dataflow::{any_json, map_of};

use super::cursor::{Cursor, Declares, PARTS_HINT};
use crate::lexer::token_is_word;
use crate::value::declared_type_name;
use crate::{Position, SqlError};

/// How deep the parts of a type may nest.
pub(super) const PARTS_DEPTH_MAX: usize = 16;

/// The most fields of a row.
const FIELDS_MAX: usize = 128;

impl Cursor<'_> {
    /// Reads a declared type. One with parts is a `List`, a `Map` or a `Struct`.
    pub(crate) fn data_type(&mut self, of: Declares) -> Result<DataType, SqlError> {
        let position = self.position();
        let part = match self.is_any_json() || self.has_parts() {
            true => self.part("", 0)?,
            false => {
                let plain = self.plain_type(of)?;
                if !self.is_array() {
                    return Ok(plain);
                }
                self.arrays_of(kept(&plain, "an array of", position)?, 0)?
            }
        };
        let what = match part.data_type() {
            DataType::List(_) => "an array",
            DataType::Map(..) => "a map",
            DataType::Struct(_) => "a row",
            _ => {
                return Err(SqlError::new(position, "a column of type JSON is not supported yet")
                    .hint("declare its parts, or TEXT for a string; MAP<TEXT, JSON> has any values"));
            }
        };
        let owner = match of {
            Declares::Input | Declares::Stream => return Ok(part.data_type().clone()),
            Declares::Parameter => "a parameter",
            Declares::Table => "a column of a table",
        };
        Err(SqlError::new(position, format!("{owner} cannot be {what}"))
            .hint("declare it TEXT; UNNEST, array[1] and the like take a text that is an array in JSON"))
    }

    /// Reads the type of a part, as a field without a name. `what` has such parts, and `depth` counts the types around.
    fn part(&mut self, what: &str, depth: usize) -> Result<Field, SqlError> {
        let position = self.position();
        if depth > PARTS_DEPTH_MAX {
            let message = format!("the parts of a type are nested deeper than {PARTS_DEPTH_MAX} levels");
            return Err(SqlError::new(position, message));
        }
        let nested = |data_type| Field::new("", data_type, true);
        let part = if self.is_any_json() {
            self.advance();
            any_json()
        } else if self.is_word("array") {
            self.open(&[Token::Lt])?;
            let element = self.part("an array of", depth + 1)?;
            self.close(&Token::Gt)?;
            nested(list_of(element))
        } else if self.is_word("map") {
            self.open(&[Token::Lt])?;
            let key_position = self.position();
            if self.plain_type(Declares::Stream)? != DataType::Utf8 {
                return Err(SqlError::new(key_position, "the keys of a map are TEXT").hint(PARTS_HINT));
            }
            self.expect(&Token::Comma)?;
            let value = self.part("a map of", depth + 1)?;
            self.close(&Token::Gt)?;
            nested(map_of(value))
        } else if self.has_parts() {
            nested(self.row(depth)?)
        } else {
            kept(&self.plain_type(Declares::Stream)?, what, position)?
        };
        self.arrays_of(part, depth)
    }

    /// Reads `ROW<name type, ...>`, or the same in parentheses.
    fn row(&mut self, depth: usize) -> Result<DataType, SqlError> {
        let close = match self.open(&[Token::Lt, Token::LParen])? {
            Token::Lt => Token::Gt,
            _ => Token::RParen,
        };
        let mut fields: Vec<Field> = Vec::new();
        loop {
            let name = self.declared_name("the name of a field")?;
            if fields.iter().any(|field| *field.name() == name.text) {
                return Err(SqlError::new(name.position, format!("the field '{name}' is declared twice")));
            }
            if fields.len() == FIELDS_MAX {
                return Err(SqlError::new(name.position, format!("declare at most {FIELDS_MAX} fields")));
            }
            fields.push(self.part("a row of", depth + 1)?.with_name(&name.text));
            if self.eat_close(&close) {
                return Ok(DataType::Struct(fields.into()));
            }
            if !self.eat(&Token::Comma) {
                return Err(self.expected(&format!("',' or '{close}' behind the field '{name}'")));
            }
        }
    }

    /// Reads what makes a type one of arrays of it: `ARRAY` or `[]`, as often as it is there.
    fn arrays_of(&mut self, part: Field, depth: usize) -> Result<Field, SqlError> {
        let (mut part, mut dimensions) = (part, depth);
        while self.is_array() {
            dimensions += 1;
            if dimensions > PARTS_DEPTH_MAX {
                let message = format!("the parts of a type are nested deeper than {PARTS_DEPTH_MAX} levels");
                return Err(SqlError::new(self.position(), message));
            }
            self.eat_word("array");
            if self.eat(&Token::LBracket) {
                self.expect(&Token::RBracket)?;
            }
            part = Field::new("", list_of(part), true);
        }
        Ok(part)
    }

    pub(super) fn is_array(&self) -> bool {
        self.is_word("array") || *self.peek() == Token::LBracket
    }

    fn is_any_json(&self) -> bool {
        self.is_word("json") || self.is_word("jsonb")
    }

    /// Whether the name of a type with parts is next.
    fn has_parts(&self) -> bool {
        ["array", "map", "row", "struct"].iter().any(|name| self.is_word(name))
    }

    /// Steps over the name of a type with parts and what opens them, which is returned.
    fn open(&mut self, allowed: &[Token]) -> Result<Token, SqlError> {
        self.advance();
        match allowed.iter().find(|open| self.eat(open)) {
            Some(open) => Ok(open.clone()),
            None => Err(self.expected("'<' and the types of the parts").hint(PARTS_HINT)),
        }
    }

    fn close(&mut self, close: &Token) -> Result<(), SqlError> {
        if self.eat_close(close) { Ok(()) } else { Err(self.expected(&format!("'{close}'"))) }
    }
}

/// What closes the parts of the column whose name is next, if it is a row.
pub(super) fn close_of_row(cursor: &Cursor<'_>) -> Option<Token> {
    let token = |place: usize| cursor.rest().get(place).map(|token| &token.token);
    token(1).filter(|token| token_is_word(token, "row") || token_is_word(token, "struct"))?;
    match token(2) {
        Some(Token::LParen) => Some(Token::RParen),
        Some(Token::Lt) => Some(Token::Gt),
        _ => None,
    }
}

fn list_of(element: Field) -> DataType {
    DataType::List(Arc::new(element.with_name("item")))
}

/// A part that is declared as `plain`. Parts have the types of 64 bits.
fn kept(plain: &DataType, what: &str, position: Position) -> Result<Field, SqlError> {
    let kept = match plain {
        whole if whole.is_integer() => DataType::Int64,
        DataType::Float32 => DataType::Float64,
        DataType::Utf8 | DataType::Float64 | DataType::Boolean => plain.clone(),
        other => {
            let name = declared_type_name(other);
            return Err(SqlError::new(position, format!("{what} {name} is not supported yet")).hint(PARTS_HINT));
        }
    };
    Ok(Field::new("", kept, true))
}
