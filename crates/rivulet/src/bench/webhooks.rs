//! `rivulet bench webhooks`: what one slow receiver of webhooks costs all others.
//!
//! Each event of each query is posted to the URL of that query, all at one server of receivers, which is a part of this
//! process. A generator sends events three times: while all receivers answer at once, while one of them takes long, and
//! while one of them does not answer. Latency is from the event's creation to the arrival of the request, at all
//! receivers but that one. After each time all receivers answer, and every event must have come.

mod receiver;

use std::time::{Duration, Instant};

use rivulet_bench::generator::handle::HandleError;
use rivulet_bench::workload::{Workload, WorkloadOptions};
use rivulet_connectors::mqtt::codec::Qos;
use serde::Serialize;

use super::load::{start_generator, submit};
use super::process::ServerProcess;
use super::report::Report;
use receiver::{Answers, Receiver};

/// How long anything may take; a receiver that did not answer is tried again after half a minute at most.
const STEP_MAX: Duration = Duration::from_secs(300);
/// How often is looked whether all has come.
const LOOK_PERIOD: Duration = Duration::from_millis(10);

/// The application of the workload whose events are posted.
const APPLICATION: &str = "temperature_limit";

/// What is measured.
#[derive(Clone, Debug)]
pub struct WebhookOptions {
    /// How many queries.
    pub queries: u32,
    /// Events a second for each query, in the mean.
    pub rate_per_query: f64,
    /// How long events are sent each time.
    pub duration: Duration,
    /// How long the slow receiver takes.
    pub slow: Duration,
    /// Environment variables of the server under measurement, and their values.
    pub settings: Vec<(String, String)>,
}

/// What the other receivers saw.
#[derive(Clone, Debug, Serialize)]
pub struct WebhookRow {
    /// What one receiver did.
    pub one_receiver: String,
    /// Events that were sent to all queries.
    pub events: u64,
    /// The median of the latencies at all other receivers.
    pub latency_us_p50: u64,
    /// Their 99th percentile.
    pub latency_us_p99: u64,
    /// The longest of them.
    pub latency_us_max: u64,
    /// Requests that came again.
    pub again: u64,
    /// Events that did not come, though all receivers answered at last.
    pub lost: u64,
}

/// Runs the measurement; `progress` is told what is going on. What fails is in the report.
pub fn run_webhooks(options: &WebhookOptions, mut progress: impl FnMut(&str)) -> Report<WebhookRow> {
    let mut report = Report::begin(None);
    if let Err(error) = measure(options, &mut report.rows, &mut progress) {
        report.rows.push(Err(error));
    }
    report
}

fn measure(
    options: &WebhookOptions,
    rows: &mut Vec<Result<WebhookRow, String>>,
    progress: &mut impl FnMut(&str),
) -> Result<(), String> {
    let of_generator = |error: HandleError| error.to_string();
    let workload_options = WorkloadOptions { applications: vec![APPLICATION.into()], ..WorkloadOptions::default() };
    let workload = Workload::new(workload_options.clone()).map_err(|error| error.to_string())?;
    let plant = workload.query(0).parameters["plant"].as_str().unwrap_or_default().to_owned();
    let receiver = Receiver::start(&format!("/{plant}")).map_err(|error| format!("no receiver: {error}"))?;
    let mut generator = start_generator(None, false, Qos::AtMostOnce, &[])?;
    let mut settings = vec![("RIVULET_SINK_HTTP_ALLOW", "127.0.0.1")];
    settings.extend(options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let mut server = ServerProcess::start(&["serve"], generator.address(), &settings)?;
    // The time of an event is passed on as it is: milliseconds since the epoch.
    let statement = format!(
        "CREATE APPLICATION {APPLICATION} (plant TEXT, highest DOUBLE)
         INPUT temperature (ts DOUBLE, value DOUBLE) FROM 'mqtt:plant/{{plant}}/temperature' FORMAT JSON
         OUTPUT 'http://{}/{{plant}}' FORMAT JSON
         AS SELECT ts, value FROM temperature WHERE value > $highest - 1000;",
        receiver.address
    );
    server.post("/api/v1/sql", statement.as_bytes())?;
    submit(&mut server, &workload, u64::from(options.queries))?;
    generator.prepare(options.queries, workload_options).map_err(of_generator)?;
    generator.wait_for_subscriptions(STEP_MAX).map_err(of_generator)?;
    for answers in [Answers::AtOnce, Answers::After(options.slow), Answers::Never] {
        let one_receiver = match answers {
            Answers::AtOnce => "answers at once".to_owned(),
            Answers::After(wait) => format!("answers after {} s", wait.as_secs_f64()),
            Answers::Never => "does not answer".to_owned(),
        };
        progress(&format!("{} queries, one receiver {one_receiver} ...", options.queries));
        receiver.begin(answers);
        generator.start(options.rate_per_query, options.duration, 1.0).map_err(of_generator)?;
        let events = generator.finish(STEP_MAX).map_err(of_generator)?.events_sent;
        // Those of the one receiver that is slow may come later.
        receiver.let_others_come(events, STEP_MAX);
        let latency = receiver.latencies().summary();
        receiver.answer(Answers::AtOnce);
        let deadline = Instant::now() + STEP_MAX;
        while receiver.came() < events && Instant::now() < deadline {
            std::thread::sleep(LOOK_PERIOD);
        }
        let lost = events.saturating_sub(receiver.came());
        rows.push(Ok(WebhookRow {
            one_receiver,
            events,
            latency_us_p50: latency.us_p50,
            latency_us_p99: latency.us_p99,
            latency_us_max: latency.us_max,
            again: receiver.again(),
            lost,
        }));
    }
    Ok(())
}
