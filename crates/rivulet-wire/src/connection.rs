//! A connection: who is on the other side, whether it still lives, and frames in both directions.
//!
//! There is no socket and no clock here: whoever has them gives what was received, takes what is to be sent, and says
//! what time it is.

use serde::{Deserialize, Serialize};

use crate::WireError;
use crate::frame::{self, Frame, GREETING, Kind, Reader};

/// Something is said at least so often, microseconds.
const SAID_EVERY_US: i64 = 5_000_000;

/// After a silence of so long a connection is broken, microseconds.
const SILENCE_US_MAX: i64 = 4 * SAID_EVERY_US;

/// The longest name of a process, in bytes.
const NAME_BYTES_MAX: usize = 249;

/// Who speaks.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its name, by which it is found again after a broken connection.
    pub name: String,
    /// A random number of its process: with another one it has forgotten what it had in memory.
    pub run: u64,
    /// The token of the user whose streams these are, where the other side has users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// A connection.
pub struct Connection {
    reader: Reader,
    them: Option<Hello>,
    /// What is to be sent, from `out_at` on.
    pub(crate) out: Vec<u8>,
    out_at: usize,
    heard_us: i64,
    said_us: i64,
}

impl Connection {
    /// A connection that has just been made, at this time. The side that dials says who it is at once.
    pub fn new(now_us: i64) -> Self {
        Self { reader: Reader::new(), them: None, out: GREETING.to_vec(), out_at: 0, heard_us: now_us, said_us: now_us }
    }

    /// Says who this side is. The side that was dialled does so when it knows who dials, and lets it in.
    pub fn say_hello(&mut self, me: &Hello) {
        let text = serde_json::to_vec(me).expect("texts and numbers are always JSON");
        frame::write_small(&mut self.out, Kind::Hello, 0, 0, &text);
    }

    /// Ends the connection, once [`Connection::to_send`] has been sent. The other side is told why.
    pub fn say_bye(&mut self, why: &str) {
        frame::write_small(&mut self.out, Kind::Bye, 0, 0, why.as_bytes());
    }

    /// Who the other side says that it is; `None` before it has said so.
    pub fn them(&self) -> Option<&Hello> {
        self.them.as_ref()
    }

    /// Takes received bytes from the front of `bytes` until the other side has said who it is: see
    /// [`Connection::them`]. The rest is for [`crate::Session::receive`].
    ///
    /// # Errors
    /// It speaks another version or no wire at all, or has refused this side.
    pub fn greet(&mut self, bytes: &mut &[u8], now_us: i64) -> Result<(), WireError> {
        while self.them.is_none() && !bytes.is_empty() {
            let Some(frame) = self.receive(bytes, now_us)? else { continue };
            if frame.kind != Kind::Hello {
                return Err(WireError::Broken("something before it has said who it is"));
            }
            let hello = serde_json::from_slice(&frame.payload).ok();
            let hello = hello.filter(|hello: &Hello| (1..=NAME_BYTES_MAX).contains(&hello.name.len()));
            self.them = Some(hello.ok_or(WireError::Broken("a name that cannot be read"))?);
        }
        Ok(())
    }

    /// The next frame at the front of `bytes`.
    pub(crate) fn receive(&mut self, bytes: &mut &[u8], now_us: i64) -> Result<Option<Frame>, WireError> {
        self.heard_us = now_us;
        match self.reader.read(bytes, self.them.is_some())? {
            Some(frame) if frame.kind == Kind::Bye => Err(WireError::Refused(frame.text())),
            frame => Ok(frame),
        }
    }

    /// What is to be sent.
    pub fn to_send(&self) -> &[u8] {
        &self.out[self.out_at..]
    }

    /// So many bytes of [`Connection::to_send`] have been sent.
    pub fn sent(&mut self, bytes: usize, now_us: i64) {
        self.out_at += bytes;
        if bytes > 0 {
            self.said_us = now_us;
        }
        if self.out_at == self.out.len() {
            self.out.clear();
            self.out_at = 0;
        }
    }

    /// Gives all that is to be sent, in exchange for empty memory: from now on it counts as sent.
    pub fn take_to_send(&mut self, bytes: &mut Vec<u8>, now_us: i64) {
        debug_assert!(bytes.is_empty() && self.out_at == 0, "all of one way is sent before the other is used");
        std::mem::swap(&mut self.out, bytes);
        if !bytes.is_empty() {
            self.said_us = now_us;
        }
    }

    /// Says something if nothing was said for long.
    ///
    /// # Errors
    /// Nothing was heard for too long.
    pub fn tick(&mut self, now_us: i64) -> Result<(), WireError> {
        let silent_us = now_us - self.heard_us;
        if silent_us >= SILENCE_US_MAX {
            return Err(WireError::Silent { us: silent_us });
        }
        if now_us - self.said_us >= SAID_EVERY_US && self.to_send().is_empty() {
            frame::write_small(&mut self.out, Kind::Alive, 0, 0, &[]);
        }
        Ok(())
    }

    /// When to call [`Connection::tick`] at the latest.
    pub fn due_us(&self) -> i64 {
        let silent_us = self.heard_us + SILENCE_US_MAX;
        // What waits to be sent says enough.
        if self.to_send().is_empty() { silent_us.min(self.said_us + SAID_EVERY_US) } else { silent_us }
    }
}
