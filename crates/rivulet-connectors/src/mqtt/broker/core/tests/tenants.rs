//! What one tenant holds takes nothing from others.

use std::sync::atomic::{AtomicBool, Ordering};

use super::super::super::rights::{ClientAuthorizer, ClientLogin, ClientRights, NotAdmitted};
use super::super::*;
use super::{connect_from, core, publish_to, sent, subscribe};

/// Knows two tenants.
#[derive(Debug)]
struct Knows;

impl ClientAuthorizer for Knows {
    fn admit(&self, _: &ClientLogin) -> Result<Option<Arc<dyn ClientRights>>, NotAdmitted> {
        Ok(None)
    }

    fn is_tenant(&self, name: &str) -> bool {
        ["acme", "other"].contains(&name)
    }
}

const HELD: [Held; 6] =
    [Held::Connections, Held::Sessions, Held::Subscriptions, Held::Memory, Held::RetainedMessages, Held::RetainedBytes];

fn held(core: &mut Core, tenant: &str) -> [usize; 6] {
    let tenant = core.tenants.of_topic(tenant.as_bytes()).unwrap();
    HELD.map(|what| tenant.held(what))
}

fn of(tenant: &str, number: u8) -> String {
    format!("{tenant}\0kim\0{number}")
}

#[test]
fn one_tenant_leaves_half_of_each_bound_to_others_from_however_many_addresses_it_comes() {
    let mut core = core(|options| {
        options.authorizer = Some(Arc::new(Knows));
        let limits = &mut options.limits;
        (limits.connections_max, limits.sessions_max, limits.subscriptions_max) = (8, 8, 8);
        (limits.retained_messages_max, limits.memory_bytes_max) = (200, 1_000_000);
    });
    let acme: Vec<SessionKey> = (0..12)
        .filter_map(|number| connect_from(&mut core, number, &of("acme", number), true, 60))
        .map(|(key, ..)| key)
        .collect();
    assert_eq!(acme.len(), 4);
    let codes: Vec<u8> = (0..12)
        .map(|number| subscribe(&mut core, acme[number % 4], &format!("acme/{number}"), Qos::AtLeastOnce))
        .collect();
    assert_eq!(codes.iter().filter(|code| **code == Qos::AtLeastOnce.level()).count(), 4, "{codes:?}");
    // Few large messages use up its memory, and many small ones their number.
    for number in 0..200 {
        publish_to(&mut core, &format!("acme/large/{number}"), &[b'x'; 10_000], Qos::AtMostOnce, true);
    }
    let [_, _, _, memory, messages, _] = held(&mut core, "acme");
    assert!((490_000..520_000).contains(&memory) && messages < 60, "{memory} {messages}");
    assert!(connect_from(&mut core, 1, &of("acme", 20), true, 60).is_none());
    for number in 0..200 {
        publish_to(&mut core, &format!("acme/large/{number}"), b"", Qos::AtMostOnce, true);
        publish_to(&mut core, &format!("acme/small/{number}"), b"x", Qos::AtMostOnce, true);
    }
    assert_eq!(held(&mut core, "acme")[4], 100);
    // Others come from the same addresses, and have their half; the operator has what is left.
    let other: Vec<_> =
        (0..12).filter_map(|number| connect_from(&mut core, number, &of("other", number), true, 60)).collect();
    assert_eq!(other.len(), 4);
    for (number, (key, ..)) in other.iter().enumerate() {
        assert_eq!(subscribe(&mut core, *key, &format!("other/{number}"), Qos::AtLeastOnce), 1);
        publish_to(&mut core, &format!("other/{number}"), b"x", Qos::AtLeastOnce, true);
    }
    assert_eq!(held(&mut core, "other")[4], 4);
    publish_to(&mut core, "home/1", b"x", Qos::AtMostOnce, true);
    assert!(core.retained.get(b"home/1").is_some());
    // What goes is counted no more.
    acme.iter().for_each(|key| core.remove_session(*key));
    (0..200).for_each(|number| publish_to(&mut core, &format!("acme/small/{number}"), b"", Qos::AtMostOnce, true));
    let [_, counted @ ..] = held(&mut core, "acme");
    assert_eq!(counted, [0; 5]);
    assert!(core.counters.drops.clients_refused >= 16 && core.counters.drops.retained_full == 100);
}

/// Knows the tenants once it is told to.
#[derive(Debug, Default)]
struct KnowsLater(AtomicBool);

impl ClientAuthorizer for KnowsLater {
    fn admit(&self, _: &ClientLogin) -> Result<Option<Arc<dyn ClientRights>>, NotAdmitted> {
        Ok(None)
    }

    fn is_tenant(&self, name: &str) -> bool {
        self.0.load(Ordering::Relaxed) && Knows.is_tenant(name)
    }
}

#[test]
fn what_a_session_from_before_its_tenant_holds_is_counted_and_taken_back() {
    let knows = Arc::new(KnowsLater::default());
    let mut core = core(|options| options.authorizer = Some(knows.clone()));
    let connect = |core: &mut Core| connect_from(core, 1, &of("acme", 1), false, 60).expect("there is room");
    let leave = |core: &mut Core, (key, outbox): (SessionKey, Arc<Outbox>)| {
        assert!(core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None }));
    };
    let (key, outbox, _) = connect(&mut core);
    assert_eq!(subscribe(&mut core, key, "acme/1", Qos::AtLeastOnce), 1);
    leave(&mut core, (key, outbox));
    knows.0.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        let (key, outbox, present) = connect(&mut core);
        assert_eq!((present, &held(&mut core, "acme")[..3]), (true, &[1, 1, 1][..]));
        // The second time while the first connection is still there.
        let (same, newer, _) = connect(&mut core);
        assert_eq!((same, &held(&mut core, "acme")[..3]), (key, &[1, 1, 1][..]));
        drop(outbox);
        leave(&mut core, (same, newer));
        assert_eq!(held(&mut core, "acme")[..3], [0, 1, 1]);
    }
    core.remove_session(key);
    assert_eq!(held(&mut core, "acme")[..3], [0; 3]);
}

#[test]
fn a_new_client_ends_no_session_of_another_tenant() {
    let mut core = core(|options| {
        options.authorizer = Some(Arc::new(Knows));
        options.limits.sessions_max = 4;
    });
    let leave = |core: &mut Core, client_id: &str| {
        let (key, outbox, _) = connect_from(core, 1, client_id, false, 60)?;
        subscribe(core, key, "t", Qos::AtLeastOnce);
        core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
        Some(())
    };
    assert_eq!([leave(&mut core, &of("other", 1)), leave(&mut core, &of("other", 2))], [Some(()); 2]);
    publish_to(&mut core, "t", b"x", Qos::AtLeastOnce, false);
    // The same address, and more of them than there is room for.
    for number in 0..9 {
        assert_eq!(leave(&mut core, &of("acme", number)), Some(()), "its own give way");
    }
    assert_eq!(leave(&mut core, "operator"), None, "it has none that could");
    assert_eq!((held(&mut core, "acme")[1], held(&mut core, "other")[1]), (2, 2));
    let (_, outbox, present) = connect_from(&mut core, 1, &of("other", 1), false, 60).unwrap();
    assert!(present && sent(&outbox).len() == 1, "what waits for it is there");
}
