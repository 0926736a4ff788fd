//! `rivulet sql`: scripts, and a prompt.

use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use rivulet_sql::Statement;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Editor};
use serde_json::Value;

use crate::api::types::{SqlAnswer, StatementResult};
use crate::counted::counted;
use crate::http_client::{Client, WatchEvent};

use super::complete::Completion;
use super::error::CliError;
use super::options::{Connection, Global};
use super::output::{cell, print_json, result_table, shown};
use super::signals::interruptible;

/// Lines that the prompt remembers.
const HISTORY_LINES_MAX: usize = 1000;

/// Arguments of `rivulet sql`.
#[derive(Debug, clap::Args)]
pub(super) struct SqlArguments {
    #[command(flatten)]
    connection: Connection,
    /// Script to run; `-` is standard input. Without a file and without `-c`, SQL is typed at a prompt
    #[arg(value_name = "FILE", conflicts_with = "command")]
    file: Option<PathBuf>,
    /// SQL to run
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    command: Option<String>,
}

pub(super) fn run(global: Global, arguments: &SqlArguments) -> Result<(), CliError> {
    let client = arguments.connection.client()?;
    let script = match (&arguments.command, &arguments.file) {
        (Some(command), _) => command.clone(),
        (None, Some(file)) => read_source(file)?,
        (None, None) if io::stdin().is_terminal() => return prompt(global, &client),
        (None, None) => read_source(Path::new("-"))?,
    };
    run_script(global, &client, &script)
}

/// Reads a file, or standard input for `-`, as text.
pub(super) fn read_source(file: &Path) -> Result<String, CliError> {
    let read = if file == Path::new("-") {
        let mut text = String::new();
        io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(file)
    };
    read.map_err(|error| CliError::new(format!("cannot read {}: {error}", file.display())))
}

/// Whether a script is one SELECT, whose rows are shown as they come.
fn is_select(script: &str) -> bool {
    let mut statements = rivulet_sql::statements(script);
    let is_one = matches!(statements.next(), Some(Ok((Statement::RunQuery(query), _))) if query.sink.is_none());
    is_one && statements.next().is_none()
}

/// What a SELECT has refused: told when it is twice as much as was told before, and at the end.
#[derive(Default)]
struct Refused {
    told_rows: u64,
    rows: u64,
    text: String,
}

impl Refused {
    fn note(&mut self, note: &str) {
        let note: Value = serde_json::from_str(note).unwrap_or_default();
        self.rows = note["rows"].as_u64().unwrap_or_default();
        let reasons = note["reasons"].as_object().into_iter().flatten();
        let reasons: Vec<String> = reasons.map(|(reason, rows)| format!("{rows} {reason}")).collect();
        let example = note["example"].as_str().map(|text| format!("; one of them: {text}")).unwrap_or_default();
        let were = if self.rows == 1 { "was" } else { "were" };
        self.text = format!("{} {were} refused ({}){example}", counted(self.rows, "row"), reasons.join(", "));
        if self.rows >= 2 * self.told_rows {
            self.tell();
        }
    }

    fn tell(&mut self) {
        if self.rows > self.told_rows {
            eprintln!("{}", self.text);
            self.told_rows = self.rows;
        }
    }
}

/// Prints the rows of a SELECT, a JSON object each, until its input ends or Ctrl-C.
fn select(client: &Client, script: &str) -> Result<(), CliError> {
    if io::stderr().is_terminal() {
        eprintln!("rows are shown until all sources have ended; Ctrl-C ends it");
    }
    let mut refused = Refused::default();
    let shown = client.select(script, |event| match event {
        WatchEvent::Result(row) => {
            let mut out = io::stdout().lock();
            writeln!(out, "{row}")?;
            Ok(out.flush()?)
        }
        WatchEvent::Lost(count) => {
            eprintln!("too slow: {} skipped", counted(count, "row"));
            Ok(())
        }
        WatchEvent::Refused(note) => {
            refused.note(note);
            Ok(())
        }
        WatchEvent::End("ended" | "limit") => {
            refused.tell();
            Ok(())
        }
        WatchEvent::End("stopping") => Err(CliError::new("the server is stopping: no more rows")),
        WatchEvent::End(reason) => Err(CliError::new(reason.strip_prefix("failed: ").unwrap_or(reason).to_owned())),
    });
    shown.map_err(|error: CliError| error.in_source(script))
}

/// Runs a script and prints its results.
fn run_script(global: Global, client: &Client, script: &str) -> Result<(), CliError> {
    if is_select(script) {
        return select(client, script);
    }
    let mut answer = client.run_script(script)?;
    let error = answer.error.take();
    let mut out = io::stdout().lock();
    if global.json {
        print_json(&mut out, &answer)?;
    } else {
        for result in &answer.results {
            print_result(&mut out, result)?;
        }
    }
    let Some(error) = error else { return Ok(()) };
    let SqlAnswer { results, statements_not_run, .. } = answer;
    let error = CliError::from(error).in_source(script);
    Err(match how_far(script, results.len() as u64, statements_not_run) {
        Some(note) => error.with_note(note),
        None => error,
    })
}

/// Which statements of a script ran and which did not, around one that failed; nothing where there is only that one.
fn how_far(script: &str, ran: u64, not_run: u64) -> Option<String> {
    let statements = |count: u64| format!("{count} statement{}", if count == 1 { "" } else { "s" });
    match (ran, not_run) {
        (0, 0) if !script.trim().trim_end_matches(';').contains(';') => None,
        (0, _) => Some("no statement ran".into()),
        (_, 0) => Some(format!("{} before it ran", statements(ran))),
        (_, _) => Some(format!("{} before it ran, {} after it did not", statements(ran), statements(not_run))),
    }
}

fn print_result(out: &mut impl Write, result: &StatementResult) -> Result<(), CliError> {
    match (result.columns.as_slice(), result.rows.as_slice()) {
        ([], _) => {}
        // Lines of text, such as an explanation: no table around them.
        ([column], rows) if column == "plan" => {
            for text in rows.iter().filter_map(|row| row.first()) {
                writeln!(out, "{}", cell(text).trim_end())?;
            }
        }
        (columns, rows) => {
            let (columns, rows) = shown(columns, rows);
            writeln!(out, "{}", result_table(&columns, &rows))?;
            let (count, noun) = (rows.len(), if rows.len() == 1 { "row" } else { "rows" });
            eprintln!("({count} {noun})");
        }
    }
    if let Some(message) = &result.message {
        eprintln!("{message}");
    }
    Ok(())
}

const HELP: &str = "\
Statements end with a semicolon and may take several lines.
  CREATE APPLICATION name (parameter TYPE [DEFAULT value], ...) INPUT ... OUTPUT ... AS SELECT ...;
  CREATE QUERY name FROM APPLICATION application WITH (parameter => value, ...);
  CREATE OR REPLACE APPLICATION | QUERY name [WITH (state => 'keep' | 'discard')] ...;
  ALTER QUERY q SET (parameter => value, ...);
  ALTER QUERY q REDIRECT ALL | 4 | 'window' TO BURST 0.7 | BACK;  SHOW BURSTS | BURST WORKERS;
  CREATE TABLE name (column TYPE, ...) FROM 'file:path' FORMAT CSV (header => true);
  CREATE SECRET name AS 'value';               what options name: password => SECRET name
  REFRESH TABLE t;  SHOW TABLES;  DESCRIBE TABLE t;  DROP TABLE t;
  SHOW APPLICATIONS;  SHOW QUERIES [FROM APPLICATION a] [LIKE 'pattern'] [LABEL 'text'];
  DESCRIBE APPLICATION | QUERY | SOURCE | SINK | VIEW name;  EXPLAIN APPLICATION a;  EXPLAIN QUERY q;
  PAUSE QUERY q;  RESUME QUERY q;  DROP QUERY q;  DROP APPLICATION a [CASCADE];
  SELECT ... FROM source | table | application.input | application.output | query | \"mqtt:topic/+\" [LIMIT n];
    shows rows as they come, until Ctrl-C
  CREATE SOURCE | SINK | VIEW ...;  CREATE QUERY name AS SELECT ... INTO sink;  DESCRIBE 'file.jsonl';
  SHOW FUNCTIONS [LIKE 'pattern'];  DESCRIBE FUNCTION name;
  CHECKPOINT;  SHOW CHECKPOINTS;
Tab completes keywords, functions and names that the server has.
\\help shows this, \\q or Ctrl-D leaves, Ctrl-C throws away what was typed.";

/// Reads statements from the terminal until the user leaves.
fn prompt(global: Global, client: &Client) -> Result<(), CliError> {
    let config = rustyline::Config::builder().completion_type(CompletionType::List);
    let config = config.max_history_size(HISTORY_LINES_MAX).map(|config| config.build());
    let editor = config.and_then(Editor::<Completion, DefaultHistory>::with_config);
    let mut editor = editor.map_err(|error| CliError::new(format!("no prompt: {error}")))?;
    editor.set_helper(Some(Completion::new(client.clone())));
    let history = history_file();
    if let Some(history) = &history {
        // The first time there is none.
        let _ = editor.load_history(history);
    }
    eprintln!("Rivulet {} at {}; \\help for help, \\q to leave", env!("CARGO_PKG_VERSION"), client.server());
    let mut typed = String::new();
    loop {
        if let Some(completion) = editor.helper_mut() {
            completion.earlier_lines.clone_from(&typed);
            completion.earlier_lines.push('\n');
        }
        match editor.readline(if typed.is_empty() { "rivulet> " } else { "    ...> " }) {
            Ok(line) => {
                if typed.is_empty() {
                    match line.trim() {
                        "" => continue,
                        "\\q" | "exit" | "quit" => break,
                        "\\help" | "\\h" | "\\?" | "help" => {
                            eprintln!("{HELP}");
                            continue;
                        }
                        _ => {}
                    }
                } else {
                    typed.push('\n');
                }
                typed.push_str(&line);
                if !is_complete(&typed) {
                    continue;
                }
                let script = std::mem::take(&mut typed);
                if !has_secret(&script) {
                    let _ = editor.add_history_entry(script.trim());
                }
                let outcome = match is_select(&script) {
                    true => match interruptible(|stop| select(&client.stopped_by(stop), &script)) {
                        // The user has ended it.
                        (_, true) => Ok(()),
                        (outcome, false) => outcome,
                    },
                    false => run_script(global, client, &script),
                };
                if let Err(error) = outcome {
                    global.report(&error);
                }
            }
            Err(ReadlineError::Interrupted) => typed.clear(),
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(CliError::new(format!("the terminal failed: {error}"))),
        }
    }
    if let Some(history) = &history
        && let Err(error) = editor.save_history(history)
    {
        eprintln!("the history could not be saved in {}: {error}", history.display());
    }
    Ok(())
}

/// Whether a text may have the value of a secret or a password, which the history does not keep.
fn has_secret(script: &str) -> bool {
    let mut words = script.split_whitespace().map(str::to_ascii_lowercase);
    words.any(|word| word == "secret" || word.contains("password")) && script.contains('\'')
}

/// `RIVULET_HISTORY`, or a file in the home folder.
fn history_file() -> Option<PathBuf> {
    match std::env::var_os("RIVULET_HISTORY") {
        Some(file) => (!file.is_empty()).then(|| file.into()),
        None => std::env::home_dir().map(|home| home.join(".rivulet_history")),
    }
}

/// Whether the text ends with a semicolon that is not in quotes or in a comment.
fn is_complete(sql: &str) -> bool {
    let mut characters = sql.chars().peekable();
    let mut ended = false;
    while let Some(character) = characters.next() {
        match character {
            ';' => ended = true,
            '\'' | '"' => {
                ended = false;
                // A doubled quote closes and opens again, which comes to the same.
                if !characters.any(|other| other == character) {
                    return false;
                }
            }
            '-' if characters.peek() == Some(&'-') => {
                characters.find(|&other| other == '\n');
            }
            '/' if characters.peek() == Some(&'*') => {
                characters.next();
                let mut star = false;
                if !characters.any(|other| std::mem::replace(&mut star, other == '*') && other == '/') {
                    return false;
                }
            }
            _ if character.is_whitespace() => {}
            _ => ended = false,
        }
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_with_a_semicolon_outside_of_quotes_and_comments() {
        for complete in
            ["a;", "a; b ;\n", "a 'x;y';", "a; -- done", "a /* ; */;", "a; /* ** */", "'it''s';", "\"a;\" ;"]
        {
            assert!(is_complete(complete), "{complete}");
        }
        for open in ["", "a", "a; b", "'a;", "'it''s;", "a -- ;", "a /* ;", "a /* *;", "\"a;", "a;-"] {
            assert!(!is_complete(open), "{open}");
        }
    }
}
