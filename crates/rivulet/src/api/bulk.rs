//! Bulk submission: lines of JSON in, a line of JSON out for each, both as streams.
//!
//! ```text
//! request body -> reader task -> [1 batch] -> worker task -> [2 answers] -> response body
//! ```
//!
//! A batch is cut at 8192 lines or when its oldest line has waited for 5 ms: under load batches are large and a commit
//! to disk serves thousands of queries, a line that comes alone is answered at once. Memory is bounded by the two
//! channels: a client that does not read its answers stops being read, so it must read while it writes.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;

use crate::service::{QueryRequest, Service, generated_name};

use super::error::ApiError;
use super::lines::{LINE_BYTES_MAX, LineBatch, LineCutter};
use super::submission::{Submission, parse};
use super::types::{BulkAnswer, ErrorAnswer, ErrorDetail, QuerySubmission};
use super::{Api, Stop};

/// How long a line waits for others.
const BATCH_WAIT: Duration = Duration::from_millis(5);

/// Submit many queries, one JSON object a line
///
/// Answers stream back line by line and in order, `{"line":1,"id":7,"name":"kims_ac"}` or `{"line":2,"error":{...}}`. A
/// line that is answered with an id is durable. A wrong line harms only itself. Read the answers while you send: the
/// server keeps no more than some ten thousand unread ones and stops reading until you take them.
#[utoipa::path(
    post, path = "/api/v1/queries/bulk", tag = "queries",
    request_body(content = QuerySubmission, content_type = "application/x-ndjson"),
    responses(
        (status = 200, description = "A line for each line", body = BulkAnswer, content_type = "application/x-ndjson"),
        (status = "default", description = "An error", body = ErrorAnswer),
    ),
)]
pub(super) async fn submit_bulk(State(api): State<Api>, body: Body) -> Result<Response, ApiError> {
    let permit = Arc::clone(&api.bulk_permits).try_acquire_owned().map_err(|_| {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "limit_reached", "too many bulk submissions at a time")
            .with_hint("send the lines over fewer connections")
    })?;
    let (batches_in, mut batches) = mpsc::channel(1);
    let (answers, answers_out) = mpsc::channel::<Result<Bytes, std::convert::Infallible>>(2);
    let reader = tokio::spawn(read(body, batches_in, api.stop.clone()));
    tokio::spawn(async move {
        let _permit = permit;
        while let Some(batch) = batches.recv().await {
            let answer = match api.blocking(move |service| answer_batch(service, &batch)).await {
                Ok(answer) => answer,
                // The stream has begun, so the error cannot be a status any more. Nothing of the batch is acknowledged.
                Err(error) => {
                    let _ = answers.send(Ok(answer_line(None, error.detail).into())).await;
                    return;
                }
            };
            if answers.send(Ok(answer.into())).await.is_err() {
                return;
            }
        }
        if let Ok(Some((line, error))) = reader.await {
            let _ = answers.send(Ok(answer_line(Some(line), error).into())).await;
        }
    });
    let body = Body::from_stream(ReceiverStream::new(answers_out));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// Reads the body into batches. Where the server stops in the middle: the first line it did not read, and why.
async fn read(body: Body, batches: mpsc::Sender<LineBatch>, mut stop: Stop) -> Option<(u64, ErrorDetail)> {
    let mut frames = body.into_data_stream();
    let mut cutter = LineCutter::new();
    let mut deadline = Instant::now();
    loop {
        let next = async {
            if cutter.has_lines() { timeout_at(deadline, frames.next()).await.ok() } else { Some(frames.next().await) }
        };
        let next = tokio::select! {
            next = next => next,
            () = stop.stopped() => {
                let detail = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "the server is stopping")
                    .with_hint("send this line and the ones after it again");
                if cutter.has_lines() {
                    let _ = batches.send(cutter.take()).await;
                }
                return Some((cutter.next_line(), detail.detail));
            }
        };
        match next {
            // The oldest line has waited long enough.
            None => {
                if batches.send(cutter.take()).await.is_err() {
                    return None;
                }
            }
            Some(Some(Ok(frame))) => {
                let mut rest = &frame[..];
                while !rest.is_empty() {
                    let had_lines = cutter.has_lines();
                    let taken = cutter.push(rest);
                    rest = &rest[taken..];
                    if !had_lines && cutter.has_lines() {
                        deadline = Instant::now() + BATCH_WAIT;
                    }
                    if cutter.is_full() && batches.send(cutter.take()).await.is_err() {
                        return None;
                    }
                }
            }
            // The client went away in the middle: its whole lines count, a line that had begun does not.
            Some(Some(Err(_))) => {
                if cutter.has_lines() {
                    let _ = batches.send(cutter.take()).await;
                }
                return None;
            }
            Some(None) => {
                let _ = batches.send(cutter.finish()).await;
                return None;
            }
        }
    }
}

/// Submits a batch and writes its answers.
fn answer_batch(service: &dyn Service, batch: &LineBatch) -> Vec<u8> {
    let mut parameters = Vec::new();
    let parsed: Vec<(u64, Result<Submission<'_>, ErrorDetail>)> = batch
        .lines()
        .map(|(number, line)| {
            let submission = if line.len() > LINE_BYTES_MAX {
                Err(ApiError::invalid(format!("the line is longer than {LINE_BYTES_MAX} bytes")).detail)
            } else {
                parse(line, &mut parameters).map_err(|error| ErrorDetail { line: u32::try_from(number).ok(), ..error })
            };
            (number, submission)
        })
        .collect();
    let requests: Vec<QueryRequest<'_>> = parsed
        .iter()
        .filter_map(|(_, submission)| submission.as_ref().ok())
        .map(|submission| QueryRequest {
            name: submission.name.as_deref(),
            application: &submission.application,
            parameters: &parameters[submission.parameters.clone()],
            label: submission.label.as_deref(),
        })
        .collect();
    let mut answers = if requests.is_empty() { Vec::new() } else { service.submit(&requests) }.into_iter();
    let mut text = Vec::with_capacity(64 * parsed.len());
    for (number, submission) in &parsed {
        let answer = match submission {
            Err(error) => Err(error.clone()),
            Ok(submission) => match answers.next() {
                Some(Ok(id)) => Ok((id, submission.name.as_deref())),
                Some(Err(error)) => Err(ErrorDetail::from(error)),
                None => Err(ApiError::internal("the query was not answered").detail),
            },
        };
        match answer {
            Ok((id, name)) => write_created(&mut text, *number, id, name),
            Err(error) => text.extend(answer_line(Some(*number), error)),
        }
    }
    text
}

/// Writes `{"line":1,"id":7,"name":"kims_ac"}`, without a detour over types: this is the hot path.
fn write_created(text: &mut Vec<u8>, line: u64, id: u64, name: Option<&str>) {
    // Writing to memory does not fail.
    let _ = write!(text, "{{\"line\":{line},\"id\":{id},\"name\":");
    let _ = match name {
        Some(name) => serde_json::to_writer(&mut *text, name),
        None => serde_json::to_writer(&mut *text, &generated_name(id)),
    };
    text.extend_from_slice(b"}\n");
}

/// The answer to a line that failed; without a number, to the rest of the lines.
fn answer_line(line: Option<u64>, error: ErrorDetail) -> Vec<u8> {
    let mut text = match line {
        Some(line) => serde_json::to_vec(&BulkAnswer { line, id: None, name: None, error: Some(error) }),
        None => serde_json::to_vec(&ErrorAnswer { error }),
    }
    .unwrap_or_default();
    text.push(b'\n');
    text
}
