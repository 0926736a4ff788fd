//! Signatures of requests to Amazon's services: AWS Signature Version 4.

use ring::{digest, hmac};

/// A request without a query.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a str,
    /// Letters, digits, `-`, `_`, `.` and `/` only.
    pub(crate) path: &'a str,
    /// What is signed of the headers, `host` and `x-amz-date` included: names in lower case, in order.
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a [u8],
}

impl Signed<'_> {
    /// The header `authorization`, for a key and its secret.
    pub(crate) fn authorization(&self, (id, secret): (&str, &str), region: &str, service: &str) -> String {
        let hash = |bytes: &[u8]| hex::encode(digest::digest(&digest::SHA256, bytes));
        let now = self.headers.iter().find(|(name, _)| *name == "x-amz-date").map_or("", |(_, value)| value);
        let date = now.get(..8).unwrap_or_default();
        let names = self.headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let headers: String = self.headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let request = format!("{}\n{}\n\n{headers}\n{names}\n{}", self.method, self.path, hash(self.body));
        let scope = format!("{date}/{region}/{service}/aws4_request");
        let text = format!("AWS4-HMAC-SHA256\n{now}\n{scope}\n{}", hash(request.as_bytes()));
        let mut key = format!("AWS4{secret}").into_bytes();
        for part in [date, region, service, "aws4_request", &text] {
            key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
        }
        let signature = hex::encode(key);
        format!("AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `get-vanilla` and `post-vanilla` of the test suite that Amazon has published.
    #[test]
    fn published_examples_have_their_signatures() {
        let headers = [("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")];
        for (method, signature) in [
            ("GET", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            ("POST", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        ] {
            let request = Signed { method, path: "/", headers: &headers, body: b"" };
            let key = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
            assert_eq!(
                request.authorization(key, "us-east-1", "service"),
                format!(
                    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                     SignedHeaders=host;x-amz-date, Signature={signature}"
                )
            );
        }
    }
}
