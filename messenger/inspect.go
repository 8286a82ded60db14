package messenger

import (
	"cmp"
	"slices"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// inspectedHeld is how many held messages an Inspection has.
const inspectedHeld = 100

// Inspection is a snapshot of a messenger for operators, to be shown as JSON
// (package inspect does). It has no secrets in it.
type Inspection struct {
	Name        string
	Addrs       []string
	Nonce       uint32
	Stats       Stats
	Memory      buffer.Account // of Config.Arena
	Connections []ConnInspection
	// Held are the received messages with a payload that have not been released,
	// the oldest, at most 100.
	Held []HeldMessage `json:",omitempty"`
}

// ConnInspection is one connection of an Inspection.
type ConnInspection struct {
	ID        uint64 // Connection.ID: "conn" in the log
	Link      uint64 `json:",omitempty"` // conn.Conn.ID of the transport: "link" in the log; 0 on a stream
	Peer      string
	Addrs     []string // of the peer, as it has told
	Dial      []string // where it is connected to
	State     string
	Policy    string
	Anonymous bool `json:",omitempty"`
	// ConnectSeq counts the attempts of this session, as both sides do.
	ConnectSeq uint64
	// NextAttempt is when the next attempt to connect is due, while connecting.
	NextAttempt time.Time `json:",omitzero"`
	Calls       int       // that we wait for
	Serving     int       // calls of the peer being handled
	LastError   string    `json:",omitempty"`
	Stats       ConnStats
}

// Inspect returns a snapshot, connections in the order of their peers' names. It
// locks one connection at a time, each shortly.
func (m *Messenger) Inspect() Inspection {
	in := Inspection{
		Name: m.cfg.Name.String(), Nonce: m.nonce.Load(), Addrs: texts(m.Addrs()), Stats: m.Stats(), Memory: m.cfg.Arena.Account(),
		Held: m.Held(inspectedHeld),
	}
	m.mu.Lock()
	all := make([]*Connection, 0, len(m.connections))
	for c := range m.connections {
		all = append(all, c)
	}
	m.mu.Unlock()
	for _, c := range all {
		in.Connections = append(in.Connections, c.inspect())
	}
	slices.SortFunc(in.Connections, func(a, b ConnInspection) int { return cmp.Compare(a.Peer, b.Peer) })
	return in
}

func (c *Connection) inspect() ConnInspection {
	st := c.Stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	i := ConnInspection{
		ID: c.ID(), Peer: c.peer.String(), Addrs: texts(c.addrs), Dial: texts(c.dial), State: c.state().String(), Policy: c.policy.String(),
		Anonymous: c.anonymous, ConnectSeq: c.session.ConnectSeq, Calls: len(c.calls), Serving: len(c.serving), Stats: st,
	}
	if c.link != nil {
		i.Link = c.link.connID()
	}
	if c.state() == StateConnecting {
		i.NextAttempt = c.due
	}
	if c.err != nil {
		i.LastError = c.err.Error()
	}
	return i
}

func texts(v AddrVec) []string {
	s := make([]string, len(v))
	for i, a := range v {
		s[i] = a.String()
	}
	return s
}
