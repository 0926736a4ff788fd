//! The sources of a task: partitions that are asked for rows, and how far their time is.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::buffer::ScalarBuffer;
use arrow::compute::is_not_null;
use arrow::datatypes::TimestampMicrosecondType;
use rivulet_dataflow::{Batch, Polled, Reason, Refusals, Slot, Source};

use super::watermark::Watermarks;

/// A partition of a source, and what its rows' times mean.
pub struct Partition {
    /// Gives the rows.
    pub source: Box<dyn Source>,
    /// Which of the columns that it gives is the event time (`Timestamp(Microsecond)`); without one it is the time of arrival.
    pub event_time_column: Option<usize>,
    /// How far behind the newest row of the partition a row may be and not be late, microseconds.
    pub lateness_us: i64,
    /// After how long a silence others do not wait for the partition any more, microseconds; `None` for never.
    pub idle_timeout_us: Option<i64>,
}

/// All partitions that a task reads.
pub(super) struct Feed {
    partitions: Vec<Open>,
    watermarks: Watermarks,
    /// So many zeros, of which batches take what they need: there is one query.
    zeros: ScalarBuffer<Slot>,
    is_idle: bool,
}

struct Open {
    partition: Partition,
    newest_us: i64,
    /// Since when it has said, each time it was asked, that it has nothing. Not being asked is no silence.
    silent_since_us: Option<i64>,
    /// It said that it has nothing until then.
    not_before_us: i64,
    has_ended: bool,
}

/// What a look at the partitions brought.
pub(super) enum Fed {
    /// Rows.
    Rows(Batch),
    /// No row: some were refused, or a partition has just ended. Look again.
    Again,
    /// No partition has anything before this time, microseconds since the epoch.
    Nothing(i64),
    /// Nothing will follow.
    End,
}

impl Feed {
    pub(super) fn new(partitions: Vec<Partition>) -> Self {
        let watermarks = Watermarks::new(partitions.len());
        let partitions = partitions.into_iter().map(|partition| Open {
            partition,
            newest_us: i64::MIN,
            silent_since_us: None,
            not_before_us: i64::MIN,
            has_ended: false,
        });
        Self { partitions: partitions.collect(), watermarks, zeros: vec![].into(), is_idle: false }
    }

    /// Asks the partition that is furthest behind of those that may have something: so the times of all stay close together.
    pub(super) fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Fed, String> {
        let open = || self.partitions.iter().enumerate().filter(|(_, open)| !open.has_ended);
        let ready = open().filter(|(_, open)| open.not_before_us <= now_us);
        let Some(place) = ready.min_by_key(|(_, open)| open.newest_us).map(|(place, _)| place) else {
            let next_us = open().map(|(_, open)| open.not_before_us).min();
            return Ok(next_us.map_or(Fed::End, Fed::Nothing));
        };
        let open = &mut self.partitions[place];
        match open.partition.source.poll(rows_max, now_us, refusals).map_err(|error| error.0)? {
            Polled::Rows { columns, .. } if columns.num_rows() == 0 => Ok(Fed::Again),
            Polled::Rows { columns, arrival_us } => {
                open.silent_since_us = None;
                let Some(batch) = open.to_batch(columns, arrival_us, &mut self.zeros, refusals)? else {
                    return Ok(Fed::Again);
                };
                let newest_us = batch.event_time_us.iter().copied().max().unwrap_or(i64::MIN);
                open.newest_us = open.newest_us.max(newest_us);
                self.watermarks.advance(place, open.newest_us.saturating_sub(open.partition.lateness_us));
                self.is_idle = false;
                Ok(Fed::Rows(batch))
            }
            Polled::Nothing(wait) => {
                let since_us = *open.silent_since_us.get_or_insert(now_us);
                if open.partition.idle_timeout_us.is_some_and(|timeout_us| now_us - since_us >= timeout_us) {
                    self.watermarks.idle(place);
                }
                open.not_before_us = now_us.saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX));
                Ok(Fed::Again)
            }
            Polled::End => {
                open.has_ended = true;
                self.watermarks.end(place);
                Ok(Fed::Again)
            }
        }
    }

    /// The watermark of all partitions, if it has advanced.
    pub(super) fn advanced(&mut self) -> Option<i64> {
        self.watermarks.advanced()
    }

    pub(super) fn reached_us(&self) -> Option<i64> {
        self.watermarks.reached_us()
    }

    /// Whether all partitions have just fallen silent.
    pub(super) fn has_become_idle(&mut self) -> bool {
        let is_idle = self.watermarks.is_idle();
        is_idle && !std::mem::replace(&mut self.is_idle, is_idle)
    }

    /// Done and in all, if every partition knows its end.
    pub(super) fn progress(&self) -> Option<(u64, u64)> {
        self.partitions.iter().try_fold((0, 0), |(done, all), open| {
            let (more_done, more) = open.partition.source.progress()?;
            Some((done + more_done, all + more))
        })
    }
}

impl Open {
    /// Rows with their times; nothing if none has a time.
    fn to_batch(
        &self,
        columns: RecordBatch,
        arrival_us: i64,
        zeros: &mut ScalarBuffer<Slot>,
        refusals: &mut Refusals,
    ) -> Result<Option<Batch>, String> {
        let columns = match self.partition.event_time_column {
            Some(time) if columns.column(time).null_count() > 0 => {
                let (kept, refused) = with_time(&columns, time).map_err(|error| error.to_string())?;
                refusals.count(Reason::Decode, refused as u64);
                kept
            }
            _ => columns,
        };
        let rows = columns.num_rows();
        if rows == 0 {
            return Ok(None);
        }
        if zeros.len() < rows {
            *zeros = vec![0; rows.next_power_of_two()].into();
        }
        let arrivals: ScalarBuffer<i64> = vec![arrival_us; rows].into();
        let times = match self.partition.event_time_column.map(|time| times_of(columns.column(time))) {
            Some(times) => times?,
            None => arrivals.clone(),
        };
        Ok(Some(Batch::new(zeros.slice(0, rows), times, arrivals, columns)))
    }
}

fn times_of(column: &ArrayRef) -> Result<ScalarBuffer<i64>, String> {
    let times = column.as_primitive_opt::<TimestampMicrosecondType>();
    times.map(|times| times.values().clone()).ok_or_else(|| {
        format!("the event time column has the type {}, which is not a timestamp in microseconds", column.data_type())
    })
}

/// The rows whose time is not null, and how many are.
fn with_time(columns: &RecordBatch, time: usize) -> Result<(RecordBatch, usize), arrow::error::ArrowError> {
    let keep: BooleanArray = is_not_null(columns.column(time))?;
    let kept = arrow::compute::filter_record_batch(columns, &keep)?;
    let refused = columns.num_rows() - kept.num_rows();
    Ok((kept, refused))
}
