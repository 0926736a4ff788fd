//! What a checkpoint stores of a sink: the requests that no receiver has accepted, which are posted after a restart,
//! and how later keys are made.

use std::sync::Arc;

use rivulet_dataflow::SinkError;
use serde::{Deserialize, Serialize};

use super::keys::Noted;
use super::receivers::Request;

/// The version of the encoding of requests.
const VERSION: u32 = 1;

/// What an instance of a sink has prepared. Its text is empty if there is nothing to store.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Prepared {
    pub(super) requests: Vec<Arc<Request>>,
    pub(super) keys: Option<Noted>,
}

/// The text of [`Prepared`]. Earlier versions wrote requests for outputs of applications alone, and notes on keys
/// without a version for big queries alone.
#[derive(Serialize, Deserialize)]
struct Text {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    #[serde(flatten)]
    keys: Option<Noted>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
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

impl Prepared {
    /// Its text.
    pub(super) fn text(&self) -> String {
        if *self == Self::default() {
            return String::new();
        }
        let requests = self.requests.iter().map(|request| {
            let Request { url, body, rows, idempotency_key, query } = &**request;
            let (body, hex) = match std::str::from_utf8(body) {
                Ok(text) => (Some(text.to_owned()), None),
                Err(_) => (None, Some(hex::encode(body))),
            };
            Saved { url: url.to_string(), rows: *rows, key: idempotency_key.clone(), query: *query, body, hex }
        });
        let version = (!self.requests.is_empty()).then_some(VERSION);
        let text = Text { version, keys: self.keys.clone(), requests: requests.collect() };
        serde_json::to_string(&text).expect("texts and numbers are always JSON")
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is not understood, or of a later version.
    pub(super) fn read(text: &str) -> Result<Self, SinkError> {
        let wrong = |why: String| SinkError(format!("a checkpoint of the sink is not understood: {why}"));
        if text.is_empty() {
            return Ok(Self::default());
        }
        let Text { version, keys, requests } = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        match version {
            Some(version) if version > VERSION => {
                return Err(wrong(format!("it is of version {version}, and this is {VERSION}")));
            }
            None if keys.is_none() => return Err(wrong("it has no version".into())),
            _ => {}
        }
        let request = |saved: Saved| {
            let Saved { url, rows, key, query, body, hex } = saved;
            let bytes = hex.map(|hex| hex::decode(hex).map_err(|error| wrong(error.to_string()))).transpose()?;
            let body = bytes.unwrap_or_else(|| body.unwrap_or_default().into_bytes());
            Ok(Arc::new(Request { url: url.into(), body, rows, idempotency_key: key, query }))
        };
        let requests = requests.into_iter().map(request).collect::<Result<_, _>>()?;
        Ok(Self { requests, keys })
    }
}

/// The number of rows in such a text; 0 if it is not understood.
pub(super) fn rows(text: &str) -> usize {
    Prepared::read(text).map_or(0, |prepared| prepared.requests.iter().map(|request| request.rows).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_prepared_is_read_as_it_was_saved() {
        let request = |body: &[u8], query| {
            let (url, idempotency_key) = ("http://a/\u{fc}?b".into(), "one-7-\"8\"".into());
            Arc::new(Request { url, body: body.to_vec(), rows: 3, idempotency_key, query })
        };
        let requests = vec![request(b"{\"n\":1}\n", Some(7)), request(&[0, 0xff, 0x80], None), request(b"", None)];
        let keys = Some(Noted { line: "a".into(), checkpoints: 3 });
        for prepared in [
            Prepared::default(),
            Prepared { requests: requests.clone(), keys: None },
            Prepared { requests: Vec::new(), keys: keys.clone() },
            Prepared { requests, keys },
        ] {
            assert_eq!(Prepared::read(&prepared.text()).unwrap(), prepared);
        }
    }

    #[test]
    fn texts_of_earlier_versions_are_read() {
        let keys = Some(Noted { line: "00ff".into(), checkpoints: 12 });
        let of_query = Prepared::read(r#"{"line":"00ff","checkpoints":12}"#).unwrap();
        assert_eq!(of_query, Prepared { requests: Vec::new(), keys });
        let text = r#"{"version":1,"requests":[{"url":"u","rows":1,"key":"k","query":7,"body":"b"}]}"#;
        let of_output = Prepared::read(text).unwrap();
        assert_eq!((of_output.requests.len(), &of_output.requests[0].body[..]), (1, &b"b"[..]));
        assert_eq!(of_output.text(), text, "and written as they were");
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for wrong in [
            "{",
            "{}",
            r#"{"version":2,"requests":[]}"#,
            r#"{"version":1,"requests":[{"url":"u","rows":1,"key":"","hex":"0g"}]}"#,
            r#"{"version":1,"requests":[{"url":"u","rows":1,"key":"","hex":"012"}]}"#,
        ] {
            assert!(Prepared::read(wrong).unwrap_err().0.contains("not understood"), "{wrong}");
        }
    }
}
