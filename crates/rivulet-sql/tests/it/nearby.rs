//! An index of places finds the same rows as trying every row: random tables, places, radii and limits, including
//! extreme ones.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::util::pretty::pretty_format_batches;
use proptest::prelude::*;
use rivulet_dataflow::{Batch, Element, Refusals, SlotTable, Surroundings};
use rivulet_sql::{Application, Statement, Table, TableIndex, Tables, parse_script, plan_application_with};

type Place = (Option<f64>, Option<f64>);

fn places(places: &[Place]) -> [ArrayRef; 2] {
    [
        Arc::new(places.iter().map(|place| place.0).collect::<Float64Array>()),
        Arc::new(places.iter().map(|place| place.1).collect::<Float64Array>()),
    ]
}

fn table(rows: &[Place]) -> Arc<Table> {
    let [latitudes, longitudes] = places(rows);
    let names = StringArray::from_iter_values((0..rows.len()).map(|row| row.to_string()));
    let fields = [("name", DataType::Utf8), ("lat", DataType::Float64), ("lon", DataType::Float64)];
    let schema = Schema::new(fields.map(|(name, kind)| Field::new(name, kind, true)).to_vec());
    let columns = vec![Arc::new(names) as ArrayRef, latitudes, longitudes];
    Arc::new(Table::new("t", RecordBatch::try_new(Arc::new(schema), columns).unwrap()))
}

fn application(table: &Arc<Table>, found: &str) -> Application {
    let sql = format!(
        "CREATE APPLICATION a (r DOUBLE, k BIGINT) INPUT p (y DOUBLE, x DOUBLE) FROM 'mqtt:in' FORMAT JSON
         OUTPUT 'mqtt:out' FORMAT JSON AS SELECT n.name FROM p CROSS JOIN LATERAL (SELECT name FROM t {found}) AS n"
    );
    let Some((Statement::CreateApplication(create), _)) = parse_script(&sql).unwrap().pop() else { panic!("{sql}") };
    let tables: Tables = [("t".to_owned(), Ok(table.clone()))].into();
    plan_application_with(&create, &tables).unwrap_or_else(|error| panic!("{}", error.render(&sql)))
}

/// What each event finds, as text.
fn run(application: &Application, events: &[Place], queries: &[(Option<f64>, Option<i64>)]) -> String {
    let parameters: Vec<ArrayRef> = vec![
        Arc::new(queries.iter().map(|query| query.0).collect::<Float64Array>()),
        Arc::new(queries.iter().map(|query| query.1).collect::<Int64Array>()),
    ];
    let mut slots = SlotTable::new(application.parameter_schema.clone());
    let ids: Vec<u64> = (0..queries.len() as u64).collect();
    slots.add(&ids, &RecordBatch::try_new(application.parameter_schema.clone(), parameters).unwrap());
    let columns = RecordBatch::try_new(application.inputs[0].schema.clone(), places(events).to_vec()).unwrap();
    let times: Vec<i64> = (0..events.len() as i64).collect();
    let of: Vec<u32> = (0..events.len()).map(|event| (event % queries.len()) as u32).collect();
    let batch = Batch::new(of.into(), times.clone().into(), times.into(), columns);
    let (mut output, mut refusals) = (Vec::new(), Refusals::new(0));
    let mut sink = |found: Batch| {
        let events = Arc::new(Int64Array::from(found.event_time_us.to_vec())) as ArrayRef;
        output.push(RecordBatch::try_from_iter([("event", events), ("name", found.column(0).clone())]).unwrap());
    };
    let mut chain = application.dataflow.chain();
    chain
        .process(Element::Batch(batch), Surroundings { now_us: 0, slots: &slots, refusals: &mut refusals }, &mut sink)
        .unwrap();
    assert!(refusals.is_empty());
    let joined = output.first().map(|first| arrow::compute::concat_batches(&first.schema(), &output).unwrap());
    pretty_format_batches(&joined.into_iter().collect::<Vec<_>>()).unwrap().to_string()
}

/// Degrees: of a city, of the whole globe, and those that are none.
fn degrees() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        6 => (0_i32..40).prop_map(|step| Some(52.5 + f64::from(step) * 1e-4)),
        3 => (-180.0..180.0_f64).prop_map(Some),
        1 => prop::sample::select(vec![Some(90.0), Some(-90.0), Some(180.0), Some(-180.0), Some(0.0), Some(541.0)]),
        1 => prop::sample::select(vec![None, Some(f64::NAN), Some(f64::INFINITY), Some(1e9)]),
    ]
}

fn radius() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        4 => (0.0..2e4_f64).prop_map(Some),
        1 => (0.0..3e7_f64).prop_map(Some),
        1 => prop::sample::select(vec![None, Some(f64::NAN), Some(f64::INFINITY), Some(-1.0), Some(0.0)]),
    ]
}

proptest! {
    #[test]
    fn an_index_of_places_leaves_out_nothing(
        rows in prop::collection::vec((degrees(), degrees()), 0..120),
        events in prop::collection::vec((degrees(), degrees()), 1..30),
        queries in prop::collection::vec((radius(), prop::option::of(-1_i64..12)), 1..4),
    ) {
        let table = table(&rows);
        // The same with something around the distance, which no index knows.
        for (with_index, without) in [
            ("WHERE haversine_m(lat, lon, p.y, p.x) < $r", "WHERE haversine_m(lat, lon, p.y, p.x) + 0.0 < $r"),
            ("WHERE name <> '3' AND $r >= haversine_m(p.y, p.x, lat, lon)", "WHERE name <> '3' AND $r >= 0.0 + haversine_m(p.y, p.x, lat, lon)"),
            ("ORDER BY haversine_m(lat, lon, p.y, p.x), name LIMIT $k", "ORDER BY 0.0 + haversine_m(lat, lon, p.y, p.x), name LIMIT $k"),
            ("ORDER BY haversine_m(lat, lon, p.y, p.x) LIMIT 3", "ORDER BY 0.0 + haversine_m(lat, lon, p.y, p.x) LIMIT 3"),
        ] {
            let (with_index, without) = (application(&table, with_index), application(&table, without));
            let places = TableIndex::Places { latitude: "lat".into(), longitude: "lon".into() };
            prop_assert_eq!((&with_index.tables[0].index, &without.tables[0].index), (&places, &TableIndex::None));
            prop_assert_eq!(run(&with_index, &events, &queries), run(&without, &events, &queries));
        }
    }
}

#[test]
fn what_an_index_cannot_tell_is_not_left_to_it() {
    let table = table(&[(Some(1.0), Some(2.0))]);
    for found in [
        "",
        "ORDER BY haversine_m(lat, lon, p.y, p.x)",
        "ORDER BY haversine_m(lat, lon, p.y, p.x) DESC LIMIT 1",
        "ORDER BY haversine_m(lat, lon, p.y, p.x) NULLS FIRST LIMIT 1",
        "ORDER BY name, haversine_m(lat, lon, p.y, p.x) LIMIT 1",
        "WHERE name = 'a' ORDER BY haversine_m(lat, lon, p.y, p.x) LIMIT 1",
        "WHERE haversine_m(lat, lon, p.y, p.x) > $r",
        "WHERE haversine_m(lat, lon, p.y, p.x) < lat",
        "WHERE haversine_m(lat, lon, lat, p.x) < $r",
        "WHERE haversine_m(lat, lon, p.y, p.x) < $r OR name = 'a'",
    ] {
        assert_eq!(application(&table, found).tables[0].index, TableIndex::None, "{found}");
    }
}
