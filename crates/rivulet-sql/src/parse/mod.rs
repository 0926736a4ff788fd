//! Text to statements, by recursive descent. The SELECT inside goes to DataFusion's parser on the same tokens, so that
//! every position is one in the script.

mod account;
mod create;
mod cursor;
mod from;
mod intervals;
mod lookup;
mod names;
mod pattern;
mod query;
mod secret;
mod select;
mod select_text;
mod source;
mod stored;
mod subquery;
mod types;
mod union;
mod unnest;
mod window_table;

pub(crate) use query::span;
pub(crate) use select_text::name_of;
pub use stored::{Outdated, Stored, parse_stored};
pub(crate) use subquery::INSTEAD;

use std::borrow::Cow;

use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::lexer::{self, StatementTokens, describe_token};
use crate::statement::{
    CreateApplication, CreateBigQuery, CreateTable, Name, ObjectKind, Operators, Show, StateWish, Statement,
};
use crate::{Literal, Position, SqlError};
use cursor::Cursor;

/// Reads all statements of a script, each with the position where it begins. Fails on the first error: a script with an
/// error anywhere is not run at all.
pub fn parse_script(script: &str) -> Result<Vec<(Statement, Position)>, SqlError> {
    statements(script).collect()
}

/// Reads the statements of a script one by one, each with the position where it begins, up to the first error. Only one
/// statement of a long script is in memory at a time. A caller that runs them one by one should read all of them first,
/// to know that none has an error.
pub fn statements(script: &str) -> impl Iterator<Item = Result<(Statement, Position), SqlError>> {
    let mut tokens = lexer::statements(script);
    let mut has_failed = false;
    std::iter::from_fn(move || {
        let statement = if has_failed { None } else { tokens.next() }?;
        let parsed = statement.and_then(|statement| {
            let position = statement.tokens.first().map_or_else(Position::default, |token| token.span.into());
            intervals::check(&statement.tokens)?;
            Ok((parse_statement(&statement)?, position))
        });
        has_failed = parsed.is_err();
        Some(parsed)
    })
}

/// The texts of the statements of a script, in their order. All of them together cost one walk through the script.
pub struct StatementTexts<'s> {
    /// The script from `at` on.
    rest: &'s str,
    at: Position,
}

impl<'s> StatementTexts<'s> {
    /// Begins before the first statement.
    pub fn new(script: &'s str) -> Self {
        Self { rest: script, at: Position { line: 1, column: 1 } }
    }

    /// The text of the statement that begins at a position, which is behind that of the call before; `None` if the
    /// script has no such position.
    pub fn at(&mut self, position: Position) -> Option<&'s str> {
        while self.at.line < position.line {
            self.rest = &self.rest[self.rest.find('\n')? + 1..];
            self.at = Position { line: self.at.line + 1, column: 1 };
        }
        let ahead = position.column.checked_sub(self.at.column)? as usize;
        let (begin, _) = self.rest.char_indices().nth(ahead)?;
        (self.rest, self.at) = (&self.rest[begin..], position);
        // No more than a statement is needed, and names may be in quotes.
        Some(self.rest.split(';').next().unwrap_or(self.rest))
    }
}

/// Reads a text that is one `CREATE APPLICATION` statement.
pub fn parse_application(text: &str) -> Result<CreateApplication, SqlError> {
    let mut all = statements(text);
    let first = all.next().transpose()?;
    if let Some((_, position)) = all.next().transpose()? {
        return Err(SqlError::new(position, "expected one statement, found a second one"));
    }
    match first {
        Some((Statement::CreateApplication(create), _)) => Ok(*create),
        Some((_, position)) => Err(SqlError::new(position, "expected CREATE APPLICATION")),
        None => Err(SqlError::new(Position { line: 1, column: 1 }, "expected CREATE APPLICATION, found nothing")),
    }
}

/// Reads a statement. If its text cannot be read with words as names, it is read without: a text that an earlier
/// version accepted stays accepted.
fn parse_statement(statement: &StatementTokens<'_>) -> Result<Statement, SqlError> {
    let tokens = names::quoted(&statement.tokens);
    parse_tokens(statement, &tokens, names::quoted).or_else(|error| match tokens {
        Cow::Owned(_) => parse_tokens(statement, &statement.tokens, names::as_written).map_err(|_| error),
        Cow::Borrowed(_) => Err(error),
    })
}

/// A function that puts the names among tokens in quotes, or leaves the tokens as they are.
type Quoted = for<'a> fn(&'a [TokenWithSpan]) -> Cow<'a, [TokenWithSpan]>;

/// Reads a statement. `tokens` are the statement's own tokens after `quoted`.
fn parse_tokens(
    statement: &StatementTokens<'_>,
    tokens: &[TokenWithSpan],
    quoted: Quoted,
) -> Result<Statement, SqlError> {
    let mut cursor = Cursor::new(tokens, statement.end);
    if query::begins_query(cursor.peek()) || *cursor.peek() == Token::LParen || cursor.is_word("insert") {
        return Ok(Statement::RunQuery(query::select_or_insert(&mut cursor, statement.text)?));
    }
    let Some(first) = FIRST_WORDS.iter().position(|word| cursor.eat_word(word)) else {
        return Err(unknown_statement(&cursor));
    };
    let parsed = match first {
        0 => create_statement(&mut cursor, statement, quoted),
        1 => show(&mut cursor),
        2 => describe(&mut cursor),
        3 => explain(&mut cursor, statement),
        4 => cursor.expect_word("QUERY").and_then(|()| Ok(Statement::PauseQuery(cursor.name("the name of a query")?))),
        5 => cursor.expect_word("QUERY").and_then(|()| Ok(Statement::ResumeQuery(cursor.name("the name of a query")?))),
        6 => drop_statement(&mut cursor),
        7 => {
            cursor.expect_word("TABLE").and_then(|()| Ok(Statement::RefreshTable(cursor.name("the name of a table")?)))
        }
        8 => Ok(Statement::Checkpoint),
        9 => alter_statement(&mut cursor),
        10 => account::grant(&mut cursor).map(Statement::Account),
        _ => account::revoke(&mut cursor).map(Statement::Account),
    }?;
    cursor.expect_end(&["FROM", "WITH", "LIKE", "LIMIT", "CASCADE", "ADMIN", "EXPIRES", "GRACE", "FOR"])?;
    Ok(parsed)
}

/// The words that statements begin with. A query begins with one of the last three, and is read before the others.
const FIRST_WORDS: [&str; 15] = [
    "CREATE",
    "SHOW",
    "DESCRIBE",
    "EXPLAIN",
    "PAUSE",
    "RESUME",
    "DROP",
    "REFRESH",
    "CHECKPOINT",
    "ALTER",
    "GRANT",
    "REVOKE",
    "SELECT",
    "INSERT",
    "WITH",
];

const FIRST_WORDS_HINT: &str = "statements begin with CREATE, ALTER, SELECT, INSERT, SHOW, DESCRIBE, EXPLAIN, PAUSE, RESUME, DROP, REFRESH, CHECKPOINT, GRANT or REVOKE";

/// The words behind CREATE and DROP.
const CREATED: [&str; 10] =
    ["APPLICATION", "QUERY", "TABLE", "SOURCE", "SINK", "VIEW", "SECRET", "TENANT", "USER", "TOKEN"];

fn unknown_statement(cursor: &Cursor<'_>) -> SqlError {
    let error = SqlError::new(cursor.position(), format!("unknown statement {}", describe_token(cursor.peek())));
    match cursor.peek() {
        Token::Word(word) => error.suggest(&word.value, FIRST_WORDS, FIRST_WORDS_HINT),
        _ => error.hint(FIRST_WORDS_HINT),
    }
}

fn create_statement(
    cursor: &mut Cursor<'_>,
    statement: &StatementTokens<'_>,
    quoted: Quoted,
) -> Result<Statement, SqlError> {
    let text = statement.text;
    let position = cursor.position();
    if cursor.eat_words(&["or", "replace"]) {
        if cursor.eat_word("secret") {
            return Ok(Statement::CreateSecret(secret::secret(cursor, true)?));
        }
        if !["application", "query", "table"].into_iter().any(|word| cursor.is_word(word)) {
            return Err(SqlError::new(position, "OR REPLACE is for applications, queries, tables and secrets alone")
                .hint("anything else is dropped first: DROP VIEW name, then CREATE VIEW name ..."));
        }
        let is_table = cursor.is_word("table");
        let (plain, wish) = create::replacement(cursor, &statement.tokens)?;
        if is_table && plain.len() + 2 != statement.tokens.len() {
            return Err(SqlError::new(position, "a table has no state that could be kept")
                .hint("leave out WITH: CREATE OR REPLACE TABLE name (column TYPE, ...) FROM ..."));
        }
        return create_replacing((&plain, &quoted(&plain)), cursor.end(), text, wish);
    }
    if account::is_next(cursor, &account::CREATED) {
        return account::create(cursor).map(Statement::Account);
    }
    Ok(match cursor.expect_one_of(&CREATED)? {
        0 => Statement::CreateApplication(Box::new(create::application(cursor, &statement.tokens, text)?)),
        1 => create_query(cursor, &statement.tokens, text)?,
        2 => Statement::CreateTable(Box::new(create::table(cursor, &statement.tokens, text)?)),
        3 => Statement::CreateSource(Box::new(source::source(cursor, text)?)),
        4 => Statement::CreateSink(Box::new(source::sink(cursor, text)?)),
        5 => Statement::CreateView(Box::new(source::view(cursor, text)?)),
        _ => Statement::CreateSecret(secret::secret(cursor, false)?),
    })
}

/// Reads `CREATE OR REPLACE` without the words about the replacement: `plain` has the tokens as written, and `tokens`
/// those to read. `text` is that of the whole statement as written.
fn create_replacing(
    (plain, tokens): (&[TokenWithSpan], &[TokenWithSpan]),
    end: Position,
    text: &str,
    wish: StateWish,
) -> Result<Statement, SqlError> {
    let mut cursor = Cursor::new(tokens, end);
    cursor.advance();
    if cursor.eat_word("application") {
        let create = create::application(&mut cursor, plain, text)?;
        return Ok(Statement::CreateApplication(Box::new(CreateApplication { replaces: Some(wish), ..create })));
    }
    if cursor.eat_word("table") {
        let create = create::table(&mut cursor, plain, text)?;
        return Ok(Statement::CreateTable(Box::new(CreateTable { replaces: true, ..create })));
    }
    let position = cursor.position();
    cursor.advance();
    match create_query(&mut cursor, plain, text)? {
        Statement::CreateBigQuery(create) => {
            Ok(Statement::CreateBigQuery(Box::new(CreateBigQuery { replaces: Some(wish), ..*create })))
        }
        _ => Err(SqlError::new(position, "OR REPLACE is for queries that say AS SELECT")
            .hint("of an application its text is replaced: CREATE OR REPLACE APPLICATION; a query that uses it has values, and is dropped and created anew")),
    }
}

/// Reads what follows `CREATE QUERY`. `tokens` and `text` are those of the statement from `CREATE` on.
fn create_query(cursor: &mut Cursor<'_>, tokens: &[TokenWithSpan], text: &str) -> Result<Statement, SqlError> {
    let if_not_exists = cursor.eat_words(&["if", "not", "exists"]);
    let name = cursor.name("the name of the query")?;
    if cursor.eat_word("as") {
        let query = query::select_or_insert(cursor, text)?;
        if query.sink.is_none() {
            return Err(SqlError::new(query.position, format!("the query '{name}' has no sink"))
                .hint("write SELECT ... INTO sink, with a sink made by CREATE SINK"));
        }
        let id = lexer::canonical_id(tokens);
        return Ok(Statement::CreateBigQuery(Box::new(CreateBigQuery {
            name,
            if_not_exists,
            replaces: None,
            id,
            query,
        })));
    }
    if !cursor.eat_word("from") {
        let error = cursor.expected("FROM APPLICATION or AS SELECT");
        return Err(if cursor.is_word("with") { error.hint(query::OPTIONS_HINT) } else { error });
    }
    cursor.expect_word("APPLICATION")?;
    let application = cursor.name("the name of an application")?;
    let values: Vec<(Name, Literal, Position)> =
        if cursor.eat_word("with") { cursor.named_values("the name of a parameter")? } else { Vec::new() };
    let label = if cursor.eat_word("label") { Some(cursor.string("a label in single quotes")?) } else { None };
    Ok(Statement::CreateQuery { name, if_not_exists, application, values, label })
}

fn show(cursor: &mut Cursor<'_>) -> Result<Statement, SqlError> {
    if account::is_next(cursor, &account::SHOWN) {
        return account::show(cursor).map(Statement::Account);
    }
    const LISTS: [&str; 15] = [
        "APPLICATIONS",
        "QUERIES",
        "TABLES",
        "SOURCES",
        "SINKS",
        "VIEWS",
        "CHECKPOINTS",
        "FUNCTIONS",
        "SECRETS",
        "TENANTS",
        "USERS",
        "TOKENS",
        "GRANTS",
        "BURSTS",
        "BURST",
    ];
    let what = cursor.expect_one_of(&LISTS).map_err(|error| match error.hint {
        Some(_) => error,
        None => error.hint(
            "write for example SHOW QUERIES, SHOW TABLES or SHOW SOURCES; DESCRIBE TABLE name shows the columns of one",
        ),
    })?;
    if what == 6 {
        return Ok(Statement::ShowCheckpoints);
    }
    let (queries, of_workers) = (what == 1, what == 14);
    if of_workers {
        cursor.expect_word("WORKERS")?;
    }
    let application = if queries && cursor.eat_word("from") {
        cursor.expect_word("APPLICATION")?;
        Some(cursor.name("the name of an application")?)
    } else {
        None
    };
    let like = if cursor.eat_word("like") { Some(cursor.string("a pattern in single quotes")?.0) } else { None };
    let has_label = queries && cursor.eat_word("label");
    let label = if has_label { Some(cursor.string("a label in single quotes")?.0) } else { None };
    let limit = if cursor.eat_word("limit") {
        let position = cursor.position();
        match cursor.literal()?.0 {
            Literal::Integer(limit) if limit >= 0 => Some(limit.unsigned_abs()),
            _ => return Err(SqlError::new(position, "LIMIT takes a whole number, 0 or more")),
        }
    } else {
        None
    };
    Ok(match ObjectKind::ALL.get(what) {
        Some(&kind) => Statement::Show(Show { kind, application, like, label, limit }),
        None if what == 7 => Statement::ShowFunctions { like, limit },
        None if what >= 13 => Statement::ShowBursts { of_workers, like, limit },
        None => Statement::ShowSecrets { like, limit },
    })
}

fn explain(cursor: &mut Cursor<'_>, statement: &StatementTokens<'_>) -> Result<Statement, SqlError> {
    let analyze = cursor.eat_word("analyze");
    let is_query = query::begins_query(cursor.peek()) || *cursor.peek() == Token::LParen;
    if analyze || is_query || cursor.is_word("insert") {
        let query = query::select_or_insert(cursor, statement.text)?;
        return Ok(Statement::ExplainBigQuery { query, analyze });
    }
    Ok(match cursor.expect_one_of(&["APPLICATION", "QUERY", "CREATE"])? {
        0 => Statement::ExplainApplication(cursor.name("the name of an application")?),
        1 => Statement::ExplainQuery(cursor.name("the name of a query")?),
        _ => {
            cursor.expect_word("APPLICATION")?;
            // The application's own statement begins after EXPLAIN.
            let tokens: &[TokenWithSpan] = &statement.tokens[1..];
            let text = statement.text["explain".len()..].trim_start();
            Statement::ExplainCreate(Box::new(create::application(cursor, tokens, text)?))
        }
    })
}

/// Reads what follows `ALTER`.
fn alter_statement(cursor: &mut Cursor<'_>) -> Result<Statement, SqlError> {
    if ["table", "source", "sink", "view", "secret"].iter().any(|word| cursor.is_word(word)) {
        return Err(cursor.expected("QUERY or APPLICATION").hint("drop it, and create it again"));
    }
    if account::is_next(cursor, &account::CREATED) {
        return account::alter(cursor).map(Statement::Account);
    }
    if cursor.expect_one_of(&["QUERY", "APPLICATION", "TENANT", "TOKEN"])? == 1 {
        let name = cursor.name("the name of an application")?;
        let input = if cursor.eat_word("input") { Some(cursor.name("the name of an input")?) } else { None };
        let example = || format!("write ALTER APPLICATION {name} SET (lateness => INTERVAL '5 seconds')");
        cursor.expect_word("SET").map_err(|error| error.hint(example()))?;
        let options = cursor.values_to_set("the name of an option", true, "SET (lateness => INTERVAL '5 seconds')")?;
        let wish = if cursor.eat_word("with") { create::state_wish(cursor)? } else { StateWish::default() };
        return Ok(Statement::AlterApplication { name, input, options, wish });
    }
    let name = cursor.name("the name of a query")?;
    if cursor.is_word("as") {
        return Err(cursor.expected("SET, LABEL or REDIRECT").hint(format!(
            "CREATE OR REPLACE QUERY {} AS ... gives a big query another text",
            crate::name_in_sql(&name.text)
        )));
    }
    let has_values = match cursor.is_word("label") {
        true => false,
        false if cursor.expect_one_of(&["SET", "LABEL", "REDIRECT"])? == 2 => return redirect(cursor, name),
        false => true,
    };
    let values = match has_values {
        true => cursor.values_to_set("the name of a parameter", false, "SET (parameter => value)")?,
        false => Vec::new(),
    };
    let label = match cursor.eat_word("label") {
        true if cursor.eat_word("null") => Some(None),
        true => Some(Some(cursor.string("a label in single quotes, or NULL")?)),
        false => None,
    };
    Ok(Statement::AlterQuery { name, values, label })
}

/// Reads what follows `ALTER QUERY name REDIRECT`.
fn redirect(cursor: &mut Cursor<'_>, name: Name) -> Result<Statement, SqlError> {
    let position = cursor.position();
    let number = match cursor.peek() {
        Token::Number(digits, _) => digits.parse().ok(),
        _ => None,
    };
    let operators = match (number, cursor.peek()) {
        (Some(number), _) => Operators::Number(number, position),
        (_, Token::SingleQuotedString(text)) => Operators::Named(Name { text: text.clone(), position }),
        _ if cursor.is_word("all") => Operators::All,
        _ => {
            let error = cursor.expected("ALL, the number of an operator, or its name in single quotes");
            return Err(error.hint(format!("EXPLAIN QUERY {} shows numbers and names", crate::name_in_sql(&name.text))));
        }
    };
    cursor.advance();
    if cursor.expect_one_of(&["TO", "BACK"])? == 1 {
        return Ok(Statement::RedirectQuery { name, operators, ratio: None });
    }
    cursor.expect_word("BURST")?;
    let position = cursor.position();
    let found = if *cursor.peek() == Token::EOF { Literal::Integer(1) } else { cursor.literal()?.0 };
    let ratio = match found {
        Literal::Float(ratio) if ratio > 0.0 && ratio <= 1.0 => ratio,
        Literal::Integer(1) => 1.0,
        other => {
            let message = format!("the ratio is a number above 0 and at most 1, found {other}");
            return Err(SqlError::new(position, message).hint("it is the part of the tasks that go: TO BURST 0.7"));
        }
    };
    Ok(Statement::RedirectQuery { name, operators, ratio: Some(ratio) })
}

fn drop_statement(cursor: &mut Cursor<'_>) -> Result<Statement, SqlError> {
    if account::is_next(cursor, &account::CREATED) {
        return account::drop(cursor).map(Statement::Account);
    }
    let what = cursor.expect_one_of(&CREATED)?;
    let if_exists = cursor.eat_words(&["if", "exists"]);
    let Some(&kind) = ObjectKind::ALL.get(what) else {
        return Ok(Statement::DropSecret { name: cursor.secret_name()?, if_exists });
    };
    let name = name_of_kind(cursor, kind)?;
    let cascade = kind == ObjectKind::Application && cursor.eat_word("cascade");
    Ok(Statement::Drop { kind, name, if_exists, cascade })
}

fn describe(cursor: &mut Cursor<'_>) -> Result<Statement, SqlError> {
    if matches!(cursor.peek(), Token::SingleQuotedString(_)) {
        let (path, position) = cursor.string("the path of a file")?;
        return Ok(Statement::DescribeFile { path, position });
    }
    let what = cursor.expect_one_of(&["APPLICATION", "QUERY", "TABLE", "SOURCE", "SINK", "VIEW", "FUNCTION"]).map_err(
        |error| match error.hint {
            Some(_) => error,
            None => error.hint("write what it is before its name: DESCRIBE SOURCE t"),
        },
    )?;
    Ok(match ObjectKind::ALL.get(what) {
        Some(&kind) => Statement::Describe(kind, name_of_kind(cursor, kind)?),
        None => Statement::DescribeFunction(cursor.declared_name("the name of a function")?),
    })
}

fn name_of_kind(cursor: &mut Cursor<'_>, kind: ObjectKind) -> Result<Name, SqlError> {
    let article = if kind == ObjectKind::Application { "an" } else { "a" };
    cursor.name(&format!("the name of {article} {}", kind.word()))
}

#[cfg(test)]
mod tests;
