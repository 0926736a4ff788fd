//! Templates of the addresses of an application's inputs and outputs, bound for each query.

use std::borrow::Cow;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Int64Type};
use rivulet_connectors::connector::{Messages, whole_address};
use rivulet_connectors::feed::{FeedLayout, KeyFrom, MESSAGE_KEY, MESSAGE_OFFSET, MESSAGE_PARTITION, MESSAGE_TIME};
use rivulet_connectors::mqtt::topic::push_level;
use rivulet_connectors::mqtt::{Direction, Template, TopicPart};
use rivulet_dataflow::{Slot, SlotTable};
use rivulet_operators::application::{Address, Application, Input, Output, Part, SourceInput, SourcePart};

use super::addresses::SinkAddress;
use crate::run::CONNECTORS;
use crate::service::{ErrorKind, FullName, ServiceError};

/// Writes the topic of a slot into `topic`, whose earlier content is replaced.
pub(super) fn write_topic(template: &Template, slots: &SlotTable, slot: Slot, topic: &mut String) {
    topic.clear();
    template.write(topic, |parameter, out| slots.write_text(parameter, slot, out));
}

/// Whether results are published by the connection that all share. A broker of the output's own is a sink.
pub(crate) fn is_topic(output: &Output) -> bool {
    output.address.connector == "mqtt" && output.options.iter().all(|option| option.name != "broker")
}

/// The topic templates of an application.
#[derive(Clone, Debug)]
pub(super) struct Topics {
    /// Of each input.
    pub(super) inputs: Vec<InputTopics>,
    /// Of each output.
    pub(super) outputs: Vec<OutputAddress>,
}

/// The address of an output's rows.
#[derive(Clone, Debug)]
pub(super) enum OutputAddress {
    /// To topics of the server's broker.
    Topic(Template),
    /// To the address of another connector.
    Sink(Box<SinkAddress>),
}

impl OutputAddress {
    /// The address of a slot, for users.
    pub(super) fn text(&self, slots: &SlotTable, slot: Slot) -> String {
        let mut text = String::new();
        match self {
            Self::Topic(template) => write_topic(template, slots, slot, &mut text),
            Self::Sink(address) => {
                address.write(slots, slot, &mut String::new(), &mut text);
                text = whole_address(&address.spec.connector, &text);
            }
        }
        text
    }
}

/// The topic templates of one input.
#[derive(Clone, Debug)]
pub(super) struct InputTopics {
    pub(super) events: Template,
    /// Whether its events go to the log.
    pub(super) is_logged: bool,
    /// The one subscription that serves all queries; `None` if each query names its own topic, and for inputs that read
    /// no topic.
    pub(super) filter: Option<String>,
    /// How a source's messages get a substitute for a topic, if the input has a source.
    pub(super) source: Option<FeedLayout>,
    pub(super) late: Option<Template>,
    pub(super) dead_letter: Option<Template>,
}

impl InputTopics {
    /// The columns of `input` that come from the topic of an event; by ascending index. These topics are those of
    /// `input`.
    pub(super) fn columns(&self, input: &Input) -> Result<Vec<(usize, TopicPart)>, ServiceError> {
        if let Some(source) = &input.source {
            let part = |part: SourcePart| match part {
                SourcePart::Key => MESSAGE_KEY,
                SourcePart::Partition => MESSAGE_PARTITION,
                SourcePart::Offset => MESSAGE_OFFSET,
                SourcePart::Time => MESSAGE_TIME,
            };
            let mut columns: Vec<_> = source.columns.iter().map(|one| (one.column, part(one.part))).collect();
            columns.sort_unstable_by_key(|(column, _)| *column);
            return Ok(columns);
        }
        let levels = &input.topic.levels;
        let error = |message: String, hint: &str| {
            Err(ServiceError::invalid(message).with_hint(hint.to_owned()).at_place(input.topic.levels_position))
        };
        let parts = TopicPart::of_wildcards(&self.events.to_string());
        if self.events.is_whole_topic() && !levels.is_empty() {
            let message = "level_columns names what wildcards stand for, and here each query gives its own address";
            return error(message.into(), "use topic_column, and split_part(topic, '/', 2) for the second level");
        }
        if levels.len() > parts.len() {
            let (columns, wildcards) = (levels.len(), parts.len());
            let message =
                format!("level_columns names {columns} columns, and '{}' has {wildcards} wildcards", self.events);
            return error(message, "name a column for each '+' and '#', in their order");
        }
        let whole = input.topic.whole.map(|column| (column, TopicPart::Whole));
        let mut columns: Vec<_> = whole.into_iter().chain(levels.iter().copied().zip(parts)).collect();
        columns.sort_unstable_by_key(|(column, _)| *column);
        Ok(columns)
    }

    /// The topic of a query as users know it. These topics are those of `input`.
    pub(super) fn shown(&self, input: &Input, topic: String) -> String {
        let Some(source) = &self.source else { return topic };
        let key = topic.strip_prefix(&source.prefix).and_then(|key| key.strip_prefix('/'));
        let key = key.map_or("", |key| key.strip_suffix("/#").unwrap_or(key));
        match &source.key {
            KeyFrom::Nothing => input.address.to_string(),
            _ => format!("{} (key {})", input.address, rivulet_connectors::mqtt::topic::level_text(key)),
        }
    }
}

impl Topics {
    /// Reads the addresses of an application with this name, whose inputs are logged or not. `sink` makes the address
    /// of an output that is not a topic.
    pub(super) fn new(
        application: &Application,
        name: &FullName,
        is_logged: impl Fn(&Input) -> bool,
        sink: impl Fn(&Output, &[&str]) -> Result<SinkAddress, ServiceError>,
    ) -> Result<Self, ServiceError> {
        let names: Vec<&str> = application.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        let output = |address: &Address| template(address, &names, Direction::Output);
        let inputs = application.inputs.iter().map(|input| {
            let (events, source) = match &input.source {
                Some(source) => {
                    let layout = layout(name, input, source)?;
                    (key_template(&layout, source, &names)?, Some(layout))
                }
                None => (template(&input.address, &names, Direction::Input)?, None),
            };
            Ok(InputTopics {
                filter: events.filter(),
                events,
                source,
                is_logged: is_logged(input),
                late: input.late.as_ref().map(output).transpose()?,
                dead_letter: input.dead_letter.as_ref().map(output).transpose()?,
            })
        });
        Ok(Self {
            inputs: inputs.collect::<Result<_, ServiceError>>()?,
            outputs: application
                .outputs
                .iter()
                .map(|one| match is_topic(one) {
                    true => output(&one.address).map(OutputAddress::Topic),
                    false => sink(one, &names).map(|address| OutputAddress::Sink(Box::new(address))),
                })
                .collect::<Result<_, _>>()?,
        })
    }

    fn written(&self) -> impl Iterator<Item = &Template> {
        let of_inputs = self.inputs.iter().flat_map(|input| [&input.late, &input.dead_letter]).flatten();
        let topics = self.outputs.iter().filter_map(|output| match output {
            OutputAddress::Topic(template) => Some(template),
            OutputAddress::Sink(_) => None,
        });
        topics.chain(of_inputs)
    }

    /// All topics that queries read and write.
    pub(super) fn named(&self) -> impl Iterator<Item = &Template> {
        let read = self.inputs.iter().filter(|input| input.source.is_none()).map(|input| &input.events);
        read.chain(self.written())
    }

    /// The addresses of outputs that are not topics.
    pub(super) fn sinks(&self) -> impl Iterator<Item = &SinkAddress> {
        self.outputs.iter().filter_map(|output| match output {
            OutputAddress::Topic(_) => None,
            OutputAddress::Sink(address) => Some(&**address),
        })
    }

    /// Binds the topics of many queries: for each row of parameters the topic of each input, or why one of its topics
    /// is invalid.
    pub(super) fn bind<'r>(
        &'r self,
        rows: &'r RecordBatch,
    ) -> impl Fn(usize) -> Result<Vec<String>, ServiceError> + 'r {
        let mut columns = vec![None; rows.num_columns()];
        let read = || self.inputs.iter().map(|input| &input.events);
        let of_topics = self.written().chain(read()).flat_map(Template::parameters);
        for parameter in of_topics.chain(self.sinks().flat_map(SinkAddress::parameters)) {
            columns[parameter].get_or_insert_with(|| as_text(rows.column(parameter)));
        }
        move |row| {
            let value = |parameter: usize| columns[parameter].as_deref().map_or("", |column| column.value(row));
            let bind = |template: &Template| {
                let topic = template.bind(value);
                topic.map_err(|error| ServiceError::from_text(ErrorKind::Invalid, &error.to_string()))
            };
            self.written().try_for_each(|template| bind(template).map(drop))?;
            self.sinks().try_for_each(|address| address.check(value))?;
            self.inputs.iter().map(|input| bind(&input.events)).collect()
        }
    }
}

fn template(address: &Address, names: &[&str], direction: Direction) -> Result<Template, ServiceError> {
    let at = |error: ServiceError| error.at_place(address.position);
    if address.connector != "mqtt" {
        // Inputs and outputs of other connectors have a source or a sink.
        return Err(at(ServiceError::invalid(format!("'{address}' is not a topic"))
            .with_hint("late rows and dead letters of an input go to topics: 'mqtt:topic/{parameter}'")));
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

/// The substitute for topics of messages of an input's source.
fn layout(application: &FullName, input: &Input, source: &SourceInput) -> Result<FeedLayout, ServiceError> {
    let messages = CONNECTORS.messages(&input.address.connector).map_err(|error| {
        ServiceError::from_text(ErrorKind::Invalid, &error.to_string()).at_place(input.address.position)
    })?;
    let wrong = |message: String, hint: String, position| {
        Err(ServiceError::invalid(message).with_hint(hint).at_place(position))
    };
    let connector = &input.address.connector;
    if input.address.parameters().next().is_some() {
        let message = format!("the address '{}' has a parameter, and '{connector}:' is opened once", input.address);
        let hint = "say by a key which events are those of a query: WITH (key => '{device}')".into();
        return wrong(message, hint, input.address.position);
    }
    let key = match (&source.key, &source.key_field) {
        (None, _) => KeyFrom::Nothing,
        (Some(key), None) if messages.key.is_none() => {
            let message = format!("messages of '{connector}:' have no key of their own");
            let hint = "name the field of the payload that is the key: key_field => 'device'".into();
            return wrong(message, hint, key.position);
        }
        (Some(_), None) => KeyFrom::Message,
        (Some(_), Some((field, position))) => match input.format.name.as_str() {
            "json" => KeyFrom::Field(field.clone()),
            other => {
                let message = format!("key_field is a field of JSON, and the format is {}", other.to_uppercase());
                let hint = match messages.key {
                    Some(_) => "leave it out: then the key of a message counts".into(),
                    None => "use FORMAT JSON; or leave out key, and find the events by a column in WHERE".into(),
                };
                return wrong(message, hint, *position);
            }
        },
    };
    for column in &source.columns {
        if option_of(&messages, column.part).is_none() {
            let message = format!("messages of '{connector}:' have nothing for {}", column.option);
            return wrong(message, "arrival_time is when an event came".into(), column.position);
        }
    }
    let needs = |part: SourcePart| {
        let mut columns = source.columns.iter().filter(|one| one.part == part).map(|one| one.column);
        columns.any(|column| !input.schema.field(column).is_nullable() || input.event_time == Some(column))
    };
    Ok(FeedLayout {
        // Names have no NUL, so no other tenant's application has this prefix.
        prefix: FeedLayout::prefix(&format!("{}\0{}", application.tenant, application.name), &input.name),
        key,
        splits: messages.place.is_none(),
        has_columns: !source.columns.is_empty(),
        needs: (needs(SourcePart::Key), needs(SourcePart::Time)),
    })
}

/// The option of a source that names the column of this part of a message, if its messages have that part.
fn option_of(messages: &Messages, part: SourcePart) -> Option<&'static str> {
    match part {
        SourcePart::Key => messages.key,
        SourcePart::Partition => messages.place.map(|place| place.partition),
        SourcePart::Offset => messages.place.map(|place| place.offset),
        SourcePart::Time => messages.time,
    }
}

/// What queries read of a source: the topic, or a filter of the topics, of the messages with their key.
fn key_template(layout: &FeedLayout, source: &SourceInput, names: &[&str]) -> Result<Template, ServiceError> {
    let mut key = Vec::new();
    for part in source.key.iter().flat_map(|key| &key.parts) {
        match part {
            Part::Text(text) => push_level(text, &mut key),
            Part::Parameter(index) => key.extend_from_slice(format!("{{{}}}", names[*index]).as_bytes()),
        }
    }
    let route = layout.route(&String::from_utf8_lossy(&key));
    let position = source.key.as_ref().map_or((0, 0), |key| key.position);
    Template::parse(&route, names, Direction::Key)
        .map_err(|error| ServiceError::from_text(ErrorKind::Invalid, &error.to_string()).at_place(position))
}

/// A parameter's values as [`SlotTable::write_text`](rivulet_dataflow::SlotTable::write_text) writes them: an empty
/// text for null.
fn as_text(column: &ArrayRef) -> Cow<'_, StringArray> {
    fn texts<T: ToString>(values: impl Iterator<Item = Option<T>>) -> Cow<'static, StringArray> {
        Cow::Owned(values.map(|value| value.map(|value| value.to_string())).collect())
    }
    match column.data_type() {
        DataType::Utf8 => Cow::Borrowed(column.as_string::<i32>()),
        DataType::Int64 => texts(column.as_primitive::<Int64Type>().iter()),
        DataType::Boolean => texts(column.as_boolean().iter()),
        other => unreachable!("the planner lets no {other} stand in an address"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use arrow::array::{BooleanArray, Int64Array};
    use arrow::datatypes::{Field, Schema};

    #[test]
    fn topics_are_the_same_from_rows_and_from_slots() {
        let columns: [ArrayRef; 3] = [
            Arc::new(StringArray::from(vec![Some("caf\u{e9} 1"), Some(""), None])),
            Arc::new(Int64Array::from(vec![Some(i64::MIN), Some(7), None])),
            Arc::new(BooleanArray::from(vec![Some(true), Some(false), None])),
        ];
        for column in columns {
            // The types of parameters that the planner allows in an address.
            let sql = format!(
                "CREATE APPLICATION a (p {}) INPUT t (v DOUBLE) FROM 'mqtt:a/{{p}}' FORMAT JSON \
                 OUTPUT 'mqtt:b' FORMAT JSON AS SELECT v FROM t",
                rivulet_sql::type_name(column.data_type())
            );
            let create = rivulet_sql::parse_application(&sql).expect("an application");
            assert!(rivulet_sql::plan_application(&create).is_ok());
            let schema = Arc::new(Schema::new(vec![Field::new("p", column.data_type().clone(), true)]));
            let mut slots = SlotTable::new(schema.clone());
            slots.add(&[1, 2, 3], &RecordBatch::try_new(schema, vec![column.clone()]).expect("rows"));
            for row in 0..column.len() {
                let (texts, mut written) = (as_text(&column), String::new());
                slots.write_text(0, row as u32, &mut written);
                assert_eq!(if texts.is_null(row) { "" } else { texts.value(row) }, written);
            }
        }
        for other in ["DOUBLE", "TIMESTAMP", "INTERVAL"] {
            let sql = format!(
                "CREATE APPLICATION a (p {other}) INPUT t (v DOUBLE) FROM 'mqtt:a/{{p}}' FORMAT JSON \
                 OUTPUT 'mqtt:b' FORMAT JSON AS SELECT v FROM t"
            );
            let create = rivulet_sql::parse_application(&sql).expect("an application");
            assert!(rivulet_sql::plan_application(&create).is_err(), "{other}");
        }
    }
}
