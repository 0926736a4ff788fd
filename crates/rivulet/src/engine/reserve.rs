//! Room on the disk of the data folder that is kept for a start. A server that was killed when its disk was full could
//! not open its catalog, or could and write nothing, until somebody made room.
//!
//! The reserve is a file without contents, of which a start gives back half when the disk is full: what that start does
//! not need the log may take, and the next start is to find some room as well. It is made anew when there is room for
//! several of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::attempts::Attempts;
use super::threads::Threads;
use crate::catalog::Catalog;

/// How large it is.
const BYTES: u64 = 16 << 20;

/// A start needs so much, and half of less is all of it.
const BYTES_MIN: u64 = 1 << 20;

/// It is made where so many times its size are free.
const ROOM: u64 = 4;

const FILE: &str = "reserve";

/// How often it is looked whether the catalog can be written, and whether there is room for the reserve.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
const KEEP_PERIOD: Duration = Duration::from_secs(10);

/// The pause before the catalog is written the second time.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Before anything in the folder is opened: gives back half of the reserve if the disk is full.
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

/// Makes the reserve, or what is missing of it, if there is room enough.
pub(super) fn keep(folder: &Path) {
    let path = folder.join(FILE);
    let before = std::fs::metadata(&path).map_or(0, |reserve| reserve.len());
    if before >= BYTES || free_bytes(folder).is_none_or(|free| free < ROOM * BYTES) {
        return;
    }
    if let Err(error) = make(&path) {
        tracing::debug!("no room is kept in {}: {error}", folder.display());
        // What takes up no room is no reserve.
        let _ = match before {
            0 => std::fs::remove_file(&path),
            _ => OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(before)),
        };
    }
}

/// Has a thread look after the disk: room for a start is kept, and a catalog that could not be written because the disk
/// was full is written again, for whoever waits for this server to be ready makes no changes that would.
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

/// How much may be written to the disk of a folder; `None` if it does not say.
fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = nix::sys::statvfs::statvfs(folder).ok()?;
    #[allow(clippy::useless_conversion)] // Not everywhere are these of one type.
    u64::from(disk.blocks_available()).checked_mul(u64::from(disk.fragment_size()))
}
