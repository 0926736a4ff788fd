//! Positions of moving things: people (after GeoLife), taxis (after the Porto taxi data set), herds and their dogs
//! (after the Maremma livestock data set). All move on a plane in metres around a reference point; at these distances
//! the earth is flat.

use super::reading::Reading;
use crate::random::Random;

const METRES_PER_DEGREE: f64 = 111_195.0;
const DEGREES_PER_METRE: f64 = 1.0 / METRES_PER_DEGREE;

/// A rectangle of the earth, in degrees.
struct Area {
    latitude: (f64, f64),
    longitude: (f64, f64),
    /// How much shorter a degree of longitude is than one of latitude, in the middle of the area.
    east_share: f64,
}

impl Area {
    /// The middle, in degrees north and east.
    #[inline]
    fn middle(&self) -> (f64, f64) {
        ((self.latitude.0 + self.latitude.1) / 2.0, (self.longitude.0 + self.longitude.1) / 2.0)
    }

    /// A random point of the area, in metres east and north of its middle.
    fn random_point(&self, random: &mut Random) -> Point {
        let (north, east) = self.middle();
        Point {
            x: ((random.between(self.longitude.0, self.longitude.1) - east) * self.east_share * METRES_PER_DEGREE)
                as f32,
            y: ((random.between(self.latitude.0, self.latitude.1) - north) * METRES_PER_DEGREE) as f32,
        }
    }

    /// The degrees north and east of a point, moved to the edge if it is outside.
    #[inline]
    fn degrees(&self, point: Point) -> (f64, f64) {
        let (north, east) = self.middle();
        (
            (north + f64::from(point.y) * DEGREES_PER_METRE).clamp(self.latitude.0, self.latitude.1),
            (east + f64::from(point.x) * (DEGREES_PER_METRE / self.east_share))
                .clamp(self.longitude.0, self.longitude.1),
        )
    }
}

const BEIJING: Area = Area { latitude: (39.6, 40.2), longitude: (116.1, 116.8), east_share: 0.766 };
const PORTO: Area = Area { latitude: (41.10, 41.25), longitude: (-8.70, -8.53), east_share: 0.752 };
const PASTURE: Area = Area { latitude: (-36.9, -36.5), longitude: (146.4, 147.0), east_share: 0.801 };

/// A random place in Beijing, where the persons of the simulation live: degrees north and east.
#[cfg(test)]
pub(crate) fn random_place_in_beijing(random: &mut Random) -> (f64, f64) {
    BEIJING.degrees(BEIJING.random_point(random))
}

/// A random place where a driver of the simulation may live: degrees north and east.
pub(crate) fn random_place_in_porto(random: &mut Random) -> (f64, f64) {
    PORTO.degrees(PORTO.random_point(random))
}

/// Metres east and north of the middle of an area.
#[derive(Clone, Copy, Debug)]
struct Point {
    x: f32,
    y: f32,
}

impl Point {
    /// Moves `step` metres towards `target`; returns true once it is there.
    #[inline]
    fn approach(&mut self, target: Self, step: f32) -> bool {
        let (dx, dy) = (target.x - self.x, target.y - self.y);
        let distance = (dx * dx + dy * dy).sqrt();
        if distance <= step {
            *self = target;
            return true;
        }
        self.x += dx / distance * step;
        self.y += dy / distance * step;
        false
    }

    #[inline]
    fn with_noise(self, deviation: f32, random: &mut Random) -> Self {
        Self { x: self.x + deviation * random.normal(), y: self.y + deviation * random.normal() }
    }
}

/// A place in steps of ten metres, so that it takes little memory.
#[derive(Clone, Copy, Debug)]
struct Place {
    x: i16,
    y: i16,
}

impl Place {
    const METRES: f32 = 10.0;

    fn near(point: Point) -> Self {
        Self { x: (point.x / Self::METRES) as i16, y: (point.y / Self::METRES) as i16 }
    }

    fn point(self) -> Point {
        Point { x: f32::from(self.x) * Self::METRES, y: f32::from(self.y) * Self::METRES }
    }
}

/// A person between home, work and other places, walking or driving, resting where it arrives.
#[derive(Clone, Copy, Debug)]
pub struct PersonPosition {
    at: Point,
    home: Place,
    work: Place,
    target: Place,
    /// The speed on the way, in decimetres per second.
    speed: u8,
    /// The number of events for which the rest continues.
    rest_events: u16,
}

impl PersonPosition {
    /// A person at home.
    pub fn new(random: &mut Random) -> Self {
        let home = Place::near(BEIJING.random_point(random));
        let work = Place::near(BEIJING.random_point(random));
        let rest_events = random.exponential(300.0) as u16;
        Self { at: home.point(), home, work, target: home, speed: 14, rest_events }
    }

    /// Where the person lives: degrees north and east.
    pub fn home(&self) -> (f64, f64) {
        BEIJING.degrees(self.home.point())
    }

    /// Where the person works or learns: degrees north and east.
    pub fn work(&self) -> (f64, f64) {
        BEIJING.degrees(self.work.point())
    }

    #[inline]
    pub(super) fn next(&mut self, random: &mut Random) -> Reading {
        if self.rest_events > 0 {
            self.rest_events -= 1;
        } else if self.at.approach(self.target.point(), f32::from(self.speed) / 10.0) {
            self.rest_events = random.exponential(300.0).min(60_000.0) as u16;
            self.target = match random.below(3) {
                0 => self.home,
                1 => self.work,
                _ => Place::near(BEIJING.random_point(random)),
            };
            let walks = random.chance(0.5);
            let speed = if walks { 1.4 + 0.4 * random.normal() } else { 9.0 + 3.0 * random.normal() };
            self.speed = (speed * 10.0).clamp(3.0, 220.0) as u8;
        }
        let (latitude, longitude) = BEIJING.degrees(self.at.with_noise(5.0, random));
        Reading::PersonPosition { latitude, longitude, altitude: 44.0 + 3.0 * random.normal() }
    }
}

/// A taxi between random crossings of a grid of a thousandth of a degree; it stands 15 % of the time.
#[derive(Clone, Copy, Debug)]
pub struct TaxiPosition {
    at: Point,
    /// The cell of the grid that it drives to, north and east.
    target: (u8, u8),
    /// The speed while it drives, in centimetres per second.
    speed: u16,
    /// The number of events for which it stands.
    stop_events: u16,
}

/// Mean length of a stop in events, and the share of time spent standing.
const STOP_EVENTS: f64 = 20.0;
const STOP_SHARE: f64 = 0.15;
/// The side of a cell of the grid, degrees.
const CELL: f64 = 0.001;

impl TaxiPosition {
    /// A taxi somewhere in Porto.
    pub fn new(random: &mut Random) -> Self {
        let mut taxi = Self { at: PORTO.random_point(random), target: (0, 0), speed: 0, stop_events: 0 };
        taxi.choose_target(random);
        if random.chance(STOP_SHARE) {
            taxi.stop(random);
        }
        taxi
    }

    fn choose_target(&mut self, random: &mut Random) {
        let cells = |range: (f64, f64)| ((range.1 - range.0) / CELL).round() as u64;
        self.target = (random.below(cells(PORTO.latitude)) as u8, random.below(cells(PORTO.longitude)) as u8);
    }

    fn stop(&mut self, random: &mut Random) {
        self.stop_events = 1 + random.exponential(STOP_EVENTS).min(3600.0) as u16;
    }

    fn target_point(&self) -> Point {
        let (north, east) = PORTO.middle();
        Point {
            x: ((PORTO.longitude.0 + f64::from(self.target.1) * CELL - east) * PORTO.east_share * METRES_PER_DEGREE)
                as f32,
            y: ((PORTO.latitude.0 + f64::from(self.target.0) * CELL - north) * METRES_PER_DEGREE) as f32,
        }
    }

    #[inline]
    pub(super) fn next(&mut self, random: &mut Random) -> Reading {
        if self.stop_events > 0 {
            self.stop_events -= 1;
        } else if random.chance(STOP_SHARE / (1.0 - STOP_SHARE) / (STOP_EVENTS + 0.5)) {
            self.stop(random);
        }
        let moving = self.stop_events == 0;
        let mut speed = 0.0;
        if moving {
            speed = (8.0 + 3.0 * random.normal()).clamp(0.0, 22.0);
            // Cars do not change speed at once: half of the old speed remains.
            speed = if self.speed == 0 { speed } else { (speed + f32::from(self.speed) / 100.0) / 2.0 };
            if self.at.approach(self.target_point(), speed) {
                self.choose_target(random);
            }
        }
        self.speed = (speed * 100.0) as u16;
        let (latitude, longitude) = PORTO.degrees(self.at);
        Reading::TaxiPosition { latitude, longitude, speed, moving }
    }
}

/// A herd and its dog, whose readings alternate. The animals graze around the middle, and the dog stays there too, but
/// sometimes goes far away.
#[derive(Clone, Copy, Debug)]
pub struct HerdPosition {
    /// The position of the dog.
    at: Point,
    herd: Place,
    /// The direction in which the dog moves, in radians.
    heading: f32,
    /// The number of readings for which the dog's excursion continues.
    excursion_readings: u16,
    /// Whether the next reading is the dog's.
    is_dogs_turn: bool,
}

impl HerdPosition {
    /// The greatest distance from the herd on an excursion, in metres.
    const EXCURSION_METRES: f32 = 3000.0;

    /// The mean distance of an animal from the middle of the herd along an axis, in metres.
    const GRAZING_METRES: f32 = 30.0;

    /// A herd with its dog.
    pub fn new(random: &mut Random) -> Self {
        let middle = PASTURE.random_point(random);
        Self {
            at: middle.with_noise(Self::GRAZING_METRES, random),
            herd: Place::near(middle),
            heading: random.between(0.0, std::f64::consts::TAU) as f32,
            excursion_readings: 0,
            is_dogs_turn: true,
        }
    }

    #[inline]
    pub(super) fn next(&mut self, random: &mut Random) -> Reading {
        let herd = self.herd.point();
        let is_dog = self.is_dogs_turn;
        self.is_dogs_turn = !is_dog;
        if !is_dog {
            // Any animal of the herd grazes with the others.
            let (latitude, longitude) = PASTURE.degrees(herd.with_noise(Self::GRAZING_METRES, random));
            return Reading::HerdPosition { is_dog, latitude, longitude };
        }
        if self.excursion_readings > 0 {
            self.excursion_readings -= 1;
        } else if random.chance(1.0 / 3600.0) {
            self.excursion_readings = 1200;
        }
        self.heading += 0.3 * random.normal();
        let step = (3.0 * random.normal()).abs();
        let (sine, cosine) = self.heading.sin_cos();
        self.at.x += step * cosine;
        self.at.y += step * sine;
        let (dx, dy) = (self.at.x - herd.x, self.at.y - herd.y);
        let away = (dx * dx + dy * dy).sqrt();
        let bound = if self.excursion_readings > 0 { Self::EXCURSION_METRES } else { 100.0 };
        if away > bound {
            // The herd draws the dog back, a little faster than it walks.
            self.at.approach(herd, step + 0.5);
        }
        let (latitude, longitude) = PASTURE.degrees(self.at);
        Reading::HerdPosition { is_dog, latitude, longitude }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_stays_in_the_area() {
        let mut random = Random::new(41);
        for _ in 0..200 {
            let (mut person, mut taxi, mut animal) =
                (PersonPosition::new(&mut random), TaxiPosition::new(&mut random), HerdPosition::new(&mut random));
            for _ in 0..500 {
                for (reading, area) in [
                    (person.next(&mut random), &BEIJING),
                    (taxi.next(&mut random), &PORTO),
                    (animal.next(&mut random), &PASTURE),
                ] {
                    let (Reading::PersonPosition { latitude, longitude, .. }
                    | Reading::TaxiPosition { latitude, longitude, .. }
                    | Reading::HerdPosition { latitude, longitude, .. }) = reading
                    else {
                        unreachable!()
                    };
                    assert!(area.latitude.0 <= latitude && latitude <= area.latitude.1);
                    assert!(area.longitude.0 <= longitude && longitude <= area.longitude.1);
                }
            }
        }
    }

    #[test]
    fn taxis_stand_fifteen_percent_of_the_time() {
        let mut random = Random::new(42);
        let (mut standing, mut driving, mut speeds) = (0_u32, 0_u32, 0.0_f64);
        for _ in 0..200 {
            let mut taxi = TaxiPosition::new(&mut random);
            for _ in 0..2000 {
                let Reading::TaxiPosition { speed, moving, .. } = taxi.next(&mut random) else { unreachable!() };
                assert!((0.0..=22.0).contains(&speed));
                if moving {
                    driving += 1;
                    speeds += f64::from(speed);
                } else {
                    standing += 1;
                }
            }
        }
        let share = f64::from(standing) / f64::from(standing + driving);
        assert!((0.12..0.18).contains(&share), "{share}");
        assert!((speeds / f64::from(driving) - 8.0).abs() < 0.3);
    }

    #[test]
    fn people_walk_and_drive_to_where_they_want_to_be() {
        let mut random = Random::new(43);
        let mut person = PersonPosition::new(&mut random);
        let (mut moves, mut rests) = (0, 0);
        for _ in 0..200_000 {
            let before = person.at;
            person.next(&mut random);
            let moved = ((person.at.x - before.x).powi(2) + (person.at.y - before.y).powi(2)).sqrt();
            assert!(moved <= 22.1, "{moved}");
            if moved > 0.0 {
                moves += 1;
            } else {
                rests += 1;
            }
        }
        assert!(moves > 10_000 && rests > 500, "{moves} {rests}");
    }

    #[test]
    fn dog_and_herd_speak_in_turn_and_only_the_dog_strays() {
        let mut random = Random::new(44);
        let (mut strayed, mut readings) = (0, 0);
        for _ in 0..50 {
            let mut herd = HerdPosition::new(&mut random);
            let middle = herd.herd.point();
            for turn in 0..10_000 {
                let Reading::HerdPosition { is_dog, latitude, longitude } = herd.next(&mut random) else {
                    unreachable!()
                };
                assert_eq!(is_dog, turn % 2 == 0);
                let (north, east) = PASTURE.middle();
                let y = (latitude - north) as f32 / DEGREES_PER_METRE as f32 - middle.y;
                let x = (longitude - east) as f32 / (DEGREES_PER_METRE / PASTURE.east_share) as f32 - middle.x;
                let away = (x * x + y * y).sqrt();
                // Some are at the edge of the area, which limits their positions.
                let bound = if is_dog { HerdPosition::EXCURSION_METRES + 50.0 } else { 300.0 };
                assert!(away < bound, "{away}");
                readings += u32::from(is_dog);
                strayed += u32::from(is_dog && away > 150.0);
            }
        }
        let share = f64::from(strayed) / f64::from(readings);
        assert!((0.02..0.6).contains(&share), "{share}");
    }
}
