//! The columns of persons, auctions and bids, and how each is made for a batch of events.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rivulet_dataflow::SourceError;

use super::super::source::Maker;
use super::super::text::TextColumn;
use super::model::{Kind, Model};
use super::words::{Text, Texts};

/// What a stream consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// Events of one kind with its columns.
    Only(Kind),
    /// All events, with the columns of all kinds side by side.
    All,
}

/// What a column has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    EventType,
    Time,
    PersonId,
    AuctionId,
    InitialBid,
    Reserve,
    Expires,
    Seller,
    Category,
    BidAuction,
    Bidder,
    Price,
    Text(Text),
}

/// A column: its name, its value, and the kind of event that has it if not all have.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) value: Value,
    kind: Option<Kind>,
}

/// The column of the event time.
pub(super) const EVENT_TIME: &str = "date_time";

/// The columns of each kind of event by themselves, and with the prefix that they have beside those of the others.
macro_rules! columns {
    ($name:ident, $name_beside:ident, $kind:expr, $prefix:literal, $($column:literal => $value:expr),+ $(,)?) => {
        static $name: &[Column] = &[$(Column { name: $column, value: $value, kind: None }),+];
        static $name_beside: &[Column] =
            &[$(Column { name: concat!($prefix, $column), value: $value, kind: Some($kind) }),+];
    };
}

columns!(PERSON, PERSON_BESIDE, Kind::Person, "person_",
    "id" => Value::PersonId,
    "name" => Value::Text(Text::Name),
    "email_address" => Value::Text(Text::Email),
    "credit_card" => Value::Text(Text::CreditCard),
    "city" => Value::Text(Text::City),
    "state" => Value::Text(Text::State),
    "date_time" => Value::Time,
    "extra" => Value::Text(Text::PersonExtra),
);

columns!(AUCTION, AUCTION_BESIDE, Kind::Auction, "auction_",
    "id" => Value::AuctionId,
    "item_name" => Value::Text(Text::ItemName),
    "description" => Value::Text(Text::Description),
    "initial_bid" => Value::InitialBid,
    "reserve" => Value::Reserve,
    "date_time" => Value::Time,
    "expires" => Value::Expires,
    "seller" => Value::Seller,
    "category" => Value::Category,
    "extra" => Value::Text(Text::AuctionExtra),
);

columns!(BID, BID_BESIDE, Kind::Bid, "bid_",
    "auction" => Value::BidAuction,
    "bidder" => Value::Bidder,
    "price" => Value::Price,
    "channel" => Value::Text(Text::Channel),
    "url" => Value::Text(Text::Url),
    "date_time" => Value::Time,
    "extra" => Value::Text(Text::BidExtra),
);

static COMMON: &[Column] = &[
    Column { name: "event_type", value: Value::EventType, kind: None },
    Column { name: EVENT_TIME, value: Value::Time, kind: None },
];

impl Stream {
    /// Its columns. Beside each other, the events have one time for all.
    pub(super) fn columns(self) -> Vec<&'static Column> {
        match self {
            Self::Only(Kind::Person) => PERSON.iter().collect(),
            Self::Only(Kind::Auction) => AUCTION.iter().collect(),
            Self::Only(Kind::Bid) => BID.iter().collect(),
            Self::All => {
                let beside = [PERSON_BESIDE, AUCTION_BESIDE, BID_BESIDE].into_iter().flatten();
                COMMON.iter().chain(beside.filter(|column| column.value != Value::Time)).collect()
            }
        }
    }

    /// The schema of all its columns.
    pub(super) fn schema(self) -> Schema {
        Schema::new(self.columns().iter().map(|column| column.field()).collect::<Vec<_>>())
    }
}

impl Column {
    fn field(&self) -> Field {
        let data_type = match self.value {
            Value::Time | Value::Expires => DataType::Timestamp(TimeUnit::Microsecond, None),
            Value::Text(_) => DataType::Utf8,
            _ => DataType::Int64,
        };
        Field::new(self.name, data_type, self.kind.is_some())
    }
}

/// Makes the columns that are read.
pub(super) struct Columns {
    pub(super) model: Model,
    pub(super) texts: Texts,
    pub(super) columns: Vec<&'static Column>,
    pub(super) schema: SchemaRef,
}

impl Maker for Columns {
    fn make(&mut self, numbers: &[u64]) -> Result<RecordBatch, SourceError> {
        let mut by_kind = ByKind::default();
        let columns = self.columns.iter().map(|column| match column.kind {
            None => Ok(self.column(column.value, numbers)),
            Some(kind) => {
                let (of_kind, places) = by_kind.of(kind, numbers);
                take(&self.column(column.value, of_kind), places, None)
            }
        });
        let columns = columns.collect::<Result<Vec<_>, _>>();
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(numbers.len()));
        columns
            .and_then(|columns| RecordBatch::try_new_with_options(self.schema.clone(), columns, &options))
            .map_err(|error| SourceError(format!("NEXMark events: {error}")))
    }
}

impl Columns {
    /// One column for these events.
    fn column(&self, value: Value, numbers: &[u64]) -> ArrayRef {
        let model = &self.model;
        match value {
            Value::EventType => integers(numbers, |number| Kind::of(number) as i64),
            Value::Time => times(numbers, |number| model.time_us(number)),
            Value::Expires => times(numbers, |number| model.expires_us(number)),
            Value::PersonId => integers(numbers, |number| model.person_id(number)),
            Value::AuctionId => integers(numbers, |number| model.auction_id(number)),
            Value::InitialBid => integers(numbers, |number| model.initial_bid(number)),
            Value::Reserve => integers(numbers, |number| model.reserve(number)),
            Value::Seller => integers(numbers, |number| model.seller(number)),
            Value::Category => integers(numbers, |number| model.category(number)),
            Value::BidAuction => integers(numbers, |number| model.bid_auction(number)),
            Value::Bidder => integers(numbers, |number| model.bidder(number)),
            Value::Price => integers(numbers, |number| model.price(number)),
            Value::Text(text) => {
                let mut column = TextColumn::with_capacity(numbers.len(), self.texts.typical_length(text));
                for &number in numbers {
                    self.texts.push(text, model, number, &mut column);
                    column.end();
                }
                column.finish()
            }
        }
    }
}

#[inline(always)]
fn integers(numbers: &[u64], value: impl Fn(u64) -> i64) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(numbers.iter().map(|&number| value(number))))
}

#[inline(always)]
fn times(numbers: &[u64], value: impl Fn(u64) -> i64) -> ArrayRef {
    Arc::new(TimestampMicrosecondArray::from_iter_values(numbers.iter().map(|&number| value(number))))
}

/// The events of a batch by kind, found once for all columns.
#[derive(Default)]
struct ByKind {
    /// By discriminant of [`Kind`]: the events, and for each row of the batch its place among them.
    kinds: [Option<(Vec<u64>, UInt32Array)>; 3],
}

impl ByKind {
    fn of(&mut self, kind: Kind, numbers: &[u64]) -> (&[u64], &UInt32Array) {
        let (of_kind, places) = self.kinds[kind as usize].get_or_insert_with(|| {
            let of_kind: Vec<u64> = numbers.iter().copied().filter(|&number| Kind::of(number) == kind).collect();
            let mut next = 0..;
            let place = |&number: &u64| if Kind::of(number) == kind { next.next() } else { None };
            (of_kind, numbers.iter().map(place).collect())
        });
        (of_kind, places)
    }
}
