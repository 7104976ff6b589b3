//! Working memory that outlives a call: each thread keeps its buffers and grows them to the largest request.
//!
//! A kernel borrows a buffer for the length of a closure; nested borrows get buffers of their own. The content at entry is
//! whatever the last user left.

use std::cell::RefCell;

thread_local! {
    static BYTES: RefCell<Vec<Vec<Block>>> = const { RefCell::new(Vec::new()) };
}

/// One cache line; buffers start and end on line borders.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Block([f32; 16]);

/// Runs `body` with `length` floats of scratch, aligned to 64 bytes, content unspecified.
pub fn with_f32<R>(length: usize, body: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = BYTES.with_borrow_mut(Vec::pop).unwrap_or_default();
    let blocks = length.div_ceil(16);
    if buffer.len() < blocks {
        buffer.resize(blocks, Block([0.0; 16]));
    }
    let result = body(&mut floats(&mut buffer)[..length]);
    BYTES.with_borrow_mut(|buffers| buffers.push(buffer));
    result
}

#[allow(unsafe_code)]
fn floats(blocks: &mut [Block]) -> &mut [f32] {
    // SAFETY: a block is 16 floats, `repr(C)`, without padding.
    unsafe { std::slice::from_raw_parts_mut(blocks.as_mut_ptr().cast(), blocks.len() * 16) }
}

/// Runs `body` with `length` signed bytes of scratch, aligned to 64 bytes, content unspecified.
#[allow(unsafe_code)]
pub fn with_i8<R>(length: usize, body: impl FnOnce(&mut [i8]) -> R) -> R {
    with_f32(length.div_ceil(4), |floats| {
        // SAFETY: any bytes are valid `i8`, and the floats span at least `length` of them.
        body(unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), length) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_buffers_are_distinct_and_aligned() {
        with_f32(100, |outer| {
            outer.fill(1.0);
            with_i8(1000, |inner| {
                assert_eq!((inner.len(), inner.as_ptr() as usize % 64), (1000, 0));
                inner.fill(7);
            });
            assert!(outer.len() == 100 && outer.iter().all(|x| x.to_bits() == 1.0_f32.to_bits()));
        });
    }
}
