//! Requests that no receiver has accepted, as a checkpoint stores them: they are posted after a restart.

use std::sync::Arc;

use rivulet_dataflow::SinkError;
use serde::{Deserialize, Serialize};

use super::receivers::Request;

/// The version of the encoding.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Pending {
    version: u32,
    requests: Vec<Saved>,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    url: String,
    rows: usize,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    query: Option<u64>,
    /// The body, as text or as hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

/// The requests as text; empty for none.
pub(super) fn saved(requests: &[Arc<Request>]) -> String {
    if requests.is_empty() {
        return String::new();
    }
    let saved = requests.iter().map(|request| {
        let Request { url, body, rows, idempotency_key, query } = &**request;
        let (body, hex) = match std::str::from_utf8(body) {
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(hex::encode(body))),
        };
        Saved { url: url.to_string(), rows: *rows, key: idempotency_key.clone(), query: *query, body, hex }
    });
    let pending = Pending { version: VERSION, requests: saved.collect() };
    serde_json::to_string(&pending).expect("texts and numbers are always JSON")
}

/// Reads the requests from a text.
///
/// # Errors
/// It is not understood, or of a later version.
pub(super) fn read(text: &str) -> Result<Vec<Request>, SinkError> {
    let wrong = |why: String| SinkError(format!("a checkpoint has requests that are not understood: {why}"));
    let pending: Pending = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if pending.version > VERSION {
        return Err(wrong(format!("they are of version {}, and this is {VERSION}", pending.version)));
    }
    let request = |saved: Saved| {
        let Saved { url, rows, key, query, body, hex } = saved;
        let bytes = hex.map(|hex| hex::decode(hex).map_err(|error| wrong(error.to_string()))).transpose()?;
        let body = bytes.unwrap_or_else(|| body.unwrap_or_default().into_bytes());
        Ok(Request { url: url.into(), body, rows, idempotency_key: key, query })
    };
    pending.requests.into_iter().map(request).collect()
}

/// The number of rows in such a text; 0 if it is not understood.
pub(super) fn rows(text: &str) -> usize {
    read(text).map_or(0, |requests| requests.iter().map(|request| request.rows).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_saved() {
        let request = |body: &[u8], query| {
            let (url, idempotency_key) = ("http://a/\u{fc}?b".into(), "one-7-\"8\"".into());
            Arc::new(Request { url, body: body.to_vec(), rows: 3, idempotency_key, query })
        };
        let requests = [request(b"{\"n\":1}\n", Some(7)), request(&[0, 0xff, 0x80], None), request(b"", None)];
        let read = read(&saved(&requests)).unwrap();
        assert!(read.iter().eq(requests.iter().map(|request| &**request)), "{read:?}");
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for wrong in [
            "",
            "{}",
            r#"{"version":2,"requests":[]}"#,
            r#"{"version":1,"requests":[{"url":"u","rows":1,"key":"","hex":"0g"}]}"#,
            r#"{"version":1,"requests":[{"url":"u","rows":1,"key":"","hex":"012"}]}"#,
        ] {
            assert!(read(wrong).unwrap_err().0.contains("not understood"), "{wrong}");
        }
    }
}
