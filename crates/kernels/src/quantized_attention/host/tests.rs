//! Quantized storage gives what the same values give when they are dequantized first.

use super::*;
use crate::attention::Span;
use crate::attention::host::attention;
use crate::host::testing::{Random, close, ulp, wide};
use half::{bf16, f16};

/// Random numbers with scales and biases, packed, in buffers with room for more positions; and their values in float32.
struct Cache<E> {
    words: Vec<u32>,
    scales: Vec<E>,
    biases: Vec<E>,
    values: Vec<f32>,
    shape: [usize; 4],
    room: usize,
    bits: u32,
    group: usize,
}

impl<E: Lane> Cache<E> {
    fn new(random: &mut Random, shape: [usize; 4], bits: u32, group: usize) -> Self {
        let [b, h, s, d] = shape;
        let room = s + 3;
        let rows = b * h * room;
        let scales: Vec<E> = random.vec(rows * d / group, 2.0 / (1 << bits) as f32);
        let biases: Vec<E> = random.vec(rows * d / group, 1.0);
        let mut words = vec![0_u32; rows * d / 32 * bits as usize];
        let mut values = vec![0.0; rows * d];
        for (i, value) in values.iter_mut().enumerate() {
            let number = (random.bits() >> 40) as u32 & ((1 << bits) - 1);
            let (row, at) = (i / d, i % d * bits as usize);
            let word = &mut words[row * (d / 32 * bits as usize)..][..d / 32 * bits as usize];
            word[at / 32] |= number << (at % 32);
            if at % 32 + bits as usize > 32 {
                word[at / 32 + 1] |= number >> (32 - at % 32);
            }
            *value = number as f32 * scales[i / group].to_f32() + biases[i / group].to_f32();
        }
        Self { words, scales, biases, values, shape, room, bits, group }
    }

    fn view(&self) -> Quantized<'_, E> {
        let [_, h, _, d] = self.shape;
        let strides = |width: usize| [h * self.room * width, self.room * width, width];
        let (words, groups) = (d / 32 * self.bits as usize, d / self.group);
        let data = (&self.words[..], &self.scales[..], &self.biases[..]);
        let strides = [strides(words), strides(groups), strides(groups)];
        Quantized::new(data, self.shape, strides, self.bits, self.group).unwrap()
    }

    fn dense(&self) -> Heads<'_, f32> {
        let [_, h, _, d] = self.shape;
        Heads::new("test", "x", &self.values, self.shape, [h * self.room * d, self.room * d, d]).unwrap()
    }
}

fn check<E: Lane>(l: usize, (k_bits, k_group): (u32, usize), (v_bits, v_group): (u32, usize)) {
    let (b, hq, hkv, s, dk, dv) = (2, 6, 2, 131, 128, 256);
    let mut random = Random::new(u64::from(k_bits * 10 + v_bits));
    let q: Vec<E> = random.vec(b * hq * l * dk, 1.0);
    let k = Cache::<E>::new(&mut random, [b, hkv, s, dk], k_bits, k_group);
    let v = Cache::<E>::new(&mut random, [b, hkv, s, dv], v_bits, v_group);
    let q32: Vec<f32> = q.iter().map(|x| x.to_f32()).collect();
    let q = Heads::contiguous("test", "q", &q, [b, hq, l, dk], Layout::HeadsFirst).unwrap();
    let q32 = Heads::contiguous("test", "q", &q32, [b, hq, l, dk], Layout::HeadsFirst).unwrap();
    let sinks = [E::from_f32(0.5); 6];
    for level in Level::available() {
        for (span, softcap, sinks) in
            [(Span::Causal, None, None), (Span::Window(50), Some(3.0), Some(&sinks[..]))]
        {
            let mut options = Options::new(0.1, span);
            (options.softcap, options.sinks) = (softcap, sinks);
            let mut out = vec![E::default(); b * hq * l * dv];
            quantized_attention(level, q, k.view(), v.view(), &options, Layout::PositionsFirst, &mut out)
                .unwrap();
            let sinks = sinks.map(|sinks| sinks.iter().map(|x| x.to_f32()).collect::<Vec<_>>());
            let mut options = Options::new(0.1, span);
            (options.softcap, options.sinks) = (softcap, sinks.as_deref());
            let mut expected = vec![0.0_f32; out.len()];
            attention(level, q32, k.dense(), v.dense(), &options, Layout::PositionsFirst, &mut expected)
                .unwrap();
            let what = format!("{level:?} {} {l} {k_bits}/{k_group} {v_bits}/{v_group}", E::DTYPE);
            close(&what, &out, &wide(&expected), |i| 2.0 * ulp::<E>() * f64::from(expected[i].abs() + 2.0));
        }
    }
}

#[test]
fn every_width_and_group_equals_its_dequantized_values() {
    // Decode (few rows), and prefill (many).
    for l in [1, 40] {
        for bits in [2, 3, 4, 5, 6, 8] {
            check::<f32>(l, (bits, 32), (bits, 64));
        }
        check::<f16>(l, (4, 64), (4, 128));
        check::<bf16>(l, (8, 128), (4, 32));
    }
}

#[test]
fn storage_that_does_not_fit_is_refused() {
    let (words, scales) = ([0_u32; 64], [0.0_f32; 16]);
    let new = |shape, bits, group, words: &[u32]| {
        let strides = [[16, 8, 8], [2, 2, 2], [2, 2, 2]];
        Quantized::new((words, &scales, &scales), shape, strides, bits, group).unwrap_err().to_string()
    };
    assert_eq!(new([1, 1, 2, 64], 7, 32, &words), "[quantized_attention] no form for 7 bits in groups of 32");
    assert_eq!(new([1, 1, 2, 64], 4, 16, &words), "[quantized_attention] no form for 4 bits in groups of 16");
    assert_eq!(
        new([1, 1, 2, 96], 4, 64, &words),
        "[quantized_attention] a row needs whole groups of 64 values but has 96"
    );
    assert_eq!(
        new([1, 1, 2, 64], 4, 32, &words[..15]),
        "[quantized_attention] words needs data for shape [1, 1, 2, 8] at strides [16, 8, 8] but has 15 elements"
    );
    assert!(new([1, 1, 9, 64], 4, 32, &words).contains("words needs"));
    assert!(new([9, 1, 1, 64], 4, 32, &[0; 200]).contains("scales needs"));
}
