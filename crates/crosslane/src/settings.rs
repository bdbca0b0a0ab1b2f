//! The settings of a user, by name.

use crate::error::Error;
use crate::function::LONGEST_TIMEOUT;
use crate::lane::Stuck;
use crate::sandbox::Sandbox;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// The most warm lanes. Each is a process, and a machine can only run a limited number.
const MOST_WARM: usize = 1024;

/// The setting for the program that runs the functions of one language.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    name: String,
    meaning: String,
    /// The path of the program. If it is empty, the engine looks for a program.
    path: String,
}

/// The settings of one engine instance. [`Settings::names`] lists their names and meanings.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The programs of the engine's guests, in the order of the list.
    programs: Vec<Program>,
    /// The engine's command to change a setting, for error messages.
    how: &'static str,
    /// The number of lanes that all libraries together keep warm. 0 means twice the number of
    /// processors.
    pub warm_lanes: usize,
    /// The time without use after which an idle lane ends.
    pub idle_timeout: Duration,
    /// The time that a waiting side spins before it sleeps.
    pub spin: Duration,
    /// The size of each ring of new lanes in bytes, a power of two.
    pub ring_size: usize,
    /// The most bytes of the arguments or the results of one batch.
    pub largest_batch: usize,
    /// Whether an expensive function may use idle lanes for slices of a batch.
    pub fan_out: bool,
    /// The time that the load of a file may take.
    pub load_timeout: Duration,
    /// The time without progress after which the engine inspects a call's worker. Zero means never.
    pub stuck_timeout: Duration,
    /// Whether the engine ends a worker that is stuck.
    pub end_stuck: bool,
    /// Whether the JavaScript functions of new libraries have WebAssembly.
    pub wasm: bool,
    /// Whether new libraries run in a sandbox.
    is_sandboxed: bool,
    /// What they may do there.
    allowed: Sandbox,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            programs: Vec::new(),
            how: "",
            warm_lanes: 0,
            idle_timeout: Duration::from_secs(60),
            spin: Duration::from_micros(20),
            ring_size: 1 << 20,
            largest_batch: 4 << 30,
            fan_out: true,
            load_timeout: Duration::from_secs(120),
            stuck_timeout: Duration::ZERO,
            end_stuck: false,
            wasm: true,
            is_sandboxed: false,
            allowed: Sandbox::default(),
        }
    }
}

impl Settings {
    /// The settings that every engine has, with their meanings.
    const COMMON: [(&'static str, &'static str); 11] = [
        (
            "warm_lanes",
            "workers that all libraries together keep ready, at most 1024; 0: twice the processors",
        ),
        ("idle_timeout", "seconds after which idle workers leave"),
        ("spin", "microseconds that a waiting side spins before it sleeps"),
        ("ring_size", "bytes of each ring of new workers, a power of two of at least 4096"),
        ("largest_batch", "bytes that the arguments or the results of one batch may have, for new workers"),
        ("fan_out", "whether expensive functions use idle workers: true or false"),
        ("load_timeout", "seconds that a file may take to load"),
        (
            "stuck_timeout",
            "seconds without progress of a call, after which its worker's stack is logged; 0: never",
        ),
        ("end_stuck", "whether the worker is ended then, and the call with it: true or false"),
        ("wasm", "whether the JavaScript functions of the next files have WebAssembly: true or false"),
        (
            "sandbox",
            "whether the functions of the next files may only do what is allowed: off, on, or strict (they open nothing)",
        ),
    ];

    /// The settings of an engine with these guests. `programs` has the name and the meaning of the
    /// setting for each guest's program. Of several settings with the same name, the first one
    /// counts. `how` is the engine's command to change a setting, with `{name}` and `{value}` in
    /// it.
    pub fn with_programs(how: &'static str, programs: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut settings = Self { how, ..Self::default() };
        for (name, meaning) in programs {
            if settings.meaning(&name).is_none() {
                settings.programs.push(Program { name, meaning, path: String::new() });
            }
        }
        settings
    }

    /// The reaction of new workers to calls that make no progress.
    pub fn stuck(&self) -> Stuck {
        Stuck { after: Some(self.stuck_timeout).filter(|after| !after.is_zero()), ends: self.end_stuck }
    }

    /// The names of the settings of a sandbox.
    pub fn of_sandbox() -> impl Iterator<Item = &'static str> {
        ["sandbox"].into_iter().chain(Sandbox::SETTINGS.iter().map(|(name, _)| *name))
    }

    /// The sandbox of new libraries, if they have one.
    pub fn sandbox(&self) -> Option<Sandbox> {
        self.is_sandboxed.then(|| self.allowed.clone())
    }

    /// The settings with another sandbox, or none, for new libraries.
    #[must_use]
    pub fn with_sandbox(self, sandbox: Option<Sandbox>) -> Self {
        Self { is_sandboxed: sandbox.is_some(), allowed: sandbox.unwrap_or_default(), ..self }
    }

    /// All names and meanings.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        let programs = self.programs.iter().map(|program| (&program.name[..], &program.meaning[..]));
        programs.chain(Self::COMMON).chain(Sandbox::SETTINGS)
    }

    fn meaning(&self, name: &str) -> Option<&str> {
        self.names().find(|(known, _)| *known == name).map(|(_, meaning)| meaning)
    }

    /// Whether this is the setting of a guest's program.
    pub fn is_program(&self, name: &str) -> bool {
        self.programs.iter().any(|program| program.name == name)
    }

    /// The command to change a setting, for error messages.
    pub fn how_to_set(&self, name: &str, value: &str) -> String {
        self.how.replace("{name}", name).replace("{value}", value)
    }

    /// The program that the setting with this name selects, if it is set.
    pub fn program(&self, name: &str) -> Option<&str> {
        let program = self.programs.iter().find(|program| program.name == name)?;
        Some(&program.path[..]).filter(|path| !path.is_empty())
    }

    /// Changes one setting.
    ///
    /// # Errors
    /// [`Error::Setting`] if there is no such setting, or it cannot have this value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        match self.allowed.set(name, value) {
            Some(true) => return Ok(()),
            Some(false) => return Err(self.refused(name, value)),
            None => {}
        }
        match name {
            "warm_lanes" => {
                let lanes = self.parsed(name, value)?;
                if lanes > MOST_WARM {
                    return Err(self.refused(name, value));
                }
                self.warm_lanes = lanes;
            }
            "idle_timeout" => self.idle_timeout = self.seconds(name, value)?,
            "spin" => self.spin = Duration::from_micros(self.parsed(name, value)?),
            "ring_size" => {
                let size: usize = self.parsed(name, value)?;
                if !size.is_power_of_two() || !(4096..=1 << 30).contains(&size) {
                    return Err(self.refused(name, value));
                }
                self.ring_size = size;
            }
            "largest_batch" => self.largest_batch = self.parsed(name, value)?,
            "fan_out" => self.fan_out = self.parsed(name, value)?,
            "load_timeout" => self.load_timeout = self.seconds(name, value)?,
            "stuck_timeout" => self.stuck_timeout = self.seconds(name, value)?,
            "end_stuck" => self.end_stuck = self.parsed(name, value)?,
            "wasm" => self.wasm = self.parsed(name, value)?,
            "sandbox" => {
                (self.is_sandboxed, self.allowed.strict) = match value.trim() {
                    "on" | "true" => (true, false),
                    "strict" => (true, true),
                    "off" | "false" => (false, false),
                    _ => return Err(self.refused(name, value)),
                }
            }
            _ => match self.programs.iter_mut().find(|program| program.name == name) {
                Some(program) => value.clone_into(&mut program.path),
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
        if let Some(text) = self.allowed.get(name) {
            return Some(text);
        }
        let text: &dyn Display = match name {
            "warm_lanes" => &self.warm_lanes,
            "idle_timeout" => &self.idle_timeout.as_secs_f64(),
            "spin" => &self.spin.as_micros(),
            "ring_size" => &self.ring_size,
            "largest_batch" => &self.largest_batch,
            "fan_out" => &self.fan_out,
            "load_timeout" => &self.load_timeout.as_secs_f64(),
            "stuck_timeout" => &self.stuck_timeout.as_secs_f64(),
            "end_stuck" => &self.end_stuck,
            "wasm" => &self.wasm,
            "sandbox" => match (self.is_sandboxed, self.allowed.strict) {
                (true, true) => &"strict",
                (true, false) => &"on",
                (false, _) => &"off",
            },
            _ => &self.programs.iter().find(|program| program.name == name)?.path,
        };
        Some(text.to_string())
    }

    fn parsed<T: FromStr>(&self, name: &str, value: &str) -> Result<T, Error> {
        let trimmed = value.trim();
        // An engine may write a whole number as the text of a DOUBLE or a DECIMAL.
        let whole = trimmed.split_once('.').filter(|(_, digits)| digits.bytes().all(|digit| digit == b'0'));
        let number = trimmed.parse().or_else(|error| whole.map_or(Err(error), |(whole, _)| whole.parse()));
        number.map_err(|_| self.refused(name, value))
    }

    fn seconds(&self, name: &str, value: &str) -> Result<Duration, Error> {
        let seconds = self.parsed(name, value)?;
        let time = Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds <= LONGEST_TIMEOUT);
        time.ok_or_else(|| self.refused(name, value))
    }

    fn refused(&self, name: &str, value: &str) -> Error {
        let meaning = self.meaning(name).unwrap_or_default();
        Error::Setting(format!("the setting {name} cannot be {value:?}: {meaning}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::Net;
    use std::path::PathBuf;

    #[test]
    fn every_setting_survives_its_own_text() {
        let programs = [("lua", "the guest"), ("lua", "another"), ("spin", "none")];
        let new = || {
            Settings::with_programs(
                "SET {name} = {value}",
                programs.map(|(name, meaning)| (name.to_owned(), meaning.to_owned())),
            )
        };
        let mut settings = new();
        for (name, _) in new().names() {
            let value = settings.get(name).unwrap();
            settings.set(name, &value).unwrap();
        }
        assert_eq!(settings, new());
        assert_eq!(settings.names().filter(|(name, _)| ["lua", "spin"].contains(name)).count(), 2);
        assert_eq!(settings.program("lua"), None);
        assert_eq!(settings.how_to_set("lua", "/opt/lua"), "SET lua = /opt/lua");
        settings.set("lua", "/opt/lua").unwrap();
        assert_eq!(
            (settings.program("lua"), settings.get("lua")),
            (Some("/opt/lua"), Some("/opt/lua".into()))
        );
        assert!(settings.is_program("lua") && !settings.is_program("spin"));
        assert_eq!(Settings::default().get("lua"), None);
    }

    #[test]
    fn a_sandbox_has_what_the_lists_name() {
        let mut settings = Settings::default();
        for (name, value) in [
            ("allow_read", "/data, /srv/models"),
            ("allow_net", "true"),
            ("allow_env", "KEY,TOKEN"),
            ("allow_run", ""),
        ] {
            settings.set(name, value).unwrap();
        }
        assert_eq!(settings.sandbox(), None);
        settings.set("sandbox", "on").unwrap();
        let read = ["/data", "/srv/models"].map(PathBuf::from).to_vec();
        let env = ["KEY", "TOKEN"].map(str::to_owned).to_vec();
        assert_eq!(
            settings.sandbox(),
            Some(Sandbox { read, net: Net::Everything, env, ..Sandbox::default() })
        );
        assert_eq!(settings.get("allow_read").as_deref(), Some("/data,/srv/models"));
        assert!(settings.set("allow_write", "data").unwrap_err().to_string().contains("files and folders"));
        assert!(settings.set("sandbox", "perhaps").unwrap_err().to_string().contains("off, on, or strict"));
        settings.set("sandbox", "strict").unwrap();
        assert!(settings.sandbox().unwrap().strict);
        assert_eq!(settings.get("sandbox").as_deref(), Some("strict"));
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
