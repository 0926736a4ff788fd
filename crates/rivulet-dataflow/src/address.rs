//! The address of an operator's state: what the operator does, from its plan. State that is saved has its address, and
//! goes to the operator with the same one, wherever that stands.
//!
//! Two operators of a plan may do the same side by side, with rows of the same sources. Their addresses say also how
//! their rows are computed. That is compared only to tell such operators apart, because a later planner may compute the
//! same rows in another way.
//!
//! What must hold: state goes to the operator that it was saved for, or is refused by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// What an operator with state does, as its plan says it. Its texts are saved: a change of one of them is a change of
/// the form of state.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Address {
    /// The kind of state ([`StateFrame::operator`](crate::StateFrame::operator)).
    pub kind: String,
    /// The keys, in order.
    pub keys: Vec<String>,
    /// The aggregates, in order.
    pub aggregates: Vec<String>,
    /// The window.
    pub window: Option<String>,
    /// What else distinguishes the operator from others of its kind.
    pub rest: Vec<String>,
    /// Whether all state is given up at a barrier, so that none is ever saved.
    pub is_transient: bool,
    /// A hash of where its rows come from: for each input the sources, or the operators with state in front. This and
    /// what follows is set by the plan that the operator is in.
    pub behind: u64,
    /// A hash of how its rows are computed.
    pub exact: u64,
    /// The same in the words of `EXPLAIN`, which change less often, and do not say everything.
    pub words: u64,
}

impl Address {
    /// The address of state of this kind.
    pub fn of(kind: &str) -> Self {
        Self { kind: kind.to_owned(), ..Self::default() }
    }

    /// Whether an operator with this address may have the state of the other, if no other operator may.
    pub fn is_like(&self, other: &Self) -> bool {
        self.alike() == other.alike()
    }

    /// The address as a name: no other operator of the plan has it.
    pub fn name(&self) -> String {
        format!("state-{:016x}", hash(self))
    }

    /// The address without what tells operators apart that do the same.
    pub(crate) fn alike(&self) -> Self {
        Self { exact: 0, words: 0, ..self.clone() }
    }
}

/// The operator in words, for errors.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = (!self.keys.is_empty()).then(|| format!("by {}", self.keys.join(", ")));
        let parts: Vec<&str> =
            self.window.iter().chain(&by).chain(&self.aggregates).chain(&self.rest).map(String::as_str).collect();
        write!(f, "{} ({})", self.kind, parts.join("; "))
    }
}

/// A hash that stays the same for ever.
pub(crate) fn hash(parts: &impl Serialize) -> u64 {
    xxh3_64(&serde_json::to_vec(parts).expect("texts and numbers are always JSON"))
}

/// Finds the operator for each saved address, as an index in `now`. Operators that give up their state have none.
///
/// # Errors
/// State that no operator may have, or that several may have.
pub fn place(saved: &[&Address], now: &[Option<Arc<Address>>]) -> Result<Vec<Option<usize>>, String> {
    let (places, lost) = find(saved, now);
    lost.map_or(Ok(places), Err)
}

/// The places that are found, and what is wrong if one is missing.
fn find(saved: &[&Address], now: &[Option<Arc<Address>>]) -> (Vec<Option<usize>>, Option<String>) {
    let mut alike: BTreeMap<Address, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (place, address) in saved.iter().enumerate().filter(|(_, address)| !address.is_transient) {
        alike.entry(address.alike()).or_default().0.push(place);
    }
    let own = |place: usize| now[place].as_deref().expect("only addresses are looked at");
    for (place, address) in now.iter().enumerate() {
        let group = address.as_ref().and_then(|address| alike.get_mut(&address.alike()));
        group.into_iter().for_each(|(_, to)| to.push(place));
    }
    let (mut places, mut lost) = (vec![None; saved.len()], None);
    for (mut from, mut to) in alike.into_values() {
        // Exactly the same rows, then the same in words, then whichever is left.
        let marks: [fn(&Address) -> u64; 3] = [|one| one.exact, |one| one.words, |_| 0];
        for mark in marks {
            let find = |one: &usize| {
                let wanted = mark(saved[*one]);
                let mut found = to.iter().copied().filter(|&other| mark(own(other)) == wanted);
                let is_only = from.iter().filter(|&&other| mark(saved[other]) == wanted).count() == 1;
                found.next().filter(|_| is_only && found.next().is_none()).map(|found| (*one, found))
            };
            for (one, found) in from.iter().filter_map(find).collect::<Vec<_>>() {
                places[one] = Some(found);
                from.retain(|&other| other != one);
                to.retain(|&other| other != found);
            }
        }
        if let Some(&one) = from.first() {
            let one = saved[one];
            lost.get_or_insert_with(|| match to.is_empty() {
                true => format!("no operator has the state of '{one}' any more"),
                false => {
                    format!("several operators do what '{one}' does, and their rows are computed in another way now")
                }
            });
        }
    }
    (places, lost)
}

/// Finds the operator for each saved address by the order of a chain, whose text is the one that saved them: only the
/// spelling of addresses differs. What [`place`] finds stays there. `None` if the order contradicts that, if kinds or
/// numbers of parts differ too, or if it can be done in several ways.
pub fn place_by_order(saved: &[&Address], now: &[Option<Arc<Address>>]) -> Option<Vec<Option<usize>>> {
    let form = |one: &Address| {
        (one.kind.clone(), one.keys.len(), one.aggregates.len(), one.window.is_some(), one.rest.len(), one.is_transient)
    };
    let (known, _) = find(saved, now);
    // An address that both sides have is no other spelling of another one.
    let is_gone: Vec<bool> = saved.iter().map(|one| !now.iter().flatten().any(|other| other.is_like(one))).collect();
    let may_have = |from: usize, to: usize| {
        let (one, Some(other)) = (saved[from], now[to].as_deref()) else { return false };
        let is_new = || !saved.iter().any(|one| one.is_like(other));
        match known[from] {
            Some(place) => place == to,
            None => other.is_like(one) || (is_gone[from] && form(one) == form(other) && is_new()),
        }
    };
    // Operators without rows have saved nothing. So the first possible places must be the last possible ones.
    let mut places = 0..now.len();
    let first: Option<Vec<usize>> = (0..saved.len()).map(|from| places.find(|&to| may_have(from, to))).collect();
    let mut places = (0..now.len()).rev();
    let last: Option<Vec<usize>> = (0..saved.len()).rev().map(|from| places.find(|&to| may_have(from, to))).collect();
    first
        .filter(|first| last.is_some_and(|last| first.iter().eq(last.iter().rev())))
        .map(|first| first.into_iter().map(Some).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address behind a front, whose rows are computed in this way, said in these words.
    fn address(kind: &str, behind: u64, exact: u64, words: u64) -> Address {
        Address { keys: vec!["k".into()], behind, exact, words, ..Address::of(kind) }
    }

    #[test]
    fn state_finds_its_operator_or_is_refused() {
        let sum = |exact, words| address("sum", 1, exact, words);
        let other = address("sum", 2, 5, 5);
        let transient = Address { is_transient: true, ..address("part", 1, 1, 1) };
        let several = "several operators do what 'sum (by k)' does";
        for (saved, now, places) in [
            // One is found however its rows are computed, another kind or place is not mistaken for it.
            (vec![sum(1, 1)], vec![None, Some(other.clone()), Some(sum(9, 9))], Ok(vec![Some(2)])),
            (vec![sum(1, 1), other.clone()], vec![Some(other.clone()), Some(sum(1, 1))], Ok(vec![Some(1), Some(0)])),
            (vec![other.clone()], vec![Some(sum(5, 5))], Err("no operator has the state of 'sum (by k)'")),
            (vec![address("max", 1, 1, 1)], vec![Some(sum(1, 1))], Err("no operator has the state of 'max (by k)'")),
            // Two are told apart by how their rows are computed, then by words, then the last one is left.
            (vec![sum(1, 1), sum(2, 2)], vec![Some(sum(2, 8)), Some(sum(1, 9))], Ok(vec![Some(1), Some(0)])),
            (vec![sum(1, 1), sum(2, 2)], vec![Some(sum(8, 2)), Some(sum(9, 1))], Ok(vec![Some(1), Some(0)])),
            (vec![sum(1, 1), sum(2, 2)], vec![Some(sum(8, 8)), Some(sum(1, 9))], Ok(vec![Some(1), Some(0)])),
            (vec![sum(1, 1), sum(2, 2)], vec![Some(sum(8, 8)), Some(sum(9, 9))], Err(several)),
            (vec![sum(1, 3), sum(2, 3)], vec![Some(sum(8, 3)), Some(sum(9, 3))], Err(several)),
            (vec![sum(1, 1)], vec![Some(sum(8, 8)), Some(sum(9, 9))], Err(several)),
            (vec![transient], vec![], Ok(vec![None])),
        ] {
            let now: Vec<Option<Arc<Address>>> = now.into_iter().map(|one| one.map(Arc::new)).collect();
            match (place(&saved.iter().collect::<Vec<_>>(), &now), places) {
                (Ok(found), Ok(places)) => assert_eq!(found, places, "{saved:?} {now:?}"),
                (Err(error), Err(why)) => assert!(error.contains(why), "{error}"),
                (found, places) => panic!("{found:?}, and not {places:?}: {saved:?} {now:?}"),
            }
        }
    }

    #[test]
    fn by_order_only_the_spelling_may_differ() {
        let spelled = |kind: &str, key: &str| Address { keys: vec![key.into()], ..Address::of(kind) };
        let sums = |keys: [&str; 2]| keys.map(|key| spelled("sum", key));
        for (saved, now, places) in [
            (&sums(["a", "b"])[..], &sums(["x", "y"])[..], Some(vec![Some(0), Some(1)])),
            (&[spelled("sum", "a")], &[spelled("max", "x"), spelled("sum", "y")], Some(vec![Some(1)])),
            // Those that are known stay, and the others are none of them.
            (&sums(["a", "b"]), &sums(["x", "b"]), Some(vec![Some(0), Some(1)])),
            (&sums(["a", "b"]), &sums(["x", "a"]), None),
            (&[spelled("sum", "b")], &sums(["x", "b"]), Some(vec![Some(1)])),
            (&sums(["a", "b"]), &[sums(["b", "x"]), sums(["b", "y"])].concat(), Some(vec![Some(1), Some(2)])),
            // The other one of the two had no rows.
            (&[spelled("sum", "a")], &sums(["x", "y"]), None),
            (&sums(["a", "b"]), &[spelled("sum", "x")], None),
            (&[spelled("sum", "a")], &[spelled("max", "x")], None),
            (&[spelled("sum", "a")], &[Address { keys: vec!["x".into(); 2], ..Address::of("sum") }], None),
        ] {
            let now: Vec<_> = now.iter().map(|one| Some(Arc::new(one.clone()))).collect();
            assert_eq!(place_by_order(&saved.iter().collect::<Vec<_>>(), &now), places, "{saved:?} {now:?}");
        }
    }

    #[test]
    fn an_address_is_read_as_it_was_written_and_what_is_new_may_be_missing() {
        let one = Address { window: Some("tumble".into()), ..address("window", u64::MAX, 2, 3) };
        let text = serde_json::to_string(&one).expect("JSON");
        assert_eq!(serde_json::from_str::<Address>(&text).expect("an address"), one);
        assert_eq!(serde_json::from_str::<Address>(r#"{"kind":"window"}"#).expect("an address"), Address::of("window"));
        assert_eq!((one.to_string().as_str(), one.name()), ("window (tumble; by k)", one.clone().name()));
        assert_ne!(one.name(), Address { exact: 1, ..one.clone() }.name());
    }
}
