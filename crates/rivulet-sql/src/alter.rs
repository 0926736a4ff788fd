//! `ALTER APPLICATION`: changes the options of inputs in the text of an application.

use crate::parse::parse_application;
use crate::reserved::name_in_sql;
use crate::statement::{InputDeclaration, Name};
use crate::{Literal, Position, SqlError};

/// Returns the text of an application with these options in one of its inputs, or in all of them. An option that is
/// `NULL` is removed. The rest of the text stays as it is. The values of the options are not checked.
///
/// # Errors
///
/// The text cannot be read, or there is no such input. The second error has the position of the input's name in the
/// statement.
///
/// ```
/// # use rivulet_sql::{Statement, statements, with_input_options};
/// let text = "CREATE APPLICATION a INPUT t (v DOUBLE) FORMAT JSON OUTPUT FORMAT JSON AS SELECT v FROM t";
/// let (statement, _) = statements("ALTER APPLICATION a SET (overflow => 'drop_oldest')").next().unwrap()?;
/// let Statement::AlterApplication { options, .. } = statement else { unreachable!() };
/// let altered = with_input_options(text, None, &options)?;
/// assert!(altered.contains("FORMAT JSON WITH (overflow => 'drop_oldest') OUTPUT FORMAT JSON"));
/// # Ok::<_, rivulet_sql::SqlError>(())
/// ```
pub fn with_input_options(
    text: &str,
    input: Option<&Name>,
    options: &[(Name, Literal, Position)],
) -> Result<String, SqlError> {
    let create = parse_application(text)?;
    let is_meant = |one: &&InputDeclaration| input.is_none_or(|name| name.text == one.name.text);
    let inputs: Vec<&InputDeclaration> = create.inputs.iter().filter(is_meant).collect();
    if let Some(name) = input.filter(|_| inputs.is_empty()) {
        let error = SqlError::new(name.position, format!("the application has no input '{name}'"));
        let names: Vec<&str> = create.inputs.iter().map(|one| one.name.text.as_str()).collect();
        return Err(error.suggest(
            &name.text,
            names.iter().copied(),
            format!("it has {}", crate::address::list(&names)),
        ));
    }
    let mut altered = text.to_owned();
    // Backwards, so that the positions of inputs not yet changed stay valid.
    for one in inputs.into_iter().rev() {
        let (from, to) = (offset(text, one.options_at.0), offset(text, one.options_at.1));
        let space = if from == to { " " } else { "" };
        let written = written(one, options);
        if !written.is_empty() || from < to {
            altered.replace_range(from..to, &format!("{written}{space}"));
        }
    }
    Ok(altered)
}

/// Returns the name of the option, of those that [`with_input_options`] wrote into `text`, that an error is about.
pub fn option_at<'o>(text: &str, error: &SqlError, options: &'o [(Name, Literal, Position)]) -> Option<&'o Name> {
    let (before, behind) = text.split_at(offset(text, Position { line: error.line, column: error.column }));
    let is_at = |name: &&Name| {
        let written = format!("{} => ", name_in_sql(&name.text));
        // Its name has the position, or its value.
        let start = match before.strip_suffix(&written) {
            Some(start) => start,
            None if behind.starts_with(&written) => before,
            None => return false,
        };
        start.ends_with(['(', ' '])
    };
    options.iter().map(|(name, ..)| name).find(is_at)
}

/// Returns `WITH (...)`, in which `options` replace those of the same name, or nothing if no option is left.
fn written(input: &InputDeclaration, options: &[(Name, Literal, Position)]) -> String {
    let other = |name: &Name| options.iter().find(|(other, ..)| other.text == name.text).map(|(_, value, _)| value);
    let kept = input.options.iter().map(|(name, value, _)| (name, other(name).unwrap_or(value)));
    let is_new = |name: &Name| input.options.iter().all(|(known, ..)| known.text != name.text);
    let new = options.iter().filter(|(name, ..)| is_new(name)).map(|(name, value, _)| (name, value));
    let all = kept.chain(new).filter(|(_, value)| **value != Literal::Null);
    let all: Vec<String> = all.map(|(name, value)| format!("{} => {value}", name_in_sql(&name.text))).collect();
    if all.is_empty() { String::new() } else { format!("WITH ({})", all.join(", ")) }
}

/// Returns the byte offset of a position in a text.
fn offset(text: &str, position: Position) -> usize {
    let (line, column) = (position.line.saturating_sub(1) as usize, position.column.saturating_sub(1) as usize);
    let line_at: usize = text.split_inclusive('\n').take(line).map(str::len).sum();
    let rest = &text[line_at..];
    line_at + rest.char_indices().nth(column).map_or(rest.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Statement;

    const TEXT: &str = "CREATE APPLICATION a\n\
        INPUT l\u{e4}nge (v DOUBLE) FROM 'mqtt:\u{fc}/\u{e9}' FORMAT JSON -- a comment\n\
        INPUT t (ts TIMESTAMP EVENT TIME) FROM 'mqtt:t' FORMAT JSON WITH (lateness => '5 s', late => 'mqtt:late') -- late\n\
        OUTPUT 'mqtt:out' FORMAT JSON AS SELECT ts FROM t";

    fn altered(statement: &str) -> Result<String, SqlError> {
        let (statement, _) = crate::statements(statement).next().unwrap()?;
        let Statement::AlterApplication { input, options, .. } = statement else { panic!("another statement") };
        with_input_options(TEXT, input.as_ref(), &options)
    }

    #[test]
    fn options_change_and_the_rest_of_the_text_stays() {
        let text = altered("ALTER APPLICATION a INPUT t SET (late => NULL, idle_timeout => '1 minute')").unwrap();
        let options = "WITH (lateness => '5 s', idle_timeout => '1 minute') -- late\n";
        assert_eq!(text, TEXT.replace("WITH (lateness => '5 s', late => 'mqtt:late') -- late\n", options));
        let text = altered("ALTER APPLICATION a INPUT \"l\u{e4}nge\" SET (overflow => 'it''s')").unwrap();
        assert_eq!(text, TEXT.replace("INPUT t", "WITH (overflow => 'it''s') INPUT t"));
        let text = altered("ALTER APPLICATION a SET (lateness => NULL, late => NULL)").unwrap();
        assert_eq!(text, TEXT.replace("WITH (lateness => '5 s', late => 'mqtt:late')", ""));
        let text = altered("ALTER APPLICATION a SET (lateness => INTERVAL '2 seconds')").unwrap();
        assert_eq!(text.matches("lateness => INTERVAL '2 second").count(), 2);
        assert_eq!(crate::parse_application(&text).unwrap().inputs.len(), 2);
    }

    #[test]
    fn an_input_that_is_not_there_is_named() {
        let error = altered("ALTER APPLICATION a INPUT lange SET (lateness => '1 s')").unwrap_err();
        assert_eq!(
            (error.line, error.column, error.hint.as_deref()),
            (1, 27, Some("did you mean 'l\u{e4}nge'?")),
            "{error}"
        );
    }
}
