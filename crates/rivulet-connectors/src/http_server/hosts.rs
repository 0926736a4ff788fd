//! The host names that requests to a server may use, and the web pages that may send them.

use std::net::IpAddr;

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Uri};

/// What stands for every name.
const EVERY: &str = "*";

/// The names and addresses that requests may be for.
///
/// A browser says in `Host` which name it uses. An attacker's page can make its own name resolve to this machine (DNS
/// rebinding), and then has the same origin as the server; but `Host` still has the attacker's name. Loopback names and
/// the address that the server listens on are always accepted, with any port. If it listens on every address of the
/// machine, every numeric address is accepted: a numeric address cannot be made to resolve to another one.
#[derive(Clone, Debug)]
pub struct Hosts {
    names: Vec<String>,
    bound: IpAddr,
}

impl Hosts {
    /// Accepts a list of names with commas between; `*` accepts every name. `bound` is the address that is listened at.
    pub fn new(list: &str, bound: IpAddr) -> Self {
        let names = list.split(',').map(|name| name.trim().trim_end_matches('.').to_ascii_lowercase());
        Self { names: names.filter(|name| !name.is_empty()).collect(), bound }
    }

    /// Checks that a request is for this server.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), String> {
        if self.names.iter().any(|name| name == EVERY) {
            return Ok(());
        }
        let mut given = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (given.next(), given.next()) else {
            return Err("the request does not have one Host".into());
        };
        // An address in the request line goes before the header.
        for host in [Some(host.as_bytes()), uri.authority().map(|authority| authority.as_str().as_bytes())] {
            let Some(host) = host else { continue };
            if !std::str::from_utf8(host).is_ok_and(|host| self.accepts(host)) {
                let shown = String::from_utf8_lossy(&host[..host.len().min(255)]);
                return Err(format!("the request is for the host {shown:?}, and this server is another"));
            }
        }
        Ok(())
    }

    /// Whether a name, with or without a port, is accepted.
    fn accepts(&self, host: &str) -> bool {
        let Some(name) = without_port(host) else { return false };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let numeric = name.strip_prefix('[').map_or(name.as_str(), |name| name.trim_end_matches(']'));
        match numeric.parse::<IpAddr>() {
            Ok(address) => {
                let address = address.to_canonical();
                address.is_loopback()
                    || self.bound.is_unspecified()
                    || address == self.bound.to_canonical()
                    || self.names.iter().any(|known| *known == name || *known == numeric)
            }
            Err(_) => name == "localhost" || name.ends_with(".localhost") || self.names.contains(&name),
        }
    }
}

/// A host without its port; `None` if it is none.
fn without_port(host: &str) -> Option<&str> {
    let end = if host.starts_with('[') { host.find(']')? + 1 } else { host.find(':').unwrap_or(host.len()) };
    let (name, rest) = host.split_at(end);
    let is_port =
        |rest: &str| rest.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    (rest.is_empty() || is_port(rest)).then_some(name)
}

/// Whether a text is a list of names for [`Hosts::new`]: names without scheme, port and path.
pub fn is_host_list(list: &str) -> bool {
    let is_name = |name: &str| {
        name == EVERY
            || name.parse::<IpAddr>().is_ok()
            || name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) && !name.is_empty()
    };
    list.split(',').all(|name| is_name(name.trim()))
}

/// Whether the request comes from a page of another site: a browser lets any page send requests to this machine's
/// ports. It names the page's site in `Origin`, and says in `Sec-Fetch-Site` whether it is another, also where it sends
/// no `Origin`, as for an image. Following a link is no request of a page, but sending a form is one. Programs send
/// neither. `Host` must have been checked.
///
/// A page that came without encryption is another site than this server if the connection is encrypted: everybody on
/// the way can write such a page. The other way round, a proxy may have the certificate.
pub fn is_of_other_site(method: &Method, headers: &HeaderMap, is_encrypted: bool) -> bool {
    let is_said = |name: &str, value: &[u8]| headers.get(name).is_some_and(|said| said.as_bytes() == value);
    let mut sites = headers.get_all("sec-fetch-site").iter().map(HeaderValue::as_bytes);
    let is_cross_site = sites.any(|site| site != b"same-origin" && site != b"none");
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else {
        let is_read = *method == Method::GET || *method == Method::HEAD;
        let is_link = is_said("sec-fetch-mode", b"navigate") && is_said("sec-fetch-dest", b"document");
        return is_cross_site && !(is_read && is_link);
    };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let is_own = origin.is_some_and(|(scheme, site)| {
        let may_be_own = scheme == "https" || scheme == "http" && !is_encrypted;
        may_be_own && headers.get(header::HOST).is_some_and(|host| host.as_bytes() == site.as_bytes())
    });
    !is_own || is_cross_site || origins.next().is_some()
}

/// The web pages that may connect where a browser does not ask: a WebSocket is open to every page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(Vec<String>);

impl Origins {
    /// Reads a list of origins (`https://app.example.org`) with commas between; `*` stands for every one.
    ///
    /// # Errors
    /// The entry that is none.
    pub fn listed(list: &str) -> Result<Self, String> {
        let entries = list.split(',').map(|entry| entry.trim().to_ascii_lowercase());
        let is_origin = |entry: &str| {
            let (scheme, site) = entry.split_once("://").unwrap_or_default();
            let name = without_port(site).unwrap_or_default();
            let name = name.trim_start_matches('[').trim_end_matches(']');
            entry == EVERY || ["http", "https"].contains(&scheme) && name != EVERY && is_host_list(name)
        };
        entries.map(|entry| if is_origin(&entry) { Ok(entry) } else { Err(entry) }).collect::<Result<_, _>>().map(Self)
    }

    /// Whether the page that a request comes from may connect: it is listed, or of the host and port that are asked.
    /// Programs have no page. `Host` must have been checked.
    pub fn admit(&self, method: &Method, headers: &HeaderMap, is_encrypted: bool) -> bool {
        if !is_of_other_site(method, headers, is_encrypted) || self.0.iter().any(|listed| listed == EVERY) {
            return true;
        }
        let mut given = headers.get_all(header::ORIGIN).iter().map(HeaderValue::as_bytes);
        let (Some(origin), None) = (given.next(), given.next()) else { return false };
        self.0.iter().any(|listed| listed.as_bytes().eq_ignore_ascii_case(origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_names_the_bound_address_and_listed_names_are_accepted() {
        let hosts = Hosts::new("rivulet.example.org, Gateway ", "192.168.1.5".parse().unwrap());
        for accepted in [
            "localhost",
            "LOCALHOST:80",
            "localhost.",
            "app.localhost:1",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
            "[::1]",
            "192.168.1.5:1",
            "rivulet.example.org",
            "Rivulet.Example.org:8080",
            "gateway:80",
        ] {
            assert!(hosts.accepts(accepted), "{accepted}");
        }
        for refused in [
            "",
            ":80",
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "192.168.1.6",
            "localhost:8080:1",
            "localhost:x",
            "user@localhost",
            "evil.example@localhost",
            "[::1",
            "[::1]x",
            "[::2]:80",
            "localhost/",
            "*",
        ] {
            assert!(!hosts.accepts(refused), "{refused}");
        }
    }

    #[test]
    fn at_every_address_every_numeric_one_is_accepted_and_a_star_accepts_names() {
        let hosts = Hosts::new("", "0.0.0.0".parse().unwrap());
        assert!(hosts.accepts("10.1.2.3:8080") && hosts.accepts("[2001:db8::1]:8080"));
        assert!(!hosts.accepts("evil.example") && !hosts.accepts("1.2.3.4.evil.example"));
        let every = Hosts::new("*", "127.0.0.1".parse().unwrap());
        assert!(every.check(&Uri::from_static("/"), &HeaderMap::new()).is_ok());
    }

    #[test]
    fn one_host_is_needed_and_the_request_line_counts() {
        let hosts = Hosts::new("", "127.0.0.1".parse().unwrap());
        let check = |uri: &'static str, named: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for host in named {
                headers.append(header::HOST, HeaderValue::from_static(host));
            }
            hosts.check(&Uri::from_static(uri), &headers).is_ok()
        };
        assert!(check("/", &["localhost"]) && check("http://localhost/", &["localhost"]));
        assert!(!check("/", &[]) && !check("/", &["localhost", "localhost"]) && !check("/", &["evil.example"]));
        assert!(!check("http://evil.example/", &["localhost"]) && !check("http://localhost/", &["evil.example"]));
    }

    /// Whether a request for `localhost:8080` with these headers is of another site.
    fn is_other(method: &Method, is_encrypted: bool, said: &[(&'static str, &'static str)]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost:8080"));
        for (name, value) in said {
            headers.append(*name, HeaderValue::from_static(value));
        }
        is_of_other_site(method, &headers, is_encrypted)
    }

    #[test]
    fn a_link_is_followed_and_sends_nothing() {
        let link = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"), ("sec-fetch-site", "cross-site")];
        for method in [Method::GET, Method::HEAD] {
            assert!(!is_other(&method, false, &link), "{method}");
        }
        // A form goes to a document as well, and a browser may leave out Origin.
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(is_other(&method, false, &link), "{method}");
            assert!(!is_other(&method, false, &[("sec-fetch-site", "same-origin"), link[0], link[1]]), "{method}");
            assert!(!is_other(&method, false, &[]), "a program sends nothing of this: {method}");
        }
    }

    #[test]
    fn an_origin_that_is_nearly_the_own_one_is_another_site() {
        const HTTP: (&str, &str) = ("origin", "http://localhost:8080");
        const HTTPS: (&str, &str) = ("origin", "https://localhost:8080");
        assert!(!is_other(&Method::POST, false, &[HTTP]) && !is_other(&Method::POST, true, &[HTTPS]));
        assert!(!is_other(&Method::POST, false, &[HTTPS]), "a proxy may have the certificate");
        assert!(is_other(&Method::POST, true, &[HTTP]), "anybody on the way may have written the page");
        for scheme in ["ftp", "file", "ws", "moz-extension", ""] {
            let origin: &'static str = format!("{scheme}://localhost:8080").leak();
            assert!(is_other(&Method::GET, false, &[("origin", origin)]), "{origin}");
        }
        for site in ["same-site", "cross-site", "", "same-origin, cross-site"] {
            assert!(is_other(&Method::GET, false, &[HTTP, ("sec-fetch-site", site)]), "{site}");
            assert!(is_other(&Method::GET, false, &[("sec-fetch-site", site)]), "{site}");
        }
        for twice in [[HTTP, HTTP], [HTTP, HTTPS], [HTTP, ("origin", "http://evil.example")]] {
            assert!(is_other(&Method::GET, false, &twice), "{twice:?}");
        }
        let one_of_two = [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")];
        assert!(is_other(&Method::GET, false, &one_of_two));
    }

    #[test]
    fn a_page_of_another_site_is_told_by_what_its_browser_says() {
        let is_other = |said: &[_]| is_other(&Method::GET, false, said);
        let link = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"), ("sec-fetch-site", "cross-site")];
        for said in [
            &[][..],
            &[("origin", "http://localhost:8080")],
            &[("origin", "https://localhost:8080")],
            &[("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")],
            &[("origin", "http://localhost:8080"), ("sec-fetch-site", "none")],
            &[("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")],
            &[("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate")],
            &link,
        ] {
            assert!(!is_other(said), "{said:?}");
        }
        for said in [
            &[("origin", "http://evil.example")][..],
            &[("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")],
            &[("origin", "null")],
            &[("origin", "http://localhost:8080.evil.example")],
            &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")],
            &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")],
            &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")],
            &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "cors"), ("sec-fetch-dest", "empty")],
        ] {
            assert!(is_other(said), "{said:?}");
        }
    }

    #[test]
    fn lists_are_names_without_anything_else() {
        for list in ["*", "a", "a.b-c, d_e", "10.0.0.1,::1"] {
            assert!(is_host_list(list), "{list}");
        }
        for list in ["", "a,", "http://a", "a:80", "a/b", "a b", "*.a"] {
            assert!(!is_host_list(list), "{list}");
        }
    }

    #[test]
    fn pages_of_listed_origins_may_connect_and_programs() {
        let admits = |list: Option<&str>, origins: &[&'static str]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("broker.example:8083"));
            for origin in origins {
                headers.append(header::ORIGIN, HeaderValue::from_static(origin));
            }
            let origins = list.map_or_else(Origins::default, |list| Origins::listed(list).unwrap());
            let (of_plain, of_encrypted) =
                (origins.admit(&Method::GET, &headers, false), origins.admit(&Method::GET, &headers, true));
            assert_eq!(of_plain, of_encrypted, "{headers:?}");
            of_plain
        };
        assert!(admits(None, &[]) && admits(None, &["https://broker.example:8083"]));
        assert!(!admits(None, &["https://broker.example"]) && !admits(None, &["null"]));
        let list = Some("https://App.example.org, http://[::1]:3000");
        assert!(admits(list, &["https://app.example.org"]) && admits(list, &["http://[::1]:3000"]));
        for other in ["http://app.example.org", "https://app.example.org:1", "https://app.example.org.evil.example"] {
            assert!(!admits(list, &[other]), "{other}");
        }
        assert!(!admits(list, &["https://app.example.org", "https://evil.example"]));
        assert!(!admits(None, &["https://broker.example:8083", "https://broker.example:8083"]));
        // A page that came without encryption connects to a WebSocket that is encrypted only where it is listed.
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("broker.example:8083"));
        headers.insert(header::ORIGIN, HeaderValue::from_static("http://broker.example:8083"));
        assert!(Origins::default().admit(&Method::GET, &headers, false));
        assert!(!Origins::default().admit(&Method::GET, &headers, true));
        assert!(Origins::listed("http://broker.example:8083").unwrap().admit(&Method::GET, &headers, true));
        assert!(admits(Some("*"), &["null"]));
        for wrong in
            ["", "app.example.org", "https://", "https://a/b", "ftp://a", "https://*", "https://a,", "https://a b"]
        {
            assert!(Origins::listed(wrong).is_err(), "{wrong}");
        }
    }
}
