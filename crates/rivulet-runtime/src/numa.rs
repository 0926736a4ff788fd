//! The machine's memory nodes (NUMA), and the placement of workers on cores.
//!
//! A core reaches the memory of its own node faster than that of others. So a worker is pinned to a core, and the tasks
//! of one dataflow go to workers of one node as long as they fit there, and then to the nearest nodes.
//!
//! Memory needs no further care: Linux takes a page from the node of the thread that touches it first, and the worker
//! that runs a task touches the task's memory first. A pinned worker stays on its node.
//!
//! What must hold: only cores that this process may use are given out. On one node, or where the system tells nothing,
//! everything is as if there were no nodes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// Whether memory nodes are used for placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// If there is more than one node.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// The places of the workers of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stands {
    topology: Topology,
    places: Vec<WorkerCore>,
}

impl Stands {
    /// Places this many workers on the nodes of a machine; as if there were one node, where nodes are not used.
    pub(crate) fn new(topology: Topology, numa: Numa, workers: usize) -> Self {
        let topology = match numa {
            Numa::Auto => topology,
            Numa::Off => topology.as_one_node(),
        };
        Self { places: topology.places(workers), topology }
    }

    /// Whether there is more than one node.
    pub(crate) fn has_nodes(&self) -> bool {
        self.topology.nodes.len() > 1
    }

    /// The core of a worker; later workers share the cores.
    pub(crate) fn core(&self, worker: usize) -> Option<usize> {
        self.places.get(worker % self.places.len().max(1)).map(|place| place.core)
    }

    /// The number of a worker's node in the system, where there is more than one node.
    pub(crate) fn node(&self, worker: usize) -> Option<usize> {
        let place = self.places.get(worker).filter(|_| self.has_nodes())?;
        self.topology.nodes.get(place.node).map(|node| node.id)
    }

    /// The worker for each parallel instance of a dataflow; `load` is the present load of each worker.
    pub(crate) fn workers_for(&self, instances: usize, load: &[f64]) -> Vec<usize> {
        match self.has_nodes() {
            true => self.topology.workers_for(instances, &self.places, load),
            // In turn by instance, so that several dataflows with one instance less than workers spread evenly.
            false => (0..instances).map(|instance| instance % self.places.len().max(1)).collect(),
        }
    }
}

/// Where Linux describes the nodes.
const NODES_FOLDER: &str = "/sys/devices/system/node";
/// The distance within a node, as Linux defines it.
const LOCAL_DISTANCE: u32 = 10;
/// The distance to another node, where Linux does not tell.
const REMOTE_DISTANCE: u32 = 20;
/// Higher numbers in a list are taken for errors: no system has as many cores or nodes.
const NUMBER_MAX: usize = 1 << 16;

/// The nodes of a machine, with the cores that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Node>,
}

/// A node with cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number in the system.
    pub id: usize,
    /// Its usable cores, ascending.
    pub cores: Vec<usize>,
    /// Its memory, where the system tells.
    pub memory_bytes: Option<u64>,
    /// The distance to each node of the topology, in its order; 10 is within a node.
    pub distances: Vec<u32>,
}

/// The core of a worker, and its memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerCore {
    /// Its core.
    pub core: usize,
    /// The index of its node in the topology.
    pub node: usize,
}

impl Topology {
    /// The topology of this machine, with the cores that this process may use. One node where the system tells nothing.
    pub fn of_this_machine() -> Self {
        Self::read(Path::new(NODES_FOLDER), &usable_cores())
    }

    /// The nodes described in a folder, in the format of Linux, with those of their cores that are `usable`.
    pub fn read(folder: &Path, usable: &BTreeSet<usize>) -> Self {
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let ids = numbers(&text(&folder.join("online")));
        let mut nodes = Vec::new();
        for &id in &ids {
            let folder = folder.join(format!("node{id}"));
            let cores = numbers(&text(&folder.join("cpulist"))).into_iter().filter(|core| usable.contains(core));
            let to_all: Vec<Option<u32>> =
                text(&folder.join("distance")).split_ascii_whitespace().map(|word| word.parse().ok()).collect();
            let distance = |place: usize, other: usize| {
                let unknown = if other == id { LOCAL_DISTANCE } else { REMOTE_DISTANCE };
                to_all.get(place).copied().flatten().unwrap_or(unknown)
            };
            nodes.push(Node {
                id,
                cores: cores.collect(),
                memory_bytes: memory_bytes(&text(&folder.join("meminfo"))),
                distances: ids.iter().enumerate().map(|(place, &other)| distance(place, other)).collect(),
            });
        }
        Self::with_cores(nodes, usable)
    }

    /// Leaves out nodes without usable cores. Cores without a node become a node of their own.
    fn with_cores(mut nodes: Vec<Node>, usable: &BTreeSet<usize>) -> Self {
        let is_kept: Vec<bool> = nodes.iter().map(|node| !node.cores.is_empty()).collect();
        for node in &mut nodes {
            let mut kept = is_kept.iter();
            node.distances.retain(|_| *kept.next().unwrap_or(&false));
        }
        nodes.retain(|node| !node.cores.is_empty());
        let known: BTreeSet<usize> = nodes.iter().flat_map(|node| node.cores.iter().copied()).collect();
        let cores: Vec<usize> = usable.difference(&known).copied().collect();
        if !cores.is_empty() || nodes.is_empty() {
            nodes.iter_mut().for_each(|node| node.distances.push(REMOTE_DISTANCE));
            let mut distances = vec![REMOTE_DISTANCE; nodes.len()];
            distances.push(LOCAL_DISTANCE);
            let id = nodes.iter().map(|node| node.id + 1).max().unwrap_or(0);
            let cores = if cores.is_empty() { vec![0] } else { cores };
            nodes.push(Node { id, cores, memory_bytes: None, distances });
        }
        Self { nodes }
    }

    /// The same cores as a single node.
    fn as_one_node(&self) -> Self {
        let usable = self.nodes.iter().flat_map(|node| node.cores.iter().copied()).collect();
        Self::with_cores(Vec::new(), &usable)
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The number of usable cores.
    pub fn cores(&self) -> usize {
        self.nodes.iter().map(|node| node.cores.len()).sum()
    }

    /// The places of this many workers: one core each while there are free cores, on as few nodes as can hold them, as
    /// near to each other as possible. Further workers share the cores evenly.
    pub fn places(&self, workers: usize) -> Vec<WorkerCore> {
        let mut places = Vec::with_capacity(workers);
        for node in self.nearest_nodes(workers, &vec![0.0; self.nodes.len()], |node| self.nodes[node].cores.len()) {
            places.extend(self.nodes[node].cores.iter().map(|&core| WorkerCore { core, node }));
        }
        let cores = places.len();
        places.truncate(workers);
        (places.len()..workers).for_each(|worker| places.push(places[worker % cores]));
        places
    }

    /// The worker, among those at `places`, for each parallel instance of a dataflow: all on one node if one has enough
    /// workers (the least loaded such node), otherwise on nodes near to each other. `load` is the present load of each
    /// worker.
    pub fn workers_for(&self, instances: usize, places: &[WorkerCore], load: &[f64]) -> Vec<usize> {
        let of_node = |node: usize| (0..places.len()).filter(move |&worker| places[worker].node == node);
        let load_of = |worker: usize| load.get(worker).copied().unwrap_or(0.0);
        let node_load: Vec<f64> = (0..self.nodes.len())
            .map(|node| {
                let workers = of_node(node).count().max(1);
                of_node(node).map(load_of).sum::<f64>() / workers as f64
            })
            .collect();
        let mut workers = Vec::with_capacity(instances);
        for node in self.nearest_nodes(instances, &node_load, |node| of_node(node).count()) {
            let mut here: Vec<usize> = of_node(node).collect();
            here.sort_by(|&a, &b| load_of(a).total_cmp(&load_of(b)).then(a.cmp(&b)));
            workers.extend(here);
        }
        workers.truncate(instances);
        let found = workers.len();
        (found..instances).for_each(|instance| workers.push(if found == 0 { 0 } else { workers[instance % found] }));
        workers
    }

    /// The fewest nodes, near to each other, that together have room for `wanted`; all nodes if that is not enough.
    /// Among equal choices, the one with the least load.
    fn nearest_nodes(&self, wanted: usize, load: &[f64], room: impl Fn(usize) -> usize) -> Vec<usize> {
        // From each node outwards, the nearest first. With some dozen nodes that is cheap, and it happens only when a
        // dataflow starts.
        let outwards = (0..self.nodes.len()).filter(|&node| room(node) > 0).map(|first| {
            let mut others: Vec<usize> = (0..self.nodes.len()).filter(|&node| room(node) > 0).collect();
            let distance = |node: usize| (node != first, self.nodes[first].distances[node]);
            others.sort_by(|&a, &b| distance(a).cmp(&distance(b)).then(load[a].total_cmp(&load[b])).then(a.cmp(&b)));
            let mut found = 0;
            let enough = others.iter().position(|&node| {
                found += room(node);
                found >= wanted
            });
            others.truncate(enough.map_or(others.len(), |last| last + 1));
            others
        });
        let cost = |nodes: &Vec<usize>| {
            let far: u32 = nodes.iter().map(|&node| self.nodes[nodes[0]].distances[node]).sum();
            let busy = nodes.iter().map(|&node| load[node]).sum::<f64>() / nodes.len() as f64;
            (nodes.len(), far, busy)
        };
        outwards
            .min_by(|a, b| {
                let ((a_nodes, a_far, a_busy), (b_nodes, b_far, b_busy)) = (cost(a), cost(b));
                a_nodes.cmp(&b_nodes).then(a_far.cmp(&b_far)).then(a_busy.total_cmp(&b_busy))
            })
            .unwrap_or_default()
    }
}

/// The cores that this process may use; all cores of the system where it does not tell.
fn usable_cores() -> BTreeSet<usize> {
    match sched_getaffinity(Pid::from_raw(0)) {
        Ok(set) => (0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).collect(),
        Err(_) => (0..std::thread::available_parallelism().map_or(1, usize::from)).collect(),
    }
}

/// Parses a list as Linux writes it: `0-3,8,10-11`. Anything but a number is left out.
fn numbers(list: &str) -> Vec<usize> {
    let mut numbers = BTreeSet::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
            numbers.extend(first.min(NUMBER_MAX)..last.saturating_add(1).min(NUMBER_MAX));
        }
    }
    numbers.into_iter().collect()
}

/// `Node 0 MemTotal:       65536 kB`
fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"))?;
    let kib = line.split_ascii_whitespace().rev().nth(1)?.parse::<u64>().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recorded(name: &str, usable: impl IntoIterator<Item = usize>) -> Topology {
        let folder = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is"))
            .join("tests/topologies")
            .join(name);
        assert!(folder.is_dir(), "{}", folder.display());
        Topology::read(&folder, &usable.into_iter().collect())
    }

    fn nodes_of(topology: &Topology, workers: &[usize], places: &[WorkerCore]) -> Vec<usize> {
        let mut nodes: Vec<usize> = workers.iter().map(|&worker| topology.nodes()[places[worker].node].id).collect();
        nodes.dedup();
        nodes
    }

    #[test]
    fn lists_of_numbers_are_read_and_nonsense_is_not() {
        assert_eq!(numbers("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(numbers(""), Vec::<usize>::new());
        assert_eq!(numbers("x,2-1,5-"), Vec::<usize>::new());
        assert_eq!(numbers("7-18446744073709551615").len(), NUMBER_MAX - 7);
    }

    #[test]
    fn one_node_is_as_if_there_were_none() {
        let one = recorded("one_node", 0..2);
        assert_eq!(one.nodes().len(), 1);
        assert_eq!(one.places(3).iter().map(|place| place.core).collect::<Vec<_>>(), [0, 1, 0]);
        let unknown = Topology::read(Path::new("/nowhere"), &[4, 6].into());
        assert_eq!(unknown.places(2), [WorkerCore { core: 4, node: 0 }, WorkerCore { core: 6, node: 0 }]);
        assert_eq!(unknown.nodes()[0].distances, [10]);
        assert_eq!(Topology::read(Path::new("/nowhere"), &BTreeSet::new()).cores(), 1);
        assert!(Topology::of_this_machine().cores() > 0);
    }

    #[test]
    fn workers_fill_a_node_before_they_cross() {
        let two = recorded("two_nodes", 0..16);
        assert_eq!((two.nodes().len(), two.cores()), (2, 16));
        assert_eq!(two.nodes()[1].memory_bytes, Some(33_554_432 * 1024));
        let nodes = |workers| two.places(workers).iter().map(|place| place.node).collect::<Vec<_>>();
        assert_eq!(nodes(8), [0; 8]);
        assert_eq!(nodes(12), [[0; 8].as_slice(), &[1; 4]].concat());
        // If the process may use one core of a node, the node has only that core.
        let part = recorded("two_nodes", [3, 8, 9, 10]);
        assert_eq!(part.places(3).iter().map(|place| place.core).collect::<Vec<_>>(), [8, 9, 10]);
    }

    #[test]
    fn a_dataflow_stays_on_the_least_loaded_node_that_holds_it() {
        let two = recorded("two_nodes", 0..16);
        let places = two.places(16);
        let mut load = vec![0.0; 16];
        load[..8].fill(0.5);
        assert_eq!(two.workers_for(4, &places, &load), [8, 9, 10, 11]);
        load[8..].fill(0.9);
        load[2] = 0.1;
        assert_eq!(two.workers_for(4, &places, &load), [2, 0, 1, 3]);
        assert_eq!(nodes_of(&two, &two.workers_for(10, &places, &load), &places).len(), 2);
        assert_eq!(two.workers_for(20, &places, &load).len(), 20);
    }

    #[test]
    fn a_dataflow_too_big_for_a_node_takes_its_neighbour() {
        let sixteen = recorded("sixteen_nodes", 0..288);
        assert_eq!((sixteen.nodes().len(), sixteen.cores()), (16, 288));
        let places = sixteen.places(288);
        // Nodes come in near pairs; all others are far.
        let mut load = vec![0.0; 288];
        load[..18 * 6].fill(0.9);
        let workers = sixteen.workers_for(36, &places, &load);
        assert_eq!(nodes_of(&sixteen, &workers, &places), [6, 7]);
        let all: BTreeSet<usize> = places.iter().map(|place| place.core).collect();
        assert_eq!(all.len(), 288);
    }

    /// The figures that `cargo xtask numa` shows.
    #[test]
    fn workers_stand_on_an_emulated_machine_as_they_were_seen_to() {
        let machine = recorded("emulated_two_nodes", 0..4);
        let nodes: Vec<(usize, &[usize], &[u32])> =
            machine.nodes().iter().map(|node| (node.id, node.cores.as_slice(), node.distances.as_slice())).collect();
        assert_eq!(nodes, [(0, &[0, 1][..], &[10, 21][..]), (1, &[2, 3][..], &[21, 10][..])]);
        assert_eq!(machine.nodes()[1].memory_bytes, Some(998_952 << 10));
        let stands = |numa, workers| Stands::new(machine.clone(), numa, workers);
        let two = stands(Numa::Auto, 2);
        assert_eq!([0, 1].map(|worker| (two.core(worker), two.node(worker))), [(Some(0), Some(0)), (Some(1), Some(0))]);
        let four = stands(Numa::Auto, 4);
        assert_eq!([0, 1, 2, 3].map(|worker| four.node(worker)), [Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(four.workers_for(2, &[0.0, 0.5, 0.1, 0.1]), [2, 3], "the node with less to do");
        assert_eq!(four.workers_for(3, &[0.0; 4]).len(), 3);
        let off = stands(Numa::Off, 4);
        assert_eq!((off.has_nodes(), off.node(3), off.core(3)), (false, None, Some(3)));
        assert_eq!(off.workers_for(6, &[0.0; 4]), [0, 1, 2, 3, 0, 1], "as if there were no nodes");
    }

    #[test]
    fn nodes_without_cores_are_left_out_and_cores_without_a_node_are_not() {
        let two = recorded("two_nodes", [0, 1, 40]);
        assert_eq!(two.nodes().len(), 2);
        assert_eq!((two.nodes()[0].cores.as_slice(), two.nodes()[1].cores.as_slice()), (&[0, 1][..], &[40][..]));
        assert!(two.nodes().iter().all(|node| node.distances.len() == 2));
    }

    proptest! {
        /// Every instance gets an existing worker; instances are spread evenly, on no more nodes than needed.
        #[test]
        fn placements_are_within_bounds(instances in 0usize..400, workers in 1usize..300, loads in prop::collection::vec(0.0..1.0f64, 0..300)) {
            let sixteen = recorded("sixteen_nodes", 0..288);
            let places = sixteen.places(workers);
            prop_assert_eq!(places.len(), workers);
            let chosen = sixteen.workers_for(instances, &places, &loads);
            prop_assert_eq!(chosen.len(), instances);
            prop_assert!(chosen.iter().all(|&worker| worker < workers));
            let mut counts = vec![0usize; workers];
            chosen.iter().for_each(|&worker| counts[worker] += 1);
            let used = counts.iter().filter(|count| **count > 0);
            prop_assert!(used.clone().max().unwrap_or(&0) - used.min().unwrap_or(&0) <= 1);
            let nodes: BTreeSet<usize> = chosen.iter().map(|&worker| places[worker].node).collect();
            prop_assert!(nodes.len() <= instances.div_ceil(18) + 1);
        }
    }
}
