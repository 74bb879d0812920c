//! Pointers to locks are locks, so that generic code takes an `Arc<dyn DistributedLock>` as well.

use std::sync::Arc;

use async_trait::async_trait;

use crate::traits::{DistributedLock, FairLock, LeasedLock, ReentrantLock, private::Sealed};
use crate::{AcquireOptions, Capabilities, Lease, LeasedGuard, LockGuard, LockName, Owner, Result};

macro_rules! is_a_lock {
    ($pointer:ident) => {
        impl<L: DistributedLock + ?Sized> Sealed for $pointer<L> {}

        #[async_trait]
        impl<L: DistributedLock + ?Sized> DistributedLock for $pointer<L> {
            fn name(&self) -> &LockName {
                (**self).name()
            }

            fn capabilities(&self) -> Capabilities {
                (**self).capabilities()
            }

            async fn acquire_with(&self, options: AcquireOptions) -> Result<LockGuard> {
                (**self).acquire_with(options).await
            }
        }

        #[async_trait]
        impl<L: ReentrantLock + ?Sized> ReentrantLock for $pointer<L> {
            async fn acquire_as(
                &self,
                owner: &Owner,
                options: AcquireOptions,
            ) -> Result<LockGuard> {
                (**self).acquire_as(owner, options).await
            }

            fn depth(&self, owner: &Owner) -> usize {
                (**self).depth(owner)
            }
        }

        impl<L: FairLock + ?Sized> FairLock for $pointer<L> {}

        #[async_trait]
        impl<L: LeasedLock + ?Sized> LeasedLock for $pointer<L> {
            fn lease(&self) -> Lease {
                (**self).lease()
            }

            async fn acquire_leased(&self, options: AcquireOptions) -> Result<LeasedGuard> {
                (**self).acquire_leased(options).await
            }
        }
    };
}

is_a_lock!(Arc);
is_a_lock!(Box);
