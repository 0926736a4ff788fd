//! LIKE over names.

/// Whether `text` matches the SQL `LIKE` pattern: `%` any text, `_` any one character, `\` takes the next one
/// literally.
pub(crate) fn like(text: &str, pattern: &str) -> bool {
    fn matches(text: &[char], pattern: &[char]) -> bool {
        // Greedy with one point to go back to: linear in practice, quadratic at worst, never exponential.
        let (mut t, mut p, mut star) = (0, 0, None);
        while t < text.len() {
            let escaped = pattern.get(p) == Some(&'\\') && p + 1 < pattern.len();
            let literal = if escaped { pattern.get(p + 1) } else { pattern.get(p) };
            if !escaped && literal == Some(&'%') {
                star = Some((p, t));
                p += 1;
            } else if literal.is_some_and(|&c| c == text[t] || (c == '_' && !escaped)) {
                p += 1 + usize::from(escaped);
                t += 1;
            } else if let Some((star_p, star_t)) = star {
                p = star_p + 1;
                t = star_t + 1;
                star = Some((star_p, star_t + 1));
            } else {
                return false;
            }
        }
        pattern[p..].iter().all(|&c| c == '%')
    }
    matches(&text.chars().collect::<Vec<_>>(), &pattern.chars().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_is_that_of_sql() {
        for (text, pattern, expected) in [
            ("kims_ac", "kim%", true),
            ("kims_ac", "kims\\_ac", true),
            ("kimsxac", "kims\\_ac", false),
            ("kimsxac", "kims_ac", true),
            ("abcabd", "%abd", true),
            ("", "%", true),
            ("a", "", false),
            ("50%", "50\\%", true),
        ] {
            assert_eq!(like(text, pattern), expected, "{text} like {pattern}");
        }
        assert!(!like(&"a".repeat(2000), &format!("{}b", "a%".repeat(200))));
    }
}
