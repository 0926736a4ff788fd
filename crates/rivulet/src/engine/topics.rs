//! Where the events of an application's queries come from and their rows go to: templates, bound for each query.

use std::borrow::Cow;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use rivulet_connectors::mqtt::{Direction, Template};
use rivulet_sql::{Address, Application, Part};

use crate::service::{ErrorKind, ServiceError};

/// The topic templates of an application.
#[derive(Clone, Debug)]
pub(super) struct Topics {
    pub(super) input: Template,
    /// The one subscription that serves all queries; `None` where each query names its own input.
    pub(super) input_filter: Option<String>,
    pub(super) output: Template,
    pub(super) late: Option<Template>,
    pub(super) dead_letter: Option<Template>,
}

impl Topics {
    /// Reads the addresses of an application.
    pub(super) fn new(application: &Application) -> Result<Self, ServiceError> {
        let names: Vec<&str> = application.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        let output = |address: &Address| template(address, &names, Direction::Output);
        let input = template(&application.input.address, &names, Direction::Input)?;
        Ok(Self {
            input_filter: input.filter(),
            input,
            output: output(&application.output.address)?,
            late: application.input.late.as_ref().map(output).transpose()?,
            dead_letter: application.input.dead_letter.as_ref().map(output).transpose()?,
        })
    }

    fn outputs(&self) -> impl Iterator<Item = &Template> {
        [Some(&self.output), self.late.as_ref(), self.dead_letter.as_ref()].into_iter().flatten()
    }

    /// Binds the topics of many queries: for each row of parameters its input topic, or why one of its topics is none.
    pub(super) fn bind<'r>(&'r self, rows: &'r RecordBatch) -> impl Fn(usize) -> Result<String, ServiceError> + 'r {
        let mut columns = vec![None; rows.num_columns()];
        for parameter in self.outputs().chain([&self.input]).flat_map(Template::parameters) {
            columns[parameter].get_or_insert_with(|| as_text(rows.column(parameter)));
        }
        move |row| {
            let value = |parameter: usize| columns[parameter].as_deref().map_or("", |column| column.value(row));
            let bind = |template: &Template| {
                let topic = template.bind(value);
                topic.map_err(|error| ServiceError::from_text(ErrorKind::Invalid, &error.to_string()))
            };
            self.outputs().try_for_each(|template| bind(template).map(drop))?;
            bind(&self.input)
        }
    }
}

fn template(address: &Address, names: &[&str], direction: Direction) -> Result<Template, ServiceError> {
    let at = |error: ServiceError| error.at(address.position.line, address.position.column);
    if address.connector != "mqtt" {
        return Err(at(ServiceError::invalid(format!("unknown connector '{}'", address.connector))
            .with_hint("there is one connector: 'mqtt:topic/{parameter}'")));
    }
    let text: String = address
        .parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Parameter(index) => format!("{{{}}}", names[*index]),
        })
        .collect();
    Template::parse(&text, names, direction)
        .map_err(|error| at(ServiceError::from_text(ErrorKind::Invalid, &error.to_string())))
}

/// A parameter's values as [`SlotTable::write_text`](rivulet_dataflow::SlotTable::write_text) writes them: nothing for
/// null.
fn as_text(column: &ArrayRef) -> Cow<'_, StringArray> {
    fn texts<T: ToString>(values: impl Iterator<Item = Option<T>>) -> Cow<'static, StringArray> {
        Cow::Owned(values.map(|value| value.map(|value| value.to_string())).collect())
    }
    match column.data_type() {
        DataType::Utf8 => Cow::Borrowed(column.as_string::<i32>()),
        DataType::Int64 => texts(column.as_primitive::<Int64Type>().iter()),
        DataType::Float64 => texts(column.as_primitive::<Float64Type>().iter()),
        DataType::Boolean => texts(column.as_boolean().iter()),
        _ => texts((0..column.len()).map(|row| arrow::util::display::array_value_to_string(column, row).ok())),
    }
}
