//! One file a command.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod convert;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod ls;
pub(crate) mod pull;
