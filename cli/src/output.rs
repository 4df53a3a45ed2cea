use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, LineStyle, Table, TableStyle, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::failure::Failure;

/// Where a command's answer goes: for people, or as JSON.
///
/// With JSON, standard output holds one document a line and nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    colour: bool,
}

/// Lines around the header and at the end, none between rows.
const TABLE: TableStyle = presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none());

/// How good news is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but look.
    Warn,
    /// It does not.
    Fail,
}

impl Output {
    /// Colour is for terminals on which nobody said NO_COLOR.
    pub(crate) fn new(json: bool) -> Output {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Output { json, colour: !refused && io::stdout().is_terminal() }
    }

    /// Whether JSON is wanted.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Whether somebody looks at standard output as it is written.
    pub(crate) fn is_terminal(self) -> bool {
        io::stdout().is_terminal()
    }

    /// Writes `value` as one line of JSON, or what `people` makes of it.
    pub(crate) fn emit(self, value: &impl Serialize, people: impl FnOnce() -> String) -> Result<(), Failure> {
        let mut text = if self.json {
            serde_json::to_string(value).map_err(|e| Failure::Failed(format!("cannot write JSON: {e}")))?
        } else {
            people()
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        self.raw(text.as_bytes())
    }

    /// Writes bytes as they are.
    pub(crate) fn raw(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush()).map_err(Failure::Output)
    }

    /// Says why a command failed: people are told on standard error, JSON goes where all of it goes.
    pub(crate) fn failure(self, failure: &Failure) {
        let error =
            json!({ "code": failure.code(), "exit": failure.exit() as u8, "message": failure.to_string() });
        if !self.json || self.emit(&json!({ "error": error }), String::new).is_err() {
            eprintln!("headwater: {failure}");
        }
    }

    /// A table with that header. Columns whose name is in `numbers` are set flush right.
    pub(crate) fn table<const N: usize>(self, header: [&str; N], numbers: &[&str]) -> Table {
        let mut table = Table::new();
        table.load_style(TABLE).set_content_arrangement(ContentArrangement::Dynamic);
        if !self.colour {
            table.force_no_tty();
        }
        table.set_header(header);
        for (name, column) in header.iter().zip(table.column_iter_mut()) {
            if numbers.contains(name) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }

    /// A cell that says how good news is, in words and, where that is wanted, in colour.
    pub(crate) fn verdict(self, verdict: Verdict, text: impl ToString) -> Cell {
        let colour = match verdict {
            Verdict::Ok => Color::Green,
            Verdict::Warn => Color::Yellow,
            Verdict::Fail => Color::Red,
        };
        let cell = Cell::new(text);
        if self.colour { cell.fg(colour) } else { cell }
    }

    /// A bar for work of `steps` steps. It shows itself to people on a terminal, once the work takes over a second.
    pub(crate) fn progress(self, what: &'static str, steps: u64) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
        let template = "{prefix} [{bar:30}] {human_pos}/{human_len} {msg}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is a constant"));
        bar.set_prefix(what);
        let shown = !self.json && io::stderr().is_terminal();
        let appear = shown.then(|| {
            let bar = bar.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                bar.set_draw_target(ProgressDrawTarget::stderr());
            })
        });
        Progress { bar, appear }
    }
}

/// A progress bar that is gone when its owner is.
pub(crate) struct Progress {
    bar: ProgressBar,
    appear: Option<JoinHandle<()>>,
}

impl Progress {
    /// `steps` more are done.
    pub(crate) fn step(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// How far it is, and what there is to say beside the bar.
    pub(crate) fn set(&self, steps: u64, text: String) {
        self.bar.set_position(steps);
        self.bar.set_message(text);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(appear) = self.appear.take() {
            appear.abort();
        }
        self.bar.finish_and_clear();
    }
}
