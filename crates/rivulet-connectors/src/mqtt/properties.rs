//! The properties of packets from clients, checked on receipt. Those of a PUBLISH are passed on unchanged.

use super::fields::check_text;
use super::wire::{CodecError, push_variable_length, split_prefixed, split_variable_length};

/// The properties of a message that Rivulet uses. The others are checked and passed on unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishProperties {
    /// A number that stands for the topic.
    pub topic_alias: Option<u16>,
    /// After how many seconds the message expires.
    pub message_expiry_s: Option<u32>,
    /// Whether there is a subscription identifier, which only a broker may send.
    pub has_subscription_identifier: bool,
}

/// The properties that clients send, by identifier.
pub(super) mod property {
    pub(crate) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(crate) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(crate) const CONTENT_TYPE: u8 = 0x03;
    pub(crate) const RESPONSE_TOPIC: u8 = 0x08;
    pub(crate) const CORRELATION_DATA: u8 = 0x09;
    pub(crate) const SUBSCRIPTION_IDENTIFIER: u8 = 0x0b;
    pub(crate) const SESSION_EXPIRY: u8 = 0x11;
    pub(crate) const AUTHENTICATION_METHOD: u8 = 0x15;
    pub(crate) const AUTHENTICATION_DATA: u8 = 0x16;
    pub(crate) const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub(crate) const WILL_DELAY: u8 = 0x18;
    pub(crate) const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub(crate) const REASON: u8 = 0x1f;
    pub(crate) const RECEIVE_MAX: u8 = 0x21;
    pub(crate) const TOPIC_ALIAS_MAX: u8 = 0x22;
    pub(crate) const TOPIC_ALIAS: u8 = 0x23;
    pub(crate) const USER: u8 = 0x26;
    pub(crate) const PACKET_BYTES_MAX: u8 = 0x27;
}

/// The properties that a packet may have: a bit for each identifier. Every packet may have any number of user
/// properties.
#[derive(Clone, Copy)]
pub(super) struct Allowed {
    once: u64,
    often: u64,
}

impl Allowed {
    const fn once(identifiers: &[u8]) -> Self {
        let (mut once, mut index) = (0, 0);
        while index < identifiers.len() {
            once |= 1 << identifiers[index];
            index += 1;
        }
        Self { once, often: 1 << property::USER }
    }

    /// Those of an acknowledgement of any kind.
    pub(super) const ACKNOWLEDGEMENT: Self = Self::once(&[property::REASON]);
    pub(super) const CONNECT: Self = Self::once(&[
        property::SESSION_EXPIRY,
        property::AUTHENTICATION_METHOD,
        property::AUTHENTICATION_DATA,
        property::REQUEST_PROBLEM_INFORMATION,
        property::REQUEST_RESPONSE_INFORMATION,
        property::RECEIVE_MAX,
        property::TOPIC_ALIAS_MAX,
        property::PACKET_BYTES_MAX,
    ]);
    pub(super) const DISCONNECT: Self = Self::once(&[property::SESSION_EXPIRY, property::REASON]);
    /// Those of a message. A broker may name several subscriptions that the message is for.
    pub(super) const PUBLISH: Self = Self {
        often: 1 << property::USER | 1 << property::SUBSCRIPTION_IDENTIFIER,
        ..Self::once(&[
            property::PAYLOAD_FORMAT,
            property::MESSAGE_EXPIRY,
            property::CONTENT_TYPE,
            property::RESPONSE_TOPIC,
            property::CORRELATION_DATA,
            property::TOPIC_ALIAS,
        ])
    };
    pub(super) const SUBSCRIBE: Self = Self::once(&[property::SUBSCRIPTION_IDENTIFIER]);
    pub(super) const UNSUBSCRIBE: Self = Self::once(&[]);
    pub(super) const WILL: Self = Self::once(&[
        property::PAYLOAD_FORMAT,
        property::MESSAGE_EXPIRY,
        property::CONTENT_TYPE,
        property::RESPONSE_TOPIC,
        property::CORRELATION_DATA,
        property::WILL_DELAY,
    ]);
}

/// The number in the value of a property whose value has up to four bytes.
pub(super) fn number(value: &[u8]) -> u32 {
    value.iter().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

impl PublishProperties {
    /// Checks the properties of a PUBLISH and returns those that Rivulet uses.
    pub fn parse(properties: &[u8]) -> Result<Self, CodecError> {
        let mut found = Self::default();
        for_each_property(Allowed::PUBLISH, properties, |identifier, value| {
            match identifier {
                property::TOPIC_ALIAS => found.topic_alias = Some(number(value) as u16),
                property::MESSAGE_EXPIRY => found.message_expiry_s = Some(number(value)),
                property::SUBSCRIPTION_IDENTIFIER => found.has_subscription_identifier = true,
                _ => {}
            };
        })?;
        Ok(found)
    }
}

/// Calls `each` with every subscription identifier in `properties`, which were checked before.
pub(super) fn for_each_subscription_identifier(properties: &[u8], mut each: impl FnMut(u32)) {
    let checked = for_each_property(Allowed::PUBLISH, properties, |identifier, value| {
        if identifier == property::SUBSCRIPTION_IDENTIFIER {
            each(subscription_identifier(value));
        }
    });
    debug_assert!(checked.is_ok(), "they were checked");
}

/// The number in the value of such a property.
pub(super) fn subscription_identifier(value: &[u8]) -> u32 {
    let number = split_variable_length(value).and_then(|(number, _)| u32::try_from(number).ok());
    number.expect("a number of four bytes with seven bits each")
}

/// Copies `properties` (checked before) to `out` with another message expiry, which replaces the old one.
pub(super) fn copy_properties_with_expiry(properties: &[u8], message_expiry_s: u32, out: &mut Vec<u8>) {
    push_message_expiry(message_expiry_s, out);
    copy_properties_without(property::MESSAGE_EXPIRY, properties, out);
}

/// Copies `properties` (checked before) to `out` without a topic alias.
pub(super) fn copy_properties_without_alias(properties: &[u8], out: &mut Vec<u8>) {
    copy_properties_without(property::TOPIC_ALIAS, properties, out);
}

fn copy_properties_without(left_out: u8, properties: &[u8], out: &mut Vec<u8>) {
    let checked = for_each_property(Allowed::PUBLISH, properties, |identifier, value| {
        if identifier != left_out {
            out.push(identifier);
            out.extend_from_slice(value);
        }
    });
    debug_assert!(checked.is_ok(), "properties are checked when they come in");
}

/// Appends a topic alias property.
pub(super) fn push_topic_alias(alias: u16, out: &mut Vec<u8>) {
    out.push(property::TOPIC_ALIAS);
    out.extend_from_slice(&alias.to_be_bytes());
}

/// The size of a message expiry property, in bytes.
pub(super) const MESSAGE_EXPIRY_BYTES: usize = 1 + 4;

/// Appends a message expiry property.
pub(super) fn push_message_expiry(message_expiry_s: u32, out: &mut Vec<u8>) {
    out.push(property::MESSAGE_EXPIRY);
    out.extend_from_slice(&message_expiry_s.to_be_bytes());
}

/// The user property by which a receiver recognises a result that it has had already.
const RESULT_ID: &[u8] = b"rivulet-id";

/// The size of that property without its value, in bytes.
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

/// The identity of a result, if [`push_result_id`] has written its properties.
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

/// Checks properties, and calls `each` with the identifier and the value of each one (with its length in front, if it
/// has one).
pub(super) fn for_each_property<'p>(
    allowed: Allowed,
    mut rest: &'p [u8],
    mut each: impl FnMut(u8, &'p [u8]),
) -> Result<(), CodecError> {
    const CUT: CodecError = CodecError::Malformed("a property is cut short");
    let mut seen = 0u64;
    while let Some((&identifier, value)) = rest.split_first() {
        let bit = 1u64.checked_shl(u32::from(identifier)).unwrap_or(0);
        if (allowed.once | allowed.often) & bit == 0 {
            return Err(CodecError::Malformed("a property that such a packet does not have"));
        }
        if seen & bit & !allowed.often != 0 {
            return Err(CodecError::Protocol("a property stands there twice"));
        }
        seen |= bit;
        let value_bytes = match identifier {
            property::PAYLOAD_FORMAT
            | property::REQUEST_PROBLEM_INFORMATION
            | property::REQUEST_RESPONSE_INFORMATION => 1,
            property::TOPIC_ALIAS | property::TOPIC_ALIAS_MAX | property::RECEIVE_MAX => 2,
            property::MESSAGE_EXPIRY | property::SESSION_EXPIRY | property::WILL_DELAY | property::PACKET_BYTES_MAX => {
                4
            }
            property::SUBSCRIPTION_IDENTIFIER => value.len() - split_variable_length(value).ok_or(CUT)?.1.len(),
            property::USER => {
                let (name, after) = split_prefixed(value).ok_or(CUT)?;
                let (text, _) = split_prefixed(after).ok_or(CUT)?;
                check_text(name)?;
                check_text(text)?;
                4 + name.len() + text.len()
            }
            property::CORRELATION_DATA | property::AUTHENTICATION_DATA => 2 + split_prefixed(value).ok_or(CUT)?.0.len(),
            _ => {
                let (text, _) = split_prefixed(value).ok_or(CUT)?;
                check_text(text)?;
                if identifier == property::RESPONSE_TOPIC && text.iter().any(|byte| matches!(byte, b'+' | b'#')) {
                    return Err(CodecError::Protocol("a response topic with a wildcard"));
                }
                2 + text.len()
            }
        };
        let (value, after) = value.split_at_checked(value_bytes).ok_or(CUT)?;
        match (identifier, value) {
            (
                property::PAYLOAD_FORMAT
                | property::REQUEST_PROBLEM_INFORMATION
                | property::REQUEST_RESPONSE_INFORMATION,
                [2..=255],
            ) => return Err(CodecError::Protocol("a property that is neither 0 nor 1")),
            (
                property::SUBSCRIPTION_IDENTIFIER | property::RECEIVE_MAX | property::PACKET_BYTES_MAX,
                [0] | [0, 0] | [0, 0, 0, 0],
            ) => return Err(CodecError::Protocol("a property that must not be 0")),
            _ => {}
        }
        each(identifier, value);
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Properties as in a packet, each at most once except user properties.
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
        let broken: [&[u8]; 9] = [
            // Not allowed in a message, unknown, cut short, twice, not UTF-8, U+0000, payload format 2, subscription
            // identifier 0, a length too long.
            &[property::SESSION_EXPIRY, 0, 0, 0, 1],
            &[0xff],
            &[property::MESSAGE_EXPIRY, 0, 0],
            &[property::TOPIC_ALIAS, 0, 1, property::TOPIC_ALIAS, 0, 1],
            &[property::CONTENT_TYPE, 0, 1, 0xff],
            &[property::CONTENT_TYPE, 0, 1, 0],
            &[property::PAYLOAD_FORMAT, 2],
            &[property::SUBSCRIPTION_IDENTIFIER, 0],
            &[property::USER, 0, 9, b'x'],
        ];
        for bytes in broken {
            assert!(PublishProperties::parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
