//! Checks that bytes are a GEOMETRY in DuckDB's format: little-endian WKB (ISO 13249-3) without a
//! reference system. DuckDB reads the bytes of a vector without checking their length, so this
//! module checks each count.

const POINT: u32 = 1;
const LINE: u32 = 2;
const POLYGON: u32 = 3;
const MULTI_POINT: u32 = 4;
const MULTI_POLYGON: u32 = 6;
const COLLECTION: u32 = 7;
/// The most levels of nested collections.
const MOST_LEVELS: usize = 32;

/// Checks one value.
///
/// # Errors
/// The error in the value.
pub(crate) fn check(bytes: &[u8]) -> Result<(), &'static str> {
    let mut reader = Reader(bytes);
    reader.geometry(None, None, MOST_LEVELS)?;
    if reader.0.is_empty() { Ok(()) } else { Err("bytes lie behind the WKB") }
}

struct Reader<'a>(&'a [u8]);

type Checked<T> = Result<T, &'static str>;

impl Reader<'_> {
    fn skip(&mut self, count: usize) -> Checked<()> {
        self.0 = self.0.get(count..).ok_or("the WKB ends early")?;
        Ok(())
    }

    fn number(&mut self) -> Checked<u32> {
        let number = self.0.first_chunk().copied().map(u32::from_le_bytes).ok_or("the WKB ends early")?;
        self.skip(4)?;
        Ok(number)
    }

    /// Skips `count` points.
    fn points(&mut self, count: usize, dimensions: u32) -> Checked<()> {
        let width = 8 * if dimensions == 3 { 4 } else { 2 + dimensions.min(1) as usize };
        self.skip(count.checked_mul(width).ok_or("the WKB ends early")?)
    }

    /// Checks a geometry. A part of another geometry has the same dimensions as the whole, and may
    /// need a certain type.
    fn geometry(&mut self, dimensions: Option<u32>, wanted: Option<u32>, levels: usize) -> Checked<()> {
        if self.0.first().is_some_and(|order| *order != 1) {
            return Err("the WKB must be little-endian");
        }
        self.skip(1)?;
        let code = self.number()?;
        // 0: X and Y. 1: also Z. 2: also M. 3: Z and M.
        let (own, kind) = (code / 1000, code % 1000);
        if own > 3 || !(POINT..=COLLECTION).contains(&kind) {
            return Err("the WKB has a type that is none of ISO WKB's (EWKB is not known here)");
        }
        if dimensions.is_some_and(|dimensions| dimensions != own) {
            return Err("the parts of the WKB have different dimensions");
        }
        if wanted.is_some_and(|wanted| wanted != kind) {
            return Err("the WKB has a part of another type than its whole");
        }
        match kind {
            POINT => self.points(1, own)?,
            LINE => {
                let count = self.number()? as usize;
                self.points(count, own)?;
            }
            POLYGON => {
                for _ in 0..self.number()? {
                    let count = self.number()? as usize;
                    self.points(count, own)?;
                }
            }
            _ => {
                let below = levels.checked_sub(1).ok_or("the WKB has more than 32 levels")?;
                let wanted =
                    (MULTI_POINT..=MULTI_POLYGON).contains(&kind).then(|| kind - MULTI_POINT + POINT);
                for _ in 0..self.number()? {
                    self.geometry(Some(own), wanted, below)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wkb(code: u32, parts: &[&[u8]]) -> Vec<u8> {
        [&[1][..], &code.to_le_bytes(), &parts.concat()].concat()
    }

    fn count(count: u32) -> [u8; 4] {
        count.to_le_bytes()
    }

    #[test]
    fn geometries_of_all_types() {
        let (point, point_zm) = (wkb(1, &[&[0; 16]]), wkb(3001, &[&[0; 32]]));
        let polygon = wkb(3, &[&count(2), &count(1), &[0; 16], &count(0)]);
        let within = wkb(7, &[&count(2), &point, &polygon]);
        for good in [
            point.clone(),
            point_zm.clone(),
            wkb(1001, &[&[0; 24]]),
            wkb(2002, &[&count(2), &[0; 48]]),
            wkb(4, &[&count(2), &point, &point]),
            wkb(5, &[&count(1), &wkb(2, &[&count(0)])]),
            wkb(6, &[&count(1), &polygon]),
            wkb(3007, &[&count(1), &point_zm]),
            wkb(7, &[&count(2), &within, &point]),
            polygon.clone(),
        ] {
            assert_eq!(check(&good), Ok(()), "{good:?}");
            for length in 0..good.len() {
                assert!(check(&good[..length]).is_err(), "{good:?} cut to {length}");
            }
            assert_eq!(check(&[&good[..], &[0]].concat()), Err("bytes lie behind the WKB"));
        }
        let mut deep = point.clone();
        for _ in 0..=MOST_LEVELS {
            deep = wkb(7, &[&count(1), &deep]);
        }
        for bad in [
            wkb(8, &[&[0; 16]]),
            wkb(0, &[]),
            wkb(4001, &[&[0; 64]]),
            wkb(0x2000_0001, &[&[0; 20]]),
            wkb(2, &[&count(u32::MAX), &[0; 64]]),
            wkb(4, &[&count(1), &polygon]),
            wkb(7, &[&count(1), &point_zm]),
            [&[0, 0, 0, 0, 1][..], &[0; 16]].concat(),
            deep,
        ] {
            assert!(check(&bad).is_err(), "{bad:?}");
        }
    }
}
