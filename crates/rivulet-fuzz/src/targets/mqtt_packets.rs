//! MQTT packets, as they come from a socket. A packet that is read can be written, and is read again as the same
//! packet; an incomplete packet is waited for.

use rivulet_connectors::mqtt::codec::{
    CodecError, Frame, PacketKind, Publish, PublishProperties, connect_level, decode_puback, decode_pubcomp,
    decode_pubrec, decode_pubrel, decode_v3, decode_v5, encode_acknowledgement, encode_pubcomp, encode_pubrel,
    encode_v3, encode_v5, split_frame, topic_of_publish,
};
use rivulet_connectors::mqtt::{Qos, Version};

use crate::Target;

/// See the module.
pub const TARGET: Target =
    Target { name: "mqtt_packets", run, words: &["MQTT", "MQIsdp", "a/b", "$share/"], mutations: 8_000 };

/// The largest packet that is taken.
const PACKET_BYTES_MAX: usize = 1 << 12;

fn run(bytes: &[u8]) {
    for version in [Version::V3, Version::V5] {
        let mut rest = bytes;
        while let Ok(Some(frame)) = split_frame(rest, PACKET_BYTES_MAX) {
            assert!(frame.whole.len() <= PACKET_BYTES_MAX && frame.whole.ends_with(frame.body));
            let cut = split_frame(&rest[..frame.whole.len() - 1], PACKET_BYTES_MAX);
            assert!(matches!(cut, Ok(None)), "a packet without its last byte is waited for");
            match frame.kind() {
                PacketKind::Publish => publish(version, frame.first_byte, frame.body, frame.whole),
                PacketKind::PubAck => acknowledgement(version, &frame, decode_puback, |packet_id, reason, out| {
                    encode_acknowledgement(Qos::AtLeastOnce, packet_id, reason, out);
                }),
                PacketKind::Connect => drop(connect_level(frame.body)),
                PacketKind::Other => second_half(version, &frame),
            }
            control(version, frame.whole);
            rest = &rest[frame.whole.len()..];
        }
    }
}

fn publish(version: Version, first_byte: u8, body: &[u8], whole: &[u8]) {
    let Ok(publish) = Publish::decode(version, first_byte, body) else { return };
    assert_eq!(topic_of_publish(body), Some(publish.topic));
    let mut written = Vec::new();
    publish.encode(version, &mut written).expect("what was read is not too long");
    assert_eq!(written.len(), publish.packet_bytes(version));
    // Lengths may be written longer than need be.
    assert!(written.len() <= whole.len());
    let frame = split_frame(&written, PACKET_BYTES_MAX).expect("it is a packet").expect("it is whole");
    let again = Publish::decode(version, frame.first_byte, frame.body).expect("it is a PUBLISH");
    assert_eq!(again, publish);
    let _ = PublishProperties::parse(publish.properties);
}

/// The packets that follow a message of QoS 2.
fn second_half(version: Version, frame: &Frame<'_>) {
    acknowledgement(version, frame, decode_pubrec, |packet_id, reason, out| {
        encode_acknowledgement(Qos::ExactlyOnce, packet_id, reason, out);
    });
    // These are written with one of two reasons.
    acknowledgement(version, frame, decode_pubrel, |packet_id, reason, out| {
        if matches!(reason, 0 | 0x92) {
            encode_pubrel(packet_id, reason == 0, out);
        }
    });
    acknowledgement(version, frame, decode_pubcomp, |packet_id, reason, out| {
        if matches!(reason, 0 | 0x92) {
            encode_pubcomp(packet_id, reason == 0, out);
        }
    });
}

fn acknowledgement(
    version: Version,
    frame: &Frame<'_>,
    decode: impl Fn(Version, &Frame<'_>) -> Result<(u16, u8), CodecError>,
    encode: impl Fn(u16, u8, &mut Vec<u8>),
) {
    let Ok((packet_id, reason)) = decode(version, frame) else { return };
    assert_ne!(packet_id, 0);
    let mut written = Vec::new();
    encode(packet_id, reason, &mut written);
    if !written.is_empty() {
        let frame = split_frame(&written, PACKET_BYTES_MAX).expect("it is a packet").expect("it is whole");
        assert_eq!(decode(version, &frame).expect("it was written"), (packet_id, reason));
    }
}

/// Packets that a library reads and writes.
fn control(version: Version, whole: &[u8]) {
    let frame = |bytes| split_frame(bytes, usize::MAX).expect("it is a packet").expect("it is whole");
    let mut written = Vec::new();
    match version {
        Version::V3 => {
            let Ok(packet) = decode_v3(&frame(whole)) else { return };
            if encode_v3(packet, &mut written).is_ok() {
                decode_v3(&frame(&written)).expect("what was written can be read");
            }
        }
        Version::V5 => {
            let Ok(packet) = decode_v5(&frame(whole)) else { return };
            if encode_v5(packet, &mut written).is_ok() {
                decode_v5(&frame(&written)).expect("what was written can be read");
            }
        }
    }
}
