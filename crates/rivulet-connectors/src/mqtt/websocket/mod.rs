//! MQTT over WebSocket (MQTT 5, chapter 6): for browsers, which open no other connections.
//!
//! - [`frames`]: frames to bytes;
//! - [`handshake`]: the HTTP request that begins a WebSocket.
//!
//! What must hold: a WebSocket is a stream of bytes like any other connection. Frames do not matter to packets, are not
//! kept, and so need no bound of their own: the bounds of packets and of slow readers are those of all connections.

pub mod frames;
mod handshake;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use frames::{Frames, NORMAL, push_binary_head, push_close};
pub use handshake::WebSocketOptions;
pub(super) use handshake::accept;

/// The server's end of a WebSocket, as a stream of bytes. Both directions have to be used by one task: a read answers
/// pings, and so may wait where a write does.
pub(super) struct WebSocket<S> {
    stream: S,
    frames: Frames,
    /// Control frames, and the head of the frame that is being written: what the stream has not taken yet.
    pending: Vec<u8>,
    /// The bytes of the content that are missing in the frame that is being written.
    left: usize,
    /// Whether this side has closed the WebSocket.
    has_closed: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    fn new(stream: S) -> Self {
        Self { stream, frames: Frames::default(), pending: Vec::new(), left: 0, has_closed: false }
    }

    /// Writes answers to control frames, unless a frame is being written.
    fn poll_answers(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.left > 0 {
            return Poll::Ready(Ok(()));
        }
        if !self.has_closed {
            self.frames.take_answer(&mut self.pending);
            self.has_closed = self.frames.is_closed();
        }
        while !self.pending.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(context, &self.pending))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(self.pending.drain(..written)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Closes the WebSocket from this side, unless that is done or a frame is being written.
    fn close(&mut self, code: u16) {
        if self.left == 0 && !self.has_closed {
            push_close(code, &mut self.pending);
            self.has_closed = true;
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let begin = buffer.filled().len();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        while !this.frames.is_closed() {
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            let read = &mut buffer.filled_mut()[begin..];
            if read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let taken = this.frames.take(read);
            buffer.set_filled(begin + *taken.as_ref().unwrap_or(&0));
            if let Err(error) = &taken {
                this.close(error.code());
            }
            // If the stream takes no answer now, the next write or flush tries again.
            let answered = this.poll_answers(context);
            taken.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if let Poll::Ready(answered) = answered {
                answered?;
            }
            if buffer.filled().len() > begin {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocket<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.left == 0 {
            if this.has_closed || this.frames.is_closed() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if bytes.is_empty() {
                return Poll::Ready(Ok(0));
            }
            this.frames.take_answer(&mut this.pending);
            push_binary_head(bytes.len(), &mut this.pending);
            this.left = bytes.len();
        }
        loop {
            let content = &bytes[..bytes.len().min(this.left)];
            let slices = [IoSlice::new(&this.pending), IoSlice::new(content)];
            let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(context, &slices))?;
            let of_pending = written.min(this.pending.len());
            this.pending.drain(..of_pending);
            if written == 0 || written > of_pending {
                this.left -= written - of_pending;
                return Poll::Ready(Ok(written - of_pending));
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_answers(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close(NORMAL);
        ready!(self.poll_answers(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
