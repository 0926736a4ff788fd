//! The table of slots of a task, which its parts read too while it has any.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rivulet_dataflow::SlotTable;

/// A table of slots. It is changed only by the task, and only while that is in one piece.
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
