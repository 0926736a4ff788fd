//! "Did you mean ...?": the nearest of a list of names.

/// Longer names are not compared: nobody mistypes them by a letter, and the comparison is quadratic.
const NAME_CHARACTERS_MAX: usize = 64;

/// Returns the candidate nearest to `word`, if it is near enough to be what was meant. Case does not count.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = lower(word);
    if word.is_empty() || word.len() > NAME_CHARACTERS_MAX {
        return None;
    }
    // A third of the letters may be wrong, or one in a short word.
    let distance_max = word.len().div_ceil(3).min(3);
    candidates
        .into_iter()
        .map(|candidate| (lower(candidate), candidate))
        .filter(|(letters, _)| letters.len() <= NAME_CHARACTERS_MAX)
        .map(|(letters, candidate)| (edit_distance(&word, &letters), candidate))
        .filter(|(distance, candidate)| *distance <= distance_max && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn lower(word: &str) -> Vec<char> {
    word.chars().take(NAME_CHARACTERS_MAX + 1).flat_map(char::to_lowercase).collect()
}

/// The number of letters to insert, delete, replace or swap with their neighbour (optimal string alignment distance).
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut before_previous = vec![0; b.len() + 1];
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    let mut current = vec![0; b.len() + 1];
    for i in 1..=a.len() {
        current[0] = i;
        for j in 1..=b.len() {
            let replaced = previous[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(previous[j] + 1).min(current[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_previous[j - 2] + 1);
            }
            current[j] = best;
        }
        std::mem::swap(&mut before_previous, &mut previous);
        std::mem::swap(&mut previous, &mut current);
    }
    previous[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let distance = |a: &str, b: &str| edit_distance(&lower(a), &lower(b));
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("target", "target"), 0);
        assert_eq!(distance("targt", "target"), 1);
        assert_eq!(distance("tagret", "target"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn only_what_may_have_been_meant_is_suggested() {
        let names = ["value", "device", "ts"];
        assert_eq!(nearest("vlaue", names), Some("value"));
        assert_eq!(nearest("DEVICES", names), Some("device"));
        assert_eq!(nearest("temperature", names), None);
        assert_eq!(nearest("x", ["y"]), None);
        assert_eq!(nearest("", names), None);
        assert_eq!(nearest(&"v".repeat(100_000), names), None);
    }
}
