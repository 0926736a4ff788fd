//! `cargo xtask sim`: runs one seed and shows its history, or runs many seeds and shows their counts.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rivulet_simulation::bursts::{BurstDefect, BurstPlan};
use rivulet_simulation::flows::FlowPlan;
use rivulet_simulation::links::LinkPlan;
use rivulet_simulation::plan::Plan;
use rivulet_simulation::shrink::{Shrinks, shrink};
use rivulet_simulation::{Counts, Defect};

const HELP: &str = "\
cargo xtask sim SEED                       one simulation, with its history
cargo xtask sim --seeds N [--from SEED]    N simulations on all cores, and what was counted
    --small, --big, --links, --bursts      small queries only, big ones only, links only, bursts only
    --defect NAME                          with something wrong on purpose, to see whether that is noticed:
";

/// Progress is shown each time after this number of seeds.
const SHOWN_EVERY: u64 = 100;

fn help() -> ExitCode {
    eprint!("{HELP}");
    Defect::ALL.iter().for_each(|defect| eprintln!("        {}", defect.name()));
    BurstDefect::ALL.iter().for_each(|defect| eprintln!("        {} (of bursts)", defect.name()));
    ExitCode::from(2)
}

/// What is run for a seed.
#[derive(Clone, Copy)]
struct What {
    small: bool,
    big: bool,
    links: bool,
    bursts: bool,
    defect: Option<Defect>,
    burst_defect: Option<BurstDefect>,
}

impl What {
    fn all(is_run: bool) -> Self {
        let (small, big, links, bursts) = (is_run, is_run, is_run, is_run);
        Self { small, big, links, bursts, defect: None, burst_defect: None }
    }
}

fn main() -> ExitCode {
    let (mut seed, mut seeds, mut from) = (None, None, 0);
    let mut what = What::all(true);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok());
        let is_understood = match argument.as_str() {
            "--seeds" => number().map(|number| seeds = Some(number)).is_some(),
            "--from" => number().map(|number| from = number).is_some(),
            "--small" => set(&mut what, What { small: true, ..What::all(false) }),
            "--big" => set(&mut what, What { big: true, ..What::all(false) }),
            "--links" => set(&mut what, What { links: true, ..What::all(false) }),
            "--bursts" => set(&mut what, What { bursts: true, ..What::all(false) }),
            "--defect" => {
                let name = arguments.next().unwrap_or_default();
                let defect = Defect::ALL.into_iter().find(|defect| defect.name() == name);
                let burst_defect = BurstDefect::ALL.into_iter().find(|defect| defect.name() == name);
                let (small, bursts) = (defect.is_some(), burst_defect.is_some());
                set(&mut what, What { small, bursts, defect, burst_defect, ..What::all(false) }) && (small || bursts)
            }
            text => text.parse().map(|number: u64| seed = Some(number)).is_ok(),
        };
        if !is_understood {
            return help();
        }
    }
    match (seed, seeds) {
        (Some(seed), None) => one(seed, what),
        (None, Some(seeds)) => many(from, seeds, what),
        _ => help(),
    }
}

fn set(what: &mut What, to: What) -> bool {
    *what = to;
    true
}

fn one(seed: u64, what: What) -> ExitCode {
    let small = what.small.then(|| show(&(Plan::new(seed), what.defect)));
    let big = what.big.then(|| show(&FlowPlan::new(seed)));
    let links = what.links.then(|| show(&LinkPlan::new(seed)));
    let bursts = what.bursts.then(|| show(&(BurstPlan::new(seed), what.burst_defect)));
    let has_failed = [small, big, links, bursts].into_iter().flatten().any(|fails| fails);
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs a plan and shows its history and counts; returns whether it fails.
fn show(plan: &impl Shrinks) -> bool {
    let outcome = plan.run();
    println!("{}", outcome.history);
    if let Some(failure) = &outcome.failure {
        println!("it fails: {failure}\n");
        explain(plan);
    }
    outcome.failure.is_some()
}

/// Shows the smallest failing part of a plan.
fn explain<P: Shrinks>(plan: &P) {
    if let Some((least, outcome)) = shrink(plan) {
        println!("the least of it that fails, {} of {} parts:\n\n{}", least.parts(), plan.parts(), outcome.history);
    }
}

fn many(from: u64, seeds: u64, what: What) -> ExitCode {
    let begun = Instant::now();
    let (next, has_failed) = (AtomicU64::new(from), AtomicBool::new(false));
    // The number of plans that were run, the sum of their counts, and the failure with the lowest seed.
    let sum = Mutex::new((0, Counts::default(), None::<(u64, String)>));
    let until = from.saturating_add(seeds);
    let work = || {
        while !has_failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= until {
                return;
            }
            let small = what.small.then(|| (Plan::new(seed), what.defect).run());
            let big = what.big.then(|| FlowPlan::new(seed).run());
            let links = what.links.then(|| LinkPlan::new(seed).run());
            let bursts = what.bursts.then(|| (BurstPlan::new(seed), what.burst_defect).run());
            // Panics of a simulation are its failures, so the lock is never poisoned.
            let Ok(mut sum) = sum.lock() else { return };
            sum.0 += 1;
            for outcome in [small, big, links, bursts].into_iter().flatten() {
                sum.1 += outcome.counts;
                if let Some(failure) = outcome.failure
                    && sum.2.as_ref().is_none_or(|(other, _)| seed < *other)
                {
                    has_failed.store(true, Ordering::Relaxed);
                    sum.2 = Some((seed, failure));
                }
            }
            if sum.0 % SHOWN_EVERY == 0 {
                eprintln!("{} seeds, {:.0} s", sum.0, begun.elapsed().as_secs_f64());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let Ok((done, counts, failure)) = sum.into_inner() else { return ExitCode::FAILURE };
    println!("{done} seeds from {from} in {:.1} s\n{counts:#?}", begun.elapsed().as_secs_f64());
    let Some((seed, failure)) = failure else { return ExitCode::SUCCESS };
    println!("\nseed {seed} fails: {failure}\nhint: `cargo xtask sim {seed}` shows all of it");
    if what.small {
        explain(&(Plan::new(seed), what.defect));
    }
    if what.big {
        explain(&FlowPlan::new(seed));
    }
    if what.links {
        explain(&LinkPlan::new(seed));
    }
    if what.bursts {
        explain(&(BurstPlan::new(seed), what.burst_defect));
    }
    ExitCode::FAILURE
}
