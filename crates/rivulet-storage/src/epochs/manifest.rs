//! The manifest of an epoch: which packs it needs, and which of their pieces are live.
//!
//! It is one line of JSON and a line with its checksum (XXH3, 64 bits, in hexadecimal digits).

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::pack::Used;
use crate::StorageError;

/// The format written by this version. Raise it with every change that older versions would misread.
const FORMAT: u32 = 1;

const ENDING: &str = "manifest";

/// The content of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) epoch: u64,
    pub(super) note: serde_json::Value,
    pub(super) packs: Vec<Used>,
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    format: u32,
    #[serde(flatten)]
    manifest: T,
}

#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

/// The name of the manifest of an epoch.
pub(super) fn name(line: &str, epoch: u64) -> String {
    format!("{line}/{epoch:012}.{ENDING}")
}

/// The epoch whose manifest has this name.
pub(super) fn number_of(line: &str, name: &str) -> Option<u64> {
    super::pack::number_with_ending(line, name, ENDING)
}

impl Manifest {
    pub(super) fn to_bytes(&self) -> Bytes {
        let mut bytes = serde_json::to_vec(&Versioned { format: FORMAT, manifest: self })
            .expect("numbers, texts and values are always JSON");
        let checksum = xxh3_64(&bytes);
        bytes.extend_from_slice(format!("\n{checksum:016x}\n").as_bytes());
        bytes.into()
    }

    /// Decodes the output of [`Manifest::to_bytes`], read from the object `name`.
    pub(super) fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self, StorageError> {
        let damaged = |detail: &str| StorageError::damaged(name, detail);
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
        let (json, checksum) =
            text.strip_suffix('\n').and_then(|text| text.split_once('\n')).ok_or_else(|| damaged("it ends early"))?;
        if u64::from_str_radix(checksum, 16).ok() != Some(xxh3_64(json.as_bytes())) {
            return Err(damaged("its checksum is wrong"));
        }
        let format: FormatOnly = serde_json::from_str(json).map_err(|error| damaged(&error.to_string()))?;
        if format.format > FORMAT {
            return Err(StorageError::Version { what: name.to_owned(), found: format.format, known: FORMAT });
        }
        let read: Versioned<Self> = serde_json::from_str(json).map_err(|error| damaged(&error.to_string()))?;
        Ok(read.manifest)
    }
}
