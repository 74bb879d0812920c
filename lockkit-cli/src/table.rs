//! Text for people: columns, durations, names with anything in them.

use std::borrow::Cow;
use std::time::Duration;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Lines of `rows`, each column as wide as its widest cell; the last column is not padded.
pub(crate) fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let widths = rows.iter().fold(Vec::new(), |mut widths: Vec<usize>, row| {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
        widths
    });
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line += cell;
            line.extend(std::iter::repeat_n(' ', width - cell.width() + 2));
        }
        line.truncate(line.trim_end().len());
        line
    };
    rows.iter().map(line).collect()
}

/// What fits into `width` columns, with an ellipsis in place of the rest.
pub(crate) fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return text.into();
    }
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used < width
    };
    let cut: String = text.chars().take_while(fits).collect();
    if width == 0 { cut.into() } else { (cut + "…").into() }
}

/// The text with every character visible: what would change the direction of writing, or take no
/// room, is written as `\u{202e}`.
pub(crate) fn visible(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    // These would be escaped although they can be seen.
    for part in text.split_inclusive(['"', '\'', '\\']) {
        let (rest, mark) = match part.strip_suffix(['"', '\'', '\\']) {
            Some(rest) => part.split_at(rest.len()),
            None => (part, ""),
        };
        visible.extend(rest.escape_debug());
        visible += mark;
    }
    visible
}

/// A length of time at a glance: `350ms`, `12s`, `3m 2s`, `4d 3h`.
pub(crate) fn roughly(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let two = |large: &str, per: u64, small: &str, unit: u64| match seconds % per / unit {
        0 => format!("{}{large}", seconds / per),
        rest => format!("{}{large} {rest}{small}", seconds / per),
    };
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3600 => two("m", 60, "s", 1),
        3600..86_400 => two("h", 3600, "m", 60),
        _ => two("d", 86_400, "h", 3600),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{columns, cut, roughly, visible};

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [["name", "who"], ["鎖", "a b"], ["e\u{301}", ""]];
        assert_eq!(
            columns(&rows.map(|row| row.map(String::from).to_vec())),
            ["name  who", "鎖    a b", "e\u{301}"]
        );
    }

    #[test]
    fn what_is_too_long_is_cut() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("longer", 5), "long…");
        // A wide character that does not fit leaves a column free.
        assert_eq!(cut("鎖鎖鎖", 4), "鎖…");
        assert_eq!(cut("longer", 0), "");
    }

    #[test]
    fn nothing_in_a_name_is_hidden() {
        assert_eq!(visible("nai\u{308}ve"), "nai\u{308}ve");
        assert_eq!(visible("a/b \"c\" 'd' \\ é 鎖"), "a/b \"c\" 'd' \\ é 鎖");
        assert_eq!(visible("a\u{202e}b\u{200b}c\u{1b}"), "a\\u{202e}b\\u{200b}c\\u{1b}");
    }

    #[test]
    fn a_duration_has_two_units_at_most() {
        for (seconds, text) in [
            (0.35, "350ms"),
            (0., "0ms"),
            (12.9, "12s"),
            (60., "1m"),
            (182., "3m 2s"),
            (7500., "2h 5m"),
            (356_400., "4d 3h"),
        ] {
            assert_eq!(roughly(Duration::from_secs_f64(seconds)), text);
        }
    }
}
