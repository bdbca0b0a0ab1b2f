//! Rows by their groups.

use std::ops::Range;

/// Rows, sorted by the numbers of their groups.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Groups {
    order: Vec<u32>,
    groups: Vec<(usize, Range<usize>)>,
}

impl Groups {
    /// Sorts rows by the numbers of their groups, which are dense. The rows of a group stay in
    /// their order. It is a counting sort.
    pub fn new(rows: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let count = rows.clone().map(|(_, number)| number as usize + 1).max().unwrap_or(0);
        let mut places = vec![0u32; count];
        rows.clone().for_each(|(_, number)| places[number as usize] += 1);
        let (mut groups, mut end) = (Vec::new(), 0);
        // The count of a group becomes the place of its next row.
        for (number, place) in places.iter_mut().enumerate() {
            let rows = std::mem::replace(place, end) as usize;
            if rows > 0 {
                groups.push((number, end as usize..end as usize + rows));
            }
            end += rows as u32;
        }
        let mut order = vec![0; end as usize];
        for (row, number) in rows {
            let place = &mut places[number as usize];
            order[*place as usize] = row;
            *place += 1;
        }
        Self { order, groups }
    }

    /// All rows, in the order of their groups.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// The groups that have rows, and their ranges in [`Groups::order`].
    pub fn ranges(&self) -> &[(usize, Range<usize>)] {
        &self.groups
    }

    /// The groups that have rows, in the order of their numbers, and their rows.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[u32])> {
        self.groups.iter().map(|(number, range)| (*number, &self.order[range.clone()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(numbers: &[u32]) -> Vec<(usize, Vec<u32>)> {
        Groups::new((0..).zip(numbers.iter().copied()))
            .iter()
            .map(|(number, rows)| (number, rows.to_vec()))
            .collect()
    }

    #[test]
    fn rows_of_a_group_are_together_and_in_their_order() {
        assert_eq!(groups(&[]), []);
        assert_eq!(groups(&[7]), [(7, vec![0])]);
        assert_eq!(groups(&[2, 0, 2, 5, 0, 2]), [(0, vec![1, 4]), (2, vec![0, 2, 5]), (5, vec![3])]);
    }
}
