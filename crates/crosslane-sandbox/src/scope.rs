//! Keeps libraries that may do everything else from signals to the engine, and from its memory.

use crate::machine::Machine;
use landlock::{
    AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};

/// Takes from this process, and from all that it starts, the right to send signals to other processes,
/// to trace them, and to read and change their memory and descriptors: those of the engine, and of what
/// ends workers with their engine. Limits and priorities of the user's other processes can still be
/// changed. Programs that it starts gain no privileges (`sudo`), and mount nothing. All else is as before. Returns whether that is so: it needs Linux 6.12. Call it while the process has one thread.
pub fn keep_to_own_processes() -> bool {
    if !Machine::look().is_ok_and(Machine::scopes_signals) {
        return false;
    }
    // Landlock forbids moves between folders unless a rule allows them.
    let Ok(everywhere) = PathFd::new("/") else { return false };
    let everywhere = PathBeneath::new(everywhere, AccessFs::Refer);
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let rules = rules.handle_access(AccessFs::Refer).and_then(|rules| rules.scope(Scope::Signal));
    let rules = rules.and_then(|rules| rules.create()?.add_rule(everywhere));
    let entered = rules.and_then(|rules| rules.restrict_self());
    entered.is_ok_and(|entered| entered.ruleset == RulesetStatus::FullyEnforced)
}
