//! The nouns of Rivulet: what flows, what processes it, and the rules both keep.
//!
//! Everything above this crate is written against these types: an operator runs unchanged in a worker thread,
//! in a test that steps it by hand, in a simulation, or inside another host.
//!
//! The invariant of this crate is an absence: there is no thread, no socket, no file and no clock here, only the
//! traits behind which they stand.
//!
//! In reading order:
//! - [`element`]: what an edge carries ([`Element`], [`Batch`]);
//! - [`slots`]: the table of queries of a group ([`SlotTable`]), parameters as columns;
//! - [`fetch`](mod@fetch): memory that is asked for before it is needed ([`fetch_ahead`]);
//! - [`operator`]: the [`Operator`] trait and its [`Context`];
//! - [`chain`]: operators one behind the other ([`Chain`]);
//! - [`graph`]: a [`Line`] or [`Dataflow`] of operators, as planned and as explained;
//! - [`source`]: where the rows of a big query come from ([`Source`]);
//! - [`sink`]: where results go ([`Sink`], [`TransactionalSink`], [`GroupSink`]);
//! - [`address`]: what an operator with state does, by which saved state finds it ([`Address`]);
//! - [`state`]: state as a versioned Arrow frame, selected by slot or by key group;
//! - [`state_by_key`]: state that is encoded in parts ([`StateByKey`]);
//! - [`state_map`]: whose state the operators of a new version take over ([`StateMap`], [`FlowMap`]);
//! - [`state_signature`]: whether two operators have the same state ([`StateSignature`]);
//! - [`stage`]: which operators run together, and what steps them;
//! - [`snapshot`]: what a dataflow holds at one moment, put together and divided again;
//! - [`key_group`]: the hash ranges in which state is saved, moved and rescaled, and [`key_hash`]: the hash of columns;
//! - [`float`]: one zero and one NaN;
//! - [`json`]: the mark of columns that hold JSON as text;
//! - [`event`]: raw events as a source received them, and the trait of inboxes;
//! - [`hold`]: one waking for several pieces of work;
//! - [`decoder`]: what makes rows of them;
//! - [`picked`] and [`chunk`]: rows that several queries read, and events that are processed as one batch;
//! - [`slot_host`]: what steps the queries of a group;
//! - [`refusal`] and [`refusals`]: what happens to a row that cannot be processed: counted, and sent aside with its
//!   reason;
//! - [`tally`]: what becomes of the events of a few slots, for people who ask;
//! - [`times`]: times and spans of time in words;
//! - [`clock`]: time, as a trait.

pub mod element;
pub mod slots;
pub mod fetch;
pub mod operator;
pub mod chain;
pub mod graph;
pub mod source;
pub mod sink;
pub mod address;
pub mod state;
pub mod state_by_key;
pub mod state_map;
pub mod state_signature;
pub mod stage;
pub mod snapshot;
pub mod key_group;
pub mod key_hash;
pub mod float;
pub mod json;
pub mod event;
pub mod hold;
pub mod decoder;
pub mod picked;
pub mod chunk;
pub mod slot_host;
pub mod refusal;
pub mod refusals;
pub mod tally;
pub mod times;
pub mod clock;
pub mod suggest;

pub use address::Address;
pub use chain::{Chain, Cut, Surroundings};
pub use chunk::Chunk;
pub use clock::{Clock, Leaps, ManualClock};
pub use decoder::Decoder;
pub use element::{Batch, Control, Element, LogPosition, SlotClock};
pub use event::{Event, Events, Inbox, InputIndex, LoggedEvent, Push};
pub use fetch::{fetch, fetch_ahead};
pub use float::{canonical_float, canonical_floats};
pub use graph::{Dataflow, Description, Edge, EdgeKind, Fuse, Line, Node, NodeId, OperatorFactory, Work};
pub use json::{
    any_json, common_marks, element_field, element_type, held_type, is_json, map_of, map_value, marked_as,
    marked_as_array, marked_as_json, marked_as_map, marked_as_row, member_field, part_field, unmarked,
};
pub use key_group::{KeyGroup, KeyGroups, KeyHash};
pub use key_hash::{hash_keys, is_key_type};
pub use operator::{
    Call, Context, Fault, HELD_KEYS_MAX, Holding, Operator, OperatorError, Watched, Watcher, panic_text,
};
pub use picked::Picked;
pub use refusal::{Reason, Refusal, Refused};
pub use refusals::{Refusals, Seconds, Waits};
pub use sink::{GroupSink, Sink, SinkError, TransactionalSink};
pub use slot_host::SlotHost;
pub use slots::{QueryId, SLOTS_MAX, Slot, SlotTable};
pub use snapshot::{CollectedState, Snapshot, StatePart, StateSink};
pub use source::{Polled, Source, SourceError, carried, carried_type};
pub use stage::{PartitionState, StageSnapshot};
pub use state::{StateError, StateFrame, StateSelection};
pub use state_by_key::StateByKey;
pub use state_map::{FlowMap, StateMap};
pub use state_signature::StateSignature;
pub use tally::{Came, Tallies, Tally, Values};
