//! Streams of links that come to this process.

use std::net::Ipv4Addr;
use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_connectors::links::{
    Asked, LinkAuthorizer, LinkLogin, LinkRights, Links, Listener, Listening, Peer, Receive, Received,
};
use rivulet_connectors::tls::{Certificates, Prepared};
use rivulet_dataflow::{Batch, Element};

/// The scope of all streams.
pub(super) const SCOPE: &str = "bench";

/// Lets everybody in, who can only be of this machine.
struct Anybody;

impl LinkAuthorizer for Anybody {
    fn admit(&self, _login: &LinkLogin) -> Result<Arc<dyn LinkRights>, String> {
        Ok(Arc::new(Self))
    }
}

impl LinkRights for Anybody {
    fn scope(&self) -> &str {
        SCOPE
    }

    fn may_send(&self, _stream: &str) -> Result<(), String> {
        Ok(())
    }
}

/// Opens a door for links of this machine.
pub(super) fn listen(links: &Links) -> Result<Listener, String> {
    let door = links.listen(Listening {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        certificates: Certificates::new("the benchmark", Prepared::default()),
        authorizer: Arc::new(Anybody),
    });
    door.map_err(|error| error.to_string())
}

/// The streams of one name.
#[derive(Default)]
pub(super) struct Streams(Mutex<Vec<(Arc<Peer>, Received)>>);

impl Receive for Streams {
    fn accept(&self, peer: &Arc<Peer>, asked: &Asked) -> Result<Option<(u64, u64)>, String> {
        self.0.lock().push((peer.clone(), asked.stream));
        Ok(None)
    }

    fn arrived(&self, _peer: &Arc<Peer>, _stream: Received) {
        // Whoever takes looks at all of the few streams.
    }

    fn query(&self) -> &str {
        "bench"
    }
}

impl Streams {
    /// Takes a buffer of each stream that has one. Returns whether one had.
    pub(super) fn take(&self, mut each: impl FnMut(&Batch) -> Result<(), String>) -> Result<bool, String> {
        let (streams, mut is_some) = (self.0.lock().clone(), false);
        for (peer, stream) in streams {
            let Some(buffer) = peer.take(stream) else { continue };
            is_some = true;
            let mut elements = buffer.elements().map_err(|error| error.to_string())?;
            while let Some(element) = elements.next_element().map_err(|error| error.to_string())? {
                if let Element::Batch(batch) = element {
                    each(&batch)?;
                }
            }
        }
        Ok(is_some)
    }
}
