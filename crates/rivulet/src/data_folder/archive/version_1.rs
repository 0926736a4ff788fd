//! The form of backups before they were tars. It is only read.
//!
//! ```text
//! mark (8 bytes)
//! of each file: length of its name (2), name, length (8), bytes, checksum (8)
//! 0 (2), number of files (8)
//! ```
//!
//! Numbers are little-endian, checksums XXH3 with 64 bits over name and bytes.

use xxhash_rust::xxh3::Xxh3;

use super::error::{ArchiveError, Contents};
use super::unpack::Unpacking;

pub(super) const MARK: &[u8; 8] = b"RVBACK01";

pub(super) fn read(mut from: Unpacking<'_>) -> Result<Contents, ArchiveError> {
    from.take(MARK.len())?;
    let mut files = 0;
    loop {
        let length = from.number(2)? as usize;
        if length == 0 {
            break;
        }
        let name = String::from_utf8(from.take(length)?).map_err(|_| from.damaged("a name in it is no text"))?;
        let bytes = from.number(8)?;
        let mut hash = Xxh3::new();
        hash.update(name.as_bytes());
        from.unpack(&name, bytes, &mut hash)?;
        if from.number(8)? != hash.digest() {
            return Err(from.damaged(&format!("the checksum of {name} is wrong")));
        }
        files += 1;
    }
    if from.number(8)? != files {
        return Err(from.damaged("files are missing"));
    }
    from.end()
}
