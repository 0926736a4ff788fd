//! NEXMark's q10: bids in files, divided by day and minute. Every bid is in a file, once, and in the right one.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rivulet::run::{RunOptions, Runner};
use rivulet::script::{Script, Step};
use rivulet_bench::nexmark::{Input, Output, query};
use rivulet_testing::Expected;
use rivulet_testing::corpus::CORPORA;

/// The files below a folder.
fn files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

#[test]
fn every_bid_is_in_the_file_of_its_minute() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("bids");
    let sink = format!("'file:{}' FORMAT CSV (header => true) WITH (partition_by => 'dt, hm')", target.display());
    let corpus = &CORPORA[1];
    let stream = corpus.stream();
    let script = query("q10").unwrap().script(Input::Generator(&stream), Output::Sink(&sink), Path::new("unused"));
    let runner = Runner::new(RunOptions::new(2)).unwrap();
    let mut script = Script::parse(&script).unwrap();
    while let Some(step) = script.next_step().unwrap() {
        let Step::Run(planned) = step else { panic!("only queries are run") };
        let running = runner.start(&planned.host, &planned.plan, &planned.name, None).unwrap();
        running.wait(Duration::from_secs(120)).expect("it ends").unwrap();
    }
    let mut found = Vec::new();
    files(&target, &mut found);
    let mut bids = 0;
    for file in &found {
        let text = fs::read_to_string(file).unwrap();
        let of_file = file.display().to_string().replace("%3A", ":");
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("auction,bidder,price,date_time,extra"), "{of_file}");
        for line in lines {
            let minutes = line.split(',').nth(3).unwrap().parse::<i64>().unwrap() / 60_000;
            let (day, of_day) =
                if minutes / 1_440 == 16_630 { ("14", minutes % 1_440) } else { ("15", minutes % 1_440) };
            let folder = format!("dt=2015-07-{day}/hm={:02}:{:02}/", of_day / 60, of_day % 60);
            assert!(of_file.contains(&folder), "{line} in {of_file}");
            bids += 1;
        }
    }
    // Eight minutes and a little.
    assert!(found.len() >= 9, "{found:?}");
    assert_eq!(Some(bids), Expected::of("q10", corpus.name).map(|expected| expected.rows));
}
