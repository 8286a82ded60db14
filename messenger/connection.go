package messenger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// Connection is a session with one peer. All methods are safe for concurrent
// use, and may be called from handlers. After it has closed every call that
// needs the peer fails with an error that wraps Err.
type Connection struct {
	m         *Messenger
	id        uint32 // see ID
	peerType  EntityType
	loop      bool // the loopback
	anonymous bool
	keys      []peerKey // its places in Messenger.peers; guarded by Messenger.mu
	strand    strand
	ctx       context.Context // of messages that are no calls; ends with the connection
	cancel    context.CancelFunc
	drainFn   func()        // c.drain, made once
	refusalFn func()        // a refusal has left, made once
	wake      chan struct{} // capacity 1: connect is to look again
	ackTimer  *time.Timer   // acknowledges what nothing else has

	// recvMu is held from the numbering of a received message until it has been
	// dispatched, so that the order stays when a new transport takes over.
	recvMu sync.Mutex

	mu         sync.Mutex
	policy     Policy
	dial       AddrVec // where to connect to, the best first
	session    session.Session
	err        error
	link       *link // not nil: open
	attempt    *link // to the peer, not yet open
	claim      *link // from the peer, being taken in
	due        time.Time
	parted     time.Time     // since when there is no transport; while there is one, of before
	wanted     int           // calls that wait for the connection to be open
	ready      chan struct{} // closed while open, and when closed
	queue      sendQueue
	sent       ring[entry] // lossless: sent, not acknowledged
	replay     ring[entry] // to be sent again, before the queue
	kept       int64       // bytes in sent and replay
	connecting bool        // connect runs
	isReady    bool
	gaveUp     bool         // shutting down: nobody is at the peer's address
	draining   bool         // a goroutine runs drain
	refuse     bool         // no new sends but replies: shutting down
	mute       bool         // no new sends at all
	down       bool         // marked down, or HandleReset was called: nothing is dispatched any more
	ackQueued  bool         // an ACK waits to be sent
	ackArmed   bool         // ackTimer runs
	askOnOpen  bool         // a keepalive is to be sent as soon as the connection is open
	refusals   atomic.Int32 // messages of typeRefused that live; here it fills a gap
	scratch    []byte
	front      []byte
	ackFrame   msgr2.Ack
	unacked    int               // messages received that the peer has not been told of
	unackedB   int64             // their bytes
	waiting    ring[*sendWaiter] // for room in the queue
	flushed    []chan struct{}   // waits for the queue to be empty
	calls      map[uint64]*call
	serving    map[uint64]*Message // calls of the peer that are being handled; nil at rest
	lastTID    uint64
	peer       EntityName
	verified   EntityName // as authentication has it
	addrs      AddrVec
	metAt      int64         // when the peer has told them, or come back, by Messenger.clock: this incarnation was there then
	ours       msgr2.AddrVec // our addresses, as the peer has been told when the session began
	features   uint64
	auth       *authenticated // nil before the peer has agreed to a session
	ackedAt    int64          // the stamp of the last keepalive that was answered, Unix nanoseconds, or 0
	askedAt    int64          // when the last keepalive of the peer came, by Messenger.clock, or 0
	reconnects uint32         // see ConnStats; 32 bits each, so that a Connection is of the class of 1 KiB
	resets     uint32
	givenUp    uint64 // see ConnStats.Undelivered
	user       any
}

func (m *Messenger) newConnection(t EntityType, p Policy) *Connection {
	c := &Connection{
		m: m, id: m.lastConn.Add(1), peerType: t, policy: p.withDefaults(), ready: make(chan struct{}), wake: make(chan struct{}, 1),
		peer: EntityName{t, -1}, verified: EntityName{t, -1},
		session: session.Session{Policy: p.rules(), BackoffMin: m.cfg.BackoffMin, BackoffMax: m.cfg.BackoffMax},
	}
	c.parted = time.Now()
	// A reply to a call of an earlier incarnation matches none of ours.
	c.lastTID = uint64(m.epoch.Load()) << 31
	c.strand.ex, c.strand.handle, c.strand.delays = m.ex, c.handle, c.newDelays()
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.drainFn = c.drain
	c.refusalFn = func() { c.refusals.Add(-1) }
	return c
}

// open makes l, whose handshake has ended, the connection's transport. It is
// called before the link's first message is read.
func (c *Connection) open(l *link, r *hsResult) {
	c.mu.Lock()
	switch {
	case c.session.State != session.Closed && c.claim == l:
		c.session.TakenIn()
		c.claim = nil
	case c.session.State == session.Open && c.attempt == l:
		c.attempt = nil
	default: // another one has taken its place
		c.mu.Unlock()
		l.drop()
		return
	}
	c.link, c.err = l, nil
	c.strand.open()
	what := "session opened"
	c.policy.Lossy = c.session.Policy.Lossy
	if r.resumed {
		what = "session reconnected"
		c.metAt = c.m.clock()
		c.auth = &authenticated{c.auth.id(), r.keys.Identity}
		c.reconnects++
		c.m.n.reconnects.Add(1)
	}
	c.unacked, c.unackedB, c.ackQueued = 0, 0, false
	c.setReady(true)
	if c.askOnOpen {
		c.askOnOpen = false
		c.queue.push(entry{kind: entryKeepalive, since: time.Now()})
	}
	var unknown []*Message
	if l.own == 0 { // the peer does not know them
		if unknown = c.queue.drop(func(e *entry) bool { return e.m.Type >= ReservedTypes }); len(unknown) > 0 {
			c.dropped()
		}
	}
	c.kick()
	c.mu.Unlock()
	releaseAll(unknown)
	c.noteOpen(what, l)
	c.m.n.created.Add(1)
	c.fastHandle(l.incoming)
	if l.incoming {
		c.strand.opened(event{kind: eventAccept})
	} else {
		c.strand.opened(event{kind: eventConnect})
	}
}

// setReady wakes who waits for the connection to be open, or has them wait.
// c.mu is held.
func (c *Connection) setReady(ready bool) {
	if ready == c.isReady {
		return
	}
	if c.isReady = ready; ready {
		close(c.ready)
	} else {
		c.ready = make(chan struct{})
	}
}

// lost tells the session that a link of its has ended.
func (c *Connection) lost(l *link, err error) {
	c.mu.Lock()
	switch {
	case c.session.State == session.Closed:
		c.mu.Unlock()
		return
	case c.link == l:
		c.link = nil
	case c.claim == l:
		c.claim = nil
	default: // an attempt of ours, connect knows; or one that was replaced
		c.mu.Unlock()
		return
	}
	c.fault(err)
}

// fault has the session decide what the loss of its transport leads to. It is
// called with c.mu locked, and unlocks it.
func (c *Connection) fault(err error) {
	stale := c.requeue()
	if c.session.State == session.Open {
		c.parted = time.Now()
	}
	next := c.session.Fault(time.Now(), c.pending())
	switch next.Action {
	case session.GoReset, session.GoAway:
		quiet := c.refuse || next.Action == session.GoAway // shutting down: not a fault
		c.close(err)
		c.note(slog.LevelInfo, "session ended", "err", err)
		if !quiet {
			c.m.n.faults.Add(1)
			c.strand.push(event{kind: eventReset})
		}
	default:
		c.err = err
		c.setReady(false)
		c.due = next.At
		if next.Action == session.GoConnect {
			c.startConnecting()
		}
		c.wakeFlushed()
		c.mu.Unlock()
		c.note(slog.LevelInfo, "session has lost its transport", "err", err)
		c.m.n.faults.Add(1)
	}
	releaseAll(stale)
}

// close ends the session for good. It is called with c.mu locked, and unlocks
// it.
func (c *Connection) close(err error) {
	c.session.Close()
	links := [...]*link{c.link, c.attempt, c.claim}
	c.err, c.link, c.attempt, c.claim = err, nil, nil, nil
	dropped := c.dropAll()
	calls := c.calls
	c.calls = nil
	for _, m := range c.serving {
		m.stop()
	}
	if c.ackTimer != nil {
		c.ackTimer.Stop()
	}
	c.wakeSenders()
	c.wakeFlushed()
	c.setReady(true)
	c.mu.Unlock()
	c.cancel()
	for _, l := range links {
		if l != nil {
			l.drop()
		}
	}
	releaseAll(dropped)
	for _, k := range calls {
		k.ch <- answer{}
	}
	c.m.closed(c)
}

// fatal ends the session for good because of a fault, lossless or not. It is
// called with c.mu locked, and unlocks it.
func (c *Connection) fatal(err error) {
	if c.session.State == session.Closed {
		c.mu.Unlock()
		return
	}
	quiet := c.refuse // shutting down
	c.close(err)
	c.note(slog.LevelInfo, "session ended", "err", err)
	if !quiet {
		c.m.n.faults.Add(1)
		c.strand.push(event{kind: eventReset})
	}
}

// closedErr is what calls return after the end. c.mu is held.
func (c *Connection) closedErr() error {
	// A fault may wrap ErrClosed too, of a transport closed by others.
	switch {
	case c.refuse:
		return errShutDown
	case !errors.As(c.err, new(*FaultError)):
		return errMarkedDown
	}
	return fmt.Errorf("%w: %w", ErrReset, c.err)
}

// Ready blocks until the connection is open, has closed (its error is returned)
// or ctx ends: the error then wraps ctx's and says what the last attempt to
// connect failed with. It takes a connection out of standby.
func (c *Connection) Ready(ctx context.Context) error {
	c.mu.Lock()
	c.wanted++
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.wanted--
	}()
	for {
		if c.session.State == session.Closed {
			defer c.mu.Unlock()
			return c.closedErr()
		}
		if c.link != nil || c.loop {
			c.mu.Unlock()
			return nil
		}
		c.leaveStandby()
		ready := c.ready
		c.mu.Unlock()
		select {
		case <-ready:
		case <-ctx.Done():
			return c.withLast(ctx.Err())
		}
		c.mu.Lock()
	}
}

// withLast adds the failure of the last attempt to connect to err.
func (c *Connection) withLast(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state() == StateConnecting && c.err != nil {
		return fmt.Errorf("%w; still connecting: %w", err, c.err)
	}
	return err
}

// MarkDown ends the connection at once, by our own will: what is queued, or has
// not been acknowledged, is dropped, and no reset callback comes. It does not
// block; handlers that run finish. The peer of a lossless session learns of it
// when it connects again, where its policy checks resets (HandleRemoteReset).
func (c *Connection) MarkDown() {
	if c.loop {
		return
	}
	c.mu.Lock()
	c.down = true
	if c.session.State == session.Closed {
		c.mu.Unlock()
		return
	}
	c.close(ErrClosed)
	c.note(slog.LevelDebug, "session marked down")
}

// MarkDisposable makes the session lossy: with the next fault it is over. What is
// still to be sent, for the first time or again, is sent; what has been is not
// kept any more.
func (c *Connection) MarkDisposable() {
	c.mu.Lock()
	c.policy.Lossy, c.session.Policy.Lossy = true, true
	var kept []*Message // nobody will want them again
	for c.sent.n > 0 {
		e, _ := c.sent.pop()
		kept = append(kept, c.unkeep(&e))
	}
	c.wakeSenders() // there is room
	c.wakeFlushed()
	c.mu.Unlock()
	releaseAll(kept)
}

func (c *Connection) policyNow() Policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.policy
}

// keptPolicy is the policy of a session that a peer which connects again goes on
// with. false: it would be a new one, under the present policy. c.mu is held.
func (c *Connection) keptPolicy() (Policy, bool) {
	return c.policy, c.session.State != session.Closed && c.lossless()
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
// have. Before the peer has agreed to a session the name has no number and features
// are 0.
func (c *Connection) Peer() (EntityName, AddrVec, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer, slices.Clone(c.addrs), c.features
}

// Mode returns how the frames of the connection are protected now; 0 before it is
// open.
func (c *Connection) Mode() Mode {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.loop:
		return ModeSecure // nothing leaves the process
	case c.link == nil:
		return 0
	case c.link.shield != nil:
		return ModeSecure
	}
	return ModeCRC
}

// ID numbers the connections of a messenger. Every line of its log about one has
// it as "conn".
func (c *Connection) ID() uint64 { return uint64(c.id) }

// Messenger returns the messenger that c belongs to.
func (c *Connection) Messenger() *Messenger { return c.m }

// Err is why the connection has closed, or why its last transport, or attempt to
// connect, failed, or nil.
func (c *Connection) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
