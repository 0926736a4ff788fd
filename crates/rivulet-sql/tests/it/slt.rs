//! Golden files: SELECTs over written-down events, and statements with the errors they must give.
//!
//! A file `slt/*.slt` is a sequence of blocks, separated by empty lines; `#` begins a comment line.
//!
//! - `parameters (name TYPE [DEFAULT x], ...)` declares the parameters for what follows;
//! - `input (column TYPE, ...) [WITH (...)]` declares the input `t`, and no other; `input name (...) [WITH (...)]` one
//!   more;
//! - `outputs` declares the outputs, as they stand behind OUTPUT, for the blocks that follow (without it there is one);
//! - `table name (column TYPE, ...)`, then a line of values for each row (`NULL`, text bare), declares a reference
//!   table;
//! - `slots`, then a line of `name => value, ...` for each query (`-` for one without values);
//! - `rows`, then lines `slot, arrival, value, ...` (times in seconds since 1970, `NULL`, text bare, whose commas stand
//!   inside of brackets), `tick time`, `end`; rows of one of several inputs begin with `name:`;
//! - `query`, a SELECT, `----`, and the rows it must give: `slot | value | ...` ordered by slot and then by emission,
//!   and a line `refused reason rows` for each reason;
//! - `statement error`, a script, `----`, and the error with its hint;
//! - `select error`, a SELECT over the declared input (its line 1 is line 1 of the error), `----`, and the error.
//!
//! Every query runs in several ways that must give the same: all rows in one batch, row by row, row by row with a tick
//! before each row, and each query alone in a group of its own.
//!
//! `RIVULET_COMPLETE=1` writes the answers found into the files: for new blocks, to be checked by hand.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanBuilder, Float64Builder, Int64Builder, RecordBatch, RecordBatchOptions,
    StringBuilder, TimestampMicrosecondBuilder, UInt8Builder,
};
use arrow::datatypes::{DataType, Float64Type, Int64Type, SchemaRef, TimestampMicrosecondType, UInt32Type};
use rivulet_dataflow::{
    Batch, Chain, Control, Element, Reason, Refusals, Slot, SlotTable, Surroundings, canonical_float,
};
use rivulet_operators::Table;
use rivulet_sql::{
    Application, ParamValue, ParameterRows, Statement, Tables, parse_application, parse_script, plan_application,
    plan_application_with,
};

#[test]
fn golden_files() {
    let folder = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this")).join("tests/it/slt");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "slt"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let complete = std::env::var_os("RIVULET_COMPLETE").is_some();
    let mut failures = String::new();
    let mut blocks = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let (completed, checked) = run_file(&text, &file, &mut failures);
        blocks += checked;
        if complete && completed != text {
            std::fs::write(&file, completed).unwrap();
        }
    }
    assert!(blocks > 100, "only {blocks} blocks were checked");
    assert!(complete || failures.is_empty(), "{failures}");
}

/// What is found where an error was expected and there is none.
const NO_ERROR: &str = "no error";

/// What the blocks of a file have declared so far.
#[derive(Default)]
struct World {
    parameters: String,
    /// Name, columns and options of each input.
    inputs: Vec<[String; 3]>,
    /// The outputs, where they are declared.
    outputs: String,
    tables: Tables,
    slots: Vec<String>,
    steps: Vec<Step>,
}

enum Step {
    Row { input: Option<String>, slot: Slot, arrival_us: i64, values: Vec<String> },
    Tick(i64),
    End,
}

impl Step {
    fn time_us(&self) -> Option<i64> {
        match self {
            Self::Row { arrival_us, .. } => Some(*arrival_us),
            Self::Tick(now_us) => Some(*now_us),
            Self::End => None,
        }
    }
}

/// Runs a file; gives its text with the answers found, and how many blocks had answers.
fn run_file(text: &str, file: &Path, failures: &mut String) -> (String, usize) {
    let mut world = World::default();
    let mut completed = String::new();
    let mut checked = 0;
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        completed.push_str(line);
        completed.push('\n');
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let place = format!("{}:{}", file.file_name().unwrap().to_string_lossy(), number + 1);
        let mut body: Vec<&str> = Vec::new();
        while let Some((_, line)) = lines.next_if(|(_, line)| !line.trim().is_empty()) {
            body.push(line);
        }
        let (question, answer) = match body.iter().position(|line| *line == "----") {
            Some(at) => (body[..at].to_vec(), Some(body[at + 1..].join("\n"))),
            None => (body.clone(), None),
        };
        let question_text = question.join("\n");
        let found = match line {
            "query" => Some(world.query(&question_text)),
            "statement error" => Some(error_of(&question_text)),
            "select error" => Some(world.select_error(&question_text)),
            _ => {
                world.declare(line, &body, &place);
                body.iter().for_each(|line| {
                    completed.push_str(line);
                    completed.push('\n');
                });
                continue;
            }
        };
        let found = found.unwrap();
        checked += 1;
        // A block that asks for an error is not content with none, whatever its answer says.
        let without_error = line.ends_with("error") && found == NO_ERROR;
        if answer.as_deref() != Some(found.as_str()) || without_error {
            let expected = answer.unwrap_or_else(|| "(no answer)".to_owned());
            writeln!(failures, "{place}\n{question_text}\nexpected:\n{expected}\nfound:\n{found}\n").unwrap();
        }
        completed.push_str(&question_text);
        completed.push_str("\n----\n");
        if !found.is_empty() {
            completed.push_str(&found);
            completed.push('\n');
        }
    }
    (completed, checked)
}

fn error_of(script: &str) -> String {
    let planned = parse_script(script).and_then(|statements| {
        statements.iter().try_for_each(|(statement, _)| match statement {
            Statement::CreateApplication(create) => plan_application(create).map(|_| ()),
            _ => Ok(()),
        })
    });
    match planned {
        Ok(()) => NO_ERROR.to_owned(),
        Err(error) => error.to_string(),
    }
}

impl World {
    fn declare(&mut self, line: &str, body: &[&str], place: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "parameters" => self.parameters = format!("{rest} {}", body.join(" ")),
            "input" => {
                let (name, rest) = rest.split_once('(').unwrap_or((rest, ""));
                let text = format!("({rest} {}", body.join(" "));
                let (columns, options) = match text.split_once("WITH") {
                    Some((columns, options)) => (columns.to_owned(), format!("WITH {options}")),
                    None => (text, String::new()),
                };
                if name.trim().is_empty() {
                    self.inputs.clear();
                }
                let name = if name.trim().is_empty() { "t" } else { name.trim() };
                self.inputs.push([name.to_owned(), columns, options]);
            }
            "outputs" => self.outputs = format!("{rest} {}", body.join(" ")),
            "table" => {
                let table = table(rest, body, place);
                self.tables.insert(table.name().to_owned(), Ok(Arc::new(table)));
            }
            "slots" => self.slots = body.iter().map(|line| (*line).to_owned()).collect(),
            "rows" => {
                self.steps = body.iter().map(|line| step(line, place)).collect();
                let times: Vec<i64> = self.steps.iter().filter_map(Step::time_us).collect();
                assert!(times.is_sorted(), "{place}: rows arrive in order of time, and so do ticks");
            }
            other => panic!("{place}: unknown block '{other}'"),
        }
    }

    fn application(&self, select: &str) -> String {
        let input = |[name, columns, options]: &[String; 3]| {
            format!("INPUT {name} {columns} FROM 'mqtt:in' FORMAT JSON {options}")
        };
        let inputs: Vec<String> = self.inputs.iter().map(input).collect();
        let outputs = if self.outputs.is_empty() { "'mqtt:out' FORMAT JSON" } else { self.outputs.trim() };
        // On one line, so that lines of errors are those of the SELECT from the second on.
        format!("CREATE APPLICATION a {} {} OUTPUT {outputs} AS\n{select}", self.parameters.trim(), inputs.join(" "))
    }

    fn select_error(&self, select: &str) -> String {
        match parse_application(&self.application(select))
            .and_then(|create| plan_application_with(&create, &self.tables))
        {
            Ok(_) => NO_ERROR.to_owned(),
            Err(mut error) => {
                error.line = error.line.saturating_sub(1);
                error.to_string()
            }
        }
    }

    fn query(&self, select: &str) -> String {
        let planned = parse_application(&self.application(select))
            .and_then(|create| plan_application_with(&create, &self.tables));
        let application = match planned {
            Ok(application) => application,
            Err(error) => return error.to_string(),
        };
        let parameters = match self.bind(&application) {
            Ok(parameters) => parameters,
            Err(error) => return error,
        };
        let all: Vec<Slot> = (0..self.slots.len() as Slot).collect();
        let together = self.run(&application, &parameters, &all, Cut::Whole);
        let mut ways = vec![("row by row", self.run(&application, &parameters, &all, Cut::Rows))];
        ways.push(("with ticks", self.run(&application, &parameters, &all, Cut::RowsAndTicks)));
        ways.push(("by itself", {
            let mut alone = Outcome::default();
            for slot in &all {
                alone.append(self.run(&application, &parameters, &[*slot], Cut::Whole));
            }
            alone
        }));
        let mut text = together.text();
        for (way, outcome) in ways.into_iter().filter(|(_, outcome)| outcome.text() != together.text()) {
            // No answer of a file has this, so the block fails.
            write!(text, "\nbut {way}:\n{}", outcome.text()).unwrap();
        }
        text
    }

    fn bind(&self, application: &Application) -> Result<RecordBatch, String> {
        let mut rows = ParameterRows::new(application);
        for values in &self.slots {
            let values = if values == "-" { "" } else { values };
            let script = format!("CREATE QUERY q FROM APPLICATION a WITH ({values})");
            let statements = parse_script(&script).map_err(|error| error.to_string())?;
            let Statement::CreateQuery { values, .. } = &statements[0].0 else { unreachable!("a query was written") };
            rows.push(values.iter().map(|(name, literal, _)| (name.text.as_str(), ParamValue::from(literal))))
                .map_err(|error| error.to_string())?;
        }
        let batch = rows.finish();
        match application.check(&batch).into_iter().find_map(Result::err) {
            Some(error) => Err(error.to_string()),
            None => Ok(batch),
        }
    }

    /// Runs the rows of `slots`, which get the numbers from 0 on in a group of their own.
    fn run(&self, application: &Application, parameters: &RecordBatch, slots: &[Slot], cut: Cut) -> Outcome {
        let mut table = SlotTable::new(application.parameter_schema.clone());
        let indices = arrow::array::UInt32Array::from(slots.to_vec());
        let chosen = match parameters.num_columns() {
            0 => parameters.slice(0, slots.len()),
            _ => arrow::compute::take_record_batch(parameters, &indices).unwrap(),
        };
        let queries: Vec<u64> = slots.iter().map(|&slot| u64::from(slot)).collect();
        let numbers = table.add(&queries, &chosen);
        let mut host = Host {
            chain: application.dataflow.chain(),
            refusals: Refusals::new(0),
            outcome: Outcome { rows: Vec::new(), refused: [0; Reason::ALL.len()] },
            table,
            schema: application.outputs[0].schema.clone(),
        };
        host.process(Element::Control(Control::AddSlots(numbers)), 0);
        let mut pending: Vec<(Slot, i64, Vec<String>)> = Vec::new();
        let schema = &application.row_schema;
        let flush = |pending: &mut Vec<(Slot, i64, Vec<String>)>, host: &mut Host| {
            let Some(&(_, now_us, _)) = pending.last() else { return };
            host.process(Element::Batch(batch(schema, pending)), now_us);
            pending.clear();
        };
        for step in &self.steps {
            match step {
                Step::Row { input, slot, arrival_us, values } => {
                    let Some(number) = slots.iter().position(|one| one == slot) else { continue };
                    if cut != Cut::Whole {
                        flush(&mut pending, &mut host);
                    }
                    if cut == Cut::RowsAndTicks {
                        host.tick(*arrival_us);
                    }
                    pending.push((number as Slot, *arrival_us, side_by_side(application, input.as_deref(), values)));
                }
                Step::Tick(now_us) => {
                    flush(&mut pending, &mut host);
                    host.tick(*now_us);
                }
                Step::End => {
                    flush(&mut pending, &mut host);
                    host.process(Element::End, 0);
                }
            }
        }
        flush(&mut pending, &mut host);
        // Silence is seen only by a tick or a row of the same query, so there is one tick at the end in any case.
        if let Some(now_us) = self.steps.iter().filter_map(Step::time_us).next_back() {
            host.tick(now_us);
        }
        // Back to the slots of the file.
        host.outcome.rows.iter_mut().for_each(|(slot, _)| *slot = slots[*slot as usize]);
        host.outcome
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Cut {
    Whole,
    Rows,
    RowsAndTicks,
}

/// What came out: rows in order of emission, and refused rows by reason.
#[derive(Default)]
struct Outcome {
    rows: Vec<(Slot, String)>,
    refused: [u64; Reason::ALL.len()],
}

impl Outcome {
    fn append(&mut self, other: Outcome) {
        self.rows.extend(other.rows);
        self.refused.iter_mut().zip(other.refused).for_each(|(sum, more)| *sum += more);
    }

    fn text(&self) -> String {
        let mut rows: Vec<&(Slot, String)> = self.rows.iter().collect();
        rows.sort_by_key(|(slot, _)| *slot);
        let mut lines: Vec<String> = rows.into_iter().map(|(slot, row)| format!("{slot} | {row}")).collect();
        for (reason, rows) in Reason::ALL.into_iter().zip(self.refused).filter(|(_, rows)| *rows > 0) {
            lines.push(format!("refused {} {rows}", reason.name()));
        }
        lines.join("\n")
    }
}

struct Host {
    chain: Chain,
    table: SlotTable,
    refusals: Refusals,
    outcome: Outcome,
    schema: SchemaRef,
}

impl Host {
    fn process(&mut self, element: Element, now_us: i64) {
        let (outcome, schema) = (&mut self.outcome, &self.schema);
        self.chain
            .process(element, Surroundings { now_us, slots: &self.table, refusals: &mut self.refusals }, &mut |batch| {
                collect(&batch, schema, outcome)
            })
            .unwrap();
        self.count();
    }

    fn tick(&mut self, now_us: i64) {
        let (outcome, schema) = (&mut self.outcome, &self.schema);
        self.chain
            .tick(Surroundings { now_us, slots: &self.table, refusals: &mut self.refusals }, &mut |batch| {
                collect(&batch, schema, outcome)
            })
            .unwrap();
        self.count();
    }

    fn count(&mut self) {
        for (count, reason) in self.outcome.refused.iter_mut().zip(Reason::ALL) {
            *count += self.refusals.counted(reason);
        }
        self.refusals.clear();
    }
}

fn collect(batch: &Batch, schema: &SchemaRef, outcome: &mut Outcome) {
    let fields = schema.fields().len();
    assert_eq!(
        batch.columns.schema_ref().fields()[..fields],
        schema.fields()[..],
        "what comes out has the declared schema"
    );
    for row in 0..batch.rows() {
        let values: Vec<String> = batch.columns.columns().iter().map(|column| show(column, row)).collect();
        outcome.rows.push((batch.slots[row], values.join(" | ")));
    }
}

fn show(column: &ArrayRef, row: usize) -> String {
    if column.is_null(row) {
        return "NULL".to_owned();
    }
    match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().value(row).to_owned(),
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
        DataType::Float64 => {
            let value = column.as_primitive::<Float64Type>().value(row);
            // Twelve digits: what is left of sums in another order does not show.
            let rounded: f64 = format!("{value:.11e}").parse().unwrap();
            format!("{rounded:?}")
        }
        DataType::UInt32 => format!("to {:b}", column.as_primitive::<UInt32Type>().value(row)),
        DataType::Boolean => column.as_boolean().value(row).to_string(),
        DataType::Timestamp(..) => {
            format!("{}s", column.as_primitive::<TimestampMicrosecondType>().value(row) as f64 / 1e6)
        }
        other => panic!("no column of an output has type {other}"),
    }
}

/// A table: its name and columns, and a line of values for each row.
fn table(declaration: &str, body: &[&str], place: &str) -> Table {
    let script = format!("CREATE TABLE {declaration} FROM 'file:t.csv' FORMAT CSV");
    let Some((Statement::CreateTable(create), _)) = parse_script(&script).expect(place).pop() else {
        unreachable!("a table was written")
    };
    let rows: Vec<Vec<&str>> = body.iter().map(|line| line.split(',').map(str::trim).collect()).collect();
    let columns = create.schema.fields().iter().enumerate().map(|(index, field)| {
        column(field.data_type(), rows.iter().map(|row| Some(row[index]).filter(|text| *text != "NULL")))
    });
    let columns = columns.collect();
    Table::new(create.name.text, RecordBatch::try_new(create.schema, columns).expect(place))
}

fn step(line: &str, place: &str) -> Step {
    if line == "end" {
        return Step::End;
    }
    if let Some(time) = line.strip_prefix("tick ") {
        return Step::Tick(seconds(time, place));
    }
    let (input, line) = match line.split_once(':') {
        Some((input, line)) if !input.contains(',') => (Some(input.to_owned()), line),
        _ => (None, line),
    };
    // A comma inside of an array or object separates no values.
    let mut depth = 0;
    let is_between = |character: char| {
        depth += i32::from(matches!(character, '[' | '{')) - i32::from(matches!(character, ']' | '}'));
        character == ',' && depth == 0
    };
    let mut values = line.split(is_between).map(|value| value.trim().to_owned());
    let slot = values.next().unwrap().parse().unwrap_or_else(|_| panic!("{place}: no slot in '{line}'"));
    let arrival_us = seconds(&values.next().unwrap_or_default(), place);
    Step::Row { input, slot, arrival_us, values: values.collect() }
}

/// The values of a row among the columns of all inputs; those of the one input as they are.
fn side_by_side(application: &Application, input: Option<&str>, values: &[String]) -> Vec<String> {
    let [_, _, ..] = application.inputs.as_slice() else { return values.to_vec() };
    let inputs = || application.inputs.iter();
    let number =
        inputs().position(|one| Some(one.name.as_str()) == input).expect("rows of several inputs say of which");
    let before: usize = inputs().take(number).map(|input| input.schema.fields().len()).sum();
    let mut row = vec!["NULL".to_owned(); application.row_schema.fields().len()];
    row[0] = number.to_string();
    row[1 + before..1 + before + values.len()].clone_from_slice(values);
    row
}

fn seconds(text: &str, place: &str) -> i64 {
    let seconds: f64 = text.trim().parse().unwrap_or_else(|_| panic!("{place}: '{text}' is no time"));
    (seconds * 1e6).round() as i64
}

fn batch(schema: &SchemaRef, rows: &[(Slot, i64, Vec<String>)]) -> Batch {
    let columns: Vec<ArrayRef> = schema
        .fields()
        .iter()
        .enumerate()
        .map(|(index, field)| {
            let values = rows.iter().map(|(_, _, values)| {
                let value = values.get(index).unwrap_or_else(|| panic!("no value for {} in {values:?}", field.name()));
                (value != "NULL").then_some(value.as_str())
            });
            column(field.data_type(), values)
        })
        .collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    Batch::new(
        rows.iter().map(|row| row.0).collect(),
        rows.iter().map(|row| row.1).collect(),
        rows.iter().map(|row| row.1).collect(),
        RecordBatch::try_new_with_options(schema.clone(), columns, &options).unwrap(),
    )
}

fn column<'a>(data_type: &DataType, values: impl Iterator<Item = Option<&'a str>>) -> ArrayRef {
    macro_rules! build {
        ($builder:ident, $parse:expr) => {{
            let mut builder = $builder::new();
            values.for_each(|value| builder.append_option(value.map($parse)));
            Arc::new(builder.finish())
        }};
    }
    match data_type {
        DataType::Utf8 => build!(StringBuilder, |text| text),
        DataType::Int64 => build!(Int64Builder, |text| text.parse().expect("a whole number")),
        // As a decoder gives them.
        DataType::Float64 => build!(Float64Builder, |text| canonical_float(text.parse().expect("a number"))),
        DataType::UInt8 => build!(UInt8Builder, |text| text.parse().expect("the number of an input")),
        DataType::Boolean => build!(BooleanBuilder, |text| text.parse().expect("true or false")),
        DataType::Timestamp(..) => build!(TimestampMicrosecondBuilder, |text| seconds(text, "rows")),
        other => panic!("no column of an input has type {other}"),
    }
}
/// The error of a SELECT over one input with these columns.
pub(crate) fn select_error(input: &str, columns: &str, select: &str) -> String {
    let inputs = vec![[input.to_owned(), columns.to_owned(), String::new()]];
    World { inputs, ..World::default() }.select_error(select)
}
