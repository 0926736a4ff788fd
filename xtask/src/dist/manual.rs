//! The page of the manual: the reference of the command line, as `man` shows it.

use super::{read, root};

/// `rivulet.1`.
pub(super) fn page(version: &str) -> Result<String, String> {
    let reference = read(&root().join("docs/reference/cli.md"))?;
    Ok(of_reference(&String::from_utf8_lossy(&reference), version))
}

/// Each command of the reference has a heading, and its help between fences.
fn of_reference(reference: &str, version: &str) -> String {
    let mut page = format!(
        ".TH RIVULET 1 \"\" \"Rivulet {version}\"\n\
         .SH NAME\nrivulet \\- stream processing engine for very many small queries\n"
    );
    for line in reference.lines().skip_while(|line| !line.starts_with("## ")) {
        match line.split_once(' ') {
            Some((marks, heading)) if marks.starts_with("##") => {
                page.push_str(&format!(".SH {}\n", escaped(&heading.replace('`', "").to_uppercase())));
            }
            _ if line == "```text" => page.push_str(".nf\n"),
            _ if line == "```" => page.push_str(".fi\n"),
            _ => page.push_str(&format!("{}\n", escaped(line))),
        }
    }
    page
}

/// A line in which nothing is a command of roff.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_become_sections_and_their_help_stays_as_it_is() {
        let reference = "<!-- x -->\n# The command line\n\n## `rivulet`\n\n```text\n.hidden --json \\q\n```\n";
        let page = of_reference(reference, "1.2.3");
        assert!(page.starts_with(".TH RIVULET 1 \"\" \"Rivulet 1.2.3\"\n"), "{page}");
        assert!(page.ends_with("\n.SH RIVULET\n\n.nf\n\\&.hidden \\-\\-json \\eq\n.fi\n"), "{page}");
    }
}
