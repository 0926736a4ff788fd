//! Pages that need nothing else: what was measured and where, tables, and plots as SVG: bars, and curves over axes.

use std::fmt::Write;

use crate::Circumstances;

/// Size of a plot, in pixels, and of its margins: left and below for labels.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 84.0;
const BELOW: f64 = 40.0;

/// Colours that remain apart for people who see fewer of them.
const COLOURS: [&str; 9] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31", "#999999"];

/// Names in a row of a legend.
const LEGEND_PER_ROW: usize = 4;

/// The beginning of a page about what a command has measured. What it says about that is HTML.
pub fn begin_page(command: &str, title: &str, about: &str, circumstances: &Circumstances) -> String {
    let Circumstances { began, version, command: line, cores, processor, kernel } = circumstances;
    let (line, processor, kernel) = (escaped(line), escaped(processor), escaped(kernel));
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{command}</title>\
         <style>body{{font:15px/1.5 system-ui,sans-serif;max-width:66em;margin:2em auto;padding:0 1em}}\
         table{{border-collapse:collapse;font-variant-numeric:tabular-nums}}td,th{{padding:.2em .7em;text-align:right;\
         border-bottom:1px solid #ddd}}th{{vertical-align:bottom}}td{{white-space:nowrap}}\
         td:first-child,th:first-child,td.text{{text-align:left}}td.text{{white-space:normal;min-width:24em}}\
         code,td.text{{overflow-wrap:anywhere}}svg{{max-width:100%}}\
         text{{font:12px system-ui,sans-serif}}</style><h1>{title}</h1><p>{about}</p>\
         <p>{began} UTC, Rivulet {version}, {cores} cores ({processor}), kernel {kernel}<br><code>{line}</code></p>"
    )
}

/// A table.
pub fn write_table<const COLUMNS: usize>(
    headers: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
    page: &mut String,
) {
    let heads = headers.map(|head| format!("<th>{}", escaped(head))).concat();
    let _ = write!(page, "<div style=\"overflow-x:auto\"><table><tr>{heads}</tr>");
    for row in rows {
        let _ = write!(page, "<tr>{}</tr>", row.map(|cell| format!("<td>{}", escaped(&cell))).concat());
    }
    page.push_str("</table></div>");
}

/// A bar: what it is, its parts from left to right, and what is written behind it. A part has the colour of its place;
/// a bar of one part has the colour of the bar's own place.
pub struct Bar {
    /// What it is, before it.
    pub label: String,
    /// The lengths of its parts.
    pub parts: Vec<f64>,
    /// What is written behind it.
    pub text: String,
}

/// Bars below each other, with a legend if they have several parts.
pub fn write_bars(bars: &[Bar], legend: &[&str], page: &mut String) {
    let length = |bar: &Bar| bar.parts.iter().sum::<f64>();
    let most = bars.iter().map(length).fold(f64::MIN_POSITIVE, f64::max);
    let (row, label, behind) = (26.0, 200.0, 170.0);
    let height = row * (bars.len() + legend.len().div_ceil(LEGEND_PER_ROW)) as f64 + 10.0;
    let _ = write!(page, "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\">");
    for (index, bar) in bars.iter().enumerate() {
        let (y, mut x) = (index as f64 * row, label);
        let _ = write!(page, "<text x=\"0\" y=\"{:.0}\">{}</text>", y + 17.0, escaped(&bar.label));
        for (place, part) in bar.parts.iter().enumerate() {
            let width = (WIDTH - label - behind) * part / most;
            let colour = COLOURS[if bar.parts.len() == 1 { index } else { place } % COLOURS.len()];
            let top = y + 3.0;
            let _ = write!(
                page,
                "<rect x=\"{x:.1}\" y=\"{top:.0}\" width=\"{width:.1}\" height=\"18\" fill=\"{colour}\"/>"
            );
            x += width;
        }
        let _ = write!(page, "<text x=\"{:.0}\" y=\"{:.0}\">{}</text>", x + 6.0, y + 17.0, escaped(&bar.text));
    }
    for (place, name) in legend.iter().enumerate() {
        let (x, y) = (
            label + 130.0 * (place % LEGEND_PER_ROW) as f64,
            (bars.len() + place / LEGEND_PER_ROW) as f64 * row + 17.0,
        );
        let colour = COLOURS[place % COLOURS.len()];
        let _ = write!(page, "<text x=\"{x:.0}\" y=\"{y:.0}\" fill=\"{colour}\">&#9632; {name}</text>");
    }
    page.push_str("</svg>");
}

/// An axis: where it begins and ends, what is written at it where, and whether it is logarithmic.
pub struct Axis {
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// What is written at it, and where.
    pub marks: Vec<(f64, String)>,
    /// Whether equal distances are equal ratios.
    pub is_logarithmic: bool,
}

impl Axis {
    /// Powers of ten around these values.
    pub fn decades(values: impl Iterator<Item = f64>, name: impl Fn(f64) -> String) -> Self {
        let positive = values.filter(|value| *value > 0.0);
        let (least, most) = positive.fold((f64::MAX, f64::MIN), |(least, most), one| (least.min(one), most.max(one)));
        let (from, to) = if most < least { (0, 1) } else { (least.log10().floor() as i32, most.log10().ceil() as i32) };
        let to = to.max(from + 1);
        let marks = (from..=to).map(|power| 10_f64.powi(power)).map(|value| (value, name(value))).collect();
        Self { from: 10_f64.powi(from), to: 10_f64.powi(to), marks, is_logarithmic: true }
    }

    /// From 0 to at least this value, with four round marks or so.
    pub fn linear(most: f64, name: impl Fn(f64) -> String) -> Self {
        let most = most.max(1e-9);
        let power = 10_f64.powf((most / 4.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| most / step <= 5.0);
        let step = step.unwrap_or(most);
        let marks: Vec<_> = (0..=(most / step).ceil() as u32).map(|mark| f64::from(mark) * step).collect();
        let to = marks.last().copied().unwrap_or(most);
        Self { from: 0.0, to, marks: marks.into_iter().map(|mark| (mark, name(mark))).collect(), is_logarithmic: false }
    }

    /// Where a value lies between the ends, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.is_logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value };
        ((scale(value) - scale(self.from)) / (scale(self.to) - scale(self.from))).clamp(0.0, 1.0)
    }
}

/// Points that belong together, in order, joined by lines.
pub struct Curve {
    /// What it is.
    pub label: String,
    /// Its points: across, up.
    pub points: Vec<(f64, f64)>,
}

/// Curves over two axes, and below them what they are.
pub fn write_curves(curves: &[Curve], across: &Axis, up: &Axis, page: &mut String) {
    let x = |value: f64| LEFT + across.place(value) * (WIDTH - LEFT - 30.0);
    let y = |value: f64| 10.0 + (1.0 - up.place(value)) * (HEIGHT - BELOW - 10.0);
    let bottom = HEIGHT - BELOW;
    let full = HEIGHT + 18.0 * curves.len() as f64;
    let _ = write!(page, "<svg viewBox=\"0 0 {WIDTH} {full}\" width=\"{WIDTH}\">");
    for (value, name) in &across.marks {
        let at = x(*value);
        let _ = write!(
            page,
            "<line x1=\"{at:.0}\" x2=\"{at:.0}\" y1=\"10\" y2=\"{bottom:.0}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{name}</text>",
            bottom + 18.0,
        );
    }
    for (value, name) in &up.marks {
        let at = y(*value);
        let _ = write!(
            page,
            "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{at:.0}\" y2=\"{at:.0}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{name}</text>",
            WIDTH - 30.0,
            LEFT - 6.0,
            at + 4.0,
        );
    }
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut line = String::new();
        for (x, y) in curve.points.iter().map(|(across, up)| (x(*across), y(*up))) {
            let _ = write!(page, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            let _ = write!(line, "{x:.1},{y:.1} ");
        }
        let _ = write!(
            page,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{LEFT}\" y=\"{:.0}\" fill=\"{colour}\">{}</text>",
            line.trim_end(),
            HEIGHT + 14.0 + 18.0 * index as f64,
            escaped(&curve.label),
        );
    }
    page.push_str("</svg>");
}

/// Text as it stands in a page.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_of_powers_of_ten_reach_around_the_values() {
        let axis = Axis::decades([0.0, 30.0, 5_000.0].into_iter(), |value| value.to_string());
        assert_eq!((axis.from, axis.to, axis.marks.len()), (10.0, 10_000.0, 4));
        assert!((axis.place(100.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!((axis.place(0.0), axis.place(1e9)), (0.0, 1.0));
        let linear = Axis::linear(37.0, |value| value.to_string());
        assert_eq!((linear.to, linear.marks.len(), linear.marks[1].1.as_str()), (40.0, 5, "10"));
        let nothing = Axis::decades(std::iter::empty(), |value| value.to_string());
        assert_eq!((nothing.from, nothing.to), (1.0, 10.0));
    }

    #[test]
    fn the_longest_bar_fills_the_width_and_text_is_escaped() {
        let bar = |label: &str, parts: &[f64]| Bar { label: label.into(), parts: parts.into(), text: "x<y".into() };
        let mut page = String::new();
        write_bars(&[bar("a", &[1.0, 3.0]), bar("b", &[2.0])], &["one", "other"], &mut page);
        assert!(
            page.contains("width=\"87.5\"") && page.contains("width=\"262.5\"") && page.contains("width=\"175.0\"")
        );
        assert!(page.contains("x&lt;y") && page.contains("&#9632; other"));
    }
}
