//! Cuts files into pieces, so that partitions read in parallel and stay near each other in time.
//!
//! Reader `i` of `n` takes the pieces `i`, `i + n`, `i + 2n` and so on. So adjacent rows are read at about the same
//! time, and no reader runs far ahead in event time: windows stay open no longer than a piece takes.
//!
//! Rows without a time are read file by file, in the order of their names, as if all were one ([`deal`]). If rows have
//! a time, each file is a partition of its own ([`deal_by_file`]): the files of several sensors cover the same hours,
//! and progress in one file must not make rows of another late.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A piece of a file of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// The file.
    pub(super) path: Arc<PathBuf>,
    /// The byte at which it begins.
    pub(super) start: u64,
    /// The byte at which it ends. Lines that begin before it belong to the piece. It is `u64::MAX` in the last piece of
    /// a file, to include what is added meanwhile.
    pub(super) end: u64,
    /// The number of its bytes, for progress.
    pub(super) bytes: u64,
}

/// A piece as a checkpoint stores it: path, beginning, end if it has one, and bytes.
pub(super) type ChunkText = (PathBuf, u64, Option<u64>, u64);

impl Chunk {
    /// The rest of it when everything before this byte has been read.
    pub(super) fn from(&self, offset: u64) -> Self {
        let start = offset.max(self.start);
        let bytes = self.bytes.saturating_sub(start - self.start);
        Self { path: self.path.clone(), start, end: self.end, bytes }
    }

    pub(super) fn to_text(&self) -> ChunkText {
        ((*self.path).clone(), self.start, (self.end != u64::MAX).then_some(self.end), self.bytes)
    }

    pub(super) fn of_text((path, start, end, bytes): ChunkText) -> Self {
        Self { path: Arc::new(path), start, end: end.unwrap_or(u64::MAX), bytes }
    }
}

/// The size of the pieces of files of lines. It bounds how far a partition is ahead of another, and several pieces for
/// each partition balance their work.
pub(super) const CHUNK_BYTES: u64 = 4 << 20;

/// Cuts files of lines. With `None` they stay whole, because the ends of lines can only be found from the beginning.
pub(super) fn cut_lines(paths: Vec<PathBuf>, chunk_bytes: Option<u64>) -> io::Result<Vec<Chunk>> {
    let mut chunks = Vec::new();
    for path in paths {
        let length = std::fs::metadata(&path)?.len();
        let path = Arc::new(path);
        let size = chunk_bytes.unwrap_or(u64::MAX);
        let mut start = 0;
        loop {
            let bytes = size.min(length - start);
            let is_last = start + bytes == length;
            let end = if is_last { u64::MAX } else { start + bytes };
            chunks.push(Chunk { path: path.clone(), start, end, bytes });
            start += bytes;
            if is_last {
                break;
            }
        }
    }
    Ok(chunks)
}

/// A piece of a file, or all of it.
pub(super) trait Piece {
    /// The file.
    fn path(&self) -> &Path;

    /// The number of its bytes.
    fn bytes(&self) -> u64;
}

impl Piece for Chunk {
    fn path(&self) -> &Path {
        &self.path
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A file that is not cut. Its size is not looked up.
impl Piece for PathBuf {
    fn path(&self) -> &Path {
        self
    }

    fn bytes(&self) -> u64 {
        0
    }
}

/// Deals the pieces so that no partition has pieces of two files. Files that are a large part of all bytes are dealt to
/// `readers` adjacent partitions; the others have one each.
pub(super) fn deal_by_file<C: Piece>(pieces: Vec<C>, readers: usize) -> Vec<Vec<C>> {
    let all: u64 = pieces.iter().map(C::bytes).sum();
    let is_large = |bytes: u64| bytes > all / (2 * readers.max(1) as u64);
    let mut partitions = Vec::new();
    let mut pieces = pieces.into_iter().peekable();
    while let Some(first) = pieces.next() {
        let mut of_file = vec![first];
        while let Some(next) = pieces.next_if(|next| next.path() == of_file[0].path()) {
            of_file.push(next);
        }
        let bytes = of_file.iter().map(C::bytes).sum();
        partitions.extend(deal(of_file, if is_large(bytes) { readers } else { 1 }));
    }
    partitions
}

/// Deals the pieces to at most `partitions` partitions; each gets at least one, if there is one.
pub(super) fn deal<C>(chunks: Vec<C>, partitions: usize) -> Vec<Vec<C>> {
    let partitions = partitions.min(chunks.len()).max(1);
    let mut dealt: Vec<Vec<C>> = (0..partitions).map(|_| Vec::new()).collect();
    for (index, chunk) in chunks.into_iter().enumerate() {
        dealt[index % partitions].push(chunk);
    }
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_a_partition_and_a_large_one_several() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = [3_usize, 95, 1, 1]
            .into_iter()
            .enumerate()
            .map(|(index, length)| {
                let path = folder.path().join(index.to_string());
                std::fs::write(&path, vec![b'x'; length]).unwrap();
                path
            })
            .collect();
        let chunks = cut_lines(paths, Some(10)).unwrap();
        let dealt = deal_by_file(chunks, 4);
        assert_eq!(dealt.iter().map(Vec::len).collect::<Vec<_>>(), [1, 3, 3, 2, 2, 1, 1]);
        let starts: Vec<u64> = dealt[1].iter().map(|chunk| chunk.start).collect();
        assert_eq!(starts, [0, 40, 80]);
        assert!(dealt.iter().all(|partition| partition.iter().all(|chunk| chunk.path == partition[0].path)));
    }

    #[test]
    fn pieces_cover_every_byte_once() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = [0_usize, 1, 10, 25]
            .into_iter()
            .map(|length| {
                let path = folder.path().join(length.to_string());
                std::fs::write(&path, vec![b'x'; length]).unwrap();
                path
            })
            .collect();
        let chunks = cut_lines(paths, Some(10)).unwrap();
        let ranges: Vec<_> = chunks.iter().map(|chunk| (chunk.start, chunk.end, chunk.bytes)).collect();
        let end = u64::MAX;
        assert_eq!(ranges, [(0, end, 0), (0, end, 1), (0, end, 10), (0, 10, 10), (10, 20, 10), (20, end, 5)]);
        let dealt = deal(chunks.clone(), 4);
        assert_eq!(dealt.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1, 1]);
        assert_eq!(dealt[0], [chunks[0].clone(), chunks[4].clone()]);
        assert_eq!(deal(chunks, 100).len(), 6);
        assert_eq!(deal(Vec::<u8>::new(), 3), [Vec::<u8>::new()]);
    }
}
