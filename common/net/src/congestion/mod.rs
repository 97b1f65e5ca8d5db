//! How fast a connection sends: which controller, and ours behind quinn's trait.

mod model;

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn::congestion::{
    BbrConfig, Controller, ControllerFactory, ControllerMetrics, CubicConfig, NewRenoConfig,
};
use quinn_proto::RttEstimator;
use slackline_core::config::Congestion;

use model::Model;

/// Makes the controllers of connections over a near or a far path; `initial_window` in bytes.
pub(crate) fn factory(
    choice: Congestion,
    is_near: bool,
    initial_window: u64,
) -> Arc<dyn ControllerFactory + Send + Sync> {
    let (mut cubic, mut new_reno, mut bbr) =
        (CubicConfig::default(), NewRenoConfig::default(), BbrConfig::default());
    cubic.initial_window(initial_window);
    new_reno.initial_window(initial_window);
    bbr.initial_window(initial_window);
    match choice {
        Congestion::Cubic => Arc::new(cubic),
        // Within the machine nothing is lost but by the receiver's buffer, and the window keeps within that.
        Congestion::Auto if is_near => Arc::new(cubic),
        Congestion::Auto | Congestion::Steady => Arc::new(Steady { initial_window }),
        Congestion::NewReno => Arc::new(new_reno),
        Congestion::Bbr => Arc::new(bbr),
    }
}

/// Makes controllers by [`Model`].
struct Steady {
    initial_window: u64,
}

impl ControllerFactory for Steady {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let model = Model::new(now, self.initial_window, current_mtu);
        Box::new(SteadyController { model, initial_window: self.initial_window })
    }
}

#[derive(Clone)]
struct SteadyController {
    model: Model,
    initial_window: u64,
}

impl Controller for SteadyController {
    fn on_sent(&mut self, now: Instant, bytes: u64, _: u64) {
        self.model.on_sent(now, bytes);
    }

    fn on_ack(&mut self, _: Instant, sent: Instant, bytes: u64, _: bool, _: &RttEstimator) {
        self.model.on_ack(sent, bytes);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, _: Option<u64>) {
        self.model.on_acks(now, in_flight, app_limited);
    }

    fn on_congestion_event(&mut self, now: Instant, _: Instant, is_persistent: bool, lost_bytes: u64) {
        match (is_persistent, lost_bytes) {
            (true, _) => self.model.begin_anew(now),
            // quinn says so of marks (ECN).
            (false, 0) => self.model.on_marked(),
            (false, _) => self.model.on_lost(lost_bytes),
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.model.set_datagram(new_mtu);
    }

    fn window(&self) -> u64 {
        self.model.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.initial_window
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
