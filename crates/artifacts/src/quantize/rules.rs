//! Rules that pick the quantization of each module by its path, as a user writes them.
//!
//! `lm_head=8,model.layers.0.*=8:32,*.v_proj=none`: a pattern with `*` for any run of characters, and bits with an
//! optional group size, or `none` for plain weights. The first rule that fits decides.

use std::str::FromStr;
use strata_contracts::{QuantError, QuantMode, QuantScheme};

/// An ordered list of rules. Parsed from text by [`str::parse`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuantRules {
    rules: Vec<(String, Choice)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Plain,
    Affine { bits: u32, group_size: Option<u32> },
}

/// A rule that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Text that is not a rule.
    #[error(
        "`{rule}` is not a rule; rules look like `lm_head=8`, `model.layers.0.*=8:32` or `*.v_proj=none`"
    )]
    Form {
        /// The rule as it was written.
        rule: String,
    },
    /// Settings that no kernel holds.
    #[error("rule `{rule}`: {problem}")]
    Scheme {
        /// The rule as it was written.
        rule: String,
        /// What is wrong with the settings.
        problem: QuantError,
    },
}

impl QuantRules {
    /// The scheme for the module at `path`: that of the first rule that fits, otherwise `default`. A rule without
    /// a group size keeps the default's when that is affine, and takes 64 otherwise. `None` means plain weights.
    pub fn scheme_for(&self, path: &str, default: QuantScheme) -> Option<QuantScheme> {
        match self.rules.iter().find(|(pattern, _)| fits(pattern, path)) {
            None => Some(default),
            Some((_, Choice::Plain)) => None,
            Some(&(_, Choice::Affine { bits, group_size })) => {
                let inherited = if default.mode() == QuantMode::Affine { default.group_size() } else { 64 };
                QuantScheme::affine(bits, group_size.unwrap_or(inherited)).ok()
            }
        }
    }
}

impl FromStr for QuantRules {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let rules = text.split(',').map(str::trim).filter(|rule| !rule.is_empty()).map(parse);
        Ok(Self { rules: rules.collect::<Result<_, _>>()? })
    }
}

fn parse(rule: &str) -> Result<(String, Choice), RuleError> {
    let form = || RuleError::Form { rule: rule.to_owned() };
    let (pattern, choice) = rule.split_once('=').ok_or_else(form)?;
    if pattern.is_empty() {
        return Err(form());
    }
    if choice == "none" {
        return Ok((pattern.to_owned(), Choice::Plain));
    }
    let (bits, group_size) = match choice.split_once(':') {
        None => (choice, None),
        Some((bits, group)) => (bits, Some(group.parse().map_err(|_| form())?)),
    };
    let bits = bits.parse().map_err(|_| form())?;
    QuantScheme::affine(bits, group_size.unwrap_or(64))
        .map_err(|problem| RuleError::Scheme { rule: rule.to_owned(), problem })?;
    Ok((pattern.to_owned(), Choice::Affine { bits, group_size }))
}

/// Whether `path` is `pattern` with every `*` standing for some run of characters.
fn fits(pattern: &str, path: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| path.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_paths() {
        for (pattern, path, expected) in [
            ("lm_head", "lm_head", true),
            ("lm_head", "model.lm_head", false),
            ("model.layers.0.*", "model.layers.0.mlp.up_proj", true),
            ("model.layers.0.*", "model.layers.01.mlp", false),
            ("*.v_proj", "model.layers.3.self_attn.v_proj", true),
            ("*.v_proj", "model.layers.3.self_attn.v_proj.x", false),
            ("*a*b", "xaxb", true),
            ("a*a", "a", false),
            ("*", "anything", true),
        ] {
            assert_eq!(fits(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules: QuantRules = "lm_head=8, model.layers.0.*=6:128,*.v_proj=none".parse().unwrap();
        let default = QuantScheme::affine(4, 32).unwrap();
        let scheme =
            |path: &str| rules.scheme_for(path, default).map(|scheme| (scheme.bits(), scheme.group_size()));
        assert_eq!(scheme("lm_head"), Some((8, 32)));
        assert_eq!(scheme("model.layers.0.self_attn.v_proj"), Some((6, 128)));
        assert_eq!(scheme("model.layers.1.self_attn.v_proj"), None);
        assert_eq!(scheme("model.layers.1.self_attn.q_proj"), Some((4, 32)));
    }

    #[test]
    fn rules_that_mean_nothing_are_refused() {
        for text in ["lm_head", "=8", "lm_head=eight", "lm_head=8:x"] {
            assert!(matches!(text.parse::<QuantRules>(), Err(RuleError::Form { .. })), "{text}");
        }
        assert!(matches!("lm_head=7".parse::<QuantRules>(), Err(RuleError::Scheme { .. })));
        assert!(matches!("lm_head=4:48".parse::<QuantRules>(), Err(RuleError::Scheme { .. })));
    }
}
