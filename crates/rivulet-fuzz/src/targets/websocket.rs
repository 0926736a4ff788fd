//! The frames of a WebSocket. What comes out does not depend on how the bytes were cut; no more comes out than went in,
//! and no more is answered to a piece than a ping and a close.

use rivulet_connectors::mqtt::websocket::frames::{FrameError, Frames};

use crate::Target;

/// See the module.
pub const TARGET: Target =
    Target { name: "websocket", run, words: &["\0\0\0\0", "\u{2}", "\u{7f}", "x"], mutations: 8_000 };

/// The content that comes out, and why it ends; `Ok` says whether the client has closed the WebSocket.
type Read = (Vec<u8>, Result<bool, FrameError>);

fn read(bytes: &[u8], piece_bytes: usize) -> Read {
    let (mut frames, mut content, mut answers) = (Frames::default(), Vec::new(), Vec::new());
    for piece in bytes.chunks(piece_bytes) {
        let mut piece = piece.to_vec();
        match frames.take(&mut piece) {
            Ok(count) => content.extend_from_slice(&piece[..count]),
            Err(error) => return (content, Err(error)),
        }
        let before = answers.len();
        frames.take_answer(&mut answers);
        assert!(answers.len() - before <= 2 * 127, "an answer to a ping and one to the close");
    }
    (content, Ok(frames.is_closed()))
}

fn run(bytes: &[u8]) {
    let (whole, end) = read(bytes, bytes.len().max(1));
    assert!(whole.len() <= bytes.len());
    for piece_bytes in [1, 3, 64] {
        let (content, cut_end) = read(bytes, piece_bytes);
        assert_eq!(cut_end, end, "pieces of {piece_bytes} bytes");
        // What stands before a frame that is refused is lost with the piece in which that frame is.
        assert!(if end.is_ok() { content == whole } else { content.starts_with(&whole) });
    }
}
