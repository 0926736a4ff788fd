//! MQTT client and embedded broker; sources and sinks of big queries; payload formats.
//!
//! - [`mqtt`]: the client, the embedded broker, topic templates and routing;
//! - [`connector`]: sources and sinks of big queries, by name;
//! - [`formats`]: payload bytes to rows and rows to payload bytes;
//! - [`feed`]: what applications read that is not MQTT, into the router;
//! - [`links`]: streams of rows to and from other servers;
//! - [`http_server`]: an HTTP/1.1 server with bounds, for the REST API and for sources that receive posts;
//!   [`descriptors`]: the number of connections that the limit of open files allows;
//! - [`tls`]: certificates of listeners, and of clients; [`rates`]: what the clients of one owner may send and get a
//!   second;
//! - [`files`]: the files that statements may name; [`reach`]: the hosts that statements may post to; [`clock`]: the
//!   machine's clock.

pub mod mqtt;
pub mod connector;
mod sockets;
pub mod formats;
pub mod feed;
pub mod links;
pub mod http_server;
pub mod descriptors;
pub mod tls;
mod notices;
pub mod logins;
pub mod rates;
pub mod files;
pub mod reach;
pub mod clock;
