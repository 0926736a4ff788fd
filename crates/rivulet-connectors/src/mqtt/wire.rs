//! Lengths and numbers as packets have them, and what can be wrong with a packet.

use rmqtt_codec::error::{DecodeError, EncodeError};
use rmqtt_codec::v5;

/// The reason code of answers to what exceeds a limit. There is no `Packet too large` for an acknowledgement.
pub(crate) const QUOTA_EXCEEDED: u8 = 0x97;

/// Why bytes are no packet, or a packet cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The bytes are no packet.
    #[error("malformed MQTT packet: {0}")]
    Malformed(&'static str),
    /// The bytes end before the packet does.
    #[error("malformed MQTT packet: {0}")]
    CutShort(&'static str),
    /// The packet can be read but breaks the protocol.
    #[error("MQTT packet against the protocol: {0}")]
    Protocol(&'static str),
    /// The packet uses a topic alias that the peer may not use.
    #[error("a topic alias that cannot be used: {0}")]
    TopicAlias(&'static str),
    /// The packet is larger than the receiver allows.
    #[error(
        "MQTT packet of {packet_bytes} bytes, and at most {packet_bytes_max} are allowed\nhint: send smaller payloads, or raise mqtt.embedded.message_bytes_max or mqtt.broker.message_bytes_max"
    )]
    TooLarge {
        /// Size of the packet.
        packet_bytes: usize,
        /// The limit in force.
        packet_bytes_max: usize,
    },
    /// A control packet could not be read.
    #[error("malformed MQTT packet: {0}")]
    Decode(#[from] DecodeError),
    /// A control packet could not be written.
    #[error("MQTT packet cannot be written: {0}")]
    Encode(#[from] EncodeError),
}

impl CodecError {
    /// The reason to give in a DISCONNECT of version 5.
    pub fn reason(&self) -> v5::DisconnectReasonCode {
        match self {
            Self::Malformed(_) | Self::CutShort(_) => v5::DisconnectReasonCode::MalformedPacket,
            Self::Protocol(_) => v5::DisconnectReasonCode::ProtocolError,
            Self::TopicAlias(_) => v5::DisconnectReasonCode::TopicAliasInvalid,
            Self::TooLarge { .. } => v5::DisconnectReasonCode::PacketTooLarge,
            Self::Decode(error) => v5::ToReasonCode::to_reason_code(error),
            Self::Encode(_) => v5::DisconnectReasonCode::ImplementationSpecificError,
        }
    }
}

/// Splits off a value with a length of two bytes in front.
#[inline]
pub(super) fn split_prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// Splits off a number of one to four bytes.
#[inline]
pub(super) fn split_variable_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0;
    for index in 0..4 {
        let byte = *bytes.get(index)?;
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            // A last byte of 0 is superfluous, and therefore forbidden.
            return (byte > 0 || index == 0).then(|| (value, &bytes[index + 1..]));
        }
    }
    None
}

#[inline]
pub(super) fn push_variable_length(mut value: usize, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
