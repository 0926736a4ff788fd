//! What both halves of a task that runs elsewhere hold: its *front* with the flow, and the *guest*, which runs its
//! operators.
//!
//! Elements travel as streams: to the guest one for each input of its first operator, back one with its output. Words
//! are a stream of their own in each direction. A stream keeps its order and gives each thing once; two streams are in
//! no order to each other.

use rivulet_dataflow::{Element, Reason, StageSnapshot, StateError, StateFrame};

use super::idleness::SourceTime;
use super::state::Phase;

/// Makes a task check whether it can go on. It never waits, and may be called at any time.
pub type Waker = std::sync::Arc<dyn Fn() + Send + Sync>;

/// The streams to the other half of a task. No call waits for the other half.
///
/// The holder is woken by its [`Waker`] when something has come, and when there is room again behind a
/// [`Pipe::has_room`] that found none. When the other half is lost, the holder is woken, the pipe has room, and
/// [`Pipe::take`] and [`Pipe::heard`] fail from then on.
pub trait Pipe: Send + Sync {
    /// Whether another element may be pushed. Words need no room.
    fn has_room(&self) -> bool;

    /// Sends an element: to the guest along the stream of this input, to the front along stream 0.
    ///
    /// # Errors
    /// The other half is lost, or the element cannot be encoded.
    fn push(&self, channel: usize, element: &Element) -> Result<(), PipeError>;

    /// The next element that has come, with its stream.
    ///
    /// # Errors
    /// The other half is lost, or what came is no element.
    fn take(&self) -> Result<Option<(usize, Element)>, PipeError>;

    /// Says a word.
    ///
    /// # Errors
    /// As [`Pipe::push`].
    fn say(&self, word: Word) -> Result<(), PipeError>;

    /// The next word that has come.
    ///
    /// # Errors
    /// As [`Pipe::take`].
    fn heard(&self) -> Result<Option<Word>, PipeError>;

    /// Whether an element or a word has come, or a failure that the next call will tell.
    fn has_some(&self) -> bool;

    /// Sends on what was pushed and said so far. Called at the end of each activation.
    fn flush(&self);
}

/// Why a pipe is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PipeError {
    /// The other half is gone.
    #[error("{0}")]
    Lost(String),
    /// Something that does not belong into this pipe.
    #[error("{0}")]
    Wrong(String),
}

/// What the halves of a task tell each other beside elements.
#[derive(Clone, Debug)]
pub enum Word {
    /// Both ways: state of the operator with this index in the stage. Part by part, as `Chain::export_parts` gives it.
    State {
        /// The index of the operator.
        operator: usize,
        /// The index of the range of key groups.
        part: usize,
        /// The state.
        frame: StateFrame,
    },
    /// To the guest, behind so many [`Word::State`]: it begins there. It exports state in parts of up to `rows_max`
    /// rows.
    Begin {
        /// The number of parts of state.
        parts: usize,
        /// Where it begins, with the positions of its partitions if it reads a source.
        snapshot: StageSnapshot,
        /// Rows of a part of the state that it exports.
        rows_max: usize,
    },
    /// To the front: the guest runs, and has opened its partitions.
    Begun,
    /// To a guest with a source: it rests and sends this barrier.
    Barrier(u64),
    /// To the guest: the checkpoint of this barrier has its state, or was abandoned.
    GoOn(u64),
    /// To a guest with a source: the newest checkpoint with its positions is durable.
    Durable,
    /// To a guest with a source: whether it is to read. Until the first it does not. How the flow ends it never hears:
    /// it comes home before.
    Phase(Phase),
    /// To a guest with a source: the time that it goes on to while it is idle, microseconds since the epoch.
    Others(i64),
    /// To the front, of a guest with a source that is or was idle, or has ended: how far it has come. Otherwise its
    /// watermark tells that.
    Reached(SourceTime),
    /// To the front, behind so many [`Word::State`]: the state at this barrier. The barrier itself comes as an element
    /// behind all output before it.
    Captured {
        /// The barrier.
        barrier: u64,
        /// The number of parts of state.
        parts: usize,
        /// The rest of the snapshot, with the positions of its partitions if it reads a source.
        snapshot: StageSnapshot,
    },
    /// To the front, now and then: what the guest has done since it began.
    Figures(GuestFigures),
    /// To the front: the guest has failed, which is a loss of the guest. What fails by the query's own code fails again
    /// where the flow goes on, at home.
    Failed(String),
}

/// What a guest has done since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestFigures {
    /// Rows that it took or read.
    pub rows_in: u64,
    /// Rows that it gave.
    pub rows_out: u64,
    /// How long it was running, microseconds.
    pub busy_us: u64,
    /// State of its operators, bytes.
    pub state_bytes: u64,
    /// Rows that it refused, by [`Reason`].
    pub refused: [u64; Reason::ALL.len()],
}

/// Parts of a state: operator, part and frame of each [`Word::State`].
pub type Frames = Vec<(usize, usize, StateFrame)>;

/// State that has come in parts ([`Word::State`]), for each of so many operators.
///
/// # Errors
/// State of an operator that there is not, or of different operators in one place.
pub(super) fn whole(operators: usize, parts: Frames) -> Result<Vec<Option<StateFrame>>, StateError> {
    let mut frames = vec![Vec::new(); operators];
    for (operator, _, frame) in parts {
        let missing = || StateError::Mismatch(format!("state of operator {operator} of {operators}"));
        frames.get_mut(operator).ok_or_else(missing)?.push(frame);
    }
    frames.iter().map(|frames| StateFrame::concat(frames)).collect()
}
