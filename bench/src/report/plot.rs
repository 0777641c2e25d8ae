//! Plots as SVG text: lines with markers over a logarithmic or even axis, or bars where there is
//! only one place on the axis.
//!
//! Pure: series in, text out. Colours are CSS classes `s0` to `s5`, so that a plot follows the
//! page's light or dark scheme; each series has a marker of its own as well, so that a plot reads
//! without colour.
//!
//! Invariants: the y axis starts at 0; every place on the x axis is labelled; text is escaped.

use std::fmt::Write;

pub(super) const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 330.0;
pub(super) const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
pub(super) const BOTTOM: f64 = 44.0;
pub(super) const LEGEND_LINE: f64 = 19.0;
/// Width of a character in a legend, near enough for spacing.
const CHARACTER: f64 = 6.7;

/// One curve, or one bar in each place.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Series {
    pub(crate) label: String,
    /// Colour and marker, 0 to 5.
    pub(crate) style: usize,
    /// Dashed curves were not measured here: other people's numbers, or simulated.
    pub(crate) dashed: bool,
    /// In the order of the axis.
    pub(crate) marks: Vec<PlotMark>,
}

/// One value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlotMark {
    /// Index of the place on the axis.
    pub(crate) place: usize,
    pub(crate) value: f64,
    /// Lowest and highest of the runs; none for numbers without runs.
    pub(crate) range: Option<[f64; 2]>,
}

/// A plot without its data.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlotFrame {
    pub(crate) x_label: &'static str,
    pub(crate) y_label: String,
    /// The places on the x axis.
    pub(crate) places: Vec<AxisPosition>,
    /// Whether the places are kinds of something, drawn as bars, rather than numbers.
    pub(crate) kinds: bool,
}

/// A place on the x axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AxisPosition {
    /// Position in any unit, for example a logarithm.
    pub(crate) at: f64,
    pub(crate) label: String,
}

/// Text that is safe inside HTML and SVG.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            other => safe.push(other),
        }
    }
    safe
}

/// The plot.
pub(crate) fn svg(frame: &PlotFrame, series: &[Series]) -> String {
    let legend = legend(series);
    let top = legend.lines * LEGEND_LINE + 12.0;
    let values = series
        .iter()
        .flat_map(|it| &it.marks)
        .map(|mark| mark.range.map_or(mark.value, |range| range[1].max(mark.value)));
    let is_bars = frame.kinds || frame.places.len() == 1;
    // Bars have their value written above them.
    let headroom = if is_bars { 1.08 } else { 1.0 };
    let scale = Scale::new(values.fold(0.0, f64::max) * headroom, frame, top);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{} over {}\">",
        escaped(&frame.y_label),
        escaped(frame.x_label)
    );
    svg += &legend.svg;
    svg += &axes(frame, &scale);
    if is_bars {
        svg += &bars(series, &scale);
    } else {
        for one in series {
            svg += &curve(one, &scale);
        }
    }
    svg + "</svg>"
}

/// Maps values to positions in the picture.
struct Scale {
    top: f64,
    /// Where each place is, in pixels.
    places: Vec<f64>,
    step: f64,
    steps: usize,
}

impl Scale {
    fn new(max: f64, frame: &PlotFrame, top: f64) -> Self {
        let (step, steps) = ticks(max);
        let count = frame.places.len().max(1) as f64;
        let width = WIDTH - LEFT - RIGHT;
        let (first, last) = match (frame.places.first(), frame.places.last()) {
            (Some(first), Some(last)) if last.at > first.at => (first.at, last.at),
            _ => (0.0, 0.0),
        };
        let even = frame.kinds || last <= first;
        // A margin of half a step at each end, or less if there are many steps.
        let margin = if even { width / count / 2.0 } else { (width / count / 2.0).min(30.0) };
        let x = |(index, place): (usize, &AxisPosition)| {
            let share = if even {
                index as f64 / (count - 1.0).max(1.0)
            } else {
                (place.at - first) / (last - first)
            };
            (2.0f64.mul_add(-margin, width)).mul_add(share, LEFT + margin)
        };
        Self { top, places: frame.places.iter().enumerate().map(x).collect(), step, steps }
    }

    fn x(&self, place: usize) -> f64 {
        self.places.get(place).copied().unwrap_or(LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        let bottom = HEIGHT - BOTTOM;
        bottom - (bottom - self.top) * value / (self.step * self.steps as f64)
    }
}

/// A round step, and how many of them reach `max`.
pub(super) fn ticks(max: f64) -> (f64, usize) {
    if max <= 0.0 || !max.is_finite() {
        return (1.0, 1);
    }
    let rough = max / 5.0;
    let magnitude = 10f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * magnitude);
    let step = round.into_iter().find(|&step| step >= rough * 0.999).unwrap_or(rough);
    (step, (max / step).ceil().max(1.0) as usize)
}

/// Formats a number with enough digits for steps of `step`.
pub(super) fn short(value: f64, step: f64) -> String {
    let (divisor, unit) = match step * 5.0 {
        size if size >= 5e6 => (1e6, "M"),
        size if size >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let step = step / divisor;
    let digits = if step >= 1.0 && step.fract() == 0.0 {
        0
    } else if step >= 0.1 {
        1
    } else {
        2
    };
    if value == 0.0 { "0".to_owned() } else { format!("{:.digits$}{unit}", value / divisor) }
}

fn axes(frame: &PlotFrame, scale: &Scale) -> String {
    let mut svg = String::new();
    let right = WIDTH - RIGHT;
    for tick in 0..=scale.steps {
        let value = scale.step * tick as f64;
        svg += &tick_line(tick == 0, scale.y(value), right, &short(value, scale.step));
    }
    for (index, place) in frame.places.iter().enumerate() {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            scale.x(index),
            HEIGHT - BOTTOM + 17.0,
            escaped(&place.label),
        );
    }
    svg += &x_title(f64::midpoint(LEFT, right), HEIGHT - 7.0, frame.x_label);
    svg + &y_title(f64::midpoint(scale.top, HEIGHT - BOTTOM), &frame.y_label)
}

/// The line of a tick on the vertical axis, with its label; the first one is the axis itself.
pub(super) fn tick_line(is_axis: bool, y: f64, right: f64, label: &str) -> String {
    let class = if is_axis { "axis" } else { "grid" };
    format!(
        "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
        LEFT - 7.0,
        y + 4.0,
    )
}

/// The title of the horizontal axis, centred at `x`.
pub(super) fn x_title(x: f64, y: f64, label: &str) -> String {
    let label = escaped(label);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{label}</text>")
}

/// The title of the vertical axis, centred at `y`.
pub(super) fn y_title(y: f64, label: &str) -> String {
    format!(
        "<text transform=\"translate(13 {y:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        escaped(label),
    )
}

fn curve(series: &Series, scale: &Scale) -> String {
    let mut svg = format!("<g class=\"s{}\">", series.style);
    let points: Vec<(f64, f64)> =
        series.marks.iter().map(|mark| (scale.x(mark.place), scale.y(mark.value))).collect();
    let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let dashed = if series.dashed { " dashed" } else { "" };
    let _ = write!(svg, "<polyline class=\"curve{dashed}\" points=\"{}\"/>", line.join(" "));
    for (mark, &(x, y)) in series.marks.iter().zip(&points) {
        svg += &range_line("range", mark, x, scale);
        svg += &marker(series.style, x, y, &tip(series, mark));
    }
    svg + "</g>"
}

/// A thin vertical line from the lowest to the highest run; empty for numbers without runs.
fn range_line(class: &str, mark: &PlotMark, x: f64, scale: &Scale) -> String {
    let Some([low, high]) = mark.range else { return String::new() };
    let (low, high) = (scale.y(low), scale.y(high));
    format!(
        "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>"
    )
}

fn bars(series: &[Series], scale: &Scale) -> String {
    let each = (WIDTH - LEFT - RIGHT) / scale.places.len().max(1) as f64;
    let width = (each * 0.78 / series.len().max(1) as f64).min(54.0);
    let group = width * series.len() as f64;
    let mut svg = String::new();
    for (index, one) in series.iter().enumerate() {
        let _ = write!(svg, "<g class=\"s{}\">", one.style);
        for mark in &one.marks {
            let x = width.mul_add(index as f64, scale.x(mark.place) - group / 2.0);
            let (y, bottom) = (scale.y(mark.value), scale.y(0.0));
            let top = mark.range.map_or(y, |[_, high]| scale.y(high).min(y));
            let _ = write!(
                svg,
                "<rect class=\"bar\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
                 rx=\"2\"><title>{}</title></rect>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x + 1.5,
                width - 3.0,
                bottom - y,
                escaped(&tip(one, mark)),
                x + width / 2.0,
                top - 5.0,
                short(mark.value, scale.step / 10.0),
            );
            svg += &range_line("range on-bar", mark, x + width / 2.0, scale);
        }
        svg += "</g>";
    }
    svg
}

fn tip(series: &Series, mark: &PlotMark) -> String {
    let digits = if mark.value >= 1000.0 { 0 } else { 2 };
    let range = mark
        .range
        .map_or_else(String::new, |[low, high]| format!(" ({low:.digits$} to {high:.digits$})"));
    format!("{}: {:.digits$}{range}", series.label, mark.value)
}

/// A mark of the style's own shape.
fn marker(style: usize, x: f64, y: f64, tip: &str) -> String {
    let polygon = |corners: &[(f64, f64)]| {
        let corners: Vec<String> =
            corners.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
        format!("<polygon class=\"mark\" points=\"{}\">", corners.join(" "))
    };
    let (shape, end) = match style {
        0 => (format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.4\">"), "circle"),
        1 => (polygon(&[(-3.9, -3.9), (3.9, -3.9), (3.9, 3.9), (-3.9, 3.9)]), "polygon"),
        2 => (polygon(&[(0.0, -5.2), (4.9, 3.8), (-4.9, 3.8)]), "polygon"),
        3 => (polygon(&[(0.0, -5.6), (5.2, 0.0), (0.0, 5.6), (-5.2, 0.0)]), "polygon"),
        4 => (polygon(&[(0.0, 5.2), (4.9, -3.8), (-4.9, -3.8)]), "polygon"),
        _ => {
            (polygon(&[(-5.0, -2.0), (0.0, -5.2), (5.0, -2.0), (3.2, 4.4), (-3.2, 4.4)]), "polygon")
        }
    };
    format!("{shape}<title>{}</title></{end}>", escaped(tip))
}

struct Legend {
    svg: String,
    lines: f64,
}

/// Places the entries of a legend in lines, each `extra` wider than its label. Returns the place of
/// each, and how many lines there are.
pub(super) fn legend_places<'text>(
    labels: impl Iterator<Item = &'text str>,
    extra: f64,
    right: f64,
) -> (Vec<(f64, f64)>, f64) {
    let (mut x, mut line) = (LEFT, 0.0);
    let place = |label: &str| {
        let width = CHARACTER.mul_add(label.chars().count() as f64, extra);
        if x + width > right + 12.0 && x > LEFT {
            (x, line) = (LEFT, line + 1.0);
        }
        let at = (x, LEGEND_LINE.mul_add(line, 10.0));
        x += width;
        at
    };
    let places = labels.map(place).collect();
    (places, line + 1.0)
}

fn legend(series: &[Series]) -> Legend {
    let labels = series.iter().map(|one| one.label.as_str());
    let (places, lines) = legend_places(labels, 40.0, WIDTH - RIGHT);
    let mut svg = String::new();
    for (one, (x, y)) in series.iter().zip(places) {
        let dashed = if one.dashed { " dashed" } else { "" };
        let _ = write!(
            svg,
            "<g class=\"s{}\"><line class=\"curve{dashed}\" x1=\"{x:.1}\" x2=\"{:.1}\" \
             y1=\"{y:.1}\" y2=\"{y:.1}\"/>{}</g><text \
             class=\"legend\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            one.style,
            x + 22.0,
            marker(one.style, x + 11.0, y, &one.label),
            x + 27.0,
            y + 4.0,
            escaped(&one.label),
        );
    }
    Legend { svg, lines }
}

#[cfg(test)]
mod tests {
    use super::{AxisPosition, PlotFrame, PlotMark, Scale, Series, escaped, short, svg, ticks};

    fn frame(places: usize) -> PlotFrame {
        let place =
            |index: usize| AxisPosition { at: index as f64, label: (1 << index).to_string() };
        let places = (0..places).map(place).collect();
        let x_label = "transactions per connection";
        PlotFrame { x_label, y_label: "µs".to_owned(), places, kinds: false }
    }

    #[test]
    fn places_keep_their_distances() {
        let mut frame = frame(3);
        frame.places[1].at = 0.5;
        let scale = Scale::new(1.0, &frame, 20.0);
        let ratio = (scale.x(1) - scale.x(0)) / (scale.x(2) - scale.x(0));
        assert!((ratio - 0.25).abs() < 1e-6);
        frame.kinds = true;
        let scale = Scale::new(1.0, &frame, 20.0);
        let ratio = (scale.x(1) - scale.x(0)) / (scale.x(2) - scale.x(0));
        assert!((ratio - 0.5).abs() < 1e-6);
    }

    #[test]
    fn ticks_are_round_and_reach_the_maximum() {
        for max in [0.003, 0.7, 1.0, 9.29, 99.0, 1234.0, 520_000.0] {
            let (step, steps) = ticks(max);
            assert!(step * steps as f64 >= max * 0.999, "{max}: {step} × {steps}");
            assert!((1..=6).contains(&steps), "{max}: {steps}");
        }
        assert_eq!(ticks(0.0).1, 1);
        assert_eq!(ticks(f64::NAN).1, 1);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(120_000.0, 20_000.0), "120k");
        assert_eq!(short(2.5, 2.5), "2.5");
        assert_eq!(short(0.05, 0.05), "0.05");
        assert_eq!(short(3e6, 1e6), "3M");
    }

    #[test]
    fn every_value_and_label_is_drawn() {
        let marks = |values: &[f64]| {
            let mark =
                |(place, &value)| PlotMark { place, value, range: Some([value, value * 1.1]) };
            values.iter().enumerate().map(mark).collect()
        };
        let series = [
            Series { label: "a<b".into(), style: 0, dashed: false, marks: marks(&[1.0, 2.0]) },
            Series { label: "paper".into(), style: 5, dashed: true, marks: marks(&[3.0, 4.0]) },
        ];
        let text = svg(&frame(2), &series);
        assert_eq!(text.matches("<polyline").count(), 2);
        assert_eq!(text.matches("class=\"range\"").count(), 4);
        assert!(text.contains("a&lt;b") && !text.contains("a<b"));
        let one_place = svg(&frame(1), &[Series { marks: marks(&[1.0]), ..series[0].clone() }]);
        assert_eq!(one_place.matches("<rect").count(), 1);
        assert_eq!(one_place.matches("class=\"range on-bar\"").count(), 1);
        assert!(!text.contains("NaN") && !one_place.contains("NaN"));
    }

    #[test]
    fn nothing_to_draw_is_still_a_picture() {
        let empty = svg(&frame(0), &[]);
        assert!(empty.starts_with("<svg") && !empty.contains("NaN"));
    }

    #[test]
    fn markup_is_escaped() {
        assert_eq!(escaped("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
