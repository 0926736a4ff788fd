//! The stack on which queries are planned.

use crate::{Position, SqlError};

/// The stack of a thread that plans, in bytes. The planner calls itself for each step of a query that reads another
/// one, and for each part of an expression. `rivulet_relational` limits the steps, and the parser the parts.
const STACK_BYTES: usize = 256 << 20;

/// Plans on a large stack, whatever the caller has left of its own.
pub(super) fn with_room<T: Send>(
    position: Position,
    plan: impl FnOnce() -> Result<T, SqlError> + Send,
) -> Result<T, SqlError> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("rivulet-planner".into()).stack_size(STACK_BYTES);
        let planning = builder
            .spawn_scoped(scope, plan)
            .map_err(|error| SqlError::new(position, format!("there is no thread to plan it: {error}")))?;
        planning.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
