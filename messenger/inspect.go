package messenger

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
)

const (
	// inspectedConns is how many connections an Inspection has by default,
	// inspectedHeld how many held messages, and how many held buffers, and
	// inspectedGrants how many grants of one connection.
	inspectedConns  = 100
	inspectedHeld   = 100
	inspectedGrants = 20
)

// InspectQuery says which connections are inspected. The zero value is the first
// 100 of all.
type InspectQuery struct {
	Limit int    // connections at most; 0: 100, negative: all
	After uint64 // only those whose ID is larger: Inspection.Next of the page before
	Peer  string // only those with this peer: a name (osd.3) or a type (osd)
	State string // only those in this State, as its String has it
}

// Inspection is a snapshot of a messenger for operators, to be shown as JSON
// (package inspect does). It has no secrets in it: no keys, and of the cookies,
// with which a session could be taken over, only digests.
type Inspection struct {
	Name      string
	Addrs     []string
	Nonce     uint32
	GlobalSeq uint64 // of the last attempt to connect
	Stats     Stats
	Memory    MemoryInspection // of Config.Arena
	Policies  []PolicyInspection
	Throttles []ThrottleInspection
	Endpoints []EndpointInspection
	// Connections are those that the query asks for, in the order of their IDs. Next
	// is what InspectQuery.After has to be for those behind them; 0: there are none.
	Connections []ConnInspection
	Next        uint64 `json:",omitempty"`
	// Held are the received messages with a payload that have not been released,
	// the oldest, at most 100.
	Held []HeldMessage `json:",omitempty"`
}

// MemoryInspection is who holds the memory of an arena.
type MemoryInspection struct {
	buffer.Account
	Owners []buffer.OwnerStats
	// Oldest are the buffers that have been held longest and are not posted, at
	// most 100.
	Oldest []HeldBuffer `json:",omitempty"`
}

// HeldBuffer is a buffer that is held.
type HeldBuffer struct {
	Owner string
	What  string `json:",omitempty"` // what it is held for, where that is known
	Age   time.Duration
	Bytes uint64
	Refs  int
}

// PolicyInspection is the policy towards peers of a type.
type PolicyInspection struct {
	Peers                 string // the type; "others who connect" and "others" have none of their own
	Policy                string
	Secure                bool `json:",omitempty"`
	MaxMessages, MaxBytes int64
	QueueMessages         int
	QueueBytes            int64
	Supported, Required   uint64 `json:",omitempty"`
}

// ThrottleInspection is a throttle that received messages pass.
type ThrottleInspection struct {
	Peers   string // the type; "all" for Config.DispatchBytes
	Of      string // "messages" or "bytes"
	Max     int64
	Taken   int64
	Waiting int           // connections
	Longest time.Duration // for which the first of them has waited
}

// EndpointInspection is an endpoint of RDMA.
type EndpointInspection struct {
	Scheme, Device string
	Addr           string `json:",omitempty"`
	Stats          conn.Stats
}

// ConnInspection is one connection of an Inspection.
type ConnInspection struct {
	ID        uint64 // Connection.ID: "conn" in the log
	Link      uint64 `json:",omitempty"` // conn.Conn.ID of the transport: "link" in the log; 0 on a stream
	Peer      string
	Verified  string   `json:",omitempty"` // the peer as authentication has it, if that is another name
	Addrs     []string // of the peer, as it has told
	Dial      []string // where it is connected to
	State     string
	Policy    string
	Anonymous bool `json:",omitempty"`
	Session   SessionInspection
	// NextAttempt is when the next attempt to connect is due, while connecting.
	NextAttempt time.Time            `json:",omitzero"`
	Transport   *TransportInspection `json:",omitempty"` // while open
	// Queue is the messages that wait to be sent, by priority, the highest first;
	// Control how many control frames do.
	Queue   []QueueInspection `json:",omitempty"`
	Control int               `json:",omitempty"`
	Grants  GrantsInspection
	Calls   int // that we wait for
	Serving int // calls of the peer being handled
	// LastError is why the last transport, or attempt, has ended.
	LastError string `json:",omitempty"`
	Stats     ConnStats
}

// SessionInspection is what both ends of a session agree on.
type SessionInspection struct {
	// ClientCookie and ServerCookie are digests of the two cookies, the same at
	// both ends; "" for none yet.
	ClientCookie, ServerCookie string `json:",omitempty"`
	// GlobalSeq is the number of the transport among all that this messenger has
	// made; PeerGlobalSeq the number that the peer gave its last one. ConnectSeq
	// counts the attempts of this session, as both sides do.
	GlobalSeq, PeerGlobalSeq, ConnectSeq uint64
	// Acked is the last of our messages that the peer has told us to have, AckSent
	// the last of its own that we have told it to have. Compare ConnStats.OutSeq and
	// InSeq.
	Acked, AckSent uint64
	// Replay is how many of ConnStats.UnackedMessages are to be sent again.
	Replay int
}

// QueueInspection is the messages of one priority that wait to be sent.
type QueueInspection struct {
	Priority uint16
	Messages int
	Oldest   time.Duration // since the first of them was queued
}

// GrantsInspection is the one-sided access of both ends to each other's memory.
type GrantsInspection struct {
	// Out is the grants of ours that are live, OutBytes what they are of; Live some
	// of them, at most 20.
	Out      int
	OutBytes int64
	Live     []GrantInspection `json:",omitempty"`
	// In is our Pulls and Pushes under way, by grants of the peer, in pieces;
	// InBytes what they move. Which grants the peer has given is known to whom it
	// has sent them to only.
	In      int
	InBytes int64
	// Serving is the pieces of Pulls and Pushes of the peer, where these travel in
	// frames, that are being answered.
	Serving int `json:",omitempty"`
}

// GrantInspection is one grant of ours.
type GrantInspection struct {
	Owner  string // of the buffer
	Bytes  uint64
	Write  bool `json:",omitempty"`
	Once   bool `json:",omitempty"`
	Framed bool `json:",omitempty"` // see Grant
}

// TransportInspection is the transport of an open connection.
type TransportInspection struct {
	Scheme, Remote string
	Incoming       bool
	Mode           string
	Since          time.Time
	// Holding: we do not read, because throttles or memory are out. Blocked is for
	// how long the peer has not taken the frame that is being sent.
	Holding bool
	Blocked time.Duration
	// Conn is the queue pair's, with its credits; nil for a stream.
	Conn *conn.Inspection `json:",omitempty"`
}

// Inspect returns a snapshot. It locks one connection at a time, each shortly;
// its size is bounded by q.Limit.
func (m *Messenger) Inspect(q InspectQuery) Inspection {
	in := Inspection{
		Name: m.cfg.Name.String(), Nonce: m.nonce.Load(), GlobalSeq: m.globalSeq.Load(), Addrs: texts(m.Addrs()),
		Stats: m.Stats(), Memory: inspectMemory(m.cfg.Arena), Policies: m.inspectPolicies(), Throttles: m.inspectThrottles(),
		Held: m.Held(inspectedHeld),
	}
	for scheme, ep := range m.endpoints {
		e := EndpointInspection{Scheme: scheme, Device: ep.Device().Name(), Stats: ep.Stats()}
		if a := ep.Addr(); a != nil {
			e.Addr = a.String()
		}
		in.Endpoints = append(in.Endpoints, e)
	}
	slices.SortFunc(in.Endpoints, func(a, b EndpointInspection) int { return cmp.Compare(a.Scheme, b.Scheme) })
	in.Connections, in.Next = m.inspectConnections(q)
	return in
}

func (m *Messenger) inspectConnections(q InspectQuery) (page []ConnInspection, next uint64) {
	limit := cmp.Or(q.Limit, inspectedConns)
	m.mu.Lock()
	all := make([]*Connection, 0, len(m.connections))
	for c := range m.connections {
		if c.ID() > q.After {
			all = append(all, c)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b *Connection) int { return cmp.Compare(a.id, b.id) })
	for _, c := range all {
		if !c.matches(q) {
			continue
		}
		if len(page) == limit {
			return page, page[limit-1].ID
		}
		page = append(page, c.inspect())
	}
	return page, 0
}

func (c *Connection) matches(q InspectQuery) bool {
	if q.Peer == "" && q.State == "" {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return (q.Peer == "" || q.Peer == c.peer.String() || q.Peer == c.peerType.String()) && (q.State == "" || q.State == c.state().String())
}

func (c *Connection) inspect() ConnInspection {
	st, _ := c.stats()
	var t transport
	c.mu.Lock()
	now := time.Now()
	s := &c.session
	i := ConnInspection{
		ID: c.ID(), Peer: c.peer.String(), Addrs: texts(c.addrs), Dial: texts(c.dial), State: c.state().String(), Policy: c.policy.String(),
		Anonymous: c.anonymous, Calls: len(c.calls), Serving: len(c.serving), Control: c.queue.control.n,
		Session: SessionInspection{
			ClientCookie: cookieDigest(s.ClientCookie), ServerCookie: cookieDigest(s.ServerCookie),
			PeerGlobalSeq: s.PeerGlobalSeq, ConnectSeq: s.ConnectSeq, Acked: s.Acked, AckSent: s.AckSent, Replay: c.replay.n,
		},
	}
	if c.verified.Num >= 0 && c.verified != c.peer {
		i.Verified = c.verified.String()
	}
	for k := range c.queue.levels {
		l := &c.queue.levels[k]
		if e := l.ring.peek(); e != nil {
			i.Queue = append(i.Queue, QueueInspection{Priority: l.priority, Messages: l.ring.n, Oldest: now.Sub(e.since)})
		}
	}
	if l := c.link; l != nil {
		i.Session.GlobalSeq = l.globalSeq
		i.Transport = l.inspect()
		t = l.transport()
	}
	if c.state() == StateConnecting {
		i.NextAttempt = c.due
	}
	if c.err != nil {
		i.LastError = c.err.Error()
	}
	c.mu.Unlock()
	// Transports have locks under which they call us.
	switch t := t.(type) {
	case *rdmaTransport:
		i.Link = t.c.ID()
		x := t.c.Inspect()
		i.Transport.Conn = &x
		i.Grants.In, i.Grants.InBytes = x.Reads+x.Writes, x.ReadBytes+x.WriteBytes
		t.c.LiveGrants(func(g conn.LiveGrant) {
			i.Grants.add(GrantInspection{Owner: g.Owner, Bytes: uint64(g.Len), Write: g.Write, Once: g.Once})
		})
		t.bulk.inspect(&i.Grants)
	case *streamTransport:
		t.inspect(&i.Grants)
	}
	st.Grants = i.Grants.Out
	i.Stats = st
	return i
}

// inspect describes the link of an open connection.
func (l *link) inspect() *TransportInspection {
	t := &TransportInspection{
		Scheme: l.scheme, Remote: l.remote, Incoming: l.incoming, Since: l.since, Mode: ModeCRC.String(), Holding: l.holding.Load(),
	}
	if l.shield != nil {
		t.Mode = ModeSecure.String()
	}
	if at := l.sending.Load(); at != 0 {
		t.Blocked = max(0, time.Duration(l.m.clock()-at))
	}
	return t
}

func (g *GrantsInspection) add(x GrantInspection) {
	g.Out++
	g.OutBytes += int64(x.Bytes)
	if len(g.Live) < inspectedGrants {
		g.Live = append(g.Live, x)
	}
}

// inspect adds what goes in frames.
func (b *streamBulk) inspect(g *GrantsInspection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.live {
		g.add(GrantInspection{Owner: e.buf.Owner(), Bytes: e.g.Len, Write: e.g.Write, Framed: e.g.Framed})
	}
	g.Serving += b.serving
	for _, p := range b.pulls {
		g.In++
		g.InBytes += p.n
	}
}

func inspectMemory(a *buffer.Arena) MemoryInspection {
	st := a.Stats()
	i := MemoryInspection{Account: st.Account}
	for _, o := range st.Owners {
		if o.Buffers > 0 || o.Quota > 0 {
			i.Owners = append(i.Owners, o)
		}
	}
	for _, h := range a.Oldest(inspectedHeld) {
		i.Oldest = append(i.Oldest, HeldBuffer{Owner: h.Owner, What: h.What, Age: h.Age, Bytes: h.Len, Refs: h.Refs})
	}
	return i
}

func (m *Messenger) inspectPolicies() (all []PolicyInspection) {
	add := func(peers string, p Policy) {
		p = p.withDefaults()
		all = append(all, PolicyInspection{
			Peers: peers, Policy: p.String(), Secure: p.Secure, MaxMessages: p.MaxMessages, MaxBytes: p.MaxBytes,
			QueueMessages: p.QueueMessages, QueueBytes: p.QueueBytes, Supported: p.Supported, Required: p.Required,
		})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for t, p := range m.policies {
		add(t.String(), p)
	}
	slices.SortFunc(all, func(a, b PolicyInspection) int { return cmp.Compare(a.Peers, b.Peers) })
	const none EntityType = 0 // has no policy
	add("others who connect", m.policyFor(none, true))
	add("others", m.policyFor(none, false))
	return all
}

func (m *Messenger) inspectThrottles() (all []ThrottleInspection) {
	now := time.Now()
	add := func(peers, of string, t *throttle) {
		if t != nil {
			i := ThrottleInspection{Peers: peers, Of: of, Max: t.max}
			i.Waiting, i.Longest, i.Taken = t.waits(now)
			all = append(all, i)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, t := range m.perType {
		add(k.t.String(), "messages", t.messages)
		add(k.t.String(), "bytes", t.bytes)
	}
	slices.SortFunc(all, func(a, b ThrottleInspection) int {
		return cmp.Or(cmp.Compare(a.Peers, b.Peers), cmp.Compare(a.Of, b.Of), cmp.Compare(a.Max, b.Max))
	})
	add("all", "bytes", m.dispatchB)
	return all
}

// cookieDigest tells cookies apart, and does not tell them.
func cookieDigest(cookie uint64) string {
	if cookie == 0 {
		return ""
	}
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64([]byte("argonaut cookie "), cookie))
	return hex.EncodeToString(sum[:4])
}

func texts(v AddrVec) []string {
	s := make([]string, len(v))
	for i, a := range v {
		s[i] = a.String()
	}
	return s
}
