//! Messages that a sink has taken and its broker has not, as a checkpoint stores them: they are sent after a restart.

use rivulet_dataflow::SinkError;
use serde::{Deserialize, Serialize};

/// The version of the encoding.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Waiting {
    version: u32,
    messages: Vec<WaitingMessage>,
}

/// A message that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WaitingMessage {
    /// Its topic; `None` for the topic of the sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) topic: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<Bytes>,
    /// `None` for a message without a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<Bytes>,
}

/// Bytes as text, or as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Bytes {
    Text(String),
    Hex { hex: String },
}

impl Bytes {
    fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Hex { hex: hex::encode(bytes) },
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.clone().into_bytes(),
            Self::Hex { hex } => hex::decode(hex).unwrap_or_default(),
        }
    }

    fn is_valid(&self) -> bool {
        match self {
            Self::Text(_) => true,
            Self::Hex { hex } => hex::decode(hex).is_ok(),
        }
    }
}

impl WaitingMessage {
    pub(super) fn new(topic: Option<&str>, key: Option<&[u8]>, payload: Option<&[u8]>) -> Self {
        Self { topic: topic.map(str::to_owned), key: key.map(Bytes::of), payload: payload.map(Bytes::of) }
    }

    pub(super) fn key(&self) -> Option<Vec<u8>> {
        self.key.as_ref().map(Bytes::bytes)
    }

    pub(super) fn payload(&self) -> Option<Vec<u8>> {
        self.payload.as_ref().map(Bytes::bytes)
    }
}

/// The messages as text; empty for none.
pub(super) fn saved(messages: Vec<WaitingMessage>) -> String {
    if messages.is_empty() {
        return String::new();
    }
    serde_json::to_string(&Waiting { version: VERSION, messages }).expect("texts and numbers are always JSON")
}

/// Reads the messages of an instance of a sink from what all instances have stored. With as many instances as before
/// each gets its own, in front of the rows of the same keys that follow.
///
/// # Errors
/// A text is not understood, or of a later version.
pub(super) fn read(texts: &[String], (instance, instances): (usize, usize)) -> Result<Vec<WaitingMessage>, SinkError> {
    let wrong = |why: String| SinkError(format!("a checkpoint has messages that are not understood: {why}"));
    let mut all = Vec::new();
    for text in texts.iter().skip(instance).step_by(instances).filter(|text| !text.is_empty()) {
        let Waiting { version, messages } = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if version > VERSION {
            return Err(wrong(format!("they are of version {version}, and this is {VERSION}")));
        }
        let is_valid = |one: &WaitingMessage| one.key.iter().chain(&one.payload).all(Bytes::is_valid);
        if !messages.iter().all(is_valid) {
            return Err(wrong("they have wrong hexadecimal digits".into()));
        }
        all.extend(messages);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_saved_by_as_many_instances_as_there_are() {
        let message = |key: Option<&[u8]>, payload: Option<&[u8]>| WaitingMessage::new(None, key, payload);
        let first = vec![message(Some(b"k"), None), message(None, Some(&[0, 0xff])), message(None, Some(b"\"{"))];
        let second = vec![WaitingMessage::new(Some("a/b"), None, Some(b"x"))];
        let texts = [saved(first.clone()), saved(Vec::new()), saved(second.clone())];
        assert_eq!(texts[1], "");
        assert_eq!(read(&texts, (0, 3)), Ok(first.clone()));
        assert_eq!(read(&texts, (1, 3)), Ok(Vec::new()));
        assert_eq!(read(&texts, (0, 1)), Ok([first.clone(), second].concat()));
        assert_eq!((first[1].payload(), first[0].key()), (Some(vec![0, 0xff]), Some(b"k".to_vec())));
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for wrong in ["{}", r#"{"version":2,"messages":[]}"#, r#"{"version":1,"messages":[{"payload":{"hex":"0"}}]}"#] {
            assert!(read(&[wrong.into()], (0, 1)).unwrap_err().0.contains("not understood"), "{wrong}");
        }
    }
}
