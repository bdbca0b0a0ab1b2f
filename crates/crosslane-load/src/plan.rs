//! The plan of a run: when each request is sent. It is made before the first request.

use fastrand::Rng;
use std::time::Duration;

/// How the times of requests are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// At equal intervals.
    Uniform,
    /// Independently of each other, like the requests of many clients. This is a Poisson process.
    Poisson,
}

impl Arrivals {
    /// Returns the name that options and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Arrivals::Uniform => "uniform",
            Arrivals::Poisson => "poisson",
        }
    }
}

/// The share of heavy requests, and their work.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// The share of heavy requests, 0 to 1.
    pub share: f64,
    /// The work of heavy requests: any number from the first to the last of these. Light requests
    /// have 0.
    pub heavy: (u32, u32),
}

impl Mix {
    /// A mix without heavy requests.
    pub const LIGHT: Mix = Mix { share: 0.0, heavy: (0, 0) };

    /// Returns the work of the next request.
    pub fn next(self, random: &mut Rng) -> u32 {
        let (first, last) = self.heavy;
        if self.share > 0.0 && random.f64() < self.share { random.u32(first..=last) } else { 0 }
    }
}

/// A request that was sent or will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The time of sending, in nanoseconds from the beginning.
    pub at: u64,
    /// Its work. 0 means a light request.
    pub work: u32,
}

/// Plans all requests of a run, in the order of their times. The same seed gives the same plan.
pub fn plan(arrivals: Arrivals, rate: u32, time: Duration, mix: Mix, seed: u64) -> Vec<Planned> {
    let mut random = Rng::with_seed(seed);
    // The same seed gives the same times, even with another mix.
    let mut choice = random.fork();
    let mut planned = |at| Planned { at, work: mix.next(&mut choice) };
    let end = time.as_nanos() as u64;
    match arrivals {
        Arrivals::Uniform => {
            let times = (0..).map(|index: u128| (index * 1_000_000_000 / u128::from(rate)) as u64);
            times.take_while(|at| *at < end).map(planned).collect()
        }
        Arrivals::Poisson => {
            let mean = 1e9 / f64::from(rate);
            let mut requests = Vec::new();
            let mut at = 0.0;
            loop {
                // `1 - f64()` is in (0, 1], so its logarithm is finite.
                at -= (1.0 - random.f64()).ln() * mean;
                if at >= end as f64 {
                    return requests;
                }
                requests.push(planned(at as u64));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_times_are_exact_and_do_not_drift() {
        let requests = plan(Arrivals::Uniform, 3, Duration::from_secs(100_000), Mix::LIGHT, 0);
        assert_eq!(requests.len(), 300_000);
        assert_eq!(
            requests[..4].iter().map(|p| p.at).collect::<Vec<_>>(),
            [0, 333_333_333, 666_666_666, 1_000_000_000]
        );
        assert_eq!(requests[299_997].at, 99_999_000_000_000);
    }

    #[test]
    fn poisson_times_have_the_mean_and_the_spread_of_their_rate() {
        let requests = plan(Arrivals::Poisson, 10_000, Duration::from_secs(20), Mix::LIGHT, 7);
        assert!(requests.is_sorted_by_key(|request| request.at));
        let gaps: Vec<f64> = requests.windows(2).map(|pair| (pair[1].at - pair[0].at) as f64 / 1e3).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // There are 200,000 gaps of 100 us, so the standard error of the mean is 0.22 us. The
        // standard deviation of an exponential distribution is its mean.
        assert!((mean - 100.0).abs() < 1.0, "{mean}");
        assert!((variance.sqrt() - 100.0).abs() < 2.0, "{variance}");
    }

    #[test]
    fn a_seed_gives_one_plan_and_its_times_do_not_hang_on_the_mix() {
        let times = |seed, mix| -> Vec<u64> {
            let requests = plan(Arrivals::Poisson, 1000, Duration::from_secs(1), mix, seed);
            requests.iter().map(|request| request.at).collect()
        };
        let mix = Mix { share: 0.5, heavy: (9, 9) };
        assert_eq!(times(1, Mix::LIGHT), times(1, mix));
        assert_ne!(times(1, Mix::LIGHT), times(2, Mix::LIGHT));
    }

    #[test]
    fn the_share_of_heavy_requests_is_kept() {
        let requests =
            plan(Arrivals::Uniform, 100_000, Duration::from_secs(1), Mix { share: 0.1, heavy: (7, 8) }, 3);
        let count = |work| requests.iter().filter(|request| request.work == work).count();
        assert_eq!(count(0) + count(7) + count(8), requests.len());
        // In 100,000 draws, the number of heavy requests has a standard deviation of 95. The split
        // of about 10,000 heavy requests between two kinds has one of 50.
        assert!((9_600..10_400).contains(&(count(7) + count(8))), "{} and {}", count(7), count(8));
        assert!(count(7).abs_diff(count(8)) < 600, "{} and {}", count(7), count(8));
    }
}
