//! Finding the RDMA devices that there are.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ptr::NonNull;

use rdma_sys::*;
use rustix::io::Errno;

use super::about::{Device, Gid, GidKind, Port, Unavailable};
use super::cm::{Id, check, owned};

/// The devices of this host, of which one at least has an active port.
///
/// Errors: [`Unavailable`]; the first thing that is missing.
pub fn devices() -> Result<Vec<Device>, Unavailable> {
    let list = List::get()?;
    if let Err(error) = Id::new() {
        return Err(match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP) => Unavailable::Library("librdmacm.so.1"),
            _ => Unavailable::ConnectionManager(error),
        });
    }
    if list.count == 0 {
        return Err(Unavailable::NoDevice);
    }
    let devices = (0..list.count).map(|i| list.device(i)).collect::<Result<Vec<Device>, _>>()?;
    if devices.iter().flat_map(|device| &device.ports).any(|port| port.active) {
        Ok(devices)
    } else {
        Err(Unavailable::NoActivePort(devices))
    }
}

/// An address by which rdma_cm finds the device `name`, of an active port: IPv4 before IPv6, none that is valid on one link only.
///
/// Errors: [`Unavailable`].
pub fn address_of(name: &str) -> Result<IpAddr, Unavailable> {
    let device = devices()?
        .into_iter()
        .find(|device| device.name == name)
        .ok_or_else(|| Unavailable::NoSuchDevice(name.into()))?;
    let gids = device.ports.iter().filter(|port| port.active).flat_map(|port| &port.gids);
    let addresses = gids.filter_map(Gid::ip).filter(|ip| match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    });
    addresses.min_by_key(IpAddr::is_ipv6).ok_or_else(|| Unavailable::NoAddress(name.into()))
}

/// The library's list of devices.
struct List {
    first: NonNull<*mut ibv_device>,
    count: usize,
}

impl List {
    fn get() -> Result<List, Unavailable> {
        let mut count = 0;
        // SAFETY: there is room for the count.
        let first = owned(unsafe { ibv_get_device_list(&mut count) });
        let first = first.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP) => Unavailable::Library("libibverbs.so.1"),
            Some(Errno::NOSYS) => Unavailable::Kernel,
            _ => Unavailable::Device { doing: "list", device: "(all)".into(), source: error },
        })?;
        Ok(List { first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn device(&self, i: usize) -> Result<Device, Unavailable> {
        assert!(i < self.count, "only devices of the list");
        // SAFETY: within the list, so the sum is.
        let entry = unsafe { self.first.as_ptr().add(i) };
        // SAFETY: the list is alive and has so many entries.
        let device = unsafe { *entry };
        // SAFETY: a device of the list is alive.
        let name = unsafe { ibv_get_device_name(device) };
        // SAFETY: the device's name, alive as it is, ended by a 0.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let failed = |doing| {
            let device = name.clone();
            move |source| Unavailable::Device { doing, device, source }
        };
        // SAFETY: the device is alive.
        let context = Context(owned(unsafe { ibv_open_device(device) }).map_err(failed("open"))?);
        let mut ports = Vec::new();
        for number in 1..=context.ports().map_err(failed("query"))? {
            ports.push(context.port(number).map_err(failed("query a port of"))?);
        }
        Ok(Device { name, ports })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: made by `get`; opened devices stay open without it.
        unsafe { ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// An open device.
struct Context(NonNull<ibv_context>);

impl Context {
    /// How many ports it has.
    fn ports(&self) -> io::Result<u8> {
        let mut about = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the device is open; there is room for the answer.
        answered(unsafe { ibv_query_device(self.0.as_ptr(), about.as_mut_ptr()) })?;
        // SAFETY: the number was filled in.
        Ok(unsafe { (*about.as_ptr()).phys_port_cnt })
    }

    fn port(&self, number: u8) -> io::Result<Port> {
        let mut about = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the device is open; there is room for the answer.
        answered(unsafe { ibv_query_port(self.0.as_ptr(), number, about.as_mut_ptr()) })?;
        // SAFETY: all of it are numbers, zero at least.
        let about = unsafe { about.assume_init() };
        let mut gids = Vec::new();
        for index in 0..about.gid_tbl_len.max(0) as u32 {
            let mut entry = MaybeUninit::<ibv_gid_entry>::zeroed();
            // SAFETY: the device is open; there is room for the answer.
            let found =
                unsafe { ibv_query_gid_ex(self.0.as_ptr(), number.into(), index, entry.as_mut_ptr(), 0) };
            if found != 0 {
                // Most places of the table are empty.
                continue;
            }
            // SAFETY: all of it are numbers, filled in.
            let entry = unsafe { entry.assume_init() };
            let kind = match entry.gid_type {
                IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                _ => GidKind::InfiniBand,
            };
            // SAFETY: bytes whatever the other view of them.
            let bytes = unsafe { entry.gid.raw };
            gids.push(Gid { index, bytes, kind });
        }
        Ok(Port {
            number,
            active: about.state == ibv_port_state::IBV_PORT_ACTIVE,
            infiniband: about.link_layer != IBV_LINK_LAYER_ETHERNET,
            // An enum: 1 is 256 bytes, and each next twice as many.
            mtu: 128u32.checked_shl(about.active_mtu).unwrap_or(0),
            gids,
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by `List::device`, and nothing made on it is left.
        unsafe { ibv_close_device(self.0.as_ptr()) };
    }
}

/// What a query says: 0, or the error's number.
fn answered(answer: i32) -> io::Result<()> {
    if answer > 0 { Err(io::Error::from_raw_os_error(answer)) } else { check(answer) }
}
