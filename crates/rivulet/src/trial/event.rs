//! Lines to events, and the times of events.
//!
//! A line that is a JSON object with a field `payload` is an event with its topic; any other line is the payload of an
//! event for the only input, unchanged:
//!
//! ```text
//! {"topic": "home/42/temperature", "payload": {"ts": 1763712345678, "value": 24.8}, "arrival": "2025-11-21T08:05:46Z"}
//! {"ts": 1763712345678, "value": 24.8}
//! {"topic": "kafka:localhost:9092/readings", "key": "42", "payload": {"value": 24.8}}
//! ```
//!
//! For an input that reads a source and no topic, the address takes the place of the topic, with the key of the message
//! beside it.

use std::collections::BTreeMap;

use arrow::array::AsArray;
use arrow::compute::kernels::cast_utils::string_to_timestamp_nanos;
use arrow::datatypes::TimestampMicrosecondType;
use rivulet_connectors::connector::ConnectorContext;
use rivulet_connectors::feed::FeedLayout;
use rivulet_connectors::mqtt::topic::matches;
use rivulet_dataflow::{Decoder, Events, Refusals};
use rivulet_operators::application::{
    Address, Application, FormatSpec, Input as ApplicationInput, Literal, Output, Part,
};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::engine::{TrialInput, format_error, is_topic, trial_inputs};
use crate::run::CONNECTORS;
use crate::service::ServiceError;

/// An event of a trial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The number of its line, from 1.
    pub line: usize,
    /// Its topic, or the address of its source; `None` for that of the only input.
    pub topic: Option<String>,
    /// Its key, if its source gives one.
    pub key: Option<String>,
    /// Its payload.
    pub payload: Vec<u8>,
    /// When it arrives, microseconds since the epoch, if that is given.
    pub arrival_us: Option<i64>,
}

/// A text or number that is not a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no time\nhint: write '2026-01-31T12:00:00Z', or milliseconds since 1970")]
pub struct TimeError(String);

/// A time as text with a zone (without one it is UTC), or as milliseconds since 1970; in microseconds since the epoch.
///
/// # Errors
/// It is not a time.
pub fn parse_time_us(text: &str) -> Result<i64, TimeError> {
    let wrong = || TimeError(format!("'{text}'"));
    match text.parse::<f64>() {
        Ok(ms) if ms.abs() < 1e15 => Ok((ms * 1_000.0).round() as i64),
        Ok(_) => Err(wrong()),
        Err(_) => string_to_timestamp_nanos(text).map(|ns| ns.div_euclid(1_000)).map_err(|_| wrong()),
    }
}

/// A time for users and for files: UTC, to the millisecond.
pub fn time_text(time_us: i64) -> String {
    let ms = time_us.div_euclid(1_000);
    let text = Literal::Timestamp(ms * 1_000).plain_text();
    match text.split_once('.') {
        Some((seconds, fraction)) => format!("{seconds}.{:0<3.3}Z", fraction),
        None => format!("{text}.000Z"),
    }
}

/// Reads the line with this number.
///
/// # Errors
/// It is an object with a payload, and has another field that is unknown or invalid.
pub fn parse_event(text: &str, line: usize) -> Result<Event, ServiceError> {
    let wrong = |message: String| {
        ServiceError::invalid(format!("line {line}: {message}")).with_hint(
            "an event is {\"topic\": \"...\", \"payload\": ..., \"arrival\": \"2026-01-31T12:00:00Z\"}; a line \
             without a payload is one itself",
        )
    };
    // The text of a payload is kept, because a number that is read and written again may differ.
    let object = match serde_json::from_str::<BTreeMap<String, &RawValue>>(text) {
        Ok(object) if object.contains_key("payload") => object,
        _ => return Ok(Event { line, payload: text.as_bytes().to_vec(), ..Event::default() }),
    };
    let mut event = Event { line, ..Event::default() };
    for (name, raw) in object {
        if name == "payload" && !raw.get().starts_with('"') {
            event.payload = raw.get().as_bytes().to_vec();
            continue;
        }
        let value = serde_json::from_str(raw.get()).map_err(|error| wrong(format!("'{name}': {error}")))?;
        match (name.as_str(), value) {
            ("payload", Value::String(text)) => event.payload = text.into_bytes(),
            ("topic", Value::String(topic)) => event.topic = Some(topic),
            ("key", Value::String(key)) => event.key = Some(key),
            ("arrival", Value::String(text)) => {
                event.arrival_us = Some(parse_time_us(&text).map_err(|error| wrong(error.0 + " is no time"))?);
            }
            ("arrival", Value::Number(number)) => {
                let time = parse_time_us(&number.to_string());
                event.arrival_us = Some(time.map_err(|error| wrong(error.0 + " is no time"))?);
            }
            ("topic" | "key" | "arrival", _) => return Err(wrong(format!("'{name}' is no text"))),
            _ => return Err(wrong(format!("beside a payload there is no field '{name}'"))),
        }
    }
    Ok(event)
}

/// Makes an input read a topic if it reads files and the like, and no messages: a trial gives it these events itself.
///
/// # Errors
/// It has options that an input cannot have.
pub(super) fn to_topic_input(input: &mut ApplicationInput) -> Result<(), ServiceError> {
    if CONNECTORS.messages(&input.address.connector).is_ok() {
        return Ok(());
    }
    to_topic(&mut input.address);
    match input.source.take().and_then(|source| source.options.into_iter().next()) {
        None => Ok(()),
        Some((name, _, place)) => Err(ServiceError::invalid(format!("unknown option '{name}'"))
            .with_hint("it is no option of an input")
            .at_place(place)),
    }
}

/// Turns an address that is not a topic into one: a trial itself takes the place of files and the like, under the whole
/// address.
pub(super) fn to_topic(address: &mut Address) {
    if address.connector != "mqtt" {
        let connector = std::mem::replace(&mut address.connector, "mqtt".into());
        address.parts.insert(0, Part::Text(format!("{connector}:")));
        address.template.insert_str(0, &format!("{connector}:"));
    }
}

/// Makes messages from the rows of an output that is not a topic, to topics with its addresses.
pub(super) fn to_messages(output: &mut Output) {
    if is_topic(output) {
        return;
    }
    let Output { address, format, options, .. } = output;
    // An address that is just one parameter is a whole topic.
    match address.parts[..] {
        [Part::Parameter(_)] => address.connector = "mqtt".into(),
        _ => to_topic(address),
    }
    options.clear();
    if !["json", "csv", "text", "senml", "senml_pivot"].contains(&format.name.as_str()) {
        *format = FormatSpec { name: "json".into(), options: Vec::new(), position: format.position };
    }
}

/// Reads the times of events from their payloads, by the inputs to which the topics belong.
#[derive(Default)]
pub(super) struct Reader {
    inputs: Vec<Input>,
    /// Times that are most likely in another unit.
    refusals: Refusals,
}

/// An event as messages for the router.
pub(super) struct Messages {
    /// Its address in reports.
    pub(super) shown: String,
    /// Topics and payloads.
    pub(super) messages: Vec<(String, Vec<u8>)>,
}

struct Input {
    /// The topics of all queries; `None` if each query names its own.
    filter: Option<String>,
    decoder: Box<dyn Decoder>,
    event_time: Option<usize>,
    /// Its name, if its event time is computed, which is not done here.
    is_computed: Option<String>,
    /// The address of an input that reads no topic, and its substitute for a topic.
    source: Option<(String, FeedLayout)>,
}

impl Reader {
    /// Adds the inputs of an application.
    ///
    /// # Errors
    /// An address or format is invalid.
    pub(super) fn add(&mut self, application: &Application, host: &ConnectorContext) -> Result<(), ServiceError> {
        let inputs = application.inputs.iter().zip(trial_inputs(application, host)?);
        for (input, TrialInput { rows, filter, source }) in inputs {
            let decoder = rows.decoder().map_err(|error| format_error(&error, &input.format))?;
            // No MQTT topic looks like the address of a source.
            let filter = if source.is_some() { Some(input.address.to_string()) } else { filter };
            let is_computed = input.computed_event_time.map(|_| input.name.clone());
            let source = source.map(|layout| (input.address.to_string(), layout));
            self.inputs.push(Input { filter, decoder, event_time: input.event_time, is_computed, source });
        }
        Ok(())
    }

    /// The messages of an event that names the address of a source, or names nothing if there is only one input. They
    /// have a substitute topic and the payload, one for each application that reads the source. `None` if the event has
    /// a topic.
    ///
    /// # Errors
    /// The payload is not text.
    pub(super) fn source_messages(&self, event: &Event, now_us: i64) -> Result<Option<Messages>, ServiceError> {
        let is_meant = |address: &str| match &event.topic {
            Some(topic) => topic == address,
            None => self.inputs.len() == 1,
        };
        let sources = self.inputs.iter().filter_map(|input| input.source.as_ref());
        let sources: Vec<_> = sources.filter(|(address, _)| is_meant(address)).collect();
        let Some((address, _)) = sources.first() else { return Ok(None) };
        let payload = std::str::from_utf8(&event.payload).map_err(|error| {
            ServiceError::invalid(format!("line {}: the payload of a message is no text: {error}", event.line))
        })?;
        let (key, line) = (event.key.as_deref(), event.line as i64);
        let messages = sources.iter().flat_map(|(_, layout)| layout.messages(payload, key, line, now_us));
        let messages = messages.map(|(topic, payload)| (topic, payload.into_bytes())).collect();
        let key = key.map_or_else(String::new, |key| format!(" (key {key})"));
        Ok(Some(Messages { shown: format!("{address}{key}"), messages }))
    }

    /// Refuses an event without an arrival for an input whose event time is computed. The clock would not be at that
    /// time, and the event would be refused as future, or as late.
    ///
    /// # Errors
    /// It is such an event.
    pub(super) fn check_arrival(&self, event: &Event) -> Result<(), ServiceError> {
        let topic = event.topic.as_deref();
        let mut inputs = self.inputs.iter().filter(|input| is_meant(&input.filter, topic));
        match inputs.find_map(|input| input.is_computed.as_ref()).filter(|_| event.arrival_us.is_none()) {
            None => Ok(()),
            Some(name) => {
                let line = event.line;
                let message = format!("line {line}: the event time of input '{name}' is computed: write an arrival");
                Err(ServiceError::invalid(message).with_hint(
                    "write each line as {\"payload\": ..., \"arrival\": \"2026-01-31T12:00:00Z\"}; the clock of \
                     a trial goes by arrivals",
                ))
            }
        }
    }

    /// The time in a payload, if an input of its topic has one.
    pub(super) fn event_time_us(&mut self, topic: Option<&str>, payload: &[u8]) -> Option<i64> {
        let mut events = Events::default();
        events.push(0, 0, payload);
        let inputs = self.inputs.iter_mut().filter(|input| is_meant(&input.filter, topic));
        let time_us = inputs.filter_map(|Input { decoder, event_time, .. }| {
            let batch = decoder.decode(&events, &mut Refusals::new(0));
            let times = batch.column((*event_time)?).as_primitive_opt::<TimestampMicrosecondType>()?;
            times.iter().flatten().max()
        });
        let time_us = time_us.max()?;
        self.refusals.note_times(None, &[time_us], now_us());
        Some(time_us)
    }

    /// A warning if the times of events are probably wrong.
    pub(super) fn warning(&self) -> Option<String> {
        self.refusals.seconds().first().map(ToString::to_string)
    }
}

/// Whether an event of a topic may belong to an input with this filter.
fn is_meant(filter: &Option<String>, topic: Option<&str>) -> bool {
    match (filter, topic) {
        (Some(filter), Some(topic)) => matches(filter.as_bytes(), topic.as_bytes()),
        _ => true,
    }
}

/// The real time. Times in another unit are recognized by their distance from it.
fn now_us() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_texts_or_milliseconds() {
        for (text, us) in [
            ("2026-01-01T00:00:00Z", 1_767_225_600_000_000),
            ("2026-01-01T01:00:00.25+01:00", 1_767_225_600_250_000),
            ("1767225600000.5", 1_767_225_600_000_500),
            ("0", 0),
        ] {
            assert_eq!(parse_time_us(text), Ok(us), "{text}");
        }
        for wrong in ["", "noon", "1e300", "NaN"] {
            assert!(parse_time_us(wrong).is_err(), "{wrong}");
        }
        assert_eq!(time_text(1_767_225_600_250_999), "2026-01-01T00:00:00.250Z");
        assert_eq!(time_text(1_767_225_600_000_000), "2026-01-01T00:00:00.000Z");
    }

    #[test]
    fn a_line_is_an_event_or_a_payload() {
        let event = |text: &str| parse_event(text, 3);
        assert_eq!(event("1,2").unwrap(), Event { line: 3, payload: b"1,2".to_vec(), ..Event::default() });
        let whole = r#"{"topic": "a/b", "payload": {"v": 1.50, "a": 1e999}, "arrival": 1000}"#;
        let expected = Event {
            line: 3,
            topic: Some("a/b".into()),
            key: None,
            payload: br#"{"v": 1.50, "a": 1e999}"#.to_vec(),
            arrival_us: Some(1_000_000),
        };
        assert_eq!(event(whole).unwrap(), expected);
        assert_eq!(event(r#"{"payload": "not {json"}"#).unwrap().payload, b"not {json");
        for wrong in
            [r#"{"payload": 1, "arival": 5}"#, r#"{"payload": 1, "arrival": "noon"}"#, r#"{"payload":1,"topic":2}"#]
        {
            let error = event(wrong).unwrap_err();
            assert!(error.message.starts_with("line 3: ") && error.hint.is_some(), "{error:?}");
        }
    }
}
