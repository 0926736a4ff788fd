//! Finds the name that was probably meant.

/// The candidate at the smallest edit distance from `word`, if that is small enough to be a slip.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Longer names are not mistyped by a letter, and the comparison is quadratic.
    const BYTES_MAX: usize = 64;
    if word.len() > BYTES_MAX {
        return None;
    }
    let slips_max = word.len().div_ceil(3).min(3);
    candidates
        .filter(|candidate| candidate.len() <= BYTES_MAX)
        .map(|candidate| (distance(word.as_bytes(), candidate.as_bytes()), candidate))
        .filter(|(slips, candidate)| *slips <= slips_max && *slips < candidate.len())
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, candidate)| candidate)
}

/// The number of letters to insert, delete or replace (Levenshtein).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(!from.eq_ignore_ascii_case(to));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let near = |word| nearest(word, ["follow", "header", "partition_by"].into_iter());
        assert_eq!(near("folow"), Some("follow"));
        assert_eq!(near("Heeder"), Some("header"));
        assert_eq!(near("partitionby"), Some("partition_by"));
        assert_eq!(near("xyz"), None);
        assert_eq!(near(""), None);
    }
}
