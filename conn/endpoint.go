package conn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// Endpoint makes and accepts connections on one device, with the memory of one
// arena. All methods are safe for concurrent use.
type Endpoint struct {
	dev   *verbs.Device
	arena *buffer.Arena
	cfg   Config
	caps  verbs.Caps
	log   *slog.Logger
	pd    *verbs.PD

	recvOwner, sendOwner buffer.Owner
	sinks                *buffer.Arena // of payloads that are fetched
	sinkOwner            buffer.Owner
	keys                 buffer.KeyKind // what grants are; wide ones of Config.Exposed only
	useSRQ               bool           // receive buffers are shared
	features             uint32         // wire features that we offer
	readSGE              int            // SGEs of a READ
	maxOp                uint64         // bytes of a one-sided request
	laneConns            int            // connections per lane
	pollers              []*poller
	supplier             *supplier // of receive buffers
	lists                *supplier // of payloads, which may wait for long
	stats                endpointCounters
	lat                  latencies

	life   context.Context // ends when connections are no longer made
	cancel context.CancelFunc
	// stopSuppliers ends the suppliers, for which supplying waits.
	stopSuppliers context.CancelFunc
	supplying     sync.WaitGroup
	wg            sync.WaitGroup // listeners, handshakes, reapers

	shutMu   sync.Mutex // serializes Shutdown; before mu
	closed   bool       // Shutdown has succeeded
	finisher *finisher  // of a Shutdown that left something; nil: none

	mu        sync.Mutex
	closing   bool
	conns     map[*Conn]struct{}
	idle      chan struct{} // not nil: closed when conns is empty
	lanes     []*lane
	listeners []*verbs.Listener
	shared    []*buffer.RegCache
	past      ConnStats // of connections that are gone
}

// NewEndpoint makes an endpoint: it allocates a protection domain on dev,
// attaches a to it and starts the pollers. The device and the arena stay the
// caller's, and outlive the endpoint. Errors: ErrInvalid and ErrLimit (Config
// asks for what is out of range, or more than the device has), those of
// buffer.Arena.Attach, the device's. What it has made by then it gives up again; what
// the device does not let go of is named in the error. A device that fails to is asked
// again for half a second, one that is stuck takes DrainTimeout four times for each arena, and
// its CloseTimeout for each queue.
func NewEndpoint(dev *verbs.Device, a *buffer.Arena, cfg Config) (*Endpoint, error) {
	caps := dev.Caps()
	if a.TrustFabric() {
		return nil, fmt.Errorf("%w: an arena with TrustFabric holds what peers may change at any time: give it as Config.Exposed", verbs.ErrInvalid)
	}
	st := a.Stats()
	if err := cfg.resolve(&caps, st.Total, st.Budget, st.Reserve); err != nil {
		return nil, err
	}
	e := &Endpoint{
		dev: dev, arena: a, cfg: cfg, caps: caps, log: cfg.Logger,
		recvOwner: a.Owner("conn receive", 0), sendOwner: a.Owner("conn send", 0),
		useSRQ:  caps.SRQ && !cfg.noSRQ,
		readSGE: max(caps.MaxReadSGE, 1),
		maxOp:   min(caps.MaxMsgSize, maxOpBytes),
		conns:   make(map[*Conn]struct{}), features: wire.FeatureClose,
	}
	a.Lasting(e.recvOwner) // receive buffers stay posted for as long as the endpoint lives
	e.sinks, e.sinkOwner = a, e.recvOwner
	x := cfg.Exposed
	if x != nil && caps.ReadSinkNeedsRemoteWrite {
		e.sinks, e.sinkOwner = x, x.Owner("conn receive", 0)
	}
	if cfg.Rendezvous > 0 && (!caps.ReadSinkNeedsRemoteWrite || x != nil) {
		e.features |= wire.FeatureRendezvous
	}
	switch {
	case cfg.noScopedKeys:
	case caps.ScopedKeys:
		e.keys = buffer.KeyScoped
	case caps.MW2 && caps.MWConfines:
		e.keys = buffer.KeyWindow
	case x != nil:
		e.keys = buffer.KeyWide
	}
	if n := cfg.SendDepth + cfg.OpDepth + e.bindDepth(); n > caps.MaxQPWR {
		return nil, fmt.Errorf("%w: Config.SendDepth + OpDepth, and %d for windows, is %d, %s allows %d", verbs.ErrLimit, e.bindDepth(), n, caps.Name, caps.MaxQPWR)
	}
	e.laneConns = min(laneConns, caps.MaxCQE/(cfg.SendDepth+cfg.OpDepth+cfg.Credits+e.bindDepth()))
	if e.useSRQ {
		e.laneConns = min(e.laneConns, caps.MaxSRQWR/cfg.Credits)
	}
	if e.laneConns == 0 {
		return nil, fmt.Errorf("%w: Config.SendDepth, OpDepth and Credits of one connection exceed %s's queues (%d completions, %d shared receives)",
			verbs.ErrLimit, caps.Name, caps.MaxCQE, caps.MaxSRQWR)
	}
	var err error
	if e.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	e.life, e.cancel = context.WithCancel(context.Background())
	if err = a.Attach(e.life, e.pd); err == nil && x != nil {
		err = x.Attach(e.life, e.pd)
	}
	for i := 0; i < cfg.Pollers && err == nil; i++ {
		p := &poller{e: e, index: i, done: make(chan struct{})}
		if p.ch, err = dev.CreateCompChannel(); err == nil {
			p.lanes.Store(new([]*lane))
			p.ch.SetUpcall(p.upcall)
			e.pollers = append(e.pollers, p)
		}
	}
	if err != nil {
		e.cancel()
		return nil, errors.Join(err, e.undo())
	}
	for _, p := range e.pollers {
		go p.run()
	}
	e.supplier, e.lists = newSupplier(e), newSupplier(e)
	ctx, stop := context.WithCancel(context.Background())
	e.stopSuppliers = stop
	for _, s := range []*supplier{e.supplier, e.lists} {
		e.supplying.Go(func() { s.run(ctx) })
	}
	return e, nil
}

// undoTries is how often NewEndpoint tries to give up what it has made.
const undoTries = 5

// undo gives up what a NewEndpoint that fails has made, again if need be: nobody else
// knows of it.
func (e *Endpoint) undo() error {
	for try := 1; ; try++ {
		err := errors.Join(e.destroy(context.Background())...)
		if err == nil || try == undoTries || errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*verbs.StuckError)) {
			return err
		}
		time.Sleep(destroyRetry)
	}
}

// Device returns the device.
func (e *Endpoint) Device() *verbs.Device { return e.dev }

// Lost is closed when the device is lost (verbs.Device.Lost): every connection
// ends with a *FaultError that matches verbs.ErrDeviceLost, nobody is listened to
// any more, and Dial fails with it. What is left to do is Shutdown.
func (e *Endpoint) Lost() <-chan struct{} { return e.dev.Lost() }

// Capacity is how many connections Config.RecvBuffers has room for.
func (e *Endpoint) Capacity() int { return e.cfg.RecvBuffers / e.cfg.Credits }

// MaxMessage is the largest payload that the endpoint accepts, in bytes
// (Config.MaxMessage); what a peer accepts is Conn.MaxMessage.
func (e *Endpoint) MaxMessage() int64 { return e.cfg.MaxMessage }

// Arena returns the arena.
func (e *Endpoint) Arena() *buffer.Arena { return e.arena }

// Sinks returns the arena that the payload of large messages comes into: that of
// Config.Exposed where it has to be exposed, else Arena.
func (e *Endpoint) Sinks() *buffer.Arena { return e.sinks }

// PD returns the endpoint's protection domain. Memory of the caller that a
// buffer.RegCache registers there can be sent, and be read and written by peers,
// like the arena's: see Share.
func (e *Endpoint) PD() *verbs.PD { return e.pd }

// Share has Shutdown detach c from the endpoint's PD, which could not be given
// up otherwise before the cache is closed.
func (e *Endpoint) Share(c *buffer.RegCache) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shared = append(e.shared, c)
}

// sinkRights are what memory needs to be read into.
func (e *Endpoint) sinkRights() verbs.Access {
	if e.caps.ReadSinkNeedsRemoteWrite {
		return verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	}
	return verbs.AccessLocalWrite
}

// Addrs are the addresses listened on, with the ports that were bound.
func (e *Endpoint) Addrs() []net.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	var as []net.Addr
	for _, l := range e.listeners {
		as = append(as, netAddr(l.Addr()))
	}
	return as
}

// Addr is the first of Addrs, or nil.
func (e *Endpoint) Addr() net.Addr {
	if as := e.Addrs(); len(as) > 0 {
		return as[0]
	}
	return nil
}

// join makes a Conn, with a place in a lane.
func (e *Endpoint) join(remote string, dialer bool, cancel context.CancelFunc) (*Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return nil, ErrClosed
	}
	if n := (len(e.conns) + 1) * e.cfg.Credits; n > e.cfg.RecvBuffers {
		return nil, fmt.Errorf("%w: %d receive buffers for %d connections, Config.RecvBuffers is %d",
			verbs.ErrLimit, n, len(e.conns)+1, e.cfg.RecvBuffers)
	}
	l, err := e.place()
	if err != nil {
		return nil, err
	}
	c := &Conn{
		id: lastID.Add(1), e: e, l: l, p: l.p, remote: netAddr(remote), dialer: dialer, greet: dialer,
		maxSGE: max(min(e.caps.MaxSGE, maxSendSGE), 2),
		done:   make(chan struct{}), cut: make(chan struct{}),
		setUp: make(chan struct{}), hidden: make(chan struct{}), cancel: cancel, progress: make(chan struct{}, 1),
	}
	if c.rq = l.rq; c.rq == nil {
		c.rq = newRecvQueue(e.pd, e.cfg.Credits, func(wrs []verbs.RecvWR) (int, error) { return c.qp.PostRecv(wrs) })
	}
	c.life, c.die = context.WithCancel(context.Background())
	c.ops.sges = make([]verbs.SGE, 0, max(c.maxSGE, e.readSGE))
	l.members++
	l.p.members++
	e.conns[c] = struct{}{}
	return c, nil
}

// place finds the lane for a further connection: of the poller with the fewest, but
// of one whose channel has failed only if all have, a lane with room, else a new
// one. With e.mu.
func (e *Endpoint) place() (*lane, error) {
	p := e.pollers[0]
	for _, q := range e.pollers[1:] {
		if was, is := p.broken.Load(), q.broken.Load(); was && !is || was == is && q.members < p.members {
			p = q
		}
	}
	for _, l := range *p.lanes.Load() {
		if l.members < e.laneConns && !l.failed.Load() {
			return l, nil
		}
	}
	l, err := e.newLane(p)
	if err != nil {
		return nil, err
	}
	e.lanes = append(e.lanes, l)
	lanes := append(append([]*lane(nil), *p.lanes.Load()...), l)
	p.lanes.Store(&lanes)
	p.wake() // the new queue has to be armed
	return l, nil
}

// retire destroys a lane that has failed, once it has no connection: its receive
// buffers would be out of use until Shutdown. It runs on the poller, between
// batches, which looks at it no more. With e.mu.
func (e *Endpoint) retire(l *lane) {
	is := func(o *lane) bool { return o == l }
	lanes := slices.DeleteFunc(slices.Clone(*l.p.lanes.Load()), is)
	l.p.lanes.Store(&lanes)
	e.lanes = slices.DeleteFunc(e.lanes, is)
	e.wg.Add(1)
	go func() { // ends when the device has destroyed the queues
		defer e.wg.Done()
		if err := errors.Join(l.closeCQ(), l.closeSRQ()); err != nil {
			e.log.Error("destroying queues that have failed", "err", err)
			e.mu.Lock()
			e.lanes = append(e.lanes, l) // Shutdown tries again
			e.mu.Unlock()
		}
	}()
}

// forget ends a connection's part in the endpoint. It runs on the poller.
func (e *Endpoint) forget(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c.l.members--
	c.p.members--
	for _, l := range *c.p.lanes.Load() { // others may have failed when they had no connection any more
		if l.members == 0 && l.failed.Load() {
			e.retire(l)
		}
	}
	delete(e.conns, c)
	e.past.add(c.Stats())
	if len(e.conns) == 0 && e.idle != nil {
		close(e.idle)
		e.idle = nil
	}
}

// hello is what we say of ourselves.
func (e *Endpoint) hello(epoch uint32) wire.Hello {
	return wire.Hello{
		Credits: uint16(e.cfg.Credits), Rendezvous: uint16(e.cfg.Rendezvous), Features: e.features,
		RecvSize: uint32(e.cfg.RecvSize), Epoch: epoch, MaxMessage: uint64(e.cfg.MaxMessage),
	}
}

// agree takes what the peer has said of itself. With c.mu.
func (c *Conn) agree(h wire.Hello) {
	e := c.e
	c.peer, c.epoch = h, h.Epoch
	c.credits, c.rationed = int(h.Credits), h.Credits < h.Most
	c.packetMax = int(h.RecvSize)
	if c.eagerMax = int64(max(e.cfg.EagerMax, 0)); e.cfg.EagerMax == 0 {
		c.eagerMax = int64(h.Most) * int64(h.RecvSize) / 2
	}
	if n := min(e.cfg.Rendezvous, int(h.Rendezvous)); c.canFetch() && e.keys != buffer.KeyNone && n > 0 {
		c.canRndv = true
		c.rndv.sends = make([]rndvSend, n)
	}
}

func newEpoch() uint32 { return rand.Uint32() }

// connect makes the queue pair of a Conn and posts its receives: everything up
// to the handshake. Whoever calls it closes c.setUp when the handshake is over.
func (c *Conn) connect(ctx context.Context) error {
	e := c.e
	if err := c.newTx(ctx, e.cfg.SendDepth); err != nil {
		return err
	}
	cfg := verbs.QPConfig{
		SendCQ: c.l.cq, RecvCQ: c.l.cq, SRQ: c.l.srq,
		MaxSendWR: e.cfg.SendDepth + e.cfg.OpDepth + e.bindDepth(), MaxRecvWR: e.cfg.Credits,
		MaxSendSGE: max(c.maxSGE, 1), MaxRecvSGE: 1, OnEvent: c.event,
	}
	qp, err := e.pd.CreateQP(cfg)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.qp = qp
	c.mu.Unlock()
	c.bell.Store(qp)
	if err := c.l.enter(c); err != nil {
		return err
	}
	return c.l.supply(ctx, c)
}

// handOut makes OnFault due, unless the connection has ended already.
func (c *Conn) handOut() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.Err(); err != nil {
		return err
	}
	c.handed = true
	return nil
}

// param is what we ask of the device for a connection.
func (e *Endpoint) param(h wire.Hello) verbs.ConnParam {
	var b [wire.HelloLen]byte
	h.Put(&b)
	const atATime = 16 // READs: more do not fill the path better
	return verbs.ConnParam{PrivateData: b[:], IRD: min(e.caps.MaxIRD, atATime), ORD: min(e.caps.MaxORD, atATime)}
}
