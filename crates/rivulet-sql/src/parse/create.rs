//! `CREATE APPLICATION`: parameters, input, output, and the SELECT; `CREATE TABLE`: columns and where they come from.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::cursor::Cursor;
use super::select;
use crate::SqlError;
use crate::lexer;
use crate::statement::{
    ColumnDeclaration, CreateApplication, CreateTable, FormatSpec, InputDeclaration, Name, OutputDeclaration,
    ParameterDeclaration, SealedSelect,
};

/// The longest text of an application, in bytes.
pub(crate) const APPLICATION_BYTES_MAX: usize = 256 << 10;
/// The most parameters an application may have.
const PARAMETERS_MAX: usize = 256;
/// The most columns an input may have.
const COLUMNS_MAX: usize = 1024;

/// What follows `CREATE APPLICATION`. `tokens` and `text` are those of the statement from `CREATE` on.
pub(super) fn application(
    cursor: &mut Cursor<'_>,
    tokens: &[TokenWithSpan],
    text: &str,
) -> Result<CreateApplication, SqlError> {
    if text.len() > APPLICATION_BYTES_MAX {
        return Err(SqlError::new(
            cursor.position(),
            format!("an application has at most {APPLICATION_BYTES_MAX} bytes of text, this one {}", text.len()),
        ));
    }
    let if_not_exists = cursor.eat_words(&["if", "not", "exists"]);
    let name = cursor.name("the name of the application")?;
    let parameters = if *cursor.peek() == Token::LParen { parameters(cursor)? } else { Vec::new() };
    cursor.expect_word("INPUT")?;
    let input = input(cursor)?;
    if cursor.is_word("input") {
        return Err(SqlError::new(cursor.position(), "a second INPUT is not supported yet")
            .hint("an application reads one input"));
    }
    let position = cursor.position();
    cursor.expect_word("OUTPUT")?;
    let address =
        if cursor.is_word("format") { None } else { Some(cursor.string("an address in single quotes, or FORMAT")?) };
    cursor.expect_word("FORMAT")?;
    let format = format(cursor)?;
    if cursor.is_word("with") {
        return Err(SqlError::new(cursor.position(), "an output has no options")
            .hint("WITH (...) stands after the input's FORMAT"));
    }
    let output = OutputDeclaration { address, format, position };
    cursor.expect_word("AS")?;
    let select = select::parse(cursor.rest(), cursor.end())?;
    while *cursor.peek() != Token::EOF {
        cursor.advance();
    }
    let id = lexer::canonical_id(tokens);
    Ok(CreateApplication {
        name,
        if_not_exists,
        text: text.to_owned(),
        id,
        parameters,
        input,
        output,
        select: SealedSelect::new(select),
    })
}

/// What follows `CREATE TABLE`. `tokens` and `text` are those of the statement.
pub(super) fn table(cursor: &mut Cursor<'_>, tokens: &[TokenWithSpan], text: &str) -> Result<CreateTable, SqlError> {
    let if_not_exists = cursor.eat_words(&["if", "not", "exists"]);
    let name = cursor.name("the name of the table")?;
    let columns = columns(cursor, "table")?;
    if let Some(column) = columns.iter().find(|column| column.event_time) {
        return Err(SqlError::new(
            column.name.position,
            format!("the column '{}' of a table is no event time", column.name),
        )
        .hint("declare it as TIMESTAMP alone: the rows of a table are there all the time"));
    }
    if !cursor.eat_word("from") {
        return Err(cursor.expected("FROM").hint("a table is read from a file: FROM 'file:data/rooms.csv' FORMAT CSV"));
    }
    let (address, address_position) = cursor.string("an address in single quotes")?;
    cursor.expect_word("FORMAT")?;
    let format = format(cursor)?;
    let fields = columns.iter().map(|column| Field::new(&column.name.text, column.data_type.clone(), !column.not_null));
    Ok(CreateTable {
        if_not_exists,
        text: text.to_owned(),
        id: lexer::canonical_id(tokens),
        schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
        name,
        address,
        address_position,
        format,
    })
}

fn parameters(cursor: &mut Cursor<'_>) -> Result<Vec<ParameterDeclaration>, SqlError> {
    let mut parameters: Vec<ParameterDeclaration> = Vec::new();
    cursor.expect(&Token::LParen)?;
    if cursor.eat(&Token::RParen) {
        return Ok(parameters);
    }
    loop {
        if let Token::Placeholder(name) = cursor.peek() {
            return Err(cursor
                .expected("the name of a parameter")
                .hint(format!("declare it without the dollar sign: {}", &name[1..])));
        }
        let name = cursor.name("the name of a parameter")?;
        if parameters.iter().any(|other| other.name.text == name.text) {
            return Err(SqlError::new(name.position, format!("the parameter '{name}' is declared twice")));
        }
        let is_plain = |character: char| character.is_alphanumeric() || character == '_';
        if !name.text.chars().all(is_plain) {
            return Err(SqlError::new(name.position, format!("'{name}' cannot be the name of a parameter"))
                .hint("it is written $name in the SELECT: use letters, digits and underscores"));
        }
        let data_type = cursor.data_type(true)?;
        if cursor.is_word("not") {
            return Err(SqlError::new(cursor.position(), "NOT NULL is not for parameters")
                .hint("a parameter without DEFAULT must be given"));
        }
        let default = if cursor.eat_word("default") { Some(cursor.literal()?) } else { None };
        parameters.push(ParameterDeclaration { name, data_type, default });
        if parameters.len() > PARAMETERS_MAX {
            return Err(SqlError::new(
                cursor.position(),
                format!("an application has at most {PARAMETERS_MAX} parameters"),
            ));
        }
        if cursor.eat(&Token::RParen) {
            return Ok(parameters);
        }
        if !cursor.eat(&Token::Comma) {
            return Err(cursor.expected("DEFAULT, ',' or ')'"));
        }
    }
}

fn input(cursor: &mut Cursor<'_>) -> Result<InputDeclaration, SqlError> {
    let name = cursor.name("the name of the input")?;
    let columns = columns(cursor, "input")?;
    let address = if cursor.eat_word("from") { Some(cursor.string("an address in single quotes")?) } else { None };
    cursor.expect_word("FORMAT")?;
    let format = format(cursor)?;
    let options = if cursor.eat_word("with") { cursor.named_values("the name of an option")? } else { Vec::new() };
    Ok(InputDeclaration { name, columns, address, format, options })
}

/// The declared columns of `what`, an input or a table.
fn columns(cursor: &mut Cursor<'_>, what: &str) -> Result<Vec<ColumnDeclaration>, SqlError> {
    let mut columns: Vec<ColumnDeclaration> = Vec::new();
    if *cursor.peek() != Token::LParen {
        return Err(cursor.expected(&format!("'(' and the columns of the {what}")));
    }
    cursor.advance();
    loop {
        let name = cursor.name("the name of a column")?;
        check_column_name(&name)?;
        if columns.iter().any(|other| other.name.text == name.text) {
            return Err(SqlError::new(name.position, format!("the column '{name}' is declared twice")));
        }
        let type_position = cursor.position();
        let data_type = cursor.data_type(false)?;
        let (mut not_null, mut event_time) = (false, false);
        loop {
            let position = cursor.position();
            if !not_null && cursor.eat_words(&["not", "null"]) {
                not_null = true;
            } else if !event_time && cursor.eat_words(&["event", "time"]) {
                event_time = true;
                if data_type != crate::value::TIMESTAMP {
                    return Err(SqlError::new(type_position, format!("the event time '{name}' must be a TIMESTAMP"))
                        .hint("a number is read as milliseconds since 1970, a text as ISO 8601"));
                }
                if let Some(other) = columns.iter().find(|other| other.event_time) {
                    return Err(SqlError::new(
                        position,
                        format!("an input has one EVENT TIME, and that is '{}' already", other.name),
                    ));
                }
            } else {
                break;
            }
        }
        columns.push(ColumnDeclaration { name, data_type, not_null: not_null || event_time, event_time });
        if columns.len() > COLUMNS_MAX {
            return Err(SqlError::new(
                cursor.position(),
                format!("declare at most {COLUMNS_MAX} columns for the {what}"),
            ));
        }
        if cursor.eat(&Token::RParen) {
            return Ok(columns);
        }
        if !cursor.eat(&Token::Comma) {
            return Err(cursor.expected("NOT NULL, EVENT TIME, ',' or ')'"));
        }
    }
}

fn check_column_name(name: &Name) -> Result<(), SqlError> {
    match name.text.as_str() {
        "arrival_time" => Err(SqlError::new(name.position, "'arrival_time' is there without being declared")
            .hint("every input has the column arrival_time TIMESTAMP; give this one another name")),
        "window_start" | "window_end" => {
            Err(SqlError::new(name.position, format!("'{name}' is the name of a bound of the window"))
                .hint("give the column another name"))
        }
        text if text.starts_with('$') => {
            Err(SqlError::new(name.position, format!("the column name '{name}' begins with a dollar sign"))
                .hint("names with a dollar sign are those of parameters"))
        }
        _ => Ok(()),
    }
}

fn format(cursor: &mut Cursor<'_>) -> Result<FormatSpec, SqlError> {
    let position = cursor.position();
    let Token::Word(word) = cursor.peek() else {
        return Err(cursor.expected("the name of a format").hint("for example FORMAT JSON"));
    };
    let name = word.value.to_lowercase();
    cursor.advance();
    let options = if *cursor.peek() == Token::LParen {
        let options = cursor.named_values("the name of an option")?;
        options.into_iter().map(|(name, value, _)| (name.text, value)).collect()
    } else {
        Vec::new()
    };
    Ok(FormatSpec { name, options, position })
}
