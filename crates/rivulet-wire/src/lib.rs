//! The form of elements between processes, and connections that carry streams of them.
//!
//! Links between servers stand on it, and all else that sends elements from one process to another: there is no second
//! form.
//!
//! The invariant of this crate is an absence: there is no socket, no clock and no thread here, and no query. Whoever
//! has them hands bytes and the time in, and takes bytes out, so that a simulation can own both.
//!
//! In reading order:
//! - [`element`]: an element as bytes ([`Encoder`], [`Decoder`]);
//! - [`compression`]: whether a buffer is compressed, and how ([`Compression`]);
//! - [`frame`]: what a connection carries, with lengths and checksums;
//! - [`connection`]: who is on the other side, and whether it lives ([`Connection`]);
//! - [`packer`]: what gathers of a stream, and a buffer of it ([`Packer`], [`Packed`]);
//! - [`outbound`]: a stream that is sent; [`inbound`]: one that is received;
//! - [`session`]: all streams between two processes, over one connection after the other ([`Session`]);
//! - [`error`]: what can be wrong ([`WireError`]).

pub mod element;
pub mod compression;
pub mod frame;
pub mod connection;
pub mod packer;
pub mod outbound;
pub mod inbound;
pub mod session;
pub mod error;

pub use compression::Compression;
pub use connection::{Connection, Hello};
pub use element::{Decoder, Encoder};
pub use error::WireError;
pub use frame::VERSION;
pub use inbound::{Buffer, ReceiveOptions};
pub use outbound::Taken;
pub use packer::{Packed, Packer, SendOptions};
pub use session::{Asked, Event, Session};

/// The number of a stream among those of the side that sends it.
pub type StreamId = u32;

/// A stream of the other side, as this side knows it: unlike its number there, this is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Received(u64);
