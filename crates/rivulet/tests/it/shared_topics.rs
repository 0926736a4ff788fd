//! Many queries on one topic get what they would get on topics of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use rivulet::engine::Engine;
use tempfile::TempDir;

use crate::engine::open;
use crate::server::Publisher;
use crate::support::{AsOperator, wait_until};

/// How many queries each application has.
const QUERIES: usize = 40;

/// Applications with one kind of input: found by equality, by a bound, and not by any index; one of them keeps state.
const APPLICATIONS: [&str; 3] = [
    "CREATE APPLICATION own (source TEXT, who TEXT, level BIGINT) INPUT numbers (device TEXT, n BIGINT) FROM 'mqtt:in/{source}'
     FORMAT JSON WITH (dead_letter => 'mqtt:out/dead/own/{who}') OUTPUT 'mqtt:out/own/{who}' FORMAT JSON
     AS SELECT n + $level AS n FROM numbers WHERE device = $who AND n <> 3",
    "CREATE APPLICATION above (source TEXT, who TEXT, level BIGINT) INPUT numbers (device TEXT, n BIGINT) FROM 'mqtt:in/{source}'
     FORMAT JSON OUTPUT 'mqtt:out/above/{who}' FORMAT JSON
     AS SELECT device, n, lag(n) AS before FROM numbers WHERE n > $level",
    "CREATE APPLICATION every (source TEXT, who TEXT, level BIGINT) INPUT numbers (device TEXT, n BIGINT) FROM 'mqtt:in/{source}'
     FORMAT JSON WITH (dead_letter => 'mqtt:out/dead/every/{who}') OUTPUT 'mqtt:out/every/{who}' FORMAT JSON
     AS SELECT sum(n) AS n, max(n / $level) AS parts FROM numbers GROUP BY count_window(5)",
];

/// An engine with every application and query, and a client that hears all they say.
struct House {
    engine: Arc<Engine>,
    sender: Publisher,
    listener: Publisher,
    /// Whether all queries read two topics, or each its own.
    is_shared: bool,
    live: Vec<(usize, usize)>,
    heard: BTreeMap<String, Vec<String>>,
    count: u64,
    _folder: TempDir,
}

impl House {
    fn new(is_shared: bool) -> Self {
        let folder = TempDir::new().expect("a folder");
        let engine = open(folder.path());
        let broker = engine.embedded_broker_address().expect("a broker");
        let mut listener = Publisher::connect(broker);
        listener.subscribe("out/#");
        let sender = Publisher::connect(broker);
        let (live, heard) = (Vec::new(), BTreeMap::new());
        let house = Self { engine, sender, listener, is_shared, live, heard, count: 0, _folder: folder };
        APPLICATIONS.iter().for_each(|application| house.run(application));
        house
    }

    fn run(&self, script: &str) {
        for answer in self.engine.execute(script) {
            answer.unwrap_or_else(|error| panic!("{script}: {error}"));
        }
    }

    fn create(&mut self, application: usize, query: usize) {
        let name = ["own", "above", "every"][application];
        let source =
            if self.is_shared { format!("all{}", query % 2) } else { format!("{name}/{query}").replace('/', "-") };
        self.run(&format!(
            "CREATE QUERY {name}_{query} FROM APPLICATION {name} WITH (source => '{source}', who => 'd{query}', level => {})",
            query % 7
        ));
        self.live.push((application, query));
    }

    /// `verb` is DROP, PAUSE or RESUME.
    fn change(&mut self, verb: &str, application: usize, query: usize) {
        let name = ["own", "above", "every"][application];
        self.run(&format!("{verb} QUERY {name}_{query}"));
        if verb != "RESUME" {
            self.live.retain(|&one| one != (application, query));
        } else {
            self.live.push((application, query));
        }
    }

    fn publish(&mut self, payload: &str) {
        if self.is_shared {
            return ["in/all0", "in/all1"].into_iter().for_each(|topic| self.sender.publish(topic, payload));
        }
        for &(application, query) in &self.live {
            self.sender.publish(&format!("in/{}-{query}", ["own", "above", "every"][application]), payload);
        }
    }

    fn results(&self) -> u64 {
        self.engine.status().total.results
    }

    fn refused(&self) -> u64 {
        self.engine.status().total.refused.values().sum()
    }

    /// Hears messages until there were so many in all.
    fn hear(&mut self, count: u64) {
        while self.count < count {
            let (topic, payload) = self.listener.next();
            // What a dead letter says of time and numbers is not compared.
            let payload = String::from_utf8(payload).expect("text");
            let payload = match payload.find("\"arrival_ms\"") {
                Some(time) => payload[payload.find("\"reason\"").expect("a reason")..time].to_owned(),
                None => payload,
            };
            self.heard.entry(topic).or_default().push(payload);
            self.count += 1;
        }
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.engine.metrics();
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect("the metric");
        line.rsplit(' ').next().expect("a value").parse().expect("a number")
    }
}

#[test]
fn queries_on_one_topic_hear_what_they_would_hear_on_their_own() {
    let (mut shared, mut own) = (House::new(true), House::new(false));
    let mut expected_events = 0;
    let mut phase = |shared: &mut House, own: &mut House, seed: u64, broken: bool| {
        for event in 0..60 {
            let (device, n) = ((event * 11 + seed) % 45, (event * 7 + seed) % 13);
            let payload = match event % 20 {
                19 if broken => "{\"device\": 7".to_owned(),
                18 => "{\"device\": null, \"n\": 5}".to_owned(),
                17 => "{\"device\": \"d3\"}".to_owned(),
                _ => format!("{{\"device\": \"d{device}\", \"n\": {n}}}"),
            };
            shared.publish(&payload);
            own.publish(&payload);
            expected_events += own.live.len() as u64;
            // Of a batch, the content of so many refusals is kept and not more.
            if event % 10 == 9 {
                wait_until("every event on own topics", || own.engine.status().total.events == expected_events);
                wait_until("the same", || (shared.results(), shared.refused()) == (own.results(), own.refused()));
            }
        }
    };
    for house in [&mut shared, &mut own] {
        (0..3).for_each(|application| (0..QUERIES).for_each(|query| house.create(application, query)));
    }
    assert_eq!((shared.metric("rivulet_shared_topics"), own.metric("rivulet_shared_topics")), (2, 0));
    // Two of the applications compute the same for queries with the same topic and level; there are seven levels.
    assert_eq!(shared.metric("rivulet_shared_topic_queries"), QUERIES as u64 + 2 * 14);
    let further =
        |house: &House, application| house.metric(&format!("rivulet_queries_shared{{application=\"{application}\"}}"));
    let all_further = ["own", "above", "every"].map(|application| further(&shared, application));
    assert_eq!((all_further, further(&own, "every")), ([0, 26, 26], 0));
    assert_eq!(shared.metric("rivulet_routes"), 2);
    phase(&mut shared, &mut own, 1, true);
    for house in [&mut shared, &mut own] {
        for (application, query) in [(0, 3), (1, 5), (2, 7)] {
            house.change("PAUSE", application, query);
            house.change("DROP", application, query + 1);
        }
        house.create(0, QUERIES);
    }
    phase(&mut shared, &mut own, 2, false);
    for house in [&mut shared, &mut own] {
        (0..3).for_each(|application| house.change("RESUME", application, [3, 5, 7][application]));
    }
    phase(&mut shared, &mut own, 3, true);

    // Broken payloads are refused by each query, and two applications have a dead-letter topic.
    let letters = own.refused()
        - own
            .engine
            .status()
            .applications
            .iter()
            .find(|one| one.name == "above")
            .map_or(0, |one| one.refused.values().sum::<u64>());
    assert!(letters > 100, "{letters}");
    let count = own.results() + letters;
    shared.hear(count);
    own.hear(count);
    assert!(own.heard.len() > 100, "{} topics", own.heard.len());
    for (topic, heard) in &mut own.heard {
        let through_shared = shared.heard.get_mut(topic).expect("a topic of both");
        // Of a batch, what cannot be decoded is refused before the rows; so letters keep no order among each other.
        if topic.starts_with("out/dead/") {
            heard.sort();
            through_shared.sort();
        }
        let differs = heard.iter().zip(&*through_shared).position(|(one, other)| one != other);
        assert_eq!((through_shared.len(), differs), (heard.len(), None), "{topic}");
    }
    assert_eq!(shared.heard.len(), own.heard.len());

    // The last query takes the shared input with it.
    let left = shared.live.clone();
    left.into_iter().for_each(|(application, query)| shared.change("DROP", application, query));
    assert_eq!((shared.metric("rivulet_shared_topics"), shared.metric("rivulet_routes")), (0, 0));
}
