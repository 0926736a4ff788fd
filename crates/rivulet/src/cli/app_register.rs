//! `rivulet app register`: applications from files, with the tables that stand beside them.

use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use rivulet_sql::{CreateTable, Position, Statement};

use crate::api::types::{Application, Table};
use crate::counted::counted;
use crate::http_client::{Client, ClientError, application_path, segment};
use crate::inline_rows;
use crate::run::CONNECTORS;
use crate::service::{ErrorKind, ServiceError};
use crate::trial::beside_script;

use super::error::CliError;
use super::options::Global;
use super::output::{colours, paint, print_json};
use super::sql::read_source;

/// The most bytes of a table's file: it goes to the server within a statement, which has 4 MiB at most.
const TABLE_BYTES_MAX: u64 = 3 << 20;

/// What the text of a statement begins with, in upper or lower case.
const CREATE: &str = "CREATE";

/// Arguments of `rivulet app register`.
#[derive(Debug, clap::Args)]
pub(super) struct RegisterArguments {
    /// Files with CREATE APPLICATION, and CREATE TABLE before it; `-` is standard input. The rows of a table go to the
    /// server if its file is here, beside the script or below the working folder
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Let them take over the queries of the applications that have their names, with their state; tables get new rows
    #[arg(long)]
    replace: bool,
    /// Replace also what cannot go on with all of the state: the rest of it is forgotten
    #[arg(long, requires = "replace")]
    discard_state: bool,
    /// The files are code in another language than SQL, which the server knows
    #[arg(long, value_name = "KIND")]
    language: Option<String>,
}

/// What is sent to the server.
enum Sent {
    /// With its file, if that is not here.
    Table(String, Option<PathBuf>),
    /// With its name, if that is known.
    Application(Option<String>, String),
}

pub(super) fn run(global: Global, client: &Client, arguments: &RegisterArguments) -> Result<(), CliError> {
    let &RegisterArguments { ref files, replace, discard_state, ref language } = arguments;
    let mut path = format!("/api/v1/applications?replace={replace}&discard_state={discard_state}");
    if let Some(language) = language {
        path = format!("{path}&language={}", segment(language));
    }
    for file in files {
        if language.is_some() {
            let failed = |error: CliError| in_file(error, file, files.len());
            let code = std::fs::read(file).map_err(|error| unread(file, &error)).map_err(failed)?;
            let application: Application =
                client.post_bytes(&path, &code).map_err(|error| failed(refused(error, file)))?;
            print_application(global, &application, false)?;
            continue;
        }
        let sql = read_source(file)?;
        let failed = |error: CliError| in_file(error, file, files.len());
        let folder = file.parent().unwrap_or(Path::new(""));
        for sent in statements(&sql, folder, replace).map_err(failed)? {
            let failed = |error: ClientError, text: &str| failed(refused(error, file).in_source(text));
            match sent {
                Sent::Table(text, missing) => {
                    let table = client.post_text("/api/v1/tables", &text).map_err(|error| {
                        let error = failed(error, &sql);
                        match &missing {
                            Some(path) => error.with_note(format!("there is no file {} here", path.display())),
                            None => error,
                        }
                    })?;
                    print_table(global, &table)?;
                }
                Sent::Application(name, text) => {
                    let known = name.and_then(|name| client.get::<Application>(&application_path(&name), &[]).ok());
                    let application: Application =
                        client.post_text(&path, &text).map_err(|error| failed(error, &text))?;
                    let is_same = known.is_some_and(|known| known.id == application.id);
                    print_application(global, &application, is_same)?;
                }
            }
        }
    }
    Ok(())
}

/// The statements of a script, as they are sent; tables so that they replace others, if that is wanted. A script that
/// is not understood here goes to the server as it is: that may be of another version, and says what is wrong.
fn statements(sql: &str, folder: &Path, replaces: bool) -> Result<Vec<Sent>, CliError> {
    let whole = || vec![Sent::Application(None, sql.to_owned())];
    let Ok(statements) = rivulet_sql::statements(sql).collect::<Result<Vec<_>, _>>() else { return Ok(whole()) };
    let mut sent = Vec::with_capacity(statements.len());
    for (statement, position) in statements {
        match statement {
            Statement::CreateTable(create) => {
                let (text, missing) = with_rows(&create, position, folder)?;
                let text = match replaces && !create.replaces && !create.if_not_exists {
                    true => text.replacen(&text[..CREATE.len()], "CREATE OR REPLACE", 1),
                    false => text,
                };
                sent.push(Sent::Table(at(position, &text), missing));
            }
            Statement::CreateApplication(create) => {
                sent.push(Sent::Application(Some(create.name.text.clone()), at(position, &create.text)));
            }
            _ => {
                let hint =
                    "this registers applications and their tables; rivulet sql runs scripts with other statements";
                let error = ServiceError::invalid("this statement registers nothing");
                return Err(CliError::from(error.at(position.line, position.column).with_hint(hint)).in_source(sql));
            }
        }
    }
    Ok(if sent.is_empty() { whole() } else { sent })
}

/// A statement at its place in the script, so that errors name that.
fn at(position: Position, text: &str) -> String {
    let (lines, columns) = (position.line.saturating_sub(1), position.column.saturating_sub(1));
    format!("{}{}{text}", "\n".repeat(lines as usize), " ".repeat(columns as usize))
}

/// The statement of a table with the rows of its file in it, if the file is here. Otherwise it is one of the server,
/// and where it would be here is told.
fn with_rows(create: &CreateTable, position: Position, folder: &Path) -> Result<(String, Option<PathBuf>), CliError> {
    // A script of somebody else must not send any file of this machine: other paths are those of the server.
    let path = CONNECTORS.path_of(&create.address).filter(|path| is_below(Path::new(path)));
    let path = path.map(|path| beside_script(folder, path));
    let Some(path) = path else { return Ok((create.text.clone(), None)) };
    if !path.is_file() {
        return Ok((create.text.clone(), Some(path)));
    }
    let bytes = std::fs::metadata(&path).map_err(|error| unread(&path, &error))?.len();
    if bytes > TABLE_BYTES_MAX {
        let shown = path.display();
        let message = format!("{shown} has {bytes} bytes, and a table that is sent has {TABLE_BYTES_MAX} at most");
        return Err(CliError::new(message)
            .with_hint("put it below a folder of the server's files.allow, and create the table with rivulet sql"));
    }
    let rows = std::fs::read_to_string(&path).map_err(|error| unread(&path, &error))?;
    let literal = |address: &str| format!("'{}'", address.replace('\'', "''"));
    let (old, new) = (literal(&create.address), literal(&inline_rows::address_of(&rows)));
    // Where it was read: the same text may stand in a comment before it.
    let begin = offset_of(create.address_position, position, &create.text);
    let text = match begin.and_then(|begin| create.text.split_at_checked(begin)) {
        Some((before, behind)) if behind.starts_with(&old) => format!("{before}{new}{}", &behind[old.len()..]),
        _ => create.text.replacen(&old, &new, 1),
    };
    Ok((text, None))
}

fn unread(path: &Path, error: &io::Error) -> CliError {
    CliError::new(format!("cannot read {}: {error}", path.display()))
}

/// The byte of a text that begins at one place of a script at which another place is.
fn offset_of(place: Position, begin: Position, text: &str) -> Option<usize> {
    let lines = place.line.checked_sub(begin.line)?;
    let first = if lines == 0 { begin.column } else { 1 };
    let column = place.column.checked_sub(first)?;
    let line_begin: usize = text.split_inclusive('\n').take(lines as usize).map(str::len).sum();
    let line = text.get(line_begin..)?;
    Some(line_begin + line.char_indices().nth(column as usize)?.0)
}

/// Whether a path leads to nothing but what is below the folder that it begins in, links aside.
fn is_below(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

fn print_table(global: Global, table: &Table) -> Result<(), CliError> {
    if global.json {
        return print_json(&mut io::stdout(), table);
    }
    eprintln!("table {} has {}", table.name, counted(table.rows, "row"));
    Ok(())
}

/// The refusal of a file that was sent. What exists with another text is replaced from here too.
fn refused(error: ClientError, file: &Path) -> CliError {
    let exists = matches!(&error, ClientError::Refused(detail) if detail.kind == ErrorKind::AlreadyExists.name());
    let error = CliError::from(error);
    let shown = file.display();
    match exists {
        true => error.with_hint(format!(
            "rivulet app register --replace {shown} puts it in the place of that one, whose queries go on; or take \
             another name"
        )),
        false => error,
    }
}

/// `is_same` says whether it was registered with this text before.
fn print_application(global: Global, application: &Application, is_same: bool) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    if global.json {
        return print_json(&mut out, application);
    }
    match &application.replacement {
        Some(replacement) => eprintln!("{}", replacement.text(&application.name)),
        None if is_same => {
            eprintln!("application {} is registered already with this text, nothing was done", application.name);
        }
        None => eprintln!("application {} is registered", application.name),
    }
    for warning in &application.warnings {
        eprintln!("{} {warning}", paint("1;33", "warning:", colours(&io::stderr())));
    }
    Ok(writeln!(out, "{}  {}", application.name, application.id)?)
}

/// The error with the file that it is in, where there are several.
fn in_file(error: CliError, file: &Path, files: usize) -> CliError {
    match files {
        1 => error,
        _ => error
            .with_note(format!("in {}; the files before it are registered, those after it are not", file.display())),
    }
}
