package conn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// Conn is a connection to one peer: messages in order, both ways, and one-sided
// access to granted memory. All methods are safe for concurrent use, and may be
// called from callbacks unless they block.
//
// Its state is declared here; the files send, credit, recv, rendezvous,
// onesided, complete and close have one kind of event each.
type Conn struct {
	// Set before the connection is used.
	id     uint64
	e      *Endpoint
	l      *lane
	p      *poller
	qp     *verbs.QP                // nil until made
	bell   atomic.Pointer[verbs.QP] // the same, for who has no lock
	rq     *recvQueue               // the lane's, or the QP's own
	wants  int                      // its part of lane.want; guarded by lane.mu
	dialer bool
	remote netAddr
	local  atomic.Pointer[netAddr]

	// Set by the handshake, before anything is sent or received.
	peer      wire.Hello
	epoch     uint32
	packetMax int   // bytes of a SEND
	maxSGE    int   // of a SEND
	eagerMax  int64 // larger payloads go by rendezvous
	canRndv   bool  // we may send by rendezvous

	user        atomic.Pointer[any]
	err         atomic.Pointer[error] // why it ended; set once
	life        context.Context       // ends when err is set
	die         context.CancelFunc
	done        chan struct{} // closed when all is given back
	cut         chan struct{} // closed when a graceful end is not to be waited for any longer
	cutOnce     sync.Once
	progress    chan struct{}         // capacity 1: completions have come since it ended
	cancel      context.CancelFunc    // ends the handshake
	setUp       chan struct{}         // closed when the handshake is over
	hidden      chan struct{}         // closed when completions of the QP do not find it any more
	cause       atomic.Pointer[error] // what the device has told of its end, see because
	mail        atomic.Uint32         // mailBits for the poller
	owed        atomic.Int32          // receives posted since the last packet, in place of data
	owedControl atomic.Int32          // likewise, in place of packets without data
	used        atomic.Int32          // receives that the peer has filled and not got back, or not been given yet
	staged      atomic.Bool           // acceptor: not all have been given yet, see Promote
	known       atomic.Bool           // Promote has been called
	first       *time.Timer           // acceptor: until the dialer's first packet
	stats       connCounters
	moved       atomic.Uint64 // see Progress
	isParked    atomic.Bool

	mu        sync.Mutex // the send lock
	handed    bool       // Dial or OnAccept has handed the Conn out: OnFault is due
	faulted   bool       // OnFault has been, or will never be, called
	open      bool       // may post
	ready     bool       // acceptor: the device has accepted
	spoken    bool       // acceptor: the first packet has come
	greet     bool       // dialer: the first packet is due
	closing   bool       // no new sends: Shutdown, or the peer's goodbye
	shut      bool       // Shutdown
	sentBye   bool
	parkedNow bool // tell the peer that its rendezvous wait for us
	toldPark  bool
	tx        txRing
	out       outgoing
	credits   int  // receive buffers of the peer that we may use
	rationed  bool // it has not given all of them yet: none is kept in reserve
	waiters   waitList
	stall     stall // what the first waiter waits for
	writable  stall // OnWritable is due when one of these is there
	headAsked int   // bytes of the least head that awaitHead waits for memory for; 0: none
	headErr   error // why such a wait has failed, for the next TrySend
	deferring bool  // what is posted now is rung for when mu is unlocked: see unlock
	deferred  bool  // something was
	rndv      rndvRing
	fetched   uint64 // payloads that we fetched from the peer
	told      uint64 // of which we have told it
	keys      keyState
	ops       opTable

	rx rxState // the poller's
}

// stall is what a Send waits for, or several, any of which will do.
type stall uint8

const (
	stallSlots stall = 1 << iota // a free send slot
	stallRndv                    // a free place for a rendezvous

	stallAny = stallSlots | stallRndv // it has not been tried
)

type netAddr string

func (netAddr) Network() string  { return "rdma" }
func (a netAddr) String() string { return string(a) }

// MaxHead is the largest head that can be sent, in bytes.
func (c *Conn) MaxHead() int { return c.packetMax - wire.PacketLen - wire.RecordLen }

// MaxMessage is the largest payload that the peer accepts, in bytes.
func (c *Conn) MaxMessage() int64 { return int64(c.peer.MaxMessage) }

// CanGrant reports whether Grant works on this connection, for any memory:
// whether the device confines remote access to the range and the connection.
// Without it only memory of Config.Exposed can be granted.
func (c *Conn) CanGrant() bool { return c.e.keys == buffer.KeyScoped || c.e.keys == buffer.KeyWindow }

// CanGrantOf reports whether the bytes of l can be granted: any, or those of
// Config.Exposed.
func (c *Conn) CanGrantOf(l *buffer.List) bool { return c.e.keysOf(l) != buffer.KeyNone }

// Grants is how many grants of ours are live.
func (c *Conn) Grants() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, gs := range c.keys.grants {
		n += len(gs)
	}
	return n
}

// Granted reports whether g is a live grant of ours, of this connection.
func (c *Conn) Granted(g Grant) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return g.Epoch == c.epoch && len(c.keys.grants[grantID{g.Addr, g.RKey}]) > 0
}

// ID numbers the connections of the process, from 1 on. Every line of the log
// about one has it as "link".
func (c *Conn) ID() uint64 { return c.id }

// lastID is that of the youngest connection.
var lastID atomic.Uint64

// note writes a line about the connection into the log. It needs no lock.
func (c *Conn) note(level slog.Level, msg string, args ...any) {
	ctx := context.Background()
	if c.e.log.Enabled(ctx, level) {
		c.e.log.Log(ctx, level, msg, append([]any{"link", c.id, "remote", c.remote}, args...)...)
	}
}

// Epoch is the number of this connection that grants carry.
func (c *Conn) Epoch() uint32 { return c.epoch }

// Endpoint returns the endpoint.
func (c *Conn) Endpoint() *Endpoint { return c.e }

// SetUser keeps v for the layer above.
func (c *Conn) SetUser(v any) { c.user.Store(&v) }

// User returns what SetUser kept, or nil.
func (c *Conn) User() any {
	if p := c.user.Load(); p != nil {
		return *p
	}
	return nil
}

// LocalAddr is our address; empty until connected.
func (c *Conn) LocalAddr() net.Addr {
	if p := c.local.Load(); p != nil {
		return *p
	}
	return netAddr("")
}

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// Err is why the connection ended, as OnFault gets it, or nil while it lives.
func (c *Conn) Err() error {
	if p := c.err.Load(); p != nil {
		return *p
	}
	return nil
}

// Done is closed once the connection has ended, OnFault has returned, and every
// reference that it held has been given back.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Resume asks Admit again for a message that it has refused. It does not block.
func (c *Conn) Resume() { c.kick(mailResume) }

// Shutdown ends the connection gracefully: it refuses new sends, flushes what
// was accepted, says goodbye, and waits until the peer has closed; when ctx ends
// first, the connection is cut, and the error, which matches ctx's, tells what it
// was waiting for; that takes a multiple of Config.DrainTimeout at most. Where the
// queue pair is not gone by then the error matches ErrNotDestroyed, too, and Done
// tells when it is. It blocks, so it must not be called from a callback.
func (c *Conn) Shutdown(ctx context.Context) error {
	c.startShutdown()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	err := c.unfinished(ctx.Err())
	c.abort()
	t := time.NewTimer(c.e.cutTime())
	defer t.Stop()
	select {
	case <-c.done:
		return err
	case <-t.C:
		return errors.Join(err, c.stuck())
	}
}

// unfinished says what a shutdown that ends with err was still waiting for.
func (c *Conn) unfinished(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var what []string
	if n := int(c.tx.built - c.tx.posted); n > 0 || c.out.list != nil {
		what = append(what, fmt.Sprintf("SENDs waiting for the peer's receive buffers: %d", n))
	}
	if n := c.rndv.count(); n > 0 {
		s := fmt.Sprintf("payloads not fetched: %d", n)
		if c.rndv.parked {
			s += fmt.Sprintf(" (for %v the peer has had no memory for them, or not admitted them)", time.Since(c.rndv.progress).Round(time.Millisecond))
		}
		what = append(what, s)
	}
	if len(what) == 0 {
		what = []string{"the peer has not closed its side"}
	}
	return fmt.Errorf("connection to %s is cut: %s: %w", c.remote, strings.Join(what, ", "), err)
}

// startShutdown refuses new sends and has the poller say goodbye once all is
// flushed.
func (c *Conn) startShutdown() {
	c.mu.Lock()
	c.closing, c.shut = true, true
	c.waiters.wakeAll()
	c.mu.Unlock()
	c.kick(mailSettle)
}

// Close ends the connection at once; what was accepted may not arrive. The peer
// is told (ErrPeerClosed), as far as the path lets it, unless Promote is still
// due. It does not block; Done tells when all is given back. Waiting calls end
// with ErrClosed. A further Close returns nil.
func (c *Conn) Close() error {
	c.abort()
	return nil
}

func (c *Conn) abort() {
	c.fail(ErrClosed)
	c.cutOnce.Do(func() { close(c.cut) })
}
