//! The texts of the benchmark: names, places, channels, and padding up to the average size of a record.

use std::sync::{Arc, OnceLock};

use super::super::random::{Draws, Seed};
use super::super::text::TextColumn;
use super::model::{Lane, Model};

const FIRST_NAMES: [&str; 11] =
    ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"];
const LAST_NAMES: [&str; 9] = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"];
const CITIES: [&str; 10] =
    ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"];
const STATES: [&str; 6] = ["AZ", "CA", "ID", "OR", "WA", "WY"];

/// Channels that half of the bids come by.
const HOT_CHANNELS: [&str; 4] = ["Google", "Facebook", "Baidu", "Apple"];
/// The others.
const CHANNELS: u64 = 10_000;
/// One in so many of the others has no id in its address.
const CHANNELS_WITHOUT_ID: u64 = 10;

const CREDIT_CARD_LENGTH: usize = 4 * 4 + 3;
const NUMBER_LENGTH: usize = 8;

/// Average sizes of records in bytes; what is missing is padded with letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Of a person.
    pub(super) person: u64,
    /// Of an auction.
    pub(super) auction: u64,
    /// Of a bid.
    pub(super) bid: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { person: 200, auction: 500, bid: 100 }
    }
}

/// Makes texts of events.
#[derive(Clone, Debug)]
pub(super) struct Texts {
    sizes: Sizes,
    seed: u64,
    /// Made when the first address is: most queries have none.
    channels: Arc<OnceLock<Channels>>,
}

/// Which text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Name,
    Email,
    CreditCard,
    City,
    State,
    ItemName,
    Description,
    Channel,
    Url,
    PersonExtra,
    AuctionExtra,
    BidExtra,
}

impl Texts {
    pub(super) fn new(sizes: Sizes, seed: u64) -> Self {
        Self { sizes, seed, channels: Arc::default() }
    }

    /// About how many bytes such a text has.
    pub(super) fn typical_length(&self, text: Text) -> usize {
        let size = match text {
            Text::PersonExtra => self.sizes.person,
            Text::AuctionExtra => self.sizes.auction,
            Text::BidExtra => self.sizes.bid,
            Text::Url => 80,
            Text::Description => 60,
            _ => 20,
        };
        size as usize
    }

    /// Appends one text of event `number`.
    #[inline]
    pub(super) fn push(&self, text: Text, model: &Model, number: u64, out: &mut TextColumn) {
        match text {
            Text::Name => {
                let (first, last) = name(model, number);
                out.push(first);
                out.push(" ");
                out.push(last);
            }
            Text::Email => {
                let (user, host, draws) = email(model, number);
                let mut words = draws.words();
                out.push_letters(&mut words, user);
                out.push("@");
                out.push_letters(&mut words, host);
                out.push(".com");
            }
            Text::CreditCard => {
                let mut draws = model.draws(number, Lane::CreditCard);
                for group in 0..4 {
                    if group > 0 {
                        out.push(" ");
                    }
                    out.push_number(draws.below(10_000), 4);
                }
            }
            Text::City => out.push(city(model, number)),
            Text::State => out.push(STATES[model.draws(number, Lane::State).below(STATES.len() as u64) as usize]),
            Text::ItemName => prose(model, number, Lane::ItemName, out),
            Text::Description => prose(model, number, Lane::Description, out),
            Text::Channel => match channel(model, number) {
                Channel::Hot(channel) => out.push(HOT_CHANNELS[channel]),
                Channel::Other(channel) => {
                    out.push("channel-");
                    out.push_number(channel, 1);
                }
            },
            Text::Url => {
                let place = match channel(model, number) {
                    Channel::Hot(channel) => channel,
                    Channel::Other(channel) => HOT_CHANNELS.len() + channel as usize,
                };
                out.push(self.channels.get_or_init(|| Channels::new(self.seed)).url(place));
            }
            Text::PersonExtra => {
                let (first, last) = name(model, number);
                let (user, host, _) = email(model, number);
                let others = first.len() + 1 + last.len() + user + "@".len() + host + ".com".len();
                let city = city(model, number).len();
                padding(model, number, self.sizes.person, NUMBER_LENGTH + others + CREDIT_CARD_LENGTH + city + 2, out);
            }
            Text::AuctionExtra => {
                let texts =
                    prose_length(model, number, Lane::ItemName).0 + prose_length(model, number, Lane::Description).0;
                padding(model, number, self.sizes.auction, 6 * NUMBER_LENGTH + texts, out);
            }
            Text::BidExtra => padding(model, number, self.sizes.bid, 4 * NUMBER_LENGTH, out),
        }
    }
}

fn name(model: &Model, number: u64) -> (&'static str, &'static str) {
    let mut draws = model.draws(number, Lane::Name);
    let first = FIRST_NAMES[draws.below(FIRST_NAMES.len() as u64) as usize];
    (first, LAST_NAMES[draws.below(LAST_NAMES.len() as u64) as usize])
}

fn city(model: &Model, number: u64) -> &'static str {
    CITIES[model.draws(number, Lane::City).below(CITIES.len() as u64) as usize]
}

/// The lengths before and behind the @, and what the letters are drawn from.
fn email(model: &Model, number: u64) -> (usize, usize, Draws) {
    let mut draws = model.draws(number, Lane::Email);
    let user = 3 + draws.below(4) as usize;
    let host = 3 + draws.below(2) as usize;
    (user, host, draws)
}

/// The length of an item's name or description, and what its letters are drawn from.
fn prose_length(model: &Model, number: u64, lane: Lane) -> (usize, Draws) {
    let mut draws = model.draws(number, lane);
    let longest = if matches!(lane, Lane::ItemName) { 19 } else { 99 };
    (3 + draws.below(longest - 2) as usize, draws)
}

fn prose(model: &Model, number: u64, lane: Lane, out: &mut TextColumn) {
    let (length, draws) = prose_length(model, number, lane);
    out.push_prose(&mut draws.words(), length);
}

/// Letters up to the average size of a record, give or take a fifth of what is missing.
#[inline]
fn padding(model: &Model, number: u64, size: u64, present: usize, out: &mut TextColumn) {
    let missing = size.saturating_sub(present as u64);
    let swing = (missing + 2) / 5;
    let mut draws = model.draws(number, Lane::Extra);
    let length = missing - swing + draws.below(2 * swing);
    out.push_letters(&mut draws.words(), length as usize);
}

/// Where a bid came from.
enum Channel {
    Hot(usize),
    Other(u64),
}

#[inline]
fn channel(model: &Model, number: u64) -> Channel {
    let mut draws = model.draws(number, Lane::Channel);
    match draws.below(2) {
        0 => Channel::Hot(draws.below(HOT_CHANNELS.len() as u64) as usize),
        _ => Channel::Other(draws.below(CHANNELS)),
    }
}

/// The addresses of all channels, the hot ones first.
#[derive(Debug)]
struct Channels {
    urls: String,
    ends: Vec<u32>,
}

impl Channels {
    fn new(seed: u64) -> Self {
        /// Apart from the numbers of events, which are drawn for with the same seed.
        const NUMBERS_FROM: u64 = 1 << 63;
        let mut channels = Self { urls: String::with_capacity(900_000), ends: Vec::new() };
        let hot = HOT_CHANNELS.len() as u64;
        for place in 0..hot + CHANNELS {
            let mut draws = Seed::new(seed).draws(NUMBERS_FROM + place, 0);
            channels.urls.push_str("https://www.nexmark.com/");
            for _ in 0..3 {
                for _ in 0..3 + draws.below(2) {
                    channels.urls.push(char::from(b'a' + draws.below(26) as u8));
                }
                channels.urls.push('/');
            }
            channels.urls.push_str("item.htm?query=1");
            let is_hot = place < hot;
            let mut draws = Seed::new(seed).draws(NUMBERS_FROM + place, 1);
            if !is_hot && draws.below(CHANNELS_WITHOUT_ID) > 0 {
                let id = ((place - hot) as i32).reverse_bits().unsigned_abs();
                channels.urls.push_str(&format!("&channel_id={id}"));
            }
            channels.ends.push(channels.urls.len() as u32);
        }
        channels
    }

    #[inline]
    fn url(&self, place: usize) -> &str {
        let start = if place == 0 { 0 } else { self.ends[place - 1] as usize };
        &self.urls[start..self.ends[place] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_channel_in_ten_has_no_id() {
        let channels = Channels::new(1);
        let with_id = |place: &usize| channels.url(*place).contains("&channel_id=");
        assert_eq!((0..4).filter(with_id).count(), 0);
        let others = (4..10_004).filter(with_id).count();
        assert!((8_900..9_100).contains(&others), "{others}");
        assert!(channels.url(5).starts_with("https://www.nexmark.com/"));
        // 1 from the other end is the smallest number there is, which has no opposite among 32 bits.
        assert!(channels.url(5).ends_with("&channel_id=2147483648") || !with_id(&5));
    }
}
