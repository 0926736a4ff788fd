//! The start and the end of a server: big queries in the catalog are started again, and stop with their last
//! checkpoints.

use std::sync::Arc;
use std::time::Instant;

use rivulet_sql::{BigQuery, Statement, Stored, plan_query};

use super::declared::{declared_by, title};
use super::ends::waiting_rows;
use super::life::Life;
use super::starts::Verdict;
use super::{BigQueries, OneQuery, Remembered, STOP_MAX, saved};
use crate::counted::counted;
use crate::run;
use crate::service::{FullName, ServiceError};

/// The reason shown for a query that waits because the server died.
const WAITS: &str = "the server died twice in a row soon after it was started with this query and others, so they are started one after \
                     the other";

/// The reason shown for a query with which the server dies.
const IS_HELD: &str = "the server died twice in a row soon after it was started with this query, by a crash or for want of memory, so it is \
                       not started by itself; RESUME QUERY starts it";

impl OneQuery {
    /// Notes of a query that has come to its end if its result is missing, as on another machine than it ran on. It
    /// does not run again by itself, for what it has written elsewhere would be written twice.
    fn look_for_result(&mut self, name: &FullName, is_there: impl FnOnce(String) -> bool) {
        let Life::Ended(end) = &mut self.life else { return };
        let sink = self.plan.as_ref().and_then(|plan| plan.output.sink.as_ref());
        let Some(file) = sink.and_then(|sink| run::CONNECTORS.path_of(&sink.address)) else { return };
        if is_there(file.to_owned()) {
            return;
        }
        let text = format!(
            "its result was written to {file}, which is not there: it is where the query ran before, or was taken away; to compute it once more, drop the query and create it again"
        );
        tracing::warn!(query = name.in_log(), "a query has come to its end, and {text}");
        end.result_is_elsewhere = Some(text);
    }
}

impl BigQueries {
    /// Carries out the statements in the catalog. A statement that cannot be carried out any more is reported, and the
    /// others run.
    pub(in crate::engine) fn load(&self) -> Result<(), ServiceError> {
        let statements = self.catalog.statements()?;
        self.opener.begin_start();
        if let Some((store, _)) = self.store() {
            if let Err(error) = store.remove_unfinished() {
                tracing::warn!("checkpoints that were not written in full are left: {error}");
            }
            // Checkpoints of queries that were dropped while no checkpoints were made.
            let known = statements.iter().map(|stored| stored.number).collect();
            saved::forget_dropped(store, self.catalog.statement_next()?, &known);
        }
        // Queries that were replaced may need declarations that were made after them.
        let mut queries = Vec::new();
        for stored in statements {
            let Ok(Stored { statement, outdated, error }) = rivulet_sql::parse_stored(&stored.sql) else {
                // The text is not logged, because it may have secrets in it.
                tracing::error!(number = stored.number, "a remembered statement is not understood by this version");
                continue;
            };
            let title = title(&statement);
            outdated.iter().for_each(|one| tracing::warn!("the {title} was created by an earlier version: {one}"));
            if let Some(error) = &error {
                tracing::error!("the {title} is not understood by this version; drop it, and create it anew: {error}");
            }
            let remembered = Remembered { tenant: stored.tenant, statement };
            self.known.lock().remembered.insert(stored.number, remembered.clone());
            match &remembered.statement {
                Statement::CreateBigQuery(create) => {
                    let name = remembered.tenant.named(&create.name.text);
                    self.queries.state.lock().big_query_names.insert(name.clone());
                    queries.push((name, create.clone(), stored.number, stored.paused, stored.failure));
                }
                declaration => {
                    if let Some((what, name)) = declared_by(declaration).filter(|(what, _)| what.is_read()) {
                        let name = remembered.tenant.named(name);
                        self.queries.state.lock().note_relation(&name, what.word());
                    }
                    let is_tried_again = error.is_none();
                    let limit = self.opener.limit();
                    let entered = self.enter_remembered(stored.number, &remembered, is_tried_again, limit);
                    if let (Err(error), true) = (entered, is_tried_again) {
                        tracing::error!("the {title} is not in use, and is tried again until it is: {error}");
                    }
                }
            }
        }
        for (name, create, number, is_paused, failure) in queries {
            let one = self.load_one(&name, &create.query, number, is_paused, failure);
            self.known.lock().queries.insert(name, one);
        }
        self.opener.end_start();
        let known = self.known.lock();
        if !known.queries.is_empty() {
            let running = known.queries.values().filter(|one| one.life.flow().is_some()).count();
            tracing::info!(
                queries = known.queries.len(),
                running,
                "big queries run again, but those that were paused, have failed or wait"
            );
        }
        Ok(())
    }

    /// A query after the start of the server: running, paused with nothing open, ended or failed as it was before, or
    /// not running for a reason.
    fn load_one(
        &self,
        name: &FullName,
        query: &BigQuery,
        number: u64,
        is_paused: bool,
        failure: Option<String>,
    ) -> OneQuery {
        let (query, life) = (query.clone(), Life::stored(is_paused, failure));
        let mut one = OneQuery { number, query, plan: None, saved: None, life, automatic: Default::default() };
        let scope = self.scope_of(&name.tenant, &one.query);
        let planned = scope.and_then(|scope| Ok(plan_query(&one.query, &scope)?));
        let loaded = planned.and_then(|plan| {
            let plan = one.plan.insert(Arc::new(plan)).clone();
            one.saved = self.line(name, number, &one.query.text)?;
            if one.saved.as_ref().is_some_and(|saved| saved.lock().has_ended()) {
                one.life.end();
            }
            if !one.life.waits_to_start() || self.may_end_the_server(name, &mut one) {
                return Ok(());
            }
            self.starts.begin(number);
            let started = self.start_saved(name, &one.query.text, &plan, one.saved.as_ref());
            started.map(|started| started.enter(&mut one.life))
        });
        match loaded {
            Ok(()) => one.look_for_result(name, |file| {
                let files = self.opener.permitted.files(&name.tenant);
                let look = move || Ok(files.locate(file).is_ok_and(|path| path.exists()));
                // If the file system does not answer, the result may well be there.
                self.opener.call("looking for a result", self.opener.limit(), look).unwrap_or(true)
            }),
            Err(error) => {
                tracing::error!(query = name.in_log(), "a registered query is not running: {error}");
                one.life.hinder(error.message);
            }
        }
        one
    }

    /// Whether a query is not started now because the server may have died of it. If so, this is logged and recorded.
    fn may_end_the_server(&self, name: &FullName, one: &mut OneQuery) -> bool {
        let problem = match self.starts.verdict(one.number) {
            Verdict::Starts => return false,
            Verdict::Waits => {
                one.life.hinder(WAITS.to_owned());
                WAITS
            }
            Verdict::IsHeld => {
                one.life.fail(IS_HELD.to_owned());
                if let Err(error) = self.catalog.set_statement_failure(one.number, Some(IS_HELD)) {
                    tracing::warn!(query = name.in_log(), "after a restart the query will run again: {error}");
                }
                IS_HELD
            }
        };
        tracing::error!(query = name.in_log(), "a query is not running: {problem}");
        true
    }

    /// The server stops: if the process ends now, no query is the cause.
    pub(in crate::engine) fn begin_to_stop(&self) {
        self.starts.close();
    }

    /// Ends the input of all big queries, and gives them time to write rows in flight. `save` makes their last
    /// checkpoints. Returns which rows are lost, in words.
    pub(in crate::engine) fn stop(&self, save: impl FnOnce()) -> Vec<String> {
        self.note_failures();
        let running: Vec<(FullName, OneQuery, Arc<run::Running>)> = {
            // Code that replaces a query has to finish first.
            self.wait_unclaimed(STOP_MAX);
            let known = self.known.lock();
            let running = known.queries.iter();
            running.filter_map(|(name, one)| Some((name.clone(), one.clone(), one.life.flow()?.clone()))).collect()
        };
        // A query with checkpoints will continue from its last one, which is made now that no rows come any more. Rows
        // written after it would come twice, so none are.
        let (saved, running): (Vec<_>, Vec<_>) = running.into_iter().partition(|(.., flow)| flow.has_checkpoints());
        saved.iter().for_each(|(.., flow)| flow.flow().close());
        if !saved.is_empty() {
            save();
        }
        // Their sinks are told to make the rows of the checkpoint final, and may have to wait for others.
        let deadline = Instant::now() + STOP_MAX;
        for (.., flow) in &saved {
            flow.flow().wait_committed(deadline.saturating_duration_since(Instant::now()));
        }
        let unsaved = saved.iter().filter_map(|(name, one, flow)| {
            let failure = one.saved.as_ref()?.lock().status(None).failure?;
            let failure = failure.replace("\nhint: ", "; ");
            lost_rows(name, flow, &format!("no checkpoint of it could be made: {failure}"))
        });
        let mut lost: Vec<String> = unsaved.collect();
        saved.iter().for_each(|(.., flow)| flow.cancel());
        running.iter().for_each(|(.., flow)| flow.stop());
        // All of them together: each may wait for a device that does not answer.
        let deadline = Instant::now() + STOP_MAX;
        for (name, _, flow) in running {
            if flow.wait(deadline.saturating_duration_since(Instant::now())).is_none() {
                lost.extend(lost_rows(&name, &flow, "it makes no checkpoints, and did not come to its end"));
            }
        }
        lost
    }
}

/// Reports that the server stops and a query could not be saved, for the reason `why`. Returns which of its rows are
/// lost, if any are, in words.
fn lost_rows(name: &FullName, flow: &run::Running, why: &str) -> Option<String> {
    let (query, (sinks, rows)) = (name.in_log(), waiting_rows(flow));
    let waiting = match rows {
        0 => String::new(),
        rows => format!(", with {} that waited for the sink {sinks}", counted(rows, "row")),
    };
    let fate = match flow.comes_again() {
        true => "are computed and sent again after the start",
        false => "are lost",
    };
    // Nothing has come that could be lost.
    if rows == 0 && flow.report().rows_in == 0 {
        return None;
    }
    let text =
        format!("the query '{query}' is stopped, and {why}; its rows since the last checkpoint{waiting}, {fate}");
    tracing::error!("{text}");
    (!flow.comes_again()).then_some(text)
}
