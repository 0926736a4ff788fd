//! Lines of the record of what callers do, with any names, texts and reasons. Each is one line of JSON of limited
//! length that says what was said, or the begin of it; of a statement nothing behind its first value is there.

use rivulet::accounts::audit_line;
use rivulet::service::{Action, AuditEntry, Caller, Origin, Resource, ResourceKind, without_values};
use serde_json::Value;

use crate::Target;
use crate::input::Input;

/// See the module.
pub const TARGET: Target = Target {
    name: "audit",
    run,
    words: &["\n", "\r", "\u{2028}", "\"", "\\", "CREATE SECRET s AS '", "MARKER", "'", "$", "é", "\0"],
    mutations: 10_000,
};

/// The longest line, in bytes: texts are cut, and each of their characters may take six bytes.
const LINE_BYTES_MAX: usize = 32 << 10;

const ACTIONS: [Option<Action>; 6] = [
    None,
    Some(Action::Read),
    Some(Action::Change),
    Some(Action::Subscribe),
    Some(Action::Publish),
    Some(Action::Administer),
];

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (action, repeats) = (input.pick(&ACTIONS), 1 + usize::from(input.byte()) * 16);
    let mut text = || String::from_utf8_lossy(input.piece()).into_owned();
    let [tenant, user, name, why] = [text(), text(), text(), text()];
    let (name, why) = (name.repeat(repeats), why.repeat(repeats));
    let statement = String::from_utf8_lossy(input.rest()).into_owned();
    let recorded = without_values(&statement);
    let begin = statement.find(['\'', '$']).unwrap_or(statement.len());
    assert!(!recorded.contains('\'') && !recorded.contains('$'), "{recorded:?}");
    assert!(!recorded.contains("MARKER") || statement[..begin].split_whitespace().any(|word| word.contains("MARKER")));
    assert!(recorded.chars().count() <= 504, "{}", recorded.len());

    let caller = Caller::new(&tenant, &*user);
    let entry = AuditEntry {
        caller: Some(&caller),
        origin: Some(Origin { address: None, door: "http" }),
        action,
        resource: Some(Resource { kind: ResourceKind::Query, name: Some(&name) }),
        count: repeats,
        statement: Some(&recorded),
        refused: Some(&why),
        failed: None,
    };
    let line = audit_line(&entry);
    assert!(line.len() <= LINE_BYTES_MAX, "{} bytes", line.len());
    let (last, content) = line.split_last().expect("it is not empty");
    assert!(*last == b'\n' && !content.contains(&b'\n') && !content.contains(&b'\r'), "one line");
    let read: Value = serde_json::from_slice(content).expect("JSON");
    assert_eq!((&read["tenant"], &read["user"]), (&Value::from(&*tenant), &Value::from(&*user)));
    assert_eq!(read["statement"], Value::from(&*recorded));
    assert_eq!(read["allowed"], Value::from(false));
    for (field, said) in [("name", &name), ("why", &why)] {
        let written = read[field].as_str().expect("text");
        let kept = written.strip_suffix("...").unwrap_or(written);
        assert!(written == said || said.starts_with(kept), "{field}: {written:?} and not {said:?}");
        assert!(written == said || written.chars().count() > 400, "a short one is whole");
    }
}
