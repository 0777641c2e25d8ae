//! Figures and tables of a paper as sections of the report.
//!
//! Pure.

use super::{plot::escaped, xy_plot};
use crate::{
    figure::{Figure, FigureTable},
    table::rounded,
};
use std::fmt::Write;

/// The sections of all figures.
pub(super) fn sections(figures: &[Figure]) -> String {
    figures.iter().map(section).collect()
}

fn section(figure: &Figure) -> String {
    let mut html = format!(
        "<section>\n<h2>{}<small>{}</small></h2>\n",
        escaped(&figure.title),
        escaped(&figure.name)
    );
    if !figure.parameters.is_empty() {
        let _ = writeln!(html, "<p>{}.</p>", escaped(&figure.parameters));
    }
    if !figure.plots.is_empty() {
        html += "<div class=\"plots\">\n";
        for plot in &figure.plots {
            let caption = escaped(&plot.caption);
            let svg = xy_plot::svg(plot);
            let _ = writeln!(html, "<figure><figcaption>{caption}</figcaption>{svg}</figure>");
        }
        html += "</div>\n";
    }
    for table in &figure.tables {
        html += &table_html(table);
    }
    let texts = [("here", &figure.finding, "Here: "), ("paper", &figure.paper, "PIKA paper: ")];
    for (class, text, head) in texts {
        if !text.is_empty() {
            let _ = writeln!(html, "<p class=\"{class}\">{head}{}</p>", escaped(text));
        }
    }
    if let Some(why) = &figure.why {
        let _ = writeln!(html, "<p class=\"here\">{}</p>", escaped(why));
    }
    html + "</section>\n"
}

fn table_html(table: &FigureTable) -> String {
    let mut html = format!(
        "<div class=\"scroll\"><table>\n<tr><th>{}</th><th class=\"text\">source</th>",
        escaped(&table.rows_are)
    );
    for column in &table.columns {
        let _ = write!(html, "<th>{}</th>", escaped(column));
    }
    html += "</tr>\n";
    for row in &table.rows {
        let _ = write!(
            html,
            "<tr><td>{}</td><td class=\"text\">{}</td>",
            escaped(&row.label),
            row.source.name()
        );
        for value in &row.values {
            let _ = write!(html, "<td>{}</td>", rounded(*value));
        }
        html += "</tr>\n";
    }
    html + "</table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::FigureSource;

    #[test]
    fn section_has_every_part_and_escapes_text() {
        let mut table = FigureTable::new("layout", &["T_CM µs"]);
        table.row("TS1<LS1", FigureSource::Simulated, [Some(0.25)]);
        table.row("TS1<LS1", FigureSource::Paper, [None]);
        let figure = Figure {
            name: "table4".to_owned(),
            title: "Time".to_owned(),
            parameters: "one client".to_owned(),
            finding: "f & g".to_owned(),
            paper: "p".to_owned(),
            why: Some("because".to_owned()),
            tables: vec![table],
            plots: vec![Default::default()],
        };
        let html = sections(&[figure]);
        for part in ["Time<small>table4", "<td>0.25</td>", "<td>-</td>", "f &amp; g", "because"] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert!(html.contains("TS1&lt;LS1") && !html.contains("TS1<LS1"));
        assert!(html.contains("simulated") && html.contains("<svg"));
    }
}
