//! The queries of a run. Query `number` is a pure function of the run's options and the number, so that the program
//! that submits the queries and the one that feeds them agree without communicating.

use serde::{Deserialize, Serialize};

use crate::applications::{
    BASE_APPLICATIONS, BaseApplication, DEFAULT_APPLICATIONS, SHARED_TOPIC_APPLICATION, base_application,
};
use crate::digits::write_integer;
use crate::random::Random;
use crate::streams::{Stream, StreamType};
use crate::tables::TableSpec;

/// How queries are spread over the applications of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Every application is as likely as any other.
    #[default]
    Uniform,
    /// The application of rank r has a share proportional to 1 / r.
    Zipf,
}

/// What a run consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkloadOptions {
    /// Names of base applications; none means [`DEFAULT_APPLICATIONS`].
    pub applications: Vec<String>,
    /// How many applications each base application is copied to, at least 1. Copies are different applications to the
    /// engine: `ac_control_0`, `ac_control_1` and so on; with one copy the name stays `ac_control`.
    pub copies: u32,
    /// How queries choose their application.
    pub distribution: Distribution,
    /// Everything random comes from this.
    pub seed: u64,
}

impl Default for WorkloadOptions {
    fn default() -> Self {
        Self { applications: Vec::new(), copies: 1, distribution: Distribution::default(), seed: 1 }
    }
}

/// The most applications that a run may have, copies counted.
pub const APPLICATIONS_MAX: usize = 1_000_000;

/// Options that make no workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// There is no base application with this name.
    #[error("there is no application '{0}' in the workload\nhint: choose from {known}", known = known_applications())]
    UnknownApplication(String),
    /// Applications whose queries share a topic, and others.
    #[error(
        "{SHARED_TOPIC_APPLICATION} reads one topic for all queries, the other applications one for each\n\
         hint: run them one after the other"
    )]
    MixedTopics,
    /// No copies at all, or more than [`APPLICATIONS_MAX`] applications.
    #[error(
        "{0} copies of each application are too few or too many\n\
         hint: at least 1, and at most {APPLICATIONS_MAX} applications altogether"
    )]
    Copies(u32),
}

fn known_applications() -> String {
    BASE_APPLICATIONS.iter().map(|base| base.name).collect::<Vec<_>>().join(", ")
}

/// The applications and queries of a run.
#[derive(Clone, Debug)]
pub struct Workload {
    options: WorkloadOptions,
    bases: Vec<&'static BaseApplication>,
    /// For a Zipf distribution, the share of the applications up to each rank.
    cumulative_shares: Vec<f64>,
}

/// An application of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplicationSpec {
    /// Its name.
    pub name: String,
    /// The `CREATE APPLICATION` statement.
    pub statement: String,
}

/// A query of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct QuerySpec {
    /// Its number in the run, from 0.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// The name of its application.
    pub application: String,
    /// Its parameters, a JSON object.
    pub parameters: serde_json::Value,
    /// Where its events are published; of two inputs the first.
    pub input_topic: String,
    /// What feeds it.
    pub stream_type: StreamType,
}

/// Tells the random numbers of streams from those of queries.
const STREAM_SEED: u64 = 0x5eed_0f57_4ea3_0001;

impl Workload {
    /// The workload that these options describe.
    pub fn new(options: WorkloadOptions) -> Result<Self, WorkloadError> {
        let names: Vec<&str> = match options.applications.as_slice() {
            [] => DEFAULT_APPLICATIONS.to_vec(),
            names => names.iter().map(String::as_str).collect(),
        };
        let bases = names
            .into_iter()
            .map(|name| base_application(name).ok_or_else(|| WorkloadError::UnknownApplication(name.to_owned())))
            .collect::<Result<Vec<_>, _>>()?;
        if bases.iter().any(|base| base.shares_topic() != bases[0].shares_topic()) {
            return Err(WorkloadError::MixedTopics);
        }
        let applications = bases.len().saturating_mul(options.copies as usize);
        if applications == 0 || applications > APPLICATIONS_MAX {
            return Err(WorkloadError::Copies(options.copies));
        }
        let cumulative_shares = match options.distribution {
            Distribution::Uniform => Vec::new(),
            Distribution::Zipf => cumulative_zipf_shares(applications),
        };
        Ok(Self { options, bases, cumulative_shares })
    }

    /// What it was made of.
    pub fn options(&self) -> &WorkloadOptions {
        &self.options
    }

    /// The number of applications, copies counted.
    pub fn application_count(&self) -> usize {
        self.bases.len() * self.options.copies as usize
    }

    /// Whether all queries read one topic, and each takes from it the events that name it: every event is one result of
    /// one query.
    pub fn shares_topic(&self) -> bool {
        self.bases.iter().all(|base| base.shares_topic())
    }

    /// The reference tables that must be there before the applications, each once.
    pub fn tables(&self) -> Vec<TableSpec> {
        let mut tables: Vec<TableSpec> = Vec::new();
        for table in self.bases.iter().filter_map(|base| TableSpec::of(base)) {
            if !tables.contains(&table) {
                tables.push(table);
            }
        }
        tables
    }

    /// All applications, the most used first. Ranks go around the base applications, so that a skewed run is skewed
    /// among copies and not among kinds of work.
    pub fn applications(&self) -> impl ExactSizeIterator<Item = ApplicationSpec> + '_ {
        (0..self.application_count()).map(|rank| {
            let name = self.application_name(rank);
            let statement = self.base(rank).statement_named(&name);
            ApplicationSpec { name, statement }
        })
    }

    /// The filters that match the input topics of all queries, each once.
    pub fn input_filters(&self) -> Vec<String> {
        let mut filters: Vec<String> = self.bases.iter().flat_map(|base| base.input_filters()).collect();
        filters.sort_unstable();
        filters.dedup();
        filters
    }

    /// Query `number`, in full.
    pub fn query(&self, number: u64) -> QuerySpec {
        let (rank, mut random) = self.choose(number);
        let base = self.base(rank);
        let mut parameters = Vec::new();
        base.write_parameters(number, &self.stream(number), &mut random, &mut parameters);
        QuerySpec {
            number,
            name: format!("q{number}"),
            application: self.application_name(rank),
            parameters: serde_json::from_slice(&parameters).expect("parameters are written as JSON"),
            input_topic: {
                let mut topic = Vec::new();
                base.write_input_topic(number, &mut topic);
                String::from_utf8(topic).expect("topics of the workload are ASCII")
            },
            stream_type: base.stream_type,
        }
    }

    /// Appends query `number` as one line for bulk submission, newline included:
    /// `{"name":"q7","application":"ac_control","parameters":{"home":"7","target":22.51}}`.
    pub fn write_query_line(&self, number: u64, out: &mut Vec<u8>) {
        let (rank, mut random) = self.choose(number);
        let base = self.base(rank);
        out.extend_from_slice(b"{\"name\":\"q");
        write_integer(number, out);
        out.extend_from_slice(b"\",\"application\":\"");
        self.write_application_name(rank, out);
        out.extend_from_slice(b"\",\"parameters\":");
        base.write_parameters(number, &self.stream(number), &mut random, out);
        out.extend_from_slice(b"}\n");
    }

    /// The rank of query `number`'s application: its index in [`Workload::applications`].
    pub fn application_of(&self, number: u64) -> usize {
        self.choose(number).0
    }

    /// Appends the input topic of query `number`, of two the first.
    pub fn write_input_topic(&self, number: u64, out: &mut Vec<u8>) {
        self.base(self.choose(number).0).write_input_topic(number, out);
    }

    /// Appends the topic of the second input of query `number`, if there is one.
    pub fn write_second_topic(&self, number: u64, out: &mut Vec<u8>) {
        self.base(self.choose(number).0).write_second_topic(number, out);
    }

    /// The sensor that feeds query `number`, before its first reading.
    pub fn stream(&self, number: u64) -> Stream {
        let stream_type = self.base(self.choose(number).0).stream_type;
        Stream::new(stream_type, &mut Random::of(self.options.seed ^ STREAM_SEED, number))
    }

    fn base(&self, rank: usize) -> &'static BaseApplication {
        self.bases[rank % self.bases.len()]
    }

    fn application_name(&self, rank: usize) -> String {
        let mut name = Vec::new();
        self.write_application_name(rank, &mut name);
        String::from_utf8(name).expect("names of applications are ASCII")
    }

    fn write_application_name(&self, rank: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(self.base(rank).name.as_bytes());
        if self.options.copies > 1 {
            out.push(b'_');
            write_integer((rank / self.bases.len()) as u64, out);
        }
    }

    /// The rank of the application of query `number`, and where the query's parameters come from.
    fn choose(&self, number: u64) -> (usize, Random) {
        let mut random = Random::of(self.options.seed, number);
        let applications = self.application_count();
        let rank = match self.options.distribution {
            Distribution::Uniform => random.below(applications as u64) as usize,
            Distribution::Zipf => {
                let share = random.unit();
                // The last sum may be a rounding error below one.
                self.cumulative_shares.partition_point(|&sum| sum <= share).min(applications - 1)
            }
        };
        (rank, random)
    }
}

/// Zipf with parameter 1: the share of all ranks up to each.
fn cumulative_zipf_shares(ranks: usize) -> Vec<f64> {
    let harmonic: f64 = (1..=ranks).map(|rank| 1.0 / rank as f64).sum();
    let mut sum = 0.0;
    (1..=ranks)
        .map(|rank| {
            sum += 1.0 / (rank as f64 * harmonic);
            sum
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(copies: u32, distribution: Distribution) -> Workload {
        let own_topics = BASE_APPLICATIONS.iter().filter(|base| !base.shares_topic());
        let applications = own_topics.map(|base| base.name.to_owned()).collect();
        Workload::new(WorkloadOptions { applications, copies, distribution, seed: 9 }).unwrap()
    }

    #[test]
    fn a_query_is_a_function_of_seed_and_number() {
        let one = workload(3, Distribution::Uniform);
        let other = Workload::new(one.options().clone()).unwrap();
        for number in 0..200 {
            assert_eq!(one.query(number), other.query(number));
            let mut line = Vec::new();
            one.write_query_line(number, &mut line);
            let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
            let query = one.query(number);
            assert_eq!(line["name"], query.name.as_str());
            assert_eq!(line["application"], query.application.as_str());
            assert_eq!(line["parameters"], query.parameters);
        }
        let names: std::collections::HashSet<_> = one.applications().map(|application| application.name).collect();
        assert_eq!(names.len(), one.application_count());
        assert!((0..200).all(|number| names.contains(&one.query(number).application)));
    }

    #[test]
    fn zipf_shares_are_those_of_the_evaluation() {
        let shares = cumulative_zipf_shares(6000);
        let of_rank = |rank: usize| if rank == 1 { shares[0] } else { shares[rank - 1] - shares[rank - 2] };
        assert!((of_rank(1) - 0.1078).abs() < 1e-4);
        assert!((of_rank(2) - 0.0539).abs() < 1e-4);
        assert!((shares[9] - 0.316).abs() < 1e-3);
        assert!((shares[47] - 0.481).abs() < 1e-3);
        assert!((shares[5999] - 1.0).abs() < 1e-9);

        let workload = workload(600, Distribution::Zipf);
        let queries = 100_000;
        let first = (0..queries).filter(|&number| workload.application_of(number) == 0).count();
        let share = first as f64 / queries as f64;
        let expected = cumulative_zipf_shares(workload.application_count())[0];
        assert!((share - expected).abs() < 0.004, "{share} instead of {expected}");
    }

    #[test]
    fn a_uniform_run_uses_every_application_alike() {
        let workload = workload(1, Distribution::Uniform);
        let mut counts = vec![0_u32; workload.application_count()];
        (0..10_000 * counts.len() as u64).for_each(|number| counts[workload.application_of(number)] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn parameters_lie_in_the_ranges_of_the_evaluation() {
        let workload = workload(1, Distribution::Uniform);
        for number in 0..5000 {
            let query = workload.query(number);
            let parameter = |name: &str| query.parameters[name].as_f64().unwrap();
            match query.application.as_str() {
                "ac_control" => assert!((18.0..=28.0).contains(&parameter("target"))),
                "abnormal_heart_rate" => assert!((100.0..=150.0).contains(&parameter("threshold"))),
                "fire_alarm" => assert!((0.2..=1.0).contains(&parameter("slope"))),
                "electricity_warning" => {
                    assert!((0.05..=1.0).contains(&parameter("limit_kwh")));
                    assert!(
                        ["300 seconds", "600 seconds", "1800 seconds"]
                            .contains(&query.parameters["span"].as_str().unwrap())
                    );
                }
                "medication_management" => {
                    let range = parameter("highest") - parameter("lowest");
                    assert!((4.9..=15.1).contains(&range));
                }
                "moisture_removal" => assert!((40.0..=70.0).contains(&parameter("humidity_max"))),
                "lightbulb_control" | "remote_child_care" => {
                    assert!((100.0..=1000.0).contains(&parameter("distance")));
                }
                "animal_care" => assert!((200.0..=2000.0).contains(&parameter("distance"))),
                _ => {}
            }
        }
    }

    #[test]
    fn impossible_options_are_refused_with_a_hint() {
        let unknown = WorkloadOptions { applications: vec!["ac_controll".into()], ..WorkloadOptions::default() };
        let error = Workload::new(unknown).unwrap_err().to_string();
        assert!(error.contains("ac_controll") && error.contains("hint:"), "{error}");
        let mixed = WorkloadOptions {
            applications: vec!["ac_control".into(), "device_readings".into()],
            ..WorkloadOptions::default()
        };
        assert_eq!(Workload::new(mixed).unwrap_err(), WorkloadError::MixedTopics);
        for copies in [0, u32::MAX] {
            let error = Workload::new(WorkloadOptions { copies, ..WorkloadOptions::default() }).unwrap_err();
            assert_eq!(error, WorkloadError::Copies(copies));
        }
    }
}
