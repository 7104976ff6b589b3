//! Linear layers: `y = x Wᵀ + b`, the weight plain or quantized, alone or with what surrounds them.
//!
//! In fast mode on a CPU a group of layers with its norm, its gate or its residual is one node (strata-kernels,
//! `linear`); everywhere else it is the plain composition in mlx-lm's order.

use super::activation::Gate;
use super::norm::RmsNorm;
use crate::error::Result;
use crate::weights::{Matrix, Source};
use strata_contracts::QuantScheme;
use strata_kernels::gated_activation::gated_activation;
use strata_kernels::linear::{self as host, Arithmetic, Finish, Input, Packed};
use strata_tensor::Array;
use strata_tensor::ops::{self, Quantized};

/// A linear layer `[…, K] -> […, N]`.
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Array>,
}

/// A matrix, or a stack of them, in the form that products read.
pub(crate) enum Weight {
    /// `[…, K, N]`: a transposed view of what the file holds.
    Dense(Array),
    /// Packed rows `[…, N, K]`.
    Quantized(Quantized),
    /// `[…, N, K]` for the host kernel.
    HostDense(Array),
    /// Panels of `[…, N, K]` for the host kernel.
    HostPacked(Packed),
}

impl Linear {
    /// Takes `PATH.weight` and, if `bias`, `PATH.bias`.
    pub(crate) fn load(
        source: &Source<'_>,
        path: &str,
        outputs: i32,
        inputs: i32,
        bias: bool,
    ) -> Result<Self> {
        let bias = bias.then(|| source.tensor(&format!("{path}.bias"), &[outputs])).transpose()?;
        Self::of(source, source.matrix(path, outputs, inputs)?, bias)
    }

    /// Takes `PATH.weight`, which is several matrices one below the other, as layers of so many outputs each.
    pub(crate) fn load_parts<const N: usize>(
        source: &Source<'_>,
        path: &str,
        outputs: [i32; N],
        inputs: i32,
    ) -> Result<[Self; N]> {
        let matrix = source.matrix(path, outputs.iter().sum(), inputs)?;
        let (mut parts, mut start) = (Vec::with_capacity(N), 0);
        for outputs in outputs {
            let part = matrix.rows(start, start + outputs)?;
            parts.push(Self::of(source, part, None)?);
            start += outputs;
        }
        let mut parts = parts.into_iter();
        Ok(std::array::from_fn(|_| parts.next().expect("one layer a part")))
    }

    fn of(source: &Source<'_>, matrix: Matrix, bias: Option<Array>) -> Result<Self> {
        let host = source.host_kernels() && matrix.has_host_form();
        Ok(Self { weight: Weight::of(source, matrix, host)?, bias })
    }

    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        if let Some(kernel) = self.host() {
            return finished(x, kernel, Finish::Store);
        }
        Ok(match (&self.weight, &self.bias) {
            (Weight::Quantized(q), None) => ops::quantized_matmul(x, q, true)?,
            (Weight::Quantized(q), Some(bias)) => ops::quantized_matmul(x, q, true)?.add(bias)?,
            (Weight::Dense(w), None) => x.matmul(w)?,
            (Weight::Dense(w), Some(bias)) => ops::addmm(bias, x, w, 1.0, 1.0)?,
            (Weight::HostDense(_) | Weight::HostPacked(_), _) => unreachable!("has a host form"),
        })
    }

    /// `residual + forward(x)`.
    pub(crate) fn forward_onto(&self, residual: &Array, x: &Array) -> Result<Array> {
        match self.host() {
            Some(kernel) => finished(x, kernel, Finish::Add(residual)),
            None => Ok(residual.add(&self.forward(x)?)?),
        }
    }

    /// `cap · tanh(forward(x) / cap)`.
    pub(crate) fn forward_soft_capped(&self, x: &Array, cap: f32) -> Result<Array> {
        if let Some(kernel) = self.host() {
            return finished(x, kernel, Finish::SoftCap(cap));
        }
        let y = self.forward(x)?;
        Ok(y.divide(&y.number(cap)?)?.tanh()?.multiply_number(cap)?)
    }

    /// The host kernel's operands, in fast mode on a CPU.
    fn host(&self) -> Option<host::Linear<'_>> {
        Some(host::Linear { bias: self.bias.as_ref(), ..self.weight.host()? })
    }

    pub(crate) fn weight(&self) -> &Weight {
        &self.weight
    }

    pub(crate) fn weights(&self) -> impl Iterator<Item = &Array> {
        self.weight.arrays().chain(&self.bias)
    }
}

impl Weight {
    /// The form of a matrix or stack; `host` of one that host kernels are to read, and can.
    pub(crate) fn of(source: &Source<'_>, matrix: Matrix, host: bool) -> Result<Self> {
        Ok(match matrix {
            Matrix::Dense(w) if host => Self::HostDense(w),
            Matrix::Dense(w) => Self::Dense(w.swapaxes(-1, -2)?),
            Matrix::Quantized(q) if host => Self::HostPacked(q.packed()?),
            Matrix::Quantized(q) => Self::Quantized(q.arrays(source.activations())?),
        })
    }

    /// The host kernel's operand, without a bias, in fast mode on a CPU.
    pub(crate) fn host(&self) -> Option<host::Linear<'_>> {
        let weight = match self {
            Self::HostDense(w) => host::Weight::Plain(w),
            Self::HostPacked(w) => host::Weight::Packed(w),
            Self::Dense(_) | Self::Quantized(_) => return None,
        };
        Some(host::Linear { weight, bias: None })
    }

    pub(crate) fn scheme(&self) -> Option<QuantScheme> {
        match self {
            Self::Quantized(q) => Some(q.scheme),
            Self::HostPacked(w) => Some(w.scheme),
            Self::Dense(_) | Self::HostDense(_) => None,
        }
    }

    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let parts = match self {
            Self::Dense(w) | Self::HostDense(w) => [Some(w), None, None],
            Self::Quantized(q) => [Some(&q.weight), Some(&q.scales), q.biases.as_ref()],
            Self::HostPacked(w) => [Some(&w.words), Some(&w.scales), w.biases.as_ref()],
        };
        parts.into_iter().flatten()
    }
}

/// One layer and what happens to its product, by the host kernel.
fn finished(x: &Array, kernel: host::Linear<'_>, finish: Finish<'_>) -> Result<Array> {
    Ok(host::linear(Input::new(x), &[kernel], finish, Arithmetic::Integer)?.swap_remove(0))
}

/// Several layers of the same normed input: `linear_i(norm(x))`.
pub(crate) fn forward_normed<const N: usize>(
    linears: [&Linear; N],
    norm: &RmsNorm,
    x: &Array,
) -> Result<[Array; N]> {
    let kernels: Option<Vec<_>> = linears.iter().map(|l| l.host()).collect();
    if let Some(kernels) = kernels {
        let input = Input { norm: Some(norm.host()), ..Input::new(x) };
        let outputs = host::linear(input, &kernels, Finish::Store, Arithmetic::Integer)?;
        let mut outputs = outputs.into_iter();
        return Ok(std::array::from_fn(|_| outputs.next().expect("one output a layer")));
    }
    let x = norm.forward(x)?;
    let mut out = Vec::with_capacity(N);
    for linear in linears {
        out.push(linear.forward(&x)?);
    }
    let mut out = out.into_iter();
    Ok(std::array::from_fn(|_| out.next().expect("one output a layer")))
}

/// The gated product of two layers of the same normed input: `act(gate(norm(x))) · up(norm(x))`.
pub(crate) fn forward_gated(
    gate_proj: &Linear,
    up_proj: &Linear,
    gate: &Gate,
    norm: &RmsNorm,
    x: &Array,
) -> Result<Array> {
    let host = gate_proj.host().zip(up_proj.host());
    if let Some((first, second)) = host
        && gate_proj.weight.scheme() == up_proj.weight.scheme()
    {
        let input = Input { norm: Some(norm.host()), ..Input::new(x) };
        let finish = Finish::Gate(gate.activation());
        return Ok(host::linear(input, &[first, second], finish, Arithmetic::Integer)?.swap_remove(0));
    }
    let [gated, up] = forward_normed([gate_proj, up_proj], norm, x)?;
    if host.is_some() {
        return Ok(gated_activation(gate.activation(), &gated, &up)?);
    }
    gate.forward(&gated, &up)
}
