//! Numbers with their nouns, in what people read: one query, two queries.

/// A noun as it stands behind a number; only its last word changes.
pub(crate) fn noun(count: u64, singular: &str) -> String {
    match singular.strip_suffix('y') {
        _ if count == 1 => singular.to_owned(),
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ if singular.ends_with("ch") => format!("{singular}es"),
        _ => format!("{singular}s"),
    }
}

/// A number and its noun.
pub(crate) fn counted(count: u64, singular: &str) -> String {
    format!("{count} {}", noun(count, singular))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_all_others_are_plural() {
        for (count, singular, text) in [
            (0, "query", "0 queries"),
            (1, "big query", "1 big query"),
            (2, "big query", "2 big queries"),
            (1, "row", "1 row"),
            (21, "row", "21 rows"),
            (3, "day", "3 days"),
            (2, "batch", "2 batches"),
        ] {
            assert_eq!(counted(count, singular), text);
        }
    }
}
