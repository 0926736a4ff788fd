//! What is run in which order: golden results first, then the given rates, then the search for the most events a second
//! that keep the bound. A point of each curve in turn, so that whatever drifts drifts for all of them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::measured::Measured;
use super::report::{Curve, Point, RiotReport};
use super::{Form, Replay, Topology, check, write_files};
use crate::Circumstances;
use crate::search::{Bounds, Search};

/// Where the search begins, and where it ends in any case, in events a second.
const FIRST: u32 = 8_000;
const LEAST: u32 = 50;
const MOST: u32 = 20_000_000;
/// To which part the most events a second are to be known.
const PRECISION: f64 = 0.05;
/// How often the most events a second are measured once they are known; the median counts.
const REPEATS: usize = 3;
/// If that was by chance, so much less is tried, and so often.
const STEP_DOWN: f64 = 0.95;
const STEPS_DOWN: usize = 8;
/// Events of the warm-up before each run, as fast as they are taken.
const WARM_UP_EVENTS: u64 = 50_000;
/// A run may take so much longer than its schedule and still be sustained, and at this multiple it is stopped.
const LATE_PART: f64 = 0.05;
const STOPPED_AT: f64 = 2.0;

/// What is measured.
#[derive(Clone, Debug)]
pub struct RiotOptions {
    /// The topologies.
    pub topologies: Vec<Topology>,
    /// The numbers of cores; each is measured by itself.
    pub cpus: Vec<usize>,
    /// How operators are run; each is a curve.
    pub forms: Vec<Form>,
    /// Events a second that are measured first; those of the paper without.
    pub rates: Option<Vec<u32>>,
    /// Whether the most events a second at the bound are looked for.
    pub searches: bool,
    /// How long events come at each rate.
    pub duration: Duration,
    /// How far apart events come in bursts; 0 if each comes at its own time.
    pub burst_ms: u64,
    /// How much of what waits an operator takes in a turn, where operators are not fused.
    pub consume: String,
}

/// One run of a script, in a process of its own.
#[derive(Clone, Debug)]
pub struct Run {
    /// The script; its query is measured.
    pub script: String,
    /// What is run before it.
    pub warm_up: Option<String>,
    /// How many cores the process has, and workers.
    pub cpus: usize,
    /// Which task a worker runs next.
    pub policy: String,
    /// How much of what waits a task takes in a turn.
    pub consume: String,
    /// The query is stopped after this time; it is not if there is none.
    pub elapsed_max: Option<Duration>,
}

/// Makes all runs by `measure`, with files in `folder`; `progress` gets a line for each. What fails is in the report.
///
/// # Errors
/// A file cannot be written.
pub fn run_riot(
    options: &RiotOptions,
    folder: &Path,
    mut measure: impl FnMut(&Run) -> Result<Measured, String>,
    mut progress: impl FnMut(&str),
) -> Result<RiotReport, String> {
    write_files(folder).map_err(|error| format!("cannot write to {}: {error}", folder.display()))?;
    let mut report = RiotReport { circumstances: Circumstances::now(), ..RiotReport::default() };
    for &topology in &options.topologies {
        let golden = is_golden(topology, options, folder, &mut measure);
        progress(&match &golden {
            Ok(()) => format!("{}: golden", topology.name()),
            Err(difference) => difference.clone(),
        });
        report.bound_ms.insert(topology.name(), topology.bound_ms());
        let is_golden = golden.is_ok();
        report.golden.insert(topology.name(), is_golden);
        report.differences.extend(golden.err());
        if is_golden {
            for &cpus in &options.cpus {
                let bench = Bench { topology, cpus, options, folder };
                report.curves.extend(bench.curves(&mut measure, &mut progress));
            }
        }
    }
    report.is_golden = report.golden.values().all(|is_golden| *is_golden);
    Ok(report)
}

/// Whether the results are golden, whichever way operators are run.
fn is_golden(
    topology: Topology,
    options: &RiotOptions,
    folder: &Path,
    measure: &mut impl FnMut(&Run) -> Result<Measured, String>,
) -> Result<(), String> {
    let mut seen = Vec::new();
    for form in &options.forms {
        if seen.contains(&form.fuse) {
            continue;
        }
        seen.push(form.fuse);
        let file = folder.join(format!("{}-{}.txt", topology.name(), form.fuse));
        let sink = format!("'file:{}' FORMAT TEXT", file.display().to_string().replace('\'', "''"));
        let replay = Replay { events: topology.golden_passes() * 1_000, ..Replay::default() };
        let run = Run {
            script: topology.script(replay, form.fuse, folder, &sink),
            warm_up: None,
            cpus: options.cpus.iter().copied().max().unwrap_or(1),
            policy: form.policy.to_owned(),
            consume: consume(form, options),
            elapsed_max: None,
        };
        let failed = |error: String| format!("{} {}: {error}", topology.name(), form.name);
        measure(&run).map_err(failed)?;
        let texts = fs::read_to_string(&file).map_err(|error| failed(error.to_string()))?;
        // The next to write it does not continue this one.
        let _ = fs::remove_file(&file);
        check(topology, &texts).map_err(failed)?;
    }
    Ok(())
}

/// Fused operators take what there is.
fn consume(form: &Form, options: &RiotOptions) -> String {
    if form.fuse == "auto" { "all".to_owned() } else { options.consume.clone() }
}

/// The curves of a topology on so many cores.
struct Bench<'o> {
    topology: Topology,
    cpus: usize,
    options: &'o RiotOptions,
    folder: &'o Path,
}

/// A curve on its way.
struct Growing {
    form: Form,
    search: Search,
    curve: Curve,
    /// The runs at the most events a second.
    last: Vec<(Point, Measured)>,
}

impl Growing {
    /// Whether the median of the last runs was sustained.
    fn is_settled(&self) -> bool {
        let sustained = self.last.iter().filter(|(point, _)| point.is_sustained).count();
        self.search.best().is_none() || sustained * 2 > REPEATS
    }
}

impl Bench<'_> {
    fn curves(
        &self,
        measure: &mut impl FnMut(&Run) -> Result<Measured, String>,
        progress: &mut impl FnMut(&str),
    ) -> Vec<Curve> {
        let bounds = Bounds { first: FIRST, least: LEAST, most: MOST, precision: PRECISION };
        let begin = |form: &Form| Growing {
            form: *form,
            search: Search::new(bounds),
            curve: Curve::new(self.topology, form, self.cpus),
            last: Vec::new(),
        };
        let mut growing: Vec<Growing> = self.options.forms.iter().map(begin).collect();
        let mut point = |one: &mut Growing, rate: u32| self.point(one, rate, measure, progress);
        let paper = self.topology.paper_rates().to_vec();
        for rate in self.options.rates.clone().unwrap_or(paper) {
            for one in &mut growing {
                if let Some(measured) = point(one, rate) {
                    one.last = vec![measured];
                }
            }
        }
        if self.options.searches {
            growing.iter_mut().for_each(|one| one.last.clear());
            loop {
                let mut goes_on = false;
                for one in &mut growing {
                    let Some(rate) = one.search.next().filter(|_| one.curve.failure.is_none()) else { continue };
                    // One disturbance is no limit: what fails is tried again.
                    let is_sustained =
                        |done: &Option<(Point, Measured)>| done.as_ref().is_some_and(|(point, _)| point.is_sustained);
                    let mut done = point(one, rate);
                    if !is_sustained(&done) {
                        done = point(one, rate);
                    }
                    one.search.tell(is_sustained(&done));
                    goes_on = true;
                }
                if !goes_on {
                    break;
                }
            }
            for step in 0..=STEPS_DOWN {
                let is_open = |one: &&mut Growing| one.curve.failure.is_none() && !one.is_settled();
                let mut open: Vec<_> = growing.iter_mut().filter(is_open).collect();
                open.iter_mut().for_each(|one| one.last.clear());
                for _ in 0..REPEATS {
                    for one in &mut open {
                        let least = |rate: u32| (f64::from(rate) * STEP_DOWN.powi(step as i32)) as u32;
                        let done = one.search.best().map(least).and_then(|rate| point(one, rate));
                        one.last.extend(done);
                    }
                }
            }
        }
        let finish = |one: Growing| one.curve.finish(one.last, self.options.searches);
        growing.into_iter().map(finish).collect()
    }

    /// Measures one rate; nothing comes of a run that fails, and its curve has no further one.
    fn point(
        &self,
        one: &mut Growing,
        rate: u32,
        measure: &mut impl FnMut(&Run) -> Result<Measured, String>,
        progress: &mut impl FnMut(&str),
    ) -> Option<(Point, Measured)> {
        if one.curve.failure.is_some() {
            return None;
        }
        let planned_s = self.options.duration.as_secs_f64();
        let events = ((planned_s * f64::from(rate)) as u64).max(1);
        let script = |replay| self.topology.script(replay, one.form.fuse, self.folder, "'blackhole:'");
        let run = Run {
            script: script(Replay { events, rate, burst_ms: self.options.burst_ms }),
            warm_up: Some(script(Replay { events: WARM_UP_EVENTS, ..Replay::default() })),
            cpus: self.cpus,
            policy: one.form.policy.to_owned(),
            consume: consume(&one.form, self.options),
            elapsed_max: Some(self.options.duration.mul_f64(STOPPED_AT) + Duration::from_secs(1)),
        };
        let head = format!("{} {} on {}: {rate}/s", self.topology.name(), one.form.name, self.cpus);
        let measured = match measure(&run) {
            Ok(measured) => measured,
            Err(reason) => {
                progress(&format!("{head}: failed"));
                one.curve.failure = Some(reason);
                return None;
            }
        };
        // What is started and ended beside the schedule is not late.
        let is_in_time = measured.events == events && measured.elapsed_s <= planned_s * (1.0 + LATE_PART) + 0.5;
        let is_sustained = is_in_time && measured.latency_us[2] <= self.topology.bound_ms() * 1_000;
        // A run that is sustained ends with its schedule, but for the time in which that is noticed.
        let elapsed_s = if is_sustained { planned_s } else { measured.elapsed_s };
        let point = Point::of(rate, elapsed_s, is_sustained, &measured);
        progress(&format!(
            "{head}: sink {:.0}/s, p50 {:.1} ms, p99 {:.1} ms, {:.2} us of processor time an event, {}",
            point.sink_per_s,
            point.latency_us_p50 as f64 / 1e3,
            point.latency_us_p99 as f64 / 1e3,
            point.cpu_us_per_event,
            if is_sustained { "sustained" } else { "not sustained" },
        ));
        one.curve.points.push(point.clone());
        Some((point, measured))
    }
}

#[cfg(test)]
mod tests {
    use super::super::measured::Task;
    use super::*;
    use crate::riot::FORMS;

    fn options() -> RiotOptions {
        RiotOptions {
            topologies: vec![Topology::Etl],
            cpus: vec![1],
            forms: FORMS[..2].to_vec(),
            rates: Some(vec![600]),
            searches: true,
            duration: Duration::from_secs(1),
            burst_ms: 0,
            consume: "50".into(),
        }
    }

    /// A machine that carries so many events a second, fused twice as many.
    fn measured(run: &Run, limit: u64) -> Measured {
        let rate: u64 = run.script.split("rate => ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        let limit = if run.script.contains("fuse") { limit } else { limit * 2 };
        let task = |operator: &str, utilisation| Task { operator: operator.into(), utilisation, ..Task::default() };
        Measured {
            events: rate.max(1_000),
            results: 2 * rate,
            elapsed_s: 1.0,
            cpu_s: 0.5,
            latency_us: [10, 20, if rate <= limit { 30 } else { 60_000 }, 70_000],
            tasks: vec![task("1.1 source", 0.2), task("2.1 project", 0.6)],
            pending: vec![(0.1, vec![0, 3])],
        }
    }

    fn write_golden(run: &Run) {
        let Some((_, rest)) = run.script.split_once("TO 'file:") else { return };
        let senml: String = (0..1_000).map(|number| format!("{{{number}\"}}]}}\n")).collect();
        let golden = include_str!("../../riot/golden_etl.csv");
        fs::write(rest.split('\'').next().unwrap(), format!("{golden}{senml}")).unwrap();
    }

    #[test]
    fn curves_find_their_limits_in_turn() {
        let folder = tempfile::tempdir().unwrap();
        let mut order = Vec::new();
        let measure = |run: &Run| {
            write_golden(run);
            order.push((run.policy.clone(), run.consume.clone()));
            Ok(measured(run, 20_000))
        };
        let report = run_riot(&options(), folder.path(), measure, |_| ()).unwrap();
        assert!(report.is_golden && report.curves.len() == 2, "{report:?}");
        let limits: Vec<_> = report.curves.iter().map(|curve| curve.point.input_per_s).collect();
        assert!((38_000..=40_000).contains(&limits[0]) && (19_000..=20_000).contains(&limits[1]), "{limits:?}");
        // Golden results of both, then a point of each.
        let policies: Vec<_> = order[..6].iter().map(|(policy, _)| policy.as_str()).collect();
        assert_eq!(policies, ["group", "congestion", "group", "congestion", "group", "congestion"]);
        assert_eq!((order[2].1.as_str(), order[3].1.as_str()), ("all", "50"));
        let json = serde_json::to_value(&report).unwrap();
        let curve = &json["curves"][1];
        assert_eq!(
            (&curve["topology"], &curve["fuse"], &curve["policy"]),
            (&"etl".into(), &"none".into(), &"congestion".into())
        );
        assert_eq!((&curve["is_saturation"], &curve["sink_per_input"]), (&true.into(), &2.0.into()));
        assert_eq!((&curve["utilisation_cv"], &curve["latency_us_p95"]), (&0.5.into(), &20.into()));
        assert_eq!((&curve["points"][0]["input_per_s"], &curve["pending"][0][1][1]), (&600.into(), &3.into()));
        assert_eq!(curve["operators"][1]["operator"], "2.1 project");
        let page = super::super::html(&report);
        assert!(page.contains("2.1 project") && page.contains("<polyline"), "{page}");
    }

    #[test]
    fn what_is_not_golden_is_not_measured_and_what_fails_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let report = run_riot(&options(), folder.path(), |_| Err("no such column".into()), |_| ()).unwrap();
        assert!(!report.is_golden && report.curves.is_empty());
        assert!(report.differences[0].contains("no such column"), "{report:?}");
        let measure = |run: &Run| {
            write_golden(run);
            if run.warm_up.is_some() && run.policy == "group" { Err("gone".into()) } else { Ok(measured(run, 20_000)) }
        };
        let report = run_riot(&options(), folder.path(), measure, |_| ()).unwrap();
        assert_eq!(report.failures().collect::<Vec<_>>(), ["etl fused on 1: gone"]);
        assert!(report.curves[1].is_saturation && !report.curves[0].is_saturation);
    }
}
