//! Time limits by progress: a slow transfer may continue as long as it advances.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::seats::Place;

/// The number of bytes for which the client has the whole limit once.
const PROGRESS_BYTES: usize = 1 << 10;

/// A client has sent too little, or taken too little of its answer, in its time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("less than {PROGRESS_BYTES} bytes came in {} s", limit.as_secs_f32())]
struct Stalled {
    /// The time limit.
    limit: Duration,
}

/// Whether the error is that the body has stalled.
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

/// Measures how long the server has waited for a client.
struct Progress {
    limit: Duration,
    /// The time waited since the last [`PROGRESS_BYTES`].
    waited: Duration,
    bytes: usize,
    /// Since when the server waits, and the timer that ends the wait.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    /// The number of pauses, in which the server does not wait for the client: see [`ClientWait::pause`].
    pauses: usize,
    /// The task that polled last.
    asked: Option<Waker>,
}

impl Progress {
    fn new(limit: Duration) -> Self {
        Self { limit, waited: Duration::ZERO, bytes: 0, waiting: None, pauses: 0, asked: None }
    }

    /// Notes that the server waits for the client no longer. Returns whether it did.
    fn end_wait(&mut self) -> bool {
        let ended = self.waiting.take();
        self.waited += ended.as_ref().map_or(Duration::ZERO, |(since, _)| since.elapsed());
        ended.is_some()
    }

    /// Notes that bytes went through.
    fn moved(&mut self, bytes: usize) {
        self.end_wait();
        self.bytes += bytes;
        if self.bytes >= PROGRESS_BYTES {
            (self.bytes, self.waited) = (0, Duration::ZERO);
        }
    }

    /// Notes that the server waits for the client; ready when the client's time is over.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<Stalled> {
        match &mut self.asked {
            Some(asked) => asked.clone_from(context.waker()),
            asked => *asked = Some(context.waker().clone()),
        }
        if self.pauses > 0 {
            return Poll::Pending;
        }
        let left = self.limit.saturating_sub(self.waited);
        let begin = || (Instant::now(), Box::pin(tokio::time::sleep(left)));
        let (_, alarm) = self.waiting.get_or_insert_with(begin);
        ready!(alarm.as_mut().poll(context));
        Poll::Ready(Stalled { limit: self.limit })
    }
}

/// The body of a request; its error is [`Stalled`] if too little of it arrives.
pub(super) struct Awaited {
    body: Incoming,
    wait: ClientWait,
}

impl Awaited {
    pub(super) fn new(body: Incoming, limit: Duration, place: Place) -> Self {
        Self { body, wait: ClientWait { progress: Arc::new(Mutex::new(Progress::new(limit))), place } }
    }

    pub(super) fn wait(&self) -> ClientWait {
        self.wait.clone()
    }
}

/// How long the server waits for the body of a request. Each request has it among its extensions, for a handler that
/// answers while it reads.
#[derive(Clone)]
pub struct ClientWait {
    progress: Arc<Mutex<Progress>>,
    place: Place,
}

impl ClientWait {
    /// Until the result is dropped, the client may be waiting for the server: the time does not count, and its
    /// connection gives way to no other.
    pub fn pause(&self) -> Pause {
        let mut progress = self.progress.lock();
        progress.pauses += 1;
        if progress.end_wait() {
            self.place.await_body(false);
        }
        Pause(self.clone())
    }
}

/// See [`ClientWait::pause`].
pub struct Pause(ClientWait);

impl Drop for Pause {
    fn drop(&mut self) {
        let mut progress = self.0.progress.lock();
        progress.pauses -= 1;
        // The task that polled last polls again, and that begins the wait.
        let asked = if progress.pauses == 0 { progress.asked.take() } else { None };
        drop(progress);
        asked.into_iter().for_each(Waker::wake);
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
        let frame = Pin::new(&mut this.body).poll_frame(context);
        let mut progress = this.wait.progress.lock();
        let was_waiting = progress.waiting.is_some();
        let polled = match frame {
            Poll::Ready(frame) => {
                let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref().map(Bytes::len));
                progress.moved(bytes.unwrap_or(0));
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => progress.poll_stalled(context).map(|stalled| Some(Err(stalled.into()))),
        };
        if progress.waiting.is_some() != was_waiting {
            this.wait.place.await_body(!was_waiting);
        }
        polled
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
        if self.wait.progress.lock().end_wait() {
            self.wait.place.await_body(false);
        }
    }
}

/// A connection that ends if the client takes too little of its answer.
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

    #[tokio::test]
    async fn the_time_in_which_the_client_waits_does_not_count() {
        let limit = Duration::from_millis(50);
        let place = super::super::seats::Seats::new(1, 100, None).take([127, 0, 0, 1].into()).unwrap().place();
        let wait = ClientWait { progress: Arc::new(Mutex::new(Progress::new(limit))), place };
        let stalled = || std::future::poll_fn(|context| wait.progress.lock().poll_stalled(context));
        let (first, second) = (wait.pause(), wait.pause());
        assert!(tokio::time::timeout(3 * limit, stalled()).await.is_err());
        drop(first);
        assert!(tokio::time::timeout(3 * limit, stalled()).await.is_err(), "the other one is left");
        let asks = tokio::time::timeout(Duration::from_secs(20), stalled());
        let resumes = async {
            tokio::time::sleep(limit).await;
            drop(second);
        };
        let (stalled, ()) = tokio::join!(asks, resumes);
        assert!(stalled.is_ok(), "the wait begins when the client is waited for again");
        assert_eq!(wait.progress.lock().waited, Duration::ZERO);
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
