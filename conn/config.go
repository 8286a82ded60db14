package conn

import (
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// Config is how an Endpoint works. The zero value is the default; negative
// means off where a field says so.
type Config struct {
	// Pollers is the number of poller goroutines. Default: a quarter of
	// GOMAXPROCS, 1 to 8.
	Pollers int
	// Spin is how long a poller polls without success before it sleeps,
	// counted from the last completion. Default: 20 µs, or none with fewer
	// than 4 processors; negative: none.
	Spin time.Duration

	// RecvSize is the size of a receive buffer in bytes, the largest SEND that
	// the peer may make: 4 KiB to 1 MiB. Default 128 KiB.
	RecvSize int
	// Credits is how many receive buffers a connection has: 8 to 1024. Default
	// 16. Credits times RecvSize is how much a peer can send ahead: more than
	// the path holds only takes cache.
	Credits int
	// StagedCredits is how many of Credits a connection that is accepted has
	// before Conn.Promote: 2 to Credits. What a peer costs that the application
	// does not know yet is bounded by it; RecvBuffers counts all that it may
	// come to have. Default: all.
	StagedCredits int
	// RecvBuffers bounds the receive buffers of all connections; connections
	// that would exceed it are refused. Default: what three quarters of the
	// arena hold when the endpoint is made; negative: no bound but the arena's.
	RecvBuffers int
	// SendDepth is how many SENDs a connection may have under construction or
	// on the queue pair: 8 to 4096. Default 64.
	SendDepth int
	// OpDepth is how many one-sided requests a connection may have on the
	// queue pair: 4 to 4096. Default 32.
	OpDepth int

	// EagerMax is the largest payload in bytes that is sent eagerly where
	// rendezvous is possible. Default: half of what the peer's receive buffers
	// hold, 1 MiB if it has the defaults; negative: none. On a device in
	// software a larger one is not faster: receive buffers are used again while
	// they are in the cache, the memory of a rendezvous is not.
	EagerMax int
	// CopyBreak is the largest payload in bytes that is copied out of its
	// receive buffer, or into the send buffer, instead of being passed on in
	// place. Default 1 KiB; negative: none. Of a payload that comes in several
	// packets, parts that are short beside RecvSize are copied together in any case.
	CopyBreak int
	// MaxMessage is the largest payload in bytes that is accepted; a peer that
	// announces more is at fault. Default 64 MiB, or half of the arena's budget
	// if that is less.
	MaxMessage int64
	// Rendezvous is how many rendezvous a connection has under way in one
	// direction: 1 to 256. Default 8; negative: payload is only ever sent
	// eagerly.
	Rendezvous int

	// Exposed says that the fabric is trusted, and gives the memory that all of
	// it may touch: an arena with buffer.Config.TrustFabric, which NewEndpoint
	// attaches and Shutdown detaches, and which outlives the endpoint. Where the
	// device can not confine a key to a range and a connection, payload of this
	// arena can nevertheless be granted and sent by rendezvous; where it reads
	// only into remotely writable memory (iWARP hardware), payloads are fetched
	// into it. Elsewhere it is an arena like any other. A peer that knows or
	// guesses a key reads and writes all of it, until its connection is gone:
	// Revoke can not prevent that. Default nil: such payload is sent eagerly.
	Exposed *buffer.Arena

	// HandshakeTimeout bounds a handshake, up to the dialer's first frame.
	// Default 10 s.
	HandshakeTimeout time.Duration
	// RendezvousTimeout is how long a peer may take to fetch a payload that it
	// has not said to be waiting with; then the connection fails. Default 30 s;
	// negative: for ever.
	RendezvousTimeout time.Duration
	// DrainTimeout bounds the draining of a queue pair that is being closed
	// before it is destroyed. Default 1 s.
	DrainTimeout time.Duration

	// OnMessage gets each message, in the order in which the peer sent them.
	// It runs on a poller and must not block. Message.Head is borrowed by the
	// callee until it returns; Message.Payload is the callee's reference, nil
	// for an empty payload. nil: messages are dropped.
	OnMessage func(*Conn, Message)
	// OnFault is called exactly once for each Conn that was handed out by Dial
	// or OnAccept, with io.EOF after the peer's goodbye, an error that matches
	// ErrPeerClosed after its Close, one that matches ErrClosed after our own Close
	// or Shutdown, else a *FaultError. It runs on
	// a poller and must not block. No callback of that Conn runs afterwards, but
	// Message.Sent. The peer may still get at what was granted, until Done.
	OnFault func(*Conn, error)
	// OnAccept is asked for each valid connection request, before a queue pair
	// is made for it; false refuses it. It runs on a goroutine of its own, which
	// it may block for HandshakeTimeout at most. The Conn can be sent on at
	// once; what is sent leaves after the peer's first frame. nil: all are
	// accepted.
	OnAccept func(*Conn) bool
	// Admit is asked for each message before its payload is fetched (rendezvous)
	// or the message is delivered (eager). false parks this and all later
	// messages of the connection, and withholds the peer's credits, until
	// Conn.Resume, after which Admit is asked again. It runs on a poller and
	// must not block; head is borrowed until it returns. nil: all are admitted.
	Admit func(c *Conn, head []byte, payload int64) bool

	// OnWritable is called after TrySend has returned false, once it may be worth
	// trying again. It runs on a poller and must not block. May be nil.
	OnWritable func(*Conn)

	// Logger gets what no caller can be told, and at Debug when connections begin
	// and end. Lines about one have Conn.ID as "link". nil: silent.
	Logger *slog.Logger

	// Test hooks: what the device would have to lack.
	noScopedKeys, noSRQ bool
}

// Limits of what Config can ask for, and of what it defaults to.
const (
	minRecvSize, maxRecvSize = 4 << 10, 1 << 20 // bytes; the same in the handshake
	minCredits, maxCredits   = 8, 1024
	minStaged                = 2
	minSendDepth, maxDepth   = 8, 4096
	minOpDepth               = 4
	maxRendezvous            = 256
)

// resolve replaces defaults, and checks ranges. arena is how many bytes there
// are, budget how many there may be, reserve how many of them are not for us.
func (c *Config) resolve(caps *verbs.Caps, arena, budget, reserve int64) error {
	procs := runtime.GOMAXPROCS(0)
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Pollers, min(max(procs/4, 1), 8))
	if c.Spin == 0 && procs >= 4 {
		c.Spin = 20 * time.Microsecond
	}
	c.Spin = max(c.Spin, 0)
	def(&c.RecvSize, 128<<10)
	def(&c.Credits, 16)
	def(&c.StagedCredits, c.Credits)
	c.RecvSize = max(c.RecvSize, 1) // out of range, said below
	def(&c.RecvBuffers, max(int(arena*3/4)/c.RecvSize, c.Credits))
	if c.RecvBuffers < 0 {
		c.RecvBuffers = math.MaxInt
	}
	def(&c.SendDepth, 64)
	def(&c.OpDepth, 32)
	def(&c.CopyBreak, 1<<10)
	// What is copied has to fit into the memory of one send buffer.
	c.CopyBreak = min(max(c.CopyBreak, 0), txSize/2)
	if c.MaxMessage == 0 {
		c.MaxMessage = min(64<<20, budget/2)
	}
	def(&c.Rendezvous, 8)
	c.Rendezvous = max(c.Rendezvous, 0)
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{{&c.HandshakeTimeout, 10 * time.Second}, {&c.RendezvousTimeout, 30 * time.Second}, {&c.DrainTimeout, time.Second}} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	if c.HandshakeTimeout < 0 || c.DrainTimeout < 0 {
		return fmt.Errorf("%w: Config.HandshakeTimeout and DrainTimeout can not be off", verbs.ErrInvalid)
	}
	if c.MaxMessage < 0 {
		return fmt.Errorf("%w: Config.MaxMessage is %d", verbs.ErrInvalid, c.MaxMessage)
	}
	for _, r := range []struct {
		name   string
		v      int
		lo, hi int
	}{
		{"Pollers", c.Pollers, 1, 1024},
		{"RecvSize", c.RecvSize, minRecvSize, maxRecvSize},
		{"Credits", c.Credits, minCredits, maxCredits},
		{"StagedCredits", c.StagedCredits, minStaged, c.Credits},
		{"SendDepth", c.SendDepth, minSendDepth, maxDepth},
		{"OpDepth", c.OpDepth, minOpDepth, maxDepth},
		{"Rendezvous", c.Rendezvous, 0, maxRendezvous},
	} {
		if r.v < r.lo || r.v > r.hi {
			return fmt.Errorf("%w: Config.%s is %d, not %d to %d", verbs.ErrInvalid, r.name, r.v, r.lo, r.hi)
		}
	}
	need, most := int64(c.Credits)*int64(c.RecvSize)+int64(c.SendDepth)*txSize, budget-reserve
	if need > most {
		return fmt.Errorf("%w: a connection takes %d bytes (Config.Credits x RecvSize, and SendDepth x %d), the arena has %d for all (buffer.Config.Budget less Reserve): raise that, or lower these",
			verbs.ErrLimit, need, txSize, most)
	}
	if c.Exposed != nil && !c.Exposed.TrustFabric() {
		return fmt.Errorf("%w: Config.Exposed is an arena without buffer.Config.TrustFabric", verbs.ErrInvalid)
	}
	if n := c.SendDepth + c.OpDepth; n > caps.MaxQPWR {
		return fmt.Errorf("%w: Config.SendDepth + OpDepth is %d, %s allows %d", verbs.ErrLimit, n, caps.Name, caps.MaxQPWR)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
