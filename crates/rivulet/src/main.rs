//! The `rivulet` program.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rivulet::config::Config;
use rivulet::engine::Engine;
use rivulet::service::{Service, ServiceError};

/// Many small allocations of many threads is what it is made for, and what a million queries are.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn start(config: &Config) -> Result<Arc<dyn Service>, ServiceError> {
    let engine: Arc<dyn Service> = Engine::open(config.clone())?;
    // What loading the catalog took and does not need any more.
    give_back_memory();
    Ok(engine)
}

/// How often memory that was freed goes back to the system.
const COLLECT_PERIOD: Duration = Duration::from_secs(2);

/// Gives memory that other threads have freed back to the system now and then: the allocator does so only when a thread
/// allocates again, and after a bulk submission or a burst most threads fall silent.
fn collect_memory() {
    loop {
        std::thread::sleep(COLLECT_PERIOD);
        give_back_memory();
    }
}

fn give_back_memory() {
    // SAFETY: the function may be called at any time from any thread.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

fn main() -> ExitCode {
    // Without the thread everything works and takes more memory.
    let _ = std::thread::Builder::new().name("rivulet-memory".into()).spawn(collect_memory);
    rivulet::cli::main(start)
}
