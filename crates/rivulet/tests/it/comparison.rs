//! Queries of many kinds against the answers of an independent engine; they are in `crates/rivulet-testing/comparison`.

use rivulet_testing::comparison::{comparisons, write_files};

use crate::sql_answers::answer;

#[test]
#[ignore = "slow"]
fn queries_mean_what_they_mean_to_another_engine() {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path()).unwrap();
    let mut wrong = Vec::new();
    for comparison in comparisons() {
        let expected = comparison.expected().expect("an answer of each query is known");
        for parallelism in [1, 2] {
            let outcome = answer(&comparison.script(folder.path()), parallelism);
            let outcome = outcome.and_then(|answered| match answered.refused {
                0 => expected.check(&answered.answer),
                rows => Err(format!("{rows} rows were refused")),
            });
            if let Err(problem) = outcome {
                wrong.push(format!(
                    "{} at parallelism {parallelism}: {problem}\n{}",
                    comparison.name, comparison.select
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong\n{}", wrong.len(), wrong.join("\n\n"));
}
