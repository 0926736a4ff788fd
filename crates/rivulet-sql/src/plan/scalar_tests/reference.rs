//! The reference of functions, `docs/reference/functions.md`: every function that can be called, with examples whose
//! results are computed by both planners. `cargo xtask docs` writes it again.

use std::collections::BTreeMap;
use std::fmt::Write;

use rivulet_operators::AggregateFunction;
use rivulet_relational::functions::{LAG, PROCTIME, RANKINGS};

use super::nulls::{FUNCTIONS, filled, literal};
use super::{Columns, PATHS, Path, aggregated, evaluate, scalar};
use crate::plan::functions::{CLOCK, Found, HISTORY, LEFT_OUT, REFUSED, REGISTRY, WINDOWS};

#[allow(unreachable_pub, reason = "it is public where it stands")]
#[path = "../../../../rivulet-testing/src/page.rs"]
mod page;

const TEXT: &str = "String Functions";
const TIME: &str = "Time and Date Functions";
const MATH: &str = "Math Functions";
const HASH: &str = "Hashing Functions";
const JSON: &str = "JSON Functions";
const ARRAY: &str = "Array Functions";
const MAP: &str = "Map Functions";

/// Functions of our own, and functions that differ from DataFusion's description: the section, how they are called,
/// what they return.
const OWN: &[(&str, &str, &str, &str)] = &[
    (
        "array_contains",
        ARRAY,
        "array_contains(array, value)",
        "Whether the array has the value: a text, a number or a truth value.",
    ),
    (
        "array_element",
        ARRAY,
        "array_element(array, place) | array[place] | map['key'] | row.field",
        "The element at this place, from 1, or from the end if it is negative; the value of a key of a map, or a field \
         of a row; null where nothing is. It has the type of the array's elements, of the map's values or of the field; \
         where that is not known it is a text, and an object or array is JSON.",
    ),
    (
        "array_to_string",
        ARRAY,
        "array_to_string(array, separator)",
        "The elements as texts with the separator between two of them, without those that are null.",
    ),
    (
        "cardinality",
        ARRAY,
        "cardinality(array) | cardinality(map)",
        "The number of elements, or of keys; null for a text that is neither an array nor a map.",
    ),
    ("count_char", TEXT, "count_char(text, character)", "How often a character is in a text."),
    ("date_bin", TIME, "date_bin(interval, time [, origin])", "The beginning of the interval that the time is in."),
    (
        "date_format",
        TIME,
        "date_format(time, format)",
        "The time as text, in the letters of Java: `yyyy-MM-dd HH:mm:ss.SSS`. Other letters are refused.",
    ),
    (
        "date_part",
        TIME,
        "date_part(part, time)",
        "A part of the time: `year`, `quarter`, `month`, `week`, `day`, `hour`, `minute`, `second`, `millisecond`, \
         `dow` (0 is Sunday), `isodow` (1 is Monday), `doy`, `epoch` (seconds since 1970). `EXTRACT(part FROM time)` is \
         the same.",
    ),
    ("dayofmonth", TIME, "dayofmonth(time)", "The day of the month."),
    (
        "digest",
        HASH,
        "digest(text, method)",
        "The hash of a text by `md5`, `sha224`, `sha256`, `sha384` or `sha512`, in hexadecimal.",
    ),
    (
        "from_unixtime",
        TIME,
        "from_unixtime(seconds [, format])",
        "The time so many seconds after the beginning of 1970; with a format its text, as `date_format` has it.",
    ),
    ("haversine_m", MATH, "haversine_m(lat1, lon1, lat2, lon2)", "The distance of two places on the globe in metres."),
    ("hour", TIME, "hour(time)", "The hour."),
    ("if", "Conditional Functions", "if(condition, one, other)", "`one` where the condition is true, else `other`."),
    (
        "json_array",
        JSON,
        "json_array(value, ...)",
        "The values as an array in JSON: times as milliseconds since 1970, JSON of these functions and of `array_agg` \
         as it is. At most 1 MiB. An application writes such a column into an output in JSON without quotes.",
    ),
    (
        "json_exists",
        JSON,
        "json_exists(text, path)",
        "Whether a text in JSON has a value, null included, at this path.",
    ),
    (
        "json_length",
        JSON,
        "json_length(text, path)",
        "The number of elements of the array, or of members of the object, at this path; null for any other value.",
    ),
    (
        "json_object",
        JSON,
        "json_object(name, value, ...)",
        "An object in JSON with these values by name, as `json_array` writes them. It is a row with these fields if \
         the names are constants: `named_struct` is the same.",
    ),
    (
        "struct",
        JSON,
        "row(value, ...) | struct(value, ...)",
        "A row of these values. A column gives its field the name; other fields are `c0`, `c1` and so on, by their \
         places. `named_struct` gives fields any names.",
    ),
    ("json_query", JSON, "json_query(text, path)", "The value at this path, an object or array included, as JSON."),
    (
        "json_value",
        JSON,
        "json_value(text, path)",
        "The string, number or truth value at this path, as text; null for an object or an array, where nothing is, and \
         if the text is no JSON. The path is a constant: `$.name`, `$.\"a name\"` and `$[0]`, one behind the other. For \
         numbers write for example `CAST(json_value(text, '$.rssi') AS DOUBLE)`.",
    ),
    (
        "map",
        MAP,
        "map(key, value, ...)",
        "A map of these values by key. A key that comes again has its last value. The values have a type if they are of \
         one. A key that is null makes the map null. At most 1 MiB.",
    ),
    ("map_contains_key", MAP, "map_contains_key(map, key)", "Whether the map has the key."),
    ("map_keys", MAP, "map_keys(map)", "The keys as an array of texts, in their order."),
    ("map_values", MAP, "map_values(map)", "The values as an array, in the order of their keys."),
    ("minute", TIME, "minute(time)", "The minute."),
    ("mod", MATH, "mod(a, b)", "The remainder of `a / b`, as `a % b`."),
    ("md5", HASH, "md5(text)", "The MD5 hash of a text, in hexadecimal."),
    ("month", TIME, "month(time)", "The month."),
    (
        "regexp_extract",
        "Regular Expression Functions",
        "regexp_extract(text, pattern [, group])",
        "What the pattern, or a group of it, matches first. The pattern is a constant.",
    ),
    ("second", TIME, "second(time)", "The second."),
    ("sha224", HASH, "sha224(text)", "The SHA-224 hash of a text, in hexadecimal."),
    ("sha256", HASH, "sha256(text)", "The SHA-256 hash of a text, in hexadecimal."),
    ("sha384", HASH, "sha384(text)", "The SHA-384 hash of a text, in hexadecimal."),
    ("sha512", HASH, "sha512(text)", "The SHA-512 hash of a text, in hexadecimal."),
    (
        "split_index",
        TEXT,
        "split_index(text, separator, index)",
        "The part of a text with this index, from 0, between separators.",
    ),
    (
        "string_to_array",
        ARRAY,
        "string_to_array(text, delimiter)",
        "The parts of a text as an array in JSON, none of an empty text. At most 1 MiB.",
    ),
    (
        "to_char",
        TIME,
        "to_char(time, format)",
        "The time as text, in the words of PostgreSQL (`YYYY`, `MM`, `DD`, `HH24`, `HH12`, `AM`, `MI`, `SS`, `MS`, `US`, \
         `Mon`, `Dy`, `DDD`, text in double quotes) or in percent signs (`%Y-%m-%d`). Other words are refused.",
    ),
    (
        "timestampadd",
        TIME,
        "timestampadd(unit, number, time)",
        "The time so many units later. The unit is one of `microsecond`, `millisecond`, `second`, `minute`, `hour`, \
         `day`, `week`, `month`, `quarter` and `year`. Of a month that is too short it is the last day.",
    ),
    (
        "timestampdiff",
        TIME,
        "timestampdiff(unit, from, to)",
        "How many whole units, those of `timestampadd`, lie between two times; below zero if `to` lies before `from`.",
    ),
    (
        "to_local_time",
        TIME,
        "to_local_time(time [, zone])",
        "The time on the clocks of a zone: a `TIMESTAMP` is in UTC. `time AT TIME ZONE zone` is the same. Without a \
         zone it is the time itself. The zone is a constant.",
    ),
    (
        "to_timestamp",
        TIME,
        "to_timestamp(value [, format ...])",
        "The time of a text (ISO 8601, or by Chrono's formats) or of a number of seconds since 1970.",
    ),
    ("to_timestamp_micros", TIME, "to_timestamp_micros(value)", "The same of microseconds since 1970."),
    ("to_timestamp_millis", TIME, "to_timestamp_millis(value)", "The same of milliseconds since 1970."),
    ("to_timestamp_nanos", TIME, "to_timestamp_nanos(value)", "The same of nanoseconds since 1970."),
    ("to_timestamp_seconds", TIME, "to_timestamp_seconds(value)", "The same of seconds since 1970."),
    ("to_unixtime", TIME, "to_unixtime(time)", "The seconds since 1970."),
    (
        "uuid",
        HASH,
        "uuid(text)",
        "A UUID of a text, the same for the same text (RFC 9562, version 8, of its SHA-256). Without an argument it is \
         refused: events that are processed again would get another one. `uuid(concat_ws('/', device, ts))` names an \
         event.",
    ),
    ("year", TIME, "year(time)", "The year."),
];

/// An aggregate: other names, how it is called, what it returns, examples over [`ROWS`].
type Described = (AggregateFunction, &'static [&'static str], &'static str, &'static str, &'static [&'static str]);

/// The columns for aggregates: x, y, word, ok, n.
const ROWS: [[&str; 5]; 4] = [
    ["20.0", "1.0", "a", "true", "6"],
    ["21.0", "3.0", "b", "true", "7"],
    ["21.0", "2.0", "b", "false", "14"],
    ["24.0", "6.0", "c", "true", "2"],
];

#[rustfmt::skip]
const AGGREGATES: &[Described] = &[
    (AggregateFunction::Count, &[], "count(*) | count(x)", "The number of rows, or of rows where `x` is not null.", &["count(*)"]),
    (AggregateFunction::CountDistinct, &[], "count(DISTINCT x)", "The number of different values, exactly.", &["count(DISTINCT x)"]),
    (AggregateFunction::ApproxDistinct, &[], "approx_distinct(x)", "About the number of different values, in bounded memory: exact up to 256, then by HyperLogLog with a standard error of 1.6 %.", &["approx_distinct(x)"]),
    (AggregateFunction::Sum, &[], "sum(x)", "The sum. Where a sum of integers is no `BIGINT`, an application refuses the row; in a big query it is null, and counted.", &["sum(x)"]),
    (AggregateFunction::Avg, &["mean"], "avg(x)", "The mean.", &["avg(x)"]),
    (AggregateFunction::SumDistinct, &[], "sum(DISTINCT x)", "The sum of the different values.", &["sum(DISTINCT x)"]),
    (AggregateFunction::AvgDistinct, &[], "avg(DISTINCT x)", "The mean of the different values.", &["avg(DISTINCT x)"]),
    (AggregateFunction::Min, &[], "min(x)", "The least value. NaN is greater than every number.", &["min(x)", "min(word)"]),
    (AggregateFunction::Max, &[], "max(x)", "The greatest value. NaN is greater than every number.", &["max(x)"]),
    (AggregateFunction::StddevSamp, &["stddev"], "stddev_samp(x)", "The standard deviation of a sample; null of fewer than two values.", &["stddev_samp(y)"]),
    (AggregateFunction::StddevPop, &[], "stddev_pop(x)", "The standard deviation of all.", &["stddev_pop(y)"]),
    (AggregateFunction::VarSamp, &["var", "var_sample"], "var_samp(x)", "The variance of a sample; null of fewer than two values.", &["var_samp(x)"]),
    (AggregateFunction::VarPop, &["var_population"], "var_pop(x)", "The variance of all.", &["var_pop(x)"]),
    (AggregateFunction::Median, &[], "median(x)", "The middle value, or the mean of the two middle ones.", &["median(x)"]),
    (AggregateFunction::PercentileCont, &["quantile_cont"], "percentile_cont(x, p) | percentile_cont(p) WITHIN GROUP (ORDER BY x)", "The value below which a fraction `p` of the values lies, interpolated. `p` is a constant or a parameter.", &["percentile_cont(x, 0.75)"]),
    (AggregateFunction::CovarSamp, &["covar"], "covar_samp(y, x)", "The covariance of a sample.", &["covar_samp(y, x)"]),
    (AggregateFunction::CovarPop, &[], "covar_pop(y, x)", "The covariance of all.", &["covar_pop(y, x)"]),
    (AggregateFunction::Corr, &[], "corr(y, x)", "Pearson's correlation.", &["corr(x, 2 * x)"]),
    (AggregateFunction::RegrSlope, &[], "regr_slope(y, x)", "The slope of the line with the least squares.", &["regr_slope(2 * x + 1, x)"]),
    (AggregateFunction::RegrIntercept, &[], "regr_intercept(y, x)", "Where this line has `x = 0`.", &["regr_intercept(2 * x + 1, x)"]),
    (AggregateFunction::RegrR2, &[], "regr_r2(y, x)", "How much of the variance of `y` this line explains, from 0 to 1.", &["regr_r2(2 * x + 1, x)"]),
    (AggregateFunction::FirstValue, &[], "first_value(x)", "The value with the earliest event time. Null is no value.", &["first_value(word)"]),
    (AggregateFunction::LastValue, &[], "last_value(x)", "The value with the latest event time. Null is no value.", &["last_value(word)"]),
    (AggregateFunction::Kalman, &[], "kalman(x, q, r) OVER (ORDER BY ts ROWS UNBOUNDED PRECEDING)", "The estimate of a Kalman filter after the value of each row, in big queries. `q` is the variance of the process, `r` that of the measurement. It begins with an estimate of 0 that has a variance of 30. Values that are null, NaN or infinite are missing, and leave the estimate as it is.", &[]),
    (AggregateFunction::AvgLast, &[], "avg_last(x, n) OVER (ORDER BY ts ROWS UNBOUNDED PRECEDING)", "The mean of the last `n` values up to each row, in big queries; `n` is from 1 to 8. Values that are null, NaN or infinite are missing, so `coalesce(x, avg_last(x, 5) OVER (...))` fills them in.", &[]),
    (AggregateFunction::BoolAnd, &[], "bool_and(x)", "Whether all values are true.", &["bool_and(ok)"]),
    (AggregateFunction::BoolOr, &[], "bool_or(x)", "Whether a value is true.", &["bool_or(ok)"]),
    (AggregateFunction::BitAnd, &[], "bit_and(x)", "The bits that all integers have.", &["bit_and(n)"]),
    (AggregateFunction::BitOr, &[], "bit_or(x)", "The bits that any integer has.", &["bit_or(n)"]),
    (AggregateFunction::BitXor, &[], "bit_xor(x)", "The bits that an odd number of integers has.", &["bit_xor(n)"]),
    (AggregateFunction::ArrayAgg, &[], "array_agg(x [ORDER BY y [DESC]])", "The values as an array in JSON, in order of event time or as ORDER BY says. At most 1 MiB and 65,536 values.", &["array_agg(word)", "array_agg(x ORDER BY y DESC)"]),
    (AggregateFunction::ArrayAggDistinct, &[], "array_agg(DISTINCT x [ORDER BY x DESC])", "Each different value once, in order of the values.", &["array_agg(DISTINCT ok)"]),
    (AggregateFunction::StringAgg, &["listagg"], "string_agg(x, separator [ORDER BY y [DESC]]) | listagg(x, separator) WITHIN GROUP (ORDER BY y)", "The texts with the separator between two of them, in the order and within the bounds of `array_agg`.", &["string_agg(word, ', ')", "string_agg(word, '' ORDER BY word DESC)"]),
    (AggregateFunction::StringAggDistinct, &[], "string_agg(DISTINCT x, separator [ORDER BY x DESC])", "Each different text once, in order of the texts.", &["string_agg(DISTINCT word, ', ')"]),
];

/// The windows of big queries whose bounds have functions.
const BOUNDED: [&str; 5] = ["tumble", "hop", "cumulate", "session", "count_window"];

const HEAD: &str = "<!-- Generated by `cargo xtask docs`. -->
# Functions

Every function that SQL may call, in applications and in big queries alike. The results of the examples are computed.
A function of null is null, but for those that are about nulls (`coalesce`, `nvl`, `concat` and the like). Names may be
written in any case.

Results are a function of the events, and the same when events are replayed. So `now()` is the arrival of the event,
`uuid(text)` is one of a text, and functions with another result on every call, such as `random`, are
[refused](#refused). A row whose text would become longer than 16 KiB, or 1 KiB longer than the longest argument, is
refused as well, and so is one whose texts take too long to compare.

`SHOW FUNCTIONS LIKE '%date%'` lists functions on a server, and `DESCRIBE FUNCTION date_bin` shows one.

- [Windows and earlier rows](#windows-and-earlier-rows)
- [Aggregates](#aggregates)
";

const OTHERS: &str = "
## Windows and earlier rows

These are no functions of values. They have sections of their own:

- In applications: `tumble`, `hop`, `cumulate`, `session`, `count_window`, `state_window` in
  [GROUP BY](../sql/applications.md#group-by), ranks
  [among the rows of a window](../sql/applications.md#among-the-rows-of-a-window), and `lag`, `changed`, `hysteresis`
  over [earlier rows](../sql/applications.md#earlier-rows). `FIRST`, `LAST`, `PREV`, `CLASSIFIER` and `MATCH_NUMBER`
  belong to [MATCH_RECOGNIZE](../sql/applications.md#match_recognize).
- In big queries: [windows](../sql/big-queries.md#windows), ranks, `LAG`, `LEAD` and aggregates
  [OVER](../sql/big-queries.md#over) rows, `GROUPING` of [sets of keys](../sql/big-queries.md#group-by),
  `predict` of [models](../sql/big-queries.md#models), and `PROCTIME()`, the clock as the time of tumbling windows.

### tumble

`tumble(time, width [, offset])`: Windows one behind the other, in GROUP BY.

### hop

`hop(time, slide, width [, offset])`: Windows of this width that begin every `slide`, in GROUP BY.

### cumulate

`cumulate(time, step, width [, offset])`: Windows that begin every `width`, with a result every `step`, in GROUP BY.

### session

`session(time, gap)`: Windows that end when no row came for `gap`, in GROUP BY.

### count_window

`count_window(rows [, slide])`: Windows of so many rows, in GROUP BY.

### state_window

`state_window(opens, is_last)`: Windows from a row that meets the first condition to the next one that meets the
second, in GROUP BY, in applications.

### row_number

`row_number() OVER (PARTITION BY window_start, window_end ORDER BY x)`: The place of a result in its window, from 1.

### rank

`rank() OVER (PARTITION BY window_start, window_end ORDER BY x)`: The same, where equal results share a place.

### dense_rank

`dense_rank() OVER (PARTITION BY window_start, window_end ORDER BY x)`: The same without gaps behind shared places.

### lag

`lag(x [, rows])`: The value so many rows ago.

### changed

`changed(x)`: Whether the value differs from the one in the row before, in applications.

### hysteresis

`hysteresis(x, low, high)`: True from a value of at least `high` on, until one of at most `low` comes, in applications.

### cumulate

`cumulate(time, step, width)`: Windows that begin together and end one step later each, up to this width, in big
queries.

### row_number

`row_number() OVER (PARTITION BY key ORDER BY x)`: The number of a row among those with its key, with a condition up to
which number, in big queries.

### rank

`rank() OVER (PARTITION BY key ORDER BY x)`: The same, where equal rows have one number and leave a gap, in big queries.

### dense_rank

`dense_rank() OVER (PARTITION BY key ORDER BY x)`: The same without gaps, in big queries.

### predict

`predict('model.json', x, ...)`: What a model makes of each row: a decision tree or a linear model that is read from a
file, in big queries. [Models](../sql/big-queries.md#models) says how it is written.

### first

`first(A.x [, n])`: The value in the first row of A, or `n` rows behind it, in MATCH_RECOGNIZE.

### last

`last(A.x [, n])`: The value in the last row of A, or `n` rows before it, in MATCH_RECOGNIZE.

### prev

`prev(x [, n])`: The value in the row before, or `n` rows before, in MATCH_RECOGNIZE.

### classifier

`classifier()`: The variable that the last row of the match belongs to, in MATCH_RECOGNIZE.

### match_number

`match_number()`: The number of the match, from 1, in MATCH_RECOGNIZE.

### now

`now()`: In an application the time when the event reached the engine, as the column `arrival_time`: the same when
events are processed again. Big queries refuse it: they read rows again after a restart, and take rows back. Other
names: `current_timestamp`, `localtimestamp`.

### proctime

`PROCTIME()`: The clock, as the time of tumbling windows in big queries. It has no value by itself.
";

const AGGREGATES_HEAD: &str = "
## Aggregates

Aggregates skip nulls, and are null where no value is left; counts are 0 then. `FILTER (WHERE ...)` behind an aggregate
says which rows it takes. The examples are over these rows, in order of time:

| x | y | word | ok | n |
|---|---|---|---|---|
";

fn headline(section: &str) -> String {
    section
        .trim_end_matches(" Functions")
        .replace("String", "Text")
        .replace("Time and Date", "Times")
        .replace("Math", "Numbers")
}

/// The first sentence of a description, on one line.
fn sentence(description: &str) -> String {
    let paragraph = description.trim().split("\n\n").next().unwrap_or_default();
    let text = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = text.find(". ").unwrap_or(text.trim_end_matches('.').len());
    format!("{}.", &text[..end])
}

/// By name: other names, how it is called, what it returns.
type Section = BTreeMap<String, (Vec<String>, String, String)>;

#[test]
fn the_reference_of_the_functions_is_current() {
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    for (name, function) in REGISTRY.scalars() {
        let main = function.name().to_owned();
        let own = OWN.iter().find(|(own, ..)| *own == main);
        let (section, call, description) = match (own, function.documentation()) {
            (Some((_, section, call, description)), _) => {
                ((*section).to_owned(), (*call).to_owned(), (*description).to_owned())
            }
            (None, Some(known)) => {
                let label = known.doc_section.label.to_owned();
                (label, known.syntax_example.trim().replace('\n', " | "), sentence(&known.description))
            }
            (None, None) => panic!("{main} has no description: write one into OWN"),
        };
        let section = sections.entry(headline(&section)).or_default();
        let described = section.entry(main.clone()).or_insert_with(|| (Vec::new(), call, description));
        if name != main {
            described.0.push(name);
        }
    }
    let mut text = HEAD.to_owned();
    for section in sections.keys() {
        let anchor = section.to_lowercase().replace(' ', "-");
        let _ = writeln!(text, "- [{section}](#{anchor})");
    }
    text.push_str("- [Refused](#refused)\n");
    text.push_str(OTHERS);
    for window in BOUNDED {
        for (bound, which) in [("start", "beginning"), ("end", "end")] {
            let name = format!("{window}_{bound}");
            let gives =
                format!("The {which} of the window, with the arguments of `{window}` in GROUP BY of a big query.");
            let _ = write!(text, "\n### {name}\n\n`{name}(...)`: {gives}\n");
        }
    }
    text.push_str(AGGREGATES_HEAD);
    for row in ROWS {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    for function in AggregateFunction::all() {
        let (_, others, call, gives, examples) =
            AGGREGATES.iter().find(|(described, ..)| *described == function).expect("a description in AGGREGATES");
        assert!(others.iter().all(|name| AggregateFunction::from_name(name) == Some(function)), "{others:?}");
        let others: Vec<String> = others.iter().map(|name| (*name).to_owned()).collect();
        describe(&mut text, function.name(), call, gives, &others);
        for example in *examples {
            let _ = writeln!(text, "- `{example}` is `{}`", aggregate(example));
        }
        if examples.is_empty() {
            text.pop();
        }
    }
    for (section, functions) in &mut sections {
        let _ = write!(text, "\n## {section}\n");
        for (name, (others, call, description)) in functions {
            others.sort();
            describe(&mut text, name, call, description, others);
            let mut is_shown = false;
            for (template, arguments, ..) in FUNCTIONS {
                let called = template.strip_prefix("CAST(").unwrap_or(template);
                if called.split('(').next() == Some(name) {
                    let written: Vec<String> = arguments.iter().map(|one| literal(one)).collect();
                    let call = filled(template, &written);
                    let _ = writeln!(text, "- `{call}` is `{}`", shortened(value(&call)));
                    is_shown = true;
                }
            }
            assert!(is_shown, "{name} has no example in FUNCTIONS");
        }
    }
    text.push_str("\n## Refused\n\nThese are known from elsewhere, and refused with what to do instead.\n");
    for (name, why, instead) in refused() {
        let _ = write!(text, "\n### {name}\n\n`{name}()`: Refused: it {why}; {instead}.\n");
    }
    page::check("functions.md", &page::wrapped(&text));
}

/// The functions that no query may call, by name.
fn refused() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let left_out =
        LEFT_OUT.into_iter().flat_map(|(names, why, instead)| names.iter().map(move |name| (*name, why, instead)));
    REFUSED.into_iter().filter(|(name, ..)| !CLOCK.contains(name)).chain(left_out)
}

/// The reference has every function of DataFusion's packages.
#[test]
fn every_function_of_the_packages_is_offered_or_refused_by_name() {
    for function in datafusion_functions::all_default_functions() {
        for name in function.aliases().iter().map(String::as_str).chain([function.name()]) {
            assert!(!matches!(REGISTRY.find(name), Found::Unknown), "{name} is neither offered nor refused");
        }
    }
    for (name, ..) in refused() {
        assert!(matches!(REGISTRY.find(name), Found::Refused(..) | Found::Unknown), "{name} is offered and refused");
    }
}

#[test]
fn every_function_is_in_the_reference() {
    let scalars: Vec<String> = REGISTRY.scalars().map(|(name, _)| name).collect();
    let aggregates = AggregateFunction::all().filter(|one| !one.is_over_distinct());
    let aggregates: Vec<&str> = aggregates.map(AggregateFunction::name).collect();
    let bounds: Vec<String> = BOUNDED.iter().flat_map(|one| [format!("{one}_start"), format!("{one}_end")]).collect();
    let names = scalars
        .iter()
        .map(String::as_str)
        .chain(aggregates)
        .chain(WINDOWS)
        .chain(HISTORY)
        .chain(rivulet_relational::functions::RANKINGS);
    let names =
        names.chain(CLOCK).chain(RANKINGS).chain([LAG, PROCTIME, "predict"]).chain(bounds.iter().map(String::as_str));
    for name in names.chain(refused().map(|(name, ..)| name)) {
        let found = crate::function(name).unwrap_or_else(|| panic!("{name} is not in the reference"));
        assert!(!found.calls.is_empty() && !found.description.is_empty(), "{found:?}");
    }
}

fn describe(text: &mut String, name: &str, call: &str, gives: &str, others: &[String]) {
    let names: Vec<String> = others.iter().map(|name| format!("`{name}`")).collect();
    let also = if names.is_empty() { String::new() } else { format!(" Other names: {}.", names.join(", ")) };
    let calls: Vec<String> = call.split(" | ").map(|call| format!("`{call}`")).collect();
    let _ = write!(text, "\n### {name}\n\n{}: {gives}{also}\n\n", calls.join(" or "));
}

/// The value of an expression, which is the same in applications and big queries.
fn value(expression: &str) -> String {
    let found = PATHS.map(|path| evaluate(path, expression, &Columns::default()).expect("an example is planned"));
    assert_eq!(found[0], found[1], "{expression}");
    found[0][0].clone()
}

/// Shortens a long value without blanks so that it fits a line.
fn shortened(value: String) -> String {
    const SHOWN: usize = 96;
    match value.get(..SHOWN) {
        Some(begin) if value.len() > SHOWN => format!("{begin}..."),
        _ => value,
    }
}

/// The result of an aggregate over [`ROWS`].
fn aggregate(call: &str) -> String {
    let types = ["DOUBLE", "DOUBLE", "TEXT", "BOOLEAN", "BIGINT"];
    let values = |column: usize| ROWS.iter().map(|row| scalar(types[column], Some(row[column]))).collect();
    let columns = Columns { types: types.to_vec(), values: (0..types.len()).map(values).collect() };
    aggregated(call, &["x", "y", "word", "ok", "n"], &columns)
}

#[test]
fn other_pages_have_what_is_no_function_of_values() {
    let read = |name: &str| std::fs::read_to_string(page::root().join("docs/sql").join(name)).expect("a page");
    let (applications, big_queries) = (read("applications.md"), read("big-queries.md"));
    for name in WINDOWS.iter().chain(&HISTORY) {
        assert!(applications.contains(&format!("{name}(")), "{name} is not in applications.md");
    }
    for name in "TUMBLE HOP CUMULATE SESSION count_window ROW_NUMBER RANK DENSE_RANK LAG LEAD PROCTIME".split(' ') {
        assert!(big_queries.contains(name), "{name} is not in big-queries.md");
    }
    assert_eq!(PATHS[0], Path::Application);
}
