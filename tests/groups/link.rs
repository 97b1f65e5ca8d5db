//! What a link between a worker and the coordinator does. Messages keep their order. Nothing is lost while a link lives; with it,
//! everything that has not arrived is, though some of it may still arrive late.

use slackline_core::ids::{Moment, ServerId, SessionId};
use slackline_core::role::Role;
use slackline_server_core::{ControlEffect, ControlEvent};
use slackline_worker_core::{Event, Obstacle};

use crate::agenda::{Happening, Inward, Outward};
use crate::process::{Life, Process};
use crate::world::{Verdict, World};

const NEVER: Moment = Moment(u64::MAX);
const COORDINATOR: ServerId = ServerId(0);

/// One connection between a process and the coordinator, with what each end knows.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    process: usize,
    session: Option<SessionId>,
    worker_end: bool,
    server_end: bool,
    /// The coordinator sends nothing more.
    closing: bool,
    inward_last: Moment,
    outward_last: Moment,
    inward_cut: Moment,
    outward_cut: Moment,
}

impl Link {
    pub(crate) const fn is_live(&self) -> bool {
        self.worker_end && self.server_end
    }
}

impl World {
    pub(crate) fn delay(&mut self) -> std::time::Duration {
        let weather = self.weather;
        let usual = self.chance.micros(100, weather.delay);
        let spike = self.chance.happens(weather.spike);
        if spike { usual + self.chance.micros(0, weather.spike_delay) } else { usual }
    }

    /// A worker's shell connects.
    pub(crate) fn dial(&mut self, process: usize) {
        let link = self.links.len();
        let now = self.now;
        self.links.push(Link {
            process,
            session: None,
            worker_end: true,
            server_end: false,
            closing: false,
            inward_last: now,
            outward_last: now,
            inward_cut: NEVER,
            outward_cut: NEVER,
        });
        if let Some(former) = self.processes[process].link.replace(link) {
            self.hang_up(former);
        }
        if self.chance.happens(self.weather.connect_fails) {
            let when = now.after(self.chance.micros(1_000, 1_000_000));
            self.agenda.at(when, Happening::AtWorker { link, what: Outward::Failed });
        } else {
            self.send_inward(link, Inward::Dial);
        }
    }

    /// A worker's shell closes; what it sent before may be lost with the link or not.
    pub(crate) fn hang_up(&mut self, link: usize) {
        let (way, is_discarded) = (self.delay(), self.chance.happens(300));
        let now = self.now;
        let end = &mut self.links[link];
        if std::mem::take(&mut end.worker_end) {
            if is_discarded {
                end.inward_cut = end.inward_cut.min(now);
            }
            let when = end.inward_last.max(now.after(way));
            self.agenda.at(when, Happening::AtCoordinator { link, what: Inward::Gone });
        }
    }

    /// The coordinator closes: its last words are read first.
    fn turn_out(&mut self, link: usize) {
        let (way, reads_on) = (self.delay(), self.chance.micros(0, 500_000));
        let now = self.now;
        let end = &mut self.links[link];
        if !std::mem::replace(&mut end.closing, true) {
            end.outward_last = Moment(end.outward_last.0 + 1).max(now.after(way));
            self.agenda.at(end.outward_last, Happening::AtWorker { link, what: Outward::Lost });
            self.agenda.at(now.after(reads_on), Happening::AtCoordinator { link, what: Inward::Gone });
        }
    }

    /// The way between the two breaks: each end learns it some time later, and what was under way arrives late or never.
    pub(crate) fn cut_link(&mut self, link: usize) {
        let idle = self.scenario.lease.as_micros() as u64;
        let (inward, outward) = (self.chance.micros(0, 300_000), self.chance.micros(0, 100_000));
        let learn = [self.chance.micros(0, idle), self.chance.micros(0, idle)];
        let now = self.now;
        let end = &mut self.links[link];
        end.inward_cut = end.inward_cut.min(now.after(inward));
        end.outward_cut = end.outward_cut.min(now.after(outward));
        self.agenda.at(now.after(learn[0]), Happening::AtWorker { link, what: Outward::Lost });
        self.agenda.at(now.after(learn[1]), Happening::AtCoordinator { link, what: Inward::Gone });
    }

    /// A worker's process is gone without a word.
    pub(crate) fn fall_silent(&mut self, link: usize) {
        let idle = self.scenario.lease.as_micros() as u64;
        let (last, when) = (self.chance.micros(0, 20_000), self.chance.micros(0, idle));
        let now = self.now;
        let end = &mut self.links[link];
        end.worker_end = false;
        end.inward_cut = end.inward_cut.min(now.after(last));
        self.agenda.at(now.after(when), Happening::AtCoordinator { link, what: Inward::Gone });
    }

    pub(crate) fn send_inward(&mut self, link: usize, what: Inward) {
        let when = self.now.after(self.delay());
        let end = &mut self.links[link];
        end.inward_last = when.max(Moment(end.inward_last.0 + 1));
        self.agenda.at(end.inward_last, Happening::AtCoordinator { link, what });
    }

    fn send_outward(&mut self, link: usize, what: Outward) {
        let when = self.now.after(self.delay());
        let end = &mut self.links[link];
        if !end.closing {
            end.outward_last = when.max(Moment(end.outward_last.0 + 1));
            self.agenda.at(end.outward_last, Happening::AtWorker { link, what });
        }
    }

    /// Something reaches the coordinator, unless it was lost.
    pub(crate) fn at_coordinator(&mut self, link: usize, what: Inward) -> Verdict {
        let end = &self.links[link];
        let is_lost = self.now >= end.inward_cut && !matches!(what, Inward::Gone);
        match (what, end.session) {
            _ if is_lost => Ok(()),
            (Inward::Dial, _) if self.end.is_some() => {
                self.send_outward(link, Outward::Failed);
                Ok(())
            }
            (Inward::Dial, _) => self.accept(link),
            (Inward::Message(message), Some(session)) if end.server_end => {
                self.control_event(ControlEvent::Message { session, message })
            }
            (Inward::Gone, Some(session)) if end.server_end => {
                let end = &mut self.links[link];
                (end.server_end, end.closing) = (false, true);
                self.sessions.remove(&session);
                self.control_event(ControlEvent::Closed { session })
            }
            _ => Ok(()),
        }
    }

    fn accept(&mut self, link: usize) -> Verdict {
        self.session_last = self.session_last.next();
        let session = self.session_last;
        self.sessions.insert(session, link);
        let end = &mut self.links[link];
        (end.session, end.server_end) = (Some(session), true);
        let address = format!("process {}", end.process);
        self.send_outward(link, Outward::Connected);
        self.control_event(ControlEvent::Opened { session, role: Role::Worker, address })
    }

    /// Something reaches a worker, unless it was lost; put off while it is frozen.
    pub(crate) fn at_worker(&mut self, link: usize, what: Outward) -> Verdict {
        let process = self.links[link].process;
        let until = self.processes[process].frozen_until;
        if until > self.now {
            self.agenda.at(until, Happening::AtWorker { link, what });
            return Ok(());
        }
        let end = &mut self.links[link];
        let is_over = matches!(what, Outward::Lost | Outward::Failed);
        if !end.worker_end || (self.now >= end.outward_cut && !is_over) {
            return Ok(());
        }
        if is_over {
            end.worker_end = false;
            self.processes[process].link = None;
        }
        let event = match what {
            Outward::Connected => Event::Connected { server: COORDINATOR },
            Outward::Failed => Event::ConnectFailed {
                server: COORDINATOR,
                reason: "no answer".to_owned(),
                obstacle: Obstacle::Passing,
            },
            Outward::Message(message) => Event::Message { server: COORDINATOR, message },
            Outward::Lost => Event::Lost { server: COORDINATOR },
        };
        self.worker_event(process, event)
    }

    /// The coordinator takes an event.
    pub(crate) fn control_event(&mut self, event: ControlEvent) -> Verdict {
        let now = self.now;
        if self.end.is_some() {
            return Ok(());
        }
        if event != ControlEvent::Tick {
            self.trace.line(now, format_args!("coordinator < {event:?}"));
        }
        let mut effects = Vec::new();
        self.control.handle(now, event, &mut effects);
        self.control.check_invariants();
        for effect in effects {
            self.trace.line(now, format_args!("coordinator > {effect:?}"));
            match effect {
                ControlEffect::Send { session, message } => {
                    if let Some(link) = self.sessions.get(&session).copied() {
                        self.send_outward(link, Outward::Message(message));
                    }
                }
                ControlEffect::Close { session } => {
                    if let Some(link) = self.sessions.get(&session).copied() {
                        self.turn_out(link);
                    }
                }
                ControlEffect::Notice(slackline_server_core::Notice::Expired { worker, .. }) => {
                    self.expired.insert(worker);
                }
                ControlEffect::End(end) => {
                    self.see_end(&end)?;
                    self.end = Some(end);
                    let links: Vec<usize> = self.sessions.values().copied().collect();
                    links.into_iter().for_each(|link| self.turn_out(link));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// All that wait for the coordinator's word.
    pub(crate) fn running(&self) -> Vec<usize> {
        let is_running = |(_, process): &(usize, &Process)| process.life == Life::Running;
        self.processes.iter().enumerate().filter(is_running).map(|(index, _)| index).collect()
    }
}
