//! Who reads the streams of other servers: a big query, or an input of an application.
//!
//! What must hold: a stream has one reader, also while that one is paused or its sink does not open. The sender forgets
//! what one reader has taken, so another one would never get it.

use rivulet_operators::application::Application;
use rivulet_sql::QueryPlan;

use super::BigQueries;
use crate::engine::sources::{Sources, is_stream};
use crate::service::{ErrorKind, FullName, ServiceError, Tenant};

/// The addresses of the streams that an application reads, each with who reads it.
fn read_by(application: &Application) -> impl Iterator<Item = (String, String)> {
    let streams = application.inputs.iter().filter(|input| Sources::needs_log(input));
    streams.map(move |input| (input.address.to_string(), format!("application '{}'", application.name)))
}

/// The same of a big query.
fn read_in(name: &str, plan: &QueryPlan) -> impl Iterator<Item = (String, String)> {
    let streams = plan.sources.iter().map(|source| &source.declaration).filter(|one| is_stream(&one.connector()));
    streams.map(move |one| (format!("{}:{}", one.connector(), one.rest()), format!("query '{name}'")))
}

impl BigQueries {
    /// Fails if a stream that a new application reads has another reader.
    pub(in crate::engine) fn check_application(&self, tenant: &Tenant, new: &Application) -> Result<(), ServiceError> {
        self.check_readers(tenant, &read_by(new).collect::<Vec<_>>())
    }

    /// The same of a new big query.
    pub(super) fn check_query(&self, name: &FullName, plan: &QueryPlan) -> Result<(), ServiceError> {
        self.check_readers(&name.tenant, &read_in(&name.name, plan).collect::<Vec<_>>())
    }

    fn check_readers(&self, tenant: &Tenant, new: &[(String, String)]) -> Result<(), ServiceError> {
        if new.is_empty() {
            return Ok(());
        }
        let mut known = Vec::new();
        let applications = self.queries.applications.running();
        let applications = applications.iter().filter(|one| one.tenant == *tenant);
        applications.for_each(|one| known.extend(read_by(&one.application)));
        for (name, one) in self.that(|_| true).iter().filter(|(name, _)| name.tenant == *tenant) {
            known.extend(one.plan.iter().flat_map(|plan| read_in(&name.name, plan)));
        }
        for (place, (stream, reader)) in new.iter().enumerate() {
            // A new version may go on with what the version before reads.
            let mut others = known.iter().filter(|(_, other)| other != reader).chain(&new[..place]);
            if let Some((_, other)) = others.find(|(read, _)| read == stream) {
                let name = stream.split_once(':').map_or("", |(_, name)| name);
                let message = format!("the {other} reads the stream '{name}' already, and a stream has one reader");
                return Err(ServiceError::new(ErrorKind::Conflict, message)
                    .with_hint("let the senders send a second stream, or drop what reads this one"));
            }
        }
        Ok(())
    }
}
