//! The header of the PROXY protocol in front of a connection. No byte behind it is read, and no part of it is taken for
//! the whole.

use std::net::{IpAddr, Ipv4Addr};

use rivulet_connectors::mqtt::broker::proxy::{SIGNATURE, read_header};

use super::mqtt_broker::runtime;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "proxies",
    run,
    words: &["PROXY ", "TCP4 ", "TCP6 ", "UNKNOWN", "192.0.2.9 ", "2001:db8::9 ", "1883", "\r\n", "\u{11}", "\0\u{c}"],
    mutations: 10_000,
};

const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

fn run(bytes: &[u8]) {
    runtime().block_on(async {
        let mut rest = bytes;
        if read_header(&mut rest, PROXY).await.is_none() {
            return;
        }
        let header = &bytes[..bytes.len() - rest.len()];
        match header.strip_prefix(&SIGNATURE) {
            Some(behind) => {
                let length = usize::from(u16::from_be_bytes([behind[2], behind[3]]));
                assert_eq!(behind.len(), 4 + length);
            }
            None => assert!(header.starts_with(b"PROXY ") && header.ends_with(b"\r\n") && header.len() <= 107),
        }
        let mut part = &header[..header.len() - 1];
        assert_eq!(read_header(&mut part, PROXY).await, None);
    });
}
