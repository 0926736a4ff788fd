//! The state of one operator for the queries in the spilled task: on disk, with four bytes in memory for each slot.
//!
//! It is an operator itself, which exports state from the file and imports state into it. So a query moves to the
//! spilled task and back in the same way as between any two tasks.

use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_dataflow::{
    Context, Control, Element, Operator, OperatorError, Slot, StateError, StateFrame, StateSelection,
};

use super::alarms::{Alarms, NEVER};
use super::file::{Extent, SpillFile};

/// How many slots share a block. Smaller blocks have more overhead; larger ones take longer to read.
const BLOCK_SLOTS: usize = 128;

/// The block of a slot without state.
const NONE: u32 = u32::MAX;

/// A frame in the file.
struct Block {
    extent: Extent,
    /// Slots whose state was written to it.
    written: u32,
    /// Slots whose state is still live.
    live: u32,
}

pub(crate) struct SpilledState {
    file: Arc<SpillFile>,
    blocks: Vec<Option<Block>>,
    free: Vec<u32>,
    /// The block of each slot.
    by_slot: Vec<u32>,
    /// The timers of slots, kept by one operator of the chain for all of them.
    alarms: Option<Arc<Mutex<Alarms>>>,
}

impl SpilledState {
    pub(crate) fn new(file: Arc<SpillFile>, alarms: Option<Arc<Mutex<Alarms>>>) -> Self {
        Self { file, blocks: Vec::new(), free: Vec::new(), by_slot: Vec::new(), alarms }
    }

    fn block_of(&self, slot: Slot) -> Option<u32> {
        self.by_slot.get(slot as usize).copied().filter(|&block| block != NONE)
    }

    fn block(&mut self, block: u32) -> &mut Block {
        self.blocks[block as usize].as_mut().expect("a slot's block is there")
    }

    fn read(&self, block: u32) -> Result<StateFrame, StateError> {
        let extent = self.blocks[block as usize].as_ref().expect("a slot's block is there").extent;
        let bytes = self.file.read(extent).map_err(|error| {
            StateError::Storage(format!(
                "spilled state cannot be read: {error}\nhint: check the disk of the data folder"
            ))
        })?;
        StateFrame::from_bytes(&bytes)
    }

    fn write(&self, frame: &StateFrame) -> Result<Extent, StateError> {
        self.file.write(&frame.to_bytes()?).map_err(|error| {
            StateError::Storage(format!(
                "state cannot be spilled: {error}\nhint: make room on the disk of the data folder, or raise memory.spill_bytes_max"
            ))
        })
    }

    /// Drops the state of slots. A block that is less than half live is rewritten without the rest.
    fn forget(&mut self, slots: &[Slot]) {
        let mut touched = Vec::new();
        for &slot in slots {
            if let Some(block) = self.block_of(slot) {
                self.by_slot[slot as usize] = NONE;
                self.block(block).live -= 1;
                touched.push(block);
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for number in touched {
            let Block { extent, written, live } = *self.block(number);
            if live == 0 {
                self.file.free(extent);
                self.blocks[number as usize] = None;
                self.free.push(number);
            } else if live * 2 < written
                && let Err(error) = self.rewrite(number)
            {
                // The live state stays where it is, and takes more room than needed.
                tracing::debug!("a block of spilled state stays as it is: {error}");
            }
        }
    }

    fn rewrite(&mut self, number: u32) -> Result<(), StateError> {
        let frame = self.read(number)?;
        let mut live: Vec<Slot> =
            frame.slots().iter().copied().filter(|&slot| self.block_of(slot) == Some(number)).collect();
        live.sort_unstable();
        live.dedup();
        let extent = self.write(&frame.select(&StateSelection::Slots(live))?)?;
        let block = self.block(number);
        let old = std::mem::replace(&mut block.extent, extent);
        block.written = block.live;
        self.file.free(old);
        Ok(())
    }
}

impl Operator for SpilledState {
    fn process(&mut self, element: Element, _context: &mut Context<'_>) -> Result<(), OperatorError> {
        if let Element::Control(Control::RemoveSlots(slots)) = element {
            self.forget(&slots);
            if let Some(alarms) = &self.alarms {
                alarms.lock().clear(&slots);
            }
        }
        Ok(())
    }

    fn deadline_us(&self) -> Option<i64> {
        self.alarms.as_ref().map(|alarms| alarms.lock().earliest_us()).filter(|&at_us| at_us != NEVER)
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        let mut wanted: Vec<(u32, Slot)> = match selection {
            StateSelection::Slots(slots) => {
                slots.iter().filter_map(|&slot| Some((self.block_of(slot)?, slot))).collect()
            }
            _ => (0..self.by_slot.len() as Slot).filter_map(|slot| Some((self.block_of(slot)?, slot))).collect(),
        };
        // Each block is read once.
        wanted.sort_unstable();
        let mut frames = Vec::new();
        for of_block in wanted.chunk_by(|(one, _), (other, _)| one == other) {
            let slots = of_block.iter().map(|(_, slot)| *slot).collect();
            let frame = self.read(of_block[0].0)?.select(&StateSelection::Slots(slots))?;
            frames.push(match selection {
                StateSelection::KeyGroups(..) => frame.select(selection)?,
                _ => frame,
            });
        }
        StateFrame::concat(&frames)
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        let mut slots = frame.slots().to_vec();
        slots.sort_unstable();
        slots.dedup();
        let mut written: Vec<(Extent, &[Slot])> = Vec::new();
        for part in slots.chunks(BLOCK_SLOTS) {
            let done = match part.len() == slots.len() {
                true => self.write(frame),
                false => frame.select(&StateSelection::Slots(part.to_vec())).and_then(|frame| self.write(&frame)),
            };
            match done {
                Ok(extent) => written.push((extent, part)),
                Err(error) => {
                    written.into_iter().for_each(|(extent, _)| self.file.free(extent));
                    return Err(error);
                }
            }
        }
        self.forget(&slots);
        for (extent, part) in written {
            let count = part.len() as u32;
            let block = Some(Block { extent, written: count, live: count });
            let number = match self.free.pop() {
                Some(number) => {
                    self.blocks[number as usize] = block;
                    number
                }
                None => {
                    self.blocks.push(block);
                    self.blocks.len() as u32 - 1
                }
            };
            for &slot in part {
                if slot as usize >= self.by_slot.len() {
                    self.by_slot.resize(slot as usize + 1, NONE);
                }
                self.by_slot[slot as usize] = number;
            }
        }
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.by_slot.capacity() * size_of::<u32>()
            + self.blocks.capacity() * size_of::<Option<Block>>()
            + self.free.capacity() * size_of::<u32>()
    }
}

impl Drop for SpilledState {
    fn drop(&mut self) {
        self.blocks.iter().flatten().for_each(|block| self.file.free(block.extent));
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{RecordBatch, UInt16Array, UInt32Array};
    use arrow::datatypes::{DataType, Field, Schema};
    use rivulet_dataflow::{Refusals, SlotTable};

    use super::*;

    /// Two rows of state for each slot.
    fn frame(slots: impl Iterator<Item = Slot>) -> StateFrame {
        let slots: Vec<Slot> = slots.flat_map(|slot| [slot, slot]).collect();
        let schema = Schema::new(vec![
            Field::new("slot", DataType::UInt32, false),
            Field::new("key_group", DataType::UInt16, false),
        ]);
        let key_groups = UInt16Array::from(vec![7; slots.len()]);
        let columns = vec![Arc::new(UInt32Array::from(slots)) as _, Arc::new(key_groups) as _];
        StateFrame::new("test", 1, RecordBatch::try_new(Arc::new(schema), columns).unwrap())
    }

    fn remove(state: &mut SpilledState, slots: Vec<Slot>) {
        let table = SlotTable::new(Arc::new(Schema::empty()));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let element = Element::Control(Control::RemoveSlots(slots));
        state.process(element, &mut Context::new(0, &table, &mut refusals, &mut output)).unwrap();
    }

    fn state(bytes_max: u64) -> (SpilledState, Arc<SpillFile>) {
        let file = Arc::new(SpillFile::create(&std::env::temp_dir(), bytes_max).unwrap());
        (SpilledState::new(file.clone(), None), file)
    }

    #[test]
    fn what_goes_in_comes_out_and_room_is_given_back() {
        let (mut state, file) = state(1 << 24);
        state.import_state(&frame(0..1_000)).unwrap();
        let full_bytes = file.used_bytes();
        let some = state.export_state(&StateSelection::Slots(vec![1, 500, 999, 5_000])).unwrap().unwrap();
        assert_eq!(some.slots(), [1, 1, 500, 500, 999, 999]);
        remove(&mut state, (0..1_000).filter(|slot| slot % 4 != 0).collect());
        assert!(file.used_bytes() <= full_bytes, "{} of {full_bytes}", file.used_bytes());
        assert!(state.blocks.iter().flatten().all(|block| block.live * 2 >= block.written));
        let left = state.export_state(&StateSelection::All).unwrap().unwrap();
        assert_eq!(left, frame((0..1_000).step_by(4)));
        // The same slot again: the later state counts.
        state.import_state(&frame([4, 8].into_iter())).unwrap();
        assert_eq!(state.export_state(&StateSelection::All).unwrap().unwrap().rows.num_rows(), 500);
        drop(state);
        assert_eq!(file.used_bytes(), 0);
    }

    #[test]
    fn a_full_file_takes_all_of_a_frame_or_nothing() {
        let (mut state, file) = state(12 << 10);
        state.import_state(&frame(0..100)).unwrap();
        let used = file.used_bytes();
        let error = state.import_state(&frame(50..1_000)).unwrap_err().to_string();
        assert!(error.contains("hint:"), "{error}");
        assert_eq!(file.used_bytes(), used);
        assert_eq!(state.export_state(&StateSelection::All).unwrap().unwrap(), frame(0..100));
    }
}
