//! The lists of `array_agg` and `string_agg`: texts with the keys that order them.
//!
//! A list is bounded. Beyond its bounds the result is refused, never cut.

use std::mem::size_of;

use super::finished::Finished;

/// The most bytes of keys and texts that one pane remembers for a list, and the most bytes of a result.
pub(crate) const LIST_BYTES_MAX: usize = 1 << 20;
/// The most texts that one pane remembers for a list.
pub(crate) const LIST_ITEMS_MAX: usize = 1 << 16;
pub(crate) const TOO_LONG_LIST: &str = "a list of more than 1048576 bytes or 65536 values is too long to remember\n\
                                        hint: use a shorter window, or a FILTER";

/// A text of a list: the key that orders it, its event time, and the text.
pub(crate) type Listed<'a> = (&'a [u8], i64, &'a [u8]);

/// How a list is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListForm {
    /// As an array in JSON; otherwise with a separator between two texts.
    pub(crate) is_json: bool,
    /// Each different text once. The key of a text then depends on the text alone, and times have no meaning.
    pub(crate) is_distinct: bool,
}

/// The order of texts with the same key and the same event time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ties {
    /// As they came.
    Arrival,
    /// The least text first, because they came from several instances.
    Text,
}

impl ListForm {
    /// Joins the texts of lists in order of key and event time; null if there are none.
    pub(crate) fn of_lists<'a>(self, lists: impl Iterator<Item = &'a List>, ties: Ties) -> Finished {
        let mut all: Vec<Listed<'_>> = Vec::new();
        let mut separator = "";
        for list in lists.filter(|list| list.full || !list.items.is_empty()) {
            if list.full {
                return Finished::Failed(TOO_LONG_LIST);
            }
            all.extend(list.iter());
            separator = &list.separator;
        }
        self.of_texts(all, separator, ties)
    }

    /// Joins texts in order of key and event time; null if there are none.
    pub(crate) fn of_texts(self, mut all: Vec<Listed<'_>>, separator: &str, ties: Ties) -> Finished {
        match ties {
            Ties::Arrival if !self.is_distinct => all.sort_by_key(|(key, time_us, _)| (*key, *time_us)),
            _ => all.sort_unstable(),
        }
        if self.is_distinct {
            all.dedup_by_key(|(_, _, text)| *text);
            if all.len() > LIST_ITEMS_MAX || all.iter().map(bytes_of).sum::<usize>() > LIST_BYTES_MAX {
                return Finished::Failed(TOO_LONG_LIST);
            }
        }
        if all.is_empty() {
            return Finished::Null;
        }
        let (before, separator, behind) = if self.is_json { ("[", ",", "]") } else { ("", separator, "") };
        let bytes = all.iter().map(|(.., text)| text.len() + separator.len()).sum::<usize>() + 2;
        if bytes > LIST_BYTES_MAX {
            return Finished::Failed(TOO_LONG_LIST);
        }
        let mut out = Vec::with_capacity(bytes);
        out.extend_from_slice(before.as_bytes());
        for (index, (.., text)) in all.iter().enumerate() {
            out.extend_from_slice(if index == 0 { b"" } else { separator.as_bytes() });
            out.extend_from_slice(text);
        }
        out.extend_from_slice(behind.as_bytes());
        // Every piece is a text, so their joint bytes are too.
        String::from_utf8(out).map_or(Finished::Null, |text| Finished::Text(text.into()))
    }
}

fn bytes_of((key, _, text): &Listed<'_>) -> usize {
    key.len() + text.len()
}

/// Texts in the order of arrival, with their event times and keys, and the separator between two texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct List {
    separator: Box<str>,
    /// For each text, its key and then the text itself.
    bytes: Vec<u8>,
    items: Vec<Item>,
    full: bool,
    /// How many items and bytes were left when equal texts were last removed.
    distinct: (usize, usize),
}

/// A text of a [`List`]. It begins where the previous text ends.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Item {
    time_us: i64,
    key_bytes: u32,
    text_bytes: u32,
}

impl List {
    pub(crate) fn with_separator(separator: &str) -> Self {
        Self { separator: separator.into(), ..Self::default() }
    }

    /// The same list where `is_full` says that it was too long to be remembered.
    pub(crate) fn filled(self, is_full: bool) -> Self {
        Self { full: is_full, ..self }
    }

    pub(crate) fn push(&mut self, form: ListForm, time_us: i64, key: &[u8], text: &[u8]) {
        if self.full {
            return;
        }
        self.append((key, if form.is_distinct { 0 } else { time_us }, text));
        if form.is_distinct {
            // The list may grow to twice what was left, so each text is compared a few times at most.
            let (items, bytes) = self.distinct;
            if self.items.len() <= 2 * items + 64 && self.bytes.len() <= 2 * bytes + (16 << 10) {
                return;
            }
            self.remove_equal();
        }
        if self.items.len() > LIST_ITEMS_MAX || self.bytes.len() > LIST_BYTES_MAX {
            *self = Self::with_separator(&self.separator).filled(true);
        }
    }

    /// Adds a saved text. Returns `false` if no list is so long.
    pub(crate) fn restore(&mut self, form: ListForm, time_us: i64, key: &[u8], text: &[u8]) -> bool {
        self.append((key, time_us, text));
        // A list of different texts is saved with those that are equal.
        let most = if form.is_distinct { 3 } else { 1 };
        self.items.len() <= most * LIST_ITEMS_MAX && self.bytes.len() <= most * LIST_BYTES_MAX
    }

    fn append(&mut self, (key, time_us, text): Listed<'_>) {
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(text);
        self.items.push(Item { time_us, key_bytes: key.len() as u32, text_bytes: text.len() as u32 });
    }

    fn remove_equal(&mut self) {
        let old = std::mem::take(self);
        let mut all: Vec<Listed<'_>> = old.iter().collect();
        all.sort_unstable();
        all.dedup();
        *self = Self::with_separator(&old.separator);
        all.into_iter().for_each(|listed| self.append(listed));
        self.distinct = (self.items.len(), self.bytes.len());
    }

    pub(crate) fn merge(&mut self, form: ListForm, later: &Self) {
        if !later.items.is_empty() {
            self.put_separator(&later.separator);
        }
        self.full |= later.full;
        later.iter().for_each(|(key, time_us, text)| self.push(form, time_us, key, text));
    }

    /// Returns each text with its event time and key, in the order of arrival.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Listed<'_>> {
        let mut start = 0;
        self.items.iter().map(move |item| {
            let text = start + item.key_bytes as usize;
            let end = text + item.text_bytes as usize;
            let key = &self.bytes[std::mem::replace(&mut start, end)..text];
            (key, item.time_us, &self.bytes[text..end])
        })
    }

    /// The number of texts.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the list was longer than may be remembered.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    pub(crate) fn separator(&self) -> &str {
        &self.separator
    }

    pub(crate) fn put_separator(&mut self, separator: &str) {
        if *self.separator != *separator {
            self.separator = separator.into();
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let items = self.items.capacity() * size_of::<Item>();
        size_of::<Self>() + self.separator.len() + self.bytes.capacity() + items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: ListForm = ListForm { is_json: true, is_distinct: false };

    fn finish(form: ListForm, list: &List) -> Finished {
        form.of_lists(std::iter::once(list), Ties::Arrival)
    }

    #[test]
    fn a_list_that_is_too_long_is_refused() {
        let (long, mut list) = ("x".repeat(LIST_BYTES_MAX / 2), List::default());
        list.push(JSON, 0, b"", long.as_bytes());
        assert!(matches!(finish(JSON, &list), Finished::Text(_)));
        list.push(JSON, 0, b"", long.as_bytes());
        assert_eq!(finish(JSON, &list), Finished::Failed(TOO_LONG_LIST), "brackets need room too");
        list.push(JSON, 0, b"", long.as_bytes());
        assert_eq!(finish(JSON, &list), Finished::Failed(TOO_LONG_LIST));
        assert!(list.memory_bytes() <= 2 * LIST_BYTES_MAX);
    }

    #[test]
    fn different_texts_need_no_more_room_however_often_they_come() {
        let form = ListForm { is_json: false, is_distinct: true };
        let mut list = List::with_separator("+");
        for row in 0..200_000_i64 {
            let text = format!("text {:04}", row * 7919 % 500);
            list.push(form, row, text.as_bytes(), text.as_bytes());
        }
        let Finished::Text(text) = finish(form, &list) else { panic!("a text") };
        assert!(text.starts_with("text 0000+text 0001+") && text.split('+').count() == 500, "{text}");
        assert!(list.memory_bytes() < 200_000, "{}", list.memory_bytes());
        for row in 0..LIST_ITEMS_MAX as i64 {
            list.push(form, row, row.to_string().as_bytes(), row.to_string().as_bytes());
        }
        assert_eq!(finish(form, &list), Finished::Failed(TOO_LONG_LIST));
    }

    #[test]
    fn texts_of_several_instances_are_ordered_by_themselves_last() {
        let mut list = List::default();
        [(5, "b"), (3, "z"), (5, "a")].into_iter().for_each(|(time, text)| list.push(JSON, time, b"", text.as_bytes()));
        let of = |ties| JSON.of_lists(std::iter::once(&list), ties);
        assert_eq!(of(Ties::Arrival), Finished::Text("[z,b,a]".into()));
        assert_eq!(of(Ties::Text), Finished::Text("[z,a,b]".into()));
    }
}
