//! A piece: a named part of the state.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// A named part of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub(super) name: String,
    /// Whether the piece is applied after the earlier pieces of its name, instead of replacing them.
    pub(super) is_delta: bool,
    pub(super) bytes: Bytes,
    /// XXH3, 64 bits, of the bytes.
    pub(super) checksum: u64,
}

impl Piece {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The checksum of its bytes.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// A piece that replaces all earlier pieces of its name.
    pub fn whole(name: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        let (name, bytes) = (name.into(), bytes.into());
        Self { name, is_delta: false, checksum: xxh3_64(&bytes), bytes }
    }

    /// A piece that is applied after the earlier pieces of its name.
    pub fn delta(name: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        Self { is_delta: true, ..Self::whole(name, bytes) }
    }
}
