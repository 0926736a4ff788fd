//! The slot table of a host, shared with the hosts of its parts.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::SlotTable;

/// A slot table. Only the host changes it, and only while it has no parts.
#[derive(Clone, Debug)]
pub(super) struct Table(Arc<SlotTable>);

impl From<SlotTable> for Table {
    fn from(table: SlotTable) -> Self {
        Self(Arc::new(table))
    }
}

impl Deref for Table {
    type Target = SlotTable;

    fn deref(&self) -> &SlotTable {
        &self.0
    }
}

impl DerefMut for Table {
    fn deref_mut(&mut self) -> &mut SlotTable {
        Arc::get_mut(&mut self.0).expect("a host is in one piece when its queries change")
    }
}
