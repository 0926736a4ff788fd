//! The queries of NEXMark against the answers of an independent engine, at several parallelisms, over streams in order
//! and out of it.
//!
//! How the answers came about is in `crates/rivulet-testing/oracle`.

use std::time::Duration;

use rivulet::run::{RunOptions, Runner};
use rivulet::script::{Script, Step};
use rivulet_bench::nexmark::{Input, Output, QUERIES, Query, write_side_input};
use rivulet_testing::corpus::{CORPORA, Corpus};
use rivulet_testing::{Answer, Expected};

use crate::sql_answers::Collected;

/// A query is over in a second or two.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a query says over a corpus, with batches and inboxes small enough that a lot happens.
fn answer(query: &Query, corpus: &Corpus, parallelism: usize, side_input: &std::path::Path) -> Result<Answer, String> {
    let script = query.script(Input::Generator(&corpus.stream()), Output::Caller, side_input);
    let mut options = RunOptions::new(parallelism);
    options.limits.batch_rows = 512;
    options.limits.rows_max = 2_048;
    let runner = Runner::new(options).map_err(|error| error.to_string())?;
    let mut script = Script::parse(&script).map_err(|error| error.to_string())?;
    let collected = Collected::default();
    while let Some(step) = script.next_step().map_err(|error| error.to_string())? {
        let Step::Run(planned) = step else { return Err("only queries are run".into()) };
        let running = runner
            .start(&planned.host, &planned.plan, &planned.name, Some(Box::new(collected.clone())))
            .map_err(|error| error.to_string())?;
        let report = running.wait(PATIENCE).ok_or("it does not end")?.map_err(|error| error.to_string())?;
        if report.flow.refused.iter().any(|&count| count > 0) {
            return Err(format!("rows were refused: {:?} {:?}", report.flow.refused, report.flow.refusals));
        }
    }
    Ok(std::mem::take(&mut *collected.0.lock()))
}

fn check_all(corpora: &[Corpus], parallelisms: &[usize]) {
    let folder = tempfile::tempdir().unwrap();
    let side_input = folder.path().join("side_input.csv");
    write_side_input(&side_input).unwrap();
    let mut wrong = Vec::new();
    let mut checked = 0;
    for corpus in corpora {
        for query in &QUERIES {
            let Some(expected) = Expected::of(query.name, corpus.name) else { continue };
            for &parallelism in parallelisms {
                checked += 1;
                let outcome = answer(query, corpus, parallelism, &side_input);
                if let Err(problem) = outcome.and_then(|answer| expected.check(&answer)) {
                    wrong.push(format!("{} over {} at parallelism {parallelism}: {problem}", query.name, corpus.name));
                }
            }
        }
    }
    assert!(checked >= corpora.len() * parallelisms.len() * 20, "only {checked} answers are known");
    assert!(wrong.is_empty(), "{} of {checked} are wrong\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
#[ignore = "slow"]
fn queries_answer_as_another_engine_does() {
    check_all(&CORPORA, &[1, 2, 4]);
}
