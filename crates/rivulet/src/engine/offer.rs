//! What the engine offers: [`Service`], the trait that the API, the command line and the demo are written against.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rivulet_dataflow::QueryId;
use tokio::sync::broadcast;

use super::output::write_topic;
use super::{Engine, Running, State, exposition, statements};
use crate::service::{
    ApplicationInfo, ParameterInfo, QueryFilter, QueryInfo, QueryRequest, QueryState, Service, ServiceError,
    StatementResult, Status,
};

impl Service for Engine {
    fn execute(&self, script: &str) -> Vec<Result<StatementResult, ServiceError>> {
        self.execute_script(script)
    }

    fn create_application(&self, sql: &str) -> Result<ApplicationInfo, ServiceError> {
        let (running, _) = self.register(statements::plan(sql)?)?;
        Ok(running.info())
    }

    fn applications(&self) -> Vec<ApplicationInfo> {
        self.state.lock().applications.values().map(|running| running.info()).collect()
    }

    fn application(&self, name_or_id: &str) -> Result<ApplicationInfo, ServiceError> {
        Ok(self.state.lock().application(name_or_id)?.info())
    }

    fn drop_application(&self, name: &str, cascade: bool) -> Result<(), ServiceError> {
        self.drop_running(name, cascade)
    }

    fn explain(&self, application: &str) -> Result<String, ServiceError> {
        let running = self.state.lock().application(application)?;
        Ok(rivulet_sql::explain(&running.application))
    }

    fn submit(&self, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>> {
        self.submit_batch(requests)
    }

    fn query(&self, name: &str) -> Result<QueryInfo, ServiceError> {
        let state = self.state.lock();
        let id = state.query(name)?;
        self.query_info(&state, id)
    }

    fn queries(&self, filter: &QueryFilter) -> Vec<QueryInfo> {
        let state = self.state.lock();
        let number = match &filter.application {
            Some(name) => match state.application(name) {
                Ok(running) => Some(running.number),
                Err(_) => return Vec::new(),
            },
            None => None,
        };
        let page = state.registry.page(filter.after.as_deref(), filter.limit, |name, entry| {
            number.is_none_or(|number| entry.application == number)
                && filter.like.as_ref().is_none_or(|pattern| super::registry::like(name, pattern))
        });
        page.into_iter().filter_map(|(_, id)| self.query_info(&state, id).ok()).collect()
    }

    fn pause(&self, query: &str) -> Result<(), ServiceError> {
        self.set_paused(query, true)
    }

    fn resume(&self, query: &str) -> Result<(), ServiceError> {
        self.set_paused(query, false)
    }

    fn drop_query(&self, query: &str) -> Result<(), ServiceError> {
        self.drop_one(query)
    }

    fn status(&self) -> Status {
        self.current_status()
    }

    fn metrics(&self) -> String {
        exposition::text(self.snapshot())
    }

    fn results(&self, query: &str) -> Result<broadcast::Receiver<Arc<str>>, ServiceError> {
        let state = self.state.lock();
        let id = state.query(query)?;
        Ok(self.taps.watch(id))
    }

    fn shutdown(&self) {
        self.stop();
    }
}

impl Engine {
    fn query_info(&self, state: &State, id: QueryId) -> Result<QueryInfo, ServiceError> {
        let running = state.of_query(id);
        let entry = state.registry.get(id).expect("the query is in the registry");
        let (input_topic, output_topic) = running.group.with_slots(|table| {
            let (mut input, mut output) = (String::new(), String::new());
            write_topic(&running.topics.input, table, entry.slot, &mut input);
            write_topic(&running.topics.output, table, entry.slot, &mut output);
            (input, output)
        });
        let parameters = self.catalog.read_query(id, |stored| {
            stored.parameters.iter().map(|(name, value)| (name.clone().into_owned(), value.to_json())).collect()
        })?;
        Ok(QueryInfo {
            id,
            name: state.registry.name(id),
            application: running.application.name.clone(),
            state: if entry.is_paused { QueryState::Paused } else { QueryState::Running },
            parameters: parameters.unwrap_or_default(),
            input_topic,
            output_topic,
            events: None,
            results: None,
            refused: None,
        })
    }
}

impl Running {
    fn info(&self) -> ApplicationInfo {
        let application = &self.application;
        ApplicationInfo {
            id: application.id.clone(),
            name: application.name.clone(),
            sql: application.text.clone(),
            parameters: application
                .parameters
                .iter()
                .map(|parameter| ParameterInfo {
                    name: parameter.name.clone(),
                    data_type: rivulet_sql::type_name(&parameter.data_type),
                    default: parameter.default.as_ref().map(ToString::to_string),
                })
                .collect(),
            input_topic: application.input.address.template.clone(),
            output_topic: application.output.address.template.clone(),
            queries_running: self.queries_running.load(Ordering::Relaxed),
            queries_paused: self.queries_paused.load(Ordering::Relaxed),
        }
    }
}
