//! A cache for functions that take arguments of any type: it keeps one value for each list of
//! argument types.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// The most values in the cache.
const MOST: usize = 64;

/// Values that were made for keys. When the cache is full, it drops all values. A query has few
/// keys, so making its values again is cheap, and values of old queries do not stay for ever.
#[derive(Debug, Clone)]
pub struct Instances<K, T>(HashMap<K, T>);

impl<K, T> Default for Instances<K, T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq, T> Instances<K, T> {
    /// The value of a key.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&T>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    /// The number of values.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Empties the cache if it is full. Returns the old values, for callers that may not drop them
    /// here.
    pub fn make_room(&mut self) -> Self {
        if self.0.len() < MOST { Self::default() } else { std::mem::take(self) }
    }

    /// Adds a value. Returns the old values, as [`Instances::make_room`] does.
    pub fn keep(&mut self, key: K, made: T) -> Self {
        let forgotten = self.make_room();
        self.0.insert(key, made);
        forgotten
    }

    /// The value of a key. Makes it if there is none.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get_or_make<'a, Q, E>(
        &'a mut self,
        key: &Q,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&'a mut T, E>
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q> + for<'q> From<&'q Q>,
    {
        if !self.0.contains_key(key) {
            self.keep(K::from(key), make()?);
        }
        Ok(self.0.get_mut(key).expect("it was there, or is now"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_made_once_until_there_are_too_many() {
        let mut made = 0;
        let mut instances: Instances<Box<str>, usize> = Instances::default();
        let mut ask = |key: usize| {
            let make = || {
                made += 1;
                Ok::<_, ()>(made)
            };
            *instances.get_or_make(&key.to_string()[..], make).unwrap()
        };
        for _ in 0..2 {
            assert!((0..MOST).all(|key| ask(key) == key + 1));
        }
        assert_eq!(ask(MOST), MOST + 1);
        assert_eq!((ask(MOST), ask(0)), (MOST + 1, MOST + 2));
    }

    #[test]
    fn what_cannot_be_made_is_not_kept_and_forgets_nothing() {
        let mut instances: Instances<Box<str>, usize> = Instances::default();
        (0..MOST).for_each(|key| drop(instances.keep(key.to_string().into(), key)));
        assert_eq!(instances.get_or_make("new", || Err("no")), Err("no"));
        assert_eq!((instances.get("new"), instances.get("63")), (None, Some(&63)));
    }

    #[test]
    fn what_is_not_kept_any_more_is_the_callers() {
        let mut instances = Instances::default();
        for turn in 0..3 {
            let mut forgotten = 0;
            for at in 0..MOST {
                forgotten += instances.keep((turn, at), at).count();
                assert_eq!(instances.count(), at + 1);
            }
            assert_eq!(forgotten, if turn == 0 { 0 } else { MOST });
        }
        assert_eq!((instances.make_room().count(), instances.make_room().count()), (MOST, 0));
    }
}
