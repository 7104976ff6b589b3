//! Keys and values in pages of a common pool, found through a table a row. Sequences that began alike share pages until one
//! of them writes, so a prefix is stored once, rows join and leave without being copied, and giving up positions only
//! shortens a table. Rows begin at the first slot of their first page: there is no padding.
//!
//! Caches made by cloning one another share a pool. Fast kernels read pages where they lie; otherwise reading gathers a
//! row's pages in order, and a single row's reads are those of a plain cache, bit for bit.

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::form::Form;
use crate::layer::Side;
use crate::mask::{Seen, Span};
use crate::planes::Planes;
use crate::pool::{Pool, Table, Written};
use crate::read::AttentionRead;
use crate::rows::Rows;
use crate::snapshot::Saved;
use std::rc::Rc;
use strata_contracts::KernelSet;
use strata_tensor::{Array, eval};

/// Keys and values of every position so far, in pages.
#[derive(Debug, Clone)]
pub struct PagedCache {
    form: Form,
    pool: Rc<Pool>,
    /// One a row; none before the first append tells how many there are.
    tables: Vec<Table>,
    /// Where rows are in their padding; its storage counts do not matter here.
    rows: Option<Rows>,
    /// Small arrays that cannot be computed before the pool's newest content is: what there is to evaluate. They hold no
    /// memory of the pool, which thus stays free to be written in place.
    tokens: Vec<Array>,
    /// What became of the newest positions.
    written: Written,
}

impl PagedCache {
    /// An empty cache with pages of `page` positions, at least 1, in a pool of its own.
    pub fn new(kv_heads: u32, head_dim: u32, page: u32, kernels: KernelSet) -> Self {
        Self::of_form(Form::dense(kv_heads, head_dim, kernels), page)
    }

    pub(crate) fn of_form(form: Form, page: u32) -> Self {
        let page = page.max(1) as usize;
        let (pool, tables, tokens) = (Rc::new(Pool::new(page)), Vec::new(), Vec::new());
        Self { form, pool, tables, rows: None, tokens, written: Written::default() }
    }

    /// Stores the first real positions of each row.
    fn store(&mut self, new: &Planes, first: &[i32], end: &[i32]) -> Result<()> {
        let mut tables = self.tables.clone();
        // Cloned tables would count as sharers of every page.
        self.tables.clear();
        let stored = self.store_in(&mut tables, new, first, end);
        self.tables = tables;
        stored
    }

    fn store_in(&mut self, tables: &mut [Table], new: &Planes, first: &[i32], end: &[i32]) -> Result<()> {
        self.check()?;
        let written = self.pool.begin_write();
        let page = self.pool.page;
        let length = new.len();
        let (mut sources, mut places) = (Vec::new(), Vec::new());
        let mut grown: Vec<Table> = Vec::with_capacity(tables.len());
        for (row, table) in tables.iter().enumerate() {
            let mut after = table.clone();
            let count = (end[row] - first[row]).max(0) as usize;
            let partial = after.length / page;
            // The table itself and its copy here are two; more are sequences that share the page.
            if count > 0 && after.length % page > 0 && Rc::strong_count(&after.pages[partial]) > 2 {
                let own = self.pool.page(new)?;
                self.pool.copy(after.pages[partial].id, own.id)?;
                after.pages[partial] = own;
            }
            for i in 0..count {
                let at = after.length + i;
                if at / page == after.pages.len() {
                    after.pages.push(self.pool.page(new)?);
                }
                sources.push((row * length + first[row] as usize + i) as i32);
                places.push((after.pages[at / page].id, at % page));
            }
            after.length += count;
            grown.push(after);
        }
        if !places.is_empty() {
            let sources = Array::from_slice(&sources, [sources.len() as i32])?;
            let flat = new.map(|plane| {
                let (rows, heads, width) = (plane.dim(0), plane.dim(1), plane.dim(3));
                let flat = plane.swapaxes(1, 2)?.reshape([rows * length as i32, heads, width])?;
                flat.take(&sources, 0) // [N, Hkv, *]
            })?;
            self.pool.write(flat.arrays(), &places)?;
        }
        let tokens = self.pool.tokens()?;
        tables.iter_mut().zip(grown).for_each(|(table, after)| *table = after);
        (self.tokens, self.written) = (tokens, written);
        Ok(())
    }

    /// Everything held is computed, on its way, or yet to be.
    fn check(&self) -> Result<()> {
        self.pool.settle()?;
        self.written.get().map_or(Ok(()), |error| Err(error.clone().into()))
    }

    /// What there is to evaluate now.
    fn refresh(&mut self) -> Result<()> {
        self.tokens = self.pool.tokens()?;
        Ok(())
    }

    /// What `queries` new positions see, whose real ones are `first..end` of each row and have been stored.
    fn seen(&self, queries: usize, first: &[i32], end: &[i32]) -> Seen {
        let keys = self.longest();
        let even = self.tables.iter().all(|table| table.length == keys);
        let all_real = first.iter().all(|&n| n == 0) && end.iter().all(|&n| n as usize == queries);
        if even && all_real {
            return if queries == 1 { Seen::All } else { Seen::Causal };
        }
        let offsets = self.offsets(first, end);
        let places = offsets.iter().flat_map(|offset| (0..queries as i32).map(move |i| (offset + i).max(0)));
        Seen::Masked(Span { places: Some(places.collect()), ..Span::causal(queries, keys) })
    }

    /// Where each row's first query stands, after the real ones in `first..end` have been stored.
    fn offsets(&self, first: &[i32], end: &[i32]) -> Vec<i32> {
        let rows = self.tables.iter().zip(first.iter().zip(end));
        rows.map(|(table, (first, end))| table.length as i32 - (end - first).max(0) - first).collect()
    }

    /// Everything held, gathered.
    fn gathered(&self, tables: &[Table]) -> Result<Option<Planes>> {
        self.check()?;
        let read = self.pool.read(tables, vec![0; tables.len()]);
        read.map(|read| read.gathered()).transpose()
    }

    fn longest(&self) -> usize {
        self.tables.iter().map(|table| table.length).max().unwrap_or(0)
    }

    fn truncate(&mut self, lengths: &[usize]) {
        for (table, &length) in self.tables.iter_mut().zip(lengths) {
            table.length = length;
            table.pages.truncate(length.div_ceil(self.pool.page));
        }
    }

    fn own_rows(&self) -> Rows {
        self.rows.clone().unwrap_or_else(|| Rows::uniform(self.tables.len().max(1), self.longest()))
    }
}

impl Cache for PagedCache {
    fn append(&mut self, keys: &Array, values: &Array) -> Result<AttentionRead> {
        let known = if self.tables.is_empty() {
            self.rows.as_ref().map(Rows::count)
        } else {
            Some(self.tables.len())
        };
        let new = self.form.planes(keys, values, known)?;
        let length = new.len();
        if self.tables.is_empty() {
            self.tables = vec![Table::default(); new.rows()];
        }
        let all = || (vec![0; new.rows()], vec![length as i32; new.rows()]);
        let (first, end) = self.rows.as_ref().and_then(|rows| rows.real(length)).unwrap_or_else(all);
        self.store(&new, &first, &end)?;
        self.rows.iter_mut().for_each(|rows| rows.advance(length));
        let seen = self.seen(length, &first, &end);
        let Some(pages) = self.pool.read(&self.tables, self.offsets(&first, &end)) else {
            // Nothing real has been read yet: padding may look at itself.
            return Ok(self.form.read(new.slice(0, 1)?, 1, seen));
        };
        self.form.read_pages(pages, seen)
    }

    fn trim(&mut self, tokens: usize) -> Result<()> {
        let lengths: Vec<usize> = self.tables.iter().map(|table| table.length - tokens).collect();
        self.truncate(&lengths);
        self.rows.iter_mut().for_each(|rows| rows.retreat(tokens));
        Ok(())
    }

    fn trimmable(&self) -> usize {
        self.tables.iter().map(|table| table.length).min().unwrap_or(0)
    }

    fn live(&self) -> Result<Option<Planes>> {
        self.gathered(&self.tables)
    }

    fn form(&self) -> &Form {
        &self.form
    }

    fn lengths(&self) -> Vec<usize> {
        if self.tables.is_empty() {
            self.own_rows().lengths()
        } else {
            self.tables.iter().map(|t| t.length).collect()
        }
    }

    fn converted(&self) -> Result<Self> {
        Ok(self.clone())
    }

    /// Going back is shortening tables, so no page is held on to.
    fn begin(&mut self) -> Self {
        let lengths = self.tables.iter().map(|t| Table { pages: Vec::new(), length: t.length });
        Self { tables: lengths.collect(), ..self.clone() }
    }

    fn rollback(&mut self, before: Self) {
        if before.tables.is_empty() {
            self.tables.clear();
        }
        self.truncate(&before.lengths());
        (self.rows, self.written) = (before.rows, before.written);
        let _ = self.pool.settle();
        let _ = self.refresh();
    }

    fn accept(&mut self, _before: &Self) {}

    fn commit(&mut self, before: &Self, keep: &[usize]) -> Result<()> {
        let before_lengths =
            if before.tables.is_empty() { vec![0; self.tables.len()] } else { before.lengths() };
        let lengths = before_lengths.iter().enumerate().map(|(row, n)| n + keep[row.min(keep.len() - 1)]);
        self.truncate(&lengths.collect::<Vec<_>>());
        if let Some(mut rows) = before.rows.clone() {
            let most = keep.iter().copied().max().unwrap_or(0);
            rows.advance(most);
            rows.shift(&keep.iter().map(|&n| (most - n) as i32).collect::<Vec<_>>());
            self.rows = Some(rows);
        }
        Ok(())
    }

    fn arrays(&self) -> Vec<&Array> {
        self.tokens.iter().collect()
    }

    fn bytes(&self) -> usize {
        self.pool.page_bytes() * self.tables.iter().map(|table| table.pages.len()).sum::<usize>()
    }

    fn saved(&self) -> Result<Saved> {
        Ok(self.form.saved(self.live()?, self.longest(), self.longest()))
    }

    fn restored(&self, saved: Saved) -> Result<Self> {
        let (form, stored) = self.form.restored(&saved)?;
        if stored.as_ref().map_or(0, Planes::len) != saved.length {
            return Err(Error::Snapshot { reason: format!("it does not hold {} positions", saved.length) });
        }
        let mut restored = Self { form, tables: vec![Table::default()], ..self.clone() };
        if let Some(stored) = stored {
            restored.store(&stored, &[0], &[saved.length as i32])?;
            // Else writes would pile up in the pool if none but restored sequences used it, and they failed.
            eval(restored.arrays())?;
        }
        Ok(restored)
    }

    fn stack(caches: &[&Self]) -> Result<Self> {
        let mut after = Self { tables: Vec::new(), ..caches[0].clone() };
        let mut rows = Rows::uniform(0, 0);
        for cache in caches {
            cache.check()?;
            rows.extend(&cache.own_rows());
            let tables = if cache.tables.is_empty() {
                &vec![Table::default(); cache.own_rows().count()]
            } else {
                &cache.tables
            };
            if Rc::ptr_eq(&cache.pool, &after.pool) {
                after.tables.extend(tables.iter().cloned());
                continue;
            }
            for table in tables {
                let mut copied = Self { tables: vec![Table::default()], ..after.clone() };
                if let Some(live) = cache.gathered(std::slice::from_ref(table))? {
                    copied.store(&live, &[0], &[table.length as i32])?;
                }
                after.tables.append(&mut copied.tables);
                after.written = copied.written;
            }
        }
        after.rows = Some(rows);
        after.refresh()?;
        Ok(after)
    }

    fn select(&self, indices: &[usize]) -> Result<Self> {
        self.check()?;
        let rows = Some(self.own_rows().select(indices));
        let pick = |i: &usize| self.tables.get(*i).cloned().unwrap_or_default();
        Ok(Self { tables: indices.iter().map(pick).collect(), rows, ..self.clone() })
    }

    fn extract(&self, row: usize) -> Result<Self> {
        self.check()?;
        let table = self.tables.get(row).cloned().unwrap_or_default();
        Ok(Self { tables: vec![table], rows: None, ..self.clone() })
    }

    fn begin_padded(&mut self, lengths: &[usize], side: Side) -> Result<()> {
        let mut rows = self.own_rows();
        if self.rows.is_none() && self.longest() == 0 {
            rows = Rows::uniform(lengths.len(), 0);
            self.tables = vec![Table::default(); lengths.len()];
        }
        rows.pad(lengths, side);
        self.rows = Some(rows);
        Ok(())
    }

    fn end_padded(&mut self) -> Result<()> {
        if let Some(rows) = &mut self.rows {
            if let Some(shifts) = rows.overhang() {
                rows.shift(&shifts);
            }
            rows.close();
        }
        Ok(())
    }
}
