//! Files of models. Whatever a file is, it is a model or is refused with a hint; and a model gives a result for every
//! row of numbers, in the type that it says, and none where an input is null or not a number.
//!
//! An input is a file of a model, and behind a zero byte the numbers of rows, eight bytes each.

use arrow::array::{Array, Float64Array};
use rivulet_sql::Model;

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "model",
    run,
    words: &[
        "{\"kind\":\"tree\",\"inputs\":[\"a\",\"b\"],\"nodes\":[",
        "{\"kind\":\"c45_tree\",\"inputs\":[\"a\"],\"tree\":",
        "{\"kind\":\"linear\",\"inputs\":[\"a\"],\"coefficients\":[1],\"intercept\":0}",
        "{\"input\":0,\"le\":22,\"then\":1,\"else\":2},",
        "{\"attr\":\"a\",\"le\":1,\"sons\":[",
        "{\"leaf\":\"BAD\"},",
        "{\"leaf\":0.5}",
        "\"coefficients\":{\"a\":1e300}",
        "]}",
        "]",
        "1e308",
        "null",
        "4294967296",
        "\0",
    ],
    mutations: 20_000,
};

fn run(bytes: &[u8]) {
    let split = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (file, numbers) = bytes.split_at(split);
    let model = match Model::parse(file) {
        Ok(model) => model,
        Err(error) => return assert!(error.to_string().contains("\nhint: "), "{error}"),
    };
    assert_eq!(Model::parse(file).as_ref(), Ok(&model));
    let inputs = model.inputs().len();
    let mut numbers = numbers.chunks_exact(8).map(|eight| f64::from_le_bytes(eight.try_into().unwrap_or_default()));
    let rows: Vec<Vec<Option<f64>>> =
        (0..4).map(|row| (0..inputs).map(|_| numbers.next().or((row > 0).then_some(1.0))).collect()).collect();
    let column = |input: usize| rows.iter().map(|row| row[input]).collect::<Float64Array>();
    let columns: Vec<Float64Array> = (0..inputs).map(column).collect();
    let is_nan = |input: &usize| rows.iter().any(|row| row[*input].is_some_and(f64::is_nan));
    match model.predict(&columns.iter().collect::<Vec<_>>()) {
        Err(input) => assert_eq!(Some(input), (0..inputs).find(is_nan)),
        Ok(results) => {
            assert_eq!((results.len(), results.data_type()), (rows.len(), &model.result_type()));
            for (row, values) in rows.iter().enumerate() {
                assert_eq!(results.is_null(row), values.contains(&None), "{values:?}");
            }
            assert_eq!((0..inputs).find(is_nan), None);
        }
    }
}
