//! The streams of the generators: proportions, ranges and sizes that the benchmarks prescribe, and that a stream is the
//! same however it is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Float64Type, Int64Type, Schema, TimestampMicrosecondType};
use rivulet_connectors::connector::{ConnectorContext, ConnectorError, Connectors, SourceSpec};
use rivulet_connectors::files::Files;
use rivulet_dataflow::{Polled, Refusals, Source};

static GENERATORS: Connectors = Connectors::with(&rivulet_bench::sources::CONNECTORS);

/// All columns of a generator, or those named.
fn spec(connector: &str, address: &str, names: &[&str], options: &[(&str, &str)]) -> SourceSpec {
    let schema = GENERATORS.declared_schema(connector, address, &Files::of_user()).unwrap().unwrap();
    let is_read = |place: &usize| names.is_empty() || names.contains(&schema.field(*place).name().as_str());
    SourceSpec {
        connector: connector.into(),
        address: address.into(),
        format: None,
        columns: (0..schema.fields().len()).filter(is_read).collect(),
        schema: Arc::new(schema),
        event_time_column: None,
        has_computed_time: false,
        options: options.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        host: ConnectorContext::of_user(),
        resume: None,
    }
}

/// Everything that the partitions have, one after the other.
fn read(spec: &SourceSpec, partitions: usize) -> RecordBatch {
    let mut batches = Vec::new();
    for source in &mut GENERATORS.open_source(spec, partitions).unwrap() {
        batches.extend(drain(source.as_mut()));
    }
    concat_batches(&Arc::new(spec.schema.project(&spec.columns).unwrap()), &batches).unwrap()
}

fn drain(source: &mut dyn Source) -> Vec<RecordBatch> {
    let (mut refusals, mut batches) = (Refusals::new(0), Vec::new());
    loop {
        match source.poll(1_000, 0, &mut refusals).unwrap() {
            Polled::Rows { columns, .. } => batches.push(columns),
            Polled::Nothing(_) | Polled::Aside(_) => panic!("a generator without a rate always has something"),
            Polled::End => return batches,
        }
    }
}

fn nexmark(kind: &str, names: &[&str], options: &[(&str, &str)]) -> RecordBatch {
    read(&spec("nexmark", kind, names, options), 1)
}

fn numbers<'a>(batch: &'a RecordBatch, name: &str) -> &'a [i64] {
    batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().values()
}

fn times<'a>(batch: &'a RecordBatch, name: &str) -> &'a [i64] {
    batch.column_by_name(name).unwrap().as_primitive::<TimestampMicrosecondType>().values()
}

fn texts<'a>(batch: &'a RecordBatch, name: &str) -> Vec<&'a str> {
    batch.column_by_name(name).unwrap().as_string::<i32>().iter().flatten().collect()
}

/// The rows as text, sorted.
fn sorted_rows(batch: &RecordBatch) -> Vec<String> {
    let cell = |column: &ArrayRef, row: usize| {
        if column.is_null(row) {
            return "null".into();
        }
        match column.as_string_opt::<i32>() {
            Some(texts) => texts.value(row).to_owned(),
            None => format!("{:?}", column.slice(row, 1)),
        }
    };
    let row = |row| batch.columns().iter().map(|column| cell(column, row)).collect::<Vec<_>>().join("|");
    let mut rows: Vec<String> = (0..batch.num_rows()).map(row).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn kinds_have_their_proportions_and_ids_follow_each_other() {
    let all = nexmark("", &["event_type"], &[("events", "1000000")]);
    let kinds = numbers(&all, "event_type");
    let (first, rest) = kinds.split_at(50);
    assert_eq!((first[0], &first[1..4], &first[4..]), (0, &[1; 3][..], &[2; 46][..]));
    assert_eq!(rest[0], 0);
    let mut counts = [0; 3];
    kinds.iter().for_each(|&kind| counts[kind as usize] += 1);
    assert_eq!(counts, [20_000, 60_000, 920_000]);
    let ids = |kind, count: i64| {
        let batch = nexmark(kind, &["id"], &[("events", "50000")]);
        assert!(numbers(&batch, "id").iter().copied().eq(1_000..1_000 + count), "{kind}");
    };
    ids("person", 1_000);
    ids("auction", 3_000);
}

#[test]
fn bids_go_to_hot_and_other_auctions_at_log_uniform_prices() {
    let bids = nexmark("bid", &["auction", "bidder", "price", "date_time"], &[("events", "500000")]);
    let (auctions, bidders, prices) = (numbers(&bids, "auction"), numbers(&bids, "bidder"), numbers(&bids, "price"));
    let part = |count: usize| count as f64 / bids.num_rows() as f64;
    // Half of the bids, and what of the other half falls on the hot auction by chance.
    let hot = part(auctions.iter().filter(|&&auction| auction % 100 == 0).count());
    assert!((0.50..0.52).contains(&hot), "{hot}");
    let hot = part(bidders.iter().filter(|&&bidder| bidder % 100 == 1).count());
    assert!((0.75..0.77).contains(&hot), "{hot}");
    assert!(prices.iter().all(|price| (100..=100_000_000).contains(price)));
    let dear = part(prices.iter().filter(|&&price| price > 90_000_000).count());
    assert!((0.006..0.009).contains(&dear), "{dear}");
    // An auction or bidder is one of the last, or of those that come next.
    for (row, (&auction, &bidder)) in auctions.iter().zip(bidders).enumerate() {
        let cycle = row as i64 / 46;
        let (last_auction, last_person) = (1_000 + cycle * 3 + 2, 1_000 + cycle);
        assert!((last_auction - 100..=last_auction + 10).contains(&auction), "bid {row} on {auction}");
        assert!((last_person - 999..=last_person + 10).contains(&bidder), "bid {row} by {bidder}");
    }
    assert!(times(&bids, "date_time").is_sorted());
}

#[test]
fn auctions_end_when_later_ones_begin() {
    let auctions = nexmark("auction", &[], &[("events", "200000"), ("event_rate", "1000")]);
    let lengths = times(&auctions, "expires").iter().zip(times(&auctions, "date_time")).map(|(end, start)| end - start);
    let (mut sum_us, mut longest_us) = (0, 0);
    for length_us in lengths {
        assert!(length_us >= 1_000);
        (sum_us, longest_us) = (sum_us + length_us, longest_us.max(length_us));
    }
    let mean_s = sum_us as f64 / auctions.num_rows() as f64 / 1e6;
    assert!((1.6..1.74).contains(&mean_s) && longest_us <= 3_334_000, "{mean_s} s, {longest_us} us");
    let (first, reserve) = (numbers(&auctions, "initial_bid"), numbers(&auctions, "reserve"));
    assert!(first.iter().zip(reserve).all(|(first, reserve)| (100..=100_000_000).contains(&(reserve - first))));
    let mut categories = BTreeMap::new();
    numbers(&auctions, "category").iter().for_each(|&category| *categories.entry(category).or_insert(0) += 1);
    assert!(categories.keys().copied().eq(10..15) && categories.values().all(|count| (2_200..2_600).contains(count)));
    let hot = numbers(&auctions, "seller").iter().filter(|&&seller| seller % 100 == 0).count() as f64 / 12_000.0;
    assert!((0.74..0.78).contains(&hot), "{hot}");
}

#[test]
fn records_have_their_average_sizes() {
    let mean = |kind, texts_of: &[&str], numbers: usize| {
        let batch = nexmark(kind, &[], &[("events", "200000")]);
        let bytes: usize =
            texts_of.iter().map(|name| texts(&batch, name).iter().map(|text| text.len()).sum::<usize>()).sum();
        bytes as f64 / batch.num_rows() as f64 + 8.0 * numbers as f64
    };
    let person = mean("person", &["name", "email_address", "credit_card", "city", "state", "extra"], 1);
    assert!((197.0..203.0).contains(&person), "{person}");
    let auction = mean("auction", &["item_name", "description", "extra"], 6);
    assert!((494.0..506.0).contains(&auction), "{auction}");
    let bid = mean("bid", &["extra"], 4);
    assert!((99.0..101.0).contains(&bid), "{bid}");
}

#[test]
fn texts_are_what_queries_look_for() {
    let bids = nexmark("bid", &["channel", "url"], &[("events", "100000")]);
    let (channels, urls) = (texts(&bids, "channel"), texts(&bids, "url"));
    let hot = channels.iter().filter(|channel| !channel.starts_with("channel-")).count() as f64 / channels.len() as f64;
    assert!((0.49..0.51).contains(&hot), "{hot}");
    let with_id = urls.iter().filter(|url| url.contains("&channel_id=")).count() as f64 / urls.len() as f64;
    assert!((0.43..0.47).contains(&with_id), "{with_id}");
    assert!(urls.iter().all(|url| url.starts_with("https://www.nexmark.com/") && url.split('/').count() == 7));
    let persons = nexmark("person", &[], &[("events", "100000")]);
    let states = texts(&persons, "state").iter().filter(|state| ["OR", "ID", "CA"].contains(state)).count();
    assert!((900..1_100).contains(&states), "{states} of 2,000");
    assert!(texts(&persons, "email_address").iter().all(|mail| mail.contains('@') && mail.ends_with(".com")));
    assert!(texts(&persons, "credit_card").iter().all(|card| card.len() == 19));
}

#[test]
fn a_stream_is_the_same_however_it_is_read() {
    for (connector, address) in
        [("nexmark", "bid"), ("nexmark", "person"), ("nexmark", ""), ("hibench", ""), ("sensors", "")]
    {
        let options = [("events", "6000"), ("seed", "3")];
        let once = sorted_rows(&read(&spec(connector, address, &[], &options), 1));
        let with = |more: &[(&str, &str)], partitions| {
            let options = [&options[..], more].concat();
            sorted_rows(&read(&spec(connector, address, &[], &options), partitions))
        };
        assert_eq!(once, with(&[], 3), "{connector}:{address} in three partitions");
        assert_eq!(once, with(&[("block", "7")], 4), "{connector}:{address} in small blocks");
        assert_eq!(once, with(&[("disorder", "500"), ("block", "64")], 2), "{connector}:{address} in disorder");
        let other = read(&spec(connector, address, &[], &[("events", "6000"), ("seed", "4")]), 1);
        assert_ne!(once, sorted_rows(&other), "{connector}:{address} with another seed");
    }
    let options = [("events", "20000")];
    let alone = nexmark("bid", &["price", "extra"], &options);
    let beside = nexmark("bid", &[], &options);
    assert_eq!(alone.column_by_name("extra"), beside.column_by_name("extra"));
    assert_eq!(alone.column_by_name("price"), beside.column_by_name("price"));
}

/// A few rows of each partition at a time; after each round all are opened anew where they were.
fn in_rounds(spec: &SourceSpec, partitions: usize, polls: usize) -> Vec<String> {
    let (mut refusals, mut batches) = (Refusals::new(0), Vec::new());
    let mut sources = GENERATORS.open_source(spec, partitions).unwrap();
    for _ in 0..10_000 {
        let mut left: Vec<Box<dyn Source>> = Vec::new();
        'sources: for mut source in sources {
            for _ in 0..polls {
                match source.poll(7, 0, &mut refusals).unwrap() {
                    Polled::Rows { columns, .. } => batches.push(columns),
                    Polled::Nothing(_) | Polled::Aside(_) => {}
                    Polled::End => continue 'sources,
                }
            }
            left.push(source);
        }
        if left.is_empty() {
            return sorted_rows(&concat_batches(&spec.read_schema(), &batches).unwrap());
        }
        let positions: Vec<Option<String>> = left.iter_mut().map(|source| source.position()).collect();
        assert!(positions.iter().all(Option::is_some));
        drop(left);
        let resumed = SourceSpec { resume: Some(positions), ..spec.clone() };
        sources = GENERATORS.open_source(&resumed, partitions).unwrap();
    }
    panic!("it does not end");
}

#[test]
fn generators_go_on_where_a_checkpoint_was_made() {
    for (connector, address) in [("nexmark", "bid"), ("hibench", ""), ("sensors", "")] {
        let spec = spec(connector, address, &[], &[("events", "1000"), ("block", "17")]);
        let expected = sorted_rows(&read(&spec, 1));
        assert!(expected.len() > 900, "{connector}");
        for (partitions, polls) in [(1, 1), (2, 2), (3, 5)] {
            assert_eq!(in_rounds(&spec, partitions, polls), expected, "{connector}");
        }
    }
}

#[test]
fn all_kinds_side_by_side_are_the_kinds_by_themselves() {
    let all = nexmark("", &[], &[("events", "5000")]);
    let bids = nexmark("bid", &[], &[("events", "5000")]);
    let kinds = numbers(&all, "event_type");
    let of_bids: Vec<&str> = texts(&all, "bid_url");
    assert_eq!(of_bids, texts(&bids, "url"));
    for (name, kind) in [("person_name", 0), ("auction_id", 1), ("bid_price", 2)] {
        let column = all.column_by_name(name).unwrap();
        assert!(kinds.iter().enumerate().all(|(row, &of_row)| column.is_null(row) == (of_row != kind)), "{name}");
    }
}

#[test]
fn disorder_is_bounded_in_time() {
    let options = [("events", "100000"), ("disorder", "300"), ("event_rate", "100")];
    let bids = nexmark("bid", &["date_time"], &options);
    let mut newest_us = 0;
    let mut behind_us = 0;
    for &time_us in times(&bids, "date_time") {
        newest_us = newest_us.max(time_us);
        behind_us = behind_us.max(newest_us - time_us);
    }
    assert!((2_500_000..3_000_000).contains(&behind_us), "{behind_us} us");
}

#[test]
fn the_first_rows_are_these() {
    // A change here changes the committed answers of the benchmark's queries.
    let bids = nexmark("bid", &[], &[("events", "6")]);
    let visits = read(&spec("hibench", "", &["ip"], &[("events", "2")]), 1);
    assert_eq!((numbers(&bids, "auction"), numbers(&bids, "bidder")), (&[1_000, 1_000][..], &[1_006, 1_003][..]));
    assert_eq!(numbers(&bids, "price"), [120, 2_013_591]);
    assert_eq!(times(&bids, "date_time"), [1_436_918_400_000_000; 2]);
    assert_eq!(texts(&bids, "url")[1], "https://www.nexmark.com/zsgq/rgb/jwhc/item.htm?query=1&channel_id=376963072");
    assert!(texts(&bids, "extra")[0].starts_with("ukukzkjgjieqrjtq"));
    assert_eq!(texts(&visits, "ip"), ["69.132.253.180", "12.174.165.50"]);
}

#[test]
fn the_trace_of_city_sensors_is_read_round_and_round() {
    let city = |names: &[&str], options: &[(&str, &str)], partitions| {
        let spec = spec("riot", "", names, options);
        let mut sources = GENERATORS.open_source(&spec, partitions).unwrap();
        let batches: Vec<_> = sources.iter_mut().flat_map(|source| drain(source.as_mut())).collect();
        concat_batches(&batches[0].schema(), &batches).unwrap()
    };
    let options = [("events", "2500"), ("event_rate", "1000"), ("partitions", "1")];
    let all = city(&[], &options, 1);
    assert!(numbers(&all, "number").iter().copied().eq(0..2_500));
    let due = |number: i64| 1_436_918_400_000_000 + number * 1_000;
    assert!(times(&all, "at").iter().copied().eq((0..2_500).map(due)));
    assert_eq!(times(&all, "sent")[1_999], 1_422_748_859_000_000);
    assert_eq!(texts(&all, "source")[0], "ci4lr75sl000802ypo4qrcjda23");
    assert_eq!((texts(&all, "longitude")[2_000], texts(&all, "latitude")[0]), ("6.1668213", "46.1927629"));
    let humidity = all.column_by_name("humidity").unwrap().as_primitive::<Float64Type>();
    assert!((humidity.value(1_000) - 53.7).abs() < 1e-5 && humidity.null_count() == 0);
    // Whatever is read of it, and in how many parts.
    let few = city(&["number", "source"], &[("events", "2500"), ("block", "100")], 2);
    let numbered = few.column_by_name("number").unwrap().as_primitive::<Int64Type>().values().iter();
    let (sources, all_sources) = (texts(&few, "source"), texts(&all, "source"));
    assert!(numbered.zip(sources).all(|(number, source)| source == all_sources[*number as usize]));
    assert_eq!(city(&["at"], &options, 1).num_rows(), 2_500);
}

#[test]
fn valves_of_the_equipment_answer_their_sensors_by_the_schedule() {
    let options = [("events", "400000"), ("event_rate", "100"), ("base_time", "1970-01-01"), ("partitions", "1")];
    let spec = spec("debs", "", &[], &options);
    let mut sources = GENERATORS.open_source(&spec, 1).unwrap();
    let batches: Vec<_> = sources.iter_mut().flat_map(|source| drain(source.as_mut())).collect();
    let all = concat_batches(&batches[0].schema(), &batches).unwrap();
    assert!(times(&all, "ts").iter().copied().eq((0..400_000).map(|reading| reading * 10_000)));
    assert!(numbers(&all, "index").iter().copied().eq(2_556_001..2_956_001));
    assert_eq!(["mf01", "mf02", "mf03"].map(|name| numbers(&all, name)[2_000]), [13_056, 14_406, 8_119]);
    let edges = |name: &str| -> Vec<i64> {
        let column = all.column_by_name(name).unwrap().as_boolean();
        let differs = |row: &i64| column.value(*row as usize) != column.value(*row as usize - 1);
        (1..400_000).filter(differs).map(|row| row * 10).collect()
    };
    // All in milliseconds: 200; 300 (1 + k / 30,000) to the nearest 10; 500, from the fiftieth on 520.
    type Delay = fn(i64) -> i64;
    let schedule: [(&str, &str, i64, Delay); 3] = [
        ("bm05", "bm08", 5_000, |_| 200),
        ("bm06", "bm09", 7_000, |k| (300 * (30_000 + k) + 150_000) / 300_000 * 10),
        ("bm07", "bm10", 11_000, |k| 500 + 20 * i64::from(k >= 50)),
    ];
    for (sensor, valve, period_ms, delay_ms) in schedule {
        let changes: Vec<i64> = (1..).map(|n| n * period_ms).take_while(|at_ms| *at_ms < 4_000_000).collect();
        assert_eq!(edges(sensor), changes, "{sensor}");
        let answers = changes.iter().zip(0..).map(|(at_ms, k)| at_ms + delay_ms(k));
        assert_eq!(edges(valve), answers.collect::<Vec<_>>(), "{valve}");
    }
}

#[test]
fn what_cannot_be_generated_is_refused_with_a_hint() {
    let problem = |spec: SourceSpec| match GENERATORS.open_source(&spec, 1) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    };
    let with = |name, value| problem(spec("nexmark", "bid", &[], &[(name, value)]));
    assert!(with("disorder", "953").contains("hint: multiples of 953"));
    assert!(with("base_time", "noon").contains("hint: write a time as"));
    assert!(with("sed", "1").contains("did you mean 'seed'?"));
    let mut other = spec("nexmark", "bid", &[], &[]);
    other.address = "bids".into();
    assert!(problem(other).contains("'nexmark:bids' is no stream of the benchmark\nhint: write 'nexmark:bid'"));
    let mut other = spec("nexmark", "bid", &[], &[]);
    other.address = "person".into();
    assert!(problem(other).contains("has no column 'auction'\nhint: its columns are id, name"));
    let short = spec("nexmark", "bid", &[], &[("shape", "square"), ("shape_period", "1 ms")]);
    assert!(matches!(GENERATORS.open_source(&short, 1), Err(ConnectorError::Option { .. })));
    let columns = |address: &str| {
        let schema = GENERATORS.declared_schema("nexmark", address, &Files::of_user()).unwrap();
        schema.map(|schema: Schema| schema.fields().len())
    };
    assert_eq!((columns("bids"), columns("bid")), (None, Some(7)));
}

#[test]
fn generators_have_names_of_their_own() {
    let names: Vec<&str> = GENERATORS.all().map(|connector| connector.name).collect();
    assert!(names.iter().enumerate().all(|(place, name)| !names[..place].contains(name)), "{names:?}");
    assert_eq!(names.len(), Connectors::OWN.all().count() + rivulet_bench::sources::CONNECTORS.len());
}
