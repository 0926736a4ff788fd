//! Disk space of the data folder that is reserved for a start. Without it, a server that was killed when its disk was
//! full could not open its catalog, or could open it and write nothing, until a user made space.
//!
//! The reserve is a file without content. If the disk is full, a start gives back half of it: the log may take what
//! that start does not need, and the next start should find some space as well. The reserve is made anew when there is
//! space for several times its size.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::attempts::Attempts;
use super::threads::Threads;
use crate::catalog::Catalog;

/// The size of the reserve.
const BYTES: u64 = 16 << 20;

/// What a start needs. If half of the reserve is less than this, all of it is given back.
const BYTES_MIN: u64 = 1 << 20;

/// The reserve is made if this many times its size are free.
const ROOM: u64 = 4;

const FILE: &str = "reserve";

/// How often the thread checks whether the catalog can be written, and whether there is space for the reserve.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
const KEEP_PERIOD: Duration = Duration::from_secs(10);

/// The pause before the second attempt to write the catalog.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Gives back half of the reserve if the disk is full. To be called before anything in the folder is opened.
pub(super) fn give_back(folder: &Path) {
    let path = folder.join(FILE);
    let (Ok(reserve), Some(free)) = (std::fs::metadata(&path), free_bytes(folder)) else { return };
    if free >= BYTES_MIN || reserve.len() == 0 {
        return;
    }
    let left = if reserve.len() / 2 < BYTES_MIN { 0 } else { reserve.len() / 2 };
    match OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(left)) {
        Ok(()) => tracing::error!(
            given_back = reserve.len() - left,
            left,
            "the disk of {} is full; the server starts with what was kept for that\nhint: free space on the disk",
            folder.display()
        ),
        Err(error) => tracing::error!("{} cannot be given back on a full disk: {error}", path.display()),
    }
}

/// Makes the reserve, or the missing part of it, if there is enough space.
pub(super) fn keep(folder: &Path) {
    let path = folder.join(FILE);
    let before = std::fs::metadata(&path).map_or(0, |reserve| reserve.len());
    if before >= BYTES || free_bytes(folder).is_none_or(|free| free < ROOM * BYTES) {
        return;
    }
    if let Err(error) = make(&path) {
        tracing::debug!("no room is kept in {}: {error}", folder.display());
        // A file that takes up no space is no reserve.
        let _ = match before {
            0 => std::fs::remove_file(&path),
            _ => OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(before)),
        };
    }
}

/// Starts a thread that watches the disk. It keeps the reserve, and writes a catalog again that could not be written
/// because the disk was full. Otherwise clients that wait for this server to be ready would make no changes, and so
/// nothing would write the catalog.
pub(super) fn watch(folder: &Path, catalog: &Arc<Catalog>, threads: &Arc<Threads>) -> io::Result<()> {
    let (folder, catalog) = (folder.to_owned(), catalog.clone());
    let (mut kept, mut attempts) = (Instant::now(), None);
    threads.start("rivulet-disk", LOOK_PERIOD, move || {
        if kept.elapsed() >= KEEP_PERIOD {
            kept = Instant::now();
            keep(&folder);
        }
        if catalog.check_writable().is_ok() {
            attempts = None;
            return;
        }
        let attempts = attempts.get_or_insert_with(|| Attempts::after(PAUSE_MIN));
        if attempts.is_due()
            && let Err(error) = catalog.try_to_write()
        {
            attempts.fail(&error.to_string(), PAUSE_MIN);
        }
    })
}

fn make(path: &Path) -> io::Result<()> {
    let file: File = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    #[cfg(target_os = "linux")]
    nix::fcntl::posix_fallocate(&file, 0, BYTES as i64)?;
    #[cfg(not(target_os = "linux"))]
    std::io::Write::write_all(&mut &file, &vec![0; BYTES as usize])?;
    Ok(())
}

/// The free space on the disk of a folder; `None` if it is unknown.
pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = nix::sys::statvfs::statvfs(folder).ok()?;
    #[allow(clippy::useless_conversion)] // Not everywhere are these of one type.
    u64::from(disk.blocks_available()).checked_mul(u64::from(disk.fragment_size()))
}
