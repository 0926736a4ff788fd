//! Metrics in the format that the scraper asks for: OpenMetrics, or the older text format of Prometheus.

use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;

use super::call::Authenticated;
use super::error::ApiError;

/// Metrics for Prometheus
///
/// In OpenMetrics where `Accept` names it and prefers nothing else, and in the text format 0.0.4 otherwise.
#[utoipa::path(
    get, path = "/metrics", tag = "server",
    responses((
        status = 200,
        description = "The figures",
        content((String = "text/plain"), (String = "application/openmetrics-text")),
    )),
)]
pub(super) async fn show_metrics(api: Authenticated, headers: HeaderMap) -> Result<impl IntoResponse, ApiError> {
    let text = api.looking(|session| session.metrics()).await??;
    let (content_type, text) = if prefers_open_metrics(&headers) {
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", text)
    } else {
        ("text/plain; version=0.0.4; charset=utf-8", as_text_format(&text))
    };
    Ok(([(header::CONTENT_TYPE, content_type), (header::VARY, "accept")], text))
}

/// Whether `Accept` names OpenMetrics and weighs nothing else more. A client that takes anything may be one that does
/// not know this format.
fn prefers_open_metrics(headers: &HeaderMap) -> bool {
    let (mut open_metrics, mut text) = (0.0, 0.0);
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    for range in accepted.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let weight = match parts.next().unwrap_or_default().to_ascii_lowercase().as_str() {
            "application/openmetrics-text" => &mut open_metrics,
            "text/plain" | "text/*" | "*/*" => &mut text,
            _ => continue,
        };
        let given = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
        *weight = f32::max(*weight, given.unwrap_or(1.0));
    }
    open_metrics > 0.0 && open_metrics >= text
}

/// OpenMetrics as text of version 0.0.4: a counter is called by its full name in its description, and units and the
/// end are not written.
fn as_text_format(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        let described = line.strip_prefix("# ").map(|rest| rest.splitn(3, ' '));
        match described.map(Vec::from_iter).as_deref() {
            Some(["EOF"] | ["UNIT", ..]) => {}
            Some(["HELP", _, words]) => help = Some(words.replace("\\\"", "\"")),
            Some(["TYPE", name, kind]) => {
                let suffix = if *kind == "counter" { "_total" } else { "" };
                if let Some(help) = help.take() {
                    text.push_str(&format!("# HELP {name}{suffix} {help}\n"));
                }
                text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
            }
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn open_metrics_is_for_those_that_name_it_and_prefer_nothing_else() {
        let prefers = |accept: &'static str| {
            prefers_open_metrics(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]))
        };
        assert!(!prefers_open_metrics(&HeaderMap::new()));
        for accept in [
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; version=1.0.0; charset=utf-8",
            "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "text/html, application/openmetrics-text;q=0.1",
        ] {
            assert!(prefers(accept), "{accept}");
        }
        for accept in [
            "*/*",
            "text/plain;version=0.0.4",
            "text/plain, application/openmetrics-text;q=0.9",
            "application/openmetrics-text;q=0",
            "application/json",
            "",
        ] {
            assert!(!prefers(accept), "{accept}");
        }
    }

    #[test]
    fn the_text_format_names_counters_in_full() {
        let open_metrics = "# HELP a_events What \\\"came\\\".\n# TYPE a_events counter\na_events_total{x=\"1\"} 5\n\
                            # HELP b_seconds How long.\n# TYPE b_seconds histogram\n# UNIT b_seconds seconds\n\
                            b_seconds_bucket{le=\"+Inf\"} 1\n# HELP c Now.\n# TYPE c gauge\nc 7\n# EOF\n";
        let text = "# HELP a_events_total What \"came\".\n# TYPE a_events_total counter\na_events_total{x=\"1\"} 5\n\
                    # HELP b_seconds How long.\n# TYPE b_seconds histogram\nb_seconds_bucket{le=\"+Inf\"} 1\n\
                    # HELP c Now.\n# TYPE c gauge\nc 7\n";
        assert_eq!(as_text_format(open_metrics), text);
    }
}
