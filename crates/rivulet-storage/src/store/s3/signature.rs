//! Signatures of requests: AWS Signature Version 4, in the `Authorization` header
//! (Amazon S3 API Reference, "Signature Calculations for the Authorization Header").

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use ring::{digest, hmac};

use super::settings::Credentials;

/// What is signed of a request.
pub(super) struct Signed<'r> {
    pub(super) method: &'r str,
    /// As it is sent.
    pub(super) path: &'r str,
    /// As it is sent, its parts in the order of their names.
    pub(super) query: &'r str,
    /// In the order of their names, which are in lower case.
    pub(super) headers: &'r [(&'r str, String)],
    /// The SHA-256 of the body, in hexadecimal digits.
    pub(super) body: &'r str,
}

/// A moment, as signatures have it: `20130524T000000Z`.
pub(super) fn moment(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // The day in years that begin in March, so that a leap day is the last of its year (H. Hinnant, "chrono-compatible low-level date algorithms").
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let day = day - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// The `Authorization` header of a request that is made at a moment.
pub(super) fn authorization(credentials: &Credentials, region: &str, moment: &str, request: &Signed<'_>) -> String {
    let Signed { method, path, query, headers, body } = request;
    let mut canonical = format!("{method}\n{path}\n{query}\n");
    for (name, value) in *headers {
        let _ = writeln!(canonical, "{name}:{}", value.trim());
    }
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let _ = write!(canonical, "\n{names}\n{body}");
    let date = moment.split('T').next().unwrap_or(moment);
    let scope = format!("{date}/{region}/s3/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{moment}\n{scope}\n{}", sha256([canonical.as_bytes()]));
    let of = |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes());
    let mut key = of(format!("AWS4{}", credentials.secret_access_key).as_bytes(), date);
    for part in [region, "s3", "aws4_request"] {
        key = of(key.as_ref(), part);
    }
    let signature = hexadecimal(of(key.as_ref(), &text).as_ref());
    let key_id = &credentials.access_key_id;
    format!("AWS4-HMAC-SHA256 Credential={key_id}/{scope},SignedHeaders={names},Signature={signature}")
}

/// The SHA-256 of parts that follow each other, in hexadecimal digits.
pub(super) fn sha256<'b>(parts: impl IntoIterator<Item = &'b [u8]>) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    parts.into_iter().for_each(|part| context.update(part));
    hexadecimal(context.finish().as_ref())
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The examples of the reference, with the signatures that it gives.
    #[test]
    fn signatures_are_those_of_the_reference() {
        let credentials = Credentials {
            access_key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
        };
        let moment = "20130524T000000Z";
        let (empty, welcome) = (sha256([]), sha256([&b"Welcome "[..], b"to Amazon S3."]));
        let header = |name: &'static str, value: &str| (name, value.to_owned());
        let host = header("host", "examplebucket.s3.amazonaws.com");
        let date = header("x-amz-date", moment);
        let hash = |body: &str| header("x-amz-content-sha256", body);
        let cases = [
            (
                Signed {
                    method: "GET",
                    path: "/test.txt",
                    query: "",
                    headers: &[host.clone(), header("range", "bytes=0-9"), hash(&empty), date.clone()],
                    body: &empty,
                },
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                Signed {
                    method: "PUT",
                    path: "/test%24file.text",
                    query: "",
                    headers: &[
                        header("date", "Fri, 24 May 2013 00:00:00 GMT"),
                        host.clone(),
                        hash(&welcome),
                        date.clone(),
                        header("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                    ],
                    body: &welcome,
                },
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
            (
                Signed {
                    method: "GET",
                    path: "/",
                    query: "max-keys=2&prefix=J",
                    headers: &[host, hash(&empty), date],
                    body: &empty,
                },
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ];
        for (request, signature) in &cases {
            let header = authorization(&credentials, "us-east-1", moment, request);
            assert!(header.ends_with(&format!("Signature={signature}")), "{} {header}", request.path);
        }
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_369_353_600, "20130524T000000Z"),
            (1_735_689_599, "20241231T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(moment(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }
}
