//! Pages give what the same rows give gathered, against a float64 reference; what lies behind a row is never read.

use super::*;
use crate::host::testing::{Random, close, ulp};
use half::{bf16, f16};

/// Shape letters of the crate; a row's positions and the position of its first query.
struct Case {
    hq: usize,
    hkv: usize,
    l: usize,
    page: usize,
    dk: usize,
    dv: usize,
    rows: &'static [(usize, i32)],
}

const fn case([hq, hkv, l, page, dk, dv]: [usize; 6], rows: &'static [(usize, i32)]) -> Case {
    Case { hq, hkv, l, page, dk, dv, rows }
}

/// Decode and prefill; pages of one position, smaller and larger than a block; rows that end before the last query or begin
/// after the first, that end with a page, and that are empty.
const CASES: [Case; 9] = [
    case([6, 2, 1, 16, 64, 64], &[(37, 36), (48, 47), (1, 0)]),
    case([9, 3, 1, 1, 64, 32], &[(5, 4), (130, 129)]),
    case([4, 4, 3, 100, 80, 80], &[(130, 127), (300, 297), (7, 4)]),
    case([8, 1, 2, 256, 128, 64], &[(700, 698), (256, 254)]),
    case([3, 3, 1, 7, 40, 24], &[(19, 18)]),
    case([2, 1, 17, 5, 64, 64], &[(33, 16), (17, 0), (3, 0), (4, -13), (0, -17)]),
    case([6, 3, 70, 16, 32, 48], &[(200, 130), (75, 60), (40, -30)]),
    case([3, 1, 19, 3, 18, 7], &[(6, 0), (40, 21)]),
    case([1, 1, 1, 1, 1, 1], &[(1, 0)]),
];

/// A pool with every number that must not be read a NaN; rows share their first page where they can.
struct Pool<E> {
    keys: Vec<E>,
    values: Vec<E>,
    pages: usize,
    tables: Vec<i32>,
    lengths: Vec<i32>,
    offsets: Vec<i32>,
}

impl<E: Lane> Pool<E> {
    fn new(random: &mut Random, case: &Case) -> Self {
        let &Case { hkv, page, dk, dv, rows, .. } = case;
        let columns = rows.iter().map(|(keys, _)| keys.div_ceil(page)).max().unwrap_or(0) + 1;
        let pages = rows.len() * columns + 2;
        let nan = |n: usize| vec![E::from_f32(f32::NAN); n];
        let (mut keys, mut values) = (nan(pages * hkv * page * dk), nan(pages * hkv * page * dv));
        let mut tables = vec![-1; rows.len() * columns];
        // Pages in no order: 5 has no divisor in common with what they count to, or the step is 1.
        let step = if pages.is_multiple_of(5) { 1 } else { 5 };
        let mut next = 3 % pages;
        for (row, &(length, _)) in rows.iter().enumerate() {
            for i in 0..length.div_ceil(page) {
                let first_is_full = i == 0 && row > 0 && rows[0].0 >= page && length >= page;
                if first_is_full {
                    tables[row * columns] = tables[0];
                    continue;
                }
                tables[row * columns + i] = next as i32;
                for head in 0..hkv {
                    for slot in 0..page.min(length - i * page) {
                        let at = (next * hkv + head) * page + slot;
                        keys[at * dk..][..dk].copy_from_slice(&random.vec(dk, 2.0));
                        values[at * dv..][..dv].copy_from_slice(&random.vec(dv, 2.0));
                    }
                }
                next = (next + step) % pages;
            }
        }
        let lengths = rows.iter().map(|(length, _)| *length as i32).collect();
        let offsets = rows.iter().map(|(_, offset)| *offset).collect();
        Self { keys, values, pages, tables, lengths, offsets }
    }

    fn pages(&self, case: &Case) -> Pages<'_, E> {
        let view = |x, width| {
            let shape = [self.pages, case.hkv, case.page, width];
            Heads::contiguous("test", "x", x, shape, Layout::HeadsFirst).unwrap()
        };
        Pages::Dense(view(&self.keys, case.dk), view(&self.values, case.dv))
    }

    fn tables(&self) -> Tables<'_> {
        Tables { tables: &self.tables, lengths: &self.lengths, offsets: &self.offsets }
    }

    /// A position's place in the pool, in rows of a head.
    fn place(&self, case: &Case, row: usize, head: usize, position: usize) -> usize {
        let columns = self.tables.len() / case.rows.len();
        let id = self.tables[row * columns + position / case.page] as usize;
        (id * case.hkv + head) * case.page + position % case.page
    }
}

fn wide<E: Lane>(x: &[E]) -> Vec<f64> {
    crate::host::testing::wide(x)
}

/// What the contract says in float64, and the scale of each value's rounding error.
fn reference<E: Lane>(
    case: &Case,
    q: &Heads<'_, E>,
    pool: &Pool<E>,
    options: Options,
    layout: Layout,
) -> (Vec<f64>, Vec<f64>) {
    let &Case { hq, hkv, l, dk, dv, rows, .. } = case;
    let strides = layout.strides([rows.len(), hq, l, dv]);
    let mut out = vec![0.0; rows.len() * hq * l * dv];
    let mut scale = out.clone();
    for (row, &(length, offset)) in rows.iter().enumerate() {
        for (head, query) in (0..hq).flat_map(|h| (0..l).map(move |i| (h, i))) {
            let sees = (offset + query as i32 + 1).clamp(0, length as i32) as usize;
            let place = |position| pool.place(case, row, head / (hq / hkv), position);
            let factor = f64::from(options.scale);
            let mut size = 0.0_f64;
            let scores: Vec<f64> = (0..sees)
                .map(|position| {
                    let key = wide(&pool.keys[place(position) * dk..][..dk]);
                    let terms = wide(q.row(row, head, query)).into_iter().zip(key).map(|(a, b)| a * b);
                    size = size.max(terms.clone().map(f64::abs).sum::<f64>() * factor);
                    let score = terms.sum::<f64>() * factor;
                    options.softcap.map(f64::from).map_or(score, |cap| (score / cap).tanh() * cap)
                })
                .collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|x| (x - top).exp()).sum();
            let at = row * strides[0] + head * strides[1] + query * strides[2];
            for (position, score) in scores.iter().enumerate() {
                let weight = (score - top).exp() / total;
                for (d, value) in wide(&pool.values[place(position) * dv..][..dv]).into_iter().enumerate() {
                    out[at + d] += weight * value;
                    scale[at + d] += weight * value.abs();
                }
            }
            // In float32 the scores carry rounding errors of their own, which the exponential passes on.
            let conditioning = if E::DTYPE == strata_contracts::Dtype::Float32 { 1.0 + size } else { 1.0 };
            scale[at..at + dv].iter_mut().for_each(|x| *x *= conditioning);
        }
    }
    (out, scale)
}

fn check<E: Lane>(case: &Case, softcap: Option<f32>, layout: Layout) {
    let &Case { hq, l, dk, dv, rows, page, .. } = case;
    let mut random = Random::new((l * 1000 + page) as u64);
    let q: Vec<E> = random.vec(rows.len() * hq * l * dk, 2.0);
    let pool = Pool::<E>::new(&mut random, case);
    let q = Heads::contiguous("test", "q", &q, [rows.len(), hq, l, dk], Layout::PositionsFirst).unwrap();
    let options = Options { scale: 1.0 / (dk as f32).sqrt(), softcap };
    let (expected, scale) = reference(case, &q, &pool, options, layout);
    for level in Level::available() {
        let attend = || {
            let mut out = vec![E::from_f32(f32::NAN); expected.len()];
            paged_attention(level, q, pool.pages(case), pool.tables(), options, layout, &mut out).unwrap();
            out
        };
        let out = attend();
        let what = format!("{l} queries, pages of {page}, {dk} {dv} {softcap:?} {level:?} {}", E::DTYPE);
        close(&what, &out, &expected, |i| 2.0 * ulp::<E>() * scale[i]);
        let bits = |x: &[E]| x.iter().map(|x| x.to_f32().to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&attend()), bits(&out), "{what}: not the same twice");
        assert_eq!(out.len(), rows.len() * hq * l * dv);
    }
}

#[test]
fn pages_equal_the_reference_in_every_type() {
    for case in &CASES {
        check::<f32>(case, None, Layout::HeadsFirst);
        check::<f16>(case, None, Layout::PositionsFirst);
        check::<bf16>(case, None, Layout::PositionsFirst);
        check::<f32>(case, Some(2.0), Layout::PositionsFirst);
        check::<f16>(case, Some(3.0), Layout::HeadsFirst);
    }
}

#[test]
fn nan_and_infinity_reach_the_rows_that_see_them_and_no_other() {
    let case = case([1, 1, 1, 4, 16, 16], &[(9, 8), (9, 8), (6, 5)]);
    let mut random = Random::new(3);
    let q: Vec<f32> = random.vec(3 * 16, 1.0);
    let q = Heads::contiguous("test", "q", &q, [3, 1, 1, 16], Layout::HeadsFirst).unwrap();
    let mut pool = Pool::<f32>::new(&mut random, &case);
    let at = pool.place(&case, 0, 0, 7) * 16;
    pool.keys[at + 5] = f32::NAN;
    let at = pool.place(&case, 1, 0, 8) * 16;
    pool.values[at + 2] = f32::INFINITY;
    for level in Level::available() {
        let mut out = vec![0.0; 3 * 16];
        let options = Options { scale: 1.0, softcap: None };
        let pages = pool.pages(&case);
        paged_attention(level, q, pages, pool.tables(), options, Layout::HeadsFirst, &mut out).unwrap();
        assert!(out[..16].iter().all(|x| x.is_nan()), "{level:?}");
        assert!(out[18] == f32::INFINITY && out[16].is_finite(), "{level:?}");
        assert!(out[32..].iter().all(|x| x.is_finite()), "{level:?}");
    }
}

#[test]
fn tables_that_do_not_fit_are_refused_by_name() {
    let data = vec![0.0_f32; 4 * 2 * 3 * 8];
    let view = |shape| Heads::contiguous("test", "x", &data, shape, Layout::HeadsFirst).unwrap();
    let pages = Pages::Dense(view([4, 2, 3, 8]), view([4, 2, 3, 8]));
    let run = |pages, tables: &[i32], lengths: &[i32], offsets: &[i32]| {
        let tables = Tables { tables, lengths, offsets };
        let options = Options { scale: 1.0, softcap: None };
        let q = view([2, 2, 1, 8]);
        paged_attention(Level::best(), q, pages, tables, options, Layout::HeadsFirst, &mut [0.0; 32])
            .map_err(|e| e.to_string())
    };
    let refused = |tables: &[i32], lengths: &[i32], offsets: &[i32], why: &str| {
        assert_eq!(run(pages, tables, lengths, offsets).unwrap_err(), format!("[paged_attention] {why}"));
    };
    run(pages, &[3, 0, 1, -7], &[6, 3], &[5, 2]).unwrap();
    refused(&[3, 4, 1, 0], &[6, 3], &[5, 2], "tables needs pages below 4 in row 0 but has 4");
    refused(&[3, 0, -1, 0], &[6, 3], &[5, 2], "tables needs pages below 4 in row 1 but has -1");
    refused(&[3, 0, 1], &[6, 3], &[5, 2], "tables needs 2 rows of equal length but has 3");
    refused(&[3, 0, 1, 2], &[6, 7], &[5, 2], "lengths needs 0 to 6 positions in row 1 but has 7");
    refused(&[3, 0, 1, 2], &[-1, 6], &[5, 2], "lengths needs 0 to 6 positions in row 0 but has -1");
    refused(&[3, 0, 1, 2], &[6], &[5, 2], "lengths needs 2 elements but has 1");
    refused(&[3, 0, 1, 2], &[6, 6], &[5], "offsets needs 2 elements but has 1");
    let other = Pages::Dense(view([4, 2, 3, 8]), view([4, 2, 2, 8]));
    let error = run(other, &[3, 0, 1, 2], &[6, 6], &[5, 5]).unwrap_err();
    assert_eq!(error, "[paged_attention] v needs shape [4, 2, 3, _] but has [4, 2, 2, 8]");
}
