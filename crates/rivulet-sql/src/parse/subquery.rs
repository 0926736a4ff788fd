//! `FROM (SELECT ...) AS m` and `WITH m AS (SELECT ...) SELECT ... FROM m`: a SELECT that reads the results of another
//! one.
//!
//! The inner SELECT is cut out of the tokens and read by itself, and a name stays in its place. So both SELECTs may
//! have every clause, and every position is one in the script. A UNION ALL of inputs is left to the outer SELECT.

use datafusion_sql::sqlparser::keywords::RESERVED_FOR_TABLE_ALIAS;
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::cursor::Cursor;
use super::pattern::closing;
use super::query::begins_query;
use super::select_text::{not_yet, outside};
use crate::lexer::token_is_word;
use crate::statement::Name;
use crate::{Position, SqlError};

/// How many SELECTs may read each other. Each is a part of one line of operators.
const CHAIN_MAX: usize = 8;

/// The name of a subquery in FROM. The SELECT around it calls it by its alias.
const PLACE: &str = "subquery";

/// What to write where results are needed twice, or together with others.
pub(crate) const INSTEAD: &str = "write two applications: the first one publishes its results to a topic, \
                                  OUTPUT 'mqtt:...', and the second one reads that topic as an input";

/// `name AS (SELECT ...)` of a WITH, not read yet.
pub(super) struct NamedQuery {
    name: Name,
    body: Vec<TokenWithSpan>,
    /// The position of the parenthesis behind it.
    end: Position,
}

/// Where a SELECT stands in a chain of SELECTs.
#[derive(Default)]
pub(super) struct Chain {
    /// The queries of WITH that it may read.
    named: Vec<NamedQuery>,
    /// How many SELECTs stand around it.
    depth: usize,
}

/// The tokens that are left, and what became of those that were taken.
type Taken<T> = (Vec<TokenWithSpan>, T);

impl Chain {
    /// Reads a SELECT that the one here reads; `named` are the queries of WITH that it may read in its turn.
    fn inner<T>(
        &mut self,
        named: usize,
        position: Position,
        read: impl FnOnce(&mut Self) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        if self.depth + 1 == CHAIN_MAX {
            let message = format!("SELECTs in FROM and WITH nest at most {CHAIN_MAX} deep");
            return Err(SqlError::new(position, message).hint(INSTEAD));
        }
        let later = self.named.split_off(named);
        self.depth += 1;
        let inner = read(self)?;
        self.depth -= 1;
        self.named.extend(later);
        Ok(inner)
    }

    /// Reads `WITH name AS (SELECT ...), ...`, if the tokens begin with it; returns the tokens behind it.
    pub(super) fn cut_with<'t>(
        &mut self,
        tokens: &'t [TokenWithSpan],
        end: Position,
    ) -> Result<&'t [TokenWithSpan], SqlError> {
        let mut cursor = Cursor::new(tokens, end);
        if !cursor.eat_word("with") {
            return Ok(tokens);
        }
        let first = self.named.len();
        loop {
            if cursor.is_word("recursive") && !cursor.rest().get(1).is_some_and(|next| token_is_word(&next.token, "as"))
            {
                return Err(not_yet(cursor.position(), "WITH RECURSIVE")
                    .hint("leave RECURSIVE out: a query of WITH reads those before it, and not itself"));
            }
            let name = cursor.name("the name of a query")?;
            if self.named[first..].iter().any(|other| other.name.text == name.text) {
                return Err(SqlError::new(name.position, format!("two queries of WITH are called '{name}'"))
                    .hint("give one of them another name"));
            }
            if *cursor.peek() == Token::LParen {
                return Err(not_yet(cursor.position(), "a list of columns after a name")
                    .hint("name the columns in the SELECT, with AS"));
            }
            cursor.expect_word("AS")?;
            if *cursor.peek() != Token::LParen {
                return Err(cursor.expected("'(' and a SELECT"));
            }
            let rest = cursor.rest();
            let Some(closing) = closing(rest, 0) else {
                return Err(SqlError::new(end, "expected ')', found the end of the statement"));
            };
            if self.named.len() == first + CHAIN_MAX {
                return Err(SqlError::new(name.position, format!("WITH has at most {CHAIN_MAX} queries")).hint(INSTEAD));
            }
            let (body, end) = (rest[1..closing].to_vec(), rest[closing].span.into());
            self.named.push(NamedQuery { name, body, end });
            (0..=closing).for_each(|_| cursor.advance());
            if !cursor.eat(&Token::Comma) {
                return Ok(cursor.rest());
            }
        }
    }

    /// How many queries of WITH the SELECT here may read.
    pub(super) fn named(&self) -> usize {
        self.named.len()
    }

    /// Fails if a query of WITH from this one on was not read: nothing that is written is ignored.
    pub(super) fn refuse_unread(&self, first: usize) -> Result<(), SqlError> {
        match self.named.get(first) {
            Some(NamedQuery { name, .. }) => {
                let message = format!("the query '{name}' of WITH is not read after it");
                Err(SqlError::new(name.position, message)
                    .hint("leave it out, or write its name into one FROM after it"))
            }
            None => Ok(()),
        }
    }

    /// Cuts a SELECT in parentheses out of FROM, if there is one: returns the other tokens and what `read` made of it.
    pub(super) fn take_subquery<T>(
        &mut self,
        tokens: &[TokenWithSpan],
        end: Position,
        read: impl FnOnce(&mut Self, &[TokenWithSpan], Position) -> Result<T, SqlError>,
    ) -> Result<Option<Taken<T>>, SqlError> {
        let Some(from) = from_of(tokens) else { return Ok(None) };
        let is_subquery = matches!(tokens.get(from + 1), Some(open) if open.token == Token::LParen)
            && tokens.get(from + 2).is_some_and(|first| begins_query(&first.token));
        if !is_subquery {
            return Ok(None);
        }
        let Some(closing) = closing(tokens, from + 1) else {
            return Err(SqlError::new(end, "expected ')', found the end of the statement"));
        };
        let body = &tokens[from + 2..closing];
        if is_union(body) {
            return Ok(None);
        }
        let (span, end) = (tokens[from + 1].span, tokens[closing].span.into());
        let inner = self.inner(self.named.len(), span.into(), |chain| read(chain, body, end))?;
        let place = TokenWithSpan { token: Token::make_word(PLACE, None), span };
        let rest = tokens[..=from].iter().cloned().chain([place]).chain(tokens[closing + 1..].iter().cloned());
        Ok(Some((rest.collect(), inner)))
    }

    /// Takes the query of WITH that FROM names, if it names one: returns the tokens and what `read` made of it. A UNION
    /// ALL is put into the tokens instead.
    pub(super) fn take_named<T>(
        &mut self,
        tokens: &[TokenWithSpan],
        read: impl FnOnce(&mut Self, &[TokenWithSpan], Position) -> Result<T, SqlError>,
    ) -> Result<Option<Taken<Option<T>>>, SqlError> {
        let Some(from) = from_of(tokens) else { return Ok(None) };
        let find = |named: &[NamedQuery], token: Option<&TokenWithSpan>| {
            let Token::Word(word) = &token?.token else { return None };
            let name = if word.quote_style.is_some() { word.value.clone() } else { word.value.to_lowercase() };
            named.iter().rposition(|other| other.name.text == name)
        };
        if let Some(joined) = tokens
            .windows(2)
            .find(|two| token_is_word(&two[0].token, "join") && find(&self.named, two.get(1)).is_some())
        {
            return Err(not_yet(joined[1].span, "a JOIN with a query of WITH").hint(INSTEAD));
        }
        let Some(found) = find(&self.named, tokens.get(from + 1)) else { return Ok(None) };
        let NamedQuery { name, body, end } = self.named.remove(found);
        let span = tokens[from + 1].span;
        if !is_union(&body) {
            let inner = self.inner(found, span.into(), |chain| read(chain, &body, end))?;
            return Ok(Some((tokens.to_vec(), Some(inner))));
        }
        let at = |token: Token| TokenWithSpan { token, span };
        let has_alias = tokens.get(from + 2).is_some_and(|next| match &next.token {
            Token::Word(word) => token_is_word(&next.token, "as") || !RESERVED_FOR_TABLE_ALIAS.contains(&word.keyword),
            _ => false,
        });
        let alias = [at(Token::make_word("AS", None)), at(Token::make_word(&name.text, Some('"')))];
        let union = [at(Token::LParen)].into_iter().chain(body).chain([at(Token::RParen)]);
        let union = union.chain(alias.into_iter().filter(|_| !has_alias));
        let before = tokens[..=from].iter().cloned();
        Ok(Some((before.chain(union).chain(tokens[from + 2..].iter().cloned()).collect(), None)))
    }
}

/// The index of the first FROM outside of parentheses.
fn from_of(tokens: &[TokenWithSpan]) -> Option<usize> {
    // IS DISTINCT FROM may stand before it.
    let is_word = |index: usize, word: &str| token_is_word(&tokens[index].token, word);
    outside(tokens).find(|&index| is_word(index, "from") && !(index > 0 && is_word(index - 1, "distinct")))
}

/// Whether several SELECTs are put together.
fn is_union(tokens: &[TokenWithSpan]) -> bool {
    const WORDS: [&str; 4] = ["union", "intersect", "except", "minus"];
    // The word may be the name of a column, or that of `* EXCEPT (column, ...)`.
    let joins = |index: &usize| {
        if index.checked_sub(1).is_some_and(|before| tokens[before].token == Token::Mul) {
            return false;
        }
        let next = tokens.get(index + 1).map(|next| &next.token);
        WORDS.iter().any(|word| token_is_word(&tokens[*index].token, word))
            && next.is_some_and(|next| {
                *next == Token::LParen || ["select", "all", "distinct"].iter().any(|word| token_is_word(next, word))
            })
    };
    outside(tokens).any(|index| joins(&index))
}
