//! The text of a SELECT as DataFusion's parser reads it: how deep it may nest, where its words stand, and the errors of
//! the parser in our words.

use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::parser::{Parser, ParserError};
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::lexer::{RivuletDialect, describe_token, lower_first, token_is_word};
use crate::statement::Name;
use crate::{Position, SqlError, suggest};

/// How many SELECTs may be combined with the first one: each becomes a level of a tree.
const UNIONS_MAX: usize = 15;
/// How deep parentheses, calls and CASEs may nest.
pub(super) const NESTING_MAX: usize = 50;
/// How many operators may follow each other in one expression, including those around it. They become a tree of that
/// depth, and all code that walks a tree recurses.
const OPERATORS_MAX: usize = 200;

/// The words that begin or join clauses, for suggestions.
const CLAUSE_WORDS: [&str; 17] = [
    "SELECT", "FROM", "WHERE", "GROUP", "BY", "HAVING", "QUALIFY", "EMIT", "ON", "CHANGE", "CASE", "WHEN", "THEN",
    "ELSE", "END", "FILTER", "BETWEEN",
];

/// Reads a part of a statement with DataFusion's parser, which must use all of its tokens.
pub(super) fn read<T>(
    tokens: &[TokenWithSpan],
    end: Position,
    read: impl FnOnce(&mut Parser<'_>) -> Result<T, ParserError>,
) -> Result<T, SqlError> {
    let text = SelectText { tokens, end };
    let (found, next) = text.parse(read)?;
    if next.token != Token::EOF {
        let message = format!("expected ',' or the next clause, found {}", describe_token(&next.token));
        return Err(text.open_case().unwrap_or_else(|| SqlError::new(next.span, message)));
    }
    Ok(found)
}

/// Refuses text that would become too deep a tree, before a tree is made.
pub(super) fn check_depth(tokens: &[TokenWithSpan]) -> Result<(), SqlError> {
    // For each open parenthesis (or CASE), the number of operators since the last comma or clause.
    let mut open = vec![0usize];
    let mut operators = 0usize;
    let mut unions = 0usize;
    for token in tokens {
        if ["union", "intersect", "except", "minus"].iter().any(|word| token_is_word(&token.token, word)) {
            unions += 1;
            if unions > UNIONS_MAX {
                return Err(SqlError::new(token.span, format!("a SELECT has at most {UNIONS_MAX} UNION ALL")));
            }
        }
        let opens = match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => true,
            word => token_is_word(word, "case"),
        };
        let closes = match &token.token {
            Token::RParen | Token::RBracket | Token::RBrace => true,
            word => token_is_word(word, "end"),
        };
        const SEPARATORS: [&str; 12] = [
            "select", "from", "where", "group", "having", "qualify", "when", "then", "else", "measures", "pattern",
            "define",
        ];
        const OPERATORS: [&str; 8] = ["and", "or", "not", "is", "like", "ilike", "between", "in"];
        if opens {
            open.push(0);
            if open.len() > NESTING_MAX {
                return Err(SqlError::new(token.span, format!("expressions nest at most {NESTING_MAX} deep")));
            }
        } else if closes {
            if open.len() > 1 {
                operators -= open.pop().unwrap_or(0);
            }
        } else {
            let is_operator = match &token.token {
                Token::Word(word) if word.quote_style.is_none() => {
                    if SEPARATORS.iter().any(|separator| word.value.eq_ignore_ascii_case(separator)) {
                        operators -= open.last().copied().unwrap_or(0);
                        if let Some(last) = open.last_mut() {
                            *last = 0;
                        }
                    }
                    OPERATORS.iter().any(|operator| word.value.eq_ignore_ascii_case(operator))
                }
                Token::Comma => {
                    operators -= open.last().copied().unwrap_or(0);
                    if let Some(last) = open.last_mut() {
                        *last = 0;
                    }
                    false
                }
                Token::Word(_)
                | Token::Number(..)
                | Token::SingleQuotedString(_)
                | Token::Placeholder(_)
                | Token::Period => false,
                _ => true,
            };
            if is_operator {
                operators += 1;
                if let Some(last) = open.last_mut() {
                    *last += 1;
                }
                if operators > OPERATORS_MAX {
                    return Err(SqlError::new(
                        token.span,
                        format!("an expression has at most {OPERATORS_MAX} operators in a row"),
                    )
                    .hint("use IN (...) for many alternatives, and parentheses or CASE to group the rest"));
                }
            }
        }
    }
    Ok(())
}

pub(super) fn not_yet(position: impl Into<Position>, what: &str) -> SqlError {
    SqlError::new(position, format!("{what} is not supported yet"))
}

/// The number of parentheses that are open behind a token, of which `depth` are open before it.
pub(super) fn depth_behind(token: &Token, depth: usize) -> usize {
    match token {
        Token::LParen => depth + 1,
        Token::RParen => depth.saturating_sub(1),
        _ => depth,
    }
}

/// The indices of the tokens outside of parentheses.
pub(super) fn outside(tokens: &[TokenWithSpan]) -> impl Iterator<Item = usize> + '_ {
    let mut depth = 0;
    (0..tokens.len()).filter(move |&index| {
        depth = depth_behind(&tokens[index].token, depth);
        depth == 0
    })
}

/// The tokens of a SELECT, or of a part of one.
pub(super) struct SelectText<'a> {
    pub(super) tokens: &'a [TokenWithSpan],
    pub(super) end: Position,
}

impl SelectText<'_> {
    /// Reads something with DataFusion's parser. Returns also the token behind it.
    pub(super) fn parse<T>(
        &self,
        read: impl FnOnce(&mut Parser<'_>) -> Result<T, ParserError>,
    ) -> Result<(T, TokenWithSpan), SqlError> {
        let parser = Parser::new(&RivuletDialect).with_recursion_limit(NESTING_MAX);
        let mut parser = parser.with_tokens_with_locations(self.tokens.to_vec());
        let found = read(&mut parser).map_err(|error| self.open_case().unwrap_or_else(|| self.syntax_error(error)))?;
        Ok((found, parser.peek_token()))
    }

    /// The position of these words, one after the other, outside of parentheses if possible. If they are not found, the
    /// beginning of the SELECT.
    pub(super) fn locate(&self, words: &[&str]) -> Position {
        let mut depth = 0usize;
        let mut inside = None;
        for (index, token) in self.tokens.iter().enumerate() {
            depth = depth_behind(&token.token, depth);
            let rest = &self.tokens[index..];
            if rest.len() >= words.len()
                && words.iter().zip(rest).all(|(word, token)| token_is_word(&token.token, word))
            {
                if depth == 0 {
                    return token.span.into();
                }
                inside = inside.or(Some(token.span.into()));
            }
        }
        inside.unwrap_or_else(|| self.tokens.first().map_or(self.end, |token| token.span.into()))
    }

    /// An error for a CASE without END. The parser takes the CASE for a name, and complains about what follows it.
    pub(super) fn open_case(&self) -> Option<SqlError> {
        let mut open = Vec::new();
        for token in self.tokens {
            if token_is_word(&token.token, "case") {
                open.push(token.span);
            } else if token_is_word(&token.token, "end") {
                open.pop();
            }
        }
        let span = open.pop()?;
        Some(SqlError::new(span, "this CASE has no END").hint("write CASE WHEN condition THEN value ELSE value END"))
    }

    /// An error of the parser in our words. Its message ends with the position.
    pub(super) fn syntax_error(&self, error: ParserError) -> SqlError {
        let message = match error {
            ParserError::RecursionLimitExceeded => {
                let start = self.tokens.first().map_or(self.end, |token| token.span.into());
                return SqlError::new(start, format!("expressions nest at most {NESTING_MAX} deep"));
            }
            ParserError::ParserError(message) | ParserError::TokenizerError(message) => message,
        };
        let (message, position) = match message.rsplit_once(" at Line: ") {
            Some((message, place)) => {
                let number = |text: &str| text.trim().parse::<u32>().ok();
                let position = place
                    .split_once(", Column: ")
                    .and_then(|(line, column)| Some(Position { line: number(line)?, column: number(column)? }));
                (message, position.unwrap_or_default())
            }
            None => (message.as_str(), Position::default()),
        };
        if let Some(kind) = message.strip_prefix("No infix parser for token ") {
            let token = self.tokens.get(self.index_at(position));
            let operator = token.map_or_else(|| kind.to_owned(), |token| token.token.to_string());
            let error = not_yet(position.or(self.end), &format!("the operator '{operator}'"));
            return match operator.as_str() {
                "<<" => error.hint("multiply by a power of two: x * 4 instead of x << 2"),
                ">>" => error.hint("divide by a power of two: x / 4 instead of x >> 2, where x is not negative"),
                _ => error,
            };
        }
        let expectation = message.strip_prefix("Expected: ").or(message.strip_prefix("Expected "));
        let (expected, found) = match expectation.and_then(|rest| rest.split_once(", found: ")) {
            Some((expected, found)) => (expected, found),
            None => return SqlError::new(position.or(self.end), lower_first(message)),
        };
        if found == "EOF" {
            let message = format!("expected {}, found the end of the statement", plain(expected));
            return self.with_word_hint(SqlError::new(self.end, message), self.tokens.len());
        }
        let mut index = self.index_at(position);
        // Sometimes the position is that of the token behind the one found.
        let stands_at = |index: usize| self.tokens.get(index).is_some_and(|token| token.token.to_string() == found);
        if !stands_at(index) && index > 0 && stands_at(index - 1) {
            index -= 1;
        }
        let position = self.tokens.get(index).map_or(position, |token| token.span.into());
        let found = self.tokens.get(index).map_or_else(|| format!("'{found}'"), |token| describe_token(&token.token));
        let error = SqlError::new(position.or(self.end), format!("expected {}, found {found}", plain(expected)));
        self.with_word_hint(error, index)
    }

    pub(super) fn unexpected(&self, position: Position, token: &Token) -> SqlError {
        for (words, what) in [
            (["limit", "offset", "fetch"].as_slice(), "this form of LIMIT"),
            (["union", "intersect", "except", "minus"].as_slice(), "UNION"),
        ] {
            if words.iter().any(|word| token_is_word(token, word)) {
                return not_yet(position, what);
            }
        }
        let error =
            SqlError::new(position, format!("expected the end of the statement, found {}", describe_token(token)));
        self.with_word_hint(error, self.index_at(position))
    }

    fn index_at(&self, position: Position) -> usize {
        self.tokens.iter().position(|token| Position::from(token.span) >= position).unwrap_or(self.tokens.len())
    }

    /// Adds a hint for a misspelt word of a clause. It is often read as a name, so the error comes a word later.
    fn with_word_hint(&self, error: SqlError, index: usize) -> SqlError {
        let near = [index, index.wrapping_sub(1), index.wrapping_sub(2)].into_iter().find_map(|index| {
            let Token::Word(word) = &self.tokens.get(index)?.token else { return None };
            if word.quote_style.is_some() || CLAUSE_WORDS.iter().any(|known| known.eq_ignore_ascii_case(&word.value)) {
                return None;
            }
            suggest::nearest(&word.value, CLAUSE_WORDS).filter(|near| near.len() > 2).map(|near| (near, &word.value))
        });
        match near {
            Some((near, word)) => error.hint(format!("did you mean {near} instead of '{word}'?")),
            None => error,
        }
    }
}

/// Returns the name of an identifier: in lower case unless quoted.
pub(crate) fn name_of(identifier: &ast::Ident) -> Name {
    let text = match identifier.quote_style {
        Some(_) => identifier.value.clone(),
        None => identifier.value.to_lowercase(),
    };
    Name { text, position: identifier.span.into() }
}

/// What the parser expected, without its jargon.
fn plain(expected: &str) -> String {
    match expected {
        "end of statement" => "the end of the statement".to_owned(),
        "an expression" | "an expression:" => "an expression".to_owned(),
        "identifier" => "a name".to_owned(),
        mark if !mark.chars().any(char::is_alphanumeric) => format!("'{mark}'"),
        other => other.to_owned(),
    }
}
