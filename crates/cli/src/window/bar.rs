//! Bar chart of a context window: its blocks, the free part, and the reserves.

use memoird_proto::v1::ContextReport;

use crate::output;

/// Width of the bar between its brackets. With them it fits a terminal of 80 columns.
const CELLS: usize = 78;

struct Block {
    /// Character for its cells without colors.
    letter: char,
    /// One of the sixteen terminal colors.
    colour: u8,
    name: &'static str,
    /// Size in tokens.
    tokens: u64,
}

/// Returns the bar, followed by a line for each block.
pub(super) fn lines(report: &ContextReport, has_colours: bool) -> Vec<String> {
    let blocks = blocks(report);
    let tokens: Vec<u64> = blocks.iter().map(|block| block.tokens).collect();
    let cells = cells(&tokens);
    let drawn: String = blocks
        .iter()
        .zip(cells)
        .map(|(block, cells)| block.cells(cells, has_colours))
        .collect();
    let total = tokens.iter().copied().fold(0, u64::saturating_add);
    let mut lines = vec![format!("[{drawn}]"), String::new()];
    let is_shown = |block: &&Block| block.tokens > 0 || block.letter == '.';
    for block in blocks.iter().filter(is_shown) {
        let share = block.tokens as f64 * 100.0 / total.max(1) as f64;
        let mark = block.cells(1, has_colours);
        let tokens = output::count(block.tokens);
        lines.push(format!(
            "{mark} {:<24}{tokens:>13}{share:>7.1} %",
            block.name
        ));
    }
    let all = output::count(total);
    lines.push(format!("  {:<24}{all:>13}", "context window"));
    lines
}

fn blocks(report: &ContextReport) -> [Block; 9] {
    let used = report.tokens_by_block.unwrap_or_default();
    let budget = report.budget.unwrap_or_default();
    let free = report.input_budget.saturating_sub(report.tokens_total);
    let for_results = budget.tool_result_headroom();
    let block = |letter, colour, name, tokens| Block {
        letter,
        colour,
        name,
        tokens,
    };
    [
        block('s', 5, "system prompt and tools", used.system),
        block('u', 6, "summary", used.summary),
        block('m', 3, "memories", used.memories),
        block('a', 4, "anchor", used.anchor),
        block('t', 2, "tail", used.tail),
        block('.', 8, "free", free),
        block('e', 1, "kept for errors", budget.safety_headroom()),
        block('r', 9, "kept for tool results", for_results),
        block('R', 7, "kept for the reply", budget.max_reply_tokens()),
    ]
}

impl Block {
    fn cells(&self, count: usize, has_colours: bool) -> String {
        match (has_colours, count) {
            (_, 0) => String::new(),
            (false, _) => self.letter.to_string().repeat(count),
            (true, _) => {
                let glyph = if self.letter == '.' { "░" } else { "█" };
                format!("\x1b[38;5;{}m{}\x1b[0m", self.colour, glyph.repeat(count))
            }
        }
    }
}

/// Distributes the cells in proportion to the tokens (largest remainder method).
///
/// Every non-empty block gets at least one cell. The sum is always [`CELLS`].
fn cells(tokens: &[u64]) -> Vec<usize> {
    let all: u128 = tokens.iter().map(|tokens| u128::from(*tokens)).sum();
    if all == 0 {
        return vec![0; tokens.len()];
    }
    let scaled = |tokens: u64| u128::from(tokens) * CELLS as u128;
    let whole = |tokens: u64| usize::try_from(scaled(tokens) / all).unwrap_or(CELLS);
    let mut cells: Vec<usize> = tokens
        .iter()
        .map(|tokens| whole(*tokens).max(usize::from(*tokens > 0)))
        .collect();
    let mut by_remainder: Vec<usize> = (0..tokens.len()).collect();
    by_remainder.sort_by_key(|index| std::cmp::Reverse(scaled(tokens[*index]) % all));
    for index in by_remainder {
        if cells.iter().sum::<usize>() < CELLS && whole(tokens[index]) == cells[index] {
            cells[index] += usize::from(tokens[index] > 0);
        }
    }
    // Take the excess of small blocks from the largest.
    while cells.iter().sum::<usize>() > CELLS {
        if let Some(largest) = cells.iter_mut().max() {
            *largest -= 1;
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use memoird_proto::v1::{Budget, TokensByBlock};

    fn report() -> ContextReport {
        ContextReport {
            input_budget: 185_664,
            tokens_total: 6_000,
            tokens_by_block: Some(TokensByBlock {
                system: 1_600,
                anchor: 400,
                tail: 4_000,
                ..TokensByBlock::default()
            }),
            budget: Some(Budget {
                context_window: Some(200_000),
                max_reply_tokens: Some(4_096),
                safety_headroom: Some(2_048),
                tool_result_headroom: Some(8_192),
            }),
            ..ContextReport::default()
        }
    }

    #[test]
    fn bar_fits_terminal_and_shows_every_block() {
        let lines = lines(&report(), false);
        assert_eq!(lines[0].len(), 80, "{}", lines[0]);
        for letter in ['s', 'a', 't', '.', 'e', 'r', 'R'] {
            assert!(lines[0].contains(letter), "{letter} in {}", lines[0]);
        }
        assert!(!lines[0].contains('u'), "an empty block has no cell");
        let text = lines.join("\n");
        assert!(
            text.contains("s system prompt and tools         1,600    0.8 %"),
            "{text}"
        );
        assert!(
            text.contains("  context window                200,000"),
            "{text}"
        );
        assert!(lines.iter().all(|line| line.len() <= 80) && !text.contains('\u{1b}'));
    }

    #[test]
    fn colored_bar_has_same_width() {
        let lines = lines(&report(), true);
        assert_eq!(lines[0].matches(['█', '░']).count(), CELLS);
        assert!(lines[0].contains("\u{1b}[38;5;5m"), "{:?}", lines[0]);
    }

    #[test]
    fn cells_always_fill_the_bar() {
        for tokens in [
            &[1][..],
            &[1, 0, 1],
            &[u64::MAX, 1, 1, u64::MAX],
            &[7, 7, 7, 7, 7, 7, 7, 7, 7],
            &[1, 1, 1, 1, 1, 1, 1, 1, 1_000_000],
            &[33, 33, 34],
        ] {
            let cells = cells(tokens);
            assert_eq!(cells.iter().sum::<usize>(), CELLS, "{tokens:?}: {cells:?}");
            assert!(
                cells
                    .iter()
                    .zip(tokens)
                    .all(|(cells, tokens)| (*cells > 0) == (*tokens > 0))
            );
        }
        assert_eq!(cells(&[0, 0]), [0, 0]);
    }
}
