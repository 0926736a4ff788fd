//! The PROXY protocol, versions 1 and 2: a proxy says in front of all other bytes of a connection where it comes from.
//!
//! What must hold: not a byte behind the header is read, because TLS or MQTT begins there. The header is read of
//! configured proxies alone, and they must send it: nobody else says where it comes from, not even through such a
//! proxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// How a header of version 2 begins.
pub const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// How a header of version 1 begins.
const WORD: &[u8] = b"PROXY ";

/// The longest header of version 1, in bytes.
const LINE_BYTES_MAX: usize = 107;

/// Reads the header of a connection from `proxy`. Returns the address of the client, or of the proxy if the connection
/// is its own, as for a check of health; `None` if there is no valid header.
pub async fn read_header(stream: &mut (impl AsyncRead + Unpin), proxy: IpAddr) -> Option<IpAddr> {
    let mut start = [0; SIGNATURE.len()];
    stream.read_exact(&mut start).await.ok()?;
    if start == SIGNATURE {
        let mut head = [0; 4];
        stream.read_exact(&mut head).await.ok()?;
        let [command, family, high, low] = head;
        let mut addresses = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        stream.read_exact(&mut addresses).await.ok()?;
        return match command {
            0x20 => Some(proxy),
            0x21 => source(family, &addresses, proxy),
            _ => None,
        };
    }
    let mut line = start.to_vec();
    while line.starts_with(WORD) && !line.ends_with(b"\r\n") && line.len() < LINE_BYTES_MAX {
        line.push(stream.read_u8().await.ok()?);
    }
    read_line(str::from_utf8(&line).ok()?, proxy)
}

/// The source in the addresses of version 2. What else may stand behind them is of no concern here.
fn source(family: u8, addresses: &[u8], proxy: IpAddr) -> Option<IpAddr> {
    match family >> 4 {
        1 if addresses.len() >= 12 => addresses.first_chunk::<4>().map(|bytes| Ipv4Addr::from(*bytes).into()),
        2 if addresses.len() >= 36 => addresses.first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes).into()),
        1 | 2 => None,
        _ => Some(proxy),
    }
}

/// The source in a header of version 1: `PROXY TCP4 SOURCE DESTINATION PORT PORT`.
fn read_line(line: &str, proxy: IpAddr) -> Option<IpAddr> {
    let mut words = line.strip_suffix("\r\n")?.strip_prefix("PROXY ")?.split(' ');
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(proxy);
    }
    let (source, destination) = (words.next()?.parse::<IpAddr>().ok()?, words.next()?.parse::<IpAddr>().ok()?);
    let ports = [words.next()?, words.next()?].map(|port| port.parse::<u16>().is_ok());
    let is_of_family = [source, destination].iter().all(|address| match family {
        "TCP4" => address.is_ipv4(),
        "TCP6" => address.is_ipv6(),
        _ => false,
    });
    (is_of_family && ports == [true, true] && words.next().is_none()).then_some(source)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    fn read(bytes: &[u8]) -> (Option<String>, usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut rest = bytes;
        let address = runtime.block_on(read_header(&mut rest, PROXY));
        (address.map(|address| address.to_string()), rest.len())
    }

    fn version_2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = (addresses.len() as u16).to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, addresses, b"MQTT"].concat()
    }

    #[test]
    fn a_header_names_the_client_and_nothing_behind_it_is_read() {
        let own = Some(PROXY.to_string());
        let v4 = [192, 0, 2, 9, 10, 0, 0, 1, 0, 80, 0, 81];
        let mut v6 = [0; 36];
        v6[..16].copy_from_slice(&Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9).octets());
        let with_more = [&v4[..], &[0x04, 0, 1, b'x']].concat();
        let table: [(Vec<u8>, Option<String>); 9] = [
            (b"PROXY TCP4 192.0.2.9 10.0.0.1 56324 1883\r\nMQTT".to_vec(), Some("192.0.2.9".into())),
            (b"PROXY TCP6 2001:db8::9 ::1 56324 1883\r\nMQTT".to_vec(), Some("2001:db8::9".into())),
            (b"PROXY UNKNOWN\r\nMQTT".to_vec(), own.clone()),
            (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\nMQTT".to_vec(), own.clone()),
            (version_2(0x21, 0x11, &v4), Some("192.0.2.9".into())),
            (version_2(0x21, 0x11, &with_more), Some("192.0.2.9".into())),
            (version_2(0x21, 0x21, &v6), Some("2001:db8::9".into())),
            (version_2(0x20, 0x00, &[]), own.clone()),
            (version_2(0x21, 0x31, &[0; 216]), own),
        ];
        for (bytes, expected) in table {
            assert_eq!(read(&bytes), (expected, 4), "{}", String::from_utf8_lossy(&bytes));
            assert!((0..bytes.len() - 4).all(|end| read(&bytes[..end]).0.is_none()), "no part is taken for the whole");
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        for line in [
            "PROXY TCP4 192.0.2.9 10.0.0.1 56324\r\n",
            "PROXY TCP4 2001:db8::9 ::1 1 2\r\n",
            "PROXY TCP4 192.0.2.9 10.0.0.1 1 99999\r\n",
            "PROXY TCP4 192.0.2.9 10.0.0.1 1 2 3\r\n",
            "PROXY UDP4 192.0.2.9 10.0.0.1 1 2\r\n",
            "PROXY  TCP4 192.0.2.9 10.0.0.1 1 2\r\n",
            "proxy TCP4 192.0.2.9 10.0.0.1 1 2\r\n",
        ] {
            assert_eq!(read(line.as_bytes()).0, None, "{line}");
        }
        assert_eq!(read(&[&b"PROXY TCP4 "[..], &[b'1'; 200]].concat()).0, None);
        // A CONNECT, and headers of version 2 whose version, command or length is wrong.
        assert_eq!(read(b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01a").0, None);
        let short = [(0x11, 0x11), (0x22, 0x11), (0x21, 0x11), (0x21, 0x21)];
        assert!(short.iter().all(|(command, family)| read(&version_2(*command, *family, &[0; 8])).0.is_none()));
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            read(&bytes);
            read(&[&SIGNATURE[..], &bytes].concat());
            read(&[WORD, &bytes].concat());
        }
    }
}
