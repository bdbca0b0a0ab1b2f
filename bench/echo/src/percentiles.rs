//! Percentiles of all samples, without a histogram.

use serde_json::{Value, json};

/// The percentiles of a report, in ten-thousandths.
const REPORTED: [(&str, u64); 5] =
    [("p50_us", 5000), ("p90_us", 9000), ("p99_us", 9900), ("p99.9_us", 9990), ("p99.99_us", 9999)];

/// The nearest-rank percentile: the smallest sample that is not below this share of all samples.
///
/// # Panics
///
/// Panics if there are no samples.
pub fn percentile(sorted: &[u64], ten_thousandths: u64) -> u64 {
    let rank = (sorted.len() as u64 * ten_thousandths).div_ceil(10_000).max(1);
    sorted[rank as usize - 1]
}

/// Count, mean, percentiles and maximum of some times. They are in nanoseconds, the report in
/// microseconds. Null for none.
pub fn report(mut samples: Vec<u64>) -> Value {
    samples.sort_unstable();
    let (Some(max), sum) = (samples.last(), samples.iter().map(|sample| u128::from(*sample)).sum::<u128>())
    else {
        return Value::Null;
    };
    let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let mut report = json!({
        "count": samples.len(),
        "avg_us": sum as f64 / samples.len() as f64 / 1e3,
        "max_us": microseconds(*max),
    });
    for (name, share) in REPORTED {
        report[name] = microseconds(percentile(&samples, share)).into();
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_sample_of_its_rank() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(
            [5000, 9000, 9900, 9990, 9999].map(|share| percentile(&hundred, share)),
            [50, 90, 99, 100, 100]
        );
        let ten_thousand: Vec<u64> = (1..=10_000).collect();
        assert_eq!(percentile(&ten_thousand, 9990), 9990);
        assert_eq!(percentile(&ten_thousand, 9999), 9999);
        assert_eq!(percentile(&[7], 5000), 7);
        assert_eq!(percentile(&[7, 9], 5000), 7);
        assert_eq!(percentile(&[7, 9], 5001), 9);
        assert_eq!(percentile(&[7, 9], 0), 7);
    }

    #[test]
    fn a_report_sorts_its_samples() {
        let report = report((1..=10_000).rev().map(|us| us * 1000).collect());
        assert_eq!(report["count"], 10_000);
        assert_eq!(report["avg_us"], 5000.5);
        assert_eq!(report["max_us"], 10_000.0);
        for (name, expected) in [
            ("p50_us", 5e3),
            ("p90_us", 9e3),
            ("p99_us", 9.9e3),
            ("p99.9_us", 9.99e3),
            ("p99.99_us", 9.999e3),
        ] {
            assert_eq!(report[name], expected, "{name}");
        }
    }

    #[test]
    fn no_samples_have_no_report() {
        assert_eq!(report(Vec::new()), Value::Null);
    }
}
