//! The properties of a PUBLISH: checked when they come in, passed on as they are.

use rmqtt_codec::v5;

use super::codec::{CodecError, push_variable_length, split_prefixed, split_variable_length};

/// What Rivulet wants to know of a message's properties. The others are checked and passed on as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishProperties {
    /// A number that stands for the topic.
    pub topic_alias: Option<u16>,
    /// After how many seconds the message is of no use any more.
    pub message_expiry_s: Option<u32>,
    /// Whether there is a subscription identifier, which only a broker may send.
    pub has_subscription_identifier: bool,
}

/// The properties a PUBLISH may have, by identifier.
mod property {
    pub(super) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(super) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(super) const CONTENT_TYPE: u8 = 0x03;
    pub(super) const RESPONSE_TOPIC: u8 = 0x08;
    pub(super) const CORRELATION_DATA: u8 = 0x09;
    pub(super) const SUBSCRIPTION_IDENTIFIER: u8 = 0x0b;
    pub(super) const TOPIC_ALIAS: u8 = 0x23;
    pub(super) const USER: u8 = 0x26;
}

impl PublishProperties {
    /// Checks the properties of a PUBLISH and picks out what Rivulet needs.
    pub fn parse(properties: &[u8]) -> Result<Self, CodecError> {
        let mut found = Self::default();
        for_each_property(properties, |identifier, value| {
            match identifier {
                property::TOPIC_ALIAS => found.topic_alias = Some(u16::from_be_bytes([value[0], value[1]])),
                property::MESSAGE_EXPIRY => {
                    found.message_expiry_s = Some(u32::from_be_bytes([value[0], value[1], value[2], value[3]]));
                }
                property::SUBSCRIPTION_IDENTIFIER => found.has_subscription_identifier = true,
                _ => {}
            };
        })?;
        Ok(found)
    }
}

/// Calls `each` with every subscription identifier in `properties`, which were checked before.
pub(super) fn for_each_subscription_identifier(properties: &[u8], mut each: impl FnMut(u32)) {
    let checked = for_each_property(properties, |identifier, value| {
        if identifier == property::SUBSCRIPTION_IDENTIFIER
            && let Some((number, _)) = split_variable_length(value)
        {
            each(u32::try_from(number).expect("a number of four bytes with seven bits each"));
        }
    });
    debug_assert!(checked.is_ok(), "they were checked");
}

/// Copies `properties` (checked before) to `out` with another message expiry, which takes the place of the old one.
pub(super) fn copy_properties_with_expiry(properties: &[u8], message_expiry_s: u32, out: &mut Vec<u8>) {
    push_message_expiry(message_expiry_s, out);
    let checked = for_each_property(properties, |identifier, value| {
        if identifier != property::MESSAGE_EXPIRY {
            out.push(identifier);
            out.extend_from_slice(value);
        }
    });
    debug_assert!(checked.is_ok(), "properties are checked when they come in");
}

/// Appends a message expiry property.
pub(super) fn push_message_expiry(message_expiry_s: u32, out: &mut Vec<u8>) {
    out.push(property::MESSAGE_EXPIRY);
    out.extend_from_slice(&message_expiry_s.to_be_bytes());
}

/// The user property by which a receiver tells whether it has had a result already.
const RESULT_ID: &[u8] = b"rivulet-id";

/// How many bytes that property has beside its value.
pub(super) const RESULT_ID_BYTES: usize = 1 + 2 + RESULT_ID.len() + 2;

/// Appends the identity of a result, which has at most 65,535 bytes, as a user property.
pub(super) fn push_result_id(id: &str, out: &mut Vec<u8>) {
    out.push(property::USER);
    for text in [RESULT_ID, id.as_bytes()] {
        let bytes = u16::try_from(text.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&bytes.to_be_bytes());
        out.extend_from_slice(&text[..usize::from(bytes)]);
    }
}

/// The identity of a result, where its properties are what [`push_result_id`] has written.
pub(super) fn result_id(properties: &[u8]) -> Option<&str> {
    let (&property::USER, rest) = properties.split_first()? else { return None };
    let (name, rest) = split_prefixed(rest)?;
    let (id, _) = split_prefixed(rest).filter(|_| name == RESULT_ID)?;
    std::str::from_utf8(id).ok()
}

/// Appends a subscription identifier property.
pub(super) fn push_subscription_identifier(identifier: u32, out: &mut Vec<u8>) {
    out.push(property::SUBSCRIPTION_IDENTIFIER);
    push_variable_length(identifier as usize, out);
}

/// Appends the properties of a will that go with its message, in the form in which they stand in a PUBLISH. A string too
/// long for the protocol cannot have come from a CONNECT.
pub(super) fn will_properties(will: &v5::LastWill) -> Vec<u8> {
    fn push(identifier: u8, values: &[&[u8]], out: &mut Vec<u8>) {
        out.push(identifier);
        for value in values {
            let length = u16::try_from(value.len()).expect("it was read with a length of two bytes");
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(value);
        }
    }
    let mut out = Vec::new();
    if let Some(is_text) = will.is_utf8_payload {
        out.extend_from_slice(&[property::PAYLOAD_FORMAT, u8::from(is_text)]);
    }
    if let Some(expiry_s) = will.message_expiry_interval {
        push_message_expiry(expiry_s.get(), &mut out);
    }
    if let Some(content_type) = &will.content_type {
        push(property::CONTENT_TYPE, &[content_type.as_bytes()], &mut out);
    }
    if let Some(topic) = &will.response_topic {
        push(property::RESPONSE_TOPIC, &[topic.as_bytes()], &mut out);
    }
    if let Some(data) = &will.correlation_data {
        push(property::CORRELATION_DATA, &[data], &mut out);
    }
    for (name, value) in &will.user_properties {
        push(property::USER, &[name.as_bytes(), value.as_bytes()], &mut out);
    }
    out
}

/// Calls `each` with identifier and value (with the length in front, where it has one) of every property.
fn for_each_property(mut rest: &[u8], mut each: impl FnMut(u8, &[u8])) -> Result<(), CodecError> {
    const CUT: CodecError = CodecError::Malformed("a property is cut short");
    let mut seen = 0u64;
    while let Some((&identifier, value)) = rest.split_first() {
        let value_bytes = match identifier {
            property::PAYLOAD_FORMAT => {
                if value.first().is_some_and(|&format| format > 1) {
                    return Err(CodecError::Malformed("the payload format is neither 0 nor 1"));
                }
                1
            }
            property::MESSAGE_EXPIRY => 4,
            property::TOPIC_ALIAS => 2,
            property::CONTENT_TYPE | property::RESPONSE_TOPIC => {
                let (text, _) = split_prefixed(value).ok_or(CUT)?;
                check_utf8(text)?;
                2 + text.len()
            }
            property::CORRELATION_DATA => 2 + split_prefixed(value).ok_or(CUT)?.0.len(),
            property::USER => {
                let (name, after) = split_prefixed(value).ok_or(CUT)?;
                let (text, _) = split_prefixed(after).ok_or(CUT)?;
                check_utf8(name)?;
                check_utf8(text)?;
                4 + name.len() + text.len()
            }
            property::SUBSCRIPTION_IDENTIFIER => match split_variable_length(value).ok_or(CUT)? {
                (0, _) => return Err(CodecError::Malformed("subscription identifier 0")),
                (_, after) => value.len() - after.len(),
            },
            _ => return Err(CodecError::Malformed("a property that a PUBLISH does not have")),
        };
        let (value, after) = value.split_at_checked(value_bytes).ok_or(CUT)?;
        // Only user properties and subscription identifiers may stand there more than once.
        if !matches!(identifier, property::USER | property::SUBSCRIPTION_IDENTIFIER) {
            let bit = 1u64 << identifier;
            if seen & bit != 0 {
                return Err(CodecError::Malformed("a property stands there twice"));
            }
            seen |= bit;
        }
        if identifier == property::TOPIC_ALIAS && value == [0, 0] {
            return Err(CodecError::Malformed("topic alias 0"));
        }
        each(identifier, value);
        rest = after;
    }
    Ok(())
}

fn check_utf8(text: &[u8]) -> Result<(), CodecError> {
    std::str::from_utf8(text).map(|_| ()).map_err(|_| CodecError::Malformed("a text is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Properties as they stand in a packet, each at most once but user properties.
    fn properties() -> impl Strategy<Value = Vec<u8>> {
        let text = |identifier: u8, text: String| {
            let mut bytes = vec![identifier, 0, text.len() as u8];
            bytes.extend_from_slice(text.as_bytes());
            bytes
        };
        let user = ("[a-z]{0,4}", "[a-z]{0,4}").prop_map(move |(name, value)| {
            let mut bytes = text(property::USER, name);
            bytes.extend_from_slice(&text(0, value)[1..]);
            bytes
        });
        let expiry = any::<u32>().prop_map(|seconds| {
            let mut bytes = Vec::new();
            push_message_expiry(seconds, &mut bytes);
            bytes
        });
        (
            proptest::option::of(expiry),
            proptest::option::of("[a-zé]{0,9}".prop_map(move |content| text(property::CONTENT_TYPE, content))),
            proptest::option::of(Just(vec![property::TOPIC_ALIAS, 0, 7])),
            proptest::collection::vec(user, 0..3),
        )
            .prop_map(|(expiry, content_type, alias, user)| {
                [content_type, expiry, alias].into_iter().flatten().chain(user).flatten().collect()
            })
    }

    proptest! {
        #[test]
        fn expiry_is_replaced_and_the_rest_kept(properties in properties(), expiry_s in any::<u32>()) {
            let before = PublishProperties::parse(&properties).unwrap();
            let mut copied = Vec::new();
            copy_properties_with_expiry(&properties, expiry_s, &mut copied);
            let after = PublishProperties::parse(&copied).unwrap();
            prop_assert_eq!(after, PublishProperties { message_expiry_s: Some(expiry_s), ..before });
            prop_assert_eq!(copied.len(), properties.len() + if before.message_expiry_s.is_some() { 0 } else { 5 });
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = PublishProperties::parse(&bytes);
        }
    }

    #[test]
    fn broken_properties_are_refused() {
        let broken: [&[u8]; 8] = [
            // Unknown, cut short, twice, alias 0, no UTF-8, payload format 2, subscription identifier 0, a length too long.
            &[0x11, 0, 0, 0, 1],
            &[property::MESSAGE_EXPIRY, 0, 0],
            &[property::TOPIC_ALIAS, 0, 1, property::TOPIC_ALIAS, 0, 1],
            &[property::TOPIC_ALIAS, 0, 0],
            &[property::CONTENT_TYPE, 0, 1, 0xff],
            &[property::PAYLOAD_FORMAT, 2],
            &[property::SUBSCRIPTION_IDENTIFIER, 0],
            &[property::USER, 0, 9, b'x'],
        ];
        for bytes in broken {
            assert!(PublishProperties::parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_will_becomes_a_message_with_the_same_properties() {
        let will = v5::LastWill {
            qos: rmqtt_codec::types::QoS::AtMostOnce,
            retain: false,
            topic: "t".into(),
            message: Default::default(),
            will_delay_interval_sec: Some(5),
            correlation_data: Some(vec![1, 2].into()),
            message_expiry_interval: Some(60.try_into().unwrap()),
            content_type: Some("text".into()),
            user_properties: vec![("k".into(), "v".into())],
            is_utf8_payload: Some(true),
            response_topic: Some("r".into()),
        };
        let bytes = will_properties(&will);
        assert_eq!(PublishProperties::parse(&bytes).unwrap().message_expiry_s, Some(60));
        let mut identifiers = Vec::new();
        for_each_property(&bytes, |identifier, _| identifiers.push(identifier)).unwrap();
        assert_eq!(identifiers, [0x01, 0x02, 0x03, 0x08, 0x09, 0x26]);
    }
}
