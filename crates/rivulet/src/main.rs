//! The `rivulet` program.

use std::alloc::{GlobalAlloc, Layout};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use mimalloc::MiMalloc;
use rivulet::allocations::count_allocation;
use rivulet::config::Config;
use rivulet::engine::{Engine, Extensions};
use rivulet::service::{Service, ServiceError};

/// Many small allocations of many threads is what mimalloc is made for, and what a million queries are.
struct Allocator;

// SAFETY: everything is left to mimalloc; counting does not allocate.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: the caller's promise is passed on.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: the caller's promise is passed on.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { MiMalloc.dealloc(place, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count_allocation();
        // SAFETY: the caller's promise is passed on.
        unsafe { MiMalloc.realloc(place, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn start(config: &Config, extensions: Extensions) -> Result<Arc<dyn Service>, ServiceError> {
    let engine = Engine::open_with(config.clone(), extensions)?;
    engine.give_back_memory_with(give_back_memory);
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

/// The allocator's own variable for whether there are huge pages.
const HUGE_PAGES_VARIABLE: &str = "MIMALLOC_ALLOW_THP";

/// Has memory come in pages of 4 KiB, not of 2 MiB: with those, a page stays as long as any of it is in use, which cost
/// 100 to 150 bytes for each of 200,000 queries. No difference in speed showed, on a busy machine. Whoever sets
/// [`HUGE_PAGES_VARIABLE`] knows better.
fn forgo_huge_pages() {
    if std::env::var_os(HUGE_PAGES_VARIABLE).is_none() {
        // A kernel that cannot do this has no huge pages.
        let _ = nix::sys::prctl::set_thp_disable(true);
    }
}

fn main() -> ExitCode {
    forgo_huge_pages();
    // Without the thread everything works and takes more memory.
    let _ = std::thread::Builder::new().name("rivulet-memory".into()).spawn(collect_memory);
    rivulet::cli::main(start)
}
