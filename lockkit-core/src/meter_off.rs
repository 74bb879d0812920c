//! In place of `meter.rs` where the feature `metrics` is off: nothing is counted.

use crate::LockName;
use crate::engine::Engine;
use crate::keeper::Acquired;

pub(crate) struct Acquisition;

impl Acquisition {
    pub(crate) fn begin(_: &Engine, _: &LockName) -> Self {
        Self
    }

    pub(crate) fn end(self, _: &Acquired) {}
}

#[derive(Debug)]
pub(crate) struct Holding;

impl Holding {
    pub(crate) fn begin(_: &Engine, _: &LockName) -> Self {
        Self
    }

    pub(crate) fn end(&self, _: &Engine, _: &LockName) {}
}

pub(crate) fn describe() {}

pub(crate) fn contended(_: &Engine, _: &LockName) {}

pub(crate) fn renewal_failed(_: &Engine, _: &LockName) {}

pub(crate) fn lost(_: &Engine, _: &LockName) {}
