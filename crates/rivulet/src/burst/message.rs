//! What a server and its burst workers say to each other. A message is a row of a stream: its text in JSON, and the
//! bytes of state that goes with it.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, AsArray, BinaryArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use rivulet_dataflow::stage::{PartitionState, StageSnapshot};
use rivulet_dataflow::{Batch, Element, NodeId, Reason, StateFrame};
use rivulet_runtime::{FlowLimits, GuestFigures, Phase, PipeError, SourceTime, Word};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The most bytes of a part of state: a buffer of a session takes no more than twice that.
const STATE_BYTES_MAX: usize = 128 << 20;

/// A word between the roster and a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Control {
    /// A worker says who it is, whenever the server opens a stream to it.
    Hello {
        /// The version of its program, which has to be that of the server.
        version: String,
        /// Its name.
        name: String,
        /// How many tasks it runs at a time.
        threads: usize,
        /// How long it lives from now on, if its life has a limit.
        limit_s: Option<u64>,
    },
    /// The server asks for a place for a task.
    Hold(Box<Hold>),
    /// The worker has the place, and takes the task when its state has come.
    Held {
        /// Of the place.
        ticket: u64,
    },
    /// The worker cannot run it.
    Refused {
        /// Of the place.
        ticket: u64,
        /// Why not.
        why: String,
    },
    /// The other side is not needed any more, or does not fit.
    Bye {
        /// Why not.
        why: String,
    },
}

/// A task that a worker shall run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// Names its streams.
    pub ticket: u64,
    /// The name of the query.
    pub query: String,
    /// Statements that declare all that the query needs, and create it.
    pub script: String,
    /// What the plan of the script has to be: see [`rivulet_sql::QueryPlan::fingerprint`].
    pub fingerprint: String,
    /// The nodes of its stage.
    pub nodes: Vec<NodeId>,
    /// The instance of the stage.
    pub instance: usize,
    /// The time of the server.
    pub now_us: i64,
    /// The bounds of its batches.
    #[serde(with = "Limits")]
    pub limits: FlowLimits,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "FlowLimits")]
struct Limits {
    rows_max: usize,
    bytes_max: usize,
    batch_rows: usize,
}

/// A [`Word`] without its bytes.
#[derive(Serialize, Deserialize)]
enum Said {
    State { operator: usize, part: usize },
    Begin { parts: usize, snapshot: Moment, rows_max: usize },
    Begun,
    Barrier(u64),
    GoOn(u64),
    Durable,
    Phase(#[serde(with = "Phases")] Phase),
    Others(i64),
    Reached(#[serde(with = "Reached")] SourceTime),
    Captured { barrier: u64, parts: usize, snapshot: Moment },
    Figures(#[serde(with = "Figures")] GuestFigures),
    Failed(String),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Phase")]
enum Phases {
    Running,
    Paused,
    Closing,
    Draining,
    Stopping,
    Cancelled,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "SourceTime")]
enum Reached {
    Active(i64),
    Idle(i64),
    Ended,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "GuestFigures")]
struct Figures {
    rows_in: u64,
    rows_out: u64,
    busy_us: u64,
    state_bytes: u64,
    refused: [u64; Reason::ALL.len()],
}

/// A [`StageSnapshot`] of a stage without a sink.
#[derive(Serialize, Deserialize)]
struct Moment {
    /// The position and the time of the newest row of each partition.
    partitions: Option<Vec<(Option<String>, Option<i64>)>>,
    reached_us: Option<i64>,
    has_ended: bool,
}

impl Moment {
    fn of(snapshot: &StageSnapshot) -> Self {
        let of = |state: &PartitionState| (state.position.clone(), state.newest_us);
        let partitions = snapshot.partitions.as_ref().map(|all| all.iter().map(of).collect());
        Self { partitions, reached_us: snapshot.reached_us, has_ended: snapshot.has_ended }
    }

    fn snapshot(self) -> StageSnapshot {
        let state = |(position, newest_us)| PartitionState { position, newest_us };
        let partitions = self.partitions.map(|all| all.into_iter().map(state).collect());
        StageSnapshot { partitions, sink: None, reached_us: self.reached_us, has_ended: self.has_ended }
    }
}

/// The columns of messages.
pub fn schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        Arc::new(Schema::new(vec![
            Field::new("message", DataType::Utf8, false),
            Field::new("bytes", DataType::Binary, true),
        ]))
    });
    SCHEMA.clone()
}

/// A message as a row.
fn row(message: &impl Serialize, bytes: Option<&[u8]>) -> Element {
    let text = serde_json::to_string(message).expect("texts and numbers are always JSON");
    let columns: [ArrayRef; 2] =
        [Arc::new(StringArray::from(vec![text])), Arc::new(BinaryArray::from_opt_vec(vec![bytes]))];
    let columns = RecordBatch::try_new(schema(), columns.into()).expect("they are the columns of messages");
    Element::Batch(Batch::new(vec![0].into(), vec![0].into(), vec![0].into(), columns))
}

/// The message of a row of a stream with [`schema`], and its bytes.
fn read<T: DeserializeOwned>(element: &Element) -> Result<(T, Option<&[u8]>), PipeError> {
    let wrong = |what: &str| PipeError::Wrong(format!("a message that is none: {what}"));
    let Element::Batch(batch) = element else { return Err(wrong("it is no row")) };
    if batch.rows() != 1 {
        return Err(wrong("it is not one row"));
    }
    let (texts, bytes) = (batch.column(0).as_string_opt::<i32>(), batch.column(1).as_binary_opt::<i32>());
    let (Some(texts), Some(bytes)) = (texts, bytes) else { return Err(wrong("it has other columns")) };
    let message = serde_json::from_str(texts.value(0)).map_err(|error| wrong(&error.to_string()))?;
    Ok((message, bytes.iter().next().flatten()))
}

impl Control {
    /// As a row.
    pub fn row(&self) -> Element {
        row(self, None)
    }

    /// Reads what [`Control::row`] has written.
    ///
    /// # Errors
    /// It is something else.
    pub fn read(element: &Element) -> Result<Self, PipeError> {
        read(element).map(|(control, _)| control)
    }
}

/// A word as a row.
///
/// # Errors
/// State that has no bytes, or too many.
pub fn row_of(word: &Word) -> Result<Element, PipeError> {
    let said = match word {
        Word::State { operator, part, frame } => {
            let bytes = frame.to_bytes().map_err(|error| PipeError::Wrong(error.to_string()))?;
            if bytes.len() > STATE_BYTES_MAX {
                let message = format!("{} bytes of state are too many for one part", bytes.len());
                return Err(PipeError::Wrong(message));
            }
            return Ok(row(&Said::State { operator: *operator, part: *part }, Some(&bytes)));
        }
        Word::Begin { parts, snapshot, rows_max } => {
            Said::Begin { parts: *parts, snapshot: Moment::of(snapshot), rows_max: *rows_max }
        }
        Word::Begun => Said::Begun,
        Word::Barrier(number) => Said::Barrier(*number),
        Word::GoOn(number) => Said::GoOn(*number),
        Word::Durable => Said::Durable,
        Word::Phase(phase) => Said::Phase(*phase),
        Word::Others(to_us) => Said::Others(*to_us),
        Word::Reached(time) => Said::Reached(*time),
        Word::Captured { barrier, parts, snapshot } => {
            Said::Captured { barrier: *barrier, parts: *parts, snapshot: Moment::of(snapshot) }
        }
        Word::Figures(figures) => Said::Figures(figures.clone()),
        Word::Failed(why) => Said::Failed(why.clone()),
    };
    Ok(row(&said, None))
}

/// Reads what [`row_of`] has written.
///
/// # Errors
/// It is something else.
pub fn word_of(element: &Element) -> Result<Word, PipeError> {
    let (said, bytes) = read(element)?;
    Ok(match said {
        Said::State { operator, part } => {
            let frame = StateFrame::from_bytes(bytes.unwrap_or_default());
            Word::State { operator, part, frame: frame.map_err(|error| PipeError::Wrong(error.to_string()))? }
        }
        Said::Begin { parts, snapshot, rows_max } => Word::Begin { parts, snapshot: snapshot.snapshot(), rows_max },
        Said::Begun => Word::Begun,
        Said::Barrier(number) => Word::Barrier(number),
        Said::GoOn(number) => Word::GoOn(number),
        Said::Durable => Word::Durable,
        Said::Phase(phase) => Word::Phase(phase),
        Said::Others(to_us) => Word::Others(to_us),
        Said::Reached(time) => Word::Reached(time),
        Said::Captured { barrier, parts, snapshot } => Word::Captured { barrier, parts, snapshot: snapshot.snapshot() },
        Said::Figures(figures) => Word::Figures(figures),
        Said::Failed(why) => Word::Failed(why),
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{UInt16Array, UInt32Array};

    use super::*;

    #[test]
    fn words_come_out_as_they_went_in() {
        let columns: [(&str, ArrayRef); 2] =
            [("slot", Arc::new(UInt32Array::from(vec![0]))), ("key_group", Arc::new(UInt16Array::from(vec![3])))];
        let columns = columns.map(|(name, column)| (name, column, false));
        let frame = StateFrame::new("sum", 1, RecordBatch::try_from_iter_with_nullable(columns).unwrap());
        let state = PartitionState { position: Some("7".into()), newest_us: Some(-1) };
        let snapshot = StageSnapshot {
            partitions: Some(vec![state, PartitionState::default()]),
            sink: None,
            reached_us: Some(i64::MIN),
            has_ended: true,
        };
        let figures = GuestFigures { rows_in: u64::MAX, refused: [1; Reason::ALL.len()], ..GuestFigures::default() };
        let words = [
            Word::State { operator: 1, part: 2, frame },
            Word::Begin { parts: 3, snapshot: snapshot.clone(), rows_max: 4 },
            Word::Begun,
            Word::Barrier(u64::MAX),
            Word::GoOn(5),
            Word::Durable,
            Word::Others(i64::MAX),
            Word::Reached(SourceTime::Active(6)),
            Word::Reached(SourceTime::Idle(7)),
            Word::Reached(SourceTime::Ended),
            Word::Captured { barrier: 8, parts: 0, snapshot },
            Word::Figures(figures),
            Word::Failed("why".into()),
        ];
        let words = words.into_iter().chain(Phase::ALL.map(Word::Phase));
        for word in words {
            let row = row_of(&word).unwrap();
            assert_eq!(format!("{:?}", word_of(&row).unwrap()), format!("{word:?}"));
            assert!(Control::read(&row).is_err());
        }
        let row = Control::Held { ticket: u64::MAX }.row();
        assert_eq!(Control::read(&row), Ok(Control::Held { ticket: u64::MAX }));
        assert!(word_of(&row).is_err() && word_of(&Element::End).is_err());
    }
}
