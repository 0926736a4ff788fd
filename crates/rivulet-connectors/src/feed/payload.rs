//! Searches JSON without decoding it: for the objects of an array, and for the field that is the key of an object.

use std::borrow::Cow;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Calls `each` with the objects of an array; with the payload itself if it is not an array or not JSON.
pub(super) fn for_each_object<'p>(payload: &'p str, mut each: impl FnMut(&'p str)) {
    let Some(mut rest) = payload.trim_start().strip_prefix('[') else { return each(payload) };
    // A payload that is not an array is refused by the queries, if it has a key.
    if serde_json::from_str::<Vec<IgnoredAny>>(payload).is_err() {
        return each(payload);
    }
    loop {
        rest = rest.trim_start();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        let Some(Ok(_)) = values.next() else { return };
        let (object, behind) = rest.split_at(values.byte_offset());
        each(object);
        let Some(next) = behind.trim_start().strip_prefix(',') else { return };
        rest = next;
    }
}

/// Fails if a payload is no JSON, or if an object in it has no [key](key_in) in this field. The error says what is
/// wrong.
pub(super) fn check_keys(payload: &str, field: &str) -> Result<(), String> {
    let mut deserializer = serde_json::Deserializer::from_str(payload);
    let walked = Walk::FieldOfEach(field).deserialize(&mut deserializer);
    let walked = walked.and_then(|walked| deserializer.end().map(|()| walked));
    let what = match walked.map_err(|error| format!("it is no JSON: {error}"))? {
        Walked::WithoutField(None) => return Ok(()),
        Walked::WithoutField(Some(place)) => format!("element {place}"),
        one if one.has_key() => return Ok(()),
        _ => "it".into(),
    };
    Err(format!("{what} has no field '{field}' with a text, a number or a truth value, which is the key of its query"))
}

/// The text of a field of an object; `None` if there is no such field, or its value is not text, a number or a truth
/// value. If the name occurs twice, the last value counts.
pub(super) fn key_in<'p>(payload: &'p str, field: &str) -> Option<Cow<'p, str>> {
    let mut deserializer = serde_json::Deserializer::from_str(payload);
    Walk::FieldOf(field).deserialize(&mut deserializer).ok().and_then(Walked::text)
}

/// A visitor that skips everything in JSON but what it looks for.
#[derive(Clone, Copy)]
enum Walk<'f> {
    /// Looks for the field of an object with this name.
    FieldOf(&'f str),
    /// The same; in an array it looks for the first element without this field.
    FieldOfEach(&'f str),
    /// Checks whether a name is this one.
    Is(&'f str),
    /// Looks for the text of a value.
    Text,
}

impl Walk<'_> {
    /// What a number or a truth value is to it: the text of a value, but no object that has one.
    fn plain<'de>(self, value: impl ToString) -> Walked<'de> {
        match self {
            Self::Text => Walked::Text(value.to_string().into()),
            Self::FieldOf(_) | Self::FieldOfEach(_) | Self::Is(_) => Walked::Nothing,
        }
    }
}

enum Walked<'de> {
    Text(Cow<'de, str>),
    Is(bool),
    /// Of an array: the place of the first element without a key, from 1.
    WithoutField(Option<usize>),
    Nothing,
}

impl<'de> Walked<'de> {
    fn text(self) -> Option<Cow<'de, str>> {
        match self {
            Self::Text(text) => Some(text),
            Self::Is(_) | Self::WithoutField(_) | Self::Nothing => None,
        }
    }

    fn has_key(&self) -> bool {
        matches!(self, Self::Text(text) if !text.is_empty())
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = Walked<'de>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = Walked<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (Self::FieldOf(field) | Self::FieldOfEach(field)) = self else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Walked::Nothing);
        };
        let mut found = Walked::Nothing;
        while let Some(name) = map.next_key_seed(Walk::Is(field))? {
            match name {
                Walked::Is(true) => found = map.next_value_seed(Walk::Text)?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let Self::FieldOfEach(field) = self else {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Walked::Nothing);
        };
        let (mut elements, mut without) = (0, None);
        while let Some(element) = seq.next_element_seed(Walk::FieldOf(field))? {
            elements += 1;
            if !element.has_key() {
                without.get_or_insert(elements);
            }
        }
        Ok(Walked::WithoutField(without))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(match self {
            Self::Is(name) => Walked::Is(text == name),
            Self::Text => Walked::Text(text.into()),
            Self::FieldOf(_) | Self::FieldOfEach(_) => Walked::Nothing,
        })
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(match self {
            Self::Is(name) => Walked::Is(text == name),
            Self::Text => Walked::Text(text.to_owned().into()),
            Self::FieldOf(_) | Self::FieldOfEach(_) => Walked::Nothing,
        })
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(self.plain(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(self.plain(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(self.plain(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(self.plain(value))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Walked::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_post_is_told_which_element_has_no_key() {
        let check = |payload: &str| check_keys(payload, "k").map_err(|error| error[..9].to_owned());
        for fits in [r#"{"k":"a"}"#, r#" [{"k":1},{"x":[{}],"k":true}] "#, "[]", r#"{"k":"","k":"b"}"#] {
            assert_eq!(check(fits), Ok(()), "{fits}");
        }
        let element = |place: usize| Err(format!("element {place}"));
        for (payload, expected) in [
            (r#"[{"k":"a"},{"k":""},3]"#, element(2)),
            (r#"[[{"k":"a"}]]"#, element(1)),
            (r#"{"k":{}}"#, Err("it has no".into())),
            ("7", Err("it has no".into())),
            (r#"[{"k":"a"}"#, Err("it is no ".into())),
            (r#"{"k":"a"} x"#, Err("it is no ".into())),
        ] {
            assert_eq!(check(payload), expected, "{payload}");
        }
    }
}
