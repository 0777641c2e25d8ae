//! Aligned tables for the terminal: text to the left, numbers to the right.

/// Rows under a heading.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|&text| text.to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// All rows, the heading first.
    pub(crate) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// The lines, each column as wide as its widest cell.
    pub(crate) fn lines(&self) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
        let width = |column| self.rows.iter().map(|row| cell(row, column).chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let is_number = |column: usize| {
            self.rows.iter().skip(1).all(|row| {
                let cell = cell(row, column);
                cell.is_empty() || cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit())
            })
        };
        let numeric: Vec<bool> = (0..columns).map(is_number).collect();
        let line = |row: &Vec<String>| {
            let mut line = String::new();
            for (column, (&width, &numeric)) in widths.iter().zip(&numeric).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                let text = cell(row, column);
                line += &if numeric {
                    format!("{gap}{text:>width$}")
                } else {
                    format!("{gap}{text:<width$}")
                };
            }
            line.trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

/// A number with thousands set apart, as in 123,456.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Table, grouped};

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["server", "rate", "says"]);
        table.row(["a".to_owned(), "1,234".to_owned(), "yes".to_owned()]);
        table.row(["longer".to_owned(), "7".to_owned()]);
        assert_eq!(table.lines(), ["server   rate  says", "a       1,234  yes", "longer      7"]);
    }

    #[test]
    fn thousands_are_set_apart() {
        for (value, text) in [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1e6, "1,000,000")] {
            assert_eq!(grouped(value), text);
        }
    }
}
