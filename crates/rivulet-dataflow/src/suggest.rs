//! "Did you mean ...?": the nearest of a list of names.

use strsim::osa_distance;

/// Longer names are not compared: nobody mistypes them by a letter, and the comparison is quadratic.
const NAME_CHARACTERS_MAX: usize = 64;

/// Returns the candidate nearest to `word`, if it is near enough to be what was meant. Case does not count.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = lower(word);
    let characters = word.chars().count();
    if !(1..=NAME_CHARACTERS_MAX).contains(&characters) {
        return None;
    }
    // A third of the letters may be wrong, or one in a short word.
    let distance_max = characters.div_ceil(3).min(3);
    candidates
        .into_iter()
        .map(|candidate| (lower(candidate), candidate))
        .filter(|(letters, _)| letters.chars().count() <= NAME_CHARACTERS_MAX)
        .map(|(letters, candidate)| (osa_distance(&word, &letters), candidate))
        .filter(|(distance, candidate)| *distance <= distance_max && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The beginning of a word in lower case, which has more than [`NAME_CHARACTERS_MAX`] characters if the word has.
fn lower(word: &str) -> String {
    word.chars().take(NAME_CHARACTERS_MAX + 1).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_have_been_meant_is_suggested() {
        let names = ["value", "device", "ts"];
        assert_eq!(nearest("vlaue", names), Some("value"));
        assert_eq!(nearest("DEVICES", names), Some("device"));
        assert_eq!(nearest("partitionby", ["follow", "partition_by"]), Some("partition_by"));
        assert_eq!(nearest("temperature", names), None);
        assert_eq!(nearest("x", ["y"]), None);
        assert_eq!(nearest("", names), None);
        assert_eq!(nearest(&"v".repeat(100_000), names), None);
    }
}
