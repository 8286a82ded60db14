package messenger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// State is where a Connection stands.
type State uint8

// The states of a Connection.
const (
	StateConnecting State = iota // dialing, in the handshake, or waiting to try again
	StateOpen
	StateStandby // lossless only: waiting for the peer, or for something to send
	StateClosed
)

func (s State) String() string {
	switch s {
	case StateConnecting:
		return "connecting"
	case StateOpen:
		return "open"
	case StateStandby:
		return "standby"
	case StateClosed:
		return "closed"
	}
	return fmt.Sprintf("state%d", uint8(s))
}

// Connection is a session with one peer. All methods are safe for concurrent
// use, and may be called from handlers. After it has closed every call that
// needs the peer fails with an error that wraps Err.
type Connection struct {
	m        *Messenger
	peerType EntityType
	incoming bool
	loop     bool    // the loopback
	key      string  // of an outgoing one in Messenger.outgoing
	dial     AddrVec // where an outgoing one connects to
	strand   strand
	ctx      context.Context // the handlers'; ends with the connection
	cancel   context.CancelFunc
	drainFn  func() // c.drain, made once
	opened   chan struct{}

	mu       sync.Mutex
	policy   Policy
	state    State
	err      error
	link     *link // not nil: open
	session  session
	queue    sendQueue
	draining bool // a goroutine runs drain
	refuse   bool // no new sends: shutting down
	down     bool // marked down: nothing is dispatched any more
	scratch  []byte
	front    []byte
	waiting  ring[*sendWaiter] // for room in the queue
	flushed  []chan struct{}   // waits for the queue to be empty
	calls    map[uint64]*call
	serving  map[uint64]*Message // calls of the peer that are being handled
	lastTID  uint64
	peer     EntityName
	addrs    AddrVec
	features uint64
	ackedAt  time.Time // the stamp of the last keepalive that was answered
	user     any
}

func (m *Messenger) newConnection(t EntityType, p Policy) *Connection {
	c := &Connection{
		m: m, peerType: t, policy: p.withDefaults(), opened: make(chan struct{}),
		peer: EntityName{t, -1}, calls: map[uint64]*call{}, serving: map[uint64]*Message{},
	}
	c.strand.ex, c.strand.handle = m.ex, c.handle
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.drainFn = c.drain
	return c
}

// open makes l the connection's transport. It is called before the link's first
// message is read.
func (c *Connection) open(l *link, r *hsResult) {
	c.mu.Lock()
	if c.state == StateClosed {
		c.mu.Unlock()
		l.drop()
		return
	}
	c.state, c.link, c.err = StateOpen, l, nil
	c.peer, c.features = r.peer, r.features
	c.addrs = nil
	for _, a := range r.addrs {
		c.addrs = append(c.addrs, fromWire(a))
	}
	c.session = session{lossy: c.policy.Lossy}
	close(c.opened)
	c.kick()
	c.mu.Unlock()
	c.m.n.created.Add(1)
	if c.incoming {
		c.strand.push(event{kind: eventAccept})
	} else {
		c.strand.push(event{kind: eventConnect})
	}
}

// lost tells the session that its link has ended.
func (c *Connection) lost(l *link, err error) {
	c.mu.Lock()
	if c.state == StateClosed || c.link != l {
		c.mu.Unlock()
		return
	}
	// Every session is lossy so far: with its transport it is over.
	quiet := c.refuse // shutting down: not a fault
	c.close(err)
	if !quiet {
		c.m.n.faults.Add(1)
		c.strand.push(event{kind: eventReset})
	}
}

// close ends the session for good. It is called with c.mu locked, and unlocks
// it.
func (c *Connection) close(err error) {
	wasConnecting := c.state == StateConnecting
	c.state, c.err, c.link = StateClosed, err, nil
	var dropped []*Message
	for {
		e, ok := c.queue.pop()
		if !ok {
			break
		}
		if e.m != nil {
			dropped = append(dropped, e.m)
		}
	}
	calls := c.calls
	c.calls = nil
	c.wakeSenders()
	c.wakeFlushed()
	if wasConnecting {
		close(c.opened)
	}
	c.mu.Unlock()
	c.cancel()
	for _, m := range dropped {
		m.Release()
	}
	for _, k := range calls {
		k.ch <- nil
	}
	c.m.closed(c)
}

// attemptFailed notes why an attempt to connect has failed; connect goes on.
func (c *Connection) attemptFailed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == StateConnecting {
		c.err = err
	}
}

// closedErr is what calls return after the end. c.mu is held.
func (c *Connection) closedErr() error {
	// A fault may wrap ErrClosed too, of a transport closed by others.
	if c.refuse || !errors.As(c.err, new(*FaultError)) {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrReset, c.err)
}

// Ready blocks until the connection is open, has closed (its error is returned)
// or ctx ends: the error then wraps ctx's and says what the last attempt to
// connect failed with.
func (c *Connection) Ready(ctx context.Context) error {
	select {
	case <-c.opened:
	case <-ctx.Done():
		return c.withLast(ctx.Err())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == StateClosed {
		return c.closedErr()
	}
	return nil
}

// withLast adds the failure of the last attempt to connect to err.
func (c *Connection) withLast(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == StateConnecting && c.err != nil {
		return fmt.Errorf("%w; still connecting: %w", err, c.err)
	}
	return err
}

// SendKeepalive asks the peer for a sign of life. It does not block; see
// LastKeepaliveAck.
func (c *Connection) SendKeepalive() {
	c.sendControl(entry{kind: entryKeepalive, since: time.Now()})
}

// LastKeepaliveAck is when the last keepalive that was answered was sent.
func (c *Connection) LastKeepaliveAck() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ackedAt
}

func (c *Connection) keepaliveAcked(stamp time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if stamp.After(c.ackedAt) {
		c.ackedAt = stamp
	}
}

// MarkDown ends the connection at once, by our own will: what is queued is
// dropped, and no reset callback comes. It does not block; handlers that run
// finish.
func (c *Connection) MarkDown() {
	if c.loop {
		return
	}
	c.mu.Lock()
	if c.state == StateClosed {
		c.down = true
		c.mu.Unlock()
		return
	}
	c.down = true
	l := c.link
	c.close(ErrClosed)
	if l != nil {
		l.drop()
	}
}

// MarkDisposable makes the session lossy: with the next fault it is over.
func (c *Connection) MarkDisposable() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policy.Lossy = true
}

func (c *Connection) policyNow() Policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.policy
}

// SetUser keeps v, the user's session, with the connection.
func (c *Connection) SetUser(v any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.user = v
}

// User returns what SetUser kept, or nil.
func (c *Connection) User() any {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.user
}

// Peer returns the peer's name, its addresses, and Ceph's features that both
// have. Before the connection is open the name has no number and features are
// 0.
func (c *Connection) Peer() (EntityName, AddrVec, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer, slices.Clone(c.addrs), c.features
}

// Messenger returns the messenger that c belongs to.
func (c *Connection) Messenger() *Messenger { return c.m }

// State returns where the connection stands.
func (c *Connection) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Err is why the connection has closed, or why the last attempt to connect
// failed, or nil.
func (c *Connection) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Stats returns the connection's counters and gauges.
func (c *Connection) Stats() ConnStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := ConnStats{
		State: c.state, QueuedMessages: c.queue.messages, QueuedBytes: c.queue.bytes,
		Undispatched: c.strand.len(), OutSeq: c.session.outSeq, InSeq: c.session.inSeq,
		LastKeepaliveAck: c.ackedAt,
	}
	if t := c.queue.oldest(); !t.IsZero() {
		s.OldestQueued = time.Since(t)
	}
	if l := c.link; l != nil {
		s.Transport = l.scheme
		s.LastReceived = time.Unix(0, l.lastReceived.Load())
		if t := l.transport(); t != nil {
			s.Grants = t.grants()
		}
	}
	return s
}
