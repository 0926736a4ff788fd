//! `rivulet bench webhooks`: what one slow receiver of webhooks, and dead receivers of every kind, cost all others.
//!
//! Each event of each query is posted to the URL of that query, all at one server of receivers, which is a part of this
//! process. A generator sends events four times: while all receivers answer at once, while one of them takes long,
//! while one of them does not answer, and while applications beside them read all events and each has a receiver that
//! is not there. Latency is from the event's creation to the arrival of the request, at all receivers but that one.
//! After each time all receivers answer, and every event must have come.

mod receiver;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use rivulet_bench::generator::handle::HandleError;
use rivulet_bench::workload::{Workload, WorkloadOptions};
use rivulet_connectors::mqtt::codec::Qos;
use serde::Serialize;

use super::load::{start_generator, submit};
use super::process::{EMBEDDED_ADDRESS, ServerProcess, free_port};
use super::report::Report;
use super::setting::setting;
use crate::times::duration;
use receiver::{Answers, Receiver};

/// How long anything may take; a receiver that did not answer is tried again after half a minute at most.
const STEP_MAX: Duration = Duration::from_secs(300);
/// How often is looked whether all has come.
const LOOK_PERIOD: Duration = Duration::from_millis(10);

/// The application of the workload whose events are posted.
const APPLICATION: &str = "temperature_limit";

/// What is measured.
#[derive(Clone, Debug, Args)]
pub struct WebhookOptions {
    /// How many queries, each with a receiver of its own
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub queries: u32,
    /// Events a second for each query, in the mean
    #[arg(long = "rate", value_name = "RATE", default_value_t = 0.1)]
    pub rate_per_query: f64,
    /// How long events are sent each time
    #[arg(long, default_value = "20s", value_parser = duration)]
    pub duration: Duration,
    /// How long the slow receiver takes
    #[arg(long, default_value = "5s", value_parser = duration)]
    pub slow: Duration,
    /// Configuration of the server that is measured, for example workers=1
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
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
    let times = [Answers::AtOnce, Answers::After(options.slow), Answers::Never, Answers::AtOnce];
    for (time, answers) in times.into_iter().enumerate() {
        let is_beside_dead = time > 0 && matches!(answers, Answers::AtOnce);
        if is_beside_dead {
            let broker_address = free_port()?.to_string();
            let doomed = ServerProcess::start(&["serve"], None, &[(EMBEDDED_ADDRESS, broker_address.as_str())])?;
            server.post("/api/v1/sql", dead_receivers(&server.files(), &broker_address)?.as_bytes())?;
            drop(doomed);
            generator.wait_for_subscriptions(STEP_MAX).map_err(of_generator)?;
        }
        let one_receiver = match answers {
            Answers::AtOnce if is_beside_dead => "answers, beside dead ones".to_owned(),
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

/// Applications that read every event, and a big query, each with a receiver of another kind that is not there.
fn dead_receivers(files: &Path, broker: &str) -> Result<String, String> {
    // A file in whose place a folder would have to be takes as little as a full disk.
    let file = files.join("taken");
    std::fs::create_dir_all(files).and_then(|()| std::fs::write(&file, "")).map_err(|error| error.to_string())?;
    let read = "(value DOUBLE) FROM 'mqtt:plant/+/temperature' FORMAT JSON";
    let outputs = [
        ("http", "checkpoint", "http://127.0.0.1:9/x".to_owned()),
        ("logged", "log", "http://127.0.0.1:9/x".to_owned()),
        ("kafka", "checkpoint", "kafka:127.0.0.1:9/x".to_owned()),
        ("logged_kafka", "log", "kafka:127.0.0.1:9/x".to_owned()),
        ("file", "checkpoint", format!("file:{}/x/", file.display())),
        ("logged_file", "log", format!("file:{}/x/", file.display())),
    ];
    let application = |(name, durability, to): (&str, &str, String)| {
        format!(
            "CREATE APPLICATION dead_{name} () INPUT t {read} WITH (durability => '{durability}')
             OUTPUT '{to}' FORMAT JSON AS SELECT value FROM t;
             CREATE QUERY dead_{name}_1 FROM APPLICATION dead_{name};\n"
        )
    };
    let big_query = format!(
        "CREATE SOURCE dead_in {read}; CREATE SINK dead_out TO 'mqtt:x' FORMAT JSON WITH (broker => 'mqtt://{broker}');
         CREATE QUERY dead_mqtt AS SELECT value FROM dead_in INTO dead_out;"
    );
    Ok(outputs.into_iter().map(application).chain([big_query]).collect())
}
