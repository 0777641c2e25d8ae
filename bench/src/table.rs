//! Aligned tables for the terminal: text to the left, numbers to the right, 80 columns at most.

use megapipe_apps::terminal::{COLUMNS, width, wrap};

/// Rows under a heading.
#[derive(Clone, Debug)]
pub(crate) struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
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

    /// Prints the table, indented, so that it fits a terminal.
    pub(crate) fn print(&self, indent: usize) {
        for line in self.lines_within(COLUMNS.saturating_sub(indent)) {
            let line = format!("{:indent$}{line}", "");
            println!("{}", line.trim_end());
        }
    }

    /// The lines, at most `limit` wide where no single cell is wider. If the table is too wide,
    /// columns with one value for all rows are printed as a line above it, then cells are wrapped,
    /// then columns that still do not fit go to a second table below, with the first column again.
    pub(crate) fn lines_within(&self, limit: usize) -> Vec<String> {
        if total(&self.widths()) <= limit {
            return self.lines();
        }
        let (same, rest) = self.split_constant();
        let mut lines = match same.is_empty() {
            true => Vec::new(),
            false => wrap("all: ", &same.join(", "), limit),
        };
        for (index, block) in rest.blocks(limit).into_iter().enumerate() {
            if index > 0 {
                lines.push(String::new());
            }
            lines.extend(block.lines_at(&block.wrapped_widths(limit)));
        }
        lines
    }

    /// The lines, each column as wide as its widest cell.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines_at(&self.widths())
    }

    /// The columns whose value is the same in two rows or more, as `name value`, and the table
    /// without them. The first column stays.
    fn split_constant(&self) -> (Vec<String>, Self) {
        let mut same = Vec::new();
        let mut rest = vec![Vec::new(); self.rows.len()];
        for column in 0..self.columns() {
            let mut cells = self.rows.iter().skip(1).map(|row| cell(row, column));
            let first = cells.next().unwrap_or_default();
            let is_same = column > 0 && self.rows.len() > 2 && cells.all(|cell| cell == first);
            if is_same {
                let name = cell(&self.rows[0], column);
                same.push(format!("{name} {}", if first.is_empty() { "-" } else { first }));
                continue;
            }
            for (rest, row) in rest.iter_mut().zip(&self.rows) {
                rest.push(cell(row, column).to_owned());
            }
        }
        (same, Self { rows: rest })
    }

    /// Tables of at most `limit` columns of text with wrapped cells, each with the first column.
    fn blocks(&self, limit: usize) -> Vec<Self> {
        let narrow = self.word_widths();
        let mut chosen: Vec<Vec<usize>> = vec![vec![0]];
        for column in 1..self.columns() {
            let block = &chosen[chosen.len() - 1];
            let widths: Vec<usize> =
                block.iter().chain([&column]).map(|&column| narrow[column]).collect();
            if block.len() > 1 && total(&widths) > limit {
                chosen.push(vec![0]);
            }
            let last = chosen.len() - 1;
            chosen[last].push(column);
        }
        let pick = |columns: &Vec<usize>, row: &Vec<String>| {
            columns.iter().map(|&column| cell(row, column).to_owned()).collect()
        };
        let block =
            |columns| Self { rows: self.rows.iter().map(|row| pick(columns, row)).collect() };
        chosen.iter().map(block).collect()
    }

    /// Widths with which the table fits if its cells are wrapped: the widest columns give way.
    fn wrapped_widths(&self, limit: usize) -> Vec<usize> {
        let (mut widths, narrow) = (self.widths(), self.word_widths());
        while total(&widths) > limit {
            let can_shrink = |column: &usize| widths[*column] > narrow[*column];
            let widest = (0..widths.len()).filter(can_shrink).max_by_key(|&column| widths[column]);
            let Some(column) = widest else { break };
            widths[column] -= 1;
        }
        widths
    }

    fn columns(&self) -> usize {
        self.rows.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// The widest cell of each column.
    fn widths(&self) -> Vec<usize> {
        self.widest(width)
    }

    /// The longest word of each column.
    fn word_widths(&self) -> Vec<usize> {
        self.widest(|cell| cell.split_whitespace().map(width).max().unwrap_or(0))
    }

    fn widest(&self, measure: impl Fn(&str) -> usize) -> Vec<usize> {
        let of = |column| self.rows.iter().map(|row| measure(cell(row, column))).max().unwrap_or(0);
        (0..self.columns()).map(of).collect()
    }

    /// The lines with columns of these widths, in which longer cells are wrapped.
    fn lines_at(&self, widths: &[usize]) -> Vec<String> {
        let is_number = |column: usize| {
            self.rows.iter().skip(1).all(|row| {
                let cell = cell(row, column);
                cell.is_empty() || cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit())
            })
        };
        let numeric: Vec<bool> = (0..widths.len()).map(is_number).collect();
        let mut lines = Vec::new();
        for row in &self.rows {
            let cells: Vec<Vec<String>> =
                (0..widths.len()).map(|at| wrap("", cell(row, at), widths[at])).collect();
            for index in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
                let mut line = String::new();
                for (column, (&width, &numeric)) in widths.iter().zip(&numeric).enumerate() {
                    let gap = if column == 0 { "" } else { "  " };
                    let text = cells[column].get(index).map_or("", String::as_str);
                    line += &if numeric {
                        format!("{gap}{text:>width$}")
                    } else {
                        format!("{gap}{text:<width$}")
                    };
                }
                lines.push(line.trim_end().to_owned());
            }
        }
        lines
    }
}

/// A cell's text; empty where the row is short.
fn cell(row: &[String], column: usize) -> &str {
    row.get(column).map_or("", String::as_str)
}

/// The width of a line with columns of these widths.
fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)
}

/// Prints text on lines that fit a terminal, those after the first indented by the width of `head`.
pub(crate) fn print_wrapped(head: &str, text: &str) {
    for line in wrap(head, text, COLUMNS) {
        println!("{line}");
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

/// A number with as many digits as it deserves; a dash for none.
pub(crate) fn rounded(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.abs() >= 1e3 => grouped(value),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) if value.abs() >= 0.1 => format!("{value:.2}"),
        Some(0.0) => "0".to_owned(),
        Some(value) => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{TextTable, grouped, rounded};

    #[test]
    fn columns_are_aligned() {
        let mut table = TextTable::new(&["server", "rate", "says"]);
        table.row(["a".to_owned(), "1,234".to_owned(), "yes".to_owned()]);
        table.row(["longer".to_owned(), "7".to_owned()]);
        assert_eq!(table.lines(), ["server   rate  says", "a       1,234  yes", "longer      7"]);
    }

    fn words(text: &str) -> Vec<String> {
        text.split('|').map(str::to_owned).collect()
    }

    #[test]
    fn wide_table_names_constant_columns_once_and_wraps_cells() {
        let mut table = TextTable::new(&["server", "link", "cores", "per conn", "rate"]);
        table.row(words("a server|veth|1|1|1,234"));
        table.row(words("b|veth|1|64|22"));
        let expected = [
            "all: link veth,",
            "     cores 1",
            "server   per   rate",
            "        conn",
            "a          1  1,234",
            "server",
            "b         64     22",
        ];
        assert_eq!(table.lines_within(19), expected);
        assert_eq!(table.lines_within(80), table.lines());
    }

    #[test]
    fn table_that_cannot_be_wrapped_continues_below() {
        let mut table = TextTable::new(&["server", "first", "second", "third"]);
        table.row(words("a|1111111|2222222|3333333"));
        let expected = [
            "server    first",
            "a       1111111",
            "",
            "server   second",
            "a       2222222",
            "",
            "server    third",
            "a       3333333",
        ];
        assert_eq!(table.lines_within(16), expected);
    }

    #[test]
    fn thousands_are_set_apart() {
        for (value, text) in [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1e6, "1,000,000")] {
            assert_eq!(grouped(value), text);
        }
    }

    #[test]
    fn numbers_have_few_digits() {
        let all = [12_345.6, 123.4, 12.34, 1.234, 0.0123, 0.0].map(|value| rounded(Some(value)));
        assert_eq!(all, ["12,346", "123", "12.3", "1.23", "0.0123", "0"]);
        assert_eq!(rounded(None), "-");
    }
}
