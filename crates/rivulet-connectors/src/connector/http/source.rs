//! Rows from posts.

use std::time::Duration;

use memchr::memchr;
use rivulet_dataflow::{Decoder, Polled, Refusals, Source, SourceError};

use tokio::sync::oneshot;

use super::listener::{Listener, Post};
use crate::connector::intake::Intake;

/// The wait when there is no post.
const IDLE: Duration = Duration::from_millis(5);

/// One partition: the posts of a listener.
pub(super) struct HttpSource {
    listener: Listener,
    intake: Intake,
    /// The post whose lines are being taken, from this byte on.
    open: Option<(Post, usize)>,
    /// Senders whose posts were taken as a whole, and that wait for their confirmation.
    waiting: Vec<oneshot::Sender<()>>,
}

impl HttpSource {
    pub(super) fn new(listener: Listener, decoder: Box<dyn Decoder>) -> Self {
        Self { listener, intake: Intake::new(decoder), open: None, waiting: Vec::new() }
    }
}

impl Source for HttpSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        while self.intake.has_room(rows_max) {
            let Some((mut post, from)) = self.open.take().or_else(|| Some((self.listener.take()?, 0))) else { break };
            if !post.is_lines {
                self.intake.push(now_us, &post.body);
                self.waiting.extend(post.confirm.take());
                continue;
            }
            let rest = &post.body[from..];
            let length = memchr(b'\n', rest).unwrap_or(rest.len());
            let line = rest[..length].strip_suffix(b"\r").unwrap_or(&rest[..length]);
            if !line.trim_ascii_start().is_empty() {
                self.intake.push(now_us, line);
            }
            let next = from + length + 1;
            match next < post.body.len() {
                true => self.open = Some((post, next)),
                false => self.waiting.extend(post.confirm.take()),
            }
        }
        if self.intake.payloads() == 0 {
            return Ok(Polled::Nothing(IDLE));
        }
        Ok(self.intake.decode_for(now_us, refusals).unwrap_or(Polled::Nothing(Duration::ZERO)))
    }

    fn is_live(&self) -> bool {
        true
    }

    fn holds_rows(&self) -> bool {
        self.open.is_some() || self.listener.has_posts()
    }

    fn confirm(&mut self) {
        // A sender that has gone meanwhile is not told.
        self.waiting.drain(..).for_each(|sender| _ = sender.send(()));
    }
}
