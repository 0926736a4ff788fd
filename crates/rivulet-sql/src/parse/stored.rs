//! Statements of a catalog, which an earlier version may have written.
//!
//! What must hold: a text that an earlier version accepted is read as that version read it (whether it can still be
//! planned is another question). A text that cannot be read keeps its name, so that it can be dropped. A step before
//! the parser does this: earlier versions ignored some details of types, which a new statement may not have. It
//! replaces these types by those that were meant.

use std::fmt;

use arrow::datatypes::DataType;
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::cursor::Cursor;
use super::{create, parse_statement};
use crate::lexer::{self, StatementTokens, token_is_word};
use crate::statement::{BigQuery, CreateBigQuery, CreateSink, CreateSource, CreateView, SealedComputed};
use crate::value::{type_name, type_named};
use crate::{Position, SqlError, Statement};

/// A statement from a catalog.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The statement that the text contains.
    pub statement: Statement,
    /// Types in it that a new statement may not have.
    pub outdated: Vec<Outdated>,
    /// Why only the name of the statement could be read. Then declaring the source or sink, or planning the view or
    /// query, fails with this error.
    pub error: Option<SqlError>,
}

/// A type that is read as earlier versions read it. Displays its position, its text, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outdated {
    /// The position of the type.
    pub position: Position,
    /// The type as written.
    pub written: String,
    /// The type to write instead.
    pub instead: String,
}

impl fmt::Display for Outdated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, written, instead } = self;
        write!(f, "{position}: {written} is read as {instead}, as in earlier versions; write {instead}")
    }
}

/// Reads the text of one statement of a catalog.
///
/// # Errors
///
/// The text cannot be read, and is not a source, sink, view or big query. Of these at least the name is read.
pub fn parse_stored(text: &str) -> Result<Stored, SqlError> {
    // The token in the message may be a secret.
    let told = |mut error: SqlError| {
        error.message.truncate(error.message.find(", found").unwrap_or(error.message.len()));
        error
    };
    read(text).map_err(told).or_else(|error| match unread(text, &error) {
        Some(statement) => Ok(Stored { statement, outdated: Vec::new(), error: Some(error) }),
        None => Err(error),
    })
}

fn read(text: &str) -> Result<Stored, SqlError> {
    let mut all = lexer::statements(text);
    let Some(written) = all.next().transpose()? else {
        return Err(SqlError::new(Position { line: 1, column: 1 }, "expected a statement, found nothing"));
    };
    if let Some(second) = all.next().transpose()? {
        return Err(SqlError::new(second.tokens[0].span, "expected one statement, found a second one"));
    }
    let (tokens, outdated) = with_types_of_today(&written.tokens);
    let mut statement = parse_statement(&StatementTokens { tokens, text: written.text, end: written.end })?;
    if !outdated.is_empty() {
        keep_identity(&mut statement, &written)?;
    }
    Ok(Stored { statement, outdated, error: None })
}

/// Gives a statement the identity of its text as written, because state is saved under that identity.
fn keep_identity(statement: &mut Statement, written: &StatementTokens<'_>) -> Result<(), SqlError> {
    let identity = match statement {
        Statement::CreateApplication(create) => &mut create.id,
        Statement::CreateTable(create) => &mut create.id,
        Statement::CreateBigQuery(create) => &mut create.id,
        _ => return Ok(()),
    };
    let mut cursor = Cursor::new(&written.tokens, written.end);
    *identity = match cursor.eat_words(&["create", "or", "replace"]) {
        true => lexer::canonical_id(&create::replacement(&mut cursor, &written.tokens)?.0),
        false => lexer::canonical_id(&written.tokens),
    };
    Ok(())
}

/// What an open parenthesis belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Cast,
    Other,
}

/// What a type is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Declaration,
    Cast,
}

/// Returns the tokens with the types that were meant, and what was replaced. All tokens keep their positions.
fn with_types_of_today(written: &[TokenWithSpan]) -> (Vec<TokenWithSpan>, Vec<Outdated>) {
    let is_word = |index: usize, word: &str| written.get(index).is_some_and(|one| token_is_word(&one.token, word));
    let is = |index: usize, token: &Token| written.get(index).is_some_and(|one| one.token == *token);
    let is_name = |index: usize| matches!(&written[index].token, Token::Word(_));
    let (mut tokens, mut outdated) = (Vec::with_capacity(written.len()), Vec::new());
    let mut open = Vec::new();
    // A declaration ends where the SELECT begins.
    let mut is_declaration = true;
    let mut index = 0;
    while let Some(token) = written.get(index) {
        let begins_column = |before: usize| is(before, &Token::LParen) || is(before, &Token::Comma);
        let place = match index.checked_sub(1) {
            Some(before) if is(before, &Token::DoubleColon) => Some(Place::Cast),
            Some(before) if is_word(before, "as") && open.last() == Some(&Inside::Cast) => Some(Place::Cast),
            Some(before) if is_declaration && open.len() == 1 && is_name(before) => {
                before.checked_sub(1).filter(|before| begins_column(*before)).map(|_| Place::Declaration)
            }
            // A constant: TIMESTAMP(0) '2026-11-21 08:30:00'.
            _ => {
                let text = written.get(index + 4).map(|one| &one.token);
                let is_constant = is_word(index, "timestamp") && matches!(text, Some(Token::SingleQuotedString(_)));
                is_constant.then_some(Place::Cast)
            }
        };
        if let Some((length, data_type)) = place.and_then(|place| outdated_type(place, &written[index..])) {
            let instead = type_name(&data_type);
            let text = written[index..index + length].iter().map(|one| one.token.to_string()).collect();
            tokens.push(TokenWithSpan { token: Token::make_word(&instead, None), span: token.span });
            outdated.push(Outdated { position: token.span.into(), written: text, instead });
            index += length;
            continue;
        }
        match token.token {
            Token::LParen => {
                let casts = ["cast", "try_cast", "safe_cast"];
                let is_cast = index.checked_sub(1).is_some_and(|before| casts.iter().any(|cast| is_word(before, cast)));
                open.push(if is_cast { Inside::Cast } else { Inside::Other });
            }
            Token::RParen => drop(open.pop()),
            _ if open.is_empty() && is_word(index, "as") => is_declaration = false,
            _ => {}
        }
        tokens.push(token.clone());
        index += 1;
    }
    (tokens, outdated)
}

/// If the tokens begin with a type whose details earlier versions ignored and which is refused today, returns how many
/// tokens it has, and the type that was meant.
fn outdated_type(place: Place, tokens: &[TokenWithSpan]) -> Option<(usize, DataType)> {
    let Token::Word(word) = &tokens[0].token else { return None };
    let name = word.value.to_ascii_lowercase();
    let data_type = if name == "char" { DataType::Utf8 } else { type_named(&name)? };
    let is = |index: usize, token: &Token| tokens.get(index).is_some_and(|one| one.token == *token);
    let words = match data_type == DataType::Float64
        && tokens.get(1).is_some_and(|one| token_is_word(&one.token, "precision"))
    {
        true => 2,
        false => 1,
    };
    if !is(words, &Token::LParen) {
        let ends = |one: &TokenWithSpan| {
            matches!(one.token, Token::Comma | Token::RParen)
                || ["not", "default", "event"].iter().any(|word| token_is_word(&one.token, word))
        };
        let is_whole = place == Place::Cast || tokens.get(words).is_some_and(ends);
        return (name == "char" && is_whole).then_some((words, data_type));
    }
    let details = &tokens[words + 1..];
    let details = &details[..details.iter().position(|one| one.token == Token::RParen)?];
    let numbers: Option<Vec<u64>> = details
        .iter()
        .filter(|one| one.token != Token::Comma)
        .map(|one| match &one.token {
            Token::Number(digits, _) => digits.parse().ok(),
            _ => None,
        })
        .collect();
    let is_kept = match (place, name.as_str(), numbers.as_deref()) {
        (Place::Declaration, "timestamp", Some([3..=6])) => true,
        (Place::Cast, "timestamp", Some([6])) => true,
        (Place::Cast, "varchar", Some([1..=u64::MAX])) => true,
        (Place::Cast, "float", Some([1..=53])) => true,
        // It has no detail that was ignored.
        (_, _, None) => true,
        _ => false,
    };
    (!is_kept).then_some((words + details.len() + 2, data_type))
}

/// Returns the statement that a text begins, with the error in it, if it declares something of big queries.
fn unread(text: &str, error: &SqlError) -> Option<Statement> {
    // If the rest is no SQL, read up to the columns, the address or the SELECT.
    let whole = lexer::statements(text).next().and_then(Result::ok);
    let begin = || lexer::statements(&text[..text.find(['(', '\'']).unwrap_or(text.len())]).next()?.ok();
    let statement = whole.or_else(begin)?;
    let mut cursor = Cursor::new(&statement.tokens, statement.end);
    cursor.expect_word("CREATE").ok()?;
    cursor.eat_words(&["or", "replace"]);
    let what = cursor.expect_one_of(&["SOURCE", "SINK", "VIEW", "QUERY"]).ok()?;
    let if_not_exists = cursor.eat_words(&["if", "not", "exists"]);
    let name = cursor.name("the name").ok()?;
    let query = BigQuery::unread(error.clone(), text);
    let (text, address, address_position, format) = (text.to_owned(), String::new(), Position::default(), None);
    let (columns, options, unread) = (None, Vec::new(), Some(error.clone()));
    Some(match what {
        0 => Statement::CreateSource(Box::new(CreateSource {
            name,
            if_not_exists,
            text,
            address,
            address_position,
            format,
            columns,
            computed: SealedComputed::new(Vec::new()),
            watermark: None,
            key: None,
            options,
            unread,
        })),
        1 => Statement::CreateSink(Box::new(CreateSink {
            name,
            if_not_exists,
            text,
            address,
            address_position,
            format,
            columns,
            options,
            unread,
        })),
        2 => Statement::CreateView(Box::new(CreateView { name, if_not_exists, text, query })),
        _ if cursor.is_word("from") => return None,
        _ => {
            let id = lexer::canonical_id(&statement.tokens);
            Statement::CreateBigQuery(Box::new(CreateBigQuery { name, if_not_exists, replaces: None, id, query }))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::TIMESTAMP;
    use crate::{Scope, parse_application, parse_script, plan_application, plan_query};

    /// Returns a statement that today's parser or planner refuses, and the notes on its outdated types.
    fn stored(text: &str) -> (Statement, Vec<String>) {
        let Stored { statement, outdated, .. } =
            parse_stored(text).unwrap_or_else(|error| panic!("{}", error.render(text)));
        (statement, outdated.iter().map(Outdated::to_string).collect())
    }

    fn source(text: &str) -> (Vec<DataType>, Vec<String>) {
        assert!(parse_script(text).is_err(), "it is refused where it is new: {text}");
        let (Statement::CreateSource(create), said) = stored(text) else { panic!("no source: {text}") };
        let schema = create.declare(|_, _| None).unwrap().schema;
        (schema.fields().iter().map(|field| field.data_type().clone()).collect(), said)
    }

    #[test]
    fn declared_types_are_read_without_their_details() {
        let (types, said) = source(
            "CREATE SOURCE s (a VARCHAR(20), \"b c\" CHAR(3) NOT NULL, c CHAR, ts TIMESTAMP(0) EVENT TIME, n INT(11), \
             x DOUBLE PRECISION(4), k TIMESTAMP(3), WATERMARK FOR ts AS ts) \
             FROM 'file:a.csv' FORMAT CSV (delimiter => ';')",
        );
        use DataType::{Float64, Int64, Utf8};
        assert_eq!(types, [Utf8, Utf8, Utf8, TIMESTAMP, Int64, Float64, TIMESTAMP]);
        assert_eq!(said.len(), 6, "{said:?}");
        assert_eq!(said[0], "line 1, column 20: VARCHAR(20) is read as TEXT, as in earlier versions; write TEXT");
        assert!(said[3].contains("TIMESTAMP(0) is read as TIMESTAMP"), "{said:?}");
    }

    #[test]
    fn what_is_written_as_today_stays() {
        for text in [
            "CREATE SOURCE s (char TEXT, ts TIMESTAMP(3) EVENT TIME) FROM 'file:a.csv'",
            "CREATE VIEW v AS SELECT CAST(a AS VARCHAR(3)) AS char, CAST(b AS TIMESTAMP(6)) AS ts, c char FROM s",
            "CREATE QUERY q AS SELECT f(a) AS char, (SELECT max(b) AS char FROM s), CAST(n AS DECIMAL(5, 2)) \
             FROM s INTO t",
        ] {
            let tokens = lexer::statements(text).next().unwrap().unwrap().tokens;
            assert_eq!(with_types_of_today(&tokens), (tokens.clone(), Vec::new()), "{text}");
        }
    }

    #[test]
    fn casts_are_read_without_their_details() {
        let (source, said) =
            stored("CREATE SOURCE s (a VARCHAR(9), ts TIMESTAMP EVENT TIME) FROM 'file:a.csv' FORMAT CSV");
        assert_eq!(said.len(), 1);
        let mut scope = Scope::new();
        let Statement::CreateSource(source) = source else { panic!("no source") };
        scope.add_source(source.declare(|_, _| None).unwrap()).unwrap();
        for (written, today) in [
            ("CAST(ts AS TIMESTAMP(0))", "CAST(ts AS TIMESTAMP)"),
            ("ts::TIMESTAMP(3)", "CAST(ts AS TIMESTAMP)"),
            ("CAST(a AS CHAR(5))", "CAST(a AS TEXT)"),
            ("CAST(CASE WHEN a = 'b' THEN a END AS CHAR)", "CAST(CASE WHEN a = 'b' THEN a END AS TEXT)"),
            ("CAST(CAST(a AS STRING(7)) AS INT(11))", "CAST(CAST(a AS TEXT) AS BIGINT)"),
            ("CAST(a AS DOUBLE(10, 2))", "CAST(a AS DOUBLE)"),
            ("TIMESTAMP(0) '2026-11-21 08:30:00'", "TIMESTAMP '2026-11-21 08:30:00'"),
        ] {
            let query = |expression: &str| format!("CREATE QUERY q AS SELECT {expression} AS x FROM s INTO t");
            let sink = "CREATE SINK t TO 'file:b.csv' FORMAT CSV";
            let mut scope = scope.clone();
            let Statement::CreateSink(create) = stored(sink).0 else { panic!("no sink") };
            scope.add_sink(create.declare().unwrap()).unwrap();
            let (Statement::CreateBigQuery(create), said) = stored(&query(written)) else { panic!("no query") };
            assert!(!said.is_empty(), "{written}");
            let plan = plan_query(&create.query, &scope).unwrap_or_else(|error| panic!("{written}: {error}"));
            let (Statement::CreateBigQuery(plain), said) = stored(&query(today)) else { panic!("no query") };
            assert!(said.is_empty(), "{said:?}");
            let today = plan_query(&plain.query, &scope).unwrap();
            assert_eq!(plan.output.schema, today.output.schema, "{written}");
            assert_eq!(create.query.text, query(written), "the text stays");
            let refused = match parse_script(&query(written)).map(|mut script| script.remove(0).0) {
                Ok(Statement::CreateBigQuery(create)) => plan_query(&create.query, &scope).is_err(),
                other => other.is_err(),
            };
            assert!(refused, "it is refused where it is new: {written}");
        }
    }

    #[test]
    fn an_application_keeps_the_identity_under_which_its_state_is_saved() {
        let text = |a: &str, at: &str| {
            format!(
                "APPLICATION app (n {a} DEFAULT 'x') INPUT t (a {a}, ts TIMESTAMP EVENT TIME) \
                 FROM 'mqtt:a' FORMAT JSON \
                     OUTPUT 'mqtt:b' FORMAT JSON WHEN a = 'b' AS SELECT a, CAST(ts AS {at}) AS b FROM t WHERE a = $n"
            )
        };
        let written = format!("CREATE {}", text("CHAR(20)", "TIMESTAMP(0)"));
        assert!(parse_application(&written).is_err());
        let (Statement::CreateApplication(create), said) = stored(&written) else { panic!("no application") };
        assert_eq!(said.len(), 3, "{said:?}");
        let application = plan_application(&create).unwrap();
        let tokens = lexer::statements(&written).next().unwrap().unwrap().tokens;
        assert_eq!(
            (application.id.as_str(), application.text().as_ref()),
            (lexer::canonical_id(&tokens).as_str(), written.as_str())
        );
        let again = format!("CREATE OR REPLACE {}", text("CHAR(20)", "TIMESTAMP(0)"));
        let (Statement::CreateApplication(again), _) = stored(&again) else { panic!("no application") };
        assert_eq!(again.id, create.id);
    }

    #[test]
    fn what_cannot_be_read_keeps_its_name() {
        let failed = |text: &str| {
            let (statement, said) = stored(text);
            assert!(said.is_empty());
            match statement {
                Statement::CreateSource(create) => (create.name.text.clone(), create.declare(|_, _| None).unwrap_err()),
                Statement::CreateSink(create) => (create.name.text.clone(), create.declare().unwrap_err()),
                Statement::CreateView(create) => {
                    (create.name.text.clone(), Scope::new().add_view(&create).unwrap_err())
                }
                Statement::CreateBigQuery(create) => {
                    (create.name.text.clone(), plan_query(&create.query, &Scope::new()).unwrap_err())
                }
                other => panic!("{other:?}"),
            }
        };
        for (text, name, error) in [
            ("CREATE SOURCE bids (price MONEY) FROM 'file:a.csv'", "bids", "unknown type 'MONEY'"),
            ("CREATE SOURCE bids (price 'TEXT", "bids", "this string is not closed"),
            ("CREATE SINK IF NOT EXISTS \"My sink\" (price MONEY) TO 'file:a.csv'", "My sink", "unknown type 'MONEY'"),
            ("CREATE VIEW v AS SELEKT 1", "v", "expected SELECT"),
            ("CREATE OR REPLACE QUERY q AS SELECT a FROM b WHERE INTO c", "q", "expected"),
        ] {
            let (found, problem) = failed(text);
            assert_eq!(found, name);
            assert!(problem.message.contains(error), "{text}: {problem}");
        }
        for text in ["CREATE TABLE t (a MONEY) FROM 'file:a.csv'", "nothing", "", "CREATE SOURCE 7"] {
            assert!(parse_stored(text).is_err(), "{text}");
        }
    }
}
