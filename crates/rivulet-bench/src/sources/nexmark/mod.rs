//! `nexmark:` the stream of an online auction: persons, auctions and bids, as the NEXMark benchmark has them.
//!
//! Event n is a pure function of the seed and n ([`model`]): any partition makes any range of it, and only the columns
//! that are read are made, so that texts nobody reads cost nothing.

mod columns;
mod model;
mod words;

use arrow::datatypes::Schema;
use rivulet_connectors::connector::description::Opening;
use rivulet_connectors::connector::options::shortened;
use rivulet_connectors::connector::{
    ConnectorDescription, ConnectorError, DirectionDescription, Guarantee, OptionDescription, OptionKind, Options,
    SourceSpec,
};
use rivulet_connectors::files::Files;
use rivulet_dataflow::Source;

use super::options::{COMMON_OPTIONS, StreamOptions, with_common, with_event_time};
use super::random::Seed;
use super::schedule::Schedule;
use super::walk::Pattern;

use columns::{Columns, EVENT_TIME, Stream};
use model::{Kind, Model, Ratios};
use words::{Sizes, Texts};

const NAME: &str = "nexmark";

/// What it is.
pub(crate) const CONNECTOR: ConnectorDescription = ConnectorDescription {
    name: NAME,
    summary: "Generates the stream of the NEXMark benchmark, an online auction: persons, auctions and bids in the proportion 1 : 3 : 46.",
    address: "`person`, `auction` or `bid` for the events of that kind; nothing for all of them, with `event_type` 0, 1 or 2 and the \
              columns of all kinds side by side",
    source: Some(DirectionDescription {
        help: "The columns need not be declared. An event is a function of the seed and its number, whatever the partitions, and only \
               columns that are read are made. Sources with the same options are parts of one stream.",
        formats: &[],
        guarantees: &[("", Guarantee::ExactlyOnce)],
        options: &OPTIONS,
    }),
    sink: None,
    example: "CREATE SOURCE bid FROM 'nexmark:bid' WITH (events => 1000000, seed => 7);",
    open: Opening { source: Some(open), columns: Some(columns_of), bound_by: Some(&[]), ..Opening::NONE },
};

static OPTIONS: [OptionDescription; COMMON_OPTIONS.len() + 8] = with_common([
    count("person_size", "200", "The average size of a person in bytes; letters in `extra` fill it up."),
    count("auction_size", "500", "The average size of an auction in bytes."),
    count("bid_size", "100", "The average size of a bid in bytes."),
    count("hot_auction_ratio", "2", "One in so many bids goes to any auction in flight, the others to the hot one."),
    count("hot_bidder_ratio", "4", "One in so many bids comes from any active person, the others from the hot one."),
    count("hot_seller_ratio", "4", "One in so many auctions is of any active person, the others of the hot one."),
    count("auctions_in_flight", "100", "How many auctions take bids at a time."),
    count("active_persons", "1000", "How many persons are active at a time."),
]);

const fn count(name: &'static str, default: &'static str, help: &'static str) -> OptionDescription {
    OptionDescription { name, kind: OptionKind::Integer { min: 1, max: 1_000_000 }, default: Some(default), help }
}

/// The stream that an address means.
fn stream(address: &str) -> Option<Stream> {
    match address.trim().to_ascii_lowercase().as_str() {
        "" => Some(Stream::All),
        "person" => Some(Stream::Only(Kind::Person)),
        "auction" => Some(Stream::Only(Kind::Auction)),
        "bid" => Some(Stream::Only(Kind::Bid)),
        _ => None,
    }
}

fn columns_of(address: &str, _files: &Files) -> Result<Option<Schema>, ConnectorError> {
    Ok(stream(address).map(|stream| with_event_time(stream.schema(), EVENT_TIME)))
}

fn open(spec: &SourceSpec, options: &Options, partitions: usize) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    let Some(stream) = stream(&spec.address) else {
        return Err(ConnectorError::Address {
            connector: NAME,
            address: shortened(&spec.address),
            problem: "is no stream of the benchmark".into(),
            hint: "write 'nexmark:bid', 'nexmark:auction', 'nexmark:person', or 'nexmark:' for all".into(),
        });
    };
    let common = StreamOptions::from(options)?;
    let available = stream.columns();
    let chosen = super::options::choose_columns(NAME, spec, &stream.schema())?;
    let columns = chosen.into_iter().map(|place| available[place]).collect::<Vec<_>>();
    let count = |name| options.count(name).unwrap_or(1) as u64;
    let ratios = Ratios {
        hot_auction: count("hot_auction_ratio"),
        hot_bidder: count("hot_bidder_ratio"),
        hot_seller: count("hot_seller_ratio"),
        auctions_in_flight: count("auctions_in_flight"),
        active_persons: count("active_persons"),
    };
    let sizes = Sizes { person: count("person_size"), auction: count("auction_size"), bid: count("bid_size") };
    let model = Model {
        seed: Seed::new(common.seed),
        schedule: Schedule::new(common.event_rate, common.shape),
        base_us: common.base_us,
        ratios,
    };
    let texts = Texts::new(sizes, common.seed);
    let pattern = match stream {
        Stream::All => Pattern::ALL,
        Stream::Only(kind) => kind.pattern(),
    };
    let schema = spec.read_schema();
    common.partitions(NAME, spec, pattern, partitions, || Columns {
        model: model.clone(),
        texts: texts.clone(),
        columns: columns.clone(),
        schema: schema.clone(),
    })
}
