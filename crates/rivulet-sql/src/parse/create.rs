//! `CREATE APPLICATION`: parameters, inputs, outputs, and the SELECT. `CREATE TABLE`: columns and where the rows come
//! from.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::cursor::{Cursor, Declares};
use super::select;
use super::select_text::{check_depth, depth_behind, read};
use super::types::{PARTS_DEPTH_MAX, close_of_row};
use crate::lexer::{self, token_is_word};
use crate::statement::{
    ColumnDeclaration, ComputedColumn, CreateApplication, CreateTable, FormatSpec, InputDeclaration, Name,
    OutputDeclaration, ParameterDeclaration, SealedSelect, StateWish, topic_of,
};
use crate::{Literal, Position, SqlError};

/// The longest text of an application, in bytes.
pub(crate) const APPLICATION_BYTES_MAX: usize = 256 << 10;
/// The most parameters an application may have.
const PARAMETERS_MAX: usize = 256;
/// The most inputs an application may have; events carry the number of their input in a byte.
const INPUTS_MAX: usize = 16;
/// The most outputs an application may have; rows carry a bit for each output.
const OUTPUTS_MAX: usize = 32;
/// The most columns an input may have.
pub(super) const COLUMNS_MAX: usize = 1024;

/// Reads what follows `CREATE APPLICATION`. `tokens` and `text` are those of the statement from `CREATE` on.
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
    let (first, of_first) = input(cursor)?;
    let (mut inputs, mut computed) = (vec![first], vec![of_first]);
    while cursor.eat_word("input") {
        let position = cursor.position();
        let (next, of_next) = input(cursor)?;
        if inputs.iter().any(|other| other.name.text == next.name.text) {
            return Err(SqlError::new(position, format!("two inputs are called '{}'", next.name)));
        }
        if inputs.len() == INPUTS_MAX {
            return Err(SqlError::new(position, format!("an application has at most {INPUTS_MAX} inputs")));
        }
        inputs.push(next);
        computed.push(of_next);
    }
    let (outputs, conditions) = outputs(cursor)?;
    cursor.expect_word("AS")?;
    let mut select = select::parse(cursor.rest(), cursor.end())?;
    select.output_conditions = conditions;
    select.innermost_mut().computed = computed;
    while *cursor.peek() != Token::EOF {
        cursor.advance();
    }
    let id = lexer::canonical_id(tokens);
    Ok(CreateApplication {
        name,
        if_not_exists,
        replaces: None,
        text: text.to_owned(),
        id,
        parameters_used: lexer::parameters_used(tokens),
        parameters,
        inputs,
        outputs,
        select: SealedSelect::new(select),
    })
}

/// Reads what follows `CREATE OR REPLACE`: `APPLICATION name [WITH (state => ...)]`, or a query. Returns the tokens of
/// the statement without the words about the replacement. They are no part of the application or query, whose identity
/// is that of the plain text.
pub(super) fn replacement(
    cursor: &mut Cursor<'_>,
    tokens: &[TokenWithSpan],
) -> Result<(Vec<TokenWithSpan>, StateWish), SqlError> {
    /// The number of words in `CREATE OR REPLACE APPLICATION`. The first and the last one stay.
    const WORDS: usize = 4;
    cursor.advance();
    if cursor.is_word("if") {
        let why = "OR REPLACE and IF NOT EXISTS contradict each other";
        return Err(SqlError::new(cursor.position(), why).hint("leave one of them out"));
    }
    cursor.name("the name of what is replaced")?;
    let options = cursor.rest().len();
    let wish = if cursor.eat_word("with") { state_wish(cursor)? } else { StateWish::default() };
    let (from, to) = (tokens.len() - options, tokens.len() - cursor.rest().len());
    let plain = [&tokens[..1], &tokens[WORDS - 1..from], &tokens[to..]].into_iter().flatten().cloned().collect();
    while *cursor.peek() != Token::EOF {
        cursor.advance();
    }
    Ok((plain, wish))
}

/// Reads `(state => 'keep')` or `(state => 'discard')`.
pub(super) fn state_wish(cursor: &mut Cursor<'_>) -> Result<StateWish, SqlError> {
    let mut wish = StateWish::default();
    for (name, value, position) in cursor.named_values("the name of an option")? {
        if name.text != "state" {
            let hint = match name.text.as_str() {
                "fuse" | "state_ttl" => super::query::OPTIONS_HINT,
                _ => "there is one: state => 'keep' or state => 'discard'",
            };
            return Err(SqlError::new(name.position, format!("unknown option '{name}'")).hint(hint));
        }
        wish = match &value {
            Literal::Text(text) if text.eq_ignore_ascii_case("keep") => StateWish::Keep,
            Literal::Text(text) if text.eq_ignore_ascii_case("discard") => StateWish::Discard,
            _ => {
                return Err(SqlError::new(position, "state is 'keep' or 'discard'").hint(
                        "'keep' refuses a version that cannot go on with the state of the one before, 'discard' begins anew there",
                    ));
            }
        };
    }
    Ok(wish)
}

/// Reads the word FORMAT, which follows an address.
fn format_word(cursor: &mut Cursor<'_>) -> Result<(), SqlError> {
    cursor.expect_word("FORMAT").map_err(|error| match error.hint {
        Some(_) => error,
        None => error.hint("a format stands behind the address: FORMAT JSON, for example"),
    })
}

/// Reads what follows `CREATE TABLE`. `tokens` and `text` are those of the statement.
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
    format_word(cursor)?;
    let format = format(cursor)?;
    let fields = columns.iter().map(ColumnDeclaration::field);
    Ok(CreateTable {
        if_not_exists,
        replaces: false,
        text: text.to_owned(),
        id: lexer::canonical_id(tokens),
        schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
        name,
        address,
        address_position,
        format,
    })
}

/// Reads the outputs, and for each its condition.
fn outputs(cursor: &mut Cursor<'_>) -> Result<(Vec<OutputDeclaration>, Vec<Option<ast::Expr>>), SqlError> {
    let (mut outputs, mut conditions) = (Vec::<OutputDeclaration>::new(), Vec::new());
    loop {
        let position = cursor.position();
        if outputs.is_empty() {
            cursor.expect_word("OUTPUT")?;
        } else if !cursor.eat_word("output") {
            break;
        }
        // A name in double quotes is probably an address in the wrong quotes.
        let is_name = matches!(cursor.peek(), Token::Word(word) if word.quote_style.is_none());
        let name = match is_name && !cursor.is_word("format") {
            true => Some(cursor.name("an address in single quotes, the name of the output, or FORMAT")?),
            false => None,
        };
        let address = match cursor.is_word("format") {
            true => None,
            false => Some(cursor.string("an address in single quotes, or FORMAT")?),
        };
        let is_sink = address.as_ref().is_some_and(|(address, _)| topic_of(address).is_none());
        let format = match is_sink && !cursor.is_word("format") {
            true => FormatSpec { name: String::new(), options: Vec::new(), position: position.into() },
            false => {
                format_word(cursor)?;
                format(cursor)?
            }
        };
        let options = match cursor.eat_word("with") {
            true => cursor.options()?,
            false => Vec::new(),
        };
        let condition = if cursor.eat_word("when") { Some(condition(cursor)?) } else { None };
        let same =
            |other: &OutputDeclaration| other.name.as_ref().zip(name.as_ref()).is_some_and(|(a, b)| a.text == b.text);
        if let Some(name) = name.as_ref().filter(|_| outputs.iter().any(same)) {
            return Err(SqlError::new(name.position, format!("two outputs are called '{name}'")));
        }
        if outputs.len() == OUTPUTS_MAX {
            return Err(SqlError::new(position, format!("an application has at most {OUTPUTS_MAX} outputs")));
        }
        outputs.push(OutputDeclaration { name, address, format, options, position });
        conditions.push(condition);
    }
    if let Some(nameless) = outputs.iter().find(|output| output.name.is_none()).filter(|_| outputs.len() > 1) {
        return Err(SqlError::new(nameless.position, "each of several outputs needs a name")
            .hint("write for example OUTPUT alarms 'mqtt:home/{home}/alarm' FORMAT JSON WHEN severity >= 3"));
    }
    Ok((outputs, conditions))
}

/// Reads the condition behind WHEN: up to the next OUTPUT, or AS.
fn condition(cursor: &mut Cursor<'_>) -> Result<ast::Expr, SqlError> {
    let (rest, mut depth) = (cursor.rest(), 0usize);
    let ends = |token: &TokenWithSpan| {
        depth = depth_behind(&token.token, depth);
        depth == 0 && ["output", "as"].iter().any(|word| token_is_word(&token.token, word))
    };
    let length = rest.iter().position(ends).unwrap_or(rest.len());
    let end = rest.get(length).map_or(cursor.end(), |token| token.span.into());
    let condition = select::parse_condition(&rest[..length], end)?;
    (0..length).for_each(|_| cursor.advance());
    Ok(condition)
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
        let name = cursor.declared_name("the name of a parameter")?;
        if parameters.iter().any(|other| other.name.text == name.text) {
            return Err(SqlError::new(name.position, format!("the parameter '{name}' is declared twice")));
        }
        let is_plain = |character: char| character.is_alphanumeric() || character == '_';
        if !name.text.chars().all(is_plain) {
            return Err(SqlError::new(name.position, format!("'{name}' cannot be the name of a parameter"))
                .hint("it is written $name in the SELECT: use letters, digits and underscores"));
        }
        let data_type = cursor.data_type(Declares::Parameter)?;
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

fn input(cursor: &mut Cursor<'_>) -> Result<(InputDeclaration, Vec<ComputedColumn>), SqlError> {
    let name = cursor.name("the name of the input")?;
    let mut computed = Vec::new();
    let columns = some_columns(cursor, "input", Some(&mut computed))?;
    let address = if cursor.eat_word("from") { Some(cursor.string("an address in single quotes")?) } else { None };
    format_word(cursor)?;
    let format = format(cursor)?;
    let from = cursor.position();
    let (options, to) = match cursor.eat_word("with") {
        true => (cursor.options()?, cursor.behind()),
        false => (Vec::new(), from),
    };
    Ok((InputDeclaration { name, columns, address, format, options, options_at: (from, to) }, computed))
}

/// Reads the declared columns of `what`, a sink or a table.
pub(super) fn columns(cursor: &mut Cursor<'_>, what: &str) -> Result<Vec<ColumnDeclaration>, SqlError> {
    some_columns(cursor, what, None)
}

/// Reads the columns of `what`. Computed ones are put into `computed`, if there may be any.
fn some_columns(
    cursor: &mut Cursor<'_>,
    what: &str,
    mut computed: Option<&mut Vec<ComputedColumn>>,
) -> Result<Vec<ColumnDeclaration>, SqlError> {
    let of = match what {
        "input" => Declares::Input,
        "table" => Declares::Table,
        _ => Declares::Stream,
    };
    let mut columns: Vec<ColumnDeclaration> = Vec::new();
    if *cursor.peek() != Token::LParen {
        return Err(cursor.expected(&format!("'(' and the columns of the {what}")));
    }
    cursor.advance();
    loop {
        match &mut computed {
            Some(computed) if is_computed(cursor) => {
                let column = computed_column(cursor, &columns, computed)?;
                refuse_arrival(of, &column.name)?;
                computed.push(column);
            }
            // The parts of a row in an event are columns; a sink is written with whole rows.
            Some(computed) => column_or_parts(cursor, &mut columns, computed, of, ("", 0))?,
            None => columns.push(column(cursor, &columns, &[], (of, ""))?),
        }
        if columns.len() + computed.as_ref().map_or(0, |computed| computed.len()) > COLUMNS_MAX {
            return Err(SqlError::new(
                cursor.position(),
                format!("declare at most {COLUMNS_MAX} columns for the {what}"),
            ));
        }
        if cursor.eat(&Token::RParen) {
            return Ok(columns);
        }
        if !cursor.eat(&Token::Comma) {
            return Err(cursor
                .expected("NOT NULL, EVENT TIME, ',' or ')'")
                .hint("a column is a name and a type, without DEFAULT and PRIMARY KEY: id BIGINT NOT NULL"));
        }
    }
}

/// Whether `name AS` is next.
pub(super) fn is_computed(cursor: &Cursor<'_>) -> bool {
    cursor.rest().get(1).is_some_and(|behind| token_is_word(&behind.token, "as"))
}

/// Reads `name AS expression [EVENT TIME]`. `columns` and `before` are the declared and computed columns before it.
pub(super) fn computed_column(
    cursor: &mut Cursor<'_>,
    columns: &[ColumnDeclaration],
    before: &[ComputedColumn],
) -> Result<ComputedColumn, SqlError> {
    let name = cursor.declared_name("the name of a column")?;
    check_column_name(&name)?;
    let mut names = columns.iter().map(|other| &other.name).chain(before.iter().map(|other| &other.name));
    refuse_second(&name, names.any(|other| other.text == name.text))?;
    cursor.expect_word("AS")?;
    let (rest, mut depth) = (cursor.rest(), 0usize);
    let ends = |(index, token): (usize, &TokenWithSpan)| {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen if depth == 0 => return true,
            Token::RParen => depth -= 1,
            Token::Comma => return depth == 0,
            _ => {}
        }
        let next = rest.get(index + 1);
        depth == 0
            && token_is_word(&token.token, "event")
            && next.is_some_and(|next| token_is_word(&next.token, "time"))
    };
    let length = rest.iter().enumerate().position(ends).unwrap_or(rest.len());
    let end = rest.get(length).map_or(cursor.end(), |token| token.span.into());
    if length == 0 {
        return Err(cursor.expected("an expression").hint("write for example event AS to_timestamp(ts) EVENT TIME"));
    }
    check_depth(&rest[..length])?;
    let expression = read(&rest[..length], end, |parser| parser.parse_expr())?;
    (0..length).for_each(|_| cursor.advance());
    let position = cursor.position();
    let event_time = cursor.eat_words(&["event", "time"]);
    if event_time {
        let of_columns = columns.iter().filter(|other| other.event_time).map(|other| &other.name);
        let of_computed = before.iter().filter(|other| other.event_time).map(|other| &other.name);
        if let Some(other) = of_columns.chain(of_computed).next() {
            return Err(second_event_time(position, other));
        }
    }
    Ok(ComputedColumn { name, expression, event_time })
}

fn refuse_second(name: &Name, is_second: bool) -> Result<(), SqlError> {
    match is_second {
        true => Err(SqlError::new(name.position, format!("the column '{name}' is declared twice"))),
        false => Ok(()),
    }
}

fn second_event_time(position: Position, first: &Name) -> SqlError {
    SqlError::new(position, format!("an input has one EVENT TIME, and that is '{first}' already"))
}

/// Reads a column, or the columns that are its parts: `radio ROW(rssi BIGINT, snr DOUBLE)` is `"radio.rssi"
/// BIGINT, "radio.snr" DOUBLE`.
pub(super) fn column_or_parts(
    cursor: &mut Cursor<'_>,
    columns: &mut Vec<ColumnDeclaration>,
    computed: &[ComputedColumn],
    of: Declares,
    (prefix, depth): (&str, usize),
) -> Result<(), SqlError> {
    let Some(close) = close_of_row(cursor) else {
        columns.push(column(cursor, columns, computed, (of, prefix))?);
        return Ok(());
    };
    if depth == PARTS_DEPTH_MAX {
        return Err(SqlError::new(
            cursor.position(),
            format!("parts of columns are nested deeper than {depth} levels"),
        ));
    }
    let name = cursor.declared_name("the name of a column")?;
    check_column_name(&name)?;
    (0..2).for_each(|_| cursor.advance());
    let prefix = format!("{prefix}{name}.");
    loop {
        column_or_parts(cursor, columns, computed, of, (&prefix, depth + 1))?;
        if columns.len() > COLUMNS_MAX {
            return Err(SqlError::new(cursor.position(), format!("declare at most {COLUMNS_MAX} columns")));
        }
        if cursor.eat_close(&close) {
            return match cursor.is_array() {
                true => Err(cursor
                    .expected(&format!("',' or ')' behind the parts of '{name}'"))
                    .hint(format!("an array of rows is {name} ARRAY<ROW<...>>"))),
                false => Ok(()),
            };
        }
        if !cursor.eat(&Token::Comma) {
            return Err(cursor.expected(&format!("',' or '{close}' behind a part of '{name}'")));
        }
    }
}

/// Reads a column. Its name gets the `prefix`, and must differ from the declared and computed columns before it.
pub(super) fn column(
    cursor: &mut Cursor<'_>,
    before: &[ColumnDeclaration],
    computed: &[ComputedColumn],
    (of, prefix): (Declares, &str),
) -> Result<ColumnDeclaration, SqlError> {
    let name = cursor.declared_name("the name of a column")?;
    check_column_name(&name)?;
    refuse_arrival(of, &name)?;
    let name = Name { text: format!("{prefix}{name}"), ..name };
    let mut names = before.iter().map(|other| &other.name).chain(computed.iter().map(|other| &other.name));
    refuse_second(&name, names.any(|other| other.text == name.text))?;
    if cursor.is_word("as") {
        return Err(SqlError::new(cursor.position(), "a computed column is not supported here yet")
            .hint("inputs of applications and sources have them; elsewhere compute it in the SELECT or a view"));
    }
    let type_position = cursor.position();
    let data_type = cursor.data_type(of)?;
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
            let of_columns = before.iter().filter(|other| other.event_time).map(|other| &other.name);
            let of_computed = computed.iter().filter(|other| other.event_time).map(|other| &other.name);
            if let Some(other) = of_columns.chain(of_computed).next() {
                return Err(second_event_time(position, other));
            }
        } else {
            break;
        }
    }
    Ok(ColumnDeclaration { name, data_type, not_null: not_null || event_time, event_time })
}

/// Refuses the column that every input of an application has.
fn refuse_arrival(of: Declares, name: &Name) -> Result<(), SqlError> {
    match of == Declares::Input && name.text == "arrival_time" {
        true => Err(SqlError::new(name.position, "'arrival_time' is there without being declared")
            .hint("every input has the column arrival_time TIMESTAMP; give this one another name")),
        false => Ok(()),
    }
}

fn check_column_name(name: &Name) -> Result<(), SqlError> {
    match name.text.starts_with('$') {
        true => Err(SqlError::new(name.position, format!("the column name '{name}' begins with a dollar sign"))
            .hint("names with a dollar sign are those of parameters")),
        false => Ok(()),
    }
}

pub(super) fn format(cursor: &mut Cursor<'_>) -> Result<FormatSpec, SqlError> {
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
    Ok(FormatSpec { name, options, position: position.into() })
}
