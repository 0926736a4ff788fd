//! A cursor in the tokens of a statement, and methods for the small pieces every statement is made of.

use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::address::list;
use crate::lexer::{describe_token, token_is_word};
use crate::reserved::RESERVED;
use crate::statement::Name;
use crate::value::{
    INTERVAL, TIME, TIMESTAMP, TYPE_NAMES, declared_type_name, exact_type_named, parse_interval, parse_timestamp_us,
    type_name,
};
use crate::{Literal, Position, SqlError, suggest};

use arrow::datatypes::DataType;

/// The longest name, in characters.
const NAME_CHARACTERS_MAX: usize = 128;

/// Words that begin an expression or a SELECT. They keep this meaning wherever a name would be used.
const NEVER_NAMES: [&str; 13] =
    ["select", "distinct", "from", "where", "as", "and", "or", "not", "null", "case", "cast", "true", "false"];

/// What a type is declared for; this decides which types are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declares {
    Parameter,
    /// A column of an input of an application.
    Input,
    /// A column of a reference table.
    Table,
    /// A column of a source or sink of big queries.
    Stream,
}

#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    tokens: &'a [TokenWithSpan],
    index: usize,
    end: Position,
    /// Whether the first half of the `>>` under the cursor is taken.
    is_halved: bool,
}

impl<'a> Cursor<'a> {
    /// Makes a cursor at the first of `tokens`; `end` is where the statement ends.
    pub(crate) fn new(tokens: &'a [TokenWithSpan], end: Position) -> Self {
        Self { tokens, index: 0, end, is_halved: false }
    }

    pub(crate) fn end(&self) -> Position {
        self.end
    }

    /// The token under the cursor; `EOF` at the end.
    pub(crate) fn peek(&self) -> &'a Token {
        self.tokens.get(self.index).map_or(&Token::EOF, |token| &token.token)
    }

    pub(crate) fn position(&self) -> Position {
        self.tokens.get(self.index).map_or(self.end, |token| token.span.into())
    }

    /// The position behind the previous token, which has one character.
    pub(crate) fn behind(&self) -> Position {
        let before = self.index.checked_sub(1).and_then(|index| self.tokens.get(index));
        before.map_or(self.end, |token| {
            let Position { line, column } = token.span.into();
            Position { line, column: column + 1 }
        })
    }

    /// The tokens from the cursor on.
    pub(crate) fn rest(&self) -> &'a [TokenWithSpan] {
        &self.tokens[self.index..]
    }

    pub(crate) fn advance(&mut self) {
        self.index = (self.index + 1).min(self.tokens.len());
    }

    /// Makes an error that says what was expected here and what was found.
    pub(crate) fn expected(&self, what: &str) -> SqlError {
        SqlError::new(self.position(), format!("expected {what}, found {}", describe_token(self.peek())))
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        token_is_word(self.peek(), word)
    }

    /// Steps over the words if all of them are next.
    pub(crate) fn eat_words(&mut self, words: &[&str]) -> bool {
        let rest = self.rest();
        let found =
            rest.len() >= words.len() && words.iter().zip(rest).all(|(word, token)| token_is_word(&token.token, word));
        if found {
            self.index += words.len();
        }
        found
    }

    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        self.eat_words(&[word])
    }

    pub(crate) fn eat(&mut self, token: &Token) -> bool {
        let found = self.peek() == token;
        if found {
            self.index += 1;
        }
        found
    }

    /// Steps over what closes a type, `)` or `>`, if it is next. Two types may be closed by `>>`.
    pub(crate) fn eat_close(&mut self, close: &Token) -> bool {
        if (close, self.peek()) != (&Token::Gt, &Token::ShiftRight) {
            return self.eat(close);
        }
        self.index += usize::from(self.is_halved);
        self.is_halved = !self.is_halved;
        true
    }

    pub(crate) fn expect(&mut self, token: &Token) -> Result<(), SqlError> {
        if self.eat(token) { Ok(()) } else { Err(self.expected(&format!("'{token}'"))) }
    }

    /// Steps over one of `words`, all given in capitals; returns its index.
    pub(crate) fn expect_one_of(&mut self, words: &[&str]) -> Result<usize, SqlError> {
        if let Some(index) = words.iter().position(|word| self.eat_word(word)) {
            return Ok(index);
        }
        let what = match words {
            [only] => (*only).to_owned(),
            [first @ .., last] => format!("{} or {last}", first.join(", ")),
            [] => "nothing".to_owned(),
        };
        let near = match self.peek() {
            Token::Word(word) => suggest::nearest(&word.value, words.iter().copied()),
            _ => None,
        };
        Err(self.expected(&what).did_you_mean(near))
    }

    pub(crate) fn expect_word(&mut self, word: &str) -> Result<(), SqlError> {
        self.expect_one_of(&[word]).map(|_| ())
    }

    /// Checks that the statement ends here. `may_follow` are the words that could have followed.
    pub(crate) fn expect_end(&self, may_follow: &[&str]) -> Result<(), SqlError> {
        let near = match self.peek() {
            Token::EOF => return Ok(()),
            // A word that is spelled correctly is no typing error.
            Token::Word(word) => suggest::nearest(&word.value, may_follow.iter().copied())
                .filter(|near| !near.eq_ignore_ascii_case(&word.value)),
            _ => None,
        };
        let error = self.expected("the end of the statement");
        Err(match near {
            Some(near) => error.did_you_mean(Some(near)),
            None => error.hint("statements are separated by ';'"),
        })
    }

    /// Reads a name; `what` says of what, for the message.
    pub(crate) fn name(&mut self, what: &str) -> Result<Name, SqlError> {
        self.name_other_than(&RESERVED, what)
    }

    /// Reads the name of a column or parameter before its type, where no word has another meaning.
    pub(crate) fn declared_name(&mut self, what: &str) -> Result<Name, SqlError> {
        self.name_other_than(&NEVER_NAMES, what)
    }

    fn name_other_than(&mut self, reserved: &[&str], what: &str) -> Result<Name, SqlError> {
        let position = self.position();
        let text = match self.peek() {
            Token::Word(word) if word.quote_style.is_some() => word.value.clone(),
            Token::Word(word) => {
                let folded = word.value.to_lowercase();
                if reserved.contains(&folded.as_str()) {
                    return Err(self
                        .expected(what)
                        .hint(format!("to use this word as a name, write it in double quotes: \"{folded}\"")));
                }
                folded
            }
            Token::SingleQuotedString(text) => {
                return Err(self.expected(what).hint(format!("names stand in double quotes: \"{text}\"")));
            }
            _ => return Err(self.expected(what)),
        };
        let error = |problem: &str| Err(SqlError::new(position, format!("{what} {problem}")));
        if text.is_empty() || text.chars().count() > NAME_CHARACTERS_MAX {
            return error(&format!("has between 1 and {NAME_CHARACTERS_MAX} characters"));
        }
        if text.chars().any(char::is_control) {
            return error("has no control characters");
        }
        self.advance();
        Ok(Name { text, position })
    }

    /// Reads a string in single quotes.
    pub(crate) fn string(&mut self, what: &str) -> Result<(String, Position), SqlError> {
        let position = self.position();
        match self.peek() {
            Token::SingleQuotedString(text) => {
                self.advance();
                Ok((text.clone(), position))
            }
            Token::Word(word) if word.quote_style.is_some() => {
                Err(self.expected(what).hint(format!("strings stand in single quotes: '{}'", word.value)))
            }
            _ => Err(self.expected(what)),
        }
    }

    /// Reads a constant.
    pub(crate) fn literal(&mut self) -> Result<(Literal, Position), SqlError> {
        let position = self.position();
        let negative = self.eat(&Token::Minus);
        let literal = match self.peek() {
            Token::Number(digits, _) => number(digits, negative)
                .ok_or_else(|| SqlError::new(position, format!("the number {digits} is out of range")))?,
            _ if negative => return Err(self.expected("a number after '-'")),
            // Connectors tell the name of a secret by it.
            Token::SingleQuotedString(text) if text.contains('\0') => {
                return Err(SqlError::new(position, "a value has no zero byte").hint("leave the character out"));
            }
            Token::SingleQuotedString(text) => Literal::Text(text.clone()),
            token if token_is_word(token, "null") => Literal::Null,
            token if token_is_word(token, "true") => Literal::Boolean(true),
            token if token_is_word(token, "false") => Literal::Boolean(false),
            token if token_is_word(token, "interval") => {
                self.advance();
                return self.interval(position);
            }
            token if token_is_word(token, "timestamp") => {
                self.advance();
                let (text, text_position) = self.string("a string after TIMESTAMP")?;
                let value_us = parse_timestamp_us(&text).ok_or_else(|| {
                    SqlError::new(text_position, format!("'{text}' is not a timestamp"))
                        .hint("write for example TIMESTAMP '2026-11-21 08:30:00'")
                })?;
                return Ok((Literal::Timestamp(value_us), position));
            }
            Token::Word(word) if word.quote_style == Some('"') => {
                return Err(self.expected("a value").hint(format!("strings stand in single quotes: '{}'", word.value)));
            }
            Token::Placeholder(_) => {
                return Err(self.expected("a value").hint("parameters may stand in the SELECT only"));
            }
            _ => {
                return Err(self
                    .expected("a value")
                    .hint("a value is a number, a 'string', TRUE, FALSE, NULL, INTERVAL '...' or TIMESTAMP '...'"));
            }
        };
        self.advance();
        Ok((literal, position))
    }

    /// Reads what follows the word INTERVAL: `'5 minutes'`, or `'5' MINUTE`, or `5 MINUTE`.
    fn interval(&mut self, position: Position) -> Result<(Literal, Position), SqlError> {
        let text_position = self.position();
        let amount = match self.peek() {
            Token::SingleQuotedString(text) => text.clone(),
            Token::Number(digits, _) => digits.clone(),
            _ => return Err(self.expected("a string after INTERVAL").hint("write for example INTERVAL '5 minutes'")),
        };
        self.advance();
        const UNITS: [&str; 10] =
            ["second", "seconds", "minute", "minutes", "hour", "hours", "day", "days", "millisecond", "milliseconds"];
        let unit = UNITS.iter().find(|unit| self.eat_word(unit));
        let text = unit.map_or_else(|| amount.clone(), |unit| format!("{amount} {unit}"));
        let value = parse_interval(&text).ok_or_else(|| {
            SqlError::new(text_position, format!("'{text}' is not an interval"))
                .hint("write for example INTERVAL '5 minutes'")
        })?;
        Ok((Literal::Interval(value), position))
    }

    /// Reads a declared type without parts.
    pub(super) fn plain_type(&mut self, of: Declares) -> Result<DataType, SqlError> {
        let position = self.position();
        let Token::Word(word) = self.peek() else {
            return Err(self.expected("a type").hint(format!("types are {}", list(&TYPE_NAMES))));
        };
        if ["decimal", "numeric", "dec"].iter().any(|name| word.value.eq_ignore_ascii_case(name)) {
            let data_type = self.decimal()?;
            return declared(data_type, of, position);
        }
        let Some(data_type) = exact_type_named(&word.value) else {
            let error = SqlError::new(position, format!("unknown type '{}'", word.value));
            if let Some(hint) = nested_type_hint(&word.value) {
                return Err(
                    SqlError::new(position, format!("a column of type {} is not supported yet", word.value)).hint(hint)
                );
            }
            return Err(match suggest::nearest(&word.value, TYPE_NAMES.into_iter().chain(["INTERVAL"])) {
                Some(near) => error.did_you_mean(Some(near)),
                None if word.value.eq_ignore_ascii_case("timestamptz") => error.hint("TIMESTAMP is always in UTC"),
                None => error.hint(match of {
                    Declares::Parameter => "types are TEXT, BIGINT, DOUBLE, BOOLEAN, TIMESTAMP and INTERVAL",
                    Declares::Input => "types are TEXT, BIGINT, DOUBLE, BOOLEAN, TIMESTAMP and DATE",
                    Declares::Table => "types are TEXT, BIGINT, DOUBLE, BOOLEAN and TIMESTAMP",
                    Declares::Stream => {
                        "types are TEXT, BIGINT, INT, SMALLINT, DOUBLE, REAL, DECIMAL, BOOLEAN, TIMESTAMP, DATE and \
                         TIME"
                    }
                }),
            });
        };
        if data_type == INTERVAL && of != Declares::Parameter {
            return Err(SqlError::new(position, "a column of an input cannot be an INTERVAL")
                .hint("declare it as BIGINT or TEXT; parameters may be intervals"));
        }
        self.advance();
        if matches!(data_type, DataType::Float64 | DataType::Float32) {
            self.eat_word("precision");
        }
        if *self.peek() == Token::LParen {
            self.detail(&data_type, position)?;
        }
        let has_time = [TIMESTAMP, TIME].contains(&data_type);
        if has_time && !self.eat_words(&["without", "time", "zone"]) && self.is_word("with") {
            let rest = self.rest();
            if rest.get(1).is_some_and(|token| token_is_word(&token.token, "time")) {
                return Err(SqlError::new(self.position(), "timestamps with a time zone are not supported")
                    .hint("TIMESTAMP is always in UTC"));
            }
        }
        declared(data_type, of, position)
    }

    /// Reads `DECIMAL(precision, scale)`, with the cursor at the word.
    fn decimal(&mut self) -> Result<DataType, SqlError> {
        const HINT: &str = "write DOUBLE, or for example DECIMAL(10, 2): ten digits, two of them after the point";
        self.advance();
        if !self.eat(&Token::LParen) {
            return Err(self.expected("'(' and the digits of the DECIMAL").hint(HINT));
        }
        let position = self.position();
        let number = |cursor: &mut Self| match cursor.peek() {
            Token::Number(digits, _) => {
                let number = digits.parse::<u8>().unwrap_or(u8::MAX);
                cursor.advance();
                Ok(number)
            }
            _ => Err(cursor.expected("a number").hint(HINT)),
        };
        let precision = number(self)?;
        let scale = if self.eat(&Token::Comma) { number(self)? } else { 0 };
        self.expect(&Token::RParen)?;
        if !(1..=38).contains(&precision) || scale > precision {
            return Err(SqlError::new(position, format!("there is no DECIMAL({precision}, {scale})"))
                .hint("DECIMAL has 1 to 38 digits, and at most all of them behind the point"));
        }
        Ok(DataType::Decimal128(precision, scale as i8))
    }

    /// Reads the length or precision behind a type. Values are stored in full, so it is refused where it would cut or
    /// check them. Only 3 to 6 digits of a time are allowed: scripts of other engines declare them, and event times
    /// have them anyway.
    fn detail(&mut self, data_type: &DataType, position: Position) -> Result<(), SqlError> {
        self.advance();
        let Token::Number(digits, _) = self.peek().clone() else { return Err(self.expected("a number")) };
        self.advance();
        self.expect(&Token::RParen)?;
        let hint = match data_type {
            _ if [TIMESTAMP, TIME].contains(data_type) && ["3", "4", "5", "6"].contains(&digits.as_str()) => {
                return Ok(());
            }
            _ if *data_type == TIMESTAMP => {
                "write TIMESTAMP, and the unit of numbers behind the format: FORMAT JSON (timestamp => 'seconds')"
            }
            DataType::Utf8 => {
                "write TEXT; values are stored in full. To cut one, write CAST(value AS VARCHAR(10)) in the query"
            }
            _ => "write the type without it; values are stored in full",
        };
        let name = type_name(data_type);
        Err(SqlError::new(position, format!("{name} with a length or precision ({digits}) is not supported"))
            .hint(hint))
    }

    /// Reads the name of a secret. What stands in its place may be the value, and is not shown.
    pub(crate) fn secret_name(&mut self) -> Result<Name, SqlError> {
        match self.peek() {
            Token::Word(_) => self.name("the name of a secret"),
            _ => Err(SqlError::new(self.position(), "expected the name of a secret")
                .hint("it is a word, or stands in double quotes: SECRET kafka_password")),
        }
    }

    /// Reads the options of a source, sink, input or output: as [`Cursor::named_values`], and a value may be a secret,
    /// as in `password => SECRET name`.
    pub(crate) fn options(&mut self) -> Result<Vec<(Name, Literal, Position)>, SqlError> {
        self.values("the name of an option", true)
    }

    /// Reads the values that follow SET, at least one.
    pub(super) fn values_to_set(
        &mut self,
        what: &str,
        may_be_secret: bool,
        example: &str,
    ) -> Result<Vec<(Name, Literal, Position)>, SqlError> {
        let position = self.position();
        match self.values(what, may_be_secret)? {
            none if none.is_empty() => {
                Err(SqlError::new(position, "SET () sets nothing").hint(format!("write {example}")))
            }
            values => Ok(values),
        }
    }

    /// Reads `( name => value, ... )`; each name at most once.
    pub(crate) fn named_values(&mut self, what: &str) -> Result<Vec<(Name, Literal, Position)>, SqlError> {
        self.values(what, false)
    }

    fn values(&mut self, what: &str, may_be_secret: bool) -> Result<Vec<(Name, Literal, Position)>, SqlError> {
        let mut values: Vec<(Name, Literal, Position)> = Vec::new();
        let in_parentheses = "values stand in parentheses, each behind its name: (name => 5, other => 'text')";
        self.expect(&Token::LParen).map_err(|error| error.hint(in_parentheses))?;
        if self.eat(&Token::RParen) {
            return Ok(values);
        }
        loop {
            let name = match self.peek() {
                // No word has another meaning here, so no word is reserved.
                Token::Word(word) if word.quote_style.is_none() => {
                    let mut name = Name { text: word.value.to_lowercase(), position: self.position() };
                    self.advance();
                    // Names with dots, such as `headers.authorization`.
                    while self.eat(&Token::Period) {
                        let Token::Word(word) = self.peek() else {
                            return Err(self.expected(what).hint(format!(
                                "a name of other than letters, digits, '_' and '.' stands in double quotes: \"{}.x-y\"",
                                name.text
                            )));
                        };
                        name.text = format!("{}.{}", name.text, word.value.to_lowercase());
                        self.advance();
                    }
                    name
                }
                _ => self.name(what)?,
            };
            if values.iter().any(|(other, ..)| other.text == name.text) {
                return Err(SqlError::new(name.position, format!("'{name}' is given twice")));
            }
            if !self.eat(&Token::RArrow) {
                let hint = match self.peek() {
                    Token::Minus => format!("a name with '-' stands in double quotes: (\"{name}-...\" => value)"),
                    _ => format!("write ({name} => value)"),
                };
                return Err(self.expected("'=>'").hint(hint));
            }
            let position = self.position();
            let (literal, position) = match self.is_word("secret") {
                true if may_be_secret => {
                    self.advance();
                    (Literal::Secret(self.secret_name()?.text), position)
                }
                true => {
                    let error = self.expected("a value");
                    return Err(error.hint("a secret is a value of an option of a source, sink, input or output"));
                }
                false => self.literal()?,
            };
            values.push((name, literal, position));
            if self.eat(&Token::RParen) {
                return Ok(values);
            }
            if !self.eat(&Token::Comma) {
                return Err(self.expected("',' or ')'"));
            }
        }
    }
}

/// What to write instead of another type with parts.
pub(super) const PARTS_HINT: &str = "write TEXT ARRAY, MAP<TEXT, DOUBLE> or ROW<rssi BIGINT, snr DOUBLE>; parts are \
                                     TEXT, BIGINT, DOUBLE, BOOLEAN, JSON or have parts";

/// What to write instead of a type that is not known but has parts or bytes; `None` if this is no such type.
fn nested_type_hint(name: &str) -> Option<&'static str> {
    Some(match name.to_ascii_lowercase().as_str() {
        "list" | "multiset" | "object" | "variant" => PARTS_HINT,
        "bytes" | "binary" | "varbinary" | "bytea" | "blob" => {
            "declare it TEXT; FORMAT RAW (encoding => 'hex') reads a whole payload of bytes"
        }
        _ => return None,
    })
}

/// Returns the type that a declaration means, or an error if no such column or parameter may exist. Columns keep the
/// declared bits of whole numbers, which a value must fit; parameters have 64.
fn declared(data_type: DataType, of: Declares, position: Position) -> Result<DataType, SqlError> {
    let refused = |what: &str, hint: &str| {
        let name = declared_type_name(&data_type);
        Err(SqlError::new(position, format!("{what} cannot be {name}")).hint(hint))
    };
    match (of, &data_type) {
        (Declares::Stream, _) => Ok(data_type),
        (Declares::Parameter, DataType::Int8 | DataType::Int16 | DataType::Int32) => Ok(DataType::Int64),
        (_, DataType::Float32) => Ok(DataType::Float64),
        (Declares::Parameter, DataType::Date32) => refused("a parameter", "declare it TIMESTAMP, or TEXT and cast it"),
        (Declares::Parameter, DataType::Time64(_)) => refused("a parameter", "declare it TEXT, and cast it"),
        (Declares::Parameter, DataType::Decimal128(..)) => {
            refused("a parameter", "declare it DOUBLE, or BIGINT in the smallest unit, as cents")
        }
        (Declares::Input, DataType::Time64(_)) => {
            refused("a column of an application", "declare it TEXT, and cast it where it is compared")
        }
        (Declares::Input, DataType::Decimal128(..)) => refused(
            "a column of an application",
            "declare it DOUBLE, or BIGINT in the smallest unit, as cents; sources of big queries have DECIMAL",
        ),
        (Declares::Table, DataType::Date32 | DataType::Time64(_) | DataType::Decimal128(..)) => {
            refused("a column of a table", "declare it TEXT, and cast it in the query")
        }
        _ => Ok(data_type),
    }
}

fn number(digits: &str, negative: bool) -> Option<Literal> {
    let signed = if negative { format!("-{digits}") } else { digits.to_owned() };
    if let Ok(value) = signed.parse::<i64>() {
        return Some(Literal::Integer(value));
    }
    signed.parse::<f64>().ok().filter(|value| value.is_finite()).map(Literal::Float)
}
