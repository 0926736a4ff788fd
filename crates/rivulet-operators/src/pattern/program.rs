//! A row pattern as an automaton: compiled once for an application, run for every query and partition.
//!
//! A state waits for a row of one variable. The followers of a state are a list in order of preference, computed here
//! once, so that a step at run time only walks a list. The order is that of the standard: a greedy repetition prefers
//! another turn, a reluctant one prefers to go on, an alternation prefers the alternative on the left.

use std::fmt;

use crate::PlanError;

/// The most states of an automaton. Each occurrence of a variable in the pattern is a state; counted repetitions are
/// written out.
pub const STATES_MAX: usize = 1_000;

/// The most followers of all states together.
const FOLLOWERS_MAX: usize = 200_000;

/// A pattern over variables, which are numbers from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One row of this variable.
    Variable(usize),
    /// Patterns one after the other.
    Sequence(Vec<Pattern>),
    /// One of several patterns. Those further left are better.
    Alternation(Vec<Pattern>),
    /// A pattern several times.
    Repeat {
        /// What is repeated.
        pattern: Box<Pattern>,
        /// The fewest turns.
        min: u32,
        /// The most turns; `None` for as many as rows fit.
        max: Option<u32>,
        /// Whether more turns are better than fewer.
        greedy: bool,
    },
}

impl Pattern {
    /// Writes the pattern with these names of variables.
    pub fn text(&self, names: &[&str]) -> String {
        let list = |parts: &[Self], separator: &str| {
            let inner = |part: &Self| match part {
                Self::Alternation(_) => format!("({})", part.text(names)),
                _ => part.text(names),
            };
            parts.iter().map(inner).collect::<Vec<_>>().join(separator)
        };
        match self {
            Self::Variable(variable) => names.get(*variable).copied().unwrap_or("?").to_owned(),
            Self::Sequence(parts) => list(parts, " "),
            Self::Alternation(parts) => list(parts, " | "),
            Self::Repeat { pattern, min, max, greedy } => {
                let inner = match pattern.as_ref() {
                    Self::Variable(_) => pattern.text(names),
                    _ => format!("({})", pattern.text(names)),
                };
                let quantifier = match (min, max) {
                    (0, None) => "*".to_owned(),
                    (1, None) => "+".to_owned(),
                    (0, Some(1)) => "?".to_owned(),
                    (min, None) => format!("{{{min},}}"),
                    (min, Some(max)) if min == max => format!("{{{min}}}"),
                    (min, Some(max)) => format!("{{{min},{max}}}"),
                };
                format!("{inner}{quantifier}{}", if *greedy { "" } else { "?" })
            }
        }
    }
}

/// What may come after a state: another state, or the end of the match.
pub(super) type Follower = u32;

/// The follower that ends the match.
pub(super) const ACCEPT: Follower = Follower::MAX;

/// The automaton.
pub(super) struct Program {
    /// The variable that each state waits for.
    variables: Vec<usize>,
    first: Vec<Follower>,
    /// The followers of each state, best first. No follower stands behind [`ACCEPT`]: it would never be preferred.
    after: Vec<Vec<Follower>>,
    /// The variables that the first row of a match may have, as bits.
    pub(super) first_variables: u64,
}

/// A step of a pattern. When the automaton is complete, only its states remain.
enum Node {
    /// A row of the variable, then the node.
    Row(usize, usize),
    /// One of the nodes, best first.
    Choice(Vec<usize>),
    /// Begins an optional turn of a repetition.
    Begin(usize),
    /// Ends an optional turn: where the pattern goes on after a turn with a row, and where after a turn without one.
    End {
        behind_row: usize,
        behind_none: usize,
    },
    Accept,
}

impl Program {
    pub(super) fn new(pattern: &Pattern) -> Result<Self, PlanError> {
        let mut nodes = vec![Node::Accept];
        let start = add(pattern, 0, &mut nodes)?;
        let mut states = vec![0; nodes.len()];
        let mut variables = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            if let Node::Row(variable, _) = node {
                states[index] = variables.len() as Follower;
                variables.push(*variable);
            }
        }
        if variables.len() > STATES_MAX {
            return Err(too_large());
        }
        let first = followers(&nodes, &states, start);
        if first.contains(&ACCEPT) {
            return Err(refused(
                "it matches no row at all\nhint: let at least one variable be required, for example A+ instead of A*",
            ));
        }
        let mut after = Vec::with_capacity(variables.len());
        let mut total = 0;
        for node in &nodes {
            if let Node::Row(_, next) = node {
                after.push(followers(&nodes, &states, *next));
                total += after.last().map_or(0, Vec::len);
                if total > FOLLOWERS_MAX {
                    return Err(too_large());
                }
            }
        }
        let first_variables = first.iter().map(|&state| 1 << variables[state as usize]).fold(0, |all, bit| all | bit);
        Ok(Self { variables, first, after, first_variables })
    }

    /// The variable that a state waits for.
    pub(super) fn variable(&self, state: Follower) -> usize {
        self.variables[state as usize]
    }

    /// The states at the beginning of a match, best first.
    pub(super) fn first(&self) -> &[Follower] {
        &self.first
    }

    /// The followers of this state after a row, best first.
    pub(super) fn after(&self, state: Follower) -> &[Follower] {
        &self.after[state as usize]
    }

    /// The number of states.
    pub(super) fn states(&self) -> usize {
        self.variables.len()
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({} states)", self.variables.len())
    }
}

fn refused(problem: &str) -> PlanError {
    PlanError::Pattern { problem: problem.to_owned() }
}

fn too_large() -> PlanError {
    refused(&format!(
        "written out it has more than {STATES_MAX} rows\nhint: repeat fewer times, or without an upper bound"
    ))
}

fn push(node: Node, nodes: &mut Vec<Node>) -> Result<usize, PlanError> {
    nodes.push(node);
    // Each row has at most a few other nodes.
    if nodes.len() > 4 * STATES_MAX { Err(too_large()) } else { Ok(nodes.len() - 1) }
}

/// Adds the nodes of a pattern in front of `next`. Returns the node with which the pattern begins.
fn add(pattern: &Pattern, next: usize, nodes: &mut Vec<Node>) -> Result<usize, PlanError> {
    match pattern {
        Pattern::Variable(variable) => push(Node::Row(*variable, next), nodes),
        Pattern::Sequence(parts) => parts.iter().rev().try_fold(next, |next, part| add(part, next, nodes)),
        Pattern::Alternation(parts) => {
            let starts = parts.iter().map(|part| add(part, next, nodes)).collect::<Result<Vec<_>, _>>()?;
            nodes.push(Node::Choice(starts));
            Ok(nodes.len() - 1)
        }
        Pattern::Repeat { pattern, min, max, greedy } => {
            // Adds a choice between a turn, after which `then` follows, and `next`. A turn without a row is followed by
            // `next` too: further turns would be like it.
            let turn = |choice: usize, then: usize, nodes: &mut Vec<Node>| {
                nodes.push(Node::End { behind_row: then, behind_none: next });
                let body = add(pattern, nodes.len() - 1, nodes)?;
                nodes.push(Node::Begin(body));
                let again = nodes.len() - 1;
                nodes[choice] = Node::Choice(if *greedy { vec![again, next] } else { vec![next, again] });
                Ok::<_, PlanError>(())
            };
            let mut start = next;
            match max {
                Some(max) => {
                    for _ in *min..*max {
                        let choice = push(Node::Choice(Vec::new()), nodes)?;
                        turn(choice, start, nodes)?;
                        start = choice;
                    }
                }
                None => {
                    start = push(Node::Choice(Vec::new()), nodes)?;
                    turn(start, start, nodes)?;
                }
            }
            (0..*min).try_fold(start, |next, _| add(pattern, next, nodes))
        }
    }
}

/// The states that can be reached without a row, best first, each once. A second way to the same state has the same
/// future and is not preferred. A turn of a repetition without a row is its last one.
fn followers(nodes: &[Node], states: &[Follower], start: usize) -> Vec<Follower> {
    // Of the repetitions around a node, those that have begun their turn since the last row are the innermost ones, so
    // their number says which they are. By node, this holds the numbers with which it was seen. In very deep patterns
    // the number stays at the highest.
    let mut seen = vec![0u64; nodes.len()];
    let mut open = vec![(start, 0u32)];
    let mut found = Vec::new();
    while let Some((index, turns)) = open.pop() {
        if seen[index] & 1 << turns != 0 {
            continue;
        }
        seen[index] |= 1 << turns;
        match &nodes[index] {
            Node::Row(..) if found.contains(&states[index]) => {}
            Node::Row(..) => found.push(states[index]),
            Node::Choice(nodes) => open.extend(nodes.iter().rev().map(|&node| (node, turns))),
            Node::Begin(body) => open.push((*body, (turns + 1).min(u64::BITS - 1))),
            Node::End { behind_none, .. } if turns > 0 => open.push((*behind_none, turns - 1)),
            Node::End { behind_row, .. } => open.push((*behind_row, 0)),
            Node::Accept => {
                found.push(ACCEPT);
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeat(variable: usize, min: u32, max: Option<u32>, greedy: bool) -> Pattern {
        Pattern::Repeat { pattern: Box::new(Pattern::Variable(variable)), min, max, greedy }
    }

    #[test]
    fn followers_come_in_order_of_preference() {
        // A B+ C?
        let pattern =
            Pattern::Sequence(vec![Pattern::Variable(0), repeat(1, 1, None, true), repeat(2, 0, Some(1), true)]);
        let program = Program::new(&pattern).unwrap();
        let named = |followers: &[Follower]| -> String {
            followers
                .iter()
                .map(|&state| if state == ACCEPT { '.' } else { ['a', 'b', 'c'][program.variable(state)] })
                .collect()
        };
        let first = program.first()[0];
        assert_eq!(named(program.after(first)), "b");
        let again = program.after(first)[0];
        assert_eq!(named(program.after(again)), "bc.");
        assert_eq!(pattern.text(&["a", "b", "c"]), "a b+ c?");
        assert_eq!(program.first_variables, 1);
    }

    #[test]
    fn what_ends_a_match_is_the_last_follower() {
        // A+? prefers to end, so nothing is behind the end.
        let pattern = repeat(0, 1, None, false);
        let program = Program::new(&pattern).unwrap();
        assert_eq!(program.after(0), [ACCEPT]);
        assert_eq!(pattern.text(&["a"]), "a+?");
    }

    #[test]
    fn patterns_that_are_too_large_or_match_nothing_are_refused() {
        let error = Program::new(&repeat(0, 0, None, true)).unwrap_err().to_string();
        assert!(error.contains("no row") && error.contains("hint:"), "{error}");
        let error = Program::new(&repeat(0, u32::MAX, None, true)).unwrap_err().to_string();
        assert!(error.contains("1000 rows"), "{error}");
        let nested = (0..20).fold(Pattern::Variable(0), |inner, _| Pattern::Repeat {
            pattern: Box::new(inner),
            min: 2,
            max: Some(2),
            greedy: true,
        });
        assert!(Program::new(&nested).is_err());
        assert!(Program::new(&repeat(0, 1000, Some(1000), true)).is_ok());
    }

    #[test]
    fn repetitions_of_what_may_be_nothing_end() {
        // ((A?)*)* A
        let inner = Pattern::Repeat { pattern: Box::new(repeat(0, 0, Some(1), true)), min: 0, max: None, greedy: true };
        let outer = Pattern::Repeat { pattern: Box::new(inner), min: 0, max: None, greedy: true };
        let program = Program::new(&Pattern::Sequence(vec![outer, Pattern::Variable(0)])).unwrap();
        assert_eq!(program.states(), 2);
        assert_eq!(program.first(), [1, 0]);
    }
}
