//! Parameters, inputs and outputs of an application, from their declarations.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rivulet_dataflow::carried;

use crate::address::{Address, DEFAULT_CONNECTOR, address_of_parameter, parse_address, parse_key};
use crate::application::{Durability, Input, Overflow, Parameter, SourceColumn, SourceInput, SourcePart, TopicColumns};
use crate::reserved::name_in_sql;
use crate::statement::{ColumnDeclaration, CreateApplication, InputDeclaration, Name};
use crate::value::{Literal, ParamValue, interval_us, parse_interval, type_name};
use crate::{Position, SqlError};

/// The longest lateness, timeout or limit, in microseconds: ten years.
const SPAN_US_MAX: i64 = 3650 * 86_400_000_000;
/// How far ahead of the clock a device's clock may be unless the input says otherwise, microseconds.
const FUTURE_LIMIT_US: i64 = 300_000_000;
/// After how much silence a query's clock goes on unless the input says otherwise, in microseconds.
const IDLE_TIMEOUT_US: i64 = 30_000_000;

/// The resolved declarations.
pub(super) struct Declarations {
    pub(super) parameters: Vec<Parameter>,
    pub(super) inputs: Vec<Input>,
    /// The position of each input's name.
    pub(super) input_positions: Vec<Position>,
    pub(super) output_addresses: Vec<Address>,
}

impl Declarations {
    pub(super) fn resolve(create: &CreateApplication) -> Result<Self, SqlError> {
        let mut parameters = Vec::with_capacity(create.parameters.len() + 2);
        for declaration in &create.parameters {
            let default = match &declaration.default {
                None => None,
                Some((literal, position)) => {
                    let value = ParamValue::from(literal);
                    let typed = value.coerce(&declaration.data_type).map_err(|hint| SqlError {
                        hint,
                        ..SqlError::new(
                            *position,
                            format!(
                                "the parameter '{}' is {}, and its default {} is not",
                                declaration.name,
                                type_name(&declaration.data_type),
                                value.describe()
                            ),
                        )
                    })?;
                    Some(typed.to_literal())
                }
            };
            parameters.push(Parameter {
                name: declaration.name.text.clone(),
                data_type: declaration.data_type.clone(),
                default,
                in_address: false,
                is_address: false,
            });
        }
        let mut resolver = Resolver { create, parameters };
        // The parameter for the address of a single input is `input`, and for a single output `output`. Several have
        // their own names.
        let (is_only_input, is_only_output) = (create.inputs.len() == 1, create.outputs.len() == 1);
        let input_addresses = create.inputs.iter().map(|input| match &input.address {
            Some((text, position)) => resolver.address(text, *position),
            None if is_only_input => resolver.implicit("input", "input", input.name.position),
            None => resolver.implicit(&input.name.text, "input", input.name.position),
        });
        let input_addresses = input_addresses.collect::<Result<Vec<_>, _>>()?;
        let output_addresses = create.outputs.iter().map(|output| match (&output.address, &output.name) {
            (Some((text, position)), _) => resolver.address(text, *position),
            (None, Some(name)) if !is_only_output => resolver.implicit(&name.text, "output", name.position),
            (None, _) => resolver.implicit("output", "output", output.position),
        });
        let output_addresses = output_addresses.collect::<Result<Vec<_>, _>>()?;
        let inputs = create.inputs.iter().zip(input_addresses).map(|(input, address)| resolver.input(input, address));
        let mut inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        for (input, computed) in inputs.iter_mut().zip(&create.select.open().innermost().computed) {
            input.computed = computed.iter().map(|one| (one.name.text.clone(), one.expression.to_string())).collect();
            input.computed_event_time = computed.iter().position(|one| one.event_time);
        }
        if let Some(place) = inputs.iter().position(|input| input.overflow != inputs[0].overflow) {
            let name = &create.inputs[place].name;
            return Err(SqlError::new(
                name.position,
                format!("the input '{name}' has another overflow than the first one"),
            )
            .hint("all inputs wait in one inbox, so that their order is kept: give them the same overflow"));
        }
        let input_positions = create.inputs.iter().map(|input| input.name.position).collect();
        Ok(Self { parameters: resolver.parameters, inputs, input_positions, output_addresses })
    }

    /// The parameters as the schema of slot tables.
    pub(super) fn parameter_schema(&self) -> SchemaRef {
        let fields = self.parameters.iter().map(|one| Field::new(&one.name, one.data_type.clone(), true));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }
}

struct Resolver<'a> {
    create: &'a CreateApplication,
    parameters: Vec<Parameter>,
}

impl Resolver<'_> {
    fn address(&mut self, text: &str, position: Position) -> Result<Address, SqlError> {
        let names: Vec<&str> = self.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        let address = parse_address(text, position, &names)?;
        for index in address.parameters() {
            self.put_in_address(index, position)?;
        }
        Ok(address)
    }

    /// Returns the address that each query gives itself. It is in a parameter that is declared by leaving the address
    /// out.
    fn implicit(&mut self, name: &str, kind: &str, position: Position) -> Result<Address, SqlError> {
        let index = match self.parameters.iter().position(|parameter| parameter.name == name) {
            Some(index) if self.parameters[index].data_type == DataType::Utf8 => index,
            Some(index) => {
                let what = type_name(&self.parameters[index].data_type);
                return Err(SqlError::new(
                    self.declared_at(index).unwrap_or(position),
                    format!("the parameter '{name}' is the address of the {kind} and must be TEXT, not {what}"),
                )
                .hint(format!("give it another name, or give the {kind} an address")));
            }
            None => {
                self.parameters.push(Parameter {
                    name: name.to_owned(),
                    data_type: DataType::Utf8,
                    default: None,
                    in_address: true,
                    is_address: true,
                });
                self.parameters.len() - 1
            }
        };
        self.put_in_address(index, position)?;
        self.parameters[index].is_address = true;
        Ok(address_of_parameter(name, index, position))
    }

    fn declared_at(&self, index: usize) -> Option<Position> {
        self.create.parameters.get(index).map(|declaration| declaration.name.position)
    }

    fn put_in_address(&mut self, index: usize, position: Position) -> Result<(), SqlError> {
        let parameter = &mut self.parameters[index];
        if !matches!(parameter.data_type, DataType::Utf8 | DataType::Int64 | DataType::Boolean) {
            let (name, what) = (&parameter.name, type_name(&parameter.data_type));
            return Err(SqlError::new(
                position,
                format!("the parameter '{name}' is {what} and cannot stand in an address"),
            )
            .hint("declare it as TEXT or BIGINT"));
        }
        let usable = match &parameter.default {
            None => true,
            Some(default) => !matches!(default, Literal::Null) && *default != Literal::Text(String::new()),
        };
        if !usable {
            let declared = self.create.parameters.get(index).and_then(|one| one.default.as_ref());
            let place = declared.map_or(position, |(_, position)| *position);
            return Err(SqlError::new(
                place,
                format!("the parameter '{}' is part of an address and cannot be empty", parameter.name),
            )
            .hint("leave the default out, so that each query must give a value"));
        }
        parameter.in_address = true;
        Ok(())
    }

    fn input(&mut self, declaration: &InputDeclaration, address: Address) -> Result<Input, SqlError> {
        let fields: Vec<Field> = declaration.columns.iter().map(ColumnDeclaration::field).collect();
        let declared = Arc::new(Schema::new(fields));
        let mut input = Input {
            name: declaration.name.text.clone(),
            schema: Arc::new(carried(&declared)),
            declared,
            event_time: declaration.columns.iter().position(|column| column.event_time),
            computed: Vec::new(),
            computed_event_time: None,
            topic: TopicColumns::default(),
            source: (address.connector != DEFAULT_CONNECTOR).then(SourceInput::default),
            address,
            format: declaration.format.clone(),
            lateness_us: 0,
            idle_timeout_us: IDLE_TIMEOUT_US,
            future_limit_us: FUTURE_LIMIT_US,
            overflow: Overflow::default(),
            durability: None,
            late: None,
            dead_letter: None,
        };
        for (name, literal, position) in &declaration.options {
            if self.source_option(declaration, &mut input, (name, literal, *position))? {
                continue;
            }
            match name.text.as_str() {
                "lateness" => input.lateness_us = span(name, literal, *position, 0)?,
                "idle_timeout" => input.idle_timeout_us = span(name, literal, *position, 1)?,
                "future_limit" => input.future_limit_us = span(name, literal, *position, 0)?,
                "overflow" => input.overflow = overflow(name, literal, *position)?,
                "durability" => input.durability = Some(durability(name, literal, *position)?),
                "late" => input.late = Some(self.address(text(name, literal, *position)?, *position)?),
                "topic_column" => {
                    let column =
                        topic_column(declaration, &input.topic, name, text(name, literal, *position)?, *position)?;
                    input.topic.whole = Some(column);
                }
                "level_columns" => {
                    input.topic.levels_position = (*position).into();
                    for level in text(name, literal, *position)?.split(',').map(str::trim) {
                        let column = topic_column(declaration, &input.topic, name, level, *position)?;
                        input.topic.levels.push(column);
                    }
                }
                "dead_letter" => input.dead_letter = Some(self.address(text(name, literal, *position)?, *position)?),
                other => {
                    let options = [&INPUT_OPTIONS[..], &TOPIC_OPTIONS].concat();
                    let error = SqlError::new(name.position, format!("unknown option '{other}'"));
                    if SOURCE_OPTIONS.contains(&other) {
                        return Err(error.hint(
                            "it is for inputs that read other sources than topics, as 'kafka:'; a topic has \
                             parameters itself, as 'mqtt:room/{room}'",
                        ));
                    }
                    let hint = format!("the options are {}", crate::address::list(&options));
                    return Err(error.suggest(other, options.iter().copied(), hint));
                }
            }
        }
        let of_source = input.source.as_ref().map_or(0, |source| source.columns.len());
        let of_topic = input.topic.levels.len() + usize::from(input.topic.whole.is_some()) + of_source;
        if of_topic == declaration.columns.len() {
            let what = if of_source > 0 { "source" } else { "topic" };
            let message = format!("all columns of the input '{}' come from the {what}", declaration.name);
            return Err(SqlError::new(declaration.name.position, message)
                .hint("declare at least one of the payload, for example state TEXT with FORMAT TEXT"));
        }
        let Some(source) = &input.source else { return Ok(input) };
        if let (Some((field, position)), None) = (&source.key_field, &source.key) {
            let (line, column) = *position;
            let message = format!("key_field names '{field}', and the input has no key");
            return Err(SqlError::new(Position { line, column }, message)
                .hint("write which key a query reads: key => '{device}', with a parameter of the application"));
        }
        Ok(input)
    }

    /// Reads an option of an input that reads no topic. Returns false if every kind of input has this option.
    fn source_option(
        &mut self,
        declaration: &InputDeclaration,
        input: &mut Input,
        (name, literal, position): (&Name, &Literal, Position),
    ) -> Result<bool, SqlError> {
        let Some(source) = &mut input.source else { return Ok(false) };
        match name.text.as_str() {
            option if INPUT_OPTIONS.contains(&option) => return Ok(false),
            option if TOPIC_OPTIONS.contains(&option) => {
                let message = format!("{option} is for topics, and the input reads '{}:'", input.address.connector);
                return Err(SqlError::new(name.position, message)
                    .hint("key_column names the column that is the key of a message"));
            }
            "key" => {
                let names: Vec<&str> = self.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
                let key = parse_key(text(name, literal, position)?, position, &names)?;
                for index in key.parameters() {
                    self.put_in_address(index, position)?;
                }
                source.key = Some(key);
            }
            "key_field" => source.key_field = Some((text(name, literal, position)?.to_owned(), position.into())),
            option => match SOURCE_COLUMNS.iter().find(|(known, ..)| *known == option) {
                Some(&(option, part, data_type)) => {
                    let data_type = data_type();
                    let column = text(name, literal, position)?;
                    let column = source_column(declaration, source, name, column, &data_type, position)?;
                    source.columns.push(SourceColumn { option, part, column, position: position.into() });
                }
                None => source.options.push((name.text.clone(), literal.clone(), position.into())),
            },
        }
        Ok(true)
    }
}

/// The options of inputs of any kind.
const INPUT_OPTIONS: [&str; 7] =
    ["lateness", "idle_timeout", "future_limit", "overflow", "durability", "late", "dead_letter"];

/// The options that an input with a topic has besides.
const TOPIC_OPTIONS: [&str; 2] = ["topic_column", "level_columns"];

/// The options that an input without a topic has besides those of its source.
const SOURCE_OPTIONS: [&str; 6] =
    ["key", "key_field", "key_column", "partition_column", "offset_column", "timestamp_column"];

/// Whether an option of an input without a topic is one of the input itself, and not of its source.
pub fn is_input_option(name: &str) -> bool {
    INPUT_OPTIONS.contains(&name) || SOURCE_OPTIONS.contains(&name)
}

/// An option that names a column, what the column has, and its type.
type ColumnOption = (&'static str, SourcePart, fn() -> DataType);

/// The options that name a column.
const SOURCE_COLUMNS: [ColumnOption; 4] = [
    ("key_column", SourcePart::Key, || DataType::Utf8),
    ("partition_column", SourcePart::Partition, || DataType::Int64),
    ("offset_column", SourcePart::Offset, || DataType::Int64),
    ("timestamp_column", SourcePart::Time, || DataType::Timestamp(TimeUnit::Microsecond, None)),
];

fn span(name: &Name, literal: &Literal, position: Position, least_us: i64) -> Result<i64, SqlError> {
    let interval = match literal {
        Literal::Interval(interval) => Some(*interval),
        Literal::Text(text) => parse_interval(text),
        _ => None,
    };
    let hint = "write for example INTERVAL '2 seconds'";
    let Some(interval) = interval else {
        return Err(SqlError::new(position, format!("{name} takes an INTERVAL")).hint(hint));
    };
    match interval_us(interval) {
        Some(span_us) if (least_us..=SPAN_US_MAX).contains(&span_us) => Ok(span_us),
        Some(span_us) if span_us < least_us => {
            let least = if least_us == 0 { "be negative" } else { "be zero or negative" };
            Err(SqlError::new(position, format!("{name} cannot {least}")).hint(hint))
        }
        Some(_) => Err(SqlError::new(position, format!("{name} is at most ten years")).hint(hint)),
        None => Err(SqlError::new(position, format!("{name} cannot be given in months, which differ in length"))
            .hint("give days, for example INTERVAL '30 days'")),
    }
}

fn text<'a>(name: &Name, literal: &'a Literal, position: Position) -> Result<&'a str, SqlError> {
    match literal {
        Literal::Text(text) => Ok(text),
        _ => Err(SqlError::new(position, format!("{name} takes a string in single quotes"))),
    }
}

/// Returns the declared column that an option names. Its values come from the source.
fn source_column(
    input: &InputDeclaration,
    source: &SourceInput,
    option: &Name,
    name: &str,
    data_type: &DataType,
    position: Position,
) -> Result<usize, SqlError> {
    let place = declared_column(input, option, name, &type_name(data_type), position)?;
    let error = |problem: String| SqlError::new(position, format!("{option} names '{name}'{problem}"));
    let found = &input.columns[place].data_type;
    if found != data_type {
        let wanted = type_name(data_type);
        return Err(error(format!(", which is {}", type_name(found))).hint(format!("declare it as {wanted}")));
    }
    if source.columns.iter().any(|other| other.column == place) {
        return Err(error(" a second time".into()).hint("each column is one part of a message"));
    }
    Ok(place)
}

/// Returns the declared column that an option names.
fn declared_column(
    input: &InputDeclaration,
    option: &Name,
    name: &str,
    data_type: &str,
    position: Position,
) -> Result<usize, SqlError> {
    let is_it = |text: &str| text == name || text == name.to_lowercase();
    input.columns.iter().position(|column| is_it(&column.name.text)).ok_or_else(|| {
        let message = format!("{option} names '{name}', and the input '{}' has no such column", input.name);
        let error = SqlError::new(position, message);
        let names = input.columns.iter().map(|column| column.name.text.as_str());
        error.suggest(name, names, format!("declare it as well: {} {data_type}", name_in_sql(name)))
    })
}

/// Returns the declared column that an option names. Its values come from the topic.
fn topic_column(
    input: &InputDeclaration,
    taken: &TopicColumns,
    option: &Name,
    name: &str,
    position: Position,
) -> Result<usize, SqlError> {
    let error = |problem: String| SqlError::new(position, format!("{option} names '{name}'{problem}"));
    let place = declared_column(input, option, name, "TEXT", position)?;
    let data_type = &input.columns[place].data_type;
    if *data_type != DataType::Utf8 {
        return Err(error(format!(", which is {}", type_name(data_type)))
            .hint("declare it as TEXT: a part of a topic is text, and CAST makes a number of it"));
    }
    if taken.whole == Some(place) || taken.levels.contains(&place) {
        return Err(error(" a second time".into()).hint("each column is one part of the topic"));
    }
    Ok(place)
}

fn overflow(name: &Name, literal: &Literal, position: Position) -> Result<Overflow, SqlError> {
    const CHOICES: [Overflow; 3] = [Overflow::Block, Overflow::DropOldest, Overflow::DropNewest];
    one_of(CHOICES, Overflow::name, "it is 'block', 'drop_oldest' or 'drop_newest'", name, literal, position)
}

fn durability(name: &Name, literal: &Literal, position: Position) -> Result<Durability, SqlError> {
    let hint = "it is 'none', 'checkpoint' or 'log'";
    one_of(Durability::ALL, Durability::name, hint, name, literal, position)
}

/// Returns the choice that an option names.
fn one_of<T: Copy>(
    choices: [T; 3],
    name_of: fn(T) -> &'static str,
    hint: &'static str,
    name: &Name,
    literal: &Literal,
    position: Position,
) -> Result<T, SqlError> {
    let word = text(name, literal, position)?;
    choices.into_iter().find(|choice| name_of(*choice).eq_ignore_ascii_case(word)).ok_or_else(|| {
        let error = SqlError::new(position, format!("{name} cannot be '{word}'"));
        error.suggest(word, choices.map(name_of), hint)
    })
}
