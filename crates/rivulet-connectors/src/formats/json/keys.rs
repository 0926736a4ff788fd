//! Finds the column of each key of an object, and learns the order of keys from earlier messages.
//!
//! A device writes its messages with one program, so the bytes between two values (`,"value": `) are the same every
//! time. After a message has been read once, a comparison of these bytes replaces finding, checking and looking up the
//! key. Where a message differs, that one key is read in full and learned anew.

use hashbrown::HashMap;

use super::super::fault::{Fault, Problem};
use super::super::number::word_at;
use super::reader::Reader;

/// What to do with the value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// There is no further key: the object has ended.
    End,
    /// No column has it.
    Skip,
    /// It is the value of this column.
    Column(u16),
    /// It is the value of this column unless there is one whose key is written as the column is: SQL folds names to
    /// lower case, and messages have `deviceId`.
    Variant(u16),
    /// It is an object with this node's keys in it.
    Object(u16),
    /// It is the value of the column, or an object with the node's keys.
    Either(u16, u16),
}

/// The declared columns as a tree: a column named `a.b` is the key `b` in the object at key `a`.
pub(super) struct KeyTree {
    nodes: Vec<Node>,
}

/// The keys of one object.
pub(super) struct Node {
    targets: HashMap<Box<[u8]>, Target, foldhash::fast::RandomState>,
    /// The columns in this object and in those below it.
    pub(super) columns: Vec<u16>,
    /// The bytes that the last messages had before their first value, their second value, and so on.
    steps: Vec<Step>,
}

/// The number of keys of an object that are learned. Further keys are read in full each time.
const STEPS_MAX: usize = 256;

/// The greatest length of the bytes between two values that is learned.
const STEP_BYTES_MAX: usize = 128;

/// The bytes before a value, and where the value goes.
pub(super) struct Step {
    /// The first and the second eight bytes, as far as there are any.
    words: [u64; 2],
    masks: [u64; 2],
    /// All of the bytes; empty if nothing was learned here.
    bytes: Vec<u8>,
    target: Target,
    /// The target, if that is a column, else a number that is no column's.
    column: u32,
}

impl Step {
    fn unknown() -> Self {
        // No masked word equals this one, so it matches nothing.
        Self { words: [1, 0], masks: [0, 0], bytes: Vec::new(), target: Target::Skip, column: u32::MAX }
    }

    /// Takes the learned bytes if they come next. Returns whether they do.
    #[inline(always)]
    pub(super) fn take(&self, reader: &mut Reader<'_>) -> bool {
        let length = self.bytes.len();
        let matches = reader.word(0) & self.masks[0] == self.words[0]
            && (length <= 8 || reader.word(8) & self.masks[1] == self.words[1])
            && (length <= 16 || reader.starts_with(&self.bytes));
        if matches {
            reader.advance(length);
        }
        matches
    }

    /// Where the value goes.
    #[inline(always)]
    pub(super) fn target(&self) -> Target {
        self.target
    }

    /// The column the value goes to, if it simply goes to one.
    #[inline(always)]
    pub(super) fn column(&self) -> Option<usize> {
        (self.column != u32::MAX).then_some(self.column as usize)
    }

    fn learn(&mut self, bytes: &[u8], target: Target) {
        let length = bytes.len();
        let mask = |from: usize| match length.saturating_sub(from) {
            0 => 0,
            count @ 1..8 => !(u64::MAX << (8 * count)),
            _ => u64::MAX,
        };
        self.words = [word_at(bytes, 0), word_at(bytes, 8)];
        self.masks = [mask(0), mask(8)];
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.target = target;
        self.column = if let Target::Column(column) = target { u32::from(column) } else { u32::MAX };
    }
}

impl KeyTree {
    /// The tree of these column names.
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut tree = Self { nodes: vec![Node::new()] };
        for (column, name) in names.enumerate() {
            let column = column as u16;
            tree.nodes[0].columns.push(column);
            // The name as it stands is a key too, so that what our encoder writes can be read.
            tree.nodes[0].add_column(name, column);
            let mut node = 0;
            let mut rest = name;
            while let Some((object, below)) = rest.split_once('.') {
                node = tree.add_object(node, object);
                tree.nodes[node].columns.push(column);
                rest = below;
            }
            if node != 0 {
                tree.nodes[node].add_column(rest, column);
            }
        }
        tree
    }

    fn add_object(&mut self, parent: usize, key: &str) -> usize {
        let next = self.nodes.len();
        let entry = self.nodes[parent].targets.entry(key.as_bytes().into()).or_insert(Target::Skip);
        let (target, node) = match *entry {
            Target::Object(node) | Target::Either(_, node) => return usize::from(node),
            Target::Skip | Target::End => (Target::Object(next as u16), next),
            Target::Column(column) | Target::Variant(column) => (Target::Either(column, next as u16), next),
        };
        *entry = target;
        self.nodes.push(Node::new());
        node
    }

    /// How many objects there are, the outermost included.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The object `index`; 0 is the outermost.
    #[inline(always)]
    pub(super) fn node(&mut self, index: usize) -> &mut Node {
        &mut self.nodes[index]
    }
}

impl Node {
    fn new() -> Self {
        Self { targets: HashMap::default(), columns: Vec::new(), steps: Vec::new() }
    }

    fn add_column(&mut self, key: &str, column: u16) {
        let entry = self.targets.entry(key.as_bytes().into()).or_insert(Target::Skip);
        *entry = match *entry {
            Target::Skip => Target::Column(column),
            Target::Object(node) => Target::Either(column, node),
            // SQL refuses two columns of one name; if there were two, the first would get the value.
            taken => taken,
        };
    }

    /// What was learned of the keys of this object, in their order.
    #[inline(always)]
    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Takes everything up to the value at `position` of an object (its opening brace or the comma before, the key
    /// and the colon), or the end of the object.
    #[inline]
    pub(super) fn next_key(
        &mut self,
        reader: &mut Reader<'_>,
        position: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<Target, Fault> {
        if let Some(step) = self.steps.get(position)
            && step.take(reader)
        {
            return Ok(step.target);
        }
        if position > 0 && reader.peek() == b'}' {
            reader.advance(1);
            return Ok(Target::End);
        }
        self.read_key(reader, position, scratch)
    }

    #[inline(never)]
    fn read_key(&mut self, reader: &mut Reader<'_>, position: usize, scratch: &mut Vec<u8>) -> Result<Target, Fault> {
        let start = reader.offset();
        let another = match position {
            0 if reader.peek() != b'{' => return Err(reader.fault(Problem::ExpectedObject)),
            0 => reader.enter(b'}'),
            _ => reader.another(b'}')?,
        };
        if !another {
            return Ok(Target::End);
        }
        let kept = scratch.len();
        let key = reader.key(scratch)?;
        let target = self.target_of(key.of(reader.payload(), scratch));
        scratch.truncate(kept);
        self.learn(position, &reader.payload()[start..reader.offset()], target);
        Ok(target)
    }

    fn target_of(&self, key: &[u8]) -> Target {
        if let Some(target) = self.targets.get(key) {
            return *target;
        }
        let variants = self.targets.iter().filter(|(known, _)| known.eq_ignore_ascii_case(key));
        match variants.map(|(_, target)| *target).min() {
            None => Target::Skip,
            Some(Target::Column(column)) => Target::Variant(column),
            Some(other) => other,
        }
    }

    fn learn(&mut self, position: usize, bytes: &[u8], target: Target) {
        if position >= STEPS_MAX {
            return;
        }
        while self.steps.len() <= position {
            self.steps.push(Step::unknown());
        }
        if bytes.len() <= STEP_BYTES_MAX {
            self.steps[position].learn(bytes, target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(tree: &mut KeyTree, json: &str) -> Result<Vec<Target>, Fault> {
        let mut reader = Reader::new(json.as_bytes());
        let mut scratch = Vec::new();
        let mut targets = Vec::new();
        loop {
            match tree.node(0).next_key(&mut reader, targets.len(), &mut scratch)? {
                Target::End => break,
                target => targets.push(target),
            }
            reader.skip_value(1)?;
        }
        reader.finish()?;
        Ok(targets)
    }

    #[test]
    fn learned_keys_give_what_unlearned_ones_give() {
        use Target::{Column, Skip, Variant};
        let mut tree = KeyTree::new(["ts", "value", "a_rather_long_column_name"].into_iter());
        let messages = [
            (r#"{"ts":1,"value":2}"#, vec![Column(0), Column(1)]),
            (r#"{"ts":1,"value":2}"#, vec![Column(0), Column(1)]),
            (r#"{"value":1,"ts":2}"#, vec![Column(1), Column(0)]),
            (r#"{ "ts" : 1 , "value" : 2 }"#, vec![Column(0), Column(1)]),
            (r#"{"ts":1}"#, vec![Column(0)]),
            (r#"{"ts":1,"other":[1,2],"value":2}"#, vec![Column(0), Skip, Column(1)]),
            (r#"{"ts":1,"other":[1,2],"value":2}"#, vec![Column(0), Skip, Column(1)]),
            (r#"{"a_rather_long_column_name":1,"valu":2}"#, vec![Column(2), Skip]),
            (r#"{"a_rather_long_column_nam2":1,"value":2}"#, vec![Skip, Column(1)]),
            (r#"{"\u0074s":1}"#, vec![Column(0)]),
            (r#"{"Ts":1,"VALUE":2,"value":3}"#, vec![Variant(0), Variant(1), Column(1)]),
            ("{}", vec![]),
        ];
        for (json, expected) in messages.iter().chain(&messages) {
            assert_eq!(keys(&mut tree, json).as_ref(), Ok(expected), "{json}");
        }
        for broken in [r#"{"ts":1,}"#, r#"{"ts":1,"value"}"#, r#"{"ts":1 "value":2}"#, r#"{"ts":"#, "{", ""] {
            assert!(keys(&mut tree, broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn dotted_names_are_a_tree() {
        let mut tree = KeyTree::new(["a", "a.b", "a.c.d", "e"].into_iter());
        assert_eq!(tree.len(), 3);
        assert_eq!(tree.node(0).targets[&b"a"[..]], Target::Either(0, 1));
        assert_eq!(tree.node(0).targets[&b"a.b"[..]], Target::Column(1));
        assert_eq!(tree.node(1).targets[&b"b"[..]], Target::Column(1));
        assert_eq!(tree.node(1).targets[&b"c"[..]], Target::Object(2));
        assert_eq!(tree.node(2).columns, [2]);
        assert_eq!(tree.node(1).columns, [1, 2]);
    }

    #[test]
    fn what_is_learned_is_bounded() {
        let mut tree = KeyTree::new(["v"].into_iter());
        let many: Vec<String> = (0..2000).map(|key| format!("\"{key}\":1")).collect();
        keys(&mut tree, &format!("{{{}}}", many.join(","))).unwrap();
        let long = format!("{{\"{}\":1,\"v\":2}}", "k".repeat(100_000));
        assert_eq!(keys(&mut tree, &long).unwrap(), [Target::Skip, Target::Column(0)]);
        assert_eq!(keys(&mut tree, &long).unwrap(), [Target::Skip, Target::Column(0)]);
        assert_eq!(tree.node(0).steps.len(), STEPS_MAX);
        assert!(tree.node(0).steps.iter().all(|step| step.bytes.len() <= STEP_BYTES_MAX));
    }
}
