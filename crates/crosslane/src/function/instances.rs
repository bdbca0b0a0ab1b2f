//! What is kept ready of functions that take arguments of any type, for the types of their calls.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// How many are kept.
const MOST: usize = 64;

/// What was made for keys, until there are so many that all are made anew: a query has few, and what others have made
/// is not kept for ever.
#[derive(Debug, Clone)]
pub struct Instances<K, T>(HashMap<K, T>);

impl<K, T> Default for Instances<K, T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq, T> Instances<K, T> {
    /// What is kept for a key.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&T>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    /// How many are kept.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Keeps no more if there are too many for one more. Returns what was kept, for callers who may not drop it here.
    pub fn make_room(&mut self) -> Self {
        if self.0.len() < MOST { Self::default() } else { std::mem::take(self) }
    }

    /// Keeps one. Returns what [`Instances::make_room`] does.
    pub fn keep(&mut self, key: K, made: T) -> Self {
        let forgotten = self.make_room();
        self.0.insert(key, made);
        forgotten
    }

    /// What is kept for a key, or made now.
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
