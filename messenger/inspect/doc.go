// Package inspect shows what a messenger does, as JSON over HTTP, and answers
// probes about its health.
//
// Where to look in what Handler shows (messenger.Inspection):
//
//   - Messages do not leave: Queue and Session.Replay of the connection. While State
//     is connecting, LastError and NextAttempt say why; while it is open,
//     Transport.Blocked for how long the peer has not read, and Transport.Conn
//     whether its receive buffers are used up (Credits) or it says that it waits
//     itself (PeerParked).
//   - Messages do not arrive: Transport.Holding, or Conn.Parked, say that it is we
//     who do not take them. Throttles shows which one is full, Memory and Held who
//     keeps what it was for.
//   - Memory is short: Memory.Owners by owner, Memory.Oldest and Held by age, Grants
//     of each connection what peers may still reach. buffer.Arena.Report has all
//     of it, with stacks.
//   - Two ends disagree: Session is the same at both for as long as they have one,
//     but for Acked and AckSent, which follow each other.
//
// Numbers that only count belong in messenger/prometheus.
package inspect
