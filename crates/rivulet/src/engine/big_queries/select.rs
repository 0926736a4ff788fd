//! Readers that watch rows as they come: the results of a big query on their way to its sink, and the results of a
//! SELECT that runs for one reader alone.
//!
//! What must hold: a SELECT ends with its reader. The queues for readers are bounded ([`Taps`]), and rows that a reader
//! misses are counted for that reader alone: no other query waits for a reader. A SELECT takes no rows away from others
//! that read the same source. It writes nowhere, so rows that it refuses do not go to the sinks of its sources either.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_dataflow::Reason;
use rivulet_runtime::Tap;
use rivulet_sql::{Position, QueryPlan, Statement, plan_look};
use serde_json::json;

use super::BigQueries;
use super::select_rows::SelectRows;
use super::selects::Select;
use super::whole::{May, WholeTables};
use crate::engine::taps::{Taps, Watched};
use crate::engine::texts::only_statement;
use crate::run::{Running, create_source, with_files};
use crate::service::{ErrorKind, FullName, Selection, ServiceError, Tenant};

/// The most SELECT that run at a time; each has a thread that waits for its end.
const SELECTS_MAX: usize = 16;

/// The most SELECT of one tenant. It does not apply to the default tenant, that of the person who runs the server.
const SELECTS_OF_TENANT_MAX: usize = 4;

/// How often a thread checks whether its SELECT has ended.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// How often the thread of one whose input ends asks whether its reader takes more rows.
const PACED_PERIOD: Duration = Duration::from_millis(5);

/// The least time between two notes to a reader about refused rows.
const NOTE_PERIOD: Duration = Duration::from_secs(1);

/// The number of the next SELECT; each number is used once in a process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The number of running SELECT by tenant.
static RUNNING: Mutex<BTreeMap<Tenant, usize>> = Mutex::new(BTreeMap::new());

/// One of [`SELECTS_MAX`].
#[derive(Debug)]
struct Place(Tenant);

impl Place {
    fn take(tenant: &Tenant) -> Result<Self, ServiceError> {
        let mut running = RUNNING.lock();
        let of_tenant = running.get(tenant).copied().unwrap_or(0);
        let all: usize = running.values().sum();
        let most = match (all >= SELECTS_MAX, !tenant.is_default() && of_tenant >= SELECTS_OF_TENANT_MAX) {
            (true, _) => format!("{SELECTS_MAX} SELECT run already"),
            (_, true) => format!("{SELECTS_OF_TENANT_MAX} SELECT of yours run already"),
            (false, false) => {
                running.insert(tenant.clone(), of_tenant + 1);
                return Ok(Self(tenant.clone()));
            }
        };
        Err(ServiceError::new(ErrorKind::LimitReached, most)
            .with_hint("end one of them, or write CREATE QUERY name AS ... INTO a sink"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut running = RUNNING.lock();
        match running.get_mut(&self.0) {
            Some(of_tenant) if *of_tenant > 1 => *of_tenant -= 1,
            _ => _ = running.remove(&self.0),
        }
    }
}

/// What its reader knows of the rows that a SELECT has refused. Nothing else tells the reader why no rows come.
#[derive(Default)]
struct Told {
    rows: u64,
    looked: Option<Instant>,
}

impl Told {
    /// Tells the reader of newly refused rows, once in a while and at the end.
    fn tell(&mut self, running: &Running, taps: &Taps, watched: &Watched, is_over: bool) {
        if !is_over && self.looked.is_some_and(|looked| looked.elapsed() < NOTE_PERIOD) {
            return;
        }
        self.looked = Some(Instant::now());
        let report = running.report();
        let rows = report.refused.iter().sum::<u64>();
        if rows == self.rows {
            return;
        }
        self.rows = rows;
        let reasons = Reason::ALL.into_iter().map(|reason| (reason.name(), report.refused[reason as usize]));
        let reasons: BTreeMap<&str, u64> = reasons.filter(|(_, rows)| *rows > 0).collect();
        let note = json!({"rows": rows, "reasons": reasons, "example": report.refusals.last()});
        taps.note(watched, note.to_string());
    }
}

/// Ends a SELECT when its reader goes.
struct Guard(Arc<Running>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl BigQueries {
    /// Hands the results of a big query to readers that watch it.
    pub(super) fn tap_of(&self, name: &FullName, plan: &QueryPlan) -> Tap {
        let (taps, watched) = (self.queries.taps.clone(), Watched::BigQuery(name.clone()));
        let changes = plan.output.changes;
        Arc::new(move |batch| taps.send_rows(&watched, batch, changes))
    }

    /// A `CREATE SOURCE` statement for a file that the server may read, as the file appears.
    pub(in crate::engine) fn describe_file(
        &self,
        tenant: &Tenant,
        path: &str,
        position: Position,
    ) -> Result<String, ServiceError> {
        create_source(path, position, &self.opener.permitted.files(tenant))
    }

    /// Runs a SELECT of a tenant for as long as the caller holds the returned value.
    pub(in crate::engine) fn begin_select(
        &self,
        tenant: &Tenant,
        sql: &str,
        may: May<'_>,
    ) -> Result<Selection, ServiceError> {
        let Some(Statement::RunQuery(query)) = only_statement(sql)? else {
            return Err(ServiceError::invalid("expected one SELECT").with_hint("other statements go to /api/v1/sql"));
        };
        if let Some(sink) = &query.sink {
            let position = sink.position;
            let message = "a SELECT that is watched has no sink";
            return Err(ServiceError::invalid(message)
                .at(position.line, position.column)
                .with_hint("leave INTO out, or write CREATE QUERY name AS ... to have it run"));
        }
        let host = self.opener.permitted.host(tenant);
        let mut scope = with_files(&query, &self.scope(tenant), &host)?;
        self.add_looked_at(tenant, &query, &mut scope, may)?;
        let tables = WholeTables::of(&query, &mut scope, may)?;
        let plan = plan_look(&query, &scope).map_err(|error| self.refused_look(tenant, &query, error.into()))?;
        let plan = Arc::new(plan);
        self.memory.admit(1, 0)?;
        let place = Place::take(tenant)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (taps, watched) = (self.queries.taps.clone(), Watched::Select(number));
        let rows = taps.watch(watched.clone());
        let results = Box::new(SelectRows::new(taps.clone(), watched.clone(), &plan.output));
        let name = tenant.named(format!("select {number}"));
        let started = self.opener.start_select(&plan, &name, results, self.given_to_select(tenant, tables));
        let running = started.map(Arc::new).inspect_err(|_| taps.forget(&watched))?;
        let end = Arc::<OnceLock<String>>::default();
        {
            let mut selects = self.selects.lock();
            selects.retain(|one| one.running.strong_count() > 0);
            selects.push(Select { name, running: Arc::downgrade(&running), end: end.clone() });
        }
        let selection = Selection { rows, end: end.clone(), _running: Box::new(Guard(running.clone())) };
        let wait = move || {
            let _place = place;
            let mut refused = Told::default();
            let period = if running.is_bounded() { PACED_PERIOD } else { LOOK_PERIOD };
            let ended = loop {
                let ended = running.wait(period);
                refused.tell(&running, &taps, &watched, ended.is_some());
                if let Some(ended) = ended {
                    break ended;
                }
            };
            let _ = end.set(match ended {
                Ok(_) => "ended".to_owned(),
                Err(error) => format!("failed: {}", error.message),
            });
            // The reader gets the rows that still wait for it, and then the end.
            taps.forget(&watched);
        };
        thread::Builder::new()
            .name("rivulet-select".into())
            .spawn(wait)
            .map_err(|error| ServiceError::new(ErrorKind::Unavailable, format!("no thread can be started: {error}")))?;
        Ok(selection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_leaves_room_for_others() {
        let one = Tenant::new("one");
        let places: Vec<Place> = (0..SELECTS_OF_TENANT_MAX).map(|_| Place::take(&one).expect("a place")).collect();
        let refused = Place::take(&one).expect_err("one more");
        assert!(refused.kind == ErrorKind::LimitReached && refused.message.contains("of yours"), "{refused:?}");
        let others = SELECTS_MAX - SELECTS_OF_TENANT_MAX;
        let of_operator: Vec<Place> =
            (0..others).map(|_| Place::take(Tenant::of_operator()).expect("a place")).collect();
        let refused = Place::take(&Tenant::new("two")).expect_err("all are taken");
        assert!(refused.message.starts_with("16 SELECT"), "{refused:?}");
        drop(places);
        let again = Place::take(&one).expect("they are given back");
        drop((again, of_operator));
        assert!(RUNNING.lock().is_empty());
    }
}
