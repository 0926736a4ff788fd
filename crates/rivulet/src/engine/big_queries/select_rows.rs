//! The rows of a SELECT, for its reader.
//!
//! If all that it reads has an end, its result is complete, with ORDER BY, LIMIT and aggregates as they are in the end,
//! and its reader gets every row, as fast as it takes them. If something has no end, rows leave as they come, and a
//! reader that is too slow misses some.
//!
//! What must hold: no worker waits for a reader, the thread of the SELECT does. What waits for a reader has a bound.

use std::collections::VecDeque;
use std::sync::Arc;

use rivulet_dataflow::Batch;
use rivulet_sql::PlannedOutput;

use crate::engine::taps::{Taps, Watched};
use crate::run::results::{FinalRows, Results};

/// The most bytes of rows that are collected for a reader.
const COLLECTED_BYTES_MAX: usize = 64 << 20;

/// While so many rows wait for a reader, no more are asked for.
const WAITING_ROWS_MAX: usize = 8_192;

/// The rows of a SELECT.
pub(super) struct SelectRows {
    taps: Arc<Taps>,
    watched: Watched,
    output: PlannedOutput,
    /// How many rows are still to be skipped.
    skip: usize,
    /// How many rows are still wanted.
    left: usize,
    form: Form,
}

enum Form {
    /// Something that is read has no end.
    Live,
    /// Rows of a result that only grows, which wait for the reader.
    Paced(VecDeque<Batch>),
    /// Rows of which some are taken back, or that are ordered.
    Final(FinalRows),
}

impl SelectRows {
    /// For the readers that watch it.
    pub(super) fn new(taps: Arc<Taps>, watched: Watched, output: &PlannedOutput) -> Self {
        let (skip, left) = (output.offset, output.limit.unwrap_or(usize::MAX));
        Self { taps, watched, output: output.clone(), skip, left, form: Form::Live }
    }

    /// The rows of a batch that are wanted.
    fn wanted(&mut self, batch: &Batch) -> Batch {
        let skipped = batch.rows().min(self.skip);
        let rows = (batch.rows() - skipped).min(self.left);
        (self.skip, self.left) = (self.skip - skipped, self.left - rows);
        batch.slice(skipped, rows)
    }

    /// Why rows cannot be given as they come, if something that is read has no end.
    fn check_live(&self) -> Result<(), String> {
        let said = match &self.output {
            output if !output.order.is_empty() => "ORDER BY",
            output if output.changes && output.limit.is_some() => "LIMIT",
            output if output.changes && output.offset > 0 => "OFFSET",
            _ => return Ok(()),
        };
        Err(format!(
            "{said} is of a result that is complete, and this one has no end: it reads a source without one\nhint: leave \
             it out, or have the source end: WITH (bounded => true) for kafka:, WITH (events => 1000000) for generators"
        ))
    }
}

impl Results for SelectRows {
    fn begin(&mut self, is_bounded: bool) -> Result<(), String> {
        if !is_bounded {
            return self.check_live();
        }
        self.form = match self.output.changes || !self.output.order.is_empty() {
            false => Form::Paced(VecDeque::new()),
            true => Form::Final(FinalRows::new(self.output.schema.clone()).map_err(|error| error.to_string())?),
        };
        Ok(())
    }

    fn write(&mut self, batch: &Batch) -> Result<(), String> {
        if let Form::Final(rows) = &mut self.form {
            rows.add(batch).map_err(|error| error.to_string())?;
            return match rows.bytes() > COLLECTED_BYTES_MAX {
                false => Ok(()),
                true => Err(format!(
                    "the result has more than {} MiB; select fewer rows with WHERE or in a view, or run it with \
                     `rivulet run`",
                    COLLECTED_BYTES_MAX >> 20
                )),
            };
        }
        let batch = self.wanted(batch);
        match &mut self.form {
            Form::Paced(waiting) if !batch.is_empty() => waiting.push_back(batch),
            Form::Paced(_) | Form::Final(_) => {}
            Form::Live => self.taps.send_rows(&self.watched, &batch, self.output.changes),
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        let Form::Paced(waiting) = &self.form else { return true };
        waiting.iter().map(Batch::rows).sum::<usize>() < WAITING_ROWS_MAX
    }

    fn has_enough(&self) -> bool {
        self.left == 0
    }

    fn look(&mut self) {
        let Form::Paced(waiting) = &mut self.form else { return };
        while let Some(first) = waiting.front_mut() {
            let sent = self.taps.send_some(&self.watched, first);
            if sent < first.rows() {
                *first = first.slice(sent, first.rows() - sent);
                return;
            }
            waiting.pop_front();
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        match &mut self.form {
            Form::Live => {}
            Form::Paced(waiting) => {
                waiting.drain(..).for_each(|batch| self.taps.send_whole(&self.watched, &batch));
            }
            Form::Final(rows) => {
                let rows = rows.rows(&self.output).map_err(|error| error.to_string())?;
                let zeros = vec![0; rows.num_rows()];
                let slots: Vec<u32> = vec![0; rows.num_rows()];
                let batch = Batch::new(slots.into(), zeros.clone().into(), zeros.into(), rows);
                self.taps.send_whole(&self.watched, &batch);
            }
        }
        Ok(())
    }
}
