//! The form of a backup: a tar, so that `tar -tf` lists it and `tar -xf` unpacks it.
//!
//! ```text
//! rivulet-backup.json    {"version":2}, or 3 where there are secrets
//! catalog.redb, what is in checkpoints, log and mqtt, and secrets
//! manifest.json          name, bytes and checksum (XXH3, 64 bits) of each of these files
//! ```
//!
//! The manifest comes last: checksums are made while the files are written. Headers are ustar, so a name has at most
//! 255 bytes. The size of a file of 8 GiB or more does not fit into the digits of such a header: it is written in base
//! 256, an extension of GNU tar that the other common programs read as well.
//!
//! What must hold: a reader accepts exactly the bytes that a writer makes from the same files. So every byte that was
//! changed, is missing or was added is found, in headers and padding too, and no link, device or folder is made.
//!
//! Backups of the version before have another form: [`version_1`].

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rivulet_storage::Store;
use serde::{Deserialize, Serialize};
use tar::{EntryType, Header};
use xxhash_rust::xxh3::Xxh3;

use super::error::{ArchiveError, Contents, failed};
use super::unpack::{Unpacking, copy};
use super::version_1;
use crate::catalog::OWNER_ONLY;
use crate::data_folder::SECRETS;

/// The version that is written.
pub const VERSION: u64 = 2;

/// The version that is written where there are secrets, which readers of the version before do not expect.
const VERSION_WITH_SECRETS: u64 = 3;

/// The first file of a backup, which has its version.
const HEAD_NAME: &str = "rivulet-backup.json";

/// The most bytes of the first file; that of a later version may have more content.
const HEAD_BYTES_MAX: u64 = 4096;

/// The last file of a backup.
const MANIFEST_NAME: &str = "manifest.json";

/// The size of a block of a tar.
const BLOCK_BYTES: usize = 512;

const ZEROS: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];

/// The most bytes of an object that are read at once.
const OBJECT_PART_BYTES: u64 = 8 << 20;

/// A file that is to be in a backup.
#[derive(Debug)]
pub(super) struct Source {
    /// Its name in the backup.
    pub(super) name: String,
    /// The number of its bytes that count: a file that is being written may have more by now.
    pub(super) bytes: u64,
    pub(super) origin: Origin,
}

/// Where it is now.
#[derive(Debug)]
pub(super) enum Origin {
    File(std::path::PathBuf),
    /// An object of this name.
    Object(Arc<Store>, String),
}

#[derive(Serialize, Deserialize)]
struct Head {
    version: u64,
}

impl Head {
    fn json(version: u64) -> Vec<u8> {
        to_json(&Self { version })
    }
}

/// The files of a backup, in their order.
#[derive(Default, PartialEq, Serialize, Deserialize)]
struct Manifest {
    files: Vec<Entry>,
}

#[derive(PartialEq, Serialize, Deserialize)]
struct Entry {
    name: String,
    bytes: u64,
    /// As 16 digits.
    xxh3: String,
}

impl Manifest {
    fn add(&mut self, name: &str, bytes: u64, hash: &Xxh3) {
        self.files.push(Entry { name: name.to_owned(), bytes, xxh3: format!("{:016x}", hash.digest()) });
    }
}

fn to_json(part: &impl Serialize) -> Vec<u8> {
    let mut json = serde_json::to_vec(part).expect("numbers and texts are JSON");
    json.push(b'\n');
    json
}

/// The header of a file; an error for a name that does not fit.
fn header(name: &str, bytes: u64, made_at_s: u64) -> io::Result<Header> {
    let mut header = Header::new_ustar();
    header.set_path(name)?;
    header.set_entry_type(EntryType::Regular);
    header.set_mode(OWNER_ONLY);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(bytes);
    header.set_mtime(made_at_s);
    header.set_cksum();
    Ok(header)
}

/// The padding of the last block of a file of this size.
fn padding(bytes: u64) -> &'static [u8] {
    let last = (bytes % BLOCK_BYTES as u64) as usize;
    &ZEROS[..if last == 0 { 0 } else { BLOCK_BYTES - last }]
}

/// Writes a backup.
pub(super) fn write(sources: &[Source], out: &mut dyn Write) -> Result<Contents, ArchiveError> {
    let cannot_write = |source| ArchiveError::Io { what: "cannot write the backup".into(), source };
    let made_at_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let small = |out: &mut dyn Write, name: &str, json: &[u8]| {
        out.write_all(header(name, json.len() as u64, made_at_s)?.as_bytes())?;
        out.write_all(json)?;
        out.write_all(padding(json.len() as u64))
    };
    let has_secrets = sources.iter().any(|source| source.name == SECRETS);
    let version = if has_secrets { VERSION_WITH_SECRETS } else { VERSION };
    small(out, HEAD_NAME, &Head::json(version)).map_err(cannot_write)?;
    let (mut contents, mut manifest) = (Contents::default(), Manifest::default());
    for Source { name, bytes, origin } in sources {
        header(name, *bytes, made_at_s).and_then(|header| out.write_all(header.as_bytes())).map_err(cannot_write)?;
        let mut hash = Xxh3::new();
        match origin {
            Origin::File(path) => {
                let mut file = File::open(path).map_err(failed("cannot read", path))?;
                copy(&mut file, out, *bytes, &mut hash).map_err(failed("cannot copy", path))?;
            }
            Origin::Object(store, object) => {
                let mut at = 0;
                while at < *bytes {
                    let part = store.read(object, at..(at + OBJECT_PART_BYTES).min(*bytes))?;
                    hash.update(&part);
                    out.write_all(&part).map_err(cannot_write)?;
                    at += part.len() as u64;
                }
            }
        }
        out.write_all(padding(*bytes)).map_err(cannot_write)?;
        manifest.add(name, *bytes, &hash);
        contents.files += 1;
        contents.bytes += bytes;
    }
    small(out, MANIFEST_NAME, &to_json(&manifest)).map_err(cannot_write)?;
    out.write_all(&ZEROS).and_then(|()| out.flush()).map_err(cannot_write)?;
    Ok(contents)
}

/// Reads a backup to its end, and makes its files in a new folder, if one is given.
pub(super) fn read(file: &Path, to: Option<&Path>) -> Result<Contents, ArchiveError> {
    let mut from = Unpacking::open(file, to)?;
    if from.starts_with(version_1::MARK)? {
        return version_1::read(from);
    }
    let (name, bytes, is_ours) = read_header(&mut from)?;
    if name != HEAD_NAME || bytes > HEAD_BYTES_MAX {
        return Err(from.damaged("it does not begin as one does"));
    }
    let head = from.take(bytes as usize)?;
    match serde_json::from_slice(&head) {
        Ok(Head { version }) if version > VERSION_WITH_SECRETS => {
            let (path, known) = (file.to_path_buf(), VERSION_WITH_SECRETS);
            return Err(ArchiveError::LaterVersion { path, found: version, known });
        }
        Ok(Head { version }) if version >= VERSION && head == Head::json(version) && is_ours => {
            read_padding(&mut from, bytes)?;
        }
        _ => return Err(from.damaged("it does not begin as one does")),
    }
    let mut manifest = Manifest::default();
    loop {
        let (name, bytes, is_ours) = read_header(&mut from)?;
        if !is_ours {
            return Err(from.damaged("there is no header where one should be"));
        }
        if name == MANIFEST_NAME {
            break read_manifest(&mut from, bytes, &manifest)?;
        }
        let mut hash = Xxh3::new();
        from.unpack(&name, bytes, &mut hash)?;
        read_padding(&mut from, bytes)?;
        manifest.add(&name, bytes, &hash);
    }
    from.end()
}

/// Returns the name and size in a header, and whether it is a header of this version: each byte is as this version
/// writes it.
fn read_header(from: &mut Unpacking<'_>) -> Result<(String, u64, bool), ArchiveError> {
    let block = from.take(BLOCK_BYTES)?;
    let found = Header::from_byte_slice(&block);
    let name = String::from_utf8_lossy(&found.path_bytes()).into_owned();
    let (bytes, made_at_s) = (found.entry_size().unwrap_or(0), found.mtime().unwrap_or(0));
    let is_ours = header(&name, bytes, made_at_s).is_ok_and(|ours| ours.as_bytes()[..] == block[..]);
    Ok((name, bytes, is_ours))
}

fn read_padding(from: &mut Unpacking<'_>, bytes: u64) -> Result<(), ArchiveError> {
    match from.take(padding(bytes).len())?.iter().all(|&byte| byte == 0) {
        true => Ok(()),
        false => Err(from.damaged("there is something between two files")),
    }
}

/// Reads the manifest and what follows it. `ours` has the files as they were found.
fn read_manifest(from: &mut Unpacking<'_>, bytes: u64, ours: &Manifest) -> Result<(), ArchiveError> {
    let expected = to_json(ours);
    if bytes != expected.len() as u64 {
        return Err(from.damaged("its manifest has other files"));
    }
    let found = from.take(expected.len())?;
    if found != expected {
        let theirs = serde_json::from_slice::<Manifest>(&found).map(|manifest| manifest.files).unwrap_or_default();
        let differs = theirs.iter().zip(&ours.files).find(|(theirs, ours)| theirs != ours);
        return Err(from.damaged(&match differs {
            Some((_, entry)) => format!("the checksum of {} is wrong", entry.name),
            None => "its manifest has other files".to_owned(),
        }));
    }
    read_padding(from, bytes)?;
    match from.take(ZEROS.len())? == ZEROS {
        true => Ok(()),
        false => Err(from.damaged("it does not end as one does")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_file_is_in_its_header_however_large_it_is() {
        const DIGITS_MAX: u64 = (8 << 30) - 1;
        for (bytes, is_in_digits) in [(0, true), (DIGITS_MAX, true), (DIGITS_MAX + 1, false), (1 << 45, false)] {
            let header = header("log/1", bytes, 7).unwrap();
            assert_eq!(header.entry_size().unwrap(), bytes);
            assert_eq!(header.as_bytes()[124] < 0x80, is_in_digits, "{bytes}");
        }
    }

    #[test]
    fn a_large_file_is_listed_by_tar() {
        let place = tempfile::tempdir().unwrap();
        let (file, bytes) = (place.path().join("backup"), 8_u64 << 30);
        // A hole in place of the content.
        let mut tar = File::create(&file).unwrap();
        tar.write_all(header("log/1", bytes, 7).unwrap().as_bytes()).unwrap();
        tar.set_len(BLOCK_BYTES as u64 + bytes + ZEROS.len() as u64).unwrap();
        let listed = std::process::Command::new("tar").arg("-tvf").arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&listed.stdout);
        assert!(listed.status.success() && text.contains(&bytes.to_string()), "{listed:?}");
    }
}
