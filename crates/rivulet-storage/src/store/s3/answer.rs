//! What an object store answers: lists of objects, and why it refuses.
//!
//! Answers are small documents of XML of a known form, of which a few elements are wanted, without attributes and never one in another
//! of the same name; so they are looked for by their names. What comes from outside is only ever not found.

use crate::StorageError;

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The length that its head says; that of the object, where only the head was asked for.
    pub(super) length: Option<u64>,
    /// The mark of who has put the object.
    pub(super) mark: Option<String>,
    /// The region in which the bucket is, where the store says it.
    pub(super) region: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether the same request may be answered otherwise in a moment.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self.status, 429 | 500 | 502..=504) || (self.status == 409 && self.code() != "BucketNotEmpty")
    }

    fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    fn code(&self) -> String {
        element(&self.text(), "Code").unwrap_or_default()
    }

    /// Whether the object is not there, but the bucket is.
    pub(super) fn is_missing(&self) -> bool {
        self.status == 404 && self.code() != "NoSuchBucket"
    }

    /// Why `what` could not be done in the bucket named `place`, and what to do about it.
    pub(super) fn refusal(&self, what: String, place: &str) -> StorageError {
        let code = self.code();
        let said = element(&self.text(), "Message").unwrap_or_default();
        let detail = match (code.as_str(), said.as_str()) {
            ("", _) => format!("the object store answers with status {}", self.status),
            (code, "") => format!("the object store says {code}"),
            (code, said) => format!("the object store says {code}: {said}"),
        };
        let hint = match code.as_str() {
            "NoSuchBucket" => "create the bucket, or check its name in checkpoint.folder".into(),
            "XMinioStorageFull" | "QuotaExceeded" | "InsufficientStorage" => {
                return StorageError::Full { what, place: place.to_owned() };
            }
            "RequestTimeTooSkewed" => "set the clock of this machine".into(),
            "InvalidAccessKeyId" | "SignatureDoesNotMatch" => {
                "check checkpoint.s3.access_key_id and the secret that belongs to it (or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)".into()
            }
            "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => {
                "start the server with new credentials: those given for some hours are not renewed by it".into()
            }
            _ => match (self.status, &self.region) {
                (507, _) => return StorageError::Full { what, place: place.to_owned() },
                (300..=400, Some(region)) => format!("the bucket is in another region: set checkpoint.s3.region to {region}"),
                (300..=400, None) if code.contains("Redirect") || code.contains("Malformed") => {
                    "check checkpoint.s3.region and checkpoint.s3.endpoint: the bucket is elsewhere".into()
                }
                (401 | 403, _) => "let these credentials list the bucket (s3:ListBucket), and read, write and delete its objects \
                                   (s3:GetObject, s3:PutObject, s3:DeleteObject)"
                    .into(),
                (404, _) => "create the bucket, or check its name in checkpoint.folder and checkpoint.s3.endpoint".into(),
                (429 | 500..=599, _) => "it is tried again with the next checkpoint; look at the object store if that goes on".into(),
                _ => "check checkpoint.s3.endpoint: what answers there is perhaps no S3-compatible object store".into(),
            },
        };
        StorageError::Remote { what, detail, hint }
    }
}

/// A page of a list of objects.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// Names, as they were sent, and sizes.
    pub(super) objects: Vec<(String, u64)>,
    /// What to ask for the next page with.
    pub(super) next: Option<String>,
}

impl Page {
    /// Reads the answer to `ListObjectsV2` with names in percent encoding; `None` if it is something else.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?;
        let inner = between(text, "<ListBucketResult", "</ListBucketResult>")?.0;
        let mut objects = Vec::new();
        let mut rest = inner;
        while let Some((object, behind)) = between(rest, "<Contents>", "</Contents>") {
            objects.push((from_percent(&element(object, "Key")?)?, element(object, "Size")?.parse().ok()?));
            rest = behind;
        }
        let is_cut = element(inner, "IsTruncated").as_deref() == Some("true");
        let next = element(inner, "NextContinuationToken");
        (!is_cut || next.is_some()).then_some(Self { objects, next: next.filter(|_| is_cut) })
    }
}

/// What stands between two texts, and what stands behind that.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> Option<(&'t str, &'t str)> {
    text.split_once(begin)?.1.split_once(end)
}

/// The text of the first element of this name.
fn element(text: &str, name: &str) -> Option<String> {
    let (raw, _) = between(text, &format!("<{name}>"), &format!("</{name}>"))?;
    let mut plain = raw.to_owned();
    // The ampersand last, or what it stood for would be read once more.
    for (entity, character) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&#39;", "'"),
        ("&#34;", "\""),
        ("&amp;", "&"),
    ] {
        plain = plain.replace(entity, character);
    }
    Some(plain)
}

/// Reads percent encoding, with `+` for a space, as object stores write names.
fn from_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, code: &str, region: Option<&str>) -> Answer {
        let body =
            format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>said &amp; done</Message></Error>");
        Answer { status, length: None, mark: None, region: region.map(str::to_owned), body: body.into_bytes() }
    }

    #[test]
    fn lists_are_read_page_by_page() {
        let text = "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>\
                    <IsTruncated>true</IsTruncated><NextContinuationToken>1&amp;2</NextContinuationToken>\
                    <Contents><Key>a%2Fone+more%25</Key><Size>7</Size></Contents><Contents><Size>0</Size><Key>b</Key></Contents></ListBucketResult>";
        let page = Page::read(text.as_bytes()).unwrap();
        assert_eq!(page.objects, [("a/one more%".into(), 7), ("b".into(), 0)]);
        assert_eq!(page.next.as_deref(), Some("1&2"));
        let whole = text.replace("<IsTruncated>true", "<IsTruncated>false");
        assert_eq!(Page::read(whole.as_bytes()).unwrap().next, None);
        let empty = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
        assert_eq!(Page::read(empty.as_bytes()), Some(Page { objects: Vec::new(), next: None }));
        // Whatever is cut or missing is said, and never taken for a shorter list.
        for end in 0..text.len() {
            assert_eq!(Page::read(&text.as_bytes()[..end]), None, "cut at {end}");
        }
        for wrong in
            ["", "<html></html>", &text.replace("<Size>7", "<Size>x"), &text.replace("NextContinuationToken", "Other")]
        {
            assert_eq!(Page::read(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn refusals_say_what_to_do() {
        let said = |answer: Answer| answer.refusal("cannot write a".into(), "s3://state").to_string();
        for (status, code, hint) in [
            (404, "NoSuchBucket", "create the bucket"),
            (403, "AccessDenied", "s3:ListBucket"),
            (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
            (403, "RequestTimeTooSkewed", "clock"),
            (400, "ExpiredToken", "new credentials"),
            (503, "SlowDown", "next checkpoint"),
            (405, "MethodNotAllowed", "checkpoint.s3.endpoint"),
            (507, "XMinioStorageFull", "free space"),
        ] {
            let text = said(answer(status, code, None));
            let (before, behind) = text.split_once("\nhint: ").expect("a hint");
            assert!(before.contains("cannot write a") && behind.contains(hint), "{text}");
        }
        assert!(
            said(answer(301, "PermanentRedirect", Some("eu-west-1"))).contains("checkpoint.s3.region to eu-west-1")
        );
        assert!(said(answer(403, "AccessDenied", None)).contains("AccessDenied: said & done"));
        assert!(answer(409, "ConditionalRequestConflict", None).is_transient());
        assert!(answer(404, "NoSuchKey", None).is_missing() && !answer(404, "NoSuchBucket", None).is_missing());
    }
}
