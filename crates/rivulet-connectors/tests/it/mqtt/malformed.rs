//! What MQTT 3.1.1 and 5 forbid a client to send, as a table: each ends its connection, in version 5 with the reason
//! code that the standard has for it; and what looks like it and is allowed is answered.

use rivulet_connectors::mqtt::Version::{self, V3, V5};

use super::probe::Probe;
use super::support::*;

const MALFORMED: &str = "MalformedPacket";
const PROTOCOL: &str = "ProtocolError";

/// A packet with a first byte and a body.
fn packet(first_byte: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first_byte];
    let mut length = body.len();
    while length > 0x7f {
        bytes.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(body);
    bytes
}

/// Bytes with their length in front.
fn field(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

/// Properties with their length in front, in version 5.
fn properties(version: Version, properties: &[u8]) -> Vec<u8> {
    match version {
        V3 => Vec::new(),
        V5 => [&[properties.len() as u8][..], properties].concat(),
    }
}

fn connect(level: u8, flags: u8, with: &[u8], payload: &[u8]) -> Vec<u8> {
    let version = if level == 5 { V5 } else { V3 };
    let body = [&field(b"MQTT")[..], &[level, flags, 0, 60], &properties(version, with), payload].concat();
    packet(0x10, &body)
}

/// Texts that are none.
const NO_TEXTS: [&[u8]; 5] = [b"a\0b", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"a\xe2\x82"];

/// What may not come after a CONNECT: what it is, the packet, and the reason in version 5.
fn forbidden(version: Version) -> Vec<(String, Vec<u8>, &'static str)> {
    let mut cases = Vec::new();
    let mut case = |name: &str, bytes: Vec<u8>, reason| cases.push((name.to_owned(), bytes, reason));
    let none = properties(version, &[]);
    let body = |parts: &[&[u8]]| parts.concat();

    // Flags of the first byte, for every kind of packet that has its own.
    for flags in 0..16 {
        let ack = |first: u8| packet(first | flags, &[0, 9]);
        if flags != 0 {
            case(&format!("PUBACK with flags {flags}"), ack(0x40), MALFORMED);
            case(&format!("PINGREQ with flags {flags}"), packet(0xc0 | flags, &[]), MALFORMED);
            case(&format!("DISCONNECT with flags {flags}"), packet(0xe0 | flags, &[]), MALFORMED);
            case(&format!("CONNECT with flags {flags}"), packet(0x10 | flags, &[]), MALFORMED);
        }
        if flags != 2 {
            case(&format!("PUBREL with flags {flags}"), ack(0x60), MALFORMED);
            let subscribe = packet(0x80 | flags, &body(&[&[0, 9], &none, &field(b"a"), &[0]]));
            case(&format!("SUBSCRIBE with flags {flags}"), subscribe, MALFORMED);
            let unsubscribe = packet(0xa0 | flags, &body(&[&[0, 9], &none, &field(b"a")]));
            case(&format!("UNSUBSCRIBE with flags {flags}"), unsubscribe, MALFORMED);
        }
        case(&format!("kind 0 with flags {flags}"), packet(flags, &[]), MALFORMED);
    }
    // Packets that have no place here.
    case("a second CONNECT", connect(if version == V3 { 4 } else { 5 }, 2, &[], &field(b"x")), PROTOCOL);
    case("CONNACK", packet(0x20, &[0, 0]), PROTOCOL);
    case("SUBACK", packet(0x90, &[0, 1, 0]), PROTOCOL);
    case("UNSUBACK", packet(0xb0, &[0, 1]), PROTOCOL);
    case("PINGRESP", packet(0xd0, &[]), PROTOCOL);
    case("AUTH", packet(0xf0, &[]), PROTOCOL);
    // Lengths.
    case("a length of five bytes", vec![0xc0, 0xff, 0xff, 0xff, 0xff, 0x01], MALFORMED);
    case("PINGREQ with a body", packet(0xc0, &[0]), MALFORMED);
    for kind in [0x40, 0x50, 0x62, 0x70] {
        case("an acknowledgement without an identifier", packet(kind, &[]), MALFORMED);
        case("an acknowledgement with half of one", packet(kind, &[0]), MALFORMED);
        case("an acknowledgement with identifier 0", packet(kind, &[0, 0]), MALFORMED);
    }
    // PUBLISH.
    case("QoS 3", packet(0x36, &body(&[&field(b"t"), &[0, 1], &none])), MALFORMED);
    case("a duplicate of QoS 0", packet(0x38, &body(&[&field(b"t"), &none])), MALFORMED);
    case("a message with identifier 0", packet(0x32, &body(&[&field(b"t"), &[0, 0], &none])), MALFORMED);
    case("a message without an identifier", packet(0x32, &field(b"t")), MALFORMED);
    case("a topic that is cut short", packet(0x30, &[0, 9, b't']), MALFORMED);
    case("a message without anything", packet(0x30, &[]), MALFORMED);
    case("no topic", packet(0x30, &body(&[&field(b""), &none])), PROTOCOL);
    for topic in [&b"a/+"[..], b"#", b"a+", b"a/#/b"] {
        let bytes = packet(0x30, &body(&[&field(topic), &none]));
        case(&format!("a topic with a wildcard {topic:?}"), bytes, "TopicNameInvalid");
    }
    for text in NO_TEXTS {
        case(&format!("a topic {text:?}"), packet(0x30, &body(&[&field(text), &none])), MALFORMED);
        let subscribe = packet(0x82, &body(&[&[0, 9], &none, &field(text), &[0]]));
        case(&format!("a filter {text:?}"), subscribe, MALFORMED);
        let unsubscribe = packet(0xa2, &body(&[&[0, 9], &none, &field(text)]));
        case(&format!("a filter that was subscribed to {text:?}"), unsubscribe, MALFORMED);
    }
    // SUBSCRIBE and UNSUBSCRIBE.
    for (first_byte, options) in [(0x82, &[0][..]), (0xa2, &[])] {
        let name = |what: &str| format!("{what} in {first_byte:#x}");
        let filter = field(b"a");
        case(&name("nothing"), packet(first_byte, &[]), MALFORMED);
        case(&name("identifier 0"), packet(first_byte, &body(&[&[0, 0], &none, &filter, options])), MALFORMED);
        case(&name("no filter"), packet(first_byte, &body(&[&[0, 9], &none])), PROTOCOL);
        let empty = body(&[&[0, 9], &none, &filter, options, &field(b""), options]);
        case(&name("an empty filter"), packet(first_byte, &empty), MALFORMED);
        case(&name("half a filter"), packet(first_byte, &body(&[&[0, 9], &none, &[0, 5, b'a']])), MALFORMED);
    }
    case("a filter without options", packet(0x82, &body(&[&[0, 9], &none, &field(b"a")])), MALFORMED);
    let subscribe = |options| packet(0x82, &body(&[&[0, 9], &none, &field(b"a"), &[options]]));
    let qos_3 = if version == V3 { MALFORMED } else { PROTOCOL };
    case("a subscription of QoS 3", subscribe(3), qos_3);
    for bit in if version == V3 { 2..8 } else { 6..8 } {
        case(&format!("a subscription with bit {bit}"), subscribe(1 << bit), MALFORMED);
    }
    if version == V3 {
        case("DISCONNECT with a body", packet(0xe0, &[0]), "");
        case("PUBACK with a reason", packet(0x40, &[0, 9, 0]), "");
        case("PUBREL with a reason", packet(0x62, &[0, 9, 0]), "");
        case("PUBREC with a reason", packet(0x50, &[0, 9, 0]), "");
        case("PUBCOMP with a reason", packet(0x70, &[0, 9, 0]), "");
        return cases;
    }

    // From here on of version 5 alone.
    case("a length with a byte too many", vec![0xc0, 0x80, 0x00], MALFORMED);
    case("retain handling 3", subscribe(0x30), PROTOCOL);
    let shared = packet(0x82, &body(&[&[0, 9], &none, &field(b"$share/g/a"), &[4]]));
    case("a shared subscription with 'no local'", shared, PROTOCOL);
    for reason in 0..=255u8 {
        if !matches!(reason, 0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99) {
            case(&format!("PUBACK with reason {reason:#x}"), packet(0x40, &[0, 9, reason]), MALFORMED);
            case(&format!("PUBREC with reason {reason:#x}"), packet(0x50, &[0, 9, reason]), MALFORMED);
        }
        if !matches!(reason, 0x00 | 0x92) {
            case(&format!("PUBREL with reason {reason:#x}"), packet(0x62, &[0, 9, reason]), MALFORMED);
            case(&format!("PUBCOMP with reason {reason:#x}"), packet(0x70, &[0, 9, reason]), MALFORMED);
        }
        let of_broker = matches!(reason, 0x87 | 0x89 | 0x8b | 0x8d..=0x8f | 0x9a..=0xa2);
        if !of_broker && !matches!(reason, 0x00 | 0x04 | 0x80..=0x83 | 0x90 | 0x93..=0x99) {
            case(&format!("DISCONNECT with reason {reason:#x}"), packet(0xe0, &[reason]), MALFORMED);
        } else if of_broker {
            case(&format!("DISCONNECT with reason {reason:#x}"), packet(0xe0, &[reason]), PROTOCOL);
        }
    }
    // Properties, in each packet that has some: where they stand, and which it may have.
    let with = |kind: &str, properties: &[u8]| match kind {
        "PUBLISH" => packet(0x30, &body(&[&field(b"t"), &[properties.len() as u8], properties])),
        "PUBACK" => packet(0x40, &body(&[&[0, 9, 0], &[properties.len() as u8], properties])),
        "PUBREL" => packet(0x62, &body(&[&[0, 9, 0], &[properties.len() as u8], properties])),
        "SUBSCRIBE" => packet(0x82, &body(&[&[0, 9], &[properties.len() as u8], properties, &field(b"a"), &[0]])),
        "UNSUBSCRIBE" => packet(0xa2, &body(&[&[0, 9], &[properties.len() as u8], properties, &field(b"a")])),
        _ => packet(0xe0, &body(&[&[0], &[properties.len() as u8], properties])),
    };
    for (kind, own) in [
        ("PUBLISH", &[0x01, 0x02, 0x03, 0x08, 0x09, 0x0b, 0x23, 0x26][..]),
        ("PUBACK", &[0x1f, 0x26]),
        ("PUBREL", &[0x1f, 0x26]),
        ("SUBSCRIBE", &[0x0b, 0x26]),
        ("UNSUBSCRIBE", &[0x26]),
        ("DISCONNECT", &[0x11, 0x1f, 0x26]),
    ] {
        for identifier in (0..=255u8).filter(|identifier| !own.contains(identifier)) {
            // Long enough for any value.
            let bytes = with(kind, &[identifier, 0, 1, b'x', 0, 1, b'y']);
            case(&format!("{kind} with property {identifier:#x}"), bytes, MALFORMED);
        }
        for text in NO_TEXTS {
            let user = body(&[&[0x26], &field(text), &field(b"x")]);
            case(&format!("{kind} with the name {text:?} of a user property"), with(kind, &user), MALFORMED);
            let user = body(&[&[0x26], &field(b"x"), &field(text)]);
            case(&format!("{kind} with the user property {text:?}"), with(kind, &user), MALFORMED);
            if own.contains(&0x1f) {
                let reason = body(&[&[0x1f], &field(text)]);
                case(&format!("{kind} with the reason {text:?}"), with(kind, &reason), MALFORMED);
            }
        }
        case(&format!("{kind} with half a user property"), with(kind, &[0x26, 0, 1, b'x']), MALFORMED);
        if own.contains(&0x1f) {
            let twice = body(&[&[0x1f], &field(b"x"), &[0x1f], &field(b"x")]);
            case(&format!("{kind} with two reasons"), with(kind, &twice), PROTOCOL);
        }
    }
    case("a subscription identifier of 0", with("SUBSCRIBE", &[0x0b, 0]), PROTOCOL);
    case("two subscription identifiers", with("SUBSCRIBE", &[0x0b, 1, 0x0b, 2]), PROTOCOL);
    case("a subscription identifier with a byte too many", with("SUBSCRIBE", &[0x0b, 0x81, 0]), MALFORMED);
    case("a message with a subscription identifier", with("PUBLISH", &[0x0b, 1]), PROTOCOL);
    for alias in [0, 1, 0xff] {
        case(&format!("topic alias {alias}"), with("PUBLISH", &[0x23, alias, alias]), "TopicAliasInvalid");
    }
    case("a topic alias without a topic", packet(0x30, &[0, 0, 3, 0x23, 0, 1]), "TopicAliasInvalid");
    case("two topic aliases", with("PUBLISH", &[0x23, 0, 1, 0x23, 0, 1]), PROTOCOL);
    case("a payload format that is none", with("PUBLISH", &[0x01, 2]), PROTOCOL);
    case("two expiries", with("PUBLISH", &[2, 0, 0, 0, 9, 2, 0, 0, 0, 9]), PROTOCOL);
    case("half an expiry", with("PUBLISH", &[2, 0, 0]), MALFORMED);
    case("a response topic with a wildcard", with("PUBLISH", &body(&[&[8], &field(b"a/+")])), PROTOCOL);
    for (identifier, text) in [3, 8].into_iter().flat_map(|identifier| NO_TEXTS.map(|text| (identifier, text))) {
        let property = body(&[&[identifier], &field(text)]);
        case(&format!("property {identifier} {text:?}"), with("PUBLISH", &property), MALFORMED);
    }
    case("properties longer than the packet", packet(0x30, &body(&[&field(b"t"), &[9]])), MALFORMED);
    case("no length of properties", packet(0x30, &field(b"t")), MALFORMED);
    case("PUBACK longer than its properties", packet(0x40, &[0, 9, 0, 0, 0]), MALFORMED);
    case("DISCONNECT longer than its properties", packet(0xe0, &[0, 0, 0]), MALFORMED);
    case("two session expiries", with("DISCONNECT", &[0x11, 0, 0, 0, 0, 0x11, 0, 0, 0, 0]), PROTOCOL);
    case("a session that was to end is to be kept", with("DISCONNECT", &[0x11, 0, 0, 0, 1]), PROTOCOL);
    cases
}

#[test]
fn whatever_is_forbidden_ends_its_connection_with_the_right_reason() {
    let (router, inbox) = router(&["t", "a"]);
    let broker = BrokerThread::start(router, |_| {});
    let mut witness = Probe::connect(broker.port(), V5, "witness", |_| {});
    witness.subscribe(&[("#", 1)]);
    let mut count = 0;
    for version in [V3, V5] {
        for (name, bytes, reason) in forbidden(version) {
            let mut probe = Probe::connect(broker.port(), version, "bad", |_| {});
            probe.send(&bytes);
            let farewell: Vec<String> = std::iter::from_fn(|| probe.next()).collect();
            match version {
                V3 => assert_eq!(farewell, Vec::<String>::new(), "{name}: {bytes:02x?}"),
                V5 => assert_eq!(farewell, [format!("told to go: {reason}")], "{name}: {bytes:02x?}"),
            }
            count += u64::from(reason != "QosNotSupported");
        }
    }
    assert_eq!(inbox.len(), 0);
    witness.publish("t", "still here", 1, false);
    assert_eq!(witness.take(), ["message t 'still here' qos 1"]);
    assert_eq!(broker.broker().stats().dropped.protocol_errors, count);
    assert!(count > 1_000, "{count}");
}

#[test]
fn whatever_no_connect_may_say_is_refused_with_the_right_code() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let mut cases: Vec<(String, Vec<u8>, Option<&str>)> = Vec::new();
    let mut case = |name: &str, bytes, answer| cases.push((name.to_owned(), bytes, answer));
    let id = field(b"id");
    let (malformed, protocol) = (Some("refused 0x81"), Some("refused 0x82"));
    // Version 3 has no code for what is malformed: closing is the answer.
    for (level, malformed) in [(4, None), (5, malformed)] {
        let in_5 = |bytes: &'static [u8]| if level == 5 { bytes } else { &[] };
        let name = |what: &str| format!("{what}, level {level}");
        case(&name("the reserved flag"), connect(level, 0x03, &[], &id), malformed);
        for flags in [0x0a, 0x12, 0x1a, 0x22] {
            case(&name(&format!("flags {flags:#x} without a will")), connect(level, flags, &[], &id), malformed);
        }
        let will = |topic: &[u8]| [&id[..], in_5(&[0]), &field(topic), &field(b"x")].concat();
        case(&name("a will of QoS 3"), connect(level, 0x1e, &[], &will(b"w")), malformed);
        case(&name("no id"), connect(level, 2, &[], &[]), malformed);
        case(&name("a user that is not there"), connect(level, 0x82, &[], &id), malformed);
        case(
            &name("a password that is not there"),
            connect(level, 0xc2, &[], &[&id[..], &field(b"u")].concat()),
            malformed,
        );
        case(&name("a will that is not there"), connect(level, 0x06, &[], &id), malformed);
        case(&name("more than there should be"), connect(level, 2, &[], &[&id[..], b"x"].concat()), malformed);
        for text in NO_TEXTS {
            let user = [&id[..], &field(text)].concat();
            case(&name(&format!("the id {text:?}")), connect(level, 2, &[], &field(text)), malformed);
            case(&name(&format!("the user {text:?}")), connect(level, 0x82, &[], &user), malformed);
            case(&name(&format!("the will's topic {text:?}")), connect(level, 6, &[], &will(text)), malformed);
        }
        let invalid = if level == 4 { None } else { Some("refused 0x90") };
        for topic in [&b""[..], b"a/#", b"+"] {
            case(&name(&format!("the will's topic {topic:?}")), connect(level, 6, &[], &will(topic)), invalid);
        }
    }
    case("a password without a user, 3.1.1", connect(4, 0x42, &[], &[&id[..], &field(b"p")].concat()), None);
    case("no id and a session, 3.1.1", connect(4, 0, &[], &field(b"")), Some("refused 0x2"));
    let of_3_1 = |id: &[u8]| packet(0x10, &[&field(b"MQIsdp")[..], &[3, 2, 0, 60], &field(id)].concat());
    case("no id, 3.1", of_3_1(b""), Some("refused 0x2"));
    for (name, level) in [(&b"MQTT"[..], 0), (b"MQTT", 3), (b"MQTT", 6), (b"MQTT", 0x84), (b"MQIsdp", 4)] {
        let bytes = packet(0x10, &[&field(name)[..], &[level, 2, 0, 60], &id].concat());
        case(&format!("the protocol {name:?} {level}"), bytes, Some("refused 0x1"));
    }
    for name in [&b"MQTTX"[..], b"mqtt", b"", b"HTTP"] {
        let bytes = packet(0x10, &[&field(name)[..], &[4, 2, 0, 60], &id].concat());
        case(&format!("the protocol {name:?}"), bytes, None);
    }
    // Properties of version 5.
    let own = [0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27];
    for identifier in (0..=255u8).filter(|identifier| !own.contains(identifier)) {
        let bytes = connect(5, 2, &[identifier, 0, 1, b'x', 0, 1, b'y'], &id);
        case(&format!("property {identifier:#x}"), bytes, malformed);
    }
    let own_of_will = [0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26];
    let with_will = |properties: &[u8]| {
        let will = [&id[..], &[properties.len() as u8], properties, &field(b"w"), &field(b"x")].concat();
        connect(5, 6, &[], &will)
    };
    for identifier in (0..=255u8).filter(|identifier| !own_of_will.contains(identifier)) {
        let bytes = with_will(&[identifier, 0, 1, b'x', 0, 1, b'y']);
        case(&format!("a will's property {identifier:#x}"), bytes, malformed);
    }
    for (name, properties, answer) in [
        ("receive maximum 0", &[0x21, 0, 0][..], protocol),
        ("maximum packet size 0", &[0x27, 0, 0, 0, 0], protocol),
        ("problem information 2", &[0x17, 2], protocol),
        ("response information 2", &[0x19, 2], protocol),
        ("two receive maxima", &[0x21, 0, 9, 0x21, 0, 9], protocol),
        ("two session expiries", &[0x11, 0, 0, 0, 9, 0x11, 0, 0, 0, 9], protocol),
        ("authentication data without a method", &[0x16, 0, 1, b'x'], protocol),
        ("an authentication method", &[0x15, 0, 1, b'x'], Some("refused 0x8c")),
        ("half a receive maximum", &[0x21, 0], malformed),
    ] {
        case(name, connect(5, 2, properties, &id), answer);
    }
    for (name, properties, answer) in [
        ("a will with two delays", &[0x18, 0, 0, 0, 1, 0x18, 0, 0, 0, 1][..], protocol),
        ("a will with payload format 2", &[0x01, 2], protocol),
        ("a will with a wildcard to answer to", &[0x08, 0, 1, b'#'], protocol),
        ("a will with U+0000", &[0x03, 0, 1, 0], malformed),
    ] {
        case(name, with_will(properties), answer);
    }
    let mut too_long = connect(5, 2, &[], &id);
    too_long.splice(1..2, [too_long[1] | 0x80, 0]);
    case("a length with a byte too many", too_long, malformed);

    for (name, bytes, answer) in &cases {
        let is_v5 = bytes.windows(5).any(|window| window == b"MQTT\x05");
        let mut probe = Probe::raw(broker.port(), if is_v5 { V5 } else { V3 });
        probe.send(bytes);
        assert_eq!(probe.next().as_deref(), *answer, "{name}: {bytes:02x?}");
        assert_eq!(probe.next(), None, "{name}: it is not closed");
    }
    let stats = broker.broker().stats();
    assert_eq!((stats.dropped.protocol_errors, stats.connections_total), (cases.len() as u64, 0));
}

#[test]
fn what_looks_odd_and_is_allowed_is_answered() {
    let (router, inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |_| {});
    let connected = |bytes: &[u8], version| {
        let mut probe = Probe::raw(broker.port(), version);
        probe.send(bytes);
        let answer = probe.next().unwrap();
        assert!(answer.starts_with("connected"), "{answer} for {bytes:02x?}");
        (probe, answer)
    };
    // No name: version 5 gives one out, with a session or without; 3.1.1 only without.
    for (flags, expiry) in [(2, &[][..]), (0, &[]), (0, &[0x11, 0, 0, 0, 9])] {
        let (_, answer) = connected(&connect(5, flags, expiry, &field(b"")), V5);
        assert!(answer.starts_with("connected as auto-"), "{answer}");
    }
    connected(&connect(4, 2, &[], &field(b"")), V3);
    connected(&packet(0x10, &[&field(b"MQIsdp")[..], &[3, 2, 0, 60], &field(b"x")].concat()), V3);
    // MQTT 3.1 is not told of its session.
    for _ in 0..2 {
        let again = packet(0x10, &[&field(b"MQIsdp")[..], &[3, 0, 0, 60], &field(b"old")].concat());
        let (_, answer) = connected(&again, V3);
        assert_eq!(answer, "connected");
    }
    connected(&connect(5, 0x42, &[], &[field(b"x"), field(b"a password without a user")].concat()), V5);
    let will = [&field(b"x")[..], &field(b"t"), &field(b"gone")].concat();
    let (dying, _) = connected(&connect(4, 0x16, &[], &will), V3);
    drop(dying);
    block_until("the will of QoS 2", || inbox.contains("gone"));

    let mut probe = Probe::connect(broker.port(), V5, "fine", |_| {});
    for puback in [
        packet(0x40, &[0, 9]),
        packet(0x40, &[0, 9, 0x10]),
        packet(0x40, &[0, 9, 0x80, 0]),
        packet(0x40, &[&[0, 9, 0, 17, 0x1f][..], &field(b"why"), &[0x26], &field(b"name"), &field(b"of")].concat()),
    ] {
        probe.send(&puback);
    }
    assert_eq!(probe.take(), Vec::<String>::new());
    probe.send(&packet(0x62, &[0, 9]));
    let seen = probe.take();
    assert_eq!(seen, ["completed 0x92"]);
    probe.send(&packet(0xe0, &[0x04, 0]));
    assert_eq!(probe.next(), None);
}
