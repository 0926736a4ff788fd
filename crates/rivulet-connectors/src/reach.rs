//! The hosts that the server may connect to when statements and parameters of queries name them.
//!
//! What must hold: the address is checked when it is connected to, after the name was resolved, because a name may lead
//! to another address by then. What the hosts are replaced by counts from the next connection on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::RwLock;
use ureq::http::Uri;

/// The hosts that statements may reach, by what they do there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Receivers of HTTP sinks and outputs. Queries may name them by their parameters.
    pub posts: AllowedHosts,
    /// Brokers of Kafka and MQTT.
    pub brokers: AllowedHosts,
    /// The addresses of this machine at which `http:` sources may listen. By default all.
    pub listeners: AllowedHosts,
}

/// Checks the port of a URL: one that is none would count as none given.
///
/// # Errors
/// Says what it is.
pub fn check_port(uri: &Uri) -> Result<(), String> {
    let port = uri.authority().and_then(|one| one.as_str().rsplit('@').next()?.strip_prefix(one.host()));
    let port = port.unwrap_or_default();
    match port.is_empty() || uri.port().is_some() {
        true => Ok(()),
        false => Err(format!("'{}' is no port", port.trim_start_matches(':'))),
    }
}

impl Default for Reach {
    fn default() -> Self {
        let (posts, brokers) = (AllowedHosts::default(), AllowedHosts::default());
        Self { posts, brokers, listeners: AllowedHosts::everything() }
    }
}

impl Reach {
    /// All hosts, with the rights of the user of this process.
    pub fn everything() -> Self {
        Self { posts: AllowedHosts::everything(), brokers: AllowedHosts::everything(), ..Self::default() }
    }

    /// The same hosts, which can be replaced.
    #[must_use]
    pub fn live(self) -> Self {
        let Self { posts, brokers, listeners } = self;
        Self { posts: posts.live(), brokers: brokers.live(), listeners: listeners.live() }
    }

    /// Puts other hosts in the place of these, which are [live](Self::live), and of their clones.
    pub fn replace(&self, others: Self) {
        self.posts.replace(others.posts);
        self.brokers.replace(others.brokers);
        self.listeners.replace(others.listeners);
    }
}

/// The hosts that may be reached. By default all but this machine, link-local addresses (where clouds have their
/// metadata) and addresses that belong to no host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHosts(Rules);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rules {
    Others {
        /// Whether the loopback addresses of this machine are among them.
        loopback: bool,
    },
    Everything,
    /// A list, and the configuration key that has it.
    Listed(Arc<[Entry]>, &'static str),
    /// Rules that all clones have together, because others may take their place.
    Live(Live),
}

#[derive(Clone, Debug)]
struct Live(Arc<RwLock<Rules>>);

impl PartialEq for Live {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.read().clone() == other.0.read().clone()
    }
}

impl Eq for Live {}

impl Default for Rules {
    fn default() -> Self {
        Self::Others { loopback: false }
    }
}

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Any,
    Name(String),
    /// The ending of names, with a dot in front.
    Below(String),
    /// The first bits of addresses.
    Network(IpAddr, u8),
}

/// A host that may not be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server does not connect to '{host}': {why}\nhint: {hint}")]
pub struct OutOfReach {
    /// The host.
    pub host: String,
    /// Why not.
    pub why: String,
    /// What to do about it.
    pub hint: String,
}

/// The configuration key with the hosts that statements may reach.
pub const KEY: &str = "hosts.allow";

/// The configuration key with the hosts that statements of a tenant may reach, in the place of [`KEY`].
pub const KEY_OF_TENANTS: &str = "hosts.tenants";

/// The configuration key with the addresses at which statements may listen.
pub const KEY_OF_LISTENERS: &str = "hosts.listen";

const IS_NEAR: &str = "it is this machine, a link-local address, or one of nobody";

/// Metadata services of clouds that have other addresses than link-local ones: of AWS, Google, Alibaba, Azure, Oracle.
const METADATA: [IpAddr; 5] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

impl AllowedHosts {
    /// All hosts, with the rights of the user of this process.
    pub fn everything() -> Self {
        Self(Rules::Everything)
    }

    /// The default, and the loopback addresses of this machine.
    pub fn with_loopback() -> Self {
        Self(Rules::Others { loopback: true })
    }

    /// The hosts of a list with commas between: names, `*.example.org` for the names below one, addresses, networks
    /// (`10.0.0.0/8`), or `*` for all. `key` is the configuration key that has the list.
    ///
    /// # Errors
    /// The entry that is none of these.
    pub fn listed(list: &str, key: &'static str) -> Result<Self, String> {
        let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let entries = entries.map(|text| Entry::parse(text).ok_or_else(|| text.to_owned()));
        Ok(Self(Rules::Listed(entries.collect::<Result<_, _>>()?, key)))
    }

    /// No hosts, because the list under this key is empty.
    pub fn none(key: &'static str) -> Self {
        Self(Rules::Listed([].into(), key))
    }

    /// Whether a list has an address, by itself or by a network.
    pub fn has_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        matches!(&self.0, Rules::Listed(entries, _) if entries.iter().any(|entry| entry.has_address(address)))
    }

    fn live(self) -> Self {
        Self(Rules::Live(Live(Arc::new(RwLock::new(self.0)))))
    }

    fn replace(&self, others: Self) {
        if let Rules::Live(live) = &self.0 {
            *live.0.write() = others.0;
        }
    }

    /// The rules of this moment.
    fn rules(&self) -> Rules {
        match &self.0 {
            Rules::Live(live) => live.0.read().clone(),
            rules => rules.clone(),
        }
    }

    /// Checks that a host may be reachable, before its name is resolved.
    ///
    /// # Errors
    /// It is not, whatever address its name leads to.
    pub fn check_host(&self, host: &str) -> Result<(), OutOfReach> {
        let host = plain(host);
        if let Ok(address) = host.parse() {
            return self.check(host, address);
        }
        let rules = self.rules();
        let may = match &rules {
            Rules::Others { loopback } => *loopback || !is_local_name(host),
            Rules::Listed(entries, _) => {
                entries.iter().any(|entry| matches!(entry, Entry::Network(..)) || entry.has_name(host))
            }
            Rules::Everything => true,
            // Live rules are never within each other.
            Rules::Live(_) => false,
        };
        if may { Ok(()) } else { Err(rules.refused(host)) }
    }

    /// Checks that an address of a host with this name may be connected to.
    ///
    /// # Errors
    /// It may not.
    pub fn check(&self, host: &str, address: IpAddr) -> Result<(), OutOfReach> {
        let (host, address) = (plain(host), carried(address));
        let rules = self.rules();
        let may = match &rules {
            Rules::Everything => true,
            Rules::Others { loopback } => (*loopback && address.is_loopback()) || !is_near(address),
            Rules::Listed(entries, _) => entries.iter().any(|entry| entry.has_name(host) || entry.has_address(address)),
            // Live rules are never within each other.
            Rules::Live(_) => false,
        };
        if may { Ok(()) } else { Err(rules.refused(host)) }
    }
}

impl Rules {
    fn refused(&self, host: &str) -> OutOfReach {
        let (why, key) = match self {
            Self::Listed(_, key) => (format!("{key} does not have it"), *key),
            _ => (IS_NEAR.to_owned(), KEY),
        };
        let tenant = if key == KEY_OF_TENANTS { " for the tenant" } else { "" };
        let hint = format!(
            "list it in {key}{tenant} in the server's configuration, with all other hosts that statements may reach \
             (\"127.0.0.1, hooks.example.org\"), and have the server read that again (SIGHUP)"
        );
        OutOfReach { host: host.to_owned(), why, hint }
    }
}

impl From<OutOfReach> for io::Error {
    fn from(error: OutOfReach) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, error)
    }
}

/// The host of an address without the brackets of an address of version 6, and without the dot at its end.
fn plain(host: &str) -> &str {
    host.trim_end_matches('.').trim_start_matches('[').trim_end_matches(']')
}

/// The address that a packet to this address ends at: gateways translate some addresses of version 6 to the address of
/// version 4 in them (mapped and compatible ones, NAT64, 6to4, Teredo).
fn carried(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address.to_canonical() else { return address.to_canonical() };
    let segments = v6.segments();
    let v4 = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low)));
    match segments {
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => address,
        [0, 0, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => v4(high, low),
        // The local prefix of NAT64 has the address in the last bits, as it is mostly configured.
        [0x64, 0xff9b, 1, .., high, low] => v4(high, low),
        [0x2001, 0, .., high, low] => v4(!high, !low),
        _ => address,
    }
}

fn is_local_name(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost")
}

/// Whether an address is this machine, on its link, a metadata service, or no host at all.
fn is_near(address: IpAddr) -> bool {
    let is_near = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    is_near
        || address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || METADATA.contains(&address)
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Any);
        }
        if let Some((network, bits)) = text.split_once('/') {
            let (network, bits) = (network.parse::<IpAddr>().ok()?, bits.parse::<u8>().ok()?);
            let bits_max = if network.is_ipv4() { 32 } else { 128 };
            return (bits <= bits_max).then_some(Self::Network(network, bits));
        }
        if let Ok(address) = plain(text).parse::<IpAddr>() {
            return Some(Self::Network(address, if address.is_ipv4() { 32 } else { 128 }));
        }
        let name = text.strip_prefix("*.").unwrap_or(text);
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        if !name.split('.').all(is_label) {
            return None;
        }
        let name = name.to_ascii_lowercase();
        Some(if text.starts_with("*.") { Self::Below(format!(".{name}")) } else { Self::Name(name) })
    }

    fn has_name(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Name(name) => host.eq_ignore_ascii_case(name),
            Self::Below(end) => host.to_ascii_lowercase().ends_with(end),
            Self::Network(..) => false,
        }
    }

    fn has_address(&self, address: IpAddr) -> bool {
        let first = |bits: u128, of: u8, count: u8| bits.checked_shr(u32::from(of - count)).unwrap_or(0);
        match (self, address) {
            (Self::Network(IpAddr::V4(network), bits), IpAddr::V4(address)) => {
                first(network.to_bits().into(), 32, *bits) == first(address.to_bits().into(), 32, *bits)
            }
            (Self::Network(IpAddr::V6(network), bits), IpAddr::V6(address)) => {
                first(network.to_bits(), 128, *bits) == first(address.to_bits(), 128, *bits)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reaches(reach: &AllowedHosts, host: &str, address: &str) -> bool {
        reach.check_host(host).is_ok() && reach.check(host, address.parse().unwrap()).is_ok()
    }

    #[test]
    fn this_machine_and_metadata_are_out_of_reach_whatever_they_are_called() {
        let reach = AllowedHosts::default();
        for near in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "0.0.0.0",
            "::",
            "169.254.169.254",
            "fe80::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "fd00:ec2::254",
            "100.100.100.200",
            "224.0.0.1",
            "255.255.255.255",
            "0.1.2.3",
            "168.63.129.16",
            "192.0.0.192",
            "fd20:ce::254",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::7f00:1",
            "2002:7f00:1::1",
            "2001:0:102:304:0:1:80ff:fffe",
        ] {
            assert!(!reaches(&reach, near, near), "{near}");
            assert!(!reaches(&reach, "hooks.example.org", near), "a name that leads to {near}");
        }
        for far in [
            "64:ff9b::93.184.216.34",
            "2002:5db8:d822::1",
            "93.184.216.34",
            "10.0.0.7",
            "192.168.1.1",
            "2606:2800:220::1",
            "fd12::1",
        ] {
            assert!(reaches(&reach, far, far) && reaches(&reach, "hooks.example.org", far), "{far}");
        }
        for name in ["localhost", "LOCALHOST.", "a.localhost", "[::1]", "[::1].", "127.0.0.1."] {
            assert!(reach.check_host(name).is_err(), "{name}");
        }
        assert!(reaches(&AllowedHosts::everything(), "localhost", "127.0.0.1"));
        // Loopback alone may be allowed.
        let loopback = AllowedHosts::with_loopback();
        for near in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(reaches(&loopback, "localhost", near) && reaches(&loopback, near, near), "{near}");
        }
        for near in ["169.254.169.254", "0.0.0.0", "fe80::1", "fd00:ec2::254", "::ffff:169.254.169.254"] {
            assert!(!reaches(&loopback, "localhost", near) && !reaches(&loopback, near, near), "{near}");
        }
    }

    #[test]
    fn what_takes_the_place_of_hosts_counts_for_all_who_have_them() {
        let reach = Reach::default().live();
        let of_connector = reach.clone();
        assert!(reaches(&of_connector.posts, "hooks.example.org", "93.184.216.34"));
        let listed = |list: &str| AllowedHosts::listed(list, KEY_OF_TENANTS).unwrap();
        reach.replace(Reach { posts: listed("10.0.0.1"), brokers: listed("127.0.0.1"), listeners: listed("") });
        assert!(!reaches(&of_connector.posts, "hooks.example.org", "93.184.216.34"));
        assert!(reaches(&of_connector.posts, "10.0.0.1", "10.0.0.1"));
        assert!(reaches(&of_connector.brokers, "127.0.0.1", "127.0.0.1"));
        assert!(!reaches(&of_connector.listeners, "127.0.0.1", "127.0.0.1"));
        let refused = of_connector.posts.check_host("hooks.example.org").is_err();
        assert!(!refused, "a network is listed, so its address decides");
        let refused = of_connector.posts.check("hooks.example.org", "93.184.216.34".parse().unwrap()).unwrap_err();
        assert!(refused.hint.contains("hosts.tenants for the tenant"), "{refused}");
    }

    #[test]
    fn a_list_has_names_and_networks() {
        let reach =
            AllowedHosts::listed("hooks.example.org, *.hooks.net, 10.0.0.0/8, 127.0.0.1, fd00::/8", KEY).unwrap();
        for (host, address, expected) in [
            ("hooks.example.org", "127.0.0.1", true),
            ("Hooks.Example.org.", "93.184.216.34", true),
            ("example.org", "93.184.216.34", false),
            ("a.hooks.net", "93.184.216.34", true),
            ("hooks.net", "93.184.216.34", false),
            ("evilhooks.net", "93.184.216.34", false),
            ("elsewhere.example", "10.7.0.1", true),
            ("10.7.0.1", "10.7.0.1", true),
            ("11.0.0.1", "11.0.0.1", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.2", "127.0.0.2", false),
            ("[fd12::1]", "fd12::1", true),
        ] {
            assert_eq!(reaches(&reach, host, address), expected, "{host} {address}");
        }
        assert!(reaches(&AllowedHosts::listed("*", KEY).unwrap(), "localhost", "127.0.0.1"));
        assert!(reaches(&AllowedHosts::listed("0.0.0.0/0", KEY).unwrap(), "1.2.3.4", "1.2.3.4"));
        assert!(!reaches(&AllowedHosts::listed("", KEY).unwrap(), "1.2.3.4", "1.2.3.4"), "nothing is listed");
        for wrong in ["a b", "http://x", "10.0.0.0/33", "*", "x/8", "a..b"] {
            assert_eq!(AllowedHosts::listed(wrong, KEY).is_err(), wrong != "*", "{wrong}");
        }
    }
}
