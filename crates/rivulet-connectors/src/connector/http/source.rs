//! Rows of posts.

use std::time::Duration;

use memchr::memchr;
use rivulet_dataflow::{Decoder, Polled, Refusals, Source, SourceError};

use super::listener::{Listener, Post};
use crate::connector::intake::Intake;

/// How long to wait when there is nothing.
const IDLE: Duration = Duration::from_millis(5);

/// One partition: what a listener takes.
pub(super) struct HttpSource {
    listener: Listener,
    intake: Intake,
    /// The post whose lines are being taken, from this byte on.
    open: Option<(Post, usize)>,
}

impl HttpSource {
    pub(super) fn new(listener: Listener, decoder: Box<dyn Decoder>) -> Self {
        Self { listener, intake: Intake::new(decoder), open: None }
    }
}

impl Source for HttpSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        while self.intake.has_room(rows_max) {
            let Some((post, from)) = self.open.take().or_else(|| Some((self.listener.take()?, 0))) else { break };
            if !post.is_lines {
                self.intake.push(now_us, &post.body);
                continue;
            }
            let rest = &post.body[from..];
            let length = memchr(b'\n', rest).unwrap_or(rest.len());
            let line = rest[..length].strip_suffix(b"\r").unwrap_or(&rest[..length]);
            if !line.trim_ascii_start().is_empty() {
                self.intake.push(now_us, line);
            }
            let next = from + length + 1;
            if next < post.body.len() {
                self.open = Some((post, next));
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
}
