//! `rivulet bench burst`: the results are the same whatever is done about a burst, and the report has every figure.

use serde_json::Value;

use super::server::{rivulet, said};

#[test]
fn a_short_burst_has_every_figure_and_equal_results() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("burst.html");
    let arguments = ["bench", "burst", "--json", "--query", "q5", "--baselines", "r1,all", "--rate", "2000"];
    let more = ["--duration", "4s", "--html", page.to_str().unwrap()];
    let output = rivulet().args(arguments).args(more).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for (run, baseline) in runs.iter().zip(["r1", "all"]) {
        assert_eq!((&run["query"], &run["baseline"]), (&"q5".into(), &baseline.into()));
        for figure in ["rate", "cpu_share", "latency_peak_ms", "latency_ms_p99", "cost_usd", "move_ms"] {
            assert!(run[figure].as_f64() > Some(0.0), "{figure} in {run}");
        }
        assert!(run["recovered_s"].is_number() || run["recovered_s"].is_null(), "{run}");
        assert_eq!(run["latency_ms"].as_array().unwrap().len(), 16);
        let moves = run["moves"].as_array().unwrap().iter().map(|one| one.as_str().unwrap());
        assert!(moves.clone().any(|said| said.contains("on burst workers now")), "{run}");
        assert_eq!(run["is_equal"], true, "{run}");
    }
    let price = &report["prices"][0];
    // On a busy machine the server may have had no time at all while it was looked at.
    assert!(price["plain_ns"].as_f64() >= Some(0.0) && price["burst_ns"].as_f64() >= Some(0.0), "{report}");
    assert_eq!(report["costs"].as_array().unwrap().len(), 7);
    let page = std::fs::read_to_string(page).unwrap();
    for part in ["<h2>q5, 2000 events/s</h2>", "bursts in 15 % of a day", "with burst =&gt; true and no worker"] {
        assert!(page.contains(part), "{part} in {page}");
    }
}
