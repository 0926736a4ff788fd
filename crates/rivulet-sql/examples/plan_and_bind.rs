//! How long planning an application takes, and how many rows of parameters are bound in a second.
//!
//! `cargo run --release -p rivulet-sql --example plan_and_bind`

use std::time::Instant;

use rivulet_sql::{ParamValue, ParameterRows, parse_application, plan_application};

const TEXT: &str = "CREATE APPLICATION ac_control (home TEXT, target DOUBLE DEFAULT 24.0)
INPUT temperature (ts TIMESTAMP EVENT TIME, value DOUBLE) FROM 'mqtt:home/{home}/temperature' FORMAT JSON
OUTPUT 'mqtt:home/{home}/ac' FORMAT JSON
AS SELECT CASE WHEN avg(value) > $target + 0.5 THEN 'cool'
               WHEN avg(value) < $target - 0.5 THEN 'heat' ELSE 'off' END AS action
   FROM temperature
   GROUP BY hop(ts, INTERVAL '1 second', INTERVAL '30 seconds')
   EMIT ON CHANGE";

fn main() {
    const PLANS: u32 = 1000;
    let plan = || plan_application(&parse_application(TEXT).expect("the text is right")).expect("the text is right");
    let start = Instant::now();
    let application = plan();
    let first_us = start.elapsed().as_micros();
    let start = Instant::now();
    for _ in 0..PLANS {
        std::hint::black_box(plan());
    }
    println!("{}", application.explain());
    println!("first plan {first_us} us, later ones {} us each", start.elapsed().as_micros() / u128::from(PLANS));

    const ROWS: u32 = 2_000_000;
    const BATCH_ROWS: u32 = 10_000;
    let start = Instant::now();
    let mut rows = ParameterRows::new(&application);
    let mut home = String::new();
    for batch in 0..ROWS / BATCH_ROWS {
        for row in 0..BATCH_ROWS {
            home.clear();
            std::fmt::Write::write_fmt(&mut home, format_args!("{}", batch * BATCH_ROWS + row))
                .expect("a string grows");
            rows.push([("home", ParamValue::Text(&home)), ("target", ParamValue::Float(22.5))]).expect("values fit");
        }
        let batch = rows.finish();
        let refused = application.check(&batch).iter().filter(|result| result.is_err()).count();
        assert_eq!(refused, 0);
    }
    println!(
        "{:.1} million rows of two parameters bound in a second",
        f64::from(ROWS) / start.elapsed().as_secs_f64() / 1e6
    );
}
