//! The slot table of a task, shared with its parts.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rivulet_dataflow::SlotTable;

/// A slot table. Only the task changes it, and only while it has no parts.
#[derive(Clone)]
pub(crate) struct Slots(Arc<SlotTable>);

impl From<SlotTable> for Slots {
    fn from(table: SlotTable) -> Self {
        Self(Arc::new(table))
    }
}

impl Deref for Slots {
    type Target = SlotTable;

    fn deref(&self) -> &SlotTable {
        &self.0
    }
}

impl DerefMut for Slots {
    fn deref_mut(&mut self) -> &mut SlotTable {
        Arc::get_mut(&mut self.0).expect("a task is in one piece when its queries change")
    }
}
