//! The server's log: one line for each event, on stderr, as text or as JSON.
//!
//! Values that a client or a function can influence are fields of an event, and never its text.
//! Fields are quoted in a line of text, and are strings in JSON. So no client and no function can
//! forge a line. Lines go through the same queue as the output of functions. So no thread waits for
//! the reader of the log.

use crosslane_process::{LogForm, print_to_log, set_log_form};
use serde::Deserialize;
use std::io;
use std::str::FromStr;
use tracing::{Level, error, info};
use tracing_subscriber::fmt::MakeWriter;

/// The form of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Starts the log of this process. Events below the level (`error`, `warn`, `info` or `debug`) are
/// left out.
///
/// # Errors
/// If there is no such level, or the process logs already.
pub fn start(format: Format, level: &str) -> Result<(), String> {
    let level = Level::from_str(level).map_err(|_| format!("there is no level {level} of the log"))?;
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(Lines)
        .with_ansi(false)
        .with_target(false);
    match format {
        Format::Text => lines.try_init(),
        Format::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
        }
    }
    .map_err(|error| error.to_string())?;
    set_log_form(LogForm {
        printed,
        said: |line| error!(why = line, "fault"),
        missing: match format {
            Format::Text => {
                |bytes| format!("{bytes} bytes of the log are missing here: it is read too slowly\n")
            }
            Format::Json => |bytes| {
                format!(
                    "{{\"level\":\"ERROR\",\"message\":\"bytes of the log are missing here\",\"bytes\":{bytes}}}\n"
                )
            },
        },
    });
    Ok(())
}

/// Logs what functions have printed: an event for each line.
fn printed(bytes: &[u8]) {
    let lines = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    lines
        .split(|byte| *byte == b'\n')
        .for_each(|line| info!(text = &*String::from_utf8_lossy(line), "printed"));
}

/// Makes the writers of events.
struct Lines;

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line
    }
}

/// Writes an event. Each call gets a whole line.
struct Line;

impl io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        print_to_log(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
