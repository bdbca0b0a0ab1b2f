//! The rules for values that the prelude shares with the guests in Rust, as JavaScript source.
//!
//! The loops over values are JavaScript, because one call into V8 per value would cost more than
//! most functions. So the checks are JavaScript, too. This file has the limits that the checks use,
//! and the texts of their errors.

use crosslane::builder::Overflow;
use crosslane::{
    DataType, LARGEST_MEMORY_LIMIT, LONGEST_TIMEOUT, MOST_BATCH, MOST_BUDGET, MOST_CONCURRENCY, MOST_RETRIES,
    MOST_WORKERS, calendar, timetz,
};
use crosslane_guest::{DAY, Fault, NULL_KEY, Refusal, SIZE_UNITS, units_per_second};
use serde_json::{Map, Value, json};

/// Returns the JavaScript source of the rules.
pub(crate) fn source() -> String {
    let infinite = f64::INFINITY;
    let rules = json!({
        "unitsPerSecond": units(),
        "day": DAY,
        "lastDay": calendar::day_of_infinity(infinite),
        // This is text, because JSON's numbers are not exact at this size.
        "lastMoment": calendar::timestamp_of_infinity(infinite).map(|moment| moment.to_string()),
        "easternmost": timetz::MOST_SECONDS,
        "mostBytes": i32::MAX,
        "sizeUnits": SIZE_UNITS.iter().map(|(name, bytes)| ((*name).into(), json!(bytes))).collect::<Map<_, _>>(),
        "most": {
            "batch": MOST_BATCH,
            "concurrency": MOST_CONCURRENCY,
            "retries": MOST_RETRIES,
            "timeout": LONGEST_TIMEOUT,
            "memory_limit": LARGEST_MEMORY_LIMIT,
            "budget": MOST_BUDGET,
            "workers": MOST_WORKERS,
        },
        "refusals": { "wrong": refusal(Refusal::Mismatch), "unfit": refusal(Refusal::TooLarge) },
        "nullKey": NULL_KEY,
        "tooMuch": Overflow::TooLarge.to_string(),
        "late": around(&late(PLACEHOLDER)),
    });
    format!("const RULES = {rules};\n")
}

/// Makes the message of a call that took longer than its timeout.
pub(crate) fn late(seconds: impl std::fmt::Display) -> String {
    format!("timed out after {seconds} s")
}

/// Returns the units per second of times of day and of timestamps, by type.
fn units() -> Value {
    use DataType as T;
    let known = [
        T::Time,
        T::TimeNs,
        T::TimeTz,
        T::TimestampS,
        T::TimestampMs,
        T::Timestamp,
        T::TimestampTz,
        T::TimestampNs,
    ];
    known.iter().map(|data_type| (data_type.to_string(), json!(units_per_second(data_type)))).collect()
}

/// Marks the place of the value or the type that the prelude puts into a message.
const PLACEHOLDER: &str = "\0";

/// Returns the class of an error, and the parts of its message around the value and the type.
fn refusal(refusal: Refusal<()>) -> Value {
    match refusal.told(|| Ok(PLACEHOLDER.into()), PLACEHOLDER) {
        Fault::Refused(refused) => json!({ "class": refused.0.name(), "words": around(&refused.1) }),
        Fault::Failed(()) => Value::Null,
    }
}

fn around(words: &str) -> Vec<&str> {
    words.split(PLACEHOLDER).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prelude_has_the_limits_and_messages_of_the_guests_in_rust() {
        let source = source();
        let rules = source.strip_prefix("const RULES = ").unwrap().strip_suffix(";\n").unwrap();
        let rules: Value = serde_json::from_str(rules).unwrap();
        assert_eq!(rules["unitsPerSecond"]["TIMESTAMP_S"], 1);
        assert_eq!(rules["unitsPerSecond"]["TIMESTAMPTZ"], 1_000_000);
        assert_eq!(rules["lastMoment"], i64::MAX.to_string());
        assert_eq!(rules["sizeUnits"]["MIB"], 1_048_576.0);
        let unfit = json!({ "class": "RangeError", "words": ["returned ", ", which does not fit ", ""] });
        assert_eq!(rules["refusals"]["unfit"], unfit);
        assert_eq!(rules["late"], json!(["timed out after ", " s"]));
        assert!(!rules.to_string().contains(":null"));
    }
}
