//! Functions as other engines call them, with what to write here: for the hint where a name is unknown.

/// By name, what to write. What is offered under the name itself is not here.
const WRITE: [(&[&str], &str); 73] = [
    (&["average"], "avg(x)"),
    (&["minimum"], "min(x)"),
    (&["maximum"], "max(x)"),
    (&["total"], "sum(x)"),
    (&["std", "stdev", "stdevp", "stddevp", "standard_deviation"], "stddev(x), or stddev_pop(x) of a whole population"),
    (&["varp", "var_p", "variance_pop", "variance_samp"], "var_samp(x) or var_pop(x)"),
    (
        &["percentile", "percentile_approx", "approx_percentile", "approx_quantile", "quantile"],
        "percentile_cont(x, 0.9)",
    ),
    (&["approx_count_distinct", "hll_count", "ndv"], "approx_distinct(x)"),
    (&["count_distinct", "countdistinct", "uniq", "uniqexact"], "count(DISTINCT x)"),
    (&["count_if", "countif"], "count(*) FILTER (WHERE x > 1)"),
    (&["sum_if", "sumif"], "sum(x) FILTER (WHERE y > 1)"),
    (&["earliest", "earliest_by_offset"], "first_value(x)"),
    (&["latest", "latest_by_offset"], "last_value(x)"),
    (&["collect", "collect_list", "grouparray", "array_aggregate"], "array_agg(x)"),
    (&["collect_set"], "array_agg(DISTINCT x)"),
    (&["wm_concat", "group_concat_ws"], "string_agg(name, ', ')"),
    (&["prev", "previous"], "lag(x)"),
    (&["had_changed", "changed_col", "changed_cols"], "changed(x)"),
    (&["tumbling", "tumblingwindow", "tumbling_window", "time_bucket"], "GROUP BY tumble(ts, INTERVAL '1 minute')"),
    (
        &["hopping", "hoppingwindow", "hopping_window", "slidingwindow", "sliding_window"],
        "GROUP BY hop(ts, INTERVAL '10 seconds', INTERVAL '1 minute')",
    ),
    (&["sessionwindow", "session_window"], "GROUP BY session(ts, INTERVAL '5 minutes')"),
    (&["countwindow", "rows_window"], "GROUP BY count_window(10)"),
    (
        &["haversine", "distance", "geo_distance", "st_distance", "st_distancesphere"],
        "haversine_m(lat, lon, lat2, lon2)",
    ),
    (&["iif"], "if(condition, x, y), or CASE WHEN condition THEN x ELSE y END"),
    (&["isnull"], "x IS NULL, or coalesce(x, 0)"),
    (&["len"], "length(x)"),
    (&["ucase", "toupper"], "upper(x)"),
    (&["lcase", "tolower"], "lower(x)"),
    (&["charindex", "locate", "indexof"], "strpos(text, 'part')"),
    (&["truncate"], "trunc(x, 2)"),
    (&["get_json_object", "json_extract", "json_extract_scalar", "json_extract_string"], "json_value(text, '$.name')"),
    (&["datediff", "date_diff"], "timestampdiff(SECOND, earlier, later)"),
    (&["dateadd", "date_add", "date_sub"], "ts + INTERVAL '1 day', or timestampadd(DAY, 1, ts)"),
    (&["tonumber", "to_number", "todouble", "to_double", "toint", "to_int"], "CAST(x AS DOUBLE) or CAST(x AS BIGINT)"),
    (&["to_varchar", "tostring", "to_string", "str"], "CAST(x AS TEXT), or to_char(ts, 'YYYY-MM-DD')"),
    (&["ceiling"], "ceil(x)"),
    (&["square"], "power(x, 2)"),
    (&["zeroifnull"], "coalesce(x, 0)"),
    (&["nullifzero"], "nullif(x, 0)"),
    (&["startswith"], "starts_with(text, 'part')"),
    (&["endswith"], "ends_with(text, 'part')"),
    (&["numbytes", "byte_length"], "octet_length(text)"),
    (&["regexp", "regexp_matches", "rlike", "regexp_contains"], "regexp_like(text, 'pattern')"),
    (&["regexp_substr", "regexp_extract_all"], "regexp_extract(text, 'pattern'), which is the first match"),
    (&["split", "split_to_array", "regexp_split_to_array"], "string_to_array(text, ',')"),
    (&["split_value", "strtok"], "split_index(text, ',', 0), or split_part(text, ',', 1)"),
    (&["to_base64", "base64", "base64_encode"], "encode(x, 'base64')"),
    (&["from_base64", "unbase64", "base64_decode_string"], "CAST(decode(x, 'base64') AS TEXT)"),
    (&["hex", "hex_encode", "dec2hex"], "to_hex(n) of a number, or encode(text, 'hex')"),
    (&["unhex", "from_hex", "hex_decode_string"], "CAST(decode(x, 'hex') AS TEXT)"),
    (&["newuuid", "generate_uuid", "gen_random_uuid", "uuid_string"], "uuid(concat_ws('/', device, ts))"),
    (&["format_time", "formattime", "strftime"], "date_format(ts, 'yyyy-MM-dd HH:mm:ss')"),
    (&["from_unix_time", "timestamp_seconds"], "from_unixtime(seconds)"),
    (&["to_timestamp_ltz", "timestamp_millis"], "to_timestamp_millis(n)"),
    (&["convert_tz", "from_utc_timestamp", "convert_timezone"], "to_local_time(ts, 'Europe/Berlin')"),
    (&["day_of_week", "dayofweek"], "date_part('dow', ts), where 0 is Sunday"),
    (&["day_of_year", "dayofyear"], "date_part('doy', ts)"),
    (&["day", "day_of_month"], "dayofmonth(ts)"),
    (&["week", "weekofyear", "week_of_year"], "date_part('week', ts)"),
    (&["quarter"], "date_part('quarter', ts)"),
    (&["keys", "object_keys"], "map_keys(map)"),
    (&["values"], "map_values(map)"),
    (&["size", "array_size", "array_cardinality"], "cardinality(x)"),
    (&["array_create", "array_construct"], "json_array(x, y)"),
    (&["object_construct", "json_build_object"], "json_object('name', x)"),
    (&["json_arrayagg", "json_agg", "json_group_array"], "array_agg(x)"),
    (
        &["json_path_query", "json_path_query_first"],
        "json_query(text, '$.path'), or json_value(text, '$.path') as a text",
    ),
    (&["json_path_exists"], "json_exists(text, '$.path')"),
    (&["acc_avg"], "avg(x) OVER (ORDER BY ts ROWS UNBOUNDED PRECEDING)"),
    (&["acc_sum"], "sum(x) OVER (ORDER BY ts ROWS UNBOUNDED PRECEDING)"),
    (&["acc_count"], "count(x) OVER (ORDER BY ts ROWS UNBOUNDED PRECEDING)"),
    (&["acc_max"], "max(x) OVER (ORDER BY ts ROWS UNBOUNDED PRECEDING)"),
    (&["acc_min"], "min(x) OVER (ORDER BY ts ROWS UNBOUNDED PRECEDING)"),
];

/// What to write in the place of a function of this name, in lower case; `None` if it is not known from elsewhere.
pub(super) fn instead(name: &str) -> Option<String> {
    WRITE.iter().find(|(names, _)| names.contains(&name)).map(|(_, write)| format!("write {write}"))
}

#[cfg(test)]
mod tests {
    use super::super::functions::{Found, REGISTRY};
    use super::*;

    /// Words before a parenthesis that are no functions.
    const OTHER: [&str; 3] = ["cast", "filter", "by"];

    #[test]
    fn what_is_written_instead_is_there_and_the_name_is_not() {
        for (names, write) in WRITE {
            for name in names {
                let is_free = matches!(REGISTRY.find(name), Found::Unknown | Found::OtherAggregate);
                assert!(is_free, "{name} is a function already");
            }
            for (before, _) in write.match_indices('(') {
                let word = write[..before].rsplit(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_').next();
                let word = word.expect("a text").to_lowercase();
                let is_called = !word.is_empty() && !OTHER.contains(&&*word);
                let is_of_times = ["timestampdiff", "timestampadd"].contains(&&*word);
                let is_there = is_of_times || !matches!(REGISTRY.find(&word), Found::Unknown | Found::OtherAggregate);
                assert!(!is_called || is_there, "{word} of '{write}'");
            }
        }
        assert_eq!(instead("average").as_deref(), Some("write avg(x)"));
        assert_eq!(instead("numbytes").as_deref(), Some("write octet_length(text)"));
        assert_eq!(instead("nonsense"), None);
    }
}
