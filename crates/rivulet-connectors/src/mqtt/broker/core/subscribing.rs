//! Subscribing and unsubscribing, and the retained messages for new subscriptions.

use rivulet_dataflow::LogPosition;

use super::super::addresses::SessionKey;
use super::super::rights::Rights;
use super::super::session::Walked;
use super::super::subscriptions::{Subscription, Wanted};
use super::super::tenants::Held;
use super::{Core, RetainHandling, SubscribeRequest, saving, suback};
use crate::mqtt::codec::Qos;

/// A subscription that was granted.
struct Granted {
    qos: Qos,
    number: u32,
    is_new: bool,
    is_shared: bool,
}

/// The scope in front of a client id: see `Login::keep_apart`.
fn scope_of(client_id: &str) -> &str {
    client_id.rsplit_once('\0').map_or("", |(scope, _)| scope)
}

impl Core {
    /// Subscribes a session to filters as far as its client has the right. `answer` sends the SUBACK, given the reason
    /// codes (those of version 5), when the journal is durable up to the position.
    pub(in super::super) fn subscribe(
        &mut self,
        key: SessionKey,
        requests: &[SubscribeRequest<'_>],
        rights: &Rights,
        answer: impl FnOnce(&[u8], LogPosition),
    ) {
        let mut codes = Vec::with_capacity(requests.len());
        let mut wants_retained = false;
        let mut saved_at = 0;
        for request in requests {
            let granted = match Wanted::parse(request.filter) {
                None => Err(suback::FILTER_INVALID),
                Some(wanted) if rights.as_deref().is_some_and(|rights| !rights.may_subscribe(wanted.filter)) => {
                    Err(suback::NOT_AUTHORIZED)
                }
                Some(wanted) => self.subscribe_one(key, wanted, request),
            };
            let Granted { qos, number, is_new, is_shared } = match granted {
                Ok(granted) => granted,
                Err(code) => {
                    self.counters.drops.subscriptions_refused += u64::from(code == suback::QUOTA_EXCEEDED);
                    codes.push(code);
                    continue;
                }
            };
            codes.push(qos.level());
            let wants = match request.retain_handling {
                // A new member of a group gets none (MQTT 5, 4.8.2).
                _ if is_shared => false,
                RetainHandling::Always => true,
                RetainHandling::IfNew => is_new,
                RetainHandling::Never => false,
            };
            if wants
                && !self.retained.has_none(request.filter)
                && let Some(session) = self.sessions.get_mut(key)
            {
                session.begin_walk(number, request.filter, qos, request.identifier);
                wants_retained = true;
            }
            saved_at = self.save_subscribed(key, number, request.filter).max(saved_at);
        }
        answer(&codes, saved_at);
        if wants_retained {
            self.walk(key);
        }
    }

    /// Sends retained messages to new subscriptions of a session. Returns whether more are left for the next turn.
    pub(super) fn walk(&mut self, key: SessionKey) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let (saving, subscriptions, saved_as) = (&mut self.saving, &self.subscriptions, session.saved_as);
        let goes_on =
            session.walk(&self.retained, &mut self.retained_steps, &mut self.counters, |walked| match walked {
                Walked::Waits(message, manner) => saving::save_waits(saving, saved_as, message, true, manner),
                Walked::Over(number, filter) => {
                    let subscribed = subscriptions.get(number).map(|one| one.subscribed(filter, false));
                    saving::save_walked(saving, saved_as, subscribed)
                }
            });
        self.save_sent(key);
        goes_on
    }

    /// Subscribes a session to one filter; the error is the reason code.
    fn subscribe_one(
        &mut self,
        key: SessionKey,
        wanted: Wanted<'_>,
        request: &SubscribeRequest<'_>,
    ) -> Result<Granted, u8> {
        let session = self.sessions.get(key).ok_or(suback::QUOTA_EXCEEDED)?;
        let SubscribeRequest { filter, qos, no_local, retain_as_published, identifier, .. } = *request;
        let subscription = Subscription { session: key, qos, no_local, retain_as_published, identifier, group: None };
        let is_shared = wanted.is_shared;
        if let Some(&number) = session.subscriptions.get(filter) {
            self.subscriptions.replace(number, subscription);
            return Ok(Granted { qos, number, is_new: false, is_shared });
        }
        let address = self.addresses.get_mut(session.address);
        if self.subscriptions.len() >= self.bounds.subscriptions_max
            || session.subscriptions.len() >= self.bounds.session_subscriptions_max
            || address.subscriptions >= self.bounds.address_subscriptions_max
            || self.tenants.has_share(address.tenant.as_ref(), Held::Subscriptions, 1, self.bounds.subscriptions_max)
            || address.share.is_full()
        {
            return Err(suback::QUOTA_EXCEEDED);
        }
        let number = self.add_subscription(key, wanted, filter, subscription).ok_or(suback::QUOTA_EXCEEDED)?;
        Ok(Granted { qos, number, is_new: true, is_shared })
    }

    /// Adds a subscription of a session, whose filter was read as `wanted`. `None` if it cannot be added.
    pub(super) fn add_subscription(
        &mut self,
        key: SessionKey,
        wanted: Wanted<'_>,
        filter: &str,
        subscription: Subscription,
    ) -> Option<u32> {
        let session = self.sessions.get_mut(key)?;
        let number = self.subscriptions.insert(wanted, scope_of(&session.client_id), subscription)?;
        session.subscribed(filter, number, wanted.is_shared);
        self.addresses.get_mut(session.address).subscribed(1);
        Some(number)
    }

    /// Ends a subscription. Returns the position that the journal must have on disk before the client gets its answer;
    /// `None` if there was no such subscription.
    pub(in super::super) fn unsubscribe(&mut self, key: SessionKey, filter: &str) -> Option<LogPosition> {
        let session = self.sessions.get_mut(key)?;
        let number = session.unsubscribed(filter)?;
        self.addresses.get_mut(session.address).unsubscribed(1);
        self.subscriptions.remove(number, filter);
        Some(saving::save_unsubscribed(&mut self.saving, session.saved_as, filter))
    }
}
