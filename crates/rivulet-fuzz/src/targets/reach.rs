//! Lists of hosts that statements may reach, and hosts that statements name. Whatever a host is called, an address of
//! this machine or of a metadata service is in reach only where a list has it, and what is refused by its name is
//! refused by its address too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rivulet_connectors::reach::{AllowedHosts, KEY};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "reach",
    run,
    words: &[
        "127.0.0.1",
        "169.254.169.254",
        "::ffff:",
        "64:ff9b::",
        "2002:7f00:1::",
        "[::1]",
        "localhost",
        "*.example.org",
        "10.0.0.0/8",
        "fd00::/8",
        ",",
        "*",
        ".",
        "\0",
    ],
    mutations: 20_000,
};

fn run(bytes: &[u8]) {
    // A list, a host, and an address as text or as bytes, with zeros between.
    let mut parts = bytes.splitn(3, |&byte| byte == 0).map(String::from_utf8_lossy);
    let mut next = || parts.next().unwrap_or_default();
    let (list, host, text) = (next(), next(), next());
    let address = text.parse().unwrap_or_else(|_| {
        let mut sixteen = [0; 16];
        text.bytes().zip(&mut sixteen).for_each(|(byte, place)| *place = byte);
        IpAddr::from(Ipv6Addr::from(sixteen))
    });
    let hosts = [AllowedHosts::default(), AllowedHosts::with_loopback()];
    for (allowed, has_loopback) in hosts.iter().zip([false, true]) {
        let _ = allowed.check_host(&host);
        let is_within = allowed.check(&host, address).is_ok();
        // The name does not matter here, nor how the address is written.
        assert_eq!(allowed.check("example.org", address).is_ok(), is_within);
        assert_eq!(allowed.check_host(&address.to_string()).is_ok(), is_within);
        assert_eq!(allowed.check_host(&format!("[{address}].")).is_ok(), is_within);
        assert!(!is_within || !is_never(address));
        let four = match address.to_canonical() {
            IpAddr::V4(four) => four,
            IpAddr::V6(six) => Ipv4Addr::from_bits(six.to_bits() as u32),
        };
        // The same host through a gateway.
        let translated = IpAddr::from(Ipv6Addr::from_bits((0x0064_ff9b << 96) | u128::from(four.to_bits())));
        let direct = allowed.check("x", four.into()).is_ok();
        assert_eq!(allowed.check("x", translated).is_ok(), direct, "{four}");
        assert!(has_loopback || !direct || !four.is_loopback());
    }
    if let Ok(listed) = AllowedHosts::listed(&list, KEY) {
        let by_name = listed.check_host(&host);
        assert!(listed.check(&host, address).is_err() || by_name.is_ok() || is_address(&host));
    }
    // A list of one address has no other.
    let alone = AllowedHosts::listed(&address.to_canonical().to_string(), KEY).expect("an address is an entry");
    let other = IpAddr::from(Ipv4Addr::new(198, 51, 100, 7));
    assert!(address.to_canonical() == other || alone.check("x", other).is_err());
}

fn is_address(host: &str) -> bool {
    host.trim_matches(['[', ']', '.']).parse::<IpAddr>().is_ok()
}

/// An address that no default has.
fn is_never(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(four) => four.is_link_local() || four.is_unspecified() || four.is_multicast(),
        IpAddr::V6(six) => six.is_unicast_link_local() || six.is_unspecified() || six.is_multicast(),
    }
}
