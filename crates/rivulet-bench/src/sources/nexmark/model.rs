//! Who bids what on which auction: the numbers of the benchmark, each a function of the seed and the number of the
//! event.
//!
//! The proportions, hot items and ranges are those of NEXMark as Apache Beam has it; ids of bidders have their offset
//! once.

use super::super::random::{Draws, Seed};
use super::super::schedule::Schedule;
use super::super::walk::Pattern;

/// Of 50 events the first is a person, three are auctions and the other 46 are bids.
pub(super) const CYCLE: u64 = 50;
const AUCTIONS_PER_CYCLE: u64 = 3;
const FIRST_AUCTION: u64 = 1;
const FIRST_BID: u64 = 4;

/// The smallest ids.
pub(super) const FIRST_PERSON_ID: u64 = 1_000;
pub(super) const FIRST_AUCTION_ID: u64 = 1_000;
const FIRST_CATEGORY_ID: u64 = 10;
const CATEGORIES: u64 = 5;

/// A hot id stays hot for so many of its kind.
const HOT_SPAN: u64 = 100;
/// How far ids may be ahead of what there is yet.
const AUCTION_ID_LEAD: u64 = 10;
const PERSON_ID_LEAD: u64 = 10;

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Person,
    Auction,
    Bid,
}

impl Kind {
    /// Of event `number`.
    #[inline]
    pub(super) fn of(number: u64) -> Self {
        match number % CYCLE {
            0 => Self::Person,
            FIRST_AUCTION..FIRST_BID => Self::Auction,
            _ => Self::Bid,
        }
    }

    /// Where events of this kind stand in a cycle.
    pub(super) fn pattern(self) -> Pattern {
        let (first, end) = match self {
            Self::Person => (0, FIRST_AUCTION),
            Self::Auction => (FIRST_AUCTION, FIRST_BID),
            Self::Bid => (FIRST_BID, CYCLE),
        };
        Pattern { cycle: CYCLE, first, count: end - first }
    }
}

/// What values of an event are drawn for: each purpose has bits of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lane {
    Auction,
    Bidder,
    Price,
    Channel,
    Seller,
    Category,
    InitialBid,
    Reserve,
    Length,
    Name,
    Email,
    CreditCard,
    City,
    State,
    ItemName,
    Description,
    Extra,
}

/// What can be set, with the benchmark's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ratios {
    /// One in so many bids goes to any auction in flight, the others to the hot one.
    pub(super) hot_auction: u64,
    /// One in so many bids comes from any active person, the others from the hot one.
    pub(super) hot_bidder: u64,
    /// One in so many auctions is of any active person, the others of the hot one.
    pub(super) hot_seller: u64,
    /// Auctions that take bids at a time.
    pub(super) auctions_in_flight: u64,
    /// Persons that are active at a time.
    pub(super) active_persons: u64,
}

impl Default for Ratios {
    fn default() -> Self {
        Self { hot_auction: 2, hot_bidder: 4, hot_seller: 4, auctions_in_flight: 100, active_persons: 1_000 }
    }
}

/// The numbers of all events.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) seed: Seed,
    pub(super) schedule: Schedule,
    /// When event 0 happens, microseconds since the epoch.
    pub(super) base_us: i64,
    pub(super) ratios: Ratios,
}

/// The newest person at event `number`, counted from 0.
#[inline(always)]
fn last_person(number: u64) -> u64 {
    number / CYCLE
}

/// The newest auction at event `number`, counted from 0; those of the first cycle are there from the beginning.
#[inline(always)]
fn last_auction(number: u64) -> u64 {
    let (cycle, place) = (number / CYCLE, number % CYCLE);
    match place {
        0 => (cycle * AUCTIONS_PER_CYCLE).saturating_sub(1),
        FIRST_AUCTION..FIRST_BID => cycle * AUCTIONS_PER_CYCLE + place - FIRST_AUCTION,
        _ => cycle * AUCTIONS_PER_CYCLE + AUCTIONS_PER_CYCLE - 1,
    }
}

impl Model {
    #[inline(always)]
    pub(super) fn draws(&self, number: u64, lane: Lane) -> Draws {
        self.seed.draws(number, lane as u64)
    }

    /// When the event happens, microseconds since the epoch, cut to milliseconds.
    #[inline(always)]
    pub(super) fn time_us(&self, number: u64) -> i64 {
        let offset_us = self.schedule.offset_us(number);
        self.base_us + (offset_us - offset_us % 1_000)
    }

    /// The id of a person event.
    #[inline(always)]
    pub(super) fn person_id(&self, number: u64) -> i64 {
        (FIRST_PERSON_ID + last_person(number)) as i64
    }

    /// The id of an auction event.
    #[inline(always)]
    pub(super) fn auction_id(&self, number: u64) -> i64 {
        (FIRST_AUCTION_ID + last_auction(number)) as i64
    }

    /// The auction of a bid.
    #[inline(always)]
    pub(super) fn bid_auction(&self, number: u64) -> i64 {
        let mut draws = self.draws(number, Lane::Auction);
        let last = last_auction(number);
        let auction = if draws.below(self.ratios.hot_auction) > 0 {
            last / HOT_SPAN * HOT_SPAN
        } else {
            let oldest = last.saturating_sub(self.ratios.auctions_in_flight);
            oldest + draws.below(last - oldest + 1 + AUCTION_ID_LEAD)
        };
        (FIRST_AUCTION_ID + auction) as i64
    }

    /// The bidder of a bid.
    #[inline(always)]
    pub(super) fn bidder(&self, number: u64) -> i64 {
        let mut draws = self.draws(number, Lane::Bidder);
        let person = if draws.below(self.ratios.hot_bidder) > 0 {
            last_person(number) / HOT_SPAN * HOT_SPAN + 1
        } else {
            self.any_person(number, &mut draws)
        };
        (FIRST_PERSON_ID + person) as i64
    }

    /// The seller of an auction.
    #[inline(always)]
    pub(super) fn seller(&self, number: u64) -> i64 {
        let mut draws = self.draws(number, Lane::Seller);
        let person = if draws.below(self.ratios.hot_seller) > 0 {
            last_person(number) / HOT_SPAN * HOT_SPAN
        } else {
            self.any_person(number, &mut draws)
        };
        (FIRST_PERSON_ID + person) as i64
    }

    /// One of the persons that came last, or will come next.
    #[inline(always)]
    fn any_person(&self, number: u64, draws: &mut Draws) -> u64 {
        let persons = last_person(number) + 1;
        let active = persons.min(self.ratios.active_persons);
        persons - active + draws.below(active + PERSON_ID_LEAD)
    }

    /// The price of a bid, in cents.
    #[inline(always)]
    pub(super) fn price(&self, number: u64) -> i64 {
        self.draws(number, Lane::Price).price()
    }

    /// The first price of an auction, in cents.
    pub(super) fn initial_bid(&self, number: u64) -> i64 {
        self.draws(number, Lane::InitialBid).price()
    }

    /// The price from which on an auction's item is sold, in cents.
    pub(super) fn reserve(&self, number: u64) -> i64 {
        self.initial_bid(number) + self.draws(number, Lane::Reserve).price()
    }

    /// When an auction ends, microseconds since the epoch: about when so many later auctions begin as are in flight.
    pub(super) fn expires_us(&self, number: u64) -> i64 {
        let ahead = self.ratios.auctions_in_flight * CYCLE / AUCTIONS_PER_CYCLE;
        let begins_us = self.time_us(number);
        let horizon_ms = (self.time_us(number + ahead) - begins_us) / 1_000;
        let length_ms = 1 + self.draws(number, Lane::Length).below((horizon_ms * 2).max(1) as u64);
        begins_us + length_ms as i64 * 1_000
    }

    /// The category of an auction.
    pub(super) fn category(&self, number: u64) -> i64 {
        (FIRST_CATEGORY_ID + self.draws(number, Lane::Category).below(CATEGORIES)) as i64
    }
}
