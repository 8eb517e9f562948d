//! Aligned text out of JSON.

use serde_json::Value;

/// Its head, and how an item fills it.
pub(crate) type Column<'a, T> = (&'static str, &'a dyn Fn(&T) -> String);

/// A table whose columns are as wide as they need to be.
pub(crate) struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A row for each of `items`, in `columns`. A column that says nothing in any row is left out.
    pub(crate) fn new<T>(items: &[T], columns: &[Column<'_, T>]) -> Self {
        let cells = |item: &T| -> Vec<String> {
            columns.iter().map(|(_, cell)| clean(&cell(item))).collect()
        };
        let mut rows: Vec<Vec<String>> = items.iter().map(cells).collect();
        let used: Vec<bool> = (0..columns.len())
            .map(|n| rows.iter().any(|row| !row[n].is_empty()))
            .collect();
        let keep = |n: usize| used.get(n) == Some(&true);
        let heads = columns
            .iter()
            .enumerate()
            .filter(|(n, _)| keep(*n))
            .map(|(_, (head, _))| *head)
            .collect();
        for row in &mut rows {
            let kept = std::mem::take(row)
                .into_iter()
                .enumerate()
                .filter(|(n, _)| keep(*n));
            *row = kept
                .map(|(_, cell)| if cell.is_empty() { "-".into() } else { cell })
                .collect();
        }
        Table { heads, rows }
    }

    /// The table, or `nothing` where it has no rows.
    pub(crate) fn or(&self, nothing: &str) -> String {
        if self.rows.is_empty() {
            return format!("{nothing}\n");
        }
        let width = |n: usize, head: &str| {
            self.rows
                .iter()
                .map(|row| row[n].chars().count())
                .chain([head.chars().count()])
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = self
            .heads
            .iter()
            .enumerate()
            .map(|(n, head)| width(n, head))
            .collect();
        // Numbers align at their ends.
        let right = |n: usize| {
            self.rows
                .iter()
                .all(|row| row[n] == "-" || row[n].bytes().all(|b| b.is_ascii_digit()))
        };
        let rights: Vec<bool> = (0..self.heads.len()).map(right).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded: Vec<String> = cells
                .zip(widths.iter().zip(&rights))
                .map(|(cell, (width, right))| {
                    if *right {
                        format!("{cell:>width$}")
                    } else {
                        format!("{cell:<width$}")
                    }
                })
                .collect();
            format!("{}\n", padded.join("  ").trim_end())
        };
        let mut text = line(&mut self.heads.iter().copied());
        for row in &self.rows {
            text += &line(&mut row.iter().map(String::as_str));
        }
        text
    }
}

/// Node descriptions and the like come from others: nothing of them may steer a terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// A field in words; absent and null are empty.
pub(crate) fn text(of: &Value, key: &str) -> String {
    match &of[key] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(b) => if *b { "yes" } else { "no" }.into(),
        Value::Array(list) => list
            .iter()
            .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
            .collect::<Vec<_>>()
            .join(" "),
        other => other.to_string(),
    }
}

/// A LID: unicast in decimal, multicast (from 0xc000 on) in hexadecimal; none for 0.
pub(crate) fn lid(of: &Value, key: &str) -> String {
    match of[key].as_u64() {
        None | Some(0) => String::new(),
        Some(lid) if lid < 0xc000 => lid.to_string(),
        Some(lid) => format!("0x{lid:04x}"),
    }
}

/// A count that only matters when it is not 0.
pub(crate) fn nonzero(of: &Value, key: &str) -> String {
    of[key]
        .as_f64()
        .filter(|n| *n > 0.0)
        .map_or(String::new(), |_| of[key].to_string())
}

/// Milliseconds as people say them.
pub(crate) fn age(of: &Value, key: &str) -> String {
    match of[key].as_u64() {
        None => String::new(),
        Some(ms) if ms < 10_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        Some(ms) if ms < 600_000 => format!("{} s", ms / 1000),
        Some(ms) if ms < 36_000_000 => format!("{} min", ms / 60_000),
        Some(ms) => format!("{} h", ms / 3_600_000),
    }
}

/// The items of an array; none of anything else.
pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
