//! A device that fails on demand, around the software device.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use rpc_transport::device::connection_error::ConnectError;
use rpc_transport::device::{
    Attach, Completion, CompletionQueue, CqRef, Device, DeviceAttributes, Established, Outgoing,
    PostError, PostErrorKind, ProviderError, QpCapacity, QpEvent, QpHandle, QpState, RecvWr,
    SendWr,
};
use rpc_transport::memory::region::ProtectionDomain;
use tokio::sync::Semaphore;

/// The failures to produce.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// The CQ is dead: polling and arming fail.
    pub(crate) dead: AtomicBool,
    /// Polls since it died.
    pub(crate) polls: AtomicU32,
    /// RECVs are refused.
    pub(crate) no_recvs: AtomicBool,
    /// Send WRs are refused, whatever the state of the QP.
    pub(crate) no_sends: AtomicBool,
    /// QPs of this device that were prepared.
    pub(crate) prepared: AtomicU32,
    /// Preparing one waits for this.
    pub(crate) slow_commands: Option<Semaphore>,
}

impl Faults {
    pub(crate) fn set(flag: &AtomicBool) {
        flag.store(true, Ordering::SeqCst);
    }
}

#[derive(Debug)]
struct FaultyDevice {
    inner: Arc<dyn Device>,
    faults: Arc<Faults>,
}

impl Device for FaultyDevice {
    fn attributes(&self) -> &DeviceAttributes {
        self.inner.attributes()
    }

    fn allocate_pd(&self) -> Result<ProtectionDomain, ProviderError> {
        self.inner.allocate_pd()
    }

    fn create_cq(&self, min_entries: u32) -> Result<Box<dyn CompletionQueue>, ProviderError> {
        let inner = self.inner.create_cq(min_entries)?;
        Ok(Box::new(FaultyQueue { inner, faults: Arc::clone(&self.faults) }))
    }
}

#[derive(Debug)]
struct FaultyQueue {
    inner: Box<dyn CompletionQueue>,
    faults: Arc<Faults>,
}

impl FaultyQueue {
    fn inner(cq: &mut dyn CompletionQueue) -> &mut dyn CompletionQueue {
        let faulty: &mut Self = (cq as &mut dyn Any).downcast_mut().expect("a faulty CQ");
        &mut *faulty.inner
    }

    fn alive(&self) -> Result<(), ProviderError> {
        if self.faults.dead.load(Ordering::SeqCst) {
            self.faults.polls.fetch_add(1, Ordering::SeqCst);
            return Err(ProviderError::CompletionQueueDead("it was pulled out".to_owned()));
        }
        Ok(())
    }
}

impl CompletionQueue for FaultyQueue {
    fn capacity(&self) -> u32 {
        self.inner.capacity()
    }

    fn poll(&mut self, to: &mut Vec<Completion>, max: usize) -> Result<usize, ProviderError> {
        self.alive()?;
        self.inner.poll(to, max)
    }

    fn arm(&mut self) -> Result<(), ProviderError> {
        self.alive()?;
        self.inner.arm()
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.inner.event_fd()
    }

    fn clear_events(&mut self) -> Result<(), ProviderError> {
        self.inner.clear_events()
    }

    fn poll_event(&mut self) -> Option<QpEvent> {
        self.inner.poll_event()
    }

    fn post_send(&mut self, qp: QpHandle, wrs: &mut [SendWr<'_>]) -> Result<(), PostError> {
        if self.faults.no_sends.load(Ordering::SeqCst) {
            return Err(PostError { posted: 0, kind: PostErrorKind::QueueFull(0) });
        }
        self.inner.post_send(qp, wrs)
    }

    fn post_recv(&mut self, qp: QpHandle, wr: RecvWr) -> Result<(), (PostError, RecvWr)> {
        if self.faults.no_recvs.load(Ordering::SeqCst) {
            let kind = PostErrorKind::QueueFull(0);
            return Err((PostError { posted: 0, kind }, wr));
        }
        self.inner.post_recv(qp, wr)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn state(&self, qp: QpHandle) -> Option<QpState> {
        self.inner.state(qp)
    }

    fn max_inline_bytes(&self, qp: QpHandle) -> u32 {
        self.inner.max_inline_bytes(qp)
    }

    fn modify_to_error(&mut self, qp: QpHandle) -> Result<(), ProviderError> {
        self.inner.modify_to_error(qp)
    }

    fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), ProviderError> {
        self.inner.destroy_qp(qp)
    }
}

#[derive(Debug)]
struct FaultyOutgoing {
    inner: Box<dyn Outgoing>,
    device: Arc<dyn Device>,
    faults: Arc<Faults>,
}

/// Makes the device of an outgoing connection fail on demand.
pub(crate) fn faulty(inner: Box<dyn Outgoing>, faults: &Arc<Faults>) -> Box<dyn Outgoing> {
    let device = FaultyDevice { inner: Arc::clone(inner.device()), faults: Arc::clone(faults) };
    Box::new(FaultyOutgoing { inner, device: Arc::new(device), faults: Arc::clone(faults) })
}

#[async_trait]
impl Outgoing for FaultyOutgoing {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    async fn prepare_qp(
        &mut self,
        _: &CqRef,
        _: &ProtectionDomain,
        _: QpCapacity,
    ) -> Result<(), ProviderError> {
        let faults = &self.faults;
        faults.prepared.fetch_add(1, Ordering::SeqCst);
        if let Some(commands) = &faults.slow_commands {
            commands.acquire().await.expect("open").forget();
        }
        Ok(())
    }

    fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        self.inner.create_qp(FaultyQueue::inner(cq), pd, capacity)
    }

    async fn connect(self: Box<Self>, private_data: &[u8]) -> Result<Established, ConnectError> {
        let Established { private_data, peer, attach } = self.inner.connect(private_data).await?;
        let attach = Attach::new(move |cq| attach.run(FaultyQueue::inner(cq)));
        Ok(Established { private_data, peer, attach })
    }
}
