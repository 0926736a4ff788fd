//! The buffer in front of a socket: reads as much as is available, and packets are decoded in place.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use tokio::io::{AsyncRead, ReadBuf};

/// The size of a buffer whose connection has little traffic.
pub(crate) const IDLE_BYTES: usize = 4 << 10;

thread_local! {
    /// A buffer of [`IDLE_BYTES`] for the next connection that has something to read, or none.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// After this many reads in a row that leave most of a buffer unused, it shrinks.
const SMALL_READS_MAX: u32 = 64;

/// A read buffer that grows with the traffic (and with the largest packet) and shrinks again. While nothing comes, a
/// small one that is empty has no memory: thousands of connections wait at a time.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    /// The bytes that were read and not consumed: `bytes[start..end]`.
    start: usize,
    end: usize,
    /// How large the buffer grows because of traffic; a single packet may need more.
    read_bytes_max: usize,
    small_reads: u32,
    /// The bytes to come that nobody wants.
    passes_over: usize,
}

impl ReadBuffer {
    /// An empty buffer that reads at most `read_bytes_max` at a time.
    pub(crate) fn new(read_bytes_max: usize) -> Self {
        let read_bytes_max = read_bytes_max.max(IDLE_BYTES);
        Self { bytes: Vec::new(), start: 0, end: 0, read_bytes_max, small_reads: 0, passes_over: 0 }
    }

    /// The bytes that were read and not consumed.
    pub(crate) fn data(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Removes the first `bytes` of the data.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end, "no more is consumed than there is");
    }

    /// Removes the first `bytes` of the data, also those that have not come yet: they are not kept when they come.
    pub(crate) fn pass_over(&mut self, bytes: usize) {
        let held = bytes.min(self.end - self.start);
        self.start += held;
        self.passes_over += bytes - held;
    }

    /// The memory that it takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// From now on reads at most so much at a time, and gives back what it has beyond that and does not need.
    pub(crate) fn limit(&mut self, read_bytes_max: usize) {
        self.read_bytes_max = read_bytes_max.max(IDLE_BYTES);
        let held = self.end - self.start;
        if self.bytes.len() > self.read_bytes_max && self.bytes.len() > held {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, held);
            self.bytes.truncate(held.max(self.read_bytes_max));
            self.bytes.shrink_to_fit();
        }
    }

    /// Waits for more bytes and reads them. Returns their number; 0 means that the peer has closed the connection.
    ///
    /// The caller bounds the size of a packet: without that bound the buffer would grow until a packet is whole.
    pub(crate) async fn fill(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        self.make_room();
        let bytes = poll_fn(|context| {
            if self.bytes.is_empty() {
                self.bytes = SPARE.take();
                self.bytes.resize(IDLE_BYTES, 0);
            }
            let mut space = ReadBuf::new(&mut self.bytes[self.end..]);
            match Pin::new(&mut *reader).poll_read(context, &mut space) {
                Poll::Ready(read) => Poll::Ready(read.map(|()| space.filled().len())),
                Poll::Pending => {
                    if self.end == 0 && self.bytes.len() == IDLE_BYTES {
                        SPARE.set(std::mem::take(&mut self.bytes));
                    }
                    Poll::Pending
                }
            }
        })
        .await?;
        self.end += bytes;
        let unwanted = bytes.min(self.passes_over);
        self.start += unwanted;
        self.passes_over -= unwanted;
        Ok(bytes)
    }

    fn make_room(&mut self) {
        let held = self.end - self.start;
        // If all the space was used, there is probably more to read.
        let was_filled = self.end == self.bytes.len();
        let was_nearly_empty = self.end <= self.bytes.len() / 4;
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, held);
        }
        let size = self.bytes.len();
        if size == 0 {
            self.small_reads = 0;
        } else if was_filled && (size < self.read_bytes_max || held == size) {
            self.bytes.resize(size * 2, 0);
            self.small_reads = 0;
        } else if size > IDLE_BYTES && was_nearly_empty {
            self.small_reads += 1;
            if self.small_reads >= SMALL_READS_MAX {
                self.small_reads = 0;
                self.bytes.truncate((size / 2).max(IDLE_BYTES));
                self.bytes.shrink_to_fit();
            }
        } else {
            self.small_reads = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn grows_for_a_large_packet_and_keeps_the_bytes_in_order() {
        let sent: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        let mut reader = &sent[..];
        let mut buffer = ReadBuffer::new(8 << 10);
        while buffer.fill(&mut reader).await.unwrap() > 0 {}
        assert_eq!(buffer.data(), sent);
        buffer.consume(99_990);
        assert_eq!(buffer.data(), &sent[99_990..]);
    }

    #[tokio::test]
    async fn a_buffer_without_bytes_has_no_memory_while_it_waits() {
        let (mut sender, mut reader) = tokio::io::duplex(64 << 10);
        let mut buffer = ReadBuffer::new(8 << 10);
        let mut read = async |buffer: &mut ReadBuffer| {
            // It reads what is there before it looks at the time.
            let read = tokio::time::timeout(Duration::ZERO, buffer.fill(&mut reader)).await;
            read.ok().map(|bytes| (bytes.unwrap(), buffer.data().to_vec()))
        };
        for _ in 0..3 {
            assert_eq!((read(&mut buffer).await, buffer.memory_bytes()), (None, 0));
            sender.write_all(&[1, 2, 3]).await.unwrap();
            assert_eq!(read(&mut buffer).await, Some((3, vec![1, 2, 3])));
            buffer.consume(2);
            assert_eq!((read(&mut buffer).await, buffer.memory_bytes()), (None, IDLE_BYTES));
            sender.write_all(&[4]).await.unwrap();
            assert_eq!(read(&mut buffer).await, Some((1, vec![3, 4])));
            buffer.consume(2);
        }
    }

    #[tokio::test]
    async fn what_is_passed_over_is_not_kept_however_long_it_is() {
        let sent: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
        let mut reader = &sent[..];
        let mut buffer = ReadBuffer::new(8 << 10);
        buffer.fill(&mut reader).await.unwrap();
        buffer.pass_over(3);
        assert_eq!(buffer.data()[0], 3);
        buffer.pass_over(299_990);
        while buffer.fill(&mut reader).await.unwrap() > 0 {}
        assert_eq!(buffer.data(), &sent[299_993..]);
        assert!(buffer.memory_bytes() <= 16 << 10, "{}", buffer.memory_bytes());
    }

    #[tokio::test]
    async fn gives_back_what_it_does_not_need_when_it_is_limited() {
        let sent: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        let mut reader = &sent[..];
        let mut buffer = ReadBuffer::new(64 << 10);
        while buffer.fill(&mut reader).await.unwrap() > 0 {}
        buffer.consume(100_000);
        buffer.limit(8 << 10);
        assert_eq!((buffer.data(), buffer.memory_bytes()), (&sent[100_000..], 100_000));
        buffer.consume(99_990);
        buffer.limit(8 << 10);
        assert_eq!((buffer.data(), buffer.memory_bytes()), (&sent[199_990..], 8 << 10));
        let mut reader = &sent[..];
        while buffer.fill(&mut reader).await.unwrap() > 0 {
            buffer.consume(buffer.data().len());
        }
        assert_eq!(buffer.memory_bytes(), 8 << 10, "it does not grow because of traffic");
    }

    #[tokio::test]
    async fn shrinks_when_the_traffic_is_over() {
        let (burst, trickle) = (vec![1u8; 200_000], [2u8; 10]);
        let mut buffer = ReadBuffer::new(64 << 10);
        let mut reader = &burst[..];
        while buffer.fill(&mut reader).await.unwrap() > 0 {
            buffer.consume(buffer.data().len());
        }
        assert!(buffer.bytes.len() >= 64 << 10);
        for _ in 0..1000 {
            buffer.fill(&mut &trickle[..]).await.unwrap();
            assert_eq!(buffer.data(), trickle);
            buffer.consume(10);
        }
        assert_eq!(buffer.bytes.capacity(), IDLE_BYTES);
    }
}
