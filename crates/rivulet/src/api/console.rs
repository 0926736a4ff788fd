//! The console: the page that a browser gets at `/`, from files in the program.
//!
//! What must hold: it has no right of its own. It asks the API as any client does, with the session of whoever sits in
//! front of it; and it loads nothing from elsewhere.

use std::io::Write;
use std::sync::OnceLock;

use axum::Router;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use xxhash_rust::xxh3::xxh3_64;

use super::call::Api;

/// A file of the page.
struct File {
    path: &'static str,
    kind: &'static str,
    content: &'static [u8],
    /// The same, compressed when it was first asked for.
    packed: OnceLock<Vec<u8>>,
}

macro_rules! file {
    ($path:literal, $name:literal, $kind:literal) => {
        File {
            path: $path,
            kind: $kind,
            content: include_bytes!(concat!("../../../../console/dist/", $name)),
            packed: OnceLock::new(),
        }
    };
}

static FILES: [File; 6] = [
    file!("/", "index.html", "text/html; charset=utf-8"),
    file!("/console/app.js", "app.js", "text/javascript; charset=utf-8"),
    file!("/console/editor.js", "editor.js", "text/javascript; charset=utf-8"),
    file!("/console/app.css", "app.css", "text/css; charset=utf-8"),
    file!("/console/icon.svg", "icon.svg", "image/svg+xml"),
    file!("/console/licences.txt", "licences.txt", "text/plain; charset=utf-8"),
];

/// The paths of its files.
pub(super) fn routes(router: Router<Api>) -> Router<Api> {
    FILES
        .iter()
        .fold(router, |router, file| router.route(file.path, get(async move |headers: HeaderMap| file.give(&headers))))
}

impl File {
    /// The file, unless the browser has it already.
    fn give(&'static self, asked: &HeaderMap) -> Response {
        let says = |name: HeaderName, text: &str| {
            asked.get_all(name).iter().any(|said| said.to_str().is_ok_and(|said| said.contains(text)))
        };
        let tag = format!("\"{:016x}\"", xxh3_64(self.content));
        // Asked for each time: the page of one version does not go with the next one.
        let headers = [(header::CACHE_CONTROL, "no-cache"), (header::VARY, "accept-encoding"), (header::ETAG, &tag)];
        if says(header::IF_NONE_MATCH, &tag) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        let kind = [(header::CONTENT_TYPE, self.kind)];
        match says(header::ACCEPT_ENCODING, "gzip") {
            true => (headers, kind, [(header::CONTENT_ENCODING, "gzip")], self.packed()).into_response(),
            false => (headers, kind, self.content).into_response(),
        }
    }

    fn packed(&'static self) -> &'static [u8] {
        self.packed.get_or_init(|| {
            let mut packed = GzEncoder::new(Vec::new(), Compression::best());
            packed.write_all(self.content).and_then(|()| packed.finish()).expect("memory takes what is written")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small() {
        let packed: usize = FILES.iter().map(|file| file.packed().len()).sum();
        assert!(packed <= 300 << 10, "{packed} bytes");
    }

    #[test]
    fn a_browser_gets_a_file_once_and_as_it_takes_it() {
        let asked = |name: HeaderName, text: &str| HeaderMap::from_iter([(name, text.parse().expect("a header"))]);
        let whole = FILES[1].give(&HeaderMap::new());
        assert!(!whole.headers().contains_key(header::CONTENT_ENCODING));
        assert_eq!(
            FILES[1].give(&asked(header::ACCEPT_ENCODING, "br, gzip")).headers()[header::CONTENT_ENCODING],
            "gzip"
        );
        let tag = whole.headers()[header::ETAG].to_str().expect("text").to_owned();
        assert_eq!(FILES[1].give(&asked(header::IF_NONE_MATCH, &tag)).status(), StatusCode::NOT_MODIFIED);
    }
}
