//! A backup of the running server, as a stream.

use std::io::{self, Write};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::stream::unfold;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::call::Authenticated;
use super::error::ApiError;
use super::types::NOTICE_HEADER;

/// So many parts wait for a client that is slow; then reading waits too.
const PARTS_MAX: usize = 4;

/// A client that takes nothing for so long is given up: as long as it is waited for, nothing old is deleted.
const CLIENT_WAIT_MAX: Duration = Duration::from_secs(60);

/// So many notices are sent with it: clients take only so many headers.
const NOTICES_MAX: usize = 16;

/// How large a part is.
const PART_BYTES: usize = 1 << 20;

/// Make a backup of everything
///
/// A checkpoint is made, if one can be made now, and then all that a server needs is sent as one file while this one
/// goes on: `rivulet restore` makes a data folder of it. A file without its end is no backup, and is not taken for one.
/// Where the checkpoint in it is an older one, a header `rivulet-notice` says why: the log of events in it has what
/// came since.
#[utoipa::path(
    post, path = "/api/v1/backup", tag = "server",
    responses((status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream")),
)]
pub(super) async fn make_backup(api: Authenticated) -> Result<impl IntoResponse, ApiError> {
    let backup = api.blocking(|session| session.back_up()).await??;
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    let notices = backup.notices();
    let more = notices.len().saturating_sub(NOTICES_MAX);
    let more = (more > 0).then(|| format!("and {more} more like these"));
    for notice in notices.iter().take(NOTICES_MAX).chain(&more) {
        // Line ends would end the header.
        let line = notice.split(['\r', '\n']).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
        if let Ok(value) = HeaderValue::from_bytes(line.as_bytes()) {
            headers.append(HeaderName::from_static(NOTICE_HEADER), value);
        }
    }
    let (sender, receiver) = mpsc::channel(PARTS_MAX);
    tokio::task::spawn_blocking(move || {
        let mut out = Parts { sender, runtime: Handle::current(), part: Vec::with_capacity(PART_BYTES) };
        match backup.write(&mut out) {
            Ok((files, bytes)) => tracing::info!(files, bytes, "a backup is sent"),
            Err(error) => {
                tracing::error!("a backup could not be sent: {error}");
                // Cuts the connection, so that the client does not take this for the end.
                let _ = out.send(Err(io::Error::other(error.to_string())));
            }
        }
    });
    let parts = unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
    Ok((headers, Body::from_stream(parts)))
}

/// Gives what is written to a client, part by part.
struct Parts {
    sender: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
    part: Vec<u8>,
}

impl Parts {
    fn send(&self, part: io::Result<Bytes>) -> io::Result<()> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the client is gone, or takes nothing any more");
        self.runtime.block_on(self.sender.send_timeout(part, CLIENT_WAIT_MAX)).map_err(gone)
    }
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.part.extend_from_slice(bytes);
        if self.part.len() >= PART_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let part = std::mem::replace(&mut self.part, Vec::with_capacity(PART_BYTES));
        self.send(Ok(part.into()))
    }
}
