//! MQTT, both ways: as a client of an external broker, and as an embedded broker.
//!
//! The engine sees the same three things with either:
//!
//! ```text
//! Router      register_inbox(Arc<dyn Inbox>) -> InboxId, unregister_inbox(id)
//!             add(&[Route { filter, inbox, slot }]) -> Result, remove(&[Route]), reserve(n), close(), stats()
//! Publisher   submit(&mut PublishBatch), has_room(), on_room(callback)
//! Template    parse("home/{home}/temperature", &["home"], Direction::Input) -> Result
//!   filter() -> Option<"home/+/temperature">, bind(|parameter| text) -> Result<topic>, write(&mut String, ...)
//! ```
//!
//! and one of
//!
//! ```text
//! Client      start(ClientOptions, Arc<Router>, Arc<dyn Clock>) -> Result, subscribe(filters), unsubscribe(filters),
//!             publisher(), status() -> ClientStatus, shutdown(limit).await
//! Broker      start(BrokerOptions, Arc<Router>, Arc<dyn Clock>).await -> Result, addresses(),
//!             publisher(), stats() -> BrokerStats, shutdown(limit).await
//! ```
//!
//! Both run on the tokio runtime that starts them and need only a single thread of it. Their handles may be used from
//! any thread. To stop without losing accepted messages: close the router, let the workers finish, then shut the client
//! or broker down. Bytes from outside never panic, and block only the connection they came from. An event is in an
//! inbox, or still with its sender, or counted as dropped.
//!
//! In reading order:
//!
//! - [`codec`]: packets as bytes; PUBLISH is decoded in place in the read buffer;
//! - [`topic`] and [`template`]: topics, filters, and topics with parameters in them;
//! - [`index`]: the values that belong to a topic;
//! - [`router`]: from a topic to inboxes, and around that the log of durable inputs;
//! - [`log`]: that log, as the router sees it;
//! - [`acknowledge`]: acknowledgements that wait for the log;
//! - `intake`: the messages of a connection on their way into the router, for client and broker;
//! - [`linger`]: the pause in which messages gather;
//! - [`publisher`]: results on their way out;
//! - [`client`]: the connection to an external broker;
//! - [`broker`]: the embedded broker;
//! - [`tls`]: certificates for both.

pub mod codec;
mod wire;
pub mod topic;
pub mod template;
pub mod index;
mod received;
pub mod router;
pub mod log;
pub mod acknowledge;
pub mod linger;
pub mod publisher;
pub mod client;
pub mod broker;
mod aliases;
pub mod websocket;
mod buffer;
mod exact;
mod fields;
pub(crate) mod intake;
mod properties;
mod repeats;
mod stall;
mod supervise;

pub use acknowledge::REMEMBERED_FOR;
pub use broker::{
    Broker, BrokerDrops, BrokerError, BrokerLimits, BrokerOptions, BrokerStats, ClientAuthorizer, ClientFilter,
    ClientInfo, ClientLogin, ClientRights, Journal, JournalContents, JournalSummary, Listener, NotAdmitted, Room,
};
pub use client::{AddressError, BrokerAddress, Client, ClientError, ClientOptions, ClientStatus};
pub use codec::{Qos, Version};
pub use index::TopicIndex;
pub use linger::Linger;
pub use log::{Logged, MessageLog};
pub use publisher::{OutgoingMessage, PublishBatch, PublishError, PublishOptions, Publisher, RoomCallback};
pub use received::Received;
pub use router::{InboxId, Parted, Pending, ROUTES_AT_ONCE, Route, RouteError, Router, RouterStats, Routing, Targets};
pub use template::{Direction, Template, TemplateError};
pub use topic::{TopicError, TopicPart};
pub use websocket::WebSocketOptions;
