//! State in the one form in which it is saved, moved, spilled and migrated: a versioned frame of Arrow rows.
//!
//! The first two columns of a frame are always `slot` (`UInt32`) and `key_group` (`UInt16`); the others belong to the
//! operator. An operator writes the hash of the key to `key_group`, and its chain turns the hash into the key group.
//! Keys are stored as columns, never as hashes: hash seeds are not a storage format.

use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, UInt16Array, UInt32Array};
use arrow::compute::{concat_batches, filter_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Schema, UInt16Type, UInt32Type};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use xxhash_rust::xxh3::xxh3_64;

use crate::{Address, KeyGroup, KeyGroups, KeyHash, SLOTS_MAX, Slot, hash_keys, unmarked};

/// Which state to export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateSelection {
    /// Everything.
    All,
    /// The state of these slots (ascending), for moving, splitting and spilling small queries.
    Slots(Vec<Slot>),
    /// The state of these key groups, for dividing keys among instances.
    KeyGroups(KeyGroups, Range<u16>),
}

impl StateSelection {
    /// Whether state of this slot and key is selected.
    pub fn selects(&self, slot: Slot, key: KeyHash) -> bool {
        match self {
            Self::All => true,
            Self::Slots(slots) => slots.binary_search(&slot).is_ok(),
            Self::KeyGroups(..) => self.selects_key(key),
        }
    }

    /// Calls `each` with the slots whose state is selected, or may be, of so many slots. A selected slot may be higher.
    pub fn for_each_slot(&self, slots: usize, each: impl FnMut(usize)) {
        match self {
            Self::Slots(selected) => selected.iter().map(|&slot| slot as usize).for_each(each),
            Self::All | Self::KeyGroups(..) => (0..slots).for_each(each),
        }
    }

    /// Whether state of this key is selected, if its slot is.
    pub fn selects_key(&self, key: KeyHash) -> bool {
        match self {
            Self::All | Self::Slots(_) => true,
            Self::KeyGroups(key_groups, range) => range.contains(&key_groups.of(key).index()),
        }
    }
}

/// Exported state of one operator.
#[derive(Clone, Debug, PartialEq)]
pub struct StateFrame {
    /// The kind of operator that wrote it.
    pub operator: String,
    /// The version of that operator's state format.
    pub version: u32,
    /// The address of that operator. State that was saved by an early version has none, and neither has state on its
    /// way to another version of a query.
    pub address: Option<Arc<Address>>,
    /// The rows: `slot`, `key_group`, then the operator's columns.
    pub rows: RecordBatch,
}

/// The first bytes of an encoded frame; a digit follows, the version of the encoding. Version 1 has no address. A
/// checksum follows, because Arrow's reader trusts its input.
const MARK: &[u8; 7] = b"RVSTATE";
const FORM: u32 = 2;
const HEADER_BYTES: usize = 16;

const OPERATOR: &str = "rivulet.operator";
const VERSION: &str = "rivulet.state_version";
const ADDRESS: &str = "rivulet.address";

impl StateFrame {
    /// Makes a frame of these rows.
    ///
    /// # Panics
    /// If the rows do not begin with the columns `slot` and `key_group`.
    pub fn new(operator: &str, version: u32, rows: RecordBatch) -> Self {
        check_leading_columns(rows.schema_ref()).expect("an operator exports frames in the common form");
        Self { operator: operator.to_owned(), version, address: None, rows }
    }

    /// The same state for another operator, which a map of versions has found for it.
    #[must_use]
    pub fn without_address(self) -> Self {
        Self { address: None, ..self }
    }

    /// The slot of each row.
    pub fn slots(&self) -> &[Slot] {
        self.rows.column(0).as_primitive::<UInt32Type>().values()
    }

    /// The same state with other slot numbers, for another task.
    ///
    /// # Errors
    /// A row whose slot has no new number.
    pub fn with_slots(mut self, new: impl Fn(Slot) -> Option<Slot>) -> Result<Self, StateError> {
        let slots: Option<Vec<Slot>> = self.slots().iter().map(|&slot| new(slot)).collect();
        let slots = slots.ok_or_else(|| StateError::Mismatch("state of a slot that is not moved".into()))?;
        let mut columns = self.rows.columns().to_vec();
        columns[0] = Arc::new(UInt32Array::from(slots));
        self.rows = RecordBatch::try_new(self.rows.schema(), columns)?;
        Ok(self)
    }

    /// The same state with the key groups of these keys. Each column has one value for each row.
    ///
    /// # Errors
    /// A column of a type that cannot be a key.
    pub fn with_keys(self, keys: &[ArrayRef], key_groups: KeyGroups) -> Result<Self, StateError> {
        let mut hashes = Vec::new();
        hash_keys(keys, self.rows.num_rows(), &mut hashes)?;
        self.with_key_groups(hashes.into_iter().map(|hash| key_groups.of(KeyHash::of_hash(hash))))
    }

    /// Turns the hashes of keys that an operator has exported into key groups.
    ///
    /// # Errors
    /// None is known: the columns keep their types.
    pub fn grouped(self, key_groups: KeyGroups) -> Result<Self, StateError> {
        let hashes = self.rows.column(1).clone();
        let hashes = hashes.as_primitive::<UInt16Type>().values().iter();
        self.with_key_groups(hashes.map(|&bits| key_groups.of(KeyHash::from_bits(bits))))
    }

    fn with_key_groups(mut self, of_rows: impl Iterator<Item = KeyGroup>) -> Result<Self, StateError> {
        let mut columns = self.rows.columns().to_vec();
        columns[1] = Arc::new(UInt16Array::from_iter_values(of_rows.map(KeyGroup::index)));
        self.rows = RecordBatch::try_new(self.rows.schema(), columns)?;
        Ok(self)
    }

    /// The part of the state that is selected.
    pub fn select(&self, selection: &StateSelection) -> Result<Self, StateError> {
        if *selection == StateSelection::All {
            return Ok(self.clone());
        }
        let keep: BooleanArray = self
            .slots()
            .iter()
            .zip(self.key_groups())
            .map(|(&slot, &key_group)| Some(selection.selects(slot, KeyHash::from_bits(key_group))))
            .collect();
        self.filter(&keep)
    }

    /// The rows for which `keep` is true.
    ///
    /// # Errors
    /// Another number of values than rows.
    pub fn filter(&self, keep: &BooleanArray) -> Result<Self, StateError> {
        Ok(Self { rows: filter_record_batch(&self.rows, keep)?, ..self.clone() })
    }

    /// Divides the state into `parts`: each row goes to the part that has its key group, in order. Rows are looked at
    /// once, however many parts there are, and a part is made when it is asked for.
    ///
    /// # Errors
    /// A key group that no part has: a frame from a disk may have any number there.
    pub fn split(
        &self,
        parts: usize,
        part_of: impl Fn(KeyGroup) -> usize,
    ) -> Result<impl Iterator<Item = Result<Self, StateError>>, StateError> {
        let mut rows_of: Vec<Vec<u32>> = vec![Vec::new(); parts];
        for (row, &key_group) in (0u32..).zip(self.key_groups()) {
            let rows = rows_of.get_mut(part_of(KeyGroup::from_index(key_group)));
            rows.ok_or_else(|| StateError::Corrupt(format!("there is no key group {key_group}")))?.push(row);
        }
        let part = move |rows: Vec<u32>| {
            let rows = take_record_batch(&self.rows, &UInt32Array::from(rows))?;
            Ok(Self { operator: self.operator.clone(), version: self.version, address: self.address.clone(), rows })
        };
        Ok(rows_of.into_iter().map(part))
    }

    /// Adds the state of another instance of the same operator.
    pub fn append(&mut self, other: &Self) -> Result<(), StateError> {
        other.expect(&self.operator, self.version)?;
        self.rows = concat_batches(self.rows.schema_ref(), [&self.rows, &other.rows])?;
        Ok(())
    }

    /// The state of several instances, or of several parts of one instance, as one frame; `None` if there are no
    /// frames.
    pub fn concat(frames: &[Self]) -> Result<Option<Self>, StateError> {
        let Some((first, others)) = frames.split_first() else { return Ok(None) };
        others.iter().try_for_each(|other| other.expect(&first.operator, first.version))?;
        let rows = concat_batches(first.rows.schema_ref(), frames.iter().map(|frame| &frame.rows))?;
        let address = first.address.clone();
        Ok(Some(Self { operator: first.operator.clone(), version: first.version, address, rows }))
    }

    /// The key group number of each row.
    pub fn key_groups(&self) -> &[u16] {
        self.rows.column(1).as_primitive::<UInt16Type>().values()
    }

    /// Fails unless this frame was written by `operator` in a version up to `version_max`.
    pub fn expect(&self, operator: &str, version_max: u32) -> Result<(), StateError> {
        if self.operator != operator {
            return Err(StateError::Mismatch(format!("state of '{}' given to '{operator}'", self.operator)));
        }
        if self.version > version_max {
            return Err(StateError::Version { operator: operator.into(), found: self.version, known: version_max });
        }
        Ok(())
    }

    /// Fails as [`StateFrame::expect`] does; with the message `mismatch` if the columns differ from `expected`; or if a
    /// row has no slot, no key group, or a slot from [`SLOTS_MAX`] on.
    pub fn expect_rows(
        &self,
        operator: &str,
        version_max: u32,
        expected: &Schema,
        mismatch: &str,
    ) -> Result<(), StateError> {
        self.expect(operator, version_max)?;
        if self.rows.schema_ref().fields() != expected.fields() {
            return Err(StateError::Mismatch(mismatch.into()));
        }
        if self.rows.columns()[..2].iter().any(|column| column.null_count() > 0) {
            return Err(StateError::Corrupt("a slot or key group is missing".into()));
        }
        match self.slots().iter().any(|&slot| slot as usize >= SLOTS_MAX) {
            true => Err(StateError::Corrupt("a slot number is too high".into())),
            false => Ok(()),
        }
    }

    /// Encodes the frame: a mark, a checksum (XXH3, 64 bits), and an Arrow IPC stream.
    pub fn to_bytes(&self) -> Result<Vec<u8>, StateError> {
        let mut metadata = self.rows.schema_ref().metadata().clone();
        metadata.insert(OPERATOR.into(), self.operator.clone());
        metadata.insert(VERSION.into(), self.version.to_string());
        if let Some(address) = &self.address {
            let address = serde_json::to_string(&**address).expect("texts and numbers are always JSON");
            metadata.insert(ADDRESS.into(), address);
        }
        let schema = Arc::new(Schema::new_with_metadata(self.rows.schema_ref().fields().clone(), metadata));
        let rows = self.rows.clone().with_schema(schema.clone())?;
        let mut writer = StreamWriter::try_new(vec![0; HEADER_BYTES], &schema)?;
        writer.write(&rows)?;
        let mut bytes = writer.into_inner()?;
        let checksum = xxh3_64(&bytes[HEADER_BYTES..]);
        bytes[..MARK.len()].copy_from_slice(MARK);
        bytes[MARK.len()] = b'0' + FORM as u8;
        bytes[8..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
        Ok(bytes)
    }

    /// Decodes the output of [`StateFrame::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StateError> {
        let (checksum, body) = parts_of(bytes)?;
        match checksum == xxh3_64(body) {
            true => Self::read(body, true),
            false => Err(not_whole()),
        }
    }

    /// The same without the rows, in a time that does not depend on their number: the checksum is not looked at. For
    /// bytes with another checksum around them, which was.
    ///
    /// # Errors
    /// Bytes that are no frame, or are of a later version.
    pub fn without_rows(bytes: &[u8]) -> Result<Self, StateError> {
        Self::read(parts_of(bytes)?.1, false)
    }

    fn read(body: &[u8], has_rows: bool) -> Result<Self, StateError> {
        let mut reader = StreamReader::try_new(Cursor::new(body), None)?;
        let schema = reader.schema();
        check_leading_columns(&schema)?;
        let corrupt = |what: &str| StateError::Corrupt(what.to_owned());
        let mut metadata = schema.metadata().clone();
        let operator = metadata.remove(OPERATOR).ok_or_else(|| corrupt("no operator is named"))?;
        let version = metadata
            .remove(VERSION)
            .and_then(|version| version.parse().ok())
            .ok_or_else(|| corrupt("no version is given"))?;
        let read_address = |text: String| serde_json::from_str(&text).map(Arc::new);
        let address = metadata.remove(ADDRESS).map(read_address).transpose();
        let address = address.map_err(|error| corrupt(&format!("the address: {error}")))?;
        let fields: Vec<_> = schema.fields().iter().map(|field| unmarked(field)).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
        let rows = match has_rows {
            true => {
                let rows = reader.next().ok_or_else(|| corrupt("the rows are missing"))??;
                RecordBatch::try_new(schema, rows.columns().to_vec())?
            }
            false => RecordBatch::new_empty(schema),
        };
        Ok(Self { operator, version, address, rows })
    }
}

/// The checksum in an encoded frame, and the Arrow IPC stream that it is of.
fn parts_of(bytes: &[u8]) -> Result<(u64, &[u8]), StateError> {
    let form = bytes.strip_prefix(MARK).and_then(|rest| char::from(*rest.first()?).to_digit(10));
    if let Some(found) = form.filter(|found| *found > FORM) {
        return Err(StateError::Version { operator: "a frame".into(), found, known: FORM });
    }
    bytes
        .get(MARK.len() + 1..)
        .filter(|_| form.is_some_and(|form| form > 0))
        .and_then(|rest| rest.split_first_chunk::<8>())
        .map(|(checksum, body)| (u64::from_le_bytes(*checksum), body))
        .ok_or_else(not_whole)
}

fn not_whole() -> StateError {
    StateError::Corrupt("the bytes are not a whole state frame".into())
}

fn check_leading_columns(schema: &Schema) -> Result<(), StateError> {
    let leads = |index: usize, name: &str, data_type: DataType| {
        schema.fields().get(index).is_some_and(|field| field.name() == name && *field.data_type() == data_type)
    };
    if leads(0, "slot", DataType::UInt32) && leads(1, "key_group", DataType::UInt16) {
        Ok(())
    } else {
        Err(StateError::Corrupt("a state frame begins with the columns slot and key_group".into()))
    }
}

/// State that cannot be exported or imported.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The state belongs to another operator or another schema.
    #[error("{0}")]
    Mismatch(String),
    /// The state was written by a later version.
    #[error(
        "state of '{operator}' has version {found}, and this program knows versions up to {known}\nhint: use the version of the program that wrote it, or a later one"
    )]
    Version {
        /// The operator.
        operator: String,
        /// The version in the frame.
        found: u32,
        /// The highest version that this program reads.
        known: u32,
    },
    /// The bytes are not a frame.
    #[error("corrupt state: {0}")]
    Corrupt(String),
    /// The bytes could not be stored or read back.
    #[error("{0}")]
    Storage(String),
    /// Arrow could not read or write the frame.
    #[error("corrupt state: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, UInt16Array};
    use arrow::datatypes::Field;

    use super::*;

    fn frame() -> StateFrame {
        let schema = Schema::new(vec![
            Field::new("slot", DataType::UInt32, false),
            Field::new("key_group", DataType::UInt16, false),
            Field::new("sum", DataType::Float64, false),
        ]);
        let rows = RecordBatch::try_new(
            Arc::new(schema),
            vec![
                Arc::new(UInt32Array::from(vec![1, 5])),
                Arc::new(UInt16Array::from(vec![0, 9])),
                Arc::new(Float64Array::from(vec![0.5, 1.5])),
            ],
        )
        .unwrap();
        StateFrame::new("sum", 3, rows)
    }

    #[test]
    fn bytes_round_trip() {
        let address = Address { keys: vec!["room".into()], window: Some("tumble".into()), ..Address::of("sum") };
        for address in [None, Some(Arc::new(address))] {
            let frame = StateFrame { address, ..frame() };
            assert_eq!(StateFrame::from_bytes(&frame.to_bytes().unwrap()).unwrap(), frame);
        }
        // The first form differs in having no address.
        let mut bytes = frame().to_bytes().unwrap();
        bytes[7] = b'1';
        assert_eq!(StateFrame::from_bytes(&bytes).unwrap(), frame());
    }

    #[test]
    fn a_frame_without_its_rows_is_known_without_reading_them() {
        let frame = StateFrame { address: Some(Arc::new(Address::of("sum"))), ..frame() };
        let mut bytes = frame.to_bytes().unwrap();
        let last = bytes.windows(8).rposition(|found| found == 1.5_f64.to_le_bytes()).unwrap();
        bytes[last] ^= 1;
        assert!(StateFrame::from_bytes(&bytes).is_err(), "a row is damaged");
        let head = StateFrame::without_rows(&bytes).unwrap();
        assert_eq!(head, StateFrame { rows: RecordBatch::new_empty(frame.rows.schema()), ..frame });
        bytes[7] = b'3';
        assert!(matches!(StateFrame::without_rows(&bytes), Err(StateError::Version { found: 3, .. })));
        assert!(StateFrame::without_rows(b"hello, this is no frame").is_err());
    }

    #[test]
    fn what_is_selected_and_put_together_again_is_the_same() {
        let (one, mut other) = (
            frame().select(&StateSelection::Slots(vec![1])).unwrap(),
            frame().select(&StateSelection::Slots(vec![5])).unwrap(),
        );
        assert_eq!((one.slots(), other.slots()), (&[1][..], &[5][..]));
        other.append(&one).unwrap();
        assert_eq!(other.slots(), [5, 1]);
        assert_eq!(StateFrame::concat(&[one.clone(), other.clone()]).unwrap().unwrap().slots(), [1, 5, 1]);
        assert!(StateFrame::concat(&[]).unwrap().is_none());
        let parts = other.split(3, |key_group| if key_group.index() == 9 { 2 } else { 0 }).unwrap();
        let parts: Vec<StateFrame> = parts.map(Result::unwrap).collect();
        assert_eq!(parts.iter().map(StateFrame::slots).collect::<Vec<_>>(), [&[1][..], &[], &[5]]);
        other.operator = "count".into();
        assert!(StateFrame::concat(&[one, other]).is_err());
    }

    #[test]
    fn a_key_group_that_no_instance_has_is_an_error() {
        let split = |key_groups: KeyGroups, instances: usize| {
            let frame = StateFrame::from_bytes(&frame().to_bytes().unwrap()).unwrap();
            let parts = frame.split(instances, |key_group| key_groups.instance(key_group, instances));
            parts.map(|parts| parts.map(|part| part.unwrap().rows.num_rows()).collect::<Vec<_>>())
        };
        // The frame has rows of the key groups 0 and 9.
        assert_eq!(split(KeyGroups::new(16), 2).unwrap(), [1, 1]);
        for (count, instances) in [(8, 2), (8, 3), (1, 1), (2, 300)] {
            let error = split(KeyGroups::new(count), instances).unwrap_err();
            assert_eq!(error.to_string(), "corrupt state: there is no key group 9", "{count} {instances}");
        }
    }

    #[test]
    fn slots_are_renumbered_all_or_none() {
        let moved = frame().with_slots(|slot| Some(slot + 10)).unwrap();
        assert_eq!((moved.slots(), moved.key_groups()), (&[11, 15][..], &[0, 9][..]));
        assert!(frame().with_slots(|slot| (slot == 1).then_some(0)).is_err());
    }

    #[test]
    fn broken_bytes_are_an_error_not_a_panic() {
        let bytes = frame().to_bytes().unwrap();
        for cut in [0, 1, 8, bytes.len() / 2] {
            assert!(StateFrame::from_bytes(&bytes[..cut]).is_err());
        }
        assert!(StateFrame::from_bytes(b"hello, this is no frame").is_err());
        for place in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[place] ^= 0x10;
            assert!(StateFrame::from_bytes(&broken).is_err(), "byte {place}");
        }
    }

    #[test]
    fn a_later_version_is_refused_with_a_hint() {
        let error = frame().expect("sum", 2).unwrap_err().to_string();
        assert!(error.contains("version 3") && error.contains("hint:"), "{error}");
        assert!(frame().expect("sum", 3).is_ok());
        assert!(frame().expect("count", 3).is_err());
        let mut bytes = frame().to_bytes().unwrap();
        bytes[7] = b'3';
        let error = StateFrame::from_bytes(&bytes).unwrap_err().to_string();
        assert!(error.contains("version 3") && error.contains("hint:"), "{error}");
    }

    #[test]
    fn selection_by_slot_and_key_group() {
        let (key, key_groups) = (KeyHash::of(b"key"), KeyGroups::default());
        assert!(StateSelection::All.selects(1, key));
        assert!(StateSelection::Slots(vec![1, 4]).selects(4, key));
        assert!(!StateSelection::Slots(vec![1, 4]).selects(2, key));
        let index = key_groups.of(key).index();
        assert!(StateSelection::KeyGroups(key_groups, index..index + 1).selects(0, key));
        assert!(!StateSelection::KeyGroups(key_groups, 0..0).selects(0, key));
    }
}
