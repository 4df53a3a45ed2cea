use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// A request to stop that everybody can hear.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<bool>);

impl Default for Stop {
    fn default() -> Stop {
        Stop(watch::Sender::new(false))
    }
}

impl Stop {
    /// Asks everybody to stop.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether somebody did.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when somebody does.
    pub async fn stopped(&self) {
        // It ends only by the value: the sender is `self`.
        let _ = self.0.subscribe().wait_for(|stopped| *stopped).await;
    }
}

/// Returns at SIGTERM or SIGINT.
pub async fn terminated() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping in order"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping in order"),
    }
    Ok(())
}
