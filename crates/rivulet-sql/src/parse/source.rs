//! `CREATE SOURCE`, `CREATE SINK` and `CREATE VIEW`.

use datafusion_sql::sqlparser::tokenizer::Token;

use super::create::{self, COLUMNS_MAX};
use super::cursor::{Cursor, Declares};
use super::query;
use crate::lexer::token_is_word;
use crate::statement::{
    ColumnDeclaration, ComputedColumn, CreateSink, CreateSource, CreateView, FormatSpec, Name, SealedComputed,
    Watermark,
};
use crate::value::interval_us;
use crate::{Literal, Position, SqlError};

/// Reads what follows `CREATE SOURCE`; `text` is that of the statement.
pub(super) fn source(cursor: &mut Cursor<'_>, text: &str) -> Result<CreateSource, SqlError> {
    let if_not_exists = cursor.eat_words(&["if", "not", "exists"]);
    let name = cursor.name("the name of the source")?;
    let declared = match *cursor.peek() {
        Token::LParen => Some(source_columns(cursor)?),
        _ => None,
    };
    let has_columns = declared.is_some();
    let SourceColumns { columns, computed, watermark, key } = declared.unwrap_or_default();
    if !cursor.eat_word("from") {
        return Err(cursor.expected("FROM").hint("write for example FROM 'file:data/bids.csv' FORMAT CSV"));
    }
    let (address, address_position) = cursor.string("an address in single quotes")?;
    let format = if cursor.eat_word("format") { Some(create::format(cursor)?) } else { None };
    let options = if cursor.eat_word("with") { cursor.options()? } else { Vec::new() };
    if let Some(key) = &key
        && !format.as_ref().is_some_and(FormatSpec::has_changes)
    {
        return Err(SqlError::new(key.position, "PRIMARY KEY is of sources of changes, of FORMAT DEBEZIUM")
            .hint("leave it out: the rows of other sources are events, and each counts"));
    }
    let text = text.to_owned();
    Ok(CreateSource {
        name,
        if_not_exists,
        text,
        address,
        address_position,
        format,
        columns: has_columns.then_some(columns),
        computed: SealedComputed::new(computed),
        watermark,
        key: key.map(|key| key.columns),
        options,
        unread: None,
    })
}

/// Reads what follows `CREATE SINK`; `text` is that of the statement.
pub(super) fn sink(cursor: &mut Cursor<'_>, text: &str) -> Result<CreateSink, SqlError> {
    let if_not_exists = cursor.eat_words(&["if", "not", "exists"]);
    let name = cursor.name("the name of the sink")?;
    let columns = match *cursor.peek() {
        Token::LParen => Some(create::columns(cursor, "sink")?),
        _ => None,
    };
    if let Some(column) = columns.iter().flatten().find(|column| column.event_time) {
        return Err(SqlError::new(
            column.name.position,
            format!("the column '{}' of a sink is no event time", column.name),
        )
        .hint("declare it as TIMESTAMP alone"));
    }
    if !cursor.eat_word("to") {
        return Err(cursor.expected("TO").hint("write for example TO 'file:results' FORMAT CSV"));
    }
    let (address, address_position) = cursor.string("an address in single quotes")?;
    let format = if cursor.eat_word("format") { Some(create::format(cursor)?) } else { None };
    let options = if cursor.eat_word("with") { cursor.options()? } else { Vec::new() };
    Ok(CreateSink {
        name,
        if_not_exists,
        text: text.to_owned(),
        address,
        address_position,
        format,
        columns,
        options,
        unread: None,
    })
}

/// Reads what follows `CREATE VIEW`; `text` is that of the statement.
pub(super) fn view(cursor: &mut Cursor<'_>, text: &str) -> Result<CreateView, SqlError> {
    let if_not_exists = cursor.eat_words(&["if", "not", "exists"]);
    let name = cursor.name("the name of the view")?;
    if *cursor.peek() == Token::LParen {
        return Err(SqlError::new(
            cursor.position(),
            "a list of columns after the name of a view is not supported yet",
        )
        .hint("name the columns in the SELECT: SELECT a AS name"));
    }
    cursor.expect_word("AS")?;
    let query = query::select(cursor, text)?;
    if let Some(sink) = &query.sink {
        return Err(SqlError::new(sink.position, "a view has no sink")
            .hint("read the view: INSERT INTO sink SELECT * FROM view"));
    }
    if query.state_ttl_us.is_some() {
        return Err(SqlError::new(query.position, "a view keeps no state")
            .hint("give state_ttl where the view is read: SELECT ... FROM view WITH (state_ttl => ...)"));
    }
    if query.fuse.is_some() {
        return Err(SqlError::new(query.position, "a view does not run by itself")
            .hint("give fuse where the view is read: SELECT ... FROM view WITH (fuse => 'none')"));
    }
    if query.is_burst {
        return Err(SqlError::new(query.position, "a view has no tasks that could go to burst workers")
            .hint("give burst where the view is read: SELECT ... FROM view WITH (burst => true)"));
    }
    Ok(CreateView { name, if_not_exists, text: text.to_owned(), query })
}

/// What stands in parentheses behind the name of a source.
#[derive(Default)]
struct SourceColumns {
    columns: Vec<ColumnDeclaration>,
    computed: Vec<ComputedColumn>,
    watermark: Option<Watermark>,
    key: Option<PrimaryKey>,
}

/// The columns of a PRIMARY KEY, and where it stands.
struct PrimaryKey {
    columns: Vec<Name>,
    position: Position,
}

/// Reads the columns of a source, its computed columns, its watermark and its key.
fn source_columns(cursor: &mut Cursor<'_>) -> Result<SourceColumns, SqlError> {
    let SourceColumns { mut columns, mut computed, mut watermark, mut key } = SourceColumns::default();
    cursor.expect(&Token::LParen)?;
    loop {
        let follows = |word: &str| cursor.rest().get(1).is_some_and(|token| token_is_word(&token.token, word));
        if cursor.is_word("watermark") && follows("for") {
            if watermark.is_some() {
                return Err(SqlError::new(cursor.position(), "a source has one WATERMARK"));
            }
            watermark = Some(watermark_clause(cursor)?);
        } else if cursor.is_word("primary") && follows("key") {
            only_key(&key, cursor.position())?;
            key = Some(primary_key(cursor)?);
        } else if create::is_computed(cursor) {
            computed.push(create::computed_column(cursor, &columns, &computed)?);
        } else {
            create::column_or_parts(cursor, &mut columns, &computed, Declares::Stream, ("", 0))?;
            let position = cursor.position();
            if cursor.eat_words(&["primary", "key"]) {
                only_key(&key, position)?;
                key = Some(PrimaryKey {
                    columns: columns.last().map(|one| one.name.clone()).into_iter().collect(),
                    position,
                });
            }
        }
        if columns.len() + computed.len() > COLUMNS_MAX {
            let message = format!("declare at most {COLUMNS_MAX} columns for the source");
            return Err(SqlError::new(cursor.position(), message));
        }
        if cursor.eat(&Token::RParen) {
            break;
        }
        if !cursor.eat(&Token::Comma) {
            return Err(cursor
                .expected("NOT NULL, EVENT TIME, ',' or ')'")
                .hint("a column is a name and a type, without DEFAULT: id BIGINT NOT NULL"));
        }
    }
    match columns.is_empty() {
        true => Err(SqlError::new(cursor.position(), "the source has no columns")),
        false => Ok(SourceColumns { columns, computed, watermark, key }),
    }
}

/// Refuses a second PRIMARY KEY.
fn only_key(key: &Option<PrimaryKey>, position: Position) -> Result<(), SqlError> {
    match key {
        None => Ok(()),
        Some(_) => Err(SqlError::new(position, "a source has one PRIMARY KEY")
            .hint("name all of its columns together: PRIMARY KEY (a, b)")),
    }
}

/// Reads `PRIMARY KEY (column, ...) [NOT ENFORCED]`.
fn primary_key(cursor: &mut Cursor<'_>) -> Result<PrimaryKey, SqlError> {
    let position = cursor.position();
    cursor.expect_word("PRIMARY")?;
    cursor.expect_word("KEY")?;
    cursor.expect(&Token::LParen)?;
    let mut columns = Vec::new();
    loop {
        columns.push(cursor.name("a column of the key")?);
        if cursor.eat(&Token::RParen) {
            break;
        }
        cursor.expect(&Token::Comma)?;
    }
    cursor.eat_words(&["not", "enforced"]);
    Ok(PrimaryKey { columns, position })
}

/// Reads `WATERMARK FOR column AS column [- INTERVAL '...']`; what follows AS may stand in parentheses.
fn watermark_clause(cursor: &mut Cursor<'_>) -> Result<Watermark, SqlError> {
    const EXAMPLE: &str = "write for example WATERMARK FOR ts AS ts - INTERVAL '5' SECOND";
    cursor.expect_word("WATERMARK")?;
    cursor.expect_word("FOR")?;
    let column = cursor.name("the column of the event time")?;
    cursor.expect_word("AS").map_err(|error| error.hint(EXAMPLE))?;
    let is_enclosed = cursor.eat(&Token::LParen);
    let again = cursor.name("the column of the event time")?;
    if again.text != column.text {
        return Err(
            SqlError::new(again.position, format!("the watermark of '{column}' is made of '{again}'")).hint(EXAMPLE)
        );
    }
    let mut lateness_us = 0;
    if cursor.eat(&Token::Minus) {
        let (literal, position) = cursor.literal().map_err(|error| error.hint(EXAMPLE))?;
        let span_us = match literal {
            Literal::Interval(interval) => interval_us(interval).filter(|us| *us >= 0),
            _ => None,
        };
        lateness_us = span_us.ok_or_else(|| {
            SqlError::new(position, "the lateness is a time span of fixed length, and not negative").hint(EXAMPLE)
        })?;
    }
    if is_enclosed {
        cursor.expect(&Token::RParen).map_err(|error| error.hint(EXAMPLE))?;
    }
    Ok(Watermark { column, lateness_us })
}
