//! Bulk submission: lines of JSON in, a line of JSON out for each, both as streams.
//!
//! ```text
//! request body -> reader task -> [1 batch] -> worker task -> [2 answers] -> response body
//! ```
//!
//! A batch is cut at 8192 lines, or when its oldest line has waited for 5 ms and the worker takes it: under load
//! batches are large and a commit to disk serves thousands of queries, a line that comes alone is answered at once.
//! Memory is bounded by the two channels: a client that does not read its answers stops being read, so it must read
//! while it writes. What all bulk submissions have in hand, from a line's arrival to its answer's departure, is counted
//! with that of all other requests; one for which there is no room is read when there is. So there may be as many as
//! there are connections, and those that send nothing are in nobody's way.

use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use rivulet_connectors::http_server::{BodyError, ClientWait, Held, Pause, next_data};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

use crate::service::{
    Alteration, AlterationEffect, ErrorKind, QueryChange, QueryRequest, ServiceError, Session, generated_name,
};

use super::call::{Api, Authenticated, Parameters};
use super::error::ApiError;
use super::lines::{LINE_BYTES_MAX, LineBatch, LineCutter};
use super::submission::{Submission, parse};
use super::types::{BulkAnswer, BulkOutcome, BulkParameters, ErrorAnswer, ErrorDetail, QuerySubmission};

/// What the answer to a line is taken for, in bytes: an id and a name, or an error with its hint.
const ANSWER_BYTES: usize = 256;

/// How much of an answer is sent at once.
const PIECE_BYTES: usize = 64 << 10;

/// How much of a body is taken at once.
const TAKEN_BYTES: usize = 8 << 10;

/// What to do where a submission ended before its lines did.
const AGAIN: &str = "send this line and the ones after it again";

/// How long a line waits for others.
const BATCH_WAIT: Duration = Duration::from_millis(5);

/// Submit many queries, one JSON object a line
///
/// Answers stream back line by line and in order, `{"line":1,"id":7,"name":"kims_ac"}` or `{"line":2,"error":{...}}`. A
/// line that is answered with an id is durable. A wrong line harms only itself. Read the answers while you send: the
/// server keeps no more than some ten thousand unread ones and stops reading until you take them.
///
/// With `replace_existing` a query whose name exists gets the values and the label of the line, as if it had been
/// submitted with them, and goes on with what state it can; each answer then says as its `outcome` whether the query
/// was `created`, `changed`, or `unchanged` because it had these values. If state has begun anew, `state_reset` names
/// the parameters because of which, and `begun_anew` says which operators.
///
/// A client that sends less than 1 KiB in `http.body_timeout_s` is answered with an error of kind `timeout` and the
/// first line that was not read. The time in which it waits for answers does not count.
#[utoipa::path(
    post, path = "/api/v1/queries/bulk", tag = "queries",
    params(BulkParameters),
    request_body(content = QuerySubmission, content_type = "application/x-ndjson"),
    responses(
        (status = 200, description = "A line for each line", body = BulkAnswer, content_type = "application/x-ndjson"),
    ),
)]
pub(super) async fn submit_bulk(
    api: Authenticated,
    wait: Option<Extension<ClientWait>>,
    Parameters(BulkParameters { replace_existing }): Parameters<BulkParameters>,
    body: Body,
) -> Result<Response, ApiError> {
    let (batches_in, mut batches) = mpsc::channel::<Batch>(1);
    let wait = wait.map(|Extension(wait)| wait);
    let (answers, answers_out) = mpsc::channel::<Piece>(1);
    let reader = Reader { body, cutter: LineCutter::new(), held: None, wait, batches: batches_in, api: (*api).clone() };
    let reader = tokio::spawn(reader.read());
    tokio::spawn(async move {
        while let Some(Batch { lines: batch, held, pause }) = batches.recv().await {
            let (answer, is_last) =
                match api.blocking(move |session| answer_batch(session, &batch, replace_existing)).await {
                    Ok(answer) => (answer, false),
                    // The stream has begun, so the error cannot be a status any more. Nothing of the batch is
                    // acknowledged.
                    Err(error) => (answer_line(None, error.detail), true),
                };
            if !send(&answers, answer, held).await || is_last {
                return;
            }
            drop(pause);
        }
        if let Ok(Some((line, error))) = reader.await {
            send(&answers, answer_line(Some(line), error), None).await;
        }
    });
    let body = Body::from_stream(ReceiverStream::new(answers_out).map(|(piece, _)| Ok::<_, Infallible>(piece)));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// A part of an answer, and the memory that the whole answer counts for.
type Piece = (Bytes, Option<Arc<Held>>);

/// Sends an answer in pieces, of which the connection keeps a few. Returns whether somebody takes it.
async fn send(answers: &mpsc::Sender<Piece>, answer: Vec<u8>, held: Option<Held>) -> bool {
    let (mut rest, held) = (Bytes::from(answer), held.map(Arc::new));
    while !rest.is_empty() {
        let piece = rest.split_to(rest.len().min(PIECE_BYTES));
        if answers.send((piece, held.clone())).await.is_err() {
            return false;
        }
    }
    true
}

/// What bytes and the answers to their lines count for.
fn cost(bytes: &[u8]) -> usize {
    bytes.len() + ANSWER_BYTES * bytes.iter().filter(|&&byte| byte == b'\n').count()
}

/// Lines that are submitted together.
struct Batch {
    lines: LineBatch,
    /// The memory that they and their answers count for.
    held: Option<Held>,
    /// A client may wait for its answers before it sends more.
    pause: Option<Pause>,
}

/// Reads a body into batches.
struct Reader {
    body: Body,
    /// Nothing where the request did not come over a connection.
    wait: Option<ClientWait>,
    cutter: LineCutter,
    /// What is in the cutter counts for this much.
    held: Option<Held>,
    batches: mpsc::Sender<Batch>,
    api: Api,
}

impl Reader {
    /// Reads to the end. Where the server does not go on in the middle: the first line it did not read, and why.
    async fn read(mut self) -> Option<(u64, ErrorDetail)> {
        let mut stop = self.api.stop.clone();
        let mut deadline = Instant::now();
        loop {
            let has_lines = self.cutter.has_lines();
            let frame = tokio::select! {
                frame = next_data(&mut self.body) => frame,
                // The oldest line has waited long enough. While no batch is taken, this one grows.
                () = async {
                    sleep_until(deadline).await;
                    // Where nobody takes batches any more, handing over tells it.
                    let _ = self.batches.reserve().await;
                }, if has_lines => {
                    self.hand_over(&[]).await?;
                    continue;
                }
                () = stop.stopped() => {
                    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "the server is stopping");
                    return self.end(error.with_hint(AGAIN)).await;
                }
            };
            match frame {
                Ok(Some(frame)) => {
                    for piece in frame.chunks(TAKEN_BYTES) {
                        self.take(piece, &mut deadline).await?;
                    }
                }
                Ok(None) => {
                    let pause = self.pause();
                    let (lines, held, pause) = (self.cutter.finish(), self.held, pause);
                    let _ = self.batches.send(Batch { lines, held, pause }).await;
                    return None;
                }
                Err(BodyError::Stalled(problem)) => {
                    let error = ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", problem);
                    let hint = "http.body_timeout_s is how long each KiB may take";
                    return self.end(error.with_hint(format!("{AGAIN}; {hint}"))).await;
                }
                // The client went away in the middle: its whole lines count, a line that had begun does not.
                Err(_) => {
                    self.hand_over(&[]).await;
                    return None;
                }
            }
        }
    }

    /// Takes bytes once there is memory for them. `None` if nobody takes batches any more.
    async fn take(&mut self, bytes: &[u8], deadline: &mut Instant) -> Option<()> {
        let budget = self.api.bounds.budget.clone();
        let more = match budget.try_take(cost(bytes)) {
            Some(more) => more,
            None => {
                // Nobody waits for memory and keeps some meanwhile, or all might.
                self.hand_over(&[]).await?;
                self.held = None;
                let _pause = self.pause();
                budget.take(cost(bytes)).await
            }
        };
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let had_lines = self.cutter.has_lines();
            let taken = self.cutter.push(rest);
            rest = &rest[taken..];
            if !had_lines && self.cutter.has_lines() {
                *deadline = Instant::now() + BATCH_WAIT;
            }
            if self.cutter.is_full() {
                self.hand_over(rest).await?;
            }
        }
        Some(())
    }

    /// Hands over the whole lines that there are, and the memory they count for, except for that of `rest`. `None` if
    /// nobody takes them.
    async fn hand_over(&mut self, rest: &[u8]) -> Option<()> {
        if !self.cutter.has_lines() {
            return Some(());
        }
        let mut held = self.held.take();
        self.held = held.as_mut().and_then(|held| held.split(cost(rest).min(held.num_permits())));
        let (lines, pause) = (self.cutter.take(), self.pause());
        self.batches.send(Batch { lines, held, pause }).await.ok()
    }

    /// Until this is dropped the client may wait for the server.
    fn pause(&self) -> Option<Pause> {
        self.wait.as_ref().map(ClientWait::pause)
    }

    /// Ends the reading before the end of the body.
    async fn end(mut self, error: ApiError) -> Option<(u64, ErrorDetail)> {
        self.hand_over(&[]).await?;
        Some((self.cutter.next_line(), error.detail))
    }
}

/// Submits a batch and writes its answers; if it `replaces_existing`, queries that exist get the values of their lines.
fn answer_batch(session: &Session<'_>, batch: &LineBatch, replaces_existing: bool) -> Vec<u8> {
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
    let answers: Vec<Answer> = match replaces_existing {
        _ if requests.is_empty() => Vec::new(),
        true => submit_or_alter(session, &requests),
        false => session.submit(&requests).into_iter().map(|answer| answer.map(Done::new)).collect(),
    };
    let mut answers = answers.into_iter();
    let mut text = Vec::with_capacity(64 * parsed.len());
    for (number, submission) in &parsed {
        let answer = match submission {
            Err(error) => Err(error.clone()),
            Ok(submission) => match answers.next() {
                Some(Ok(done)) => Ok((done, submission.name.as_deref())),
                Some(Err(error)) => Err(ErrorDetail::from(error)),
                None => Err(ApiError::internal("the query was not answered").detail),
            },
        };
        match answer {
            Ok((done, name)) => write_done(&mut text, *number, name, &done),
            Err(error) => text.extend(answer_line(Some(*number), error)),
        }
    }
    text
}

/// What became of a query whose line is right.
struct Done {
    id: u64,
    /// If queries that exist are given the values of their lines.
    outcome: Option<BulkOutcome>,
    effect: Option<Arc<AlterationEffect>>,
    warning: Option<String>,
}

impl Done {
    fn new(id: u64) -> Self {
        Self { id, outcome: None, effect: None, warning: None }
    }

    fn altered(Alteration { id, effect, warning }: Alteration) -> Self {
        let outcome = if effect.is_some() { BulkOutcome::Changed } else { BulkOutcome::Unchanged };
        Self { id, outcome: Some(outcome), effect, warning }
    }
}

type Answer = Result<Done, ServiceError>;

/// Gives those queries the values of their lines that exist, and submits the others.
fn submit_or_alter(session: &Session, requests: &[QueryRequest<'_>]) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = requests.iter().map(|_| None).collect();
    let unanswered = |answers: &[Option<Answer>]| -> Vec<usize> {
        answers.iter().enumerate().filter(|(_, answer)| answer.is_none()).map(|(place, _)| place).collect()
    };
    let alter = |answers: &mut [Option<Answer>]| {
        let mut places = unanswered(answers);
        let mut changes = Vec::with_capacity(places.len());
        places.retain(|&place| {
            let QueryRequest { name, application, parameters, label } = requests[place];
            let change = |name| QueryChange { name, parameters, label: Some(label), whole_of: Some(application) };
            changes.extend(name.map(change));
            name.is_some()
        });
        let altered = if changes.is_empty() { Vec::new() } else { session.alter(&changes) };
        for (place, altered) in places.into_iter().zip(altered) {
            answers[place] = match altered {
                Ok(altered) => Some(Ok(Done::altered(altered))),
                // It is submitted.
                Err(error) if error.kind == ErrorKind::NotFound => None,
                Err(error) => Some(Err(error)),
            };
        }
    };
    alter(&mut answers);
    let places = unanswered(&answers);
    let new: Vec<QueryRequest<'_>> = places.iter().map(|&place| requests[place]).collect();
    let submitted = if new.is_empty() { Vec::new() } else { session.submit(&new) };
    let mut comes_twice = false;
    for (place, submitted) in places.into_iter().zip(submitted) {
        answers[place] = match submitted {
            Ok(id) => Some(Ok(Done { outcome: Some(BulkOutcome::Created), ..Done::new(id) })),
            // By a line before it.
            Err(error) if error.kind == ErrorKind::AlreadyExists => {
                comes_twice = true;
                None
            }
            Err(error) => Some(Err(error)),
        };
    }
    if comes_twice {
        alter(&mut answers);
    }
    let gone =
        || ServiceError::new(ErrorKind::Conflict, "the query was created and dropped meanwhile").with_hint(AGAIN);
    answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(gone()))).collect()
}

/// Writes `{"line":1,"id":7,"name":"kims_ac"}`, without a detour over types: this is the hot path.
fn write_done(text: &mut Vec<u8>, line: u64, name: Option<&str>, done: &Done) {
    // Writing to memory does not fail.
    let _ = write!(text, "{{\"line\":{line},\"id\":{},\"name\":", done.id);
    let _ = match name {
        Some(name) => serde_json::to_writer(&mut *text, name),
        None => serde_json::to_writer(&mut *text, &generated_name(done.id)),
    };
    text.extend_from_slice(match done.outcome {
        None => b"",
        Some(BulkOutcome::Created) => br#","outcome":"created""#.as_slice(),
        Some(BulkOutcome::Changed) => br#","outcome":"changed""#,
        Some(BulkOutcome::Unchanged) => br#","outcome":"unchanged""#,
    });
    let effect = done.effect.as_deref();
    let lists = effect.map(|effect| [("state_reset", &effect.state_reset), ("begun_anew", &effect.begun_anew)]);
    for (field, list) in lists.into_iter().flatten().filter(|(_, list)| !list.is_empty()) {
        let _ = write!(text, ",\"{field}\":");
        let _ = serde_json::to_writer(&mut *text, list);
    }
    if let Some(warning) = &done.warning {
        text.extend_from_slice(br#","warning":"#);
        let _ = serde_json::to_writer(&mut *text, warning);
    }
    text.extend_from_slice(b"}\n");
}

/// The answer to a line that failed; without a number, to the rest of the lines.
fn answer_line(line: Option<u64>, error: ErrorDetail) -> Vec<u8> {
    let mut text = match line {
        Some(line) => serde_json::to_vec(&BulkAnswer { line, error: Some(error), ..BulkAnswer::default() }),
        None => serde_json::to_vec(&ErrorAnswer { error }),
    }
    .unwrap_or_default();
    text.push(b'\n');
    text
}
