//! Signatures of requests to Amazon's services: AWS Signature Version 4.

use ring::{digest, hmac};

/// A POST without a query.
pub(crate) struct Signed<'a> {
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
        let request = format!("POST\n{}\n\n{headers}\n{names}\n{}", self.path, hash(self.body));
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

    /// `post-vanilla`, `post-x-www-form-urlencoded` and `post-sts-header-before` of the test suite that Amazon has
    /// published.
    #[test]
    fn published_examples_have_their_signatures() {
        let own = [("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")];
        let form = [&[("content-type", "application/x-www-form-urlencoded")][..], &own].concat();
        let token = concat!(
            "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfp",
            "SPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQ",
            "DYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+s",
            "cqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==",
        );
        let with_token = [&own[..], &[("x-amz-security-token", token)]].concat();
        for (headers, body, names, signature) in [
            (&own[..], "", "", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
            (&form, "Param1=value1", "", "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"),
            (
                &with_token,
                "",
                ";x-amz-security-token",
                "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
            ),
        ] {
            let request = Signed { path: "/", headers, body: body.as_bytes() };
            let key = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
            let first = if body.is_empty() { "" } else { "content-type;" };
            assert_eq!(
                request.authorization(key, "us-east-1", "service"),
                format!(
                    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                     SignedHeaders={first}host;x-amz-date{names}, Signature={signature}"
                )
            );
        }
    }
}
