//! The examples about a patient's heart and readings, on courses of events as they happen.

use std::path::Path;

use rivulet_sql::ParamValue;
use rivulet_testing::TestGroup;

const START_MS: i64 = 1_766_275_200_000;
const MINUTE_MS: i64 = 60_000;

/// A group of the application in a file of `examples/`.
fn group_of(example: &str) -> TestGroup {
    let path = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is"))
        .join("../../examples")
        .join(example);
    let text = std::fs::read_to_string(path).expect("an example");
    TestGroup::new(&text, START_MS * 1000)
}

fn results(group: &TestGroup, query: u64) -> Vec<serde_json::Value> {
    let results = group.results().remove(&query).unwrap_or_default();
    results.iter().map(|result| serde_json::from_str(result).expect("results are JSON")).collect()
}

#[test]
fn a_climb_after_a_visit_is_told_once() {
    let group = group_of("rising_after_visit.sql");
    let anna = group.add(1, &[("patient", ParamValue::Text("anna"))]);
    let ben = group.add(2, &[("patient", ParamValue::Text("ben")), ("patience", ParamValue::Text("10 minutes"))]);
    let push = |slot, minute: i64, source: &str, value: f64| {
        let ts = START_MS + minute * MINUTE_MS;
        group.push(slot, ts * 1000, &format!("{{\"ts\":{ts},\"source\":\"{source}\",\"value\":{value}}}"));
    };
    for slot in [anna, ben] {
        push(slot, 0, "device", 9.0);
        push(slot, 1, "doctor", 7.5);
        push(slot, 2, "device", 8.0);
        push(slot, 4, "device", 6.0);
        push(slot, 5, "device", 7.0);
        push(slot, 6, "device", 6.5);
        push(slot, 12, "device", 7.4);
        push(slot, 13, "device", 7.6);
        push(slot, 14, "device", 8.6);
        group.run();
    }
    let found = results(&group, 1);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["level"], 7.5);
    assert_eq!((&found[0]["lowest"], &found[0]["highest"]), (&6.5.into(), &7.6.into()));
    assert_eq!(found[0]["readings"], 3);
    assert_eq!(results(&group, 2).len(), 0, "Ben's ten minutes were over");

    // Another visit, another level; nothing happens for an hour, and what comes then is too late.
    push(anna, 20, "doctor", 5.0);
    push(anna, 80, "device", 6.0);
    push(anna, 81, "device", 7.0);
    push(ben, 20, "doctor", 5.0);
    push(ben, 21, "device", 4.0);
    push(ben, 22, "device", 6.0);
    group.run();
    assert_eq!((results(&group, 1).len(), results(&group, 2).len()), (1, 1));
}

#[test]
fn a_running_heart_is_not_abnormal_and_a_resting_one_may_be() {
    let group = group_of("heart_rate_by_activity.sql");
    let anna = group.add(1, &[("wearer", ParamValue::Text("anna"))]);
    let careful = group.add(2, &[("wearer", ParamValue::Text("ben")), ("running", ParamValue::Float(145.0))]);
    // Ten minutes of each: lying, sitting, walking, running, lying again with an arrhythmia in its sixth minute.
    let course = [(1, 65), (2, 72), (4, 105), (5, 150), (1, 70)];
    for second in 0..3_000_i64 {
        let (activity, mean) = course[(second / 600) as usize];
        let noise = (second * 7919 % 13) - 6;
        let burst = if (2_700..2_720).contains(&second) { 60 } else { 0 };
        let ts = START_MS + second * 1000;
        let event = format!("{{\"ts\":{ts},\"bpm\":{},\"activity\":{activity}}}", mean + noise + burst);
        group.push(anna, ts * 1000, &event);
        group.push(careful, ts * 1000, &event);
        if second % 60 == 0 {
            group.run();
        }
    }
    group.run();
    let alarms = results(&group, 1);
    // Windows end every five seconds; 7 of 60 readings are more than one in ten.
    assert!((12..=16).contains(&alarms.len()), "{} alarms", alarms.len());
    assert!(alarms.iter().all(|alarm| alarm["activity"] == 1), "{alarms:?}");
    assert!(alarms.iter().all(|alarm| (120..=136).contains(&alarm["bpm_max"].as_i64().unwrap())), "{alarms:?}");
    let careful = results(&group, 2);
    let running = careful.iter().filter(|alarm| alarm["activity"] == 5).count();
    assert!(running > 100, "with a lower threshold running is too fast: {running} alarms");
}
