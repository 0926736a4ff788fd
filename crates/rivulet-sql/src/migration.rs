//! The next version of an application or of a big query: which operator takes over which state. For applications this
//! is in [`rivulet_operators::application`], whatever language they are written in. For big queries it is in `query`.

mod query;

pub use query::{QueryMigration, query_migration};
pub use rivulet_operators::application::{StateMigration, migration};

#[cfg(test)]
mod tests {
    use rivulet_dataflow::StateSelection;

    use rivulet_operators::application::{Alteration, alteration};

    use crate::{Application, StateMigration, migration, parse_application, plan_application};

    fn application(parameters: &str, columns: &str, rest: &str) -> Application {
        let sql = format!(
            "CREATE APPLICATION a ({parameters}) INPUT t ({columns}) FROM 'mqtt:in/{{id}}' FORMAT JSON \
             OUTPUT 'mqtt:out/{{id}}' FORMAT JSON AS {rest}"
        );
        plan_application(&parse_application(&sql).unwrap()).unwrap_or_else(|error| panic!("{error}: {sql}"))
    }

    const PARAMETERS: &str = "id TEXT, most DOUBLE DEFAULT 1.0, width INTERVAL DEFAULT INTERVAL '10 seconds'";
    const COLUMNS: &str = "ts TIMESTAMP EVENT TIME, v DOUBLE, room TEXT";
    const WINDOW: &str = "SELECT room, avg(v) AS mean FROM t WHERE v < $most GROUP BY tumble(ts, $width), room";

    const OVER_WINDOWS: &str = "SELECT max(mean) AS top FROM (SELECT avg(v) AS mean, window_end FROM t \
         GROUP BY tumble(ts, $width)) AS m WHERE mean < $most GROUP BY tumble(window_end, INTERVAL '1 hour')";

    fn of(rest: &str) -> Application {
        application(PARAMETERS, COLUMNS, rest)
    }

    /// The number of operators whose state is kept, and what is lost.
    fn becomes(before: &Application, after: &Application) -> (usize, Vec<String>) {
        let StateMigration { map, lost } = migration(before, after);
        let frames: Vec<_> = before.dataflow.chain().export_state(&StateSelection::Slots(Vec::new())).unwrap();
        let taken = map.apply(&frames).unwrap();
        // The new version can import all state that it takes over.
        after.dataflow.chain().import_state(&taken).unwrap();
        (taken.iter().flatten().count(), lost)
    }

    #[test]
    fn what_has_no_state_may_change() {
        let before = of(WINDOW);
        for after in [
            "SELECT room, avg(v) AS mean FROM t WHERE v < 2 * $most AND room <> 'hall' GROUP BY tumble(ts, $width), room",
            "SELECT room, 2 * avg(v) AS twice FROM t GROUP BY tumble(ts, $width), room HAVING avg(v) > 1",
            "SELECT room, avg(v) AS mean FROM t WHERE v < $most GROUP BY tumble(ts, $width), room EMIT ON CHANGE",
        ] {
            assert_eq!(becomes(&before, &of(after)), (1, Vec::new()), "{after}");
        }
        let more = application(&format!("{PARAMETERS}, least DOUBLE DEFAULT 0.0"), COLUMNS, WINDOW);
        assert_eq!(becomes(&before, &more), (1, Vec::new()));
    }

    #[test]
    fn what_another_version_would_misread_is_lost_and_it_is_said_why() {
        let before = of(WINDOW);
        let window = |after: &Application, why: &str| {
            let (kept, lost) = becomes(&before, after);
            assert_eq!((kept, lost.len()), (0, 1), "{why}: {lost:?}");
            assert!(lost[0].contains("window") && lost[0].contains(why), "{why}: {lost:?}");
        };
        let changed = |from: &str, to: &str| of(&WINDOW.replace(from, to));
        window(&changed("$width", "INTERVAL '1 minute'"), "has become");
        window(&changed("avg(v)", "max(v)"), "max");
        window(&changed("avg(v) AS mean", "avg(v) AS mean, count(*) AS n"), "was added");
        window(&of("SELECT avg(v) AS mean FROM t GROUP BY tumble(ts, $width)"), "is gone");
        window(&of("SELECT v FROM t WHERE v < $most"), "none like it");
        let highest = |columns: &str| application(PARAMETERS, columns, &WINDOW.replace("avg", "max"));
        let (kept, lost) = becomes(&highest(COLUMNS), &highest(&COLUMNS.replace("DOUBLE", "BIGINT")));
        assert!(kept == 0 && lost.len() == 1 && lost[0].contains("types"), "{lost:?}");
        window(&application(&PARAMETERS.replace("10", "20"), COLUMNS, WINDOW), "'width'");
    }

    /// Changes all parameters but those in `but`. Returns which of the parameters `id`, `most` and `width` state
    /// depends on, and how many operators begin anew.
    fn depends(application: &Application, but: &[&str]) -> (String, usize) {
        let changed =
            (0..application.parameters.len()).filter(|&one| !but.contains(&&*application.parameters[one].name));
        let Alteration { map, reset, lost, .. } = alteration(application, &changed.collect::<Vec<_>>());
        let frames = application.dataflow.chain().export_state(&StateSelection::Slots(Vec::new())).unwrap();
        let kept = map.map_or(frames.clone(), |map| map.apply(&frames).unwrap());
        assert_eq!(frames.iter().flatten().count() - kept.iter().flatten().count(), lost.len(), "{lost:?}");
        let names = reset.iter().map(|&one| application.parameters[one].name.as_str());
        (names.collect::<Vec<_>>().join(" "), lost.len())
    }

    #[test]
    fn state_depends_on_what_stands_in_its_operator_or_makes_its_columns() {
        for (rest, depending, operators) in [
            (WINDOW, "width", 1),
            ("SELECT avg(v) AS mean FROM t WHERE v < $most GROUP BY tumble(ts, INTERVAL '1 minute')", "", 0),
            ("SELECT avg(v) AS mean FROM t GROUP BY count_window(9) HAVING avg(v) > $most EMIT ON CHANGE", "", 0),
            (
                "SELECT avg(v) AS mean, avg(v) > $most AS is_high FROM t GROUP BY tumble(ts, $width) EMIT ON CHANGE",
                "width",
                1,
            ),
            ("SELECT sum(CASE WHEN v > $most THEN 1 END) AS n FROM t GROUP BY count_window(9)", "most", 1),
            ("SELECT avg(v) AS mean FROM t GROUP BY count_window(9), v > $most", "most", 1),
            ("SELECT v - lag(v) AS step FROM t QUALIFY v - lag(v) > $most", "", 0),
            ("SELECT v, lag(v) OVER (PARTITION BY v > $most) AS before FROM t EMIT ON CHANGE", "most", 1),
            (
                "SELECT * FROM t MATCH_RECOGNIZE (MEASURES count(*) AS n PATTERN (A+) WITHIN $width \
                 DEFINE A AS v > $most)",
                "most width",
                1,
            ),
            ("SELECT v FROM t WHERE v > $most EMIT ON CHANGE", "", 0),
            (OVER_WINDOWS, "width", 2),
            ("SELECT count(*) AS n FROM t GROUP BY state_window(v > $most, v < 0)", "most", 1),
        ] {
            assert_eq!(depends(&of(rest), &["id"]), (depending.to_owned(), operators), "{rest}");
        }
        let union = "SELECT sum(w) AS s FROM (SELECT ts, v * $most AS w FROM t UNION ALL SELECT ts, v FROM o) AS u \
                     GROUP BY count_window(9) EMIT ON CHANGE";
        let sql = format!(
            "CREATE APPLICATION a ({PARAMETERS}) INPUT t ({COLUMNS}) FROM 'mqtt:in/{{id}}' FORMAT JSON \
             INPUT o ({COLUMNS}) FROM 'mqtt:other' FORMAT JSON OUTPUT 'mqtt:out/{{id}}' FORMAT JSON AS {union}"
        );
        let union = plan_application(&parse_application(&sql).unwrap()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(depends(&union, &["id"]), ("most".to_owned(), 1));
        // It reads something else then.
        let window = of(&format!("{WINDOW} EMIT ON CHANGE"));
        assert_eq!(depends(&window, &["most"]), ("id width".to_owned(), 2));
        assert_eq!(depends(&window, &["most", "id", "width"]), (String::new(), 0));
    }

    #[test]
    fn another_text_that_means_the_same_keeps_the_state() {
        let windowed =
            |select: &str, key: &str| format!("SELECT {select} AS x FROM t GROUP BY tumble(ts, $width), {key}");
        for (before, after, is_same) in [
            ("lag(CAST(v AS INT))", "LAG(CAST(t.v AS INTEGER), 1)", true),
            ("lag(CAST(v AS INT))", "lag(CAST(v AS SMALLINT))", false),
            ("lag(v != $most)", "lag(v <> $MOST)", true),
            ("lag(replace(room, 'a', 'b'))", "lag(replace(room, 'a', 'c'))", false),
            ("changed(v)", "changed(ts)", false),
            ("hysteresis(v, 1, 2)", "HYSTERESIS((v), 1, 2)", true),
            ("lag(v) OVER (PARTITION BY room)", "lag(v) OVER (PARTITION BY (t.room))", true),
        ] {
            let [one, other] = [before, after].map(|call| of(&format!("SELECT {call} AS x FROM t")));
            assert_eq!(becomes(&one, &other).0 == 1, is_same, "{before} and {after}");
        }
        for (before, after, is_same) in [
            (windowed("avg(CAST(v AS INT))", "room"), windowed("AVG(CAST((v) AS INTEGER))", "t.room"), true),
            (windowed("avg(v)", "lower(room)"), windowed("avg(v)", "LOWER(t.room)"), true),
            (windowed("avg(v)", "lower(room)"), windowed("avg(v)", "upper(room)"), false),
            (windowed("count(v)", "room"), windowed("count(DISTINCT v)", "room"), false),
            (windowed("sum(v) FILTER (WHERE v > 1)", "room"), windowed("sum(v) FILTER (WHERE v > 2)", "room"), false),
        ] {
            assert_eq!(becomes(&of(&before), &of(&after)).0 == 1, is_same, "{before} and {after}");
        }
        // Behind a window the columns are those that it makes.
        let nested = |cast: &str| of(&windowed(&format!("lag(avg(CAST(v AS {cast})))"), "room"));
        assert_eq!(becomes(&nested("INT"), &nested("INTEGER")), (2, Vec::new()));
    }

    #[test]
    fn how_long_rows_are_waited_for_may_change() {
        let pattern = "SELECT n FROM t MATCH_RECOGNIZE (MEASURES count(*) AS n PATTERN (A B) DEFINE A AS v > 1)";
        let ranked = "SELECT v FROM t GROUP BY session(ts, INTERVAL '1 minute'), v EMIT ON CHANGE";
        for (rest, operators) in [(WINDOW, 1), (OVER_WINDOWS, 2), (pattern, 1), (ranked, 2)] {
            let version = |options: &str| {
                let sql = format!(
                    "CREATE APPLICATION a ({PARAMETERS}) INPUT t ({COLUMNS}) FROM 'mqtt:in/{{id}}' FORMAT JSON \
                     WITH ({options}) OUTPUT 'mqtt:out/{{id}}' FORMAT JSON AS {rest}"
                );
                plan_application(&parse_application(&sql).unwrap()).unwrap_or_else(|error| panic!("{error}: {sql}"))
            };
            let before = version("lateness => INTERVAL '1 second'");
            let after = version("lateness => INTERVAL '1 minute', idle_timeout => INTERVAL '1 day'");
            assert_eq!(becomes(&before, &after), (operators, Vec::new()), "{rest}");
        }
        for join in ["JOIN", "LEFT JOIN"] {
            let version = |options: &str| {
                let sql = format!(
                    "CREATE APPLICATION a ({PARAMETERS}) INPUT t ({COLUMNS}) FROM 'mqtt:in/{{id}}' FORMAT JSON \
                     WITH ({options}) INPUT o ({COLUMNS}) FROM 'mqtt:other' FORMAT JSON \
                     OUTPUT 'mqtt:out/{{id}}' FORMAT JSON AS SELECT t.v FROM t {join} o ON t.room = o.room \
                     AND o.ts BETWEEN t.ts AND t.ts + INTERVAL '1 minute'"
                );
                plan_application(&parse_application(&sql).unwrap()).unwrap_or_else(|error| panic!("{error}: {sql}"))
            };
            let before = version("lateness => INTERVAL '1 second'");
            let after = version("lateness => INTERVAL '1 minute', idle_timeout => INTERVAL '1 day'");
            assert_eq!(becomes(&before, &after), (1, Vec::new()), "{join}");
        }
    }

    #[test]
    fn windows_over_windows_are_those_of_these_windows() {
        let before = of(OVER_WINDOWS);
        assert_eq!(becomes(&before, &of(&OVER_WINDOWS.replace("mean < $most", "mean < 3"))), (2, Vec::new()));
        let (kept, lost) = becomes(&before, &of(&OVER_WINDOWS.replace("1 hour", "2 hours")));
        assert_eq!((kept, lost.len()), (1, 1));
        // The state of the second windows is of results of the first ones.
        for (from, to) in [("$width", "INTERVAL '1 minute'"), ("avg(v)", "min(v)")] {
            let (kept, lost) = becomes(&before, &of(&OVER_WINDOWS.replace(from, to)));
            assert_eq!((kept, lost.len()), (0, 2), "{lost:?}");
        }
        let of_with = "WITH m AS (SELECT avg(v) AS mean, window_end FROM t GROUP BY tumble(ts, $width)) \
             SELECT max(mean) AS top FROM m WHERE mean < $most GROUP BY tumble(window_end, INTERVAL '1 hour')";
        assert_eq!(becomes(&before, &of(of_with)), (2, Vec::new()), "WITH is the same");
    }

    #[test]
    fn each_operator_finds_its_own_in_order() {
        let both = of("SELECT v - lag(v) AS step FROM t EMIT ON CHANGE");
        assert_eq!(becomes(&both, &both), (2, Vec::new()));
        let (kept, lost) = becomes(&both, &of("SELECT v - lag(v) AS step FROM t"));
        assert_eq!((kept, lost.len()), (1, 1));
        assert!(lost[0].contains("change"), "{lost:?}");
        assert_eq!(becomes(&of("SELECT v FROM t"), &both), (0, Vec::new()), "what had no state loses none");
    }
}
