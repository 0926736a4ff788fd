//! `CREATE SECRET`.
//!
//! What must hold: no error has the value of a secret.

use datafusion_sql::sqlparser::tokenizer::Token;

use super::cursor::Cursor;
use crate::SqlError;
use crate::reserved::name_in_sql;
use crate::statement::{CreateSecret, SecretValue};

/// The longest value, in bytes: certificates and keys are some KiB.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// Reads what follows `CREATE [OR REPLACE] SECRET`.
pub(super) fn secret(cursor: &mut Cursor<'_>, replaces: bool) -> Result<CreateSecret, SqlError> {
    let if_not_exists = cursor.eat_words(&["if", "not", "exists"]);
    let name = cursor.secret_name()?;
    if !cursor.eat_word("as") {
        let error = SqlError::new(cursor.position(), "expected AS behind the name of the secret");
        return Err(error.hint(format!("write CREATE SECRET {} AS '...'", name_in_sql(&name.text))));
    }
    let position = cursor.position();
    // Another token may be the value, without its quotes.
    let Token::SingleQuotedString(value) = cursor.peek() else {
        return Err(SqlError::new(position, "the value of a secret stands in single quotes")
            .hint("write CREATE SECRET name AS '...'"));
    };
    let value = value.clone();
    cursor.advance();
    if value.is_empty() || value.len() > VALUE_BYTES_MAX {
        let message = format!("the value of a secret has 1 to {VALUE_BYTES_MAX} bytes");
        return Err(SqlError::new(position, message));
    }
    if *cursor.peek() != Token::EOF {
        // What follows may be a part of the value.
        return Err(SqlError::new(cursor.position(), "nothing follows the value of a secret")
            .hint("a quote within the value is written twice: 'it''s'"));
    }
    Ok(CreateSecret { name, if_not_exists, replaces, value: SecretValue(value) })
}
