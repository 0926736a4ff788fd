//! Models that are trained elsewhere and read from a file in JSON: decision trees and linear models.
//!
//! What must hold: a model that was read gives a result for every row of numbers, in a bounded number of steps. A node
//! of a tree leads to later nodes only, so no way through it is a circle, and nothing here calls itself.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, StringArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;
use rivulet_dataflow::canonical_float;
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use xxhash_rust::xxh3::xxh3_64;

/// The largest file of a model, in bytes.
pub const MODEL_BYTES_MAX: u64 = 8 << 20;
/// The most nodes of a tree.
const NODES_MAX: usize = 65_535;
/// The most nodes on a way through a tree.
const DEPTH_MAX: u32 = 1_000;
/// The most of a tree with its sons in it: the reader of JSON gives up at 128 levels, of which each node takes two.
const NESTED_MAX: usize = 60;
/// The most inputs of a model.
const INPUTS_MAX: usize = 1_000;

/// A model. Two models are equal if their files are.
pub struct Model {
    inputs: Vec<String>,
    body: Body,
    version: u64,
}

enum Body {
    Tree { nodes: Vec<Node>, leaves: Leaves },
    Linear { coefficients: Vec<f64>, intercept: f64 },
}

#[derive(Clone, Copy)]
enum Node {
    /// Where the input is at most the limit, the first son is next, and otherwise the second.
    Split { input: usize, limit: f64, sons: [u32; 2] },
    /// The index of a leaf.
    Leaf(usize),
}

enum Leaves {
    Texts(Vec<String>),
    Numbers(Vec<f64>),
}

/// Why a file is no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}\nhint: {hint}")]
pub struct ModelError {
    problem: String,
    hint: &'static str,
}

fn wrong<T>(problem: impl Into<String>, hint: &'static str) -> Result<T, ModelError> {
    Err(ModelError { problem: problem.into(), hint })
}

/// A file as it is written. Members that it has beside these are not looked at.
#[derive(Deserialize)]
struct Written {
    kind: String,
    inputs: Vec<String>,
    nodes: Option<WrittenNodes>,
    tree: Option<Nested>,
    coefficients: Option<Coefficients>,
    intercept: Option<f64>,
}

#[derive(Default, Deserialize)]
struct WrittenNode {
    input: Option<usize>,
    le: Option<f64>,
    then: Option<usize>,
    r#else: Option<usize>,
    leaf: Option<Leaf>,
}

/// A node with its sons in it.
#[derive(Deserialize)]
struct Nested {
    attr: Option<String>,
    le: Option<f64>,
    sons: Option<Box<[Nested; 2]>>,
    leaf: Option<Leaf>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Leaf {
    Number(f64),
    Text(String),
}

/// In the order of the inputs, or by their names; an input without one has no effect.
#[derive(Deserialize)]
#[serde(untagged)]
enum Coefficients {
    List(Vec<f64>),
    Named(BTreeMap<String, f64>),
}

/// The nodes of a tree, which are counted while they are read.
struct WrittenNodes(Vec<WrittenNode>);

impl<'de> Deserialize<'de> for WrittenNodes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counted;
        impl<'de> Visitor<'de> for Counted {
            type Value = WrittenNodes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of nodes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<WrittenNodes, A::Error> {
                let mut nodes = Vec::new();
                while let Some(node) = list.next_element()? {
                    if nodes.len() == NODES_MAX {
                        return Err(A::Error::custom(too_many_nodes()));
                    }
                    nodes.push(node);
                }
                Ok(WrittenNodes(nodes))
            }
        }
        deserializer.deserialize_seq(Counted)
    }
}

fn too_many_nodes() -> String {
    format!("the tree has more than {NODES_MAX} nodes")
}

const FORMS: &str = "write {\"kind\": \"tree\", \"inputs\": [\"x\"], \"nodes\": [{\"input\": 0, \"le\": 22, \"then\": 1, \
                     \"else\": 2}, {\"leaf\": \"BAD\"}, {\"leaf\": \"GOOD\"}]}, or {\"kind\": \"linear\", \"inputs\": \
                     [\"x\"], \"coefficients\": [-0.5], \"intercept\": 37.4}";
const ORDER: &str = "a node stands before the nodes that it leads to, and each but the first is led to once";

impl Model {
    /// Reads the file of a model.
    ///
    /// # Errors
    /// It is no model in JSON of a known kind, or is none that ends for every row.
    pub fn parse(bytes: &[u8]) -> Result<Self, ModelError> {
        let written: Written = match serde_json::from_slice(bytes) {
            Ok(written) => written,
            Err(error) if error.to_string().starts_with("recursion limit") => {
                return wrong(
                    format!("it is nested too deep: of a \"tree\", {NESTED_MAX} nodes may be on a way"),
                    FORMS,
                );
            }
            Err(error) => return wrong(format!("it is no model in JSON: {error}"), FORMS),
        };
        let Written { kind, inputs, nodes, tree, coefficients, intercept } = written;
        if inputs.is_empty() || inputs.len() > INPUTS_MAX {
            return wrong(format!("it has {} inputs, and has from 1 to {INPUTS_MAX}", inputs.len()), FORMS);
        }
        let body = match (kind.as_str(), nodes, tree, coefficients, intercept) {
            ("tree" | "c45_tree", Some(WrittenNodes(nodes)), None, ..) => checked(nodes, &inputs)?,
            ("tree" | "c45_tree", None, Some(tree), ..) => checked(flat(tree, &inputs)?, &inputs)?,
            ("tree" | "c45_tree", ..) => return wrong("a tree has \"nodes\" or a \"tree\"", FORMS),
            ("linear" | "linear_regression", _, _, Some(coefficients), Some(intercept)) => {
                Body::Linear { coefficients: in_order(coefficients, &inputs)?, intercept }
            }
            ("linear" | "linear_regression", ..) => {
                return wrong("a linear model has \"coefficients\" and an \"intercept\"", FORMS);
            }
            _ => return wrong(format!("\"kind\" is {kind:?}, and a model is \"tree\" or \"linear\""), FORMS),
        };
        Ok(Self { inputs, body, version: xxh3_64(bytes) })
    }

    /// The names of its inputs, in their order.
    pub fn inputs(&self) -> &[String] {
        &self.inputs
    }

    /// A hash of its file.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The type of its results: `Utf8` or `Float64`.
    pub fn result_type(&self) -> DataType {
        match &self.body {
            Body::Tree { leaves: Leaves::Texts(_), .. } => DataType::Utf8,
            _ => DataType::Float64,
        }
    }

    /// Computes the results from a column for each input. Where an input is null, the result is.
    ///
    /// # Errors
    /// The index of an input that is NaN in a row.
    ///
    /// # Panics
    /// If there are not as many columns as inputs, of one length.
    pub fn predict(&self, columns: &[&Float64Array]) -> Result<ArrayRef, usize> {
        assert_eq!(columns.len(), self.inputs.len(), "a column for each input");
        let is_nan =
            |column: &Float64Array| (0..column.len()).any(|row| !column.is_null(row) && column.value(row).is_nan());
        if let Some(input) = columns.iter().position(|column| is_nan(column)) {
            return Err(input);
        }
        let nulls = columns.iter().fold(None, |nulls, column| NullBuffer::union(nulls.as_ref(), column.nulls()));
        let rows =
            (0..columns[0].len()).map(|row| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)).then_some(row));
        let leaf = |nodes: &[Node], row: usize| {
            let mut at = 0;
            loop {
                match nodes[at] {
                    Node::Leaf(leaf) => return leaf,
                    Node::Split { input, limit, sons } => {
                        at = sons[usize::from(columns[input].value(row) > limit)] as usize;
                    }
                }
            }
        };
        Ok(match &self.body {
            Body::Tree { nodes, leaves: Leaves::Texts(texts) } => {
                Arc::new(rows.map(|row| row.map(|row| texts[leaf(nodes, row)].as_str())).collect::<StringArray>())
            }
            Body::Tree { nodes, leaves: Leaves::Numbers(numbers) } => {
                Arc::new(rows.map(|row| row.map(|row| numbers[leaf(nodes, row)])).collect::<Float64Array>())
            }
            Body::Linear { coefficients, intercept } => {
                let sum = |row: usize| {
                    let terms = coefficients.iter().zip(columns).map(|(factor, column)| factor * column.value(row));
                    canonical_float(terms.sum::<f64>() + intercept)
                };
                Arc::new(rows.map(|row| row.map(sum)).collect::<Float64Array>())
            }
        })
    }
}

/// The nodes one behind the other, each before its sons.
fn flat(tree: Nested, inputs: &[String]) -> Result<Vec<WrittenNode>, ModelError> {
    let mut nodes: Vec<WrittenNode> = Vec::new();
    let mut open = vec![(tree, None)];
    while let Some((Nested { attr, le, sons, leaf }, parent)) = open.pop() {
        let number = nodes.len();
        if number == NODES_MAX {
            return wrong(too_many_nodes(), "train a smaller tree");
        }
        if let Some((parent, is_else)) = parent {
            let parent: &mut WrittenNode = &mut nodes[parent];
            *if is_else { &mut parent.r#else } else { &mut parent.then } = Some(number);
        }
        let input = match attr {
            None => None,
            Some(name) => match inputs.iter().position(|input| *input == name) {
                None => return wrong(format!("node {number} asks for {name:?}, which is no input"), FORMS),
                found => found,
            },
        };
        nodes.push(WrittenNode { input, le, leaf, ..WrittenNode::default() });
        if let Some(sons) = sons {
            let [then, other] = *sons;
            open.extend([(other, Some((number, true))), (then, Some((number, false)))]);
        }
    }
    Ok(nodes)
}

/// Checks that the nodes are a tree.
fn checked(written: Vec<WrittenNode>, inputs: &[String]) -> Result<Body, ModelError> {
    let count = written.len();
    let mut nodes = Vec::with_capacity(count);
    let (mut texts, mut numbers) = (Vec::new(), Vec::new());
    // Of each node that is led to: how many nodes are above it.
    let mut depths: Vec<Option<u32>> = vec![None; count];
    if let Some(first) = depths.first_mut() {
        *first = Some(0);
    }
    for (number, node) in written.into_iter().enumerate() {
        let Some(depth) = depths[number] else { return wrong(format!("no node leads to node {number}"), ORDER) };
        nodes.push(match node {
            WrittenNode { leaf: Some(leaf), input: None, le: None, then: None, r#else: None } => {
                match leaf {
                    Leaf::Text(text) => texts.push(text),
                    Leaf::Number(leaf) => numbers.push(leaf),
                }
                Node::Leaf(texts.len().max(numbers.len()) - 1)
            }
            WrittenNode { leaf: None, input: Some(input), le: Some(limit), then: Some(then), r#else: Some(other) } => {
                if input >= inputs.len() {
                    let last = inputs.len() - 1;
                    return wrong(
                        format!("node {number} asks for the input {input}, and the last one is {last}"),
                        FORMS,
                    );
                }
                for son in [then, other] {
                    if son <= number {
                        let problem = format!("node {number} leads back to node {son}: a tree has no circles");
                        return wrong(problem, ORDER);
                    }
                    match depths.get_mut(son) {
                        None => {
                            let problem =
                                format!("node {number} leads to node {son}, and the last one is {}", count - 1);
                            return wrong(problem, ORDER);
                        }
                        Some(Some(_)) => return wrong(format!("two ways lead to node {son}"), ORDER),
                        Some(below) if depth < DEPTH_MAX => *below = Some(depth + 1),
                        Some(_) => {
                            return wrong(
                                format!("a way has more than {DEPTH_MAX} nodes"),
                                "train a tree that is less deep",
                            );
                        }
                    }
                }
                Node::Split { input, limit, sons: [then as u32, other as u32] }
            }
            _ => return wrong(format!("node {number} is neither a leaf nor a condition"), FORMS),
        });
    }
    let leaves = match (texts.is_empty(), numbers.is_empty()) {
        (false, true) => Leaves::Texts(texts),
        (true, false) => Leaves::Numbers(numbers),
        (true, true) => return wrong("the tree has no nodes", FORMS),
        (false, false) => {
            return wrong("some leaves are texts and some are numbers", "make all leaves of a tree one or the other");
        }
    };
    Ok(Body::Tree { nodes, leaves })
}

/// The coefficients in the order of the inputs.
fn in_order(coefficients: Coefficients, inputs: &[String]) -> Result<Vec<f64>, ModelError> {
    match coefficients {
        Coefficients::List(list) if list.len() == inputs.len() => Ok(list),
        Coefficients::List(list) => {
            wrong(format!("it has {} coefficients for {} inputs", list.len(), inputs.len()), FORMS)
        }
        Coefficients::Named(named) => match named.keys().find(|name| !inputs.contains(name)) {
            Some(other) => wrong(format!("it has a coefficient for {other:?}, which is no input"), FORMS),
            None => Ok(inputs.iter().map(|input| named.get(input).copied().unwrap_or(0.0)).collect()),
        },
    }
}

impl PartialEq for Model {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version
    }
}

impl Eq for Model {}

impl Hash for Model {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.version.hash(state);
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("inputs", &self.inputs).field("version", &self.version).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::Float64Type;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn tree(nodes: &str) -> Result<Model, ModelError> {
        Model::parse(format!(r#"{{"kind": "tree", "inputs": ["dust", "air"], "nodes": [{nodes}]}}"#).as_bytes())
    }

    fn columns<const N: usize>(rows: &[[Option<f64>; N]]) -> [Float64Array; N] {
        std::array::from_fn(|input| rows.iter().map(|row| row[input]).collect())
    }

    fn texts(model: &Model, rows: &[[Option<f64>; 2]]) -> Vec<Option<String>> {
        let columns = columns(rows);
        let found = model.predict(&columns.iter().collect::<Vec<_>>()).unwrap();
        found.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect()
    }

    #[test]
    fn both_forms_of_a_tree_are_the_same_tree() {
        let listed = tree(
            r#"{"input": 1, "le": 22, "then": 1, "else": 2}, {"leaf": "BAD"},
               {"input": 1, "le": 29, "then": 3, "else": 4}, {"leaf": "GOOD"}, {"leaf": "VERYGOOD"}"#,
        );
        let nested = Model::parse(
            br#"{"kind": "c45_tree", "inputs": ["dust", "air"], "classes": ["BAD", "GOOD", "VERYGOOD"], "min_obj": 2,
                "tree": {"attr": "air", "attr_index": 1, "le": 22.0, "n": 1674.0, "sons": [{"leaf": "BAD", "n": 764},
                {"attr": "air", "le": 29.0, "sons": [{"leaf": "GOOD"}, {"leaf": "VERYGOOD", "dist": [0, 0, 434]}]}]}}"#,
        );
        let rows = [22.0, 22.5, 29.0, f64::INFINITY, -1.0].map(|air| [Some(f64::NEG_INFINITY), Some(air)]);
        let rows: Vec<[Option<f64>; 2]> = rows.into_iter().chain([[None, Some(1.0)], [Some(1.0), None]]).collect();
        let expected = [Some("BAD"), Some("GOOD"), Some("GOOD"), Some("VERYGOOD"), Some("BAD"), None, None];
        for model in [listed.unwrap(), nested.unwrap()] {
            assert_eq!((model.result_type(), model.inputs().len()), (DataType::Utf8, 2));
            let found = texts(&model, &rows);
            assert_eq!(found.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
        }
    }

    /// The model of RIoTBench for the quality of the air, over the first rows of its data.
    #[test]
    fn a_linear_model_is_its_sum() {
        let named = br#"{"kind": "linear_regression", "inputs": ["temp", "humid", "light", "dust"], "target": "air",
            "coefficients": {"temp": -0.5106896760749683, "humid": 0.1550345386077423, "dust": -0.0043941074441107295},
            "intercept": 37.442739000196276}"#;
        let list =
            br#"{"kind": "linear", "inputs": ["temp", "humid", "light", "dust"], "intercept": 37.442739000196276,
            "coefficients": [-0.5106896760749683, 0.1550345386077423, 0, -0.0043941074441107295]}"#;
        let rows = columns(&[[Some(8.0), Some(53.7), Some(0.0), Some(411.02)], [Some(1.0), None, None, None]]);
        for file in [&named[..], list] {
            let model = Model::parse(file).unwrap();
            assert_eq!(model.result_type(), DataType::Float64);
            let found = model.predict(&rows.iter().collect::<Vec<_>>()).unwrap();
            let found: Vec<Option<f64>> = found.as_primitive::<Float64Type>().iter().collect();
            assert!((found[0].unwrap() - 39.876_510_28).abs() < 1e-6 && found[1].is_none(), "{found:?}");
        }
    }

    #[test]
    fn an_input_that_is_no_number_is_told() {
        let model = tree(r#"{"leaf": 1.5}"#).unwrap();
        assert_eq!(model.result_type(), DataType::Float64);
        let [dust, air] = columns(&[[Some(1.0), Some(2.0)], [None, Some(f64::NAN)]]);
        assert_eq!(model.predict(&[&dust, &air]).unwrap_err(), 1);
    }

    #[test]
    fn what_is_no_model_is_refused_with_its_place() {
        let split = |to: [usize; 2]| format!(r#"{{"input": 0, "le": 1, "then": {}, "else": {}}}"#, to[0], to[1]);
        let leaf = r#"{"leaf": "A"}"#;
        let nodes = |nodes: &[&str]| tree(&nodes.join(", "));
        let whole = |file: &str| Model::parse(file.as_bytes());
        let deep: Vec<String> = (0..1_001).flat_map(|at| [split([2 * at + 1, 2 * at + 2]), leaf.to_owned()]).collect();
        let many = format!("{}{leaf}", format!("{leaf}, ").repeat(999_999));
        assert!((many.len() as u64) > MODEL_BYTES_MAX, "a million nodes are refused by their bytes as well");
        for (model, problem) in [
            (whole("{"), "it is no model in JSON: EOF"),
            (
                whole(r#"{"kind": "forest", "inputs": ["x"]}"#),
                r#""kind" is "forest", and a model is "tree" or "linear""#,
            ),
            (whole(r#"{"kind": "tree", "inputs": ["x"]}"#), r#"a tree has "nodes" or a "tree""#),
            (whole(r#"{"kind": "tree", "inputs": [], "nodes": []}"#), "it has 0 inputs"),
            (nodes(&[]), "the tree has no nodes"),
            (tree(&many), "it is no model in JSON: the tree has more than 65535 nodes"),
            (
                nodes(&[&split([1, 2]), &split([3, 0]), leaf, leaf]),
                "node 1 leads back to node 0: a tree has no circles",
            ),
            (
                nodes(&[&split([1, 2]), &split([1, 3]), leaf, leaf]),
                "node 1 leads back to node 1: a tree has no circles",
            ),
            (nodes(&[&split([1, 1]), leaf]), "two ways lead to node 1"),
            (nodes(&[&split([1, 9]), leaf]), "node 0 leads to node 9, and the last one is 1"),
            (nodes(&[&split([1, 3]), leaf, leaf, leaf]), "no node leads to node 2"),
            (nodes(&[r#"{"input": 2, "le": 1, "then": 1, "else": 2}"#, leaf, leaf]), "node 0 asks for the input 2"),
            (nodes(&[r#"{"input": 0, "le": 1, "then": 1}"#, leaf]), "node 0 is neither a leaf nor a condition"),
            (
                nodes(&[r#"{"input": 0, "le": 1e999, "then": 1, "else": 2}"#, leaf, leaf]),
                "it is no model in JSON: number",
            ),
            (nodes(&[&split([1, 2]), leaf, r#"{"leaf": 1}"#]), "some leaves are texts and some are numbers"),
            (tree(&deep.join(", ")), "a way has more than 1000 nodes"),
            (
                whole(r#"{"kind": "tree", "inputs": ["x"], "tree": {"attr": "y", "le": 1, "sons": [{}, {}]}}"#),
                r#"node 0 asks for "y", which is no input"#,
            ),
            (
                whole(r#"{"kind": "tree", "inputs": ["x"], "tree": {"attr": "x", "le": 1, "sons": [{"leaf": 1}]}}"#),
                "it is no model in JSON: invalid length 1",
            ),
            (
                whole(r#"{"kind": "linear", "inputs": ["x"], "coefficients": [1, 2], "intercept": 0}"#),
                "it has 2 coefficients for 1 inputs",
            ),
            (
                whole(r#"{"kind": "linear", "inputs": ["x"], "coefficients": {"y": 2}, "intercept": 0}"#),
                r#"it has a coefficient for "y", which is no input"#,
            ),
            (
                whole(r#"{"kind": "linear", "inputs": ["x"], "coefficients": [1]}"#),
                r#"a linear model has "coefficients""#,
            ),
        ] {
            let error = model.expect_err(problem).to_string();
            assert!(error.starts_with(problem) && error.contains("\nhint: "), "{problem}: {error}");
        }
        let nested = format!("{}{}", r#"{"attr":"x","le":1,"sons":["#.repeat(500), r#"{"leaf":1},"#);
        let file = format!(r#"{{"kind": "tree", "inputs": ["x"], "tree": {nested}"#);
        assert!(whole(&file).unwrap_err().to_string().contains("nested too deep"));
    }

    #[test]
    fn nested_trees_are_as_deep_as_the_page_says() {
        let nested = |depth: usize| {
            let split = r#"{"attr": "x", "le": 1, "sons": [{"leaf": 1}, "#;
            let tree = format!(r#"{}{{"leaf": 2}}{}"#, split.repeat(depth - 1), "]}".repeat(depth - 1));
            Model::parse(format!(r#"{{"kind": "tree", "inputs": ["x"], "tree": {tree}}}"#).as_bytes())
        };
        assert!(nested(NESTED_MAX).is_ok());
        let error = nested(NESTED_MAX + 10).unwrap_err().to_string();
        assert!(error.contains("60 nodes may be on a way\nhint: write") && error.contains("\"nodes\""), "{error}");
    }

    /// A random tree gives what a walk over its conditions gives.
    #[test]
    fn random_trees_lead_where_their_conditions_say() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..50 {
            // Sons are added behind all nodes, so they come later.
            let mut nodes: Vec<Option<(usize, f64, usize)>> = vec![None];
            for _ in 0..random.random_range(0..40) {
                let leaves: Vec<usize> = (0..nodes.len()).filter(|&node| nodes[node].is_none()).collect();
                let leaf = leaves[random.random_range(0..leaves.len())];
                nodes[leaf] = Some((random.random_range(0..2), f64::from(random.random_range(-5..5)), nodes.len()));
                nodes.extend([None, None]);
            }
            let written = nodes.iter().enumerate().map(|(number, node)| match node {
                Some((input, limit, son)) => {
                    format!(r#"{{"input": {input}, "le": {limit}, "then": {son}, "else": {}}}"#, son + 1)
                }
                None => format!(r#"{{"leaf": "{number}"}}"#),
            });
            let model = tree(&written.collect::<Vec<_>>().join(", ")).unwrap();
            let mut value = || Some(f64::from(random.random_range(-6..6)));
            let rows: Vec<[Option<f64>; 2]> = (0..50).map(|_| [value(), value()]).collect();
            let walked = rows.iter().map(|row| {
                let mut at = 0;
                while let Some((input, limit, son)) = nodes[at] {
                    at = if row[input].unwrap() <= limit { son } else { son + 1 };
                }
                Some(at.to_string())
            });
            assert_eq!(texts(&model, &rows), walked.collect::<Vec<_>>());
        }
    }
}
