//! Elementwise operations.

use crate::error::Result;
use crate::raw::{self, Array};
use strata_contracts::Dtype;

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $f:ident;)*) => {
        /// Elementwise, of one array: the result has the operand's shape.
        impl Array {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// MLX's refusal of the operand's type.
            #[track_caller]
            pub fn $name(&self) -> Result<Self> {
                raw::$f(self)
            }
        )*}
    };
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $f:ident;)*) => {
        /// Elementwise, of two arrays: the result has the operands' common broadcast shape.
        impl Array {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// MLX's refusal of operands whose shapes do not broadcast or whose types do not fit.
            #[track_caller]
            pub fn $name(&self, other: &Self) -> Result<Self> {
                raw::$f(self, other)
            }
        )*}
    };
}

unary! {
    /// `|x|`.
    abs => mlx_abs;
    /// Smallest integer not below `x`.
    ceil => mlx_ceil;
    /// Cosine of radians.
    cos => mlx_cos;
    /// Error function.
    erf => mlx_erf;
    /// `e^x`.
    exp => mlx_exp;
    /// `e^x - 1`, exact near 0.
    expm1 => mlx_expm1;
    /// Largest integer not above `x`.
    floor => mlx_floor;
    /// bool: neither infinite nor NaN.
    isfinite => mlx_isfinite;
    /// bool: NaN.
    isnan => mlx_isnan;
    /// Natural logarithm.
    log => mlx_log;
    /// `ln(1 + x)`, exact near 0.
    log1p => mlx_log1p;
    /// bool: zero.
    logical_not => mlx_logical_not;
    /// `-x`.
    negative => mlx_negative;
    /// `1 / x`.
    reciprocal => mlx_reciprocal;
    /// `1 / sqrt(x)`.
    rsqrt => mlx_rsqrt;
    /// `1 / (1 + e^-x)`.
    sigmoid => mlx_sigmoid;
    /// -1, 0 or 1.
    sign => mlx_sign;
    /// Sine of radians.
    sin => mlx_sin;
    /// Square root.
    sqrt => mlx_sqrt;
    /// `x * x`.
    square => mlx_square;
    /// Hyperbolic tangent.
    tanh => mlx_tanh;
}

binary! {
    /// `a + b`.
    add => mlx_add;
    /// Bitwise and, of integers or bools.
    bitwise_and => mlx_bitwise_and;
    /// Bitwise or, of integers or bools.
    bitwise_or => mlx_bitwise_or;
    /// Bitwise exclusive or, of integers or bools.
    bitwise_xor => mlx_bitwise_xor;
    /// `a / b`, in floating point.
    divide => mlx_divide;
    /// bool: `a == b`.
    equal => mlx_equal;
    /// Quotient rounded down.
    floor_divide => mlx_floor_divide;
    /// bool: `a > b`.
    greater => mlx_greater;
    /// bool: `a >= b`.
    greater_equal => mlx_greater_equal;
    /// `a << b`, of integers.
    left_shift => mlx_left_shift;
    /// bool: `a < b`.
    less => mlx_less;
    /// bool: `a <= b`.
    less_equal => mlx_less_equal;
    /// `ln(e^a + e^b)`.
    logaddexp => mlx_logaddexp;
    /// bool: both nonzero.
    logical_and => mlx_logical_and;
    /// bool: one nonzero.
    logical_or => mlx_logical_or;
    /// The larger.
    maximum => mlx_maximum;
    /// The smaller.
    minimum => mlx_minimum;
    /// `a * b`.
    multiply => mlx_multiply;
    /// bool: `a != b`.
    not_equal => mlx_not_equal;
    /// `a` to the power of `b`.
    power => mlx_power;
    /// Remainder with the divisor's sign.
    remainder => mlx_remainder;
    /// `a >> b`, of integers.
    right_shift => mlx_right_shift;
    /// `a - b`.
    subtract => mlx_subtract;
}

/// Elementwise, with settings.
impl Array {
    /// `x + number`, in `x`'s type.
    ///
    /// # Errors
    /// MLX's refusal of the operand's type.
    #[track_caller]
    pub fn add_number(&self, number: f32) -> Result<Self> {
        self.add(&self.number(number)?)
    }

    /// `x * number`, in `x`'s type.
    ///
    /// # Errors
    /// MLX's refusal of the operand's type.
    #[track_caller]
    pub fn multiply_number(&self, number: f32) -> Result<Self> {
        self.multiply(&self.number(number)?)
    }

    /// Values below `min` become `min`, those above `max` become `max`; `None` leaves a side open.
    ///
    /// # Errors
    /// MLX's refusal when both are `None` or shapes do not broadcast.
    #[track_caller]
    pub fn clip(&self, min: Option<&Self>, max: Option<&Self>) -> Result<Self> {
        raw::mlx_clip(self, min, max)
    }

    /// Rounds to `decimals` places, halves to even.
    ///
    /// # Errors
    /// MLX's refusal of the operand's type.
    #[track_caller]
    pub fn round(&self, decimals: i32) -> Result<Self> {
        raw::mlx_round(self, decimals)
    }

    /// The same values in another type.
    ///
    /// # Errors
    /// MLX's refusal of the conversion.
    #[track_caller]
    pub fn astype(&self, dtype: Dtype) -> Result<Self> {
        astype(self, dtype)
    }

    /// The same memory read as another type; the last dimension changes when sizes differ.
    ///
    /// # Errors
    /// MLX's refusal when the last dimension does not divide.
    #[track_caller]
    pub fn view(&self, dtype: Dtype) -> Result<Self> {
        raw::mlx_view(self, dtype)
    }
}

/// The same values in another type; no graph node when the type is the same.
#[track_caller]
pub(crate) fn astype(a: &Array, dtype: Dtype) -> Result<Array> {
    if a.dtype() == dtype { Ok(a.clone()) } else { raw::mlx_astype(a, dtype) }
}

/// `x` where `condition` holds, `y` elsewhere; all three broadcast.
///
/// # Errors
/// MLX's refusal of shapes that do not broadcast.
#[track_caller]
pub fn where_(condition: &Array, x: &Array, y: &Array) -> Result<Array> {
    raw::mlx_where(condition, x, y)
}
