//! The door by which ROs come over RDMA: open while the host has a device, and again when it has one again.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use headwater_rdma::verbs::{self, Listener, Port, Request};
use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

/// How often a host without RDMA is looked at again.
const RETRY: Duration = Duration::from_secs(10);

/// Where ROs may come over RDMA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Rdma {
    /// On every device.
    Auto,
    /// Nowhere.
    Off,
    /// On this device only, named so or by one of its addresses.
    Device(String),
}

impl From<&str> for Rdma {
    fn from(setting: &str) -> Rdma {
        match setting {
            "auto" => Rdma::Auto,
            "off" => Rdma::Off,
            device => Rdma::Device(device.into()),
        }
    }
}

/// The door, and the thread that keeps it.
pub(crate) struct VerbsDoor {
    state: Arc<State>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

struct State {
    door: Mutex<Door>,
    /// The door is to be shut.
    shut: Condvar,
}

enum Door {
    Open(Arc<Listener>, SocketAddr),
    /// Why it is not open.
    Closed(String),
    Shut,
}

impl VerbsDoor {
    /// Opens it, or as soon as it can be. `came` is given every request that comes.
    pub(crate) fn open(rdma: Rdma, came: impl Fn(Request) + Send + 'static) -> std::io::Result<VerbsDoor> {
        let state = Arc::new(State {
            door: Mutex::new(Door::Closed("it is switched off there".into())),
            shut: Condvar::new(),
        });
        if rdma == Rdma::Off {
            return Ok(VerbsDoor { state, keeper: Mutex::default() });
        }
        // At once, so that the first RO finds it.
        let mut listener = state.listen(&rdma);
        let kept = state.clone();
        let keep = move || {
            loop {
                if let Some(listener) = listener {
                    kept.take_all(&listener, &came);
                }
                if kept.is_shut_within(RETRY) {
                    return;
                }
                listener = kept.listen(&rdma);
            }
        };
        let keeper = std::thread::Builder::new().name("verbs-door".into()).spawn(keep)?;
        Ok(VerbsDoor { state, keeper: Mutex::new(Some(keeper)) })
    }

    /// Where ROs may come, and why nowhere if so.
    pub(crate) fn offer(&self) -> (Vec<SocketAddr>, String) {
        let address = match &*self.state.door.lock() {
            Door::Open(_, address) => *address,
            Door::Closed(why) => return (Vec::new(), why.clone()),
            Door::Shut => return (Vec::new(), "the RW is stopping".into()),
        };
        if !address.ip().is_unspecified() {
            return (vec![address], String::new());
        }
        match verbs::devices() {
            Ok(devices) => {
                let ports = devices.iter().flat_map(|device| &device.ports).filter(|port| port.active);
                let ips = ports.flat_map(addresses);
                (
                    ips.map(|ip| SocketAddr::new(ip, address.port())).collect(),
                    "no device has an address".into(),
                )
            }
            Err(unavailable) => (Vec::new(), unavailable.to_string()),
        }
    }

    /// Shuts it for good.
    pub(crate) fn shut(&self) {
        if let Door::Open(listener, _) = std::mem::replace(&mut *self.state.door.lock(), Door::Shut) {
            listener.stop();
        }
        self.state.shut.notify_all();
        let keeper = self.keeper.lock().take();
        if let Some(keeper) = keeper
            && keeper.join().is_err()
        {
            warn!("the door for RDMA panicked");
        }
    }
}

/// The addresses by which others may reach a port.
fn addresses(port: &Port) -> impl Iterator<Item = IpAddr> {
    let is_of_use = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    port.gids.iter().filter_map(verbs::Gid::ip).filter(is_of_use)
}

impl State {
    /// Opens the door if that is possible and it is not shut.
    fn listen(&self, rdma: &Rdma) -> Option<Arc<Listener>> {
        match listen(rdma) {
            Ok((listener, address)) => {
                let listener = Arc::new(listener);
                let mut door = self.door.lock();
                if matches!(*door, Door::Shut) {
                    return None;
                }
                info!(%address, "ROs may come over RDMA");
                *door = Door::Open(listener.clone(), address);
                Some(listener)
            }
            Err(why) => {
                self.closed(why);
                None
            }
        }
    }

    /// Passes requests on until the listener ends.
    fn take_all(&self, listener: &Listener, came: &impl Fn(Request)) {
        loop {
            match listener.accept() {
                Ok(Some(request)) => came(request),
                Ok(None) => return,
                Err(error) => return self.closed(error.to_string()),
            }
        }
    }

    fn closed(&self, why: String) {
        match &mut *self.door.lock() {
            Door::Shut => {}
            Door::Closed(before) if *before == why => {}
            door => {
                info!(%why, "no RDMA; ROs of other hosts use tcp");
                *door = Door::Closed(why);
            }
        }
    }

    fn is_shut_within(&self, time: Duration) -> bool {
        let mut door = self.door.lock();
        let open = |door: &mut Door| !matches!(door, Door::Shut);
        self.shut.wait_while_for(&mut door, open, time);
        matches!(*door, Door::Shut)
    }
}

fn listen(rdma: &Rdma) -> Result<(Listener, SocketAddr), String> {
    verbs::devices().map_err(|unavailable| unavailable.to_string())?;
    let ip = match rdma {
        Rdma::Device(device) => device
            .parse()
            .or_else(|_| verbs::address_of(device))
            .map_err(|unavailable| unavailable.to_string())?,
        Rdma::Auto | Rdma::Off => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let listener = Listener::bind(SocketAddr::new(ip, 0)).map_err(|error| error.to_string())?;
    let address = listener.address().map_err(|error| error.to_string())?;
    Ok((listener, address))
}
