//! The format of saved queries: parts, one after the other, each of queries that were captured together.
//!
//! ```text
//! number of frames (4 bytes) | for each: its length (8 bytes, 0 for none) and its bytes
//! ```
//!
//! Numbers are little-endian; frames are [`StateFrame`]s with a version and a checksum of their own. The first frame
//! lists the queries. Its column `slot` numbers the slots of the part from 0, and the other frames, one for each
//! operator that has state of them, refer to these numbers. Each has the address of its operator; those of earlier
//! versions go by the place of the operator in its chain. `query` is a query in the slot, one row for each query that
//! shares it. `applied` and `results` are the progress of the slot, and `altered` is the number of the last change of
//! parameters in it. If a query is in several parts, the last one counts, even if it has no state there.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt16Array, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, UInt64Type};
use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use rivulet_dataflow::address::{place, place_by_order};
use rivulet_dataflow::slot_host::{Mark, SlotSnapshot, with_slots};
use rivulet_dataflow::{Address, Chain, QueryId, StateError, StateFrame};

/// The name of the frame of queries, and the version of a part. Version 1 has no `altered`. Up to version 2 state has
/// no addresses, and each operator of the chain has a frame, which may be empty.
const QUERIES: (&str, u32) = ("queries", 3);
const WITHOUT_ALTERED: u32 = 1;
const WITHOUT_ADDRESSES: u32 = 2;

/// More operators than any application has; a higher number of frames is damage.
const FRAMES_MAX: u32 = 4_096;

/// More slots than a part of any version has.
const SLOTS_MAX: usize = 4_096;

/// Appends a part; returns the number of its slots. With `everything`, slots that are as good as new are left out.
pub(super) fn write(slice: SlotSnapshot, everything: bool, out: &mut Vec<u8>) -> Result<usize, StateError> {
    let SlotSnapshot { slots, marks, queries, frames } = slice;
    let places: Vec<u32> = (0..slots.len() as u32).collect();
    let frames = with_slots(frames, &slots, &places)?;
    let mut is_kept: Vec<bool> =
        marks.iter().map(|mark| !everything || mark.applied > 0 || mark.results > 0 || mark.altered > 0).collect();
    frames.iter().flatten().flat_map(|frame| frame.slots()).for_each(|&place| is_kept[place as usize] = true);
    let kept = is_kept.iter().filter(|is_kept| **is_kept).count();
    if kept == 0 {
        return Ok(0);
    }
    let rows: Vec<(u32, QueryId)> = queries.into_iter().filter(|(place, _)| is_kept[*place as usize]).collect();
    let of_marks = |value: fn(&Mark) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|(place, _)| value(&marks[*place as usize]))))
    };
    let schema = Schema::new(vec![
        Field::new("slot", DataType::UInt32, false),
        Field::new("key_group", DataType::UInt16, false),
        Field::new("query", DataType::UInt64, false),
        Field::new("applied", DataType::UInt64, false),
        Field::new("results", DataType::UInt64, false),
        Field::new("altered", DataType::UInt64, false),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|(place, _)| *place))),
        Arc::new(UInt16Array::from(vec![0; rows.len()])),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|(_, query)| *query))),
        of_marks(|mark| mark.applied),
        of_marks(|mark| mark.results),
        of_marks(|mark| mark.altered),
    ];
    let head = StateFrame::new(QUERIES.0, QUERIES.1, RecordBatch::try_new(Arc::new(schema), columns)?);
    // Encoded before anything is appended, so that a failure appends nothing.
    let mut encoded = vec![head.to_bytes()?];
    for frame in frames.iter().flatten().filter(|frame| frame.rows.num_rows() > 0) {
        encoded.push(frame.to_bytes()?);
    }
    out.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
    for bytes in encoded {
        out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        out.extend_from_slice(&bytes);
    }
    Ok(kept)
}

/// The saved queries of a group, oldest part first.
#[derive(Debug, Default)]
pub struct Saved {
    parts: Vec<Part>,
    /// Each query with the part that counts for it and the index of its slot there, sorted by query.
    newest: Vec<(QueryId, u32, u32)>,
    /// The same, sorted by part.
    by_part: Vec<(QueryId, u32, u32)>,
}

#[derive(Debug)]
struct Part {
    /// The version of its form.
    version: u32,
    /// The progress of each slot.
    marks: Vec<Mark>,
    /// Parts of the memory of their piece; `None` if they were released.
    frames: Mutex<Option<Vec<Bytes>>>,
}

impl Saved {
    /// Parses the pieces of the captures of one group, in order.
    ///
    /// # Errors
    /// Bytes in another format, or of a later version. State is read only when it is restored.
    pub fn read(pieces: impl IntoIterator<Item = Bytes>) -> Result<Self, StateError> {
        let mut saved = Self::default();
        for mut rest in pieces {
            while !rest.is_empty() {
                saved.read_part(&mut rest)?;
            }
        }
        // Sorted with the newest part first, of which the others are then removed.
        saved.newest.sort_unstable_by_key(|&(query, part, _)| (query, std::cmp::Reverse(part)));
        saved.newest.dedup_by_key(|(query, ..)| *query);
        saved.by_part = saved.newest.clone();
        saved.by_part.sort_unstable_by_key(|&(_, part, place)| (part, place));
        Ok(saved)
    }

    fn read_part(&mut self, rest: &mut Bytes) -> Result<(), StateError> {
        let frames = u32::from_le_bytes(take(rest)?);
        if frames == 0 || frames > FRAMES_MAX {
            return Err(corrupt("a part of saved state has no number of frames"));
        }
        let mut of_part = Vec::with_capacity(frames as usize);
        for _ in 0..frames {
            let length = usize::try_from(u64::from_le_bytes(take(rest)?)).ok().filter(|length| *length <= rest.len());
            of_part.push(rest.split_to(length.ok_or_else(|| corrupt("a part of saved state ends early"))?));
        }
        let head = StateFrame::from_bytes(&of_part.remove(0))?;
        head.expect(QUERIES.0, QUERIES.1)?;
        let column = |name: &str| -> Result<&[u64], StateError> {
            let column = head.rows.column_by_name(name).and_then(|column| column.as_primitive_opt::<UInt64Type>());
            Ok(column.ok_or_else(|| corrupt("the list of saved queries lacks a column"))?.values())
        };
        let (queries, applied, results) = (column("query")?, column("applied")?, column("results")?);
        let altered = if head.version > WITHOUT_ALTERED { column("altered")? } else { &[] };
        let part = u32::try_from(self.parts.len()).map_err(|_| corrupt("there are more parts than anybody writes"))?;
        let slots = head.slots();
        let places = slots.iter().max().map_or(0, |last| *last as usize + 1);
        if places > SLOTS_MAX {
            return Err(corrupt("a part of saved state has more slots than anybody writes"));
        }
        let mut marks = vec![Mark::default(); places];
        for row in 0..slots.len() {
            let altered = altered.get(row).copied().unwrap_or(0);
            marks[slots[row] as usize] = Mark { changed: false, applied: applied[row], results: results[row], altered };
            self.newest.push((queries[row], part, slots[row]));
        }
        self.parts.push(Part { version: head.version, marks, frames: Mutex::new(Some(of_part)) });
        Ok(())
    }

    /// The number of saved queries.
    pub fn queries(&self) -> usize {
        self.newest.len()
    }

    /// The highest saved query number.
    pub fn last(&self) -> Option<QueryId> {
        self.newest.last().map(|(query, ..)| *query)
    }

    /// For a saved query a number that is equal for the queries it shared a slot with.
    pub fn shared(&self, query: QueryId) -> Option<u64> {
        let place = self.newest.binary_search_by_key(&query, |(query, ..)| *query).ok()?;
        let (_, part, place) = self.newest[place];
        Some(u64::from(part) << 32 | u64::from(place))
    }

    /// The number of the last change of parameters in the saved state of a query; 0 if there is none.
    pub fn altered(&self, query: QueryId) -> u64 {
        let place = self.newest.binary_search_by_key(&query, |(query, ..)| *query);
        place.map_or(0, |place| {
            let (_, part, place) = self.newest[place];
            self.parts[part as usize].marks[place as usize].altered
        })
    }

    /// The highest number of a change of parameters in any saved state; `None` if there is none.
    pub fn altered_max(&self) -> Option<u64> {
        let marks = self.parts.iter().flat_map(|part| &part.marks);
        marks.map(|mark| mark.altered).max().filter(|altered| *altered > 0)
    }

    /// Reads the state too, without restoring it.
    ///
    /// # Errors
    /// A part that cannot be read.
    pub fn check(&self) -> Result<(), StateError> {
        (0..self.parts()).try_for_each(|part| self.read_frames(part).map(drop))
    }

    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The queries for which a part counts, each with the index of its slot in the part.
    pub(super) fn newest_of(&self, part: usize) -> impl Iterator<Item = (QueryId, u32)> + '_ {
        let from = self.by_part.partition_point(|(_, other, _)| (*other as usize) < part);
        let of_part = self.by_part[from..].iter().take_while(move |(_, other, _)| *other as usize == part);
        of_part.map(|(query, _, place)| (*query, *place))
    }

    pub(super) fn marks(&self, part: usize, places: &[u32]) -> Vec<Mark> {
        places.iter().map(|&place| self.parts[part].marks[place as usize]).collect()
    }

    /// The state of a part for each of the operators with these addresses, which wrote it.
    pub(super) fn frames(
        &self,
        part: usize,
        now: &[Option<Arc<Address>>],
    ) -> Result<Vec<Option<StateFrame>>, StateError> {
        let frames = self.read_frames(part)?;
        match self.parts[part].version <= WITHOUT_ADDRESSES {
            true => Ok(frames),
            false => placed(frames.into_iter().flatten().collect(), now),
        }
    }

    /// Whether the operators of this chain, which wrote it, may have all state that counts. They get state without
    /// rows, so that each looks at its version.
    ///
    /// # Errors
    /// State that none of them may have, or of a later version. Damage is found when the state is restored.
    pub fn fits(&self, chain: &mut Chain) -> Result<(), StateError> {
        let counts =
            |part: &usize| self.parts[*part].version > WITHOUT_ADDRESSES && self.newest_of(*part).next().is_some();
        for part in (0..self.parts()).filter(counts) {
            // The store has looked at the checksum of the piece.
            let read = self.encoded(part)?.iter().map(|bytes| StateFrame::without_rows(bytes)).collect();
            let placed = Result::and_then(read, |frames| placed(frames, chain.addresses()));
            let imported = placed.and_then(|frames| chain.import_state(&frames));
            if let Err(error @ (StateError::Mismatch(_) | StateError::Version { .. })) = imported {
                return Err(error);
            }
        }
        Ok(())
    }

    fn encoded(&self, part: usize) -> Result<Vec<Bytes>, StateError> {
        let frames = self.parts[part].frames.lock().clone();
        frames.ok_or_else(|| corrupt("a part of saved state was restored before, and released"))
    }

    fn read_frames(&self, part: usize) -> Result<Vec<Option<StateFrame>>, StateError> {
        let read = |bytes: &Bytes| (!bytes.is_empty()).then(|| StateFrame::from_bytes(bytes)).transpose();
        self.encoded(part)?.iter().map(read).collect()
    }

    /// Gives up the state of a part, which has been restored.
    pub(super) fn release(&self, part: usize) {
        self.parts[part].frames.lock().take();
    }
}

/// The frame for each operator. The text is the one that saved them, so where addresses are spelled in another way now,
/// the order tells.
fn placed(frames: Vec<StateFrame>, now: &[Option<Arc<Address>>]) -> Result<Vec<Option<StateFrame>>, StateError> {
    let saved: Option<Vec<&Address>> = frames.iter().map(|frame| frame.address.as_deref()).collect();
    let saved = saved.ok_or_else(|| corrupt("a part of saved state lacks an address"))?;
    let places = place(&saved, now);
    let places = places.or_else(|error| place_by_order(&saved, now).ok_or(StateError::Mismatch(error)))?;
    let mut placed = vec![None; now.len()];
    for (place, frame) in places.into_iter().zip(frames) {
        if let Some(at) = place {
            placed[at] = Some(StateFrame { address: now[at].clone(), ..frame });
        }
    }
    Ok(placed)
}

fn take<const BYTES: usize>(rest: &mut Bytes) -> Result<[u8; BYTES], StateError> {
    let taken = *rest.first_chunk().ok_or_else(|| corrupt("a part of saved state ends early"))?;
    rest.advance(BYTES);
    Ok(taken)
}

fn corrupt(what: &str) -> StateError {
    StateError::Corrupt(what.to_owned())
}

#[cfg(test)]
mod tests {
    use rivulet_dataflow::{Context, Element, Operator, OperatorError};

    use super::*;

    /// Knows state of version 1 of sums.
    struct Sum;

    impl Operator for Sum {
        fn process(&mut self, _: Element, _: &mut Context<'_>) -> Result<(), OperatorError> {
            Ok(())
        }

        fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
            assert_eq!(frame.rows.num_rows(), 0);
            frame.expect("sum", 1)
        }
    }

    /// A chain of sums with these keys.
    fn chain(keys: &[&str]) -> Chain {
        let operators = keys.iter().map(|_| Box::new(Sum) as Box<dyn Operator>).collect();
        Chain::new(operators).with_addresses(keys.iter().map(|key| Some(address(key))).collect())
    }

    fn address(key: &str) -> Arc<Address> {
        Arc::new(Address { keys: vec![key.into()], ..Address::of("sum") })
    }

    /// State of slot 7 for an operator with this key.
    fn frame(key: &str) -> StateFrame {
        let columns: [(&str, ArrayRef, bool); 2] = [
            ("slot", Arc::new(UInt32Array::from(vec![7])), false),
            ("key_group", Arc::new(UInt16Array::from(vec![0])), false),
        ];
        let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        StateFrame { address: Some(address(key)), ..StateFrame::new("sum", 1, rows) }
    }

    #[test]
    fn state_goes_where_its_operator_stands_now() {
        let frames = vec![None, Some(frame("room")), None, Some(frame("floor"))];
        let slice = SlotSnapshot { slots: vec![7], marks: vec![Mark::default()], queries: vec![(0, 3)], frames };
        let mut piece = Vec::new();
        assert_eq!(write(slice, true, &mut piece).unwrap(), 1);
        let saved = Saved::read([piece.into()]).unwrap();
        let of = |now: &[&str]| {
            let now: Vec<_> = now.iter().map(|key| (!key.is_empty()).then(|| address(key))).collect();
            let keys = |frame: Option<StateFrame>| frame.map(|frame| frame.address.unwrap().keys.concat());
            saved.frames(0, &now).map(|frames| frames.into_iter().map(keys).collect::<Vec<_>>())
        };
        let all =
            |keys: &[&str]| keys.iter().map(|key| (!key.is_empty()).then(|| (*key).to_owned())).collect::<Vec<_>>();
        for now in [&["", "room", "", "floor"][..], &["floor", "room"], &["", "", "room", "floor", ""]] {
            assert_eq!(of(now).unwrap(), all(now), "{now:?}");
        }
        assert_eq!(of(&["room", "new", "floor"]).unwrap(), [Some("room".into()), None, Some("floor".into())]);
        // In another spelling by order, where there is only one.
        assert_eq!(of(&["", "ROOM", "", "FLOOR"]).unwrap(), all(&["", "ROOM", "", "FLOOR"]));
        assert!(of(&["ROOM", "new", "FLOOR"]).is_err());
        let fits = |keys: &[&str]| saved.fits(&mut chain(keys)).is_ok();
        assert!(fits(&["room", "floor"]) && fits(&["room", "FLOOR"]) && !fits(&["room"]));
        let error = of(&["room"]).unwrap_err().to_string();
        assert_eq!(error, "no operator has the state of 'sum (by floor)' any more");
        assert!(saved.check().is_ok());
    }

    #[test]
    fn state_that_its_operator_refuses_does_not_fit() {
        let frames = vec![Some(StateFrame { operator: "avg".into(), ..frame("room") })];
        let slice = SlotSnapshot { slots: vec![7], marks: vec![Mark::default()], queries: vec![(0, 3)], frames };
        let mut piece = Vec::new();
        write(slice, true, &mut piece).unwrap();
        let found = Saved::read([piece.into()]).unwrap().fits(&mut chain(&["room"]));
        assert!(matches!(found, Err(StateError::Mismatch(_))), "{found:?}");
    }

    #[test]
    fn state_of_a_later_version_does_not_fit() {
        for version in 1..3 {
            let frames = vec![Some(frame("room")), Some(StateFrame { version, ..frame("floor") })];
            let slice = SlotSnapshot { slots: vec![7], marks: vec![Mark::default()], queries: vec![(0, 3)], frames };
            let mut piece = Vec::new();
            write(slice, true, &mut piece).unwrap();
            let found = Saved::read([piece.into()]).unwrap().fits(&mut chain(&["room", "floor"]));
            assert_eq!(matches!(found, Err(StateError::Version { found: 2, known: 1, .. })), version == 2, "{found:?}");
        }
    }
}
