//! Applications that were planned, run over a few events of two queries: all at once and each alone, with the same
//! results; of what is at the ends of numbers it is only asked that nothing panics.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use rivulet_connectors::formats::{EncodedRows, Format};
use rivulet_dataflow::{Batch, Chain, Element, Events, Refusals, Slot, SlotTable, Surroundings};
use rivulet_sql::Application;

use crate::rows::{BEGIN_US, STEP_US, Values, in_words, sample};
use crate::targets::payload::decoder_of;

const QUERIES: [u64; 2] = [1, 2];
const EVENTS: usize = 24;

/// When nothing is open any more, microseconds since the epoch: longer than windows of random scripts are.
const END_US: i64 = BEGIN_US + 400 * 24 * 3_600 * 1_000_000;

/// How often what is due is done until there is nothing more.
const TICKS_MAX: usize = 64;

/// Runs an application for two queries with these parameters.
pub(super) fn run(application: &Application, parameters: &RecordBatch) {
    let Some(usual) = events(application, Values::Usual) else { return };
    let together = results(application, parameters, &usual, EVENTS);
    assert_eq!(together, results(application, parameters, &usual, 1), "results do not depend on how events are cut");
    if let Some(ends) = events(application, Values::Ends) {
        results(application, parameters, &ends, 5);
    }
}

/// Events of all inputs in turn, as they would come; `None` where they cannot be made.
fn events(application: &Application, values: Values) -> Option<Vec<(u8, Vec<u8>)>> {
    let mut of_inputs = Vec::new();
    for input in &application.inputs {
        let rows = sample(&input.schema, EVENTS, values)?;
        let mut written = EncodedRows::default();
        let zeros = || vec![0_i64; EVENTS].into();
        let batch = Batch::new(vec![0_u32; EVENTS].into(), zeros(), zeros(), rows);
        Format::Json.encoder(input.schema.clone()).ok()?.encode(&batch, &mut written);
        of_inputs.push(written.iter().map(<[u8]>::to_vec).collect::<Vec<_>>());
    }
    let inputs = of_inputs.len();
    Some((0..EVENTS).map(|number| ((number % inputs) as u8, of_inputs[number % inputs][number].clone())).collect())
}

/// What each query gives for its events, in words, if so many of them are handed in at once.
fn results(
    application: &Application,
    parameters: &RecordBatch,
    events: &[(u8, Vec<u8>)],
    at_once: usize,
) -> BTreeMap<Slot, Vec<String>> {
    let mut slots = SlotTable::new(application.parameter_schema.clone());
    slots.add(&QUERIES, parameters);
    let mut decoder = decoder_of(application);
    let mut chain: Chain = application.dataflow.chain();
    let mut refusals = Refusals::new(4);
    let mut results: BTreeMap<Slot, Vec<String>> = BTreeMap::new();
    let mut keep = |batch: Batch| {
        for (&slot, words) in batch.slots.iter().zip(in_words(&batch.columns)) {
            results.entry(slot).or_default().push(words);
        }
    };
    for (first, part) in (0..).step_by(at_once).zip(events.chunks(at_once)) {
        let mut waiting = Events::default();
        for (number, (input, payload)) in (first..).zip(part) {
            let arrival_us = BEGIN_US + number as i64 * STEP_US;
            // Each query has events of all inputs.
            let slot = (number / application.inputs.len() % QUERIES.len()) as Slot;
            waiting.push_from(*input, slot, arrival_us, payload);
        }
        let batch = decoder.decode(&waiting, &mut refusals);
        // What fails for a whole batch is said to the operator of the server, and is no result.
        let _ = chain.process(
            Element::Batch(batch),
            Surroundings { now_us: BEGIN_US, slots: &slots, refusals: &mut refusals },
            &mut keep,
        );
    }
    for _ in 0..TICKS_MAX {
        if chain.deadline_us().is_none_or(|deadline_us| deadline_us > END_US) {
            break;
        }
        let _ = chain.tick(Surroundings { now_us: END_US, slots: &slots, refusals: &mut refusals }, &mut keep);
    }
    results
}
