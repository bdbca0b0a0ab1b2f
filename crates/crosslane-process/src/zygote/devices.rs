//! The GPUs of this machine, and which lanes see which of them (`gpus`).
//!
//! The libraries of all languages read from an environment variable which GPUs they may use. A lane
//! gets the GPUs that the fewest living lanes of this program have. Keepers of several libraries boot
//! lanes at the same time. So a lane has its GPUs from before its boot ([`Devices::take`]).

use crate::warden::LaneRecord;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{env, fs};

/// The variables that say which GPUs a program may use: those of CUDA and of ROCm.
const VARIABLES: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];

/// The GPUs that this program may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Visible {
    /// The variable that names them.
    variable: &'static str,
    names: Vec<String>,
}

impl Visible {
    /// Looks at the variables, or else at the devices of the machine. `None` if it has no GPU.
    pub(super) fn find() -> Option<Self> {
        Self::told(|variable| env::var(variable).ok()).or_else(|| Self::found(Path::new("/")))
    }

    fn told(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        VARIABLES.into_iter().find_map(|name| {
            let text = variable(name)?;
            // Names after a negative number do not count.
            let names = text.split(',').map(str::trim).take_while(|name| !name.starts_with('-'));
            let names = names.filter(|name| !name.is_empty());
            Some(Self { variable: name, names: names.map(str::to_owned).collect() })
        })
    }

    fn found(root: &Path) -> Option<Self> {
        let entries = |folder: &str| {
            let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let is_nvidia = |path: &&std::path::PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok())
        };
        let nvidia = entries("dev").iter().filter(is_nvidia).count();
        // A node of the topology that is a processor has the number 0.
        let is_amd = |path: &&std::path::PathBuf| {
            fs::read_to_string(path.join("gpu_id")).is_ok_and(|id| !matches!(id.trim(), "" | "0"))
        };
        let amd = entries("sys/class/kfd/kfd/topology/nodes").iter().filter(is_amd).count();
        let (variable, count) = if nvidia > 0 { (VARIABLES[0], nvidia) } else { (VARIABLES[1], amd) };
        let names = (0..count).map(|number| number.to_string()).collect();
        (count > 0).then_some(Self { variable, names })
    }
}

/// GPUs that a lane has.
struct Used {
    /// Tells the uses apart.
    number: u64,
    names: Vec<String>,
    /// `None` until the lane has booted.
    lane: Option<Arc<LaneRecord>>,
}

/// The uses of this program, and the number of the next one.
struct Uses {
    all: Vec<Used>,
    next: u64,
}

fn uses() -> MutexGuard<'static, Uses> {
    static USES: Mutex<Uses> = Mutex::new(Uses { all: Vec::new(), next: 0 });
    USES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The GPUs of a function's lanes.
#[derive(Debug)]
pub(super) struct Devices {
    variable: &'static str,
    /// The GPUs of each lane. Lanes may share them.
    shares: Vec<Vec<String>>,
}

impl Devices {
    /// Shares the GPUs among lanes that want `each` of them.
    ///
    /// # Errors
    /// What is missing.
    pub(super) fn share(visible: Option<Visible>, each: u32) -> Result<Self, String> {
        let Some(Visible { variable, names }) = visible else {
            return Err(format!(
                "gpus={each}, and this machine shows no GPU; to do without, set {}= (to nothing)",
                VARIABLES[0]
            ));
        };
        let each = each as usize;
        if !names.is_empty() && names.len() < each {
            return Err(format!(
                "gpus={each}, and there are {}: {variable}={}",
                names.len(),
                names.join(",")
            ));
        }
        let shares = if names.is_empty() {
            vec![Vec::new()]
        } else {
            names.chunks_exact(each).map(<[String]>::to_vec).collect()
        };
        Ok(Self { variable, shares })
    }

    /// How many lanes have GPUs of their own.
    pub(super) fn count(&self) -> usize {
        self.shares.len()
    }

    /// The GPUs for a lane that boots now: those that the fewest lanes have.
    pub(super) fn take(&self) -> Share<'_> {
        let mut uses = uses();
        uses.all.retain(|used| used.lane.as_ref().is_none_or(|lane| lane.ended().is_none()));
        let lanes = |names: &&Vec<String>| {
            uses.all.iter().filter(|used| used.names.iter().any(|name| names.contains(name))).count()
        };
        let names = self.shares.iter().min_by_key(lanes).map_or(&[][..], Vec::as_slice);
        let number = uses.next;
        uses.next += 1;
        uses.all.push(Used { number, names: names.to_vec(), lane: None });
        Share { variable: self.variable, names, number }
    }
}

/// The GPUs of a lane that boots. They are free again if it does not.
#[derive(Debug)]
pub(super) struct Share<'a> {
    variable: &'static str,
    names: &'a [String],
    number: u64,
}

impl Share<'_> {
    /// The environment of the lane.
    pub(super) fn environment(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(self.variable.to_owned(), self.names.join(","))])
    }

    /// Notes which lane has them, until it ends.
    pub(super) fn give(self, lane: Arc<LaneRecord>) {
        if let Some(used) = uses().all.iter_mut().find(|used| used.number == self.number) {
            used.lane = Some(lane);
        }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        uses().all.retain(|used| used.number != self.number || used.lane.is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible(variable: &'static str, names: &[&str]) -> Option<Visible> {
        Some(Visible { variable, names: names.iter().map(|&name| name.to_owned()).collect() })
    }

    #[test]
    fn variables_say_which_gpus_there_are() {
        let told = |wanted: &'static str, text: &'static str| {
            Visible::told(move |name| (name == wanted).then(|| text.to_owned()))
        };
        assert_eq!(
            told("CUDA_VISIBLE_DEVICES", "0, GPU-7"),
            visible("CUDA_VISIBLE_DEVICES", &["0", "GPU-7"])
        );
        assert_eq!(told("CUDA_VISIBLE_DEVICES", ""), visible("CUDA_VISIBLE_DEVICES", &[]));
        assert_eq!(told("HIP_VISIBLE_DEVICES", "1"), visible("HIP_VISIBLE_DEVICES", &["1"]));
        assert_eq!(told("CUDA_VISIBLE_DEVICES", "0,-1,1"), visible("CUDA_VISIBLE_DEVICES", &["0"]));
        assert_eq!(told("ROCR_VISIBLE_DEVICES", "2"), visible("ROCR_VISIBLE_DEVICES", &["2"]));
        assert_eq!(told("PATH", "1"), None);
    }

    #[test]
    fn devices_are_counted() {
        let root = env::temp_dir().join(format!("crosslane-devices-{}", std::process::id()));
        assert_eq!(Visible::found(&root), None);
        let nodes = root.join("sys/class/kfd/kfd/topology/nodes");
        for (node, id) in [("0", "0\n"), ("1", "4098\n")] {
            fs::create_dir_all(nodes.join(node)).unwrap();
            fs::write(nodes.join(node).join("gpu_id"), id).unwrap();
        }
        assert_eq!(Visible::found(&root), visible("HIP_VISIBLE_DEVICES", &["0"]));
        fs::create_dir(root.join("dev")).unwrap();
        for name in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"] {
            fs::write(root.join("dev").join(name), "").unwrap();
        }
        assert_eq!(Visible::found(&root), visible("CUDA_VISIBLE_DEVICES", &["0", "1"]));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn each_lane_has_its_share() {
        let names = ["a", "b", "c", "d", "e"];
        let devices = Devices::share(visible("CUDA_VISIBLE_DEVICES", &names), 2).unwrap();
        assert_eq!(devices.count(), 2);
        let record = |id| LaneRecord::new(id, std::sync::Weak::new());
        let share = devices.take();
        let expected = BTreeMap::from([("CUDA_VISIBLE_DEVICES".into(), "a,b".into())]);
        assert_eq!(share.environment(), expected);
        // A lane that boots has its GPUs already.
        let second = devices.take();
        assert_eq!(second.names, ["c", "d"]);
        let lane = record(1);
        share.give(Arc::clone(&lane));
        second.give(record(2));
        // Other functions have the same GPUs.
        let others = Devices::share(visible("CUDA_VISIBLE_DEVICES", &names), 1).unwrap();
        let failed = others.take();
        assert_eq!(failed.names, ["e"]);
        // It did not boot.
        drop(failed);
        let other = others.take();
        assert_eq!(other.names, ["e"]);
        other.give(record(3));
        // The first lane has ended, so its GPUs are free again.
        lane.set_ended(crate::warden::Ended::Code(0));
        assert_eq!(devices.take().names, ["a", "b"]);
    }

    #[test]
    fn an_error_says_what_is_missing() {
        let error = Devices::share(None, 1).unwrap_err();
        assert!(error.starts_with("gpus=1, and this machine shows no GPU; to do without"), "{error}");
        let error = Devices::share(visible("CUDA_VISIBLE_DEVICES", &["0"]), 2).unwrap_err();
        assert_eq!(error, "gpus=2, and there are 1: CUDA_VISIBLE_DEVICES=0");
        let none = Devices::share(visible("CUDA_VISIBLE_DEVICES", &[]), 2).unwrap();
        assert_eq!(
            none.take().environment(),
            BTreeMap::from([("CUDA_VISIBLE_DEVICES".into(), String::new())])
        );
    }
}
