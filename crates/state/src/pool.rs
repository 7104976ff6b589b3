//! Pages of keys and values in common arrays, the tables through which rows find theirs, and what a read takes of them. A
//! page is free again when no table has it; what rows mean by their pages is the cache's business ([`crate::paged`]).
//!
//! Sequences that share a pool fail alone. Whoever comes to write or read has what was written before computed first,
//! unless it is on its way; what cannot be computed is noted for its writer.

use crate::error::{Error, Result};
use crate::planes::Planes;
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use strata_kernels::paged_attention::Tables;
use strata_tensor::{Array, Dtype, eval, ops};

/// Why a write could not be computed, once it is known.
pub(crate) type Written = Rc<OnceCell<strata_tensor::Error>>;

/// All pages, `[P, Hkv, page, *]` a plane.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) page: usize,
    planes: RefCell<Option<Planes>>,
    free: Rc<RefCell<Vec<usize>>>,
    /// The newest write.
    newest: RefCell<Written>,
}

impl Pool {
    /// No pages yet, of `page` positions.
    pub(crate) fn new(page: usize) -> Self {
        Self { page, planes: RefCell::default(), free: Rc::default(), newest: RefCell::default() }
    }

    /// Has what was written so far computed, unless it is on its way, as after every pass whose evaluation has been asked
    /// for.
    pub(crate) fn settle(&self) -> Result<()> {
        let settled = self.planes.borrow().as_ref().map(Planes::settled).transpose()?;
        let Some((planes, failed)) = settled else { return Ok(()) };
        if let Some(error) = failed {
            // The first reason is as good as a later one.
            let _ = self.newest.borrow().set(error);
        }
        *self.planes.borrow_mut() = Some(planes);
        Ok(())
    }

    /// Begins a write, settled before: pages, copies and positions until the next one.
    pub(crate) fn begin_write(&self) -> Written {
        let written = Written::default();
        self.newest.replace(written.clone());
        written
    }

    /// A free page; the pool grows by half when there is none. What it has grown by is never taken back.
    pub(crate) fn page(&self, like: &Planes) -> Result<Rc<Page>> {
        if self.free.borrow().is_empty() {
            let mut planes = self.planes.borrow_mut();
            let held = planes.as_ref().map_or(0, Planes::rows);
            let more = like.blank((held / 2).max(8), self.page)?;
            let count = more.rows();
            let grown = match &*planes {
                Some(old) => Planes::stack(&[old, &more])?,
                None => more,
            };
            eval(grown.arrays())?;
            *planes = Some(grown);
            self.free.borrow_mut().extend((held..held + count).rev());
        }
        let id = self.free.borrow_mut().pop().ok_or(Error::NoRows)?;
        Ok(Rc::new(Page { id, free: self.free.clone() }))
    }

    /// Writes positions `[N, Hkv, *]` a plane at these pages and slots.
    pub(crate) fn write(&self, new: &[Array], places: &[(usize, usize)]) -> Result<()> {
        let index = |of: fn(&(usize, usize)) -> usize| {
            let of: Vec<i32> = places.iter().map(|place| of(place) as i32).collect();
            Array::from_slice(&of, [of.len() as i32])
        };
        let (pages, slots) = (index(|p| p.0)?, index(|p| p.1)?);
        let mut planes = self.planes.borrow_mut();
        let Some(old) = &*planes else { return Ok(()) };
        let written = old.arrays().iter().zip(new).map(|(plane, new)| {
            let updates = new.expand_dims(&[1, 3])?; // [N, 1, Hkv, 1, *]
            ops::scatter(plane, &[&pages, &slots], &updates, &[0, 2])
        });
        let written = Planes::new(written.collect::<strata_tensor::Result<_>>()?);
        *planes = Some(written);
        Ok(())
    }

    /// Copies a page's content into another.
    pub(crate) fn copy(&self, from: usize, to: usize) -> Result<()> {
        let mut planes = self.planes.borrow_mut();
        let Some(old) = &*planes else { return Ok(()) };
        let to = Array::from_slice(&[to as i32], [1])?;
        let content = old.take_rows(&[from])?;
        let written = old.arrays().iter().zip(content.arrays()).map(|(plane, content)| {
            ops::scatter(plane, &[&to], &content.expand_dims(&[0])?, &[0]) // [1, 1, Hkv, page, *]
        });
        let written = Planes::new(written.collect::<strata_tensor::Result<_>>()?);
        *planes = Some(written);
        Ok(())
    }

    /// Small arrays that cannot be computed before the newest content is, and hold no memory of it.
    pub(crate) fn tokens(&self) -> Result<Vec<Array>> {
        let planes = self.planes.borrow();
        let first = Array::from_slice(&[0], [1])?;
        let tokens =
            planes.iter().flat_map(Planes::arrays).map(|plane| plane.gather(&[&first], &[0], &[1, 1, 1, 1]));
        Ok(tokens.collect::<strata_tensor::Result<_>>()?)
    }

    /// Bytes of one page.
    pub(crate) fn page_bytes(&self) -> usize {
        let planes = self.planes.borrow();
        let Some(planes) = &*planes else { return 0 };
        planes.arrays().iter().map(Array::nbytes).sum::<usize>() / planes.rows().max(1)
    }

    /// What tables hold for queries from `offsets` on; `None` when that is nothing.
    pub(crate) fn read(&self, tables: &[Table], offsets: Vec<i32>) -> Option<PagedRead> {
        let columns = tables.iter().map(|table| table.pages.len()).max().unwrap_or(0);
        let pool = self.planes.borrow().clone().filter(|_| columns > 0)?;
        let id = |table: &Table, i: usize| table.pages.get(i).map_or(0, |page| page.id as i32);
        Some(PagedRead {
            pool,
            page: self.page,
            tables: tables.iter().flat_map(|table| (0..columns).map(|i| id(table, i))).collect(),
            lengths: tables.iter().map(|table| table.length as i32).collect(),
            offsets,
        })
    }
}

/// One row's pages, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub(crate) pages: Vec<Rc<Page>>,
    pub(crate) length: usize,
}

/// A page in use. Dropping the last reference frees it.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) id: usize,
    free: Rc<RefCell<Vec<usize>>>,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.free.borrow_mut().push(self.id);
    }
}

/// What rows hold at one moment, where it lies in the pool.
#[derive(Debug, Clone)]
pub(crate) struct PagedRead {
    /// All pages, `[P, Hkv, page, *]` a plane.
    pub(crate) pool: Planes,
    page: usize,
    /// Pages in order, `columns` a row; 0 where a row has no more.
    tables: Vec<i32>,
    lengths: Vec<i32>,
    /// Where each row's first query stands; below zero for padding.
    offsets: Vec<i32>,
}

impl PagedRead {
    /// Positions of the longest row.
    pub(crate) fn len(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0) as usize
    }

    /// As the paged kernel takes them.
    pub(crate) fn tables(&self) -> Result<Tables> {
        let rows = self.lengths.len() as i32;
        let columns = self.tables.len() as i32 / rows;
        Ok(Tables {
            tables: Array::from_slice(&self.tables, [rows, columns])?,
            lengths: Array::from_slice(&self.lengths, [rows])?,
            offsets: Array::from_slice(&self.offsets, [rows])?,
        })
    }

    /// Every row's positions in order, `[B, Hkv, length, *]`; zeros where a shorter row has none.
    pub(crate) fn gathered(&self) -> Result<Planes> {
        let ids: Vec<usize> = self.tables.iter().map(|&id| id as usize).collect();
        let pages = self.pool.take_rows(&ids)?; // [B · columns, Hkv, page, *]
        let (rows, page, length) = (self.lengths.len() as i32, self.page as i32, self.len());
        let columns = ids.len() as i32 / rows;
        let read = pages.map(|plane| {
            let (heads, width) = (plane.dim(1), plane.dim(3));
            let ordered = plane.reshape([rows, columns, heads, page, width])?.swapaxes(1, 2)?;
            ordered.reshape([rows, heads, columns * page, width])
        })?;
        let read = read.slice(0, length)?;
        if self.lengths.iter().all(|&n| n as usize == length) {
            return Ok(read);
        }
        // What else is in a page is another sequence's: hidden by a mask, an infinity would still make a sum NaN.
        let lengths = Array::from_slice(&self.lengths, [rows, 1, 1, 1])?;
        let places = ops::arange(0.0, length as f64, 1.0, Dtype::Int32)?.reshape([1, 1, length as i32, 1])?;
        let held = places.less(&lengths)?;
        read.map(|plane| ops::where_(&held, plane, &plane.number(0.0)?))
    }
}
