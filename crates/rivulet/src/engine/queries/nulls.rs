//! Parameters that are null: no comparison with null is true, so a condition keeps no row, and the query gives no
//! results.

use rivulet_operators::application::Application;

use crate::counted::noun;

/// What a condition contains that was written with null in mind.
const FOR_NULLS: [&str; 6] = [" is ", "coalesce(", "nvl(", "nvl2(", "ifnull(", "case "];

/// The null parameters that a WHERE or HAVING compares with, unless the condition is written for nulls.
pub(super) fn compared_with(application: &Application, is_null: impl Fn(&str) -> bool) -> Vec<String> {
    let mut compared = Vec::new();
    for (place, factory) in application.dataflow.operators().iter().enumerate() {
        let described = factory.describe();
        let is_for_nulls = |step: &String| {
            let step = step.to_lowercase();
            FOR_NULLS.iter().any(|one| step.contains(one))
        };
        if described.operator == "filter" && !application.code.steps(place).iter().any(is_for_nulls) {
            let names = described.per_slot.iter().map(|name| name.trim_start_matches('$').to_owned());
            compared.extend(names.filter(|name| is_null(name)));
        }
    }
    compared.dedup();
    compared
}

/// A sentence that these parameters give no results; `None` if there are no such parameters.
pub(super) fn silence(compared: &[String]) -> Option<String> {
    let verb = if compared.len() == 1 { "is" } else { "are" };
    let parameters = noun(compared.len() as u64, "parameter");
    let names = compared.join(", ");
    let text = || {
        format!(
            "the {parameters} {names} {verb} NULL, and no comparison with NULL is true: a condition that needs one \
                 keeps no row"
        )
    };
    (!compared.is_empty()).then(text)
}
