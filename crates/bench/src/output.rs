//! Formats tables and numbers for people.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A table with text in the first column and numbers in the others.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = plain_table();
    table.set_header(header.to_vec());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

pub(crate) fn rows(rows: &[(&str, String)]) -> Table {
    let mut table = plain_table();
    for (name, value) in rows {
        table.add_row([*name, value]);
    }
    table
}

/// A table without borders, as wide as its content.
fn plain_table() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// Formats a table without margin and trailing spaces.
pub(crate) fn text(mut table: Table) -> String {
    if let Some(first) = table.column_mut(0) {
        first.set_padding((0, 1));
    }
    table.trim_fmt()
}

/// Formats an integer with thousands separators.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Formats a number with this many decimals, or as a dash if it is not finite.
pub(crate) fn figure(value: f64, decimals: usize) -> String {
    if value.is_finite() {
        format!("{value:.decimals$}")
    } else {
        "-".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_format_with_separators_and_units() {
        assert_eq!(count(999), "999");
        assert_eq!(count(12_345_678), "12,345,678");
        assert_eq!(mib(3 << 19), "1.5 MiB");
        assert_eq!(figure(1.25, 1), "1.2");
        assert_eq!(figure(f64::NAN, 1), "-");
    }
}
