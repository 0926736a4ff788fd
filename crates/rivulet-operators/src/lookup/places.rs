//! An index of the rows of a table by their places on the globe, so that an event tries the rows near it and not all
//! rows.
//!
//! Places are points on the unit sphere, in an R-tree. The straight line between two points grows with the distance on
//! the globe. The index returns candidates, a few more than needed: its rounding differs from that of `haversine_m`,
//! and the condition and the order themselves decide.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Float64Type;
use rstar::RTree;
use rstar::primitives::GeomWithData;

/// The mean radius of the Earth, metres (IUGG R1).
pub const EARTH_RADIUS_M: f64 = 6_371_008.8;

/// By how much squared lengths may be wrong through rounding. It is 2 metres where two places are the same.
const ROUNDING: f64 = 1e-13;

/// Degrees beyond this, and NaN, are left to the expressions: their rounding would exceed the allowance.
const DEGREES_MAX: f64 = 720.0;

type Point = [f64; 3];

/// The places in two columns of a table.
#[derive(Debug)]
pub(super) struct PlaceIndex {
    places: RTree<GeomWithData<Point, u32>>,
    /// Rows without a place in the tree: candidates for every event.
    others: Vec<u32>,
}

/// The places that an event searches for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Near {
    /// The places within this many metres.
    Within(f64),
    /// This many of the nearest places, and all that are as near as the last of them.
    Nearest(usize),
}

impl PlaceIndex {
    /// Makes an index of the rows of a table with these columns of degrees.
    pub(super) fn new(rows: &RecordBatch, latitude: usize, longitude: usize) -> Self {
        let degrees = |column: usize| rows.column(column).as_primitive::<Float64Type>();
        let (latitudes, longitudes) = (degrees(latitude), degrees(longitude));
        let (mut places, mut others) = (Vec::new(), Vec::new());
        for row in 0..rows.num_rows() {
            let is_known = latitudes.is_valid(row) && longitudes.is_valid(row);
            match point(latitudes.value(row), longitudes.value(row)).filter(|_| is_known) {
                Some(point) => places.push(GeomWithData::new(point, row as u32)),
                None => others.push(row as u32),
            }
        }
        Self { places: RTree::bulk_load(places), others }
    }

    /// Memory of the index, in bytes. The inner nodes of the tree are few.
    pub(super) fn memory_bytes(&self) -> usize {
        self.places.size() * size_of::<GeomWithData<Point, u32>>() + self.others.capacity() * size_of::<u32>()
    }

    /// Puts the rows that can be near a place into `rows`, ascending. Returns false if the index cannot tell: then
    /// every row can be near.
    pub(super) fn candidates(&self, latitude: f64, longitude: f64, near: Near, rows: &mut Vec<u32>) -> bool {
        rows.clear();
        let Some(place) = point(latitude, longitude) else { return false };
        let squared_max = match near {
            Near::Within(metres) if metres.is_nan() => return false,
            Near::Within(metres) => {
                let half_angle = (metres.max(0.0) / EARTH_RADIUS_M / 2.0).min(std::f64::consts::FRAC_PI_2);
                4.0 * half_angle.sin().powi(2)
            }
            Near::Nearest(0) => return true,
            Near::Nearest(count) => {
                // For this many, the search would walk the whole tree.
                if count >= self.places.size() {
                    return false;
                }
                let mut nearest = self.places.nearest_neighbor_iter_with_distance_2(&place);
                nearest.nth(count - 1).map_or(f64::INFINITY, |(_, squared)| squared)
            }
        };
        rows.extend(self.places.locate_within_distance(place, squared_max + ROUNDING).map(|found| found.data));
        rows.extend(&self.others);
        rows.sort_unstable();
        true
    }
}

/// Converts a place in degrees to a point on the unit sphere.
fn point(latitude: f64, longitude: f64) -> Option<Point> {
    let is_usual = |degrees: f64| degrees.abs() <= DEGREES_MAX;
    if !is_usual(latitude) || !is_usual(longitude) {
        return None;
    }
    let ((sin_lat, cos_lat), (sin_lon, cos_lon)) = (latitude.to_radians().sin_cos(), longitude.to_radians().sin_cos());
    Some([cos_lat * cos_lon, cos_lat * sin_lon, sin_lat])
}
