//! Figures and tables of a paper, reproduced: curves and rows, each with its source.
//!
//! Part of the results as JSON (`docs/BENCHMARKING.md`). Fields may be added, none is ever renamed
//! or removed.

use serde::{Deserialize, Serialize};

/// Where numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureSource {
    /// This machine.
    Measured,
    /// A simulation with costs that were measured in the same run.
    Simulated,
    /// The paper.
    Paper,
}

impl FigureSource {
    /// Returns the word for tables and legends.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Simulated => "simulated",
            Self::Paper => "paper",
        }
    }
}

/// A figure or a table of a paper.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// As `--only` takes it.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// What is run.
    pub parameters: String,
    /// The paper's result, in our words, with its place.
    pub paper: String,
    /// Our result beside it.
    pub finding: String,
    /// Why there is nothing; null if there is.
    pub why: Option<String>,
    /// Plots.
    pub plots: Vec<FigurePlot>,
    /// Tables.
    pub tables: Vec<FigureTable>,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FigureAxis {
    /// Quantity and unit.
    pub label: String,
    /// Whether it is logarithmic.
    pub logarithmic: bool,
}

/// A plot of curves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FigurePlot {
    /// What it shows.
    pub caption: String,
    /// The horizontal axis.
    pub x: FigureAxis,
    /// The vertical axis.
    pub y: FigureAxis,
    /// Whether each curve begins where the one below ends.
    pub stacked: bool,
    /// The curves.
    pub curves: Vec<FigureCurve>,
}

/// A curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FigureCurve {
    /// Its name in the legend.
    pub label: String,
    /// Where it comes from.
    pub source: FigureSource,
    /// Points in ascending order of the horizontal axis.
    pub points: Vec<[f64; 2]>,
}

/// A table of numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FigureTable {
    /// What the rows are; the heading of their labels.
    pub rows_are: String,
    /// Headings of the values, with units.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<FigureRow>,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FigureRow {
    /// Its name.
    pub label: String,
    /// Where it comes from.
    pub source: FigureSource,
    /// One value for each column; null where there is none.
    pub values: Vec<Option<f64>>,
}

impl FigureAxis {
    pub(crate) fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), logarithmic: false }
    }

    pub(crate) fn logarithmic(label: &str) -> Self {
        Self { label: label.to_owned(), logarithmic: true }
    }
}

impl FigureCurve {
    pub(crate) fn simulated(label: &str, points: Vec<[f64; 2]>) -> Self {
        Self { label: label.to_owned(), source: FigureSource::Simulated, points }
    }
}

impl FigureTable {
    pub(crate) fn new(rows_are: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&it| it.to_owned()).collect();
        Self { rows_are: rows_are.to_owned(), columns, rows: Vec::new() }
    }

    pub(crate) fn row(
        &mut self,
        label: &str,
        source: FigureSource,
        values: impl IntoIterator<Item = Option<f64>>,
    ) {
        let values = values.into_iter().collect();
        self.rows.push(FigureRow { label: label.to_owned(), source, values });
    }
}
