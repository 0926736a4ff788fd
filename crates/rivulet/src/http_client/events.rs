//! Reads server-sent events.

use std::io::{self, BufRead, Read};

/// The longest line of an event.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// What the stream of a query's results says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEvent<'a> {
    /// A result, as JSON.
    Result(&'a str),
    /// So many results were skipped because this client was too slow.
    Lost(u64),
    /// What a SELECT has refused so far, as JSON: `rows`, `reasons` and an `example`.
    Refused(&'a str),
    /// There will be no more: `limit`, `dropped` (the query was) or `stopping` (the server is).
    End(&'a str),
}

/// Reads events until the stream says that it ends. One that ends without saying so is an error.
pub(super) fn read<E>(
    mut stream: impl BufRead,
    error: impl Fn(io::Error) -> E,
    mut visit: impl FnMut(WatchEvent<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut line = String::new();
    let mut event = String::new();
    let mut data = String::new();
    loop {
        line.clear();
        stream.by_ref().take(LINE_BYTES_MAX).read_line(&mut line).map_err(&error)?;
        if !line.ends_with('\n') {
            return Err(error(io::ErrorKind::UnexpectedEof.into()));
        }
        let content = line.trim_end_matches(['\r', '\n']);
        if content.is_empty() {
            match event.as_str() {
                "result" => visit(WatchEvent::Result(&data))?,
                "refused" => visit(WatchEvent::Refused(&data))?,
                "lost" => visit(WatchEvent::Lost(data.parse().unwrap_or(0)))?,
                "end" => return visit(WatchEvent::End(&data)),
                // A comment, or an event of a later version.
                _ => {}
            }
            event.clear();
            data.clear();
            continue;
        }
        let (field, value) = content.split_once(':').unwrap_or((content, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut event),
            "data" => {
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(value);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Result<Vec<String>, String> {
        let mut seen = Vec::new();
        let visit = |event: WatchEvent<'_>| {
            seen.push(format!("{event:?}"));
            Ok(())
        };
        read(text.as_bytes(), |error| error.to_string(), visit)?;
        Ok(seen)
    }

    #[test]
    fn results_losses_and_the_end() {
        let text = ":\n\nevent: result\ndata: {\"a\":1}\n\nevent: lost\ndata: 7\n\nevent: new\ndata: x\n\n\
                    event: end\ndata: dropped\n\nevent: result\ndata: late\n\n";
        assert_eq!(
            events(text),
            Ok(vec!["Result(\"{\\\"a\\\":1}\")".into(), "Lost(7)".into(), "End(\"dropped\")".into()])
        );
        assert_eq!(
            events("event: result\ndata: a\ndata: b\n\nevent: end\n\n"),
            Ok(vec!["Result(\"a\\nb\")".into(), "End(\"\")".into()])
        );
        for broken in ["event: res", "event: result\ndata: a\n\n", ""] {
            assert!(events(broken).is_err(), "{broken}");
        }
    }
}
