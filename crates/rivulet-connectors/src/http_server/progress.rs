//! Time limits by progress: what comes slowly may go on as long as it comes.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::seats::Place;

/// For so many bytes the limit is waited once.
const PROGRESS_BYTES: usize = 1 << 10;

/// A client has sent too little, or taken too little of its answer, in the time that it had.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("less than {PROGRESS_BYTES} bytes came in {} s", limit.as_secs_f32())]
struct Stalled {
    /// The time that it had.
    limit: Duration,
}

/// Whether what ended the reading of a body is that it stalled.
pub(super) fn has_stalled(error: &(dyn Error + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(cause) = error {
        if cause.is::<Stalled>() {
            return true;
        }
        error = cause.source();
    }
    false
}

/// Measures how long a client was waited for.
struct Progress {
    limit: Duration,
    /// Since the last [`PROGRESS_BYTES`].
    waited: Duration,
    bytes: usize,
    /// Since when it is being waited, and what ends that.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Progress {
    fn new(limit: Duration) -> Self {
        Self { limit, waited: Duration::ZERO, bytes: 0, waiting: None }
    }

    /// Notes that bytes went through.
    fn moved(&mut self, bytes: usize) {
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        self.bytes += bytes;
        if self.bytes >= PROGRESS_BYTES {
            (self.bytes, self.waited) = (0, Duration::ZERO);
        }
    }

    /// Notes that the client is being waited for; ready when it has had its time.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<Stalled> {
        let left = self.limit.saturating_sub(self.waited);
        let begin = || (Instant::now(), Box::pin(tokio::time::sleep(left)));
        let (_, alarm) = self.waiting.get_or_insert_with(begin);
        ready!(alarm.as_mut().poll(context));
        Poll::Ready(Stalled { limit: self.limit })
    }
}

/// The body of a request; its error is [`Stalled`] where too little of it comes.
pub(super) struct Awaited {
    body: Incoming,
    progress: Progress,
    place: Place,
}

impl Awaited {
    pub(super) fn new(body: Incoming, limit: Duration, place: Place) -> Self {
        Self { body, progress: Progress::new(limit), place }
    }
}

impl HttpBody for Awaited {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = &mut *self;
        let was_waiting = this.progress.waiting.is_some();
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(frame) => {
                let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref().map(Bytes::len));
                this.progress.moved(bytes.unwrap_or(0));
                if was_waiting {
                    this.place.await_body(false);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                if !was_waiting {
                    this.place.await_body(true);
                }
                this.progress.poll_stalled(context).map(|stalled| Some(Err(stalled.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if self.progress.waiting.is_some() {
            self.place.await_body(false);
        }
    }
}

/// A connection that ends where the client takes too little of its answer.
pub(super) struct Taken {
    stream: TcpStream,
    progress: Progress,
}

impl Taken {
    pub(super) fn new(stream: TcpStream, limit: Duration) -> Self {
        Self { stream, progress: Progress::new(limit) }
    }

    fn after(
        progress: &mut Progress,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(written) => {
                progress.moved(*written.as_ref().unwrap_or(&0));
                Poll::Ready(written)
            }
            Poll::Pending => progress
                .poll_stalled(context)
                .map(|stalled| Err(io::Error::new(io::ErrorKind::TimedOut, stalled.to_string()))),
        }
    }
}

impl AsyncRead for Taken {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Taken {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        Self::after(&mut this.progress, written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        Self::after(&mut this.progress, written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_byte_now_and_then_is_not_enough() {
        let mut progress = Progress::new(Duration::from_millis(100));
        let pause = Duration::from_millis(5);
        // Each round waits for some milliseconds of the hundred.
        for _ in 0..1_000 {
            let stalled = std::future::poll_fn(|context| progress.poll_stalled(context));
            if tokio::time::timeout(pause, stalled).await.is_ok() {
                return;
            }
            progress.moved(1);
        }
        panic!("it may go on for ever");
    }

    #[test]
    fn each_kib_gets_its_time() {
        let mut progress = Progress::new(Duration::from_secs(30));
        progress.waited = Duration::from_secs(29);
        progress.moved(PROGRESS_BYTES - 1);
        assert_eq!(progress.waited, Duration::from_secs(29));
        progress.moved(1);
        assert_eq!(progress.waited, Duration::ZERO);
    }
}
