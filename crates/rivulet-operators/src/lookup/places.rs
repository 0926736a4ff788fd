//! The rows of a table by where on the globe they are, so that an event tries those near it and not all.
//!
//! Places are points on the unit sphere, in an R-tree; the straight line between two of them grows with the distance on
//! the globe. What comes out are candidates, a few more than needed: rounding is different here than in `haversine_m`,
//! and it is the condition and the order themselves that decide.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Float64Type;
use rstar::RTree;
use rstar::primitives::GeomWithData;

/// The mean radius of the Earth, metres (IUGG R1).
pub const EARTH_RADIUS_M: f64 = 6_371_008.8;

/// How far squared lengths may be off for rounding; 2 metres where two places are the same.
const ROUNDING: f64 = 1e-13;

/// Degrees beyond this, and what is no number, are left to the expressions: rounding would be more than is allowed for.
const DEGREES_MAX: f64 = 720.0;

type Point = [f64; 3];

/// The places in two columns of a table.
#[derive(Debug)]
pub(super) struct PlaceIndex {
    places: RTree<GeomWithData<Point, u32>>,
    /// Rows that have no place in the tree: candidates for every event.
    others: Vec<u32>,
}

/// Which places an event looks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Near {
    /// Those within so many metres.
    Within(f64),
    /// So many, the nearest ones and all that are equally near.
    Nearest(usize),
}

impl PlaceIndex {
    /// Of the rows of a table with these columns of degrees.
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

    /// Puts the rows that can be near a place into `rows`, ascending. False if the index cannot tell: every row can be.
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
                // With so many the tree would be walked as a whole.
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

/// A place in degrees on the unit sphere.
fn point(latitude: f64, longitude: f64) -> Option<Point> {
    let is_usual = |degrees: f64| degrees.abs() <= DEGREES_MAX;
    if !is_usual(latitude) || !is_usual(longitude) {
        return None;
    }
    let ((sin_lat, cos_lat), (sin_lon, cos_lon)) = (latitude.to_radians().sin_cos(), longitude.to_radians().sin_cos());
    Some([cos_lat * cos_lon, cos_lat * sin_lon, sin_lat])
}
