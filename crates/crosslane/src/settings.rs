//! What a user can set, by name.

use crate::error::Error;
use crate::function::LONGEST_TIMEOUT;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// The most lanes that a library may keep warm: each is a process, and a machine has only so many.
const MOST_WARM: usize = 1024;

/// The settings of one engine instance. [`Settings::NAMES`] lists them with what they mean.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The Python interpreter; empty: the active virtual environment's, that which the package is installed in, the first
    /// on PATH.
    pub python: String,
    /// The JavaScript host program; empty: the one beside the engine's extension.
    pub javascript: String,
    /// The Ruby interpreter; empty: that which the gem is installed in, the first on PATH.
    pub ruby: String,
    /// The programs of further languages by their settings' names; empty: the one beside the language's manifest.
    pub programs: BTreeMap<String, String>,
    /// Lanes that a library keeps warm; 0: one per engine thread.
    pub warm_lanes: usize,
    /// After so long without use, idle lanes leave.
    pub idle_timeout: Duration,
    /// How long a waiting side spins before it sleeps.
    pub spin: Duration,
    /// Bytes of each ring of new lanes, a power of two.
    pub ring_size: usize,
    /// Bytes that the arguments or the results of one batch may have.
    pub largest_batch: usize,
    /// Whether an expensive function may use idle lanes for slices of a batch.
    pub fan_out: bool,
    /// How long a file may take to load.
    pub load_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            python: String::new(),
            javascript: String::new(),
            ruby: String::new(),
            programs: BTreeMap::new(),
            warm_lanes: 0,
            idle_timeout: Duration::from_secs(60),
            spin: Duration::from_micros(20),
            ring_size: 1 << 20,
            largest_batch: 4 << 30,
            fan_out: true,
            load_timeout: Duration::from_secs(120),
        }
    }
}

impl Settings {
    /// Names and meanings, for messages and documentation.
    pub const NAMES: [(&'static str, &'static str); 10] = [
        (
            "python",
            "path of the Python interpreter; empty: that of the active virtual environment, that of the installed \
             package, the first on PATH",
        ),
        ("javascript", "path of the JavaScript host; empty: the one that came with Crosslane"),
        ("ruby", "path of the Ruby interpreter; empty: that of the installed gem, the first on PATH"),
        ("warm_lanes", "workers that each library keeps ready, at most 1024; 0: one per engine thread"),
        ("idle_timeout", "seconds after which idle workers leave"),
        ("spin", "microseconds that a waiting side spins before it sleeps"),
        ("ring_size", "bytes of each ring of new workers, a power of two of at least 4096"),
        ("largest_batch", "bytes that the arguments or the results of one batch may have, for new workers"),
        ("fan_out", "whether expensive functions use idle workers: true or false"),
        ("load_timeout", "seconds that a file may take to load"),
    ];

    /// The settings, with those for the programs of further languages.
    ///
    /// `languages` are the names of these settings.
    pub fn with_programs(languages: impl IntoIterator<Item = String>) -> Self {
        let programs = languages.into_iter().map(|name| (name, String::new())).collect();
        Self { programs, ..Self::default() }
    }

    /// All names and meanings.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        let further = self
            .programs
            .keys()
            .map(|name| (&name[..], "path of the guest; empty: the one that came with Crosslane"));
        Self::NAMES.into_iter().chain(further)
    }

    /// Whether a setting says which program is started.
    pub fn is_program(&self, name: &str) -> bool {
        matches!(name, "python" | "javascript" | "ruby") || self.programs.contains_key(name)
    }

    /// Changes one setting.
    ///
    /// # Errors
    /// [`Error::Setting`] if there is no such setting, or it cannot have this value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        match name {
            "python" => self.python = value.to_owned(),
            "javascript" => self.javascript = value.to_owned(),
            "ruby" => self.ruby = value.to_owned(),
            "warm_lanes" => {
                let lanes = parsed(name, value)?;
                if lanes > MOST_WARM {
                    return Err(refused(name, value));
                }
                self.warm_lanes = lanes;
            }
            "idle_timeout" => self.idle_timeout = seconds(name, value)?,
            "spin" => self.spin = Duration::from_micros(parsed(name, value)?),
            "ring_size" => {
                let size: usize = parsed(name, value)?;
                if !size.is_power_of_two() || !(4096..=1 << 30).contains(&size) {
                    return Err(refused(name, value));
                }
                self.ring_size = size;
            }
            "largest_batch" => self.largest_batch = parsed(name, value)?,
            "fan_out" => self.fan_out = parsed(name, value)?,
            "load_timeout" => self.load_timeout = seconds(name, value)?,
            _ => match self.programs.get_mut(name) {
                Some(program) => value.clone_into(program),
                None => {
                    let names: Vec<_> = self.names().map(|(name, _)| name).collect();
                    let names = names.join(", ");
                    return Err(Error::Setting(format!("there is no setting {name:?}; there are: {names}")));
                }
            },
        }
        Ok(())
    }

    /// The value of a setting, as [`Settings::set`] takes it.
    pub fn get(&self, name: &str) -> Option<String> {
        let text: &dyn Display = match name {
            "python" => &self.python,
            "javascript" => &self.javascript,
            "ruby" => &self.ruby,
            "warm_lanes" => &self.warm_lanes,
            "idle_timeout" => &self.idle_timeout.as_secs_f64(),
            "spin" => &self.spin.as_micros(),
            "ring_size" => &self.ring_size,
            "largest_batch" => &self.largest_batch,
            "fan_out" => &self.fan_out,
            "load_timeout" => &self.load_timeout.as_secs_f64(),
            _ => self.programs.get(name)?,
        };
        Some(text.to_string())
    }
}

fn parsed<T: FromStr>(name: &str, value: &str) -> Result<T, Error> {
    let trimmed = value.trim();
    // A whole number may come as the text of a DOUBLE or a DECIMAL.
    let whole = trimmed.split_once('.').filter(|(_, digits)| digits.bytes().all(|digit| digit == b'0'));
    let number = trimmed.parse().or_else(|error| whole.map_or(Err(error), |(whole, _)| whole.parse()));
    number.map_err(|_| refused(name, value))
}

fn seconds(name: &str, value: &str) -> Result<Duration, Error> {
    let seconds = parsed(name, value)?;
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds <= LONGEST_TIMEOUT);
    time.ok_or_else(|| refused(name, value))
}

fn refused(name: &str, value: &str) -> Error {
    let meaning = Settings::NAMES.iter().find(|(known, _)| *known == name).map_or("", |(_, meaning)| meaning);
    Error::Setting(format!("the setting {name} cannot be {value:?}: {meaning}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_survives_its_own_text() {
        let new = || Settings::with_programs(["lua".to_owned()]);
        let mut settings = new();
        for (name, _) in new().names() {
            let value = settings.get(name).unwrap();
            settings.set(name, &value).unwrap();
        }
        assert_eq!(settings, new());
        settings.set("lua", "/opt/lua").unwrap();
        assert!(settings.is_program("lua") && settings.get("lua").unwrap() == "/opt/lua");
        assert_eq!(Settings::default().get("lua"), None);
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        let mut settings = Settings::default();
        assert!(settings.set("ring_size", "5000").unwrap_err().to_string().contains("power of two"));
        assert!(settings.set("idle_timeout", "-1").unwrap_err().to_string().contains("seconds"));
        assert!(settings.set("load_timeout", "1e19").unwrap_err().to_string().contains("seconds"));
        assert!(settings.set("warm_lanes", "1025").unwrap_err().to_string().contains("at most 1024"));
        assert!(settings.set("ring_size", "8192.5").unwrap_err().to_string().contains("power of two"));
        settings.set("warm_lanes", "1024").unwrap();
        settings.set("ring_size", "8192.0").unwrap();
        assert_eq!(settings.ring_size, 8192);
        assert!(settings.set("rings", "1").unwrap_err().to_string().contains("ring_size"));
    }
}
