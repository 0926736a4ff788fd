//! Models that a query calls, and files that a SELECT reads by their paths: each of these becomes a source that is
//! declared for that SELECT alone, with the columns that its file shows.

use std::fmt::{Display, Write};
use std::sync::Arc;

use rivulet_connectors::connector::{ConnectorContext, ConnectorError, InferredFile, infer_file};
use rivulet_connectors::files::Files;
use rivulet_sql::{
    BigQuery, MODEL_BYTES_MAX, Model, Position, Scope, Statement, declared_type_name, name_in_sql, parse_script,
};

use super::open::check_source;
use crate::service::{ErrorKind, ServiceError};

/// The `CREATE SOURCE` statement for the file, or files, of a path, with the columns that they show.
///
/// # Errors
/// The file cannot be read, or does not show its columns.
pub(crate) fn create_source(path: &str, position: Position, files: &Files) -> Result<String, ServiceError> {
    if path.starts_with("mqtt:") {
        return Err(ServiceError::invalid(format!("'{path}' is a topic, and a text in single quotes is a file"))
            .at(position.line, position.column)
            .with_hint(format!("on a server a topic is read in double quotes: FROM \"{path}\"")));
    }
    let failed = |error: ConnectorError| {
        ServiceError::from_text(ErrorKind::Invalid, &error.to_string()).at(position.line, position.column)
    };
    Ok(statement(path, &infer_file(path, files).map_err(failed)?))
}

fn statement(path: &str, file: &InferredFile) -> String {
    let columns = file.columns.iter().map(|(name, data_type)| {
        let (name, data_type) = (name_in_sql(name), declared_type_name(data_type));
        format!("  {name} {data_type}")
    });
    let columns: Vec<String> = columns.collect();
    let mut text = String::new();
    for (name, why) in &file.left_out {
        let name: String = name.chars().filter(|character| !character.is_control()).take(100).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "-- left out: {name}: {why}");
    }
    for name in &file.perhaps_times {
        let name = name_in_sql(name);
        let _ = writeln!(text, "-- if {name} is a time in milliseconds since 1970, declare it as {name} TIMESTAMP");
    }
    let _ = write!(
        text,
        "CREATE SOURCE {} (\n{}\n) FROM 'file:{}' FORMAT {};",
        name_in_sql(&name_of(path)),
        columns.join(",\n"),
        path.replace('\'', "''"),
        file.format
    );
    text
}

/// A name for the source of a file: the name of the file, as far as it is valid.
fn name_of(path: &str) -> String {
    let file = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem).to_lowercase();
    let plain = |character: char| if character.is_ascii_alphanumeric() { character } else { '_' };
    let name: String = stem.chars().map(plain).take(60).collect();
    let name = name.trim_matches('_');
    match name.chars().next() {
        Some(first) if first.is_ascii_alphabetic() => name.to_owned(),
        Some(_) => format!("file_{name}"),
        None => "files".to_owned(),
    }
}

/// The most models that a query may call.
const MODELS_MAX: usize = 32;

/// Reads the models that a query calls. Each is there by the name of its file.
///
/// # Errors
/// A file cannot be read, or is no model.
pub(crate) fn read_models(query: &BigQuery, files: &Files) -> Result<Vec<(String, Arc<Model>)>, ServiceError> {
    let models = query.models();
    if models.len() > MODELS_MAX {
        return Err(ServiceError::invalid(format!(
            "the query calls {} models, and {MODELS_MAX} is the most",
            models.len()
        )));
    }
    let read = models.into_iter().map(|(path, position)| {
        let failed = |error: &dyn Display| {
            let text = format!("the model '{path}' cannot be used: {error}");
            ServiceError::from_text(ErrorKind::Invalid, &text).at(position.line, position.column)
        };
        let bytes = files.read(&path, MODEL_BYTES_MAX).map_err(|error| failed(&error))?;
        let model = Model::parse(&bytes).map_err(|error| failed(&error))?;
        Ok((path, Arc::new(model)))
    });
    read.collect()
}

/// The names that a SELECT may use: those in scope, the models that it calls, and the files that it reads by their
/// paths.
///
/// # Errors
/// As with [`create_source`].
pub(crate) fn with_files(query: &BigQuery, scope: &Scope, host: &ConnectorContext) -> Result<Scope, ServiceError> {
    let mut scope = scope.clone();
    scope.add_models(read_models(query, &host.files)?);
    for (path, position) in query.files() {
        // A declared name comes first.
        if scope.has_relation(&path) {
            continue;
        }
        let text = create_source(&path, position, &host.files)?;
        let placed = |error: ServiceError| error.at(position.line, position.column);
        let statement = parse_script(&text).map_err(|error| placed(error.into()))?.into_iter().next();
        let Some((Statement::CreateSource(mut create), _)) = statement else { continue };
        create.name.text = path;
        let source = create.declare(|_, _| None).map_err(|error| placed(error.into()))?;
        check_source(&source, host).map_err(placed)?;
        scope.add_source(source).map_err(|error| placed(error.into()))?;
    }
    Ok(scope)
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::DataType;

    use super::*;

    #[test]
    fn a_source_is_named_by_its_file() {
        for (path, name) in [
            ("data/readings.csv", "readings"),
            ("Bids-2026.jsonl", "bids_2026"),
            ("data/bids-*.json", "bids"),
            ("2026.csv", "file_2026"),
            ("data/", "data"),
            ("*", "files"),
        ] {
            assert_eq!(name_of(path), name, "{path}");
        }
    }

    #[test]
    fn what_is_told_can_be_declared() {
        let file = InferredFile {
            format: "CSV (header => true)".into(),
            columns: vec![("select".into(), DataType::Int64), ("radio.rssi".into(), DataType::Decimal128(10, 2))],
            left_out: vec![("tags\n".into(), "it is an array")],
            perhaps_times: vec!["select".into()],
        };
        let text = statement("it's/a.csv", &file);
        let expected = "-- left out: tags: it is an array\n-- if \"select\" is a time in milliseconds since 1970, \
                        declare it as \"select\" TIMESTAMP\nCREATE SOURCE a (\n  \"select\" BIGINT,\n  \"radio.rssi\" \
                        DECIMAL(10, 2)\n) FROM 'file:it''s/a.csv' FORMAT CSV (header => true);";
        assert_eq!(text, expected);
        let Some((Statement::CreateSource(create), _)) = parse_script(&text).unwrap().pop() else { panic!("{text}") };
        assert_eq!(create.declare(|_, _| None).unwrap().columns().len(), 2);
    }
}
