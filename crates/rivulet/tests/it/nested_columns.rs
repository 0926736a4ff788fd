//! Maps and rows as columns of big queries and applications, from source to sink, by the real program on files.

use std::fs;

use tempfile::TempDir;

use crate::column_types::{out, run};

const SOURCE: &str = "CREATE SOURCE status (device TEXT, sensors MAP<VARCHAR, DOUBLE>, \
                      points ARRAY<ROW<x DOUBLE, tags TEXT ARRAY>>, radio ROW<rssi BIGINT, gps ROW<lat DOUBLE>>) \
                      FROM 'file:in.jsonl' FORMAT JSON;";

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let lines = [
        "{\"device\":\"a\",\"sensors\":{\"t\":21.50,\"h\":2},\"points\":[{\"x\":1,\"tags\":[\"p\"]},{\"tags\":null}],\
          \"radio\":{\"rssi\":-70}}",
        r#"{"device":"b","sensors":{"h":2.0,"t":21.5},"points":[],"radio":{"rssi":-80,"gps":{"lat":48.5}}}"#,
        r#"{"device":"c","sensors":{},"points":null}"#,
        r#"{"device":"d","sensors":{"t":"warm"}}"#,
    ];
    fs::write(folder.path().join("in.jsonl"), lines.join("\n")).unwrap();
    folder
}

#[test]
fn parts_of_maps_and_rows_are_values_of_their_types() {
    let folder = folder();
    for (query, expected) in [
        (
            "SELECT device, sensors['t'] + 1 AS t, s.sensors.h AS h FROM status AS s ORDER BY device",
            "{\"device\":\"a\",\"t\":22.5,\"h\":2.0}\n{\"device\":\"b\",\"t\":22.5,\"h\":2.0}\n\
             {\"device\":\"c\",\"t\":null,\"h\":null}\n",
        ),
        (
            "SELECT s.name, max(s.reading) AS most, count(*) AS n FROM status \
             CROSS JOIN UNNEST(sensors) AS s (name, reading) GROUP BY s.name ORDER BY name",
            "{\"name\":\"h\",\"most\":2.0,\"n\":2}\n{\"name\":\"t\",\"most\":21.5,\"n\":2}\n",
        ),
        (
            "SELECT device, p.x + 1 AS x, p.tags[1] AS tag, p.place FROM status \
             CROSS JOIN UNNEST(points) WITH ORDINALITY AS p (x, tags, place) ORDER BY place",
            "{\"device\":\"a\",\"x\":2.0,\"tag\":\"p\",\"place\":1}\n\
             {\"device\":\"a\",\"x\":null,\"tag\":null,\"place\":2}\n",
        ),
        (
            "SELECT p.point.x + 1 AS x, point FROM status CROSS JOIN UNNEST(points) AS p (point) ORDER BY x LIMIT 1",
            "{\"x\":2.0,\"point\":{\"x\":1.0,\"tags\":[\"p\"]}}\n",
        ),
        (
            "SELECT radio, s.radio.gps, radio.gps AS g, points[1].x AS x, points[2].tags AS t \
             FROM status AS s WHERE radio.rssi = -70",
            "{\"radio\":{\"rssi\":-70,\"gps\":{\"lat\":null}},\"radio.gps\":{\"lat\":null},\"g\":{\"lat\":null},\
             \"x\":1.0,\"t\":null}\n",
        ),
        (
            "SELECT device, radio.*, s.radio.gps.* FROM status AS s WHERE device = 'b'",
            "{\"device\":\"b\",\"rssi\":-80,\"gps\":{\"lat\":48.5},\"lat\":48.5}\n",
        ),
        (
            "SELECT radio.* EXCEPT (gps), s.radio.* EXCEPT (rssi) FROM status AS s WHERE device = 'b'",
            "{\"rssi\":-80,\"gps\":{\"lat\":48.5}}\n",
        ),
        (
            "SELECT q.both.*, n FROM (SELECT named_struct('d', device, 'r', radio) AS both, max(radio.rssi) AS n FROM \
             status WHERE device = 'a' GROUP BY device, radio) AS q",
            "{\"d\":\"a\",\"r\":{\"rssi\":-70,\"gps\":{\"lat\":null}},\"n\":-70}\n",
        ),
        // Equal maps are one key, in whatever order they were sent.
        (
            "SELECT sensors, count(*) AS n FROM status WHERE device < 'c' GROUP BY sensors",
            "{\"sensors\":{\"h\":2.0,\"t\":21.5},\"n\":2}\n",
        ),
        ("SELECT count(*) AS n FROM (SELECT DISTINCT sensors FROM status) AS s", "{\"n\":2}\n"),
        (
            "SELECT a.device, b.device AS other FROM status AS a JOIN status AS b \
             ON a.sensors = b.sensors AND a.device < b.device",
            "{\"device\":\"a\",\"other\":\"b\"}\n",
        ),
        (
            "SELECT coalesce(sensors, map('t', 0.0)) AS c, CASE WHEN device = 'a' THEN sensors END AS s, \
             max(sensors)['t'] + 1 AS m FROM status WHERE device = 'a' GROUP BY device, sensors",
            "{\"c\":{\"h\":2.0,\"t\":21.5},\"s\":{\"h\":2.0,\"t\":21.5},\"m\":22.5}\n",
        ),
        (
            "SELECT ROW(device, radio.rssi) AS r, named_struct('m', map(device, sensors)) AS s, map_keys(sensors) AS k \
             FROM status WHERE device = 'a'",
            "{\"r\":{\"device\":\"a\",\"rssi\":-70},\"s\":{\"m\":{\"a\":{\"h\":2.0,\"t\":21.5}}},\
             \"k\":[\"h\",\"t\"]}\n",
        ),
    ] {
        assert_eq!(out(folder.path(), &format!("{SOURCE} {query}")), expected, "{query}");
    }
}

#[test]
fn patterns_look_at_parts_of_maps_and_rows() {
    let folder = TempDir::new().unwrap();
    let lines = [
        r#"{"ts":1000,"device":"a","sensors":{"t":20,"h":3},"radio":{"rssi":-70,"gps":{"lat":48.5}}}"#,
        r#"{"ts":2000,"device":"a","sensors":{"t":25.5},"radio":{"rssi":-80}}"#,
        r#"{"ts":3000,"device":"a","sensors":{},"radio":{"rssi":-90}}"#,
    ];
    fs::write(folder.path().join("in.jsonl"), lines.join("\n")).unwrap();
    let source = SOURCE.replace("device TEXT", "ts TIMESTAMP EVENT TIME, device TEXT");
    let query = "SELECT device, before, h + 1 AS h, rssi, s['t'] + 1 AS t, radio FROM status MATCH_RECOGNIZE ( \
                 PARTITION BY device ORDER BY ts MEASURES PREV(B.sensors['t']) AS before, LAST(A.sensors)['h'] AS h, \
                 A.radio.rssi AS rssi, LAST(B.sensors) AS s, LAST(A.radio) AS radio PATTERN (A B) \
                 DEFINE B AS B.sensors['t'] > PREV(B.sensors['t']) + 5 AND B.radio.rssi < A.radio.rssi)";
    let expected = "{\"device\":\"a\",\"before\":20.0,\"h\":4.0,\"rssi\":-70,\"t\":26.5,\
                    \"radio\":{\"rssi\":-70,\"gps\":{\"lat\":48.5}}}\n";
    assert_eq!(out(folder.path(), &format!("{source} {query}")), expected);
}

#[test]
fn sinks_take_maps_and_rows_of_their_type() {
    let folder = folder();
    let script = format!(
        "{SOURCE} CREATE SINK o (m MAP<TEXT, DOUBLE>, p ARRAY<ROW<x DOUBLE, tags TEXT[]>>, r ROW<rssi DOUBLE, \
         name TEXT>, a MAP<TEXT, JSON>) TO 'file:out.jsonl' FORMAT JSON; \
         SELECT sensors, points, named_struct('rssi', radio.rssi, 'name', device), map('d', device, 's', sensors) \
         FROM status WHERE device = 'a' INTO o;"
    );
    out(folder.path(), &script);
    let written = "{\"m\":{\"h\":2.0,\"t\":21.5},\"p\":[{\"x\":1.0,\"tags\":[\"p\"]},{\"x\":null,\"tags\":null}],\
                   \"r\":{\"rssi\":-70,\"name\":\"a\"},\"a\":{\"d\":\"a\",\"s\":{\"h\":2.0,\"t\":21.5}}}\n";
    assert_eq!(fs::read_to_string(folder.path().join("out.jsonl")).unwrap(), written);
    // Other formats have maps and rows of their own, or texts, which are read back as what they are.
    for (format, file) in [("CSV (header => true)", "out.csv"), ("PARQUET", "out.parquet"), ("AVRO", "out.avro")] {
        let columns = "(device TEXT, m MAP<TEXT, DOUBLE>, p ARRAY<ROW<x DOUBLE, tags TEXT[]>>)";
        let query = "SELECT device, sensors, points FROM status INTO o;";
        let sink = format!("CREATE SINK o {columns} TO 'file:{file}' FORMAT {format};");
        out(folder.path(), &format!("{SOURCE} {sink} {query}"));
        let script = format!(
            "CREATE SOURCE o {columns} FROM 'file:{file}' FORMAT {format}; SELECT device, m['t'] + 1 AS t, m, p[1].x AS x, \
             p FROM o ORDER BY device LIMIT 1"
        );
        let expected = "{\"device\":\"a\",\"t\":22.5,\"m\":{\"h\":2.0,\"t\":21.5},\"x\":1.0,\
                        \"p\":[{\"x\":1.0,\"tags\":[\"p\"]},{\"x\":null,\"tags\":null}]}\n";
        assert_eq!(out(folder.path(), &script), expected, "{format}");
    }
    // A row that a source declares is its fields.
    for (format, file) in [("PARQUET", "rows.parquet"), ("AVRO", "rows.avro")] {
        let sink = format!(
            "CREATE SINK o (device TEXT, r ROW<rssi BIGINT, gps ROW<lat DOUBLE>>) TO 'file:{file}' FORMAT {format};"
        );
        out(folder.path(), &format!("{SOURCE} {sink} SELECT device, radio FROM status INTO o;"));
        let script = format!(
            "CREATE SOURCE o (device TEXT, r ROW<gps ROW<lat DOUBLE>, rssi DOUBLE>) FROM 'file:{file}' FORMAT {format}; \
             SELECT device, r.rssi - 1 AS rssi, r.gps.* FROM o WHERE device < 'c' ORDER BY device"
        );
        let expected =
            "{\"device\":\"a\",\"rssi\":-71.0,\"lat\":null}\n{\"device\":\"b\",\"rssi\":-81.0,\"lat\":48.5}\n";
        assert_eq!(out(folder.path(), &script), expected, "{format}");
    }
    for (columns, query, expected) in [
        ("m MAP<TEXT, TEXT>", "SELECT sensors", "is MAP<TEXT, TEXT>, and 'sensors' is MAP<TEXT, DOUBLE>"),
        ("m MAP<TEXT, DOUBLE>", "SELECT device", "the column 'm' of the sink 'o' is a map, and 'device' is none"),
        ("r ROW<rssi BIGINT>", "SELECT sensors", "is ROW<rssi BIGINT>, and 'sensors' is MAP<TEXT, DOUBLE>"),
        ("r ROW<rssi BIGINT>", "SELECT ROW(radio.rssi, device)", "is ROW<rssi BIGINT>, and"),
        ("r ROW<x BIGINT>", "SELECT ROW(radio.rssi)", "is ROW<rssi BIGINT>"),
    ] {
        let script =
            format!("{SOURCE} CREATE SINK o ({columns}) TO 'file:o.jsonl' FORMAT JSON; {query} FROM status INTO o;");
        let done = run(folder.path(), &script);
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && error.contains(expected), "{script}\n{error}");
        assert!(error.contains("\"hint\":"), "{error}");
    }
}

#[test]
fn a_value_of_another_type_is_refused_with_field_and_place() {
    let folder = folder();
    let script = format!(
        "CREATE SINK letters TO 'file:letters.jsonl' FORMAT JSON; {} SELECT cardinality(sensors) AS n FROM status ORDER BY n",
        SOURCE.replace("FORMAT JSON;", "FORMAT JSON WITH (dead_letter => 'letters');")
    );
    assert_eq!(out(folder.path(), &script), "{\"n\":0}\n{\"n\":2}\n{\"n\":2}\n");
    let letters = fs::read_to_string(folder.path().join("letters.jsonl")).unwrap();
    assert!(letters.contains("field 'sensors' at byte 29: expected a number"), "{letters}");
}

#[test]
fn parts_that_are_not_there_are_refused_by_name() {
    let folder = folder();
    for (query, message, hint) in [
        ("SELECT sensors[1] FROM status", "the keys of a map are TEXT", "map['key']"),
        ("SELECT points.x FROM status", "elements of an array have numbers and no names", "array[1]"),
        ("SELECT points[1].y FROM status", "there is no field 'y'", "this is ROW<x DOUBLE, tags TEXT ARRAY>"),
        ("SELECT device.x FROM status", "'device.x' would be a part of the column", ""),
        ("SELECT k FROM status CROSS JOIN UNNEST(sensors) AS s (k)", "UNNEST gives 2 columns here", "(key, value)"),
        ("SELECT a FROM status CROSS JOIN UNNEST(points) AS s (a, b, c)", "UNNEST gives 2 columns here", "(x, tags)"),
        ("SELECT a FROM status CROSS JOIN UNNEST(map_keys(sensors)) AS s (a, b)", "gives one column", "UNNEST("),
        ("SELECT radio.* EXCEPT (snr) FROM status", "unknown column 'snr'", ""),
        ("SELECT sensors + 1 FROM status", "does not take TEXT and BIGINT", ""),
    ] {
        let done = run(folder.path(), &format!("{SOURCE} {query}"));
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && error.contains(message) && error.contains(hint), "{query}\n{error}");
    }
}
