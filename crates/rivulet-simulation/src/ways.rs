//! Connections between simulated processes: what is under way on each, and its two ends. Each side notices by itself
//! that the other one has gone away.

use std::collections::VecDeque;
use std::sync::Arc;

use rivulet_connectors::links::{LinkRights, Links, Worked};
use rivulet_wire::{Connection, Hello};

/// One side of a connection.
enum End {
    /// The other side has not said who it is.
    New(Connection),
    /// The links work it.
    Worked(Worked),
}

/// A connection: both of its sides, and what is under way to each.
struct Way {
    /// The number of the process that has dialled, and of the other one.
    sides: [usize; 2],
    ends: [Option<End>; 2],
    bytes: [VecDeque<u8>; 2],
    /// What each has received last.
    last: [Vec<u8>; 2],
}

impl Way {
    fn place_of(&self, side: usize) -> Option<usize> {
        self.sides.iter().position(|&one| one == side)
    }
}

/// The connections of a simulation, between processes that have numbers.
#[derive(Default)]
pub(crate) struct Ways(Vec<Way>);

/// What has become of an end in a step.
pub(crate) struct Carried {
    /// The bytes that were received, and those that were sent.
    pub(crate) came: usize,
    pub(crate) sent: usize,
    /// Why the connection has ended on this side, if it has.
    pub(crate) end: Option<String>,
}

/// Everybody may send everything.
struct Everything;

impl LinkRights for Everything {
    fn scope(&self) -> &str {
        ""
    }

    fn may_send(&self, _stream: &str) -> Result<(), String> {
        Ok(())
    }
}

impl Ways {
    /// One process connects to another, and says hello.
    pub(crate) fn dial(&mut self, sides: [usize; 2], hello: &Hello, now_us: i64) {
        let mut near = Connection::new(now_us);
        near.say_hello(hello);
        let ends = [Some(End::New(near)), Some(End::New(Connection::new(now_us)))];
        self.0.push(Way { sides, ends, bytes: Default::default(), last: Default::default() });
    }

    /// The ends of a process.
    fn ends(&self, side: usize) -> impl Iterator<Item = &End> {
        self.0.iter().filter_map(move |way| way.ends[way.place_of(side)?].as_ref())
    }

    /// Whether a process has a connection, as far as it knows.
    pub(crate) fn has(&self, side: usize) -> bool {
        self.ends(side).next().is_some()
    }

    /// Whether the links of a process work a connection.
    pub(crate) fn is_worked(&self, side: usize) -> bool {
        self.ends(side).any(|end| matches!(end, End::Worked(_)))
    }

    /// Ends the connections of a process. What it has sent is still under way.
    pub(crate) fn leave(&mut self, side: usize) {
        for way in &mut self.0 {
            let Some(near) = way.place_of(side) else { continue };
            way.ends[near] = None;
            way.bytes[near].clear();
        }
    }

    /// What a process has sent is lost.
    pub(crate) fn lose(&mut self, side: usize) {
        for way in &mut self.0 {
            let Some(near) = way.place_of(side) else { continue };
            way.bytes[1 - near].clear();
        }
    }

    /// What a process has received last comes to it once more.
    pub(crate) fn replay(&mut self, side: usize) {
        for way in &mut self.0 {
            let Some(near) = way.place_of(side) else { continue };
            if matches!(way.ends[near], Some(End::Worked(_))) {
                way.last[near].iter().rev().for_each(|byte| way.bytes[near].push_front(*byte));
            }
        }
    }

    /// A process with these links, if it lives, receives at most so many bytes of each connection, and sends what does
    /// not fall behind the end of its machine, which `is_off` tells.
    pub(crate) fn carry(
        &mut self,
        (side, bytes_max): (usize, usize),
        links: Option<&Arc<Links>>,
        now_us: i64,
        is_off: impl Fn() -> bool,
    ) -> Vec<Carried> {
        let carry = |way: &mut Way| {
            let near = way.place_of(side)?;
            way.carry((near, bytes_max), links, now_us, &is_off)
        };
        let carried = self.0.iter_mut().filter_map(carry).collect();
        self.0.retain(|way| way.ends.iter().any(Option::is_some));
        carried
    }
}

impl Way {
    fn carry(
        &mut self,
        (near, bytes_max): (usize, usize),
        links: Option<&Arc<Links>>,
        now_us: i64,
        is_off: &dyn Fn() -> bool,
    ) -> Option<Carried> {
        let (end, far) = (self.ends[near].take()?, 1 - near);
        let came = bytes_max.min(self.bytes[near].len());
        let came: Vec<u8> = self.bytes[near].drain(..came).collect();
        let is_over = came.is_empty() && self.ends[far].is_none();
        let mut out = Vec::new();
        let outcome = match end {
            _ if is_over => Err("the other side has closed it".to_owned()),
            End::New(connection) => greet(near == 0, links, connection, (&came, &mut out), now_us),
            End::Worked(worked) => match worked.step(&came, &mut out) {
                Ok(()) => Ok(End::Worked(worked)),
                Err(error) => Err(error.to_string()),
            },
        };
        let mut carried = Carried { came: came.len(), sent: out.len(), end: None };
        if self.ends[far].is_some() && !is_off() {
            self.bytes[far].extend(out);
        }
        if !came.is_empty() {
            self.last[near] = came;
        }
        match outcome {
            Ok(end) => self.ends[near] = Some(end),
            Err(why) => {
                self.bytes[near].clear();
                carried.end = Some(why);
            }
        }
        Some(carried)
    }
}

/// Goes on with a connection, perhaps until it is known who is on the other side.
fn greet(
    has_dialled: bool,
    links: Option<&Arc<Links>>,
    mut connection: Connection,
    (came, out): (&[u8], &mut Vec<u8>),
    now_us: i64,
) -> Result<End, String> {
    let mut rest = came;
    connection.greet(&mut rest, now_us).map_err(|error| error.to_string())?;
    if connection.them().is_none() {
        connection.take_to_send(out, now_us);
        return Ok(End::New(connection));
    }
    let links = links.ok_or("the process has ended")?;
    let worked = match has_dialled {
        true => links.dialled(connection).ok_or("nobody needs it any more")?,
        false => links.admitted(Arc::new(Everything), connection)?,
    };
    worked.step(rest, out).map_err(|error| error.to_string())?;
    Ok(End::Worked(worked))
}
