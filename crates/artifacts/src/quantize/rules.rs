//! Which quantization each module of a model gets: a scheme for all, and rules for some, by their paths.
//!
//! A rule is written `lm_head=8`, `model.layers.0.*=8:32`, `*.up_proj=mxfp4` or `*.v_proj=none`: a pattern in which
//! `*` stands for any run of characters, and a scheme or `none` for plain weights. The first rule that fits decides.

use std::str::FromStr;
use strata_contracts::{QuantError, QuantMode, QuantScheme};

/// The quantization of a whole model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantRules {
    default: QuantScheme,
    rules: Vec<QuantRule>,
}

/// The quantization of the modules whose path fits a pattern. Parsed from text by [`str::parse`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantRule {
    pattern: String,
    choice: Choice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Plain,
    /// Affine, in the groups of the default.
    Bits(u32),
    Scheme(QuantScheme),
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
    /// `default` for every module that none of `rules` fits.
    pub fn new(default: QuantScheme, rules: Vec<QuantRule>) -> Self {
        Self { default, rules }
    }

    /// The scheme of the modules without a rule.
    pub fn default_scheme(&self) -> QuantScheme {
        self.default
    }

    /// The scheme for the module at `path`: that of the first rule that fits, otherwise the default. A rule that says
    /// bits alone keeps the default's group size when that is affine, and takes 64 otherwise. `None` means plain
    /// weights.
    pub fn scheme_for(&self, path: &str) -> Option<QuantScheme> {
        self.rule_for(path).map_or(Some(self.default), |rule| rule.scheme(group_size_beside(self.default)))
    }

    /// The first rule that fits the module at `path`.
    pub(super) fn rule_for(&self, path: &str) -> Option<&QuantRule> {
        QuantRule::find(&self.rules, path)
    }

    /// The pattern of a rule that fits none of the modules at `paths`.
    pub(super) fn idle_pattern<'p>(&self, paths: &(impl Iterator<Item = &'p str> + Clone)) -> Option<&str> {
        QuantRule::idle_pattern(&self.rules, paths)
    }
}

impl QuantRule {
    /// The first of `rules` that fits the module at `path`.
    pub(crate) fn find<'r>(rules: &'r [Self], path: &str) -> Option<&'r Self> {
        rules.iter().find(|rule| fits(&rule.pattern, path))
    }

    /// The pattern of one of `rules` that fits none of the modules at `paths`.
    pub(crate) fn idle_pattern<'r, 'p>(
        rules: &'r [Self],
        paths: &(impl Iterator<Item = &'p str> + Clone),
    ) -> Option<&'r str> {
        let idle = |rule: &&Self| !paths.clone().any(|path| fits(&rule.pattern, path));
        rules.iter().find(idle).map(|rule| rule.pattern.as_str())
    }

    /// What the rule says, in groups of `group_size` where it says bits alone; `None` means plain weights.
    pub(crate) fn scheme(&self, group_size: u32) -> Option<QuantScheme> {
        match self.choice {
            Choice::Plain => None,
            Choice::Bits(bits) => QuantScheme::affine(bits, group_size).ok(),
            Choice::Scheme(scheme) => Some(scheme),
        }
    }
}

/// Group size of rules that say bits alone, where other modules have `default`.
pub(crate) fn group_size_beside(default: QuantScheme) -> u32 {
    if default.mode() == QuantMode::Affine { default.group_size() } else { 64 }
}

impl FromStr for QuantRule {
    type Err = RuleError;

    fn from_str(rule: &str) -> Result<Self, RuleError> {
        let form = || RuleError::Form { rule: rule.to_owned() };
        let (pattern, choice) = rule.split_once('=').ok_or_else(form)?;
        if pattern.is_empty() {
            return Err(form());
        }
        let choice = if choice == "none" {
            Choice::Plain
        } else {
            let scheme = choice.parse::<QuantScheme>().map_err(|problem| match problem {
                QuantError::Form { .. } => form(),
                problem => RuleError::Scheme { rule: rule.to_owned(), problem },
            })?;
            if choice.bytes().all(|byte| byte.is_ascii_digit()) {
                Choice::Bits(scheme.bits())
            } else {
                Choice::Scheme(scheme)
            }
        };
        Ok(Self { pattern: pattern.to_owned(), choice })
    }
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

    fn rules(texts: &[&str]) -> Vec<QuantRule> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let written = ["lm_head=8", "model.layers.0.*=6:128", "*.k_proj=mxfp8", "*.v_proj=none"];
        let chosen = QuantRules::new(QuantScheme::affine(4, 32).unwrap(), rules(&written));
        for (path, expected) in [
            ("lm_head", Some("8:32")),
            ("model.layers.0.self_attn.v_proj", Some("6:128")),
            ("model.layers.1.self_attn.k_proj", Some("mxfp8")),
            ("model.layers.1.self_attn.v_proj", None),
            ("model.layers.1.self_attn.q_proj", Some("4:32")),
        ] {
            assert_eq!(chosen.scheme_for(path), expected.map(|scheme| scheme.parse().unwrap()), "{path}");
        }
        let micro = QuantRules::new("mxfp4".parse().unwrap(), rules(&["lm_head=8"]));
        assert_eq!(micro.scheme_for("lm_head"), QuantScheme::affine(8, 64).ok());
    }

    #[test]
    fn a_rule_that_fits_nothing_is_found() {
        let paths = ["lm_head", "model.layers.0.mlp.up_proj"];
        let idle = |texts: &[&str]| {
            let chosen = QuantRules::new(QuantScheme::affine(4, 64).unwrap(), rules(texts));
            chosen.idle_pattern(&paths.into_iter()).map(str::to_owned)
        };
        assert_eq!(idle(&["lm_head=8", "*.0.*=8", "*=4"]), None);
        assert_eq!(idle(&["lm_head=8", "*.layer.0.*=8"]), Some("*.layer.0.*".into()));
    }

    #[test]
    fn rules_that_mean_nothing_are_refused() {
        for text in ["", "lm_head", "=8", "lm_head=", "lm_head=eight", "lm_head=8:x"] {
            assert!(matches!(text.parse::<QuantRule>(), Err(RuleError::Form { .. })), "{text}");
        }
        assert!(matches!("lm_head=7".parse::<QuantRule>(), Err(RuleError::Scheme { .. })));
        assert!(matches!("lm_head=4:48".parse::<QuantRule>(), Err(RuleError::Scheme { .. })));
    }
}
