//! Plots of curves over two numeric axes, each linear or logarithmic, and of stacked areas.
//!
//! Pure: a plot in, SVG text out. Colours are the CSS classes `s0` to `s7`; curves of a simulation
//! are dashed as everywhere in the report, and named at their end as well.
//!
//! Invariants: text is escaped; a linear vertical axis starts at 0; values that an axis cannot show
//! are left out.

use super::plot::{
    BOTTOM, LEFT, LEGEND_LINE, WIDTH, escaped, legend_places, short, tick_line, ticks, x_title,
    y_title,
};
use crate::{
    figure::{FigureAxis, FigureCurve, FigurePlot, FigureSource},
    table::rounded,
};
use std::fmt::Write;

const HEIGHT: f64 = 350.0;
const RIGHT: f64 = 16.0;
/// Colours that there are.
const STYLES: usize = 8;

/// An axis with its range in pixels.
struct AxisScale {
    logarithmic: bool,
    from: f64,
    to: f64,
    start: f64,
    end: f64,
    ticks: Vec<f64>,
    step: f64,
}

impl AxisScale {
    fn new(axis: &FigureAxis, values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let values =
            values.filter(|value| value.is_finite() && (*value > 0.0 || !axis.logarithmic));
        let (least, most) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
                (least.min(value), most.max(value))
            });
        let (least, most) = if least <= most { (least, most) } else { (1.0, 1.0) };
        let (start, end) = pixels;
        if axis.logarithmic {
            let from = least.log10().floor();
            let to = most.log10().ceil().max(from + 1.0);
            let ticks = (from as i32..=to as i32).map(|power| 10f64.powi(power)).collect();
            return Self { logarithmic: true, from, to, start, end, ticks, step: 0.0 };
        }
        let (step, steps) = ticks(most);
        let all = (0..=steps).map(|tick| step * tick as f64).collect();
        let to = step * steps as f64;
        Self { logarithmic: false, from: 0.0, to, start, end, ticks: all, step }
    }

    /// The pixel of a value; none if the axis cannot show it.
    fn at(&self, value: f64) -> Option<f64> {
        let position = if self.logarithmic { value.log10() } else { value };
        let share = (position - self.from) / (self.to - self.from);
        share.is_finite().then(|| (self.end - self.start).mul_add(share, self.start))
    }

    fn label(&self, value: f64) -> String {
        match value {
            value if self.logarithmic && value >= 1e6 => format!("{}M", value / 1e6),
            value if self.logarithmic && value >= 1e3 => format!("{}k", value / 1e3),
            value if self.logarithmic => format!("{value}"),
            value => short(value, self.step),
        }
    }
}

/// The plot.
pub(super) fn svg(plot: &FigurePlot) -> String {
    let legend = legend(&plot.curves);
    let top = legend.1 + 12.0;
    let areas = if plot.stacked { stack(&plot.curves) } else { Vec::new() };
    let points = || plot.curves.iter().flat_map(|curve| &curve.points);
    let x = AxisScale::new(&plot.x, points().map(|point| point[0]), (LEFT, WIDTH - RIGHT));
    let bottom = HEIGHT - BOTTOM;
    let y = if plot.stacked {
        let sums = areas.iter().flatten().map(|(_, _, upper)| *upper);
        AxisScale::new(&plot.y, sums, (bottom, top))
    } else {
        AxisScale::new(&plot.y, points().map(|point| point[1]), (bottom, top))
    };
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{} over {}\">{}",
        escaped(&plot.y.label),
        escaped(&plot.x.label),
        legend.0
    );
    svg += &axes(plot, &x, &y, top);
    for (style, curve) in plot.curves.iter().enumerate() {
        let _ = write!(svg, "<g class=\"s{}\">", style % STYLES);
        if plot.stacked {
            svg += &area(curve, &areas[style], &x, &y);
        } else {
            svg += &line(curve, &x, &y);
        }
        svg += "</g>";
    }
    svg + "</svg>"
}

/// Each curve as an area: position, lower and upper edge.
fn stack(curves: &[FigureCurve]) -> Vec<Vec<(f64, f64, f64)>> {
    let mut positions: Vec<f64> =
        curves.iter().flat_map(|curve| curve.points.iter().map(|point| point[0])).collect();
    positions.sort_by(f64::total_cmp);
    positions.dedup();
    let mut sums = vec![0.0; positions.len()];
    let mut areas = Vec::new();
    for curve in curves {
        let mut edge = Vec::new();
        for (position, sum) in positions.iter().zip(&mut sums) {
            let point = curve.points.iter().find(|point| point[0] == *position);
            let lower = *sum;
            *sum += point.map_or(0.0, |point| point[1]);
            edge.push((*position, lower, *sum));
        }
        areas.push(edge);
    }
    areas
}

fn axes(plot: &FigurePlot, x: &AxisScale, y: &AxisScale, top: f64) -> String {
    let (mut svg, right, bottom) = (String::new(), WIDTH - RIGHT, HEIGHT - BOTTOM);
    for (index, &tick) in y.ticks.iter().enumerate() {
        let Some(at) = y.at(tick) else { continue };
        svg += &tick_line(index == 0, at, right, &y.label(tick));
    }
    for &tick in &x.ticks {
        let Some(at) = x.at(tick) else { continue };
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top:.1}\" y2=\"{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 17.0,
            x.label(tick)
        );
    }
    svg += &x_title(f64::midpoint(LEFT, right), HEIGHT - 7.0, &plot.x.label);
    svg + &y_title(f64::midpoint(top, bottom), &plot.y.label)
}

fn line(curve: &FigureCurve, x: &AxisScale, y: &AxisScale) -> String {
    let place = |point: &[f64; 2]| Some((x.at(point[0])?, y.at(point[1])?));
    let points: Vec<(f64, f64)> = curve.points.iter().filter_map(place).collect();
    let text: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let mut svg = format!(
        "<polyline class=\"curve{}\" points=\"{}\"><title>{}</title></polyline>",
        dashes(curve),
        text.join(" "),
        escaped(&curve.label)
    );
    // Few points are values that were computed one by one; many are a series.
    if points.len() <= 12 {
        for (point, (x, y)) in curve.points.iter().zip(&points) {
            let _ = write!(
                svg,
                "<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.6\">\
                 <title>{}: {} at {}</title></circle>",
                escaped(&curve.label),
                rounded(Some(point[1])),
                rounded(Some(point[0]))
            );
        }
    }
    svg
}

fn area(curve: &FigureCurve, edge: &[(f64, f64, f64)], x: &AxisScale, y: &AxisScale) -> String {
    let upper = edge.iter().filter_map(|(at, _, upper)| Some((x.at(*at)?, y.at(*upper)?)));
    let lower = edge.iter().rev().filter_map(|(at, lower, _)| Some((x.at(*at)?, y.at(*lower)?)));
    let corners: Vec<String> = upper.chain(lower).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    format!(
        "<polygon class=\"area\" points=\"{}\"><title>{}</title></polygon>",
        corners.join(" "),
        escaped(&curve.label)
    )
}

const fn dashes(curve: &FigureCurve) -> &'static str {
    match curve.source {
        FigureSource::Measured => "",
        FigureSource::Simulated | FigureSource::Paper => " dashed",
    }
}

/// The legend, and its height.
fn legend(curves: &[FigureCurve]) -> (String, f64) {
    let label = |curve: &FigureCurve| format!("{}, {}", curve.label, curve.source.name());
    let labels: Vec<String> = curves.iter().map(label).collect();
    let (places, lines) = legend_places(labels.iter().map(String::as_str), 38.0, WIDTH - RIGHT);
    let mut svg = String::new();
    for (style, (label, (x, y))) in labels.iter().zip(places).enumerate() {
        let _ = write!(
            svg,
            "<g class=\"s{}\"><rect class=\"mark\" x=\"{x:.1}\" y=\"{:.1}\" width=\"14\" \
             height=\"8\" rx=\"2\"/></g><text class=\"legend\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            style % STYLES,
            y - 4.0,
            x + 19.0,
            y + 4.0,
            escaped(label)
        );
    }
    (svg, LEGEND_LINE * lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(label: &str, points: &[[f64; 2]]) -> FigureCurve {
        FigureCurve::simulated(label, points.to_vec())
    }

    fn plot(stacked: bool, x: FigureAxis, curves: Vec<FigureCurve>) -> FigurePlot {
        let y = FigureAxis::linear("connections/s");
        FigurePlot { caption: "c".to_owned(), x, y, stacked, curves }
    }

    #[test]
    fn logarithmic_axis_has_powers_of_ten_and_omits_zero() {
        let curves = vec![curve("a<b", &[[0.0, 1.0], [3.0, 50.0], [4_000.0, 99.0]])];
        let text = svg(&plot(false, FigureAxis::logarithmic("µs"), curves));
        for label in [">1<", ">10<", ">100<", ">1k<", ">10k<"] {
            assert!(text.contains(label), "{label}: {text}");
        }
        assert!(text.contains("a&lt;b, simulated") && !text.contains("NaN"));
        assert_eq!(text.matches("class=\"mark\" cx").count(), 2, "{text}");
    }

    #[test]
    fn stacked_areas_reach_the_sum() {
        let curves =
            vec![curve("one", &[[1.0, 3.0], [2.0, 3.0]]), curve("two", &[[1.0, 4.0], [2.0, 7.0]])];
        assert_eq!(stack(&curves)[1], [(1.0, 3.0, 7.0), (2.0, 3.0, 10.0)]);
        let text = svg(&plot(true, FigureAxis::linear("s"), curves));
        assert_eq!(text.matches("class=\"area\"").count(), 2);
        assert!(text.contains(">10<") || text.contains(">10.0<"), "{text}");
    }

    #[test]
    fn empty_plot_is_still_a_picture() {
        for x in [FigureAxis::linear("s"), FigureAxis::logarithmic("µs")] {
            let text = svg(&plot(false, x, Vec::new()));
            assert!(text.starts_with("<svg") && !text.contains("NaN") && !text.contains("inf"));
        }
    }
}
