//! Bodies in memory that is counted.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::progress::has_stalled;

/// The memory that all requests may hold together.
#[derive(Clone, Debug)]
pub struct Budget {
    left: Arc<Semaphore>,
    bytes: usize,
}

/// A part of a [`Budget`], given back when this is dropped.
pub type Held = OwnedSemaphorePermit;

/// The most that is taken of a budget at once.
const TAKEN_MAX: usize = u32::MAX as usize;

impl Budget {
    /// A budget of this many bytes, at most 4 GiB.
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.min(TAKEN_MAX);
        Self { left: Arc::new(Semaphore::new(bytes)), bytes }
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes bytes if they are available. A request for more than the whole budget takes all of it.
    pub fn try_take(&self, bytes: usize) -> Option<Held> {
        self.left.clone().try_acquire_many_owned(bytes.min(self.bytes) as u32).ok()
    }

    /// Takes bytes when they are available. A task that waits here should hold none.
    pub async fn take(&self, bytes: usize) -> Held {
        let taken = self.left.clone().acquire_many_owned(bytes.min(self.bytes) as u32).await;
        taken.unwrap_or_else(|closed| unreachable!("nobody closes it: {closed}"))
    }
}

/// The number of bytes that are read of a refused body.
const PASSED_OVER_MAX: usize = 8 << 20;

/// Why a body was not read.
#[derive(Debug)]
pub enum BodyError {
    /// It is larger than allowed.
    TooLarge,
    /// There is no memory for it at present.
    NoRoom,
    /// Too little of it arrived in the allowed time.
    Stalled(String),
    /// It was broken off or is not well-formed.
    Broken(String),
}

/// Reads a body of at most `bytes_max` bytes. Each byte takes `cost` of the budget when it arrives. All of that is held
/// as long as the value returned beside the body.
///
/// # Errors
/// See [`BodyError`].
pub async fn read_body(
    body: Body,
    bytes_max: usize,
    budget: &Budget,
    cost: usize,
) -> Result<(Vec<u8>, Held), BodyError> {
    let (mut bytes, mut body) = (Vec::new(), body);
    let mut held = budget.try_take(0).ok_or(BodyError::NoRoom)?;
    while let Some(frame) = next_data(&mut body).await? {
        let wanted = ((bytes.len() + frame.len()) * cost).min(budget.bytes());
        let refused = if bytes.len() + frame.len() > bytes_max {
            BodyError::TooLarge
        } else if let Some(more) = budget.try_take(wanted - held.num_permits()) {
            held.merge(more);
            bytes.extend_from_slice(&frame);
            continue;
        } else {
            BodyError::NoRoom
        };
        drop((bytes, held));
        pass_over(body, frame.len()).await;
        return Err(refused);
    }
    Ok((bytes, held))
}

/// Reads and ignores the rest: a client that is answered while it sends may see a broken connection instead of the
/// answer.
async fn pass_over(mut body: Body, mut passed: usize) {
    while let Ok(Some(frame)) = next_data(&mut body).await {
        passed += frame.len();
        if passed > PASSED_OVER_MAX {
            return;
        }
    }
}

/// The next data of a body; `None` at its end.
///
/// # Errors
/// [`BodyError::Stalled`] and [`BodyError::Broken`].
pub async fn next_data(body: &mut Body) -> Result<Option<Bytes>, BodyError> {
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        match frame {
            None => return Ok(None),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => return Ok(Some(data)),
                // Trailers.
                Err(_) => continue,
            },
            Some(Err(error)) if has_stalled(&error) => return Err(BodyError::Stalled(error.to_string())),
            Some(Err(error)) => return Err(BodyError::Broken(error.to_string())),
        }
    }
}

/// A body that keeps something until it is sent or given up.
#[derive(Debug)]
pub struct Keeping<T> {
    body: Body,
    _kept: T,
}

impl<T> Keeping<T> {
    /// A body with what it keeps.
    pub fn new(body: Body, kept: T) -> Self {
        Self { body, _kept: kept }
    }
}

impl<T: Unpin> HttpBody for Keeping<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_takes_its_cost_and_gives_it_back() {
        let budget = Budget::new(1_000);
        let read = |length: usize| read_body(Body::from(vec![0; length]), 400, &budget, 4);
        let (body, held) = read(200).await.unwrap();
        assert_eq!((body.len(), held.num_permits()), (200, 800));
        assert!(matches!(read(51).await, Err(BodyError::NoRoom)));
        assert!(read(50).await.is_ok(), "what was refused holds nothing");
        drop(held);
        assert_eq!(read(400).await.unwrap().1.num_permits(), 1_000, "no more than there is");
        assert!(matches!(read(401).await, Err(BodyError::TooLarge)));
    }
}
